/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the core, one file per subject:
 *
 *   core.c           create, free, dispatch of messages   core_timer.c    what is due, when
 *   core_effect.c    effects, in order                    core_event.c    events
 *   core_line.c      links and what is sent over them     core_document.c layout documents, rosters
 *   core_own.c       the own engine: leader and siblings  core_plan.c     plans and who is in them
 *   core_engine.c    decode: engines that this node asks  core_source.c   decode: their workers
 *   core_target.c    prefill: workers that ask            core_check.c    block tables, who owns blocks
 *   core_supply.c     prefill: offers                      core_member.c   prefill: who asks for an offer
 *   core_write.c     prefill: writes                      core_request.c  decode: asks
 *   core_part.c      decode: one source of an ask         core_status.c   counts and state for people
 *   core_words.c     reasons, log lines, the dead         core_name.c     whose key is whose
 *   core_job.c       long work, a little at a time        core_sum.c      checksums for verify
 *   core_share.c     what is kept for whom                core_tell.c     decode: who is told how an ask ended
 *   core_where.c     decode: where engines are looked for
 *   core_operator.c  who holds blocks in quarantine, and the operator's word that one is dead
 */
#ifndef KVFERRY_NODE_CORE_INTERNAL_H
#define KVFERRY_NODE_CORE_INTERNAL_H

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "node/core.h"
#include "node/table.h"
#include "plan/slice.h"

#define CORE_ID (WIRE_MAX_ID + 1)
#define CORE_CODE 64
#define CORE_KEY_TEXT 65
#define CORE_HOLDER 80

typedef struct core_holder core_holder;
typedef struct core_line core_line;
typedef struct core_roster core_roster;
typedef struct core_want core_want;
typedef struct core_pairing core_pairing;
typedef struct core_engine core_engine;
typedef struct core_source core_source;
typedef struct core_target core_target;
typedef struct core_channel core_channel;
typedef struct core_supply core_supply;
typedef struct core_member core_member;
typedef struct core_write core_write;
typedef struct core_request core_request;
typedef struct core_part core_part;

/* --- time: core_timer.c -------------------------------------------------------------------------- */

/* Sits inside of what it is for. `fire` may end it and free that. */
typedef struct core_timer {
    void (*fire)(node_core *core, void *owner);
    void *owner;
    uint64_t due;
    size_t place; /* in the heap, from 1; 0: not set */
    bool begun;
} core_timer;

/* Makes room, so that setting never fails. false: out of memory. */
bool core_timer_begin(node_core *core, core_timer *timer, void (*fire)(node_core *, void *), void *owner);
void core_timer_end(node_core *core, core_timer *timer);
void core_timer_set(node_core *core, core_timer *timer, uint64_t due);
void core_timer_stop(node_core *core, core_timer *timer);
/* `now` and `after`, not past the end of time. */
uint64_t core_after(const node_core *core, uint64_t after);

/*
 * Waiting for bytes that were sent and may still arrive, for linger_ns of this process's own waking time:
 * in short pieces, of which one that comes to its end late counts no more than one that does not, since
 * while the process slept, or its clock jumped, nothing arrived here.
 */
typedef struct core_linger {
    uint64_t waited, from;
} core_linger;

void core_linger_begin(const node_core *core, core_linger *linger);
/* Sets the timer to the end of the next piece; false: there is none, all was waited for. */
bool core_linger_on(node_core *core, core_linger *linger, core_timer *timer);

/* --- effects: core_effect.c ---------------------------------------------------------------------- */

/* An effect that waits to be taken. Those that must not fail for want of memory sit inside of what they are about. */
typedef struct core_action {
    core_effect effect;
    struct core_action *next;
    bool queued; /* waits, or was taken last */
    bool skip;   /* is not to be done any more */
    void *free_first, *free_then; /* once it was taken */
} core_action;

void core_action_queue(node_core *core, core_action *action);
/* Frees `object` (with `inner` before it) once `action`, which sits in it, was taken; at once if it does not wait. */
void core_action_free(core_action *action, void *inner, void *object);
void core_effects_free(node_core *core);

/* --- long work: core_job.c ------------------------------------------------------------------------ */

/* Sits inside of what it is for. `run` does a little of it, says how much with core_spend, and may end that. */
typedef struct core_job {
    void (*run)(node_core *core, void *owner);
    void *owner;
    bool queued;
    struct core_job *prev, *next;
} core_job;

/* Behind all others, unless it is queued. */
void core_job_queue(node_core *core, core_job *job);
void core_job_stop(node_core *core, core_job *job);
/* In nanoseconds, about. */
void core_spend(node_core *core, uint64_t cost);
/* Runs the first of them. false: there is none, or enough was done for this time. */
bool core_job_turn(node_core *core);

/* --- checksums for verify: core_sum.c ------------------------------------------------------------- */

/* Checksums of all pieces that a source sends for a request. Sits inside of what it is for. */
typedef struct core_sum {
    core_job job;
    void (*over)(node_core *core, void *owner, kvferry_status status); /* may end it */
    void *owner;
    const kvferry_plan *plan;
    size_t source, piece, count;
    kvferry_side side;
    kvferry_request request; /* its tables stay */
    plan_cursor cursor;
    void *open;              /* of the piece */
    wire_checksum *values;   /* of the pieces before */
} core_sum;

/* false: out of memory. `over` is called later, once, unless it is ended before. */
bool core_sum_begin(node_core *core, core_sum *sum);
void core_sum_end(node_core *core, core_sum *sum);

/* --- events: core_event.c ------------------------------------------------------------------------ */

typedef struct core_event core_event;

/* Made before it is needed, so that telling never fails. NULL: out of memory. */
core_event *core_event_create(kvferry_event_kind kind, kvferry_side side, const char *engine_id,
                              const char *transfer_id, void *context);
void core_event_discard(core_event *event);
void core_event_set_engine(core_event *event, const char *engine_id);
/* "": not known, or no event. */
const char *core_event_engine(const core_event *event);
void core_event_set_kind(core_event *event, kvferry_event_kind kind);
/* `reasons` are copied; NULL: `code` and `message` make one. */
void core_event_set_outcome(core_event *event, kvferry_outcome outcome, const char *code,
                            const char *message, const kvferry_report *reasons);
void core_event_set_work(core_event *event, uint64_t bytes, uint64_t copies, uint64_t elapsed_ns);
void core_event_set_part(core_event *event, bool part);
void core_event_queue(node_core *core, core_event *event);
/* RELEASED says what ENDED said. */
void core_event_copy_outcome(core_event *to, const core_event *from);
void core_events_free(node_core *core);

/* --- links: core_line.c ------------------------------------------------------------------------- */

typedef enum core_use {
    CORE_USE_NONE,
    CORE_USE_LEADER,  /* to the own engine's leader */
    CORE_USE_GREETER, /* user: core_engine: to some worker of an engine */
    CORE_USE_SOURCE,  /* user: core_source */
    CORE_USE_SIBLING, /* from a worker of the own engine, at the leader */
    CORE_USE_TARGET,  /* user: core_target */
    CORE_USE_SHUT     /* was one; what still comes by it is no handshake */
} core_use;

struct core_line {
    core_link id;
    bool outgoing;
    char *address; /* outgoing: where to */
    char at[CORE_PLACE_TEXT]; /* the address of its name; "" it is no name */
    char peer[WIRE_INCARNATION_TEXT]; /* the first that spoke; "" nobody yet */
    char key[CORE_KEY_TEXT];          /* by which it does; "" without keys */
    uint64_t opened;
    core_use use;
    void *user;
    core_action open_action, close_action;
    core_line *target_prev, *target_next; /* of one target */
    UT_hash_handle hh;
};

core_line *core_line_open(node_core *core, const char *address, core_use use, void *user);
/* The line that messages come in by; makes it. NULL: out of memory. */
core_line *core_line_accept(node_core *core, core_link link, const char *key);
core_line *core_line_find(node_core *core, core_link link);
/* Tells the driver to close it, and forgets it. */
void core_line_close(node_core *core, core_line *line);
/* Of one that came in: who speaks over it has to open another. It is forgotten when the driver says that it ended. */
void core_line_shut(core_line *line);
/* Whether nobody has shaken hands over it. */
bool core_line_unused(const core_line *line);
/* Forgets it: the driver knows that it is gone. */
void core_line_drop(node_core *core, core_line *line);
/* Closes it and opens another to the same address. */
void core_line_again(node_core *core, core_line *line);

/* Sends; what cannot be sent is lost, as on the way. `to`: incarnation, "" unknown. */
void core_send_to(node_core *core, core_link link, const char *to, wire_message *message);
void core_send(node_core *core, core_line *line, wire_message *message);
/* Whether what was not taken yet is as much as the longest message: then a question with a long answer is ignored. */
bool core_much_queued(node_core *core);
/* ERROR: an answer to `about`. */
void core_send_reasons(node_core *core, core_link link, const wire_message *about,
                       const kvferry_report *reasons);
void core_send_error(node_core *core, core_link link, const wire_message *about, const char *code,
                     const char *expected, const char *found, const char *text);
/* ERROR: an answer to what needs a handshake before it. */
void core_send_hello_missing(node_core *core, core_link link, const wire_message *about);
/* HELLO and WELCOME: who this node is. `to`: the incarnation of the other; "" unknown. */
void core_send_hello(node_core *core, core_link link, const char *to, wire_type type, bool sibling,
                     const kvferry_report *reasons);
/* WELCOME to one that knows the own roster by its digest. */
void core_send_brief_welcome(node_core *core, core_link link, const char *to);

/* --- documents and rosters: core_document.c ------------------------------------------------------- */

typedef struct core_document {
    char digest[WIRE_DIGEST_TEXT];
    void *data; /* msgpack */
    size_t size;
    kvferry_layout *layout;
    uint32_t uses;
    uint64_t answer; /* the last to a GET that it is in, of the core's answers */
    UT_hash_handle hh;
} core_document;

core_document *core_document_find(node_core *core, const char *digest);
/* Takes over neither. KVFERRY_OK: in use once. */
kvferry_status core_document_add(node_core *core, const void *data, size_t size, core_document **document,
                                 kvferry_report *report);
void core_document_release(node_core *core, core_document *document);
/* Whether it is that worker's own: false with a reason. */
bool core_document_fits(const core_document *document, const char *engine_id, const kvferry_worker *worker,
                        kvferry_report *report);

/* One who lacks a document. Sits inside of what it is for. */
typedef struct core_waiter {
    core_want *want;     /* NULL: it does not wait */
    core_roster *roster; /* of which it is a member; NULL: it is a sibling */
    size_t index;        /* among the members, or siblings */
    struct core_waiter *prev, *next;
} core_waiter;

/* All who lack one document. */
struct core_want {
    char digest[WIRE_DIGEST_TEXT];
    core_waiter *waiters;
    UT_hash_handle hh;
};

/* Waits for a document that is not here. false: out of memory. */
bool core_waiter_begin(node_core *core, core_waiter *waiter, const char *digest);
void core_waiter_end(node_core *core, core_waiter *waiter);

/* All workers of an engine, as one roster message said; immutable but for documents that arrive. */
struct core_roster {
    wire_roster wire;
    char documents_digest[WIRE_DIGEST_TEXT]; /* of the members' digests */
    core_document **documents; /* by member */
    core_waiter *waiters;      /* the same */
    size_t missing;            /* documents that are not here */
    uint64_t bytes;            /* of those that are */
    core_holder *holder;       /* who made it: it counts as held by it while it is kept */
    uint64_t asked;            /* when documents were last asked for; 0: not */
    base_arena arena;
    uint32_t uses;
    uint32_t found, busy; /* as core_share.c looked last: uses that go with targets, what these ask for, */
    uint64_t heard;       /* and when one of these was heard */
    UT_hash_handle hh; /* by digest */
};

/*
 * The roster of the message: known, or made new; in use once more. KVFERRY_REFUSED: it is not what a roster must
 * be, or there is no room. Documents that are here are found. `who`: the name of the holder who says it.
 */
kvferry_status core_roster_get(node_core *core, const char *who, const wire_roster *wire, core_roster **roster,
                               kvferry_report *report);
/* The two halves of it: if it is known, *roster is in use once more, else it is looked at and *roster is NULL; */
kvferry_status core_roster_check(node_core *core, const wire_roster *wire, core_roster **roster,
                                 kvferry_report *report);
/* and one that was looked at is made. There may be more than there is room for: see core_share_settle. */
kvferry_status core_roster_make(node_core *core, const char *who, const wire_roster *wire, core_roster **roster,
                                kvferry_report *report);
void core_roster_release(node_core *core, core_roster *roster);
/* The member's index by its ranks; SIZE_MAX: there is none such. */
size_t core_roster_index(const core_roster *roster, const kvferry_worker *worker);
size_t core_wire_index(const wire_roster *roster, const kvferry_worker *worker);
/* Asks for the documents that are missing, over this line. */
void core_roster_fetch(node_core *core, core_roster *roster, core_line *line);
/* GET: sends what is here of it. DOCUMENTS: keeps what is wanted. */
void core_received_get(node_core *core, core_link link, const core_line *line, const wire_message *message);
void core_received_documents(node_core *core, core_link link, const char *key, const wire_message *message);
uint32_t core_worker_index(const kvferry_worker *worker);
uint64_t core_worker_count(const kvferry_worker *worker);

/* --- the own engine: core_own.c ------------------------------------------------------------------- */

typedef struct core_sibling {
    wire_member member;
    char *address;
    bool known;
    core_document *document;
    core_waiter waiter;
    core_link link; /* leader: where it speaks from */
} core_sibling;

kvferry_status core_own_create(node_core *core, kvferry_report *report);
void core_own_free(node_core *core);
void core_received_sibling(node_core *core, core_link link, const char *key, const wire_message *message);
void core_received_own_roster(node_core *core, core_line *line, const wire_message *message,
                              const wire_roster *wire);
/* Opens another link to the leader. */
void core_own_again(node_core *core);
/* Gives it to a sibling that lacks it. false: it is not its own, with a reason. */
bool core_own_give(node_core *core, size_t sibling, core_document *document, kvferry_report *report);
/* Documents have come. */
void core_own_documents(node_core *core);
void core_own_line_ended(node_core *core, core_line *line, core_link_end how);

/* --- plans: core_plan.c ---------------------------------------------------------------------------- */

typedef struct core_planned {
    char key[WIRE_DIGEST_TEXT * 2]; /* documents of the source roster, target's document */
    kvferry_plan *plan;      /* NULL: refused */
    kvferry_report *refusal;
    uint32_t uses;
    UT_hash_handle hh;
} core_planned;

/* Two rosters and what follows from them, as this node needs it. */
struct core_pairing {
    char key[WIRE_DIGEST_TEXT * 2 + 1];
    kvferry_side side; /* which one the own engine is */
    core_roster *source, *target;
    size_t own;              /* this node in its own roster */
    core_planned **planned;  /* by target; prefill: where it gives something; decode: only the own */
    bool *asks;              /* prefill: by target: it is to ask here. decode: by source: this node asks it */
    core_member **slots;     /* prefill: by target: members of offers, not settled */
    size_t ask_count;
    kvferry_report *refusal; /* NULL: it fits */
    core_job job;            /* makes the plans, one at a time */
    size_t next;             /* the target whose plan is made next */
    bool *used;              /* decode: by source: it is in a plan */
    bool complete;
    uint32_t uses;
    uint32_t found; /* uses by targets and their asks, as core_share.c looked last */
    UT_hash_handle hh;
};

/*
 * All documents must be here. KVFERRY_OK (also if refusal is set): in use once more. KVFERRY_BUSY: plans are being made,
 * and core_engine_documents and core_targets_documents will be called once they are. KVFERRY_NO_MEMORY.
 */
kvferry_status core_pairing_get(node_core *core, kvferry_side side, core_roster *source,
                                core_roster *target, core_pairing **pairing);
void core_pairing_release(node_core *core, core_pairing *pairing);
void core_pairings_free(node_core *core);

/* --- names and keys: core_name.c -------------------------------------------------------------------- */

/* The key in an address; "" it has none. */
const char *core_address_key(const char *address);
bool core_same_key(const char *a, const char *b);
/* Without keys everything fits. */
bool core_key_fits(const node_core *core, const char *address, const char *key);
/* By which key the worker was heard; NULL: it was not, as far back as that is remembered. */
const char *core_name_key(node_core *core, const char *incarnation);
/* Keeps it if the name is new. false: out of memory. */
bool core_name_keep(node_core *core, const char *incarnation, const char *key);
/* Whether the worker may be heard by the key (without keys: always): false with a reason, key_of_another. */
bool core_name_speaks(node_core *core, const char *incarnation, const char *key, kvferry_report *report);
bool core_same_worker(const char *engine_id, const kvferry_worker *worker, const char *its_engine_id,
                      const kvferry_worker *its);
/* Whether the incarnation may be that worker's: false with a reason, worker_of_another. */
bool core_worker_speaks(node_core *core, const char *engine_id, const kvferry_worker *worker,
                        const char *incarnation, kvferry_report *report);
/* Whether the members of a new roster may be who it says. KVFERRY_REFUSED, NO_MEMORY. */
kvferry_status core_roster_names(node_core *core, const wire_roster *wire, kvferry_report *report);
/* Whether no roster that is known has the worker with another key. */
bool core_rosters_agree(node_core *core, const char *incarnation, const char *key, kvferry_report *report);
void core_report_key(kvferry_report *report, const char *expected, const char *found, const char *incarnation);
void core_report_worker(kvferry_report *report, const char *expected, const char *found,
                        const char *incarnation);
void core_names_free(node_core *core);

/* --- blocks: core_check.c ----------------------------------------------------------------------------- */

/* Copies tables to the arena. false: out of memory. */
bool core_tables_copy(base_arena *arena, const kvferry_block_table *tables, size_t count,
                      kvferry_block_table **copy);
uint64_t core_tables_size(const kvferry_block_table *tables, size_t count);
/* The code of the first thing that is wrong, all of which is in the report; NULL: nothing is. */
const char *core_check_offer(node_core *core, const kvferry_offer *offer, kvferry_report *report);
const char *core_check_ask(node_core *core, const kvferry_ask *ask, kvferry_report *report);
/* Whether a struct of a caller is of this library's header, or a newer one's. */
bool core_check_size(node_core *core, const char *what, size_t found, size_t expected, kvferry_report *report);
kvferry_status core_owners_create(node_core *core);
void core_owners_free(node_core *core);
/* Marks or unmarks the blocks; how many they are. */
uint64_t core_owners_set(node_core *core, const kvferry_block_table *tables, size_t count, bool owned);

/* What is kept for one that asks too early. */
typedef struct core_share {
    core_supply *early; /* records of what was not offered yet, that it made */
    size_t early_count;
    core_member *parked; /* that have tables of it */
    uint64_t parked_bytes;
} core_share;

/* --- shares: core_share.c; those of the prefill side: core_prefill.h ------------------------------------- */

/* A key, or, without keys, a host. Lives as long as it holds anything. */
struct core_holder {
    char name[CORE_HOLDER];
    size_t uses, stones;
    uint64_t holds, can_go; /* of what was looked at last */
    UT_hash_handle hh;
};

/* What is bounded for all together. */
typedef enum core_kept {
    CORE_KEPT_PEERS,   /* workers of other engines */
    CORE_KEPT_MEMBERS, /* of rosters */
    CORE_KEPT_BYTES    /* of documents */
} core_kept;

/* Who speaks by the key in the message that is looked at: the name of a holder. */
const char *core_share_who(const node_core *core, const char *key);
/* The same of who is at an address that this node opens a link to. */
const char *core_share_who_at(const node_core *core, const char *address);
/* In use once more. NULL: out of memory. */
core_holder *core_holder_get(node_core *core, const char *who);
void core_holder_release(node_core *core, core_holder *holder);
/*
 * Whether so much more fits, or fits once all that hold more than `who` would have lost what they have more, as far as
 * it can go: then core_share_settle makes it fit.
 */
bool core_share_has_room(node_core *core, core_kept what, const char *who, uint64_t more);
/*
 * While it is too much, who holds most, and more than `who`, loses a target, or a roster with all its targets. It may be
 * any target of another one's roster. false: it is too much, and nobody can lose any.
 */
bool core_share_settle(node_core *core, core_kept what, const char *who);
uint64_t core_share_limit(const node_core *core, core_kept what);
/* The reason why there is no room, and its code. */
const char *core_share_code(core_kept what);
void core_share_report(const node_core *core, core_kept what, kvferry_report *report);

/* --- the core ------------------------------------------------------------------------------------------- */

typedef struct core_tombstone {
    char incarnation[WIRE_INCARNATION_TEXT];
    bool proven; /* it is dead; else another has taken its place, as far as is known */
    uint64_t forget_at;
    core_holder *holder;
    struct core_tombstone *prev, *next;
    UT_hash_handle hh;
} core_tombstone;

#define CORE_TOLD 1024

/* Offers whose members are kept, each with a limit of its own: what is past takes no room of who asks early. */
enum { CORE_OFFERS_EARLY, CORE_OFFERS_EXPECTED, CORE_OFFERS_PAST, CORE_OFFERS_KINDS };

struct node_core {
    core_options options; /* strings and binding are the arena's */
    base_arena arena;
    kvferry_layout *layout; /* the own document's */
    core_document *document;
    const char *engine_id;
    kvferry_worker worker;
    uint32_t rank; /* in (dp, pp, tp) order */
    char incarnation[WIRE_INCARNATION_TEXT];
    uint64_t now, random;
    uint64_t next_line, next_peer, next_write, next_query;
    const char *place; /* where the message that is looked at came from; "" not known, or none is */
    bool draining, leaving, left;
    bool keyed; /* links have keys */
    struct core_name *names, *name_list;

    core_timer **heap;
    size_t heap_count, heap_capacity, timer_count;
    core_action *first_action, *last_action, *taken;
    uint64_t queued_bytes; /* of messages in them */
    core_job *jobs;
    uint64_t spent; /* on jobs since there was last nothing to do */
    core_event *first_event, *last_event;

    core_document *documents;
    core_want *wants;
    core_roster *rosters;
    core_planned *planned;
    core_pairing *pairings;
    core_line *lines;
    uint64_t document_bytes, roster_members; /* of all that are kept */
    uint64_t answers; /* to GET, all that were made */

    core_roster *own; /* NULL: incomplete */
    core_sibling *siblings; /* leader: by rank */
    size_t sibling_count;
    bool agreed; /* leader: `own` is what the siblings say; a sibling: what the leader said last */
    char *leader;
    core_line *leader_line;
    core_roster *fetching; /* a sibling: the own roster, of which documents are missing */
    core_timer own_timer;

    core_engine *engines;
    core_source *sources;
    core_request *requests;
    core_request *past_requests;
    core_request *telling; /* those that are released and still told, the oldest first */
    size_t past_request_count, request_count; /* not released */
    core_tombstone *tombstones, *tombstone_list;
    uint64_t **owners; /* by group: a bit for each block */

    core_target *targets;
    core_channel *channels;
    core_write *writes;
    core_supply *offers;
    core_supply *expected_offers, *past_offers; /* the early ones are in shares */
    size_t early_count, expected_count, past_count;
    size_t kept_members[CORE_OFFERS_KINDS];
    size_t offer_count; /* not released */
    uint64_t early_bytes; /* of tables of asks */
    core_share strangers;
    core_holder *holders;
    uint64_t told[CORE_TOLD];
    size_t told_at;

    kvferry_node_statistics statistics;
    node_codes refusals; /* column 0 */
    struct {
        uint64_t malformed, refused_keys, refused_connections, events;
    } driver;
};

void core_log(node_core *core, kvferry_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Of a transfer: names it, the other side's engine and its workers. `text`: why; "": nothing to add. */
void core_log_request(node_core *core, kvferry_log_level level, const core_request *request, const char *what,
                      const char *text);
void core_log_supply(node_core *core, kvferry_log_level level, const core_supply *offer, const char *what,
                     const char *text);
/* A worker in words for a log line, in a buffer of base_format: "decode-0 tp1/4 pp0/1, incarnation ...". */
const char *core_worker_words(const char *engine_id, const kvferry_worker *worker, const char *incarnation);
void core_count_refused(node_core *core, const char *code);
/* A worker and the host that it speaks from, "" not known, in a buffer of base_format. */
const char *core_who(const char *who, const char *place);
/* A refused peer: logged once for each place and code, counted every time. */
void core_refused(node_core *core, const char *engine_id, const char *who, const kvferry_report *reasons);
uint64_t core_random(node_core *core);
void core_incarnation_text(uint64_t value, char text[WIRE_INCARNATION_TEXT]);
/* Reasons of one, for a message; NULL when out of memory. */
kvferry_report *core_reason(const char *code, const char *expected, const char *found, const char *text);
/* "1 block", "7 blocks", in a buffer of base_format. */
const char *core_counted(uint64_t count, const char *one);
/* Into the report: a name of a dead worker that this node does not know. */
void core_report_unknown_worker(const node_core *core, const char *incarnation, kvferry_report *report);
void core_reasons_copy(kvferry_report *to, const kvferry_report *from, size_t limit);
const char *core_reasons_code(const kvferry_report *reasons, const char *otherwise);
const char *core_reasons_text(const kvferry_report *reasons, const char *otherwise);
void core_code_set(char code[CORE_CODE], const char *from);
/* Proven to be dead: what still comes of it is from before. */
bool core_dead(node_core *core, const char *incarnation);
bool core_replaced(node_core *core, const char *incarnation);
/* `who`: the name of the holder. */
void core_tombstone_add(node_core *core, const char *who, const char *incarnation, bool proven);
/* It lives, other than it seemed. */
void core_tombstone_remove(node_core *core, const char *incarnation);
void core_tombstone_drop(node_core *core, core_tombstone *stone);
/* The oldest of who has most: the next to be forgotten. There are some. */
core_tombstone *core_share_stone(const node_core *core);
/* Once everything is ended for good and no write is in flight: says BYE. */
void core_leave(node_core *core);
/* The own roster changed, or went. */
void core_own_changed(node_core *core);

#include "node/core_decode.h"
#include "node/core_prefill.h"

#endif
