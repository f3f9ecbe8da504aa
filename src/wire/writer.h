/* SPDX-License-Identifier: Apache-2.0 */
/* Writing msgpack: each value in its shortest form (a large map's head has 16 bits). After a failed allocation `failed` stays set, and what is
 * written then is lost. */
#ifndef KVFERRY_WIRE_WRITER_H
#define KVFERRY_WIRE_WRITER_H

#include "base/base.h"

typedef struct wire_writer {
    unsigned char *data; /* free() it */
    size_t size, capacity;
    bool failed;
} wire_writer;

/* A map whose members are counted while they are written: at most 15, or 65,535 in a large one. */
typedef struct wire_writer_map {
    size_t at;
    unsigned count;
    bool large;
} wire_writer_map;

wire_writer_map wire_writer_map_begin(wire_writer *writer, bool large);
void wire_writer_key(wire_writer *writer, wire_writer_map *map, const char *name);
void wire_writer_map_end(wire_writer *writer, const wire_writer_map *map);

void wire_writer_array(wire_writer *writer, size_t count); /* the elements follow */
void wire_writer_uint(wire_writer *writer, uint64_t value);
void wire_writer_bool(wire_writer *writer, bool value);
void wire_writer_string(wire_writer *writer, const char *text, size_t length);
void wire_writer_binary(wire_writer *writer, const void *data, size_t size);
void wire_writer_ids(wire_writer *writer, const uint32_t *ids, size_t count);

#endif
