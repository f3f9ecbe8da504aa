/* SPDX-License-Identifier: Apache-2.0 */
#include "base/msgpack.h"

#include <math.h>
#include <string.h>

#include <msgpack.h>

/* --- reading --------------------------------------------------------------------------------
 *
 * msgpack-c's own unpacker makes room for as many elements as a header claims before it looks for
 * them, some 100 GB for five bytes; so the bytes of strangers are walked here, where a claim is never
 * believed beyond the bytes that are left. */

typedef struct msgpack_reader {
    base_json_document *document;
    const unsigned char *data;
    size_t size, offset;
    size_t values, nests;
    kvferry_status status; /* KVFERRY_OK until something failed */
} msgpack_reader;

static json_t *refuse(msgpack_reader *reader, size_t offset, const char *code, const char *expected,
                      const char *found, const char *message)
{
    base_where where = {.place = base_format("byte %zu", offset)};
    base_report_add(reader->document->report, code, &where, expected, found, "%s", message);
    reader->document->findings++;
    reader->status = KVFERRY_MALFORMED;
    return NULL;
}

/* The value, or the note that there was no memory for it. */
static json_t *keep(msgpack_reader *reader, json_t *value)
{
    if (!value)
        reader->status = KVFERRY_NO_MEMORY;
    return value;
}

/* The next `bytes` bytes as a big-endian number. */
static bool read_number(msgpack_reader *reader, size_t bytes, uint64_t *number)
{
    if (reader->size - reader->offset < bytes) {
        refuse(reader, reader->size, "syntax", base_format("%zu more bytes", bytes), "the end",
               "the document ends inside a value");
        return false;
    }
    *number = 0;
    for (size_t i = 0; i < bytes; i++)
        *number = *number << 8 | reader->data[reader->offset++];
    return true;
}

/* The next `length` bytes as text without zero bytes. */
static const char *read_text(msgpack_reader *reader, uint64_t length)
{
    const char *text = (const char *)reader->data + reader->offset;
    if (reader->size - reader->offset < length) {
        refuse(reader, reader->size, "syntax",
               base_format("%llu more bytes", (unsigned long long)length), "the end",
               "the document ends inside a string");
        return NULL;
    }
    if (!base_text_is_utf8(text, (size_t)length)) {
        refuse(reader, reader->offset, "text_encoding", "UTF-8 text without zero bytes",
               "other bytes", "a string is not UTF-8 text");
        return NULL;
    }
    reader->offset += (size_t)length;
    return text;
}

static json_t *read_value(msgpack_reader *reader, size_t depth);

static json_t *read_array(msgpack_reader *reader, uint64_t count, size_t depth)
{
    json_t *array = keep(reader, json_array());
    for (uint64_t i = 0; array && i < count; i++) {
        json_t *element = read_value(reader, depth);
        if (!element) {
            json_decref(array);
            return NULL;
        }
        if (json_array_append_new(array, element)) {
            json_decref(array);
            return keep(reader, NULL);
        }
    }
    return array;
}

/* The length of the string that begins here; false, with a finding, if none does. */
static bool read_key_length(msgpack_reader *reader, uint64_t *length)
{
    size_t at = reader->offset;
    uint64_t head;
    if (!read_number(reader, 1, &head))
        return false;
    if (head >= 0xa0 && head <= 0xbf) {
        *length = head & 0x1f;
        return true;
    }
    if (head >= 0xd9 && head <= 0xdb)
        return read_number(reader, (size_t)1 << (head - 0xd9), length);
    refuse(reader, at, "value_type", "a string", base_format("byte 0x%02x", (unsigned)head),
           "a key is not a string");
    return false;
}

/* One member into `object`; false if that failed. */
static bool read_member(msgpack_reader *reader, json_t *object, size_t depth)
{
    size_t at = reader->offset;
    uint64_t length;
    const char *key = read_key_length(reader, &length) ? read_text(reader, length) : NULL;
    if (!key)
        return false;
    if (json_object_getn(object, key, (size_t)length)) {
        refuse(reader, at, "key_duplicate", "",
               base_format("\"%.*s\"", (int)base_min(length, 200), key), "a key comes twice");
        return false;
    }
    json_t *value = read_value(reader, depth);
    if (value && json_object_setn_new_nocheck(object, key, (size_t)length, value))
        return keep(reader, NULL);
    return value != NULL;
}

static json_t *read_map(msgpack_reader *reader, uint64_t count, size_t depth)
{
    json_t *object = keep(reader, json_object());
    for (uint64_t i = 0; object && i < count; i++)
        if (!read_member(reader, object, depth)) {
            json_decref(object);
            return NULL;
        }
    return object;
}

/* A map or an array at byte `at` that claims `count` members or elements. */
static json_t *read_nest(msgpack_reader *reader, size_t at, bool map, uint64_t count, size_t depth)
{
    if (depth >= BASE_JSON_MAX_DEPTH)
        return refuse(reader, at, "nesting_depth",
                      base_format("at most %d levels", BASE_JSON_MAX_DEPTH), "more",
                      "maps and arrays lie too deep inside one another");
    if (count > (reader->size - reader->offset) / (map ? 2 : 1))
        return refuse(reader, at, "syntax", base_format("%llu values", (unsigned long long)count),
                      "the end", "the document ends inside a map or an array");
    reader->values += (size_t)count;
    if (++reader->nests > BASE_JSON_MAX_NESTS || reader->values > BASE_JSON_MAX_VALUES)
        return refuse(reader, at, "document_size",
                      base_format("at most %d values, %d of them maps and arrays",
                                  BASE_JSON_MAX_VALUES, BASE_JSON_MAX_NESTS),
                      "more", "the document has too many values");
    return map ? read_map(reader, count, depth + 1) : read_array(reader, count, depth + 1);
}

static json_t *read_string(msgpack_reader *reader, uint64_t length)
{
    const char *text = read_text(reader, length);
    return text ? keep(reader, json_stringn_nocheck(text, (size_t)length)) : NULL;
}

static json_t *read_real(msgpack_reader *reader, size_t at, bool single, uint64_t bits)
{
    double real;
    if (single) {
        float narrow;
        uint32_t half = (uint32_t)bits;
        memcpy(&narrow, &half, sizeof(narrow));
        real = (double)narrow;
    } else {
        memcpy(&real, &bits, sizeof(real));
    }
    if (!isfinite(real))
        return refuse(reader, at, "value_range", "a finite number",
                      isnan(real) ? "not a number" : "infinity", "a number is out of range");
    return keep(reader, json_real(real));
}

static json_t *read_unsigned(msgpack_reader *reader, uint64_t number)
{
    return keep(reader,
                number > INT64_MAX ? json_real((double)number) : json_integer((json_int_t)number));
}

/* A number of `bytes` bytes with a sign. */
static json_t *read_signed(msgpack_reader *reader, size_t bytes, uint64_t number)
{
    unsigned unused = (unsigned)(64 - 8 * bytes);
    return keep(reader, json_integer((int64_t)(number << unused) >> unused));
}

/* A value whose head byte is at `at` and is followed by a number: its value, or its length. */
static json_t *read_long_value(msgpack_reader *reader, size_t at, unsigned head, size_t depth)
{
    static const unsigned char lengths[] = {
        [0xca - 0xc0] = 4, [0xcb - 0xc0] = 8, [0xcc - 0xc0] = 1, [0xcd - 0xc0] = 2,
        [0xce - 0xc0] = 4, [0xcf - 0xc0] = 8, [0xd0 - 0xc0] = 1, [0xd1 - 0xc0] = 2,
        [0xd2 - 0xc0] = 4, [0xd3 - 0xc0] = 8, [0xd9 - 0xc0] = 1, [0xda - 0xc0] = 2,
        [0xdb - 0xc0] = 4, [0xdc - 0xc0] = 2, [0xdd - 0xc0] = 4, [0xde - 0xc0] = 2,
        [0xdf - 0xc0] = 4};
    size_t bytes = lengths[head - 0xc0];
    if (!bytes)
        return refuse(reader, at, "value_type", "a value that JSON has",
                      base_format("byte 0x%02x", head), "binary and extension types are not used");
    uint64_t number;
    if (!read_number(reader, bytes, &number))
        return NULL;
    if (head <= 0xcb)
        return read_real(reader, at, head == 0xca, number);
    if (head <= 0xcf)
        return read_unsigned(reader, number);
    if (head <= 0xd3)
        return read_signed(reader, bytes, number);
    if (head <= 0xdb)
        return read_string(reader, number);
    return read_nest(reader, at, head >= 0xde, number, depth);
}

static json_t *read_value(msgpack_reader *reader, size_t depth)
{
    size_t at = reader->offset;
    uint64_t head;
    if (!read_number(reader, 1, &head))
        return NULL;
    if (head <= 0x7f || head >= 0xe0)
        return read_signed(reader, 1, head);
    if (head <= 0x8f)
        return read_nest(reader, at, true, head & 0xf, depth);
    if (head <= 0x9f)
        return read_nest(reader, at, false, head & 0xf, depth);
    if (head <= 0xbf)
        return read_string(reader, head & 0x1f);
    if (head == 0xc0)
        return json_null();
    if (head == 0xc2 || head == 0xc3)
        return json_boolean(head == 0xc3);
    return read_long_value(reader, at, (unsigned)head, depth);
}

kvferry_status base_msgpack_parse(const void *data, size_t size, unsigned flags,
                                  kvferry_report *report, base_json_document *document)
{
    *document = (base_json_document){.report = report, .flags = flags};
    msgpack_reader reader = {.document = document, .data = data, .size = size};
    if (size > BASE_JSON_MAX_BYTES) {
        refuse(&reader, 0, "document_size", base_format("at most %zu bytes", BASE_JSON_MAX_BYTES),
               base_format("%zu bytes", size), "the document is too large");
        return reader.status;
    }
    json_t *root = read_value(&reader, 0);
    if (root && !json_is_object(root))
        refuse(&reader, 0, "syntax", "a map", "another value", "the document is not a map");
    else if (root && reader.offset != size)
        refuse(&reader, reader.offset, "syntax", "the end",
               base_format("%zu more bytes", size - reader.offset), "bytes follow the document");
    if (reader.status == KVFERRY_OK)
        document->root = root;
    else
        json_decref(root);
    return reader.status;
}

/* --- writing ------------------------------------------------------------------------------- */

static bool pack_string(msgpack_packer *packer, const char *text, size_t length)
{
    return !msgpack_pack_str(packer, length) && !msgpack_pack_str_body(packer, text, length);
}

static bool pack_value(msgpack_packer *packer, json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: {
        bool fine = !msgpack_pack_map(packer, json_object_size(value));
        for (void *i = json_object_iter(value); i && fine; i = json_object_iter_next(value, i))
            fine = pack_string(packer, json_object_iter_key(i), json_object_iter_key_len(i)) &&
                   pack_value(packer, json_object_iter_value(i));
        return fine;
    }
    case JSON_ARRAY: {
        bool fine = !msgpack_pack_array(packer, json_array_size(value));
        for (size_t i = 0; i < json_array_size(value) && fine; i++)
            fine = pack_value(packer, json_array_get(value, i));
        return fine;
    }
    case JSON_STRING:
        return pack_string(packer, json_string_value(value), json_string_length(value));
    case JSON_INTEGER:
        return !msgpack_pack_int64(packer, json_integer_value(value));
    case JSON_REAL:
        return !msgpack_pack_double(packer, json_real_value(value));
    case JSON_TRUE:
        return !msgpack_pack_true(packer);
    case JSON_FALSE:
        return !msgpack_pack_false(packer);
    default:
        return !msgpack_pack_nil(packer);
    }
}

kvferry_status base_msgpack_write(json_t *root, void **data, size_t *size)
{
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    if (!pack_value(&packer, root)) {
        msgpack_sbuffer_destroy(&buffer);
        return KVFERRY_NO_MEMORY;
    }
    *size = buffer.size;
    *data = msgpack_sbuffer_release(&buffer);
    return KVFERRY_OK;
}
