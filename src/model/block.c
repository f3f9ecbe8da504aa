/* SPDX-License-Identifier: Apache-2.0 */
/* How many tokens a block has. */
#include "model/model.h"


static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint64_t lcm(uint64_t a, uint64_t b) { return a / gcd(a, b) * b; }

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return base_ceil_div(value, multiple) * multiple;
}

/* The smallest kernel block of a backend. */
static uint64_t smallest(const model_backend *backend)
{
    return backend->multiple != 0 ? backend->multiple : backend->sizes[0];
}

/* A kpool indexer takes pages of 32 or 64 states (SM120: 64 only), each of kpool tokens. */
static uint64_t smallest_indexed(const model_cache *cache)
{
    return cache->shape.kpool * (cache->choice.platform == MODEL_SM120 ? 64 : 32);
}

/* What vLLM takes if nobody says --block-size: 16 where all backends can, else the least they can. */
static uint64_t preferred(const model_cache *cache)
{
    if (cache->shape.kpool != 0)
        return lcm(smallest_indexed(cache), smallest(cache->backend));
    if (cache->choice.platform & MODEL_ANY_CPU && cache->shape.type->use == MODEL_DENSE)
        return 128;
    return model_backend_takes(cache->backend, 16) ? 16 : smallest(cache->backend);
}

/*
 * Hybrids: a page of attention must hold a layer's state, in whole kernel blocks of all backends; the
 * first backend's smallest one, the block size so far and, for MLA, 128 set the step.
 */
static uint64_t aligned(const model_cache *cache, uint64_t block, uint64_t token_bytes,
                        uint64_t state_bytes)
{
    uint64_t first = smallest(cache->backend), all = first;
    if (cache->shape.kpool != 0) {
        first = smallest_indexed(cache);
        all = lcm(first, all);
    }
    uint64_t step = base_max(first, block);
    if (cache->shape.lora != 0)
        step = base_max(step, 128);
    uint64_t needed = step * base_ceil_div(state_bytes, step * token_bytes);
    return base_max(block, round_up(needed, all));
}

/* Whether the kernels can walk blocks of this size after all. */
static void check(model_cache *cache)
{
    uint64_t step = cache->shape.kpool != 0 ? smallest_indexed(cache) : smallest(cache->backend);
    bool taken = cache->block % step == 0 && model_backend_takes(cache->backend, cache->block);
    if (!taken)
        model_refuse(cache, "option_unfit", "block_size",
                     base_format("a multiple of %llu", (unsigned long long)step),
                     base_format("%llu", (unsigned long long)cache->block),
                     "the attention kernels cannot walk blocks of this size");
}

void model_block_choose(model_cache *cache, uint64_t token_bytes, uint64_t state_bytes)
{
    cache->block = cache->choice.block != 0 ? cache->choice.block : preferred(cache);
    if (cache->shape.type->hybrid)
        cache->block = aligned(cache, cache->block, token_bytes, state_bytes);
    check(cache);
}

void model_spec_size(model_spec *spec, uint64_t padding)
{
    spec->real = spec->heads * spec->states * spec->cell;
    spec->page = round_up(spec->real, padding);
}

/* FlashInfer's large pages are for several query heads to a key head only. 0: all of a backend's sizes. */
static uint64_t largest_size(const model_cache *cache, model_content content, uint64_t heads)
{
    if (content != MODEL_KV)
        return 0;
    return cache->shape.heads / cache->choice.tp / heads > 1 ? 0 : 64;
}

uint64_t model_block_windowed(const model_cache *cache, uint64_t heads)
{
    const model_backend *backend = cache->backend;
    if (backend->multiple != 0)
        return cache->block;
    uint64_t largest = largest_size(cache, MODEL_KV, heads), block = backend->sizes[0];
    for (size_t i = 0; backend->sizes[i] != 0; i++)
        if (backend->sizes[i] <= cache->block && (largest == 0 || backend->sizes[i] <= largest))
            block = backend->sizes[i];
    return block;
}

/* The tokens of a kernel block: what was asked for, or the largest of the backend's that divides. */
static uint64_t kernel_of(model_cache *cache, const uint64_t *sizes, uint64_t largest, uint64_t block)
{
    uint64_t kernel = 0;
    for (size_t i = 0; sizes[i] != 0; i++)
        if (sizes[i] <= largest && block % sizes[i] == 0 &&
            (cache->choice.kernel == 0 || cache->choice.kernel == sizes[i]))
            kernel = base_max(kernel, sizes[i]);
    if (kernel != 0)
        return kernel;
    model_refuse(cache, "option_unfit", "kernel_block_size",
                 base_format("one that divides blocks of %llu tokens and that the kernels take",
                             (unsigned long long)block),
                 base_format("%llu", (unsigned long long)cache->choice.kernel),
                 "the attention kernels take no such kernel block");
    return block;
}

/* Blocks that are larger than the largest kernel block must lie whole kernel blocks apart. */
static void align_to_kernel(model_spec *spec, uint64_t largest)
{
    uint64_t piece = gcd(largest, spec->block);
    spec->alignment = piece == spec->block ? 1 : spec->page / (spec->block / piece);
}

void model_spec_kernel(model_cache *cache, model_spec *spec)
{
    const model_backend *backend = cache->backend;
    uint64_t largest = largest_size(cache, spec->content, spec->heads);
    spec->alignment = 1;
    spec->kernel = spec->block;
    if (backend->multiple == 0) {
        uint64_t top = 0;
        for (size_t i = 0; backend->sizes[i] != 0; i++)
            if (largest == 0 || backend->sizes[i] <= largest)
                top = backend->sizes[i];
        spec->kernel = kernel_of(cache, backend->sizes, top, spec->block);
        align_to_kernel(spec, top);
    } else if (cache->choice.kernel != 0) {
        uint64_t one[] = {cache->choice.kernel % backend->multiple == 0 ? cache->choice.kernel : 0, 0};
        spec->kernel = kernel_of(cache, one, cache->choice.kernel, spec->block);
    }
    if (backend->rows != 0)
        spec->alignment = backend->rows * spec->cell;
}

void model_spec_index_kernel(model_cache *cache, model_spec *spec)
{
    uint64_t least = smallest_indexed(cache), most = cache->shape.kpool * 64;
    uint64_t sizes[] = {least, least == most ? 0 : most, 0};
    spec->kernel = kernel_of(cache, sizes, most, spec->block);
    align_to_kernel(spec, most);
}
