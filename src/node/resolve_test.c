/* SPDX-License-Identifier: Apache-2.0 */
/* Who does not answer keeps nobody else waiting. */
#include "node/resolve.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/scratch_test.h"
#include "test.h"

enum { SILENT = 4 };

/* A server whose connections nobody takes. */
static int listen_silently(char where[64])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    snprintf(where, 64, "http://127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

static node_answer *next_answer(node_resolver *resolver, int wake)
{
    node_answer *answer;
    uint64_t count;
    while (!(answer = node_resolver_next(resolver))) {
        struct pollfd ready = {.fd = wake, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, 60000), 1);
        assert_int_equal(read(wake, &count, sizeof(count)), sizeof(count));
    }
    return answer;
}

/* The good ones come last, and are answered first. */
static void test_silent_servers_keep_nobody_waiting(void **state)
{
    (void)state;
    static const char text[] = "{\"0\": {\"engine_id\": \"p\", \"worker_addr\": {\"0\": {\"0\": \"tcp://h:5\"}}}}";
    char path[200], where[SILENT][64];
    int fds[SILENT], wake = eventfd(0, EFD_CLOEXEC);
    node_resolver *resolver;
    const node_resolver_options options = {.wake = wake, .retry_ms = 100};
    assert_int_equal(node_resolver_create(&options, &resolver), KVFERRY_OK);
    for (uint64_t i = 0; i < SILENT; i++) {
        fds[i] = listen_silently(where[i]);
        for (uint64_t again = 0; again < 8; again++) /* of one place, one at a time */
            assert_int_equal(node_resolver_query(resolver, 100 * i + again, where[i], ""), KVFERRY_OK);
    }
    scratch_write("workers.json", text);
    snprintf(path, sizeof(path), "file:%s", scratch("workers.json"));
    assert_int_equal(node_resolver_query(resolver, 1000, path, ""), KVFERRY_OK);
    node_address named = {.host = "127.0.0.1", .port = 5};
    assert_int_equal(node_resolver_name(resolver, 1001, &named), KVFERRY_OK);
    bool found[2] = {false};
    for (int i = 0; i < 2; i++) {
        node_answer *answer = next_answer(resolver, wake);
        assert_in_range(answer->id, 1000, 1001);
        assert_int_equal(answer->status, KVFERRY_OK);
        found[answer->id - 1000] = true;
        if (answer->id == 1000) {
            assert_int_equal(answer->count, 1);
            assert_string_equal(answer->addresses[0], "tcp://h:5");
        }
        node_answer_free(answer);
    }
    assert_true(found[0] && found[1]);
    node_resolver_close(resolver);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    close(wake);
    scratch_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_silent_servers_keep_nobody_waiting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
