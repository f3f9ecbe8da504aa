/* SPDX-License-Identifier: Apache-2.0 */
/* What lies inside a page, by formulas that were read in vLLM's kernels. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"

#define LLAMA                                                                                      \
    "{\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\", \"num_hidden_layers\": 2, "        \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"hidden_size\": 256, "               \
    "\"head_dim\": 32, \"max_position_embeddings\": 4096}"
#define V4                                                                                         \
    "{\"model_type\": \"deepseek_v4\", \"torch_dtype\": \"bfloat16\", \"num_hidden_layers\": 3, "  \
    "\"num_attention_heads\": 8, \"head_dim\": 512, \"max_position_embeddings\": 4096, "           \
    "\"index_head_dim\": 128, \"index_topk\": 64, \"sliding_window\": 100, "                       \
    "\"compress_ratios\": [0, 4, 128]}"
/* %s: index_kpool and index_head_dim */
#define GLM                                                                                        \
    "{\"model_type\": \"glm5_next_text\", \"dtype\": \"bfloat16\", \"num_hidden_layers\": 2, "     \
    "\"num_attention_heads\": 8, \"max_position_embeddings\": 4096, \"kv_lora_rank\": 512, "       \
    "\"qk_rope_head_dim\": 0, \"qk_nope_head_dim\": 256, \"index_topk\": 2048, %s, "               \
    "\"layer_types\": [\"linear_attention\", \"full_attention\"], "                                \
    "\"linear_attn_config\": {\"num_heads\": 8, \"head_dim\": 128, \"short_conv_kernel_size\": 4}}"

static kvferry_layout *layout_of(const char *config, kvferry_model_options options)
{
    kvferry_layout *layout = NULL;
    kvferry_report *report = NULL;
    options.size = sizeof options;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status = kvferry_model_layout(config, strlen(config), &options, &layout, report);
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        print_error("%s\n", kvferry_report_get(report, i)->message);
    kvferry_report_free(report);
    assert_int_equal(status, KVFERRY_OK);
    return layout;
}

/* The stream of that name whose layer ends so. */
static const kvferry_stream *find(const kvferry_layout *layout, const char *ending, const char *name)
{
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, i);
        size_t length = strlen(stream->layer), tail = strlen(ending);
        if (length >= tail && strcmp(stream->layer + length - tail, ending) == 0 &&
            strcmp(stream->name, name) == 0)
            return stream;
    }
    fail_msg("no stream %s of %s", name, ending);
    return NULL;
}

static const kvferry_axis *axis(const kvferry_stream *stream, const char *name)
{
    for (uint32_t i = 0; i < stream->axis_count; i++)
        if (strcmp(stream->axes[i].name, name) == 0)
            return &stream->axes[i];
    fail_msg("no axis %s", name);
    return NULL;
}

static uint64_t stride(const kvferry_stream *stream, const char *name)
{
    return axis(stream, name)->stride;
}

/* --- attention ----------------------------------------------------------------------------- */

#define HEADS 2u
#define STATES 128u
#define DIM 32u

static void gpu_pages_have_key_beside_value(void **state)
{
    (void)state;
    kvferry_layout *layout = layout_of(LLAMA, (kvferry_model_options){.tp_size = 2});
    const kvferry_stream *k = find(layout, "layers.1.self_attn.attn", "k");
    const kvferry_stream *v = find(layout, "layers.1.self_attn.attn", "v");
    assert_int_equal(v->offset - k->offset, 2 * DIM);
    assert_int_equal(k->cell_bytes, 2 * DIM);
    assert_int_equal(stride(k, "token"), 4 * DIM);
    assert_int_equal(stride(k, "kv_head"), 16 * 4 * DIM);
    assert_string_equal(k->format, "");
    kvferry_layout_free(layout);
    layout = layout_of(LLAMA, (kvferry_model_options){.kv_dtype = "fp8", .memory_order = "LBNHC"});
    k = find(layout, "layers.1.self_attn.attn", "k");
    assert_string_equal(k->dtype, "uint8");
    assert_string_equal(k->format, "fp8");
    assert_int_equal(stride(k, "token"), 4 * 2 * DIM);
    assert_int_equal(stride(k, "kv_head"), 2 * DIM);
    kvferry_layout_free(layout);
}

/* Elements from a page's start: key h*2*N*D + d*N + t, value h*2*N*D + N*D + t*D + d. */
static void cpu_pages_have_keys_by_dimension(void **state)
{
    (void)state;
    kvferry_layout *layout =
        layout_of(LLAMA, (kvferry_model_options){.tp_size = 2, .platform = "cpu"});
    const kvferry_stream *k = find(layout, "layers.0.self_attn.attn", "k");
    const kvferry_stream *v = find(layout, "layers.0.self_attn.attn", "v");
    assert_int_equal(k->cell_bytes, 2);
    assert_int_equal(axis(k, "token")->extent, STATES);
    assert_int_equal(axis(k, "dim")->extent, DIM);
    for (uint64_t h = 0; h < HEADS; h++)
        for (uint64_t t = 0; t < STATES; t++)
            for (uint64_t d = 0; d < DIM; d++) {
                uint64_t base = h * 2 * STATES * DIM;
                assert_int_equal(k->offset + h * stride(k, "kv_head") + t * stride(k, "token") +
                                     d * stride(k, "dim"),
                                 2 * (base + d * STATES + t));
                assert_int_equal(v->offset + h * stride(v, "kv_head") + t * stride(v, "token") + 2 * d,
                                 2 * (base + STATES * DIM + t * DIM + d));
            }
    kvferry_layout_free(layout);
}

/* Key (t/16)*16*D + (d/2)*32 + (t%16)*2 + d%2, value N*D + (d/16)*16*N + (t/2)*32 + (d%16)*2 + t%2:
 * each element lies in the cell of its token (and dimension), and in no other. */
static void amx_pages_have_tiles(void **state)
{
    (void)state;
    kvferry_layout *layout =
        layout_of(LLAMA, (kvferry_model_options){.tp_size = 2, .platform = "cpu-amx"});
    const kvferry_stream *k = find(layout, "layers.0.self_attn.attn", "k");
    const kvferry_stream *v = find(layout, "layers.0.self_attn.attn", "v");
    assert_int_equal(k->tokens_per_state, 16);
    assert_int_equal(v->tokens_per_state, 2);
    assert_string_equal(k->format, "amx");
    for (uint64_t h = 0; h < HEADS; h++)
        for (uint64_t t = 0; t < STATES; t++)
            for (uint64_t d = 0; d < DIM; d++) {
                uint64_t base = h * 2 * STATES * DIM;
                uint64_t key = 2 * (base + t / 16 * 16 * DIM + d / 2 * 32 + t % 16 * 2 + d % 2);
                uint64_t cell = k->offset + h * stride(k, "kv_head") + t / 16 * stride(k, "token");
                assert_in_range(key, cell, cell + k->cell_bytes - 2);
                uint64_t value = 2 * (base + STATES * DIM + d / 16 * 16 * STATES + t / 2 * 32 +
                                      d % 16 * 2 + t % 2);
                cell = v->offset + h * stride(v, "kv_head") + t / 2 * stride(v, "token") +
                       d / 16 * stride(v, "dim");
                assert_in_range(value, cell, cell + v->cell_bytes - 2);
            }
    assert_int_equal(k->cell_bytes, 16 * DIM * 2);
    assert_int_equal(v->cell_bytes, 64);
    kvferry_layout_free(layout);
}

/* --- latents and indexers ------------------------------------------------------------------ */

static void scales_lie_behind_the_data_of_a_page(void **state)
{
    (void)state;
    static const char *const platforms[] = {"sm90", "cpu"};
    for (size_t i = 0; i < 2; i++) {
        kvferry_layout *layout = layout_of(V4, (kvferry_model_options){.platform = platforms[i]});
        const kvferry_stream *data = find(layout, "layers.1.attn", "latent");
        const kvferry_stream *scale = find(layout, "layers.1.attn", "latent.scale");
        assert_int_equal(data->cell_bytes, 576);
        assert_int_equal(scale->cell_bytes, 8);
        assert_int_equal(scale->offset - data->offset, 64 * 576);
        assert_int_equal(stride(data, "token"), 576);
        assert_int_equal(stride(scale, "token"), 8);
        assert_int_equal(data->tokens_per_state, 4);
        assert_string_equal(scale->format, "fp8_ds_mla");
        data = find(layout, "layers.1.attn.indexer.k_cache", "index");
        scale = find(layout, "layers.1.attn.indexer.k_cache", "index.scale");
        assert_int_equal(data->cell_bytes, 128);
        assert_int_equal(scale->cell_bytes, 4);
        assert_string_equal(scale->dtype, "float32");
        assert_int_equal(scale->offset - data->offset, 64 * 128);
        data = find(layout, "layers.2.attn", "latent");
        scale = find(layout, "layers.2.attn", "latent.scale");
        assert_int_equal(data->tokens_per_state, 128);
        assert_int_equal(axis(data, "token")->extent, 2);
        assert_int_equal(scale->offset - data->offset, 2 * 576);
        kvferry_layout_free(layout);
    }
}

/* A window of w is w - 1 tokens before the next one: 100, 2 * 4 and 128. */
static void windows_are_one_less(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t block_tokens, window;
    } known[] = {{"swa0", 64, 99}, {"swa1", 64, 99}, {"swa2", 64, 99}, {"mla", 256, 0}, {"c4", 4, 7}, {"c128", 8, 127}};
    kvferry_layout *layout = layout_of(V4, (kvferry_model_options){.tp_size = 1});
    assert_int_equal(kvferry_layout_group_count(layout), 6);
    for (uint32_t i = 0; i < 6; i++) {
        const kvferry_group *group = kvferry_layout_group(layout, i);
        assert_string_equal(group->name, known[i].name);
        assert_int_equal(group->block_tokens, known[i].block_tokens);
        assert_int_equal(group->window, known[i].window);
        assert_int_equal(group->null_block, 0);
    }
    const kvferry_stream *slots = find(layout, "layers.1.attn.compressor.state_cache", "compressor");
    assert_int_equal(slots->cell_bytes, 8192);
    assert_int_equal(axis(slots, "token")->extent, 4);
    kvferry_layout_free(layout);
}

/* 4 heads * 128 * 128 * 4 + 1536 * 3 * 2 = 271,360 bytes of state: 265 tokens of 1,024, so 384 in steps
 * of 128: three kernel blocks of 128 tokens, 32 states each. */
static void kernel_blocks_of_packed_indexers_are_not_cut(void **state)
{
    (void)state;
    char config[1024];
    snprintf(config, sizeof config, GLM, "\"index_kpool\": 4, \"index_head_dim\": 128");
    kvferry_layout *layout = layout_of(config, (kvferry_model_options){.tp_size = 2});
    const kvferry_stream *index = find(layout, "layers.1.self_attn.indexer.k_cache", "index");
    assert_int_equal(index->page_tokens, 384);
    assert_int_equal(index->tokens_per_state, 128);
    assert_int_equal(axis(index, "token")->extent, 3);
    assert_int_equal(index->cell_bytes, 32 * 132);
    assert_int_equal(stride(index, "token"), 32 * 132);
    assert_string_equal(index->format, "fp8_page32");
    const kvferry_stream *tail = find(layout, "layers.1.self_attn.indexer.tail_cache", "tail");
    assert_int_equal(kvferry_layout_group(layout, tail->group)->kind, KVFERRY_GROUP_RING);
    assert_int_equal(stride(tail, "part"), 4 * 256);
    assert_int_equal(stride(tail, "slot"), 256);
    assert_int_equal(tail->cell_bytes, 256);
    assert_int_equal(tail->page_stride, index->page_stride);
    kvferry_layout_free(layout);
}

/* --- the earlier kpool layout -------------------------------------------------------------------- */

static void tails_lie_in_their_indexer_rows(void **state)
{
    (void)state;
    char config[1024];
    snprintf(config, sizeof config, GLM, "\"index_kpool\": 4, \"index_head_dim\": 128");
    kvferry_layout *layout =
        layout_of(config, (kvferry_model_options){.tp_size = 2, .kpool = "tail", .blocks = 10});
    const kvferry_stream *index = find(layout, "layers.1.self_attn.indexer.k_cache", "index");
    const kvferry_stream *scale = find(layout, "layers.1.self_attn.indexer.k_cache", "index.scale");
    const kvferry_stream *tail = find(layout, "layers.1.self_attn.indexer.tail_cache", "tail");
    const kvferry_stream *latent = find(layout, "layers.1.self_attn.attn", "latent");
    const kvferry_stream *ssm = find(layout, "layers.0.self_attn", "ssm");
    assert_int_equal(index->page_tokens, 64);
    assert_int_equal(index->page_stride, 16 * 132);
    assert_int_equal(scale->offset - index->offset, 16 * 128);
    assert_int_equal(tail->offset, index->offset);
    assert_int_equal(tail->page_stride, 384 / 4 * 132);
    assert_int_equal(latent->page_stride, 64 * 1024);
    assert_int_equal(ssm->page_stride, 384 * 1024);
    assert_int_equal(latent->offset, 0);
    assert_int_equal(ssm->offset, 1536 * 3 * 2);
    assert_int_equal(index->offset, 10 * 384 * 1024);
    assert_true(kvferry_layout_groups_share(layout, tail->group, index->group));
    assert_int_equal(kvferry_layout_segment(layout, 0)->bytes, 10 * (384 * 1024 + 384 / 4 * 132));
    kvferry_layout_free(layout);
}

/* A row is 512 / 64 * 132 = 1,056 bytes; the tail of 64 slots is 2 * 64 * 256 = 32,768. */
static void a_tail_that_is_not_covered_is_refused(void **state)
{
    (void)state;
    char config[1024];
    snprintf(config, sizeof config, GLM, "\"index_kpool\": 64, \"index_head_dim\": 128");
    kvferry_model_options options = {.size = sizeof options, .tp_size = 2, .kpool = "tail"};
    kvferry_report *report = NULL;
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_model_layout(config, strlen(config), &options, &layout, report),
                     KVFERRY_REFUSED);
    assert_null(layout);
    assert_int_equal(kvferry_report_count(report), 1);
    assert_string_equal(kvferry_report_get(report, 0)->code, "tail_not_covered");
    kvferry_report_free(report);
}

/* --- states -------------------------------------------------------------------------------- */

/* KDA on 2 ranks: 512 local channels of each projection, 3 rows of 2 bytes. */
static void convolutions_lie_in_both_ways(void **state)
{
    (void)state;
    static const struct {
        const char *order;
        uint64_t channel, row, key;
    } known[] = {{"DS", 6, 2, 512 * 6}, {"SD", 2, 1536 * 2, 512 * 2}};
    char config[1024];
    snprintf(config, sizeof config, GLM, "\"index_kpool\": 4, \"index_head_dim\": 128");
    for (size_t i = 0; i < 2; i++) {
        kvferry_layout *layout = layout_of(
            config, (kvferry_model_options){.tp_size = 2, .tp_rank = 1, .conv_layout = known[i].order});
        const kvferry_stream *q = find(layout, "layers.0.self_attn", "conv.q");
        const kvferry_stream *k = find(layout, "layers.0.self_attn", "conv.k");
        const kvferry_stream *v = find(layout, "layers.0.self_attn", "conv.v");
        const kvferry_stream *ssm = find(layout, "layers.0.self_attn", "ssm");
        assert_int_equal(stride(q, "channel"), known[i].channel);
        assert_int_equal(stride(q, "row"), known[i].row);
        assert_int_equal(axis(q, "channel")->start, 512);
        assert_int_equal(axis(q, "channel")->global, 1024);
        assert_int_equal(k->offset - q->offset, known[i].key);
        assert_int_equal(v->offset - q->offset, 2 * known[i].key);
        assert_int_equal(ssm->offset - q->offset, 1536 * 3 * 2);
        assert_int_equal(ssm->cell_bytes, 128 * 128 * 4);
        assert_string_equal(ssm->dtype, "float32");
        assert_int_equal(axis(ssm, "head")->start, 4);
        kvferry_layout_free(layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpu_pages_have_key_beside_value),
        cmocka_unit_test(cpu_pages_have_keys_by_dimension),
        cmocka_unit_test(amx_pages_have_tiles),
        cmocka_unit_test(scales_lie_behind_the_data_of_a_page),
        cmocka_unit_test(windows_are_one_less),
        cmocka_unit_test(kernel_blocks_of_packed_indexers_are_not_cut),
        cmocka_unit_test(tails_lie_in_their_indexer_rows),
        cmocka_unit_test(a_tail_that_is_not_covered_is_refused),
        cmocka_unit_test(convolutions_lie_in_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
