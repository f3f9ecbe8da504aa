/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of a target worker, in three passes over its memory:
 *   1. every wanted cell is compared with its value and then set back to noise;
 *   2. every other byte that a transfer may change is set back to noise;
 *   3. the whole memory is compared with noise.
 * So a byte that is neither wanted nor allowed is compared with what it was, and no picture of the
 * memory is ever built beside it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_value.h"
#include "oracle_view.h"

/* The tokens that a request wants in a table, less what the window drops. */
typedef struct token_range {
    uint64_t first, end;
} token_range;

typedef struct checker {
    const oracle_worker *target;
    explain_context explain;
    view_layout view;
    const kvferry_stream **matches;
    unsigned char **named; /* by group and block: 1 if the transfer that is set back wants it */
    unsigned char *mask;   /* one row: 1 where a byte may change */
    uint64_t mask_size;
    oracle_result *result;
} checker;

static token_range wanted_tokens(const kvferry_group *group, const kvferry_block_table *table,
                                 uint64_t tokens)
{
    token_range range = {table->first_token, tokens};
    if (group->window && tokens > group->window && tokens - group->window > range.first)
        range.first = tokens - group->window;
    return range;
}

/* Whether a table's block at an index is there and holds anything wanted. */
static bool block_is_wanted(const view_stream *stream, const kvferry_block_table *table, size_t index,
                            token_range range)
{
    if (!view_block_exists(stream, table->blocks[index]))
        return false;
    if (stream->group->kind != KVFERRY_GROUP_PAGED)
        return true;
    uint64_t first = table->first_token + index * stream->group->block_tokens;
    return first < range.end && first + stream->group->block_tokens > range.first &&
           range.first < range.end;
}

static oracle_finding *new_finding(oracle_result *result)
{
    if (result->finding_count == ORACLE_FINDINGS) {
        result->more++;
        return NULL;
    }
    oracle_finding *finding = &result->findings[result->finding_count++];
    memset(finding, 0, sizeof *finding);
    finding->transfer_id = finding->layer = finding->stream = finding->group = "";
    return finding;
}

/* --- pass 1: wanted cells ------------------------------------------------------------------- */

typedef struct cell_context {
    checker *check;
    const view_stream *stream;
    unsigned char *segment;
    uint64_t key, noise;
    uint64_t block, token; /* of the page that is walked */
    uint64_t wanted_bytes, wrong_bytes, wrong_blocks, last_wrong_block;
    uint64_t first_offset, first_block, first_token;
    uint64_t low[VIEW_AXES + 1], high[VIEW_AXES + 1]; /* of wrong cells; the last: states */
    explain_sample samples[EXPLAIN_SAMPLES];
    size_t sample_count;
} cell_context;

static uint64_t axis_index(const view_axis *axis, uint64_t index)
{
    return index / axis->weight % axis->global;
}

static void take_sample(cell_context *cell, uint64_t offset, uint64_t index, uint64_t bad)
{
    if (cell->sample_count == EXPLAIN_SAMPLES)
        return;
    explain_sample *sample = &cell->samples[cell->sample_count++];
    uint64_t end =
        kvferry_layout_segment(cell->check->target->layout, cell->stream->stream->segment)->bytes;
    /* Words lie at multiples of 8 from the cell's beginning. */
    uint64_t from = bad / 8 * 8;
    sample->segment_offset = offset;
    sample->index = index;
    sample->bad_byte = from;
    sample->size = sizeof sample->bytes;
    if (end - (offset + from) < sample->size)
        sample->size = (size_t)(end - (offset + from));
    memcpy(sample->bytes, cell->segment + offset + from, sample->size);
}

static void wrong_cell(cell_context *cell, uint64_t offset, uint64_t index)
{
    uint64_t bytes = cell->stream->stream->cell_bytes, wrong = 0, bad = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        uint64_t word = oracle_word(cell->key, index * cell->stream->words + i / 8);
        if (cell->segment[offset + i] == ((unsigned char *)&word)[i % 8])
            continue;
        bad = wrong++ ? bad : i;
    }
    if (!cell->wrong_bytes) {
        cell->first_offset = offset + bad;
        cell->first_block = cell->block;
        cell->first_token = cell->token;
    }
    if (!cell->wrong_blocks || cell->last_wrong_block != cell->block)
        cell->wrong_blocks++;
    cell->last_wrong_block = cell->block;
    for (uint32_t i = 0; i <= cell->stream->axis_count; i++) {
        uint64_t at = i == cell->stream->axis_count ? index / cell->stream->token.weight
                                                    : axis_index(&cell->stream->axes[i], index);
        if (!cell->wrong_bytes || at < cell->low[i])
            cell->low[i] = at;
        if (!cell->wrong_bytes || at > cell->high[i])
            cell->high[i] = at;
    }
    cell->wrong_bytes += wrong;
    take_sample(cell, offset, index, bad);
}

static void check_cells(void *context, const view_cells *cells)
{
    cell_context *cell = context;
    uint64_t bytes = cell->stream->stream->cell_bytes, words = cell->stream->words;
    bool whole = cells->stride == bytes && cells->step == 1 && bytes % 8 == 0;
    if (!(whole && oracle_equal(cell->segment + cells->offset, cells->count * bytes, cell->key,
                                cells->index * words)))
        for (uint64_t i = 0; i < cells->count; i++) {
            uint64_t offset = cells->offset + i * cells->stride, index = cells->index + i * cells->step;
            if (!oracle_equal(cell->segment + offset, bytes, cell->key, index * words))
                wrong_cell(cell, offset, index);
        }
    cell->wanted_bytes += cells->count * bytes;
    if (cells->stride == bytes) {
        oracle_noise_write(cell->segment, cells->offset, cells->count * bytes, cell->noise);
        return;
    }
    for (uint64_t i = 0; i < cells->count; i++)
        oracle_noise_write(cell->segment, cells->offset + i * cells->stride, bytes, cell->noise);
}

/* Cells at and past the request's tokens in a wanted block may change wherever they lie. Here they are
 * set back; those inside their page's row are counted with the row. */
typedef struct free_context {
    unsigned char *segment;
    uint64_t noise, cell_bytes;
    uint64_t row, row_bytes;
    uint64_t outside_bytes;
} free_context;

static void free_cells(void *context, const view_cells *cells)
{
    free_context *free = context;
    for (uint64_t i = 0; i < cells->count; i++) {
        uint64_t offset = cells->offset + i * cells->stride;
        oracle_noise_write(free->segment, offset, free->cell_bytes, free->noise);
        if (offset < free->row || offset >= free->row + free->row_bytes)
            free->outside_bytes += free->cell_bytes;
    }
}

static void report_wrong(cell_context *cell, const oracle_transfer *transfer)
{
    oracle_result *result = cell->check->result;
    result->wrong_bytes += cell->wrong_bytes;
    oracle_finding *finding = cell->wrong_bytes ? new_finding(result) : NULL;
    if (!finding)
        return;
    const view_stream *stream = cell->stream;
    finding->kind = ORACLE_WRONG;
    finding->transfer_id = transfer->request->transfer_id ? transfer->request->transfer_id : "";
    finding->layer = stream->stream->layer;
    finding->stream = stream->stream->name;
    finding->group = stream->group->name;
    finding->segment = stream->stream->segment;
    finding->offset = cell->first_offset;
    finding->block = cell->first_block;
    finding->token = cell->first_token;
    finding->bytes = cell->wrong_bytes;
    finding->blocks = cell->wrong_blocks;
    char *text = finding->where;
    size_t size = sizeof finding->where, used = 0;
    used += (size_t)snprintf(text, size, "group %s block %" PRIu64 ", ", stream->group->name,
                             cell->first_block);
    if (used < size)
        explain_coordinates(stream, cell->samples[0].index, text + used, size - used);
    used = strlen(text);
    used += (size_t)snprintf(text + used, size - used, " (wrong in all:");
    bool paged = stream->group->kind == KVFERRY_GROUP_PAGED;
    for (uint32_t i = 0; i < stream->axis_count + paged && used < size; i++) {
        const char *name = i == stream->axis_count ? "state" : stream->axes[i].name;
        used += (size_t)snprintf(text + used, size - used, " %s %" PRIu64 "..%" PRIu64, name,
                                 cell->low[i], cell->high[i]);
    }
    if (used + 1 < size)
        memcpy(text + used, ")", 2);
    cell->check->explain.transfer = transfer;
    explain_instead(&cell->check->explain, stream, cell->samples, cell->sample_count,
                    finding->instead, sizeof finding->instead);
}

static void check_stream(checker *check, const view_stream *stream, const kvferry_stream *source,
                         const kvferry_block_table *table, const oracle_transfer *transfer)
{
    uint32_t segment = stream->stream->segment;
    cell_context cell = {
        .check = check,
        .stream = stream,
        .segment = check->target->segments[segment],
        .key = oracle_stream_key(transfer->seed, source->layer, source->name),
        .noise = oracle_noise_key(check->target->noise, segment),
    };
    free_context past = {
        .segment = cell.segment,
        .noise = cell.noise,
        .cell_bytes = stream->stream->cell_bytes,
        .row_bytes = stream->stream->page_stride,
    };
    token_range range = wanted_tokens(stream->group, table, transfer->request->target_tokens);
    for (size_t i = 0; i < table->block_count; i++) {
        if (!block_is_wanted(stream, table, i, range))
            continue;
        for (uint64_t p = 0; p < stream->ratio; p++) {
            view_page page;
            view_page_at(stream, table, i, p, range.first, range.end, &page);
            cell.block = table->blocks[i];
            cell.token = page.token + page.from * stream->stream->tokens_per_state;
            view_walk(stream, page.page, page.state, page.from, page.to, check_cells, &cell);
            past.row = stream->row_offset + page.page * stream->stream->page_stride;
            if (stream->group->kind == KVFERRY_GROUP_PAGED)
                view_walk(stream, page.page, page.state, page.to, stream->token.extent, free_cells,
                          &past);
        }
    }
    check->result->wanted_bytes += cell.wanted_bytes;
    check->result->allowed_bytes += past.outside_bytes;
    report_wrong(&cell, transfer);
}

/* --- pass 2: what else may change ----------------------------------------------------------- */

typedef struct row_context {
    unsigned char *mask;
    uint64_t start, bytes; /* of the row, in the segment */
    uint64_t cell_bytes;
    uint64_t from, to;     /* the span of wanted cells in the row */
    bool span;             /* only widen the span */
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

/* Walks the cells of the owner's block in a stream that lie in the row. `wanted`: the wanted ones; else
 * those before the first wanted token. */
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
        view_walk(stream, page.page, page.state, wanted ? page.from : 0, wanted ? page.to : page.from,
                  row_cells, row);
    }
}

/* Whether a block of a group is another group's view of a named block: they share bytes, so nobody else
 * can own it now. */
static bool is_view_of_named(const checker *check, uint32_t group, uint64_t block)
{
    const view_layout *view = &check->view;
    for (uint32_t g = 0; g < view->group_count; g++)
        if (view->share[group * view->group_count + g] && check->named[g] &&
            block < kvferry_layout_group_blocks(view->layout, g) && check->named[g][block])
            return true;
    return false;
}

/* Cells of pages that belong to other blocks: all of them keep their bytes, but those that are views of
 * named blocks. */
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
    bool cut = owner->range.first > owner->table->first_token +
                                        owner->index * kvferry_layout_group(view->layout, owner->group)
                                                           ->block_tokens;
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
        restore_row(check, owner, stream->stream->segment, stream->row_offset + page * stride, stride);
    }
}

/* --- pass 3: everything else ---------------------------------------------------------------- */

/* Finds the stream and page whose cell holds a byte. */
static const view_stream *byte_owner(const view_layout *view, uint32_t segment, uint64_t offset,
                                     uint64_t *page)
{
    for (uint32_t i = 0; i < view->stream_count; i++) {
        const view_stream *stream = &view->streams[i];
        const kvferry_stream *s = stream->stream;
        for (size_t r = 0; s->segment == segment && r < stream->run_count; r++) {
            uint64_t start = s->offset + stream->runs[r].start;
            if (offset < start)
                break;
            *page = s->page_stride ? (offset - start) / s->page_stride : 0;
            if (*page < s->pages && offset - start - *page * s->page_stride < stream->runs[r].bytes)
                return stream;
        }
    }
    return NULL;
}

static oracle_finding *stray_finding(checker *check, uint32_t segment, uint64_t offset)
{
    uint64_t page = 0;
    const view_stream *owner = byte_owner(&check->view, segment, offset, &page);
    const char *layer = owner ? owner->stream->layer : "", *name = owner ? owner->stream->name : "";
    oracle_result *result = check->result;
    for (size_t i = 0; i < result->finding_count; i++) {
        oracle_finding *finding = &result->findings[i];
        if (finding->kind == ORACLE_STRAY && finding->segment == segment &&
            strcmp(finding->layer, layer) == 0 && strcmp(finding->stream, name) == 0)
            return finding;
    }
    oracle_finding *finding = new_finding(result);
    if (!finding)
        return NULL;
    finding->kind = ORACLE_STRAY;
    finding->segment = segment;
    finding->offset = offset;
    finding->layer = layer;
    finding->stream = name;
    if (owner) {
        finding->group = owner->group->name;
        finding->block = page / owner->ratio;
        snprintf(finding->where, sizeof finding->where,
                 "a cell of group %s block %" PRIu64 " that keeps its value", finding->group,
                 finding->block);
    } else {
        snprintf(finding->where, sizeof finding->where, "no stream owns the byte");
    }
    explain_sample sample = {.segment_offset = offset};
    uint64_t end = kvferry_layout_segment(check->target->layout, segment)->bytes;
    sample.size = end - offset < sizeof sample.bytes ? (size_t)(end - offset) : sizeof sample.bytes;
    memcpy(sample.bytes, check->target->segments[segment] + offset, sample.size);
    check->explain.transfer = NULL;
    explain_instead(&check->explain, NULL, &sample, 1, finding->instead, sizeof finding->instead);
    return finding;
}

static void check_rest(checker *check, uint32_t segment)
{
    unsigned char *memory = check->target->segments[segment];
    uint64_t bytes = kvferry_layout_segment(check->target->layout, segment)->bytes;
    uint64_t noise = oracle_noise_key(check->target->noise, segment);
    check->result->checked_bytes += bytes;
    const uint64_t chunk = 4096;
    for (uint64_t at = 0; at < bytes; at += chunk) {
        uint64_t end = bytes - at < chunk ? bytes : at + chunk;
        if (oracle_equal(memory + at, end - at, noise, at / 8))
            continue;
        oracle_finding *finding = NULL;
        uint64_t last = UINT64_MAX;
        for (uint64_t i = at; i < end; i++) {
            uint64_t word = oracle_word(noise, i / 8);
            if (memory[i] == ((unsigned char *)&word)[i % 8])
                continue;
            check->result->stray_bytes++;
            if (last == UINT64_MAX || i - last > 8)
                finding = stray_finding(check, segment, i);
            if (finding)
                finding->bytes++;
            last = i;
        }
        oracle_noise_write(memory, at, end - at, noise);
    }
}

/* --- the whole ------------------------------------------------------------------------------ */

static void check_transfer(checker *check, const oracle_transfer *transfer)
{
    const kvferry_request *request = transfer->request;
    for (uint32_t i = 0; i < check->view.stream_count; i++) {
        const view_stream *stream = &check->view.streams[i];
        const kvferry_block_table *table =
            view_table(request->target, request->target_count, stream->group->name);
        if (table && check->matches[i])
            check_stream(check, stream, check->matches[i], table, transfer);
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
        token_range range = wanted_tokens(stream->group, table, request->target_tokens);
        for (size_t b = 0; b < table->block_count; b++)
            if (block_is_wanted(stream, table, b, range) &&
                table->blocks[b] < kvferry_layout_group_blocks(view->layout, stream->stream->group))
                check->named[stream->stream->group][table->blocks[b]] = 1;
    }
}

static void restore_transfer(checker *check, const oracle_transfer *transfer)
{
    const kvferry_request *request = transfer->request;
    name_blocks(check, request);
    for (uint32_t i = 0; i < check->view.stream_count; i++) {
        const view_stream *stream = &check->view.streams[i];
        row_owner owner = {.group = stream->stream->group};
        owner.table = view_table(request->target, request->target_count, stream->group->name);
        if (!owner.table || !check->matches[i])
            continue;
        owner.range = wanted_tokens(stream->group, owner.table, request->target_tokens);
        for (owner.index = 0; owner.index < owner.table->block_count; owner.index++)
            if (block_is_wanted(stream, owner.table, owner.index, owner.range))
                restore_rows(check, i, &owner);
    }
}

static bool make_checker(checker *check, const oracle_worker *target)
{
    if (!view_make(&check->view, target->layout))
        return false;
    check->mask_size = 1;
    for (uint32_t i = 0; i < check->view.stream_count; i++) {
        const kvferry_stream *stream = check->view.streams[i].stream;
        uint64_t size = kvferry_layout_segment(target->layout, stream->segment)->bytes;
        uint64_t row = stream->page_stride < size ? stream->page_stride : size;
        check->mask_size = row > check->mask_size ? row : check->mask_size;
    }
    check->named = calloc((size_t)check->view.group_count + 1, sizeof *check->named);
    bool fine = check->named != NULL;
    for (uint32_t g = 0; fine && g < check->view.group_count; g++) {
        check->named[g] = malloc((size_t)kvferry_layout_group_blocks(target->layout, g) + 1);
        fine = check->named[g] != NULL;
    }
    check->mask = malloc((size_t)check->mask_size);
    check->matches = calloc((size_t)check->view.stream_count + 1, sizeof *check->matches);
    return fine && check->mask && check->matches;
}

bool oracle_check(const oracle_worker *target, const oracle_worker *sources, size_t source_count,
                  const oracle_transfer *transfers, size_t transfer_count, oracle_result *result)
{
    oracle_result *made = calloc(1, sizeof *made);
    checker check = {
        .target = target,
        .explain = {target, sources, source_count, transfers, transfer_count, NULL},
        .result = made,
    };
    bool fine = made && make_checker(&check, target);
    if (fine) {
        view_match_streams(&check.view, sources, source_count, check.matches);
        for (size_t i = 0; i < transfer_count; i++)
            check_transfer(&check, &transfers[i]);
        for (size_t i = 0; i < transfer_count; i++)
            restore_transfer(&check, &transfers[i]);
        for (uint32_t i = 0; i < kvferry_layout_segment_count(target->layout); i++)
            check_rest(&check, i);
        *result = *made;
    }
    for (uint32_t g = 0; check.named && g < check.view.group_count; g++)
        free(check.named[g]);
    free(check.named);
    free(check.mask);
    free(check.matches);
    view_free(&check.view);
    free(made);
    return fine;
}
