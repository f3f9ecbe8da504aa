/* SPDX-License-Identifier: Apache-2.0 */
/* What a killed, a stopped, a vanished peer, and closing at any moment do over UCX. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_faults_test.h"

static void run_over(const char *transport, void (*body)(pair_world *), unsigned peers, bool allocated)
{
    const pair_setup setup = {.engine = "ucx",
                              .transport = transport,
                              .bytes = FAULTS_SEGMENT,
                              .allocated = allocated,
                              .peers = peers};
    int result = pair_run(&setup, body);
    if (result)
        fail_msg("transport \"%s\": ended with %d", transport, result);
}

static void run_each(void (*body)(pair_world *), unsigned peers, bool allocated)
{
    run_over("shm", body, peers, allocated);
    run_over("tcp", body, peers, allocated);
    run_over("", body, peers, allocated);
}

static void test_killed(void **state)
{
    (void)state;
    run_each(body_killed, 2, false);
    run_each(body_killed, 2, true);
}

static void test_gone(void **state)
{
    (void)state;
    run_each(body_gone, 2, false);
    run_each(body_gone, 2, true);
}

/* Over shared memory a stopped target takes no part, see ucx_local_test.c. */
static void test_stopped(void **state)
{
    (void)state;
    run_over("tcp", body_stopped_under_way, 1, false);
    run_over("tcp", body_stopped_at_first, 1, false);
}

static void test_cancel(void **state)
{
    (void)state;
    run_each(body_cancel, 1, false);
    run_each(body_cancel, 1, true);
}

static void test_close(void **state)
{
    (void)state;
    run_each(body_close, 1, false);
    run_each(body_close, 1, true);
}

static void test_close_engine(void **state)
{
    (void)state;
    run_each(body_close_engine, 1, false);
    run_each(body_close_engine, 1, true);
}

/* UCX 1.13 keeps a hundred bytes of a connection that it could not make. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libuct\n"; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed), cmocka_unit_test(test_gone),
        cmocka_unit_test(test_stopped), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_close),  cmocka_unit_test(test_close_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
