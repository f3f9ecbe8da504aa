/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every engine, over the Mooncake library that KVFERRY_MOONCAKE_LIBRARY names: the
 * stand-in of tests/mooncake, or the real one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_faults_test.h"
#include "engine/pair_moves_test.h"

static void run_each(void (*body)(pair_world *), uint64_t bytes, unsigned peers)
{
    static const char *const transports[] = {"tcp", ""};
    for (size_t i = 0; i < 2; i++) {
        const pair_setup setup = {
            .engine = "mooncake", .transport = transports[i], .bytes = bytes, .peers = peers};
        int result = pair_run(&setup, body);
        if (result)
            fail_msg("transport \"%s\": ended with %d", setup.transport, result);
    }
}

static void test_moves(void **state)
{
    (void)state;
    run_each(move_both_ways, MOVES_SEGMENT, 1);
}

static void test_peers(void **state)
{
    (void)state;
    run_each(move_to_all, 2 * MIB, PAIR_PEERS);
}

static void test_crosswise(void **state)
{
    (void)state;
    run_each(move_crosswise, 8 * MIB, 1);
}

static void test_many(void **state)
{
    (void)state;
    run_each(move_many, 262144 * 40, 1);
}

static void test_out_of_range(void **state)
{
    (void)state;
    run_each(move_out_of_range, MIB, 1);
}

static void test_killed(void **state)
{
    (void)state;
    run_each(body_killed, FAULTS_SEGMENT, 2);
}

static void test_gone(void **state)
{
    (void)state;
    run_each(body_gone, FAULTS_SEGMENT, 2);
}

static void test_stopped(void **state)
{
    (void)state;
    run_each(body_stopped_under_way, FAULTS_SEGMENT, 1);
    run_each(body_stopped_at_first, FAULTS_SEGMENT, 1);
}

static void test_cancel(void **state)
{
    (void)state;
    run_each(body_cancel, FAULTS_SEGMENT, 1);
}

static void test_close(void **state)
{
    (void)state;
    run_each(body_close, FAULTS_SEGMENT, 1);
}

static void test_close_engine(void **state)
{
    (void)state;
    run_each(body_close_engine, FAULTS_SEGMENT, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),   cmocka_unit_test(test_peers),
        cmocka_unit_test(test_crosswise), cmocka_unit_test(test_many),
        cmocka_unit_test(test_out_of_range), cmocka_unit_test(test_killed),
        cmocka_unit_test(test_gone),    cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_cancel),  cmocka_unit_test(test_close),
        cmocka_unit_test(test_close_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
