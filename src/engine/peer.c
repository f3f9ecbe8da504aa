/* SPDX-License-Identifier: Apache-2.0 */
/* Connections. binding.c makes them. */
#include "engine/engine.h"

#include <stdlib.h>
#include <time.h>

/* How long a close waits for a peer's next sign of life. */
static const uint64_t settling_ns = 1000000000;

void engine_peer_check_lost(kvferry_peer *peer)
{
    if (!peer->lost)
        peer->lost = peer->engine->ops->peer_lost(peer->engine->self, peer->handle);
}

bool kvferry_peer_lost(const kvferry_peer *peer)
{
    return peer->lost || peer->engine->ops->peer_lost(peer->engine->self, peer->handle);
}

void engine_peer_link(kvferry_peer *peer)
{
    kvferry_engine *engine = peer->engine;
    for (size_t i = 0; i < ENGINE_BATCHES; i++)
        peer->batches[i].next_free = i + 1 < ENGINE_BATCHES ? &peer->batches[i + 1] : NULL;
    peer->free_first = &peer->batches[0];
    peer->free_last = &peer->batches[ENGINE_BATCHES - 1];
    if (!engine->peers) {
        peer->next = peer->previous = peer;
        engine->peers = peer;
        return;
    }
    peer->next = engine->peers;
    peer->previous = engine->peers->previous;
    peer->previous->next = peer;
    engine->peers->previous = peer;
}

static void unlink_peer(kvferry_peer *peer)
{
    kvferry_engine *engine = peer->engine;
    if (engine->peers == peer)
        engine->peers = peer->next == peer ? NULL : peer->next;
    peer->next->previous = peer->previous;
    peer->previous->next = peer->next;
}

/* All its transfers have ended; what they have in flight is canceled where the engine can. */
static void end_transfers(kvferry_peer *peer)
{
    kvferry_transfer *transfer = peer->turn;
    if (!transfer)
        return;
    kvferry_transfer *last = transfer->previous;
    for (bool more = true; more;) {
        kvferry_transfer *next = transfer->next;
        more = transfer != last;
        engine_transfer_settle(transfer, KVFERRY_PEER_LOST, "the connection was closed");
        engine_transfer_retire(transfer);
        transfer = next;
    }
}

/* Whether nothing has been heard of it for so long that nothing more is expected. */
static bool is_silent(kvferry_peer *peer)
{
    uint64_t now = engine_now_ns();
    if (peer->heard != peer->ends) {
        peer->heard = peer->ends;
        peer->silent_ns = now;
    }
    return now - peer->silent_ns >= settling_ns;
}

bool kvferry_peer_leave(kvferry_peer *peer)
{
    const kvferry_engine *engine = peer->engine;
    if (!peer->leaving) {
        peer->leaving = true;
        peer->heard = peer->ends;
        peer->silent_ns = engine_now_ns();
        end_transfers(peer);
    }
    if (!peer->left)
        peer->left = !engine->ops->peer_busy || !engine->ops->peer_busy(engine->self, peer->handle) ||
                     (!engine->capabilities.lingers && is_silent(peer));
    return peer->left;
}

bool engine_peers_leave(kvferry_engine *engine)
{
    bool left = true;
    kvferry_peer *peer = engine->peers;
    if (peer)
        do {
            left = kvferry_peer_leave(peer) && left;
            peer = peer->next;
        } while (peer != engine->peers);
    return left;
}

void engine_wait(kvferry_engine *engine)
{
    const struct timespec pause = {.tv_nsec = 20000};
    if (!engine->ops->progress(engine->self))
        nanosleep(&pause, NULL);
}

void kvferry_peer_close(kvferry_peer *peer)
{
    if (!peer)
        return;
    while (!kvferry_peer_leave(peer))
        engine_wait(peer->engine);
    peer->engine->ops->peer_close(peer->engine->self, peer->handle);
    /* An implementation that left a batch without an end cannot touch it any more all the same. */
    for (size_t i = 0; i < ENGINE_BATCHES; i++)
        engine_batch_ended(&peer->batches[i], KVFERRY_PEER_LOST, NULL);
    while (peer->turn)
        engine_transfer_retire(peer->turn);
    unlink_peer(peer);
    free(peer->segments);
    free(peer);
}
