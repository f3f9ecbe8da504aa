/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention backends of vLLM 0.32 as far as they shape caches. Of those that can serve a model
 * on a platform the first one is taken, so the table's order is vLLM's order of preference.
 */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#define FP8_TOO (MODEL_NATIVE | MODEL_FP8)
#define MLA_DIMS {320, 512, 576}
#define FLASHINFER_DIMS {64, 128, 256, 512}
/* Triton's kernels for images, others for all else; both read the same pages. */
#define COMPOSITE_DIMS {256, 512}

static const model_backend backends[] = {
    {.name = "TRITON_FLASHINFER", .use = MODEL_DENSE, .platforms = MODEL_SM100, .precisions = FP8_TOO,
     .sizes = {64}, .head_dims = COMPOSITE_DIMS, .orders = "LBHNC BLHNC", .only = MODEL_IMAGES},
    {.name = "TRITON_FLASH_ATTN", .use = MODEL_DENSE, .platforms = MODEL_SM90, .precisions = FP8_TOO,
     .multiple = 16, .head_dims = COMPOSITE_DIMS, .only = MODEL_IMAGES},
    {.name = "FLASHINFER", .use = MODEL_DENSE, .platforms = MODEL_SM100, .precisions = FP8_TOO,
     .sizes = {16, 32, 64, 128, 256, 512, 1024}, .head_dims = FLASHINFER_DIMS, .orders = "LBHNC BLHNC",
     .without = MODEL_IMAGES},
    {.name = "FLASH_ATTN", .use = MODEL_DENSE, .platforms = MODEL_SM90, .precisions = FP8_TOO,
     .multiple = 16, .without = MODEL_IMAGES},
    /* FlashAttention 4 has a kernel of its own for heads of 256, which takes pages of 128 only. */
    {.name = "FLASH_ATTN", .use = MODEL_DENSE, .platforms = MODEL_SM100, .precisions = FP8_TOO,
     .sizes = {128}, .head_dims = {256}, .without = MODEL_IMAGES | MODEL_SINKS | MODEL_SOFTCAP},
    {.name = "FLASH_ATTN", .use = MODEL_DENSE, .platforms = MODEL_SM100, .precisions = FP8_TOO,
     .multiple = 16, .without = MODEL_IMAGES | MODEL_SINKS},
    {.name = "FLASH_ATTN", .use = MODEL_DENSE, .platforms = MODEL_SM120, .precisions = MODEL_NATIVE,
     .multiple = 16, .without = MODEL_IMAGES | MODEL_SINKS},
    {.name = "FLASHINFER", .use = MODEL_DENSE, .platforms = MODEL_SM90 | MODEL_SM120,
     .precisions = FP8_TOO, .sizes = {16, 32, 64}, .head_dims = FLASHINFER_DIMS, .without = MODEL_IMAGES},
    {.name = "TRITON_ATTN", .use = MODEL_DENSE, .platforms = MODEL_ANY_GPU, .precisions = FP8_TOO,
     .multiple = 16},
    {.name = "CPU_ATTN", .use = MODEL_DENSE, .platforms = MODEL_ANY_CPU, .precisions = MODEL_NATIVE,
     .multiple = 32, .head_dims = {32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512},
     .orders = "LBHNC"},

    {.name = "FLASHINFER_MLA", .use = MODEL_MLA, .platforms = MODEL_SM100, .precisions = FP8_TOO,
     .sizes = {32, 64}, .head_dims = MLA_DIMS},
    {.name = "CUTLASS_MLA", .use = MODEL_MLA, .platforms = MODEL_SM100, .precisions = FP8_TOO,
     .sizes = {128}, .head_dims = MLA_DIMS},
    {.name = "FLASH_ATTN_MLA", .use = MODEL_MLA, .platforms = MODEL_SM90, .precisions = MODEL_NATIVE,
     .multiple = 16, .head_dims = MLA_DIMS},
    {.name = "FLASHMLA", .use = MODEL_MLA, .platforms = MODEL_SM90, .precisions = FP8_TOO,
     .sizes = {64}, .head_dims = MLA_DIMS},
    {.name = "TRITON_MLA", .use = MODEL_MLA, .platforms = MODEL_ANY_GPU, .precisions = FP8_TOO,
     .multiple = 16},
    {.name = "CPU_MLA", .use = MODEL_MLA, .platforms = MODEL_CPU, .precisions = MODEL_NATIVE,
     .sizes = {16}},

    {.name = "FLASHINFER_MLA_SPARSE_SM90", .use = MODEL_SPARSE_MLA, .platforms = MODEL_SM90,
     .precisions = FP8_TOO, .multiple = 64, .rows = 1, .head_dims = {512}},
    {.name = "FLASH_ATTN_MLA_SPARSE", .use = MODEL_SPARSE_MLA, .platforms = MODEL_SM90,
     .precisions = MODEL_NATIVE, .multiple = 64, .rows = 1},
    /* Quantised rows are read in pages of 64, others one by one. */
    {.name = "FLASHMLA_SPARSE", .use = MODEL_SPARSE_MLA, .platforms = MODEL_SM90,
     .precisions = MODEL_FP8_DS_MLA, .multiple = 64, .rows = 64, .head_dims = {512, 576}},
    {.name = "FLASHMLA_SPARSE", .use = MODEL_SPARSE_MLA, .platforms = MODEL_SM90,
     .precisions = MODEL_NATIVE, .multiple = 64, .rows = 1, .head_dims = {512, 576}},
    {.name = "FLASHINFER_MLA_SPARSE_SM90", .use = MODEL_SPARSE_MLA, .platforms = MODEL_SM90,
     .precisions = FP8_TOO, .multiple = 64, .rows = 1, .head_dims = {576}},
    {.name = "FLASHINFER_MLA_SPARSE", .use = MODEL_SPARSE_MLA, .platforms = MODEL_SM100,
     .precisions = FP8_TOO, .multiple = 32, .rows = 32, .head_dims = {512, 576}},
    {.name = "FLASHINFER_MLA_SPARSE_SM120", .use = MODEL_SPARSE_MLA, .platforms = MODEL_SM120,
     .precisions = MODEL_FP8_DS_MLA, .multiple = 64, .rows = 64, .head_dims = {512, 576}},

    {.name = "FLASHMLA_SPARSE_DSV4", .use = MODEL_V4, .platforms = MODEL_SM90 | MODEL_SM100,
     .precisions = MODEL_FP8_DS_MLA, .sizes = {256}, .head_dims = {512}},
    {.name = "FLASHINFER_MLA_SPARSE_DSV4", .use = MODEL_V4, .platforms = MODEL_SM100,
     .precisions = FP8_TOO, .sizes = {256}, .head_dims = {512}},
    {.name = "FLASHINFER_MLA_SPARSE_DSV4", .use = MODEL_V4, .platforms = MODEL_SM120,
     .precisions = MODEL_FP8_DS_MLA, .sizes = {256}, .head_dims = {512}},
    {.name = "CPU_V4_MLA_SPARSE", .use = MODEL_V4, .platforms = MODEL_ANY_CPU,
     .precisions = MODEL_FP8_DS_MLA, .sizes = {256}, .head_dims = {512}},
};
#define BACKENDS (sizeof backends / sizeof backends[0])

bool model_backend_takes(const model_backend *backend, uint64_t block)
{
    if (backend->multiple != 0)
        return block % backend->multiple == 0;
    for (size_t i = 0; backend->sizes[i] != 0; i++)
        if (block % backend->sizes[i] == 0)
            return true;
    return false;
}

static bool takes_head(const model_backend *backend, uint64_t head_dim)
{
    if (strcmp(backend->name, "TRITON_ATTN") == 0)
        return head_dim >= 32;
    if (backend->head_dims[0] == 0)
        return backend->use != MODEL_DENSE || (head_dim % 8 == 0 && head_dim <= 256);
    for (size_t i = 0; backend->head_dims[i] != 0; i++)
        if (backend->head_dims[i] == head_dim)
            return true;
    return false;
}

/* What single backends ask of a model beside its head size. */
static bool takes_shape(const model_backend *backend, const model_shape *shape)
{
    if ((shape->traits & backend->without) != 0 || (backend->only & ~shape->traits) != 0)
        return false;
    if (strcmp(backend->name, "FLASHINFER_MLA") == 0)
        return shape->nope == 64 || shape->nope == 128 || shape->nope == 192;
    if (strcmp(backend->name, "FLASHINFER_MLA_SPARSE") == 0)
        return shape->rope == 0 ? shape->nope == 256 : shape->nope == 128 || shape->nope == 192;
    if (strcmp(backend->name, "FLASHINFER_MLA_SPARSE_SM120") == 0)
        return shape->topk == 2048;
    return true;
}

/* Backends with a packed form of their own store fp8 in it, and those that know no other form all
 * that is left to them. FLASHMLA_SPARSE does so only with rope. */
static model_precision stored(const model_backend *backend, const model_cache *cache)
{
    const model_choice *choice = &cache->choice;
    if (backend->precisions != MODEL_FP8_DS_MLA)
        return choice->precision;
    if (strcmp(backend->name, "FLASHMLA_SPARSE") == 0)
        return choice->precision == MODEL_FP8 && cache->shape.rope != 0 ? MODEL_FP8_DS_MLA
                                                                         : choice->precision;
    return choice->precision == MODEL_FP8 || choice->kv_dtype == NULL ? MODEL_FP8_DS_MLA
                                                                      : choice->precision;
}

/* A block size that was asked for; on CPUs hybrids round it. The reference MLA kernel knows 16. */
static bool takes_block(const model_backend *backend, const model_cache *cache)
{
    uint64_t block = cache->choice.block;
    if (block == 0 || (cache->choice.platform & MODEL_ANY_CPU && cache->shape.type->hybrid))
        return true;
    if (strcmp(backend->name, "CPU_MLA") == 0)
        return block == backend->sizes[0];
    return model_backend_takes(backend, block);
}

static bool fits(const model_backend *backend, const model_cache *cache, uint64_t head_dim)
{
    const model_choice *choice = &cache->choice;
    /* The earlier kpool layout stored what it was told to. */
    bool stores = choice->kpool_tail || (backend->precisions & stored(backend, cache)) != 0;
    return backend->use == cache->shape.type->use && (backend->platforms & choice->platform) != 0 &&
           stores && takes_head(backend, head_dim) &&
           takes_shape(backend, &cache->shape) && takes_block(backend, cache) &&
           (choice->backend == NULL || strcmp(choice->backend, backend->name) == 0);
}

static const model_backend *first_fit(const model_cache *cache)
{
    const model_shape *shape = &cache->shape;
    uint64_t head_dim = shape->lora != 0 ? shape->lora + shape->rope : shape->head_dim;
    for (size_t i = 0; i < BACKENDS; i++)
        if (fits(&backends[i], cache, head_dim))
            return &backends[i];
    return NULL;
}

static void refuse_backend(model_cache *cache, const char *place, const char *found)
{
    base_text known = {0};
    base_text_append(&known, "one that fits ");
    for (size_t i = 0, listed = 0; i < BACKENDS; i++)
        if (backends[i].use == cache->shape.type->use &&
            (backends[i].platforms & cache->choice.platform) != 0)
            base_text_append(&known, "%s%s", listed++ == 0 ? "" : ", ", backends[i].name);
    bool none = known.failed || known.data[known.size - 1] == ' ';
    model_refuse(cache, "backend_unfit", place, none ? "a platform that serves this model" : known.data,
                 found, "no attention backend takes the model with all options");
    free(known.data);
}

/* Names each option without which there would be a backend; if it is no single one, the platform. */
static void blame(model_cache *cache)
{
    static const char *const platforms[] = {"sm90", "sm100", "sm120", "cpu", "cpu-amx"};
    const model_choice given = cache->choice;
    bool blamed[3] = {false};
    cache->choice.backend = NULL;
    blamed[0] = given.backend != NULL && first_fit(cache) != NULL;
    cache->choice = given;
    cache->choice.precision = MODEL_NATIVE;
    cache->choice.kv_dtype = NULL;
    blamed[1] = given.kv_dtype != NULL && first_fit(cache) != NULL;
    cache->choice = given;
    cache->choice.block = 0;
    blamed[2] = given.block != 0 && first_fit(cache) != NULL;
    cache->choice = given;
    if (blamed[0])
        refuse_backend(cache, "backend", given.backend);
    if (blamed[1])
        refuse_backend(cache, "kv_dtype", given.kv_dtype);
    if (blamed[2])
        refuse_backend(cache, "block_size", base_format("%llu", (unsigned long long)given.block));
    size_t at = 0;
    while (given.platform >> at != 1)
        at++;
    if (!blamed[0] && !blamed[1] && !blamed[2])
        refuse_backend(cache, "platform", platforms[at]);
}

void model_backend_choose(model_cache *cache)
{
    cache->backend = first_fit(cache);
    if (cache->backend == NULL)
        blame(cache);
    else if (!cache->choice.kpool_tail)
        cache->choice.precision = stored(cache->backend, cache);
}
