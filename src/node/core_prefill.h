/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill side inside of the core: workers that ask, offers, writes. */
#ifndef KVFERRY_NODE_CORE_PREFILL_H
#define KVFERRY_NODE_CORE_PREFILL_H

#include "node/core_internal.h"

/* --- prefill: targets, offers, writes ----------------------------------------------------------------- */

/* A decode worker that may ask. */
struct core_target {
    char incarnation[WIRE_INCARNATION_TEXT];
    char engine_id[CORE_ID];
    char key[CORE_KEY_TEXT]; /* "" without keys */
    wire_member member;
    char *address;
    bool welcomed; /* else its engine's documents are still to come */
    bool waits;    /* for its welcome: documents or plans are missing */
    bool knows;    /* the own roster, by its digest */
    core_holder *holder;
    core_roster *roster;
    core_pairing *pairing;
    core_line *lines, *line; /* all, and the last that it spoke over */
    uint64_t heard, unanswered;
    uint32_t busy; /* members that asked and are not settled */
    void *binding;
    size_t binding_size;
    core_channel *channel;
    core_share share;
    core_timer timer;
    UT_hash_handle hh;
};

core_target *core_target_find(node_core *core, const char *incarnation);
void core_received_hello(node_core *core, core_link link, const char *key, const wire_message *message);
/* The target that speaks over the line and is welcome; NULL: none. */
core_target *core_target_speaking(core_line *line, const wire_message *message);
void core_targets_documents(node_core *core);
void core_target_heard(node_core *core, core_target *target, core_line *line);
void core_target_lost(node_core *core, core_target *target, const char *code, const char *text);
/* It is told why it cannot be served, and is lost. */
void core_target_turn_away(node_core *core, core_target *target, const kvferry_report *reasons, const char *text);
/* It makes room. */
void core_target_displaced(node_core *core, core_target *target, core_kept what, const char *text);
void core_target_busy(node_core *core, core_target *target, bool more);
/* Ends all other lines of the line's target: what lies unread in them is of one that has to shake hands again. */
void core_target_keep_line(core_line *line);
void core_target_line_ended(node_core *core, core_line *line);
void core_targets_free(node_core *core);

/* The transfer engine's connection to a target. Outlives the target until its writes are over. */
struct core_channel {
    uint64_t peer;
    core_target *target; /* NULL: it is closed */
    void *binding;
    core_action connect_action, close_action;
    core_write *writes;
    core_member *queue; /* that have more to write, in turn */
    core_job job;       /* writes for those in the queue what finds room */
    uint64_t copies;    /* expanded and not yet done */
    UT_hash_handle hh;
};

core_channel *core_channel_open(node_core *core, core_target *target);
void core_channel_close(node_core *core, core_channel *channel);

/* A slice of what a member asked for. */
struct core_write {
    uint64_t id;
    core_channel *channel;
    core_supply *offer;
    core_member *member;
    kvferry_copy *copies;
    size_t count;
    uint64_t bytes;
    bool canceled;
    core_action write_action, cancel_action;
    core_write *prev, *next; /* of the channel */
    core_write *member_prev, *member_next;
    UT_hash_handle hh;
};

/* What the member asked for is written, slice by slice, in turn with others of its target. May settle it. */
void core_write_begin(node_core *core, core_member *member);
/* Of all writes of the member. None may be over then. */
void core_write_cancel_all(node_core *core, core_member *member);
void core_channels_free(node_core *core);

typedef enum core_member_state {
    CORE_MEMBER_EXPECTED,
    CORE_MEMBER_WAITS,  /* asked; the blocks are not ready, or not offered */
    CORE_MEMBER_QUEUED, /* for its turn at the channel, and nothing is in flight */
    CORE_MEMBER_WRITES,
    CORE_MEMBER_SUMS,    /* with verify: all is written, checksums are being made */
    CORE_MEMBER_WRITTEN, /* with verify: until the target has compared */
    CORE_MEMBER_SETTLED
} core_member_state;

/* What a target does with an offer. */
struct core_member {
    core_supply *offer;
    char incarnation[WIRE_INCARNATION_TEXT];
    char attempt[WIRE_INCARNATION_TEXT]; /* "" did not ask */
    core_member_state state;
    bool counted; /* the offer waits for it */
    bool replaced; /* by a worker that was started in its rank; still expected until its deadline */
    bool asked, verify, whole_blocks;
    bool allow_part; /* with whole_blocks, until it is decided whether what comes before windows is left out */
    bool in_part;    /* it is left out */
    bool pending;            /* how it ends is decided; its writes are not over yet */
    bool expanded;           /* nothing is left to write */
    bool settle_asked;       /* an answer SETTLED is owed, over settle_link */
    core_link settle_link;
    char settle_attempt[WIRE_INCARNATION_TEXT];
    size_t slot;             /* in the pairing's targets; SIZE_MAX: in none */
    core_pairing *pairing;   /* whose slot; NULL: none */
    wire_outcome outcome;
    char code[CORE_CODE];
    kvferry_report *reasons;
    uint64_t copies, bytes, tokens, asked_at, deadline;
    core_sum sum;            /* with verify, from SUMS on */
    kvferry_block_table *tables;
    size_t table_count;
    uint64_t table_bytes;
    base_arena arena; /* tables, until they are not needed */
    plan_cursor cursor; /* what of the tables is still to be written */
    core_write *writes; /* in flight */
    size_t write_count;
    core_channel *channel; /* in whose queue it is */
    core_share *share;     /* that its tables are in; NULL: none */
    core_member *slot_prev, *slot_next, *queue_prev, *queue_next, *share_prev, *share_next;
    core_member *next; /* of the offer */
};

typedef enum core_supply_state {
    CORE_SUPPLY_EARLY, /* not offered: asks that came before, or settles */
    CORE_SUPPLY_LIVE,
    CORE_SUPPLY_ENDED, /* writes are in flight */
    CORE_SUPPLY_PAST
} core_supply_state;

struct core_supply {
    char id[CORE_ID];
    core_supply_state state;
    bool ready, expected; /* expected: core_expect */
    bool held;            /* somebody walks over its members */
    char engine_id[CORE_ID]; /* that asked first; "" nobody yet */
    core_pairing *pairing;
    core_member *members;
    size_t member_count, open; /* open: counted and not settled */
    size_t writes;             /* in flight */
    uint64_t tokens, begun, ended_at;
    uint64_t lease_end; /* but see core_supply_held_until */
    uint64_t copies, bytes;
    kvferry_outcome outcome;
    kvferry_block_table *tables;
    size_t table_count;
    base_arena arena;
    core_event *ended, *released;
    core_timer timer;
    core_supply *prev, *next; /* of the early, or of the past ones */
    core_share *share;        /* early, and not expected: whose */
    core_supply *share_prev, *share_next;
    UT_hash_handle hh;
};

core_supply *core_supply_find(node_core *core, const char *id);
void core_received_ask(node_core *core, core_link link, core_line *line, const wire_message *message);
void core_received_settle(node_core *core, core_link link, core_line *line, const wire_message *message);
void core_received_renew(node_core *core, core_link link, core_line *line, const wire_message *message);
void core_supply_end(node_core *core, core_supply *offer, kvferry_outcome outcome, const char *code,
                    const char *text, const kvferry_report *reasons);
/* Looks whether all have settled, or all is released. May free it: the offer is not to be used afterwards. */
void core_supply_advance(node_core *core, core_supply *offer);
void core_supply_schedule(node_core *core, core_supply *offer);
/* The end of the lease, or of the last ask that is not settled, whichever comes later. */
uint64_t core_supply_held_until(const core_supply *offer);
/* Everything of both sides. */
void core_abort_all(node_core *core);
void core_supplies_free(node_core *core);
/* Whether it is no more than what others asked for: not offered, nor expected. */
bool core_supply_is_loose(const core_supply *offer);
/* Those that are loose and with the roster: what was asked for fails. */
void core_supplies_forget(node_core *core, const core_roster *roster, const char *code, const char *text);
/* Finds, or makes a record of what was not offered yet, for the target (NULL: whoever). NULL: out of memory. */
core_supply *core_supply_get(node_core *core, const char *id, core_target *target);
/* The same, but NULL where it would take the place of another one of this target. */
core_supply *core_supply_get_free(node_core *core, const char *id, core_target *target);

/* --- shares: core_share.c ------------------------------------------------------------------------------ */

/* `target` NULL: of nobody that is known. */
void core_share_enter(node_core *core, core_target *target, core_supply *offer);
void core_share_leave(core_supply *offer);
/* The oldest early offer of who has most of them; NULL: there is none. */
core_supply *core_share_oldest(const node_core *core);
void core_share_park(core_target *target, core_member *member);
void core_share_unpark(core_member *member);
/* Room for tables of an ask, at the cost of who has more of it. false: there is none, the target itself has most. */
bool core_share_room(node_core *core, core_target *target, uint64_t bytes);
/* Of a target that goes. */
void core_share_end(node_core *core, core_share *share);

core_member *core_member_find(core_supply *offer, const char *incarnation);
core_member *core_member_add(node_core *core, core_supply *offer, const char *incarnation);
/* How many members of offers of a kind are kept, early or past, and the count of those of this offer's kind. */
size_t core_kept_limit(const node_core *core);
size_t *core_kept_members(node_core *core, const core_supply *offer);
/* Of the channel in whose queue it is, if it is in one. */
void core_member_leave_queue(core_member *member);
/* Of its reasons only the first. */
void core_member_shrink(core_member *member);
bool core_member_ask(node_core *core, core_member *member, core_target *target, const wire_ask *ask);
/* As if it had not asked: it will again. */
void core_member_forget_ask(node_core *core, core_member *member);
void core_member_send_verdict(node_core *core, core_member *member, core_link link);
/* Ends what the member wants; its write is canceled first, and the verdict comes when it is over. */
void core_member_settle(node_core *core, core_member *member, wire_outcome outcome, const char *code,
                        const char *text, const kvferry_report *reasons);
/* All is written, or not all of it will be. */
void core_member_write_over(node_core *core, core_member *member, kvferry_status status, const char *detail);
/* The request as a plan expands it; its tables are the offer's and the member's. */
kvferry_request core_member_request(const core_member *member);
/* NULL: it gets nothing from here. */
core_planned *core_member_planned(const core_member *member);
void core_member_proceed(node_core *core, core_member *member);
/* Another worker was started in its rank: if it is expected, it is until early_ns are over. */
void core_member_replaced(node_core *core, core_member *member);
void core_member_free(node_core *core, core_member *member);

#endif
