/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_NODE_WATCH_H
#define KVFERRY_NODE_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/* A descriptor in the node thread's epoll set. `ready` only notes that there is something to do: an
 * object that was reported is never freed before all reports of that turn are through. */
typedef struct node_watch {
    void (*ready)(struct node_watch *watch);
    int fd;
} node_watch;

static inline bool node_watch_add(int epoll, node_watch *watch, int fd, uint32_t events,
                                  void (*ready)(node_watch *))
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    watch->ready = ready;
    watch->fd = fd;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static inline void node_watch_remove(int epoll, node_watch *watch)
{
    if (watch->ready)
        epoll_ctl(epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->ready = NULL;
}

#endif
