/* SPDX-License-Identifier: Apache-2.0 */
/* What the parent orders a worker's process, and what that tells: one struct a packet. */
#ifndef KVFERRY_TESTS_CHAOS_ORDERS_H
#define KVFERRY_TESTS_CHAOS_ORDERS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SLOTS = 4,       /* of blocks; a request has one to itself */
    SLOT_BLOCKS = 7, /* block 0 is the null block */
    SLOT_TOKENS = 28, /* what fits in */
    TRAPS = 2        /* of a worker at a time */
};

typedef struct setup { /* of a worker */
    bool decode;
    uint32_t tp, tps;
    char transport[16], address[96], leader[96]; /* "" leader: it is the first */
    char space[64];                              /* network namespace; "": the parent's */
    char device[16];                             /* "": the engine's choice */
    bool verify;                                 /* asks carry checksums, and so are settled */
} setup;

/* A signal that a worker sends to itself just when it has received, or is about to send, the nth message of a type. */
typedef struct trap {
    uint32_t type; /* a wire_type */
    bool receives;
    uint32_t nth; /* from 1; 0: no trap */
    int signal;   /* SIGKILL or SIGSTOP */
} trap;

typedef enum order_kind {
    ORDER_OFFER,
    ORDER_PARK,  /* an offer whose blocks are not ready */
    ORDER_READY, /* they are, if it has not ended */
    ORDER_ASK,
    ORDER_RENEW,
    ORDER_CHECK,    /* are the slots that were given to a new owner as that left them? */
    ORDER_NO_FILES, /* no descriptor can be opened any more */
    ORDER_FILES,    /* they can again */
    ORDER_TRAP,
    ORDER_LEAVE, /* close amid all that goes on, and end */
    ORDER_CLOSE
} order_kind;

typedef struct order {
    order_kind kind;
    uint32_t request, slot;
    char where[96]; /* of an ask */
    trap traps[TRAPS];
} order;

typedef enum tell_kind {
    TELL_OPEN,  /* text: the address */
    TELL_TAKEN, /* an offer or ask; number: the call's status, text: its reason */
    TELL_ENDED, /* number: the outcome, text: the code */
    TELL_RELEASED,
    TELL_CHECKED, /* number: descriptors that are open */
    TELL_DONE,    /* an order that has no other answer */
    TELL_WRONG    /* text: what was found that must not be */
} tell_kind;

typedef struct tell {
    tell_kind kind;
    uint32_t request;
    uint64_t number;
    char text[160];
} tell;

/* In a worker's process: from now on, one after the other. Sees messages where the program's linker has put it before
 * the wire's code. */
void trap_set(const trap traps[TRAPS]);

/* A worker's process, its channel at descriptor 3; returns its status. */
int member_main(void);

#endif
