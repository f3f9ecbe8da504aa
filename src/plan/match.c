/* SPDX-License-Identifier: Apache-2.0 */
/* Which source streams hold something of which target streams. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* What was found of a target stream so far; the worst wins. */
typedef enum match_fate {
    MATCH_MISSING, /* no source has it */
    MATCH_APART,   /* sources have it, but other parts of it */
    MATCH_MET,     /* a source has some of what the target wants */
    MATCH_DIFFERS  /* a source has it in another form */
} match_fate;

/* The intersection of the two boxes; false if it is empty. The axes agree by name. */
static bool intersect(const kvferry_stream *source, const kvferry_stream *target,
                      bool paged, kvferry_range *box)
{
    for (uint32_t i = 0; i < target->axis_count; i++) {
        const kvferry_axis *mine = &target->axes[i];
        if (paged && layout_is_token_axis(mine)) {
            box[i] = (kvferry_range){0, 0};
            continue;
        }
        const kvferry_axis *theirs = layout_find_axis(source, mine->name);
        uint64_t start = base_max(mine->start, theirs->start);
        uint64_t end = base_min(mine->start + mine->extent, theirs->start + theirs->extent);
        if (start >= end)
            return false;
        box[i] = (kvferry_range){start, end - start};
    }
    return true;
}

static kvferry_status add_holding(plan_holdings *holdings, uint32_t source, uint32_t source_stream,
                                  uint32_t target_stream, const kvferry_layout *from,
                                  const kvferry_layout *to, match_fate *fate)
{
    const kvferry_stream *theirs = kvferry_layout_stream(from, source_stream);
    const kvferry_stream *mine = kvferry_layout_stream(to, target_stream);
    bool paged = kvferry_layout_group(to, mine->group)->kind == KVFERRY_GROUP_PAGED;
    kvferry_range *box =
        base_arena_alloc(&holdings->arena, mine->axis_count, sizeof(kvferry_range));
    if (!box)
        return KVFERRY_NO_MEMORY;
    if (!intersect(theirs, mine, paged, box))
        return KVFERRY_OK;
    if (!base_grow((void **)&holdings->items, &holdings->capacity, holdings->count + 1,
                   sizeof(plan_holding)))
        return KVFERRY_NO_MEMORY;
    holdings->items[holdings->count++] = (plan_holding){source, source_stream, target_stream, box};
    *fate = (match_fate)base_max(*fate, MATCH_MET);
    return KVFERRY_OK;
}

typedef struct match_job {
    const kvferry_layout *target;
    match_fate *fates; /* per target stream */
    size_t *refusals;
    kvferry_report *report;
} match_job;

static kvferry_status match_source(match_job *job, const kvferry_layout *source, uint32_t index,
                                   plan_holdings *holdings)
{
    uint32_t targets = kvferry_layout_stream_count(job->target);
    for (uint32_t i = 0; i < targets; i++) {
        kvferry_policy policy = kvferry_layout_stream(job->target, i)->policy;
        match_fate *fate = &job->fates[i];
        uint32_t theirs;
        if (policy == KVFERRY_POLICY_LOCAL ||
            !layout_match_stream(source, job->target, i, &theirs))
            continue;
        *fate = (match_fate)base_max(*fate, MATCH_APART);
        bool optional = policy == KVFERRY_POLICY_OPTIONAL;
        if (!layout_stream_differences(source, theirs, job->target, i,
                                       optional ? NULL : job->report)) {
            *fate = MATCH_DIFFERS;
            *job->refusals += !optional;
            continue;
        }
        kvferry_status status =
            add_holding(holdings, index, theirs, i, source, job->target, fate);
        if (status != KVFERRY_OK)
            return status;
    }
    return KVFERRY_OK;
}

static void report_missing(match_job *job)
{
    uint32_t targets = kvferry_layout_stream_count(job->target);
    for (uint32_t i = 0; i < targets; i++) {
        const kvferry_stream *stream = kvferry_layout_stream(job->target, i);
        if (stream->policy != KVFERRY_POLICY_REQUIRED || job->fates[i] >= MATCH_MET)
            continue;
        (*job->refusals)++;
        base_where where = {.worker = layout_worker_text(job->target),
                            .layer = stream->layer,
                            .stream = stream->name};
        if (job->fates[i] == MATCH_MISSING)
            base_report_add(job->report, "stream_missing", &where, "a source worker that holds it",
                            "none", "the target requires a stream that no source has");
        else
            base_report_add(job->report, "coverage_hole", &where, "the target's part of it",
                            "other parts only",
                            "the sources do not hold all that the target requires");
    }
}

static int compare_holdings(const void *a, const void *b)
{
    const plan_holding *left = a, *right = b;
    if (left->target_stream != right->target_stream)
        return left->target_stream < right->target_stream ? -1 : 1;
    return left->source < right->source ? -1 : left->source > right->source;
}

/* Forgets the holdings of streams that differ, and groups the rest by target stream. */
static void settle(plan_holdings *holdings, const match_fate *fates)
{
    size_t kept = 0;
    for (size_t i = 0; i < holdings->count; i++)
        if (fates[holdings->items[i].target_stream] == MATCH_MET)
            holdings->items[kept++] = holdings->items[i];
    holdings->count = kept;
    if (kept)
        qsort(holdings->items, kept, sizeof(plan_holding), compare_holdings);
}

kvferry_status plan_match(const kvferry_layout *const *sources, size_t source_count,
                          const kvferry_layout *target, plan_holdings *holdings, size_t *refusals,
                          kvferry_report *report)
{
    match_job job = {.target = target, .refusals = refusals, .report = report};
    job.fates = base_alloc(kvferry_layout_stream_count(target), sizeof(*job.fates));
    kvferry_status status = job.fates ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    for (size_t i = 0; i < source_count && status == KVFERRY_OK; i++)
        status = match_source(&job, sources[i], (uint32_t)i, holdings);
    if (status == KVFERRY_OK) {
        report_missing(&job);
        settle(holdings, job.fates);
    }
    free(job.fates);
    return status;
}
