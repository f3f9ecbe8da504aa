/* SPDX-License-Identifier: Apache-2.0 */
/* Who may connect: the answers to ZeroMQ's questions about keys (ZAP), and what its monitors tell.
 */
#include "node/links_internal.h"

#include <stdio.h>
#include <string.h>

enum {
    ZAP_VERSION,
    ZAP_ID,
    ZAP_DOMAIN,
    ZAP_ADDRESS,
    ZAP_IDENTITY,
    ZAP_MECHANISM,
    ZAP_KEY,
    ZAP_FRAMES
};
enum { ZAP_FRAME_MAX = 256 };

typedef struct zap_frame {
    char data[ZAP_FRAME_MAX];
    size_t size;
} zap_frame;

static void zap_ready(node_watch *watch)
{
    node_links *links = (node_links *)(void *)((char *)watch - offsetof(node_links, zap_watch));
    links->zap_dirty = true;
}

bool links_zap_open(node_links *links)
{
    int fd;
    size_t size = sizeof(fd);
    links->zap = zmq_socket(links->context, ZMQ_REP);
    return links->zap && zmq_bind(links->zap, "inproc://zeromq.zap.01") == 0 &&
           zmq_getsockopt(links->zap, ZMQ_FD, &fd, &size) == 0 &&
           node_watch_add(links->options.epoll, &links->zap_watch, fd, EPOLLIN, zap_ready);
}

bool links_key_allowed(node_links *links, const unsigned char key[NODE_KEY_BYTES])
{
    bool allowed = node_allowed_has(links->options.allowed, key, links->trouble);
    for (size_t i = 0; i < kvferry_report_count(links->trouble); i++)
        links->options.log(links->options.log_context, KVFERRY_LOG_ERROR, "%s",
                           kvferry_report_get(links->trouble, i)->message);
    kvferry_report_clear(links->trouble);
    return allowed;
}

/* False: no question is there. *good: it has the frames of one about a CURVE key. */
static bool zap_receive(void *socket, zap_frame *frames, bool *good)
{
    int more = 1, count = 0;
    *good = true;
    while (more) {
        zap_frame rest, *frame = count < ZAP_FRAMES ? &frames[count] : &rest;
        size_t size = sizeof(more);
        int got = zmq_recv(socket, frame->data, ZAP_FRAME_MAX, ZMQ_DONTWAIT);
        if (got < 0)
            return false;
        *good = *good && got <= ZAP_FRAME_MAX;
        frame->size = (size_t)(got < ZAP_FRAME_MAX ? got : ZAP_FRAME_MAX);
        count++;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0)
            more = 0;
    }
    *good = *good && count == ZAP_FRAMES && frames[ZAP_KEY].size == NODE_KEY_BYTES &&
            frames[ZAP_MECHANISM].size == 5 && memcmp(frames[ZAP_MECHANISM].data, "CURVE", 5) == 0;
    return true;
}

/* The key in words is the peer's user id: messages that come by its connection have it. */
static void zap_answer(void *socket, const zap_frame *id, bool allowed, const char *key)
{
    zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(socket, id->data, id->size, ZMQ_SNDMORE);
    zmq_send(socket, allowed ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(socket, allowed ? "OK" : "key not allowed", allowed ? 2 : 15, ZMQ_SNDMORE);
    zmq_send(socket, key, allowed ? strlen(key) : 0, ZMQ_SNDMORE);
    zmq_send(socket, "", 0, 0);
}

void links_zap_turn(node_links *links)
{
    zap_frame frames[ZAP_FRAMES] = {0};
    bool good;
    while (zap_receive(links->zap, frames, &good)) {
        const unsigned char *key = (const unsigned char *)frames[ZAP_KEY].data;
        bool allowed = good && links_key_allowed(links, key);
        char text[NODE_KEY_TEXT] = "";
        if (good)
            node_key_format(key, text);
        if (!allowed) {
            links->refused_keys++;
            if (node_once_first(&links->once, "key", text))
                links->options.log(
                    links->options.log_context, KVFERRY_LOG_WARNING,
                    "refused the key %s of %.*s: it is not in the list of allowed keys", text,
                    (int)frames[ZAP_ADDRESS].size, frames[ZAP_ADDRESS].data);
        }
        zap_answer(links->zap, &frames[ZAP_ID], allowed, text);
    }
    links->zap_dirty = zmq_errno() != EAGAIN;
}

/* --- monitors --------------------------------------------------------------------------------- */

bool links_monitor_open(node_links *links, void *socket, int events, void **monitor)
{
    char name[64];
    const int none = 0;
    snprintf(name, sizeof(name), "inproc://monitor-%llu",
             (unsigned long long)++links->last_monitor);
    if (zmq_socket_monitor(socket, name, events) != 0)
        return false;
    *monitor = zmq_socket(links->context, ZMQ_PAIR);
    return *monitor && zmq_setsockopt(*monitor, ZMQ_LINGER, &none, sizeof(none)) == 0 &&
           zmq_connect(*monitor, name) == 0;
}

int links_monitor_next(void *monitor)
{
    unsigned char head[8];
    char address[8];
    uint16_t event;
    if (zmq_recv(monitor, head, sizeof(head), ZMQ_DONTWAIT) < (int)sizeof(event))
        return 0;
    memcpy(&event, head, sizeof(event));
    zmq_recv(monitor, address, sizeof(address), ZMQ_DONTWAIT); /* cut: it is known */
    return event;
}

/* A peer without keys does not get as far as a question about one. */
void links_router_monitor_turn(node_links *links)
{
    links->router_monitor_dirty = false;
    for (int i = 0; i < LINKS_MONITOR_EVENTS; i++) {
        if (links_monitor_next(links->router_monitor) == 0)
            return;
        if (!links->options.keys) {
            links->malformed++;
            continue;
        }
        links->refused_keys++;
        if (node_once_first(&links->once, "key", "none"))
            links->options.log(links->options.log_context, KVFERRY_LOG_WARNING,
                               "refused a connection without a key, or not of a node");
    }
    links->router_monitor_dirty = true;
}
