/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/slice.h"

#include <stdlib.h>
#include <string.h>

#include "plan/expand.h"

kvferry_status plan_slice_check(const kvferry_plan *plan, size_t source, const kvferry_request *request,
                                kvferry_report *report)
{
    const expand_job job = {plan, &plan->sources[source], request, report};
    uint64_t *scratch = base_alloc(expand_scratch(plan), sizeof(kvferry_copy));
    if (!scratch)
        return KVFERRY_NO_MEMORY;
    bool fine = expand_check(&job, scratch);
    free(scratch);
    return fine ? KVFERRY_OK : KVFERRY_REFUSED;
}

/* NULL: the plan has none of the name. */
static const plan_group *find_group(const kvferry_plan *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->group_count; i++)
        if (strcmp(plan->groups[i].name, name) == 0)
            return &plan->groups[i];
    return NULL;
}

/* `count` blocks of `table` from `first` on; all of it where the group is not paged. */
static void cut(const plan_group *group, const kvferry_request *request, const kvferry_block_table *table,
                size_t first, size_t count, plan_slice *slice)
{
    slice->table = *table;
    if (group && group->kind == KVFERRY_GROUP_PAGED) {
        slice->table.first_token += first * group->block_tokens;
        slice->table.blocks += first;
        slice->table.block_count = count;
    }
    slice->request = *request;
    slice->request.target = &slice->table;
    slice->request.target_count = 1;
}

static uint64_t copies_of(const kvferry_plan *plan, size_t source, const plan_slice *slice)
{
    const expand_job job = {plan, &plan->sources[source], &slice->request, NULL};
    return expand_copies(&job);
}

/* What the limit is of `all` by the share: at least one. */
static size_t share(size_t count, uint64_t limit, uint64_t all)
{
    double part = (double)count * ((double)limit / (double)all);
    return part < 1 ? 1 : (size_t)part;
}

/* How many blocks from the cursor on make at most `copies` of the `all` copies that the rest makes. */
static size_t fit(const kvferry_plan *plan, size_t source, const kvferry_request *request, const plan_cursor *cursor,
                  const plan_group *group, uint64_t copies, uint64_t all)
{
    const kvferry_block_table *table = &request->target[cursor->table];
    size_t left = table->block_count - cursor->block;
    if (all <= copies || !group || group->kind != KVFERRY_GROUP_PAGED)
        return left;
    plan_slice tried;
    size_t count = base_min(left, share(left, copies, all));
    for (; count > 1; count -= base_max(count / 8, 1)) {
        cut(group, request, table, cursor->block, count, &tried);
        if (copies_of(plan, source, &tried) <= copies)
            break;
    }
    return count;
}

bool plan_slice_next(const kvferry_plan *plan, size_t source, const kvferry_request *request, uint64_t copies,
                     plan_cursor *cursor, plan_slice *slice)
{
    while (cursor->table < request->target_count) {
        const kvferry_block_table *table = &request->target[cursor->table];
        const plan_group *group = find_group(plan, table->group);
        size_t left = table->block_count - cursor->block;
        cut(group, request, table, cursor->block, left, slice);
        uint64_t made = left ? copies_of(plan, source, slice) : 0;
        if (!made) {
            *cursor = (plan_cursor){.table = cursor->table + 1};
            continue;
        }
        size_t count = fit(plan, source, request, cursor, group, copies, made);
        cut(group, request, table, cursor->block, count, slice);
        cursor->block += count;
        made = copies_of(plan, source, slice);
        slice->bound = (size_t)base_max(made, expand_scratch(plan));
        if (made) /* else a window has left these behind */
            return true;
    }
    return false;
}

bool plan_slice_next_sum(const kvferry_plan *plan, size_t source, size_t piece, const kvferry_request *request,
                         uint64_t bytes, plan_cursor *cursor, plan_slice *slice)
{
    const kvferry_piece *what = kvferry_plan_piece(plan, source, piece);
    const plan_group *group = what ? &plan->groups[plan->sources[source].pairs[piece].target_group] : NULL;
    const kvferry_block_table *table =
        group ? expand_table(request->target, request->target_count, group->name) : NULL;
    size_t left = table ? table->block_count - cursor->block : 0;
    if (!left)
        return false;
    /* No more states than tokens. */
    uint64_t block_bytes, tokens = base_max(group->block_tokens, 1);
    if (!base_mul(what->state_bytes, tokens, &block_bytes))
        block_bytes = UINT64_MAX;
    bool paged = group->kind == KVFERRY_GROUP_PAGED;
    uint64_t fits = base_max(bytes / base_max(block_bytes, 1), 1);
    size_t count = paged ? (size_t)base_min(left, fits) : left;
    cut(group, request, table, cursor->block, count, slice);
    cursor->block += count;
    if (!base_mul(paged ? block_bytes : what->state_bytes, paged ? count : 1, &slice->bytes))
        slice->bytes = UINT64_MAX;
    return true;
}
