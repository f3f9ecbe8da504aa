/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_PLAN_H
#define KVFERRY_PLAN_H

#include <kvferry/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A plan says how one target worker gets its caches from the workers of a source engine: which
 * source sends which part of which stream, and by what loops. It is made once per set of peers and
 * reused for every request. A plan is immutable: any number of threads may use it. It keeps what it
 * needs of the documents; they may be freed before it.
 */
typedef struct kvferry_plan kvferry_plan;

/*
 * Plans the transfer from `source_count` workers (all of one engine, any order) to the worker of
 * `target`: match, intersect, assign, prove coverage, compile.
 * On KVFERRY_OK *plan is the caller's to free. KVFERRY_REFUSED: the report names everything that
 * does not fit, at once. KVFERRY_NO_MEMORY. Any thread. No I/O.
 */
KVFERRY_API kvferry_status kvferry_plan_create(const kvferry_layout *const *sources,
                                               size_t source_count, const kvferry_layout *target,
                                               kvferry_plan **plan, kvferry_report *report);
KVFERRY_API void kvferry_plan_free(kvferry_plan *plan);

/* --- what was planned ---------------------------------------------------------------------- */

typedef struct kvferry_range {
    uint64_t start, extent; /* global indexes along one axis */
} kvferry_range;

/* A part of a stream that one source sends. Belongs to the plan. */
typedef struct kvferry_piece {
    uint32_t source_stream; /* index in the source's document */
    uint32_t target_stream; /* index in the target's document */
    const kvferry_range *ranges; /* one per axis of the target's stream, in its order; the token
                                    axis's is {0, 0}: tokens are cut by the request */
    uint32_t range_count;
    uint64_t state_bytes;   /* bytes of the part in one state (paged) or in one block */
} kvferry_piece;

/* How many sources the plan was made for. */
KVFERRY_API size_t kvferry_plan_source_count(const kvferry_plan *plan);

/* How many pieces source `source` sends; 0: it is in no plan of this target. */
KVFERRY_API size_t kvferry_plan_piece_count(const kvferry_plan *plan, size_t source);

/* The piece at `index` of source `source`; NULL past the end. */
KVFERRY_API const kvferry_piece *kvferry_plan_piece(const kvferry_plan *plan, size_t source,
                                                    size_t index);

/* --- one request --------------------------------------------------------------------------- */

/* A group's block table in a request: blocks[i] holds the tokens first_token + i * block_tokens and
 * on. State and ring groups have exactly one entry that is not null; first_token is unused. A source
 * engine's tables serve all its workers, so one that only another worker has is fine; the target's
 * are those of the plan's own worker. */
typedef struct kvferry_block_table {
    const char *group;      /* name in the side's own document */
    uint64_t first_token;   /* a multiple of the side's block_tokens */
    const uint32_t *blocks; /* block ids of the side's own group */
    size_t block_count;
} kvferry_block_table;

/*
 * What one request wants moved. A target group that is not listed is not transferred. Of each listed
 * paged group the tokens [target first_token, target_tokens) are wanted, less what the window drops and
 * what lies in null blocks or past the end of the target's list: that is neither moved nor reported.
 * Of a window of W tokens what lies before target_tokens - W is dropped; with `whole_blocks` only what lies before
 * the target's block that holds that token. An engine that caches prefixes by whole blocks needs it: a later
 * request may find that block, and read of it what comes before this one's window.
 * The tables and strings are the caller's and only read during a call.
 */
typedef struct kvferry_request {
    const char *transfer_id; /* for messages; may be NULL */
    uint64_t source_tokens;  /* how many tokens the source's state covers */
    uint64_t target_tokens;  /* how many the target wants; equal where state or ring groups move */
    const kvferry_block_table *source;
    size_t source_count;
    const kvferry_block_table *target;
    size_t target_count;
    bool whole_blocks; /* the first block of a window is wanted from its first token on */
} kvferry_request;

/* Bytes of one contiguous piece of work: a transfer engine's descriptor. Offsets are from the
 * beginnings of the segments. */
typedef struct kvferry_copy {
    uint64_t source_offset;
    uint64_t target_offset;
    uint64_t bytes;
    uint32_t source_segment; /* index in the source's document */
    uint32_t target_segment; /* index in the target's document */
} kvferry_copy;

/* How many elements a buffer for kvferry_plan_expand must have for this request, at most.
 * Reads only the tables' lengths. Any thread. */
KVFERRY_API size_t kvferry_plan_expand_bound(const kvferry_plan *plan, size_t source,
                                             const kvferry_request *request);

/*
 * Writes the copies that source `source` makes for `request` into `copies` and their number into
 * *count. Allocates nothing, takes no lock, makes no system call, unless it refuses and fills a
 * report. The whole buffer may be overwritten, past *count too.
 * KVFERRY_REFUSED: a rule of requests is broken (source_null, state_position, group_missing,
 * block_range, ...); every finding is in the report. KVFERRY_NO_SPACE: capacity is less than
 * kvferry_plan_expand_bound says. In both cases *count is unchanged.
 * Copies of one request never overlap on the target. Any thread.
 */
KVFERRY_API kvferry_status kvferry_plan_expand(const kvferry_plan *plan, size_t source,
                                               const kvferry_request *request, kvferry_copy *copies,
                                               size_t capacity, size_t *count,
                                               kvferry_report *report);

/* --- the request document ------------------------------------------------------------------- */

/*
 * Reads a request from JSON: {"transfer_id": "t1", "tokens": 1233, "source": {"attn":
 * {"first_token": 0, "blocks": [3, 4, 9]}}, "target": {...}}. Optional "source_tokens": what the
 * source covers, where it is not "tokens"; "whole_blocks": true or, if it is missing, false.
 * On KVFERRY_OK *request is the caller's to free with kvferry_request_free. KVFERRY_MALFORMED with
 * every finding in the report; KVFERRY_NO_MEMORY.
 */
KVFERRY_API kvferry_status kvferry_request_read_json(const char *text, size_t size,
                                                     kvferry_request **request,
                                                     kvferry_report *report);
KVFERRY_API void kvferry_request_free(kvferry_request *request);

#ifdef __cplusplus
}
#endif
#endif
