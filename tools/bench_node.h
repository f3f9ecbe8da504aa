/* SPDX-License-Identifier: Apache-2.0 */
/* What bench node measures with: nodes of two engines in this process (bench_node_run.c). */
#ifndef KVFERRY_BENCH_NODE_H
#define KVFERRY_BENCH_NODE_H

#include <kvferry/node.h>

#include "tool.h"

typedef struct bench_nodes {
    tool_side side;
    kvferry_node **nodes;
    const char *transport; /* of the engine; NULL: its own choice */
} bench_nodes;

enum { BENCH_BLOCK_TOKENS = 16, BENCH_BLOCK_COPIES = 64, BENCH_BLOCK_BYTES = 128 << 10 };

/* A node for each worker of a model's engine. TOOL_GO_ON, or the exit status with the message given. */
int bench_nodes_start_model(bench_nodes *nodes, const char *model, const tool_topology *topology,
                            uint64_t blocks, const char *engine_id, const char *engine);

/* One node of a small model, whose blocks are BENCH_BLOCK_COPIES copies of BENCH_BLOCK_BYTES in all. */
int bench_nodes_start_small(bench_nodes *nodes, uint64_t blocks, const char *engine_id, const char *engine);
void bench_nodes_stop(bench_nodes *nodes);

/* CPU time of all threads of this process, in seconds; and the time by a clock. */
double bench_cpu_s(void);
double bench_clock_s(void);

typedef struct bench_handshake {
    double cpu_s, clock_s;
} bench_handshake;

/* All of `targets` connect to the engine at this address. TOOL_GO_ON, or TOOL_FAILED. */
int bench_connect_nodes(const char *where, kvferry_node **targets, size_t count, bench_handshake *handshake);
int bench_connect(bench_nodes *sources, bench_nodes *targets, bench_handshake *handshake);

enum { BENCH_MEET_TP = 4 };

typedef struct bench_met { /* what it cost one prefill worker to meet so many decode workers */
    uint64_t workers;
    double cpu_s, clock_s;
    double others_cpu_s; /* what it cost all of them */
} bench_met;

/*
 * One prefill worker meets decode workers, BENCH_MEET_TP an engine: mets[0], the first of each engine, which bring the
 * documents of all of it; mets[1], the others, whose documents are known by their digests (bench_node_meet.c).
 */
int bench_meet(const char *model, uint64_t blocks, uint64_t workers, bench_met mets[2]);

/* Requests of one block, `window` of them in flight at a time. */
typedef struct bench_load {
    uint64_t requests, window;
    bool empty; /* nothing is moved: the prefill side's blocks are only released */
} bench_load;

typedef struct bench_times {
    double cpu_s, clock_s; /* of all requests */
    uint64_t *elapsed_ns;  /* from ask to end, sorted; free() it */
} bench_times;

/* Between the first worker of each; every one must be done and released. */
int bench_requests(bench_nodes *source, bench_nodes *target, const bench_load *load, bench_times *times);

/* CPU seconds that the engine alone takes for as many writes of the same copies. */
int bench_engine_alone(const bench_nodes *source, const bench_nodes *target, const char *engine,
                       uint64_t writes, double *cpu_s);

#endif
