/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages between nodes: msgpack to structs and back. docs/protocol.md is the normative page.
 * Pure: no I/O, no clock. A decoded message owns an arena with all that it points to.
 */
#ifndef KVFERRY_WIRE_H
#define KVFERRY_WIRE_H

#include <kvferry/plan.h>

#include "base/base.h"

/* A peer with another major version is refused; an older minor one is understood. */
#define WIRE_MAJOR 1
#define WIRE_MINOR 3
#define WIRE_MINOR_WHOLE_BLOCKS 2 /* from which on asks may have whole_blocks */

#define WIRE_DIGEST_TEXT 33 /* 32 hexadecimal digits and a zero byte */
#define WIRE_INCARNATION_TEXT 17
#define WIRE_MAX_ID 255     /* bytes of an engine id or a transfer id */
#define WIRE_MAX_WORKERS 65536
#define WIRE_MAX_REASONS 100
#define WIRE_MAX_REASON_TEXT 4096                      /* bytes of each of its strings; longer ones are cut */
#define WIRE_MAX_ADDRESS 1024                          /* bytes */
#define WIRE_MAX_NAME 1024                             /* bytes of a group's name, as in layout documents */
#define WIRE_MAX_MILLISECONDS UINT64_C(1000000000000)  /* longer times are sent as this */

typedef enum wire_type {
    WIRE_HELLO,   /* who I am and who belongs to my engine; asks for a WELCOME */
    WIRE_WELCOME, /* the same of the other side */
    WIRE_ROSTER,  /* the leader to a worker of its engine: all workers of the engine */
    WIRE_GET,     /* asks for layout documents by digest */
    WIRE_DOCUMENTS,
    WIRE_ASK,     /* decode to prefill: write this request's blocks to me */
    WIRE_VERDICT, /* prefill to decode: what became of an ask; also the answer to each repeated one */
    WIRE_SETTLE,  /* decode to prefill: I want nothing more of this transfer; stop writing */
    WIRE_SETTLED, /* prefill to decode: nothing is written any more */
    WIRE_RENEW,   /* decode to prefill: prolong the lease */
    WIRE_PING,    /* any; asks for a PONG */
    WIRE_PONG,
    WIRE_BYE,     /* I am going: nothing is written by me any more, nothing will be answered */
    WIRE_STATUS,  /* asks for a STATUS_TEXT */
    WIRE_STATUS_TEXT,
    WIRE_DECLARE_DEAD, /* the operator's word that a worker is dead; asks for a DECLARED_DEAD */
    WIRE_DECLARED_DEAD,
    WIRE_ERROR,   /* the answer to what could not be read or served, where there is no better one */
    WIRE_TYPES
} wire_type;

const char *wire_type_name(wire_type type); /* "hello", ...: the value of the field `type` */

/* One worker of an engine as its roster has it. */
typedef struct wire_member {
    kvferry_worker worker;
    const char *address;                     /* control address */
    char incarnation[WIRE_INCARNATION_TEXT];
    char digest[WIRE_DIGEST_TEXT];           /* of its layout document's msgpack */
} wire_member;

/*
 * All workers of an engine in (dp, pp, tp) order, and a digest over them: equal digests, equal
 * rosters. Incomplete: digest "" and the members known so far (at least the sender). A digest without members:
 * the roster that the receiver knows by it. What is read has members in order, each once; with a digest and
 * members, it is the digest of them, and they are tp_size * pp_size * dp_size.
 */
typedef struct wire_roster {
    const char *engine_id;
    char digest[WIRE_DIGEST_TEXT];
    wire_member *members;
    size_t count;
} wire_roster;

typedef struct wire_hello { /* HELLO, WELCOME */
    kvferry_worker worker;
    char incarnation[WIRE_INCARNATION_TEXT]; /* the message's sender; not written a second time */
    const char *expects;      /* HELLO: the incarnation that it takes the other for; "" unknown */
    bool sibling;             /* a worker of the same engine that reports to its leader */
    wire_roster roster;
    const char *engine;       /* "ucx", ... : transfer engine; both sides must have the same */
    const void *binding;      /* as kvferry_engine_export gave it */
    size_t binding_size;
    uint64_t lease_ms;        /* of the sender as a prefill worker */
} wire_hello;

/* What is read of DOCUMENTS are documents with their own digests. */
typedef struct wire_documents { /* GET: digests; DOCUMENTS: both */
    const char **digests;
    const void **documents; /* msgpack of a layout document */
    size_t *sizes;
    size_t count;
} wire_documents;

/* One block table on the wire, with a name of the sender's own group. */
typedef struct wire_ask {
    char attempt[WIRE_INCARNATION_TEXT]; /* of this ask: a repetition has the same */
    char source_roster[WIRE_DIGEST_TEXT], target_roster[WIRE_DIGEST_TEXT];
    uint64_t tokens;
    uint64_t timeout_ms; /* from now; the prefill side may give up after it */
    bool verify, whole_blocks;
    bool part; /* with whole_blocks: what comes before windows may be left out where it is not held */
    kvferry_block_table *tables;
    size_t table_count;
} wire_ask;

typedef enum wire_outcome { /* as kvferry_outcome; and while nothing is decided */
    WIRE_DONE, WIRE_FAILED, WIRE_ABORTED, WIRE_EXPIRED,
    WIRE_WAITING, /* VERDICT: the ask has arrived, nothing more to say yet */
    WIRE_OUTCOMES
} wire_outcome;

/* A checksum over the logical bytes of one piece (plan order) that the sender read. */
typedef struct wire_checksum {
    uint32_t piece;
    uint64_t value;
} wire_checksum;

typedef struct wire_verdict { /* VERDICT, SETTLE, SETTLED */
    char attempt[WIRE_INCARNATION_TEXT]; /* "" in a SETTLE of what was never asked */
    wire_outcome outcome;
    uint64_t copies, bytes;
    wire_checksum *checksums; /* VERDICT of an ask with verify */
    size_t checksum_count;
    bool part; /* VERDICT, done: what comes before windows was not held, and is left out */
} wire_verdict;

typedef struct wire_death { /* DECLARE_DEAD: incarnation; DECLARED_DEAD: all */
    char incarnation[WIRE_INCARNATION_TEXT]; /* of the worker that is dead */
    uint64_t transfers, blocks; /* that are released by the word */
    uint64_t waiting;           /* transfers that wait for other workers too */
} wire_death;

typedef struct wire_message {
    wire_type type;
    uint32_t major, minor;
    const char *engine_id;   /* of the sender */
    char sender[WIRE_INCARNATION_TEXT];    /* incarnation of the sender; "" in STATUS, DECLARE_DEAD */
    char receiver[WIRE_INCARNATION_TEXT];  /* incarnation that it is meant for; "" where unknown */
    const char *transfer_id; /* ASK, VERDICT, SETTLE, SETTLED, RENEW; else "" */
    union {
        wire_hello hello;
        wire_roster roster;
        wire_documents documents;
        wire_ask ask;
        wire_verdict verdict;
        const char *text; /* STATUS_TEXT: JSON */
        wire_death death;
    } body;
    const kvferry_report *reasons; /* VERDICT, SETTLE, WELCOME, ERROR: why; NULL or empty: none */
    base_arena arena; /* of a decoded one */
    kvferry_report *owned_reasons; /* of a decoded one */
} wire_message;

/*
 * Reads one message. KVFERRY_OK: the caller ends it with wire_message_end. KVFERRY_MALFORMED with a finding.
 * KVFERRY_UNSUPPORTED: another major version (message_version, both named), or a type that this version does not
 * know (message_type, named; message->major is WIRE_MAJOR). In these cases message->type (else WIRE_TYPES),
 * engine_id, sender, receiver and transfer_id are set as far as they could be read ("" if not), so that the
 * answer can name them, and it must be ended too. KVFERRY_NO_MEMORY: likewise. Never reads past size; never
 * allocates more than a small multiple of it.
 */
kvferry_status wire_decode(const void *data, size_t size, wire_message *message, kvferry_report *report);
void wire_message_end(wire_message *message);

/* Writes one. *data is the caller's to free. KVFERRY_NO_MEMORY. */
kvferry_status wire_encode(const wire_message *message, void **data, size_t *size);

/* The digest of a document's bytes, and of a roster's members (engine id, ranks, incarnations, digests). */
void wire_digest(const void *data, size_t size, char digest[WIRE_DIGEST_TEXT]);
void wire_roster_digest(const wire_roster *roster, char digest[WIRE_DIGEST_TEXT]);

#endif
