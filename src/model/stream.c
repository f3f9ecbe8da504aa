/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions -> streams of a layout document, as docs/models.md lists them by what a cache holds. What
 * lies inside a page was read in vLLM's kernels.
 */
#include "model/model.h"

#include <string.h>

/* One layer of a region, on its way into the builder. */
typedef struct writer {
    model_cache *cache;
    kvferry_layout_builder *builder;
    const model_region *region;
    const model_spec *spec;
    uint64_t page_tokens, page_states; /* of a page; page_tokens is 0 unless paged */
    kvferry_stream stream;             /* what all of this layer's streams have in common */
} writer;

static void add(const writer *w, const char *name, uint64_t offset, uint64_t cell,
                const kvferry_axis *axes, uint32_t axis_count)
{
    kvferry_stream stream = w->stream;
    stream.name = name;
    stream.offset += offset;
    stream.cell_bytes = cell;
    stream.axes = axes;
    stream.axis_count = axis_count;
    kvferry_layout_builder_stream(w->builder, &stream);
}

/* The part of `all` that this worker holds: an equal share, or one of fewer than there are ranks. */
static kvferry_axis share(const writer *w, const char *name, uint64_t all, uint64_t stride)
{
    const model_choice *choice = &w->cache->choice;
    return (kvferry_axis){.name = name, .start = choice->tp_rank * all / choice->tp,
                          .extent = base_max(1, all / choice->tp), .global = all, .stride = stride};
}

static kvferry_axis whole(const char *name, uint64_t extent, uint64_t stride)
{
    return (kvferry_axis){.name = name, .extent = extent, .global = extent, .stride = stride};
}

static kvferry_axis tokens(const writer *w, uint64_t stride)
{
    return whole("token", w->page_states, stride);
}

/* --- keys and values ----------------------------------------------------------------------- */

/* Each cell of a page has a key, then the value. */
static void add_kv(const writer *w)
{
    uint64_t half = w->spec->cell / 2;
    kvferry_axis axes[] = {
        share(w, "kv_head", w->cache->shape.kv_heads, w->region->head_stride),
        tokens(w, w->region->state_stride)};
    add(w, "k", 0, half, axes, 2);
    add(w, "v", half, half, axes, 2);
}

/* AVX-512: of each head first all keys, by dimension, then all values, by token. */
static void add_kv_vector(const writer *w)
{
    uint64_t bytes = w->cache->shape.dtype_bytes, dim = w->cache->shape.head_dim;
    uint64_t keys = dim * w->page_states * bytes;
    kvferry_axis head = share(w, "kv_head", w->cache->shape.kv_heads, w->region->head_stride);
    kvferry_axis by_dim[] = {head, whole("dim", dim, w->page_states * bytes), tokens(w, bytes)};
    add(w, "k", 0, bytes, by_dim, 3);
    kvferry_axis by_token[] = {head, tokens(w, dim * bytes)};
    add(w, "v", keys, dim * bytes, by_token, 2);
}

/* AMX: keys in tiles of 16 tokens; values in pairs of tokens, 16 dimensions at a time. */
static void add_kv_tiles(const writer *w)
{
    uint64_t bytes = w->cache->shape.dtype_bytes, dim = w->cache->shape.head_dim;
    uint64_t keys = dim * w->page_states * bytes;
    kvferry_axis head = share(w, "kv_head", w->cache->shape.kv_heads, w->region->head_stride);
    writer tiled = *w;
    tiled.stream.format = "amx";
    tiled.stream.tokens_per_state = 16;
    kvferry_axis key[] = {head, whole("token", w->page_states / 16, 16 * dim * bytes)};
    add(&tiled, "k", 0, 16 * dim * bytes, key, 2);
    tiled.stream.tokens_per_state = 2;
    kvferry_axis value[] = {head, whole("dim", dim / 16, 16 * w->page_states * bytes),
                            whole("token", w->page_states / 2, 32 * bytes)};
    add(&tiled, "v", keys, 32 * bytes, value, 3);
}

/* --- latents and indexers ------------------------------------------------------------------ */

/*
 * Kernel blocks inside a packed row: each has its data, then its scales, so states have no one stride
 * over the page. A kernel block is one cell then, that nobody may cut.
 */
static void add_kernel_blocks(const writer *w, const char *name)
{
    uint64_t states = w->spec->kernel / w->spec->tokens_per_state, bytes = states * w->spec->cell;
    writer tiled = *w;
    tiled.stream.format = base_format("%s_page%llu", w->spec->format, (unsigned long long)states);
    tiled.stream.tokens_per_state = w->spec->kernel;
    kvferry_axis axis = whole("token", w->page_states / states, bytes);
    add(&tiled, name, 0, bytes, &axis, 1);
}

static void add_states(const writer *w, const char *name, const char *scales)
{
    const model_spec *spec = w->spec;
    if (spec->scale != 0 && w->page_tokens != spec->kernel) {
        add_kernel_blocks(w, name);
        return;
    }
    kvferry_axis axis = tokens(w, spec->scale == 0 ? w->region->state_stride : spec->data);
    add(w, name, 0, spec->data, &axis, 1);
    if (spec->scale == 0)
        return;
    axis.stride = spec->scale;
    writer scale = *w;
    if (spec->content == MODEL_INDEX && strcmp(spec->format, "fp8") == 0)
        scale.stream.dtype = "float32";
    add(&scale, scales, w->page_states * spec->data, spec->scale, &axis, 1);
}

/* --- states -------------------------------------------------------------------------------- */

/* One projection of the convolution: `first` local channels before it, `all` channels in all. */
static void add_conv(const writer *w, const char *name, uint64_t first, uint64_t all, uint64_t channels,
                     uint64_t rows)
{
    uint64_t bytes = w->cache->shape.dtype_bytes;
    bool dim_first = w->cache->choice.conv_dim_first;
    uint64_t channel = dim_first ? rows * bytes : bytes, row = dim_first ? bytes : channels * bytes;
    kvferry_axis axes[] = {share(w, "channel", all, channel), whole("row", rows, row)};
    add(w, name, first * channel, bytes, axes, 2);
}

static void add_state(const writer *w)
{
    const model_shape *shape = &w->cache->shape;
    const model_choice *choice = &w->cache->choice;
    uint64_t keys = shape->k_heads * shape->k_dim, values = shape->v_heads * shape->v_dim;
    uint64_t rows = shape->conv_rows + choice->speculative;
    uint64_t local = keys / choice->tp, channels = 2 * local + values / choice->tp;
    writer conv = *w;
    conv.stream.dtype = shape->dtype;
    if (rows > 0) {
        add_conv(&conv, "conv.q", 0, keys, channels, rows);
        add_conv(&conv, "conv.k", local, keys, channels, rows);
        add_conv(&conv, "conv.v", 2 * local, values, channels, rows);
    }
    uint64_t matrix = (w->spec->cell - w->spec->data) / (shape->v_heads / choice->tp);
    writer ssm = *w;
    if (choice->platform & MODEL_ANY_CPU) /* (key, value) there, (value, key) on GPUs */
        ssm.stream.format = "key_value";
    kvferry_axis axis = share(w, "head", shape->v_heads, matrix);
    add(&ssm, "ssm", w->spec->data, matrix, &axis, 1);
}

static void add_ring(const writer *w)
{
    kvferry_axis axes[] = {whole("part", 2, w->region->head_stride),
                           whole("slot", w->spec->states, w->region->state_stride)};
    add(w, "tail", 0, w->spec->cell, axes, 2);
}

/* --- a layer ------------------------------------------------------------------------------- */

static void add_layer(const writer *w)
{
    switch (w->spec->content) {
    case MODEL_KV:
        if ((w->cache->choice.platform & MODEL_ANY_CPU) == 0)
            add_kv(w);
        else if (w->cache->choice.platform == MODEL_CPU_AMX && w->cache->shape.head_dim % 32 == 0)
            add_kv_tiles(w);
        else
            add_kv_vector(w);
        break;
    case MODEL_LATENT: add_states(w, "latent", "latent.scale"); break;
    case MODEL_INDEX: add_states(w, "index", "index.scale"); break;
    case MODEL_COMPRESSOR: add_states(w, "compressor", NULL); break;
    case MODEL_STATE: add_state(w); break;
    case MODEL_RING: add_ring(w); break;
    }
}

static void add_region(model_cache *cache, const model_region *region, kvferry_layout_builder *builder)
{
    const model_spec *spec = &cache->specs[region->spec];
    bool paged = spec->class == MODEL_FULL || spec->class == MODEL_SLIDING;
    writer w = {.cache = cache, .builder = builder, .region = region, .spec = spec};
    w.page_tokens = paged ? spec->block / region->ratio : 0;
    w.page_states = spec->states / region->ratio;
    for (uint32_t i = 0; i < region->count; i++) {
        const model_layer *layer = &cache->layers[region->layers[i]];
        w.stream = (kvferry_stream){
            .layer = layer->name, .dtype = spec->dtype, .format = spec->format,
            .group = region->group, .segment = 0,
            .offset = region->offset + i * region->layer_stride,
            .pages = cache->choice.blocks * region->ratio,
            .page_stride = region->block_stride / region->ratio, .page_tokens = w.page_tokens,
            .tokens_per_state = spec->tokens_per_state,
            .policy = layer->draft ? KVFERRY_POLICY_OPTIONAL : KVFERRY_POLICY_REQUIRED};
        add_layer(&w);
    }
}

static void add_groups(const model_cache *cache, kvferry_layout_builder *builder)
{
    for (uint32_t i = 0; i < cache->group_count; i++) {
        const model_spec *spec = &cache->specs[cache->groups[i].spec];
        kvferry_group group = {.name = cache->groups[i].name, .kind = KVFERRY_GROUP_PAGED};
        if (spec->class == MODEL_RECURRENT)
            group.kind = KVFERRY_GROUP_STATE;
        else if (spec->class == MODEL_CIRCULAR)
            group.kind = KVFERRY_GROUP_RING;
        else
            group.block_tokens = spec->block;
        /* vLLM's window counts the token itself. */
        group.window = spec->window > 0 ? spec->window - 1 : 0;
        kvferry_layout_builder_group(builder, &group);
    }
}

void model_streams_add(model_cache *cache, kvferry_layout_builder *builder)
{
    kvferry_layout_builder_segment(builder, "kv", cache->bytes);
    add_groups(cache, builder);
    for (uint32_t i = 0; i < cache->region_count; i++)
        add_region(cache, &cache->regions[i], builder);
}
