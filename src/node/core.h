/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node without its thread, its sockets and its clock: what happens (calls, messages, ends of writes,
 * lost links, time) goes in, what is to be done (effects) and to be told (events) comes out. Same inputs, same
 * outputs: the simulator and the driver (node.c) run the same code. One thread at a time.
 */
#ifndef KVFERRY_NODE_CORE_H
#define KVFERRY_NODE_CORE_H

#include <kvferry/node.h>

#include "base/base.h"
#include "node/codes.h"
#include "wire/wire.h"

typedef struct node_core node_core;

/* Checksums for verify, of what this node's own segments hold. Called inside core_next_effect. */
typedef struct core_checksums {
    void *(*begin)(void *context); /* of no bytes; NULL: out of memory */
    /* Adds what a request, which may be a part of one, wants of a piece of a plan. */
    kvferry_status (*add)(void *context, void *sum, const kvferry_plan *plan, size_t source, size_t piece,
                          kvferry_side side, const kvferry_request *request);
    uint64_t (*end)(void *context, void *sum); /* its value; frees it */
} core_checksums;

typedef struct core_options { /* as in kvferry_node_options; all set */
    uint64_t lease_ns, transfer_ns, connect_ns, early_ns, retry_ns, silence_ns, linger_ns, remember_ns;
    uint32_t max_transfers, max_peers;
    uint64_t max_peer_copies, max_message_bytes;
    bool verify;
    const char *address;     /* of this node's control socket; with its key, if peers have to have keys */
    const char *host;        /* in digits, that it is bound to: who speaks from there is here; "" or NULL: not known */
    const char *incarnation; /* 16 hexadecimal digits */
    const char *engine;      /* name of the transfer engine */
    const void *binding;     /* its export */
    size_t binding_size;
    uint64_t seed;           /* of attempts' numbers */
    void (*log)(void *context, kvferry_log_level level, const char *line);
    void *log_context;
    kvferry_log_level log_level;
    const core_checksums *checksums; /* NULL: verify is refused */
    void *checksums_context;
} core_options;

/* `layout` is copied by its bytes. */
kvferry_status core_create(const core_options *options, const kvferry_layout *layout, uint64_t now,
                           node_core **core, kvferry_report *report);
void core_free(node_core *core);

/* --- links: numbered by the driver or by the core, never used twice ------------------------------- */

/*
 * A link is a way to another node: one that the core opened to an address (odd numbers, given by the core),
 * or one that messages of a peer come in by (even numbers, given by the driver). After the end of one that came in
 * nothing of its connection comes any more, by no link.
 */
typedef uint64_t core_link;

typedef enum core_link_end {
    CORE_LINK_LOST,    /* the connection broke, or an answer cannot be delivered */
    CORE_LINK_REFUSED, /* the peer's host answered that nobody listens at the address: the process that had
                          it is dead, and what its kernel still had to send has been sent */
    CORE_LINK_DENIED,  /* the other side does not allow this node's key: nothing was sent */
    CORE_LINK_UNLISTED,/* this node does not allow the address's key, or it has none: nothing was sent */
    CORE_LINK_UNPROVED /* who listens at the address ended the connection in the handshake, before it proved that it
                          has the address's key: it has another, or takes no more connections for now */
} core_link_end;

enum { CORE_PLACE_TEXT = 160 };

/* Of a link that the core opened to a name: it goes to this address, whose host is numeric. Told before anything else of
 * the link. */
void core_link_at(node_core *core, core_link link, const char *address);

/* --- effects: what the driver has to do, in order -------------------------------------------------- */

typedef enum core_effect_kind {
    CORE_OPEN_LINK,    /* link, address */
    CORE_CLOSE_LINK,   /* link */
    CORE_SEND,         /* link, data, size: the driver may lose it, never block on it */
    CORE_RESOLVE,      /* query, address ("http://...", "file:..."), engine_id: find workers' addresses */
    CORE_CONNECT_PEER, /* peer, data, size: connect the engine to this binding */
    CORE_CLOSE_PEER,   /* peer: tear the engine's connection down; its writes end (core_write_ended) */
    CORE_WRITE,        /* write, peer, copies, count, deadline */
    CORE_CANCEL_WRITE  /* write */
} core_effect_kind;

typedef struct core_effect {
    core_effect_kind kind;
    core_link link;
    uint64_t peer;  /* a worker of another engine that this node may write to; never used twice */
    uint64_t write; /* never used twice */
    uint64_t query;
    const char *address, *engine_id;
    const void *data;
    size_t size;
    const kvferry_copy *copies; /* stay until core_write_ended */
    size_t count;
    uint64_t deadline_ns;
} core_effect;

/*
 * The next effect; false: none. What it points to is valid until the next core_* call. Does a bounded part of what
 * takes long (expanding, checksums): where more is left, core_next_time is now.
 */
bool core_next_effect(node_core *core, core_effect *effect);

/* --- what happens ------------------------------------------------------------------------------------ */

/* Every call takes the time, in nanoseconds, of a clock that never goes back. Effects and events may be there after each. */

/* `key`: by which the peer that the link came from proved who it is, as 64 hexadecimal digits; NULL: none. Of a link that
 * the core opened it is that of the address. `place`: the host that the message came from, for the log; NULL: not known. */
void core_received(node_core *core, core_link link, const char *key, const char *place, const void *data,
                   size_t size, uint64_t now);
void core_link_ended(node_core *core, core_link link, core_link_end how, uint64_t now);

/* Addresses of an engine's workers; engine_id as found. status not KVFERRY_OK: with reasons. */
void core_resolved(node_core *core, uint64_t query, kvferry_status status, const char *engine_id,
                   const char *const *addresses, size_t count, const kvferry_report *report,
                   uint64_t now);

/* The engine could not be connected, or lost the connection. */
void core_peer_lost(node_core *core, uint64_t peer, const char *detail, uint64_t now);
/* It could not be connected. `report`: why; may be empty. The peer is told, and is not one any more. */
void core_peer_refused(node_core *core, uint64_t peer, kvferry_status status, const kvferry_report *report,
                       uint64_t now);

/* The write is over: the engine cannot touch its bytes any more. */
void core_write_ended(node_core *core, uint64_t write, kvferry_status status, const char *detail,
                      uint64_t now);

/* Does what is due. */
void core_tick(node_core *core, uint64_t now);

/* When core_tick is next needed; UINT64_MAX: not before something happens. */
uint64_t core_next_time(const node_core *core);

/* --- calls: as the functions of node.h --------------------------------------------------------------- */

kvferry_status core_set_leader(node_core *core, const char *address, uint64_t now,
                               kvferry_report *report);
kvferry_status core_connect(node_core *core, const char *engine_id, const char *where, uint64_t now,
                            kvferry_report *report);
kvferry_status core_declare_dead(node_core *core, const char *incarnation, uint64_t now,
                                 kvferry_report *report);
kvferry_status core_expect(node_core *core, const char *transfer_id, uint64_t now,
                           kvferry_report *report);
kvferry_status core_offer(node_core *core, const kvferry_offer *offer, uint64_t now,
                          kvferry_report *report);
kvferry_status core_ready(node_core *core, const char *transfer_id, uint64_t now);
kvferry_status core_ask(node_core *core, const kvferry_ask *ask, uint64_t now, kvferry_report *report);
kvferry_status core_renew(node_core *core, const char *engine_id, const char *transfer_id,
                          uint64_t now, kvferry_report *report);
kvferry_status core_abort(node_core *core, kvferry_side side, const char *transfer_id, uint64_t now);

/* Refuses new offers and asks from now on. core_idle: nothing is unreleased. */
void core_drain(node_core *core);
bool core_idle(const node_core *core);

/* Says BYE on all links, once all writes are over. */
void core_bye(node_core *core, uint64_t now);

kvferry_event *core_next_event(node_core *core);
size_t core_events_waiting(const node_core *core);
void core_get_statistics(const node_core *core, kvferry_node_statistics *statistics);
/* What the core's driver counts: statistics and status say it with the core's own counts. */
void core_driver_counts(node_core *core, uint64_t malformed, uint64_t refused_keys, uint64_t refused_connections,
                        uint64_t events);
/* What statistics.refused counts, by code, in column 0. */
const node_codes *core_refusals(const node_core *core);

/* Peers, transfers, quarantine as JSON for `status`. */
kvferry_status core_status(const node_core *core, uint64_t now, base_text *json);

#endif
