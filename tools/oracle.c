/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include <inttypes.h>
#include <stdio.h>

#include "oracle_value.h"
#include "oracle_view.h"

void oracle_noise(const oracle_worker *worker)
{
    for (uint32_t i = 0; i < kvferry_layout_segment_count(worker->layout); i++)
        oracle_noise_write(worker->segments[i], 0, kvferry_layout_segment(worker->layout, i)->bytes,
                           oracle_noise_key(worker->noise, i));
}

typedef struct fill_context {
    unsigned char *segment;
    uint64_t key, words, cell_bytes;
} fill_context;

static void fill_cells(void *context, const view_cells *cells)
{
    const fill_context *fill = context;
    unsigned char *at = fill->segment + cells->offset;
    if (cells->stride == fill->cell_bytes && cells->step == 1 && fill->cell_bytes % 8 == 0) {
        oracle_write(at, cells->count * fill->cell_bytes, fill->key, cells->index * fill->words);
        return;
    }
    for (uint64_t i = 0; i < cells->count; i++)
        oracle_write(at + i * cells->stride, fill->cell_bytes, fill->key,
                     (cells->index + i * cells->step) * fill->words);
}

static void fill_stream(const oracle_worker *source, const view_stream *view,
                        const kvferry_block_table *table, const oracle_transfer *transfer)
{
    const kvferry_stream *stream = view->stream;
    fill_context fill = {
        .segment = source->segments[stream->segment],
        .key = oracle_stream_key(transfer->seed, stream->layer, stream->name),
        .words = view->words,
        .cell_bytes = stream->cell_bytes,
    };
    for (size_t i = 0; i < table->block_count; i++) {
        if (!view_block_exists(view, table->blocks[i]))
            continue;
        for (uint64_t p = 0; p < view->ratio; p++) {
            view_page page;
            view_page_at(view, table, i, p, 0, transfer->request->source_tokens, &page);
            view_walk(view, page.page, page.state, page.from, page.to, fill_cells, &fill);
        }
    }
}

bool oracle_fill(const oracle_worker *source, const oracle_transfer *transfer)
{
    view_layout view;
    bool made = view_make(&view, source->layout);
    for (uint32_t i = 0; made && i < view.stream_count; i++) {
        const kvferry_block_table *table =
            view_table(transfer->request->source, transfer->request->source_count,
                       view.streams[i].group->name);
        if (table)
            fill_stream(source, &view.streams[i], table, transfer);
    }
    view_free(&view);
    return made;
}

void oracle_finding_text(const oracle_worker *target, const oracle_finding *finding, char *text,
                         size_t size)
{
    const kvferry_worker *worker = kvferry_layout_worker(target->layout);
    char blocks[64] = "";
    if (finding->kind == ORACLE_WRONG && finding->blocks > 1)
        snprintf(blocks, sizeof blocks, " in %" PRIu64 " blocks", finding->blocks);
    snprintf(
        text, size,
        "%s tp%" PRIu32 "/%" PRIu32 " pp%" PRIu32 "/%" PRIu32 "%s%s%s%s%s%s%s: %" PRIu64
        " %s%s, first at segment %s + %" PRIu64 ": %s%s%s",
        kvferry_layout_engine_id(target->layout), worker->tp_rank, worker->tp_size, worker->pp_rank,
        worker->pp_size, *finding->transfer_id ? " request " : "", finding->transfer_id,
        *finding->layer ? " layer " : "", finding->layer, *finding->layer ? " " : "",
        finding->stream, *finding->layer ? "" : " padding", finding->bytes,
        finding->kind == ORACLE_WRONG ? "wanted bytes are wrong"
                                      : "bytes changed that no one may change",
        blocks, kvferry_layout_segment(target->layout, finding->segment)->name, finding->offset,
        finding->where, *finding->instead ? "; instead it holds " : "", finding->instead);
}
