/* SPDX-License-Identifier: Apache-2.0 */
/* The reference planner, from the definitions alone. */
#ifndef KVFERRY_RANDOM_NAIVE_H
#define KVFERRY_RANDOM_NAIVE_H

#include "random.h"

typedef struct naive_copy {
    kvferry_copy copy;
    size_t source;
} naive_copy;

/* The copies of one request, a cell at a time, each from the first source that has it. *copies is
 * to be freed. false: no memory. */
bool naive_plan(const kvferry_layout *const *sources, size_t source_count,
                const kvferry_layout *target, const kvferry_request *request, naive_copy **copies,
                size_t *count);

/* The stream of each source that a target stream may come from, NULL where there is none; how many.
 */
size_t naive_match(const kvferry_layout *const *sources, size_t source_count,
                   const kvferry_stream *target, const kvferry_stream **matches);

/* Whether a source's box holds a cell: global coordinates along the target's axes (the token axis's
 * is not looked at). */
bool naive_holds(const kvferry_stream *source, const kvferry_stream *target,
                 const uint64_t *coordinates);

/* Marks the bytes of a stream's cells in the null block of its group: nobody may read or write
 * them. */
void naive_null_bytes(const kvferry_layout *layout, uint32_t stream, unsigned char *const *marks);

#endif
