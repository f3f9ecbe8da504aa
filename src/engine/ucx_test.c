/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between real processes over UCX. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_test.h"

enum { MIB = 1024 * 1024, SEGMENT = 24 * MIB };

/* Sizes around what transports treat apart, at odd places on both sides, with gaps between. */
static size_t make_copies(kvferry_copy *copies, size_t capacity)
{
    static const uint64_t sizes[] = {1,    2,     3,     7,      8,      63,      64,     65,  511,
                                     512,  1023,  4096,  8191,   8192,   8257,    16384,  65535,
                                     65536, 65537, 262143, 262145, 1048576, 1048577, 4194304, 4194305,
                                     0,    5242883};
    uint64_t source = 5, target = 1;
    size_t count = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && count < capacity; i++) {
        copies[count++] =
            (kvferry_copy){.source_offset = source, .target_offset = target, .bytes = sizes[i]};
        source += sizes[i] + 13 * (i % 3);
        target += sizes[i] + 1 + 7 * (i % 2);
    }
    return count;
}

static uint64_t apply(const kvferry_copy *copies, size_t count, const unsigned char *source,
                      unsigned char *target)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(target + copies[i].target_offset, source + copies[i].source_offset, copies[i].bytes);
        bytes += copies[i].bytes;
    }
    return bytes;
}

static void move_both_ways(pair_world *pair)
{
    kvferry_copy copies[64];
    size_t count = make_copies(copies, 64);
    unsigned char *expected = malloc(SEGMENT);
    PAIR_CHECK(expected);
    kvferry_peer *peer = pair_connect(pair, 0);
    for (uint64_t round = 0; round < 4; round++) {
        bool write = round % 2 == 0;
        pair_fill(pair->memory, SEGMENT, round);
        pair_fill(pair->peers[0].window, SEGMENT, round + 100);
        pair_command(pair, 0, 'l');
        memcpy(expected, write ? pair->peers[0].window : pair->memory, SEGMENT);
        uint64_t bytes = apply(copies, count, write ? pair->memory : pair->peers[0].window, expected);
        kvferry_transfer *transfer =
            pair_begin(pair, peer, write ? KVFERRY_WRITE : KVFERRY_READ, copies, count, 0);
        while (!kvferry_transfer_get(transfer)->over)
            kvferry_engine_progress(pair->engine, NULL);
        PAIR_EQUAL(kvferry_transfer_get(transfer)->status, KVFERRY_OK);
        PAIR_EQUAL(kvferry_transfer_get(transfer)->copies_done, count);
        PAIR_EQUAL(kvferry_transfer_get(transfer)->bytes_done, bytes);
        pair_command(pair, 0, 'd');
        PAIR_CHECK(memcmp(write ? pair->peers[0].window : pair->memory, expected, SEGMENT) == 0);
        kvferry_transfer_free(transfer);
    }
    free(expected);
    kvferry_peer_close(peer);
}

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

static void test_moves(void **state)
{
    (void)state;
    run_everywhere(move_both_ways, SEGMENT, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
