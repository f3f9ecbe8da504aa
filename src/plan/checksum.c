/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/checksum.h"

#include <string.h>

#include <xxhash.h>

#include "layout/tree.h"
#include "plan/expand.h"

plan_sum *plan_sum_create(void)
{
    plan_sum *sum = XXH3_createState();
    if (sum)
        XXH3_64bits_reset(sum);
    return sum;
}

void plan_sum_free(plan_sum *sum)
{
    XXH3_freeState(sum);
}

uint64_t plan_sum_value(const plan_sum *sum)
{
    return XXH3_64bits_digest(sum);
}

/* --- the walk --------------------------------------------------------------------------------- */

enum { CHECKSUM_DIMS = LAYOUT_MAX_AXES };

typedef struct checksum_dim {
    uint64_t count, stride;
} checksum_dim;

/* The piece in one worker's memory. */
typedef struct checksum_walk {
    const unsigned char *first; /* page 0's first state's first cell of the piece */
    uint64_t page_stride, pages_per_block;
    uint64_t state_stride, states_per_page, tokens_per_state;
    checksum_dim dims[CHECKSUM_DIMS]; /* inside a state, outermost first */
    uint32_t dim_count;
    uint64_t bytes; /* that lie together under the dims */
    plan_sum *sum;
} checksum_walk;

static void add_dims(checksum_walk *walk, uint32_t dim, const unsigned char *at)
{
    if (dim == walk->dim_count) {
        XXH3_64bits_update(walk->sum, at, walk->bytes);
        return;
    }
    for (uint64_t i = 0; i < walk->dims[dim].count; i++)
        add_dims(walk, dim + 1, at + i * walk->dims[dim].stride);
}

/* `count` states of one page from `state` on. */
static void add_states(checksum_walk *walk, uint64_t page, uint64_t state, uint64_t count)
{
    const unsigned char *at = walk->first + page * walk->page_stride + state * walk->state_stride;
    if (walk->dim_count == 0 && walk->state_stride == walk->bytes) {
        XXH3_64bits_update(walk->sum, at, walk->bytes * count);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        add_dims(walk, 0, at + i * walk->state_stride);
}

/* States [state, end) of one block. */
static void add_block(checksum_walk *walk, uint64_t block, uint64_t state, uint64_t end)
{
    while (state < end) {
        uint64_t inside = state % walk->states_per_page;
        uint64_t count = base_min(walk->states_per_page - inside, end - state);
        add_states(walk, block * walk->pages_per_block + state / walk->states_per_page, inside,
                   count);
        state += count;
    }
}

/* --- the piece in memory ---------------------------------------------------------------------- */

static bool prepare(checksum_walk *walk, const kvferry_layout *own, const kvferry_stream *stream,
                    const kvferry_piece *piece, const uint32_t *axes, const void *memory)
{
    walk->first = (const unsigned char *)memory + stream->offset;
    walk->page_stride = stream->page_stride;
    walk->pages_per_block = layout_stream_ratio(own, stream);
    walk->tokens_per_state = stream->tokens_per_state;
    walk->states_per_page =
        stream->page_tokens ? stream->page_tokens / stream->tokens_per_state : 1;
    walk->bytes = stream->cell_bytes;
    if (piece->range_count != stream->axis_count)
        return false;
    for (uint32_t i = 0; i < piece->range_count; i++) {
        uint32_t index = axes ? axes[i] : i;
        const kvferry_axis *axis = &stream->axes[index];
        const kvferry_range *range = &piece->ranges[i];
        if (stream->page_tokens && layout_is_token_axis(axis)) {
            walk->state_stride = axis->stride;
            continue;
        }
        if (range->start < axis->start || range->extent > axis->extent ||
            range->start - axis->start > axis->extent - range->extent ||
            walk->dim_count == CHECKSUM_DIMS)
            return false;
        walk->first += (range->start - axis->start) * axis->stride;
        if (range->extent > 1)
            walk->dims[walk->dim_count++] = (checksum_dim){range->extent, axis->stride};
    }
    while (walk->dim_count && walk->dims[walk->dim_count - 1].stride == walk->bytes)
        walk->bytes *= walk->dims[--walk->dim_count].count;
    return true;
}

/* --- the request ------------------------------------------------------------------------------ */

/* Where the own side keeps the tokens, and which of them the target wants. */
typedef struct checksum_tables {
    const plan_group *target, *own;
    const kvferry_block_table *to, *from; /* the target's, and the own side's */
} checksum_tables;

/* The own block of a token; false if there is none. */
static bool block_at(const checksum_tables *tables, uint64_t token, uint64_t *block,
                     uint64_t *inside)
{
    if (token < tables->from->first_token)
        return false;
    uint64_t index = (token - tables->from->first_token) / tables->own->block_tokens;
    *inside = (token - tables->from->first_token) % tables->own->block_tokens;
    if (index >= tables->from->block_count ||
        tables->from->blocks[index] == tables->own->null_block)
        return false;
    *block = tables->from->blocks[index];
    return *block < tables->own->blocks;
}

static kvferry_status add_tokens(checksum_walk *walk, const checksum_tables *tables, uint64_t start,
                                 uint64_t end)
{
    const uint64_t per = walk->tokens_per_state;
    for (uint64_t token = start - start % per; token < end;) {
        uint64_t offset = token - tables->to->first_token, block, inside;
        uint64_t index = offset / tables->target->block_tokens;
        uint64_t next =
            base_min(end, tables->to->first_token + (index + 1) * tables->target->block_tokens);
        if (tables->to->blocks[index] == tables->target->null_block) {
            token = next;
            continue;
        }
        if (!block_at(tables, token, &block, &inside))
            return KVFERRY_REFUSED;
        next = base_min(next, token - inside + tables->own->block_tokens);
        add_block(walk, block, inside / per, base_ceil_div(inside + (next - token), per));
        token = next;
    }
    return KVFERRY_OK;
}

static kvferry_status add_wanted(checksum_walk *walk, const expand_job *job,
                                 const checksum_tables *tables)
{
    uint64_t start, end;
    if (tables->target->kind == KVFERRY_GROUP_PAGED)
        return expand_wanted(job, tables->target, tables->to, &start, &end)
                   ? add_tokens(walk, tables, start, end)
                   : KVFERRY_OK;
    uint64_t block = expand_live_block(tables->own, tables->from);
    if (block >= tables->own->blocks)
        return KVFERRY_REFUSED;
    add_block(walk, block, 0, 1);
    return KVFERRY_OK;
}

kvferry_status plan_checksum(const kvferry_plan *plan, size_t source, size_t piece, bool of_source,
                             const kvferry_layout *own, const void *memory,
                             const kvferry_request *request, plan_sum *sum)
{
    const kvferry_piece *what = kvferry_plan_piece(plan, source, piece);
    if (!what || !own || !memory || !request || !sum)
        return KVFERRY_INVALID;
    const plan_source *from = &plan->sources[source];
    const plan_pair *pair = &from->pairs[piece];
    const kvferry_stream *stream =
        kvferry_layout_stream(own, of_source ? what->source_stream : what->target_stream);
    checksum_walk walk = {.sum = sum};
    if (!stream || !prepare(&walk, own, stream, what, of_source ? pair->axes : NULL, memory))
        return KVFERRY_INVALID;
    const expand_job job = {plan, from, request, NULL};
    checksum_tables tables = {.target = &plan->groups[pair->target_group]};
    tables.own = of_source ? &from->groups[pair->source_group] : tables.target;
    tables.to = expand_table(request->target, request->target_count, tables.target->name);
    tables.from = !of_source
                      ? tables.to
                      : expand_table(request->source, request->source_count, tables.own->name);
    if (tables.to && !tables.from)
        return KVFERRY_REFUSED;
    return tables.to ? add_wanted(&walk, &job, &tables) : KVFERRY_OK;
}
