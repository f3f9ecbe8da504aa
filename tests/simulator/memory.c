/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what the program holds, in allocation functions of its own above glibc's. For one thread. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include "world.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *data, size_t size);
void __libc_free(void *data);

static int64_t held;

int64_t sim_memory_held(void)
{
    return held;
}

static int64_t size_of(void *data)
{
    return (int64_t)malloc_usable_size(data);
}

void *malloc(size_t size)
{
    void *data = __libc_malloc(size);
    held += size_of(data);
    return data;
}

void *calloc(size_t count, size_t size)
{
    void *data = __libc_calloc(count, size);
    held += size_of(data);
    return data;
}

void *realloc(void *data, size_t size)
{
    int64_t before = size_of(data);
    void *moved = __libc_realloc(data, size);
    if (moved || size == 0)
        held += size_of(moved) - before;
    return moved;
}

void free(void *data)
{
    held -= size_of(data);
    __libc_free(data);
}
