/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack to messages. Fields may come in any order, so the first pass only notes where each is; then come
 * the version, the fields that every message has, and what the type has.
 */
#include <string.h>

#include "wire/message.h"
#include "wire/reader.h"

typedef struct decoder {
    wire_reader reader;
    wire_reader_map map;
    size_t offsets[FIELDS]; /* of values; 0: it is not there */
    wire_message *message;
} decoder;

#define BIT(field) ((uint64_t)1 << (field))

/* What a message of each type must have; ids and incarnations that are not "". */
#define HEADER (BIT(FIELD_ENGINE_ID) | BIT(FIELD_SENDER))
#define WORKER (UINT64_C(0x3f) << FIELD_DP_RANK)
#define HELLO (HEADER | WORKER | BIT(FIELD_ROSTER) | BIT(FIELD_ENGINE) | BIT(FIELD_LEASE_MS))
#define VERDICT (HEADER | BIT(FIELD_TRANSFER_ID) | BIT(FIELD_OUTCOME))

static const uint64_t required[WIRE_TYPES] = {
    [WIRE_HELLO] = HELLO,
    [WIRE_WELCOME] = HELLO,
    [WIRE_ROSTER] = HEADER | BIT(FIELD_ROSTER),
    [WIRE_GET] = HEADER | BIT(FIELD_DIGESTS),
    [WIRE_DOCUMENTS] = HEADER | BIT(FIELD_DOCUMENTS),
    [WIRE_ASK] = HEADER | BIT(FIELD_TRANSFER_ID) | BIT(FIELD_ATTEMPT) | BIT(FIELD_SOURCE_ROSTER) |
                 BIT(FIELD_TARGET_ROSTER) | BIT(FIELD_TOKENS) | BIT(FIELD_TIMEOUT_MS) |
                 BIT(FIELD_TABLES),
    [WIRE_VERDICT] = VERDICT,
    [WIRE_SETTLE] = VERDICT,
    [WIRE_SETTLED] = VERDICT,
    [WIRE_RENEW] = HEADER | BIT(FIELD_TRANSFER_ID),
    [WIRE_PING] = HEADER,
    [WIRE_PONG] = HEADER,
    [WIRE_BYE] = HEADER,
    [WIRE_STATUS] = 0,
    [WIRE_STATUS_TEXT] = BIT(FIELD_TEXT),
    [WIRE_DECLARE_DEAD] = BIT(FIELD_INCARNATION),
    [WIRE_DECLARED_DEAD] = HEADER | BIT(FIELD_INCARNATION),
    [WIRE_ERROR] = BIT(FIELD_REASONS)};

/* Fewest bytes of an element, so that a count makes no more room than bytes came with it. */
enum { LEAST_MEMBER = 96, LEAST_DIGEST = 34, LEAST_DOCUMENT = 50, LEAST_TABLE = 18,
       LEAST_REASON = 18, LEAST_CHECKSUM = 3 };

/* --- going to fields ------------------------------------------------------------------------ */

static bool has(const decoder *d, wire_field field) { return d->offsets[field] != 0; }

static wire_reader *go(decoder *d, wire_field field)
{
    d->reader.at = d->offsets[field];
    d->reader.field = wire_field_names[field];
    return &d->reader;
}

/* A string that must not be empty. */
static bool read_some_string(wire_reader *reader, size_t maximum, const char **value)
{
    size_t at = reader->at;
    if (!wire_reader_string(reader, maximum, value))
        return false;
    return **value || wire_reader_refuse(reader, "value_range", at, "text", "\"\"",
                                         "a string is empty");
}

static bool read_some_hex(wire_reader *reader, size_t digits, char *value)
{
    size_t at = reader->at;
    if (!wire_reader_hex(reader, digits, value))
        return false;
    return *value || wire_reader_refuse(reader, "value_range", at,
                                        base_format("%zu digits", digits), "\"\"",
                                        "a number in digits is empty");
}

static bool read_digest(wire_reader *reader, char *value)
{
    return read_some_hex(reader, WIRE_DIGEST_TEXT - 1, value);
}

static bool read_incarnation(wire_reader *reader, char *value)
{
    return wire_reader_hex(reader, WIRE_INCARNATION_TEXT - 1, value);
}

/* --- parts ---------------------------------------------------------------------------------- */

static bool read_rank(wire_reader *reader, kvferry_worker *worker, size_t index)
{
    bool is_size = index % 2;
    return wire_reader_u32(reader, is_size, is_size ? WIRE_MAX_WORKERS : WIRE_MAX_WORKERS - 1,
                           wire_worker_list(worker).at[index]);
}

static uint64_t engine_size(const kvferry_worker *worker)
{
    return (uint64_t)worker->tp_size * worker->pp_size * worker->dp_size;
}

/* Whether ranks are below sizes, and sizes make an engine; `at` is for the finding. */
static bool check_worker(wire_reader *reader, kvferry_worker *worker, size_t at)
{
    wire_worker_numbers numbers = wire_worker_list(worker);
    for (size_t i = 0; i < WORKER_FIELDS; i += 2)
        if (*numbers.at[i] >= *numbers.at[i + 1]) {
            reader->field = wire_member_names[i];
            return wire_reader_refuse(reader, "rank_range", at,
                                      base_format("below %u", *numbers.at[i + 1]),
                                      base_format("%u", *numbers.at[i]),
                                      "a rank is not below its size");
        }
    if (engine_size(worker) <= WIRE_MAX_WORKERS)
        return true;
    reader->field = "dp_size, tp_size, pp_size";
    return wire_reader_refuse(reader, "value_range", at,
                              base_format("at most %d workers", WIRE_MAX_WORKERS),
                              base_format("%llu", (unsigned long long)engine_size(worker)),
                              "an engine has too many workers");
}

static bool read_member(wire_reader *reader, wire_member *member)
{
    wire_reader_map map;
    size_t index, at = reader->at;
    if (!wire_reader_map_begin(reader, &map, wire_member_names, MEMBER_FIELDS))
        return false;
    while (wire_reader_map_next(reader, &map, &index)) {
        bool fine = index < WORKER_FIELDS      ? read_rank(reader, &member->worker, index)
                    : index == MEMBER_ADDR     ? read_some_string(reader, WIRE_MAX_ADDRESS, &member->address)
                    : index == MEMBER_DIGEST   ? read_digest(reader, member->digest)
                                               : read_some_hex(reader, WIRE_INCARNATION_TEXT - 1,
                                                               member->incarnation);
        if (!fine)
            return false;
    }
    return reader->status == KVFERRY_OK && wire_reader_map_has(reader, &map, BIT(MEMBER_FIELDS) - 1) &&
           check_worker(reader, &member->worker, at);
}

/* Negative, 0 or positive as `a` comes before `b` in (dp, pp, tp) order, is it, or comes after it. */
static int compare_ranks(const kvferry_worker *a, const kvferry_worker *b)
{
    const uint32_t left[] = {a->dp_rank, a->pp_rank, a->tp_rank};
    const uint32_t right[] = {b->dp_rank, b->pp_rank, b->tp_rank};
    for (size_t i = 0; i < 3; i++)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}

static bool read_members(wire_reader *reader, wire_roster *roster)
{
    size_t count, at = reader->at;
    if (!wire_reader_array(reader, WIRE_MAX_WORKERS, LEAST_MEMBER, &count))
        return false;
    wire_member *members = wire_reader_alloc(reader, count, sizeof(*members));
    if (!members)
        return false;
    for (size_t i = 0; i < count; i++) {
        at = reader->at;
        if (!read_member(reader, &members[i]))
            return false;
        if (i == 0)
            continue;
        const kvferry_worker *worker = &members[i].worker, *last = &members[i - 1].worker;
        reader->field = wire_roster_names[ROSTER_MEMBERS];
        if (worker->tp_size != last->tp_size || worker->pp_size != last->pp_size ||
            worker->dp_size != last->dp_size)
            return wire_reader_refuse(reader, "roster_invalid", at, "the sizes of the first",
                                      "others", "workers of one engine have unequal sizes");
        if (compare_ranks(last, worker) >= 0)
            return wire_reader_refuse(reader, "roster_invalid", at, "order by dp, pp and tp rank",
                                      "another", "workers are out of order or come twice");
    }
    roster->members = members;
    roster->count = count;
    return true;
}

static bool check_roster(wire_reader *reader, const wire_roster *roster, size_t at)
{
    reader->field = wire_field_names[FIELD_ROSTER];
    if (!*roster->digest || !roster->count)
        return true;
    uint64_t size = engine_size(&roster->members[0].worker);
    if (roster->count != size)
        return wire_reader_refuse(reader, "roster_invalid", at,
                                  base_format("%llu workers", (unsigned long long)size),
                                  base_format("%zu", roster->count),
                                  "a roster with a digest is not complete");
    char digest[WIRE_DIGEST_TEXT];
    wire_roster_digest(roster, digest);
    return strcmp(digest, roster->digest) == 0 ||
           wire_reader_refuse(reader, "digest_differs", at, digest, roster->digest,
                              "a roster has another digest than it says");
}

static bool read_roster(decoder *d, wire_roster *roster)
{
    wire_reader *reader = go(d, FIELD_ROSTER);
    wire_reader_map map;
    size_t index, at = reader->at;
    if (!wire_reader_map_begin(reader, &map, wire_roster_names, ROSTER_FIELDS))
        return false;
    while (wire_reader_map_next(reader, &map, &index)) {
        bool fine = index == ROSTER_ENGINE_ID ? read_some_string(reader, WIRE_MAX_ID, &roster->engine_id)
                    : index == ROSTER_DIGEST
                        ? wire_reader_hex(reader, WIRE_DIGEST_TEXT - 1, roster->digest)
                        : read_members(reader, roster);
        if (!fine)
            return false;
    }
    return reader->status == KVFERRY_OK && wire_reader_map_has(reader, &map, BIT(ROSTER_ENGINE_ID)) &&
           check_roster(reader, roster, at);
}

static bool read_reason(wire_reader *reader, kvferry_report *report)
{
    const char *values[REASON_FIELDS] = {"", "", "", "", "", "", "", "", ""};
    wire_reader_map map;
    size_t index;
    if (!wire_reader_map_begin(reader, &map, wire_reason_names, REASON_FIELDS))
        return false;
    while (wire_reader_map_next(reader, &map, &index))
        if (!(index == REASON_CODE ? read_some_string : wire_reader_string)(
                reader, WIRE_MAX_REASON_TEXT, &values[index]))
            return false;
    if (reader->status != KVFERRY_OK ||
        !wire_reader_map_has(reader, &map, BIT(REASON_CODE) | BIT(REASON_MESSAGE)))
        return false;
    base_report_copy(report, &(kvferry_reason){values[0], values[1], values[2], values[3], values[4],
                                               values[5], values[6], values[7], values[8]});
    if (!kvferry_report_dropped(report))
        return true;
    reader->status = KVFERRY_NO_MEMORY;
    return false;
}

static bool read_reasons(decoder *d)
{
    wire_reader *reader = go(d, FIELD_REASONS);
    size_t count;
    if (!wire_reader_array(reader, WIRE_MAX_REASONS, LEAST_REASON, &count))
        return false;
    if (kvferry_report_create(&d->message->owned_reasons) != KVFERRY_OK) {
        reader->status = KVFERRY_NO_MEMORY;
        return false;
    }
    d->message->reasons = d->message->owned_reasons;
    for (size_t i = 0; i < count; i++)
        if (!read_reason(reader, d->message->owned_reasons))
            return false;
    return true;
}

/* --- bodies --------------------------------------------------------------------------------- */

static bool read_hello(decoder *d, wire_hello *hello)
{
    hello->expects = hello->engine = "";
    memcpy(hello->incarnation, d->message->sender, sizeof(hello->incarnation));
    for (size_t i = 0; i < WORKER_FIELDS; i++)
        if (!read_rank(go(d, (wire_field)(FIELD_DP_RANK + i)), &hello->worker, i))
            return false;
    if (!check_worker(&d->reader, &hello->worker, d->map.at))
        return false;
    if (has(d, FIELD_EXPECTS)) {
        char *expects = wire_reader_alloc(&d->reader, 1, WIRE_INCARNATION_TEXT);
        if (!expects || !read_incarnation(go(d, FIELD_EXPECTS), expects))
            return false;
        hello->expects = expects;
    }
    return (!has(d, FIELD_SIBLING) || wire_reader_bool(go(d, FIELD_SIBLING), &hello->sibling)) &&
           read_roster(d, &hello->roster) &&
           read_some_string(go(d, FIELD_ENGINE), WIRE_MAX_ID, &hello->engine) &&
           (!has(d, FIELD_BINDING) ||
            wire_reader_binary(go(d, FIELD_BINDING), &hello->binding, &hello->binding_size)) &&
           wire_reader_uint(go(d, FIELD_LEASE_MS), 0, WIRE_MAX_MILLISECONDS, &hello->lease_ms);
}

static char *new_digest(wire_reader *reader) { return wire_reader_alloc(reader, 1, WIRE_DIGEST_TEXT); }

static bool read_digests(decoder *d, wire_documents *documents)
{
    wire_reader *reader = go(d, FIELD_DIGESTS);
    if (!wire_reader_array(reader, WIRE_MAX_WORKERS, LEAST_DIGEST, &documents->count))
        return false;
    documents->digests = wire_reader_alloc(reader, documents->count, sizeof(*documents->digests));
    for (size_t i = 0; documents->digests && i < documents->count; i++) {
        char *digest = new_digest(reader);
        if (!digest || !read_digest(reader, digest))
            return false;
        documents->digests[i] = digest;
    }
    return documents->digests != NULL;
}

static bool read_document(wire_reader *reader, const char **digest, const void **data, size_t *size)
{
    wire_reader_map map;
    size_t index, at = reader->at;
    char *named = new_digest(reader), found[WIRE_DIGEST_TEXT];
    if (!named || !wire_reader_map_begin(reader, &map, wire_document_names, DOCUMENT_FIELDS))
        return false;
    while (wire_reader_map_next(reader, &map, &index))
        if (!(index == DOCUMENT_DIGEST ? read_digest(reader, named)
                                       : wire_reader_binary(reader, data, size)))
            return false;
    if (reader->status != KVFERRY_OK ||
        !wire_reader_map_has(reader, &map, BIT(DOCUMENT_DIGEST) | BIT(DOCUMENT_DOCUMENT)))
        return false;
    *digest = named;
    wire_digest(*data, *size, found);
    reader->field = wire_document_names[DOCUMENT_DOCUMENT];
    return strcmp(found, named) == 0 || wire_reader_refuse(reader, "digest_differs", at, found, named,
                                                           "a document has another digest than it says");
}

static bool read_documents(decoder *d, wire_documents *documents)
{
    wire_reader *reader = go(d, FIELD_DOCUMENTS);
    size_t count;
    if (!wire_reader_array(reader, WIRE_MAX_WORKERS, LEAST_DOCUMENT, &count))
        return false;
    documents->count = count;
    documents->digests = wire_reader_alloc(reader, count, sizeof(*documents->digests));
    documents->documents = wire_reader_alloc(reader, count, sizeof(*documents->documents));
    documents->sizes = wire_reader_alloc(reader, count, sizeof(*documents->sizes));
    if (reader->status != KVFERRY_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!read_document(reader, &documents->digests[i], &documents->documents[i],
                           &documents->sizes[i]))
            return false;
    return true;
}

static bool read_table(wire_reader *reader, kvferry_block_table *table)
{
    wire_reader_map map;
    size_t index;
    if (!wire_reader_map_begin(reader, &map, wire_table_names, TABLE_FIELDS))
        return false;
    while (wire_reader_map_next(reader, &map, &index)) {
        bool fine = index == TABLE_GROUP ? read_some_string(reader, WIRE_MAX_NAME, &table->group)
                    : index == TABLE_FIRST_TOKEN
                        ? wire_reader_uint(reader, 0, INT64_MAX, &table->first_token)
                        : wire_reader_ids(reader, &table->blocks, &table->block_count);
        if (!fine)
            return false;
    }
    return reader->status == KVFERRY_OK &&
           wire_reader_map_has(reader, &map, BIT(TABLE_GROUP) | BIT(TABLE_BLOCK_IDS));
}

static bool read_ask(decoder *d, wire_ask *ask)
{
    if (!read_some_hex(go(d, FIELD_ATTEMPT), WIRE_INCARNATION_TEXT - 1, ask->attempt) ||
        !read_digest(go(d, FIELD_SOURCE_ROSTER), ask->source_roster) ||
        !read_digest(go(d, FIELD_TARGET_ROSTER), ask->target_roster) ||
        !wire_reader_uint(go(d, FIELD_TOKENS), 0, INT64_MAX, &ask->tokens) ||
        !wire_reader_uint(go(d, FIELD_TIMEOUT_MS), 0, WIRE_MAX_MILLISECONDS, &ask->timeout_ms) ||
        (has(d, FIELD_VERIFY) && !wire_reader_bool(go(d, FIELD_VERIFY), &ask->verify)) ||
        (has(d, FIELD_WHOLE_BLOCKS) && !wire_reader_bool(go(d, FIELD_WHOLE_BLOCKS), &ask->whole_blocks)) ||
        (has(d, FIELD_PART) && !wire_reader_bool(go(d, FIELD_PART), &ask->part)))
        return false;
    wire_reader *reader = go(d, FIELD_TABLES);
    size_t count;
    if (!wire_reader_array(reader, UINT32_MAX, LEAST_TABLE, &count))
        return false;
    ask->tables = wire_reader_alloc(reader, count, sizeof(*ask->tables));
    ask->table_count = count;
    for (size_t i = 0; ask->tables && i < count; i++)
        if (!read_table(reader, &ask->tables[i]))
            return false;
    return ask->tables != NULL;
}

static bool read_checksum(wire_reader *reader, wire_checksum *checksum)
{
    size_t count, at = reader->at;
    if (!wire_reader_array(reader, UINT32_MAX, 1, &count))
        return false;
    if (count < 2)
        return wire_reader_refuse(reader, "list_length", at, "a piece and its checksum",
                                  base_format("%zu elements", count), "a checksum is not whole");
    if (!wire_reader_u32(reader, 0, UINT32_MAX, &checksum->piece) ||
        !wire_reader_uint(reader, 0, UINT64_MAX, &checksum->value))
        return false;
    for (size_t i = 2; i < count; i++)
        if (!wire_reader_skip(reader))
            return false;
    return true;
}

static bool read_checksums(decoder *d, wire_verdict *verdict)
{
    wire_reader *reader = go(d, FIELD_CHECKSUMS);
    size_t count;
    if (!wire_reader_array(reader, UINT32_MAX, LEAST_CHECKSUM, &count))
        return false;
    verdict->checksums = wire_reader_alloc(reader, count, sizeof(*verdict->checksums));
    verdict->checksum_count = count;
    for (size_t i = 0; verdict->checksums && i < count; i++)
        if (!read_checksum(reader, &verdict->checksums[i]))
            return false;
    return verdict->checksums != NULL;
}

static bool read_verdict(decoder *d, wire_verdict *verdict)
{
    /* Only a verdict may wait. */
    size_t names = d->message->type == WIRE_VERDICT ? WIRE_OUTCOMES : WIRE_WAITING, outcome;
    if (!wire_reader_choice(go(d, FIELD_OUTCOME), wire_outcome_names, names, &outcome))
        return false;
    verdict->outcome = (wire_outcome)outcome;
    return (!has(d, FIELD_ATTEMPT) || read_incarnation(go(d, FIELD_ATTEMPT), verdict->attempt)) &&
           (!has(d, FIELD_PART) || wire_reader_bool(go(d, FIELD_PART), &verdict->part)) &&
           (!has(d, FIELD_COPIES) ||
            wire_reader_uint(go(d, FIELD_COPIES), 0, UINT64_MAX, &verdict->copies)) &&
           (!has(d, FIELD_BYTES) ||
            wire_reader_uint(go(d, FIELD_BYTES), 0, UINT64_MAX, &verdict->bytes)) &&
           (!has(d, FIELD_CHECKSUMS) || read_checksums(d, verdict));
}

static bool read_death(decoder *d, wire_death *death)
{
    return read_some_hex(go(d, FIELD_INCARNATION), WIRE_INCARNATION_TEXT - 1, death->incarnation) &&
           (!has(d, FIELD_TRANSFERS) ||
            wire_reader_uint(go(d, FIELD_TRANSFERS), 0, UINT64_MAX, &death->transfers)) &&
           (!has(d, FIELD_BLOCKS) ||
            wire_reader_uint(go(d, FIELD_BLOCKS), 0, UINT64_MAX, &death->blocks)) &&
           (!has(d, FIELD_WAITING) ||
            wire_reader_uint(go(d, FIELD_WAITING), 0, UINT64_MAX, &death->waiting));
}

static bool read_body(decoder *d)
{
    wire_message *message = d->message;
    switch (message->type) {
    case WIRE_HELLO:
    case WIRE_WELCOME:
        return read_hello(d, &message->body.hello);
    case WIRE_ROSTER:
        return read_roster(d, &message->body.roster);
    case WIRE_GET:
        return read_digests(d, &message->body.documents);
    case WIRE_DOCUMENTS:
        return read_documents(d, &message->body.documents);
    case WIRE_ASK:
        return read_ask(d, &message->body.ask);
    case WIRE_VERDICT:
    case WIRE_SETTLE:
    case WIRE_SETTLED:
        return read_verdict(d, &message->body.verdict);
    case WIRE_STATUS_TEXT:
        return wire_reader_string(go(d, FIELD_TEXT), SIZE_MAX, &message->body.text);
    case WIRE_DECLARE_DEAD:
    case WIRE_DECLARED_DEAD:
        return read_death(d, &message->body.death);
    default:
        return true;
    }
}

/* --- every message -------------------------------------------------------------------------- */

static void index_fields(decoder *d)
{
    wire_reader *reader = &d->reader;
    size_t index;
    if (!wire_reader_map_begin(reader, &d->map, wire_field_names, FIELDS))
        return;
    while (wire_reader_map_next(reader, &d->map, &index)) {
        d->offsets[index] = reader->at;
        if (!wire_reader_skip(reader)) {
            d->offsets[index] = 0;
            return;
        }
    }
    reader->field = NULL;
    if (reader->status == KVFERRY_OK && reader->at != reader->size)
        wire_reader_refuse(reader, "syntax", reader->at, "the end",
                           base_format("%zu more bytes", reader->size - reader->at),
                           "bytes follow the message");
}

/* [major, minor], and whatever later versions put behind it. */
static void read_version(decoder *d)
{
    wire_message *message = d->message;
    wire_reader *reader = go(d, FIELD_KVFERRY);
    size_t count, at = reader->at;
    if (!has(d, FIELD_KVFERRY)) {
        wire_reader_refuse(reader, "value_missing", 0, "the version", "none",
                           "this is no message of kvferry");
        return;
    }
    if (!wire_reader_array(reader, UINT32_MAX, 1, &count))
        return;
    if (count < 2) {
        wire_reader_refuse(reader, "list_length", at, "[major, minor]",
                           base_format("%zu elements", count), "a version is not whole");
        return;
    }
    if (!wire_reader_u32(reader, 0, UINT32_MAX, &message->major) ||
        !wire_reader_u32(reader, 0, UINT32_MAX, &message->minor) || message->major == WIRE_MAJOR)
        return;
    wire_reader_refuse(reader, "message_version", at, base_format("%d.x", WIRE_MAJOR),
                       base_format("%u.%u", message->major, message->minor),
                       "the peer speaks another version of the protocol");
    reader->status = KVFERRY_UNSUPPORTED;
}

static void read_type(decoder *d)
{
    wire_reader *reader = go(d, FIELD_TYPE);
    kvferry_status before = reader->status;
    size_t at = reader->at, type = 0;
    const char *name;
    if (!wire_reader_string(reader, WIRE_MAX_ID, &name))
        return;
    while (type < WIRE_TYPES && strcmp(name, wire_type_names[type]) != 0)
        type++;
    d->message->type = (wire_type)type;
    if (type < WIRE_TYPES)
        return;
    wire_reader_refuse(reader, "message_type", at, "a type of this version",
                       base_format("\"%.100s\"", name), "the message is of an unknown type");
    if (before == KVFERRY_OK)
        reader->status = KVFERRY_UNSUPPORTED;
}

/* What is in front of every body: each of it that can be read, whatever became of the others. */
static void read_header(decoder *d)
{
    wire_message *message = d->message;
    if (has(d, FIELD_ENGINE_ID))
        wire_reader_string(go(d, FIELD_ENGINE_ID), WIRE_MAX_ID, &message->engine_id);
    if (has(d, FIELD_SENDER))
        read_incarnation(go(d, FIELD_SENDER), message->sender);
    if (has(d, FIELD_RECEIVER))
        read_incarnation(go(d, FIELD_RECEIVER), message->receiver);
    if (has(d, FIELD_TRANSFER_ID))
        wire_reader_string(go(d, FIELD_TRANSFER_ID), WIRE_MAX_ID, &message->transfer_id);
    if (has(d, FIELD_TYPE))
        read_type(d);
}

/* Ids that the type needs are neither missing nor empty. */
static bool check_header(decoder *d)
{
    wire_message *message = d->message;
    if (!wire_reader_map_has(&d->reader, &d->map, BIT(FIELD_TYPE)) ||
        !wire_reader_map_has(&d->reader, &d->map, required[message->type]))
        return false;
    const struct {
        wire_field field;
        const char *value;
    } ids[] = {{FIELD_ENGINE_ID, message->engine_id},
               {FIELD_SENDER, message->sender},
               {FIELD_TRANSFER_ID, message->transfer_id}};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        if (required[message->type] & BIT(ids[i].field) && !*ids[i].value)
            return wire_reader_refuse(go(d, ids[i].field), "value_range", d->offsets[ids[i].field],
                                      "text", "\"\"", "a string is empty");
    return true;
}

kvferry_status wire_decode(const void *data, size_t size, wire_message *message,
                           kvferry_report *report)
{
    *message = (wire_message){.type = WIRE_TYPES, .engine_id = "", .transfer_id = ""};
    decoder d = {.reader = {.data = data, .size = size, .arena = &message->arena, .report = report},
                 .message = message};
    wire_reader *reader = &d.reader;
    index_fields(&d);
    if (reader->status == KVFERRY_OK)
        read_version(&d);
    if (reader->status != KVFERRY_OK)
        reader->report = NULL; /* the finding is made; what follows is only for the answer */
    read_header(&d);
    if (reader->status == KVFERRY_OK && check_header(&d) && read_body(&d) && has(&d, FIELD_REASONS))
        read_reasons(&d);
    return reader->status;
}
