/* SPDX-License-Identifier: Apache-2.0 */
/* Block pools and requests of the demo, on small layouts made here. */
#include "test.h"

#include <string.h>

#include "../../tools/demo.h"

/* Two paged groups (one with a window) and a state group in the same rows, and a ring of its own. */
static kvferry_layout *make_layout(uint64_t blocks, uint64_t block_tokens, uint64_t window_block)
{
    kvferry_layout_builder *builder;
    kvferry_worker worker = {.tp_size = 1, .pp_size = 1, .dp_size = 1};
    kvferry_identity identity = {"m", "", ""};
    assert_int_equal(kvferry_layout_builder_create("e", &worker, &identity, &builder), KVFERRY_OK);
    kvferry_layout_builder_segment(builder, "kv", blocks * 1024);
    kvferry_layout_builder_segment(builder, "ring", 8 * 64);
    const kvferry_group groups[] = {
        {"attn", KVFERRY_GROUP_PAGED, block_tokens, 0, 0},
        {"window", KVFERRY_GROUP_PAGED, window_block, 10, 0},
        {"state", KVFERRY_GROUP_STATE, 0, 0, 0},
        {"ring", KVFERRY_GROUP_RING, 0, 0, -1},
    };
    for (uint32_t i = 0; i < 4; i++) {
        bool paged = groups[i].kind == KVFERRY_GROUP_PAGED, own = i == 3;
        kvferry_axis axis = {.name = paged ? "token" : "slot",
                             .extent = paged ? groups[i].block_tokens : 1,
                             .stride = 16};
        kvferry_stream stream = {.layer = groups[i].name,
                                 .name = "s",
                                 .dtype = "uint8",
                                 .group = kvferry_layout_builder_group(builder, &groups[i]),
                                 .segment = own ? 1 : 0,
                                 .pages = own ? 8 : blocks,
                                 .page_stride = own ? 64 : 1024,
                                 .cell_bytes = 16,
                                 .axes = &axis,
                                 .axis_count = 1};
        kvferry_layout_builder_stream(builder, &stream);
    }
    kvferry_layout *layout = NULL;
    kvferry_report *report = tool_report();
    if (kvferry_layout_builder_finish(builder, &layout, report) != KVFERRY_OK)
        fail_msg("%s", kvferry_report_get(report, 0)->message);
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
    return layout;
}

static const demo_table *find_table(const demo_tables *tables, const char *group)
{
    for (size_t i = 0; i < tables->count; i++)
        if (strcmp(tables->items[i].group, group) == 0)
            return &tables->items[i];
    fail_msg("no table of %s", group);
    return NULL;
}

/* Live blocks of a table behind its nulls. */
static size_t live(const demo_table *table, uint32_t null_block)
{
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++)
        count += table->blocks[i] != null_block;
    return count;
}

/* Pools of one worker: 40 shared blocks with null block 0, 8 rings. */
typedef struct fixture {
    kvferry_layout *layout;
    demo_pools pools;
    demo_random random;
} fixture;

static fixture make_fixture(void)
{
    fixture made = {.layout = make_layout(40, 16, 4), .random = {5}};
    tool_side side = {.layouts = &made.layout, .count = 1};
    demo_pools_create(&side, &made.random, &made.pools);
    return made;
}

static void free_fixture(fixture *made)
{
    demo_pools_free(&made->pools);
    kvferry_layout_free(made->layout);
}

static void groups_that_share_have_one_pool(void **state)
{
    (void)state;
    fixture made = make_fixture();
    assert_int_equal(made.pools.group_count, 4);
    const demo_group *groups = made.pools.groups;
    assert_int_equal(groups[0].pool, groups[1].pool);
    assert_int_equal(groups[0].pool, groups[2].pool);
    assert_int_not_equal(groups[0].pool, groups[3].pool);
    assert_int_equal(made.pools.pools[groups[0].pool].total, 39); /* without the null block */
    assert_int_equal(made.pools.pools[groups[3].pool].total, 8);  /* without any */
    free_fixture(&made);
}

static void tables_by_hand(void **state)
{
    (void)state;
    fixture made = make_fixture();
    demo_tables tables;
    demo_tables_take(&made.pools, (demo_extent){.tokens = 37}, &made.random, &tables);
    assert_int_equal(tables.count, 4);
    const demo_table *attn = find_table(&tables, "attn"), *window = find_table(&tables, "window");
    assert_int_equal(attn->count, 3); /* 37 tokens in blocks of 16 */
    assert_int_equal(live(attn, 0), 3);
    /* Tokens 27..36 are wanted: blocks 0..5 of four tokens end at 24, block 6 begins there. */
    assert_int_equal(window->count, 10);
    assert_int_equal(live(window, 0), 4);
    assert_int_equal(window->blocks[5], 0);
    assert_int_not_equal(window->blocks[6], 0);
    assert_int_equal(live(find_table(&tables, "state"), 0), 1);
    assert_int_equal(find_table(&tables, "ring")->count, 1);
    demo_tables_give_back(&made.pools, &tables);
    demo_tables_free(&tables);

    /* With 16 tokens before the window: of tokens 11..36. */
    demo_tables_take(&made.pools, (demo_extent){.tokens = 37, .before = 16}, &made.random, &tables);
    window = find_table(&tables, "window");
    assert_int_equal(live(window, 0), 8);
    assert_int_equal(window->blocks[1], 0);
    assert_int_not_equal(window->blocks[2], 0);
    demo_tables_give_back(&made.pools, &tables);
    demo_tables_free(&tables);

    /* A prefix of 32 tokens is there: the window's blocks before it are not even listed. */
    demo_tables_take(&made.pools, (demo_extent){.tokens = 37, .first = 32}, &made.random, &tables);
    assert_int_equal(find_table(&tables, "attn")->first_token, 32);
    assert_int_equal(find_table(&tables, "attn")->count, 1);
    assert_int_equal(find_table(&tables, "window")->first_token, 32);
    assert_int_equal(live(find_table(&tables, "window"), 0), 2);
    assert_int_equal(live(find_table(&tables, "state"), 0), 1);
    demo_tables_free(&tables);

    /* All is there: empty tables of paged groups, no state. */
    demo_tables_take(&made.pools, (demo_extent){.tokens = 37, .first = 37}, &made.random, &tables);
    assert_int_equal(tables.count, 2);
    assert_int_equal(tables.items[0].count + tables.items[1].count, 0);
    assert_int_equal(find_table(&tables, "attn")->first_token, 48);
    assert_int_equal(find_table(&tables, "window")->first_token, 40);
    demo_tables_free(&tables);
    free_fixture(&made);
}

/* 39 blocks: a state, at most 4 of the window (10 tokens in blocks of 4), the rest attention. */
static void how_much_fits(void **state)
{
    (void)state;
    fixture made = make_fixture();
    assert_int_equal(demo_pools_most(&made.pools, 1, 100000), (39 - 1 - 4) * 16);
    assert_int_equal(demo_pools_most(&made.pools, 1, 100), 100);
    assert_int_equal(demo_pools_most(&made.pools, 3, 100000), (13 - 1 - 4) * 16);
    assert_int_equal(demo_pools_most(&made.pools, 9, 100000), 0); /* eight rings only */
    made.pools.before = 16;
    assert_int_equal(demo_pools_most(&made.pools, 1, 100000), (39 - 1 - 8) * 16);
    free_fixture(&made);
}

static void mark(const demo_tables *tables, const char *group, unsigned char *used, uint64_t null_block)
{
    const demo_table *table = find_table(tables, group);
    for (size_t i = 0; i < table->count; i++) {
        if (table->blocks[i] == null_block)
            continue;
        assert_int_equal(used[table->blocks[i]], 0);
        used[table->blocks[i]] = 1;
    }
}

/* Of the requests in flight together no two own a block, over all groups that share bytes. */
static void check_exclusive(const demo_schedule *schedule, int role)
{
    for (uint32_t wave = 0; wave < schedule->waves; wave++) {
        unsigned char used[64] = {0}, rings[8] = {0};
        for (size_t i = 0; i < schedule->count; i++) {
            const demo_request *request = &schedule->requests[i];
            if (request->wave != wave)
                continue;
            mark(&request->tables[role], "attn", used, 0);
            mark(&request->tables[role], "window", used, 0);
            if (request->kind == DEMO_FULL_HIT && role == DEMO_DECODE)
                continue;
            mark(&request->tables[role], "state", used, 0);
            mark(&request->tables[role], "ring", rings, UINT32_MAX);
        }
    }
}

/* Of a request that wants whole blocks the source has all of the first one of the target's window. */
static void check_whole(const demo_request *request)
{
    uint64_t start = request->tokens > 10 ? (request->tokens - 10) / 8 * 8 : 0;
    const demo_table *source = find_table(&request->tables[DEMO_PREFILL], "window");
    if (!request->whole_blocks || request->hit > start)
        return;
    assert_int_equal(source->first_token, 0);
    for (uint64_t token = start; token < request->tokens; token++)
        assert_int_not_equal(source->blocks[token / 4], 0);
}

static void schedules(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        kvferry_layout *layouts[DEMO_ROLES] = {make_layout(40, 16, 4), make_layout(64, 8, 8)};
        tool_side sides[DEMO_ROLES] = {{.layouts = &layouts[0], .count = 1},
                                       {.layouts = &layouts[1], .count = 1}};
        demo_config config = {.seed = seed, .requests = 23};
        demo_schedule schedule;
        assert_int_equal(demo_schedule_make(&config, sides, &schedule), TOOL_GO_ON);
        assert_int_equal(schedule.count, 23);
        unsigned kinds = 0, whole = 0;
        for (size_t i = 0; i < schedule.count; i++) {
            const demo_request *request = &schedule.requests[i];
            kinds |= 1u << request->kind;
            whole += request->whole_blocks;
            check_whole(request);
            assert_int_equal(request->prompt, request->tokens + (request->kind != DEMO_ONE_TOKEN));
            assert_true(request->hit <= request->tokens);
            assert_true(request->kind == DEMO_FULL_HIT || request->hit % 8 == 0);
        }
        assert_int_equal(kinds, (1u << (DEMO_FULL_HIT + 1)) - 1);
        assert_true(whole > 0 && whole < schedule.count);
        check_exclusive(&schedule, DEMO_PREFILL);
        check_exclusive(&schedule, DEMO_DECODE);
        demo_schedule_free(&schedule);
        kvferry_layout_free(layouts[0]);
        kvferry_layout_free(layouts[1]);
    }
}

/* Ids come in runs, but not in order. */
static void shuffled(void **state)
{
    (void)state;
    fixture made = make_fixture();
    const demo_pool *pool = &made.pools.pools[made.pools.groups[0].pool];
    size_t follow = 0;
    unsigned char seen[40] = {0};
    for (size_t i = 0; i < pool->total; i++) {
        assert_int_equal(seen[pool->ids[i]]++, 0);
        follow += i > 0 && pool->ids[i] == pool->ids[i - 1] + 1;
    }
    assert_true(follow > 5 && follow < 38);
    free_fixture(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_that_share_have_one_pool), cmocka_unit_test(tables_by_hand),
        cmocka_unit_test(how_much_fits), cmocka_unit_test(schedules),
        cmocka_unit_test(shuffled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
