/* SPDX-License-Identifier: Apache-2.0 */
/* The engine as the node's thread runs it: peers and writes by the core's numbers. */
#ifndef KVFERRY_NODE_WRITES_H
#define KVFERRY_NODE_WRITES_H

#include <kvferry/engine.h>

#include "base/base.h"

typedef struct node_writes node_writes;

/* Takes the engine: node_writes_close closes it. An engine without a descriptor is polled. */
kvferry_status node_writes_create(kvferry_engine *engine, int epoll, node_writes **writes);
void node_writes_close(node_writes *writes);

/* --- as the core's effects ask: a status other than OK is the end of it, with the report's reasons  */

kvferry_status node_writes_connect(node_writes *writes, uint64_t peer, const void *binding,
                                   size_t size, kvferry_report *report);
/* Begins it: it is closed by node_writes_turn, when it has left (kvferry_peer_leave). */
void node_writes_close_peer(node_writes *writes, uint64_t peer);
kvferry_status node_writes_begin(node_writes *writes, uint64_t write, uint64_t peer,
                                 const kvferry_copy *copies, size_t count, uint64_t deadline_ns,
                                 kvferry_report *report);
void node_writes_cancel(node_writes *writes, uint64_t write);

/* --- what happens ----------------------------------------------------------------------------- */

typedef struct node_write_end {
    uint64_t write;
    kvferry_status status;
    char detail[256];
} node_write_end;

/* Moves the engine on for a bounded time. */
void node_writes_turn(node_writes *writes, uint64_t now);

/* The next write that is over; the next peer whose connection is lost, told once. */
bool node_writes_next_end(node_writes *writes, node_write_end *end);
bool node_writes_next_lost(node_writes *writes, uint64_t *peer);

/* Whether node_writes_turn has something to do now; arms the engine's descriptor if not. */
bool node_writes_busy(node_writes *writes);
uint64_t node_writes_next_time(const node_writes *writes, uint64_t now);

size_t node_writes_count(const node_writes *writes);

#endif
