/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP connections of this library's own. UCX carries writes over TCP as messages which its target
 * answers, and ends the target's process when the writer is dead by then (1.13 to 1.22). Here a
 * dead peer is an error of a socket.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/ucx_tcp.h"

/* --- queues ---------------------------------------------------------------------------------- */

tcp_queue *tcp_take_queue(ucx_tcp *tcp)
{
    tcp_queue *queue = tcp->spare;
    if (queue)
        tcp->spare = queue->next;
    else
        queue = malloc(sizeof(*queue));
    if (queue) {
        queue->next = NULL;
        queue->at = queue->count = 0;
    }
    return queue;
}

void tcp_spare_queue(ucx_tcp *tcp, tcp_queue *queue)
{
    queue->next = tcp->spare;
    tcp->spare = queue;
}

/* --- listening ------------------------------------------------------------------------------- */

/* Whether the list, as of UCX_NET_DEVICES, has the name. "": loopback. */
static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    if (!*list)
        return strcmp(name, "lo") == 0;
    if (strcmp(list, "all") == 0)
        return true;
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == '\0' || at[length] == ','))
            return true;
    }
    return false;
}

static socklen_t make_address(const tcp_address *address, struct sockaddr_storage *made)
{
    memset(made, 0, sizeof(*made));
    if (address->family == 4) {
        struct sockaddr_in *four = (struct sockaddr_in *)made;
        four->sin_family = AF_INET;
        four->sin_port = htons(address->port);
        memcpy(&four->sin_addr, address->ip, sizeof(four->sin_addr));
        return sizeof(*four);
    }
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)made;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(address->port);
    memcpy(&six->sin6_addr, address->ip, sizeof(six->sin6_addr));
    return sizeof(*six);
}

static int watch(ucx_tcp *tcp, int fd, void *whose)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = whose};
    return epoll_ctl(tcp->fd, EPOLL_CTL_ADD, fd, &event);
}

static void listen_at(ucx_tcp *tcp, tcp_address *address)
{
    struct sockaddr_storage place;
    socklen_t length = make_address(address, &place);
    int *listener = &tcp->listeners[tcp->exported.count], one = 1;
    int fd = socket(place.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (address->family == 6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&place, length) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&place, &length) != 0 || watch(tcp, fd, listener) != 0) {
        close(fd);
        return;
    }
    address->port = ntohs(address->family == 4 ? ((struct sockaddr_in *)&place)->sin_port
                                               : ((struct sockaddr_in6 *)&place)->sin6_port);
    *listener = fd;
    tcp->exported.addresses[tcp->exported.count++] = *address;
}

typedef struct listening {
    ucx_tcp *tcp;
    const char *devices;
    const base_host *own; /* that peers on other hosts come to; NULL: none */
    bool has_own;
} listening;

/* At the addresses of the devices; where none is named at `own` too, whose ever it is, which peers are to try first. It may
 * be an address of the loopback device: hosts with several ways out route to one there. */
static bool listen_if_listed(void *context, const base_interface *one)
{
    listening *it = context;
    tcp_export *exported = &it->tcp->exported;
    unsigned before = exported->count;
    tcp_address address;
    bool own = it->own && base_host_same(&one->host, it->own);
    if (!tcp_take_host(&one->host, &address) || !(is_listed(it->devices, one->name) || (own && !*it->devices)))
        return false;
    address.loopback = one->loopback && !own;
    listen_at(it->tcp, &address);
    if (own && !*it->devices && exported->count > before) {
        exported->addresses[before] = exported->addresses[0];
        exported->addresses[0] = address;
        it->has_own = true;
    }
    return exported->count == TCP_ADDRESSES;
}

/* Where no devices are named, peers on other hosts come to `host`: without it none would get here. */
static kvferry_status listen_for(ucx_tcp *tcp, const char *devices, const char *host,
                                 kvferry_report *report)
{
    base_host own;
    listening it = {.tcp = tcp, .devices = devices, .own = tcp_read_host(host, &own) ? &own : NULL};
    base_interfaces_find(listen_if_listed, &it);
    if (!it.own || *devices || it.has_own)
        return KVFERRY_OK;
    base_report_add(report, "engine_option", &(base_where){.place = "host"},
                    "an address of one of this host's interfaces, or net_devices",
                    base_format("%.64s", host), "ucx: peers on other hosts could not reach it over TCP");
    return KVFERRY_INVALID;
}

kvferry_status ucx_tcp_open(ucx_engine *engine, const kvferry_engine_options *options,
                            kvferry_report *report)
{
    const char *devices = options->net_devices, *environment = getenv("UCX_NET_DEVICES");
    ucx_tcp *tcp = base_alloc(1, sizeof(*tcp));
    if (!tcp)
        return KVFERRY_NO_MEMORY;
    engine->tcp = tcp;
    tcp->fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (tcp->fd < 0 || epoll_ctl(engine->fd, EPOLL_CTL_ADD, tcp->fd, &event) != 0) {
        base_report_add(report, "engine_failed", NULL, NULL, strerror(errno), "ucx: no TCP");
        return KVFERRY_UNSUPPORTED;
    }
    return listen_for(tcp, *devices || !environment ? devices : environment, options->host, report);
}

/* --- connections ----------------------------------------------------------------------------- */

static ucx_connection *make_connection(ucx_engine *engine, ucx_peer *peer)
{
    ucx_connection *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    memset(made, 0, offsetof(ucx_connection, buffer));
    made->engine = engine;
    made->peer = peer;
    made->fd = -1;
    made->next = engine->tcp->connections;
    engine->tcp->connections = made;
    return made;
}

/* A host that is gone is noticed in half a minute; one that is only stopped stays. */
static void tune(int fd)
{
    static const int one = 1, idle = 10, interval = 5, count = 4;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

void tcp_watch(ucx_connection *connection, bool waits)
{
    struct epoll_event event = {.events = waits ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.ptr = connection};
    if (connection->lost || connection->waits == waits)
        return;
    connection->waits = waits;
    epoll_ctl(connection->engine->tcp->fd, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Nothing more goes or comes. What is still to go is not, also what the kernel has taken: after a
 * cut it would be sent when the link is back, into blocks with new owners. The other side sees a
 * reset. Only answers that wait for nobody are let go. */
void tcp_lose(ucx_connection *connection)
{
    static const struct linger at_once = {.l_onoff = 1};
    ucx_tcp *tcp = connection->engine->tcp;
    if (connection->lost)
        return;
    connection->lost = true;
    if (connection->fd >= 0) {
        if (connection->first || connection->peer)
            setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        close(connection->fd);
    }
    while (connection->first) {
        tcp_queue *queue = connection->first;
        connection->first = queue->next;
        tcp_spare_queue(tcp, queue);
    }
    connection->last = NULL;
    if (connection->peer) {
        connection->peer->lost = true;
        connection->peer->opening = false;
        ucx_batches_abandon(connection->peer);
    }
}

/* Tries the target's addresses from the next one on; false: none is left. */
static bool begin_attempt(ucx_connection *connection)
{
    ucx_tcp *tcp = connection->engine->tcp;
    const tcp_export *target = connection->target;
    while (connection->attempt < target->count) {
        const tcp_address *address = &target->addresses[connection->attempt++];
        struct sockaddr_storage place;
        socklen_t length = make_address(address, &place);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = connection};
        int fd = socket(place.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        tune(fd);
        if ((connect(fd, (struct sockaddr *)&place, length) != 0 && errno != EINPROGRESS) ||
            epoll_ctl(tcp->fd, EPOLL_CTL_ADD, fd, &event) != 0) {
            close(fd);
            continue;
        }
        connection->fd = fd;
        connection->waits = true;
        return true;
    }
    return false;
}

/* The attempt has ended: well, or the next one begins. */
static void end_attempt(ucx_connection *connection)
{
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && !error) {
        connection->up = true;
        connection->peer->opening = false;
        tcp_send(connection);
        return;
    }
    close(connection->fd);
    connection->fd = -1;
    if (!begin_attempt(connection))
        tcp_lose(connection);
}

/* Of another host, without its loopback addresses. */
static void keep_usable(tcp_export *target, bool same_host)
{
    uint8_t count = 0;
    for (uint8_t i = 0; i < target->count; i++)
        if (same_host || !target->addresses[i].loopback)
            target->addresses[count++] = target->addresses[i];
    target->count = count;
}

kvferry_status ucx_tcp_connect(ucx_engine *engine, ucx_peer *peer, const ucx_identity *identity,
                               const void *data, kvferry_report *report)
{
    tcp_frame hello = {.kind = TCP_HELLO};
    tcp_export target;
    memcpy(&target, data, sizeof(target));
    if (target.count > TCP_ADDRESSES)
        return KVFERRY_MALFORMED;
    unsigned offered = target.count;
    keep_usable(&target, ucx_identity_same_host(&engine->identity, identity));
    if (!target.count) {
        base_report_add(report, "engine_failed", NULL, "an address that leads to it from here",
                        base_format("%u addresses, none of which does", offered),
                        "ucx: no way to the peer over TCP");
        return KVFERRY_PEER_LOST;
    }
    ucx_connection *connection = make_connection(engine, peer);
    tcp_export *copy = base_alloc(1, sizeof(*copy));
    memcpy(&hello.from, identity->id, UCX_ID_BYTES);
    if (connection)
        connection->target = copy;
    if (!connection || !copy || !tcp_push(connection, &hello, NULL)) {
        if (connection) { /* freed by the next progress */
            connection->lost = true;
            connection->peer = NULL;
        } else {
            free(copy);
        }
        return KVFERRY_NO_MEMORY;
    }
    *copy = target;
    peer->connection = connection;
    peer->opening = true;
    if (!begin_attempt(connection))
        tcp_lose(connection);
    return KVFERRY_OK;
}

void ucx_tcp_disconnect(ucx_peer *peer)
{
    tcp_lose(peer->connection);
    peer->connection->peer = NULL;
    peer->connection = NULL;
}

/* --- progress -------------------------------------------------------------------------------- */

static void accept_all(ucx_engine *engine, int listener)
{
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        ucx_connection *connection = make_connection(engine, NULL);
        if (!connection || watch(engine->tcp, fd, connection) != 0) {
            close(fd);
            if (connection)
                connection->lost = true;
            continue;
        }
        tune(fd);
        connection->fd = fd;
        connection->up = true;
    }
}

static bool is_listener(const ucx_tcp *tcp, const void *whose)
{
    const int *place = whose;
    return place >= tcp->listeners && place < tcp->listeners + TCP_ADDRESSES;
}

static bool serve(ucx_connection *connection, uint32_t events)
{
    bool any = false;
    if (connection->lost)
        return false;
    if (!connection->up) {
        end_attempt(connection);
        return true;
    }
    if (events & EPOLLOUT)
        any = tcp_send(connection);
    if (!connection->lost && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        any = tcp_receive(connection) || any;
    return any;
}

/* No event of a lost connection is waiting any more. */
static void free_lost(ucx_tcp *tcp)
{
    for (ucx_connection **at = &tcp->connections; *at;) {
        ucx_connection *connection = *at;
        if (connection->lost && !connection->peer) {
            *at = connection->next;
            free(connection->target);
            free(connection);
        } else {
            at = &connection->next;
        }
    }
}

bool ucx_tcp_progress(ucx_engine *engine)
{
    ucx_tcp *tcp = engine->tcp;
    struct epoll_event events[64];
    bool any = false;
    int count = epoll_wait(tcp->fd, events, 64, 0);
    for (int i = 0; i < count; i++) {
        void *whose = events[i].data.ptr;
        if (is_listener(tcp, whose)) {
            accept_all(engine, *(const int *)whose);
            any = true;
        } else {
            any = serve(whose, events[i].events) || any;
        }
    }
    if (any)
        free_lost(tcp);
    return any;
}

/* --- ends ------------------------------------------------------------------------------------ */

static bool sends_of(const ucx_connection *connection, const ucx_segment *segment)
{
    for (const tcp_queue *queue = connection->first; queue; queue = queue->next)
        for (size_t at = queue->at; at < queue->count; at++)
            if ((uint64_t)(uintptr_t)queue->data[at] - segment->address < segment->bytes)
                return true;
    return false;
}

void ucx_tcp_forget(ucx_engine *engine, const ucx_segment *segment)
{
    for (ucx_connection *one = engine->tcp->connections; one; one = one->next)
        if (!one->lost && (sends_of(one, segment) ||
                           (one->place && one->follows &&
                            (uint64_t)(uintptr_t)one->place - segment->address < segment->bytes)))
            tcp_lose(one);
}

void ucx_tcp_close(ucx_engine *engine)
{
    ucx_tcp *tcp = engine->tcp;
    if (!tcp)
        return;
    for (ucx_connection *connection = tcp->connections; connection; connection = connection->next) {
        tcp_lose(connection);
        connection->peer = NULL;
    }
    free_lost(tcp);
    for (unsigned i = 0; i < tcp->exported.count; i++)
        close(tcp->listeners[i]);
    if (tcp->fd >= 0)
        close(tcp->fd);
    while (tcp->spare) {
        tcp_queue *queue = tcp->spare;
        tcp->spare = queue->next;
        free(queue);
    }
    free(tcp);
    engine->tcp = NULL;
}
