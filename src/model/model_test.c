/* SPDX-License-Identifier: Apache-2.0 */
/* Configs and options as people get them wrong, and stages, heads and blocks by hand. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"

#define LLAMA                                                                                      \
    "{\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\", \"num_hidden_layers\": 7, "        \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"hidden_size\": 256, "               \
    "\"max_position_embeddings\": 4096}"
#define QWEN                                                                                       \
    "{\"model_type\": \"qwen3_5_text\", \"dtype\": \"bfloat16\", \"num_hidden_layers\": 8, "        \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"hidden_size\": 256, "               \
    "\"head_dim\": 64, \"max_position_embeddings\": 4096, \"linear_num_key_heads\": 4, "           \
    "\"linear_num_value_heads\": 8, \"linear_key_head_dim\": 64, \"linear_value_head_dim\": 64, "  \
    "\"linear_conv_kernel_dim\": 4, \"mamba_ssm_dtype\": \"float32\"}"

typedef struct attempt {
    kvferry_report *report;
    kvferry_layout *layout;
    kvferry_status status;
} attempt;

static attempt try_layout(const char *config, const kvferry_model_options *options)
{
    attempt made = {0};
    assert_int_equal(kvferry_report_create(&made.report), KVFERRY_OK);
    made.status = kvferry_model_layout(config, strlen(config), options, &made.layout, made.report);
    assert_int_equal(made.layout != NULL, made.status == KVFERRY_OK);
    return made;
}

static void finish(attempt *made)
{
    kvferry_layout_free(made->layout);
    kvferry_report_free(made->report);
}

static bool reports(const attempt *made, const char *code, const char *place)
{
    for (size_t i = 0; i < kvferry_report_count(made->report); i++) {
        const kvferry_reason *reason = kvferry_report_get(made->report, i);
        if (strcmp(reason->code, code) == 0 && strcmp(reason->place, place) == 0)
            return true;
    }
    return false;
}

/* --- configs ------------------------------------------------------------------------------- */

static void defaults_serve(void **state)
{
    (void)state;
    attempt made = try_layout(LLAMA, NULL);
    assert_int_equal(made.status, KVFERRY_OK);
    assert_string_equal(kvferry_layout_identity(made.layout)->model, "llama");
    assert_string_equal(kvferry_layout_engine_id(made.layout), "llama");
    assert_int_equal(kvferry_layout_stream_count(made.layout), 14);
    const kvferry_stream *k = kvferry_layout_stream(made.layout, 0);
    assert_string_equal(k->layer, "model.layers.0.self_attn.attn");
    assert_string_equal(k->name, "k");
    assert_int_equal(k->cell_bytes, 64); /* 256 / 8 heads, 2 bytes each */
    assert_int_equal(k->page_tokens, 16);
    assert_int_equal(k->page_stride, 4 * 16 * 128);
    assert_int_equal(k->pages, 1024);
    assert_int_equal(kvferry_layout_segment(made.layout, 0)->bytes, 7 * 1024 * 4 * 16 * 128);
    finish(&made);
}

static void a_config_with_many_faults_has_them_all_named(void **state)
{
    (void)state;
    attempt made = try_layout("{\"model_type\": \"qwen3_5_moe_text\", \"num_hidden_layers\": 0, "
                              "\"num_attention_heads\": \"8\", \"num_key_value_heads\": 2, "
                              "\"hidden_size\": 256, \"max_position_embeddings\": 4096, "
                              "\"linear_num_key_heads\": 4, \"linear_num_value_heads\": 8, "
                              "\"linear_key_head_dim\": 64, \"mamba_ssm_dtype\": \"int4\", "
                              "\"torch_dtype\": \"float64\", \"linear_conv_kernel_dim\": -1}",
                              NULL);
    assert_int_equal(made.status, KVFERRY_MALFORMED);
    assert_true(reports(&made, "value_range", "num_hidden_layers"));
    assert_true(reports(&made, "value_type", "num_attention_heads"));
    assert_true(reports(&made, "value_missing", "linear_value_head_dim"));
    assert_true(reports(&made, "value_range", "linear_conv_kernel_dim"));
    assert_int_equal(kvferry_report_count(made.report), 6);
    finish(&made);
}

static void foreign_texts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        kvferry_status status;
    } texts[] = {{"", KVFERRY_MALFORMED},
                 {"[]", KVFERRY_MALFORMED},
                 {"{}", KVFERRY_MALFORMED},
                 {"{\"model_type\": 3}", KVFERRY_MALFORMED},
                 {"{\"model_type\": \"gpt2\"}", KVFERRY_REFUSED},
                 {"{\"model_type\": \"qwen3_5\"}", KVFERRY_MALFORMED},
                 {"{\"model_type\": \"qwen3_5\", \"text_config\": []}", KVFERRY_MALFORMED},
                 {"{\"model_type\": \"deepseek_v4\", \"compress_ratios\": {}}", KVFERRY_MALFORMED},
                 {"{\"model_type\": \"glm5_next_text\", \"layer_types\": [1]}", KVFERRY_MALFORMED}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        attempt made = try_layout(texts[i].text, NULL);
        assert_int_equal(made.status, texts[i].status);
        assert_true(kvferry_report_count(made.report) > 0);
        finish(&made);
        kvferry_layout *none = NULL;
        assert_int_equal(kvferry_model_layout(texts[i].text, strlen(texts[i].text), NULL, &none, NULL),
                         texts[i].status);
        assert_null(none);
    }
    assert_int_equal(kvferry_model_layout(NULL, 0, NULL, NULL, NULL), KVFERRY_INVALID);
}

static void lists_must_fit_the_layers(void **state)
{
    (void)state;
    char text[1024];
    snprintf(text, sizeof text, "%.*s, \"layer_types\": [\"full_attention\", \"linear_attention\"]}",
             (int)strlen(QWEN) - 1, QWEN);
    attempt made = try_layout(text, NULL);
    assert_int_equal(made.status, KVFERRY_REFUSED);
    assert_true(reports(&made, "config_value", "layer_types"));
    finish(&made);
}

/* Nothing overflows: the largest numbers that a config may hold come to a refusal. */
static void huge_sizes_are_refused(void **state)
{
    (void)state;
    attempt made = try_layout("{\"model_type\": \"qwen3_next\", \"torch_dtype\": \"bfloat16\", "
                              "\"num_hidden_layers\": 1024, \"num_attention_heads\": 4096, "
                              "\"num_key_value_heads\": 4096, \"hidden_size\": 33554432, "
                              "\"head_dim\": 256, \"max_position_embeddings\": 1099511627776, "
                              "\"linear_num_key_heads\": 4096, \"linear_num_value_heads\": 4096, "
                              "\"linear_key_head_dim\": 8192, \"linear_value_head_dim\": 8192, "
                              "\"linear_conv_kernel_dim\": 4096}",
                              &(kvferry_model_options){.size = sizeof(kvferry_model_options),
                                                       .blocks = (uint64_t)1 << 31,
                                                       .speculative_tokens = 4096,
                                                       .block_size = 1048576});
    assert_int_equal(made.status, KVFERRY_REFUSED);
    assert_true(reports(&made, "option_range", "blocks"));
    finish(&made);
}

/* --- options ------------------------------------------------------------------------------- */

static void options_that_are_wrong_are_all_named(void **state)
{
    (void)state;
    kvferry_model_options options = {.size = sizeof options, .tp_size = 3, .tp_rank = 3, .pp_size = 9,
                                     .platform = "sm75", .kv_dtype = "int8", .conv_layout = "XX",
                                     .memory_order = "CBLHN", .mamba_mode = "all", .kpool = "tail",
                                     .indexer_dtype = "mxfp4", .mtp_layers = 1,
                                     .blocks = UINT64_MAX};
    attempt made = try_layout(LLAMA, &options);
    assert_int_equal(made.status, KVFERRY_REFUSED);
    static const char *const places[][2] = {
        {"option_range", "tp_rank"},      {"tp_unfit", "tp_size"},          {"pp_unfit", "pp_size"},
        {"option_unknown", "platform"},   {"option_unknown", "kv_dtype"},   {"option_unknown", "conv_layout"},
        {"option_unknown", "memory_order"}, {"option_unknown", "mamba_mode"}, {"option_unfit", "kpool"},
        {"option_unfit", "indexer_dtype"}, {"option_unfit", "mtp_layers"},  {"option_range", "blocks"}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (!reports(&made, places[i][0], places[i][1]))
            fail_msg("%s of %s is not reported", places[i][0], places[i][1]);
    finish(&made);
}

/* An options struct of an older caller ends earlier; what is behind its end is never read. */
static void a_shorter_struct_has_defaults(void **state)
{
    (void)state;
    kvferry_model_options options = {.size = offsetof(kvferry_model_options, engine_id),
                                     .tp_size = 2, .tp_rank = 1, .engine_id = "e", .model = "m",
                                     .platform = "none", .blocks = 3};
    attempt made = try_layout(LLAMA, &options);
    assert_int_equal(made.status, KVFERRY_OK);
    assert_string_equal(kvferry_layout_engine_id(made.layout), "llama");
    assert_int_equal(kvferry_layout_worker(made.layout)->tp_rank, 1);
    assert_int_equal(kvferry_layout_group_blocks(made.layout, 0), 1024);
    finish(&made);
}

static void backends_are_refused_by_the_option_at_fault(void **state)
{
    (void)state;
    static const struct {
        kvferry_model_options options;
        const char *place;
    } cases[] = {{{.backend = "FLASHMLA"}, "backend"},
                 {{.kv_dtype = "fp8_ds_mla"}, "kv_dtype"},
                 {{.block_size = 24}, "block_size"},
                 {{.block_size = 24, .kv_dtype = "fp8_ds_mla"}, "platform"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvferry_model_options options = cases[i].options;
        options.size = sizeof options;
        attempt made = try_layout(LLAMA, &options);
        assert_int_equal(made.status, KVFERRY_REFUSED);
        assert_int_equal(kvferry_report_count(made.report), 1);
        assert_true(reports(&made, "backend_unfit", cases[i].place));
        finish(&made);
    }
}

/* --- stages, heads, blocks by hand ---------------------------------------------------------------- */

/* 7 layers: over 3 stages one is left over and goes to the second; over 4 three are left over. */
static void layers_go_to_stages_as_in_vllm(void **state)
{
    (void)state;
    static const uint32_t known[][4] = {{7}, {4, 3}, {2, 3, 2}, {2, 2, 2, 1}};
    for (uint32_t pp = 1; pp <= 4; pp++)
        for (uint32_t rank = 0; rank < pp; rank++) {
            kvferry_model_options options = {.size = sizeof options, .pp_size = pp, .pp_rank = rank};
            attempt made = try_layout(LLAMA, &options);
            assert_int_equal(made.status, KVFERRY_OK);
            assert_int_equal(kvferry_layout_stream_count(made.layout), 2 * known[pp - 1][rank]);
            finish(&made);
        }
}

static void repeated_heads_go_by_division(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 8; rank++) {
        kvferry_model_options options = {.size = sizeof options, .tp_size = 8, .tp_rank = rank};
        attempt made = try_layout(LLAMA, &options);
        assert_int_equal(made.status, KVFERRY_OK);
        const kvferry_axis *head = &kvferry_layout_stream(made.layout, 0)->axes[0];
        assert_string_equal(head->name, "kv_head");
        assert_int_equal(head->start, rank / 2);
        assert_int_equal(head->extent, 1);
        assert_int_equal(head->global, 4);
        finish(&made);
    }
}

/* State: 1024 channels * 3 rows * 2 + 8 * 64 * 64 * 4 = 137,216 bytes; a token 2 * 2 * 64 * 2 = 512:
 * 268 tokens, in steps of 16. With 2 drafts, 5 rows: 141,312 bytes, 276 tokens. */
static void blocks_hold_a_state(void **state)
{
    (void)state;
    static const uint64_t known[][2] = {{0, 272}, {2, 288}};
    for (size_t i = 0; i < 2; i++) {
        kvferry_model_options options = {.size = sizeof options,
                                         .speculative_tokens = (uint32_t)known[i][0]};
        attempt made = try_layout(QWEN, &options);
        assert_int_equal(made.status, KVFERRY_OK);
        assert_int_equal(kvferry_layout_group_count(made.layout), 4);
        const kvferry_group *attn = kvferry_layout_group(made.layout, 3);
        assert_string_equal(kvferry_layout_group(made.layout, 0)->name, "gdn0");
        assert_string_equal(kvferry_layout_group(made.layout, 2)->name, "gdn2");
        assert_string_equal(attn->name, "attn");
        assert_int_equal(attn->block_tokens, known[i][1]);
        assert_int_equal(kvferry_layout_segment(made.layout, 0)->bytes, 2 * 1024 * 512 * known[i][1]);
        finish(&made);
    }
}

/* 8 layers over 4 stages: the first has no attention layer. */
static void stages_need_attention(void **state)
{
    (void)state;
    kvferry_model_options options = {.size = sizeof options, .pp_size = 4};
    attempt made = try_layout(QWEN, &options);
    assert_int_equal(made.status, KVFERRY_REFUSED);
    assert_true(reports(&made, "pp_unfit", "pp_size"));
    finish(&made);
}

static void draft_layers_are_optional_and_last(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 2; stage++) {
        kvferry_model_options options = {.size = sizeof options, .pp_size = 2, .pp_rank = stage,
                                         .mtp_layers = 1};
        attempt made = try_layout(QWEN, &options);
        assert_int_equal(made.status, KVFERRY_OK);
        assert_string_equal(kvferry_layout_identity(made.layout)->draft, "mtp");
        uint32_t drafts = 0;
        for (uint32_t i = 0; i < kvferry_layout_stream_count(made.layout); i++) {
            const kvferry_stream *stream = kvferry_layout_stream(made.layout, i);
            bool draft = strcmp(stream->layer, "mtp.layers.0.self_attn.attn") == 0;
            assert_int_equal(stream->policy, draft ? KVFERRY_POLICY_OPTIONAL : KVFERRY_POLICY_REQUIRED);
            drafts += draft;
        }
        assert_int_equal(drafts, stage == 1 ? 2 : 0);
        finish(&made);
    }
}

/* Blocks and rows of single backends, as vLLM 0.32 reports them. */
static void backends_shape_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        kvferry_model_options options;
        uint64_t block, row;
    } known[] = {
        {"DeepSeek-V3", {.platform = "sm100"}, 32, 32 * 1152 * 61},
        {"DeepSeek-V3", {.platform = "sm100", .block_size = 128}, 128, 128 * 1152 * 61},
        {"DeepSeek-V3", {.platform = "sm90", .kv_dtype = "fp8"}, 64, 64 * 576 * 61},
        {"DeepSeek-V3", {.platform = "cpu"}, 16, 16 * 1152 * 61},
        {"DeepSeek-V4-Flash", {.platform = "sm100", .backend = "FLASHINFER_MLA_SPARSE_DSV4"}, 256, 1600000},
        {"GLM-5.3-Flash", {.tp_size = 4, .kv_dtype = "fp8"}, 2176, 13060608},
        {"GLM-5.3-Flash", {.tp_size = 4, .platform = "sm120"}, 2304, 18011136},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/models/%s.json", KVFERRY_SOURCE_DIR, known[i].model);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        char text[8192];
        size_t size = fread(text, 1, sizeof text, file);
        fclose(file);
        kvferry_model_options options = known[i].options;
        options.size = sizeof options;
        model_cache cache;
        assert_int_equal(model_cache_build(text, size, &options, NULL, &cache), KVFERRY_OK);
        assert_int_equal(cache.block, known[i].block);
        assert_int_equal(cache.bytes_per_block, known[i].row);
        model_cache_end(&cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_serve),
        cmocka_unit_test(a_config_with_many_faults_has_them_all_named),
        cmocka_unit_test(foreign_texts_are_refused),
        cmocka_unit_test(lists_must_fit_the_layers),
        cmocka_unit_test(huge_sizes_are_refused),
        cmocka_unit_test(options_that_are_wrong_are_all_named),
        cmocka_unit_test(a_shorter_struct_has_defaults),
        cmocka_unit_test(backends_are_refused_by_the_option_at_fault),
        cmocka_unit_test(layers_go_to_stages_as_in_vllm),
        cmocka_unit_test(repeated_heads_go_by_division),
        cmocka_unit_test(blocks_hold_a_state),
        cmocka_unit_test(stages_need_attention),
        cmocka_unit_test(backends_shape_blocks),
        cmocka_unit_test(draft_layers_are_optional_and_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
