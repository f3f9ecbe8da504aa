/* SPDX-License-Identifier: Apache-2.0 */
/* One request's copies, against values found by hand. */
#include "plan/test_layouts.h"

static kvferry_copy copies[4096];

#define REQUEST(count, from, to)                                                                   \
    {                                                                                              \
        .source_tokens = (count), .target_tokens = (count), .source = (from),                      \
        .source_count = sizeof(from) / sizeof((from)[0]), .target = (to),                          \
        .target_count = sizeof(to) / sizeof((to)[0])                                               \
    }

/* How a page of `layers` attention layers lies: pages of [head][token][k, v], 4-byte cells. */
typedef struct page_shape {
    uint64_t heads, first_head, all_heads;
    uint64_t block_tokens, page_tokens, window;
    uint64_t padding; /* behind each page */
    int layers;
} page_shape;

/* Layers lie one behind another, 32 pages each. k and v of a token are neighbours. */
static kvferry_layout *packed(const page_shape *shape, uint32_t rank, uint32_t size)
{
    kvferry_layout_builder *builder = test_builder(rank, size, 0, 1);
    uint64_t page = shape->heads * shape->page_tokens * 8 + shape->padding;
    uint32_t segment =
        kvferry_layout_builder_segment(builder, "kv", 32 * page * (uint64_t)shape->layers);
    uint32_t group = test_paged(builder, "attn", shape->block_tokens, shape->window);
    for (int i = 0; i < shape->layers * 2; i++) {
        char layer[16];
        snprintf(layer, sizeof(layer), "l%d", i / 2);
        const kvferry_axis axes[] = {
            {"kv_head", shape->first_head, shape->heads, shape->all_heads, shape->page_tokens * 8},
            {"token", 0, shape->page_tokens, shape->page_tokens, 8}};
        kvferry_layout_builder_stream(
            builder,
            &(kvferry_stream){.layer = layer, .name = i % 2 ? "v" : "k", .dtype = "bfloat16",
                              .group = group, .segment = segment,
                              .offset = 32 * page * (uint64_t)(i / 2) + 4 * (uint64_t)(i % 2),
                              .pages = 32, .page_stride = page, .page_tokens = shape->page_tokens,
                              .cell_bytes = 4, .axes = axes, .axis_count = 2});
    }
    return test_finish(builder);
}

static kvferry_plan *plan_of(kvferry_layout *source, kvferry_layout *target)
{
    kvferry_plan *plan = test_plan(&source, 1, target);
    kvferry_layout_free(source);
    kvferry_layout_free(target);
    return plan;
}

static kvferry_plan *plan_shapes(const page_shape *source, const page_shape *target)
{
    return plan_of(packed(source, 0, 1), packed(target, 0, 1));
}

static void test_consecutive_blocks_are_one_copy(void **state)
{
    (void)state;
    const page_shape one = {.heads = 2, .all_heads = 2, .block_tokens = 4, .page_tokens = 4, .layers = 2};
    kvferry_plan *plan = plan_shapes(&one, &one);
    const kvferry_block_table from[] = {TABLE("attn", 0, 3, 4, 5, 9)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 11, 12, 13, 14)};
    const kvferry_request request = REQUEST(15, from, to);
    assert_int_equal(test_expand(plan, 0, &request, copies), 4);
    ASSERT_COPY(copies[0], 3 * 64, 11 * 64, 3 * 64);
    ASSERT_COPY(copies[1], 32 * 64 + 3 * 64, 32 * 64 + 11 * 64, 3 * 64);
    ASSERT_COPY(copies[2], 9 * 64, 14 * 64, 64);
    ASSERT_COPY(copies[3], 32 * 64 + 9 * 64, 32 * 64 + 14 * 64, 64);
    kvferry_plan_free(plan);
}

/* Blocks that were given back last one first come again in that order, on both sides. Up and down in one stretch is
 * still one copy; down on one side only is none. */
static void test_consecutive_blocks_downwards_are_one_copy(void **state)
{
    (void)state;
    const page_shape one = {.heads = 2, .all_heads = 2, .block_tokens = 4, .page_tokens = 4, .layers = 1};
    kvferry_plan *plan = plan_shapes(&one, &one);
    const kvferry_block_table from[] = {TABLE("attn", 0, 9, 8, 10, 7, 3, 4)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 14, 13, 15, 12, 5, 4)};
    const kvferry_request request = REQUEST(24, from, to);
    assert_int_equal(test_expand(plan, 0, &request, copies), 3);
    ASSERT_COPY(copies[0], 7 * 64, 12 * 64, 4 * 64);
    ASSERT_COPY(copies[1], 3 * 64, 5 * 64, 64);
    ASSERT_COPY(copies[2], 4 * 64, 4 * 64, 64);
    kvferry_plan_free(plan);
    const page_shape kernel = {.heads = 2, .all_heads = 2, .block_tokens = 8, .page_tokens = 4, .layers = 1};
    plan = plan_shapes(&kernel, &kernel);
    const kvferry_block_table there[] = {TABLE("attn", 0, 4, 3)}, here[] = {TABLE("attn", 0, 6, 5)};
    const kvferry_request pages = REQUEST(16, there, here);
    assert_int_equal(test_expand(plan, 0, &pages, copies), 1);
    ASSERT_COPY(copies[0], 6 * 64, 10 * 64, 4 * 64);
    kvferry_plan_free(plan);
}

/* Padding of 16 bytes on both sides lies in named rows: it is carried, and no byte behind the last. */
static void test_padding_between_named_rows_is_carried(void **state)
{
    (void)state;
    const page_shape one = {.heads = 1, .all_heads = 1, .block_tokens = 4, .page_tokens = 4,
                       .padding = 16, .layers = 1};
    const page_shape other = {.heads = 1, .all_heads = 1, .block_tokens = 4, .page_tokens = 4,
                         .padding = 32, .layers = 1};
    const kvferry_block_table from[] = {TABLE("attn", 0, 1, 2, 3)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 4, 5, 6)};
    const kvferry_request request = REQUEST(12, from, to);
    kvferry_plan *plan = plan_shapes(&one, &one);
    assert_int_equal(test_expand(plan, 0, &request, copies), 1);
    ASSERT_COPY(copies[0], 48, 4 * 48, 2 * 48 + 32);
    kvferry_plan_free(plan);
    plan = plan_shapes(&one, &other);
    assert_int_equal(test_expand(plan, 0, &request, copies), 3);
    ASSERT_COPY(copies[2], 3 * 48, 6 * 64, 32);
    kvferry_plan_free(plan);
}

static void test_prefix_hit_pairs_by_token(void **state)
{
    (void)state;
    const page_shape one = {.heads = 1, .all_heads = 1, .block_tokens = 4, .page_tokens = 4, .layers = 1};
    kvferry_plan *plan = plan_shapes(&one, &one);
    const kvferry_block_table from[] = {TABLE("attn", 0, 3, 4, 9, 7)};
    const kvferry_block_table to[] = {TABLE("attn", 8, 11, 20, 21, 22)};
    const kvferry_request request = REQUEST(14, from, to); /* two blocks; two are past the end */
    assert_int_equal(test_expand(plan, 0, &request, copies), 2);
    ASSERT_COPY(copies[0], 9 * 32, 11 * 32, 32);
    ASSERT_COPY(copies[1], 7 * 32, 20 * 32, 32);
    const kvferry_block_table hit[] = {TABLE("attn", 16, 11)};
    const kvferry_request nothing = REQUEST(14, from, hit);
    assert_int_equal(test_expand(plan, 0, &nothing, copies), 0);
    kvferry_plan_free(plan);
}

/* Blocks of 12 tokens to blocks of 8: cut at 0, 8, 12, 16, 24. One head: the pages are seamless, so
 * consecutive blocks are one stretch on either side. */
static void test_unequal_blocks(void **state)
{
    (void)state;
    const page_shape large = {.heads = 1, .all_heads = 1, .block_tokens = 12, .page_tokens = 12, .layers = 1};
    const page_shape small = {.heads = 1, .all_heads = 1, .block_tokens = 8, .page_tokens = 8, .layers = 1};
    kvferry_plan *plan = plan_shapes(&large, &small);
    const kvferry_block_table from[] = {TABLE("attn", 0, 3, 4)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 5, 9, 7)};
    const kvferry_request request = REQUEST(21, from, to);
    assert_int_equal(test_expand(plan, 0, &request, copies), 3);
    ASSERT_COPY(copies[0], 3 * 96, 5 * 64, 64);
    ASSERT_COPY(copies[1], 3 * 96 + 64, 9 * 64, 64); /* over the seam of 3 and 4 */
    ASSERT_COPY(copies[2], 4 * 96 + 32, 7 * 64, 40); /* 5 tokens: no further */
    kvferry_plan_free(plan);
}

/* The same with two heads: a block's heads part its tokens, so every boundary cuts, per head. */
static void test_unequal_blocks_of_two_heads(void **state)
{
    (void)state;
    const page_shape large = {.heads = 2, .all_heads = 2, .block_tokens = 12, .page_tokens = 12, .layers = 1};
    const page_shape small = {.heads = 2, .all_heads = 2, .block_tokens = 8, .page_tokens = 8, .layers = 1};
    kvferry_plan *plan = plan_shapes(&large, &small);
    const kvferry_block_table from[] = {TABLE("attn", 0, 3, 4)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 5, 9)};
    const kvferry_request request = REQUEST(16, from, to);
    assert_int_equal(test_expand(plan, 0, &request, copies), 6);
    ASSERT_COPY(copies[0], 3 * 192, 5 * 128, 64);
    ASSERT_COPY(copies[1], 3 * 192 + 96, 5 * 128 + 64, 64);
    ASSERT_COPY(copies[2], 3 * 192 + 64, 9 * 128, 32);
    ASSERT_COPY(copies[3], 3 * 192 + 160, 9 * 128 + 64, 32);
    ASSERT_COPY(copies[4], 4 * 192, 9 * 128 + 32, 32);
    ASSERT_COPY(copies[5], 4 * 192 + 96, 9 * 128 + 96, 32);
    kvferry_plan_free(plan);
}

/* Blocks of 3 kernel blocks to blocks of 2: the block table is expanded with its owner's ratio. */
static void test_kernel_blocks(void **state)
{
    (void)state;
    const page_shape three = {.heads = 2, .all_heads = 2, .block_tokens = 12, .page_tokens = 4, .layers = 1};
    const page_shape two = {.heads = 2, .all_heads = 2, .block_tokens = 8, .page_tokens = 4, .layers = 1};
    kvferry_plan *plan = plan_shapes(&three, &two);
    const kvferry_block_table from[] = {TABLE("attn", 0, 4, 2)};
    const kvferry_block_table to[] = {TABLE("attn", 8, 10, 5)};
    const kvferry_request request = REQUEST(21, from, to); /* pages 2..5 of the request */
    assert_int_equal(test_expand(plan, 0, &request, copies), 3);
    ASSERT_COPY(copies[0], 14 * 64, 20 * 64, 64);
    ASSERT_COPY(copies[1], 6 * 64, 21 * 64, 64);
    ASSERT_COPY(copies[2], 7 * 64, 10 * 64, 128);
    kvferry_plan_free(plan);
}

static void test_window_and_null_blocks(void **state)
{
    (void)state;
    const page_shape one = {.heads = 1, .all_heads = 1, .block_tokens = 4, .page_tokens = 4, .window = 6,
                       .layers = 1};
    kvferry_plan *plan = plan_shapes(&one, &one);
    const kvferry_block_table from[] = {TABLE("attn", 0, 0, 0, 3, 5, 7)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 0, 0, 9, 11, 13)};
    const kvferry_request request = REQUEST(17, from, to); /* wants tokens 11..16 */
    assert_int_equal(test_expand(plan, 0, &request, copies), 3);
    ASSERT_COPY(copies[0], 3 * 32 + 24, 9 * 32 + 24, 8);
    ASSERT_COPY(copies[1], 5 * 32, 11 * 32, 32);
    ASSERT_COPY(copies[2], 7 * 32, 13 * 32, 32);
    const kvferry_block_table skipped[] = {TABLE("attn", 0, 0, 0, 9, 0, 13)};
    const kvferry_request with_null = REQUEST(17, from, skipped);
    assert_int_equal(test_expand(plan, 0, &with_null, copies), 2);
    ASSERT_COPY(copies[1], 7 * 32, 13 * 32, 32);
    kvferry_plan_free(plan);
}

/* Of a window that begins inside a block, that block is wanted from its first token on. */
static void test_window_of_whole_blocks(void **state)
{
    (void)state;
    const page_shape four = {.heads = 1, .all_heads = 1, .block_tokens = 4, .page_tokens = 4, .window = 6,
                             .layers = 1};
    page_shape eight = four;
    eight.block_tokens = eight.page_tokens = 8;
    const kvferry_block_table fours[] = {TABLE("attn", 0, 0, 0, 3, 5, 7)}, eights[] = {TABLE("attn", 0, 0, 9, 2)};
    kvferry_plan *plan = plan_shapes(&four, &four);
    const kvferry_block_table to[] = {TABLE("attn", 0, 0, 0, 9, 11, 13)};
    kvferry_request request = REQUEST(17, fours, to); /* the window is tokens 11..16, block 2 begins with 8 */
    request.whole_blocks = true;
    assert_int_equal(test_expand(plan, 0, &request, copies), 3);
    ASSERT_COPY(copies[0], 3 * 32, 9 * 32, 32);
    ASSERT_COPY(copies[2], 7 * 32, 13 * 32, 32);
    kvferry_plan_free(plan);

    plan = plan_shapes(&eight, &four); /* the target's blocks count */
    request = (kvferry_request)REQUEST(17, eights, to);
    request.whole_blocks = true;
    assert_int_equal(test_expand(plan, 0, &request, copies), 3);
    ASSERT_COPY(copies[0], 9 * 64, 9 * 32, 32);
    kvferry_plan_free(plan);

    plan = plan_shapes(&four, &eight);
    const kvferry_block_table larger[] = {TABLE("attn", 0, 0, 9, 2)};
    request = (kvferry_request)REQUEST(15, fours, larger); /* the window is 9..14, and block 1 is 8..15 */
    request.whole_blocks = true;
    assert_int_equal(test_expand(plan, 0, &request, copies), 2);
    ASSERT_COPY(copies[0], 3 * 32, 9 * 64, 32);
    ASSERT_COPY(copies[1], 5 * 32, 9 * 64 + 32, 24);
    const kvferry_block_table lacks[] = {TABLE("attn", 0, 0, 0, 0, 5, 7)};
    request = (kvferry_request)REQUEST(18, lacks, larger); /* the window is 12..17, of which the source has all; but not 8..11 */
    assert_int_equal(test_expand(plan, 0, &request, copies), 2);
    request.whole_blocks = true;
    kvferry_report *report = NULL;
    size_t count = 0;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_plan_expand(plan, 0, &request, copies, sizeof(copies) / sizeof(copies[0]), &count, report),
                     KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "source_null");
    assert_non_null(strstr(kvferry_report_get(report, 0)->message, "token 8 "));
    assert_non_null(strstr(kvferry_report_get(report, 0)->message, "whole"));
    kvferry_report_free(report);
    kvferry_plan_free(plan);
}

/* The head that a rank of two holds, from a rank that holds both. */
static void test_heads_are_cut(void **state)
{
    (void)state;
    const page_shape both = {.heads = 2, .all_heads = 2, .block_tokens = 4, .page_tokens = 4, .layers = 1};
    const page_shape half = {.heads = 1, .first_head = 1, .all_heads = 2, .block_tokens = 4,
                        .page_tokens = 4, .layers = 1};
    kvferry_plan *plan = plan_of(packed(&both, 0, 1), packed(&half, 1, 2));
    const kvferry_block_table from[] = {TABLE("attn", 0, 3, 4)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 5, 6)};
    const kvferry_request request = REQUEST(8, from, to);
    assert_int_equal(test_expand(plan, 0, &request, copies), 2);
    ASSERT_COPY(copies[0], 3 * 64 + 32, 5 * 32, 32);
    ASSERT_COPY(copies[1], 4 * 64 + 32, 6 * 32, 32);
    kvferry_plan_free(plan);
}

/* --- states ---------------------------------------------------------------------------------------- */

/* A GDN layer: conv.q, conv.k, conv.v of 4, 4, 8 channels (all ranks) x 3 rows of 2 bytes, ssm of 2
 * heads x 64 bytes; one block a page, padded to 256 bytes at one rank, 128 at two. */
static kvferry_layout *gdn(uint32_t rank, uint32_t size, bool dim_first)
{
    kvferry_layout_builder *builder = test_builder(rank, size, 0, 1);
    uint64_t page = 256 / size;
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 8 * page);
    uint32_t group = test_one_block(builder, "gdn", KVFERRY_GROUP_STATE);
    static const struct {
        const char *name;
        uint64_t channels;
    } parts[] = {{"conv.q", 4}, {"conv.k", 4}, {"conv.v", 8}};
    uint64_t offset = 0, all = 16 / size;
    for (int i = 0; i < 3; i++) {
        uint64_t mine = parts[i].channels / size;
        const kvferry_axis axes[] = {
            {"channel", rank * mine, mine, parts[i].channels, dim_first ? 6 : 2},
            {"row", 0, 3, 3, dim_first ? 2 : 2 * all}};
        kvferry_layout_builder_stream(
            builder, &(kvferry_stream){.layer = "l0", .name = parts[i].name, .dtype = "bfloat16",
                                       .group = group, .segment = segment,
                                       .offset = offset * (dim_first ? 6 : 2), .pages = 8,
                                       .page_stride = page, .cell_bytes = 2, .axes = axes,
                                       .axis_count = 2});
        offset += mine;
    }
    const kvferry_axis heads = {"head", rank * 2 / size, 2 / size, 2, 64};
    kvferry_layout_builder_stream(
        builder, &(kvferry_stream){.layer = "l0", .name = "ssm", .dtype = "float32", .group = group,
                                   .segment = segment, .offset = 6 * all, .pages = 8,
                                   .page_stride = page, .cell_bytes = 64, .axes = &heads,
                                   .axis_count = 1});
    return test_finish(builder);
}

static void test_equal_states_are_one_copy(void **state)
{
    (void)state;
    const kvferry_block_table from[] = {TABLE("gdn", 0, 0, 3)};
    const kvferry_block_table to[] = {TABLE("gdn", 0, 5)};
    const kvferry_request request = REQUEST(9, from, to);
    for (int dim_first = 0; dim_first < 2; dim_first++) {
        kvferry_plan *plan = plan_of(gdn(0, 1, dim_first), gdn(0, 1, dim_first));
        assert_int_equal(test_expand(plan, 0, &request, copies), 1);
        ASSERT_COPY(copies[0], 3 * 256, 5 * 256, 96 + 128);
        kvferry_plan_free(plan);
    }
}

/* Rank 1 of 2 takes its half of each projection, not the second half of the whole. */
static void test_projections_are_cut_apart(void **state)
{
    (void)state;
    const kvferry_block_table from[] = {TABLE("gdn", 0, 3)};
    const kvferry_block_table to[] = {TABLE("gdn", 0, 5)};
    const kvferry_request request = REQUEST(9, from, to);
    kvferry_plan *plan = plan_of(gdn(0, 1, true), gdn(1, 2, true));
    assert_int_equal(test_expand(plan, 0, &request, copies), 4);
    ASSERT_COPY(copies[0], 768 + 12, 640, 12);           /* q: channels 2, 3 */
    ASSERT_COPY(copies[1], 768 + 24 + 12, 640 + 12, 12); /* k: channels 2, 3 */
    ASSERT_COPY(copies[2], 768 + 48 + 24, 640 + 24, 24); /* v: channels 4..7 */
    ASSERT_COPY(copies[3], 768 + 96 + 64, 640 + 48, 64); /* ssm: head 1 */
    kvferry_plan_free(plan);
}

/* SD to DS: every element goes alone; row r of channel c from c*2 + r*32 to c*6 + r*2. */
static void test_conv_layouts_convert(void **state)
{
    (void)state;
    const kvferry_block_table from[] = {TABLE("gdn", 0, 0)}, to[] = {TABLE("gdn", 0, 5)};
    const kvferry_block_table live[] = {TABLE("gdn", 0, 3)};
    const kvferry_request request = REQUEST(9, live, to);
    kvferry_plan *plan = plan_of(gdn(0, 1, false), gdn(0, 1, true));
    assert_int_equal(test_expand(plan, 0, &request, copies), 16 * 3 + 1);
    bool seen[16][3] = {{false}};
    for (int i = 0; i < 49; i++) {
        uint64_t there = copies[i].source_offset - 768, here = copies[i].target_offset - 1280;
        if (there >= 96)
            continue;
        assert_int_equal(copies[i].bytes, 2);
        uint64_t row = there / 32, channel = there % 32 / 2;
        assert_int_equal(here, channel * 6 + row * 2);
        assert_false(seen[channel][row]);
        seen[channel][row] = true;
    }
    kvferry_report *report = NULL;
    size_t count = 7;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    const kvferry_request null_only = REQUEST(9, from, to);
    assert_int_equal(kvferry_plan_expand(plan, 0, &null_only, copies, 4096, &count, report),
                     KVFERRY_REFUSED);
    assert_non_null(test_reason(report, "state_blocks"));
    assert_int_equal(count, 7);
    kvferry_report_free(report);
    kvferry_plan_free(plan);
}

/* --- rows ------------------------------------------------------------------------------------------- */

/* Rows of 128 bytes: group "a" has streams of 16 bytes at 0 and 48, group "b" one of 16 bytes at
 * `b_offset`; the stream between them of group "a" at 24 has the given policy. */
static kvferry_layout *rows(uint64_t b_offset, kvferry_policy policy)
{
    kvferry_layout_builder *builder = test_builder(0, 1, 0, 1);
    uint32_t segment = kvferry_layout_builder_segment(builder, "kv", 16 * 128);
    uint32_t a = test_paged(builder, "a", 4, 0), b = test_paged(builder, "b", 4, 0);
    const struct {
        const char *layer;
        uint32_t group;
        uint64_t offset;
        kvferry_policy policy;
    } streams[] = {{"a0", a, 0, KVFERRY_POLICY_REQUIRED},
                   {"a1", a, 24, policy},
                   {"a2", a, 48, KVFERRY_POLICY_REQUIRED},
                   {"b0", b, b_offset, KVFERRY_POLICY_REQUIRED}};
    for (size_t i = 0; i < 4; i++) {
        const kvferry_axis token = {"token", 0, 4, 4, 4};
        kvferry_layout_builder_stream(
            builder, &(kvferry_stream){.layer = streams[i].layer, .name = "latent", .dtype = "uint8",
                                       .group = streams[i].group, .segment = segment,
                                       .offset = streams[i].offset, .pages = 16, .page_stride = 128,
                                       .cell_bytes = 4, .policy = streams[i].policy, .axes = &token,
                                       .axis_count = 1});
    }
    return test_finish(builder);
}

static void test_rows(void **state)
{
    (void)state;
    const kvferry_block_table from[] = {TABLE("a", 0, 2, 3)}, to[] = {TABLE("a", 0, 6, 7)};
    const kvferry_request request = REQUEST(8, from, to);
    /* b shares bytes with a: its view of a's block is padding; both rows are one copy. */
    kvferry_plan *plan = plan_of(rows(8, KVFERRY_POLICY_REQUIRED), rows(8, KVFERRY_POLICY_REQUIRED));
    assert_int_equal(test_expand(plan, 0, &request, copies), 1);
    ASSERT_COPY(copies[0], 256, 768, 128 + 64);
    kvferry_plan_free(plan);
    /* a local stream in between is never written. */
    plan = plan_of(rows(8, KVFERRY_POLICY_LOCAL), rows(8, KVFERRY_POLICY_LOCAL));
    assert_int_equal(test_expand(plan, 0, &request, copies), 4);
    ASSERT_COPY(copies[0], 256, 768, 16);
    ASSERT_COPY(copies[2], 256 + 48, 768 + 48, 16);
    kvferry_plan_free(plan);
    /* b lies apart: block 6 of b may be another request's, so its bytes are left alone. */
    plan = plan_of(rows(100, KVFERRY_POLICY_REQUIRED), rows(100, KVFERRY_POLICY_REQUIRED));
    assert_int_equal(test_expand(plan, 0, &request, copies), 2);
    ASSERT_COPY(copies[0], 256, 768, 64);
    ASSERT_COPY(copies[1], 384, 896, 64);
    kvferry_plan_free(plan);
}

/* --- refusals ------------------------------------------------------------------------------------------ */

static void assert_refused(const kvferry_plan *plan, const kvferry_request *request, const char *code)
{
    kvferry_report *report = NULL;
    size_t count = 7;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_plan_expand(plan, 0, request, copies, 4096, &count, report),
                     KVFERRY_REFUSED);
    assert_int_equal(count, 7);
    if (!test_reason(report, code))
        test_print(report);
    assert_non_null(test_reason(report, code));
    kvferry_report_free(report);
    assert_int_equal(kvferry_plan_expand(plan, 0, request, copies, 4096, &count, NULL),
                     KVFERRY_REFUSED);
}

static void test_refusals(void **state)
{
    (void)state;
    const page_shape one = {.heads = 1, .all_heads = 1, .block_tokens = 4, .page_tokens = 4, .layers = 1};
    kvferry_plan *plan = plan_shapes(&one, &one);
    const kvferry_block_table from[] = {TABLE("attn", 0, 3, 4, 9)};
    const kvferry_block_table to[] = {TABLE("attn", 0, 5, 6, 7)};
    const kvferry_block_table holed[] = {TABLE("attn", 0, 3, 0, 9)}, far[] = {TABLE("attn", 0, 3, 32, 9)};
    const kvferry_block_table brief[] = {TABLE("attn", 0, 3, 4)}, late[] = {TABLE("attn", 4, 4, 9)};
    const kvferry_block_table odd[] = {TABLE("attn", 2, 4, 9)}, other[] = {TABLE("mla", 0, 4, 9)};
    const kvferry_block_table again[] = {TABLE("attn", 0, 5, 6, 5)};
    const kvferry_block_table twice[] = {TABLE("attn", 0, 5, 6, 7), TABLE("attn", 0, 8)};
    const struct {
        kvferry_request request;
        const char *code;
    } cases[] = {
        {REQUEST(12, holed, to), "source_null"},      {REQUEST(12, brief, to), "source_null"},
        {REQUEST(12, late, to), "source_null"},       {REQUEST(12, far, to), "block_range"},
        {REQUEST(12, from, far), "block_range"},      {REQUEST(12, odd, to), "first_token_misaligned"},
        {REQUEST(12, from, odd), "first_token_misaligned"},
        {REQUEST(12, other, to), "group_unknown"},    {REQUEST(12, from, other), "group_unknown"},
        {REQUEST(12, from, again), "target_block_twice"},
        {REQUEST(12, from, twice), "group_twice"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_refused(plan, &cases[i].request, cases[i].code);
    kvferry_request request = REQUEST(12, from, to);
    request.source_count = 0;
    assert_refused(plan, &request, "group_missing");
    request = (kvferry_request)REQUEST(12, from, to);
    request.source_tokens = 10;
    assert_refused(plan, &request, "source_null");
    /* Everything at once: an unknown group does not hide what else is wrong. */
    const kvferry_block_table bad_from[] = {TABLE("attn", 0, 3, 0, 9)};
    const kvferry_block_table bad_to[] = {TABLE("attn", 0, 5, 32, 5), TABLE("mla", 0, 1)};
    const kvferry_request bad = REQUEST(12, bad_from, bad_to);
    static const char *const all[] = {"source_null", "block_range", "target_block_twice",
                                      "group_unknown"};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        assert_refused(plan, &bad, all[i]);
    size_t count;
    request.source_tokens = 12;
    assert_int_equal(kvferry_plan_expand(plan, 0, &request, copies, 0, &count, NULL), KVFERRY_NO_SPACE);
    assert_int_equal(kvferry_plan_expand(plan, 1, &request, copies, 4096, &count, NULL), KVFERRY_INVALID);
    kvferry_plan_free(plan);
}

static void test_blocks_are_exclusive_over_sharing_groups(void **state)
{
    (void)state;
    const kvferry_block_table from[] = {TABLE("a", 0, 2, 3), TABLE("b", 0, 9)};
    const kvferry_block_table to[] = {TABLE("a", 0, 6, 7), TABLE("b", 0, 7)};
    const kvferry_request request = {.source_tokens = 8, .target_tokens = 8, .source = from,
                                     .source_count = 2, .target = to, .target_count = 2};
    kvferry_request narrow = request;
    narrow.source_tokens = narrow.target_tokens = 4;
    kvferry_plan *plan = plan_of(rows(8, KVFERRY_POLICY_REQUIRED), rows(8, KVFERRY_POLICY_REQUIRED));
    assert_refused(plan, &narrow, "target_block_twice");
    kvferry_plan_free(plan);
    plan = plan_of(rows(100, KVFERRY_POLICY_REQUIRED), rows(100, KVFERRY_POLICY_REQUIRED));
    assert_int_equal(test_expand(plan, 0, &narrow, copies), 2);
    kvferry_plan_free(plan);
}

static void test_a_state_has_one_position(void **state)
{
    (void)state;
    const kvferry_block_table from[] = {TABLE("gdn", 0, 3)}, to[] = {TABLE("gdn", 0, 5)};
    const kvferry_block_table two[] = {TABLE("gdn", 0, 5, 6)};
    kvferry_plan *plan = plan_of(gdn(0, 1, true), gdn(0, 1, true));
    kvferry_request request = REQUEST(9, from, to);
    request.source_tokens = 10;
    assert_refused(plan, &request, "state_position");
    const kvferry_request live = REQUEST(9, from, two);
    assert_refused(plan, &live, "state_blocks");
    kvferry_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_consecutive_blocks_are_one_copy),
        cmocka_unit_test(test_consecutive_blocks_downwards_are_one_copy),
        cmocka_unit_test(test_padding_between_named_rows_is_carried),
        cmocka_unit_test(test_prefix_hit_pairs_by_token),
        cmocka_unit_test(test_unequal_blocks),
        cmocka_unit_test(test_unequal_blocks_of_two_heads),
        cmocka_unit_test(test_kernel_blocks),
        cmocka_unit_test(test_window_and_null_blocks),
        cmocka_unit_test(test_window_of_whole_blocks),
        cmocka_unit_test(test_heads_are_cut),
        cmocka_unit_test(test_equal_states_are_one_copy),
        cmocka_unit_test(test_projections_are_cut_apart),
        cmocka_unit_test(test_conv_layouts_convert),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_blocks_are_exclusive_over_sharing_groups),
        cmocka_unit_test(test_a_state_has_one_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
