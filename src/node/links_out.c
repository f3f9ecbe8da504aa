/* SPDX-License-Identifier: Apache-2.0 */
/* Links that the core opens: a DEALER each, with a monitor. */
#include "node/links_internal.h"

#include <string.h>

static void say_once(node_links *links, const char *what, const char *address)
{
    if (node_once_first(&links->once, what, address))
        links->options.log(links->options.log_context, KVFERRY_LOG_WARNING, "%s: %s", address,
                           what);
}

static void give_up(links_link *link, core_link_end how, const char *what)
{
    char text[NODE_ADDRESS_TEXT];
    node_address_format(&link->address, NODE_ADDRESS_TCP, text);
    say_once(link->links, what, text);
    links_end(link, how);
}

/* --- opening ---------------------------------------------------------------------------------- */

static void dealer_ready(node_watch *watch)
{
    links_link *link = (links_link *)(void *)((char *)watch - offsetof(links_link, dealer_watch));
    link->dealer_dirty = link->links->woken = true;
    links_mark_dirty(link);
}

static void monitor_ready(node_watch *watch)
{
    links_link *link = (links_link *)(void *)((char *)watch - offsetof(links_link, monitor_watch));
    link->monitor_dirty = true;
    links_mark_dirty(link);
}

static bool watch(links_link *link, void *socket, node_watch *place, void (*ready)(node_watch *))
{
    int fd;
    size_t size = sizeof(fd);
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 &&
           node_watch_add(link->links->options.epoll, place, fd, EPOLLIN, ready);
}

static bool set_keys(const links_link *link)
{
    const node_key_pair *keys = link->links->options.keys;
    return !keys ||
           (zmq_setsockopt(link->dealer, ZMQ_CURVE_SERVERKEY, link->address.key, NODE_KEY_BYTES) ==
                0 &&
            zmq_setsockopt(link->dealer, ZMQ_CURVE_PUBLICKEY, keys->public_key, NODE_KEY_BYTES) ==
                0 &&
            zmq_setsockopt(link->dealer, ZMQ_CURVE_SECRETKEY, keys->secret, NODE_KEY_BYTES) == 0);
}

/* The address is numeric. */
static void dial(links_link *link)
{
    const int reconnect = 100, reconnect_most = 2000, connect_timeout = 5000;
    char text[NODE_ADDRESS_TEXT];
    node_links *links = link->links;
    node_address plain = link->address;
    plain.has_key = false;
    node_address_format(&plain, NODE_ADDRESS_TCP, text);
    link->dealer = zmq_socket(links->context, ZMQ_DEALER);
    bool good =
        link->dealer && links_configure(links, link->dealer, &link->address) && set_keys(link) &&
        zmq_setsockopt(link->dealer, ZMQ_RECONNECT_IVL, &reconnect, sizeof(int)) == 0 &&
        zmq_setsockopt(link->dealer, ZMQ_RECONNECT_IVL_MAX, &reconnect_most, sizeof(int)) == 0 &&
        zmq_setsockopt(link->dealer, ZMQ_CONNECT_TIMEOUT, &connect_timeout, sizeof(int)) == 0 &&
        links_monitor_open(
            links, link->dealer,
            ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED |
                ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
            &link->monitor) &&
        watch(link, link->monitor, &link->monitor_watch, monitor_ready) &&
        watch(link, link->dealer, &link->dealer_watch, dealer_ready) &&
        zmq_connect(link->dealer, text) == 0;
    if (!good)
        give_up(link, CORE_LINK_LOST, zmq_strerror(zmq_errno()));
    link->dealer_dirty = link->dealer != NULL; /* what came before they were watched */
    link->monitor_dirty = link->monitor != NULL;
    links_mark_dirty(link);
}

/* Why this address may not be spoken to; NULL: it may. */
static const char *objection(node_links *links, const node_address *address)
{
    if (!links->options.keys) {
        if (address->has_key)
            return "the address has a key, but this node has none (key_file)";
        if (!links->options.insecure && !node_address_is_loopback(address))
            return "not a loopback address: needs keys, or the option insecure";
        return NULL;
    }
    if (!address->has_key)
        return "the address has no key: this node has keys and talks to no peer without";
    return links_key_allowed(links, address->key)
               ? NULL
               : "the address's key is not in the list of allowed keys";
}

static void dial_if_allowed(links_link *link)
{
    const char *why = objection(link->links, &link->address);
    if (why) {
        bool keys = link->links->options.keys != NULL;
        link->links->refused_keys += keys;
        give_up(link, keys ? CORE_LINK_UNLISTED : CORE_LINK_LOST, why);
    } else {
        dial(link);
    }
}

node_links_opening node_links_open(node_links *links, core_link id, const char *text,
                                   node_address *address)
{
    links_link *link = links_add(links, id);
    if (!link)
        return NODE_LINKS_OPENED; /* the core tries again when nothing is heard */
    if (!node_address_parse(text, NODE_ADDRESS_TCP, &link->address, "", NULL)) {
        say_once(links, "not an address: expected tcp://HOST:PORT", text);
        links_end(link, CORE_LINK_LOST);
        return NODE_LINKS_OPENED;
    }
    if (!node_address_is_numeric(&link->address)) {
        link->unnamed = true;
        *address = link->address;
        return NODE_LINKS_NEEDS_NAME;
    }
    dial_if_allowed(link);
    return NODE_LINKS_OPENED;
}

void node_links_named(node_links *links, core_link id, const node_address *address, const char *why)
{
    links_link *link;
    HASH_FIND(by_id, links->by_id, &id, sizeof(id), link);
    if (!link || !link->unnamed)
        return;
    if (!address) {
        give_up(link, CORE_LINK_LOST, why);
        return;
    }
    link->unnamed = false;
    link->named = true;
    link->address = *address;
    dial_if_allowed(link);
}

void links_out_forget(links_link *link)
{
    links_probe_forget(link);
    node_watch_remove(link->links->options.epoll, &link->dealer_watch);
    node_watch_remove(link->links->options.epoll, &link->monitor_watch);
    if (link->monitor) {
        zmq_socket_monitor(link->dealer, NULL, 0);
        zmq_close(link->monitor);
    }
    if (link->dealer)
        zmq_close(link->dealer);
    link->dealer = link->monitor = NULL;
}

/* --- receiving and sending -------------------------------------------------------------------- */

void links_out_unproved(links_link *link)
{
    give_up(link, CORE_LINK_UNPROVED,
            "ends connections in the handshake: it has not the key of this address, or takes no more connections");
}

/* What the monitor tells. */
static void look(links_link *link, uint64_t now)
{
    static const char denied[] = "refused this node: the keys of the two sides do not fit";
    char text[NODE_ADDRESS_TEXT];
    link->monitor_dirty = false;
    for (int i = 0; i < LINKS_MONITOR_EVENTS && !link->ended; i++) {
        int event = links_monitor_next(link->monitor, NULL);
        if (event == 0)
            return;
        if (event == ZMQ_EVENT_CONNECTED || event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            link->connected = event == ZMQ_EVENT_CONNECTED ? now : 0;
            continue;
        }
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
            give_up(link, CORE_LINK_DENIED, denied);
            return;
        }
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
            node_address_format(&link->address, NODE_ADDRESS_TCP, text);
            say_once(link->links, denied, text);
        }
        link->unproved |= link->links->options.keys && link->connected &&
                          now - link->connected < LINKS_PROOF_S * UINT64_C(1000000000);
        links_probe_begin(link, link->named || event != ZMQ_EVENT_CLOSED, now);
    }
    link->monitor_dirty = true;
}

static void leave_if_clean(links_link *link)
{
    if (link->monitor_dirty || link->dealer_dirty)
        return;
    DL_DELETE2(link->links->dirty, link, dirty_prev, dirty_next);
    link->dirty = false;
}

void links_out_turn(links_link *link, uint64_t now)
{
    if (link->monitor_dirty && !link->ended)
        look(link, now);
    if (link->ended)
        link->monitor_dirty = link->dealer_dirty = false;
    leave_if_clean(link);
}

static bool receive(links_link *link, zmq_msg_t *message)
{
    for (;;) {
        if (zmq_msg_recv(message, link->dealer, ZMQ_DONTWAIT) < 0) {
            link->dealer_dirty = zmq_errno() != EAGAIN;
            return false;
        }
        if (!zmq_msg_more(message))
            return true;
        link->links->malformed++;
        while (zmq_msg_more(message) && zmq_msg_recv(message, link->dealer, ZMQ_DONTWAIT) >= 0)
            ;
    }
}

bool links_out_receive(node_links *links, core_link *id, zmq_msg_t *message)
{
    links_link *link, *next;
    zmq_msg_init(message);
    DL_FOREACH_SAFE2(links->dirty, link, next, dirty_next)
    {
        if (!link->dealer_dirty || link->ended)
            continue;
        if (receive(link, message)) {
            /* To the end of the line: links take turns. */
            DL_DELETE2(links->dirty, link, dirty_prev, dirty_next);
            DL_APPEND2(links->dirty, link, dirty_prev, dirty_next);
            *id = link->id;
            return true;
        }
        leave_if_clean(link);
    }
    zmq_msg_close(message);
    return false;
}

int links_out_send(links_link *link, zmq_msg_t *message)
{
    if (link->unnamed)
        return 0;
    if (!link->dealer)
        return -1;
    link->dealer_dirty = true; /* sending may take in what the descriptor would have told */
    links_mark_dirty(link);
    if (zmq_msg_send(message, link->dealer, ZMQ_DONTWAIT) >= 0)
        return 1;
    return zmq_errno() == EAGAIN || zmq_errno() == EINTR ? 0 : -1;
}
