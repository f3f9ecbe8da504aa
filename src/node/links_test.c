/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two nodes' worth of sockets in one process. */
#include "node/links.h"

#include <errno.h>
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
} side;

static void take_line(void *context, kvferry_log_level level, const char *format, ...)
{
    side *mine = context;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(mine->log, sizeof(mine->log), format, arguments);
    va_end(arguments);
    mine->lines += level <= KVFERRY_LOG_WARNING;
}

/* `key`: the name of a key pair that is made, "" for none. */
static void begin(side *mine, const char *key, const char *allowed)
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

static void end(side *mine)
{
    node_links_close(mine->links);
    node_allowed_close(mine->allowed);
    close(mine->epoll);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void turn(side *mine)
{
    struct epoll_event events[16];
    int count = epoll_wait(mine->epoll, events, 16, node_links_busy(mine->links) ? 0 : 1);
    for (int i = 0; i < count; i++) {
        node_watch *watch = events[i].data.ptr;
        watch->ready(watch);
    }
    node_links_turn(mine->links, now_ns());
}

/* The next message as text in `text`; false: there is none within `turns`. */
static bool receive(side *mine, side *other, int turns, char *text, size_t size)
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
        zmq_msg_close(&message);
        return true;
    }
    return false;
}

static void expect_message(side *mine, side *other, const char *expected)
{
    char text[64];
    assert_true(receive(mine, other, TURNS, text, sizeof(text)));
    assert_string_equal(text, expected);
}

static void expect_end(side *mine, side *other, core_link link, core_link_end expected)
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

static void open_link(side *mine, core_link link, const char *address)
{
    node_address name;
    assert_int_equal(node_links_open(mine->links, link, address, &name), NODE_LINKS_OPENED);
}

static void send_text(side *mine, core_link link, const char *text)
{
    node_links_send(mine->links, link, text, strlen(text));
}

static void test_messages_go_both_ways_in_order(void **state)
{
    (void)state;
    side decode, prefill;
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_link(&decode, 1, prefill.address);
    open_link(&decode, 3, prefill.address);
    send_text(&decode, 1, "one");
    expect_message(&prefill, &decode, "one");
    core_link first = prefill.last;
    assert_int_equal(first % 2, 0);
    send_text(&decode, 1, "two");
    send_text(&decode, 1, "three");
    expect_message(&prefill, &decode, "two");
    expect_message(&prefill, &decode, "three");
    assert_int_equal(prefill.last, first);
    send_text(&decode, 3, "other");
    expect_message(&prefill, &decode, "other");
    assert_int_not_equal(prefill.last, first);
    send_text(&prefill, prefill.last, "to three");
    expect_message(&decode, &prefill, "to three");
    assert_int_equal(decode.last, 3);
    send_text(&prefill, first, "to one");
    expect_message(&decode, &prefill, "to one");
    assert_int_equal(decode.last, 1);
    end(&prefill);
    end(&decode);
}

static void test_nobody_listens(void **state)
{
    (void)state;
    side decode, prefill;
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_link(&decode, 1, prefill.address);
    send_text(&decode, 1, "hello");
    expect_message(&prefill, &decode, "hello");
    end(&prefill); /* it was there, and is not any more */
    expect_end(&decode, NULL, 1, CORE_LINK_REFUSED);
    open_link(&decode, 3, prefill.address); /* it never was */
    expect_end(&decode, NULL, 3, CORE_LINK_REFUSED);
    node_links_close_one(decode.links, 3); /* is gone already */
    end(&decode);
}

/* A listener that closes every connection is alive: nothing is known to be dead. */
static void test_a_connection_that_breaks_is_lost(void **state)
{
    (void)state;
    side decode;
    begin(&decode, "", "");
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&where, size), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&where, &size), 0);
    char address[64];
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", ntohs(where.sin_port));
    open_link(&decode, 1, address);
    for (int i = 0; i < 10; i++)
        turn(&decode);
    close(accept(listener, NULL, NULL));
    expect_end(&decode, NULL, 1, CORE_LINK_LOST);
    close(listener);
    end(&decode);
}

static void test_an_answer_to_nobody_ends_the_link(void **state)
{
    (void)state;
    side decode, prefill;
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_link(&decode, 1, prefill.address);
    send_text(&decode, 1, "hello");
    expect_message(&prefill, &decode, "hello");
    core_link link = prefill.last;
    node_links_close_one(decode.links, 1);
    core_link ended;
    core_link_end how;
    for (int i = 0; i < TURNS && !node_links_next_end(prefill.links, &ended, &how); i++) {
        send_text(&prefill, link, "anybody?");
        turn(&prefill);
        usleep(1000);
        assert_int_not_equal(i, TURNS - 1);
    }
    assert_int_equal(ended, link);
    assert_int_equal(how, CORE_LINK_LOST);
    end(&prefill);
    end(&decode);
}

/* --- keys and addresses ----------------------------------------------------------------------- */

static void allow(const char *list, const char *key)
{
    char line[NODE_KEY_TEXT + 1] = "";
    FILE *file = fopen(scratch(key), "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    scratch_write(list, line);
}

static void make_keys(void)
{
    static const char *const names[] = {"p", "d", "stranger"};
    for (size_t i = 0; i < 3; i++)
        if (access(scratch(names[i]), F_OK) != 0)
            assert_int_equal(kvferry_keys_generate(scratch(names[i]), NULL), KVFERRY_OK);
    allow("p.allowed", "d.pub");
    allow("d.allowed", "p.pub");
}

static void test_keys_that_fit(void **state)
{
    (void)state;
    side decode, prefill;
    make_keys();
    begin(&decode, "d", "d.allowed");
    begin(&prefill, "p", "p.allowed");
    open_link(&decode, 1, prefill.address);
    send_text(&decode, 1, "secret");
    expect_message(&prefill, &decode, "secret");
    send_text(&prefill, prefill.last, "answer");
    expect_message(&decode, &prefill, "answer");
    assert_int_equal(node_links_refused_keys(prefill.links), 0);
    end(&prefill);
    end(&decode);
}

static void test_a_key_that_is_not_allowed(void **state)
{
    (void)state;
    side stranger, prefill;
    char text[8];
    make_keys();
    begin(&stranger, "stranger", "d.allowed");
    begin(&prefill, "p", "p.allowed");
    for (core_link link = 1; link < 6; link += 2) {
        open_link(&stranger, link, prefill.address);
        send_text(&stranger, link, "let me in");
        expect_end(&stranger, &prefill, link, CORE_LINK_DENIED);
        node_links_close_one(stranger.links, link);
    }
    assert_false(receive(&prefill, &stranger, 50, text, sizeof(text)));
    assert_in_range(node_links_refused_keys(prefill.links), 3, 100);
    assert_int_equal(prefill.lines, 1); /* counted each time, told once */
    assert_non_null(strstr(prefill.log, "not in the list"));
    /* As soon as the list has it, it may. */
    allow("p.allowed", "stranger.pub");
    open_link(&stranger, 7, prefill.address);
    send_text(&stranger, 7, "now");
    expect_message(&prefill, &stranger, "now");
    end(&prefill);
    end(&stranger);
}

static void test_no_key_where_one_is_needed(void **state)
{
    (void)state;
    side bare, prefill;
    char address[NODE_ADDRESS_TEXT], text[8];
    make_keys();
    begin(&bare, "", "");
    begin(&prefill, "p", "p.allowed");
    open_link(&bare, 1, prefill.address); /* it sees that it has none */
    expect_end(&bare, &prefill, 1, CORE_LINK_LOST);
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", prefill.bound.port);
    /* And if it does not: which side finds out first is chance, so the other does not count each
     * time. */
    for (core_link link = 3; node_links_refused_keys(prefill.links) == 0; link += 2) {
        open_link(&bare, link, address);
        send_text(&bare, link, "let me in");
        expect_end(&bare, &prefill, link, CORE_LINK_LOST);
        assert_false(receive(&prefill, &bare, 20, text, sizeof(text)));
        assert_in_range(link, 3, 401);
    }
    assert_int_equal(prefill.lines, 1);
    end(&prefill);
    end(&bare);
}

static void test_servers_are_checked_too(void **state)
{
    (void)state;
    side decode, prefill;
    char address[NODE_ADDRESS_TEXT];
    make_keys();
    begin(&decode, "d", "d.allowed");
    begin(&prefill, "stranger", "p.allowed");
    open_link(&decode, 1, prefill.address); /* its key is not in the list */
    expect_end(&decode, &prefill, 1, CORE_LINK_DENIED);
    assert_non_null(strstr(decode.log, "not in the list"));
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", prefill.bound.port);
    open_link(&decode, 3, address); /* no key at all */
    expect_end(&decode, &prefill, 3, CORE_LINK_DENIED);
    node_address wrong = prefill.bound; /* the right key, but it is not the server's */
    bool open_to_others;
    node_key_pair p;
    assert_int_equal(node_key_pair_read(scratch("p"), &p, &open_to_others, NULL), KVFERRY_OK);
    memcpy(wrong.key, p.public_key, NODE_KEY_BYTES);
    node_address_format(&wrong, NODE_ADDRESS_TCP, address);
    open_link(&decode, 5, address);
    send_text(&decode, 5, "who are you?");
    expect_end(&decode, &prefill, 5, CORE_LINK_LOST);
    end(&prefill);
    end(&decode);
}

static void test_addresses_that_may_not_be_spoken_to(void **state)
{
    (void)state;
    side decode;
    begin(&decode, "", "");
    open_link(&decode, 1, "tcp://192.0.2.1:7");
    expect_end(&decode, NULL, 1, CORE_LINK_LOST);
    assert_non_null(strstr(decode.log, "loopback"));
    unsigned lines = decode.lines;
    open_link(&decode, 3, "tcp://192.0.2.1:7");
    expect_end(&decode, NULL, 3, CORE_LINK_LOST);
    assert_int_equal(decode.lines, lines);
    open_link(&decode, 5, "nonsense");
    expect_end(&decode, NULL, 5, CORE_LINK_LOST);
    node_address name;
    assert_int_equal(node_links_open(decode.links, 7, "tcp://prefill:7", &name),
                     NODE_LINKS_NEEDS_NAME);
    assert_string_equal(name.host, "prefill");
    send_text(&decode, 7, "waits");
    node_links_named(decode.links, 7, NULL, "unknown host");
    expect_end(&decode, NULL, 7, CORE_LINK_LOST);
    assert_non_null(strstr(decode.log, "unknown host"));
    end(&decode);
}

static void test_what_waits_for_a_name_is_sent(void **state)
{
    (void)state;
    side decode, prefill;
    node_address name;
    char address[64];
    begin(&decode, "", "");
    begin(&prefill, "", "");
    snprintf(address, sizeof(address), "tcp://prefill:%u", prefill.bound.port);
    assert_int_equal(node_links_open(decode.links, 1, address, &name), NODE_LINKS_NEEDS_NAME);
    send_text(&decode, 1, "early");
    strcpy(name.host, "127.0.0.1");
    node_links_named(decode.links, 1, &name, NULL);
    expect_message(&prefill, &decode, "early");
    end(&prefill);
    end(&decode);
}

/* --- load and nonsense ------------------------------------------------------------------------ */

/* Nobody reads on the other side: nothing blocks, a bounded amount waits, what waits comes in
 * order. */
static void test_a_slow_peer(void **state)
{
    (void)state;
    enum { SIZE = 100000, COUNT = 3000 };
    side decode, prefill;
    static char big[SIZE];
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_link(&decode, 1, prefill.address);
    send_text(&decode, 1, "first");
    expect_message(&prefill, &decode, "first");
    for (uint32_t i = 0; i < COUNT; i++) {
        memcpy(big, &i, sizeof(i));
        node_links_send(decode.links, 1, big, SIZE);
    }
    assert_true(node_links_pending(decode.links));
    zmq_msg_t message;
    uint32_t last = 0, got = 0;
    for (int i = 0; i < 20 * TURNS && (node_links_pending(decode.links) || i < 200); i++) {
        turn(&decode);
        turn(&prefill);
        while (node_links_receive(prefill.links, &prefill.last, &message)) {
            uint32_t number;
            memcpy(&number, zmq_msg_data(&message), sizeof(number));
            assert_true(got == 0 || number > last);
            last = number;
            got++;
            zmq_msg_close(&message);
        }
    }
    assert_false(node_links_pending(decode.links));
    assert_in_range(got, 20, COUNT - 1); /* the rest was dropped */
    end(&prefill);
    end(&decode);
}

static void send_raw(uint16_t port, const void *data, size_t size)
{
    struct sockaddr_in where = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0);
    ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
    assert_in_range(sent, 0, size);
    close(fd);
}

static void test_nonsense_on_the_port(void **state)
{
    (void)state;
    static const char greeting[] = "\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL";
    side decode, prefill;
    unsigned char bytes[256];
    begin(&decode, "", "");
    begin(&prefill, "", "");
    srand(7);
    for (int i = 0; i < 1000; i++) {
        size_t size = (size_t)rand() % sizeof(bytes);
        for (size_t k = 0; k < size; k++)
            bytes[k] = (unsigned char)rand();
        if (i % 2) /* some get past the first bytes */
            memcpy(bytes, greeting, sizeof(greeting) - 1);
        send_raw(prefill.bound.port, bytes, size);
        turn(&prefill);
    }
    open_link(&decode, 1, prefill.address);
    send_text(&decode, 1, "still there?");
    char text[64] = "";
    while (strcmp(text, "still there?") !=
           0) /* the oldest protocol takes any bytes for a message */
        assert_true(receive(&prefill, &decode, TURNS, text, sizeof(text)));
    end(&prefill);
    end(&decode);
}

static void test_messages_of_several_parts_are_none(void **state)
{
    (void)state;
    side prefill;
    char text[16];
    begin(&prefill, "", "");
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    int none = 0;
    zmq_setsockopt(dealer, ZMQ_LINGER, &none, sizeof(none));
    assert_int_equal(zmq_connect(dealer, prefill.address), 0);
    zmq_send(dealer, "a", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "b", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "c", 1, 0);
    zmq_send(dealer, "whole", 5, 0);
    assert_true(receive(&prefill, NULL, TURNS, text, sizeof(text)));
    assert_string_equal(text, "whole");
    assert_int_equal(node_links_malformed(prefill.links), 1);
    zmq_close(dealer);
    zmq_ctx_term(context);
    end(&prefill);
}

/* Peers that come and go without a word leave no more behind than there may be peers. */
static void test_links_that_come_in_are_bounded(void **state)
{
    (void)state;
    enum { COUNT = 1024 + 2 * 16 + 50 };
    side prefill;
    core_link ended;
    core_link_end how;
    char text[16];
    unsigned ends = 0;
    begin(&prefill, "", "");
    void *context = zmq_ctx_new();
    for (int i = 0; i < COUNT; i++) {
        void *dealer = zmq_socket(context, ZMQ_DEALER);
        assert_int_equal(zmq_connect(dealer, prefill.address), 0);
        zmq_send(dealer, "hello", 5, 0);
        assert_true(receive(&prefill, NULL, TURNS, text, sizeof(text)));
        zmq_close(dealer);
        while (node_links_next_end(prefill.links, &ended, &how))
            ends++;
    }
    assert_int_equal(ends, 50);
    zmq_ctx_term(context);
    end(&prefill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_go_both_ways_in_order),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_a_connection_that_breaks_is_lost),
        cmocka_unit_test(test_an_answer_to_nobody_ends_the_link),
        cmocka_unit_test(test_keys_that_fit),
        cmocka_unit_test(test_a_key_that_is_not_allowed),
        cmocka_unit_test(test_no_key_where_one_is_needed),
        cmocka_unit_test(test_servers_are_checked_too),
        cmocka_unit_test(test_addresses_that_may_not_be_spoken_to),
        cmocka_unit_test(test_what_waits_for_a_name_is_sent),
        cmocka_unit_test(test_a_slow_peer),
        cmocka_unit_test(test_nonsense_on_the_port),
        cmocka_unit_test(test_messages_of_several_parts_are_none),
        cmocka_unit_test(test_links_that_come_in_are_bounded),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
