/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a worker process. */
#ifndef KVFERRY_DEMO_WORKER_H
#define KVFERRY_DEMO_WORKER_H

#include <kvferry/node.h>

#include "demo.h"
#include "demo_fault.h"
#include "oracle.h"

typedef struct demo_worker {
    const demo_config *config;
    demo_role role;
    size_t rank;
    int fd;

    kvferry_layout *layout;
    kvferry_node *node;
    unsigned char **segments;
    bool mapped; /* the segments are this process's own maps, not the engine's memory */
    kvferry_report *report;

    /* The documents of all workers, as every worker knows them. */
    tool_side sides[DEMO_ROLES];
    char *where; /* the address of the prefill engine's leader */

    /* The requests that are under way. */
    kvferry_request **requests;
    oracle_transfer *transfers;
    size_t request_count;
    bool held; /* a copy of an earlier round may be held back */
} demo_worker;

/* The parent has gone, or wants this worker to end. */
enum { DEMO_PARENT_GONE = -2 };

/* Tells the parent why this worker cannot go on; takes over the report's reasons. Returns the worker's
 * exit status. */
int demo_worker_fail(demo_worker *worker, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The seed of the noise that a worker's segments hold before anything else. */
uint64_t demo_noise_seed(const demo_config *config, demo_role role, size_t rank);

/* --- the node (demo_move.c) ---------------------------------------------------------------------- */

/* Starts the node: its engine, and its memory, one segment an entry of worker->segments. */
int demo_move_start(demo_worker *worker);

/* Makes the node known to its engine's leader; a decode worker connects to the prefill engine. */
int demo_move_connect(demo_worker *worker, const char *own_leader);

/* Offers, or asks for, all requests under way, and waits until all are released. A prefill worker
 * confirms each to the parent. */
int demo_move_all(demo_worker *worker);

void demo_move_close(demo_worker *worker);

#endif
