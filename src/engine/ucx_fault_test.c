/* SPDX-License-Identifier: Apache-2.0 */
/* What a killed, a stopped, a vanished peer, and closing at any moment do over UCX. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_faults_test.h"

static void run_each(void (*body)(pair_world *), unsigned peers, bool allocated)
{
    static const char *const transports[] = {"shm", "tcp", ""};
    for (size_t i = 0; i < 3; i++) {
        const pair_setup setup = {.engine = "ucx",
                                  .transport = transports[i],
                                  .bytes = FAULTS_SEGMENT,
                                  .allocated = allocated,
                                  .peers = peers};
        int result = pair_run(&setup, body);
        if (result)
            fail_msg("transport \"%s\": ended with %d", setup.transport, result);
    }
}

static void test_killed(void **state)
{
    (void)state;
    run_each(body_killed, 2, false);
}

static void test_gone(void **state)
{
    (void)state;
    run_each(body_gone, 2, false);
    run_each(body_gone, 2, true);
}

static void test_stopped(void **state)
{
    (void)state;
    run_each(body_stopped_under_way, 1, false);
    run_each(body_stopped_at_first, 1, false);
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
