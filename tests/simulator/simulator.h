/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's core in a world of its own: clock, network, transfer engine and memories are virtual, and one
 * seed decides everything. A schedule is a set-up and a list of steps; a run ends with a failure or with none.
 * README.md says what is checked.
 */
#ifndef KVFERRY_SIMULATOR_H
#define KVFERRY_SIMULATOR_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "node/core.h"

#define SIM_ENGINES 4
#define SIM_WORKERS 16    /* of all engines */
#define SIM_STEPS 64
#define SIM_REQUESTS 48   /* steps that are requests */
#define SIM_BLOCKS 24     /* of a pool, at most */
#define SIM_TOKENS 40     /* of a request, at most */
#define SIM_TABLE 24      /* blocks in a table */
#define SIM_PLENTY 1024   /* transfers: more than a schedule has */

#define SIM_US UINT64_C(1000)
#define SIM_MS UINT64_C(1000000)
#define SIM_S UINT64_C(1000000000)

/* --- random numbers -------------------------------------------------------------------------- */

typedef struct sim_dice {
    uint64_t state;
} sim_dice;

uint64_t sim_mix(uint64_t value);
uint64_t sim_roll(sim_dice *dice);
uint64_t sim_below(sim_dice *dice, uint64_t count);                /* 0 .. count-1 */
uint64_t sim_between(sim_dice *dice, uint64_t low, uint64_t high); /* low .. high */
bool sim_one_in(sim_dice *dice, uint64_t count);
bool sim_percent(sim_dice *dice, uint32_t percent);

/* --- set-up: what exists ----------------------------------------------------------------------- */

/* Kinds of blocks; groups of a pool share their bytes, pools share none. */
typedef enum sim_pool { SIM_ATTN, SIM_STATE, SIM_RING, SIM_WINDOW, SIM_POOLS } sim_pool;

typedef struct sim_shape { /* the model, the same for all engines */
    uint32_t layers[SIM_POOLS]; /* how many have blocks of this kind */
    uint32_t heads, channels, window;
} sim_shape;

typedef struct sim_engine {
    uint32_t tp, pp, dp;
    uint32_t block_tokens[SIM_POOLS]; /* 0 unless paged */
    uint32_t ratio;                   /* pages a block of attention */
    uint32_t blocks;                  /* of each pool */
    uint32_t padding;
    bool shared;                      /* state lies over attention: one pool */
    bool tokens_outside;              /* [token][head], not [head][token] */
    bool null_block;                  /* block 0 is one */
    bool first_stage_only;            /* all layers on stage 0: the other stages have no streams */
} sim_engine;

typedef struct sim_times { /* nanoseconds */
    uint64_t lease, transfer, connect, early, retry, silence, linger, remember;
} sim_times;

typedef struct sim_weather {
    uint32_t loss, twice, late; /* percent of messages */
    uint64_t delay, lateness;   /* nanoseconds, at most */
} sim_weather;

typedef struct sim_setup {
    uint32_t engine_count, prefill_count; /* the first ones prefill, the others decode */
    bool both;                            /* the last engine prefills too */
    bool verify;
    bool calm;                            /* no fault on purpose: every transfer must be done */
    sim_shape shape;
    sim_engine engines[SIM_ENGINES];
    sim_times times;
    sim_weather weather;
    uint64_t copy_time;                   /* of the virtual engine, per copy, at most */
    uint32_t max_peer_copies;
    uint32_t max_transfers;               /* few: calls are refused, and ends are soon forgotten */
} sim_setup;

/* --- steps: what is done to it ------------------------------------------------------------------ */

typedef enum sim_step_kind {
    SIM_REQUEST,   /* offered by all workers of engine a, asked for by all of engine b */
    SIM_ABORT,     /* request a, worker b, side by the dice */
    SIM_KILL,      /* worker a; b: 0 its host answers, 1 its host is down too */
    SIM_RESTART,   /* worker a */
    SIM_CLOSE,     /* worker a says BYE and goes; b: 1 drains before */
    SIM_CUT,       /* links between workers a and b break */
    SIM_PARTITION, /* nothing passes between workers a and b for a time */
    SIM_WEATHER,   /* messages of all links: another weather, for a time */
    SIM_JUMP,      /* clock of worker a */
    SIM_PAUSE,     /* worker a does nothing for a time */
    SIM_HANG,      /* the transfer engine of worker a does nothing for a time */
    SIM_BREAK,     /* the next write of worker a fails */
    SIM_PEER_LOST, /* the transfer engine of worker a loses all its connections */
    SIM_REPEAT,    /* request a is offered and asked for again by worker b */
    SIM_STEAL,     /* worker b asks for blocks that it has named in another ask */
    SIM_RENEW,     /* worker b renews request a */
    SIM_CONNECT,   /* worker a connects to engine b */
    SIM_STEP_KINDS
} sim_step_kind;

typedef struct sim_step {
    uint64_t at; /* nanoseconds since the beginning */
    sim_step_kind kind;
    uint32_t a, b;
    uint64_t amount; /* nanoseconds */
    uint64_t dice;   /* what else is decided in it */
    bool dropped;    /* by the shrinker, or by who replays */
} sim_step;

typedef struct sim_schedule {
    uint64_t seed;
    sim_setup setup;
    sim_step steps[SIM_STEPS];
    uint32_t step_count;
    bool clear; /* no loss, no delays but the least: a step of the shrinker */
} sim_schedule;

/* schedule.c */
void sim_generate(sim_schedule *schedule, uint64_t seed);
uint32_t sim_worker_count(const sim_setup *setup);
uint32_t sim_engine_of(const sim_setup *setup, uint32_t slot, uint32_t *rank);
uint32_t sim_engine_size(const sim_engine *engine);
uint32_t sim_first_slot(const sim_setup *setup, uint32_t engine);
/* Drops all steps but those of a list like "3,5,9". false: it is none. */
bool sim_keep_steps(sim_schedule *schedule, const char *list);
void sim_print(const sim_schedule *schedule, FILE *out);
void sim_print_step(const sim_schedule *schedule, uint32_t step, FILE *out);

/* --- planted faults --------------------------------------------------------------------------------- */

/* Each makes the core behave like one that is wrong, from outside: what goes in or comes out of it is
 * changed. mutation_test.c shows that each is found. */
typedef enum sim_fault {
    SIM_FAULT_NONE,
    SIM_FAULT_RELEASE_AT_ONCE,      /* blocks are free when an ask ends, confirmed or not */
    SIM_FAULT_NO_DEADLINE,          /* asks live a hundred times longer */
    SIM_FAULT_NO_LEASE_END,         /* leases too */
    SIM_FAULT_DONE_BEFORE_VISIBLE,  /* a write is over when it is submitted */
    SIM_FAULT_CANCEL_IS_END,        /* a write is over when it is to be stopped */
    SIM_FAULT_FORGOTTEN_SETTLE,     /* nobody tells the sources that an ask has ended */
    SIM_FAULT_UNHEARD_SETTLED,      /* no confirmation is heard */
    SIM_FAULT_NOT_READY,            /* offers are ready at once */
    SIM_FAULT_NO_LINGER,            /* the dead write nothing any more, they say */
    SIM_FAULT_SILENT_IS_DEAD,       /* a broken link is taken for a dead process */
    SIM_FAULT_EVENT_TWICE,
    SIM_FAULT_LINKS_CLOSED_FIRST,   /* who closes is dead to others while its writes still end */
    SIM_FAULTS
} sim_fault;

const char *sim_fault_name(sim_fault fault);

/* --- a run --------------------------------------------------------------------------------------------- */

#define SIM_TEXT 600

typedef struct sim_failure {
    char what[40];       /* the broken invariant; "": none */
    char text[SIM_TEXT];
    uint64_t at;
} sim_failure;

typedef struct sim_totals { /* what the schedules came to, to see that they reach everything */
    uint64_t schedules, ended[2][4], messages, lost_messages, writes, copies, bytes, kills, restarts,
        late_landings, canceled_writes, quarantines, checked_bytes, events, refused, words, whole, whole_refused,
        parts;
    uint64_t core_bytes; /* that the last schedule's cores held in the end; 0 without memory.c */
} sim_totals;

/* memory.c, where it is linked: bytes that the program holds. */
int64_t sim_memory_held(void) __attribute__((weak));

typedef struct sim_options {
    sim_fault fault;
    FILE *trace;        /* every happening as a line; NULL: none */
    bool log;           /* the cores' log lines in the trace */
} sim_options;

/* Runs a schedule; failure->what is "" if all invariants held. Returns the hash of all that happened. */
uint64_t sim_run(const sim_schedule *schedule, const sim_options *options, sim_failure *failure,
                 sim_totals *totals);

/* Drops steps as long as the same invariant breaks. */
void sim_shrink(sim_schedule *schedule, const sim_options *options, sim_failure *failure);

#endif
