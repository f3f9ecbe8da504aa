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

static void forget_fd(links_link *link)
{
    if (link->fd >= 0)
        HASH_DELETE(by_fd, link->links->by_fd, link);
    link->fd = -1;
}

static void unlink_identity(links_link *link)
{
    node_links *links = link->links;
    HASH_DELETE(by_identity, links->by_identity, link);
    DL_DELETE2(links->ages, link, age_prev, age_next);
    if (link->over)
        DL_DELETE2(links->overs, link, over_prev, over_next);
    forget_fd(link);
    links->incoming--;
    link->identity_size = 0;
}

void links_in_forget(links_link *link)
{
    if (link->identity_size)
        unlink_identity(link);
}

/* The connection is no link any more, while the end may still have to be told. */
static void lose(links_link *link)
{
    unlink_identity(link);
    if (link->told)
        links_free(link);
    else
        links_end(link, CORE_LINK_LOST);
}

/*
 * What the ROUTER still has of a connection that is over comes by its identity, which must not be taken for a new link:
 * what a peer said before it opened another would be read as if it said so after it.
 */
static void note_over(links_link *link, uint64_t when)
{
    if (link->over)
        return;
    forget_fd(link);
    link->over = base_max(when, 1);
    DL_APPEND2(link->links->overs, link, over_prev, over_next);
}

void links_in_over(node_links *links, int fd)
{
    links_link *link;
    HASH_FIND(by_fd, links->by_fd, &fd, sizeof(fd), link);
    if (link)
        note_over(link, links->now + LINKS_OVER_NS);
}

/* The ROUTER has nothing more: of those that were over before, nothing comes any more. */
static void end_overs(node_links *links)
{
    links_link *link, *next;
    DL_FOREACH_SAFE2(links->overs, link, next, over_next)
        if (link->over <= links->now)
            lose(link);
}

/* ZeroMQ's monitor names a connection by its descriptor; it has told already which one had that before. */
static void note_fd(links_link *link, zmq_msg_t *message)
{
    node_links *links = link->links;
    links_link *before;
    links_router_monitor_turn(links);
    int fd = zmq_msg_get(message, ZMQ_SRCFD);
    if (fd < 0)
        return;
    HASH_FIND(by_fd, links->by_fd, &fd, sizeof(fd), before);
    if (before)
        note_over(before, links->now + LINKS_OVER_NS);
    link->fd = fd;
    HASH_ADD(by_fd, links->by_fd, fd, sizeof(link->fd), link);
    if (!link->by_fd.tbl)
        link->fd = -1;
}

static links_link *add(node_links *links, const void *identity, size_t size, const char *key, zmq_msg_t *message)
{
    if (links->incoming >= most_incoming(links))
        lose(links->ages);
    links_link *link = links_add(links, links->last_even + 2);
    if (!link)
        return NULL;
    links->last_even += 2;
    link->incoming = true;
    link->fd = -1;
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
    note_fd(link, message);
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
        return add(links, data, size, key, message);
    if (link->ended)
        return NULL;
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
        if (!links->router_dirty)
            end_overs(links);
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
        note_over(link, link->links->now);
        links_end(link, CORE_LINK_LOST);
        return -1;
    }
    return zmq_msg_send(message, router, ZMQ_DONTWAIT) < 0 ? -1 : 1;
}
