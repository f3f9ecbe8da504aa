/* SPDX-License-Identifier: Apache-2.0 */
/* Pass 2 of the check: what a transfer may change beside its wanted cells. */
#include <string.h>

#include "oracle_checker.h"
#include "oracle_value.h"

typedef struct row_context {
    unsigned char *mask;
    uint64_t start, bytes; /* of the row, in the segment */
    uint64_t cell_bytes;
    uint64_t from, to;           /* the span of wanted cells in the row */
    bool span;                   /* only widen the span */
    uint64_t keep_from, keep_to; /* cells that lie inside this are left as they are in the mask */
} row_context;

static void forbid(row_context *row, uint64_t offset, uint64_t bytes)
{
    uint64_t end = offset + bytes, row_end = row->start + row->bytes;
    uint64_t from = offset > row->start ? offset : row->start, to = end < row_end ? end : row_end;
    if (from < to)
        memset(row->mask + (from - row->start), 0, (size_t)(to - from));
}

static void row_cells(void *context, const view_cells *cells)
{
    row_context *row = context;
    for (uint64_t i = 0; i < cells->count; i++) {
        uint64_t offset = cells->offset + i * cells->stride, end = offset + row->cell_bytes;
        if (end <= row->start || offset >= row->start + row->bytes)
            continue;
        if (row->span) {
            row->from = offset < row->from ? offset : row->from;
            row->to = end > row->to ? end : row->to;
        } else if (offset < row->keep_from || end > row->keep_to) {
            forbid(row, offset, row->cell_bytes);
        }
    }
}

typedef struct row_owner {
    uint32_t group;
    const kvferry_block_table *table;
    size_t index; /* of the block in the table */
    token_range range;
} row_owner;

/* Walks the cells of the owner's block in a stream that lie in the row. `wanted`: the wanted ones;
 * else those before the first wanted token. */
static void walk_block(const view_stream *stream, const row_owner *owner, row_context *row,
                       bool wanted)
{
    row->cell_bytes = stream->stream->cell_bytes;
    for (uint64_t p = 0; p < stream->ratio; p++) {
        view_page page;
        view_page_at(stream, owner->table, owner->index, p, owner->range.first, owner->range.end,
                     &page);
        uint64_t base = stream->stream->offset + page.page * stream->stream->page_stride;
        if (base + stream->high <= row->start || base + stream->low >= row->start + row->bytes)
            continue;
        view_walk(stream, page.page, page.state, wanted ? page.from : 0,
                  wanted ? page.to : page.from, row_cells, row);
    }
}

/* Whether a block of a group is another group's view of a named block: they share bytes, so nobody
 * else can own it now. */
static bool is_view_of_named(const checker *check, uint32_t group, uint64_t block)
{
    const view_layout *view = &check->view;
    for (uint32_t g = 0; g < view->group_count; g++)
        if (view->share[group * view->group_count + g] && check->named[g] &&
            block < kvferry_layout_group_blocks(view->layout, g) && check->named[g][block])
            return true;
    return false;
}

/* Cells of pages that belong to other blocks: all of them keep their bytes, but those that are
 * views of named blocks. */
static void forbid_others(const checker *check, const view_stream *stream, const row_owner *owner,
                          bool transferred, row_context *row)
{
    const kvferry_stream *s = stream->stream;
    bool own = s->group == owner->group;
    uint64_t block = owner->table->blocks[owner->index], end = row->start + row->bytes;
    if (s->pages == 0 || s->offset + stream->low >= end ||
        s->offset + (s->pages - 1) * s->page_stride + stream->high <= row->start)
        return;
    for (size_t r = 0; r < stream->run_count; r++) {
        uint64_t start = s->offset + stream->runs[r].start, bytes = stream->runs[r].bytes;
        if (start >= end)
            break;
        uint64_t last = (end - 1 - start) / s->page_stride;
        uint64_t first = 0;
        if (start + bytes <= row->start)
            first = (row->start - start - bytes) / s->page_stride + 1;
        for (uint64_t page = first; page <= last && page < s->pages; page++)
            if (own ? !(transferred && page / stream->ratio == block)
                    : !is_view_of_named(check, s->group, page / stream->ratio))
                forbid(row, start + page * s->page_stride, bytes);
    }
}

static void restore_row(checker *check, const row_owner *owner, uint32_t segment, uint64_t start,
                        uint64_t bytes)
{
    uint64_t size = kvferry_layout_segment(check->target->layout, segment)->bytes;
    if (start >= size)
        return;
    if (bytes > size - start)
        bytes = size - start;
    row_context row = {.mask = check->mask, .start = start, .bytes = bytes, .from = UINT64_MAX};
    memset(row.mask, 1, (size_t)bytes);
    const view_layout *view = &check->view;
    bool cut = owner->range.first >
               owner->table->first_token +
                   owner->index * kvferry_layout_group(view->layout, owner->group)->block_tokens;
    for (int round = cut ? 0 : 2; round < 3; round++) {
        /* Round 0 finds the span of the wanted cells, round 1 forbids dropped cells outside it,
         * round 2 takes out the wanted cells themselves, which pass 1 has dealt with. */
        row.span = round == 0;
        row.keep_from = round == 1 ? row.from : 0;
        row.keep_to = round == 1 ? row.to : 0;
        for (uint32_t i = 0; i < view->stream_count; i++) {
            const view_stream *stream = &view->streams[i];
            if (stream->stream->group == owner->group && stream->stream->segment == segment &&
                check->matches[i])
                walk_block(stream, owner, &row, round != 1);
        }
    }
    for (uint32_t i = 0; i < view->stream_count; i++)
        if (view->streams[i].stream->segment == segment)
            forbid_others(check, &view->streams[i], owner, check->matches[i] != NULL, &row);

    uint64_t noise = oracle_noise_key(check->target->noise, segment);
    for (uint64_t at = 0; at < bytes;) {
        unsigned char *one = memchr(row.mask + at, 1, (size_t)(bytes - at));
        if (!one)
            break;
        uint64_t from = (uint64_t)(one - row.mask);
        unsigned char *zero = memchr(one, 0, (size_t)(bytes - from));
        at = zero ? (uint64_t)(zero - row.mask) : bytes;
        oracle_noise_write(check->target->segments[segment], start + from, at - from, noise);
        check->result->allowed_bytes += at - from;
    }
}

/* The rows of a stream's pages, unless an earlier stream of the group has the same ones. */
static void restore_rows(checker *check, uint32_t index, const row_owner *owner)
{
    const view_stream *stream = &check->view.streams[index];
    for (uint32_t i = 0; i < index; i++) {
        const view_stream *earlier = &check->view.streams[i];
        if (check->matches[i] && earlier->stream->group == owner->group &&
            earlier->row_cluster == stream->row_cluster && earlier->ratio == stream->ratio)
            return;
    }
    uint64_t stride = stream->stream->page_stride;
    for (uint64_t p = 0; p < stream->ratio; p++) {
        uint64_t page = owner->table->blocks[owner->index] * stream->ratio + p;
        restore_row(check, owner, stream->stream->segment, stream->row_offset + page * stride,
                    stride);
    }
}

/* Notes which blocks of each group the transfer wants. */
static void name_blocks(checker *check, const kvferry_request *request)
{
    const view_layout *view = &check->view;
    for (uint32_t g = 0; g < view->group_count; g++)
        memset(check->named[g], 0, (size_t)kvferry_layout_group_blocks(view->layout, g) + 1);
    for (uint32_t i = 0; i < view->stream_count; i++) {
        const view_stream *stream = &view->streams[i];
        const kvferry_block_table *table =
            view_table(request->target, request->target_count, stream->group->name);
        if (!table || !check->matches[i])
            continue;
        token_range range = checker_wanted_tokens(stream->group, table, request);
        for (size_t b = 0; b < table->block_count; b++)
            if (checker_block_is_wanted(stream, table, b, range) &&
                table->blocks[b] < kvferry_layout_group_blocks(view->layout, stream->stream->group))
                check->named[stream->stream->group][table->blocks[b]] = 1;
    }
}

void checker_restore_rows(checker *check, const oracle_transfer *transfer)
{
    const kvferry_request *request = transfer->request;
    name_blocks(check, request);
    for (uint32_t i = 0; i < check->view.stream_count; i++) {
        const view_stream *stream = &check->view.streams[i];
        row_owner owner = {.group = stream->stream->group};
        owner.table = view_table(request->target, request->target_count, stream->group->name);
        if (!owner.table || !check->matches[i])
            continue;
        owner.range = checker_wanted_tokens(stream->group, owner.table, request);
        for (owner.index = 0; owner.index < owner.table->block_count; owner.index++)
            if (checker_block_is_wanted(stream, owner.table, owner.index, owner.range))
                restore_rows(check, i, &owner);
    }
}
