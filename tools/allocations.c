/* SPDX-License-Identifier: Apache-2.0 */
/* Counts allocations by standing in front of the C library's functions. */
#include "allocations.h"

#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>

static _Thread_local uint64_t count;

uint64_t tool_allocations(void) { return count; }

uint64_t tool_allocated_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWNED_BY_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWNED_BY_SANITIZER
#endif

#ifndef OWNED_BY_SANITIZER
/* The C library's own functions under the names that it keeps for those who stand in front. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t number, size_t size);
void *__libc_realloc(void *data, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size)
{
    count++;
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    count++;
    return __libc_calloc(number, size);
}

void *realloc(void *data, size_t size)
{
    count++;
    return __libc_realloc(data, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count++;
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **data, size_t alignment, size_t size)
{
    count++;
    void *made = __libc_memalign(alignment, size);
    if (!made)
        return ENOMEM;
    *data = made;
    return 0;
}
#endif
