/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of nodes and of HTTP servers: one way to read them and one to write them. */
#ifndef KVFERRY_NODE_ADDRESS_H
#define KVFERRY_NODE_ADDRESS_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/base.h"

enum { NODE_KEY_BYTES = 32, NODE_KEY_TEXT = 2 * NODE_KEY_BYTES + 1, NODE_HOST_MAX = 253 };

typedef enum node_address_form {
    NODE_ADDRESS_TCP,  /* "tcp://HOST:PORT", or "tcp://HOST:PORT/KEY" with 64 hexadecimal digits */
    NODE_ADDRESS_HTTP, /* "http://HOST:PORT", with or without a slash behind it */
    NODE_ADDRESS_PLAIN /* "HOST:PORT" */
} node_address_form;

/* An IPv6 host stands in brackets in text, and without them here. */
typedef struct node_address {
    char host[NODE_HOST_MAX + 1]; /* "*" and "localhost" are written out as 0.0.0.0 and 127.0.0.1 */
    uint16_t port;
    bool has_key;
    unsigned char key[NODE_KEY_BYTES];
} node_address;

/* What the longest address needs, with its key and the zero byte. */
enum { NODE_ADDRESS_TEXT = sizeof("http://[]:65535/") + NODE_HOST_MAX + NODE_KEY_TEXT };

/* False, with a reason (address_malformed) whose place is `place`. */
bool node_address_parse(const char *text, node_address_form form, node_address *address,
                        const char *place, kvferry_report *report);

void node_address_format(const node_address *address, node_address_form form,
                         char text[NODE_ADDRESS_TEXT]);

/* Whether it is an address of this host only, and whether it names no single host (0.0.0.0, ::).
 * A name is neither. */
bool node_address_is_loopback(const node_address *address);
bool node_address_is_wildcard(const node_address *address);

/* Whether two numeric hosts are the same one, in whatever form. */
bool node_address_same_host(const node_address *a, const node_address *b);

/* Whether an interface of this host, or of the container that it is, has the numeric host. */
bool node_address_is_here(const node_address *address);

/* Whether the host is digits: there is no name to be looked up. */
bool node_address_is_numeric(const node_address *address);

/* The socket address of a numeric host. */
bool node_address_socket(const node_address *address, struct sockaddr_storage *socket_address,
                         socklen_t *size);

/* Looks the host up if it is a name; blocks for as long as that takes. Of several addresses it takes the first. False:
 * `why` says why, static. */
bool node_address_resolve(node_address *address, const char **why);

/* The same; but of several addresses it tries one after the other, and takes the first where somebody listens; if nobody
 * does, the first that does not refuse, so that a refusal is one of all. It waits for eight that say nothing, for a second
 * each, and for `most_ms` in all: those that it does not come to count as silent. */
bool node_address_reach(node_address *address, uint64_t most_ms, const char **why);

/* Connects to a numeric host for a moment, in a second or `most_ms` at most: 0, or why it cannot (errno). */
int node_address_probe(const node_address *address, uint64_t most_ms);

/* 64 hexadecimal digits and back. */
void node_key_format(const unsigned char key[NODE_KEY_BYTES], char text[NODE_KEY_TEXT]);
bool node_key_parse(const char *text, size_t size, unsigned char key[NODE_KEY_BYTES]);

#endif
