/* SPDX-License-Identifier: Apache-2.0 */
/* What every layer uses: checked arithmetic, arrays, arenas, reasons. */
#ifndef KVFERRY_BASE_H
#define KVFERRY_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvferry/report.h>
#include <kvferry/status.h>

/* --- 64-bit arithmetic on untrusted sizes: true if the result fits, and only then is it set --- */

static inline bool base_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool base_mul(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

static inline uint64_t base_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t base_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t base_ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

/* --- memory -------------------------------------------------------------------------------- */

/* malloc of count * size zeroed bytes; NULL when out of memory or past SIZE_MAX; never for 0. */
void *base_alloc(size_t count, size_t size);

/* Makes room for at least `count` elements in a growing array: doubles. false: out of memory, and
 * the array is as it was. */
bool base_grow(void **data, size_t *capacity, size_t count, size_t size);

/* An arena: many small pieces that are freed together. */
typedef struct base_arena {
    struct base_arena_chunk *chunks;
} base_arena;

void *base_arena_alloc(base_arena *arena, size_t count, size_t size); /* zeroed, aligned to 16 */
char *base_arena_strdup(base_arena *arena, const char *text);
char *base_arena_strndup(base_arena *arena, const char *text, size_t length);
void base_arena_free(base_arena *arena);

/* --- text ---------------------------------------------------------------------------------- */

/* A growing string. After any failed append `failed` stays set and the text is not to be used. */
typedef struct base_text {
    char *data; /* terminated once anything was appended; free() it */
    size_t size, capacity;
    bool failed;
} base_text;

void base_text_append(base_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void base_text_append_bytes(base_text *text, const void *data, size_t size);

/* Bytes of the UTF-8 character that begins at `text`, of which there are `size` > 0; 0: none does, or it
 * is the zero byte. */
size_t base_text_character(const char *text, size_t size);

/* Whether all of it is UTF-8 without zero bytes, as the strings of documents and reasons are. */
bool base_text_is_utf8(const char *text, size_t size);

/* --- reasons ------------------------------------------------------------------------------- */

/* Where a reason lies. NULL members are "". */
typedef struct base_where {
    const char *worker, *layer, *stream, *axis, *place;
} base_where;

/*
 * Adds a reason. `code` is one of docs/reasons.md. expected and found are formatted into the message:
 * "<message>: expected <expected>, found <found>" with the place in front. A NULL report, or one
 * that is full or out of memory, is fine.
 */
void base_report_add(kvferry_report *report, const char *code, const base_where *where,
                     const char *expected, const char *found, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* Adds a copy of a reason as it is. A NULL report, or one that is full or out of memory, is fine. */
void base_report_copy(kvferry_report *report, const kvferry_reason *reason);

/* printf into one of a few rotating per-thread buffers of 256 bytes, for arguments of the above. */
const char *base_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
