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
    if (memcmp(key, links->options.keys->public_key, NODE_KEY_BYTES) == 0)
        return true;
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

/* The key in words is the peer's user id: messages that come by its connection have it; NULL: it is let in by none. */
static void zap_answer(void *socket, const zap_frame *id, const char *status, const char *why, const char *key)
{
    zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(socket, id->data, id->size, ZMQ_SNDMORE);
    zmq_send(socket, status, 3, ZMQ_SNDMORE);
    zmq_send(socket, why, strlen(why), ZMQ_SNDMORE);
    zmq_send(socket, key, key ? strlen(key) : 0, ZMQ_SNDMORE);
    zmq_send(socket, "", 0, 0);
}

static void refuse_key(node_links *links, const zap_frame *frames, const char *key)
{
    const zap_frame *from = &frames[ZAP_ADDRESS];
    links->refused_keys++;
    if (node_once_first(&links->once, "key", key))
        links->options.log(links->options.log_context, KVFERRY_LOG_WARNING,
                           "refused the key %s of %.*s: it is not in the list of allowed keys", key,
                           (int)from->size, from->data);
    zap_answer(links->zap, &frames[ZAP_ID], "400", "key not allowed", NULL);
}

/* Whether its host may have this connection beside those that it has. It is answered like trouble that passes. */
static bool check_host(node_links *links, const zap_frame *frames)
{
    char host[LINKS_HOST_TEXT];
    snprintf(host, sizeof(host), "%.*s", (int)frames[ZAP_ADDRESS].size, frames[ZAP_ADDRESS].data);
    size_t has = links_host_excess(links, host);
    if (!has)
        return true;
    links->refused_connections++;
    if (node_once_first(&links->once, "connections", host))
        links->options.log(links->options.log_context, KVFERRY_LOG_WARNING,
                           "refused a connection of %s, too_many_connections: it has %zu of %zu, more than are left",
                           host, has, links->most_connections);
    zap_answer(links->zap, &frames[ZAP_ID], "300", "too many connections", NULL);
    return false;
}

void links_zap_turn(node_links *links)
{
    zap_frame frames[ZAP_FRAMES] = {0};
    bool good;
    for (int i = 0; i < LINKS_ZAP_QUESTIONS; i++) {
        if (!zap_receive(links->zap, frames, &good)) {
            links->zap_dirty = zmq_errno() != EAGAIN;
            return;
        }
        const unsigned char *key = (const unsigned char *)frames[ZAP_KEY].data;
        char text[NODE_KEY_TEXT] = "";
        if (good)
            node_key_format(key, text);
        if (!good || !links_key_allowed(links, key))
            refuse_key(links, frames, text);
        else if (check_host(links, frames))
            zap_answer(links->zap, &frames[ZAP_ID], "200", "OK", text);
    }
    links->zap_dirty = true;
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
    /* Without a bound: ZeroMQ's thread would wait for room. */
    return *monitor && zmq_setsockopt(*monitor, ZMQ_LINGER, &none, sizeof(none)) == 0 &&
           zmq_setsockopt(*monitor, ZMQ_RCVHWM, &none, sizeof(none)) == 0 && zmq_connect(*monitor, name) == 0;
}

int links_monitor_next(void *monitor, int *value)
{
    unsigned char head[8];
    char address[8];
    uint16_t event;
    int32_t number;
    if (zmq_recv(monitor, head, sizeof(head), ZMQ_DONTWAIT) < (int)(sizeof(event) + sizeof(number)))
        return 0;
    memcpy(&event, head, sizeof(event));
    memcpy(&number, head + sizeof(event), sizeof(number));
    if (value)
        *value = number;
    zmq_recv(monitor, address, sizeof(address), ZMQ_DONTWAIT); /* cut: it is known */
    return event;
}

/* A peer without keys does not get as far as a question about one. */
static void handshake_failed(node_links *links)
{
    if (!links->options.keys) {
        links->malformed++;
        return;
    }
    links->refused_keys++;
    if (node_once_first(&links->once, "key", "none"))
        links->options.log(links->options.log_context, KVFERRY_LOG_WARNING,
                           "refused a connection without a key, or not of a node");
}

static void router_connection_ended(node_links *links, int fd)
{
    links_host_ended(links, fd);
    links_in_over(links, fd);
}

void links_router_monitor_turn(node_links *links)
{
    links->router_monitor_dirty = false;
    for (int i = 0; i < LINKS_ROUTER_EVENTS; i++) {
        int fd, event = links_monitor_next(links->router_monitor, &fd);
        if (event == 0)
            return;
        if (event == ZMQ_EVENT_ACCEPTED)
            links_host_accepted(links, fd);
        else if (event == ZMQ_EVENT_DISCONNECTED)
            router_connection_ended(links, fd);
        else
            handshake_failed(links);
    }
    links->router_monitor_dirty = true;
}
