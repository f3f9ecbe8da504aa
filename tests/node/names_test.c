/* SPDX-License-Identifier: Apache-2.0 */
/* Names that have several addresses. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>

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
    {"half.example", {"127.0.0.21", "127.0.0.1"}},
};

/* Instead of the C library's own. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    typedef int function(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    static function *real;
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
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

/* It listens at the second address of its name only. */
static void test_the_addresses_of_a_name_are_tried_in_turn(void **state)
{
    (void)state;
    worker prefill;
    char address[64], *text;
    size_t size;
    kvferry_node_options options = nodes_options("p");
    worker_open(&prefill, &prefill_shape, &options);
    snprintf(address, sizeof(address), "tcp://both.example%s", strrchr(kvferry_node_address(prefill.node), ':'));
    MUST(kvferry_node_query(address, NULL, NODES_PATIENCE_MS, &text, &size, report));
    kvferry_free(text);
    worker_close(&prefill);
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
    worker prefill;
    char address[64], *text;
    size_t size;
    kvferry_node_options options = nodes_options("p");
    worker_open(&prefill, &prefill_shape, &options);
    snprintf(address, sizeof(address), "tcp://many.example%s", strrchr(kvferry_node_address(prefill.node), ':'));
    MUST(kvferry_node_query(address, NULL, NODES_PATIENCE_MS, &text, &size, report));
    kvferry_free(text);
    worker_close(&prefill);
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

/* Its connections are not taken, and so many wait that more are not answered. */
static void fall_silent(const char *host, uint16_t port, int fds[CALLERS + 1])
{
    uint16_t bound;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port)};
    fds[CALLERS] = listen_at(host, port, 0, &bound);
    assert_int_equal(inet_pton(AF_INET, host, &where.sin_addr), 1);
    for (int i = 0; i < CALLERS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(fds[i], (struct sockaddr *)&where, sizeof(where)) != 0)
            assert_int_equal(errno, EINPROGRESS);
    }
}

/* The worker is not there yet, and the other address says nothing: who waits for it goes on to look at both. */
static void test_a_name_is_looked_up_again_where_nobody_was(void **state)
{
    (void)state;
    worker prefill, decode;
    uint16_t port;
    int silent[CALLERS + 1];
    char listen[64], address[64];
    close(listen_at("127.0.0.1", 0, 1, &port));
    fall_silent("127.0.0.21", port, silent);
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
    for (int i = 0; i <= CALLERS; i++)
        close(silent[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_addresses_of_a_name_are_tried_in_turn),
        cmocka_unit_test(test_all_addresses_of_a_name_are_tried),
        cmocka_unit_test(test_no_address_is_tried_when_the_time_is_over),
        cmocka_unit_test(test_a_worker_is_found_at_the_second_address_of_its_name),
        cmocka_unit_test(test_a_name_is_looked_up_again_where_nobody_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
