/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer from its beginning to its end; its copies are checked here and cut in pump.c. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct copy_side {
    const engine_segment *segments;
    uint64_t count;
    const char *name; /* of the worker */
    const char *role;
} copy_side;

static inline bool side_holds(const copy_side *side, uint32_t segment, uint64_t offset, uint64_t bytes)
{
    if (segment >= side->count)
        return false;
    const engine_segment *found = &side->segments[segment];
    return found->live && offset <= found->bytes && bytes <= found->bytes - offset;
}

static void report_side(kvferry_report *report, size_t index, const copy_side *side, uint32_t segment,
                        uint64_t offset, uint64_t bytes)
{
    if (side_holds(side, segment, offset, bytes))
        return;
    base_where where = {.worker = side->name, .place = base_format("copies[%zu]", index)};
    if (segment >= side->count || !side->segments[segment].live)
        base_report_add(report, "segment_unknown", &where,
                        base_format("one of %llu registered segments", (unsigned long long)side->count),
                        base_format("segment %u", segment), "%s segment is not there", side->role);
    else
        base_report_add(report, "copy_range", &where,
                        base_format("within the %llu bytes of segment %u",
                                    (unsigned long long)side->segments[segment].bytes, segment),
                        base_format("offset %llu, %llu bytes", (unsigned long long)offset,
                                    (unsigned long long)bytes),
                        "%s range leaves its segment", side->role);
}

/* The one check of all copies, against both sides, before anything is submitted. */
static kvferry_status check_copies(const kvferry_copy *copies, size_t count, const copy_side *source,
                                   const copy_side *target, kvferry_report *report)
{
    bool fine = true;
    for (size_t i = 0; i < count; i++) {
        const kvferry_copy *copy = &copies[i];
        if (side_holds(source, copy->source_segment, copy->source_offset, copy->bytes) &&
            side_holds(target, copy->target_segment, copy->target_offset, copy->bytes))
            continue;
        fine = false;
        if (!report)
            break;
        report_side(report, i, source, copy->source_segment, copy->source_offset, copy->bytes);
        report_side(report, i, target, copy->target_segment, copy->target_offset, copy->bytes);
    }
    return fine ? KVFERRY_OK : KVFERRY_OUT_OF_RANGE;
}

static kvferry_status check_begin(const kvferry_engine *engine, const kvferry_peer *peer,
                                  kvferry_direction direction, const kvferry_copy *copies,
                                  size_t count, kvferry_report *report)
{
    bool write = direction == KVFERRY_WRITE;
    if (write ? !engine->capabilities.writes : !engine->capabilities.reads) {
        base_report_add(report, "direction_unsupported", NULL, write ? "reads" : "writes",
                        write ? "a write" : "a read", "engine %s has not this direction",
                        engine->capabilities.name);
        return KVFERRY_UNSUPPORTED;
    }
    const copy_side here = {engine->segments, engine->segment_count, engine->name,
                       write ? "source" : "target"};
    const copy_side there = {peer->segments, peer->segment_count, peer->name, write ? "target" : "source"};
    return check_copies(copies, count, write ? &here : &there, write ? &there : &here, report);
}

/* Last in its peer's ring. */
static void link_transfer(kvferry_peer *peer, kvferry_transfer *transfer)
{
    if (!peer->turn) {
        transfer->next = transfer->previous = transfer;
        peer->turn = transfer;
        return;
    }
    transfer->next = peer->turn;
    transfer->previous = peer->turn->previous;
    transfer->previous->next = transfer;
    peer->turn->previous = transfer;
}

static void unlink_transfer(kvferry_transfer *transfer)
{
    kvferry_peer *peer = transfer->peer;
    if (peer->turn == transfer)
        peer->turn = transfer->next == transfer ? NULL : transfer->next;
    transfer->next->previous = transfer->previous;
    transfer->previous->next = transfer->next;
    transfer->peer = NULL;
}

kvferry_status kvferry_transfer_begin(kvferry_engine *engine, kvferry_peer *peer,
                                      kvferry_direction direction, const kvferry_copy *copies,
                                      size_t count, uint64_t deadline_ns,
                                      kvferry_transfer **transfer, kvferry_report *report)
{
    if (!engine || !peer || peer->engine != engine || !transfer || (count && !copies) ||
        (direction != KVFERRY_WRITE && direction != KVFERRY_READ))
        return KVFERRY_INVALID;
    if (peer->leaving)
        return KVFERRY_PEER_LOST;
    kvferry_status status = check_begin(engine, peer, direction, copies, count, report);
    if (status != KVFERRY_OK)
        return status;
    kvferry_transfer *begun = base_alloc(1, sizeof(*begun));
    if (!begun)
        return KVFERRY_NO_MEMORY;
    begun->peer = peer;
    begun->copies = copies;
    begun->count = count;
    begun->deadline_ns = deadline_ns;
    begun->direction = direction;
    begun->state = (kvferry_transfer_state){.status = KVFERRY_BUSY, .detail = begun->detail};
    link_transfer(peer, begun);
    *transfer = begun;
    return KVFERRY_OK;
}

/* How it ended, for good: the first cause wins. */
void engine_transfer_settle(kvferry_transfer *transfer, kvferry_status status, const char *detail)
{
    if (transfer->state.status != KVFERRY_BUSY)
        return;
    transfer->state.status = status;
    if (detail && *detail)
        snprintf(transfer->detail, sizeof(transfer->detail), "%s: %s", transfer->peer->name, detail);
}

/* One that has ended: stops what it still has in flight, and is over when nothing is. */
void engine_transfer_retire(kvferry_transfer *transfer)
{
    kvferry_peer *peer = transfer->peer;
    if (transfer->flying && !transfer->cancel_sent && peer->engine->capabilities.cancels)
        for (size_t i = 0; i < ENGINE_BATCHES; i++) {
            engine_batch *batch = &peer->batches[i];
            if (batch->flying && batch->transfer == transfer)
                peer->engine->ops->cancel(peer->engine->self, peer->handle, batch);
        }
    transfer->cancel_sent = true;
    if (transfer->flying)
        return;
    unlink_transfer(transfer);
    transfer->state.over = true;
}

const kvferry_transfer_state *kvferry_transfer_get(const kvferry_transfer *transfer)
{
    return &transfer->state;
}

void kvferry_transfer_cancel(kvferry_transfer *transfer)
{
    if (!transfer || transfer->state.status != KVFERRY_BUSY)
        return;
    engine_transfer_settle(transfer, KVFERRY_CANCELED, "the caller canceled it");
    if (!transfer->flying)
        engine_transfer_retire(transfer);
}

kvferry_status kvferry_transfer_free(kvferry_transfer *transfer)
{
    if (!transfer)
        return KVFERRY_OK;
    if (!transfer->state.over)
        return KVFERRY_BUSY;
    free(transfer);
    return KVFERRY_OK;
}

static void settle_failed(const engine_batch *batch, kvferry_status status, const char *detail)
{
    kvferry_transfer *transfer = batch->transfer;
    bool write = transfer->direction == KVFERRY_WRITE;
    const kvferry_copy *first = &transfer->copies[batch->first];
    char words[256];
    snprintf(words, sizeof(words), "%s; %llu bytes from copy %zu on (peer segment %u, offset %llu)",
             detail && *detail ? detail : kvferry_status_describe(status),
             (unsigned long long)batch->bytes, batch->first,
             write ? first->target_segment : first->source_segment,
             (unsigned long long)(write ? first->target_offset : first->source_offset));
    engine_transfer_settle(transfer, status, words);
}

void engine_batch_ended(void *handle, kvferry_status status, const char *detail)
{
    engine_batch *batch = handle;
    if (!batch->flying)
        return; /* a second end, against the contract */
    kvferry_peer *peer = batch->peer;
    kvferry_transfer *transfer = batch->transfer;
    if (status == KVFERRY_OK) {
        transfer->state.copies_done += batch->finishes;
        transfer->state.bytes_done += batch->bytes;
    } else {
        settle_failed(batch, status == KVFERRY_BUSY ? KVFERRY_ENGINE : status, detail);
    }
    transfer->flying--;
    peer->ends++;
    peer->outstanding -= batch->pieces;
    batch->flying = false;
    batch->next_free = NULL;
    if (peer->free_first)
        peer->free_last->next_free = batch;
    else
        peer->free_first = batch;
    peer->free_last = batch;
}
