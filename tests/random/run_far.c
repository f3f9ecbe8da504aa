/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "random.h"

#define FAR UINT64_C(0x123456789abc)

typedef struct expansion {
    kvferry_copy *copies;
    size_t count;
    kvferry_status status;
} expansion;

static expansion expand(const kvferry_plan *plan, size_t source, const kvferry_request *request)
{
    expansion made = {0};
    size_t bound = kvferry_plan_expand_bound(plan, source, request);
    made.copies = calloc(bound + 1, sizeof *made.copies);
    if (!made.copies)
        abort();
    made.status = kvferry_plan_expand(plan, source, request, made.copies, bound, &made.count, NULL);
    return made;
}

static bool same_copies(const expansion *near, const expansion *far)
{
    if (near->status != KVFERRY_OK || far->status != KVFERRY_OK || near->count != far->count)
        return false;
    for (size_t i = 0; i < near->count; i++) {
        const kvferry_copy *a = &near->copies[i], *b = &far->copies[i];
        if (a->source_offset + FAR != b->source_offset || a->bytes != b->bytes ||
            a->target_offset + FAR != b->target_offset || a->source_segment != b->source_segment ||
            a->target_segment != b->target_segment)
            return false;
    }
    return true;
}

static void compare_plans(const random_spec *spec, const kvferry_plan *near,
                          const kvferry_plan *far, const kvferry_layout *target,
                          random_finding *finding)
{
    for (int r = 0; r < spec->request_count; r++) {
        built_request built;
        if (spec->requests[r].dropped)
            continue;
        build_request(spec, r, target, &built);
        for (size_t s = 0; s < kvferry_plan_source_count(near); s++) {
            expansion a = expand(near, s, &built.request), b = expand(far, s, &built.request);
            if (!same_copies(&a, &b))
                finding_set(finding, "far", "request r%d, source %zu: %zu copies, %zu far away", r,
                            s, a.count, b.count);
            free(a.copies);
            free(b.copies);
        }
    }
}

static kvferry_plan *make_plan(const built_side *sources, const kvferry_layout *target)
{
    kvferry_plan *plan = NULL;
    kvferry_plan_create((const kvferry_layout *const *)sources->layouts, sources->count, target,
                        &plan, NULL);
    return plan;
}

void run_far(const random_spec *spec, const built_side sides[2], random_finding *finding)
{
    random_spec moved = *spec;
    built_side far[2] = {{0}, {0}};
    kvferry_plan *plans[MAX_WORKERS] = {NULL};
    moved.far = FAR;
    if (!build_side(&moved, SOURCE, &far[SOURCE], NULL) ||
        !build_side(&moved, TARGET, &far[TARGET], NULL))
        finding_set(finding, "far_refused", "the documents are refused in segments of terabytes");
    for (size_t t = 0; t < far[TARGET].count; t++)
        plans[t] = make_plan(&far[SOURCE], far[TARGET].layouts[t]);
    built_side_free(&far[SOURCE]);
    built_side_free(&far[TARGET]);
    for (size_t t = 0; t < sides[TARGET].count && !finding->what[0]; t++) {
        kvferry_plan *near = make_plan(&sides[SOURCE], sides[TARGET].layouts[t]);
        if (near && plans[t])
            compare_plans(spec, near, plans[t], sides[TARGET].layouts[t], finding);
        else
            finding_set(finding, "far_refused", "target %zu", t);
        kvferry_plan_free(near);
    }
    for (size_t t = 0; t < MAX_WORKERS; t++)
        kvferry_plan_free(plans[t]);
}
