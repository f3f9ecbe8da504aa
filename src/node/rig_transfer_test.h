/* SPDX-License-Identifier: Apache-2.0 */
/* Links that break, requests of the rig's nodes, and the bytes that they are about. */
#ifndef KVFERRY_NODE_RIG_TRANSFER_TEST_H
#define KVFERRY_NODE_RIG_TRANSFER_TEST_H

#include "node/rig_test.h"

/* Breaks all connections of a node, which lives on. */
static inline void rig_break(rig *r, size_t index)
{
    for (size_t i = 0; i < r->link_count; i++) {
        rig_link *link = &r->links[i];
        if (!link->open || (link->from != index && link->to != index))
            continue;
        link->open = false;
        rig_post(r, (rig_letter){.to = link->from, .from = link->to, .life = link->from_life,
                                 .link = link->out, .lost = true});
        rig_post(r, (rig_letter){.to = link->to, .from = link->from, .life = link->to_life,
                                 .link = link->in, .lost = true});
    }
}

/* Blocks first, first + 1, ... of the paged group, and block `first` of the state group, for `tokens` tokens. */
typedef struct rig_tables {
    uint32_t blocks[RIG_BLOCKS];
    kvferry_block_table tables[2];
    size_t count;
} rig_tables;

static inline void rig_fill_tables(rig_tables *t, uint32_t first, uint64_t tokens, bool state)
{
    size_t count = (size_t)base_ceil_div(tokens, RIG_TOKENS);
    for (size_t i = 0; i < count; i++)
        t->blocks[i] = first + (uint32_t)i;
    t->tables[0] = (kvferry_block_table){"attn", 0, t->blocks, count};
    t->tables[1] = (kvferry_block_table){"ssm", 0, t->blocks, 1};
    t->count = state ? 2 : 1;
}

static inline kvferry_status rig_offer(rig *r, size_t index, const char *id, uint32_t first, uint64_t tokens,
                                       kvferry_readiness ready)
{
    rig_tables t;
    rig_fill_tables(&t, first, tokens, r->nodes[index].shape.state);
    kvferry_report_clear(r->report);
    kvferry_status status = core_offer(
        r->nodes[index].core, &(kvferry_offer){sizeof(kvferry_offer), id, tokens, t.tables, t.count, ready, r},
        r->now, r->report);
    rig_run(r);
    return status;
}

/* `to`: a node of the engine to ask. */
static inline kvferry_status rig_ask(rig *r, size_t index, const char *id, size_t to, uint32_t first,
                                     uint64_t tokens)
{
    rig_tables t;
    rig_fill_tables(&t, first, tokens, r->nodes[index].shape.state);
    kvferry_report_clear(r->report);
    const kvferry_ask ask = {.size = sizeof(kvferry_ask), .transfer_id = id,
                             .engine_id = r->nodes[to].shape.engine_id, .where = r->nodes[to].address,
                             .tokens = tokens, .tables = t.tables, .table_count = tokens ? t.count : 0,
                             .context = r};
    kvferry_status status = core_ask(r->nodes[index].core, &ask, r->now, r->report);
    rig_run(r);
    return status;
}

static inline bool rig_reports(rig *r, const char *code)
{
    for (size_t i = 0; i < kvferry_report_count(r->report); i++)
        if (strcmp(kvferry_report_get(r->report, i)->code, code) == 0)
            return true;
    return false;
}

/* The first byte of a cell of a paged layer, and of a state, in the node's memory. */
static inline uint8_t *rig_cell(rig *r, size_t index, uint32_t layer, uint32_t block, uint32_t token, uint32_t head)
{
    rig_node *node = &r->nodes[index];
    uint32_t heads = RIG_HEADS / node->shape.tps;
    uint64_t page = (uint64_t)heads * RIG_TOKENS * RIG_CELL;
    return node->memory + layer * RIG_BLOCKS * page + block * page + head * RIG_TOKENS * RIG_CELL +
           token * RIG_CELL;
}

static inline uint8_t rig_value(uint8_t salt, uint32_t layer, uint64_t token, uint32_t head)
{
    return (uint8_t)(salt + 37 * layer + 5 * token + 91 * head + 1);
}

/* Writes or checks the paged cells of a request; how many are not right. */
static inline size_t rig_cells(rig *r, size_t index, uint8_t salt, uint32_t first, uint64_t tokens, bool check)
{
    const rig_shape *shape = &r->nodes[index].shape;
    uint32_t heads = RIG_HEADS / shape->tps, layers = RIG_LAYERS / shape->pps;
    size_t wrong = 0;
    for (uint32_t l = 0; l < layers; l++)
        for (uint64_t t = 0; t < tokens; t++)
            for (uint32_t h = 0; h < heads; h++) {
                uint8_t *cell = rig_cell(r, index, l, first + (uint32_t)t / RIG_TOKENS, t % RIG_TOKENS, h);
                uint8_t value = rig_value(salt, shape->pp * layers + l, t, shape->tp * heads + h);
                if (check)
                    wrong += *cell != value;
                else
                    memset(cell, value, RIG_CELL);
            }
    return wrong;
}

/* The same on both sides; at a node whose memory is said to be damaged another one. */
static inline void *rig_sum_begin(void *context)
{
    rig_node *node = context;
    node->sums++;
    return calloc(1, sizeof(uint64_t));
}

static inline kvferry_status rig_sum_add(void *context, void *sum, const kvferry_plan *plan, size_t source,
                                         size_t piece, kvferry_side side, const kvferry_request *request)
{
    rig_node *node = context;
    (void)plan, (void)side;
    node->sum_slices++;
    *(uint64_t *)sum += source * 1000 + piece + request->target_tokens + 500 * request->whole_blocks + node->damaged;
    return KVFERRY_OK;
}

static inline uint64_t rig_sum_end(void *context, void *sum)
{
    rig_node *node = context;
    uint64_t value = *(uint64_t *)sum;
    node->sums--;
    free(sum);
    return value;
}

static const core_checksums rig_checksums = {rig_sum_begin, rig_sum_add, rig_sum_end};

/* --- how they end -------------------------------------------------------------------------------------------- */

static inline bool rig_has(const rig *r, size_t index, kvferry_event_kind kind, const char *id)
{
    for (size_t i = 0; i < r->nodes[index].event_count; i++)
        if (r->nodes[index].events[i]->kind == kind &&
            strcmp(r->nodes[index].events[i]->transfer_id, id) == 0)
            return true;
    return false;
}

/* Where a write was cut, its last bytes are waited for. */
static inline void rig_expect_released(rig *r, size_t index, const char *id, kvferry_outcome outcome,
                                       const char *code)
{
    rig_run(r);
    if (!rig_has(r, index, KVFERRY_EVENT_RELEASED, id))
        rig_wait(r, RIG_LINGER_MS);
    rig_expect(r, index, KVFERRY_EVENT_RELEASED, id, outcome, code);
}

#endif
