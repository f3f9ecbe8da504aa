/* SPDX-License-Identifier: Apache-2.0 */
/* Peers on this host whose memory this process may touch. See ucx_local.c. */
#ifndef KVFERRY_SRC_ENGINE_UCX_LOCAL_H
#define KVFERRY_SRC_ENGINE_UCX_LOCAL_H

#include <sys/types.h>

#include "engine/ucx_internal.h"

typedef struct ucx_local {
    struct ucx_local *next, *previous; /* ring of those that have pieces to copy */
    ucx_peer *peer;
    pid_t pid;
    int pidfd; /* readable when the process has ended */
    uint64_t mark;
    uint8_t id[UCX_ID_BYTES];
    ucx_batch *first, *last; /* with pieces to copy; NULL: it is not in the ring */
} ucx_local;

/* The engine's part. */
typedef struct ucx_locals {
    int fd;              /* all pidfds' */
    unsigned char *mark; /* a page of its own that begins with the id; a child has it zeroed */
    size_t peers;        /* that are watched */
    ucx_local *turn;     /* the one whose turn is next; NULL: nothing is to be copied */
} ucx_locals;

/* Whether the process still is the engine that the peer was connected to. Else *error: 0, it is gone; or the errno for
 * which that cannot be told. */
bool ucx_local_is_there(const ucx_local *local, int *error);

#endif
