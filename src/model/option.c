/* SPDX-License-Identifier: Apache-2.0 */
/* The options: what is not said gets its default, what is not known is refused by its name. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#define CHOICES 8

typedef struct choices {
    const char *names[CHOICES];
} choices;

/* The index of `value` among the names, 0 (the default) if it is NULL or "". */
static size_t pick(model_cache *cache, const char *place, const char *value, const choices *known)
{
    if (value == NULL || value[0] == '\0')
        return 0;
    base_text list = {0};
    for (size_t i = 0; i < CHOICES && known->names[i] != NULL; i++) {
        if (strcmp(value, known->names[i]) == 0) {
            free(list.data);
            return i;
        }
        base_text_append(&list, "%s%s", i == 0 ? "" : ", ", known->names[i]);
    }
    model_refuse(cache, "option_unknown", place, list.failed ? "a known value" : list.data, value,
                 "no such value of this option");
    free(list.data);
    return 0;
}

static uint64_t number(model_cache *cache, const char *place, uint64_t value, uint64_t fallback,
                       uint64_t maximum)
{
    if (value == 0)
        return fallback;
    if (value > maximum) {
        model_refuse(cache, "option_range", place, base_format("at most %llu", (unsigned long long)maximum),
                     base_format("%llu", (unsigned long long)value), "this option is too large");
        return fallback;
    }
    return value;
}

static void read_ranks(const kvferry_model_options *given, model_cache *cache)
{
    model_choice *choice = &cache->choice;
    choice->tp = number(cache, "tp_size", given->tp_size, 1, MODEL_MAX_RANKS);
    choice->pp = number(cache, "pp_size", given->pp_size, 1, MODEL_MAX_RANKS);
    choice->tp_rank = given->tp_rank;
    choice->pp_rank = given->pp_rank;
    if (choice->tp_rank >= choice->tp)
        model_refuse(cache, "option_range", "tp_rank",
                     base_format("less than tp_size %llu", (unsigned long long)choice->tp),
                     base_format("%u", given->tp_rank), "there is no such rank");
    if (choice->pp_rank >= choice->pp)
        model_refuse(cache, "option_range", "pp_rank",
                     base_format("less than pp_size %llu", (unsigned long long)choice->pp),
                     base_format("%u", given->pp_rank), "there is no such rank");
}

/* "-fi" says that FlashInfer's backends are installed, as they are with every vLLM for GPUs: it
 * changes nothing here, since where only FlashInfer serves a request it is taken anyway. */
static model_platform read_platform(const char *name, model_cache *cache)
{
    static const choices known = {{"sm90", "sm90-fi", "sm100", "sm100-fi", "sm120", "sm120-fi", "cpu",
                                   "cpu-amx"}};
    static const model_platform platforms[] = {MODEL_SM90,  MODEL_SM90,  MODEL_SM100, MODEL_SM100,
                                               MODEL_SM120, MODEL_SM120, MODEL_CPU,   MODEL_CPU_AMX};
    return platforms[pick(cache, "platform", name, &known)];
}

static void read_names(const kvferry_model_options *given, model_cache *cache)
{
    static const choices precisions = {{"auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_ds_mla"}};
    static const choices states = {{"auto", "float32", "bfloat16", "float16"}};
    static const choices indexers = {{"fp8", "mxfp4"}};
    static const choices convolutions = {{"SD", "DS"}};
    static const choices modes = {{"align", "none"}};
    static const choices kpools = {{"ring", "tail"}};
    static const choices orders = {
        {"", "LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"}};
    model_choice *choice = &cache->choice;
    choice->platform = read_platform(given->platform, cache);
    choice->engine_id = given->engine_id;
    choice->model = given->model;
    choice->backend = given->backend != NULL && given->backend[0] != '\0' ? given->backend : NULL;
    size_t precision = pick(cache, "kv_dtype", given->kv_dtype, &precisions);
    choice->precision = precision < 3 ? MODEL_NATIVE : precision < 5 ? MODEL_FP8 : MODEL_FP8_DS_MLA;
    choice->kv_dtype = precision == 0 ? NULL : precisions.names[precision];
    size_t state = pick(cache, "state_dtype", given->state_dtype, &states);
    choice->state_dtype = state == 0 ? NULL : states.names[state];
    choice->mxfp4 = pick(cache, "indexer_dtype", given->indexer_dtype, &indexers) == 1;
    choice->conv_dim_first = pick(cache, "conv_layout", given->conv_layout, &convolutions) == 1;
    choice->align = pick(cache, "mamba_mode", given->mamba_mode, &modes) == 0;
    choice->kpool_tail = pick(cache, "kpool", given->kpool, &kpools) == 1;
    size_t order = pick(cache, "memory_order", given->memory_order, &orders);
    choice->order = order == 0 ? NULL : orders.names[order];
}

void model_choice_read(const kvferry_model_options *options, model_cache *cache)
{
    kvferry_model_options given = {0};
    if (options != NULL)
        memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    read_ranks(&given, cache);
    read_names(&given, cache);
    model_choice *choice = &cache->choice;
    choice->block = number(cache, "block_size", given.block_size, 0, MODEL_MAX_BLOCK);
    choice->kernel = number(cache, "kernel_block_size", given.kernel_block_size, 0, MODEL_MAX_BLOCK);
    choice->positions = number(cache, "max_model_len", given.max_model_len, 0, MODEL_MAX_TOKENS);
    choice->blocks = number(cache, "blocks", given.blocks, 1024, MODEL_MAX_BLOCKS);
    choice->drafts = number(cache, "mtp_layers", given.mtp_layers, 0, MODEL_MAX_DRAFTS);
    choice->speculative = number(cache, "speculative_tokens", given.speculative_tokens,
                                 choice->drafts > 0 ? 1 : 0, MODEL_MAX_HEADS);
}
