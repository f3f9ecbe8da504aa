/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of a set-up: each pool of blocks is one area of rows, so that a byte's block is a division. */
#include <string.h>

#include "world.h"

static const char *const kind_names[SIM_POOLS] = {"attn", "state", "ring", "window"};

sim_pool sim_pool_of(const sim_engine *engine, sim_pool kind)
{
    return kind == SIM_STATE && engine->shared ? SIM_ATTN : kind;
}

void sim_group_name(uint32_t engine, sim_pool kind, char name[16])
{
    snprintf(name, 16, "%s-%u", kind_names[kind], engine);
}

sim_pool sim_kind_of_group(const char *name)
{
    for (sim_pool kind = 0; kind < SIM_POOLS; kind++)
        if (strncmp(name, kind_names[kind], strlen(kind_names[kind])) == 0)
            return kind;
    return SIM_POOLS;
}

typedef struct making {
    const sim_setup *setup;
    const sim_engine *engine;
    uint32_t number, rank, stage;
    kvferry_layout_builder *builder;
    sim_cache *cache;
    uint32_t groups[SIM_POOLS];
} making;

static kvferry_axis cut(const char *name, uint32_t global, const making *make, uint64_t stride)
{
    uint64_t tp = make->engine->tp, start = make->rank * (uint64_t)global / tp;
    uint64_t end = (make->rank + UINT64_C(1)) * global / tp;
    uint64_t extent = global >= tp ? end - start : 1;
    return (kvferry_axis){name, start, extent, global, stride};
}

static bool is_here(const making *make, sim_pool kind, uint32_t layer)
{
    uint32_t pp = make->engine->pp;
    uint32_t stage = make->engine->first_stage_only ? 0 : layer * pp / make->setup->shape.layers[kind];
    return stage == make->stage;
}

static uint32_t layers_here(const making *make, sim_pool kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < make->setup->shape.layers[kind]; i++)
        count += is_here(make, kind, i);
    return count;
}

static uint64_t page_tokens(const making *make, sim_pool kind)
{
    return make->engine->block_tokens[kind] / (kind == SIM_ATTN ? make->engine->ratio : 1);
}

/* Streams of one layer of a kind, behind one another in a page; returns how many there are. */
static uint32_t streams_of(const making *make, sim_pool kind, kvferry_stream streams[2],
                           kvferry_axis axes[2][2], uint64_t sizes[2])
{
    uint64_t tokens = page_tokens(make, kind);
    uint32_t count = kind == SIM_ATTN || kind == SIM_STATE ? 2 : 1;
    for (uint32_t i = 0; i < count; i++)
        streams[i] = (kvferry_stream){.dtype = "uint8", .tokens_per_state = 1, .axes = axes[i], .axis_count = 2,
                                      .page_tokens = tokens};
    if (kind == SIM_ATTN) {
        kvferry_axis heads = cut("kv_head", make->setup->shape.heads, make, 0);
        for (uint32_t i = 0; i < 2; i++) {
            bool outside = make->engine->tokens_outside;
            streams[i].name = i == 0 ? "k" : "v";
            streams[i].cell_bytes = 4;
            axes[i][0] = heads;
            axes[i][0].stride = outside ? 4 : 4 * tokens;
            axes[i][1] = (kvferry_axis){"token", 0, tokens, tokens, outside ? 4 * heads.extent : 4};
            sizes[i] = 4 * tokens * heads.extent;
        }
    } else if (kind == SIM_STATE) {
        streams[0].name = "conv.q";
        streams[0].cell_bytes = 2;
        axes[0][0] = cut("channel", make->setup->shape.channels, make, 4);
        axes[0][1] = (kvferry_axis){"row", 0, 2, 2, 2};
        sizes[0] = 4 * axes[0][0].extent;
        streams[1].name = "ssm";
        streams[1].cell_bytes = 8;
        streams[1].axis_count = 1;
        axes[1][0] = cut("head", make->setup->shape.heads, make, 8);
        sizes[1] = 8 * axes[1][0].extent;
    } else if (kind == SIM_RING) {
        streams[0].name = "tail";
        streams[0].cell_bytes = 3;
        streams[0].axis_count = 1;
        axes[0][0] = (kvferry_axis){"slot", 0, 4, 4, 3};
        sizes[0] = 12;
    } else {
        streams[0].name = "latent";
        streams[0].cell_bytes = 6;
        streams[0].axis_count = 1;
        axes[0][0] = (kvferry_axis){"token", 0, tokens, tokens, 6};
        sizes[0] = 6 * tokens;
    }
    return count;
}

static uint64_t page_bytes(const making *make, sim_pool kind)
{
    kvferry_stream streams[2];
    kvferry_axis axes[2][2];
    uint64_t sizes[2], sum = 0;
    for (uint32_t i = 0; i < streams_of(make, kind, streams, axes, sizes); i++)
        sum += sizes[i];
    return sum * layers_here(make, kind);
}

static void add_streams(making *make, sim_pool kind)
{
    const sim_area *area = &make->cache->areas[sim_pool_of(make->engine, kind)];
    uint64_t ratio = kind == SIM_ATTN ? make->engine->ratio : 1;
    uint64_t at = area->offset;
    for (uint32_t layer = 0; layer < make->setup->shape.layers[kind]; layer++) {
        kvferry_stream streams[2];
        kvferry_axis axes[2][2];
        uint64_t sizes[2];
        char name[24];
        if (!is_here(make, kind, layer))
            continue;
        snprintf(name, sizeof name, "%s.%u", kind_names[kind], layer);
        uint32_t count = streams_of(make, kind, streams, axes, sizes);
        for (uint32_t i = 0; i < count; at += sizes[i++]) {
            streams[i].layer = name;
            streams[i].group = make->groups[kind];
            streams[i].segment = area->segment;
            streams[i].offset = at;
            streams[i].pages = area->blocks * ratio;
            streams[i].page_stride = area->row / ratio;
            kvferry_layout_builder_stream(make->builder, &streams[i]);
        }
    }
}

static void place_areas(making *make)
{
    for (sim_pool kind = 0; kind < SIM_POOLS; kind++) {
        if (layers_here(make, kind) == 0)
            continue;
        sim_area *area = &make->cache->areas[sim_pool_of(make->engine, kind)];
        uint64_t ratio = kind == SIM_ATTN ? make->engine->ratio : 1;
        uint64_t row = (page_bytes(make, kind) + make->engine->padding) * ratio;
        area->blocks = make->engine->blocks;
        area->segment = kind == SIM_WINDOW;
        area->row = area->row > row ? area->row : row;
        area->row += area->row % make->engine->ratio;
    }
    uint64_t *bytes = make->cache->segment_bytes;
    bytes[0] = 16;
    bytes[1] = 8;
    for (sim_pool pool = 0; pool < SIM_POOLS; pool++) {
        sim_area *area = &make->cache->areas[pool];
        area->offset = bytes[area->segment];
        bytes[area->segment] += area->blocks * area->row;
    }
}

bool sim_cache_make(const sim_setup *setup, uint32_t slot, const char *engine_id, sim_cache *cache,
                    kvferry_report *report)
{
    making make = {.setup = setup, .cache = cache};
    uint32_t rank;
    make.number = sim_engine_of(setup, slot, &rank);
    make.engine = &setup->engines[make.number];
    make.rank = rank % make.engine->tp;
    make.stage = rank / make.engine->tp % make.engine->pp;
    kvferry_worker worker = {make.rank,       make.engine->tp,
                             make.stage,      make.engine->pp,
                             rank / make.engine->tp / make.engine->pp, make.engine->dp};
    kvferry_identity identity = {"simulated", "", ""};
    memset(cache, 0, sizeof *cache);
    if (kvferry_layout_builder_create(engine_id, &worker, &identity, &make.builder) != KVFERRY_OK)
        return false;
    place_areas(&make);
    kvferry_layout_builder_segment(make.builder, "memory", cache->segment_bytes[0]);
    kvferry_layout_builder_segment(make.builder, "window", cache->segment_bytes[1]);
    for (sim_pool kind = 0; kind < SIM_POOLS; kind++) {
        char name[16];
        if (layers_here(&make, kind) == 0)
            continue;
        sim_group_name(make.number, kind, name);
        kvferry_group group = {.name = name,
                               .kind = kind == SIM_STATE  ? KVFERRY_GROUP_STATE
                                       : kind == SIM_RING ? KVFERRY_GROUP_RING
                                                          : KVFERRY_GROUP_PAGED,
                               .block_tokens = make.engine->block_tokens[kind],
                               .window = kind == SIM_WINDOW ? setup->shape.window : 0,
                               .null_block = make.engine->null_block ? 0 : -1};
        make.groups[kind] = kvferry_layout_builder_group(make.builder, &group);
        add_streams(&make, kind);
    }
    kvferry_status status = kvferry_layout_builder_finish(make.builder, &cache->layout, report);
    kvferry_layout_builder_free(make.builder);
    return status == KVFERRY_OK;
}
