/* SPDX-License-Identifier: Apache-2.0 */
/* A checksum of the bytes that a request wants of a piece, the same on both sides of a transfer. */
#ifndef KVFERRY_PLAN_CHECKSUM_H
#define KVFERRY_PLAN_CHECKSUM_H

#include "plan/plan.h"

/* A checksum on the way: of no bytes at first, then of what was added, in order. NULL: out of memory. */
typedef struct XXH3_state_s plan_sum;

plan_sum *plan_sum_create(void);
void plan_sum_free(plan_sum *sum);
uint64_t plan_sum_value(const plan_sum *sum);

/*
 * Adds the cells of the piece that the request wants, in an order that no layout changes: by
 * token where paged, then along the axes of the target's stream as its document has them. `own` is
 * the document of the worker that computes: the source's if `of_source`, else the target's;
 * `memory` is that stream's segment, and is read by the CPU. Of the request the target's tables and
 * tokens count, and the source's own tables where `of_source`. A piece of which nothing is wanted
 * adds no bytes. Slices of a request (slice.h) one after another add what the whole adds at once.
 *
 * KVFERRY_INVALID: no such piece, or a document that is not the one planned with. KVFERRY_REFUSED:
 * the request breaks a rule (a group or block that is not there); the sum is of no use then. Any
 * thread; no I/O; allocates nothing.
 */
kvferry_status plan_checksum(const kvferry_plan *plan, size_t source, size_t piece, bool of_source,
                             const kvferry_layout *own, const void *memory,
                             const kvferry_request *request, plan_sum *sum);

#endif
