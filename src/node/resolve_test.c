/* SPDX-License-Identifier: Apache-2.0 */
/* Who does not answer keeps nobody else waiting, and what nobody wants any more is not looked up. */
#include "node/resolve.h"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
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
        for (uint64_t again = 0; again < 8; again++) { /* of one place, one at a time */
            char engine_id[16];
            snprintf(engine_id, sizeof(engine_id), "%llu", (unsigned long long)again);
            assert_int_equal(node_resolver_query(resolver, 100 * i + again, where[i], engine_id), KVFERRY_OK);
        }
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

/* --- what is given up --------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned begun;
    bool held;
} slow = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, true};

/* In the place of the C library's: a name server that is slow to answer for one name, that there is none. */
int getaddrinfo(const char *restrict name, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict list)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (name && strcmp(name, "slow.test") == 0) {
        pthread_mutex_lock(&slow.lock);
        slow.begun++;
        pthread_cond_broadcast(&slow.changed);
        while (slow.held)
            pthread_cond_wait(&slow.changed, &slow.lock);
        pthread_mutex_unlock(&slow.lock);
        return EAI_NONAME;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(name, service, hints, list);
}

static void test_the_name_of_a_link_that_is_given_up_is_not_looked_up(void **state)
{
    (void)state;
    int wake = eventfd(0, EFD_CLOEXEC);
    node_resolver *resolver;
    const node_resolver_options options = {.wake = wake, .retry_ms = 100};
    const node_address name = {.host = "slow.test", .port = 5};
    assert_int_equal(node_resolver_create(&options, &resolver), KVFERRY_OK);
    assert_int_equal(node_resolver_name(resolver, 1, &name), KVFERRY_OK);
    pthread_mutex_lock(&slow.lock);
    while (!slow.begun)
        pthread_cond_wait(&slow.changed, &slow.lock);
    pthread_mutex_unlock(&slow.lock);
    for (uint64_t link = 2; link <= 9; link++)
        assert_int_equal(node_resolver_name(resolver, link, &name), KVFERRY_OK);
    for (uint64_t link = 1; link <= 8; link++)
        node_resolver_forget(resolver, link);
    pthread_mutex_lock(&slow.lock);
    slow.held = false;
    pthread_cond_broadcast(&slow.changed);
    pthread_mutex_unlock(&slow.lock);
    static const uint64_t links[] = {1, 9}; /* the first one had begun */
    for (size_t i = 0; i < 2; i++) {
        node_answer *answer = next_answer(resolver, wake);
        assert_int_equal(answer->id, links[i]);
        assert_int_equal(answer->status, KVFERRY_NOT_FOUND);
        node_answer_free(answer);
    }
    node_resolver_close(resolver);
    assert_int_equal(slow.begun, 2);
    close(wake);
}

/* Takes a connection, whoever asks. */
static void hang_up_on_one(int listener)
{
    int connection = accept(listener, NULL, NULL);
    assert_true(connection >= 0);
    close(connection);
}

static void test_a_query_ends_by_a_later_one_that_is_alike(void **state)
{
    (void)state;
    char where[64];
    int listener = listen_silently(where), wake = eventfd(0, EFD_CLOEXEC);
    node_resolver *resolver;
    const node_resolver_options options = {.wake = wake, .retry_ms = 100};
    assert_int_equal(node_resolver_create(&options, &resolver), KVFERRY_OK);
    assert_int_equal(node_resolver_query(resolver, 1, where, "p"), KVFERRY_OK);
    int first = accept(listener, NULL, NULL); /* it has begun */
    assert_true(first >= 0);
    assert_int_equal(node_resolver_query(resolver, 2, where, "p"), KVFERRY_OK);
    assert_int_equal(node_resolver_query(resolver, 3, where, "q"), KVFERRY_OK);
    assert_int_equal(node_resolver_query(resolver, 4, where, "p"), KVFERRY_OK);
    close(first);
    static const uint64_t queries[] = {1, 3, 4};
    for (size_t i = 0; i < 3; i++) {
        if (i)
            hang_up_on_one(listener);
        node_answer *answer = next_answer(resolver, wake);
        assert_int_equal(answer->id, queries[i]);
        node_answer_free(answer);
    }
    node_resolver_close(resolver);
    close(listener);
    close(wake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_servers_keep_nobody_waiting),
        cmocka_unit_test(test_the_name_of_a_link_that_is_given_up_is_not_looked_up),
        cmocka_unit_test(test_a_query_ends_by_a_later_one_that_is_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
