/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every engine, over the NIXL library that KVFERRY_NIXL_LIBRARY names: the
 * stand-in of tests/nixl, or the real one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_faults_test.h"
#include "engine/pair_moves_test.h"

static void run_over(const char *transport, void (*body)(pair_world *), uint64_t bytes, unsigned peers)
{
    const pair_setup setup = {.engine = "nixl", .transport = transport, .bytes = bytes, .peers = peers};
    int result = pair_run(&setup, body);
    if (result)
        fail_msg("transport \"%s\": ended with %d", transport, result);
}

static void run_each(void (*body)(pair_world *), uint64_t bytes, unsigned peers)
{
    run_over("tcp", body, bytes, peers);
    run_over("", body, bytes, peers);
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

/* Over shared memory a stopped target takes no part. */
static void test_stopped(void **state)
{
    (void)state;
    run_over("tcp", body_stopped_under_way, FAULTS_SEGMENT, 1);
    run_over("tcp", body_stopped_at_first, FAULTS_SEGMENT, 1);
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

/* Progress of both engines of this process, until the transfer is over. */
static kvferry_status finish_with(pair_world *pair, kvferry_engine *target, kvferry_transfer *transfer)
{
    while (!kvferry_transfer_get(transfer)->over) {
        kvferry_engine_progress(target, NULL);
        kvferry_engine_progress(pair->engine, NULL);
    }
    return pair_finish(pair, transfer);
}

/* What a peer registers after a connection is not known to that one, but to the next; what this side
 * registers serves at once. */
static void body_registered_later(pair_world *pair)
{
    const pair_setup small = {
        .engine = pair->setup->engine, .transport = pair->setup->transport, .bytes = MIB};
    kvferry_copy copy = {.source_offset = 5, .target_segment = 1, .target_offset = 3, .bytes = 70000};
    static unsigned char later[2][MIB];
    unsigned char *memory;
    uint32_t segment;
    kvferry_peer *peers[2];
    kvferry_engine *target = pair_open(&small, &memory, pair->report);
    for (unsigned i = 0; i < 2; i++) {
        void *binding;
        size_t size;
        PAIR_EQUAL(kvferry_engine_export(target, &binding, &size, pair->report), KVFERRY_OK);
        PAIR_EQUAL(kvferry_engine_connect(pair->engine, binding, size, &peers[i], pair->report), KVFERRY_OK);
        kvferry_free(binding);
        PAIR_EQUAL(kvferry_engine_register(i ? pair->engine : target, later[i], MIB, KVFERRY_MEMORY_HOST,
                                           &segment, NULL),
                   KVFERRY_OK);
    }
    kvferry_transfer *transfer = NULL;
    PAIR_EQUAL(kvferry_transfer_begin(pair->engine, peers[0], KVFERRY_WRITE, &copy, 1, 0, &transfer, NULL),
               KVFERRY_OUT_OF_RANGE);
    for (unsigned i = 0; i < 2; i++) {
        unsigned char *from = i ? later[1] : pair->memory;
        pair_fill(from, MIB, 11 + i);
        copy.source_segment = i;
        transfer = pair_begin(pair, peers[1], KVFERRY_WRITE, &copy, 1, 0);
        PAIR_EQUAL(finish_with(pair, target, transfer), KVFERRY_OK);
        PAIR_CHECK(memcmp(later[0] + 3, from + 5, 70000) == 0);
    }
    PAIR_EQUAL(kvferry_engine_unregister(pair->engine, 1), KVFERRY_OK);
    kvferry_peer_close(peers[0]);
    kvferry_peer_close(peers[1]);
    kvferry_engine_close(target);
}

static void test_registered_later(void **state)
{
    (void)state;
    run_each(body_registered_later, MIB, 1);
}

/* The close of a stopped peer waits for nothing, and takes nothing from others with it. */
static void body_stopped_beside(pair_world *pair)
{
    kvferry_copy many[64];
    for (size_t i = 0; i < 64; i++)
        many[i] = everything;
    kvferry_peer *stopped = pair_connect(pair, 0), *other = pair_connect(pair, 1);
    PAIR_CHECK(kill(pair->peers[0].pid, SIGSTOP) == 0);
    kvferry_transfer *never = pair_begin(pair, stopped, KVFERRY_WRITE, many, 64, 0);
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, other, KVFERRY_WRITE, many, 2, 0)), KVFERRY_OK);
    kvferry_peer_close(stopped);
    PAIR_EQUAL(pair_finish(pair, never), KVFERRY_PEER_LOST);
    PAIR_CHECK(!kvferry_peer_lost(other));
    pair_fill(pair->memory, MIB, 13);
    PAIR_CHECK(write_arrives(pair, other, 1));
    PAIR_CHECK(kill(pair->peers[0].pid, SIGCONT) == 0);
    check_goes_on(pair, 0, 12);
}

static void test_stopped_beside(void **state)
{
    (void)state;
    run_over("tcp", body_stopped_beside, FAULTS_SEGMENT, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),   cmocka_unit_test(test_peers),
        cmocka_unit_test(test_crosswise), cmocka_unit_test(test_many),
        cmocka_unit_test(test_out_of_range), cmocka_unit_test(test_killed),
        cmocka_unit_test(test_gone),    cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_cancel),  cmocka_unit_test(test_close),
        cmocka_unit_test(test_close_engine), cmocka_unit_test(test_registered_later),
        cmocka_unit_test(test_stopped_beside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
