/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill side: what decode workers say about offers. */
#include "node/core_internal.h"

#include <stdio.h>

/* A verdict about what has no member. */
static void send_refusal(node_core *core, core_link link, const wire_message *about, const char *code,
                         const char *expected, const char *found, const char *text)
{
    kvferry_report *reasons = core_reason(code, expected, found, text);
    if (!reasons)
        return;
    wire_message message = {
        .type = WIRE_VERDICT, .transfer_id = about->transfer_id, .reasons = reasons};
    memcpy(message.body.verdict.attempt, about->body.ask.attempt, sizeof(message.body.verdict.attempt));
    message.body.verdict.outcome = WIRE_FAILED;
    core_count_refused(core, code);
    core_log(core, KVFERRY_LOG_INFO, "transfer %s, worker %s: %s, %s", about->transfer_id, about->sender,
             code, text);
    core_send_to(core, link, about->sender, &message);
    kvferry_report_free(reasons);
}

static void send_waiting(node_core *core, core_link link, const wire_message *about, const char *attempt)
{
    wire_message message = {.type = WIRE_VERDICT, .transfer_id = about->transfer_id};
    memcpy(message.body.verdict.attempt, attempt, sizeof(message.body.verdict.attempt));
    message.body.verdict.outcome = WIRE_WAITING;
    core_send_to(core, link, about->sender, &message);
}

/* The offer waits for this member, in its pairing's slot. */
static void count_in(core_supply *offer, core_member *member, size_t slot)
{
    member->counted = true;
    member->slot = slot;
    if (member->state == CORE_MEMBER_SETTLED)
        return;
    offer->open++;
    member->pairing = offer->pairing;
    DL_APPEND2(offer->pairing->slots[slot], member, slot_prev, slot_next);
}

/* Its members are those of the pairing. */
static bool claim(node_core *core, core_supply *offer, core_target *target)
{
    core_pairing *pairing = target->pairing;
    for (size_t i = 0; i < pairing->target->wire.count; i++) {
        const char *incarnation = pairing->target->wire.members[i].incarnation;
        if (pairing->asks[i] && !core_member_find(offer, incarnation) &&
            !core_member_add(core, offer, incarnation))
            return false;
    }
    offer->pairing = pairing;
    pairing->uses++;
    snprintf(offer->engine_id, sizeof(offer->engine_id), "%s", target->engine_id);
    for (size_t i = 0; i < pairing->target->wire.count; i++)
        if (pairing->asks[i])
            count_in(offer, core_member_find(offer, pairing->target->wire.members[i].incarnation), i);
    return true;
}

/* Members of which it is known that they never will ask make place for those that came after them. */
static void note_replaced(node_core *core, core_supply *offer)
{
    for (core_member *member = offer->members; member; member = member->next)
        if (core_replaced(core, member->incarnation))
            core_member_replaced(core, member);
}

/* The member that has the target's rank in the offer; NULL: none. */
static core_member *find_rank(core_supply *offer, const core_target *target)
{
    size_t slot = core_roster_index(offer->pairing->target, &target->member.worker);
    core_member *member;
    for (member = offer->members; member; member = member->next)
        if (member->counted && slot != SIZE_MAX && member->slot == slot)
            return member;
    return NULL;
}

/*
 * A worker that was started again takes the place of the one before it, if that one said nothing about the offer
 * and had the same caches. NULL: it is not so, or memory ran out.
 */
static core_member *take_place(node_core *core, core_supply *offer, core_target *target)
{
    core_member *before = find_rank(offer, target);
    core_roster *roster = target->pairing->target;
    size_t slot = core_roster_index(roster, &target->member.worker);
    if (!before || slot == SIZE_MAX || before->asked || before->settle_asked ||
        !core_key_fits(core, offer->pairing->target->wire.members[slot].address, target->key) ||
        strcmp(offer->pairing->target->wire.members[slot].digest, roster->wire.members[slot].digest) != 0)
        return NULL;
    core_member *member = core_member_add(core, offer, target->incarnation);
    if (!member)
        return NULL;
    count_in(offer, member, slot);
    core_member_settle(core, before, WIRE_FAILED, "incarnation", "the decode worker was restarted", NULL);
    before->counted = false;
    return member;
}

/* Whether the rosters of the ask are those that hold. */
static bool rosters_hold(const node_core *core, const core_target *target, const wire_ask *ask)
{
    return core->own && target->pairing->source == core->own &&
           strcmp(ask->source_roster, core->own->wire.digest) == 0 &&
           strcmp(ask->target_roster, target->pairing->target->wire.digest) == 0;
}

/* One that is not among those that the offer is for. */
static void refuse_other(node_core *core, core_link link, core_target *target, core_supply *offer,
                         const wire_message *message)
{
    const core_member *before = find_rank(offer, target);
    const core_pairing *pairing = target->pairing;
    size_t slot = core_roster_index(pairing->target, &target->member.worker);
    if (before)
        send_refusal(core, link, message, "incarnation", before->incarnation, target->incarnation,
                     "the decode worker of this rank that the transfer is with");
    else if (pairing != offer->pairing && slot != SIZE_MAX && pairing->asks[slot])
        send_refusal(core, link, message, "roster_changed", offer->pairing->target->wire.digest,
                     pairing->target->wire.digest, "the decode workers that the transfer is with");
    else
        send_refusal(core, link, message, "target_unexpected", "a worker that gets something from here",
                     target->incarnation, "the decode worker");
}

/* The member for a first ask; NULL: it was refused, or there is no memory. */
static core_member *first_ask(node_core *core, core_link link, core_target *target, core_supply *offer,
                              const wire_message *message)
{
    const wire_ask *ask = &message->body.ask;
    if (offer->state >= CORE_SUPPLY_ENDED) {
        send_refusal(core, link, message, "transfer_over", "a transfer that has not ended",
                     kvferry_outcome_name(offer->outcome), "the transfer");
        return NULL;
    }
    if (!rosters_hold(core, target, ask)) {
        send_refusal(core, link, message, "roster_changed", core->own ? core->own->wire.digest : "none",
                     ask->source_roster, "the workers of an engine have changed since the handshake");
        return NULL;
    }
    if (*offer->engine_id && strcmp(offer->engine_id, target->engine_id) != 0) {
        send_refusal(core, link, message, "transfer_taken", offer->engine_id, target->engine_id,
                     "the decode engine of the transfer");
        return NULL;
    }
    if (!*offer->engine_id) {
        if (!claim(core, offer, target))
            return NULL;
        note_replaced(core, offer);
    }
    core_member *member = core_member_find(offer, message->sender);
    if (!member)
        member = take_place(core, offer, target);
    if (!member)
        refuse_other(core, link, target, offer, message);
    return member;
}

static void repeat_ask(node_core *core, core_link link, core_member *member, const wire_message *message)
{
    if (*member->attempt && strcmp(member->attempt, message->body.ask.attempt) != 0) {
        send_refusal(core, link, message, "transfer_over", member->attempt, message->body.ask.attempt,
                     "the attempt");
        return;
    }
    core->statistics.ignored++;
    if (!*member->attempt) /* it settled without having asked */
        memcpy(member->attempt, message->body.ask.attempt, sizeof(member->attempt));
    core_member_send_verdict(core, member, link);
}

/* The worker that shook hands over this line; NULL: none has, and is told. */
static core_target *speaker(node_core *core, core_link link, core_line *line, const wire_message *message)
{
    core_target *target = core_target_speaking(line, message);
    if (target) {
        core_target_heard(core, target, line);
        return target;
    }
    core->statistics.ignored++;
    core_send_hello_missing(core, link, message);
    return NULL;
}

void core_received_ask(node_core *core, core_link link, core_line *line, const wire_message *message)
{
    core_target *target = speaker(core, link, line, message);
    core_supply *offer = target ? core_supply_get(core, message->transfer_id, target) : NULL;
    if (!offer)
        return;
    core_member *member = core_member_find(offer, message->sender);
    if (member && (*member->attempt || member->state == CORE_MEMBER_SETTLED)) {
        repeat_ask(core, link, member, message);
        return;
    }
    offer->held = true;
    member = first_ask(core, link, target, offer, message);
    offer->held = false;
    if (member && member->state == CORE_MEMBER_SETTLED) {
        repeat_ask(core, link, member, message);
    } else if (member) {
        uint64_t size = core_tables_size(message->body.ask.tables, message->body.ask.table_count);
        /* What finds no room now is not kept: it will be asked again. */
        if (core_share_room(core, target, size) && core_member_ask(core, member, target, &message->body.ask))
            core_member_proceed(core, member);
        if (member->state < CORE_MEMBER_WRITTEN)
            send_waiting(core, link, message, message->body.ask.attempt);
        core_supply_schedule(core, offer);
    }
    core_supply_advance(core, offer);
}

/* --- settling ---------------------------------------------------------------------------------------------- */

static void send_settled(node_core *core, core_link link, const wire_message *about, wire_outcome outcome)
{
    wire_message message = {.type = WIRE_SETTLED, .transfer_id = about->transfer_id};
    memcpy(message.body.verdict.attempt, about->body.verdict.attempt,
           sizeof(message.body.verdict.attempt));
    message.body.verdict.outcome = outcome;
    core_send_to(core, link, about->sender, &message);
}

static void settle(node_core *core, core_link link, core_member *member, const wire_message *message)
{
    static const char *const codes[] = {"", "target_failed", "target_aborted", "target_expired"};
    const wire_verdict *verdict = &message->body.verdict;
    if (member->state == CORE_MEMBER_SETTLED) {
        core->statistics.ignored++;
        send_settled(core, link, message, member->outcome);
        return;
    }
    if (!*member->attempt)
        memcpy(member->attempt, verdict->attempt, sizeof(member->attempt));
    member->settle_asked = true;
    member->settle_link = link;
    memcpy(member->settle_attempt, verdict->attempt, sizeof(member->settle_attempt));
    wire_outcome outcome = verdict->outcome < WIRE_WAITING ? verdict->outcome : WIRE_FAILED;
    bool before = member->pending;
    core_member_settle(core, member, outcome, core_reasons_code(message->reasons, codes[outcome]),
                       core_reasons_text(message->reasons, "the decode worker settled"), NULL);
    if (before || member->pending) /* a sign of life until its write is over */
        send_waiting(core, link, message, verdict->attempt);
}

/* To remember a settle by; NULL: there is no room for it. */
static core_member *add_if_room(node_core *core, core_supply *offer, const char *sender)
{
    return *core_kept_members(core, offer) < core_kept_limit(core) ? core_member_add(core, offer, sender) : NULL;
}

/*
 * A worker that shook hands once and was given up since may not be let in again, but has to know that nothing is
 * written to it any more. It gets an answer if that is so, and a late ask of it is refused. What is expected of
 * it goes on. Where its name is forgotten (a key has so many only), or never was known, nothing is noted: it could be
 * another's, and all links that it asked over are closed. false: not so.
 */
static bool settle_apart(node_core *core, core_link link, core_line *line, const wire_message *message)
{
    const char *sender = message->sender;
    if (!core_line_unused(line) || core_target_find(core, sender))
        return false;
    core_supply *offer = core_supply_find(core, message->transfer_id);
    core_member *member = offer ? core_member_find(offer, sender) : NULL;
    if (member && member->pending) {
        send_waiting(core, link, message, message->body.verdict.attempt);
        return true;
    }
    if (member && member->state != CORE_MEMBER_SETTLED)
        return false;
    if (!member && core_name_key(core, sender)) {
        offer = core_supply_get_free(core, message->transfer_id, NULL);
        member = offer ? add_if_room(core, offer, sender) : NULL;
    }
    if (member) {
        bool held = offer->held;
        offer->held = true;
        settle(core, link, member, message);
        offer->held = held;
    } else {
        send_settled(core, link, message, message->body.verdict.outcome);
    }
    return true;
}

/* Without a record of it, for which there is no room: then no ask of it may come by another line. */
static void settle_unrecorded(node_core *core, core_line *line, const wire_message *message)
{
    core_target_keep_line(line);
    send_settled(core, line->id, message, message->body.verdict.outcome);
}

void core_received_settle(node_core *core, core_link link, core_line *line, const wire_message *message)
{
    if (!core_target_speaking(line, message) && settle_apart(core, link, line, message))
        return;
    core_target *target = speaker(core, link, line, message);
    if (!target)
        return;
    core_supply *offer = core_supply_get_free(core, message->transfer_id, target);
    if (!offer) {
        settle_unrecorded(core, line, message);
        return;
    }
    offer->held = true;
    if (!*offer->engine_id && offer->state < CORE_SUPPLY_ENDED && claim(core, offer, target))
        note_replaced(core, offer);
    core_member *member = core_member_find(offer, message->sender);
    if (!member && offer->pairing && offer->state < CORE_SUPPLY_ENDED &&
        strcmp(offer->engine_id, target->engine_id) == 0)
        member = take_place(core, offer, target);
    if (!member)
        member = add_if_room(core, offer, message->sender);
    if (member && core_supply_is_loose(offer)) /* the record may have to make room */
        core_target_keep_line(line);
    if (member)
        settle(core, link, member, message);
    else
        settle_unrecorded(core, line, message);
    offer->held = false;
    core_supply_schedule(core, offer);
    core_supply_advance(core, offer);
}

void core_received_renew(node_core *core, core_link link, core_line *line, const wire_message *message)
{
    if (!speaker(core, link, line, message))
        return;
    core_supply *offer = core_supply_find(core, message->transfer_id);
    bool known = offer && (offer->state == CORE_SUPPLY_LIVE ||
                           (offer->state == CORE_SUPPLY_EARLY && offer->expected));
    if (!known) {
        core->statistics.ignored++;
        return;
    }
    offer->lease_end = base_max(offer->lease_end, core_after(core, core->options.lease_ns));
    core_supply_schedule(core, offer);
}
