/* SPDX-License-Identifier: Apache-2.0 */
/* Links under load, and nonsense on their port. */
#include "node/side_test.h"

/* What still comes of numbered messages, of which some are dropped: how many, in order. */
static uint32_t drain(side *from, side *to)
{
    zmq_msg_t message;
    uint32_t last = 0, got = 0;
    for (int quiet = 0; quiet < 200; quiet++) {
        turn(from);
        turn(to);
        while (node_links_receive(to->links, &to->last, &message)) {
            uint32_t number;
            memcpy(&number, zmq_msg_data(&message), sizeof(number));
            assert_true(got == 0 || number > last);
            last = number;
            got++;
            quiet = 0;
            zmq_msg_close(&message);
        }
    }
    assert_false(node_links_pending(from->links));
    return got;
}

static void send_number(side *mine, core_link link, uint32_t number, size_t size)
{
    static char bytes[100000];
    memcpy(bytes, &number, sizeof(number));
    node_links_send(mine->links, link, bytes, size);
}

/* Nobody reads on the other side: nothing blocks, a bounded number of bytes waits, what waits comes
 * in order. */
static void test_a_slow_peer(void **state)
{
    (void)state;
    enum { SIZE = 100000, COUNT = 3000 };
    side decode, prefill;
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_link(&decode, 1, prefill.address);
    send_text(&decode, 1, "first");
    expect_message(&prefill, &decode, "first");
    for (uint32_t i = 0; i < COUNT; i++)
        send_number(&decode, 1, i, SIZE);
    assert_in_range(node_links_held(decode.links), 1 << 20, 2 << 20);
    assert_in_range(drain(&decode, &prefill), 20, COUNT - 1); /* the rest was dropped */
    for (int i = 0; i < TURNS && node_links_held(decode.links); i++)
        turn(&decode);
    assert_int_equal(node_links_held(decode.links), 0);
    end(&prefill);
    end(&decode);
}

/* Thousands of verdicts at once are nothing: small messages wait beyond what ZeroMQ takes. */
static void test_small_messages_are_not_lost(void **state)
{
    (void)state;
    enum { SIZE = 100, COUNT = 5000 };
    side decode, prefill;
    node_address name;
    begin(&decode, "", "");
    begin(&prefill, "", "");
    open_named(&decode, 1, &prefill, &name);
    for (uint32_t i = 0; i < COUNT; i++)
        send_number(&decode, 1, i, SIZE);
    assert_true(node_links_pending(decode.links));
    strcpy(name.host, "127.0.0.1");
    node_links_named(decode.links, 1, &name, NULL);
    assert_int_equal(drain(&decode, &prefill), COUNT);
    end(&prefill);
    end(&decode);
}

/* Many that do not read hold no more than there is for all; one that comes then is still heard. */
static void test_many_slow_peers(void **state)
{
    (void)state;
    enum { PEERS = 30, SIZE = 10000, COUNT = 1000 };
    side prefill, decode;
    begin(&prefill, "", "");
    begin(&decode, "", "");
    for (core_link link = 1; link < 2 * PEERS; link += 2) { /* wait for names: nothing leaves */
        node_address name;
        assert_int_equal(node_links_open(prefill.links, link, "tcp://slow:1", &name),
                         NODE_LINKS_NEEDS_NAME);
        for (uint32_t i = 0; i < COUNT; i++)
            send_number(&prefill, link, i, SIZE);
        if (link == 1)
            assert_in_range(node_links_held(prefill.links), 2 * (1 << 20) - 2 * SIZE, 2 << 20);
    }
    assert_in_range(node_links_held(prefill.links), 7 << 20, 8 << 20);
    open_link(&prefill, 2 * PEERS + 1, decode.address);
    send_text(&prefill, 2 * PEERS + 1, "still there");
    expect_message(&decode, &prefill, "still there");
    for (core_link link = 1; link < 2 * PEERS; link += 2)
        node_links_close_one(prefill.links, link);
    for (int i = 0; i < TURNS && node_links_held(prefill.links); i++)
        turn(&prefill);
    assert_int_equal(node_links_held(prefill.links), 0);
    end(&decode);
    end(&prefill);
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
    prefill.stands = now_ns();
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
    prefill.stands = 0; /* those that are gone are noticed */
    for (int i = 0; i < TURNS && ends < COUNT; i++) {
        assert_false(receive(&prefill, NULL, 1, text, sizeof(text)));
        while (node_links_next_end(prefill.links, &ended, &how))
            ends++;
        usleep(1000);
    }
    assert_int_equal(ends, COUNT);
    zmq_ctx_term(context);
    end(&prefill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slow_peer),
        cmocka_unit_test(test_small_messages_are_not_lost),
        cmocka_unit_test(test_many_slow_peers),
        cmocka_unit_test(test_nonsense_on_the_port),
        cmocka_unit_test(test_messages_of_several_parts_are_none),
        cmocka_unit_test(test_links_that_come_in_are_bounded),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
