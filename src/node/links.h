/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links to other nodes over ZeroMQ: a bound ROUTER for those that come, a DEALER for each that the
 * core opens. One thread uses them. Nothing here blocks but node_links_close.
 */
#ifndef KVFERRY_NODE_LINKS_H
#define KVFERRY_NODE_LINKS_H

#include <zmq.h>

#include "node/core.h"
#include "node/keys.h"

typedef struct node_links node_links;

typedef struct node_links_options {
    int epoll;                 /* where all descriptors are watched */
    const node_key_pair *keys; /* NULL: without CURVE */
    node_allowed *allowed;     /* with keys */
    bool insecure;
    uint64_t max_message_bytes, silence_ms;
    uint32_t max_peers;
    void (*log)(void *context, kvferry_log_level level, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    void *log_context;
} node_links_options;

/* Binds to `listen` (numeric); *bound is what it came to be. KVFERRY_IO, KVFERRY_UNSUPPORTED,
 * KVFERRY_NO_MEMORY, with a reason. */
kvferry_status node_links_create(const node_links_options *options, const node_address *listen,
                                 node_address *bound, node_links **links, kvferry_report *report);

/* What was sent last goes out, for 200 ms at most. */
void node_links_close(node_links *links);

/* --- as the core's effects ask ---------------------------------------------------------------- */

typedef enum node_links_opening {
    NODE_LINKS_OPENED,    /* or ended at once: see node_links_next_end */
    NODE_LINKS_NEEDS_NAME /* *address has a name: node_links_named when it is looked up */
} node_links_opening;

node_links_opening node_links_open(node_links *links, core_link link, const char *text,
                                   node_address *address);
/* `address` NULL: the name could not be looked up, `why`. */
void node_links_named(node_links *links, core_link link, const node_address *address,
                      const char *why);
void node_links_close_one(node_links *links, core_link link);

/*
 * Sends, or keeps it while the peer is slow, or drops it: when the link holds two of the longest
 * messages, or as much as all links may still hold, which is eight of the longest together. That
 * is counted in bytes, until they are with the kernel.
 */
void node_links_send(node_links *links, core_link link, const void *data, size_t size);

/* --- what happens ----------------------------------------------------------------------------- */

/* Looks after monitors, probes and what could not be sent yet; `now` in nanoseconds. */
void node_links_turn(node_links *links, uint64_t now);

/* The next message; false: none. The caller closes it. */
bool node_links_receive(node_links *links, core_link *link, zmq_msg_t *message);
/* By which key its sender proved who it is, as 64 hexadecimal digits; NULL: by none, or the link was opened from here. */
const char *node_links_key(zmq_msg_t *message);

/* The address of the host that it came from, without a port; NULL: not known. */
const char *node_links_place(zmq_msg_t *message);

/* The next link that ended and has not been told; it is gone with that. */
bool node_links_next_end(node_links *links, core_link *link, core_link_end *how);

/* Whether node_links_turn or node_links_receive have something to do now. */
bool node_links_busy(const node_links *links);

/* When node_links_turn is next needed; UINT64_MAX: when a descriptor wakes. */
uint64_t node_links_next_time(const node_links *links);

/* Whether something could not be sent yet. */
bool node_links_pending(const node_links *links);

/* Bytes of messages that wait to be sent, and of those that ZeroMQ holds for that. */
uint64_t node_links_held(const node_links *links);

uint64_t node_links_malformed(const node_links *links);
uint64_t node_links_refused_keys(const node_links *links);
/* With keys: of hosts that have more than they leave to others. */
uint64_t node_links_refused_connections(const node_links *links);

#endif
