/* SPDX-License-Identifier: Apache-2.0 */
/* One measurement of `kvferry bench transfer`: two processes that move blocks with the ucx engine. */
#ifndef KVFERRY_BENCH_PAIR_H
#define KVFERRY_BENCH_PAIR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bench_pair {
    const char *transport;  /* "shm" or "tcp" */
    bool allocated;         /* both segments by the engine; else the callers' own memory */
    uint64_t segment_bytes; /* of each side */
    uint64_t block_bytes;
    uint64_t copies;        /* of a pass; they go round over the segment's blocks, in shuffled order */
    unsigned passes;
    unsigned parts;         /* a pass is cut into as many transfers; 0 counts as 1 */
    bool memcpy_too;        /* between two buffers of the same size, same blocks, part by part */
} bench_pair;

/* Seconds of a pass, each part at its best: on a machine with other work no whole pass is. */
typedef struct bench_pair_result {
    double transfer, memcpy;
    char ucx[16]; /* version that is loaded */
} bench_pair_result;

/* false: *why says what failed; static storage. */
bool bench_pair_run(const bench_pair *pair, bench_pair_result *result, const char **why);

/* Seconds on the clock that deadlines use. */
double bench_now(void);

/*
 * Runs ucx_perftest's put bandwidth between two processes of its own, with UCX's shared memory or TCP,
 * tuned, over a caller's own memory; seconds that it took. false: *why says what failed.
 */
bool bench_perftest_run(const char *transport, uint64_t block_bytes, uint64_t copies,
                        double *seconds, const char **why);

/* Puts this process on the first (0) or second (1) processor that it may use: two busy processes that
 * begin on the same one would be measured waiting for each other. */
void bench_pin(unsigned index);

/* Whether there is a ucx_perftest on the path. */
bool bench_perftest_found(void);

#endif
