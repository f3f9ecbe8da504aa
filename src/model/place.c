/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One stage's groups -> regions of one allocation. An order is vLLM's: a permutation of L (layers),
 * B (blocks), H (heads), N (states), C (content bytes), outermost first. Groups alias from byte 0.
 */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* --- which order --------------------------------------------------------------------------- */

/* What vLLM takes where nothing in a model asks for less, most preferred first. */
#define ALL_ORDERS "LBNHC LBHNC BLNHC BLHNC BHLNC LHBNC"
#define ORDER 5 /* letters; a list has one space between */

/* L and B are the two outermost: a page is one run of bytes. */
static bool compact(const char *order) { return order[0] != 'H' && order[1] != 'H'; }

static bool block_outermost(const char *order) { return order[0] == 'B'; }

/* Orders that what the model holds leaves over; and which content it is that asks for them. */
static const char *orders_of(const model_cache *cache, model_content *asks)
{
    *asks = MODEL_KV;
    if (cache->choice.kpool_tail)
        return "LBNHC LBHNC";
    if (cache->shape.type->use == MODEL_SPARSE_MLA) {
        *asks = MODEL_RING; /* its backend reads pages of two head slots */
        return "BLHNC";
    }
    if (cache->shape.type->use == MODEL_V4) {
        *asks = MODEL_INDEX; /* indexer pages lie beside latents in each block */
        return "BLHNC BLNHC";
    }
    return cache->backend->orders;
}

static bool holds(const model_cache *cache, uint32_t stage, model_content content)
{
    for (uint32_t i = 0; i < cache->layer_count; i++)
        if (cache->layers[i].stage == stage && cache->specs[cache->layers[i].spec].content == content)
            return true;
    return false;
}

/* vLLM's workers must agree on the orders that they take, and those of a hybrid on the block size:
 * so a stage without such layers is refused where others have them. False: no stage has them. */
static bool check_stages(model_cache *cache, model_content content, bool needed)
{
    uint32_t with = 0, stages = (uint32_t)cache->choice.pp, without = 0;
    for (uint32_t stage = 0; stage < stages; stage++) {
        bool held = holds(cache, stage, content);
        with += held;
        if (!held)
            without = stage;
    }
    if (with < stages && (with > 0 || needed))
        model_refuse(cache, "pp_unfit", "pp_size", "attention layers on every stage",
                     base_format("none on stage %u", without),
                     "the stages would not agree on block size and memory order");
    return with > 0;
}

/* Pages that are cut into heads and states in different ways only alias as runs of bytes. */
static bool mixed_shapes(const model_cache *cache)
{
    for (uint32_t i = 1; i < cache->layer_count; i++) {
        const model_spec *a = &cache->specs[cache->layers[0].spec];
        const model_spec *b = &cache->specs[cache->layers[i].spec];
        if (a->heads != b->heads || a->states != b->states || a->page != b->page)
            return true;
    }
    return false;
}

/* The orders of the list that fit, with a space between. */
static const char *fitting(model_cache *cache, const char *list)
{
    bool mixed = mixed_shapes(cache);
    base_text fit = {0};
    base_text_append(&fit, "%s", "");
    for (const char *at = list; at != NULL; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (!mixed || compact(at))
            base_text_append(&fit, "%s%.*s", fit.size > 0 ? " " : "", ORDER, at);
    }
    const char *text = fit.failed ? NULL : model_text(cache, fit.data);
    free(fit.data);
    cache->no_memory = cache->no_memory || text == NULL;
    return text;
}

void model_order_choose(model_cache *cache)
{
    model_content asks;
    const char *list = orders_of(cache, &asks);
    bool hybrid_kv = cache->shape.type->hybrid && cache->shape.type->use == MODEL_DENSE;
    if (hybrid_kv || cache->shape.type->use == MODEL_SPARSE_MLA || cache->shape.type->use == MODEL_V4) {
        model_content needed = cache->choice.kpool_tail ? MODEL_LATENT : asks;
        if (!check_stages(cache, needed, cache->shape.type->hybrid))
            list = NULL;
    }
    const char *fit = fitting(cache, list != NULL ? list : ALL_ORDERS);
    if (fit == NULL)
        return;
    /* vLLM's connectors wish for LBHNC where a model is not MLA. */
    const char *wish = cache->choice.order != NULL               ? cache->choice.order
                       : cache->shape.type->use == MODEL_DENSE ? "LBHNC"
                                                               : "";
    const char *taken = wish[0] != '\0' ? strstr(fit, wish) : NULL;
    if (taken == NULL && cache->choice.order != NULL)
        model_refuse(cache, "option_unfit", "memory_order", fit, wish,
                     "neither model nor backend can lie in memory so");
    cache->order = model_text(cache, base_format("%.*s", ORDER, taken != NULL ? taken : fit));
}

/* --- strides ------------------------------------------------------------------------------- */

typedef struct strides {
    uint64_t layer, block, head, state, content;
} strides;

static uint64_t *axis_of(strides *all, char axis)
{
    switch (axis) {
    case 'L': return &all->layer;
    case 'B': return &all->block;
    case 'H': return &all->head;
    case 'N': return &all->state;
    default: return &all->content;
    }
}

/* Dense strides in this order, but those that `fixed` gives. What pads a page stands before the next
 * layer or block (only pages of one head are padded where heads lie outside of these). */
static strides stride(const char *order, strides extents, strides fixed, const model_spec *spec)
{
    strides all = {0};
    uint64_t current = 1;
    for (int at = 4; at >= 0; at--) {
        bool ends_page = strcspn(order + at + 1, "LB") == (size_t)(ORDER - at - 1) &&
                         (order[at] == 'L' || order[at] == 'B');
        if (ends_page && spec->page > spec->real)
            current = base_max(current, spec->page);
        uint64_t given = *axis_of(&fixed, order[at]);
        uint64_t *own = axis_of(&all, order[at]);
        *own = given != 0 ? given : current;
        current = *own * *axis_of(&extents, order[at]);
    }
    return all;
}

static uint64_t padded(const model_spec *spec)
{
    return base_ceil_div(spec->page, spec->alignment) * spec->alignment;
}

/* --- rows ---------------------------------------------------------------------------------- */

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The bytes of a block id: what the widest of this stage's groups needs. */
static bool measure(model_cache *cache)
{
    uint64_t widest = 0, step = 1;
    for (uint32_t g = 0; g < cache->group_count; g++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < cache->groups[g].count; i++) {
            const model_layer *layer = &cache->layers[cache->groups[g].layers[i]];
            if (layer->stage != cache->choice.pp_rank)
                continue;
            const model_spec *spec = &cache->specs[layer->spec];
            bytes += block_outermost(cache->order) ? spec->page : padded(spec);
            uint64_t share = spec->alignment / greatest_divisor(step, spec->alignment);
            if (!base_mul(step, share, &step))
                return false;
        }
        widest = base_max(widest, bytes);
    }
    if (block_outermost(cache->order) && !base_mul(base_ceil_div(widest, step), step, &widest))
        return false;
    cache->bytes_per_block = widest;
    return true;
}

/* --- regions ------------------------------------------------------------------------------- */

/* This stage's layers of the group with this spec, or NULL if there are none. */
static model_region *gather(model_cache *cache, uint32_t group, uint32_t spec)
{
    const model_group *from = &cache->groups[group];
    model_region *region = &cache->regions[cache->region_count];
    region->layers = model_alloc(cache, from->count, sizeof *region->layers);
    if (region->layers == NULL)
        return NULL;
    region->count = 0;
    for (uint32_t i = 0; i < from->count; i++) {
        const model_layer *layer = &cache->layers[from->layers[i]];
        if (layer->spec == spec && layer->stage == cache->choice.pp_rank)
            region->layers[region->count++] = from->layers[i];
    }
    if (region->count == 0)
        return NULL;
    region->group = group;
    region->spec = spec;
    cache->region_count++;
    return region;
}

static void lie(model_cache *cache, model_region *region, uint64_t offset)
{
    const model_spec *spec = &cache->specs[region->spec];
    strides extents = {region->count, cache->choice.blocks, spec->heads, spec->states, spec->cell};
    strides fixed = {0};
    if (block_outermost(cache->order))
        fixed.block = cache->bytes_per_block;
    else if (padded(spec) != spec->page)
        fixed.block = padded(spec);
    strides all = stride(cache->order, extents, fixed, spec);
    region->offset = offset;
    region->layer_stride = all.layer;
    region->block_stride = all.block;
}

/* Cuts blocks into pages of kernel blocks, and fills in what lies inside a page. */
static void cut(model_cache *cache, model_region *region, bool packed)
{
    const model_spec *spec = &cache->specs[region->spec];
    uint64_t pieces = spec->block / spec->kernel, page = spec->real / pieces;
    region->ratio = pieces;
    if (packed) {
        /* Kernel blocks of a packed row are found by their row alone where states are compressed. */
        region->ratio = 1;
        bool found = spec->tokens_per_state > 1 && spec->heads == 1 && region->block_stride % page == 0;
        if (pieces > 1 && !found)
            model_refuse(cache, "option_unfit", "memory_order", "a layer-outermost order, LBHNC",
                         cache->order, "packed blocks cannot be cut into kernel blocks");
    } else if (pieces > 1 && region->block_stride != spec->real) {
        model_refuse(cache, "option_unfit", "memory_order", "an order with whole pages, LBHNC",
                     cache->order, "scattered blocks cannot be cut into kernel blocks");
    }
    strides extents = {region->count, cache->choice.blocks * region->ratio, spec->heads,
                       spec->states / region->ratio, spec->cell};
    strides fixed = {.layer = region->layer_stride, .block = region->block_stride / region->ratio};
    strides all = stride(cache->order, extents, fixed, spec);
    region->head_stride = all.head;
    region->state_stride = all.state;
}

static void place_group(model_cache *cache, uint32_t group)
{
    uint32_t first = cache->region_count;
    bool done[MODEL_SPECS] = {false}, packed = false;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < cache->groups[group].count; i++) {
        const model_layer *layer = &cache->layers[cache->groups[group].layers[i]];
        if (layer->stage != cache->choice.pp_rank || done[layer->spec])
            continue;
        done[layer->spec] = true;
        model_region *region = gather(cache, group, layer->spec);
        if (region == NULL)
            return;
        lie(cache, region, offset);
        packed = packed || region->block_stride > region->layer_stride;
        offset += region->count * (block_outermost(cache->order) ? cache->specs[layer->spec].page
                                                                  : region->layer_stride);
    }
    for (uint32_t i = first; i < cache->region_count; i++)
        cut(cache, &cache->regions[i], packed);
}

/*
 * The earlier kpool layout. States and latents have equal pages and alias; indexers come after
 * them, and each tail lies in the indexer row of its block.
 */
static bool is_second(const model_cache *cache, uint32_t spec)
{
    return cache->specs[spec].content == MODEL_INDEX || cache->specs[spec].content == MODEL_RING;
}

static void place_kpool(model_cache *cache)
{
    uint64_t most[2] = {0}, page[2] = {0};
    for (uint32_t g = 0; g < cache->group_count; g++)
        for (uint32_t spec = 0; spec < cache->spec_count; spec++) {
            model_region *region = gather(cache, g, spec);
            if (region == NULL)
                continue;
            bool second = is_second(cache, spec);
            most[second] = base_max(most[second], region->count);
            page[second] = base_max(page[second], cache->specs[spec].page);
        }
    cache->bytes_per_block = most[0] * page[0] + most[1] * page[1];
    for (uint32_t i = 0; i < cache->region_count; i++) {
        model_region *region = &cache->regions[i];
        bool second = is_second(cache, region->spec);
        lie(cache, region, second ? most[0] * page[0] * cache->choice.blocks : 0);
        region->block_stride = page[second];
        region->layer_stride = page[second] * cache->choice.blocks;
        cut(cache, region, false);
    }
}

static void refuse_size(model_cache *cache)
{
    model_refuse(cache, "option_range", "blocks", "an allocation below 2^63 bytes",
                 base_format("%llu", (unsigned long long)cache->choice.blocks),
                 "so many blocks are too large");
}

void model_place(model_cache *cache)
{
    uint32_t most = cache->group_count * cache->spec_count;
    cache->regions = model_alloc(cache, most, sizeof *cache->regions);
    if (cache->regions == NULL)
        return;
    /* In the earlier kpool layout two groups' widest parts add up: at most twice the widest group. */
    uint64_t twice;
    if (!measure(cache) || !base_mul(cache->bytes_per_block, 2, &twice) ||
        !base_mul(twice, cache->choice.blocks, &cache->bytes) || cache->bytes > INT64_MAX) {
        refuse_size(cache);
        return;
    }
    if (cache->choice.kpool_tail)
        place_kpool(cache);
    else
        for (uint32_t group = 0; group < cache->group_count; group++)
            place_group(cache, group);
    cache->bytes = cache->bytes_per_block * cache->choice.blocks;
}
