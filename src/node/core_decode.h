/* SPDX-License-Identifier: Apache-2.0 */
/* The decode side inside of the core: engines that are asked, their workers, asks. */
#ifndef KVFERRY_NODE_CORE_DECODE_H
#define KVFERRY_NODE_CORE_DECODE_H

#include "node/core_internal.h"

/* --- decode: engines and their workers: core_engine.c, core_source.c ------------------------------- */

typedef enum core_engine_state {
    CORE_ENGINE_WAITS,    /* for the own roster */
    CORE_ENGINE_RESOLVES, /* for addresses */
    CORE_ENGINE_GREETS,   /* for a WELCOME with a complete roster */
    CORE_ENGINE_FETCHES,  /* for documents */
    CORE_ENGINE_LINKS,    /* for a WELCOME of each worker that it has to ask */
    CORE_ENGINE_CONNECTED
} core_engine_state;

struct core_engine {
    char id[CORE_ID]; /* "" until it is known */
    char *where;
    core_engine_state state;
    bool announce; /* its state is still to be told: CONNECTED or DISCONNECTED */
    uint64_t query, deadline;
    char **addresses;
    size_t address_count, address_at;
    size_t unproved; /* links that ended so, one after the other */
    uint64_t unproved_since;
    core_line *line;
    core_timer timer;
    core_roster *roster;
    core_pairing *pairing;
    core_source **sources; /* by index in the roster; NULL: not asked */
    core_event *event;     /* made before it is needed */
    kvferry_report *trouble; /* why the last question for addresses got no answer; NULL: none was asked in vain */
    core_request *requests; /* that wait for it */
    core_engine *prev, *next;
};

/* --- core_where.c: whether it is an address, no place to ask for some */
bool core_where_is_direct(const char *where);
void core_engine_forget_addresses(core_engine *engine);
/* That a worker may be found at. false: out of memory. */
bool core_engine_set_addresses(core_engine *engine, const char *const *addresses, size_t count);
/* Why there was no answer, for the case that none comes in time. */
void core_engine_keep_trouble(core_engine *engine, const kvferry_report *report);

/* --- core_engine.c */
core_engine *core_engine_find(node_core *core, const char *engine_id, const char *where);
/* Finds or begins. KVFERRY_REFUSED, NO_MEMORY. */
kvferry_status core_engine_get(node_core *core, const char *engine_id, const char *where,
                               core_engine **engine, kvferry_report *report);
/* What was agreed holds no more: shakes hands again, for connect_ns at most. */
void core_engine_again(node_core *core, core_engine *engine);
/* ERROR of the worker that it greets. */
void core_engine_error(node_core *core, core_engine *engine, const kvferry_report *reasons);
void core_engine_fail(node_core *core, core_engine *engine, const kvferry_report *reasons);
void core_engine_fail_with(node_core *core, core_engine *engine, const char *code, const char *expected,
                           const char *found, const char *text);
void core_engine_welcome(node_core *core, core_line *line, const wire_message *message);
void core_engine_documents(node_core *core);
void core_engine_line_ended(node_core *core, core_line *line, core_link_end how);
void core_engine_source_ready(node_core *core, core_engine *engine);
void core_engines_own_changed(node_core *core);
void core_engine_free(node_core *core, core_engine *engine);

struct core_source {
    char incarnation[WIRE_INCARNATION_TEXT];
    char engine_id[CORE_ID];
    kvferry_worker worker;
    char *address;
    char at[CORE_PLACE_TEXT]; /* where it was heard, if its address is a name; "" it is none, or was not */
    core_line *line;
    core_engine *engine; /* that it serves; NULL: only kept for what is not confirmed */
    uint32_t minor;      /* of the version that it spoke last, once it is welcomed */
    bool welcomed, dead, lost;
    bool replaced;       /* and that is why it is dead */
    bool held;           /* somebody walks over its parts */
    uint64_t heard;      /* when it last said anything */
    uint64_t unanswered; /* since when it owes an answer; 0: it does not */
    core_linger linger; /* dead: what it sent may still arrive */
    uint64_t lease_ns;
    core_part *parts;    /* not yet closed */
    core_timer timer;
    UT_hash_handle hh;
};

core_source *core_source_find(node_core *core, const char *incarnation);
core_source *core_source_get(node_core *core, core_engine *engine, const wire_member *member);
void core_source_unuse(node_core *core, core_source *source);
/* Frees it if nothing needs it. */
void core_source_leave(node_core *core, core_source *source);
void core_source_heard(node_core *core, core_source *source);
void core_source_send(node_core *core, core_source *source, wire_message *message);
void core_source_welcome(node_core *core, core_source *source, const wire_message *message);
/* Over a link that was opened after it last spoke somebody speaks another version: it is no more. */
void core_source_other_version(node_core *core, core_source *source, const kvferry_report *reasons);
/* `lingers`: what it sent may still arrive. */
void core_source_died(node_core *core, core_source *source, bool lingers, const char *code, const char *text);
/* It said goodbye: what it was asked for and did not finish may have been cut, and its last bytes be behind that word. */
void core_source_left(node_core *core, core_source *source);
void core_source_again(node_core *core, core_source *source);
void core_source_line_ended(node_core *core, core_line *line, core_link_end how);
void core_source_busy(node_core *core, core_source *source);
/* Somebody speaks over a link that was opened to an address. `worker` NULL: it says no rank. */
void core_sources_replaced(node_core *core, const core_line *line, const char *engine_id,
                           const kvferry_worker *worker, const char *incarnation);
void core_source_free(node_core *core, core_source *source);

/* What is in quarantine since a source has not confirmed. */
typedef struct core_hold {
    uint64_t transfers, blocks; /* that wait for none but it, and others that are dead */
    uint64_t waiting;           /* transfers that wait for others too */
    uint64_t held;              /* blocks of all of them */
} core_hold;
core_hold core_source_holds(const core_source *source);
/* Says what a silent one holds, and how that can be ended. */
void core_source_log_hold(node_core *core, const core_source *source);
/* DECLARE_DEAD: core_operator.c. */
void core_received_death(node_core *core, core_link link, const char *key, const wire_message *message);

/* --- decode: requests: core_request.c, core_part.c -------------------------------------------------- */

typedef enum core_request_state {
    CORE_REQUEST_CONNECTS,
    CORE_REQUEST_ASKS,
    CORE_REQUEST_ENDED, /* not all sources have confirmed, or not all know */
    CORE_REQUEST_PAST
} core_request_state;

/* One source of a request. */
struct core_part {
    core_request *request;
    core_source *source;
    size_t index;   /* in the source roster */
    char attempt[WIRE_INCARNATION_TEXT];
    bool asked;     /* it may write */
    bool answered;  /* what it was asked, by anything */
    bool again;     /* asked with another attempt before, which was refused */
    bool done;      /* it said so */
    bool confirmed; /* it writes nothing any more */
    bool told;      /* it needs to hear no more */
    bool arrived;   /* it is dead, and its last bytes were waited for */
    bool in_part;   /* done: it left out what comes before windows, since it does not hold it */
    uint64_t copies, bytes;
    bool verifies; /* it is written, and checksums are being made and compared with those that its source sent */
    core_sum sum;
    wire_verdict said; /* its checksums are the part's */
    core_part *prev, *next; /* of the source */
};

struct core_request {
    char id[CORE_ID];
    core_request_state state;
    char refused_rosters[WIRE_DIGEST_TEXT * 2]; /* those with which it was once asked in vain */
    core_engine *engine;
    core_pairing *pairing; /* once asked */
    uint64_t tokens, begun, deadline, ended_at;
    uint64_t tell_until; /* released: then those that do not answer are not told any more; else the end of time */
    bool released, verify, whole_blocks;
    bool allow_part; /* with whole_blocks */
    bool lingers; /* all have confirmed, and their last bytes are waited for */
    bool restarted; /* it is asked again, of one that took the place of a dead one which had not answered */
    const char *where; /* its engine is */
    core_linger linger;
    kvferry_outcome outcome;
    kvferry_report *reasons;
    kvferry_block_table *tables;
    size_t table_count;
    uint64_t blocks; /* owned */
    base_arena arena; /* tables */
    core_part *parts;
    size_t part_count;
    core_event *ended, *released_event;
    core_timer timer;
    core_request *prev, *next; /* of the engine it waits for, or of the ended ones */
    core_request *told_prev, *told_next;
    bool tells; /* it is released, and some are still told: in the core's list */
    UT_hash_handle hh;
};

void core_request_connected(node_core *core, core_request *request);
void core_request_end(node_core *core, core_request *request, kvferry_outcome outcome, const char *code,
                      const char *text, const kvferry_report *reasons);
/* Looks whether it is released, or over. May free it. */
void core_request_advance(node_core *core, core_request *request);
/* It is released, and not all know: core_tell.c. It ends by its own timer, at tell_until at the latest. */
void core_request_tell_begin(node_core *core, core_request *request);
void core_request_tell_end(node_core *core, core_request *request);
void core_received_verdict(node_core *core, core_line *line, const wire_message *message);
void core_received_settled(node_core *core, core_line *line, const wire_message *message);
void core_received_source_error(node_core *core, core_line *line, const wire_message *message);
core_part *core_parts_find(core_request *request, const char *incarnation);
/* The sources as the engine has them now; of those that were asked before, what they said holds. */
bool core_parts_make(node_core *core, core_request *request, core_engine *engine);
void core_parts_free(node_core *core, core_request *request);
void core_part_send(node_core *core, core_part *part);
void core_part_close(node_core *core, core_part *part);
/* Its source was replaced by another incarnation. false: that ends the request; else the other will be asked. */
bool core_part_survives(node_core *core, core_part *part);
void core_part_confirm(node_core *core, core_part *part, bool told);
/* Begins to compare checksums; then it is done, or the request fails. */
void core_part_verify(node_core *core, core_part *part, const wire_verdict *verdict);
void core_part_leave_sum(node_core *core, core_part *part);
void core_part_done(node_core *core, core_part *part, uint64_t copies, uint64_t bytes);
kvferry_status core_supply_abort(node_core *core, const char *transfer_id);
kvferry_status core_request_abort(node_core *core, const char *transfer_id);
void core_requests_free(node_core *core);

#endif
