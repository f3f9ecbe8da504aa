/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with windows among those of full attention: which they are, by every way that configs say it. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"

/* Six layers of 4 KV heads of 64; %s: the model_type and what else it has. */
#define CONFIG                                                                                     \
    "{\"torch_dtype\": \"bfloat16\", \"num_hidden_layers\": 6, \"num_attention_heads\": 8, "       \
    "\"num_key_value_heads\": 4, \"hidden_size\": 256, \"head_dim\": 64, "                         \
    "\"max_position_embeddings\": 4096, \"model_type\": %s}"
#define S "\"sliding_attention\", "
#define F "\"full_attention\", "

static const char *config_of(const char *rest)
{
    static char text[2048];
    snprintf(text, sizeof text, CONFIG, rest);
    return text;
}

typedef struct attempt {
    kvferry_layout *layout;
    kvferry_report *report;
    kvferry_status status;
} attempt;

static attempt try_config(const char *rest, kvferry_model_options options)
{
    attempt made = {0};
    const char *config = config_of(rest);
    options.size = sizeof options;
    assert_int_equal(kvferry_report_create(&made.report), KVFERRY_OK);
    made.status =
        kvferry_model_layout(config, strlen(config), &options, &made.layout, made.report);
    return made;
}

static void finish(attempt *made)
{
    kvferry_layout_free(made->layout);
    kvferry_report_free(made->report);
}

/* The group of each of the six layers, by its place among the groups: "000001". */
static const char *groups_of(const kvferry_layout *layout)
{
    static char digits[7];
    for (uint32_t layer = 0; layer < 6; layer++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.", layer);
        digits[layer] = '-';
        for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++)
            if (strncmp(kvferry_layout_stream(layout, i)->layer, name, strlen(name)) == 0)
                digits[layer] = (char)('0' + kvferry_layout_stream(layout, i)->group);
    }
    return digits;
}

static void configs_say_which_layers_have_windows(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *groups, *last; /* last: the name of the last group */
        uint64_t window;                  /* of the first group, in the document */
    } known[] = {
        {"\"gemma3_text\", \"sliding_window\": 100", "012345", "attn", 99},
        {"\"gemma3_text\", \"sliding_window\": 100, \"sliding_window_pattern\": 3", "012012", "attn", 99},
        {"\"gemma3_text\", \"sliding_window\": 1, \"sliding_window_pattern\": 1", "000000", "attn", 0},
        {"\"gemma3_text\", \"sliding_window\": 100, \"use_bidirectional_attention\": false, "
         "\"layer_types\": [" F S S S S "\"full_attention\"]", "012120", "swa1", 0},
        {"\"gemma2\", \"sliding_window\": 100", "010101", "attn", 99},
        {"\"gpt_oss\", \"sliding_window\": 100", "010101", "attn", 99},
        {"\"gpt_oss\", \"sliding_window\": 7, \"layer_types\": [" S F S F S "\"full_attention\"]",
         "010101", "attn", 6},
        {"\"mistral\", \"sliding_window\": 100", "000000", "swa0", 99},
        {"\"mistral\"", "000000", "swa0", 4095},
        {"\"mistral\", \"sliding_window\": null", "000000", "attn", 0},
        {"\"llama\", \"sliding_window\": 100", "000000", "swa0", 99},
        {"\"llama\", \"sliding_window\": 100, \"layer_types\": [" S S F S S "\"full_attention\"]",
         "012012", "attn", 99},
        {"\"llama\"", "000000", "attn", 0},
        {"\"qwen2\", \"sliding_window\": 100, \"max_window_layers\": 0", "000000", "attn", 0},
        {"\"qwen3\", \"sliding_window\": 100, \"max_window_layers\": 0, \"use_sliding_window\": true",
         "000000", "swa0", 99},
        {"\"qwen3\", \"sliding_window\": 100, \"max_window_layers\": 6, \"use_sliding_window\": true",
         "000000", "attn", 0},
        {"\"qwen3\", \"sliding_window\": null, \"max_window_layers\": 0, \"use_sliding_window\": true",
         "000000", "attn", 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        attempt made = try_config(known[i].rest, (kvferry_model_options){0});
        if (made.status != KVFERRY_OK)
            fail_msg("%s: %s", known[i].rest, kvferry_status_name(made.status));
        uint32_t last = kvferry_layout_group_count(made.layout) - 1;
        assert_string_equal(groups_of(made.layout), known[i].groups);
        assert_string_equal(kvferry_layout_group(made.layout, last)->name, known[i].last);
        assert_int_equal(kvferry_layout_group(made.layout, 0)->window, known[i].window);
        finish(&made);
    }
}

static void windows_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *code, *place;
        kvferry_status status;
    } known[] = {
        {"\"gemma3_text\"", "value_missing", "sliding_window", KVFERRY_MALFORMED},
        {"\"gemma2\", \"sliding_window\": 0", "value_range", "sliding_window", KVFERRY_MALFORMED},
        {"\"gpt_oss\", \"sliding_window\": null", "value_missing", "sliding_window", KVFERRY_MALFORMED},
        {"\"mistral\", \"sliding_window\": [4096, null]", "value_type", "sliding_window", KVFERRY_MALFORMED},
        {"\"gemma3_text\", \"sliding_window\": 9, \"sliding_window_pattern\": 0", "value_range",
         "sliding_window_pattern", KVFERRY_MALFORMED},
        {"\"gemma3_text\", \"sliding_window\": 9, \"layer_types\": [" S "\"full_attention\"]",
         "config_value", "layer_types", KVFERRY_REFUSED},
        {"\"gemma2\", \"sliding_window\": 9, \"layer_types\": [" S F S F S "\"chunked_attention\"]",
         "value_unknown", "layer_types[5]", KVFERRY_MALFORMED},
        {"\"gpt_oss\", \"sliding_window\": 9, \"layer_types\": [" F S F S F "\"sliding_attention\"]",
         "config_value", "layer_types", KVFERRY_REFUSED},
        {"\"llama\", \"layer_types\": [" S S S S S "\"full_attention\"]", "value_missing",
         "sliding_window", KVFERRY_MALFORMED},
        {"\"qwen3\", \"sliding_window\": 9, \"use_sliding_window\": true, \"max_window_layers\": 3",
         "config_value", "max_window_layers", KVFERRY_REFUSED},
        {"\"qwen2\", \"sliding_window\": 9, \"use_sliding_window\": true, \"layer_types\": [" S S S S S
         "\"full_attention\"]", "config_value", "layer_types", KVFERRY_REFUSED},
        {"\"gemma3_text\", \"sliding_window\": 9, \"use_bidirectional_attention\": true", "config_value",
         "use_bidirectional_attention", KVFERRY_REFUSED},
        {"\"gemma4\", \"sliding_window\": 9", "model_unknown", "model_type", KVFERRY_REFUSED},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        attempt made = try_config(known[i].rest, (kvferry_model_options){0});
        if (made.status != known[i].status || kvferry_report_count(made.report) != 1)
            fail_msg("%s: %s, %zu reasons", known[i].rest, kvferry_status_name(made.status),
                     kvferry_report_count(made.report));
        const kvferry_reason *reason = kvferry_report_get(made.report, 0);
        assert_string_equal(reason->code, known[i].code);
        assert_string_equal(reason->place, known[i].place);
        finish(&made);
    }
}

/* As released: text_config leaves out what the classes know. */
static void sizes_that_gemma_leaves_out_are_known(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"gemma3\", \"torch_dtype\": \"bfloat16\", \"text_config\": {\"hidden_size\": 2560, "
        "\"num_hidden_layers\": 34, \"sliding_window\": 1024}}";
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_model_layout(text, strlen(text), NULL, &layout, NULL), KVFERRY_OK);
    const kvferry_stream *first = kvferry_layout_stream(layout, 0);
    assert_string_equal(first->layer, "language_model.model.layers.0.self_attn.attn");
    assert_int_equal(first->axes[0].global, 4);
    assert_int_equal(first->cell_bytes, 2 * 256);
    assert_int_equal(kvferry_layout_group_count(layout), 7);
    kvferry_layout_free(layout);
}

/* The config's heads are 64 wide, and 256 values by 8 heads are 32. vLLM's Qwen2 looks at the latter only. */
static void heads_of_qwen2_are_cut_from_the_hidden_size(void **state)
{
    (void)state;
    static const struct {
        const char *rest;
        uint64_t cell;
    } known[] = {{"\"qwen2\"", 2 * 32}, {"\"qwen3\"", 2 * 64}, {"\"llama\"", 2 * 64}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        attempt made = try_config(known[i].rest, (kvferry_model_options){0});
        assert_int_equal(made.status, KVFERRY_OK);
        assert_int_equal(kvferry_layout_stream(made.layout, 0)->cell_bytes, known[i].cell);
        finish(&made);
    }
}

/* FlashInfer's blocks of windows have 64 tokens at most: as many of them as are one page of full
 * attention are one block, or the page is padded. Kernels walk 64 tokens, of blocks of 96 the largest part. */
static void blocks_of_windows_are_lengthened_or_padded(void **state)
{
    (void)state;
    static const struct {
        uint64_t asked, window, window_stride, full_stride;
    } known[] = {{32, 32, 32, 32}, {64, 64, 64, 64}, {256, 256, 64, 64}, {96, 64, 96, 32}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        attempt made = try_config("\"gemma2\", \"sliding_window\": 100",
                                  (kvferry_model_options){.backend = "FLASHINFER",
                                                          .block_size = known[i].asked});
        assert_int_equal(made.status, KVFERRY_OK);
        assert_int_equal(kvferry_layout_group(made.layout, 0)->block_tokens, known[i].window);
        assert_int_equal(kvferry_layout_group(made.layout, 1)->block_tokens, known[i].asked);
        uint64_t token = 4 * 2 * 64 * 2;
        for (uint32_t j = 0; j < kvferry_layout_stream_count(made.layout); j++) {
            const kvferry_stream *stream = kvferry_layout_stream(made.layout, j);
            assert_int_equal(stream->page_stride,
                             token * (stream->group == 0 ? known[i].window_stride : known[i].full_stride));
        }
        finish(&made);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs_say_which_layers_have_windows),
        cmocka_unit_test(windows_that_cannot_be_are_refused),
        cmocka_unit_test(sizes_that_gemma_leaves_out_are_known),
        cmocka_unit_test(heads_of_qwen2_are_cut_from_the_hidden_size),
        cmocka_unit_test(blocks_of_windows_are_lengthened_or_padded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
