/* SPDX-License-Identifier: Apache-2.0 */
/* Links that peers open: connections of the ROUTER, known by the identity that it gives each. */
#include "node/links_internal.h"

#include <stdio.h>
#include <string.h>

/* A peer that goes without a word leaves its link here until something is sent to it, so there is a
 * bound: the one that was silent for longest goes. */
static size_t most_incoming(const node_links *links)
{
    return 1024 + 2 * (size_t)links->options.max_peers;
}

static void unlink_identity(links_link *link)
{
    HASH_DELETE(by_identity, link->links->by_identity, link);
    DL_DELETE2(link->links->ages, link, age_prev, age_next);
    link->links->incoming--;
    link->identity_size = 0;
}

void links_in_forget(links_link *link)
{
    if (link->identity_size)
        unlink_identity(link);
}

/* The connection is no link any more, while the end is still to be told. */
static void lose(links_link *link)
{
    unlink_identity(link);
    links_end(link, CORE_LINK_LOST);
}

static links_link *add(node_links *links, const void *identity, size_t size, const char *key)
{
    if (links->incoming >= most_incoming(links))
        lose(links->ages);
    links_link *link = links_add(links, links->last_even + 2);
    if (!link)
        return NULL;
    links->last_even += 2;
    link->incoming = true;
    snprintf(link->key, sizeof(link->key), "%s", key);
    memcpy(link->identity, identity, size);
    link->identity_size = (unsigned)size;
    HASH_ADD(by_identity, links->by_identity, identity, link->identity_size, link);
    if (!link->by_identity.tbl) {
        link->identity_size = 0;
        links_free(link);
        return NULL;
    }
    DL_APPEND2(links->ages, link, age_prev, age_next);
    links->incoming++;
    return link;
}

static links_link *link_of(node_links *links, zmq_msg_t *identity, zmq_msg_t *message)
{
    const void *data = zmq_msg_data(identity);
    size_t size = zmq_msg_size(identity);
    const char *proved = links->options.keys ? node_links_key(message) : NULL;
    const char *key = proved ? proved : "";
    links_link *link = NULL;
    if (size == 0 || size > LINKS_IDENTITY_MAX)
        return NULL;
    HASH_FIND(by_identity, links->by_identity, data, (unsigned)size, link);
    if (link && strcmp(link->key, key) != 0) { /* another connection has taken the identity */
        lose(link);
        link = NULL;
    }
    if (!link)
        return add(links, data, size, key);
    DL_DELETE2(links->ages, link, age_prev, age_next);
    DL_APPEND2(links->ages, link, age_prev, age_next);
    return link;
}

/* The rest of a message with more parts than one. */
static void skip_parts(void *socket)
{
    int more = 1;
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0)
            more = 0;
        else
            more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
}

/* An identity and a body. False: nothing is there. *link is NULL if it is nobody's. */
static bool receive(node_links *links, links_link **link, zmq_msg_t *message)
{
    zmq_msg_t identity;
    *link = NULL;
    zmq_msg_init(&identity);
    if (zmq_msg_recv(&identity, links->router, ZMQ_DONTWAIT) < 0) {
        links->router_dirty = zmq_errno() != EAGAIN;
        zmq_msg_close(&identity);
        return false;
    }
    bool body = zmq_msg_more(&identity) && zmq_msg_recv(message, links->router, ZMQ_DONTWAIT) >= 0;
    bool more = body && zmq_msg_more(message);
    if (more)
        skip_parts(links->router);
    if (!body || more)
        links->malformed++;
    else
        *link = link_of(links, &identity, message);
    zmq_msg_close(&identity);
    return true;
}

bool links_in_receive(node_links *links, core_link *id, zmq_msg_t *message)
{
    links_link *link;
    zmq_msg_init(message);
    while (links->router_dirty && receive(links, &link, message)) {
        if (!link)
            continue;
        *id = link->id;
        return true;
    }
    zmq_msg_close(message);
    return false;
}

int links_in_send(links_link *link, zmq_msg_t *message)
{
    void *router = link->links->router;
    link->links->router_dirty = true; /* sending may take in what the descriptor would have told */
    if (zmq_send(router, link->identity, link->identity_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        if (zmq_errno() == EAGAIN || zmq_errno() == EINTR)
            return 0;
        lose(link);
        return -1;
    }
    return zmq_msg_send(message, router, ZMQ_DONTWAIT) < 0 ? -1 : 1;
}
