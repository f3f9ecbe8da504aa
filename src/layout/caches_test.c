/* SPDX-License-Identifier: Apache-2.0 */
/* The caches of real engines can be written, and the same with one number wrong cannot. */
#include "layout/documents.h"
#include "layout/rules.h"

static kvferry_layout_builder *begin(void)
{
    const kvferry_worker worker = {0, 1, 0, 1, 0, 1};
    const kvferry_identity identity = {"m", "", ""};
    kvferry_layout_builder *builder;
    assert_int_equal(kvferry_layout_builder_create("e", &worker, &identity, &builder), KVFERRY_OK);
    return builder;
}

static uint32_t paged(kvferry_layout_builder *builder, const char *name, uint64_t block_tokens)
{
    return kvferry_layout_builder_group(
        builder, &(kvferry_group){.name = name, .block_tokens = block_tokens});
}

static uint32_t single(kvferry_layout_builder *builder, const char *name, kvferry_group_kind kind)
{
    return kvferry_layout_builder_group(builder, &(kvferry_group){.name = name, .kind = kind});
}

/* Adds a stream of layer `layer`, in segment 0, with its axes. */
#define ADD(builder, layer_number, axis_array, ...)                                                \
    kvferry_layout_builder_stream(                                                                 \
        builder, &(kvferry_stream){.layer = base_format("layers.%d", layer_number),                \
                                   .dtype = "bfloat16",                                            \
                                   .axes = axis_array,                                             \
                                   .axis_count = sizeof(axis_array) / sizeof(axis_array[0]),       \
                                   __VA_ARGS__})

static kvferry_layout *finish_good(kvferry_layout_builder *builder)
{
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    kvferry_status status = kvferry_layout_builder_finish(builder, &layout, report);
    if (kvferry_report_count(report))
        print_error("%s\n", kvferry_report_get(report, 0)->message);
    assert_int_equal(status, KVFERRY_OK);
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
    return layout;
}

/* All findings of the document are of this code, and there are some. */
static void finish_bad(kvferry_layout_builder *builder, const char *code)
{
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_layout_builder_finish(builder, &layout, report), KVFERRY_REFUSED);
    assert_true(kvferry_report_count(report) > 0);
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        assert_string_equal(kvferry_report_get(report, i)->code, code);
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
}

static size_t count_code(const kvferry_report *report, const char *code)
{
    size_t count = 0;
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        count += strcmp(kvferry_report_get(report, i)->code, code) == 0;
    return count;
}

/* --- attention in the six memory orders ------------------------------------------------------ */

enum { LAYERS = 4, HEADS = 8, BLOCKS = 100, TOKENS = 16, CELL = 256 };

/* Strides of layer, block, head and token of [L, B, H, N, C], permuted as `order` says. */
static void order_strides(const char *order, uint64_t strides[4])
{
    static const uint64_t counts[] = {LAYERS, BLOCKS, HEADS, TOKENS};
    uint64_t stride = 2 * CELL;
    for (size_t i = strlen(order) - 1; i-- > 0;) {
        size_t which = (size_t)(strchr("LBHN", order[i]) - "LBHN");
        strides[which] = stride;
        stride *= counts[which];
    }
}

/* Attention of some layers, K and V side by side, V `shift` bytes after K. */
static kvferry_layout_builder *attention(const char *order, uint64_t shift)
{
    uint64_t strides[4];
    order_strides(order, strides);
    kvferry_layout_builder *builder = begin();
    kvferry_layout_builder_segment(builder, "kv",
                                   (uint64_t)LAYERS * BLOCKS * HEADS * TOKENS * 2 * CELL);
    paged(builder, "attn", TOKENS);
    const kvferry_axis axes[] = {{.name = "kv_head", .extent = HEADS, .stride = strides[2]},
                                 {.name = "token", .extent = TOKENS, .stride = strides[3]}};
    for (int i = 0; i < LAYERS; i++)
        for (int v = 0; v < 2; v++)
            ADD(builder, i, axes, .name = v ? "v" : "k", .pages = BLOCKS, .page_stride = strides[1],
                .offset = (uint64_t)i * strides[0] + (v ? shift : 0), .cell_bytes = CELL);
    return builder;
}

static void test_memory_orders(void **state)
{
    (void)state;
    static const char *const orders[] = {"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"};
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        kvferry_layout *layout = finish_good(attention(orders[i], CELL));
        assert_int_equal(kvferry_layout_group_blocks(layout, 0), BLOCKS);
        kvferry_layout_free(layout);
        finish_bad(attention(orders[i], CELL - 2), "streams_overlap");
        finish_bad(attention(orders[i], 0), "streams_overlap");
    }
}

/* What a CPU keeps: per block and head K by dimension, then V by token; or both in tiles of 16
 * tokens. */
static kvferry_layout_builder *cpu_attention(bool tiles, uint64_t v_offset)
{
    enum { N = 32, D = 64, HALF = N * D * 2 };
    kvferry_layout_builder *builder = begin();
    kvferry_layout_builder_segment(builder, "kv", (uint64_t)BLOCKS * 2 * HALF * 2);
    paged(builder, "attn", N);
    const kvferry_axis k[] = {{.name = "kv_head", .extent = 2, .stride = 2 * HALF},
                              {.name = "dim", .extent = D, .stride = N * 2},
                              {.name = "token", .extent = N, .stride = 2}};
    const kvferry_axis v[] = {{.name = "kv_head", .extent = 2, .stride = 2 * HALF},
                              {.name = "token", .extent = N, .stride = D * 2}};
    /* In a tile pairs of elements lie together, of dimensions in K and of tokens in V. */
    const kvferry_axis k_tiles[] = {{.name = "kv_head", .extent = 2, .stride = 2 * HALF},
                                    {.name = "token", .extent = N / 16, .stride = 16 * D * 2},
                                    {.name = "dim_pair", .extent = D / 2, .stride = 16 * 4},
                                    {.name = "lane", .extent = 16, .stride = 4}};
    const kvferry_axis v_tiles[] = {{.name = "kv_head", .extent = 2, .stride = 2 * HALF},
                                    {.name = "token", .extent = N / 16, .stride = 16 * D * 2},
                                    {.name = "token_pair", .extent = 8, .stride = D * 4},
                                    {.name = "dim", .extent = D, .stride = 4}};
    if (tiles) {
        ADD(builder, 0, k_tiles, .name = "k", .pages = BLOCKS, .page_stride = 4 * HALF,
            .cell_bytes = 4, .tokens_per_state = 16);
        ADD(builder, 0, v_tiles, .name = "v", .pages = BLOCKS, .page_stride = 4 * HALF,
            .cell_bytes = 4, .tokens_per_state = 16, .offset = v_offset);
    } else {
        ADD(builder, 0, k, .name = "k", .pages = BLOCKS, .page_stride = 4 * HALF, .cell_bytes = 2);
        ADD(builder, 0, v, .name = "v", .pages = BLOCKS, .page_stride = 4 * HALF,
            .cell_bytes = D * 2, .offset = v_offset);
    }
    return builder;
}

static void test_cpu_interior(void **state)
{
    (void)state;
    kvferry_layout_free(finish_good(cpu_attention(false, 4096)));
    kvferry_layout_free(finish_good(cpu_attention(true, 4096)));
    finish_bad(cpu_attention(false, 4094), "streams_overlap");
    finish_bad(cpu_attention(true, 4092), "streams_overlap");
}

/* --- states -------------------------------------------------------------------------------- */

/* A GDN state of Qwen3.5-35B at TP4: conv rows (3 x 2048) then ssm (8 x 65,536), 4,096 bytes padding;
 * by channel (DS) or by row (SD); attention of blocks of 33 kernel pages in the same bytes. */
static kvferry_layout_builder *gdn(bool by_channel, uint64_t ssm_offset, uint64_t kernel_tokens)
{
    enum { PAGE = 540672, POOL = 50 };
    kvferry_layout_builder *builder = begin();
    kvferry_layout_builder_segment(builder, "kv", (uint64_t)PAGE * POOL + 1);
    single(builder, "gdn0", KVFERRY_GROUP_STATE);
    single(builder, "gdn1", KVFERRY_GROUP_STATE);
    paged(builder, "attn", 528);
    static const char *const names[] = {"conv.q", "conv.k", "conv.v"};
    static const uint64_t channels[] = {512, 512, 1024};
    const kvferry_axis heads[] = {
        {.name = "head", .start = 8, .extent = 8, .global = 32, .stride = 65536}};
    for (int layer = 0; layer < 2; layer++) {
        uint64_t first = 0;
        for (int i = 0; i < 3; i++) {
            const kvferry_axis axes[] = {
                {.name = "channel",
                 .start = channels[i],
                 .extent = channels[i],
                 .global = 4 * channels[i],
                 .stride = by_channel ? 6 : 2},
                {.name = "row", .extent = 3, .stride = by_channel ? 2 : 4096}};
            ADD(builder, layer, axes, .name = names[i], .group = (uint32_t)layer, .cell_bytes = 2,
                .offset = first * (by_channel ? 6 : 2), .pages = POOL, .page_stride = PAGE);
            first += channels[i];
        }
        ADD(builder, layer, heads, .name = "ssm", .group = (uint32_t)layer, .cell_bytes = 65536,
            .offset = ssm_offset, .pages = POOL, .page_stride = PAGE);
    }
    const kvferry_axis axes[] = {{.name = "kv_head", .extent = 1, .global = 2, .stride = 0},
                                 {.name = "token", .extent = kernel_tokens, .stride = 1024}};
    for (int v = 0; v < 2; v++)
        ADD(builder, 2, axes, .name = v ? "v" : "k", .group = 2, .cell_bytes = 512,
            .offset = v ? 512 : 0, .page_tokens = kernel_tokens,
            .pages = POOL * (528 / kernel_tokens), .page_stride = kernel_tokens * 1024);
    return builder;
}

static void test_states_over_attention(void **state)
{
    (void)state;
    for (int by_channel = 0; by_channel < 2; by_channel++) {
        kvferry_layout *layout = finish_good(gdn(by_channel, 12288, 16));
        for (uint32_t a = 0; a < 3; a++) {
            assert_int_equal(kvferry_layout_group_blocks(layout, a), 50);
            for (uint32_t b = 0; b < 3; b++)
                assert_true(kvferry_layout_groups_share(layout, a, b));
        }
        assert_false(kvferry_layout_groups_share(layout, 0, 3));
        kvferry_layout_free(layout);
        kvferry_layout_free(finish_good(gdn(by_channel, 12288, 528)));
        kvferry_layout_free(
            finish_good(gdn(by_channel, 12288 + 4096, 16))); /* up to the page's end */
        finish_bad(gdn(by_channel, 12287, 16), "streams_overlap");
    }
    /* A byte too far: what begins the next page is another block's, of each group. */
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout_builder *builder = gdn(true, 12288 + 4097, 16);
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_layout_builder_finish(builder, &layout, report), KVFERRY_REFUSED);
    assert_int_equal(count_code(report, "streams_overlap"), 2); /* each ssm on its own conv.q */
    assert_int_equal(count_code(report, "groups_overlap"), 4); /* on the other's conv.q, and on k */
    assert_int_equal(kvferry_report_count(report), 6);
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
}

/* --- packed rows --------------------------------------------------------------------------- */

/* DeepSeek-V4-Flash: rows of 1,002,240 bytes, five groups that begin at byte 0 of each row. */
enum { V4_ROW = 1002240, V4_BLOCKS = 64 };

/* n states of `data` bytes, then n of `scale` bytes, in a page of that layer. */
static void add_pair(kvferry_layout_builder *builder, uint32_t group, int layer, const char *name,
                     const char *scale_name, uint64_t offset, uint64_t n, uint64_t data,
                     uint64_t scale, uint64_t tokens_per_state)
{
    const kvferry_axis data_axes[] = {{.name = "token", .extent = n, .stride = data}};
    const kvferry_axis scale_axes[] = {{.name = "token", .extent = n, .stride = scale}};
    ADD(builder, layer, data_axes, .name = name, .group = group, .pages = V4_BLOCKS,
        .page_stride = V4_ROW, .offset = offset, .cell_bytes = data,
        .tokens_per_state = tokens_per_state, .format = "fp8");
    ADD(builder, layer, scale_axes, .name = scale_name, .group = group, .pages = V4_BLOCKS,
        .page_stride = V4_ROW, .offset = offset + n * data, .cell_bytes = scale,
        .tokens_per_state = tokens_per_state, .format = "fp8");
}

static void add_compressor(kvferry_layout_builder *builder, uint32_t group, int layer,
                           uint64_t offset, uint64_t n, uint64_t cell)
{
    const kvferry_axis axes[] = {{.name = "token", .extent = n, .stride = cell}};
    ADD(builder, layer, axes, .name = "compressor", .group = group, .pages = V4_BLOCKS,
        .page_stride = V4_ROW, .offset = offset, .cell_bytes = cell);
}

/* Without its MTP layer: 43 layers, of which 21 are C4 and 20 C128. `shift` moves the C128 pages. */
static kvferry_layout_builder *v4_flash(uint64_t shift)
{
    kvferry_layout_builder *builder = begin();
    kvferry_layout_builder_segment(builder, "kv", (uint64_t)V4_ROW * V4_BLOCKS);
    uint32_t swa0 = paged(builder, "swa0", 64), swa1 = paged(builder, "swa1", 64);
    uint32_t mla = paged(builder, "mla", 256);
    uint32_t c4 = paged(builder, "c4", 4), c128 = paged(builder, "c128", 8);
    for (int i = 0; i < 43; i++)
        add_pair(builder, i % 2 ? swa1 : swa0, i, "latent", "latent.scale",
                 (uint64_t)(i / 2) * 37440, 64, 576, 8, 1);
    for (int i = 0; i < 21; i++) {
        uint64_t at = (uint64_t)i;
        add_pair(builder, mla, 100 + i, "index", "index.scale", at * 8640, 64, 128, 4, 4);
        add_pair(builder, mla, 200 + i, "latent", "latent.scale", 181440 + at * 37440, 64, 576, 8,
                 4);
        add_compressor(builder, c4, 100 + i, at * 8640, 4, 2048);
        add_compressor(builder, c4, 200 + i, 181440 + at * 32832, 4, 8192);
    }
    for (int i = 0; i < 20; i++) {
        uint64_t at = (uint64_t)i;
        add_pair(builder, mla, 300 + i, "latent", "latent.scale", 967680 + shift + at * 1728, 2,
                 576, 8, 128);
        add_compressor(builder, c128, 300 + i, at * 32832, 8, 4096);
    }
    return builder;
}

/* How many steps the question of overlaps takes. */
static uint64_t overlap_steps(kvferry_layout *layout)
{
    bool sound[2000];
    assert_true(layout->stream_count <= 2000);
    memset(sound, true, sizeof(sound));
    layout_check check = {.layout = layout, .sound = sound};
    assert_int_equal(layout_check_overlaps(&check), KVFERRY_OK);
    assert_int_equal(check.findings, 0);
    return LAYOUT_STEPS - check.steps;
}

static void test_packed_rows(void **state)
{
    (void)state;
    kvferry_layout *layout = finish_good(v4_flash(0));
    assert_int_equal(kvferry_layout_stream_count(layout), 272);
    for (uint32_t a = 0; a < 5; a++)
        for (uint32_t b = 0; b < 5; b++)
            assert_true(kvferry_layout_groups_share(layout, a, b));
    assert_in_range(overlap_steps(layout), 1, 272 * 10);
    kvferry_layout_free(layout);
    finish_bad(v4_flash((uint64_t)0 - 577), "streams_overlap");
}

/* Many layers in any order: the steps stay in proportion to the streams. */
static void test_steps_of_many_streams(void **state)
{
    (void)state;
    enum { MANY = 500 };
    for (int packed = 0; packed < 2; packed++) {
        kvferry_layout_builder *builder = begin();
        kvferry_layout_builder_segment(builder, "kv", (uint64_t)MANY * 100 * 8192);
        uint32_t groups[2] = {paged(builder, "a", 16), paged(builder, "b", 16)};
        const kvferry_axis axes[] = {{.name = "token", .extent = 16, .stride = 512}};
        for (int i = 0; i < 2 * MANY; i++) {
            uint64_t place = (uint64_t)(i / 2 * 7 % MANY); /* not in address order */
            ADD(builder, i / 2 + (i % 4 < 2 ? 0 : MANY), axes, .name = i % 2 ? "v" : "k",
                .group = groups[i % 4 / 2], .pages = 100,
                .page_stride = packed ? MANY * 8192 : 8192,
                .offset = place * (packed ? 8192 : 8192 * 100) + (i % 2 ? 256 : 0),
                .cell_bytes = 256);
        }
        kvferry_layout *layout = finish_good(builder);
        assert_in_range(overlap_steps(layout), 1, MANY * 2 * 10);
        kvferry_layout_free(layout);
    }
}

/* --- the earlier kpool layout -------------------------------------------------------------- */

/* GLM at TP4: indexer rows of 36 kernel pages of 2,112 bytes (16 states of 128 + 4 bytes); the tail of
 * a block lies at the beginning of the indexer row of that id. */
static kvferry_layout_builder *kpool(uint64_t tail_stride, uint64_t tail_pages)
{
    enum { ROWS = 40, RATIO = 36, PAGE = 2112, GLM_LAYERS = 3 };
    kvferry_layout_builder *builder = begin();
    kvferry_layout_builder_segment(builder, "kv", (uint64_t)GLM_LAYERS * ROWS * RATIO * PAGE);
    uint32_t attn = paged(builder, "attn", 2304),
             tail = single(builder, "tail", KVFERRY_GROUP_RING);
    const kvferry_axis data[] = {{.name = "token", .extent = 16, .stride = 128}};
    const kvferry_axis scales[] = {{.name = "token", .extent = 16, .stride = 4}};
    const kvferry_axis parts[] = {{.name = "part", .extent = 2, .stride = 1024},
                                  {.name = "slot", .extent = 4, .stride = 256}};
    for (int i = 0; i < GLM_LAYERS; i++) {
        uint64_t base = (uint64_t)i * ROWS * RATIO * PAGE;
        ADD(builder, i, data, .name = "index", .group = attn, .pages = ROWS * RATIO,
            .page_stride = PAGE, .page_tokens = 64, .tokens_per_state = 4, .cell_bytes = 128,
            .offset = base);
        ADD(builder, i, scales, .name = "index.scale", .group = attn, .pages = ROWS * RATIO,
            .page_stride = PAGE, .page_tokens = 64, .tokens_per_state = 4, .cell_bytes = 4,
            .offset = base + 2048);
        ADD(builder, i, parts, .name = "tail", .group = tail, .pages = tail_pages,
            .page_stride = tail_stride, .cell_bytes = 256, .offset = base);
    }
    return builder;
}

static void test_kpool_tail(void **state)
{
    (void)state;
    kvferry_layout *layout = finish_good(kpool(76032, 40));
    assert_true(kvferry_layout_groups_share(layout, 0, 1));
    assert_int_equal(kvferry_layout_group_blocks(layout, 0), 40);
    assert_int_equal(kvferry_layout_group_blocks(layout, 1), 40);
    kvferry_layout_free(layout);
    finish_bad(kpool(2048, 40), "groups_overlap"); /* the dense stride for the row's */
    finish_bad(kpool(2112, 1440), "groups_overlap"); /* a kernel page for a block */
    kvferry_layout_free(finish_good(kpool(2048, 1))); /* one block is block 0 in any stride */
}

/* Groups that never meet: cells of the one lie between cells of the other. */
static void test_neighbours_do_not_share(void **state)
{
    (void)state;
    kvferry_layout_builder *builder = begin();
    kvferry_layout_builder_segment(builder, "kv", 16384);
    single(builder, "a", KVFERRY_GROUP_STATE);
    single(builder, "b", KVFERRY_GROUP_STATE);
    single(builder, "c", KVFERRY_GROUP_STATE);
    const kvferry_axis axes[] = {{.name = "x", .extent = 8, .stride = 64}};
    for (uint32_t i = 0; i < 3; i++)
        ADD(builder, (int)i, axes, .name = "s", .group = i, .pages = 16, .page_stride = 512,
            .offset = i == 2 ? 24 : i * 32, .cell_bytes = 32);
    kvferry_layout *layout = finish_good(builder);
    assert_false(kvferry_layout_groups_share(layout, 0, 1));
    assert_true(kvferry_layout_groups_share(layout, 0, 2));
    assert_true(kvferry_layout_groups_share(layout, 2, 1));
    kvferry_layout_free(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_orders),       cmocka_unit_test(test_cpu_interior),
        cmocka_unit_test(test_states_over_attention), cmocka_unit_test(test_packed_rows),
        cmocka_unit_test(test_steps_of_many_streams), cmocka_unit_test(test_kpool_tail),
        cmocka_unit_test(test_neighbours_do_not_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
