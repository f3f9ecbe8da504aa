/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

/* Chunks double from the least to the most, so that a small arena is small. */
enum { ARENA_LEAST = 512, ARENA_MOST = 16 * 1024, ARENA_ALIGN = 16 };

struct base_arena_chunk {
    struct base_arena_chunk *next;
    size_t used, capacity;
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

void *base_alloc(size_t count, size_t size)
{
    return calloc(count ? count : 1, size ? size : 1);
}

bool base_grow(void **data, size_t *capacity, size_t count, size_t size)
{
    if (count <= *capacity)
        return true;
    size_t wanted = *capacity ? *capacity : 8;
    while (wanted < count) {
        if (wanted > SIZE_MAX / 2)
            return false;
        wanted *= 2;
    }
    if (wanted > SIZE_MAX / size)
        return false;
    void *grown = realloc(*data, wanted * size);
    if (!grown)
        return false;
    *data = grown;
    *capacity = wanted;
    return true;
}

void *base_arena_alloc(base_arena *arena, size_t count, size_t size)
{
    uint64_t bytes;
    if (!base_mul(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    bytes = base_ceil_div(base_max(bytes, 1), ARENA_ALIGN) * ARENA_ALIGN;
    struct base_arena_chunk *chunk = arena->chunks;
    if (!chunk || chunk->capacity - chunk->used < bytes) {
        uint64_t usual = chunk ? base_min(2 * (uint64_t)chunk->capacity, ARENA_MOST) : ARENA_LEAST;
        size_t capacity = (size_t)base_max(bytes, usual);
        chunk = malloc(sizeof(*chunk) + capacity);
        if (!chunk)
            return NULL;
        chunk->used = 0;
        chunk->capacity = capacity;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    void *data = chunk->data + chunk->used;
    chunk->used += (size_t)bytes;
    return memset(data, 0, (size_t)bytes);
}

char *base_arena_strndup(base_arena *arena, const char *text, size_t length)
{
    char *copy = base_arena_alloc(arena, length + 1, 1);
    if (copy)
        memcpy(copy, text, length);
    return copy;
}

char *base_arena_strdup(base_arena *arena, const char *text)
{
    return base_arena_strndup(arena, text, strlen(text));
}

void base_arena_free(base_arena *arena)
{
    while (arena->chunks) {
        struct base_arena_chunk *chunk = arena->chunks;
        arena->chunks = chunk->next;
        free(chunk);
    }
}
