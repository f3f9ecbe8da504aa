/* SPDX-License-Identifier: Apache-2.0 */
/* Documents that are allowed and that no engine writes every day. */
#include "plan/test_layouts.h"

static kvferry_copy copies[4096];

#define REQUEST(count, from, to)                                                                   \
    {                                                                                              \
        .source_tokens = (count), .target_tokens = (count), .source = (from),                      \
        .source_count = sizeof(from) / sizeof((from)[0]), .target = (to),                          \
        .target_count = sizeof(to) / sizeof((to)[0])                                               \
    }

/* Heads [first, first + count) of three, in the one page of a pool. */
static kvferry_layout *one_page(uint32_t rank, uint64_t first, uint64_t count)
{
    kvferry_layout_builder *builder = test_builder(rank, 2, 0, 1);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 100);
    uint32_t group = kvferry_layout_builder_group(
        builder, &(kvferry_group){"state", KVFERRY_GROUP_STATE, 0, 0, -1});
    const kvferry_axis axes[] = {{"head", first, count, 3, 10}};
    kvferry_layout_builder_stream(
        builder, &(kvferry_stream){.layer = "l", .name = "ssm", .dtype = "uint8", .group = group,
                                   .segment = segment, .pages = 1, .cell_bytes = 10, .axes = axes,
                                   .axis_count = 1});
    return test_finish(builder);
}

/* Both hold the middle head, and the second one sends it: the first sends what is around it. */
static void test_a_page_without_a_stride_has_no_row(void **state)
{
    (void)state;
    kvferry_layout *sources[] = {one_page(0, 0, 3), one_page(1, 1, 1)};
    kvferry_layout *target = one_page(1, 0, 3);
    kvferry_plan *plan = test_plan(sources, 2, target);
    const kvferry_block_table table[] = {TABLE("state", 0, 0)};
    const kvferry_request request = REQUEST(5, table, table);
    assert_int_equal(test_expand(plan, 0, &request, copies), 2);
    ASSERT_COPY(copies[0], 0, 0, 10);
    ASSERT_COPY(copies[1], 20, 20, 10);
    assert_int_equal(test_expand(plan, 1, &request, copies), 1);
    ASSERT_COPY(copies[0], 0, 10, 10);
    kvferry_plan_free(plan);
    kvferry_layout_free(target);
    kvferry_layout_free(sources[0]);
    kvferry_layout_free(sources[1]);
}

/* Group "a" shares its first segment with "b", block by block. In the second one, `stride` apart,
 * the blocks of "b" lie between the cells of "a". */
static kvferry_layout *sharing(uint64_t offset, uint64_t stride)
{
    kvferry_layout_builder *builder = test_builder(0, 1, 0, 1);
    uint32_t shared = kvferry_layout_builder_segment(builder, "shared", 1000);
    uint32_t mixed = kvferry_layout_builder_segment(builder, "mixed", 1000);
    uint32_t a = test_paged(builder, "a", 1, 0);
    uint32_t b = test_one_block(builder, "b", KVFERRY_GROUP_STATE);
    const kvferry_axis token[] = {{"token", 0, 1, 1, 0}};
    const kvferry_stream streams[] = {
        {.layer = "l0", .name = "k", .group = a, .segment = shared, .pages = 10, .page_stride = 100},
        {.layer = "l1", .name = "ssm", .group = b, .segment = shared, .pages = 4, .page_stride = 100},
        {.layer = "l2", .name = "k", .group = a, .segment = mixed, .pages = 10, .page_stride = 100},
        {.layer = "l2", .name = "v", .group = a, .segment = mixed, .offset = 50, .pages = 10,
         .page_stride = 100},
        {.layer = "l3", .name = "ssm", .group = b, .segment = mixed, .offset = offset, .pages = 4,
         .page_stride = stride}};
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        kvferry_stream stream = streams[i];
        stream.dtype = "uint8";
        stream.cell_bytes = 10;
        if (stream.group == a) {
            stream.axes = token;
            stream.axis_count = 1;
        }
        kvferry_layout_builder_stream(builder, &stream);
    }
    return test_finish(builder);
}

static size_t expand_sharing(uint64_t offset, uint64_t stride)
{
    kvferry_layout *layout = sharing(offset, stride);
    kvferry_plan *plan = test_plan(&layout, 1, layout);
    kvferry_layout_free(layout);
    const kvferry_block_table table[] = {TABLE("a", 0, 2)};
    const kvferry_request request = REQUEST(1, table, table);
    size_t count = test_expand(plan, 0, &request, copies);
    ASSERT_COPY(copies[0], 200, 200, 10);
    ASSERT_COPY(copies[1], 200, 200, count == 2 ? 60 : 10);
    kvferry_plan_free(plan);
    return count;
}

/* A block that lies in another block's row may be another request's. */
static void test_only_equal_ids_are_carried_over(void **state)
{
    (void)state;
    assert_int_equal(expand_sharing(20, 100), 2); /* block 2 in row 2 */
    assert_int_equal(expand_sharing(20, 200), 3); /* block 1 in row 2 */
    assert_int_equal(expand_sharing(120, 100), 3);
}

/* A stage that lists both groups of its engine and has the streams of one. */
static kvferry_layout *stage(uint32_t rank)
{
    kvferry_layout_builder *builder = test_builder(0, 1, rank, 2);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 1000);
    const uint32_t groups[] = {test_one_block(builder, "first", KVFERRY_GROUP_STATE),
                               test_one_block(builder, "second", KVFERRY_GROUP_STATE)};
    kvferry_layout_builder_stream(
        builder, &(kvferry_stream){.layer = rank ? "l1" : "l0", .name = "ssm", .dtype = "uint8",
                                   .group = groups[rank], .segment = segment, .pages = 10,
                                   .page_stride = 10, .cell_bytes = 10});
    return test_finish(builder);
}

static void test_a_group_without_streams_has_any_block(void **state)
{
    (void)state;
    kvferry_layout *sources[] = {stage(0), stage(1)};
    kvferry_plan *plan = test_plan(sources, 2, sources[0]);
    const kvferry_block_table from[] = {TABLE("first", 0, 3), TABLE("second", 0, 4)};
    const kvferry_block_table to[] = {TABLE("first", 0, 5), TABLE("second", 0, 6)};
    const kvferry_request request = REQUEST(7, from, to);
    assert_int_equal(test_expand(plan, 0, &request, copies), 1);
    ASSERT_COPY(copies[0], 30, 50, 10);
    assert_int_equal(test_expand(plan, 1, &request, copies), 0);
    kvferry_plan_free(plan);
    kvferry_layout_free(sources[0]);
    kvferry_layout_free(sources[1]);
}

/* The source lists all that it has; only what the target lists has to be at its position. */
static void test_only_states_that_move_have_a_position(void **state)
{
    (void)state;
    kvferry_layout *layout = stage(0);
    kvferry_plan *plan = test_plan(&layout, 1, layout);
    const kvferry_block_table from[] = {TABLE("first", 0, 3)};
    const kvferry_request request = {
        .source_tokens = 9, .target_tokens = 7, .source = from, .source_count = 1};
    assert_int_equal(test_expand(plan, 0, &request, copies), 0);
    kvferry_plan_free(plan);
    kvferry_layout_free(layout);
}

/* Pools that together have more blocks than 64 bits count: a buffer for all ids is still asked for. */
static void test_pools_of_any_size(void **state)
{
    (void)state;
    kvferry_layout_builder *builder = test_builder(0, 1, 0, 1);
    kvferry_block_table tables[4];
    static const char *const names[] = {"a", "b", "c", "d"};
    static const uint32_t block = UINT32_MAX;
    for (size_t i = 0; i < 4; i++) {
        uint32_t segment = kvferry_layout_builder_segment(builder, names[i], INT64_MAX);
        uint32_t group = test_one_block(builder, names[i], KVFERRY_GROUP_STATE);
        kvferry_layout_builder_stream(
            builder, &(kvferry_stream){.layer = names[i], .name = "ssm", .dtype = "uint8",
                                       .group = group, .segment = segment, .pages = INT64_MAX,
                                       .page_stride = 1, .cell_bytes = 1});
        tables[i] = (kvferry_block_table){names[i], 0, &block, 1};
    }
    kvferry_layout *layout = test_finish(builder);
    kvferry_plan *plan = test_plan(&layout, 1, layout);
    kvferry_layout_free(layout);
    const kvferry_request request = REQUEST(1, tables, tables);
    uint64_t bytes = kvferry_plan_expand_bound(plan, 0, &request) * sizeof(kvferry_copy);
    assert_true(bytes >= 4 * (UINT64_C(1) << 32) / 8);
    kvferry_plan_free(plan);
}

/* Heads outside of the pages: each head's consecutive blocks are one copy. */
static kvferry_layout *heads_outside(uint64_t block_tokens)
{
    kvferry_layout_builder *builder = test_builder(0, 1, 0, 1);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 320);
    uint32_t group = test_paged(builder, "attn", block_tokens, 0);
    const kvferry_axis axes[] = {{"kv_head", 0, 2, 2, 160},
                                 {"token", 0, block_tokens, block_tokens, 4}};
    for (uint64_t i = 0; i < 2; i++)
        kvferry_layout_builder_stream(
            builder, &(kvferry_stream){.layer = "l", .name = i ? "v" : "k", .dtype = "uint8",
                                       .group = group, .segment = segment, .offset = 2 * i,
                                       .pages = 40 / block_tokens, .page_stride = 4 * block_tokens,
                                       .cell_bytes = 2, .axes = axes, .axis_count = 2});
    return test_finish(builder);
}

static void test_consecutive_blocks_of_heads_outside(void **state)
{
    (void)state;
    kvferry_layout *source = heads_outside(4), *target = heads_outside(2);
    const kvferry_block_table from[] = {TABLE("attn", 0, 2, 3, 4)}, to[] = {TABLE("attn", 0, 5, 6, 7)};
    const kvferry_request request = REQUEST(12, from, to);
    kvferry_plan *plan = test_plan(&source, 1, source);
    assert_int_equal(test_expand(plan, 0, &request, copies), 2);
    ASSERT_COPY(copies[0], 2 * 16, 5 * 16, 3 * 16);
    ASSERT_COPY(copies[1], 160 + 2 * 16, 160 + 5 * 16, 3 * 16);
    kvferry_plan_free(plan);
    const kvferry_block_table smaller[] = {TABLE("attn", 0, 9, 10, 11, 12, 13, 14)};
    const kvferry_request unequal = REQUEST(12, from, smaller);
    plan = test_plan(&source, 1, target);
    assert_int_equal(test_expand(plan, 0, &unequal, copies), 2);
    ASSERT_COPY(copies[1], 160 + 2 * 16, 160 + 9 * 8, 3 * 16);
    kvferry_plan_free(plan);
    kvferry_layout_free(source);
    kvferry_layout_free(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_page_without_a_stride_has_no_row),
        cmocka_unit_test(test_only_equal_ids_are_carried_over),
        cmocka_unit_test(test_a_group_without_streams_has_any_block),
        cmocka_unit_test(test_only_states_that_move_have_a_position),
        cmocka_unit_test(test_pools_of_any_size),
        cmocka_unit_test(test_consecutive_blocks_of_heads_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
