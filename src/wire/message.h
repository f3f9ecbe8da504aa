/* SPDX-License-Identifier: Apache-2.0 */
/* What reading and writing have in common: the names of fields. */
#ifndef KVFERRY_WIRE_MESSAGE_H
#define KVFERRY_WIRE_MESSAGE_H

#include "wire/wire.h"

/* Fields of a message, in the order in which they are written. */
typedef enum wire_field {
    FIELD_KVFERRY,
    FIELD_TYPE,
    FIELD_ENGINE_ID,
    FIELD_SENDER,
    FIELD_RECEIVER,
    FIELD_TRANSFER_ID,
    FIELD_DP_RANK, /* and the other five of a worker, as in wire_worker_names */
    FIELD_DP_SIZE,
    FIELD_TP_RANK,
    FIELD_TP_SIZE,
    FIELD_PP_RANK,
    FIELD_PP_SIZE,
    FIELD_EXPECTS,
    FIELD_SIBLING,
    FIELD_ROSTER,
    FIELD_ENGINE,
    FIELD_BINDING,
    FIELD_LEASE_MS,
    FIELD_DIGESTS,
    FIELD_DOCUMENTS,
    FIELD_ATTEMPT,
    FIELD_SOURCE_ROSTER,
    FIELD_TARGET_ROSTER,
    FIELD_TOKENS,
    FIELD_TIMEOUT_MS,
    FIELD_VERIFY,
    FIELD_WHOLE_BLOCKS,
    FIELD_PART,
    FIELD_TABLES,
    FIELD_OUTCOME,
    FIELD_COPIES,
    FIELD_BYTES,
    FIELD_CHECKSUMS,
    FIELD_TEXT,
    FIELD_INCARNATION,
    FIELD_TRANSFERS,
    FIELD_BLOCKS,
    FIELD_WAITING,
    FIELD_REASONS,
    FIELDS
} wire_field;

extern const char *const wire_field_names[FIELDS];

/* Fields of a worker in a roster: the first six are those of wire_field from FIELD_DP_RANK on. */
enum { MEMBER_ADDR = 6, MEMBER_INCARNATION, MEMBER_DIGEST, MEMBER_FIELDS, WORKER_FIELDS = 6 };
extern const char *const wire_member_names[MEMBER_FIELDS];

enum { ROSTER_ENGINE_ID, ROSTER_DIGEST, ROSTER_MEMBERS, ROSTER_FIELDS };
extern const char *const wire_roster_names[ROSTER_FIELDS];

enum { DOCUMENT_DIGEST, DOCUMENT_DOCUMENT, DOCUMENT_FIELDS };
extern const char *const wire_document_names[DOCUMENT_FIELDS];

enum { TABLE_GROUP, TABLE_FIRST_TOKEN, TABLE_BLOCK_IDS, TABLE_FIELDS };
extern const char *const wire_table_names[TABLE_FIELDS];

/* In the order of kvferry_reason. */
enum { REASON_CODE = 0, REASON_MESSAGE = 8, REASON_FIELDS = 9 };
extern const char *const wire_reason_names[REASON_FIELDS];

extern const char *const wire_type_names[WIRE_TYPES];
extern const char *const wire_outcome_names[WIRE_OUTCOMES];

/* The six numbers of a worker, in the order of their fields. */
typedef struct wire_worker_numbers {
    uint32_t *at[WORKER_FIELDS];
} wire_worker_numbers;
wire_worker_numbers wire_worker_list(kvferry_worker *worker);

#endif
