/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading msgpack of anybody's making, in place. Nothing is read past the end, no claim of a length or a
 * count is believed beyond the bytes that are left, nothing recurses. Every call that answers false has set
 * `status` and, for all but KVFERRY_NO_MEMORY, added a finding with the field's name and byte.
 */
#ifndef KVFERRY_WIRE_READER_H
#define KVFERRY_WIRE_READER_H

#include "base/base.h"

typedef struct wire_reader {
    const unsigned char *data;
    size_t size, at;
    const char *field; /* that is being read, for findings */
    base_arena *arena; /* for what is kept */
    kvferry_report *report;
    kvferry_status status; /* KVFERRY_OK until something failed */
} wire_reader;

/* A map that is being read, key by key. `names` are those that matter, at most 64. */
typedef struct wire_reader_map {
    const char *const *names;
    size_t count;
    uint64_t left; /* members that are not read yet */
    uint64_t seen; /* bit i: names[i] was there */
    size_t hint;   /* the name that is likely next: writers keep an order */
    size_t at;     /* where the map begins */
} wire_reader_map;

/* Adds a finding about the value that begins at byte `at`; answers false. */
bool wire_reader_refuse(wire_reader *reader, const char *code, size_t at, const char *expected,
                        const char *found, const char *message);

bool wire_reader_map_begin(wire_reader *reader, wire_reader_map *map, const char *const *names,
                           size_t count);

/* Goes to the value of the next known key: *index. What has another key is skipped. false: there is no more, or
 * the status is set. */
bool wire_reader_map_next(wire_reader *reader, wire_reader_map *map, size_t *index);

/* Whether all names of the mask are there; otherwise a finding about the first that is not. */
bool wire_reader_map_has(wire_reader *reader, const wire_reader_map *map, uint64_t mask);

/* Passes over one value, whatever lies in it. */
bool wire_reader_skip(wire_reader *reader);

/* At most `maximum` elements, each of at least `least` bytes. The elements follow. */
bool wire_reader_array(wire_reader *reader, uint64_t maximum, size_t least, size_t *count);

bool wire_reader_uint(wire_reader *reader, uint64_t minimum, uint64_t maximum, uint64_t *value);
bool wire_reader_u32(wire_reader *reader, uint32_t minimum, uint32_t maximum, uint32_t *value);
bool wire_reader_bool(wire_reader *reader, bool *value);

/* UTF-8 without zero bytes, at most `maximum` bytes: a copy in the arena. */
bool wire_reader_string(wire_reader *reader, size_t maximum, const char **value);

/* One of `count` names: its index. */
bool wire_reader_choice(wire_reader *reader, const char *const *names, size_t count, size_t *value);

/* `digits` lower-case hexadecimal digits, or none; `value` has room for them and a zero byte. */
bool wire_reader_hex(wire_reader *reader, size_t digits, char *value);

/* Binary: a copy in the arena. */
bool wire_reader_binary(wire_reader *reader, const void **value, size_t *size);

/* `count` block ids in an array. */
bool wire_reader_ids(wire_reader *reader, const uint32_t **ids, size_t *count);

/* count * size zeroed bytes of the arena; NULL with the status set. */
void *wire_reader_alloc(wire_reader *reader, size_t count, size_t size);

#endif
