/* SPDX-License-Identifier: Apache-2.0 */
/* Connections. binding.c makes them. */
#include "engine/engine.h"

#include <stdlib.h>

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

void kvferry_peer_close(kvferry_peer *peer)
{
    if (!peer)
        return;
    kvferry_transfer *transfer = peer->turn;
    if (transfer)
        do {
            engine_transfer_settle(transfer, KVFERRY_PEER_LOST, "the connection was closed");
            transfer = transfer->next;
        } while (transfer != peer->turn);
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
