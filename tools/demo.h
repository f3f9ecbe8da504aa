/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The demo: the main job with real processes, a node in each. One subject a file:
 *
 *   demo.c          options and exit status                demo_worker.c   a worker process
 *   demo_run.c      the run from start to end
 *   demo_setup.c    models, topologies, pool sizes         demo_move.c     its node
 *   demo_pool.c     block pools                            demo_fault.c    faults that --break plants
 *   demo_requests.c requests and waves                     demo_engine.c   the engine of a faulty sender
 *   demo_fleet.c    worker processes, seen by the parent   demo_table.c    what a person reads
 *   demo_memory.c   how much memory there is
 *   demo_channel.c  messages between parent and worker     demo_json.c     what --json prints
 */
#ifndef KVFERRY_DEMO_H
#define KVFERRY_DEMO_H

#include <sys/types.h>

#include "tool.h"

typedef enum demo_role { DEMO_PREFILL = 0, DEMO_DECODE = 1, DEMO_ROLES = 2 } demo_role;

const char *demo_role_name(demo_role role); /* "prefill" */

/* --- faults on demand ------------------------------------------------------------------------ */

typedef enum demo_fault {
    DEMO_SOUND,
    DEMO_CONV_WHOLE,
    DEMO_PADDED_LENGTH,
    DEMO_HALF_HEADS,
    DEMO_ROW_STRIDE,
    DEMO_KERNEL_BLOCK,
    DEMO_LATE_WRITE,
    DEMO_LOST_WRITE
} demo_fault;

#define DEMO_FAULT_CHOICES                                                                         \
    "conv-whole|padded-length|half-heads|row-stride|kernel-block|late-write|lost-write"

demo_fault demo_fault_parse(const char *name); /* DEMO_SOUND for NULL */
const char *demo_fault_name(demo_fault fault);
/* What faulty senders do, as a part of a sentence. */
const char *demo_fault_describe(demo_fault fault);

/* Now, by the clock that all processes share. */
uint64_t demo_now_ns(void);

/* --- what a run is made of (demo_setup.c) ----------------------------------------------------- */

typedef struct demo_config {
    tool_model model;
    tool_topology topology[DEMO_ROLES];
    uint64_t blocks[DEMO_ROLES];
    uint64_t kernel_block_size; /* 0: the backend's */
    const char *engine, *transport;
    uint64_t seed, requests, memory;
    uint64_t timeout_ns; /* of a step in which no worker says anything */
    demo_fault fault;
} demo_config;

/* The options of the worker at `rank` of `role` (tool_side's order: by stage, then by TP rank). */
void demo_model_options(const demo_config *config, demo_role role, size_t rank,
                        kvferry_model_options *options);

/* Chooses how many blocks each side has, so that all segments fit config->memory, and builds all
 * documents. TOOL_GO_ON, or the exit status with the message given. */
int demo_setup(demo_config *config, tool_side sides[DEMO_ROLES]);

/* --- memory (demo_memory.c) ---------------------------------------------------------------------- */

/* Takes less memory, and says so, where there is not enough. */
void demo_memory_mind(demo_config *config);

/* --- block pools (demo_pool.c) ------------------------------------------------------------------ */

/* Numbers that depend on the seed only. */
typedef struct demo_random {
    uint64_t state;
} demo_random;
uint64_t demo_random_next(demo_random *random);
uint64_t demo_random_below(demo_random *random, uint64_t limit); /* 0 for limit 0 */

typedef struct demo_table {
    char *group;
    uint64_t first_token;
    uint32_t *blocks;
    size_t count;
} demo_table;

typedef struct demo_tables {
    demo_table *items;
    size_t count;
} demo_tables;

/* A group as the engine's scheduler sees it: the same table for all workers. */
typedef struct demo_group {
    const char *name; /* a layout's */
    kvferry_group_kind kind;
    uint64_t block_tokens, window;
    int64_t null_block;
    size_t pool;
} demo_group;

/* Free block ids of groups that share bytes: an id belongs to one of them at a time. */
typedef struct demo_pool {
    uint32_t *ids; /* a queue: freed ones are used again last */
    size_t first, free, total;
} demo_pool;

typedef struct demo_pools {
    demo_group *groups;
    size_t group_count;
    demo_pool *pools; /* as many as groups; some are empty */
    uint64_t before;  /* the most tokens that an extent keeps before a window */
} demo_pools;

/* The pools of an engine, ids shuffled but for short runs. The layouts must outlive them. */
void demo_pools_create(const tool_side *side, demo_random *random, demo_pools *pools);
void demo_pools_free(demo_pools *pools);

/* What a request wants of an engine's pools. */
typedef struct demo_extent {
    uint64_t tokens; /* the first token that is not wanted */
    uint64_t first;  /* the first one that is; at or past `tokens`: none, and no state either */
    uint64_t before; /* tokens before a window that are kept, too: at most the pools' `before` */
} demo_extent;

/* The most tokens that 1/share of what is free can hold, whatever the extent's `first`, up to limit; 0: none. */
uint64_t demo_pools_most(const demo_pools *pools, uint64_t share, uint64_t limit);

/* Takes blocks for a request: one table per group. The pools must hold them. */
void demo_tables_take(demo_pools *pools, demo_extent extent, demo_random *random,
                      demo_tables *tables);
void demo_tables_give_back(demo_pools *pools, const demo_tables *tables);
void demo_tables_free(demo_tables *tables);

/* --- requests (demo_requests.c) --------------------------------------------------------------- */

typedef enum demo_kind {
    DEMO_COLD,
    DEMO_LONG,
    DEMO_ONE_BLOCK,
    DEMO_ONE_TOKEN,
    DEMO_PREFIX_HIT,
    DEMO_FULL_HIT
} demo_kind;
const char *demo_kind_name(demo_kind kind);

/* One request and what became of it. */
typedef struct demo_request {
    uint32_t number; /* 1 .. */
    demo_kind kind;
    uint32_t wave;   /* 0 ..: the requests of a wave are in flight together */
    uint64_t prompt; /* tokens of the prompt */
    uint64_t tokens; /* tokens that are transferred: one less where there are state groups */
    uint64_t hit;    /* tokens that the decode side has already */
    bool whole_blocks; /* it wants the first block of a window whole, to cache it */
    demo_tables tables[DEMO_ROLES];

    uint64_t copies, bytes;      /* of all senders */
    uint64_t begin_ns, end_ns;   /* from the first begin to the last end; 0: none yet */
    uint64_t sent;               /* workers that said its end */
    uint64_t checks;             /* decode workers that have looked at it */
    uint64_t findings;           /* streams of which it has wrong bytes */
    bool stray;                  /* in its round a byte changed that nobody may change */
    char *failure;               /* of the first sender that could not send; or NULL */
} demo_request;

typedef struct demo_schedule {
    demo_request *requests;
    size_t count;
    uint32_t waves;
} demo_schedule;

/* All requests of a run. TOOL_GO_ON, or TOOL_FAILED where the pools are too small for any. */
int demo_schedule_make(const demo_config *config, const tool_side sides[DEMO_ROLES],
                       demo_schedule *schedule);
void demo_schedule_free(demo_schedule *schedule);

/* As the request document of kvferry_request_read_json. */
json_t *demo_request_json(const demo_request *request);

/* --- messages (demo_channel.c) ----------------------------------------------------------------- */

/* A worker's end: blocking. NULL or false: the parent is gone; errno says how it is known: ECONNRESET, EPROTO for what
 * is no message, EAGAIN where the socket has a limit of time. */
json_t *demo_channel_read(int fd);
bool demo_channel_write(int fd, json_t *message); /* gives the message up */

/* The parent's end: never blocks. */
typedef struct demo_buffer {
    char *data;
    size_t size, done, capacity; /* done: bytes already sent, or read as messages */
} demo_buffer;
void demo_buffer_free(demo_buffer *buffer);
void demo_outbox_add(demo_buffer *outbox, json_t *message); /* gives the message up */
bool demo_outbox_flush(demo_buffer *outbox, int fd);        /* false: the other end is gone */
bool demo_inbox_fill(demo_buffer *inbox, int fd);           /* false: the other end is gone */
/* The next whole message, or NULL; *malformed if the bytes are none. */
json_t *demo_inbox_next(demo_buffer *inbox, bool *malformed);

/* A message's text, "" if it has none of that name; and its number, 0 if none. */
const char *demo_text(const json_t *message, const char *name);
uint64_t demo_number(const json_t *message, const char *name);

/* --- processes (demo_fleet.c) ------------------------------------------------------------------ */

typedef struct demo_process {
    demo_role role;
    size_t rank;
    char *name; /* "decode tp1 pp0" */
    pid_t pid;
    int fd;
    demo_buffer outbox, inbox;
    bool lost;     /* its socket is closed */
    bool ended;    /* and its status is in `end`, as waitpid gives it */
    bool finished; /* it ended as it was told to */
    bool answered; /* in this step */
    int end;
} demo_process;

typedef struct demo_fleet {
    demo_process *processes; /* the prefill side's first */
    size_t count;
    int signals; /* a signalfd */
    uint64_t timeout_ns;
    bool hearsay;  /* the failure is a worker's own words */
    char *failure; /* the first one, in words; or NULL */
} demo_fleet;

/* Starts all workers; each runs demo_worker_main. Before the library's first use in this process. */
int demo_fleet_start(demo_fleet *fleet, const demo_config *config, const tool_side sides[DEMO_ROLES]);

/* Queues a message to all workers of a role. Gives it up. */
void demo_fleet_tell(demo_fleet *fleet, demo_role role, json_t *message);

/* Called for each message that does not end the step, and each that does. */
typedef void (*demo_hear)(void *context, const demo_process *process, json_t *message);

/* Waits until every worker of the roles (a set of 1 << role) has answered {"did": step}. TOOL_GO_ON, or
 * TOOL_FAILED when one failed, died or fell silent, or the user interrupted: fleet->failure says it. */
int demo_fleet_wait(demo_fleet *fleet, unsigned roles, const char *step, demo_hear hear,
                    void *context);

/* Ends all workers, those that do not end by themselves by force, and leaves none behind. */
void demo_fleet_end(demo_fleet *fleet);

/* --- a worker (demo_worker.c) -------------------------------------------------------------------- */

int demo_worker_main(const demo_config *config, demo_role role, size_t rank, int fd);

#endif
