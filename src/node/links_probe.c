/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeroMQ does not say why a connection failed. A probe of our own asks the address: a host that
 * answers that nobody listens (ECONNREFUSED) tells that the process which had the address is dead.
 */
#include "node/links_internal.h"

#include <errno.h>
#include <unistd.h>

static void probe_ready(node_watch *watch)
{
    links_link *link = (links_link *)(void *)((char *)watch - offsetof(links_link, probe_watch));
    link->probe_dirty = true;
    link->probe_end = 0;
}

void links_probe_forget(links_link *link)
{
    if (!link->probing)
        return;
    node_watch_remove(link->links->options.epoll, &link->probe_watch);
    if (link->probe >= 0)
        close(link->probe);
    link->probe = -1;
    link->probing = false;
    DL_DELETE2(link->links->probes, link, probe_prev, probe_next);
}

/* `failure`: of the connect; 0: somebody listens, -1: it is not known. */
static void answer(links_link *link, int failure)
{
    bool lost = link->lost;
    links_probe_forget(link);
    if (failure == ECONNREFUSED)
        links_end(link, CORE_LINK_REFUSED);
    else if (lost && link->unproved && failure == 0)
        links_out_unproved(link);
    else if (lost)
        links_end(link, CORE_LINK_LOST);
}

void links_probe_begin(links_link *link, bool lost, uint64_t now)
{
    link->lost |= lost;
    if (link->probing)
        return;
    struct sockaddr_storage where;
    socklen_t size;
    link->probing = true;
    link->probe_dirty = false;
    link->probe_end = now + LINKS_PROBE_NS;
    DL_APPEND2(link->links->probes, link, probe_prev, probe_next);
    if (node_address_socket(&link->address, &where, &size))
        link->probe = socket(where.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->probe < 0) {
        answer(link, -1);
        return;
    }
    if (connect(link->probe, (struct sockaddr *)&where, size) == 0)
        answer(link, 0);
    else if (errno != EINPROGRESS)
        answer(link, errno);
    else if (!node_watch_add(link->links->options.epoll, &link->probe_watch, link->probe,
                             EPOLLOUT | EPOLLONESHOT, probe_ready))
        answer(link, -1);
}

void links_probe_turn(links_link *link, uint64_t now)
{
    int failure = -1;
    socklen_t size = sizeof(failure);
    if (now < link->probe_end)
        return;
    if (link->probe_dirty && getsockopt(link->probe, SOL_SOCKET, SO_ERROR, &failure, &size) != 0)
        failure = -1;
    answer(link, failure);
}
