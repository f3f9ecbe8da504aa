/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to msgpack. Fields whose value is nothing ("", false, 0 of what need not be there) are left out. */
#include <stdlib.h>
#include <string.h>

#include "wire/message.h"
#include "wire/writer.h"

/* --- fields --------------------------------------------------------------------------------- */

static void put_text(wire_writer *writer, wire_writer_map *map, const char *name, const char *text)
{
    wire_writer_key(writer, map, name);
    wire_writer_string(writer, text, strlen(text));
}

/* As put_text, but "" is left out. */
static void put_some_text(wire_writer *writer, wire_writer_map *map, const char *name,
                          const char *text)
{
    if (text && *text)
        put_text(writer, map, name, text);
}

static void put_uint(wire_writer *writer, wire_writer_map *map, const char *name, uint64_t value)
{
    wire_writer_key(writer, map, name);
    wire_writer_uint(writer, value);
}

static void put_some_uint(wire_writer *writer, wire_writer_map *map, const char *name,
                          uint64_t value)
{
    if (value)
        put_uint(writer, map, name, value);
}

static void put_flag(wire_writer *writer, wire_writer_map *map, const char *name, bool value)
{
    if (value) {
        wire_writer_key(writer, map, name);
        wire_writer_bool(writer, true);
    }
}

static void put_worker(wire_writer *writer, wire_writer_map *map, const kvferry_worker *worker)
{
    kvferry_worker copy = *worker;
    wire_worker_numbers numbers = wire_worker_list(&copy);
    for (size_t i = 0; i < WORKER_FIELDS; i++)
        put_uint(writer, map, wire_member_names[i], *numbers.at[i]);
}

/* --- parts ---------------------------------------------------------------------------------- */

static void put_member(wire_writer *writer, const wire_member *member)
{
    wire_writer_map map = wire_writer_map_begin(writer, false);
    put_worker(writer, &map, &member->worker);
    put_text(writer, &map, wire_member_names[MEMBER_ADDR], member->address);
    put_text(writer, &map, wire_member_names[MEMBER_INCARNATION], member->incarnation);
    put_text(writer, &map, wire_member_names[MEMBER_DIGEST], member->digest);
    wire_writer_map_end(writer, &map);
}

static void put_roster(wire_writer *writer, wire_writer_map *outer, const wire_roster *roster)
{
    wire_writer_key(writer, outer, wire_field_names[FIELD_ROSTER]);
    wire_writer_map map = wire_writer_map_begin(writer, false);
    put_text(writer, &map, wire_roster_names[ROSTER_ENGINE_ID], roster->engine_id);
    put_some_text(writer, &map, wire_roster_names[ROSTER_DIGEST], roster->digest);
    if (roster->count) {
        wire_writer_key(writer, &map, wire_roster_names[ROSTER_MEMBERS]);
        wire_writer_array(writer, roster->count);
        for (size_t i = 0; i < roster->count; i++)
            put_member(writer, &roster->members[i]);
    }
    wire_writer_map_end(writer, &map);
}

/* The bytes of `text` that are sent: no more than are read, and no half character at the end. */
static size_t reason_length(const char *text)
{
    size_t length = strnlen(text, WIRE_MAX_REASON_TEXT + 1);
    if (length <= WIRE_MAX_REASON_TEXT)
        return length;
    length = WIRE_MAX_REASON_TEXT;
    while (length && ((unsigned char)text[length] & 0xc0) == 0x80)
        length--;
    return length;
}

static void put_reason(wire_writer *writer, const kvferry_reason *reason)
{
    const char *const values[REASON_FIELDS] = {reason->code,  reason->worker,   reason->layer,
                                               reason->stream, reason->axis,    reason->place,
                                               reason->expected, reason->found, reason->message};
    wire_writer_map map = wire_writer_map_begin(writer, false);
    for (size_t i = 0; i < REASON_FIELDS; i++) {
        if (!*values[i] && i != REASON_CODE && i != REASON_MESSAGE)
            continue;
        wire_writer_key(writer, &map, wire_reason_names[i]);
        wire_writer_string(writer, values[i], reason_length(values[i]));
    }
    wire_writer_map_end(writer, &map);
}

static void put_reasons(wire_writer *writer, wire_writer_map *map, const wire_message *message)
{
    size_t count = (size_t)base_min(kvferry_report_count(message->reasons), WIRE_MAX_REASONS);
    if (!count && message->type != WIRE_ERROR)
        return;
    wire_writer_key(writer, map, wire_field_names[FIELD_REASONS]);
    wire_writer_array(writer, count);
    for (size_t i = 0; i < count; i++)
        put_reason(writer, kvferry_report_get(message->reasons, i));
}

/* --- bodies --------------------------------------------------------------------------------- */

static void put_hello(wire_writer *writer, wire_writer_map *map, const wire_hello *hello)
{
    put_worker(writer, map, &hello->worker);
    put_some_text(writer, map, wire_field_names[FIELD_EXPECTS], hello->expects);
    put_flag(writer, map, wire_field_names[FIELD_SIBLING], hello->sibling);
    put_roster(writer, map, &hello->roster);
    put_text(writer, map, wire_field_names[FIELD_ENGINE], hello->engine);
    if (hello->binding_size) {
        wire_writer_key(writer, map, wire_field_names[FIELD_BINDING]);
        wire_writer_binary(writer, hello->binding, hello->binding_size);
    }
    put_uint(writer, map, wire_field_names[FIELD_LEASE_MS],
             base_min(hello->lease_ms, WIRE_MAX_MILLISECONDS));
}

static void put_digests(wire_writer *writer, wire_writer_map *map, const wire_documents *documents)
{
    wire_writer_key(writer, map, wire_field_names[FIELD_DIGESTS]);
    wire_writer_array(writer, documents->count);
    for (size_t i = 0; i < documents->count; i++)
        wire_writer_string(writer, documents->digests[i], strlen(documents->digests[i]));
}

static void put_documents(wire_writer *writer, wire_writer_map *outer,
                          const wire_documents *documents)
{
    wire_writer_key(writer, outer, wire_field_names[FIELD_DOCUMENTS]);
    wire_writer_array(writer, documents->count);
    for (size_t i = 0; i < documents->count; i++) {
        wire_writer_map map = wire_writer_map_begin(writer, false);
        put_text(writer, &map, wire_document_names[DOCUMENT_DIGEST], documents->digests[i]);
        wire_writer_key(writer, &map, wire_document_names[DOCUMENT_DOCUMENT]);
        wire_writer_binary(writer, documents->documents[i], documents->sizes[i]);
        wire_writer_map_end(writer, &map);
    }
}

static void put_table(wire_writer *writer, const kvferry_block_table *table)
{
    wire_writer_map map = wire_writer_map_begin(writer, false);
    put_text(writer, &map, wire_table_names[TABLE_GROUP], table->group);
    put_some_uint(writer, &map, wire_table_names[TABLE_FIRST_TOKEN], table->first_token);
    wire_writer_key(writer, &map, wire_table_names[TABLE_BLOCK_IDS]);
    wire_writer_ids(writer, table->blocks, table->block_count);
    wire_writer_map_end(writer, &map);
}

static void put_ask(wire_writer *writer, wire_writer_map *map, const wire_ask *ask)
{
    put_text(writer, map, wire_field_names[FIELD_ATTEMPT], ask->attempt);
    put_text(writer, map, wire_field_names[FIELD_SOURCE_ROSTER], ask->source_roster);
    put_text(writer, map, wire_field_names[FIELD_TARGET_ROSTER], ask->target_roster);
    put_uint(writer, map, wire_field_names[FIELD_TOKENS], ask->tokens);
    put_uint(writer, map, wire_field_names[FIELD_TIMEOUT_MS],
             base_min(ask->timeout_ms, WIRE_MAX_MILLISECONDS));
    put_flag(writer, map, wire_field_names[FIELD_VERIFY], ask->verify);
    put_flag(writer, map, wire_field_names[FIELD_WHOLE_BLOCKS], ask->whole_blocks);
    put_flag(writer, map, wire_field_names[FIELD_PART], ask->part);
    wire_writer_key(writer, map, wire_field_names[FIELD_TABLES]);
    wire_writer_array(writer, ask->table_count);
    for (size_t i = 0; i < ask->table_count; i++)
        put_table(writer, &ask->tables[i]);
}

static void put_verdict(wire_writer *writer, wire_writer_map *map, const wire_verdict *verdict)
{
    put_some_text(writer, map, wire_field_names[FIELD_ATTEMPT], verdict->attempt);
    put_flag(writer, map, wire_field_names[FIELD_PART], verdict->part);
    put_text(writer, map, wire_field_names[FIELD_OUTCOME], wire_outcome_names[verdict->outcome]);
    put_some_uint(writer, map, wire_field_names[FIELD_COPIES], verdict->copies);
    put_some_uint(writer, map, wire_field_names[FIELD_BYTES], verdict->bytes);
    if (!verdict->checksum_count)
        return;
    wire_writer_key(writer, map, wire_field_names[FIELD_CHECKSUMS]);
    wire_writer_array(writer, verdict->checksum_count);
    for (size_t i = 0; i < verdict->checksum_count; i++) {
        wire_writer_array(writer, 2);
        wire_writer_uint(writer, verdict->checksums[i].piece);
        wire_writer_uint(writer, verdict->checksums[i].value);
    }
}

static void put_death(wire_writer *writer, wire_writer_map *map, const wire_death *death)
{
    put_text(writer, map, wire_field_names[FIELD_INCARNATION], death->incarnation);
    put_some_uint(writer, map, wire_field_names[FIELD_TRANSFERS], death->transfers);
    put_some_uint(writer, map, wire_field_names[FIELD_BLOCKS], death->blocks);
    put_some_uint(writer, map, wire_field_names[FIELD_WAITING], death->waiting);
}

static void put_body(wire_writer *writer, wire_writer_map *map, const wire_message *message)
{
    switch (message->type) {
    case WIRE_HELLO:
    case WIRE_WELCOME:
        put_hello(writer, map, &message->body.hello);
        break;
    case WIRE_ROSTER:
        put_roster(writer, map, &message->body.roster);
        break;
    case WIRE_GET:
        put_digests(writer, map, &message->body.documents);
        break;
    case WIRE_DOCUMENTS:
        put_documents(writer, map, &message->body.documents);
        break;
    case WIRE_ASK:
        put_ask(writer, map, &message->body.ask);
        break;
    case WIRE_VERDICT:
    case WIRE_SETTLE:
    case WIRE_SETTLED:
        put_verdict(writer, map, &message->body.verdict);
        break;
    case WIRE_STATUS_TEXT:
        put_text(writer, map, wire_field_names[FIELD_TEXT], message->body.text);
        break;
    case WIRE_DECLARE_DEAD:
    case WIRE_DECLARED_DEAD:
        put_death(writer, map, &message->body.death);
        break;
    default:
        break;
    }
}

kvferry_status wire_encode(const wire_message *message, void **data, size_t *size)
{
    wire_writer writer = {0};
    wire_writer_map map = wire_writer_map_begin(&writer, true);
    wire_writer_key(&writer, &map, wire_field_names[FIELD_KVFERRY]);
    wire_writer_array(&writer, 2);
    wire_writer_uint(&writer, message->major);
    wire_writer_uint(&writer, message->minor);
    put_text(&writer, &map, wire_field_names[FIELD_TYPE], wire_type_name(message->type));
    put_some_text(&writer, &map, wire_field_names[FIELD_ENGINE_ID], message->engine_id);
    put_some_text(&writer, &map, wire_field_names[FIELD_SENDER], message->sender);
    put_some_text(&writer, &map, wire_field_names[FIELD_RECEIVER], message->receiver);
    put_some_text(&writer, &map, wire_field_names[FIELD_TRANSFER_ID], message->transfer_id);
    put_body(&writer, &map, message);
    put_reasons(&writer, &map, message);
    wire_writer_map_end(&writer, &map);
    if (writer.failed) {
        free(writer.data);
        return KVFERRY_NO_MEMORY;
    }
    *data = writer.data;
    *size = writer.size;
    return KVFERRY_OK;
}
