/* SPDX-License-Identifier: Apache-2.0 */
/* How often the command's own thread allocates: for the planner's benchmark. */
#ifndef KVFERRY_TOOL_ALLOCATIONS_H
#define KVFERRY_TOOL_ALLOCATIONS_H

#include <stdint.h>

/* Calls of malloc, calloc, realloc and the like by this thread so far, in the command and in every
 * library it loads. 0 for good where a sanitizer owns these functions. */
uint64_t tool_allocations(void);

/* Bytes that are allocated now, as the C library counts them. */
uint64_t tool_allocated_bytes(void);

#endif
