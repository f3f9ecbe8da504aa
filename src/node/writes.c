/* SPDX-License-Identifier: Apache-2.0 */
#include "node/writes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "node/table.h"
#include "node/watch.h"

enum {
    WRITES_ROUNDS = 64,         /* calls of progress in one turn */
    WRITES_LOST_NS = 100000000, /* between looks for lost connections */
    WRITES_POLL_NS = 1000000    /* an engine without a descriptor, while nothing moves */
};

typedef struct writes_peer {
    uint64_t id;
    kvferry_peer *peer;
    bool lost; /* told */
    UT_hash_handle hh;
} writes_peer;

typedef struct writes_write {
    uint64_t id;
    kvferry_transfer *transfer;
    uint64_t deadline;
    UT_hash_handle hh;
} writes_write;

struct node_writes {
    kvferry_engine *engine;
    int epoll, fd;
    node_watch watch;
    writes_peer *peers, *lost_cursor;
    writes_peer *leaving; /* closed, once what is under way to them is */
    writes_write *writes, *end_cursor;
    bool active; /* progress had something to do last time */
    bool scan;   /* a write may have ended */
    uint64_t deadline, lost_time;
};

static void engine_ready(node_watch *watch)
{
    node_writes *writes = (node_writes *)(void *)((char *)watch - offsetof(node_writes, watch));
    writes->active = true;
}

kvferry_status node_writes_create(kvferry_engine *engine, int epoll, node_writes **writes)
{
    node_writes *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->engine = engine;
    made->epoll = epoll;
    made->active = true;
    made->deadline = UINT64_MAX;
    made->fd = kvferry_engine_fd(engine);
    if (made->fd >= 0 && !node_watch_add(epoll, &made->watch, made->fd, EPOLLIN, engine_ready)) {
        free(made);
        return KVFERRY_IO;
    }
    *writes = made;
    return KVFERRY_OK;
}

static void free_peers(writes_peer **peers)
{
    writes_peer *peer, *next;
    HASH_ITER(hh, *peers, peer, next)
    {
        HASH_DEL(*peers, peer);
        free(peer);
    }
}

void node_writes_close(node_writes *writes)
{
    if (!writes)
        return;
    writes_write *write, *next;
    node_watch_remove(writes->epoll, &writes->watch);
    kvferry_engine_close(writes->engine); /* all peers together: each may take a second alone */
    free_peers(&writes->peers);
    free_peers(&writes->leaving);
    HASH_ITER(hh, writes->writes, write, next)
    {
        HASH_DEL(writes->writes, write);
        kvferry_transfer_free(write->transfer);
        free(write);
    }
    free(writes);
}

/* --- peers ------------------------------------------------------------------------------------ */

static writes_peer *find_peer(const node_writes *writes, uint64_t id)
{
    writes_peer *peer;
    HASH_FIND(hh, writes->peers, &id, sizeof(id), peer);
    return peer;
}

kvferry_status node_writes_connect(node_writes *writes, uint64_t id, const void *binding,
                                   size_t size, kvferry_report *report)
{
    writes_peer *peer = base_alloc(1, sizeof(*peer));
    if (!peer)
        return KVFERRY_NO_MEMORY;
    peer->id = id;
    kvferry_status status =
        kvferry_engine_connect(writes->engine, binding, size, &peer->peer, report);
    if (status == KVFERRY_OK) {
        HASH_ADD(hh, writes->peers, id, sizeof(peer->id), peer);
        if (!peer->hh.tbl) {
            kvferry_peer_close(peer->peer);
            status = KVFERRY_NO_MEMORY;
        }
    }
    if (status != KVFERRY_OK)
        free(peer);
    writes->active = true;
    return status;
}

void node_writes_close_peer(node_writes *writes, uint64_t id)
{
    writes_peer *peer = find_peer(writes, id);
    if (!peer)
        return;
    HASH_DEL(writes->peers, peer);
    kvferry_peer_leave(peer->peer);
    HASH_ADD(hh, writes->leaving, id, sizeof(peer->id), peer);
    if (!peer->hh.tbl) { /* no memory to wait with */
        kvferry_peer_close(peer->peer);
        free(peer);
    }
    writes->active = writes->scan = true;
}

/* Closes those that have left. */
static void close_left(node_writes *writes)
{
    writes_peer *peer, *next;
    HASH_ITER(hh, writes->leaving, peer, next)
    {
        if (!kvferry_peer_leave(peer->peer))
            continue;
        HASH_DEL(writes->leaving, peer);
        kvferry_peer_close(peer->peer);
        free(peer);
        writes->scan = true;
    }
}

/* --- writes ----------------------------------------------------------------------------------- */

kvferry_status node_writes_begin(node_writes *writes, uint64_t id, uint64_t peer_id,
                                 const kvferry_copy *copies, size_t count, uint64_t deadline_ns,
                                 kvferry_report *report)
{
    writes_peer *peer = find_peer(writes, peer_id);
    if (!peer)
        return KVFERRY_PEER_LOST;
    writes_write *write = base_alloc(1, sizeof(*write));
    if (!write)
        return KVFERRY_NO_MEMORY;
    write->id = id;
    write->deadline = deadline_ns ? deadline_ns : UINT64_MAX;
    /* In the table first: a transfer that has begun can no longer be forgotten. */
    HASH_ADD(hh, writes->writes, id, sizeof(write->id), write);
    if (!write->hh.tbl) {
        free(write);
        return KVFERRY_NO_MEMORY;
    }
    kvferry_status status =
        kvferry_transfer_begin(writes->engine, peer->peer, KVFERRY_WRITE, copies, count,
                               deadline_ns, &write->transfer, report);
    if (status != KVFERRY_OK) {
        HASH_DEL(writes->writes, write);
        free(write);
        return status;
    }
    writes->deadline = base_min(writes->deadline, write->deadline);
    writes->active = true;
    return KVFERRY_OK;
}

void node_writes_cancel(node_writes *writes, uint64_t id)
{
    writes_write *write;
    HASH_FIND(hh, writes->writes, &id, sizeof(id), write);
    if (!write)
        return;
    kvferry_transfer_cancel(write->transfer);
    writes->active = writes->scan = true;
}

/* --- what happens ----------------------------------------------------------------------------- */

void node_writes_turn(node_writes *writes, uint64_t now)
{
    bool active = true, any = false;
    if (now >= writes->deadline) { /* the engine ends what is late */
        writes->deadline = UINT64_MAX;
        for (const writes_write *write = writes->writes; write; write = write->hh.next)
            if (write->deadline > now)
                writes->deadline = base_min(writes->deadline, write->deadline);
    }
    for (int i = 0; i < WRITES_ROUNDS && active; i++) {
        active = false;
        if (kvferry_engine_progress(writes->engine, &active) != KVFERRY_OK)
            active = false;
        any |= active;
    }
    writes->active = active;
    close_left(writes);
    writes->scan |= any || writes->writes;
    writes->end_cursor = writes->scan ? writes->writes : NULL;
    writes->scan = false;
    if (now >= writes->lost_time) {
        writes->lost_time = now + WRITES_LOST_NS;
        writes->lost_cursor = writes->peers;
    } else {
        writes->lost_cursor = NULL;
    }
}

bool node_writes_next_end(node_writes *writes, node_write_end *end)
{
    while (writes->end_cursor) {
        writes_write *write = writes->end_cursor;
        writes->end_cursor = write->hh.next;
        const kvferry_transfer_state *state = kvferry_transfer_get(write->transfer);
        if (!state->over)
            continue;
        *end = (node_write_end){.write = write->id, .status = state->status};
        snprintf(end->detail, sizeof(end->detail), "%s", state->detail);
        HASH_DEL(writes->writes, write);
        kvferry_transfer_free(write->transfer);
        free(write);
        return true;
    }
    return false;
}

bool node_writes_next_lost(node_writes *writes, uint64_t *id)
{
    while (writes->lost_cursor) {
        writes_peer *peer = writes->lost_cursor;
        writes->lost_cursor = peer->hh.next;
        if (peer->lost || !kvferry_peer_lost(peer->peer))
            continue;
        peer->lost = true;
        *id = peer->id;
        return true;
    }
    return false;
}

bool node_writes_busy(node_writes *writes)
{
    if (writes->active || writes->scan)
        return true;
    if (writes->fd < 0)
        return writes->writes || writes->leaving;
    return kvferry_engine_arm(writes->engine) == KVFERRY_BUSY;
}

uint64_t node_writes_next_time(const node_writes *writes, uint64_t now)
{
    uint64_t next = writes->deadline;
    if (writes->fd < 0)
        next = base_min(next, now + WRITES_POLL_NS);
    if (writes->peers || writes->leaving)
        next = base_min(next, writes->lost_time);
    return next;
}

size_t node_writes_count(const node_writes *writes)
{
    return HASH_COUNT(writes->writes);
}
