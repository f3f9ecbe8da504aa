/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transfer by hand between two shells: `serve` is a decode engine that waits, `send` a prefill engine that
 * has it fetch a request. Each side is all workers of one engine, as nodes in one process, with memory of its own.
 * Beside the nodes' own messages there is the line that a router would be in a deployment: JSON over TCP
 * (demo_channel_read, demo_channel_write), by which the two learn of each other and of the request.
 *
 *   try_options.c  what both take        try_net.c    addresses and connections
 *   try_engine.c   nodes, events         serve.c, send.c
 */
#ifndef KVFERRY_TRY_H
#define KVFERRY_TRY_H

#include <kvferry/node.h>

#include "demo.h"
#include "oracle.h"

#define TRY_PROTOCOL "kvferry-try/1"

/* --- options (try_options.c) ------------------------------------------------------------------- */

#define TRY_OPTION_LIMIT (16 + TOOL_MODEL_OPTION_LIMIT)

typedef struct try_options {
    const char *model, *topology, *engine_id, *transport, *key, *allowed;
    tool_list layouts;
    uint64_t timeout; /* seconds */
    bool insecure, verify;
    tool_model_values values;
} try_options;

/* The rows that both verbs have; returns their number. */
size_t try_option_rows(try_options *options, const char *engine_id, tool_option *rows);

/* The documents of all workers, from the model or from files. TOOL_GO_ON, or the exit status. */
int try_side_make(const try_options *options, tool_side *side);

/* --- the network (try_net.c) ------------------------------------------------------------------- */

/* Listens at HOST:PORT (brackets around an IPv6 host; port 0: any); *bound is the address with its port.
 * TOOL_GO_ON or the exit status, with the message given. */
int try_listen(const char *address, int *fd, char **bound);

/* Connects to HOST:PORT; *host is the own end's host, with brackets where it needs them. */
int try_dial(const char *address, uint64_t timeout_s, int *fd, char **host);

/* Reads and writes of `fd` fail after so long. */
void try_set_patience(int fd, uint64_t timeout_s);

char *try_peer_name(int fd); /* "HOST:PORT" of the other end */

/* The HOST of HOST:PORT, with its brackets. */
char *try_host(const char *address);

/* --- an engine's workers (try_engine.c) ----------------------------------------------------------- */

/* What became of a transfer at one worker. */
typedef struct try_result {
    bool ended, released;
    kvferry_outcome outcome;
    uint64_t copies, bytes, elapsed_ns;
    tool_reasons reasons;
} try_result;

typedef struct try_worker {
    kvferry_node *node;
    unsigned char **segments;
    uint64_t noise;
    try_result result; /* of the transfer under way */
} try_worker;

typedef struct try_engine {
    kvferry_side role;
    const tool_side *side;
    try_worker *workers; /* as many as the side has; the first is the leader */
    uint64_t timeout_s;
} try_engine;

/* Starts a node for each worker at `host`, and fills all of its memory with noise. TOOL_GO_ON, or the exit
 * status with the reasons given. */
int try_engine_start(try_engine *engine, const try_options *options, kvferry_side role,
                     const tool_side *side, const char *host, uint64_t seed);

/* Ends all nodes, once what they carry is released or the time for it is over. */
void try_engine_stop(try_engine *engine);

const char *try_engine_address(const try_engine *engine); /* of its leader */

/* The noise that a worker's memory holds before anything else. */
uint64_t try_noise(uint64_t seed, size_t worker);

void try_engine_clear_results(try_engine *engine);

/*
 * Takes events until `transfer_id` has ended (or, with `released`, was released) at all workers, for the time
 * that the options give at most; or until `stop` is readable (-1: nothing). false: not all have.
 */
bool try_engine_wait(try_engine *engine, const char *transfer_id, bool released, int stop);

/* A transfer's result as JSON: {worker, outcome, copies, bytes, elapsed_ns, reasons}. */
json_t *try_result_json(const try_engine *engine, size_t worker);

/* For a person: why it did not go well, and which bytes are wrong; `side` is who the workers are. */
void try_print_reasons(const json_t *workers, const char *side);

/* Adds a reason of the command's own. */
void try_reason(tool_reasons *reasons, const char *code, const char *place, const char *expected, const char *found);

/* A byte that is wrong is no reason of a node: the first one of each worker is named. */
void try_take_findings(tool_reasons *reasons, const json_t *workers);

/* Each as a line on stderr: `serve` goes on, and stdout has one value of JSON. */
void try_log_reasons(const tool_reasons *reasons);

/* Sends an engine's introduction, and reads the other's: *documents is the caller's. TOOL_GO_ON, or the exit
 * status, with the reasons that TOOL_FAILED has: another kind of program, a document that cannot be read. */
json_t *try_introduction(const try_engine *engine, uint64_t seed);
int try_read_introduction(const json_t *message, const char *who, tool_side *documents, tool_reasons *reasons);

#endif
