/* SPDX-License-Identifier: Apache-2.0 */
/* Batches over Mooncake: a task for each copy, polled until each has ended. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/mooncake_internal.h"

/* --- the list of what is out --------------------------------------------------------------------- */

static mooncake_batch *take_batch(mooncake_engine *engine)
{
    mooncake_batch *batch = engine->spare;
    if (!batch)
        return malloc(sizeof(*batch));
    engine->spare = batch->next;
    return batch;
}

static void give_back(mooncake_engine *engine, mooncake_batch *batch)
{
    batch->next = engine->spare;
    engine->spare = batch;
}

static void link_out(mooncake_engine *engine, mooncake_batch *batch)
{
    batch->next = engine->out;
    if (batch->next)
        batch->next->previous = batch;
    engine->out = batch;
    batch->peer->outstanding += batch->count;
}

static void unlink_out(mooncake_engine *engine, mooncake_batch *batch)
{
    if (batch->previous)
        batch->previous->next = batch->next;
    else
        engine->out = batch->next;
    if (batch->next)
        batch->next->previous = batch->previous;
    batch->peer->outstanding -= batch->count;
}

static __attribute__((format(printf, 3, 4))) void note(mooncake_batch *batch, kvferry_status status,
                                                       const char *format, ...)
{
    if (batch->status != KVFERRY_OK)
        return;
    batch->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(batch->words, sizeof(batch->words), format, arguments);
    va_end(arguments);
}

/* The connection is lost not before the batch has ended: its words say more than that. */
static void end(mooncake_engine *engine, mooncake_batch *batch)
{
    unlink_out(engine, batch);
    batch->peer->lost = batch->peer->lost || batch->status == KVFERRY_PEER_LOST;
    batch->end(batch->handle, batch->status, batch->status == KVFERRY_OK ? NULL : batch->words);
    give_back(engine, batch);
}

void mooncake_batch_abandon(mooncake_engine *engine, mooncake_batch *batch, kvferry_status status,
                            const char *words)
{
    note(batch, status, "%s", words);
    end(engine, batch);
}

/* --- submission ------------------------------------------------------------------------------- */

/* Peers of one name share the library's queue. */
static size_t outstanding(const mooncake_engine *engine, const mooncake_peer *peer)
{
    size_t tasks = 0;
    for (const mooncake_peer *other = engine->peers; other; other = other->next)
        if (other->open && other->id == peer->id)
            tasks += other->outstanding;
    return tasks;
}

static void fill_requests(mooncake_engine *engine, const mooncake_peer *peer,
                          kvferry_direction direction, const kvferry_engine_copy *copies, size_t count)
{
    for (size_t i = 0; i < count; i++)
        engine->requests[i] = (mooncake_request){
            .opcode = direction == KVFERRY_WRITE ? MOONCAKE_WRITE : MOONCAKE_READ,
            .source = copies[i].local,
            .target = peer->id,
            .offset = copies[i].remote,
            .length = copies[i].bytes,
        };
}

/* A refused submission may have begun some of its tasks. Only if the library lets the batch go there are
 * none: then it counts as not taken. Otherwise it is out, and ends as failed. */
static kvferry_status refused(mooncake_engine *engine, mooncake_batch *batch, int code,
                              kvferry_report *report)
{
    if (engine->api->free(engine->initiator, batch->id) != 0) {
        note(batch, KVFERRY_ENGINE, "submitTransfer: %s", mooncake_error_name(code));
        link_out(engine, batch);
        return KVFERRY_OK;
    }
    give_back(engine, batch);
    if (code == MOONCAKE_TOO_MANY_REQUESTS || code == MOONCAKE_BATCH_BUSY)
        return KVFERRY_BUSY;
    mooncake_report(report, "submitTransfer", mooncake_error_name(code));
    return KVFERRY_ENGINE;
}

kvferry_status mooncake_submit(void *self, void *peer, kvferry_direction direction,
                               const kvferry_engine_copy *copies, size_t count,
                               kvferry_engine_batch_end on_end, void *handle, kvferry_report *report)
{
    mooncake_engine *engine = self;
    mooncake_peer *to = peer;
    if (to->lost)
        return KVFERRY_PEER_LOST;
    kvferry_status status = mooncake_peer_open(engine, to, report);
    if (status != KVFERRY_OK)
        return status;
    if (outstanding(engine, to) + count > MOONCAKE_OUTSTANDING)
        return KVFERRY_BUSY;
    mooncake_batch *batch = take_batch(engine);
    if (!batch)
        return KVFERRY_NO_MEMORY;
    uint64_t id = engine->api->batch(engine->initiator, count);
    if (id == UINT64_MAX || id == (uint64_t)-MOONCAKE_NO_MEMORY) {
        give_back(engine, batch);
        return KVFERRY_NO_MEMORY;
    }
    *batch = (mooncake_batch){
        .peer = to, .end = on_end, .handle = handle, .id = id, .count = count};
    fill_requests(engine, to, direction, copies, count);
    int code = engine->api->submit(engine->initiator, id, engine->requests, count);
    if (code)
        return refused(engine, batch, code, report);
    link_out(engine, batch);
    return KVFERRY_OK;
}

/* --- progress --------------------------------------------------------------------------------- */

static const char *state_name(int state)
{
    switch (state) {
    case MOONCAKE_INVALID:
        return "invalid";
    case MOONCAKE_CANCELED:
        return "canceled";
    default:
        return "failed";
    }
}

/*
 * Whether the task has ended. A timeout is none: the library goes on, and may still write. A failure
 * does not say whose it was. It leaves a connection in doubt, so it counts as lost.
 */
static bool task_ended(const mooncake_engine *engine, mooncake_batch *batch, size_t task)
{
    mooncake_progress progress = {.state = MOONCAKE_WAITING};
    int code = engine->api->poll(engine->initiator, batch->id, task, &progress);
    if (code) {
        note(batch, KVFERRY_ENGINE, "getTransferStatus: %s", mooncake_error_name(code));
        return true;
    }
    if (progress.state == MOONCAKE_WAITING || progress.state == MOONCAKE_PENDING ||
        progress.state == MOONCAKE_TIMEOUT)
        return false;
    if (progress.state == MOONCAKE_COMPLETED)
        return true;
    note(batch, progress.state == MOONCAKE_FAILED ? KVFERRY_PEER_LOST : KVFERRY_ENGINE,
         "Mooncake: task %zu of %zu %s", task + 1, batch->count, state_name(progress.state));
    return true;
}

/* Whether anything changed; *over: all tasks ended and the library has let the batch go. */
static bool advance(const mooncake_engine *engine, mooncake_batch *batch, bool *over)
{
    size_t before = batch->at;
    while (batch->at < batch->count && task_ended(engine, batch, batch->at))
        batch->at++;
    *over = batch->at == batch->count &&
            engine->api->free(engine->initiator, batch->id) != MOONCAKE_BATCH_BUSY;
    return *over || batch->at != before;
}

bool mooncake_progress_all(void *self)
{
    mooncake_engine *engine = self;
    bool active = false, over;
    for (mooncake_batch *batch = engine->out, *next; batch; batch = next) {
        next = batch->next;
        active = advance(engine, batch, &over) || active;
        if (over)
            end(engine, batch);
    }
    return active;
}
