/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a run: what the files of the simulator share. */
#ifndef KVFERRY_SIMULATOR_WORLD_H
#define KVFERRY_SIMULATOR_WORLD_H

#include "simulator.h"

#define SIM_GRACE (20 * SIM_MS)     /* a tick comes at most so late */
#define SIM_NOBODY UINT32_MAX

/* --- caches: cache.c, cells.c -------------------------------------------------------------------- */

typedef struct sim_area { /* where a pool's blocks lie: all of them in one row each */
    uint32_t segment, blocks; /* blocks 0: the worker has none of it */
    uint64_t offset, row;
} sim_area;

typedef struct sim_cache {
    kvferry_layout *layout;
    uint64_t segment_bytes[2];
    sim_area areas[SIM_POOLS];
} sim_cache;

sim_pool sim_pool_of(const sim_engine *engine, sim_pool kind); /* whose blocks a group of `kind` takes */
void sim_group_name(uint32_t engine, sim_pool kind, char name[16]);
bool sim_cache_make(const sim_setup *setup, uint32_t slot, const char *engine_id, sim_cache *cache,
                    kvferry_report *report);

typedef struct sim_table {
    bool listed;
    uint64_t first_token;
    uint32_t count, blocks[SIM_TABLE];
} sim_table;

typedef struct sim_tables {
    sim_table of[SIM_POOLS]; /* by kind of group */
    uint64_t tokens;
    uint64_t kept;     /* tokens before a window that have blocks, too, at least */
    bool whole_blocks; /* of an ask, and it got them */
    bool cut;          /* the table of a window has no null blocks, but begins later */
} sim_tables;

enum { SIM_AXES = 4 }; /* of a stream, at most */

/* One cell of a stream in a request's blocks. */
typedef struct sim_cell {
    const kvferry_stream *stream;
    uint32_t stream_index;
    uint64_t token;          /* of a paged group, else 0 */
    uint64_t coordinates[SIM_AXES]; /* global, in the stream's order; the token axis's is 0 */
    uint64_t offset;         /* in the stream's segment */
    bool wanted;             /* by a target with these tables */
    bool before;             /* in the block that the window begins in, before that */
} sim_cell;

typedef bool (*sim_cell_visit)(void *context, const sim_cell *cell);

/* Visits all cells in the tables' blocks; a visit that answers false ends it. */
void sim_visit(const sim_setup *setup, uint32_t engine, const kvferry_layout *layout,
               const sim_tables *tables, sim_cell_visit visit, void *context);
sim_pool sim_kind_of_group(const char *name);
uint64_t sim_cell_value(uint64_t seed, const sim_cell *cell);

/* --- transfers ------------------------------------------------------------------------------------- */

/* What one worker offers or asks for: owner of blocks. Its number is its index + 1. */
typedef struct sim_transfer {
    uint32_t request, slot, incarnation;
    kvferry_side side;
    sim_tables tables;
    unsigned char scribble;   /* in each byte of the blocks at first */
    bool ready, ended, released;
    bool over;                /* the block owner says so, whatever the core says (planted faults) */
    kvferry_outcome outcome;
    uint64_t begun, deadline; /* of the worker's clock */
    uint32_t writes;          /* live writes from it, or into it */
} sim_transfer;

typedef struct sim_request {
    uint32_t step, source, target; /* engines */
    char id[24];
    uint64_t seed, tokens, source_tokens, hit, timeout; /* timeout: milliseconds, 0: the default */
    bool full_hit;
    bool whole_blocks, part;  /* part: what they want before its window may be missing */
    bool keeps;               /* the source has that */
    bool mixed;               /* if not, its workers of odd ranks have it all the same */
} sim_request;

/* --- workers ----------------------------------------------------------------------------------------- */

typedef struct sim_worker {
    struct sim_world *world;
    uint32_t slot, engine, rank;
    sim_cache cache;
    char address[32];
    /* The process; core NULL: there is none. */
    node_core *core;
    uint32_t incarnation;          /* how many there were at this address */
    char name[17];                 /* incarnation for the core */
    bool host_down, leaving, drained;
    bool closing;                  /* its thread is over; its writes are not, and its socket is open */
    uint64_t killed_at, leave_by;
    uint64_t offset;               /* its clock, from the world's */
    uint64_t paused_until, hung_until, tick_at;
    bool break_next;
    uint32_t spins;
    uint64_t next_link;
    unsigned char *segments[2];
    uint32_t owners[SIM_POOLS][SIM_BLOCKS]; /* numbers of transfers; 0: free */
    uint32_t freed[SIM_POOLS];              /* the block that was free last: it is taken first */
    uint64_t asked_until[SIM_REQUESTS];     /* messages prolong a lease to, of its clock */
    bool withdrawn[SIM_REQUESTS];           /* expected and aborted: never offered */
    uint64_t ended[2][4];
    uint32_t live_writes;
    uint32_t live[2 * SIM_REQUESTS], live_count; /* indexes of transfers that are not released */
} sim_worker;

/* --- network: network.c --------------------------------------------------------------------------------- */

typedef struct sim_connection {
    uint32_t opener, opener_incarnation, acceptor, acceptor_incarnation; /* slots */
    core_link opener_link, acceptor_link;                                /* 0: not yet, or gone */
    bool open;                                /* its opener may use it */
    uint64_t read_until;                      /* its opener has closed it, and what it said may still be read */
    bool silent;                              /* nobody is told what becomes of its other end */
    uint64_t last[2];                         /* when the last message arrives, by direction */
} sim_connection;

typedef struct sim_partition {
    uint32_t a, b;
    uint64_t until;
} sim_partition;

/* --- transfer engine: mover.c ----------------------------------------------------------------------------- */

typedef struct sim_peer {
    uint32_t slot, incarnation;   /* whose engine holds it */
    uint64_t number;
    uint32_t target, target_incarnation;
    bool open, lost;
} sim_peer;

typedef enum sim_write_state { SIM_RUNS, SIM_CANCELED, SIM_CLOSED, SIM_FLIES, SIM_OVER } sim_write_state;

typedef struct sim_write {
    uint32_t slot, incarnation, target, target_incarnation;
    uint64_t number, peer;
    kvferry_copy *copies;   /* as many as were given */
    unsigned char *flying;  /* bytes of the rest that a dead process had sent */
    size_t count, next;
    uint32_t source_owner, target_owner;
    sim_write_state state;
    bool told;              /* the core knows of its end already (planted faults) */
    kvferry_status status;  /* what its end will say */
    const kvferry_copy *given; /* the core's; must stay what they were */
} sim_write;

/* --- happenings --------------------------------------------------------------------------------------------- */

typedef enum sim_event_kind {
    SIM_ON_STEP,      /* a: index */
    SIM_ON_CALM,
    SIM_ON_STOP,
    SIM_ON_WORD,      /* the operator's; a: slot whose host is down, b: the last incarnation there */
    SIM_ON_ACT,       /* a: index of the act */
    SIM_ON_TICK,      /* slot */
    SIM_ON_CONNECT,   /* a: connection */
    SIM_ON_MESSAGE,   /* a: connection, b: 1 to its acceptor, 0 to its opener; type */
    SIM_ON_LINK_END,  /* a: link, b: how; slot */
    SIM_ON_RESOLVED,  /* a: query, b: slot that is found, or SIM_NOBODY; slot */
    SIM_ON_PEER_LOST, /* a: index of the peer; slot */
    SIM_ON_COPY,      /* a: write */
    SIM_ON_LANDING,   /* a: write of a dead process */
    SIM_ON_WRITE_END, /* a: write, b: 1: only say so (planted faults); slot */
    SIM_ON_DEADLINE,  /* a: write; slot */
    SIM_ON_LEAVE      /* slot: its process ends */
} sim_event_kind;

typedef struct sim_event {
    uint64_t at, order;
    sim_event_kind kind;
    uint32_t slot, incarnation; /* SIM_NOBODY: of no worker */
    uint64_t a, b;
    wire_type type;
    void *data;
    size_t size;
} sim_event;

typedef enum sim_act_kind {
    SIM_ACT_EXPECT,
    SIM_ACT_OFFER,
    SIM_ACT_OFFER_NOT_READY,
    SIM_ACT_READY,
    SIM_ACT_ASK,
    SIM_ACT_RENEW
} sim_act_kind;

typedef struct sim_act {
    sim_act_kind kind;
    uint32_t request, slot;
    uint64_t dice;
} sim_act;

typedef struct sim_world {
    const sim_schedule *schedule;
    const sim_setup *setup;
    const sim_options *options;
    sim_failure *failure;
    sim_totals *totals;
    sim_dice dice;
    uint64_t now, order, hash;
    sim_weather weather;
    uint64_t weather_until;
    bool calm, stop;
    uint64_t calm_at, give_up_at, quiet_since;
    uint32_t acts_waiting;

    sim_worker workers[SIM_WORKERS];
    uint32_t worker_count;
    char engine_ids[SIM_ENGINES][24];
    sim_request requests[SIM_REQUESTS];
    uint32_t request_count;
    uint32_t request_of_step[SIM_STEPS];

    sim_event *heap;
    size_t heap_count, heap_room;
    sim_transfer *transfers;
    size_t transfer_count, transfer_room;
    sim_connection *connections;
    size_t connection_count, connection_room;
    sim_peer *peers;
    size_t peer_count, peer_room;
    sim_write *writes;
    size_t write_count, write_room;
    sim_act *acts;
    size_t act_count, act_room;
    sim_partition partitions[SIM_STEPS];
    uint32_t partition_count;
    bool crowded; /* a worker had to wait for blocks */
} sim_world;

/* world.c */
void sim_fail(sim_world *world, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool sim_failed(const sim_world *world);
void sim_trace(sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_schedule_event(sim_world *world, uint64_t at, sim_event event);
void *sim_grow(void *data, size_t *room, size_t count, size_t size);
uint64_t sim_random_time(sim_world *world, uint64_t least, uint64_t most);
bool sim_cut_off(const sim_world *world, uint32_t a, uint32_t b);

/* worker.c: the process, and what goes in and out of its core */
uint64_t sim_clock(const sim_world *world, const sim_worker *worker);
void sim_incarnation_name(const sim_world *world, uint32_t slot, uint32_t incarnation,
                          char name[WIRE_INCARNATION_TEXT]);
void sim_worker_start(sim_world *world, uint32_t slot);
void sim_worker_kill(sim_world *world, uint32_t slot, bool host_down);
void sim_worker_free(sim_world *world, sim_worker *worker);
void sim_worker_after(sim_world *world, sim_worker *worker); /* after each core_* call */
void sim_worker_tick(sim_world *world, sim_worker *worker);
void sim_worker_resolved(sim_world *world, sim_worker *worker, const sim_event *event);
void sim_worker_close(sim_world *world, sim_worker *worker, bool drain);
void sim_worker_leave(sim_world *world, sim_worker *worker);
void sim_worker_jump(sim_world *world, sim_worker *worker, uint64_t amount);
sim_worker *sim_worker_of(sim_world *world, const sim_event *event); /* NULL: that process is gone */

/* network.c */
void sim_link_open(sim_world *world, sim_worker *worker, core_link link, const char *address);
void sim_link_close(sim_world *world, sim_worker *worker, core_link link);
void sim_link_send(sim_world *world, sim_worker *worker, core_link link, const void *data, size_t size);
void sim_on_connect(sim_world *world, const sim_event *event);
void sim_on_message(sim_world *world, sim_event *event);
void sim_links_cut(sim_world *world, uint32_t a, uint32_t b);
bool sim_listens(const sim_world *world, const sim_worker *worker);
void sim_links_of_dead(sim_world *world, uint32_t slot);
uint64_t sim_flight(sim_world *world); /* of one message, in this weather */

/* plant.c: planted faults in messages. false: this one is not delivered. */
bool sim_plant_message(const sim_world *world, const sim_event *event);

/* mover.c */
void sim_peer_connect(sim_world *world, sim_worker *worker, uint64_t number, const void *binding,
                      size_t size);
void sim_peer_close(sim_world *world, sim_worker *worker, uint64_t number);
void sim_peers_lose(sim_world *world, sim_worker *worker);
void sim_write_begin(sim_world *world, sim_worker *worker, const core_effect *effect);
void sim_write_cancel(sim_world *world, sim_worker *worker, uint64_t number);
void sim_writes_of_dead(sim_world *world, uint32_t slot);
void sim_on_copy(sim_world *world, const sim_event *event);
void sim_on_landing(sim_world *world, const sim_event *event);
void sim_on_write_end(sim_world *world, const sim_event *event);
void sim_on_write_deadline(sim_world *world, const sim_event *event);
void sim_on_peer_lost(sim_world *world, const sim_event *event);
void sim_movers_end(sim_world *world); /* frees */

/* steps.c */
void sim_on_step(sim_world *world, uint32_t step);
void sim_act_at(sim_world *world, uint64_t at, sim_act act);

/* calls.c: offers, asks and what belongs to them */
void sim_on_act(sim_world *world, uint32_t act);
/* Tokens of a request before the target's window: those that whole blocks want too, and how many of them have no
 * block on the source. */
uint64_t sim_before_window(const sim_world *world, const sim_request *request, uint64_t *lost);
void sim_repeat(sim_world *world, sim_worker *worker, uint32_t request);
void sim_steal(sim_world *world, sim_worker *worker, uint32_t request);
void sim_abort_one(sim_world *world, sim_worker *worker, uint32_t request, kvferry_side side);

/* checksum.c */
extern const core_checksums sim_checksums; /* the context is the worker */

/* oracle.c */
void sim_on_transfer_event(sim_world *world, sim_worker *worker, const kvferry_event *event);
void sim_release(sim_world *world, sim_transfer *transfer);
sim_transfer *sim_find(sim_world *world, uint32_t slot, kvferry_side side, uint32_t request);
void sim_check_times(sim_world *world, sim_worker *worker);
void sim_check_copy(sim_world *world, const sim_write *write, const kvferry_copy *copy);
/* Who owns all bytes of a range; 0: nobody, or not one alone. */
uint32_t sim_owner_of(const sim_world *world, uint32_t slot, uint32_t segment, uint64_t offset,
                      uint64_t bytes);
bool sim_all_settled(const sim_world *world);
void sim_check_end(sim_world *world);

#endif
