/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a message come while a transfer is under way, so that a worker falls at it. */
#ifndef KVFERRY_TESTS_CHAOS_MOMENTS_H
#define KVFERRY_TESTS_CHAOS_MOMENTS_H

#include "wire/wire.h"

#include "fleet.h"

typedef struct fall {
    fleet *all;
    size_t victim;
    trap trap;        /* the victim's */
    uint32_t request; /* out: the transfer */
    bool may_write;   /* out: while the victim is stopped, nobody who asked it can know that it does not write */
    bool unasked;     /* out: it is offered, and will be asked for afterwards */
    bool closes;      /* out: the victim will end by itself */
} fall;

/*
 * Each comes to an end when the victim has fallen, and fails if it does not fall; all others go on. What is under way
 * may wait for its blocks, or to be asked for: moment_go_on, once the victim has fallen, and when it is there again,
 * makes it go on at those who live.
 */
typedef void (*moment)(fall *);

void moment_transfer(fall *now);     /* nobody knows another yet; all messages up to the end */
void moment_restart(fall *now);      /* another worker of the victim's engine starts anew */
void moment_renewal(fall *now);      /* the first decode worker renews what it will ask for */
void moment_prefill_asks(fall *now); /* whether the decode worker, which is stopped a while, lives */
void moment_decode_asks(fall *now);  /* the same of the prefill worker */
void moment_leave(fall *now);        /* the victim, or who would tell it, goes */
void moment_forgotten(fall *now);    /* a decode worker was stopped, was given up, and asks again */
void moment_question(fall *now);     /* somebody wants to know the victim's status */
void moment_word(fall *now);         /* a worker that it speaks with does no more, and the victim is told that it is dead */
void moment_stranger(fall *now);     /* somebody speaks another version to the victim, or complains */

void moment_go_on(fall *now);

#endif
