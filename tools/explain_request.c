/* SPDX-License-Identifier: Apache-2.0 */
/* A typical request between the two sides: block tables, and what its copies come to. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

/* The block tables of one side. */
typedef struct tables {
    kvferry_block_table *tables;
    uint32_t **blocks; /* one array a group */
} tables;

/* The ids of an id space, in the order in which groups take them. */
typedef struct pool {
    uint32_t *ids;
    size_t count, used;
} pool;

/* A request on one side: its tokens, and how many before a window have blocks, too. */
typedef struct extent {
    uint64_t tokens, before;
} extent;

/* The first token that a table has: of the window and what is before it, down to a block's first. */
static uint64_t first_token(const explain_group *group, extent request)
{
    uint64_t kept = group->window + request.before; /* a document's numbers are below 2^63 */
    uint64_t start = group->window && kept < request.tokens ? request.tokens - kept : 0;
    return group->kind == KVFERRY_GROUP_PAGED ? start / group->block_tokens * group->block_tokens : 0;
}

static uint64_t block_count(const explain_group *group, extent request)
{
    if (group->kind != KVFERRY_GROUP_PAGED)
        return 1;
    uint64_t span = request.tokens - first_token(group, request);
    return span / group->block_tokens + (span % group->block_tokens != 0);
}

/* A fixed sequence: the same answer on every run. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static pool make_pool(const explain_side *side, size_t space, uint64_t limit, uint64_t seed)
{
    uint64_t blocks = limit;
    for (size_t g = 0; g < side->group_count; g++)
        if (side->groups[g].id_space == space && side->groups[g].blocks < blocks)
            blocks = side->groups[g].blocks;
    pool made = {.ids = tool_alloc(blocks, sizeof(*made.ids))};
    for (uint64_t id = 0; id < blocks; id++) {
        bool null = false;
        for (size_t g = 0; g < side->group_count; g++)
            null = null || (side->groups[g].id_space == space &&
                            side->groups[g].null_block == (int64_t)id);
        if (!null)
            made.ids[made.count++] = (uint32_t)id;
    }
    uint64_t random = seed;
    for (size_t i = made.count; seed && i > 1; i--) {
        size_t j = next_random(&random) % i;
        uint32_t swap = made.ids[i - 1];
        made.ids[i - 1] = made.ids[j];
        made.ids[j] = swap;
    }
    return made;
}

static int pool_too_small(const explain_side *side, const explain_group *group, uint64_t needed,
                          uint64_t left)
{
    char *expected = tool_text("a request that fits the %s side's pool, where group %s has %s blocks "
                               "left of %s",
                               side->title, group->name, tool_number(left),
                               tool_number(group->blocks));
    char *found = tool_text("one of %s blocks", tool_number(needed));
    int status = tool_misuse("--tokens", expected, found);
    free(found);
    free(expected);
    return status;
}

/* No id is past 2^32, and no more are needed than there are tokens and groups. A seed of 0 leaves the ids in order. */
static int make_tables(const explain_side *side, extent request, uint64_t seed, tables *made)
{
    int status = TOOL_GO_ON;
    uint64_t limit = request.tokens + side->group_count + 65536;
    limit = limit < UINT32_MAX ? limit : UINT32_MAX;
    pool *pools = tool_alloc(side->group_count, sizeof(*pools));
    made->tables = tool_alloc(side->group_count, sizeof(*made->tables));
    made->blocks = tool_alloc(side->group_count, sizeof(*made->blocks));
    for (size_t g = 0; g < side->group_count && status == TOOL_GO_ON; g++) {
        const explain_group *group = &side->groups[g];
        pool *from = &pools[group->id_space];
        if (!from->ids)
            *from = make_pool(side, group->id_space, limit, seed);
        uint64_t count = block_count(group, request);
        if (count > from->count - from->used) {
            status = pool_too_small(side, group, count, from->count - from->used);
            break;
        }
        made->blocks[g] = tool_alloc(count, sizeof(**made->blocks));
        memcpy(made->blocks[g], from->ids + from->used, count * sizeof(**made->blocks));
        from->used += count;
        made->tables[g] = (kvferry_block_table){group->name, first_token(group, request),
                                                made->blocks[g], count};
    }
    for (size_t g = 0; g < side->group_count; g++)
        free(pools[g].ids);
    free(pools);
    return status;
}

static void free_tables(const explain_side *side, tables *made)
{
    for (size_t g = 0; made->blocks && g < side->group_count; g++)
        free(made->blocks[g]);
    free(made->blocks);
    free(made->tables);
}

static int count_pair(explain *all, size_t target, size_t source, const kvferry_request *request,
                      explain_count *count, kvferry_report *report)
{
    const kvferry_plan *plan = all->plans[target];
    size_t bound = kvferry_plan_expand_bound(plan, source, request), copies = 0;
    kvferry_copy *buffer = tool_alloc(bound, sizeof(*buffer));
    kvferry_status status = kvferry_plan_expand(plan, source, request, buffer, bound, &copies, report);
    for (size_t i = 0; i < copies; i++)
        count->bytes += buffer[i].bytes;
    count->copies = copies;
    free(buffer);
    return tool_check_status(status, "expanding the request", &all->reasons, report, NULL);
}

static int count_order(explain *all, int order, const kvferry_request *request)
{
    size_t sources = all->source.workers.count, targets = all->target.workers.count;
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    all->counts[order] = tool_alloc(sources * targets, sizeof(**all->counts));
    for (size_t i = 0; i < sources * targets && status == TOOL_GO_ON; i++) {
        explain_count *count = &all->counts[order][i];
        status = count_pair(all, i / sources, i % sources, request, count, report);
        all->total[order].copies += count->copies;
        all->total[order].bytes += count->bytes;
    }
    kvferry_report_free(report);
    return status;
}

/* Bytes of the cells that hold a wanted token: a partial last state is one. */
static uint64_t wanted_bytes(const explain *all, size_t target, const kvferry_piece *piece)
{
    const kvferry_layout *layout = all->target.workers.layouts[target];
    const kvferry_stream *stream = kvferry_layout_stream(layout, piece->target_stream);
    const kvferry_group *group = kvferry_layout_group(layout, stream->group);
    if (group->kind != KVFERRY_GROUP_PAGED)
        return piece->state_bytes;
    uint64_t start = group->window && group->window < all->tokens ? all->tokens - group->window : 0;
    if (all->whole_blocks)
        start -= start % group->block_tokens;
    uint64_t first = start / stream->tokens_per_state;
    uint64_t end = (all->tokens + stream->tokens_per_state - 1) / stream->tokens_per_state;
    return (end - first) * piece->state_bytes;
}

/* Whether every id space has as many blocks as its groups need, the null block apart. */
static bool fits(const explain_side *side, extent request)
{
    for (size_t space = 0; space < side->group_count; space++) {
        uint64_t needed = 1, blocks = UINT64_MAX;
        for (size_t g = 0; g < side->group_count; g++) {
            if (side->groups[g].id_space != space)
                continue;
            needed += block_count(&side->groups[g], request);
            blocks = side->groups[g].blocks < blocks ? side->groups[g].blocks : blocks;
        }
        if (needed > blocks)
            return false;
    }
    return true;
}

/* The target's tables have their first block whole in any case; the source's have to go back as far as it may. */
static extent extent_of(const explain *all, const explain_side *side)
{
    extent request = {.tokens = all->tokens};
    const explain_side *target = &all->target;
    for (size_t g = 0; all->whole_blocks && side != target && g < target->group_count; g++)
        if (target->groups[g].window && target->groups[g].block_tokens > request.before)
            request.before = target->groups[g].block_tokens;
    return request;
}

int explain_request_count(explain *all)
{
    int status = TOOL_GO_ON;
    const explain_side *from = &all->source, *to = &all->target;
    for (; !all->tokens_given && all->tokens > 1; all->tokens /= 2)
        if (fits(from, extent_of(all, from)) && fits(to, extent_of(all, to)))
            break;
    for (int order = 0; order < EXPLAIN_ORDERS && status == TOOL_GO_ON; order++) {
        tables source = {0}, target = {0};
        /* Two sequences: ids that lie side by side on both sides would be no shuffle. */
        bool shuffled = order == EXPLAIN_SHUFFLED;
        status = make_tables(from, extent_of(all, from), shuffled ? 0x9e3779b97f4a7c15u : 0, &source);
        if (status == TOOL_GO_ON)
            status = make_tables(to, extent_of(all, to), shuffled ? 0xbf58476d1ce4e5b9u : 0, &target);
        const kvferry_request request = {.transfer_id = "explain",
                                         .source_tokens = all->tokens,
                                         .target_tokens = all->tokens,
                                         .source = source.tables,
                                         .source_count = all->source.group_count,
                                         .target = target.tables,
                                         .target_count = all->target.group_count,
                                         .whole_blocks = all->whole_blocks};
        if (status == TOOL_GO_ON)
            status = count_order(all, order, &request);
        free_tables(&all->source, &source);
        free_tables(&all->target, &target);
    }
    for (size_t t = 0; t < all->target.workers.count; t++)
        for (size_t s = 0; s < all->source.workers.count; s++)
            for (size_t i = 0; i < kvferry_plan_piece_count(all->plans[t], s); i++)
                all->wanted += wanted_bytes(all, t, kvferry_plan_piece(all->plans[t], s, i));
    return status;
}
