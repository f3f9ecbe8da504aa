/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between real processes: the bodies that every engine's tests run. */
#ifndef KVFERRY_SRC_ENGINE_PAIR_MOVES_TEST_H
#define KVFERRY_SRC_ENGINE_PAIR_MOVES_TEST_H

#include "engine/pair_test.h"

enum { MOVES_SEGMENT = 18 * MIB };

/* Sizes around what transports treat apart, at odd places on both sides, with gaps between. */
static inline size_t make_copies(kvferry_copy *copies, size_t capacity)
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

static inline uint64_t apply(const kvferry_copy *copies, size_t count, const unsigned char *source,
                      unsigned char *target)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(target + copies[i].target_offset, source + copies[i].source_offset, copies[i].bytes);
        bytes += copies[i].bytes;
    }
    return bytes;
}

static inline void move_both_ways(pair_world *pair)
{
    kvferry_copy copies[64];
    size_t count = make_copies(copies, 64);
    unsigned char *expected = malloc(MOVES_SEGMENT);
    PAIR_CHECK(expected);
    kvferry_peer *peer = pair_connect(pair, 0);
    for (uint64_t round = 0; round < 4; round++) {
        bool write = round % 2 == 0;
        pair_fill(pair->memory, MOVES_SEGMENT, round);
        pair_fill(pair->peers[0].window, MOVES_SEGMENT, round + 100);
        pair_command(pair, 0, 'l');
        memcpy(expected, write ? pair->peers[0].window : pair->memory, MOVES_SEGMENT);
        uint64_t bytes = apply(copies, count, write ? pair->memory : pair->peers[0].window, expected);
        kvferry_transfer *transfer =
            pair_begin(pair, peer, write ? KVFERRY_WRITE : KVFERRY_READ, copies, count, 0);
        while (!kvferry_transfer_get(transfer)->over)
            kvferry_engine_progress(pair->engine, NULL);
        PAIR_EQUAL(kvferry_transfer_get(transfer)->status, KVFERRY_OK);
        PAIR_EQUAL(kvferry_transfer_get(transfer)->copies_done, count);
        PAIR_EQUAL(kvferry_transfer_get(transfer)->bytes_done, bytes);
        pair_command(pair, 0, 'd');
        PAIR_CHECK(memcmp(write ? pair->peers[0].window : pair->memory, expected, MOVES_SEGMENT) == 0);
        kvferry_transfer_free(transfer);
    }
    free(expected);
    kvferry_peer_close(peer);
}

/* Transfers to all peers at once, two to each, of small and large copies. */
static inline void move_to_all(pair_world *pair)
{
    enum { SMALL = 500, EACH = 700 };
    static kvferry_copy small[SMALL];
    const kvferry_copy large = {.source_offset = MIB, .target_offset = MIB, .bytes = MIB};
    kvferry_peer *peers[PAIR_PEERS];
    kvferry_transfer *transfers[2 * PAIR_PEERS];
    for (uint64_t i = 0; i < SMALL; i++)
        small[i] = (kvferry_copy){.source_offset = i * EACH, .target_offset = i * EACH, .bytes = EACH};
    pair_fill(pair->memory, 2 * MIB, 9);
    for (unsigned i = 0; i < PAIR_PEERS; i++) {
        peers[i] = pair_connect(pair, i);
        transfers[2 * i] = pair_begin(pair, peers[i], KVFERRY_WRITE, small, SMALL, 0);
        transfers[2 * i + 1] = pair_begin(pair, peers[i], KVFERRY_WRITE, &large, 1, 0);
    }
    for (unsigned i = 0; i < 2 * PAIR_PEERS; i++)
        PAIR_EQUAL(pair_finish(pair, transfers[i]), KVFERRY_OK);
    for (unsigned i = 0; i < PAIR_PEERS; i++) {
        pair_command(pair, i, 'd');
        PAIR_CHECK(memcmp(pair->peers[i].window, pair->memory, SMALL * EACH) == 0);
        PAIR_CHECK(memcmp(pair->peers[i].window + MIB, pair->memory + MIB, MIB) == 0);
        PAIR_EQUAL(pair->peers[i].window[SMALL * EACH], 0);
    }
}

/* Each side writes to the other at the same time. */
static inline void move_crosswise(pair_world *pair)
{
    enum { HALF = 4 * MIB };
    static char message[1 << 16];
    void *binding;
    size_t size;
    pair_fill(pair->memory, HALF, 1);
    pair_fill(pair->peers[0].window, HALF, 2);
    pair_command(pair, 0, 'l');
    PAIR_EQUAL(kvferry_engine_export(pair->engine, &binding, &size, NULL), KVFERRY_OK);
    message[0] = 'w';
    memcpy(message + 1, binding, size);
    kvferry_free(binding);
    PAIR_CHECK(send(pair->peers[0].channel, message, size + 1, 0) == (ssize_t)size + 1);
    const kvferry_copy copy = {.target_offset = HALF, .bytes = HALF};
    kvferry_peer *peer = pair_connect(pair, 0);
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, &copy, 1, 0)), KVFERRY_OK);
    pair_wait(pair, 0);
    PAIR_CHECK(memcmp(pair->memory + HALF, pair->peers[0].window, HALF) == 0);
    pair_command(pair, 0, 'd');
    PAIR_CHECK(memcmp(pair->peers[0].window + HALF, pair->memory, HALF) == 0);
}

/* A long prompt's worth of small copies in one submission. */
static inline void move_many(pair_world *pair)
{
    enum { MANY = 262144, EACH = 40 };
    kvferry_copy *copies = calloc(MANY, sizeof(*copies));
    PAIR_CHECK(copies);
    for (uint64_t i = 0; i < MANY; i++) {
        uint64_t other = i * 40503 % MANY;
        copies[i] = (kvferry_copy){
            .source_offset = i * EACH, .target_offset = other * EACH, .bytes = EACH - i % 3};
    }
    pair_fill(pair->memory, MANY * EACH, 3);
    unsigned char *expected = calloc(1, MANY * EACH);
    PAIR_CHECK(expected);
    apply(copies, MANY, pair->memory, expected);
    kvferry_peer *peer = pair_connect(pair, 0);
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, copies, MANY, 0)), KVFERRY_OK);
    pair_command(pair, 0, 'd');
    PAIR_CHECK(memcmp(pair->peers[0].window, expected, MANY * EACH) == 0);
    free(expected);
    free(copies);
}

/* Refused as by every engine: before a byte moves, here before a process could be killed by it. */
static inline void move_out_of_range(pair_world *pair)
{
    const kvferry_copy copies[] = {{.bytes = 100},
                                   {.target_offset = MIB - 1, .bytes = 2},
                                   {.target_offset = UINT64_MAX, .bytes = 2}};
    kvferry_peer *peer = pair_connect(pair, 0);
    kvferry_transfer *transfer = NULL;
    memset(pair->memory, 1, MIB);
    PAIR_EQUAL(kvferry_transfer_begin(pair->engine, peer, KVFERRY_WRITE, copies, 3, 0, &transfer,
                                      pair->report),
               KVFERRY_OUT_OF_RANGE);
    PAIR_EQUAL(kvferry_report_count(pair->report), 2);
    pair_command(pair, 0, 'd');
    for (size_t i = 0; i < MIB; i++)
        PAIR_EQUAL(pair->peers[0].window[i], 0);
}

#endif
