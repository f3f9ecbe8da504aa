/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node: the core under a lock, and a thread that owns sockets and engine. Public functions take
 * the lock, call the core, and wake the thread, which carries out the effects. Nothing waits under
 * the lock.
 */
#ifndef KVFERRY_NODE_INTERNAL_H
#define KVFERRY_NODE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/core.h"
#include "node/http.h"
#include "node/links.h"
#include "node/metrics.h"
#include "node/resolve.h"
#include "node/watch.h"
#include "node/writes.h"

enum { NODE_LOG_LINES = 1024, NODE_LINE_MAX = 1024, NODE_INCARNATION_TEXT = 17 };

/* --- lines for the caller's log --------------------------------------------------------------- */

typedef struct node_line {
    kvferry_log_level level;
    char *text;
} node_line;

/* Lines come from any thread and are given to the caller by the node's. */
typedef struct node_log {
    kvferry_log call;
    void *context;
    kvferry_log_level level;
    pthread_mutex_t lock;
    node_line lines[NODE_LOG_LINES]; /* a ring */
    size_t first, count;
    uint64_t dropped;
} node_log;

void node_log_begin(node_log *log, kvferry_log call, void *context, kvferry_log_level level);
void node_log_end(node_log *log);
/* Control characters become blanks. */
void node_log_add(node_log *log, kvferry_log_level level, const char *text);
void node_log_format(void *log, kvferry_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Gives all lines to the caller. Of the node's thread alone. */
void node_log_flush(node_log *log);

/* --- events ----------------------------------------------------------------------------------- */

typedef struct node_events {
    kvferry_event **items; /* a queue: `first` is the next one */
    size_t first, end, capacity;
    bool signaled; /* the descriptor is readable */
} node_events;

/* --- the node --------------------------------------------------------------------------------- */

struct kvferry_node {
    /* Fixed once it is made. */
    char host[NODE_HOST_MAX + 1]; /* that the control socket is bound to */
    char address[NODE_ADDRESS_TEXT], bootstrap[NODE_ADDRESS_TEXT],
        metrics_address[NODE_ADDRESS_TEXT];
    char incarnation[NODE_INCARNATION_TEXT];
    kvferry_layout *layout;
    void **segments;
    bool *device; /* per segment: not for the CPU */
    uint32_t segment_count;
    bool insecure;
    base_text labels; /* of kvferry_node_info */
    int wake_fd, events_fd;
    node_http *bootstrap_server, *metrics_server;
    node_log log;
    node_metrics metrics;

    pthread_mutex_t lock;
    pthread_cond_t idle; /* there is nothing left that is not released */
    atomic_uint callers; /* that wait for the lock: they go before the thread */
    atomic_bool awake;   /* the thread will look again without a wake-up */
    node_core *core;
    node_resolver *resolver; /* NULL once it closes */
    node_events events;
    bool closing;

    /* The thread's own. */
    pthread_t thread;
    bool started;
    int epoll;
    node_watch wake_watch;
    node_links *links;
    node_writes *writes;
    node_key_pair keys;
    node_allowed *allowed;
    atomic_uint_fast64_t malformed, refused_keys, refused_connections; /* of the links, for the statistics */
    uint64_t refused; /* as of the metrics' codes */
};

uint64_t node_now(void);

/* Nanoseconds of milliseconds; the most there is, where that is too much. */
uint64_t node_ns(uint64_t milliseconds);

/* Takes the lock; the node's thread lets callers go first. */
void node_enter(kvferry_node *node);

/* Takes over the core's events, publishes statistics, and gives the lock back. */
void node_leave(kvferry_node *node);

/* The same, and the thread looks what there is to do. */
void node_leave_and_wake(kvferry_node *node);
void node_wake(kvferry_node *node);

/* The thread, until node->closing is set and what can still be done is done. */
void *node_run(void *node);

/* Whether this node may talk to a control address: what a link would find out later, told at once.
 * KVFERRY_INVALID, KVFERRY_REFUSED. */
kvferry_status node_check_address(const kvferry_node *node, const char *text, const char *place,
                                  kvferry_report *report);

/* What the core asks for to verify; the context is the node. */
extern const core_checksums node_checksums;

#endif
