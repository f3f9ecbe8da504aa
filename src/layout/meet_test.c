/* SPDX-License-Identifier: Apache-2.0 */
/* The search against a plain count of who owns which byte. */
#include "layout/ownership.h"

static void make_sample(sample *made, uint64_t block_tokens)
{
    memset(made, 0, sizeof(*made));
    made->stream.offset = pick(0, 40);
    made->stream.pages = pick(1, 6);
    made->stream.page_stride = pick(1, 60);
    made->stream.page_tokens = block_tokens / pick(1, made->stream.pages > 1 ? 2 : 1);
    made->stream.cell_bytes = pick(1, 4);
    made->stream.axis_count = (uint32_t)pick(0, 3);
    for (uint32_t i = 0; i < made->stream.axis_count; i++) {
        made->axes[i].extent = pick(1, 4);
        made->axes[i].stride = pick(1, 40);
    }
    made->stream.axes = made->axes;
}

static void test_against_counting(void **state)
{
    (void)state;
    static sample a, b;
    static ownership owned_a, owned_b;
    kvferry_group group = {.block_tokens = 32};
    kvferry_layout layout = {.groups = &group, .group_count = 1};
    unsigned met = 0, apart = 0;
    for (unsigned round = 0; round < 30000; round++) {
        make_sample(&a, group.block_tokens);
        make_sample(&b, group.block_tokens);
        if (pick(0, 1)) { /* as in one row */
            b.stream.page_stride = a.stream.page_stride;
            b.stream.page_tokens = a.stream.pages > 1 && b.stream.pages > 1 ? a.stream.page_tokens
                                                                            : group.block_tokens;
            a.stream.page_tokens = b.stream.page_tokens;
        }
        uint64_t steps = 1000000;
        own_all(&a, 1, a.stream.pages, &owned_a);
        assert_int_equal(layout_stream_meets_itself(&a.stream, &steps),
                         owned_a.twice ? LAYOUT_MEET : LAYOUT_APART);
        uint64_t ratio_a = layout_stream_ratio(&layout, &a.stream);
        uint64_t ratio_b = layout_stream_ratio(&layout, &b.stream);
        own_all(&a, ratio_a, a.stream.pages / ratio_a * ratio_a, &owned_a);
        own_all(&b, ratio_b, b.stream.pages / ratio_b * ratio_b, &owned_b);
        layout_shape shape_a, shape_b;
        layout_shape_of(&layout, &a.stream, &shape_a);
        layout_shape_of(&layout, &b.stream, &shape_b);
        for (int blocks = LAYOUT_BLOCKS_ANY; blocks <= LAYOUT_BLOCKS_UNEQUAL; blocks++) {
            layout_meeting expected = expected_of_pair(&owned_a, &owned_b, (layout_blocks)blocks);
            assert_int_equal(
                layout_shapes_meet(&shape_a, &shape_b, (layout_blocks)blocks, &steps), expected);
            met += expected == LAYOUT_MEET;
            apart += expected == LAYOUT_APART;
        }
    }
    assert_true(met > 10000 && apart > 10000);
}

/* The same numbers times 2^50: nothing overflows. */
static void test_large_numbers(void **state)
{
    (void)state;
    const uint64_t unit = (uint64_t)1 << 50;
    kvferry_axis axes[2] = {{.name = "x", .extent = 100, .stride = 7 * unit},
                            {.name = "y", .extent = 7, .stride = 100 * unit}};
    kvferry_stream stream = {.pages = 1, .axes = axes, .axis_count = 2, .cell_bytes = unit};
    uint64_t steps = 1000000;
    assert_int_equal(layout_stream_meets_itself(&stream, &steps),
                     LAYOUT_APART); /* 7 and 100 are coprime */
    axes[0].extent = 101;
    axes[1].extent = 8;
    assert_int_equal(layout_stream_meets_itself(&stream, &steps),
                     LAYOUT_MEET); /* 100 * 7 = 7 * 100 */
    axes[1].extent = 7;
    stream.cell_bytes = unit + 1;
    assert_int_equal(layout_stream_meets_itself(&stream, &steps),
                     LAYOUT_MEET); /* 7 * 43 = 100 * 3 + 1 */
    axes[0] = (kvferry_axis){.name = "x", .extent = INT64_MAX, .stride = 1};
    stream = (kvferry_stream){
        .pages = 1, .page_stride = INT64_MAX, .axes = axes, .axis_count = 1, .cell_bytes = 1};
    assert_int_equal(layout_stream_meets_itself(&stream, &steps), LAYOUT_APART);
    axes[0].stride = 2;
    axes[0].extent = INT64_MAX / 2;
    axes[1] = (kvferry_axis){.name = "y", .extent = 2, .stride = 1};
    stream.axis_count = 2;
    assert_int_equal(layout_stream_meets_itself(&stream, &steps), LAYOUT_APART);
}

/* Caches' own strides cost a few steps; without steps there is no answer, never a wrong one. */
static void test_steps(void **state)
{
    (void)state;
    kvferry_axis axes[2] = {
        {.name = "kv_head", .extent = 8, .stride = 1u << 30}, /* heads outermost */
        {.name = "token", .extent = 16, .stride = 256}};
    kvferry_stream k = {
        .pages = 1u << 18, .page_stride = 4096, .cell_bytes = 128, .axes = axes, .axis_count = 2};
    kvferry_stream v = k;
    v.offset = 128;
    kvferry_group group = {.kind = KVFERRY_GROUP_STATE};
    kvferry_layout layout = {.groups = &group, .group_count = 1};
    layout_shape shape_k, shape_v;
    layout_shape_of(&layout, &k, &shape_k);
    layout_shape_of(&layout, &v, &shape_v);
    uint64_t steps = 10;
    assert_int_equal(layout_shapes_meet(&shape_k, &shape_v, LAYOUT_BLOCKS_ANY, &steps),
                     LAYOUT_APART);
    assert_true(steps > 0);
    steps = 1;
    assert_int_equal(layout_shapes_meet(&shape_k, &shape_v, LAYOUT_BLOCKS_ANY, &steps),
                     LAYOUT_UNDECIDED);
    shape_v.offset = 64;
    steps = 100;
    assert_int_equal(layout_shapes_meet(&shape_k, &shape_v, LAYOUT_BLOCKS_ANY, &steps),
                     LAYOUT_MEET);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_counting),
        cmocka_unit_test(test_large_numbers),
        cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
