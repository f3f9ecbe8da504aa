/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference planner: cell by cell, straight from the definitions of the layout document and of
 * a request, slow and plain. It shares no code with the planner or the oracle.
 */
#include "naive.h"

#include <stdlib.h>
#include <string.h>

static bool is_token(const kvferry_layout *layout, const kvferry_stream *stream, uint32_t axis)
{
    return kvferry_layout_group(layout, stream->group)->kind == KVFERRY_GROUP_PAGED &&
           strcmp(stream->axes[axis].name, "token") == 0;
}

static bool called(const kvferry_stream *stream, const char *layer, bool by_alias)
{
    if (!by_alias)
        return strcmp(stream->layer, layer) == 0;
    for (uint32_t i = 0; i < stream->alias_count; i++)
        if (strcmp(stream->aliases[i], layer) == 0)
            return true;
    return false;
}

/* By layer name, else the target's aliases, else the source's. */
static const kvferry_stream *find(const kvferry_layout *source, const kvferry_stream *target,
                                  int round)
{
    for (uint32_t i = 0; i < kvferry_layout_stream_count(source); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(source, i);
        bool fits = round == 0   ? called(stream, target->layer, false)
                    : round == 1 ? called(target, stream->layer, true)
                                 : called(stream, target->layer, true);
        if (fits && strcmp(stream->name, target->name) == 0 &&
            stream->policy != KVFERRY_POLICY_LOCAL)
            return stream;
    }
    return NULL;
}

size_t naive_match(const kvferry_layout *const *sources, size_t source_count,
                   const kvferry_stream *target, const kvferry_stream **matches)
{
    size_t found = 0;
    for (size_t s = 0; s < source_count; s++)
        matches[s] = NULL;
    for (int round = 0; round < 3 && !found && target->policy != KVFERRY_POLICY_LOCAL; round++)
        for (size_t s = 0; s < source_count; s++) {
            const kvferry_stream *stream = find(sources[s], target, round);
            /* The generator makes optional streams differ in nothing but the type. */
            if (stream && target->policy == KVFERRY_POLICY_OPTIONAL &&
                strcmp(stream->dtype, target->dtype) != 0)
                continue;
            matches[s] = stream;
            found += stream != NULL;
        }
    return found;
}

bool naive_holds(const kvferry_stream *source, const kvferry_stream *target,
                 const uint64_t *coordinates)
{
    for (uint32_t i = 0; i < target->axis_count; i++)
        for (uint32_t j = 0; j < source->axis_count; j++) {
            const kvferry_axis *axis = &source->axes[j];
            if (strcmp(axis->name, target->axes[i].name) == 0 && strcmp(axis->name, "token") != 0 &&
                (coordinates[i] < axis->start || coordinates[i] >= axis->start + axis->extent))
                return false;
        }
    return true;
}

static const kvferry_block_table *table_of(const kvferry_block_table *tables, size_t count,
                                           const kvferry_group *group)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(tables[i].group, group->name) == 0)
            return &tables[i];
    return NULL;
}

static bool is_null(const kvferry_group *group, uint32_t block)
{
    return group->null_block >= 0 && (uint64_t)group->null_block == block;
}

/* The address of a source's cell; false: it lies in no named block. */
static bool source_address(const kvferry_layout *layout, const kvferry_stream *source,
                           const kvferry_stream *target, const uint64_t *coordinates,
                           uint64_t token, const kvferry_request *request, uint64_t *offset)
{
    const kvferry_group *group = kvferry_layout_group(layout, source->group);
    const kvferry_block_table *table = table_of(request->source, request->source_count, group);
    uint64_t page = 0, state = 0;
    if (!table)
        return false;
    if (group->kind == KVFERRY_GROUP_PAGED) {
        if (token < table->first_token)
            return false;
        uint64_t from = token - table->first_token, index = from / group->block_tokens;
        if (index >= table->block_count || is_null(group, table->blocks[index]))
            return false;
        page = table->blocks[index] * (group->block_tokens / source->page_tokens) +
               from % group->block_tokens / source->page_tokens;
        state = from % source->page_tokens / source->tokens_per_state;
    } else {
        size_t live = 0;
        while (live < table->block_count && is_null(group, table->blocks[live]))
            live++;
        if (live == table->block_count)
            return false;
        page = table->blocks[live];
    }
    *offset = source->offset + page * source->page_stride;
    for (uint32_t j = 0; j < source->axis_count; j++) {
        if (is_token(layout, source, j)) {
            *offset += state * source->axes[j].stride;
            continue;
        }
        for (uint32_t i = 0; i < target->axis_count; i++)
            if (strcmp(source->axes[j].name, target->axes[i].name) == 0)
                *offset += (coordinates[i] - source->axes[j].start) * source->axes[j].stride;
    }
    return true;
}

typedef struct naive_state {
    const kvferry_layout *const *sources;
    size_t source_count;
    const kvferry_layout *target;
    const kvferry_request *request;
    naive_copy *copies;
    size_t count, capacity;
    bool failed;
} naive_state;

static void add_copy(naive_state *state, const naive_copy *copy)
{
    if (state->count == state->capacity) {
        size_t capacity = state->capacity ? 2 * state->capacity : 64;
        naive_copy *copies = realloc(state->copies, capacity * sizeof *copies);
        if (!copies) {
            state->failed = true;
            return;
        }
        state->copies = copies;
        state->capacity = capacity;
    }
    state->copies[state->count++] = *copy;
}

static void plan_cell(naive_state *state, const kvferry_stream *stream,
                      const kvferry_stream *const *matches, const uint64_t *coordinates,
                      uint64_t token, uint64_t target_offset)
{
    for (size_t s = 0; s < state->source_count; s++) {
        uint64_t offset;
        if (!matches[s] || !naive_holds(matches[s], stream, coordinates) ||
            !source_address(state->sources[s], matches[s], stream, coordinates, token,
                            state->request, &offset))
            continue;
        naive_copy copy = {
            {offset, target_offset, stream->cell_bytes, matches[s]->segment, stream->segment}, s};
        add_copy(state, &copy);
        return;
    }
}

/* Whether a token of a table's block is wanted. Where a window drops whole blocks only, a block's last
 * token decides. */
static bool is_wanted(const kvferry_request *request, const kvferry_group *group,
                      const kvferry_block_table *table, size_t index, uint64_t token)
{
    uint64_t kept = token;
    if (request->whole_blocks)
        kept = table->first_token + (index + 1) * group->block_tokens - 1;
    return token >= table->first_token && token < request->target_tokens &&
           (!group->window || kept + group->window >= request->target_tokens);
}

/* All cells of one block, with the request's wanted tokens. */
static void plan_block(naive_state *state, const kvferry_stream *stream,
                       const kvferry_stream *const *matches, const kvferry_block_table *table,
                       size_t index)
{
    const kvferry_group *group = kvferry_layout_group(state->target, stream->group);
    bool paged = group->kind == KVFERRY_GROUP_PAGED;
    uint64_t pages = paged ? group->block_tokens / stream->page_tokens : 1;
    for (uint64_t p = 0; p < pages; p++) {
        uint64_t at[8] = {0}, coordinates[8];
        for (bool more = true; more;) {
            uint64_t token = table->first_token + index * group->block_tokens;
            uint64_t offset =
                stream->offset + (table->blocks[index] * pages + p) * stream->page_stride;
            bool wanted = !paged;
            for (uint32_t i = 0; i < stream->axis_count; i++) {
                coordinates[i] = stream->axes[i].start + at[i];
                offset += at[i] * stream->axes[i].stride;
                if (is_token(state->target, stream, i))
                    token += p * stream->page_tokens + at[i] * stream->tokens_per_state;
            }
            for (uint64_t t = token; paged && t < token + stream->tokens_per_state; t++)
                wanted = wanted || is_wanted(state->request, group, table, index, t);
            if (wanted)
                plan_cell(state, stream, matches, coordinates, token, offset);
            more = false;
            for (uint32_t i = stream->axis_count; i-- > 0 && !more;) {
                more = ++at[i] < stream->axes[i].extent;
                at[i] = more ? at[i] : 0;
            }
        }
    }
}

bool naive_plan(const kvferry_layout *const *sources, size_t source_count,
                const kvferry_layout *target, const kvferry_request *request, naive_copy **copies,
                size_t *count)
{
    naive_state state = {
        .sources = sources, .source_count = source_count, .target = target, .request = request};
    const kvferry_stream *matches[MAX_WORKERS];
    for (uint32_t i = 0; i < kvferry_layout_stream_count(target); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(target, i);
        const kvferry_group *group = kvferry_layout_group(target, stream->group);
        const kvferry_block_table *table = table_of(request->target, request->target_count, group);
        if (!table || !naive_match(sources, source_count, stream, matches))
            continue;
        for (size_t b = 0; b < table->block_count; b++)
            if (!is_null(group, table->blocks[b]))
                plan_block(&state, stream, matches, table, b);
    }
    if (state.failed) {
        free(state.copies);
        return false;
    }
    *copies = state.copies;
    *count = state.count;
    return true;
}

void naive_null_bytes(const kvferry_layout *layout, uint32_t index, unsigned char *const *marks)
{
    const kvferry_stream *stream = kvferry_layout_stream(layout, index);
    const kvferry_group *group = kvferry_layout_group(layout, stream->group);
    uint64_t pages =
        group->kind == KVFERRY_GROUP_PAGED ? group->block_tokens / stream->page_tokens : 1;
    for (uint64_t p = 0; p < pages; p++) {
        uint64_t page = (uint64_t)group->null_block * pages + p, at[8] = {0};
        if (group->null_block < 0 || page >= stream->pages)
            return;
        for (bool more = true; more;) {
            uint64_t offset = stream->offset + page * stream->page_stride;
            for (uint32_t i = 0; i < stream->axis_count; i++)
                offset += at[i] * stream->axes[i].stride;
            memset(marks[stream->segment] + offset, 1, stream->cell_bytes);
            more = false;
            for (uint32_t i = stream->axis_count; i-- > 0 && !more;) {
                more = ++at[i] < stream->axes[i].extent;
                at[i] = more ? at[i] : 0;
            }
        }
    }
}
