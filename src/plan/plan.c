/* SPDX-License-Identifier: Apache-2.0 */
/* Making a plan, and looking at it. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

static const char *worker_place(const kvferry_worker *worker)
{
    return base_format("dp%u pp%u tp%u", worker->dp_rank, worker->pp_rank, worker->tp_rank);
}

static bool same_ranks(const kvferry_worker *a, const kvferry_worker *b)
{
    return a->dp_rank == b->dp_rank && a->pp_rank == b->pp_rank && a->tp_rank == b->tp_rank;
}

static size_t check_workers(const kvferry_layout *const *sources, size_t source_count,
                            kvferry_report *report)
{
    size_t refusals = 0;
    if (source_count == 0) {
        refusals++;
        base_report_add(report, "no_sources", NULL, "at least one source worker", "none",
                        "a plan needs a source engine");
    }
    for (size_t i = 0; i < source_count; i++) {
        const kvferry_worker *worker = kvferry_layout_worker(sources[i]);
        for (size_t k = 0; k < i; k++) {
            if (!same_ranks(worker, kvferry_layout_worker(sources[k])))
                continue;
            refusals++;
            base_report_add(report, "worker_duplicate",
                            &(base_where){.worker = layout_worker_text(sources[i])},
                            "each worker of the source engine once",
                            base_format("%s in sources %zu and %zu", worker_place(worker), k, i),
                            "two source documents describe the same worker");
            break;
        }
    }
    return refusals;
}

/* What is kept of a document's groups. */
static plan_group *keep_groups(base_arena *arena, const kvferry_layout *layout)
{
    uint32_t count = kvferry_layout_group_count(layout);
    plan_group *groups = base_arena_alloc(arena, count, sizeof(*groups));
    for (uint32_t i = 0; groups && i < count; i++) {
        const kvferry_group *group = kvferry_layout_group(layout, i);
        groups[i] = (plan_group){.name = base_arena_strdup(arena, group->name),
                                 .kind = group->kind,
                                 .block_tokens = group->block_tokens,
                                 .window = group->window,
                                 .blocks = kvferry_layout_group_blocks(layout, i),
                                 .null_block = group->null_block};
        if (!groups[i].name)
            return NULL;
    }
    return groups;
}

static kvferry_status keep_target(kvferry_plan *plan, const kvferry_layout *target)
{
    uint32_t count = kvferry_layout_group_count(target);
    plan->group_count = count;
    plan->groups = keep_groups(&plan->arena, target);
    plan->share = base_arena_alloc(&plan->arena, (size_t)count * count, sizeof(bool));
    plan->worker = base_arena_strdup(&plan->arena, layout_worker_text(target));
    if (!plan->groups || !plan->share || !plan->worker)
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        plan->groups[i].first_bit = plan->scratch_bits;
        /* Ids have 32 bits, whatever the pool. */
        uint64_t ids = base_min(plan->groups[i].blocks, (uint64_t)UINT32_MAX + 1);
        plan->scratch_bits += base_ceil_div(ids, 64) * 64;
        for (uint32_t k = 0; k < count; k++)
            plan->share[(size_t)i * count + k] = kvferry_layout_groups_share(target, i, k);
    }
    return KVFERRY_OK;
}

static kvferry_status keep_sources(kvferry_plan *plan, const kvferry_layout *const *sources)
{
    for (size_t i = 0; i < plan->source_count; i++) {
        plan_source *source = &plan->sources[i];
        source->group_count = kvferry_layout_group_count(sources[i]);
        source->groups = keep_groups(&plan->arena, sources[i]);
        source->worker = base_arena_strdup(&plan->arena, layout_worker_text(sources[i]));
        if (!source->groups || !source->worker)
            return KVFERRY_NO_MEMORY;
    }
    return KVFERRY_OK;
}

static kvferry_status compile_all(kvferry_plan *plan, const kvferry_layout *const *sources,
                                  const kvferry_layout *target)
{
    base_arena scratch = {0};
    plan_rows rows;
    plan_obstacles obstacles = {0};
    kvferry_status status = plan_rows_create(target, &scratch, &rows);
    for (size_t i = 0; i < plan->source_count && status == KVFERRY_OK; i++)
        status = plan_compile(plan, i, sources[i], &rows, &obstacles);
    free(obstacles.spans);
    base_arena_free(&scratch);
    return status;
}

/* Match, intersect, assign, prove. */
static kvferry_status decide(kvferry_plan *plan, const kvferry_layout *const *sources,
                             const kvferry_layout *target, kvferry_report *report)
{
    size_t refusals = check_workers(sources, plan->source_count, report);
    for (size_t i = 0; i < plan->source_count; i++)
        refusals += !layout_identity_differences(sources[i], target, report);
    plan_holdings holdings = {0};
    kvferry_status status =
        plan_match(sources, plan->source_count, target, &holdings, &refusals, report);
    if (status == KVFERRY_OK)
        status = plan_assign(plan, sources, target, &holdings, &refusals, report);
    free(holdings.items);
    base_arena_free(&holdings.arena);
    return status == KVFERRY_OK && refusals ? KVFERRY_REFUSED : status;
}

kvferry_status kvferry_plan_create(const kvferry_layout *const *sources, size_t source_count,
                                   const kvferry_layout *target, kvferry_plan **plan,
                                   kvferry_report *report)
{
    if ((!sources && source_count) || !target || !plan)
        return KVFERRY_INVALID;
    for (size_t i = 0; i < source_count; i++)
        if (!sources[i])
            return KVFERRY_INVALID;
    kvferry_plan *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->source_count = source_count;
    made->sources = base_alloc(source_count, sizeof(*made->sources));
    kvferry_status status =
        made->sources ? decide(made, sources, target, report) : KVFERRY_NO_MEMORY;
    if (status == KVFERRY_OK)
        status = keep_target(made, target);
    if (status == KVFERRY_OK)
        status = keep_sources(made, sources);
    if (status == KVFERRY_OK)
        status = compile_all(made, sources, target);
    if (status == KVFERRY_OK)
        *plan = made;
    else
        kvferry_plan_free(made);
    return status;
}

void kvferry_plan_free(kvferry_plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; plan->sources && i < plan->source_count; i++) {
        free(plan->sources[i].pieces);
        free(plan->sources[i].pairs);
    }
    free(plan->sources);
    base_arena_free(&plan->arena);
    free(plan);
}

size_t kvferry_plan_source_count(const kvferry_plan *plan) { return plan ? plan->source_count : 0; }

size_t kvferry_plan_piece_count(const kvferry_plan *plan, size_t source)
{
    return plan && source < plan->source_count ? plan->sources[source].piece_count : 0;
}

const kvferry_piece *kvferry_plan_piece(const kvferry_plan *plan, size_t source, size_t index)
{
    return index < kvferry_plan_piece_count(plan, source) ? &plan->sources[source].pieces[index]
                                                          : NULL;
}
