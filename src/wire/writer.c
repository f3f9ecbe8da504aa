/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/writer.h"

#include <string.h>

enum { HEAD_BYTES = 9 }; /* the longest head */

/* Makes room for `bytes` more; NULL: out of memory. */
static unsigned char *reserve(wire_writer *writer, size_t bytes)
{
    if (writer->failed || bytes > SIZE_MAX - writer->size ||
        !base_grow((void **)&writer->data, &writer->capacity, writer->size + bytes, 1)) {
        writer->failed = true;
        return NULL;
    }
    return writer->data + writer->size;
}

/* `head`, and a number of `bytes` bytes behind it. */
static size_t put_number(unsigned char *to, unsigned head, uint64_t number, unsigned bytes)
{
    to[0] = (unsigned char)head;
    for (unsigned i = 0; i < bytes; i++)
        to[1 + i] = (unsigned char)(number >> (8 * (bytes - 1 - i)));
    return 1 + bytes;
}

static size_t put_uint(unsigned char *to, uint64_t value)
{
    if (value <= 0x7f)
        return put_number(to, (unsigned)value, 0, 0);
    if (value <= UINT8_MAX)
        return put_number(to, 0xcc, value, 1);
    if (value <= UINT16_MAX)
        return put_number(to, 0xcd, value, 2);
    if (value <= UINT32_MAX)
        return put_number(to, 0xce, value, 4);
    return put_number(to, 0xcf, value, 8);
}

/* A length whose head is `head` with 8 bits (0: there is no such), and the next two with 16 and 32. */
static void put_length(wire_writer *writer, unsigned head8, unsigned head16, uint64_t length)
{
    unsigned char *to = reserve(writer, HEAD_BYTES);
    if (!to)
        return;
    if (head8 && length <= UINT8_MAX)
        writer->size += put_number(to, head8, length, 1);
    else if (length <= UINT16_MAX)
        writer->size += put_number(to, head16, length, 2);
    else if (length <= UINT32_MAX)
        writer->size += put_number(to, head16 + 1, length, 4);
    else
        writer->failed = true; /* msgpack has no length beyond that */
}

static void put_bytes(wire_writer *writer, const void *data, size_t size)
{
    unsigned char *to = size ? reserve(writer, size) : NULL;
    if (!to)
        return;
    memcpy(to, data, size);
    writer->size += size;
}

static void put_byte(wire_writer *writer, unsigned byte)
{
    unsigned char *to = reserve(writer, 1);
    if (to)
        writer->size += put_number(to, byte, 0, 0);
}

/* A map's head, with the count that is known so far. */
static size_t put_map(unsigned char *to, const wire_writer_map *map)
{
    return map->large ? put_number(to, 0xde, map->count, 2) : put_number(to, 0x80 | map->count, 0, 0);
}

wire_writer_map wire_writer_map_begin(wire_writer *writer, bool large)
{
    wire_writer_map map = {.at = writer->size, .large = large};
    unsigned char *to = reserve(writer, HEAD_BYTES);
    if (to)
        writer->size += put_map(to, &map);
    return map;
}

void wire_writer_key(wire_writer *writer, wire_writer_map *map, const char *name)
{
    map->count++;
    wire_writer_string(writer, name, strlen(name));
}

void wire_writer_map_end(wire_writer *writer, const wire_writer_map *map)
{
    if (!writer->failed)
        put_map(writer->data + map->at, map);
}

void wire_writer_array(wire_writer *writer, size_t count)
{
    if (count <= 0xf)
        put_byte(writer, 0x90 | (unsigned)count);
    else
        put_length(writer, 0, 0xdc, count);
}

void wire_writer_uint(wire_writer *writer, uint64_t value)
{
    unsigned char *to = reserve(writer, HEAD_BYTES);
    if (to)
        writer->size += put_uint(to, value);
}

void wire_writer_bool(wire_writer *writer, bool value) { put_byte(writer, value ? 0xc3 : 0xc2); }

void wire_writer_string(wire_writer *writer, const char *text, size_t length)
{
    if (length <= 0x1f)
        put_byte(writer, 0xa0 | (unsigned)length);
    else
        put_length(writer, 0xd9, 0xda, length);
    put_bytes(writer, text, length);
}

void wire_writer_binary(wire_writer *writer, const void *data, size_t size)
{
    put_length(writer, 0xc4, 0xc5, size);
    put_bytes(writer, data, size);
}

void wire_writer_ids(wire_writer *writer, const uint32_t *ids, size_t count)
{
    wire_writer_array(writer, count);
    unsigned char *to = count <= SIZE_MAX / 5 ? reserve(writer, 5 * count) : NULL;
    if (!to) {
        writer->failed = true;
        return;
    }
    unsigned char *at = to;
    for (size_t i = 0; i < count; i++)
        at += put_uint(at, ids[i]);
    writer->size += (size_t)(at - to);
}
