/* SPDX-License-Identifier: Apache-2.0 */
/* Connections over Mooncake: a name, and what the library knows of its segments. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/mooncake_internal.h"

/* How long a close waits for the next sign of life of what is with the library. */
static const uint64_t settling_ns = 1000000000;

static void unlink_peer(mooncake_engine *engine, mooncake_peer *peer)
{
    if (peer->previous)
        peer->previous->next = peer->next;
    else
        engine->peers = peer->next;
    if (peer->next)
        peer->next->previous = peer->previous;
}

/* What the library knows of a peer is a snapshot, so it is taken anew for each connection. */
kvferry_status mooncake_peer_open(mooncake_engine *engine, mooncake_peer *peer, kvferry_report *report)
{
    if (peer->open)
        return KVFERRY_OK;
    kvferry_status status = mooncake_begin(engine, report);
    if (status != KVFERRY_OK)
        return status;
    const mooncake_api *api = engine->api;
    int32_t id = (api->open_fresh ? api->open_fresh : api->open)(engine->initiator, peer->name);
    if (id < 0) {
        mooncake_report(report, base_format("%.200s does not answer", peer->name),
                        mooncake_error_name(id));
        peer->lost = true;
        return KVFERRY_PEER_LOST;
    }
    peer->id = id;
    peer->open = true;
    return KVFERRY_OK;
}

kvferry_status mooncake_peer_connect(void *self, const void *address, size_t size, void **peer,
                                     kvferry_report *report)
{
    mooncake_engine *engine = self;
    if (!size || size >= MOONCAKE_NAME_BYTES || memchr(address, '\0', size)) {
        base_report_add(report, "binding_malformed", &(base_where){.place = "engine address"},
                        "the name of a Mooncake segment", base_format("%zu bytes", size),
                        "the binding cannot be used");
        return KVFERRY_MALFORMED;
    }
    mooncake_peer *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    memcpy(made->name, address, size);
    kvferry_status status = mooncake_peer_open(engine, made, report);
    if (status != KVFERRY_OK) {
        free(made);
        return status;
    }
    made->next = engine->peers;
    if (made->next)
        made->next->previous = made;
    engine->peers = made;
    *peer = made;
    return KVFERRY_OK;
}

/* A copy's addresses are all that the library wants. */
kvferry_status mooncake_segment_import(void *self, void *peer, const void *data, size_t size,
                                       void **remote_segment, kvferry_report *report)
{
    (void)self, (void)data, (void)size, (void)report;
    *remote_segment = peer;
    return KVFERRY_OK;
}

bool mooncake_peer_lost(void *self, void *peer)
{
    (void)self;
    return ((const mooncake_peer *)peer)->lost;
}

/* --- closing ----------------------------------------------------------------------------------- */

bool mooncake_peer_busy(void *self, void *peer)
{
    (void)self;
    return ((const mooncake_peer *)peer)->outstanding != 0;
}

static bool others_are_out(const mooncake_engine *engine, const mooncake_peer *peer)
{
    for (const mooncake_peer *other = engine->peers; other; other = other->next)
        if (other != peer && other->outstanding)
            return true;
    return false;
}

/* Lets what is out to all others end, as long as it moves on. */
static void settle_others(mooncake_engine *engine, const mooncake_peer *peer)
{
    const struct timespec pause = {.tv_nsec = 20000};
    uint64_t end = engine_now_ns() + settling_ns;
    while (others_are_out(engine, peer)) {
        if (mooncake_progress_all(engine))
            end = engine_now_ns() + settling_ns;
        else if (engine_now_ns() >= end)
            return;
        else
            nanosleep(&pause, NULL);
    }
}

/* Nothing leaves an instance that is gone. What others had in it goes with it, if it does not end. */
static void tear_down(mooncake_engine *engine, const mooncake_peer *peer)
{
    settle_others(engine, peer);
    engine->api->destroy(engine->initiator);
    engine->initiator = NULL;
    for (mooncake_peer *other = engine->peers; other; other = other->next)
        other->open = false;
    while (engine->out) {
        mooncake_batch *batch = engine->out;
        bool own = batch->peer == peer;
        mooncake_batch_abandon(engine, batch, own ? KVFERRY_PEER_LOST : KVFERRY_ENGINE,
                               own ? "the connection was closed"
                                   : "it did not end, and was torn down with another connection");
    }
}

static bool is_shared(const mooncake_engine *engine, const mooncake_peer *peer)
{
    for (const mooncake_peer *other = engine->peers; other; other = other->next)
        if (other != peer && other->open && other->id == peer->id)
            return true;
    return false;
}

void mooncake_peer_close(void *self, void *peer)
{
    mooncake_engine *engine = self;
    mooncake_peer *gone = peer;
    if (gone->outstanding)
        tear_down(engine, gone);
    if (gone->open && !is_shared(engine, gone))
        engine->api->close(engine->initiator, gone->id);
    unlink_peer(engine, gone);
    free(gone);
}
