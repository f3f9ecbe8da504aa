/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/message.h"

#include <endian.h>
#include <sodium.h>
#include <string.h>

#define WORKER_NAMES "dp_rank", "dp_size", "tp_rank", "tp_size", "pp_rank", "pp_size"

const char *const wire_field_names[FIELDS] = {
    "kvferry",   "type",    "engine_id",     "sender",        "receiver", "transfer_id",
    WORKER_NAMES,
    "expects",   "sibling", "roster",        "engine",        "binding",  "lease_ms",
    "digests",   "documents",
    "attempt",   "source_roster", "target_roster", "tokens",  "timeout_ms", "verify", "whole_blocks", "part", "tables",
    "outcome",   "copies",  "bytes",         "checksums",
    "text",      "incarnation", "transfers", "blocks",        "waiting",  "reasons"};
const char *const wire_member_names[MEMBER_FIELDS] = {WORKER_NAMES, "addr", "incarnation", "digest"};
const char *const wire_roster_names[ROSTER_FIELDS] = {"engine_id", "digest", "members"};
const char *const wire_document_names[DOCUMENT_FIELDS] = {"digest", "document"};
const char *const wire_table_names[TABLE_FIELDS] = {"group", "first_token", "block_ids"};
const char *const wire_reason_names[REASON_FIELDS] = {
    "code", "worker", "layer", "stream", "axis", "place", "expected", "found", "message"};
const char *const wire_type_names[WIRE_TYPES] = {
    "hello",  "welcome", "roster", "get",  "documents", "ask", "verdict", "settle",
    "settled", "renew",  "ping",   "pong", "bye",       "status", "status_text", "declare_dead",
    "declared_dead", "error"};
const char *const wire_outcome_names[WIRE_OUTCOMES] = {"done", "failed", "aborted", "expired",
                                                       "waiting"};

const char *wire_type_name(wire_type type)
{
    return (unsigned)type < WIRE_TYPES ? wire_type_names[type] : "unknown";
}

wire_worker_numbers wire_worker_list(kvferry_worker *worker)
{
    return (wire_worker_numbers){{&worker->dp_rank, &worker->dp_size, &worker->tp_rank,
                                  &worker->tp_size, &worker->pp_rank, &worker->pp_size}};
}

void wire_message_end(wire_message *message)
{
    base_arena_free(&message->arena);
    kvferry_report_free(message->owned_reasons);
    message->owned_reasons = NULL;
    message->reasons = NULL;
}

/* --- digests -------------------------------------------------------------------------------- */

enum { DIGEST_BYTES = (WIRE_DIGEST_TEXT - 1) / 2 };

void wire_digest(const void *data, size_t size, char digest[WIRE_DIGEST_TEXT])
{
    unsigned char bytes[DIGEST_BYTES];
    crypto_generichash(bytes, sizeof(bytes), data, size, NULL, 0);
    sodium_bin2hex(digest, WIRE_DIGEST_TEXT, bytes, sizeof(bytes));
}

/* What is hashed, gathered: many small pieces cost more than their bytes. */
typedef struct roster_hasher {
    crypto_generichash_state state;
    unsigned char data[4096];
    size_t size;
} roster_hasher;

static void hash_bytes(roster_hasher *hasher, const void *data, size_t size)
{
    if (size > sizeof(hasher->data) - hasher->size) {
        crypto_generichash_update(&hasher->state, hasher->data, hasher->size);
        hasher->size = 0;
    }
    if (size > sizeof(hasher->data)) {
        crypto_generichash_update(&hasher->state, data, size);
        return;
    }
    memcpy(hasher->data + hasher->size, data, size);
    hasher->size += size;
}

static void hash_number(roster_hasher *hasher, uint64_t number)
{
    uint64_t bytes = htole64(number);
    hash_bytes(hasher, &bytes, sizeof(bytes));
}

/* With its length in front, so that no two lists of strings are the same bytes. */
static void hash_string(roster_hasher *hasher, const char *text)
{
    size_t length = strlen(text);
    hash_number(hasher, length);
    hash_bytes(hasher, text, length);
}

void wire_roster_digest(const wire_roster *roster, char digest[WIRE_DIGEST_TEXT])
{
    roster_hasher hasher = {.size = 0};
    unsigned char bytes[DIGEST_BYTES];
    crypto_generichash_init(&hasher.state, NULL, 0, sizeof(bytes));
    hash_string(&hasher, roster->engine_id);
    hash_number(&hasher, roster->count);
    for (size_t i = 0; i < roster->count; i++) {
        wire_member *member = &roster->members[i];
        wire_worker_numbers numbers = wire_worker_list(&member->worker);
        for (size_t n = 0; n < WORKER_FIELDS; n++)
            hash_number(&hasher, *numbers.at[n]);
        hash_string(&hasher, member->incarnation);
        hash_string(&hasher, member->digest);
    }
    crypto_generichash_update(&hasher.state, hasher.data, hasher.size);
    crypto_generichash_final(&hasher.state, bytes, sizeof(bytes));
    sodium_bin2hex(digest, WIRE_DIGEST_TEXT, bytes, sizeof(bytes));
}
