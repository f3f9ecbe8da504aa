/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What takes time, in threads of its own: directories of workers over HTTP or from a file, names
 * of hosts, and the own registration at the engine's bootstrap server, where its leader is found
 * too.
 */
#ifndef KVFERRY_NODE_RESOLVE_H
#define KVFERRY_NODE_RESOLVE_H

#include "node/address.h"
#include "node/directory.h"

typedef struct node_resolver node_resolver;

typedef struct node_resolver_options {
    int wake;              /* an eventfd: there are answers. It is duplicated */
    const char *bootstrap; /* "http://HOST:PORT"; NULL: register nowhere */
    node_entry own;        /* what to register; copied */
    bool seek_leader;      /* tell the address of the worker (0, 0, 0) of the own engine */
    uint32_t leader_dp;    /* under which dp_rank it is registered */
    uint64_t retry_ms;     /* between tries to register */
} node_resolver_options;

kvferry_status node_resolver_create(const node_resolver_options *options, node_resolver **resolver);

/* Waits at most a second for what is under way; the rest ends by itself and tells nobody. */
void node_resolver_close(node_resolver *resolver);

/* `where`: "http://HOST:PORT" or "file:PATH". KVFERRY_NO_MEMORY. What does not answer keeps others waiting only where eight
 * places, or eight names, do not. */
kvferry_status node_resolver_query(node_resolver *resolver, uint64_t query, const char *where,
                                   const char *engine_id);
kvferry_status node_resolver_name(node_resolver *resolver, uint64_t link,
                                  const node_address *address);
/* The link is given up: its name is not looked up unless that has begun. (A query ends by a later one that is alike.) */
void node_resolver_forget(node_resolver *resolver, uint64_t link);

typedef enum node_answer_kind {
    NODE_ANSWER_QUERY,  /* id, status (KVFERRY_BUSY: ask again), engine_id, addresses */
    NODE_ANSWER_NAME,   /* id, status, address, detail */
    NODE_ANSWER_LEADER, /* leader: another than before */
    NODE_ANSWER_TROUBLE /* detail: for the log */
} node_answer_kind;

enum { NODE_ANSWER_DETAIL = 1024 }; /* another server's words among them */

typedef struct node_answer {
    node_answer_kind kind;
    uint64_t id;
    kvferry_status status;
    kvferry_report *report; /* why not; NULL if there was no memory for it */
    node_directory directory;
    const char *engine_id;  /* in the directory */
    const char **addresses; /* of that engine, in the directory */
    size_t count;
    node_address address;
    char *leader;
    char detail[NODE_ANSWER_DETAIL];
    struct node_answer *next;
} node_answer;

/* NULL: none. The caller frees it. */
node_answer *node_resolver_next(node_resolver *resolver);
void node_answer_free(node_answer *answer);

#endif
