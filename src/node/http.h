/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP servers of a node: the bootstrap of its engine, and metrics. Each with a thread of its own.
 */
#ifndef KVFERRY_NODE_HTTP_H
#define KVFERRY_NODE_HTTP_H

#include <stdatomic.h>

#include "node/address.h"
#include "node/directory.h"

typedef struct node_http node_http;

typedef struct node_http_options {
    bool bootstrap; /* serve /register and /query, else /metrics; /health in any case */
    /* Writes the metrics. Any thread. */
    void (*metrics)(void *context, base_text *text);
    /* Tells that a dp_rank was taken over by another engine, and so on. Any thread. */
    void (*log)(void *context, const char *line);
    void *context;
} node_http_options;

/* `bound` is `listen` with the port that it came to be. KVFERRY_IO with a reason (listen_failed).
 */
kvferry_status node_http_create(const node_http_options *options, const node_address *listen,
                                node_address *bound, node_http **http, kvferry_report *report);
void node_http_close(node_http *http);

/* Registers without a request. */
kvferry_status node_http_register(node_http *http, const node_entry *entry);

#endif
