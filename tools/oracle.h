/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle: fills caches with values that name their own place and checks, after a transfer,
 * every byte of every target segment. It knows the layout documents and the request, never the
 * plan, and shares no code with the planner. docs/proof.md says what it proves.
 */
#ifndef KVFERRY_ORACLE_H
#define KVFERRY_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvferry/layout.h>
#include <kvferry/plan.h>

/* A worker and its memory. A worker whose memory is elsewhere (a source, while a target is checked)
 * has NULL segments. */
typedef struct oracle_worker {
    const kvferry_layout *layout;
    unsigned char *const *segments; /* one per segment of the layout */
    uint64_t noise;                 /* seed of the noise; another one for each worker */
} oracle_worker;

/* One request that was moved, and the seed of its values. */
typedef struct oracle_transfer {
    const kvferry_request *request;
    uint64_t seed;
} oracle_transfer;

/* Fills every byte of every segment with noise: a function of the worker's seed and the place. */
void oracle_noise(const oracle_worker *worker);

/*
 * Writes the values of a request into a source worker: every cell, of every stream of the groups
 * that the request's source tables list, that holds a token before source_tokens. A value is a
 * function of the seed, layer, stream, global coordinates and byte in the cell. false: no memory.
 */
bool oracle_fill(const oracle_worker *source, const oracle_transfer *transfer);

typedef enum oracle_kind {
    ORACLE_WRONG = 0, /* a wanted cell does not hold its value */
    ORACLE_STRAY = 1  /* a byte changed that nobody may change */
} oracle_kind;

#define ORACLE_TEXT 320

/* One fault, gathered over a stream. Names belong to the target's layout; "" where nothing owns the
 * bytes. The numbers are those of the first wrong byte. */
typedef struct oracle_finding {
    oracle_kind kind;
    const char *transfer_id; /* "" for a stray byte */
    const char *layer, *stream, *group;
    uint32_t segment;
    uint64_t offset; /* in the segment */
    uint64_t block, token;
    uint64_t bytes;            /* in how many bytes this stream is wrong */
    uint64_t blocks;           /* in how many blocks; 0 for stray bytes */
    char where[ORACLE_TEXT];   /* coordinates for a person */
    char instead[ORACLE_TEXT]; /* what is there instead, as far as it can be told */
} oracle_finding;

#define ORACLE_FINDINGS 32

typedef struct oracle_result {
    uint64_t wanted_bytes;  /* bytes of wanted cells */
    uint64_t allowed_bytes; /* bytes beside them that the transfers may change */
    uint64_t checked_bytes; /* all bytes of all segments */
    uint64_t wrong_bytes, stray_bytes;
    size_t finding_count; /* how many findings are kept */
    size_t more;          /* how many are not */
    oracle_finding findings[ORACLE_FINDINGS];
} oracle_result;

/*
 * Checks every byte of every segment of `target`, into which `transfers` (whose target blocks are
 * all different) were moved from `sources` (all workers of the source engine; only their documents
 * and noise seeds are looked at). The target must have been filled with oracle_noise before.
 * Afterwards its segments hold that noise again, so the pool can be used for a next round. *result
 * is set on true: right in every byte if finding_count is 0. false: no memory.
 */
bool oracle_check(const oracle_worker *target, const oracle_worker *sources, size_t source_count,
                  const oracle_transfer *transfers, size_t transfer_count, oracle_result *result);

/* One line for a person, of at most size - 1 characters. */
void oracle_finding_text(const oracle_worker *target, const oracle_finding *finding, char *text,
                         size_t size);

#endif
