/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a plan. Made in this order: match.c, assign.c, compile.c; used by expand.c. */
#ifndef KVFERRY_PLAN_INTERNAL_H
#define KVFERRY_PLAN_INTERNAL_H

#include <kvferry/plan.h>

#include "base/base.h"
#include "layout/layout.h"

/* --- match and assign --------------------------------------------------------------------- */

/* A source stream that holds some of a target stream: a box of it. */
typedef struct plan_holding {
    uint32_t source; /* index of the worker */
    uint32_t source_stream;
    uint32_t target_stream;
    kvferry_range *box; /* per axis of the target's stream; the token axis whole */
} plan_holding;

typedef struct plan_holdings {
    plan_holding *items; /* grouped by target stream once matched */
    size_t count, capacity;
    base_arena arena;
} plan_holdings;

/* Finds all holdings and reports every pair that does not fit and every required stream that no
 * source has. KVFERRY_OK or KVFERRY_NO_MEMORY; refusals are counted in *refusals. */
kvferry_status plan_match(const kvferry_layout *const *sources, size_t source_count,
                          const kvferry_layout *target, plan_holdings *holdings, size_t *refusals,
                          kvferry_report *report);

/* Decides who sends what: fills plan->sources[..].pieces, and reports holes. */
kvferry_status plan_assign(kvferry_plan *plan, const kvferry_layout *const *sources,
                           const kvferry_layout *target, plan_holdings *holdings, size_t *refusals,
                           kvferry_report *report);

/* --- the compiled program ------------------------------------------------------------------- */

typedef struct plan_dim {
    uint64_t count, source_stride, target_stride;
} plan_dim;

/* Bytes that lie together on both sides, repeated along dims (outermost first), in page 0. */
typedef struct plan_nest {
    uint64_t source_offset, target_offset;
    uint64_t source_page, target_page; /* bytes from page to page */
    uint64_t bytes;
    uint32_t source_segment, target_segment;
    /* Where it stands for one state of a paged stream: */
    uint64_t source_state, target_state; /* bytes from state to state */
    uint64_t tokens_per_state;
    uint32_t dim_count;
    plan_dim *dims;
} plan_nest;

/* A nest without dims, as it is written for each page: the inner loop of expanding. */
typedef struct plan_run {
    uint64_t source_offset, target_offset;
    uint64_t bytes;
    uint32_t source_segment, target_segment;
    uint64_t source_page, target_page;
    /* Consecutive pages are one copy: what lies between their bytes may be carried. */
    bool joins;
    /* A page whose first states are not wanted is still one copy, from the first wanted one on. */
    bool cuts;
    /* The states it is made of: where cuts is false these are written one by one instead. */
    uint32_t first_state, state_count;
} plan_run;

/* The streams of one pair of groups that are walked together. */
typedef struct plan_walk {
    uint32_t source_group, target_group;
    const char *source_name, *target_name; /* of the groups */
    kvferry_group_kind kind;
    uint64_t source_page_tokens, target_page_tokens;
    uint64_t source_ratio, target_ratio; /* pages a block */
    bool equal;                          /* one page is one page on both sides */
    /* Unequal pages: the side's pages follow one another without a seam, so consecutive blocks
     * are one stretch of states. */
    bool source_seamless, target_seamless;

    plan_run *runs; /* of a whole page */
    uint32_t run_count;
    bool even; /* all runs have the same page strides */
    plan_nest *nests; /* of a whole page, with dims */
    uint32_t nest_count;
    plan_nest *states; /* of one state: first those of the runs, then those of the nests */
    uint32_t state_count;
    uint32_t nest_first_state;
    uint64_t page_copies;  /* copies of one whole page */
} plan_walk;

/* What expanding must know of a group. */
typedef struct plan_group {
    const char *name;
    kvferry_group_kind kind;
    uint64_t block_tokens, window, blocks;
    int64_t null_block;
    uint64_t first_bit; /* target only: its place in the scratch bitmap */
} plan_group;

/* What a side must know of a piece that is in the other side's document. */
typedef struct plan_pair {
    uint32_t source_group, target_group;
    const uint32_t *axes; /* per axis of the target's stream: that of the source's */
} plan_pair;

typedef struct plan_source {
    const char *worker;
    kvferry_piece *pieces;
    size_t piece_count, piece_capacity;
    plan_pair *pairs; /* per piece */
    size_t pair_capacity;
    plan_group *groups;
    uint32_t group_count;
    plan_walk *walks; /* those of one pair of groups follow one another */
    uint32_t walk_count;
} plan_source;

struct kvferry_plan {
    base_arena arena;
    const char *worker; /* the target's */
    plan_source *sources;
    size_t source_count;
    plan_group *groups; /* the target's */
    uint32_t group_count;
    bool *share;           /* group_count x group_count */
    uint64_t scratch_bits; /* of the bitmap over all target groups */
};

/* --- rows ------------------------------------------------------------------------------------ */

/* Which row of its document each stream lies in, and where no byte may be carried over. */
typedef struct plan_rows {
    const kvferry_layout *layout;
    uint64_t *low;   /* per stream: the row's lowest offset, of page 0 */
    uint64_t *hull;  /* per stream: bytes from its first to past its last cell inside a page */
    uint32_t *by_start; /* the streams by segment and offset */
    uint64_t *reach; /* per place in that order: how far the segment's streams up to it reach */
} plan_rows;

kvferry_status plan_rows_create(const kvferry_layout *layout, base_arena *arena, plan_rows *rows);

typedef struct plan_span {
    uint64_t start, end;
} plan_span;

/* Where, in each row of a target, cells lie that a copy for `group` must leave alone unless they are
 * its own: those of the group's streams, and of other groups' blocks, which may be another request's.
 * Only a group that shares bytes with it, in a stream whose blocks lie in rows of equal ids, has none:
 * such a block is this request's too. Repeats every `period` bytes. Starts zeroed. */
typedef struct plan_obstacles {
    uint64_t period, block, low; /* bytes from page to page and from block to block */
    uint32_t segment, group;
    plan_span *spans; /* apart and in order; free() them */
    size_t count, capacity;
} plan_obstacles;

/* Fills `obstacles` for the row of stream `like`; at once if they are the same as before. */
kvferry_status plan_obstacles_find(const plan_rows *rows, uint32_t like, uint32_t group,
                                   plan_obstacles *obstacles);

/* Whether [offset, offset + bytes), counted from the segment's start in any page's row and reaching
 * at most into the next one, holds none of them. */
bool plan_obstacles_free(const plan_obstacles *obstacles, uint64_t offset, uint64_t bytes);

/* --- compile ---------------------------------------------------------------------------------- */

/* Compiles the pieces of one source into walks. `obstacles` are those of the target, kept from call
 * to call. KVFERRY_OK or KVFERRY_NO_MEMORY. */
kvferry_status plan_compile(kvferry_plan *plan, size_t source_index, const kvferry_layout *source,
                            const plan_rows *target_rows, plan_obstacles *obstacles);

#endif
