/* SPDX-License-Identifier: Apache-2.0 */
/* Which workers there are and how big their pools. */
#include "demo.h"

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
static int build_side(demo_config *config, demo_role role, uint64_t blocks, tool_side *side)
{
    kvferry_model_options options;
    config->blocks[role] = blocks;
    demo_model_options(config, role, 0, &options);
    tool_reasons reasons = {0};
    int status = tool_side_from_model(side, &config->model, &config->topology[role], &options, NULL,
                                      &reasons);
    if (status == TOOL_GO_ON && tool_reasons_count(&reasons) > 0)
        return tool_refuse(&reasons, "the model cannot be laid out", stdout);
    tool_reasons_free(&reasons);
    return status;
}

static int probe(demo_config *config, demo_role role, uint64_t blocks, uint64_t *bytes)
{
    tool_side side = {0};
    int status = build_side(config, role, blocks, &side);
    *bytes = side_bytes(&side);
    tool_side_free(&side);
    return status;
}

/* Half of the memory for each side. */
static int size_side(demo_config *config, demo_role role, tool_side *side)
{
    uint64_t few, many, budget = config->memory / DEMO_ROLES;
    int status = probe(config, role, PROBE_FEW, &few);
    if (status == TOOL_GO_ON)
        status = probe(config, role, PROBE_MANY, &many);
    if (status != TOOL_GO_ON)
        return status;
    uint64_t block = many > few ? (many - few) / (PROBE_MANY - PROBE_FEW) : 1;
    uint64_t fixed = few > block * PROBE_FEW ? few - block * PROBE_FEW : 0;
    uint64_t blocks = budget > fixed ? (budget - fixed) / block : 0;
    if (blocks < BLOCKS_LEAST)
        return tool_misuse("--memory", tool_size((fixed + block * BLOCKS_LEAST) * DEMO_ROLES),
                           tool_size(config->memory));
    return build_side(config, role, blocks < BLOCKS_MOST ? blocks : BLOCKS_MOST, side);
}

int demo_setup(demo_config *config, tool_side sides[DEMO_ROLES])
{
    int status = TOOL_GO_ON;
    demo_memory_mind(config);
    for (int role = 0; role < DEMO_ROLES && status == TOOL_GO_ON; role++)
        status = size_side(config, (demo_role)role, &sides[role]);
    return status;
}
