/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation functions of this program's own: they count and fail on demand, and know what is still
 * allocated. Only calls from the library, jansson, msgpack and libsodium are counted, on the thread
 * that is between guard_begin and guard_end: what UCX does without memory is not ours to test.
 */
#ifndef KVFERRY_GUARD_H
#define KVFERRY_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* From now on the n-th counted allocation fails, and only that one or (`on`) all after it; 0: none. */
void guard_fail_at(size_t n, bool on);

void guard_begin(void);
void guard_end(void);

/* Allocations counted, and locks taken, since guard_fail_at. */
size_t guard_allocations(void);
size_t guard_locks(void);

/* Whether the allocation that was to fail was reached. */
bool guard_failed(void);

/* Counted allocations that are not freed. */
size_t guard_live(void);

#endif
