/* SPDX-License-Identifier: Apache-2.0 */
/* That equal bytes have equal checksums in any layout is shown by tests/random; here, that a
 * checksum sees each wanted byte and no other. */
#include "plan/checksum.h"

#include "plan/slice.h"
#include "plan/test_layouts.h"

enum { HEADS = 2, CELL = 2, BLOCK = 4, BLOCKS = 8, BYTES = BLOCKS * BLOCK * HEADS * CELL };

/* One stream, its cells by token and head or by head and token inside a page. */
static kvferry_layout *cache(bool heads_first, uint64_t window)
{
    kvferry_layout_builder *builder = test_builder(0, 1, 0, 1);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", BYTES);
    uint32_t group = test_paged(builder, "attn", BLOCK, window);
    const kvferry_axis head = {"kv_head", 0, HEADS, HEADS, heads_first ? BLOCK * CELL : CELL};
    const kvferry_axis token = {"token", 0, BLOCK, BLOCK, heads_first ? CELL : HEADS * CELL};
    const kvferry_axis axes[] = {heads_first ? head : token, heads_first ? token : head};
    kvferry_layout_builder_stream(builder, &(kvferry_stream){.layer = "l",
                                                             .name = "k",
                                                             .dtype = "uint8",
                                                             .group = group,
                                                             .segment = segment,
                                                             .pages = BLOCKS,
                                                             .page_stride = BLOCK * HEADS * CELL,
                                                             .cell_bytes = CELL,
                                                             .axes = axes,
                                                             .axis_count = 2});
    return test_finish(builder);
}

typedef struct pair {
    kvferry_layout *source, *target;
    kvferry_plan *plan;
    unsigned char from[BYTES], to[BYTES];
} pair;

static void begin(pair *p, uint64_t window)
{
    p->source = cache(true, window);
    p->target = cache(false, window);
    p->plan = test_plan(&p->source, 1, p->target);
    for (int i = 0; i < BYTES; i++) {
        p->from[i] = (unsigned char)(i * 7 + i / 3);
        p->to[i] = (unsigned char)(200 - i);
    }
}

static void end(pair *p)
{
    kvferry_plan_free(p->plan);
    kvferry_layout_free(p->source);
    kvferry_layout_free(p->target);
}

static void add(const pair *p, bool of_source, const kvferry_request *request, plan_sum *sum)
{
    assert_int_equal(plan_checksum(p->plan, 0, 0, of_source, of_source ? p->source : p->target,
                                   of_source ? p->from : p->to, request, sum),
                     KVFERRY_OK);
}

/* Of the whole, and the same of it slice by slice. */
static uint64_t sum(const pair *p, bool of_source, const kvferry_request *request)
{
    plan_sum *whole = plan_sum_create(), *cut = plan_sum_create();
    assert_true(whole && cut);
    add(p, of_source, request, whole);
    plan_cursor cursor = {0};
    plan_slice slice;
    while (plan_slice_next_sum(p->plan, 0, 0, request, 1, &cursor, &slice)) {
        assert_int_equal(slice.table.block_count, 1);
        add(p, of_source, &slice.request, cut);
    }
    uint64_t value = plan_sum_value(whole);
    assert_true(plan_sum_value(cut) == value);
    plan_sum_free(whole);
    plan_sum_free(cut);
    return value;
}

/* How many bytes of a side, each changed alone, the checksum sees. */
static int seen(pair *p, bool of_source, const kvferry_request *request)
{
    unsigned char *bytes = of_source ? p->from : p->to;
    uint64_t before = sum(p, of_source, request);
    int count = 0;
    for (int i = 0; i < BYTES; i++) {
        bytes[i] ^= 1;
        count += sum(p, of_source, request) != before;
        bytes[i] ^= 1;
    }
    return count;
}

static void move(pair *p, const kvferry_request *request)
{
    static kvferry_copy copies[4096];
    size_t count = test_expand(p->plan, 0, request, copies);
    for (size_t i = 0; i < count; i++)
        memcpy(p->to + copies[i].target_offset, p->from + copies[i].source_offset, copies[i].bytes);
}

static void check(uint64_t window, const kvferry_request *request, int wanted_bytes)
{
    pair p;
    begin(&p, window);
    assert_int_not_equal(sum(&p, true, request), sum(&p, false, request));
    move(&p, request);
    assert_true(sum(&p, true, request) == sum(&p, false, request));
    assert_int_equal(seen(&p, true, request), wanted_bytes);
    assert_int_equal(seen(&p, false, request), wanted_bytes);
    end(&p);
}

static const kvferry_block_table from[] = {TABLE("attn", 0, 3, 1, 6)};
static const kvferry_block_table to[] = {TABLE("attn", 0, 2, 7, 4)};

static void test_each_wanted_byte_is_seen(void **state)
{
    (void)state;
    /* 10 tokens: the last block is half wanted. */
    check(0, &(kvferry_request){"r", 10, 10, from, 1, to, 1, false}, 10 * HEADS * CELL);
}

static void test_a_window_and_null_blocks_are_not(void **state)
{
    (void)state;
    check(5, &(kvferry_request){"r", 10, 10, from, 1, to, 1, false}, 5 * HEADS * CELL);
    check(5, &(kvferry_request){"r", 10, 10, from, 1, to, 1, true}, 6 * HEADS * CELL); /* from the block's first on */
    const kvferry_block_table holes[] = {TABLE("attn", 0, 2, 0, 4)}; /* 0 is the null block */
    check(0, &(kvferry_request){"r", 10, 10, from, 1, holes, 1, false}, 6 * HEADS * CELL);
    const kvferry_block_table tail[] = {TABLE("attn", 4, 7, 4)};
    check(0, &(kvferry_request){"r", 12, 12, from, 1, tail, 1, false}, 8 * HEADS * CELL);
}

static void test_nothing_wanted_is_the_same_on_both_sides(void **state)
{
    (void)state;
    pair p;
    begin(&p, 0);
    const kvferry_block_table late[] = {TABLE("attn", 12, 5)};
    const kvferry_request none = {"r", 10, 10, from, 1, NULL, 0, false},
                          past = {"r", 10, 10, from, 1, late, 1, false};
    assert_true(sum(&p, true, &none) == sum(&p, false, &none));
    assert_true(sum(&p, true, &past) == sum(&p, false, &past));
    assert_true(sum(&p, true, &none) == sum(&p, true, &past));
    end(&p);
}

static void test_what_is_not_there_is_refused(void **state)
{
    (void)state;
    pair p;
    plan_sum *sum = plan_sum_create();
    assert_non_null(sum);
    begin(&p, 0);
    const kvferry_block_table beyond[] = {TABLE("attn", 0, 3, 1, BLOCKS)},
                              cut[] = {TABLE("attn", 0, 3)};
    const kvferry_request bad[] = {{"r", 10, 10, beyond, 1, to, 1, false},
                                   {"r", 10, 10, cut, 1, to, 1, false},
                                   {"r", 10, 10, NULL, 0, to, 1, false}};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(plan_checksum(p.plan, 0, 0, true, p.source, p.from, &bad[i], sum),
                         KVFERRY_REFUSED);
    const kvferry_request good = {"r", 10, 10, from, 1, to, 1, false};
    assert_int_equal(plan_checksum(p.plan, 0, 1, true, p.source, p.from, &good, sum),
                     KVFERRY_INVALID);
    assert_int_equal(plan_checksum(p.plan, 1, 0, true, p.source, p.from, &good, sum),
                     KVFERRY_INVALID);
    plan_sum_free(sum);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_wanted_byte_is_seen),
        cmocka_unit_test(test_a_window_and_null_blocks_are_not),
        cmocka_unit_test(test_nothing_wanted_is_the_same_on_both_sides),
        cmocka_unit_test(test_what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
