/* SPDX-License-Identifier: Apache-2.0 */
/* Copies over TCP: connections of this library's own. See ucx_tcp.c. */
#ifndef KVFERRY_SRC_ENGINE_UCX_TCP_H
#define KVFERRY_SRC_ENGINE_UCX_TCP_H

#include <net/if.h>
#include <sys/socket.h>

#include "base/host.h"
#include "engine/ucx_internal.h"

enum { TCP_ADDRESSES = 16, TCP_QUEUE = 128, TCP_BUFFER = 128 * 1024 };

typedef enum tcp_kind {
    TCP_HELLO =
        1,      /* the first of a connection: `from` and `to` are the id of the engine it is for */
    TCP_WRITE,  /* and `bytes` bytes, for `to` */
    TCP_WISH,   /* a read of `bytes` bytes at `from`, for `to` */
    TCP_FENCE,  /* the batch ends here */
    TCP_ANSWER, /* to a wish: `bytes` bytes, for `to` */
    TCP_DONE    /* to a fence: all before it is done, or `refused` */
} tcp_kind;

/* Both sides are machines of one kind, so numbers need no order of bytes. */
typedef struct tcp_frame {
    uint32_t kind, refused;
    uint64_t batch, from, to, bytes;
} tcp_frame;

/* Frames on their way, and what follows each. */
typedef struct tcp_queue {
    struct tcp_queue *next;
    size_t at, count;
    tcp_frame frames[TCP_QUEUE];
    const void *data[TCP_QUEUE]; /* NULL: nothing follows */
} tcp_queue;

/* A place where an engine listens. */
typedef struct tcp_address {
    uint8_t family; /* 4 or 6 */
    uint8_t loopback;
    uint16_t port;
    uint8_t ip[16];
} tcp_address;

/* What a binding says about it. Addresses of the loopback device are good on the identity's host only, but for the one
 * that peers on other hosts are told. */
typedef struct tcp_export {
    uint8_t count, zero[7];
    tcp_address addresses[TCP_ADDRESSES];
} tcp_export;

typedef struct ucx_connection {
    struct ucx_connection *next;
    ucx_engine *engine;
    ucx_peer *peer; /* NULL: the other side began it */
    int fd;
    bool up, greeted, lost;
    bool waits;         /* for room to send */
    tcp_export *target; /* where it goes, while it is not up: usable addresses only */
    uint8_t attempt;    /* the next of the target's addresses */
    tcp_queue *first, *last;
    size_t sent; /* bytes of the first queue's frame `at` and what follows it */
    tcp_frame frame;
    uint64_t follows;     /* bytes that still follow it */
    unsigned char *place; /* for these; NULL: nowhere */
    bool refused;         /* something since the last fence */
    size_t begin, end;    /* of what the buffer holds */
    unsigned char buffer[TCP_BUFFER];
} ucx_connection;

/* The engine's part. */
typedef struct ucx_tcp {
    int fd; /* all sockets' */
    int listeners[TCP_ADDRESSES];
    tcp_export exported;
    ucx_connection *connections;
    tcp_queue *spare;
} ucx_tcp;

/* ucx_tcp.c: connections */
void tcp_lose(ucx_connection *connection);
void tcp_watch(ucx_connection *connection, bool waits);
tcp_queue *tcp_take_queue(ucx_tcp *tcp);
void tcp_spare_queue(ucx_tcp *tcp, tcp_queue *queue);

/* ucx_host.c: addresses. The first: false where it is good on one link only. The second: of a numeric host; false where
 * it is another, loopback, or of one link. */
bool tcp_take_host(const base_host *host, tcp_address *address);
bool tcp_read_host(const char *text, base_host *host);

/* ucx_frame.c: what goes over them */
bool tcp_push(ucx_connection *connection, const tcp_frame *frame, const void *data);
bool tcp_send(ucx_connection *connection);    /* whether anything went */
bool tcp_receive(ucx_connection *connection); /* whether anything came */

#endif
