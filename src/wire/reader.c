/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/reader.h"

#include <string.h>

typedef enum reader_kind {
    READER_NIL,
    READER_BOOL,
    READER_UINT,
    READER_NEGATIVE,
    READER_REAL,
    READER_STRING,
    READER_BINARY,
    READER_EXTENSION,
    READER_ARRAY,
    READER_MAP,
    READER_RESERVED /* the one byte that msgpack does not use */
} reader_kind;

static const char *const kind_names[] = {"nil",     "a boolean",    "an integer", "a negative integer",
                                         "a real",  "a string",     "binary",     "an extension",
                                         "an array", "a map",       "byte 0xc1"};

/* The first bytes of a value: what it is, and its number, length (bytes that follow) or count. */
typedef struct reader_head {
    reader_kind kind;
    uint64_t number;
    size_t at;
} reader_head;

bool wire_reader_refuse(wire_reader *reader, const char *code, size_t at, const char *expected,
                        const char *found, const char *message)
{
    const char *field = reader->field;
    base_where where = {.place = field ? base_format("%s at byte %zu", field, at)
                                       : base_format("byte %zu", at)};
    base_report_add(reader->report, code, &where, expected, found, "%s", message);
    if (reader->status == KVFERRY_OK)
        reader->status = KVFERRY_MALFORMED;
    return false;
}

void *wire_reader_alloc(wire_reader *reader, size_t count, size_t size)
{
    void *data = base_arena_alloc(reader->arena, count, size);
    if (!data)
        reader->status = KVFERRY_NO_MEMORY;
    return data;
}

/* --- heads ---------------------------------------------------------------------------------- */

static bool refuse_end(wire_reader *reader)
{
    return wire_reader_refuse(reader, "syntax", reader->size, "more bytes", "the end",
                              "the message ends inside a value");
}

/* What the first byte says; and how many bytes of a number follow it. */
static reader_kind classify(unsigned first, unsigned *bytes, uint64_t *number)
{
    static const struct {
        unsigned char kind, bytes;
    } kinds[] = {[0x00] = {READER_NIL, 0},       [0x01] = {READER_RESERVED, 0},
                 [0x02] = {READER_BOOL, 0},      [0x03] = {READER_BOOL, 0},
                 [0x04] = {READER_BINARY, 1},    [0x05] = {READER_BINARY, 2},
                 [0x06] = {READER_BINARY, 4},    [0x07] = {READER_EXTENSION, 1},
                 [0x08] = {READER_EXTENSION, 2}, [0x09] = {READER_EXTENSION, 4},
                 [0x0a] = {READER_REAL, 4},      [0x0b] = {READER_REAL, 8},
                 [0x0c] = {READER_UINT, 1},      [0x0d] = {READER_UINT, 2},
                 [0x0e] = {READER_UINT, 4},      [0x0f] = {READER_UINT, 8},
                 [0x10] = {READER_NEGATIVE, 1},  [0x11] = {READER_NEGATIVE, 2},
                 [0x12] = {READER_NEGATIVE, 4},  [0x13] = {READER_NEGATIVE, 8},
                 [0x14] = {READER_EXTENSION, 0}, [0x15] = {READER_EXTENSION, 0},
                 [0x16] = {READER_EXTENSION, 0}, [0x17] = {READER_EXTENSION, 0},
                 [0x18] = {READER_EXTENSION, 0}, [0x19] = {READER_STRING, 1},
                 [0x1a] = {READER_STRING, 2},    [0x1b] = {READER_STRING, 4},
                 [0x1c] = {READER_ARRAY, 2},     [0x1d] = {READER_ARRAY, 4},
                 [0x1e] = {READER_MAP, 2},       [0x1f] = {READER_MAP, 4}};
    *bytes = 0;
    if (first <= 0x7f) {
        *number = first;
        return READER_UINT;
    }
    if (first >= 0xe0) {
        *number = first; /* of no interest: no field is negative */
        return READER_NEGATIVE;
    }
    if (first < 0xa0) {
        *number = first & 0xf;
        return first < 0x90 ? READER_MAP : READER_ARRAY;
    }
    if (first < 0xc0) {
        *number = first & 0x1f;
        return READER_STRING;
    }
    *bytes = kinds[first - 0xc0].bytes;
    *number = first >= 0xd4 && first <= 0xd8 ? 1u << (first - 0xd4) : first == 0xc3;
    return (reader_kind)kinds[first - 0xc0].kind;
}

/* A number with a sign, of so many bytes: positive ones may be written so too. */
static reader_kind sign(unsigned bytes, uint64_t number)
{
    return bytes && !(number >> (8 * bytes - 1)) ? READER_UINT : READER_NEGATIVE;
}

/* Reads a head, and checks that what it announces can be there. */
static bool read_head(wire_reader *reader, reader_head *head)
{
    head->at = reader->at;
    if (reader->at >= reader->size)
        return refuse_end(reader);
    unsigned bytes;
    head->kind = classify(reader->data[reader->at++], &bytes, &head->number);
    if (bytes) {
        if (reader->size - reader->at < bytes)
            return refuse_end(reader);
        head->number = 0;
        for (unsigned i = 0; i < bytes; i++)
            head->number = head->number << 8 | reader->data[reader->at++];
    }
    uint64_t needed = 0;
    if (head->kind == READER_NEGATIVE)
        head->kind = sign(bytes, head->number);
    else if (head->kind == READER_RESERVED)
        return wire_reader_refuse(reader, "syntax", head->at, "msgpack", "byte 0xc1",
                                  "a value begins with a byte that is not used");
    else if (head->kind == READER_EXTENSION)
        needed = ++head->number; /* and its type */
    else if (head->kind >= READER_STRING)
        needed = head->kind == READER_MAP ? 2 * head->number : head->number;
    if (needed > reader->size - reader->at)
        return refuse_end(reader);
    return true;
}

static bool refuse_kind(wire_reader *reader, const reader_head *head, const char *expected)
{
    return wire_reader_refuse(reader, "value_type", head->at, expected, kind_names[head->kind],
                              "a value has another type");
}

/* Bytes of the integer that begins here, most of what messages are made of; 0: it is something else. */
static size_t plain_integer(const wire_reader *reader)
{
    if (reader->at >= reader->size)
        return 0;
    unsigned first = reader->data[reader->at];
    size_t bytes = first <= 0x7f ? 1 : first >= 0xcc && first <= 0xce ? 1 + ((size_t)1 << (first - 0xcc)) : 0;
    return bytes <= reader->size - reader->at ? bytes : 0;
}

bool wire_reader_skip(wire_reader *reader)
{
    uint64_t left = 1; /* never more than bytes are left, as read_head sees to it */
    while (left) {
        size_t plain = plain_integer(reader);
        reader_head head;
        if (plain) {
            reader->at += plain;
            left--;
            continue;
        }
        if (!read_head(reader, &head))
            return false;
        left--;
        if (head.kind == READER_ARRAY)
            left += head.number;
        else if (head.kind == READER_MAP)
            left += 2 * head.number;
        else if (head.kind >= READER_STRING)
            reader->at += (size_t)head.number;
        if (left > reader->size - reader->at)
            return refuse_end(reader);
    }
    return true;
}

/* --- maps and arrays ------------------------------------------------------------------------ */

bool wire_reader_map_begin(wire_reader *reader, wire_reader_map *map, const char *const *names,
                           size_t count)
{
    reader_head head;
    if (!read_head(reader, &head))
        return false;
    if (head.kind != READER_MAP)
        return refuse_kind(reader, &head, "a map");
    *map = (wire_reader_map){.names = names, .count = count, .left = head.number, .at = head.at};
    return true;
}

/* Whether names[index] is this key. */
static bool is_key(const wire_reader_map *map, size_t index, const char *key, size_t length)
{
    return strlen(map->names[index]) == length && memcmp(map->names[index], key, length) == 0;
}

/* The key's name; map->count: none that matters. */
static size_t find_key(const wire_reader_map *map, const char *key, size_t length)
{
    if (map->hint < map->count && is_key(map, map->hint, key, length))
        return map->hint;
    size_t index = 0;
    while (index < map->count && !is_key(map, index, key, length))
        index++;
    return index;
}

bool wire_reader_map_next(wire_reader *reader, wire_reader_map *map, size_t *index)
{
    while (map->left) {
        reader_head head;
        reader->field = "a key";
        if (!read_head(reader, &head))
            return false;
        if (head.kind != READER_STRING)
            return refuse_kind(reader, &head, "a string");
        map->left--;
        const char *key = (const char *)reader->data + reader->at;
        reader->at += (size_t)head.number;
        size_t found = find_key(map, key, (size_t)head.number);
        reader->field = found < map->count ? map->names[found] : "an unknown field";
        if (found == map->count) {
            if (!wire_reader_skip(reader))
                return false;
            continue;
        }
        if (map->seen >> found & 1)
            return wire_reader_refuse(reader, "key_duplicate", head.at, NULL, NULL,
                                      "a key comes twice");
        map->seen |= (uint64_t)1 << found;
        map->hint = found + 1;
        *index = found;
        return true;
    }
    return false;
}

bool wire_reader_map_has(wire_reader *reader, const wire_reader_map *map, uint64_t mask)
{
    for (size_t i = 0; i < map->count; i++)
        if (mask >> i & 1 && !(map->seen >> i & 1)) {
            reader->field = map->names[i];
            return wire_reader_refuse(reader, "value_missing", map->at, "a value", "none",
                                      "a field is missing");
        }
    return true;
}

bool wire_reader_array(wire_reader *reader, uint64_t maximum, size_t least, size_t *count)
{
    reader_head head;
    if (!read_head(reader, &head))
        return false;
    if (head.kind != READER_ARRAY)
        return refuse_kind(reader, &head, "an array");
    if (head.number > maximum)
        return wire_reader_refuse(reader, "list_length", head.at,
                                  base_format("at most %llu elements", (unsigned long long)maximum),
                                  base_format("%llu", (unsigned long long)head.number),
                                  "an array is too long");
    if (head.number > (reader->size - reader->at) / least)
        return refuse_end(reader);
    *count = (size_t)head.number;
    return true;
}

/* --- values --------------------------------------------------------------------------------- */

bool wire_reader_uint(wire_reader *reader, uint64_t minimum, uint64_t maximum, uint64_t *value)
{
    reader_head head;
    if (!read_head(reader, &head))
        return false;
    if (head.kind != READER_UINT && head.kind != READER_NEGATIVE)
        return refuse_kind(reader, &head, "an integer");
    if (head.kind == READER_NEGATIVE || head.number < minimum || head.number > maximum)
        return wire_reader_refuse(reader, "value_range", head.at,
                                  base_format("%llu to %llu", (unsigned long long)minimum,
                                              (unsigned long long)maximum),
                                  head.kind == READER_NEGATIVE
                                      ? kind_names[READER_NEGATIVE]
                                      : base_format("%llu", (unsigned long long)head.number),
                                  "a number is out of range");
    *value = head.number;
    return true;
}

bool wire_reader_u32(wire_reader *reader, uint32_t minimum, uint32_t maximum, uint32_t *value)
{
    uint64_t number;
    if (!wire_reader_uint(reader, minimum, maximum, &number))
        return false;
    *value = (uint32_t)number;
    return true;
}

bool wire_reader_bool(wire_reader *reader, bool *value)
{
    reader_head head;
    if (!read_head(reader, &head))
        return false;
    if (head.kind != READER_BOOL)
        return refuse_kind(reader, &head, "a boolean");
    *value = head.number != 0;
    return true;
}

/* The bytes of a string, in place, whatever they are. */
static const char *read_raw(wire_reader *reader, size_t maximum, size_t *length)
{
    reader_head head;
    if (!read_head(reader, &head))
        return NULL;
    if (head.kind != READER_STRING) {
        refuse_kind(reader, &head, "a string");
        return NULL;
    }
    if (head.number > maximum) {
        wire_reader_refuse(reader, "value_range", head.at, base_format("at most %zu bytes", maximum),
                           base_format("%llu", (unsigned long long)head.number),
                           "a string is too long");
        return NULL;
    }
    const char *text = (const char *)reader->data + reader->at;
    *length = (size_t)head.number;
    reader->at += *length;
    return text;
}

static const char *read_text(wire_reader *reader, size_t maximum, size_t *length)
{
    size_t at = reader->at;
    const char *text = read_raw(reader, maximum, length);
    if (text && !base_text_is_utf8(text, *length)) {
        wire_reader_refuse(reader, "text_encoding", at, "UTF-8 text without zero bytes",
                           "other bytes", "a string is not UTF-8 text");
        return NULL;
    }
    return text;
}

bool wire_reader_string(wire_reader *reader, size_t maximum, const char **value)
{
    size_t length;
    const char *text = read_text(reader, maximum, &length);
    if (!text)
        return false;
    if (!length) {
        *value = "";
        return true;
    }
    char *copy = wire_reader_alloc(reader, length + 1, 1);
    if (!copy)
        return false;
    *value = memcpy(copy, text, length);
    return true;
}

bool wire_reader_choice(wire_reader *reader, const char *const *names, size_t count, size_t *value)
{
    size_t at = reader->at, length;
    const char *text = read_text(reader, SIZE_MAX, &length);
    if (!text)
        return false;
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && memcmp(names[i], text, length) == 0) {
            *value = i;
            return true;
        }
    return wire_reader_refuse(reader, "value_unknown", at, "a known name",
                              base_format("\"%.*s\"", (int)base_min(length, 64), text),
                              "a value is none of the known ones");
}

bool wire_reader_hex(wire_reader *reader, size_t digits, char *value)
{
    size_t at = reader->at, length;
    const char *text = read_raw(reader, SIZE_MAX, &length);
    if (!text)
        return false;
    bool fine = length == digits || !length;
    for (size_t i = 0; i < length && fine; i++)
        fine = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (!fine)
        return wire_reader_refuse(reader, "value_range", at,
                                  base_format("%zu lower-case hexadecimal digits, or none", digits),
                                  base_format("\"%.*s\"", (int)base_min(length, 64), text),
                                  "a number in digits is not one");
    memcpy(value, text, length);
    value[length] = '\0';
    return true;
}

bool wire_reader_binary(wire_reader *reader, const void **value, size_t *size)
{
    reader_head head;
    if (!read_head(reader, &head))
        return false;
    if (head.kind != READER_BINARY)
        return refuse_kind(reader, &head, "binary");
    void *copy = wire_reader_alloc(reader, (size_t)head.number, 1);
    if (!copy)
        return false;
    if (head.number)
        memcpy(copy, reader->data + reader->at, (size_t)head.number);
    reader->at += (size_t)head.number;
    *value = copy;
    *size = (size_t)head.number;
    return true;
}

bool wire_reader_ids(wire_reader *reader, const uint32_t **ids, size_t *count)
{
    size_t length;
    if (!wire_reader_array(reader, UINT32_MAX, 1, &length))
        return false;
    uint32_t *list = wire_reader_alloc(reader, length, sizeof(*list));
    if (!list)
        return false;
    for (size_t i = 0; i < length; i++) {
        size_t plain = plain_integer(reader);
        if (!plain && !wire_reader_u32(reader, 0, UINT32_MAX, &list[i]))
            return false;
        if (plain == 1)
            list[i] = reader->data[reader->at];
        for (size_t byte = 1; byte < plain; byte++)
            list[i] = list[i] << 8 | reader->data[reader->at + byte];
        reader->at += plain;
    }
    *ids = list;
    *count = length;
    return true;
}
