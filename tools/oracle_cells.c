/* SPDX-License-Identifier: Apache-2.0 */
/* Pass 1 of the check: wanted cells. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "oracle_checker.h"
#include "oracle_value.h"

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
            uint64_t offset = cells->offset + i * cells->stride,
                     index = cells->index + i * cells->step;
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

/* Cells at and past the request's tokens in a wanted block may change wherever they lie. Here they
 * are set back; those inside their page's row are counted with the row. */
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
    oracle_finding *finding = cell->wrong_bytes ? checker_finding(result) : NULL;
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
    token_range range = checker_wanted_tokens(stream->group, table, transfer->request);
    for (size_t i = 0; i < table->block_count; i++) {
        if (!checker_block_is_wanted(stream, table, i, range))
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

void checker_check_cells(checker *check, const oracle_transfer *transfer)
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
