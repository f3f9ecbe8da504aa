/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_NODE_LINKS_INTERNAL_H
#define KVFERRY_NODE_LINKS_INTERNAL_H

#include <stdatomic.h>

#include <utlist.h>

#include "node/links.h"
#include "node/once.h"
#include "node/table.h"
#include "node/watch.h"

enum {
    LINKS_SEND_HWM = 512,   /* messages to a connection that ZeroMQ holds; bytes: links_send.c */
    LINKS_RECEIVE_HWM = 64, /* and from one, whoever it is */
    LINKS_LINGER_MS = 200,
    LINKS_RETRY_NS = 5000000,    /* between tries to send what a slow peer did not take */
    LINKS_PROBE_NS = 1000000000, /* a probe without an answer tells nothing */
    LINKS_PROOF_S = 5, /* a handshake that ended sooner was ended by the other side: ZeroMQ waits for twice as long */
    LINKS_MONITOR_EVENTS = 64,   /* of one link and turn */
    LINKS_ROUTER_EVENTS = 1024,  /* of the ROUTER's monitor and turn */
    LINKS_ZAP_QUESTIONS = 64,    /* of one turn: what is accepted meanwhile is counted before the next */
    LINKS_OVER_NS = 1000000000, /* after a connection's end: what came by it is with the ROUTER */
    LINKS_IDENTITY_MAX = 255,
    LINKS_HOST_TEXT = 80 /* an address without a port */
};

typedef struct links_host links_host;
typedef struct links_connection links_connection;

typedef struct links_message { /* waits to be sent */
    zmq_msg_t message;
    struct links_message *prev, *next;
} links_message;

/* The bytes of messages that wait or that ZeroMQ holds: its threads tell when one is gone. */
typedef struct links_debt {
    _Atomic(uint64_t) bytes;
    _Atomic(size_t) users; /* the link and its messages */
    struct node_links *links;
} links_debt;

typedef struct links_link {
    core_link id;
    UT_hash_handle by_id;
    bool incoming, ended;
    bool told; /* that it ended; it takes what still comes by it, if it is still here */
    core_link_end how;
    struct links_link *end_prev, *end_next; /* in `ends` */

    links_message *waiting; /* could not be sent yet */
    links_debt *debt;
    struct links_link *wait_prev, *wait_next; /* in `waits` while there are any */
    bool waits;

    /* incoming */
    unsigned char identity[LINKS_IDENTITY_MAX];
    unsigned identity_size;
    char key[NODE_KEY_TEXT]; /* of the connection; "" without keys */
    UT_hash_handle by_identity;
    struct links_link *age_prev, *age_next; /* in `ages`, the longest silent first */
    int fd;                                 /* of the connection; -1: not known, or it is over */
    UT_hash_handle by_fd;
    uint64_t over; /* when its connection was seen to be over; 0: it was not */
    struct links_link *over_prev, *over_next; /* in `overs` then */

    /* outgoing */
    node_address address;
    bool unnamed; /* its name is being looked up */
    bool named;   /* it was: where nobody is, it ends, so that the name is looked up again */
    void *dealer, *monitor;
    node_watch dealer_watch, monitor_watch, probe_watch;
    struct node_links *links;
    bool dealer_dirty, monitor_dirty, probe_dirty; /* look at it in this turn */
    struct links_link *dirty_prev, *dirty_next;    /* in `dirty` while any of them is set */
    bool dirty;
    bool lost; /* a probe is to tell how it ended; otherwise only whether to give up connecting */
    bool unproved; /* it ended in the handshake of CURVE */
    uint64_t connected; /* when; 0: it is not, or the handshake is over */
    bool probing;
    int probe;
    uint64_t probe_end;
    struct links_link *probe_prev, *probe_next; /* in `probes` */
} links_link;

struct node_links {
    node_links_options options;
    void *context, *router, *router_monitor, *zap;
    node_watch router_watch, router_monitor_watch, zap_watch;
    bool router_dirty, router_monitor_dirty, zap_dirty;
    bool woken; /* a descriptor told something since the last turn: there may be room to send */
    links_link *by_id, *by_identity, *by_fd;
    links_link *ages, *overs, *ends, *waits, *dirty, *probes;
    uint64_t now; /* of the last turn */
    size_t incoming;
    core_link last_even;
    uint64_t last_monitor;
    uint64_t next_try; /* for those in `waits` */
    uint64_t malformed, refused_keys, refused_connections;
    links_host *hosts;             /* by name */
    links_connection *connections; /* those that came in, by descriptor */
    size_t connection_count, most_connections;
    _Atomic(uint64_t) debt;  /* of all links, those that are gone with it */
    kvferry_report *trouble; /* of the allow-list */
    node_once once;
};

/* --- links.c ---------------------------------------------------------------------------------- */

/* Options of every socket to or at such an address; curve ones apart. */
bool links_configure(node_links *links, void *socket, const node_address *address);
links_link *links_add(node_links *links, core_link id);
links_link *links_find(const node_links *links, core_link id);
void links_mark_dirty(links_link *link);
void links_end(links_link *link, core_link_end how);
void links_free(links_link *link);

/* --- links_send.c ----------------------------------------------------------------------------- */

links_debt *links_debt_create(node_links *links);
void links_debt_release(links_debt *debt);
void links_drop_waiting(links_link *link);
void links_send_waiting(links_link *link);

/* --- links_in.c ------------------------------------------------------------------------------- */

bool links_in_receive(node_links *links, core_link *link, zmq_msg_t *message);
/* 1: sent, 0: not now, -1: never. */
int links_in_send(links_link *link, zmq_msg_t *message);
void links_in_forget(links_link *link);
/* The connection with this descriptor is over. */
void links_in_over(node_links *links, int fd);

/* --- links_out.c ------------------------------------------------------------------------------ */

bool links_out_receive(node_links *links, core_link *link, zmq_msg_t *message);
int links_out_send(links_link *link, zmq_msg_t *message);
void links_out_forget(links_link *link);
void links_out_turn(links_link *link, uint64_t now);
/* Whoever listens at its address ended it before it proved its key. */
void links_out_unproved(links_link *link);

/* --- links_probe.c ---------------------------------------------------------------------------- */

/* Asks the address whether anybody listens there. `lost`: the link ends with the answer. */
void links_probe_begin(links_link *link, bool lost, uint64_t now);
void links_probe_turn(links_link *link, uint64_t now);
void links_probe_forget(links_link *link);

/* --- links_zap.c ------------------------------------------------------------------------------ */

/* Before anything is bound. */
bool links_zap_open(node_links *links);
void links_zap_turn(node_links *links);
bool links_monitor_open(node_links *links, void *socket, int events, void **monitor);
/* The next event's kind, and its value if that is asked for; 0: none. */
int links_monitor_next(void *monitor, int *value);
void links_router_monitor_turn(node_links *links);
/* Whether the key is the own one (of the operator, or of a worker that shares it) or in the list; a file that is in
 * trouble is told. */
bool links_key_allowed(node_links *links, const unsigned char key[NODE_KEY_BYTES]);

/* --- links_hosts.c ---------------------------------------------------------------------------- */

size_t links_most_connections(const node_links *links);
void links_host_accepted(node_links *links, int fd);
void links_host_ended(node_links *links, int fd);
/* How many connections the host has, if that is more than it may; else 0. */
size_t links_host_excess(const node_links *links, const char *name);
void links_hosts_free(node_links *links);

#endif
