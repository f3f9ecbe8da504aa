/* SPDX-License-Identifier: Apache-2.0 */
/* Every cell of a request's blocks, one after another, from the format's definition. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

typedef struct visiting {
    const sim_setup *setup;
    const sim_engine *engine;
    const sim_tables *tables;
    sim_cell_visit visit;
    void *context;
    uint64_t block_end; /* the token behind the block's last */
    sim_cell cell;
} visiting;

/* All axes from `axis` on. */
static bool visit_axes(visiting *state, uint32_t axis, uint64_t first, uint64_t offset)
{
    const kvferry_stream *stream = state->cell.stream;
    if (axis == stream->axis_count) {
        state->cell.offset = offset;
        return state->visit(state->context, &state->cell);
    }
    if (axis >= SIM_AXES)
        abort(); /* no engine of the simulator has such a stream */
    const kvferry_axis *along = &stream->axes[axis];
    bool tokens = strcmp(along->name, "token") == 0;
    for (uint64_t i = 0; i < along->extent; i++) {
        state->cell.coordinates[axis] = tokens ? 0 : along->start + i;
        if (tokens) {
            uint64_t all = state->tables->tokens;
            uint64_t window = strcmp(stream->name, "latent") == 0 ? state->setup->shape.window : 0;
            state->cell.token = first + i;
            bool alone = window == 0 || first + i + window >= all;
            bool whole = window == 0 || state->block_end - 1 + window >= all;
            state->cell.wanted = first + i < all && (state->tables->whole_blocks ? whole : alone);
            state->cell.before = first + i < all && whole && !alone;
        }
        if (!visit_axes(state, axis + 1, first, offset + i * along->stride))
            return false;
    }
    return true;
}

static bool visit_stream(visiting *state, sim_pool kind)
{
    const kvferry_stream *stream = state->cell.stream;
    const sim_table *table = &state->tables->of[kind];
    uint64_t block_tokens = state->engine->block_tokens[kind];
    uint64_t ratio = block_tokens ? block_tokens / stream->page_tokens : 1;
    for (uint32_t i = 0; i < table->count; i++) {
        uint64_t block = table->blocks[i];
        if (state->engine->null_block && block == 0)
            continue;
        state->block_end = table->first_token + (i + 1) * block_tokens;
        for (uint64_t page = 0; page < ratio; page++) {
            uint64_t first = table->first_token + i * block_tokens + page * stream->page_tokens;
            uint64_t offset = stream->offset + (block * ratio + page) * stream->page_stride;
            state->cell.token = 0;
            state->cell.wanted = true;
            state->cell.before = false;
            if (!visit_axes(state, 0, block_tokens ? first : 0, offset))
                return false;
        }
    }
    return true;
}

void sim_visit(const sim_setup *setup, uint32_t engine, const kvferry_layout *layout,
               const sim_tables *tables, sim_cell_visit visit, void *context)
{
    visiting state = {.setup = setup, .engine = &setup->engines[engine], .tables = tables,
                      .visit = visit, .context = context};
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        state.cell.stream = kvferry_layout_stream(layout, i);
        state.cell.stream_index = i;
        sim_pool kind = sim_kind_of_group(kvferry_layout_group(layout, state.cell.stream->group)->name);
        if (state.tables->of[kind].listed && !visit_stream(&state, kind))
            return;
    }
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

/* Eight bytes of which a cell holds the first ones. */
uint64_t sim_cell_value(uint64_t seed, const sim_cell *cell)
{
    uint64_t hash = hash_text(hash_text(seed, cell->stream->layer), cell->stream->name);
    for (uint32_t i = 0; i < cell->stream->axis_count; i++)
        hash = (hash ^ cell->coordinates[i]) * UINT64_C(0x100000001b3);
    return sim_mix(hash ^ (cell->token << 40));
}
