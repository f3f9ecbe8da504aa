/* SPDX-License-Identifier: Apache-2.0 */
/* What the oracle says about faults that are known: the place, and what lies there instead. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "random.h"

/* Two workers of one model: attention of two heads and a convolution of four channels of two bytes.
 */
typedef struct test_pair {
    random_memory source, target;
    uint32_t source_attention[2], target_attention[2], states[1];
    kvferry_block_table source_tables[2], target_tables[2];
    kvferry_request request;
    oracle_transfer transfer;
} test_pair;

static kvferry_layout *make_layout(const char *engine)
{
    kvferry_worker worker = {0, 1, 0, 1, 0, 1};
    kvferry_identity identity = {"m", "", ""};
    kvferry_layout_builder *builder = NULL;
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_layout_builder_create(engine, &worker, &identity, &builder),
                     KVFERRY_OK);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 4096);
    kvferry_group attention = {"attn", KVFERRY_GROUP_PAGED, 4, 0, 0};
    kvferry_group state = {"gdn", KVFERRY_GROUP_STATE, 0, 0, 0};
    uint32_t attention_group = kvferry_layout_builder_group(builder, &attention);
    uint32_t state_group = kvferry_layout_builder_group(builder, &state);
    kvferry_axis heads[] = {{"kv_head", 0, 2, 2, 16}, {"token", 0, 4, 0, 32}};
    kvferry_stream k = {.layer = "layers.3",
                        .name = "k",
                        .dtype = "bfloat16",
                        .group = attention_group,
                        .segment = segment,
                        .pages = 6,
                        .page_stride = 144,
                        .cell_bytes = 16,
                        .axes = heads,
                        .axis_count = 2};
    kvferry_axis channels[] = {{"channel", 0, 8, 8, 6}, {"row", 0, 3, 3, 2}};
    kvferry_stream conv = {.layer = "layers.0",
                           .name = "conv.q",
                           .dtype = "bfloat16",
                           .group = state_group,
                           .segment = segment,
                           .offset = 1024,
                           .pages = 4,
                           .page_stride = 64,
                           .cell_bytes = 2,
                           .axes = channels,
                           .axis_count = 2};
    kvferry_layout_builder_stream(builder, &k);
    kvferry_layout_builder_stream(builder, &conv);
    assert_int_equal(kvferry_layout_builder_finish(builder, &layout, NULL), KVFERRY_OK);
    kvferry_layout_builder_free(builder);
    return layout;
}

static test_pair *pair_make(void)
{
    test_pair *made = calloc(1, sizeof *made);
    assert_non_null(made);
    assert_true(memory_make(&made->source, make_layout("prefill"), 11));
    assert_true(memory_make(&made->target, make_layout("decode"), 22));
    memcpy(made->source_attention, (uint32_t[]){1, 2}, sizeof made->source_attention);
    memcpy(made->target_attention, (uint32_t[]){4, 3}, sizeof made->target_attention);
    made->states[0] = 2;
    made->source_tables[0] = (kvferry_block_table){"attn", 0, made->source_attention, 2};
    made->target_tables[0] = (kvferry_block_table){"attn", 0, made->target_attention, 2};
    made->source_tables[1] = made->target_tables[1] =
        (kvferry_block_table){"gdn", 0, made->states, 1};
    made->request = (kvferry_request){"r1", 7, 7, made->source_tables, 2, made->target_tables, 2, false};
    made->transfer = (oracle_transfer){&made->request, 35};
    assert_true(oracle_fill(&made->source.worker, &made->transfer));
    return made;
}

static void pair_free(test_pair *pair)
{
    kvferry_layout_free((kvferry_layout *)pair->source.worker.layout);
    kvferry_layout_free((kvferry_layout *)pair->target.worker.layout);
    memory_free(&pair->source);
    memory_free(&pair->target);
    free(pair);
}

static void move(test_pair *pair, uint64_t from, uint64_t to, size_t bytes)
{
    memcpy(pair->target.segments[0] + to, pair->source.segments[0] + from, bytes);
}

/* Page p of k begins at 144 p; the state's at 1024 + 64 p. */
static void move_all(test_pair *pair)
{
    move(pair, 144, 4 * 144, 128);
    move(pair, 2 * 144, 3 * 144, 96);
    move(pair, 1024 + 128, 1024 + 128, 48);
}

static void expect(test_pair *pair, size_t findings, uint64_t wrong, uint64_t stray,
                   const char *const *texts)
{
    oracle_result *result = malloc(sizeof *result);
    oracle_worker source = pair->source.worker;
    source.segments = NULL;
    assert_non_null(result);
    assert_true(oracle_check(&pair->target.worker, &source, 1, &pair->transfer, 1, result));
    assert_int_equal(result->finding_count, findings);
    /* One byte of 256 is right by chance. */
    assert_in_range(result->wrong_bytes, wrong - wrong / 10, wrong);
    assert_in_range(result->stray_bytes, stray - stray / 10, stray);
    for (size_t i = 0; texts && texts[i]; i++) {
        char text[1200];
        oracle_finding_text(&pair->target.worker, &result->findings[0], text, sizeof text);
        if (!strstr(text, texts[i]))
            fail_msg("expected \"%s\" in: %s", texts[i], text);
    }
    free(result);
}

#define TEXTS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static void right_is_silent(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    expect(pair, 0, 0, 0, NULL);
    pair_free(pair);
}

static void another_head(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 144 + 32 + 16, 4 * 144 + 32, 16); /* token 1: head 1 where head 0 belongs */
    expect(pair, 1, 16, 0,
           TEXTS("decode tp0/1 pp0/1", "request r1", "layer layers.3 k", "block 4",
                 "kv_head 0, token 1", "instead it holds layers.3 k kv_head 1, token 1"));
    pair_free(pair);
}

static void half_a_cell_further(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 144 + 8, 4 * 144, 16);
    expect(pair, 1, 16, 0, TEXTS("instead it holds layers.3 k kv_head 0, token 0, byte 8"));
    pair_free(pair);
}

static void another_channel_of_two_bytes(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 1024 + 128 + 24, 1024 + 128, 24); /* channels 4..7 where 0..3 belong */
    expect(pair, 1, 24, 0,
           TEXTS("layers.0 conv.q", "channel 0, row 0", "channel 0..3",
                 "instead it holds layers.0 conv.q channel 4, row 0"));
    pair_free(pair);
}

static void never_written(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move(pair, 144, 4 * 144, 128);
    move(pair, 1024 + 128, 1024 + 128, 48);
    expect(pair, 1, 96, 0, TEXTS("block 3", "state 4..6", "it was never written"));
    pair_free(pair);
}

static void padding_of_the_source(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 144 + 128, 4 * 144 + 16, 16);
    expect(pair, 1, 16, 0,
           TEXTS("what prefill tp0 pp0 has at segment kv + 272, which holds no value"));
    pair_free(pair);
}

static void another_request(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    pair->transfer.seed++;
    expect(pair, 2, 224 + 48, 0, TEXTS("bytes of no known place"));
    pair_free(pair);
}

static void a_block_of_someone_else(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 144, 5 * 144, 32);
    expect(pair, 1, 0, 32,
           TEXTS("layer layers.3 k", "32 bytes changed that no one may change",
                 "group attn block 5 that keeps its value",
                 "instead it holds layers.3 k kv_head 0, token 0 of request r1"));
    pair_free(pair);
}

static void the_null_block(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 144, 100, 8);
    expect(pair, 1, 0, 8, TEXTS("group attn block 0 that keeps its value"));
    pair_free(pair);
}

static void padding_of_no_named_row(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 144, 4 * 144 + 128, 16); /* of a named row: may change */
    move(pair, 144, 5 * 144 + 128, 16); /* of another row: may not */
    expect(pair, 1, 0, 16, TEXTS("padding", "no stream owns the byte"));
    pair_free(pair);
}

static void tokens_past_the_end(void **state)
{
    (void)state;
    test_pair *pair = pair_make();
    move_all(pair);
    move(pair, 144, 3 * 144 + 96, 32); /* token 7 of a request of 7 */
    expect(pair, 0, 0, 0, NULL);
    pair_free(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_is_silent),     cmocka_unit_test(another_head),
        cmocka_unit_test(half_a_cell_further), cmocka_unit_test(another_channel_of_two_bytes),
        cmocka_unit_test(never_written),       cmocka_unit_test(padding_of_the_source),
        cmocka_unit_test(another_request),     cmocka_unit_test(a_block_of_someone_else),
        cmocka_unit_test(the_null_block),      cmocka_unit_test(padding_of_no_named_row),
        cmocka_unit_test(tokens_past_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
