/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every named model on every topology of TP 1 to 16 and PP 1 to 4, all ranks, and with every option
 * alone: a valid document, in which the ranks of a topology together hold each cell's global range;
 * or a refusal for the reason that it should have.
 */
#include "cases.h"

static const char *const models[] = {
    "Llama-3.1-8B", "DeepSeek-V3",       "Qwen3-Next-80B-A3B", "Qwen3.5-27B", "Qwen3.5-35B-A3B",
    "Qwen3.5-397B-A17B", "DeepSeek-V4-Flash", "GLM-5.3-Flash", "Gemma-3-27B", "gpt-oss-120b"};
#define MODELS (sizeof models / sizeof models[0])

/* Heads of whatever must divide, and KV heads, by model. */
static const struct {
    uint32_t heads[3], kv_heads;
} shapes[MODELS] = {{{32}, 8},         {{128}, 0},        {{16, 16, 32}, 2}, {{24, 16, 48}, 4},
                    {{16, 16, 32}, 2}, {{32, 16, 64}, 2}, {{64}, 0},         {{64, 64}, 0},
                    {{32}, 16},        {{64}, 8}};

static bool can_divide(size_t model, uint32_t tp)
{
    for (size_t i = 0; i < 3 && shapes[model].heads[i] != 0; i++)
        if (shapes[model].heads[i] % tp != 0)
            return false;
    uint32_t kv = shapes[model].kv_heads;
    return kv == 0 || (kv >= tp ? kv % tp == 0 : tp % kv == 0);
}

static char *load_model(size_t model, size_t *size)
{
    char name[64];
    snprintf(name, sizeof name, "%s.json", models[model]);
    return cases_config("models", name, size);
}

/* The layout, or NULL if it is refused; then the one reason has the code. */
static kvferry_layout *build(size_t model, const kvferry_model_options *options, const char *code)
{
    size_t size;
    char *config = load_model(model, &size);
    kvferry_report *report = NULL;
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status = kvferry_model_layout(config, size, options, &layout, report);
    if (status != (code == NULL ? KVFERRY_OK : KVFERRY_REFUSED)) {
        cases_print(report);
        fail_msg("%s tp%u pp%u: %s", models[model], options->tp_size, options->pp_size,
                 kvferry_status_name(status));
    }
    assert_int_equal(kvferry_report_count(report) == 0, code == NULL);
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        assert_string_equal(kvferry_report_get(report, i)->code, code);
    assert_int_equal(layout == NULL, code != NULL);
    kvferry_report_free(report);
    free(config);
    return layout;
}

/* --- all ranks together ---------------------------------------------------------------------- */

/* The stream of the same layer and name; where there is one, mostly at the same index. */
static const kvferry_stream *same(const kvferry_layout *layout, const kvferry_stream *stream, uint32_t at)
{
    const kvferry_stream *other = kvferry_layout_stream(layout, at);
    assert_non_null(other);
    assert_string_equal(other->layer, stream->layer);
    assert_string_equal(other->name, stream->name);
    return other;
}

/* Ranks hold equal parts, in their order, each as often as there are ranks for it. */
static void check_shares(kvferry_layout *const *ranks, uint32_t tp)
{
    for (uint32_t i = 0; i < kvferry_layout_stream_count(ranks[0]); i++) {
        const kvferry_stream *first = kvferry_layout_stream(ranks[0], i);
        for (uint32_t a = 0; a < first->axis_count; a++) {
            uint64_t all = first->axes[a].global, extent = first->axes[a].extent;
            uint64_t copies = tp * extent / all;
            assert_true(extent == all || extent * tp == all * copies);
            for (uint32_t rank = 0; rank < tp; rank++) {
                const kvferry_axis *axis = &same(ranks[rank], first, i)->axes[a];
                assert_int_equal(axis->extent, extent);
                assert_int_equal(axis->start, extent == all ? 0 : rank / copies * extent);
            }
        }
    }
}

/* Groups have one name and order on all stages, and the stages' layers are apart. */
static size_t check_stage(const kvferry_layout *first, const kvferry_layout *stage)
{
    assert_int_equal(kvferry_layout_group_count(stage), kvferry_layout_group_count(first));
    for (uint32_t g = 0; g < kvferry_layout_group_count(first); g++) {
        const kvferry_group *a = kvferry_layout_group(first, g), *b = kvferry_layout_group(stage, g);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->kind, b->kind);
        assert_int_equal(a->block_tokens, b->block_tokens);
        assert_int_equal(b->null_block, 0);
    }
    if (first == stage)
        return kvferry_layout_stream_count(stage);
    for (uint32_t i = 0; i < kvferry_layout_stream_count(stage); i++)
        for (uint32_t j = 0; j < kvferry_layout_stream_count(first); j++)
            assert_string_not_equal(kvferry_layout_stream(stage, i)->layer,
                                    kvferry_layout_stream(first, j)->layer);
    return kvferry_layout_stream_count(stage);
}

/* All ranks of a topology; how many streams its stages have together. */
static size_t run_topology(size_t model, uint32_t tp, uint32_t pp)
{
    kvferry_layout *ranks[16], *first = NULL;
    size_t streams = 0;
    for (uint32_t stage = 0; stage < pp; stage++) {
        for (uint32_t rank = 0; rank < tp; rank++) {
            kvferry_model_options options = {.size = sizeof options, .tp_size = tp, .tp_rank = rank,
                                             .pp_size = pp, .pp_rank = stage};
            ranks[rank] = build(model, &options, NULL);
        }
        check_shares(ranks, tp);
        streams += check_stage(first != NULL ? first : ranks[0], ranks[0]);
        for (uint32_t rank = 0; rank < tp; rank++)
            if (stage > 0 || rank > 0)
                kvferry_layout_free(ranks[rank]);
            else
                first = ranks[0];
    }
    kvferry_layout_free(first);
    return streams;
}

static void every_topology(void **state)
{
    (void)state;
    size_t served = 0, refused = 0;
    for (size_t model = 0; model < MODELS; model++)
        for (uint32_t tp = 1; tp <= 16; tp++) {
            size_t alone = 0;
            for (uint32_t pp = 1; pp <= 4; pp++) {
                kvferry_model_options options = {.size = sizeof options, .tp_size = tp, .pp_size = pp};
                if (!can_divide(model, tp)) {
                    assert_null(build(model, &options, "tp_unfit"));
                    refused++;
                    continue;
                }
                size_t streams = run_topology(model, tp, pp);
                alone = pp == 1 ? streams : alone;
                assert_int_equal(streams, alone); /* cut into stages, not changed */
                served++;
            }
        }
    assert_int_equal(served + refused, MODELS * 16 * 4);
    assert_int_equal(served, 4 * (5 + 5 + 5 + 4 + 5 + 5 + 5 + 5 + 5 + 5));
}

/* --- every option ---------------------------------------------------------------------------- */

enum { DENSE = 1, HYBRID = 2, V3 = 4, V4 = 8, GLM = 16, ALL = 31 };
static const unsigned kind_of[MODELS] = {DENSE, V3, HYBRID, HYBRID, HYBRID,
                                        HYBRID, V4, GLM,    DENSE,  DENSE};

/* An option by itself, on TP2 of each model: served by the models of `served`, refused by others. */
static const struct option_case {
    kvferry_model_options options;
    unsigned served;
    const char *code;
} option_cases[] = {
    {{.platform = "sm90-fi"}, ALL, NULL},
    {{.platform = "sm100"}, ALL, NULL},
    {{.platform = "sm120"}, ALL, NULL},
    {{.platform = "cpu"}, DENSE | HYBRID | V3 | V4, "backend_unfit"},
    {{.platform = "cpu-amx"}, DENSE | HYBRID | V4, "backend_unfit"},
    {{.kv_dtype = "bfloat16"}, ALL & ~(unsigned)V4, "backend_unfit"},
    {{.kv_dtype = "fp8"}, ALL, NULL},
    {{.kv_dtype = "fp8_ds_mla"}, V4 | GLM, "backend_unfit"},
    {{.state_dtype = "bfloat16"}, ALL, NULL},
    {{.conv_layout = "DS"}, ALL, NULL},
    {{.mamba_mode = "none", .max_model_len = 4096}, ALL, NULL},
    {{.memory_order = "LBHNC"}, DENSE | HYBRID | V3, "option_unfit"},
    {{.memory_order = "LBNHC"}, DENSE | HYBRID | V3, "option_unfit"},
    {{.memory_order = "LHBNC"}, DENSE | V3, "option_unfit"},
    {{.memory_order = "BLHNC"}, ALL, NULL},
    {{.memory_order = "BLNHC"}, DENSE | HYBRID | V3 | V4, "option_unfit"},
    {{.memory_order = "BHLNC"}, DENSE | V3, "option_unfit"},
    {{.block_size = 256}, ALL, NULL},
    {{.block_size = 24}, 0, NULL},
    {{.kernel_block_size = 16}, DENSE | HYBRID | V3, "option_unfit"},
    {{.mtp_layers = 1, .speculative_tokens = 3}, ALL & ~(unsigned)DENSE, "option_unfit"},
    {{.speculative_tokens = 2}, ALL, NULL},
    {{.blocks = 7}, ALL, NULL},
    {{.indexer_dtype = "mxfp4", .platform = "sm100"}, V4, "option_unfit"},
    {{.kpool = "tail"}, GLM, "option_unfit"},
};
#define OPTION_CASES (sizeof option_cases / sizeof option_cases[0])

static size_t run_option(const struct option_case *one, size_t model)
{
    kvferry_model_options options = one->options;
    options.size = sizeof options;
    options.tp_size = 2;
    size_t size;
    char *config = load_model(model, &size);
    kvferry_report *report = NULL;
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status = kvferry_model_layout(config, size, &options, &layout, report);
    bool served = (one->served & kind_of[model]) != 0;
    if (status != (served ? KVFERRY_OK : KVFERRY_REFUSED)) {
        cases_print(report);
        fail_msg("%s with option case %zu: %s", models[model], (size_t)(one - option_cases),
                 kvferry_status_name(status));
    }
    bool named = one->code == NULL;
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        named = named || strcmp(kvferry_report_get(report, i)->code, one->code) == 0;
    assert_true(served || (kvferry_report_count(report) > 0 && named));
    kvferry_layout_free(layout);
    kvferry_report_free(report);
    free(config);
    return served;
}

static void every_option(void **state)
{
    (void)state;
    size_t served = 0;
    for (size_t i = 0; i < OPTION_CASES; i++)
        for (size_t model = 0; model < MODELS; model++)
            served += run_option(&option_cases[i], model);
    assert_in_range(served, OPTION_CASES, OPTION_CASES * MODELS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_topology), cmocka_unit_test(every_option)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
