/* SPDX-License-Identifier: Apache-2.0 */
/* One side of links in a test: sockets as a node has them, and no core. */
#ifndef KVFERRY_NODE_SIDE_TEST_H
#define KVFERRY_NODE_SIDE_TEST_H

#include "node/links.h"

#include <stdarg.h>
#include <sys/epoll.h>
#include <time.h>

#include <kvferry/node.h>

#include "node/scratch_test.h"
#include "node/watch.h"

enum { PATIENCE_NS = 2000000000, TURNS = 2000 };

typedef struct side {
    int epoll;
    node_links *links;
    node_address bound;
    char address[NODE_ADDRESS_TEXT];
    node_key_pair keys;
    node_allowed *allowed;
    char log[4096];
    unsigned lines;
    core_link last; /* link of the last message or end */
    char place[64]; /* of the last message */
    uint64_t stands; /* the time that it thinks it is; 0: it goes on */
} side;

static inline void take_line(void *context, kvferry_log_level level, const char *format, ...)
{
    side *mine = context;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(mine->log, sizeof(mine->log), format, arguments);
    va_end(arguments);
    mine->lines += level <= KVFERRY_LOG_WARNING;
}

/* `key`: the name of a key pair that is made, "" for none. */
static inline void begin(side *mine, const char *key, const char *allowed)
{
    const node_address loopback = {.host = "127.0.0.1"};
    bool open_to_others;
    *mine = (side){.epoll = epoll_create1(EPOLL_CLOEXEC)};
    if (*key) {
        if (access(scratch(key), F_OK) != 0)
            assert_int_equal(kvferry_keys_generate(scratch(key), NULL), KVFERRY_OK);
        assert_int_equal(node_key_pair_read(scratch(key), &mine->keys, &open_to_others, NULL),
                         KVFERRY_OK);
        assert_int_equal(node_allowed_open(scratch(allowed), &mine->allowed, NULL), KVFERRY_OK);
    }
    const node_links_options options = {.epoll = mine->epoll,
                                        .keys = *key ? &mine->keys : NULL,
                                        .allowed = mine->allowed,
                                        .max_message_bytes = 1 << 20,
                                        .silence_ms = 10000,
                                        .max_peers = 16,
                                        .log = take_line,
                                        .log_context = mine};
    assert_int_equal(node_links_create(&options, &loopback, &mine->bound, &mine->links, NULL),
                     KVFERRY_OK);
    mine->bound.has_key = *key != '\0';
    memcpy(mine->bound.key, mine->keys.public_key, NODE_KEY_BYTES);
    node_address_format(&mine->bound, NODE_ADDRESS_TCP, mine->address);
}

/* A link to a host whose name is still to be looked up, at the port of the other side. */
static inline void open_named(side *mine, core_link link, const side *other, node_address *name)
{
    char address[64];
    snprintf(address, sizeof(address), "tcp://prefill:%u", other->bound.port);
    assert_int_equal(node_links_open(mine->links, link, address, name), NODE_LINKS_NEEDS_NAME);
}

static inline void end(side *mine)
{
    node_links_close(mine->links);
    node_allowed_close(mine->allowed);
    close(mine->epoll);
}

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void turn(side *mine)
{
    struct epoll_event events[16];
    int count = epoll_wait(mine->epoll, events, 16, node_links_busy(mine->links) ? 0 : 1);
    for (int i = 0; i < count; i++) {
        node_watch *watch = events[i].data.ptr;
        watch->ready(watch);
    }
    node_links_turn(mine->links, mine->stands ? mine->stands : now_ns());
}

/* The next message as text in `text`; false: there is none within `turns`. */
static inline bool receive(side *mine, side *other, int turns, char *text, size_t size)
{
    zmq_msg_t message;
    for (int i = 0; i < turns; i++) {
        turn(mine);
        if (other)
            turn(other);
        if (!node_links_receive(mine->links, &mine->last, &message))
            continue;
        size_t length = zmq_msg_size(&message) < size ? zmq_msg_size(&message) : size - 1;
        memcpy(text, zmq_msg_data(&message), length);
        text[length] = '\0';
        const char *place = node_links_place(&message);
        snprintf(mine->place, sizeof(mine->place), "%s", place ? place : "");
        zmq_msg_close(&message);
        return true;
    }
    return false;
}

static inline void expect_message(side *mine, side *other, const char *expected)
{
    char text[64];
    assert_true(receive(mine, other, TURNS, text, sizeof(text)));
    assert_string_equal(text, expected);
}

static inline void expect_end(side *mine, side *other, core_link link, core_link_end expected)
{
    core_link ended;
    core_link_end how;
    char text[8];
    for (int i = 0; i < 10 * TURNS; i++) {
        if (node_links_next_end(mine->links, &ended, &how)) {
            assert_int_equal(ended, link);
            assert_int_equal(how, expected);
            return;
        }
        receive(mine, other, 1, text, sizeof(text));
    }
    fail_msg("link %llu does not end", (unsigned long long)link);
}

static inline void open_link(side *mine, core_link link, const char *address)
{
    node_address name;
    assert_int_equal(node_links_open(mine->links, link, address, &name), NODE_LINKS_OPENED);
}

static inline void send_text(side *mine, core_link link, const char *text)
{
    node_links_send(mine->links, link, text, strlen(text));
}

#endif
