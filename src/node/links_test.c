/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two nodes' worth of sockets in one process. */
#include "node/links_internal.h"
#include "node/side_test.h"

#include <errno.h>
#include <sys/resource.h>

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
    assert_string_equal(prefill.place, "127.0.0.1");
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

/* What lay unread when a connection broke comes by no new link. */
static void test_what_comes_after_the_end_is_nobodys(void **state)
{
    (void)state;
    side decode, prefill;
    char text[8];
    core_link ended;
    core_link_end how;
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_link(&decode, 1, prefill.address);
    send_text(&decode, 1, "hello");
    expect_message(&prefill, &decode, "hello");
    core_link link = prefill.last;
    send_text(&decode, 1, "again");
    send_text(&decode, 1, "ask");
    node_links_close_one(decode.links, 1);
    for (int i = 0; i < TURNS && !node_links_next_end(prefill.links, &ended, &how); i++) {
        send_text(&prefill, link, "anybody?"); /* nothing is read meanwhile */
        turn(&prefill);
        usleep(1000);
    }
    assert_int_equal(ended, link);
    assert_int_equal(prefill.links->incoming, 1);
    for (int i = 0; i < 2 * TURNS && prefill.links->incoming; i++) {
        assert_false(receive(&prefill, &decode, 1, text, sizeof(text)));
        usleep(1000);
    }
    assert_int_equal(prefill.links->incoming, 0);
    open_link(&decode, 3, prefill.address);
    send_text(&decode, 3, "new");
    expect_message(&prefill, &decode, "new");
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

/* The prefill side has the key "p" and its list. */
static void fits(const char *key, const char *allowed)
{
    side decode, prefill;
    make_keys();
    begin(&decode, key, allowed);
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

static void test_keys_that_fit(void **state)
{
    (void)state;
    fits("d", "d.allowed");
}

/* As workers of one host have: neither lists it. */
static void test_the_own_key_is_allowed(void **state)
{
    (void)state;
    fits("p", "p.allowed");
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
    expect_end(&decode, &prefill, 1, CORE_LINK_UNLISTED);
    assert_non_null(strstr(decode.log, "not in the list"));
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", prefill.bound.port);
    open_link(&decode, 3, address); /* no key at all */
    expect_end(&decode, &prefill, 3, CORE_LINK_UNLISTED);
    node_address wrong = prefill.bound; /* the right key, but it is not the server's */
    bool open_to_others;
    node_key_pair p;
    assert_int_equal(node_key_pair_read(scratch("p"), &p, &open_to_others, NULL), KVFERRY_OK);
    memcpy(wrong.key, p.public_key, NODE_KEY_BYTES);
    node_address_format(&wrong, NODE_ADDRESS_TCP, address);
    open_link(&decode, 5, address);
    send_text(&decode, 5, "who are you?");
    expect_end(&decode, &prefill, 5, CORE_LINK_UNPROVED);
    assert_non_null(strstr(decode.log, "has not the key of this address"));
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
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_named(&decode, 1, &prefill, &name);
    send_text(&decode, 1, "early");
    strcpy(name.host, "127.0.0.1");
    node_links_named(decode.links, 1, &name, NULL);
    expect_message(&prefill, &decode, "early");
    end(&prefill);
    end(&decode);
}

/* --- connections of one host -------------------------------------------------------------------- */

enum { DESCRIPTORS = 200, MOST = DESCRIPTORS / 4 * 3 };

/* With so few descriptors that one host soon has more than its share. */
static void begin_small(side *mine)
{
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    small = before;
    small.rlim_cur = DESCRIPTORS;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    begin(mine, "p", "p.allowed");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Says it from 127.0.0.`host`, to stay connected. */
static void *say_from(void *context, unsigned host, const side *mine, const side *other, const char *text)
{
    char where[128];
    const int none = 0;
    void *socket = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none)), 0);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, other->keys.public_key, NODE_KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, mine->keys.public_key, NODE_KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, mine->keys.secret, NODE_KEY_BYTES), 0);
    snprintf(where, sizeof(where), "tcp://127.0.0.%u:0;127.0.0.1:%u", host, other->bound.port);
    assert_int_equal(zmq_connect(socket, where), 0);
    assert_int_equal(zmq_send(socket, text, strlen(text), 0), strlen(text));
    return socket;
}

static void test_one_host_leaves_connections_to_others(void **state)
{
    (void)state;
    side decode, prefill;
    char text[64];
    void *sockets[MOST / 2 + 1], *context = zmq_ctx_new();
    make_keys();
    begin(&decode, "d", "d.allowed");
    begin_small(&prefill);
    for (size_t i = 0; i < MOST / 2; i++) {
        sockets[i] = say_from(context, 1, &decode, &prefill, "one");
        expect_message(&prefill, NULL, "one");
    }
    sockets[MOST / 2] = say_from(context, 1, &decode, &prefill, "too many");
    for (int i = 0; i < TURNS && !node_links_refused_connections(prefill.links); i++)
        assert_false(receive(&prefill, NULL, 1, text, sizeof(text)));
    assert_int_equal(node_links_refused_connections(prefill.links), 1);
    assert_non_null(strstr(prefill.log, "refused a connection of 127.0.0.1, too_many_connections: it has 76 of 150"));
    assert_int_equal(prefill.lines, 1);
    void *other = say_from(context, 2, &decode, &prefill, "other");
    expect_message(&prefill, NULL, "other");
    assert_string_equal(prefill.place, "127.0.0.2");
    for (size_t i = 0; i <= MOST / 2; i++)
        zmq_close(sockets[i]);
    for (int i = 0; i < TURNS && prefill.links->connection_count > 1; i++)
        assert_false(receive(&prefill, NULL, 1, text, sizeof(text)));
    assert_int_equal(prefill.links->connection_count, 1);
    sockets[0] = say_from(context, 1, &decode, &prefill, "again");
    expect_message(&prefill, NULL, "again");
    zmq_close(sockets[0]);
    zmq_close(other);
    zmq_ctx_term(context);
    end(&prefill);
    end(&decode);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_go_both_ways_in_order),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_a_connection_that_breaks_is_lost),
        cmocka_unit_test(test_an_answer_to_nobody_ends_the_link),
        cmocka_unit_test(test_what_comes_after_the_end_is_nobodys),
        cmocka_unit_test(test_keys_that_fit),
        cmocka_unit_test(test_the_own_key_is_allowed),
        cmocka_unit_test(test_a_key_that_is_not_allowed),
        cmocka_unit_test(test_no_key_where_one_is_needed),
        cmocka_unit_test(test_servers_are_checked_too),
        cmocka_unit_test(test_addresses_that_may_not_be_spoken_to),
        cmocka_unit_test(test_what_waits_for_a_name_is_sent),
        cmocka_unit_test(test_one_host_leaves_connections_to_others),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
