/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP servers, asked by the fetcher and by hand; and the resolver against them. */
#include "node/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <time.h>

#include "node/fetch.h"
#include "node/resolve.h"
#include "node/scratch_test.h"

typedef struct rig {
    node_http *http;
    node_address bound;
    char url[NODE_ADDRESS_TEXT];
    atomic_uint lines;
    char line[1024]; /* the last one */
} rig;

static void write_metrics(void *context, base_text *text)
{
    (void)context;
    base_text_append(text, "some_metric 1\n");
}

static void take_line(void *context, const char *line)
{
    rig *r = context;
    snprintf(r->line, sizeof(r->line), "%s", line);
    atomic_fetch_add(&r->lines, 1);
}

static void begin(rig *r, bool bootstrap, const char *host)
{
    node_address where = {0};
    strcpy(where.host, host);
    const node_http_options options = {
        .bootstrap = bootstrap, .metrics = write_metrics, .log = take_line, .context = r};
    assert_int_equal(node_http_create(&options, &where, &r->bound, &r->http, NULL), KVFERRY_OK);
    assert_int_not_equal(r->bound.port, 0);
    node_address_format(&r->bound, NODE_ADDRESS_HTTP, r->url);
    atomic_store(&r->lines, 0);
}

static bool never(void *context)
{
    (void)context;
    return false;
}

static kvferry_status fetch(const rig *r, const char *path, const char *body, char **text)
{
    size_t size;
    *text = NULL;
    assert_true(node_fetch_begin());
    return node_fetch(r->url, path, body, 1 << 20, never, NULL, text, &size, NULL);
}

static void expect_text(const rig *r, const char *path, const char *body, const char *expected)
{
    char *text;
    assert_int_equal(fetch(r, path, body, &text), KVFERRY_OK);
    assert_string_equal(text, expected);
    free(text);
}

/* From 127.0.0.`host`. */
static int connect_from(const rig *r, unsigned host)
{
    struct sockaddr_in where = {.sin_family = AF_INET,
                                .sin_port = htons(r->bound.port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0);
    return fd;
}

/* The first line that the server answers to these bytes. */
static void by_hand_from(const rig *r, unsigned host, const char *request, size_t size, char answer[128])
{
    int fd = connect_from(r, host);
    ssize_t sent = send(fd, request, size, MSG_NOSIGNAL);
    (void)sent; /* the server may have heard enough before the end */
    shutdown(fd, SHUT_WR);
    ssize_t got = recv(fd, answer, 127, MSG_WAITALL);
    answer[got > 0 ? got : 0] = '\0';
    close(fd);
}

static void by_hand(const rig *r, const char *request, size_t size, char answer[128])
{
    by_hand_from(r, 1, request, size, answer);
}

#define ENTRY(tp, port)                                                                            \
    "{\"engine_id\": \"e\", \"dp_rank\": 0, \"tp_rank\": " #tp                                     \
    ", \"pp_rank\": 0, \"addr\": \"tcp://127.0.0.1:" #port "\"}"

#define OTHER(engine)                                                                              \
    "{\"engine_id\": \"" engine "\", \"dp_rank\": 1, \"tp_rank\": 0, \"pp_rank\": 0, "             \
    "\"addr\": \"tcp://127.0.0.1:7\"}"

static void test_workers_register_and_are_found(void **state)
{
    (void)state;
    rig r;
    char *text;
    begin(&r, true, "127.0.0.1");
    expect_text(&r, "/health", NULL, "{\"status\": \"ok\"}");
    expect_text(&r, "/query", NULL, "{}");
    expect_text(&r, "/register", ENTRY(0, 7), "{\"status\": \"ok\"}");
    expect_text(&r, "/register", ENTRY(1, 8), "{\"status\": \"ok\"}");
    expect_text(&r, "/register", ENTRY(0, 9), "{\"status\": \"ok\"}");
    expect_text(&r, "/query", NULL,
                "{\"0\":{\"engine_id\":\"e\",\"worker_addr\":{\"0\":{\"0\":\"tcp://127.0.0.1:9\"},"
                "\"1\":{\"0\":\"tcp://127.0.0.1:8\"}}}}");
    assert_int_equal(fetch(&r, "/metrics", NULL, &text), KVFERRY_IO);
    assert_int_equal(fetch(&r, "/register", NULL, &text), KVFERRY_IO);
    assert_int_equal(fetch(&r, "/register", "{}", &text), KVFERRY_IO);
    assert_int_equal(fetch(&r, "/query", "{}", &text), KVFERRY_IO);
    node_http_close(r.http);
}

/* Who tries it, again and again, is told by whom it is had; who reads the log, once. */
static void test_a_rank_of_the_server_itself_is_not_taken(void **state)
{
    (void)state;
    rig r;
    begin(&r, true, "127.0.0.1");
    static char address[] = "tcp://[2001:db8:1111:2222:3333:4444:5555:6666]:54321/"
                            "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const node_entry own = {.engine_id = (char *)(uintptr_t) "owner", .address = address, .own = true};
    assert_int_equal(node_http_register(r.http, &own), KVFERRY_OK);
    assert_true(node_fetch_begin());
    for (int i = 0; i < 3; i++) {
        char *text;
        size_t size;
        kvferry_report *report;
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
        assert_int_equal(node_fetch(r.url, "/register", ENTRY(0, 9), 1 << 20, never, NULL, &text, &size, report),
                         KVFERRY_IO);
        const char *said = kvferry_report_get(report, 0)->message;
        assert_non_null(strstr(said, "rank_taken"));
        assert_non_null(strstr(said, address));
        assert_non_null(strstr(said, "tcp://127.0.0.1:9"));
        kvferry_report_free(report);
    }
    assert_int_equal(atomic_load(&r.lines), 1);
    assert_null(strstr(strstr(r.line, "expected") + 1, "expected"));
    /* Two engines that take one rank from each other, again and again. */
    for (int i = 0; i < 3; i++) {
        expect_text(&r, "/register", OTHER("f"), "{\"status\": \"ok\"}");
        expect_text(&r, "/register", OTHER("g"), "{\"status\": \"ok\"}");
    }
    assert_int_equal(atomic_load(&r.lines), 3);
    node_http_close(r.http);
}

static void test_metrics_are_served(void **state)
{
    (void)state;
    rig r;
    char *text;
    begin(&r, false, "127.0.0.1");
    expect_text(&r, "/metrics", NULL, "some_metric 1\n");
    expect_text(&r, "/health", NULL, "{\"status\": \"ok\"}");
    assert_int_equal(fetch(&r, "/query", NULL, &text), KVFERRY_IO);
    node_http_close(r.http);
}

/* As many as the server serves: the other is answered while the first of these is still there. */
static void test_one_host_that_says_nothing_leaves_room_for_others(void **state)
{
    (void)state;
    enum { SILENT = 256 };
    static const char request[] = "GET /health HTTP/1.0\r\n\r\n";
    rig r;
    int silent[SILENT];
    char answer[128], byte;
    begin(&r, true, "127.0.0.1");
    for (size_t i = 0; i < SILENT; i++)
        silent[i] = connect_from(&r, 1);
    by_hand_from(&r, 2, request, sizeof(request) - 1, answer);
    assert_non_null(strstr(answer, " 200 "));
    assert_int_equal(recv(silent[0], &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    for (size_t i = 0; i < SILENT; i++)
        close(silent[i]);
    node_http_close(r.http);
}

static void test_ipv6(void **state)
{
    (void)state;
    rig r;
    begin(&r, true, "::1");
    assert_memory_equal(r.url, "http://[::1]:", 13);
    expect_text(&r, "/query", NULL, "{}");
    node_http_close(r.http);
}

static void test_an_address_that_is_taken(void **state)
{
    (void)state;
    rig r;
    kvferry_report *report;
    node_http *other = NULL;
    node_address bound;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    begin(&r, true, "127.0.0.1");
    const node_http_options options = {.bootstrap = true};
    assert_int_equal(node_http_create(&options, &r.bound, &bound, &other, report), KVFERRY_IO);
    assert_string_equal(kvferry_report_get(report, 0)->code, "listen_failed");
    assert_null(other);
    kvferry_report_free(report);
    node_http_close(r.http);
}

static void test_bad_requests_are_answered(void **state)
{
    (void)state;
    rig r;
    char answer[128];
    begin(&r, true, "127.0.0.1");
    static const struct {
        const char *request, *answer;
    } cases[] = {
        {"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 404"},
        {"GET /register HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 405"},
        {"DELETE /query HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 405"},
        {"POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 400"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        by_hand(&r, cases[i].request, strlen(cases[i].request), answer);
        answer[strlen(cases[i].answer)] = '\0';
        assert_string_equal(answer, cases[i].answer);
    }
    static char huge[40000];
    int head = snprintf(huge, sizeof(huge),
                        "POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: 39000\r\n\r\n");
    memset(huge + head, ' ', 39000);
    by_hand(&r, huge, (size_t)head + 39000, answer);
    answer[12] = '\0';
    assert_string_equal(answer, "HTTP/1.1 413");
    srand(11);
    for (int i = 0; i < 1000; i++) {
        char bytes[300];
        int size = snprintf(bytes, sizeof(bytes), "%s", i % 2 ? cases[3].request : "");
        if (size)
            for (int k = 0; k < 3; k++)
                bytes[rand() % size] = (char)rand();
        else
            for (size = rand() % 300; size && bytes[size - 1] != 1; size--)
                bytes[size - 1] = (char)rand();
        by_hand(&r, bytes, (size_t)size, answer);
    }
    expect_text(&r, "/query", NULL, "{}");
    node_http_close(r.http);
}

/* --- the resolver ----------------------------------------------------------------------------- */

static node_answer *await(node_resolver *resolver, int wake, node_answer_kind kind)
{
    for (int i = 0; i < 200; i++) {
        struct pollfd ready = {.fd = wake, .events = POLLIN};
        uint64_t count;
        if (poll(&ready, 1, 50) > 0)
            assert_int_equal(read(wake, &count, sizeof(count)), sizeof(count));
        for (node_answer *answer; (answer = node_resolver_next(resolver)); node_answer_free(answer))
            if (answer->kind == kind)
                return answer;
    }
    fail_msg("no answer of kind %d", (int)kind);
    return NULL;
}

static node_resolver *open_resolver(int wake, const char *bootstrap, uint32_t tp,
                                    const char *address)
{
    node_resolver *resolver;
    const node_resolver_options options = {.wake = wake,
                                           .bootstrap = bootstrap,
                                           .own = {.tp = tp,
                                                   .engine_id = (char *)(uintptr_t) "e",
                                                   .address = (char *)(uintptr_t)address},
                                           .seek_leader = tp != 0,
                                           .retry_ms = 20};
    assert_int_equal(node_resolver_create(&options, &resolver), KVFERRY_OK);
    return resolver;
}

static void test_the_leader_is_found(void **state)
{
    (void)state;
    rig r;
    int wake = eventfd(0, EFD_CLOEXEC);
    begin(&r, true, "127.0.0.1");
    node_resolver *second = open_resolver(wake, r.url, 1, "tcp://127.0.0.1:11");
    int other = eventfd(0, EFD_CLOEXEC);
    node_resolver *first = open_resolver(other, r.url, 0, "tcp://127.0.0.1:10");
    node_answer *answer = await(second, wake, NODE_ANSWER_LEADER);
    assert_string_equal(answer->leader, "tcp://127.0.0.1:10");
    node_answer_free(answer);
    node_resolver_close(first);
    /* It restarts somewhere else. */
    first = open_resolver(other, r.url, 0, "tcp://127.0.0.1:12");
    answer = await(second, wake, NODE_ANSWER_LEADER);
    assert_string_equal(answer->leader, "tcp://127.0.0.1:12");
    node_answer_free(answer);
    assert_int_equal(node_resolver_query(first, 5, r.url, ""), KVFERRY_OK);
    answer = await(first, other, NODE_ANSWER_QUERY);
    assert_int_equal(answer->id, 5);
    assert_int_equal(answer->status, KVFERRY_OK);
    assert_string_equal(answer->engine_id, "e");
    assert_int_equal(answer->count, 2);
    assert_string_equal(answer->addresses[1], "tcp://127.0.0.1:11");
    node_answer_free(answer);
    node_resolver_close(first);
    node_resolver_close(second);
    node_http_close(r.http);
    close(wake);
    close(other);
}

static void expect_refusal(node_resolver *resolver, int wake, const char *where,
                           const char *engine_id, kvferry_status status, const char *code)
{
    assert_int_equal(node_resolver_query(resolver, 1, where, engine_id), KVFERRY_OK);
    node_answer *answer = await(resolver, wake, NODE_ANSWER_QUERY);
    assert_int_equal(answer->status, status);
    assert_string_equal(kvferry_report_get(answer->report, 0)->code, code);
    assert_int_equal(answer->count, 0);
    node_answer_free(answer);
}

static void test_files_and_what_is_not_there(void **state)
{
    (void)state;
    char where[160];
    int wake = eventfd(0, EFD_CLOEXEC);
    node_resolver *resolver = open_resolver(wake, NULL, 0, "tcp://127.0.0.1:10");
    scratch_write("engines.json", "{\"0\": {\"engine_id\": \"e\", \"worker_addr\": {\"0\": {\"0\": "
                                  "\"tcp://127.0.0.1:7\"}}}}");
    snprintf(where, sizeof(where), "file:%s", scratch("engines.json"));
    assert_int_equal(node_resolver_query(resolver, 3, where, "e"), KVFERRY_OK);
    node_answer *answer = await(resolver, wake, NODE_ANSWER_QUERY);
    assert_int_equal(answer->status, KVFERRY_OK);
    assert_int_equal(answer->count, 1);
    assert_string_equal(answer->addresses[0], "tcp://127.0.0.1:7");
    node_answer_free(answer);
    expect_refusal(resolver, wake, where, "f", KVFERRY_REFUSED, "engine_absent");
    scratch_write("engines.json", "{\"0\": 7}");
    expect_refusal(resolver, wake, where, "e", KVFERRY_MALFORMED, "value_type");
    expect_refusal(resolver, wake, "file:/nowhere/at/all", "e", KVFERRY_IO, "file_failed");
    expect_refusal(resolver, wake, "http://127.0.0.1:1", "e", KVFERRY_IO, "discovery_failed");
    node_address name = {.host = "no-such-host.invalid", .port = 9};
    assert_int_equal(node_resolver_name(resolver, 4, &name), KVFERRY_OK);
    answer = await(resolver, wake, NODE_ANSWER_NAME);
    assert_int_equal(answer->id, 4);
    assert_int_equal(answer->status, KVFERRY_NOT_FOUND);
    node_answer_free(answer);
    node_resolver_close(resolver);
    close(wake);
}

/* More come from one address at once than may be there; each gets its answer by another try. */
static void test_who_gets_no_answer_may_ask_again(void **state)
{
    (void)state;
    enum { MANY = 80 };
    const struct timespec pause = {.tv_nsec = 10000000};
    rig r;
    int silent[MANY];
    char *text;
    begin(&r, true, "127.0.0.1");
    for (int i = 0; i < MANY; i++)
        silent[i] = connect_from(&r, 1);
    assert_int_equal(fetch(&r, "/query", NULL, &text), KVFERRY_BUSY);
    for (int i = 0; i < MANY; i++)
        close(silent[i]);
    kvferry_status status = KVFERRY_BUSY;
    for (int i = 0; i < 1000 && status == KVFERRY_BUSY; i++) {
        nanosleep(&pause, NULL);
        status = fetch(&r, "/query", NULL, &text);
    }
    assert_int_equal(status, KVFERRY_OK);
    free(text);
    assert_int_equal(fetch(&r, "/nothing", NULL, &text), KVFERRY_IO);
    node_http_close(r.http);
}

static void test_a_server_that_hangs_does_not_hold_up_the_end(void **state)
{
    (void)state;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    int listener = socket(AF_INET, SOCK_STREAM, 0), wake = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(bind(listener, (struct sockaddr *)&where, size), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&where, &size), 0);
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", ntohs(where.sin_port));
    node_resolver *resolver = open_resolver(wake, url, 0, "tcp://127.0.0.1:10");
    int connection = accept(listener, NULL, NULL); /* it has asked, and gets no answer */
    assert_true(connection >= 0);
    node_resolver_close(resolver);
    close(connection);
    close(listener);
    close(wake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_register_and_are_found),
        cmocka_unit_test(test_a_rank_of_the_server_itself_is_not_taken),
        cmocka_unit_test(test_metrics_are_served),
        cmocka_unit_test(test_one_host_that_says_nothing_leaves_room_for_others),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_an_address_that_is_taken),
        cmocka_unit_test(test_bad_requests_are_answered),
        cmocka_unit_test(test_the_leader_is_found),
        cmocka_unit_test(test_files_and_what_is_not_there),
        cmocka_unit_test(test_who_gets_no_answer_may_ask_again),
        cmocka_unit_test(test_a_server_that_hangs_does_not_hold_up_the_end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
