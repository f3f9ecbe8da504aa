/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The families: each lists its caches (specs) and which layer has which, in the order in which
 * vLLM's model classes make them. Specs say sizes as vLLM 0.32's cache specs do.
 */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* --- helpers ------------------------------------------------------------------------------- */

static const char *name_of(model_cache *cache, const char *prefix, const char *stem, uint64_t index,
                           const char *rest)
{
    base_text text = {0};
    base_text_append(&text, "%s%s%llu%s", prefix, stem, (unsigned long long)index, rest);
    const char *name = text.failed ? NULL : model_text(cache, text.data);
    if (name == NULL)
        cache->no_memory = true;
    free(text.data);
    return name;
}

/* The stage of a layer: of the layers that are left over, the stages before the last get one each,
 * the later ones first. */
static uint32_t stage_of(const model_cache *cache, uint64_t layer)
{
    uint64_t stages = cache->choice.pp, each = cache->shape.layers / stages;
    uint64_t rest = cache->shape.layers % stages, end = 0;
    for (uint64_t stage = 0; stage < stages; stage++) {
        bool larger = stage + 1 < stages && stage + 1 + rest >= stages;
        end += each + larger;
        if (layer < end)
            return (uint32_t)stage;
    }
    return (uint32_t)(stages - 1);
}

static void add_layer(model_cache *cache, uint32_t spec, uint64_t index, const char *prefix,
                      const char *stem, const char *rest, bool draft)
{
    if (!base_grow((void **)&cache->layers, &cache->layer_capacity, cache->layer_count + 1,
                   sizeof *cache->layers)) {
        cache->no_memory = true;
        return;
    }
    cache->layers[cache->layer_count++] =
        (model_layer){.name = name_of(cache, prefix, stem, index, rest),
                      .spec = spec,
                      .stage = draft ? (uint32_t)(cache->choice.pp - 1) : stage_of(cache, index),
                      .draft = draft};
}

static uint32_t add_spec(model_cache *cache, const model_spec *spec)
{
    cache->specs[cache->spec_count] = *spec;
    return cache->spec_count++;
}

/* The bytes of one element of keys and values, and what it is called. */
static uint64_t element(const model_cache *cache, const char **dtype, const char **format)
{
    bool native = cache->choice.precision == MODEL_NATIVE;
    *dtype = native ? cache->shape.dtype : "uint8";
    *format = native ? "" : cache->choice.precision == MODEL_FP8 ? "fp8" : "fp8_ds_mla";
    return native ? cache->shape.dtype_bytes : 1;
}

/* --- attention: alone, with windows, beside gated delta nets (Qwen3-Next, Qwen3.5) --------------- */

static uint64_t ssm_bytes(const model_cache *cache, const char **dtype)
{
    bool cpu = (cache->choice.platform & MODEL_ANY_CPU) != 0;
    const char *ssm = cache->choice.state_dtype != NULL ? cache->choice.state_dtype
                      : cache->shape.ssm_dtype != NULL  ? cache->shape.ssm_dtype
                      : cpu                             ? "float32"
                                                        : cache->shape.dtype;
    *dtype = ssm;
    return strcmp(ssm, "float32") == 0 ? 4 : 2;
}

/* A layer's convolution and recurrent state, back to back. */
static model_spec state_spec(model_cache *cache, const char *group)
{
    const model_shape *shape = &cache->shape;
    model_spec spec = {.content = MODEL_STATE, .class = MODEL_RECURRENT, .group = group,
                       .tokens_per_state = 1, .heads = 1, .states = 1, .alignment = 1};
    uint64_t channels = 2 * shape->k_heads * shape->k_dim + shape->v_heads * shape->v_dim;
    uint64_t rows = shape->conv_rows + cache->choice.speculative;
    uint64_t matrix = shape->v_dim * shape->k_dim * ssm_bytes(cache, &spec.dtype);
    spec.data = channels / cache->choice.tp * rows * shape->dtype_bytes;
    spec.scale = 0;
    spec.cell = spec.data + shape->v_heads / cache->choice.tp * matrix;
    spec.format = "";
    model_spec_size(&spec, 1);
    return spec;
}

static void finish_state(model_cache *cache, model_spec *spec, uint64_t page)
{
    spec->page = page;
    spec->block = cache->choice.align ? cache->block : cache->choice.positions;
    spec->kernel = spec->block;
}

/* The same with a window. */
static model_spec windowed(model_cache *cache, const model_spec *kv)
{
    model_spec spec = *kv;
    spec.class = MODEL_SLIDING;
    spec.group = "swa";
    spec.window = cache->shape.window;
    spec.block = spec.states = model_block_windowed(cache, kv->heads);
    model_spec_size(&spec, 1);
    model_spec_kernel(cache, &spec);
    return spec;
}

static void list_dense(model_cache *cache)
{
    const model_shape *shape = &cache->shape;
    model_spec kv = {.content = MODEL_KV, .class = MODEL_FULL, .group = "attn", .tokens_per_state = 1,
                     .heads = base_max(1, shape->kv_heads / cache->choice.tp)};
    kv.cell = 2 * shape->head_dim * element(cache, &kv.dtype, &kv.format);
    model_spec second = {0};
    if (shape->type->hybrid)
        second = state_spec(cache, "gdn");
    model_block_choose(cache, kv.heads * kv.cell, second.real);
    kv.block = kv.states = cache->block;
    model_spec_size(&kv, 1);
    model_spec_kernel(cache, &kv);
    uint32_t full = add_spec(cache, &kv), other = full;
    const char *attention = shape->type->windows == MODEL_IN_TURN ? ".attn.attn" : ".self_attn.attn";
    if (shape->type->hybrid) {
        finish_state(cache, &second, kv.page);
        other = add_spec(cache, &second);
    } else if (shape->window != 0) {
        second = windowed(cache, &kv);
        other = add_spec(cache, &second);
    }
    for (uint64_t i = 0; i < shape->layers; i++) {
        bool linear = shape->type->hybrid && shape->kinds[i] == 0;
        add_layer(cache, shape->kinds[i] == 0 ? other : full, i, shape->prefix, "model.layers.",
                  linear ? ".linear_attn" : attention, false);
    }
    for (uint64_t i = 0; i < cache->choice.drafts; i++)
        add_layer(cache, full, i, "", "mtp.layers.", ".self_attn.attn", true);
}

/* --- latent attention: DeepSeek-V3 ------------------------------------------------------------- */

static model_spec latent_spec(const model_cache *cache)
{
    model_spec spec = {.content = MODEL_LATENT, .class = MODEL_FULL, .group = "mla",
                       .tokens_per_state = 1, .heads = 1};
    spec.cell = (cache->shape.lora + cache->shape.rope) * element(cache, &spec.dtype, &spec.format);
    if (cache->choice.precision == MODEL_FP8_DS_MLA)
        spec.cell = 656; /* 512 values of fp8, 4 scales of fp32, 64 values of bf16 */
    spec.data = spec.cell;
    return spec;
}

static void size_latent(model_cache *cache, model_spec *spec)
{
    spec->block = spec->states = cache->block;
    model_spec_size(spec, 1);
}

static void list_mla(model_cache *cache)
{
    model_spec latent = latent_spec(cache);
    model_block_choose(cache, latent.cell, 0);
    size_latent(cache, &latent);
    model_spec_kernel(cache, &latent);
    uint32_t spec = add_spec(cache, &latent);
    for (uint64_t i = 0; i < cache->shape.layers + cache->choice.drafts; i++)
        add_layer(cache, spec, i, "", "model.layers.", ".self_attn.attn", i >= cache->shape.layers);
}

/* --- latent attention with a pooled indexer beside KDA: GLM-5.3-Flash --------------------------- */

static model_spec index_spec(const model_cache *cache, uint64_t tokens_per_state)
{
    uint64_t dim = cache->shape.index_dim;
    model_spec spec = {.content = MODEL_INDEX, .class = MODEL_FULL, .group = "mla",
                       .block = cache->block, .tokens_per_state = tokens_per_state, .heads = 1,
                       .states = cache->block / tokens_per_state, .kernel = cache->block,
                       .alignment = 1, .data = dim, .scale = dim / 128 * 4, .dtype = "uint8",
                       .format = "fp8"};
    if (cache->choice.mxfp4) {
        spec.data = dim / 2;
        spec.scale = dim / 32;
        spec.format = "mxfp4";
    }
    spec.cell = spec.data + spec.scale;
    return spec;
}

/* Room for the open pool and for drafts that are not accepted yet, in whole pools, a power of two. */
static uint64_t ring_slots(const model_cache *cache)
{
    uint64_t pools = base_ceil_div(cache->shape.kpool + cache->choice.speculative, cache->shape.kpool);
    uint64_t power = 1;
    while (power < pools)
        power *= 2;
    return cache->shape.kpool * power;
}

/* Two halves, raw keys and gate scores, each of bfloat16 whatever the model's type. */
static model_spec ring_spec(model_cache *cache)
{
    uint64_t slots = ring_slots(cache);
    model_spec spec = {.content = MODEL_RING, .class = MODEL_CIRCULAR,
                       .group = cache->choice.kpool_tail ? "tail" : "ring", .block = slots,
                       .tokens_per_state = 1, .heads = 2, .states = slots,
                       .cell = 2 * cache->shape.index_dim, .alignment = 1, .kernel = slots,
                       .dtype = "bfloat16", .format = ""};
    model_spec_size(&spec, 1);
    if (cache->block % slots != 0)
        model_refuse(cache, "option_unfit", "speculative_tokens",
                     base_format("a tail ring that divides blocks of %llu tokens",
                                 (unsigned long long)cache->block),
                     base_format("a ring of %llu", (unsigned long long)slots),
                     "the tail ring does not fit the blocks");
    return spec;
}

/* The bytes a token that the block size hangs on: packed rows count as plain fp8 in 0.32. */
static uint64_t aligned_token(const model_cache *cache, const model_spec *latent)
{
    bool packed = cache->choice.precision == MODEL_FP8_DS_MLA && !cache->choice.kpool_tail;
    return packed ? cache->shape.lora + cache->shape.rope : latent->cell;
}

/* The earlier layout: everything is walked in kernel blocks of 64 tokens. */
static void split_tail(model_cache *cache, model_spec *latent, model_spec *index)
{
    uint64_t kernel = cache->choice.kernel != 0 ? cache->choice.kernel : 64;
    if (cache->block % kernel != 0 || kernel % cache->shape.kpool != 0)
        model_refuse(cache, "option_unfit", "kernel_block_size",
                     base_format("a multiple of index_kpool %llu that divides blocks of %llu tokens",
                                 (unsigned long long)cache->shape.kpool,
                                 (unsigned long long)cache->block),
                     base_format("%llu", (unsigned long long)kernel),
                     "blocks cannot be cut into such kernel blocks");
    latent->kernel = index->kernel = kernel;
    latent->alignment = index->alignment = 1;
}

static void check_tail(model_cache *cache, const model_spec *index, const model_spec *ring)
{
    if (ring->real > index->page)
        model_refuse(cache, "tail_not_covered", "kpool",
                     base_format("at most the %llu bytes of its indexer row",
                                 (unsigned long long)index->page),
                     base_format("a tail of %llu bytes", (unsigned long long)ring->real),
                     "the tail reaches beyond its indexer row, so it would not be transferred whole");
}

static void add_glm_layers(model_cache *cache, uint32_t kda, uint32_t index, uint32_t ring,
                           uint32_t latent)
{
    const model_shape *shape = &cache->shape;
    static const char stem[] = "model.layers.";
    for (uint64_t i = 0; i < shape->layers + cache->choice.drafts; i++) {
        bool draft = i >= shape->layers;
        const char *prefix = draft ? "" : shape->prefix;
        if (!draft && shape->kinds[i] == 0) {
            add_layer(cache, kda, i, prefix, stem, ".self_attn", draft);
            continue;
        }
        add_layer(cache, index, i, prefix, stem, ".self_attn.indexer.k_cache", draft);
        add_layer(cache, ring, i, prefix, stem, ".self_attn.indexer.tail_cache", draft);
        add_layer(cache, latent, i, prefix, stem, ".self_attn.attn", draft);
    }
}

static void list_glm(model_cache *cache)
{
    if (cache->shape.ssm_dtype == NULL) /* KDA keeps its state in float32 */
        cache->shape.ssm_dtype = "float32";
    model_spec latent = latent_spec(cache), kda = state_spec(cache, "kda");
    uint64_t token = aligned_token(cache, &latent);
    model_block_choose(cache, token, kda.real);
    if (cache->refused)
        return;
    size_latent(cache, &latent);
    model_spec index = index_spec(cache, cache->shape.kpool), ring = ring_spec(cache);
    model_spec_size(&index, 1);
    if (cache->choice.kpool_tail) {
        split_tail(cache, &latent, &index);
        check_tail(cache, &index, &ring);
    } else {
        latent.kernel = latent.block;
        latent.alignment = cache->backend->rows * latent.cell;
        model_spec_index_kernel(cache, &index);
    }
    finish_state(cache, &kda, cache->block * token);
    uint32_t at = add_spec(cache, &kda);
    add_spec(cache, &index);
    add_spec(cache, &ring);
    add_spec(cache, &latent);
    add_glm_layers(cache, at, at + 1, at + 2, at + 3);
}

/* --- compressed latents: DeepSeek-V4 ------------------------------------------------------------ */

#define V4_BLOCK 256
#define V4_WINDOW_BLOCK 64

static model_spec v4_latent(const model_cache *cache, const char *group, uint64_t block,
                            uint64_t tokens_per_state)
{
    bool packed = cache->choice.precision == MODEL_FP8_DS_MLA;
    bool native = cache->choice.precision == MODEL_NATIVE;
    model_spec spec = {.content = MODEL_LATENT, .class = MODEL_FULL, .group = group, .block = block,
                       .tokens_per_state = tokens_per_state, .heads = 1,
                       .states = block / tokens_per_state, .kernel = block, .alignment = 1};
    /* Packed: 448 values of fp8 and 64 of bf16; the 8 bytes of scales lie apart. */
    spec.data = packed ? 576 : cache->shape.head_dim * (native ? 2 : 1);
    spec.scale = packed ? 8 : 0;
    spec.cell = spec.data + spec.scale;
    spec.dtype = packed ? "uint8" : native ? "bfloat16" : "float8_e4m3fn";
    spec.format = packed ? "fp8_ds_mla" : native ? "" : "fp8";
    model_spec_size(&spec, packed ? 576 : 512);
    return spec;
}

/* Sums of keys and scores in float32, of two windows where they overlap (ratio 4). */
static model_spec v4_compressor(const model_cache *cache, uint64_t ratio, uint64_t dim)
{
    uint64_t overlap = ratio == 4 ? 2 : 1, block = ratio == 4 ? 4 : 8;
    model_spec spec = {.content = MODEL_COMPRESSOR, .class = MODEL_SLIDING,
                       .group = ratio == 4 ? "c4" : "c128", .block = block, .window = overlap * ratio,
                       .tokens_per_state = 1, .heads = 1, .states = block,
                       .cell = 2 * overlap * dim * 4, .kernel = block, .alignment = 1,
                       .dtype = "float32", .format = ""};
    spec.data = spec.cell;
    model_spec_size(&spec, cache->choice.precision == MODEL_FP8_DS_MLA ? 576 : 512);
    return spec;
}

/* Which of V4's specs stands where in cache->specs. */
enum { V4_SWA, V4_INDEX, V4_C4, V4_C128, V4_INDEX_SUM, V4_C4_SUM, V4_C128_SUM };

static void add_v4_specs(model_cache *cache)
{
    model_spec swa = v4_latent(cache, "swa", V4_WINDOW_BLOCK, 1);
    swa.class = MODEL_SLIDING;
    swa.window = cache->shape.window;
    model_spec index = index_spec(cache, 4);
    model_spec_size(&index, cache->choice.precision == MODEL_FP8_DS_MLA ? 576 : 512);
    model_spec c4 = v4_latent(cache, "mla", V4_BLOCK, 4), c128 = v4_latent(cache, "mla", V4_BLOCK, 128);
    model_spec index_sum = v4_compressor(cache, 4, cache->shape.index_dim);
    model_spec c4_sum = v4_compressor(cache, 4, cache->shape.head_dim);
    model_spec c128_sum = v4_compressor(cache, 128, cache->shape.head_dim);
    const model_spec *all[] = {&swa, &index, &c4, &c128, &index_sum, &c4_sum, &c128_sum};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        add_spec(cache, all[i]);
}

static void list_v4(model_cache *cache)
{
    static const char stem[] = "model.layers.";
    cache->block = V4_BLOCK;
    uint64_t asked[] = {cache->choice.block, cache->choice.kernel};
    for (size_t i = 0; i < 2; i++)
        if (asked[i] != 0 && asked[i] != V4_BLOCK)
            model_refuse(cache, "option_unfit", i == 0 ? "block_size" : "kernel_block_size", "256",
                         base_format("%llu", (unsigned long long)asked[i]),
                         "the blocks of DeepSeek-V4 are fixed");
    add_v4_specs(cache);
    for (uint64_t i = 0; i < cache->shape.layers + cache->choice.drafts; i++) {
        bool draft = i >= cache->shape.layers;
        uint64_t ratio = draft ? 0 : cache->shape.kinds[i];
        if (ratio == 4) {
            add_layer(cache, V4_INDEX, i, "", stem, ".attn.indexer.k_cache", draft);
            add_layer(cache, V4_INDEX_SUM, i, "", stem, ".attn.indexer.compressor.state_cache", draft);
        }
        add_layer(cache, V4_SWA, i, "", stem, ".attn.swa_cache", draft);
        if (ratio == 0)
            continue;
        add_layer(cache, ratio == 4 ? V4_C4 : V4_C128, i, "", stem, ".attn", draft);
        add_layer(cache, ratio == 4 ? V4_C4_SUM : V4_C128_SUM, i, "", stem,
                  ".attn.compressor.state_cache", draft);
    }
}

/* --- the table ----------------------------------------------------------------------------- */

const model_type *model_type_find(const char *name)
{
    static const model_type types[] = {
        {"llama", false, MODEL_DENSE, false, list_dense, MODEL_LISTED, 0},
        {"mistral", false, MODEL_DENSE, false, list_dense, MODEL_LISTED, 0},
        {"qwen2", false, MODEL_DENSE, false, list_dense, MODEL_SWITCHED, 0},
        {"qwen3", false, MODEL_DENSE, false, list_dense, MODEL_SWITCHED, 0},
        {"gemma2", false, MODEL_DENSE, false, list_dense, MODEL_REPEATED, 0},
        {"gemma3", true, MODEL_DENSE, false, list_dense, MODEL_REPEATED, MODEL_IMAGES},
        {"gemma3_text", false, MODEL_DENSE, false, list_dense, MODEL_REPEATED, 0},
        {"gpt_oss", false, MODEL_DENSE, false, list_dense, MODEL_IN_TURN, MODEL_SINKS},
        {"deepseek_v3", false, MODEL_MLA, false, list_mla, MODEL_NO_WINDOWS, 0},
        {"qwen3_next", false, MODEL_DENSE, true, list_dense, MODEL_NO_WINDOWS, 0},
        {"qwen3_5", true, MODEL_DENSE, true, list_dense, MODEL_NO_WINDOWS, 0},
        {"qwen3_5_text", false, MODEL_DENSE, true, list_dense, MODEL_NO_WINDOWS, 0},
        {"qwen3_5_moe", true, MODEL_DENSE, true, list_dense, MODEL_NO_WINDOWS, 0},
        {"qwen3_5_moe_text", false, MODEL_DENSE, true, list_dense, MODEL_NO_WINDOWS, 0},
        {"deepseek_v4", false, MODEL_V4, false, list_v4, MODEL_NO_WINDOWS, 0},
        {"glm5_next", true, MODEL_SPARSE_MLA, true, list_glm, MODEL_NO_WINDOWS, 0},
        {"glm5_next_text", false, MODEL_SPARSE_MLA, true, list_glm, MODEL_NO_WINDOWS, 0},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}
