/* SPDX-License-Identifier: Apache-2.0 */
/* Block pools as an engine's scheduler keeps them: one table per group for all workers; an id belongs to one
 * group at a time where groups share bytes; the null block is never given out. */
#include "demo.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_LONGEST = 4 }; /* ids that follow one another in a shuffled pool, up or down */

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators) */
uint64_t demo_random_next(demo_random *random)
{
    uint64_t x = random->state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t demo_random_below(demo_random *random, uint64_t limit)
{
    return limit ? demo_random_next(random) % limit : 0;
}

static uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* --- groups ---------------------------------------------------------------------------------- */

static demo_group *find_group(const demo_pools *pools, const char *name)
{
    for (size_t i = 0; i < pools->group_count; i++)
        if (strcmp(pools->groups[i].name, name) == 0)
            return &pools->groups[i];
    return NULL;
}

/* A stage may list a group of which it holds no layer. */
static bool group_has_streams(const kvferry_layout *layout, uint32_t group)
{
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++)
        if (kvferry_layout_stream(layout, i)->group == group)
            return true;
    return false;
}

/* Adds the groups of one worker that no earlier one had; totals are the least over all workers. */
static void add_groups(demo_pools *pools, const kvferry_layout *layout)
{
    for (uint32_t i = 0; i < kvferry_layout_group_count(layout); i++) {
        if (!group_has_streams(layout, i))
            continue;
        const kvferry_group *group = kvferry_layout_group(layout, i);
        uint64_t blocks = kvferry_layout_group_blocks(layout, i);
        demo_group *known = find_group(pools, group->name);
        if (known) {
            demo_pool *pool = &pools->pools[known->pool];
            pool->total = (size_t)least(pool->total, blocks);
            continue;
        }
        size_t index = pools->group_count++;
        pools->groups = tool_grow(pools->groups, pools->group_count, sizeof *pools->groups);
        pools->pools = tool_grow(pools->pools, pools->group_count, sizeof *pools->pools);
        pools->groups[index] = (demo_group){group->name,   group->kind,       group->block_tokens,
                                            group->window, group->null_block, index};
        pools->pools[index] = (demo_pool){.total = (size_t)least(blocks, UINT32_MAX)};
    }
}

/* Pool `from` becomes a part of pool `to`. */
static void join(demo_pools *pools, size_t from, size_t to)
{
    if (from == to)
        return;
    for (size_t i = 0; i < pools->group_count; i++)
        if (pools->groups[i].pool == from)
            pools->groups[i].pool = to;
    pools->pools[to].total = (size_t)least(pools->pools[to].total, pools->pools[from].total);
    pools->pools[from].total = 0;
}

static void join_shared(demo_pools *pools, const kvferry_layout *layout)
{
    uint32_t count = kvferry_layout_group_count(layout);
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = 0; b < a; b++) {
            const demo_group *one = find_group(pools, kvferry_layout_group(layout, a)->name);
            const demo_group *other = find_group(pools, kvferry_layout_group(layout, b)->name);
            if (one && other && kvferry_layout_groups_share(layout, a, b))
                join(pools, one->pool, other->pool);
        }
}

/* --- ids ------------------------------------------------------------------------------------- */

static bool is_null(const demo_pools *pools, size_t pool, uint64_t id)
{
    for (size_t i = 0; i < pools->group_count; i++)
        if (pools->groups[i].pool == pool && pools->groups[i].null_block == (int64_t)id)
            return true;
    return false;
}

static void fill_ids(const demo_pools *pools, size_t index, demo_random *random)
{
    demo_pool *pool = &pools->pools[index];
    size_t *starts = tool_alloc(pool->total + 1, sizeof *starts), runs = 0;
    for (size_t id = 0; id < pool->total; id += 1 + demo_random_below(random, RUN_LONGEST))
        starts[runs++] = id;
    starts[runs] = pool->total;
    size_t *order = tool_alloc(runs + 1, sizeof *order);
    for (size_t i = 0; i < runs; i++) { /* the inside-out shuffle */
        size_t j = (size_t)demo_random_below(random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    pool->ids = tool_alloc(pool->total + 1, sizeof *pool->ids);
    for (size_t i = 0; i < runs; i++) {
        size_t first = starts[order[i]], end = starts[order[i] + 1];
        bool down = demo_random_below(random, 2);
        for (size_t k = first; k < end; k++) {
            size_t id = down ? end - 1 - (k - first) : k;
            if (!is_null(pools, index, id))
                pool->ids[pool->free++] = (uint32_t)id;
        }
    }
    pool->total = pool->free;
    free(order);
    free(starts);
}

static uint32_t take_id(demo_pool *pool)
{
    uint32_t id = pool->ids[pool->first];
    pool->first = (pool->first + 1) % pool->total;
    pool->free--;
    return id;
}

void demo_pools_create(const tool_side *side, demo_random *random, demo_pools *pools)
{
    *pools = (demo_pools){0};
    for (size_t i = 0; i < side->count; i++)
        add_groups(pools, side->layouts[i]);
    for (size_t i = 0; i < side->count; i++)
        join_shared(pools, side->layouts[i]);
    for (size_t i = 0; i < pools->group_count; i++)
        fill_ids(pools, i, random);
}

void demo_pools_free(demo_pools *pools)
{
    for (size_t i = 0; i < pools->group_count; i++)
        free(pools->pools[i].ids);
    free(pools->pools);
    free(pools->groups);
    *pools = (demo_pools){0};
}

/* --- how much fits --------------------------------------------------------------------------- */

/* Blocks of one group for `tokens` tokens from the first one on, at most. */
static uint64_t blocks_needed(const demo_group *group, uint64_t tokens, uint64_t before)
{
    if (group->kind != KVFERRY_GROUP_PAGED)
        return 1;
    uint64_t all = ceil_div(tokens, group->block_tokens);
    if (group->window == 0)
        return all;
    return least(all, ceil_div(group->window + before, group->block_tokens) + 1);
}

static bool hold(const demo_pools *pools, uint64_t tokens, uint64_t share)
{
    for (size_t pool = 0; pool < pools->group_count; pool++) {
        uint64_t needed = 0;
        for (size_t i = 0; i < pools->group_count; i++)
            if (pools->groups[i].pool == pool)
                needed += blocks_needed(&pools->groups[i], tokens, pools->before);
        if (needed > pools->pools[pool].free / share)
            return false;
    }
    return true;
}

uint64_t demo_pools_most(const demo_pools *pools, uint64_t share, uint64_t limit)
{
    uint64_t fits = 0, fails = limit + 1;
    while (fails - fits > 1) {
        uint64_t middle = fits + (fails - fits) / 2;
        if (hold(pools, middle, share))
            fits = middle;
        else
            fails = middle;
    }
    return fits;
}

/* --- tables ---------------------------------------------------------------------------------- */

/* As vLLM keeps a window: blocks wholly before it are null. */
static void take_paged(demo_pools *pools, const demo_group *group, demo_extent extent,
                       demo_table *table)
{
    uint64_t size = group->block_tokens;
    uint64_t own = group->window + extent.before;
    uint64_t kept = group->window && extent.tokens > own ? extent.tokens - own : 0;
    table->first_token = ceil_div(extent.first, size) * size;
    if (group->null_block < 0 && table->first_token < kept / size * size)
        table->first_token = kept / size * size;
    if (table->first_token >= extent.tokens)
        return;
    table->count = (size_t)ceil_div(extent.tokens - table->first_token, size);
    table->blocks = tool_alloc(table->count, sizeof *table->blocks);
    for (size_t i = 0; i < table->count; i++) {
        bool dropped = table->first_token + (i + 1) * size <= kept;
        table->blocks[i] = dropped ? (uint32_t)group->null_block
                                   : take_id(&pools->pools[group->pool]);
    }
}

/* One live block, behind none to two that are null already, as vLLM lists states. */
static void take_single(demo_pools *pools, const demo_group *group, demo_random *random,
                        demo_table *table)
{
    size_t nulls = 0;
    if (group->kind == KVFERRY_GROUP_STATE && group->null_block >= 0)
        nulls = (size_t)demo_random_below(random, 3);
    table->count = nulls + 1;
    table->blocks = tool_alloc(table->count, sizeof *table->blocks);
    for (size_t i = 0; i < nulls; i++)
        table->blocks[i] = (uint32_t)group->null_block;
    table->blocks[nulls] = take_id(&pools->pools[group->pool]);
}

void demo_tables_take(demo_pools *pools, demo_extent extent, demo_random *random,
                      demo_tables *tables)
{
    tables->items = tool_alloc(pools->group_count, sizeof *tables->items);
    tables->count = 0;
    for (size_t i = 0; i < pools->group_count; i++) {
        const demo_group *group = &pools->groups[i];
        if (group->kind != KVFERRY_GROUP_PAGED && extent.first >= extent.tokens)
            continue;
        demo_table *table = &tables->items[tables->count++];
        table->group = tool_text("%s", group->name);
        if (group->kind == KVFERRY_GROUP_PAGED)
            take_paged(pools, group, extent, table);
        else
            take_single(pools, group, random, table);
    }
}

void demo_tables_give_back(demo_pools *pools, const demo_tables *tables)
{
    for (size_t i = 0; i < tables->count; i++) {
        const demo_table *table = &tables->items[i];
        const demo_group *group = find_group(pools, table->group);
        demo_pool *pool = &pools->pools[group->pool];
        for (size_t b = 0; b < table->count; b++)
            if ((int64_t)table->blocks[b] != group->null_block) {
                pool->ids[(pool->first + pool->free) % pool->total] = table->blocks[b];
                pool->free++;
            }
    }
}

void demo_tables_free(demo_tables *tables)
{
    for (size_t i = 0; i < tables->count; i++) {
        free(tables->items[i].group);
        free(tables->items[i].blocks);
    }
    free(tables->items);
    *tables = (demo_tables){0};
}
