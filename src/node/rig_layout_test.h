/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of the rig's nodes: RIG_LAYERS layers of RIG_HEADS heads, cut by tensor and pipeline ranks. */
#ifndef KVFERRY_NODE_RIG_LAYOUT_TEST_H
#define KVFERRY_NODE_RIG_LAYOUT_TEST_H

#include <stdio.h>

#include <kvferry/layout.h>

#include "test.h"

#ifndef RIG_CELL_BYTES /* more, where a transfer has to take its time */
#define RIG_CELL_BYTES 8
#endif

#ifndef RIG_BLOCK_COUNT /* more, where many transfers are to be there at once */
#define RIG_BLOCK_COUNT 32
#endif

enum {
    RIG_BLOCKS = RIG_BLOCK_COUNT, /* of each group */
    RIG_TOKENS = 4,  /* a block */
    RIG_LAYERS = 4,
    RIG_HEADS = 4,
    RIG_CELL = RIG_CELL_BYTES, /* bytes of a head of a token */
    RIG_STATE_CELL = 16
};

typedef struct rig_shape { /* of a worker's layout */
    const char *engine_id;
    uint32_t tp, tps, pp, pps;
    const char *dtype;  /* NULL: bfloat16 */
    const char *model;  /* NULL: test/model */
    uint32_t heads;     /* of all ranks; 0: RIG_HEADS. Others are for what is refused: rig_cell does not know them */
    bool long_cells;    /* of twice the bytes */
    bool no_streams;
    bool state;         /* a state group beside the paged one */
    uint64_t window;    /* of the paged group; 0: none */
    uint32_t pages;     /* of RIG_TOKENS tokens, a block of it; 0: one */
} rig_shape;

static inline kvferry_layout *rig_layout(const rig_shape *shape)
{
    const kvferry_worker worker = {shape->tp, shape->tps, shape->pp, shape->pps, 0, 1};
    const kvferry_identity identity = {shape->model ? shape->model : "test/model", "", ""};
    kvferry_layout_builder *builder = NULL;
    assert_int_equal(kvferry_layout_builder_create(shape->engine_id, &worker, &identity, &builder),
                     KVFERRY_OK);
    uint32_t all_heads = shape->heads ? shape->heads : RIG_HEADS;
    uint32_t heads = all_heads / shape->tps, layers = RIG_LAYERS / shape->pps;
    uint32_t cell = shape->long_cells ? 2 * RIG_CELL : RIG_CELL;
    uint64_t page = (uint64_t)heads * RIG_TOKENS * cell, state = (uint64_t)heads * RIG_STATE_CELL;
    uint64_t bytes = RIG_BLOCKS * layers * (page + (shape->state ? state : 0));
    if (!shape->no_streams) {
        uint32_t segment = kvferry_layout_builder_segment(builder, "kv", bytes);
        uint32_t attn = kvferry_layout_builder_group(
            builder, &(kvferry_group){"attn", KVFERRY_GROUP_PAGED, RIG_TOKENS * (shape->pages ? shape->pages : 1),
                                      shape->window, 0});
        uint32_t ssm = shape->state ? kvferry_layout_builder_group(
                                          builder, &(kvferry_group){"ssm", KVFERRY_GROUP_STATE, 0, 0, 0})
                                    : 0;
        for (uint32_t i = 0; i < layers; i++) {
            char layer[16];
            snprintf(layer, sizeof(layer), "l%u", shape->pp * layers + i);
            const kvferry_axis axes[] = {
                {"kv_head", (uint64_t)shape->tp * heads, heads, all_heads, RIG_TOKENS * cell},
                {"token", 0, RIG_TOKENS, RIG_TOKENS, cell}};
            kvferry_layout_builder_stream(
                builder, &(kvferry_stream){.layer = layer, .name = "k",
                                           .dtype = shape->dtype ? shape->dtype : "bfloat16",
                                           .group = attn, .segment = segment,
                                           .offset = i * RIG_BLOCKS * page, .pages = RIG_BLOCKS,
                                           .page_stride = page, .page_tokens = RIG_TOKENS,
                                           .cell_bytes = cell, .axes = axes, .axis_count = 2});
            if (!shape->state)
                continue;
            const kvferry_axis head = {"kv_head", (uint64_t)shape->tp * heads, heads, all_heads,
                                       RIG_STATE_CELL};
            kvferry_layout_builder_stream(
                builder, &(kvferry_stream){.layer = layer, .name = "ssm", .dtype = "float32",
                                           .group = ssm, .segment = segment,
                                           .offset = layers * RIG_BLOCKS * page + i * RIG_BLOCKS * state,
                                           .pages = RIG_BLOCKS, .page_stride = state,
                                           .cell_bytes = RIG_STATE_CELL, .axes = &head,
                                           .axis_count = 1});
        }
    }
    kvferry_layout *layout = NULL;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status = kvferry_layout_builder_finish(builder, &layout, report);
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        fprintf(stderr, "  %s\n", kvferry_report_get(report, i)->message);
    assert_int_equal(status, KVFERRY_OK);
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
    return layout;
}

#endif
