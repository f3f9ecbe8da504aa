/* SPDX-License-Identifier: Apache-2.0 */
/* Workers as processes, seen by the parent that plays scheduler. What breaks a rule fails the test.
 */
#ifndef KVFERRY_TESTS_CHAOS_FLEET_H
#define KVFERRY_TESTS_CHAOS_FLEET_H

#include <stddef.h>
#include <sys/types.h>

#include "orders.h"

enum { MEMBERS_MAX = 3, REQUESTS_MAX = 1024, PATIENCE_MS = 40000 };

/* A request at one worker. */
typedef struct entry {
    bool ordered, ended, released;
    int outcome;
    char code[48];
} entry;

typedef struct fleet_member {
    setup setup;
    pid_t pid; /* 0: it does not run */
    int channel;
    bool stopped, checked, done;
    size_t trapped; /* so often it may end or stop by itself */
    uint64_t descriptors;
    entry entries[REQUESTS_MAX];
} fleet_member;

typedef struct fleet {
    fleet_member members[MEMBERS_MAX]; /* prefill's first */
    size_t count, prefills;
    uint32_t requests; /* numbers that were given out */
    bool left;         /* a worker went, and others may say so */
    const char *what;  /* named when a rule is broken */
} fleet;

/* Runs tp2 -> tp1, or tp1 -> tp2. The workers' `space` and `device` are the sides' ("" : the engine's choice).
 */
void fleet_open(fleet *all, const char *transport, bool tp2_first, const char *const spaces[2],
                const char *const hosts[2], const char *device);
/* All drain, close and end well; nothing is left. */
void fleet_close(fleet *all);
/* Ends what runs still, in whatever state; for a test that failed. */
void fleet_kill(fleet *all);

void fleet_start(fleet *all, size_t member); /* anew on its address */
void fleet_end(fleet *all, size_t member);   /* kill -9 */
void fleet_stop(fleet *all, size_t member);
void fleet_continue(fleet *all, size_t member);

/* Sets traps for the worker, one after the other. */
void fleet_trap(fleet *all, size_t member, const trap *traps, size_t count);
/* Waits until the worker has been killed, or stopped, by its next trap. */
void fleet_await_trap(fleet *all, size_t member);
/* Lets the worker close its node without a drain, and end by itself; waits for that. */
void fleet_leave(fleet *all, size_t member);
void fleet_await_end(fleet *all, size_t member);

uint32_t fleet_request(fleet *all); /* a new number */
/* The workers from `first` to before `last` that run offer it, or ask for it, each by its role. */
void fleet_order(fleet *all, uint32_t request, uint32_t slot, size_t first, size_t last);
/* The prefill workers that run offer it, but its blocks are not ready. */
void fleet_park(fleet *all, uint32_t request, uint32_t slot);
/* An order to one worker, without a request or about one; waits for its answer. */
void fleet_tell(fleet *all, size_t member, order_kind kind);
void fleet_tell_of(fleet *all, size_t member, order_kind kind, uint32_t request);

/* Takes what is told for so long. */
void fleet_pump(fleet *all, int wait_ms);
bool fleet_is_living(const fleet *all, size_t member);
/* Waits for the request's ENDED, or RELEASED, at those of these workers that live. */
void fleet_await(fleet *all, uint32_t request, size_t first, size_t last, bool released);
/* It failed after a source was asked, which may write until it confirms; else nothing was sent. */
bool fleet_was_asked(const entry *at);
/* A new request with new blocks goes through, at the latest at the fifth attempt. */
void fleet_check_fresh(fleet *all, uint32_t slot);
/* No slot with a new owner has changed. */
void fleet_check(fleet *all);

uint64_t fleet_now_ms(void);

#endif
