/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends what to whom, and what is refused before any byte moves. */
#include "plan/test_layouts.h"

/* `layers` MLA layers "l0", "l1", ... of one latent stream: every rank holds all of it. */
static kvferry_layout *mla(uint32_t tp_rank, uint32_t tp_size, int layers)
{
    kvferry_layout_builder *builder = test_builder(tp_rank, tp_size, 0, 1);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 16 * 1024 * (uint64_t)layers);
    uint32_t group = test_paged(builder, "mla", 16, 0);
    for (int i = 0; i < layers; i++) {
        char layer[16];
        snprintf(layer, sizeof(layer), "l%d", i);
        const kvferry_axis token = {"token", 0, 16, 16, 64};
        kvferry_layout_builder_stream(
            builder, &(kvferry_stream){.layer = layer, .name = "latent", .dtype = "bfloat16",
                                       .group = group, .segment = segment,
                                       .offset = 16 * 1024 * (uint64_t)i, .pages = 16,
                                       .page_stride = 1024, .cell_bytes = 64, .axes = &token,
                                       .axis_count = 1});
    }
    return test_finish(builder);
}

/* One layer of `heads` KV heads over tp_size ranks; with more ranks than heads they are replicated:
 * rank r holds head r * heads / tp_size. Page: [head][token] cells of 4 bytes, 4 tokens. */
static kvferry_layout *attention(uint32_t tp_rank, uint32_t tp_size, uint64_t heads,
                                 kvferry_policy policy)
{
    uint64_t first = tp_rank * heads / tp_size, end = (tp_rank + 1) * heads / tp_size;
    uint64_t mine = end > first ? end - first : 1;
    kvferry_layout_builder *builder = test_builder(tp_rank, tp_size, 0, 1);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 8 * mine * 16);
    uint32_t group = test_paged(builder, "attn", 4, 0);
    const kvferry_axis axes[] = {{"kv_head", first, mine, heads, 16}, {"token", 0, 4, 4, 4}};
    kvferry_layout_builder_stream(
        builder, &(kvferry_stream){.layer = "l0", .name = "k", .dtype = "bfloat16", .group = group,
                                   .segment = segment, .pages = 8, .page_stride = mine * 16,
                                   .cell_bytes = 4, .policy = policy, .axes = axes,
                                   .axis_count = 2});
    return test_finish(builder);
}

static void free_all(kvferry_layout **layouts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        kvferry_layout_free(layouts[i]);
}

/* T >= H: target i takes everything from holder i mod H. */
static void test_more_targets_than_holders(void **state)
{
    (void)state;
    kvferry_layout *sources[2] = {mla(0, 2, 3), mla(1, 2, 3)};
    for (uint32_t rank = 0; rank < 4; rank++) {
        kvferry_layout *target = mla(rank, 4, 3);
        kvferry_plan *plan = test_plan(sources, 2, target);
        assert_int_equal(kvferry_plan_piece_count(plan, rank % 2), 3);
        assert_int_equal(kvferry_plan_piece_count(plan, (rank + 1) % 2), 0);
        kvferry_plan_free(plan);
        kvferry_layout_free(target);
    }
    free_all(sources, 2);
}

/* T < H: holders j with j mod T = i share the pieces in runs of neighbours, balanced by bytes. */
static void test_fewer_targets_than_holders(void **state)
{
    (void)state;
    kvferry_layout *sources[5];
    for (uint32_t i = 0; i < 5; i++)
        sources[i] = mla(i, 5, 7);
    const size_t expected[2][5] = {{2, 0, 3, 0, 2}, {0, 3, 0, 4, 0}};
    for (uint32_t rank = 0; rank < 2; rank++) {
        kvferry_layout *target = mla(rank, 2, 7);
        kvferry_plan *plan = test_plan(sources, 5, target);
        uint32_t next = 0;
        for (size_t i = 0; i < 5; i++) {
            assert_int_equal(kvferry_plan_piece_count(plan, i), expected[rank][i]);
            for (size_t k = 0; k < expected[rank][i]; k++)
                assert_int_equal(kvferry_plan_piece(plan, i, k)->target_stream, next++);
        }
        kvferry_plan_free(plan);
        kvferry_layout_free(target);
    }
    free_all(sources, 5);
}

/* The order of the documents must not matter: holders are numbered by rank. */
static void test_order_of_documents(void **state)
{
    (void)state;
    kvferry_layout *sources[2] = {mla(1, 2, 1), mla(0, 2, 1)};
    kvferry_layout *target = mla(0, 4, 1);
    kvferry_plan *plan = test_plan(sources, 2, target);
    assert_int_equal(kvferry_plan_piece_count(plan, 0), 0);
    assert_int_equal(kvferry_plan_piece_count(plan, 1), 1);
    kvferry_plan_free(plan);
    kvferry_layout_free(target);
    free_all(sources, 2);
}

/* 6 heads over 3 ranks to 4 ranks: sizes that do not divide each other. */
static void test_three_to_four(void **state)
{
    (void)state;
    kvferry_layout *sources[3];
    for (uint32_t i = 0; i < 3; i++)
        sources[i] = attention(i, 3, 12, KVFERRY_POLICY_REQUIRED);
    kvferry_layout *target = attention(1, 4, 12, KVFERRY_POLICY_REQUIRED); /* heads 3..5 */
    kvferry_plan *plan = test_plan(sources, 3, target);
    assert_int_equal(kvferry_plan_piece_count(plan, 0), 1);
    assert_int_equal(kvferry_plan_piece_count(plan, 1), 1);
    assert_int_equal(kvferry_plan_piece_count(plan, 2), 0);
    const kvferry_piece *piece = kvferry_plan_piece(plan, 0, 0);
    assert_int_equal(piece->ranges[0].start, 3);
    assert_int_equal(piece->ranges[0].extent, 1);
    assert_int_equal(piece->ranges[1].extent, 0);
    assert_int_equal(piece->state_bytes, 4);
    piece = kvferry_plan_piece(plan, 1, 0);
    assert_int_equal(piece->ranges[0].start, 4);
    assert_int_equal(piece->ranges[0].extent, 2);
    kvferry_plan_free(plan);
    kvferry_layout_free(target);
    free_all(sources, 3);
}

/* Two heads on four ranks: each is held twice; the two targets that hold it take it from both. */
static void test_replicated_heads(void **state)
{
    (void)state;
    kvferry_layout *sources[4];
    for (uint32_t i = 0; i < 4; i++)
        sources[i] = attention(i, 4, 2, KVFERRY_POLICY_REQUIRED);
    const size_t sender[4] = {0, 1, 2, 3};
    for (uint32_t rank = 0; rank < 4; rank++) {
        kvferry_layout *target = attention(rank, 4, 2, KVFERRY_POLICY_REQUIRED);
        kvferry_plan *plan = test_plan(sources, 4, target);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(kvferry_plan_piece_count(plan, i), i == sender[rank]);
        kvferry_plan_free(plan);
        kvferry_layout_free(target);
    }
    free_all(sources, 4);
}

static void assert_refused(kvferry_layout *const *sources, size_t count, const kvferry_layout *target,
                           const char *code, const char *axis, const char *found)
{
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_plan *plan = (kvferry_plan *)report;
    assert_int_equal(kvferry_plan_create((const kvferry_layout *const *)sources, count, target,
                                         &plan, report),
                     KVFERRY_REFUSED);
    assert_ptr_equal(plan, report); /* set only on success */
    const kvferry_reason *reason = test_reason(report, code);
    if (!reason)
        test_print(report);
    assert_non_null(reason);
    if (axis)
        assert_string_equal(reason->axis, axis);
    if (found)
        assert_string_equal(reason->found, found);
    kvferry_report_free(report);
}

static void test_a_hole_is_named(void **state)
{
    (void)state;
    kvferry_layout *sources[4];
    for (uint32_t i = 0; i < 4; i++)
        sources[i] = attention(i, 4, 8, KVFERRY_POLICY_REQUIRED);
    kvferry_layout *target = attention(0, 1, 8, KVFERRY_POLICY_REQUIRED);
    assert_refused(sources, 3, target, "coverage_hole", "kv_head", "no source holds kv_head 6..7");
    assert_refused(&sources[1], 3, target, "coverage_hole", "kv_head",
                   "no source holds kv_head 0..1");
    kvferry_layout *first = attention(0, 4, 8, KVFERRY_POLICY_REQUIRED);
    assert_refused(&sources[1], 3, first, "coverage_hole", NULL, "other parts only");
    kvferry_layout_free(first);
    kvferry_layout_free(target);
    free_all(sources, 4);
}

/* vllm#54926, vllm-ascend#15467, #4892: what only drafts need is always left out, or always sent. */
static void test_policies(void **state)
{
    (void)state;
    kvferry_layout *some[2] = {attention(0, 2, 2, KVFERRY_POLICY_REQUIRED),
                               attention(1, 2, 2, KVFERRY_POLICY_REQUIRED)};
    kvferry_layout *kept[1] = {attention(0, 1, 2, KVFERRY_POLICY_LOCAL)};
    kvferry_layout *needs = attention(0, 1, 2, KVFERRY_POLICY_REQUIRED);
    kvferry_layout *may = attention(0, 1, 2, KVFERRY_POLICY_OPTIONAL);
    assert_refused(kept, 1, needs, "stream_missing", NULL, NULL);
    kvferry_plan *plan = test_plan(some, 2, may);
    assert_int_equal(kvferry_plan_piece_count(plan, 0), 1);
    kvferry_plan_free(plan);
    plan = test_plan(some, 1, may); /* half of it is missing: left out, not torn */
    assert_int_equal(kvferry_plan_piece_count(plan, 0), 0);
    kvferry_plan_free(plan);
    plan = test_plan(some, 2, kept[0]);
    assert_int_equal(kvferry_plan_piece_count(plan, 0), 0);
    kvferry_plan_free(plan);
    kvferry_layout_free(needs);
    kvferry_layout_free(may);
    free_all(some, 2);
    free_all(kept, 1);
}

static void test_everything_at_once(void **state)
{
    (void)state;
    kvferry_layout *sources[2] = {mla(0, 1, 1), mla(0, 1, 1)};
    kvferry_layout *target = attention(0, 1, 2, KVFERRY_POLICY_REQUIRED);
    kvferry_report *report = NULL;
    kvferry_plan *plan = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_plan_create((const kvferry_layout *const *)sources, 2, target, &plan,
                                         report),
                     KVFERRY_REFUSED);
    assert_non_null(test_reason(report, "worker_duplicate"));
    assert_non_null(test_reason(report, "stream_missing"));
    kvferry_report_free(report);
    assert_refused(NULL, 0, target, "no_sources", NULL, NULL);
    assert_int_equal(kvferry_plan_create(NULL, 1, target, &plan, NULL), KVFERRY_INVALID);
    kvferry_layout_free(target);
    free_all(sources, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_targets_than_holders),
        cmocka_unit_test(test_fewer_targets_than_holders),
        cmocka_unit_test(test_order_of_documents),
        cmocka_unit_test(test_three_to_four),
        cmocka_unit_test(test_replicated_heads),
        cmocka_unit_test(test_a_hole_is_named),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_everything_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
