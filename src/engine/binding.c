/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binding: what a peer needs to reach this worker. Integers are little-endian, blobs are a size
 * and that many bytes:
 *
 *   "KVFB"  u32 version  16 bytes BLAKE2b of all that follows
 *   blob16 engine  blob16 worker name  blob32 engine address  u32 segments
 *   each segment: u8 live  and if so  u8 memory  u64 address  u64 bytes  blob32 key
 *
 * Libraries read addresses and keys without knowing where they end. The digest keeps damaged bytes
 * from them; it does not make a binding of an enemy safe, which is the control channel's work.
 */
#include "engine/engine.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, DIGEST_BYTES = 16, HEADER_BYTES = 8 + DIGEST_BYTES, MEMORY_KINDS = 3 };

static void digest_of(const void *data, size_t size, unsigned char digest[DIGEST_BYTES])
{
    crypto_generichash(digest, DIGEST_BYTES, data, size, NULL, 0);
}

/* --- export --------------------------------------------------------------------------------- */

static void put_integer(base_text *text, uint64_t value, unsigned bytes)
{
    unsigned char data[8];
    for (unsigned i = 0; i < bytes; i++)
        data[i] = (unsigned char)(value >> (8 * i));
    base_text_append_bytes(text, data, bytes);
}

static void put_string(base_text *text, const char *string)
{
    put_integer(text, strlen(string), 2);
    base_text_append_bytes(text, string, strlen(string));
}

static kvferry_status ask(const kvferry_engine *engine, const engine_segment *segment, void *data,
                          size_t *size)
{
    return segment ? engine->ops->segment_export(engine->self, segment->handle, data, size)
                   : engine->ops->address_export(engine->self, data, size);
}

/* The address, or a segment's key: asked for its size first. */
static kvferry_status put_blob(base_text *text, const kvferry_engine *engine,
                               const engine_segment *segment)
{
    size_t size = 0;
    kvferry_status status = ask(engine, segment, NULL, &size);
    if (status != KVFERRY_OK && status != KVFERRY_NO_SPACE)
        return status;
    void *data = size < UINT32_MAX ? base_alloc(size, 1) : NULL;
    if (!data)
        return KVFERRY_NO_MEMORY;
    size_t given = size;
    status = ask(engine, segment, data, &given);
    if (status == KVFERRY_OK) {
        put_integer(text, base_min(given, size), 4);
        base_text_append_bytes(text, data, (size_t)base_min(given, size));
    }
    free(data);
    return status;
}

static kvferry_status put_segment(base_text *text, const kvferry_engine *engine,
                                  const engine_segment *segment)
{
    put_integer(text, segment->live, 1);
    if (!segment->live)
        return KVFERRY_OK;
    put_integer(text, segment->memory, 1);
    put_integer(text, segment->address, 8);
    put_integer(text, segment->bytes, 8);
    return put_blob(text, engine, segment);
}

kvferry_status kvferry_engine_export(kvferry_engine *engine, void **data, size_t *size,
                                     kvferry_report *report)
{
    if (!engine || !data || !size)
        return KVFERRY_INVALID;
    unsigned char digest[DIGEST_BYTES] = {0};
    base_text text = {0};
    base_text_append_bytes(&text, "KVFB", 4);
    put_integer(&text, VERSION, 4);
    base_text_append_bytes(&text, digest, sizeof(digest));
    put_string(&text, engine->ops->name);
    put_string(&text, engine->name);
    kvferry_status status = put_blob(&text, engine, NULL);
    put_integer(&text, engine->segment_count, 4);
    for (size_t i = 0; i < engine->segment_count && status == KVFERRY_OK; i++)
        status = put_segment(&text, engine, &engine->segments[i]);
    if (status == KVFERRY_OK && text.failed)
        status = KVFERRY_NO_MEMORY;
    if (status != KVFERRY_OK) {
        if (status != KVFERRY_NO_MEMORY)
            base_report_add(report, "engine_failed", &(base_where){.worker = engine->name}, NULL,
                            kvferry_status_name(status), "the engine could not export itself");
        free(text.data);
        return status;
    }
    digest_of(text.data + HEADER_BYTES, text.size - HEADER_BYTES, digest);
    memcpy(text.data + 8, digest, sizeof(digest));
    *data = text.data;
    *size = text.size;
    return KVFERRY_OK;
}

/* --- import --------------------------------------------------------------------------------- */

typedef struct binding_reader {
    const unsigned char *data;
    size_t size, at;
    bool failed; /* and from then on everything reads as zero */
} binding_reader;

static const void *get_bytes(binding_reader *reader, uint64_t size)
{
    if (reader->failed || size > reader->size - reader->at) {
        reader->failed = true;
        return NULL;
    }
    const void *data = reader->data + reader->at;
    reader->at += (size_t)size;
    return data;
}

static uint64_t get_integer(binding_reader *reader, unsigned bytes)
{
    const unsigned char *data = get_bytes(reader, bytes);
    uint64_t value = 0;
    for (unsigned i = 0; data && i < bytes; i++)
        value |= (uint64_t)data[i] << (8 * i);
    return value;
}

static const void *get_blob(binding_reader *reader, unsigned length_bytes, size_t *size)
{
    uint64_t length = get_integer(reader, length_bytes);
    const void *data = get_bytes(reader, length);
    *size = data ? (size_t)length : 0;
    return data;
}

static kvferry_status malformed(kvferry_report *report, const char *code, const char *place,
                                const char *expected, const char *found)
{
    base_report_add(report, code, &(base_where){.place = place}, expected, found,
                    "the binding cannot be used");
    return KVFERRY_MALFORMED;
}

static kvferry_status read_header(binding_reader *reader, kvferry_report *report)
{
    const void *magic = get_bytes(reader, 4);
    if (!magic || memcmp(magic, "KVFB", 4) != 0)
        return malformed(report, "binding_malformed", "first bytes", "KVFB", "others");
    uint64_t version = get_integer(reader, 4);
    if (!reader->failed && version != VERSION)
        return malformed(report, "binding_version", "version", base_format("%d", VERSION),
                         base_format("%llu", (unsigned long long)version));
    const void *digest = get_bytes(reader, DIGEST_BYTES);
    unsigned char found[DIGEST_BYTES];
    digest_of(reader->data + reader->at, reader->size - reader->at, found);
    if (!digest || memcmp(digest, found, DIGEST_BYTES) != 0)
        return malformed(report, "binding_malformed", "digest", "that of the bytes", "another");
    return KVFERRY_OK;
}

/* Engine and worker names; the worker's goes into the peer, with nothing that a log would obey. */
static kvferry_status read_names(binding_reader *reader, kvferry_peer *peer,
                                 kvferry_report *report)
{
    size_t size, name_size;
    const char *engine = get_blob(reader, 2, &size);
    const char *name = get_blob(reader, 2, &name_size);
    if (!engine || !name || name_size >= sizeof(peer->name))
        return malformed(report, "binding_malformed", "names", "whole names", "less or more");
    const char *own = peer->engine->ops->name;
    if (size != strlen(own) || memcmp(engine, own, size) != 0)
        return malformed(report, "binding_engine", "engine", own,
                         base_format("%.*s", (int)base_min(size, 64), engine));
    for (size_t i = 0; i < name_size; i++)
        peer->name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    return KVFERRY_OK;
}

static kvferry_status read_segment(binding_reader *reader, kvferry_peer *peer, uint32_t index,
                                   kvferry_report *report)
{
    engine_segment *segment = &peer->segments[index];
    uint64_t live = get_integer(reader, 1), end;
    if (live == 0 && !reader->failed)
        return KVFERRY_OK;
    uint64_t memory = get_integer(reader, 1);
    segment->address = get_integer(reader, 8);
    segment->bytes = get_integer(reader, 8);
    size_t size;
    const void *key = get_blob(reader, 4, &size);
    const char *place = base_format("segments[%u]", index);
    if (!key)
        return malformed(report, "binding_malformed", place, "a whole segment", "less");
    if (live != 1 || memory >= MEMORY_KINDS || !segment->bytes ||
        !base_add(segment->address, segment->bytes, &end))
        return malformed(report, "binding_malformed", place, "a range of memory of a known kind",
                         base_format("memory %llu, address 0x%llx, %llu bytes",
                                     (unsigned long long)memory,
                                     (unsigned long long)segment->address,
                                     (unsigned long long)segment->bytes));
    segment->memory = (kvferry_memory)memory;
    kvferry_engine *engine = peer->engine;
    kvferry_status status = engine->ops->segment_import(engine->self, peer->handle, key, size,
                                                        &segment->handle, report);
    segment->live = status == KVFERRY_OK;
    return status;
}

static kvferry_status read_segments(binding_reader *reader, kvferry_peer *peer,
                                    kvferry_report *report)
{
    for (uint32_t i = 0; i < peer->segment_count; i++) {
        kvferry_status status = read_segment(reader, peer, i, report);
        if (status != KVFERRY_OK)
            return status;
    }
    if (reader->at != reader->size)
        return malformed(report, "binding_malformed", "end", "nothing more",
                         base_format("%zu bytes", reader->size - reader->at));
    return KVFERRY_OK;
}

/* Everything is read; what was made is the caller's to undo. */
static kvferry_status read_binding(binding_reader *reader, kvferry_peer *peer, bool *connected,
                                   kvferry_report *report)
{
    kvferry_engine *engine = peer->engine;
    kvferry_status status = read_header(reader, report);
    if (status == KVFERRY_OK)
        status = read_names(reader, peer, report);
    if (status != KVFERRY_OK)
        return status;
    size_t size;
    const void *address = get_blob(reader, 4, &size);
    uint64_t count = get_integer(reader, 4);
    if (reader->failed || count > reader->size - reader->at)
        return malformed(report, "binding_malformed", "segments", "as many as are counted",
                         base_format("%llu, but %zu bytes", (unsigned long long)count,
                                     reader->size - reader->at));
    peer->segments = base_alloc((size_t)count, sizeof(*peer->segments));
    if (!peer->segments)
        return KVFERRY_NO_MEMORY;
    peer->segment_count = (uint32_t)count;
    status = engine->ops->peer_connect(engine->self, address, size, &peer->handle, report);
    if (status != KVFERRY_OK)
        return status;
    *connected = true;
    return read_segments(reader, peer, report);
}

kvferry_status kvferry_engine_connect(kvferry_engine *engine, const void *binding, size_t size,
                                      kvferry_peer **peer, kvferry_report *report)
{
    if (!engine || !binding || !peer)
        return KVFERRY_INVALID;
    kvferry_peer *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->engine = engine;
    binding_reader reader = {.data = binding, .size = size};
    bool connected = false;
    kvferry_status status = read_binding(&reader, made, &connected, report);
    if (status != KVFERRY_OK) {
        if (connected)
            engine->ops->peer_close(engine->self, made->handle);
        free(made->segments);
        free(made);
        return status;
    }
    engine_peer_link(made);
    *peer = made;
    return KVFERRY_OK;
}
