/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums for `verify`: a sum over the cells of one piece that the request wants. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

typedef struct summing {
    const sim_world *world;
    const sim_worker *worker;
    const kvferry_piece *piece;
    uint32_t stream;          /* in the worker's own document */
    const sim_table *target;  /* what is wanted */
    uint64_t target_tokens, block_tokens;
    bool null_block, whole_blocks;
    uint64_t sum;
} summing;

static bool is_wanted(const summing *sum, uint64_t token)
{
    uint64_t window = strcmp(kvferry_layout_stream(sum->worker->cache.layout, sum->stream)->name, "latent") == 0
                          ? sum->world->setup->shape.window
                          : 0;
    if (sum->block_tokens == 0)
        return true;
    if (token >= sum->target_tokens || token < sum->target->first_token)
        return false;
    uint64_t block = (token - sum->target->first_token) / sum->block_tokens;
    uint64_t last = sum->target->first_token + (block + 1) * sum->block_tokens - 1;
    if (window && (sum->whole_blocks ? last : token) + window < sum->target_tokens)
        return false;
    return block < sum->target->count && !(sum->null_block && sum->target->blocks[block] == 0);
}

static bool add_cell(void *context, const sim_cell *cell)
{
    summing *sum = context;
    uint64_t value = 0;
    if (cell->stream_index != sum->stream || !is_wanted(sum, cell->token))
        return true;
    for (uint32_t i = 0; i < cell->stream->axis_count; i++) {
        const kvferry_range *range = &sum->piece->ranges[i];
        if (strcmp(cell->stream->axes[i].name, "token") != 0 &&
            (cell->coordinates[i] < range->start || cell->coordinates[i] >= range->start + range->extent))
            return true;
    }
    memcpy(&value, sum->worker->segments[cell->stream->segment] + cell->offset, cell->stream->cell_bytes);
    sum->sum += sim_mix(value ^ sim_cell_value(7, cell));
    return true;
}

static void read_tables(const kvferry_block_table *tables, size_t count, sim_tables *read)
{
    memset(read, 0, sizeof *read);
    for (size_t i = 0; i < count; i++) {
        sim_pool kind = sim_kind_of_group(tables[i].group);
        if (kind == SIM_POOLS || tables[i].block_count > SIM_TABLE)
            continue;
        read->of[kind].listed = true;
        read->of[kind].first_token = tables[i].first_token;
        read->of[kind].count = (uint32_t)tables[i].block_count;
        memcpy(read->of[kind].blocks, tables[i].blocks, tables[i].block_count * sizeof *tables[i].blocks);
    }
}

static void *begin(void *context)
{
    (void)context;
    return calloc(1, sizeof(uint64_t));
}

static kvferry_status add(void *context, void *value, const kvferry_plan *plan, size_t source, size_t piece,
                          kvferry_side side, const kvferry_request *request)
{
    sim_worker *worker = context;
    sim_world *world = worker->world;
    unsigned number;
    summing sum = {.world = world, .worker = worker, .piece = kvferry_plan_piece(plan, source, piece)};
    if (!sum.piece || sscanf(request->transfer_id, "r%u", &number) != 1 || number >= world->request_count) {
        sim_fail(world, "checksum", "worker %" PRIu32 ": no piece %zu of source %zu", worker->slot, piece, source);
        return KVFERRY_INTERNAL;
    }
    sim_tables own, wanted;
    sum.stream = side == KVFERRY_SIDE_PREFILL ? sum.piece->source_stream : sum.piece->target_stream;
    const kvferry_stream *stream = kvferry_layout_stream(worker->cache.layout, sum.stream);
    sim_pool kind = sim_kind_of_group(kvferry_layout_group(worker->cache.layout, stream->group)->name);
    const sim_engine *target = &world->setup->engines[world->requests[number].target];
    read_tables(request->target, request->target_count, &wanted);
    read_tables(side == KVFERRY_SIDE_PREFILL ? request->source : request->target,
                side == KVFERRY_SIDE_PREFILL ? request->source_count : request->target_count, &own);
    own.tokens = request->target_tokens;
    sum.target = &wanted.of[kind];
    sum.target_tokens = request->target_tokens;
    sum.block_tokens = target->block_tokens[kind];
    sum.null_block = target->null_block;
    sum.whole_blocks = request->whole_blocks;
    if (sum.target->listed)
        sim_visit(world->setup, worker->engine, worker->cache.layout, &own, add_cell, &sum);
    *(uint64_t *)value += sum.sum;
    return KVFERRY_OK;
}

static uint64_t end(void *context, void *value)
{
    uint64_t sum = *(uint64_t *)value;
    (void)context;
    free(value);
    return sum;
}

const core_checksums sim_checksums = {begin, add, end};
