/* SPDX-License-Identifier: Apache-2.0 */
/* Which workers there are and how big their pools. */
#include "demo.h"

#include <stdlib.h>

/* Two sizes tell the bytes of one block: a pool's bytes grow by the same amount with each. */
enum { PROBE_FEW = 16, PROBE_MANY = 32 };

#define BLOCKS_LEAST 16
#define BLOCKS_MOST 16384

void demo_model_options(const demo_config *config, demo_role role, size_t rank,
                        kvferry_model_options *options)
{
    const tool_topology *topology = &config->topology[role];
    *options = (kvferry_model_options){
        .size = sizeof *options,
        .tp_size = topology->tp,
        .pp_size = topology->pp,
        .tp_rank = (uint32_t)(rank % topology->tp),
        .pp_rank = (uint32_t)(rank / topology->tp),
        .engine_id = demo_role_name(role),
        .blocks = config->blocks[role],
        .kernel_block_size = config->kernel_block_size,
    };
}

static uint64_t side_bytes(const tool_side *side)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < side->count; i++)
        for (uint32_t s = 0; s < kvferry_layout_segment_count(side->layouts[i]); s++)
            bytes += kvferry_layout_segment(side->layouts[i], s)->bytes;
    return bytes;
}

/* The side's documents with `blocks` blocks. */
static int build_side(demo_config *config, demo_role role, uint64_t blocks, tool_side *side, tool_reasons *reasons)
{
    kvferry_model_options options;
    config->blocks[role] = blocks;
    demo_model_options(config, role, 0, &options);
    return tool_side_from_model(side, &config->model, &config->topology[role], &options, demo_role_name(role), reasons);
}

static int probe(demo_config *config, demo_role role, uint64_t blocks, uint64_t *bytes, tool_reasons *reasons)
{
    tool_side side = {0};
    int status = build_side(config, role, blocks, &side, reasons);
    *bytes = side_bytes(&side);
    tool_side_free(&side);
    return status;
}

/* A side's bytes: `fixed`, and `block` for each block. */
typedef struct cost {
    uint64_t fixed, block;
} cost;

static int take_cost(demo_config *config, demo_role role, cost *of, tool_reasons *reasons)
{
    uint64_t few = 0, many = 0;
    int status = probe(config, role, PROBE_FEW, &few, reasons);
    if (status == TOOL_GO_ON)
        status = probe(config, role, PROBE_MANY, &many, reasons);
    of->block = many > few ? (many - few) / (PROBE_MANY - PROBE_FEW) : 1;
    of->fixed = few > of->block * PROBE_FEW ? few - of->block * PROBE_FEW : 0;
    return status;
}

/* Half of the memory is for each side. */
static int check_memory(const demo_config *config, const cost costs[DEMO_ROLES])
{
    uint64_t least = 0;
    for (int role = 0; role < DEMO_ROLES; role++) {
        uint64_t side = costs[role].fixed + costs[role].block * BLOCKS_LEAST;
        least = side > least ? side : least;
    }
    least *= DEMO_ROLES;
    if (least <= config->memory)
        return TOOL_GO_ON;
    const uint64_t mib = UINT64_C(1) << 20;
    char *expected = tool_text("at least %lluM, half for each side (%d blocks a worker)",
                               (unsigned long long)((least + mib - 1) / mib), BLOCKS_LEAST);
    char *found = tool_text("%s (%llu bytes)", tool_size(config->memory), (unsigned long long)config->memory);
    int status = tool_misuse("--memory", expected, found);
    free(found);
    free(expected);
    return status;
}

static int size_side(demo_config *config, demo_role role, const cost *of, tool_side *side, tool_reasons *reasons)
{
    uint64_t blocks = (config->memory / DEMO_ROLES - of->fixed) / of->block;
    return build_side(config, role, blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST, side, reasons);
}

int demo_setup(demo_config *config, tool_side sides[DEMO_ROLES])
{
    cost costs[DEMO_ROLES];
    tool_reasons reasons = {0};
    int status = TOOL_GO_ON;
    demo_memory_mind(config);
    for (int role = 0; role < DEMO_ROLES && status == TOOL_GO_ON; role++)
        status = take_cost(config, (demo_role)role, &costs[role], &reasons);
    if (status == TOOL_GO_ON && !tool_reasons_count(&reasons))
        status = check_memory(config, costs);
    for (int role = 0; role < DEMO_ROLES && status == TOOL_GO_ON && !tool_reasons_count(&reasons); role++)
        status = size_side(config, (demo_role)role, &costs[role], &sides[role], &reasons);
    if (status == TOOL_GO_ON && tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "the model cannot be laid out", stdout);
    tool_reasons_free(&reasons);
    return status;
}
