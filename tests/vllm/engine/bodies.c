/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies that hold for every engine, for one that Python adds. pair_run forks: both processes have the
 * interpreter, and open an engine of their own in it. */
#include "engine/pair_faults_test.h"
#include "engine/pair_moves_test.h"

static const struct {
    const char *name;
    void (*body)(pair_world *pair);
    uint64_t bytes;
    unsigned peers;
} bodies[] = {
    {"move_both_ways", move_both_ways, MOVES_SEGMENT, 1},
    {"move_to_all", move_to_all, 2 * MIB, PAIR_PEERS},
    {"move_crosswise", move_crosswise, 8 * MIB, 1},
    {"move_many", move_many, 262144 * 40, 1},
    {"move_out_of_range", move_out_of_range, MIB, 1},
    {"killed", body_killed, FAULTS_SEGMENT, 2},
    {"gone", body_gone, FAULTS_SEGMENT, 2},
    {"cancel", body_cancel, FAULTS_SEGMENT, 1},
    {"stopped_under_way", body_stopped_under_way, FAULTS_SEGMENT, 1},
    {"stopped_at_first", body_stopped_at_first, FAULTS_SEGMENT, 1},
    {"close", body_close, FAULTS_SEGMENT, 1},
    {"close_engine", body_close_engine, FAULTS_SEGMENT, 1},
};

/* 0: all was right; -1: there is no such body. */
int bodies_run(const char *engine, const char *name);
int bodies_run(const char *engine, const char *name)
{
    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        const pair_setup setup = {
            .engine = engine, .transport = "tcp", .bytes = bodies[i].bytes, .peers = bodies[i].peers};
        if (strcmp(bodies[i].name, name) == 0)
            return pair_run(&setup, bodies[i].body);
    }
    return -1;
}
