/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts transfers into batches: the inner loop, which allocates nothing. */
#include "engine/engine.h"

#include <stdlib.h>

/* How far a cut got; becomes the transfer's cursor if the engine takes the batch. */
typedef struct cut {
    size_t cursor;
    uint64_t cursor_bytes;
    uint64_t pieces, finishes, bytes;
} cut;

static inline void make_piece(kvferry_engine_copy *piece, const kvferry_transfer *transfer,
                              const kvferry_copy *copy, uint64_t from, uint64_t bytes)
{
    bool write = transfer->direction == KVFERRY_WRITE;
    const engine_segment *local = &transfer->peer->engine
                                       ->segments[write ? copy->source_segment : copy->target_segment];
    const engine_segment *remote =
        &transfer->peer->segments[write ? copy->target_segment : copy->source_segment];
    uint64_t local_offset = write ? copy->source_offset : copy->target_offset;
    uint64_t remote_offset = write ? copy->target_offset : copy->source_offset;
    *piece = (kvferry_engine_copy){
        .local = (void *)(uintptr_t)(local->address + local_offset + from),
        .remote = remote->address + remote_offset + from,
        .bytes = bytes,
        .local_segment = local->handle,
        .remote_segment = remote->handle,
    };
}

/* Fills the engine's scratch with what fits into one batch and into the peer's window. */
static cut cut_batch(const kvferry_transfer *transfer, uint64_t room)
{
    kvferry_engine *engine = transfer->peer->engine;
    uint64_t capacity = base_min(engine->piece_capacity, room);
    uint64_t max_bytes = engine->capabilities.max_copy_bytes;
    cut made = {.cursor = transfer->cursor, .cursor_bytes = transfer->cursor_bytes};
    while (made.cursor < transfer->count && made.bytes < ENGINE_BATCH_BYTES) {
        const kvferry_copy *copy = &transfer->copies[made.cursor];
        uint64_t left = copy->bytes - made.cursor_bytes;
        uint64_t bytes = base_min(base_min(left, max_bytes), ENGINE_BATCH_BYTES - made.bytes);
        /* A copy that fits a batch of its own is not cut in two for what is left of this one. */
        if (bytes < left && left <= base_min(max_bytes, ENGINE_BATCH_BYTES) && made.bytes)
            break;
        if (bytes) {
            if (made.pieces == capacity)
                break;
            make_piece(&engine->pieces[made.pieces++], transfer, copy, made.cursor_bytes, bytes);
        }
        made.bytes += bytes;
        made.cursor_bytes += bytes;
        if (bytes == left) {
            made.finishes++;
            made.cursor++;
            made.cursor_bytes = 0;
        }
    }
    return made;
}

static engine_batch *take_batch(kvferry_peer *peer, kvferry_transfer *transfer, const cut *made)
{
    engine_batch *batch = peer->free_first;
    peer->free_first = batch->next_free;
    batch->peer = peer;
    batch->transfer = transfer;
    batch->first = transfer->cursor;
    batch->pieces = made->pieces;
    batch->finishes = made->finishes;
    batch->bytes = made->bytes;
    batch->flying = true;
    transfer->flying++;
    peer->outstanding += made->pieces;
    return batch;
}

/* The engine took nothing: the batch ends, and counts for nothing. */
static void refuse_batch(engine_batch *batch, kvferry_status status, const kvferry_report *report)
{
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    kvferry_transfer *transfer = batch->transfer;
    if (status == KVFERRY_BUSY) {
        batch->bytes = batch->finishes = 0;
        engine_batch_ended(batch, KVFERRY_OK, NULL);
        return;
    }
    engine_batch_ended(batch, status, reason ? reason->message : NULL);
    transfer->cursor = transfer->count;
}

static bool submit(kvferry_peer *peer, kvferry_transfer *transfer, const cut *made)
{
    kvferry_engine *engine = peer->engine;
    if (!made->pieces) { /* only empty copies */
        transfer->state.copies_done += made->finishes;
        transfer->cursor = made->cursor;
        return true;
    }
    engine_batch *batch = take_batch(peer, transfer, made);
    kvferry_report *report = engine->submit_report;
    kvferry_report_clear(report);
    kvferry_status status =
        engine->ops->submit(engine->self, peer->handle, transfer->direction, engine->pieces,
                            (size_t)made->pieces, engine_batch_ended, batch, report);
    if (status != KVFERRY_OK) {
        refuse_batch(batch, status, report);
        return status != KVFERRY_BUSY;
    }
    transfer->cursor = made->cursor;
    transfer->cursor_bytes = made->cursor_bytes;
    return true;
}

/* The next transfer in turn that has something to submit. */
static kvferry_transfer *next_in_turn(const kvferry_peer *peer)
{
    kvferry_transfer *transfer = peer->turn;
    if (!transfer)
        return NULL;
    do {
        if (transfer->state.status == KVFERRY_BUSY && transfer->cursor < transfer->count)
            return transfer;
        transfer = transfer->next;
    } while (transfer != peer->turn);
    return NULL;
}

bool engine_peer_pump(kvferry_peer *peer)
{
    uint64_t window = peer->engine->capabilities.max_outstanding;
    if (peer->lost || !peer->free_first || peer->outstanding >= window)
        return false;
    kvferry_transfer *transfer = next_in_turn(peer);
    if (!transfer)
        return false;
    cut made = cut_batch(transfer, window - peer->outstanding);
    peer->turn = transfer->next;
    return submit(peer, transfer, &made);
}
