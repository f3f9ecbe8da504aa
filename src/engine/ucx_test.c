/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between real processes over UCX. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_moves_test.h"

static void run_everywhere(void (*body)(pair_world *), uint64_t bytes, unsigned peers)
{
    static const char *const transports[] = {"shm", "tcp", ""};
    for (size_t i = 0; i < 6; i++) {
        const pair_setup setup = {.engine = "ucx",
                                  .transport = transports[i / 2],
                                  .bytes = bytes,
                                  .allocated = i % 2,
                                  .peers = peers};
        int result = pair_run(&setup, body);
        if (result)
            fail_msg("transport \"%s\", %s memory: ended with %d", setup.transport,
                     setup.allocated ? "allocated" : "own", result);
    }
}

/* Waiting on the descriptor instead of spinning. A lost wake-up shows as a test that never ends. */
static void move_waiting(pair_world *pair)
{
    const kvferry_copy copy = {.bytes = 8 * MIB};
    kvferry_peer *peer = pair_connect(pair, 0);
    pair_fill(pair->memory, 8 * MIB, 4);
    struct pollfd watch = {.fd = kvferry_engine_fd(pair->engine), .events = POLLIN};
    PAIR_CHECK(watch.fd >= 0);
    kvferry_transfer *transfer = pair_begin(pair, peer, KVFERRY_WRITE, &copy, 1, 0);
    PAIR_EQUAL(kvferry_engine_arm(pair->engine), KVFERRY_BUSY); /* there is something to submit */
    while (!kvferry_transfer_get(transfer)->over) {
        kvferry_engine_progress(pair->engine, NULL);
        if (kvferry_transfer_get(transfer)->over)
            break;
        kvferry_status status = kvferry_engine_arm(pair->engine);
        PAIR_CHECK(status == KVFERRY_OK || status == KVFERRY_BUSY);
        if (status == KVFERRY_OK)
            PAIR_EQUAL(poll(&watch, 1, -1), 1);
    }
    PAIR_EQUAL(pair_finish(pair, transfer), KVFERRY_OK);
    pair_command(pair, 0, 'd');
    PAIR_CHECK(memcmp(pair->peers[0].window, pair->memory, 8 * MIB) == 0);
}

static void test_moves(void **state)
{
    (void)state;
    run_everywhere(move_both_ways, MOVES_SEGMENT, 1);
}

static void test_peers(void **state)
{
    (void)state;
    run_everywhere(move_to_all, 2 * MIB, PAIR_PEERS);
}

static void test_crosswise(void **state)
{
    (void)state;
    run_everywhere(move_crosswise, 8 * MIB, 1);
}

static void test_many(void **state)
{
    (void)state;
    run_everywhere(move_many, 262144 * 40, 1);
}

static void test_waiting(void **state)
{
    (void)state;
    run_everywhere(move_waiting, 8 * MIB, 1);
}

static void test_out_of_range(void **state)
{
    (void)state;
    run_everywhere(move_out_of_range, MIB, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),   cmocka_unit_test(test_peers),
        cmocka_unit_test(test_crosswise), cmocka_unit_test(test_many),
        cmocka_unit_test(test_waiting), cmocka_unit_test(test_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
