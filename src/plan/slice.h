/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request in slices: each is a request of its own, of a run of blocks of one table of the target, and all of them
 * one after another move what the whole moves. So a long one can be worked on a little at a time.
 */
#ifndef KVFERRY_PLAN_SLICE_H
#define KVFERRY_PLAN_SLICE_H

#include "plan/plan.h"

/* How far the target's tables are cut. Starts zeroed. */
typedef struct plan_cursor {
    size_t table, block;
} plan_cursor;

typedef struct plan_slice {
    kvferry_request request; /* its one target table is `table`: the slice must not move */
    kvferry_block_table table;
    size_t bound;   /* of copies: what kvferry_plan_expand_bound says of it */
    uint64_t bytes; /* of a sum: at most */
} plan_slice;

/*
 * Checks the whole as kvferry_plan_expand does: what is wrong between slices is seen only here. KVFERRY_REFUSED,
 * KVFERRY_NO_MEMORY. Takes a time that grows with the tables' lengths, not with the copies.
 */
kvferry_status plan_slice_check(const kvferry_plan *plan, size_t source, const kvferry_request *request,
                                kvferry_report *report);

/*
 * The next slice of which source `source` makes at most `copies` copies, or that has one block or is a state's, and
 * moves the cursor past it. Blocks of which the source makes none are passed over. false: nothing is left. Any thread;
 * allocates nothing.
 */
bool plan_slice_next(const kvferry_plan *plan, size_t source, const kvferry_request *request, uint64_t copies,
                     plan_cursor *cursor, plan_slice *slice);

/* The same for the checksum of a piece: of its cells at most `bytes` bytes. false: nothing is left. */
bool plan_slice_next_sum(const kvferry_plan *plan, size_t source, size_t piece, const kvferry_request *request,
                         uint64_t bytes, plan_cursor *cursor, plan_slice *slice);

#endif
