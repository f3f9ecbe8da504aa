/* SPDX-License-Identifier: Apache-2.0 */
/* Names that have several addresses, or another one after a while. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>

#include "nodes.h"

static const rig_shape prefill_shape = {.engine_id = "p", .tps = 1, .pps = 1};
static const rig_shape decode_shape = {.engine_id = "d", .tps = 1, .pps = 1};

/* Names, and what they stand for, in this order. */
static const struct {
    const char *name, *hosts[12];
} names[] = {
    {"both.example", {"::1", "127.0.0.1"}},
    {"many.example",
     {"127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14", "127.0.0.15", "127.0.0.16", "127.0.0.17", "127.0.0.18",
      "127.0.0.19", "127.0.0.1"}},
    {"two.example", {"127.0.0.31", "127.0.0.1"}},
    {"half.example", {"127.0.0.21", "127.0.0.1"}},
    {"was.example", {"127.0.0.31"}},
    {"is.example", {"127.0.0.1"}},
};

static _Atomic(bool) moved; /* "moves.example" is what "is.example" is, and no more what "was.example" is */

/* Instead of the C library's own. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    typedef int function(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    static function *real;
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && strcmp(name, "moves.example") == 0)
        name = moved ? "is.example" : "was.example";
    for (size_t i = 0; name && i < sizeof(names) / sizeof(*names); i++) {
        int failure = 0;
        if (strcmp(name, names[i].name) != 0)
            continue;
        for (const char *const *host = names[i].hosts; *host && !failure; host++, found = &(*found)->ai_next)
            failure = real(*host, service, &numeric, found);
        return failure;
    }
    return real(name, service, hints, found);
}

static int listen_at(const char *host, uint16_t port, int backlog, uint16_t *bound)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof(where);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_int_equal(inet_pton(AF_INET, host, &where.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&where, size), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&where, &size), 0);
    *bound = ntohs(where.sin_port);
    return fd;
}

/* A worker that listens at the last address of `name` only answers; `address` is where it was. */
static void answers_at(const char *name, char address[64])
{
    worker prefill;
    char *text;
    size_t size;
    kvferry_node_options options = nodes_options("p");
    worker_open(&prefill, &prefill_shape, &options);
    snprintf(address, 64, "tcp://%s%s", name, strrchr(kvferry_node_address(prefill.node), ':'));
    MUST(kvferry_node_query(address, NULL, NODES_PATIENCE_MS, &text, &size, report));
    kvferry_free(text);
    worker_close(&prefill);
}

static void test_the_addresses_of_a_name_are_tried_in_turn(void **state)
{
    (void)state;
    char address[64], *text;
    size_t size;
    answers_at("both.example", address);
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_node_query(address, NULL, UINT64_MAX, &text, &size, report), KVFERRY_IO); /* at once */
    assert_string_equal(kvferry_report_get(report, 0)->code, "no_answer");
    assert_non_null(strstr(kvferry_report_get(report, 0)->found, "refused"));
    kvferry_report_free(report);
}

/* However many there are, a refusal is one of all. */
static void test_all_addresses_of_a_name_are_tried(void **state)
{
    (void)state;
    char address[64];
    answers_at("many.example", address);
}

static void test_no_address_is_tried_when_the_time_is_over(void **state)
{
    (void)state;
    uint16_t port;
    int fd = listen_at("127.0.0.1", 0, 1, &port);
    char address[64], *text;
    size_t size;
    snprintf(address, sizeof(address), "tcp://both.example:%u", port);
    assert_int_equal(kvferry_node_query(address, NULL, 0, &text, &size, NULL), KVFERRY_TIMEOUT);
    assert_int_equal(accept(fd, NULL, NULL), -1);
    close(fd);
}

/* So does a decode worker: that the first address refuses is no proof that the process is dead. */
static void test_a_worker_is_found_at_the_second_address_of_its_name(void **state)
{
    (void)state;
    worker prefill, decode;
    char address[64];
    kvferry_node_options options = nodes_options("p");
    worker_open(&prefill, &prefill_shape, &options);
    options = nodes_options("d");
    options.insecure = true; /* names are no loopback addresses */
    worker_open(&decode, &decode_shape, &options);
    snprintf(address, sizeof(address), "tcp://both.example%s", strrchr(kvferry_node_address(prefill.node), ':'));
    MUST(kvferry_node_connect(decode.node, "p", address, report));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
    assert_non_null(event);
    kvferry_event_free(event);
    worker_close(&decode);
    worker_close(&prefill);
}

enum { CALLERS = 4 };

/* Its connections are not taken any more, and so many wait that others are not answered. */
static void fall_silent(int listener, int callers[CALLERS])
{
    struct sockaddr_in where;
    socklen_t size = sizeof(where);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&where, &size), 0);
    assert_int_equal(listen(listener, 0), 0);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(callers[i], (struct sockaddr *)&where, size) != 0)
            assert_int_equal(errno, EINPROGRESS);
    }
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

/* The worker is not there yet, and the other address says nothing: who waits for it goes on to look at both. */
static void test_a_name_is_looked_up_again_where_nobody_was(void **state)
{
    (void)state;
    worker prefill, decode;
    uint16_t port;
    int silent, callers[CALLERS];
    char listen[64], address[64];
    close(listen_at("127.0.0.1", 0, 1, &port));
    silent = listen_at("127.0.0.21", port, 0, &port);
    fall_silent(silent, callers);
    snprintf(listen, sizeof(listen), "tcp://127.0.0.1:%u", port);
    snprintf(address, sizeof(address), "tcp://half.example:%u", port);
    kvferry_node_options options = nodes_options("d");
    options.insecure = true;
    worker_open(&decode, &decode_shape, &options);
    MUST(kvferry_node_connect(decode.node, "p", address, report));
    sleep(2); /* it has looked */
    options = nodes_options("p");
    options.listen = listen;
    worker_open(&prefill, &prefill_shape, &options);
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
    assert_non_null(event);
    kvferry_event_free(event);
    worker_close(&decode);
    worker_close(&prefill);
    close_all(callers, CALLERS);
    close(silent);
}

enum { CONNECTIONS = 16 };

/* The way to a worker, until it is cut. */
typedef struct way {
    int listener, near[CONNECTIONS], far[CONNECTIONS], callers[CALLERS], count;
    uint16_t port;
    _Atomic(bool) cut;
    pthread_t thread;
} way;

static void move(int from, int to)
{
    char buffer[4096];
    ssize_t got = recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0)
        send(to, buffer, (size_t)got, MSG_NOSIGNAL);
}

static void *forward(void *context)
{
    way *it = context;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(it->port)};
    inet_pton(AF_INET, "127.0.0.32", &to.sin_addr);
    while (!it->cut) {
        int fd = it->count < CONNECTIONS ? accept(it->listener, NULL, NULL) : -1;
        if (fd >= 0) {
            it->near[it->count] = fd;
            it->far[it->count] = socket(AF_INET, SOCK_STREAM, 0);
            connect(it->far[it->count++], (struct sockaddr *)&to, sizeof(to));
        }
        for (int i = 0; i < it->count; i++) {
            move(it->near[i], it->far[i]);
            move(it->far[i], it->near[i]);
        }
        usleep(1000);
    }
    fall_silent(it->listener, it->callers);
    close_all(it->near, it->count); /* the worker itself hears nothing of it */
    return NULL;
}

/* At another address of the name somebody else listens: no proof that the worker is dead, which lives and may write. */
static void replaces_nobody(const char *name)
{
    worker prefill, other, decode;
    way it = {.count = 0};
    char listen[64], address[64];
    const uint32_t from[] = {3, 5, 7}, to[] = {2, 4, 6};
    moved = false;
    it.listener = listen_at("127.0.0.31", 0, CONNECTIONS, &it.port);
    snprintf(listen, sizeof(listen), "tcp://127.0.0.32:%u", it.port);
    snprintf(address, sizeof(address), "tcp://%s:%u", name, it.port);
    kvferry_node_options options = nodes_options("p");
    options.insecure = true;
    options.listen = listen;
    options.advertise = address;
    worker_open(&prefill, &prefill_shape, &options);
    assert_int_equal(pthread_create(&it.thread, NULL, forward, &it), 0);
    snprintf(listen, sizeof(listen), "tcp://127.0.0.1:%u", it.port);
    options = nodes_options("other");
    options.listen = listen;
    worker_open(&other, &(rig_shape){.engine_id = "other", .tps = 1, .pps = 1}, &options);
    options = nodes_options("d");
    options.insecure = true;
    options.silence_ms = 4000;
    worker_open(&decode, &decode_shape, &options);
    MUST(worker_offer(&prefill, "t", from, 10, KVFERRY_NOT_READY, report));
    MUST(kvferry_node_connect(decode.node, "p", address, report));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
    assert_non_null(event);
    kvferry_event_free(event);
    MUST(worker_ask(&decode, "t", "p", address, to, 10, report));
    sleep(1);
    moved = it.cut = true;
    pthread_join(it.thread, NULL);
    expect_ended(&decode, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    worker_close(&decode);
    worker_close(&other);
    worker_close(&prefill);
    close_all(it.callers, CALLERS);
    close_all(it.far, it.count);
    close(it.listener);
}

static void test_who_listens_at_another_address_of_the_name_replaces_nobody(void **state)
{
    (void)state;
    replaces_nobody("two.example");
}

static void test_nor_does_who_listens_where_the_name_leads_to_by_now(void **state)
{
    (void)state;
    replaces_nobody("moves.example");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_addresses_of_a_name_are_tried_in_turn),
        cmocka_unit_test(test_all_addresses_of_a_name_are_tried),
        cmocka_unit_test(test_no_address_is_tried_when_the_time_is_over),
        cmocka_unit_test(test_a_worker_is_found_at_the_second_address_of_its_name),
        cmocka_unit_test(test_a_name_is_looked_up_again_where_nobody_was),
        cmocka_unit_test(test_who_listens_at_another_address_of_the_name_replaces_nobody),
        cmocka_unit_test(test_nor_does_who_listens_where_the_name_leads_to_by_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
