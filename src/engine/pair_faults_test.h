/* SPDX-License-Identifier: Apache-2.0 */
/* What a killed, a stopped, a vanished peer, and closing at any moment do: the bodies that every engine's
 * tests run. */
#ifndef KVFERRY_SRC_ENGINE_PAIR_FAULTS_TEST_H
#define KVFERRY_SRC_ENGINE_PAIR_FAULTS_TEST_H

#include "engine/pair_test.h"

enum { FAULTS_SEGMENT = 16 * MIB };

static const kvferry_copy everything = {.bytes = FAULTS_SEGMENT};

static inline void kill_peer(pair_world *pair, unsigned index)
{
    int status;
    PAIR_CHECK(kill(pair->peers[index].pid, SIGKILL) == 0);
    PAIR_CHECK(waitpid(pair->peers[index].pid, &status, 0) == pair->peers[index].pid);
    pair->peers[index].pid = 0;
}

static inline void progress_until_moving(pair_world *pair, const kvferry_transfer *transfer)
{
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    while (is->status == KVFERRY_BUSY && is->bytes_done == 0)
        kvferry_engine_progress(pair->engine, NULL);
    PAIR_EQUAL(is->status, KVFERRY_BUSY);
}

/* Writes to the peer; whether what it then holds is that. */
static inline bool write_arrives(pair_world *pair, kvferry_peer *peer, unsigned index)
{
    const kvferry_copy copy = {.target_offset = 77, .bytes = MIB};
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, &copy, 1, 0)), KVFERRY_OK);
    pair_command(pair, index, 'd');
    return memcmp(pair->peers[index].window + 77, pair->memory, MIB) == 0;
}

/* The peer still answers, and what is written to it arrives. */
static inline void check_alive(pair_world *pair, unsigned index, uint64_t seed)
{
    kvferry_peer *peer = pair_connect(pair, index);
    pair_fill(pair->memory, MIB, seed);
    PAIR_CHECK(write_arrives(pair, peer, index));
    kvferry_peer_close(peer);
}

/* The same of one that was stopped: what it had in its own queue then may still land, once. Where the
 * target's progress takes that before what is newer, the first write stays. */
static inline void check_goes_on(pair_world *pair, unsigned index, uint64_t seed)
{
    if (strcmp(pair->setup->engine, "ucx") == 0) {
        check_alive(pair, index, seed);
        return;
    }
    kvferry_peer *peer = pair_connect(pair, index);
    pair_fill(pair->memory, MIB, seed);
    while (!write_arrives(pair, peer, index))
        ;
    kvferry_peer_close(peer);
}

/* One of two dies under way: its transfer ends as lost, the other's goes on. */
static inline void body_killed(pair_world *pair)
{
    kvferry_peer *peer = pair_connect(pair, 0), *other = pair_connect(pair, 1);
    kvferry_copy twice[64];
    for (size_t i = 0; i < 64; i++)
        twice[i] = everything;
    kvferry_transfer *transfer = pair_begin(pair, peer, KVFERRY_WRITE, twice, 64, 0);
    progress_until_moving(pair, transfer);
    kvferry_transfer *beside = pair_begin(pair, other, KVFERRY_WRITE, &everything, 1, 0);
    kill_peer(pair, 0);
    PAIR_EQUAL(pair_finish(pair, transfer), KVFERRY_PEER_LOST);
    PAIR_CHECK(kvferry_peer_lost(peer));
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, twice, 1, 0)),
               KVFERRY_PEER_LOST);
    PAIR_EQUAL(pair_finish(pair, beside), KVFERRY_OK);
    kvferry_peer_close(peer);
    check_alive(pair, 1, 5);
}

/* It is dead before the first byte: the connection is refused, or the transfer ends as lost. */
static inline void body_gone(pair_world *pair)
{
    kvferry_peer *peer = NULL;
    kill_peer(pair, 0);
    kvferry_status status =
        kvferry_engine_connect(pair->engine, pair->peers[0].binding, pair->peers[0].binding_size,
                               &peer, pair->report);
    if (status == KVFERRY_OK)
        status = pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, &everything, 1,
                                              pair_now() + 20000000000u));
    PAIR_EQUAL(status, KVFERRY_PEER_LOST);
    check_alive(pair, 1, 6);
}

/* Stopped before the first byte, and under way. The deadline ends the wait, only the close the doubt. */
static inline void stop_and_close(pair_world *pair, bool under_way)
{
    kvferry_copy twice[64];
    for (size_t i = 0; i < 64; i++)
        twice[i] = everything;
    kvferry_peer *peer = pair_connect(pair, 0);
    kvferry_transfer *transfer = NULL;
    if (under_way) {
        transfer = pair_begin(pair, peer, KVFERRY_WRITE, twice, 64, pair_now() + 1500000000u);
        progress_until_moving(pair, transfer);
        PAIR_CHECK(kill(pair->peers[0].pid, SIGSTOP) == 0);
    } else {
        PAIR_CHECK(kill(pair->peers[0].pid, SIGSTOP) == 0);
        transfer = pair_begin(pair, peer, KVFERRY_WRITE, twice, 64, pair_now() + 100000000u);
    }
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    while (is->status == KVFERRY_BUSY)
        kvferry_engine_progress(pair->engine, NULL);
    PAIR_EQUAL(is->status, KVFERRY_TIMEOUT);
    for (unsigned i = 0; i < 1000; i++)
        kvferry_engine_progress(pair->engine, NULL);
    PAIR_CHECK(!is->over);
    PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_BUSY);
    kvferry_peer_close(peer);
    PAIR_CHECK(is->over);
    PAIR_EQUAL(is->status, KVFERRY_TIMEOUT);
    PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_OK);
    PAIR_CHECK(kill(pair->peers[0].pid, SIGCONT) == 0);
    check_goes_on(pair, 0, 7);
}

static inline void body_stopped_under_way(pair_world *pair) { stop_and_close(pair, true); }
static inline void body_stopped_at_first(pair_world *pair) { stop_and_close(pair, false); }

/* What is with a library cannot be called back: the status is there at once, the end comes later. */
static inline void body_cancel(pair_world *pair)
{
    kvferry_copy copies[64];
    for (size_t i = 0; i < 64; i++)
        copies[i] = everything;
    kvferry_peer *peer = pair_connect(pair, 0);
    kvferry_transfer *transfer = pair_begin(pair, peer, KVFERRY_WRITE, copies, 64, 0);
    progress_until_moving(pair, transfer);
    kvferry_transfer_cancel(transfer);
    PAIR_EQUAL(kvferry_transfer_get(transfer)->status, KVFERRY_CANCELED);
    PAIR_EQUAL(pair_finish(pair, transfer), KVFERRY_CANCELED);
    PAIR_CHECK(!kvferry_peer_lost(peer));
    pair_fill(pair->memory, FAULTS_SEGMENT, 8);
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, copies, 1, 0)), KVFERRY_OK);
    pair_command(pair, 0, 'd');
    PAIR_CHECK(memcmp(pair->peers[0].window, pair->memory, FAULTS_SEGMENT) == 0);
}

/* Closed at each of many moments, from before the connection is up; the peer survives each. */
static inline void body_close(pair_world *pair)
{
    for (unsigned rounds = 0; rounds < 40; rounds++) {
        kvferry_peer *peer = pair_connect(pair, 0);
        kvferry_direction direction = rounds % 2 ? KVFERRY_READ : KVFERRY_WRITE;
        kvferry_transfer *transfer = pair_begin(pair, peer, direction, &everything, 1, 0);
        for (unsigned i = 0; i < rounds * rounds; i++)
            kvferry_engine_progress(pair->engine, NULL);
        kvferry_peer_close(peer);
        const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
        PAIR_CHECK(is->over);
        PAIR_CHECK(is->status == KVFERRY_PEER_LOST || is->status == KVFERRY_OK);
        PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_OK);
    }
    check_alive(pair, 0, 9);
}

/* The engine closes with everything under way; pair_run_body closes it once more for a fresh one. */
static inline void body_close_engine(pair_world *pair)
{
    kvferry_peer *peer = pair_connect(pair, 0);
    kvferry_transfer *transfer = pair_begin(pair, peer, KVFERRY_WRITE, &everything, 1, 0);
    for (unsigned i = 0; i < 20; i++)
        kvferry_engine_progress(pair->engine, NULL);
    kvferry_engine_close(pair->engine);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    PAIR_CHECK(is->over);
    PAIR_CHECK(is->status == KVFERRY_CANCELED || is->status == KVFERRY_OK);
    PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_OK);
    pair->engine = pair_open(pair->setup, &pair->memory, pair->report);
    check_alive(pair, 0, 10);
}

#endif
