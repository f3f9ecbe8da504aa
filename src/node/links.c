/* SPDX-License-Identifier: Apache-2.0 */
#include "node/file.h"
#include "node/links_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- sockets ---------------------------------------------------------------------------------- */

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

/*
 * A connection whose other end has vanished is found by TCP's own probes. ZeroMQ's heartbeats stay off:
 * one that falls due on a connection whose reading has failed ends the process (libzmq 4.3.4 to 4.3.5,
 * stream_engine_base.cpp, out_event).
 */
bool links_configure(node_links *links, void *socket, const node_address *address)
{
    int64_t maximum = (int64_t)base_min(links->options.max_message_bytes, INT64_MAX);
    int probe_s = (int)base_min(links->options.silence_ms / 3000 + 1, INT16_MAX);
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &maximum, sizeof(maximum)) == 0 &&
           set_int(socket, ZMQ_IPV6, strchr(address->host, ':') != NULL) &&
           set_int(socket, ZMQ_SNDHWM, LINKS_SEND_HWM) &&
           set_int(socket, ZMQ_RCVHWM, LINKS_RECEIVE_HWM) &&
           set_int(socket, ZMQ_LINGER, LINKS_LINGER_MS) &&
           set_int(socket, ZMQ_HANDSHAKE_IVL, 10000) && set_int(socket, ZMQ_TCP_KEEPALIVE, 1) &&
           set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, probe_s) &&
           set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, probe_s) && set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 2);
}

static kvferry_status cannot_listen(const char *place, const char *expected, kvferry_report *report)
{
    base_report_add(report, "listen_failed", &(base_where){.place = place}, expected,
                    zmq_strerror(zmq_errno()), "control messages cannot be served");
    return KVFERRY_IO;
}

static void router_ready(node_watch *watch)
{
    node_links *links = (node_links *)(void *)((char *)watch - offsetof(node_links, router_watch));
    links->router_dirty = links->woken = true;
}

static void router_monitor_ready(node_watch *watch)
{
    node_links *links =
        (node_links *)(void *)((char *)watch - offsetof(node_links, router_monitor_watch));
    links->router_monitor_dirty = true;
}

static bool watch_socket(node_links *links, void *socket, node_watch *watch,
                         void (*ready)(node_watch *))
{
    int fd;
    size_t size = sizeof(fd);
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 &&
           node_watch_add(links->options.epoll, watch, fd, EPOLLIN, ready);
}

static bool open_router(node_links *links, const node_address *listen)
{
    links->router = zmq_socket(links->context, ZMQ_ROUTER);
    const node_key_pair *keys = links->options.keys;
    return links->router && links_configure(links, links->router, listen) &&
           set_int(links->router, ZMQ_ROUTER_MANDATORY, 1) &&
           set_int(links->router, ZMQ_BACKLOG, 1024) &&
           (!keys || (set_int(links->router, ZMQ_CURVE_SERVER, 1) &&
                      zmq_setsockopt(links->router, ZMQ_CURVE_SECRETKEY, keys->secret,
                                     NODE_KEY_BYTES) == 0 &&
                      zmq_setsockopt(links->router, ZMQ_ZAP_DOMAIN, "kvferry", 7) == 0)) &&
           links_monitor_open(links, links->router,
                              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_DISCONNECTED |
                                  (keys ? ZMQ_EVENT_ACCEPTED : 0),
                              &links->router_monitor) &&
           watch_socket(links, links->router_monitor, &links->router_monitor_watch,
                        router_monitor_ready) &&
           watch_socket(links, links->router, &links->router_watch, router_ready);
}

static kvferry_status bind_router(node_links *links, const node_address *listen,
                                  node_address *bound, kvferry_report *report)
{
    char text[NODE_ADDRESS_TEXT], last[NODE_ADDRESS_TEXT] = "";
    size_t size = sizeof(last);
    node_address plain = *listen;
    plain.has_key = false;
    node_address_format(&plain, NODE_ADDRESS_TCP, text);
    if (zmq_bind(links->router, text) != 0)
        return cannot_listen(text, "an address that can be bound", report);
    if (zmq_getsockopt(links->router, ZMQ_LAST_ENDPOINT, last, &size) != 0 ||
        !node_address_parse(last, NODE_ADDRESS_TCP, bound, text, report))
        return cannot_listen(text, "the address that was bound", report);
    return KVFERRY_OK;
}

kvferry_status node_links_create(const node_links_options *options, const node_address *listen,
                                 node_address *bound, node_links **links, kvferry_report *report)
{
    if (options->keys && !zmq_has("curve")) {
        base_report_add(report, "keys_unsupported", NULL, "a libzmq with CURVE", "one without it",
                        "keys cannot be used");
        return KVFERRY_UNSUPPORTED;
    }
    if (!node_file_descriptors(NODE_ZMQ_DESCRIPTORS, report))
        return KVFERRY_IO;
    node_links *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->options = *options;
    made->most_connections = links_most_connections(made);
    made->context = zmq_ctx_new();
    kvferry_status status =
        made->context ? kvferry_report_create(&made->trouble) : KVFERRY_NO_MEMORY;
    if (status == KVFERRY_OK) {
        int most = zmq_ctx_get(made->context, ZMQ_SOCKET_LIMIT);
        uint64_t wanted = 64 + 3 * (uint64_t)options->max_peers; /* a link is three sockets */
        zmq_ctx_set(made->context, ZMQ_MAX_SOCKETS, (int)base_min(wanted, (uint64_t)most));
        if ((options->keys && !links_zap_open(made)) || !open_router(made, listen))
            status = cannot_listen("", "sockets", report);
    }
    made->router_dirty = made->router_monitor_dirty = true; /* what came before they were watched */
    made->zap_dirty = made->zap != NULL;
    if (status == KVFERRY_OK)
        status = bind_router(made, listen, bound, report);
    if (status == KVFERRY_OK)
        *links = made;
    else
        node_links_close(made);
    return status;
}

static void close_socket(node_links *links, void *socket, node_watch *watch)
{
    node_watch_remove(links->options.epoll, watch);
    if (socket)
        zmq_close(socket);
}

void node_links_close(node_links *links)
{
    if (!links)
        return;
    links_link *link, *next;
    HASH_ITER(by_id, links->by_id, link, next)
        links_free(link);
    if (links->router_monitor)
        zmq_socket_monitor(links->router, NULL, 0);
    close_socket(links, links->router_monitor, &links->router_monitor_watch);
    close_socket(links, links->router, &links->router_watch);
    close_socket(links, links->zap, &links->zap_watch);
    while (links->context && zmq_ctx_term(links->context) != 0 && zmq_errno() == EINTR)
        ;
    links_hosts_free(links);
    kvferry_report_free(links->trouble);
    free(links);
}

/* --- links ------------------------------------------------------------------------------------ */

links_link *links_add(node_links *links, core_link id)
{
    links_link *link = base_alloc(1, sizeof(*link));
    if (!link)
        return NULL;
    link->id = id;
    link->links = links;
    link->probe = -1;
    link->debt = links_debt_create(links);
    if (link->debt)
        HASH_ADD(by_id, links->by_id, id, sizeof(link->id), link);
    if (!link->by_id.tbl) { /* it or the table had no memory */
        links_debt_release(link->debt);
        free(link);
        return NULL;
    }
    return link;
}

links_link *links_find(const node_links *links, core_link id)
{
    links_link *link;
    HASH_FIND(by_id, links->by_id, &id, sizeof(id), link);
    return link;
}

void links_mark_dirty(links_link *link)
{
    if (link->dirty)
        return;
    link->dirty = true;
    DL_APPEND2(link->links->dirty, link, dirty_prev, dirty_next);
}

void links_end(links_link *link, core_link_end how)
{
    if (link->ended)
        return;
    link->ended = true;
    link->how = how;
    DL_APPEND2(link->links->ends, link, end_prev, end_next);
}

void links_free(links_link *link)
{
    node_links *links = link->links;
    links_drop_waiting(link);
    links_debt_release(link->debt);
    if (link->incoming)
        links_in_forget(link);
    else
        links_out_forget(link);
    if (link->dirty)
        DL_DELETE2(links->dirty, link, dirty_prev, dirty_next);
    if (link->ended && !link->told)
        DL_DELETE2(links->ends, link, end_prev, end_next);
    HASH_DELETE(by_id, links->by_id, link);
    free(link);
}

void node_links_close_one(node_links *links, core_link id)
{
    links_link *link = links_find(links, id);
    if (link)
        links_free(link);
}

bool node_links_next_end(node_links *links, core_link *id, core_link_end *how)
{
    links_link *link = links->ends;
    if (!link)
        return false;
    *id = link->id;
    *how = link->how;
    DL_DELETE2(links->ends, link, end_prev, end_next);
    link->told = true;
    if (!link->identity_size) /* else it takes what still comes by it */
        links_free(link);
    return true;
}

/* --- turns ------------------------------------------------------------------------------------ */

void node_links_turn(node_links *links, uint64_t now)
{
    links_link *link, *next;
    links->now = now;
    if (links->router_monitor_dirty)
        links_router_monitor_turn(links);
    if (links->zap_dirty && !links->router_monitor_dirty) /* all that came before the questions is counted */
        links_zap_turn(links);
    DL_FOREACH_SAFE2(links->dirty, link, next, dirty_next)
        links_out_turn(link, now);
    DL_FOREACH_SAFE2(links->probes, link, next, probe_next)
        links_probe_turn(link, now);
    links->router_dirty |= links->overs && links->overs->over <= now;
    if (links->waits && (now >= links->next_try || links->woken)) {
        DL_FOREACH_SAFE2(links->waits, link, next, wait_next)
        links_send_waiting(link);
        links->next_try = now + LINKS_RETRY_NS;
    }
    links->woken = false;
}

bool node_links_receive(node_links *links, core_link *link, zmq_msg_t *message)
{
    return links_in_receive(links, link, message) || links_out_receive(links, link, message);
}

const char *node_links_key(zmq_msg_t *message) { return zmq_msg_gets(message, "User-Id"); }

const char *node_links_place(zmq_msg_t *message) { return zmq_msg_gets(message, "Peer-Address"); }

bool node_links_busy(const node_links *links)
{
    return links->router_dirty || links->router_monitor_dirty || links->zap_dirty || links->dirty ||
           links->ends;
}

uint64_t node_links_next_time(const node_links *links)
{
    uint64_t next = links->waits ? links->next_try : UINT64_MAX;
    if (links->overs)
        next = base_min(next, links->overs->over);
    for (const links_link *link = links->probes; link; link = link->probe_next)
        next = base_min(next, link->probe_end);
    return next;
}

bool node_links_pending(const node_links *links)
{
    return links->waits != NULL;
}
uint64_t node_links_malformed(const node_links *links)
{
    return links->malformed;
}
uint64_t node_links_refused_keys(const node_links *links)
{
    return links->refused_keys;
}
uint64_t node_links_refused_connections(const node_links *links)
{
    return links->refused_connections;
}
