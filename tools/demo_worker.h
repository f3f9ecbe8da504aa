/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a worker process. */
#ifndef KVFERRY_DEMO_WORKER_H
#define KVFERRY_DEMO_WORKER_H

#include "demo.h"
#include "demo_fault.h"
#include "oracle.h"

/* What a prefill worker knows of one decode worker. */
typedef struct demo_link {
    kvferry_layout *layout;
    kvferry_plan *plan;
    kvferry_peer *peer;
} demo_link;

/* One request to one decode worker. */
typedef struct demo_sending {
    size_t request; /* index among those under way */
    size_t target;
    demo_copies copies;
    uint64_t bytes;
    uint64_t begin_ns;
    kvferry_transfer *transfer;
} demo_sending;

typedef struct demo_worker {
    const demo_config *config;
    demo_role role;
    size_t rank;
    int fd;

    kvferry_layout *layout;
    kvferry_engine *engine;
    unsigned char **segments;
    bool mapped; /* the segments are this process's own maps, not the engine's memory */
    kvferry_report *report;

    /* All workers of the prefill side, as every worker knows them. */
    kvferry_layout **sources;
    size_t source_count;
    /* Prefill: one per decode worker. */
    demo_link *links;
    size_t link_count;
    demo_sending *sendings;
    size_t sending_count;

    /* The requests that are under way. */
    kvferry_request **requests;
    oracle_transfer *transfers;
    size_t request_count;

    /* A copy that a faulty sender holds back. */
    kvferry_copy held;
    demo_link *held_link;
    bool broken; /* the one copy of late-write or lost-write was chosen already */
} demo_worker;

/* The parent has gone, or wants this worker to end. */
enum { DEMO_PARENT_GONE = -2 };

/* Tells the parent why this worker cannot go on; takes over the report's reasons. Returns the worker's
 * exit status. */
int demo_worker_fail(demo_worker *worker, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Progresses the engine; sleeps until something happens on it or on the control channel, at most
 * for `timeout_ms`. *heard: a message (or the parent's end) waits. TOOL_GO_ON or the exit status. */
int demo_worker_step(demo_worker *worker, int timeout_ms, bool *heard);

/* The seed of the noise that a worker's segments hold before anything else. */
uint64_t demo_noise_seed(const demo_config *config, demo_role role, size_t rank);

/* --- sending (demo_send.c) --------------------------------------------------------------------- */

/* Plans and connects to every decode worker. */
int demo_send_connect(demo_worker *worker, const json_t *targets);

/* Moves this worker's part of all requests under way to all decode workers and confirms each. */
int demo_send_all(demo_worker *worker);

void demo_send_close(demo_worker *worker);

#endif
