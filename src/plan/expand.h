/* SPDX-License-Identifier: Apache-2.0 */
/* Between checking a request and writing its copies. */
#ifndef KVFERRY_PLAN_EXPAND_H
#define KVFERRY_PLAN_EXPAND_H

#include "plan/plan.h"

/* A request against one source of a plan. */
typedef struct expand_job {
    const kvferry_plan *plan;
    const plan_source *source;
    const kvferry_request *request;
    kvferry_report *report;
} expand_job;

/* The table of a group, or NULL. */
const kvferry_block_table *expand_table(const kvferry_block_table *tables, size_t count,
                                        const char *group);

/* The tokens [*start, *end) that the target wants of a paged group; false if there are none. */
bool expand_wanted(const expand_job *job, const plan_group *target,
                   const kvferry_block_table *table, uint64_t *start, uint64_t *end);

/* Checks every rule of requests and reports all that are broken; true if none is. `scratch` has
 * room for the plan's scratch_bits. */
bool expand_check(const expand_job *job, uint64_t *scratch);

/* How many copies the request makes at most, and how many elements of a buffer the check needs for itself. */
uint64_t expand_copies(const expand_job *job);
uint64_t expand_scratch(const kvferry_plan *plan);

/* The one block of a state or ring group that is not null. */
uint32_t expand_live_block(const plan_group *group, const kvferry_block_table *table);

#endif
