/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill side: decode workers that shook hands and may ask. */
#include "node/core_internal.h"

#include <stdio.h>

enum { LINES = 4 }; /* of one target: a second one is for a handshake, more are left over */

core_target *core_target_find(node_core *core, const char *incarnation)
{
    core_target *target;
    HASH_FIND_STR(core->targets, incarnation, target);
    return target;
}

core_target *core_target_speaking(core_line *line, const wire_message *message)
{
    core_target *target = line && line->use == CORE_USE_TARGET ? line->user : NULL;
    return target && target->welcomed && strcmp(target->incarnation, message->sender) == 0 ? target : NULL;
}

static const char *words_of(const core_target *target)
{
    return core_worker_words(target->engine_id, &target->member.worker, target->incarnation);
}

static void leave_line(core_line *line)
{
    core_target *target = line->user;
    DL_DELETE2(target->lines, line, target_prev, target_next);
    if (target->line == line)
        target->line = target->lines ? target->lines->target_prev : NULL;
    line->use = CORE_USE_NONE;
    line->user = NULL;
}

void core_target_keep_line(core_line *line)
{
    core_target *target = line->user;
    core_line *each, *next;
    DL_FOREACH_SAFE2(target->lines, each, next, target_next) {
        if (each == line)
            continue;
        leave_line(each);
        core_line_shut(each);
    }
}

static void free_target(node_core *core, core_target *target)
{
    core_line *line;
    while ((line = target->lines) != NULL) {
        leave_line(line);
        core_line_shut(line);
    }
    if (target->channel)
        core_channel_close(core, target->channel);
    core_share_end(core, &target->share);
    core->statistics.peers -= target->welcomed;
    core_timer_end(core, &target->timer);
    core_pairing_release(core, target->pairing);
    core_roster_release(core, target->roster);
    core_holder_release(core, target->holder);
    free(target->binding);
    free(target);
}

/* The worker's place among the targets of offers; SIZE_MAX: it has none. */
static size_t slot_of(const core_pairing *pairing, const char *engine_id, const kvferry_worker *worker)
{
    return pairing->side == KVFERRY_SIDE_PREFILL && strcmp(pairing->target->wire.engine_id, engine_id) == 0
               ? core_roster_index(pairing->target, worker)
               : SIZE_MAX;
}

/*
 * Settles what this target, or others than it, were to ask for or ask for in this place; but what nobody asked for
 * waits for who replaces them.
 */
static void settle_slots(node_core *core, core_pairing *pairing, size_t slot, const char *incarnation,
                         bool others, const char *code, const char *text)
{
    core_member *member, *next;
    pairing->uses++;
    DL_FOREACH_SAFE2(pairing->slots[slot], member, next, slot_next) {
        bool waits = member->state == CORE_MEMBER_EXPECTED && member->replaced;
        if (!waits && (strcmp(member->incarnation, incarnation) != 0) == others)
            core_member_settle(core, member, WIRE_FAILED, code, text, NULL);
    }
    core_pairing_release(core, pairing);
}

void core_target_lost(node_core *core, core_target *target, const char *code, const char *text)
{
    core_log(core, target->welcomed ? KVFERRY_LOG_WARNING : KVFERRY_LOG_INFO,
             "%s: %s, %s", words_of(target), code, text);
    HASH_DEL(core->targets, target);
    core_pairing *pairing, *next;
    HASH_ITER(hh, core->pairings, pairing, next) {
        size_t slot = slot_of(pairing, target->engine_id, &target->member.worker);
        if (slot != SIZE_MAX)
            settle_slots(core, pairing, slot, target->incarnation, false, code, text);
    }
    free_target(core, target);
}

/* --- time ---------------------------------------------------------------------------------------------- */

static void on_time(node_core *core, void *owner)
{
    core_target *target = owner;
    const core_options *options = &core->options;
    uint64_t pause = target->busy || !target->welcomed ? options->retry_ns : options->silence_ns;
    if (target->unanswered && core->now - target->unanswered >= options->silence_ns) {
        core_target_lost(core, target, "peer_lost", "the decode worker says nothing");
        return;
    }
    if (core->now - target->heard >= pause) {
        wire_message message = {.type = WIRE_PING};
        if (!target->unanswered)
            target->unanswered = core->now;
        core_send(core, target->line, &message);
        pause = base_min(pause, options->silence_ns);
    }
    core_timer_set(core, &target->timer, core_after(core, pause));
}

void core_target_busy(node_core *core, core_target *target, bool more)
{
    target->busy += more ? 1u : -1u;
    uint64_t due = core_after(core, core->options.retry_ns);
    if (target->busy && target->timer.due > due)
        core_timer_set(core, &target->timer, due);
}

void core_target_heard(node_core *core, core_target *target, core_line *line)
{
    target->heard = core->now;
    target->unanswered = 0;
    target->line = line;
}

void core_target_line_ended(node_core *core, core_line *line)
{
    core_target *target = line->user;
    leave_line(line);
    if (!target->lines && !target->unanswered) {
        target->unanswered = core->now;
        core_timer_set(core, &target->timer, core_after(core, core->options.silence_ns));
    }
}

/* --- the handshake -------------------------------------------------------------------------------------- */

static void refuse(node_core *core, core_link link, const wire_message *message, const kvferry_report *reasons)
{
    core_refused(core, message->engine_id, core_who(message->sender, core->place), reasons);
    core_send_hello(core, link, message->sender, WIRE_WELCOME, false, reasons);
}

/* Makes the line one of the target's, and the last that it spoke over. */
static void join(node_core *core, core_target *target, core_line *line)
{
    if (line->use == CORE_USE_TARGET && line->user != target)
        leave_line(line);
    if (line->use != CORE_USE_TARGET) {
        line->use = CORE_USE_TARGET;
        line->user = target;
        DL_APPEND2(target->lines, line, target_prev, target_next);
        memcpy(line->peer, target->incarnation, sizeof(line->peer));
    }
    core_target_heard(core, target, line);
    size_t count = 0;
    core_line *each;
    DL_FOREACH2(target->lines, each, target_next) {
        count++;
    }
    if (count > LINES) {
        core_line *oldest = target->lines;
        leave_line(oldest);
        core_line_shut(oldest);
    }
}

void core_target_turn_away(node_core *core, core_target *target, const kvferry_report *reasons, const char *text)
{
    core_refused(core, target->engine_id, core_who(target->incarnation, target->line ? target->line->address : ""),
                 reasons);
    if (target->line)
        core_send_hello(core, target->line->id, target->incarnation, WIRE_WELCOME, false, reasons);
    core_target_lost(core, target, core_reasons_code(reasons, "no_memory"), text);
}

void core_target_displaced(node_core *core, core_target *target, core_kept what, const char *text)
{
    kvferry_report *reasons = NULL;
    if (kvferry_report_create(&reasons) == KVFERRY_OK) {
        core_share_report(core, what, reasons);
        core_target_turn_away(core, target, reasons, text);
        kvferry_report_free(reasons);
    } else {
        core_target_lost(core, target, "no_memory", text);
    }
}

/* All documents are here: is it to be served? */
static void welcome(node_core *core, core_target *target)
{
    core_pairing *pairing = NULL;
    kvferry_status status =
        core->own ? core_pairing_get(core, KVFERRY_SIDE_PREFILL, core->own, target->roster, &pairing)
                  : KVFERRY_NOT_FOUND;
    target->waits = status == KVFERRY_BUSY;
    if (status != KVFERRY_OK)
        return;
    if (pairing->refusal) {
        core_target_turn_away(core, target, pairing->refusal, "its caches do not fit");
        core_pairing_release(core, pairing);
        return;
    }
    core_pairing_release(core, target->pairing);
    target->pairing = pairing;
    if (!target->channel)
        target->channel = core_channel_open(core, target);
    if (!target->channel)
        return;
    if (!target->welcomed) {
        core->statistics.peers++;
        core_log(core, KVFERRY_LOG_INFO, "%s: welcome", words_of(target));
    }
    target->welcomed = true;
    if (target->line && target->knows)
        core_send_brief_welcome(core, target->line->id, target->incarnation);
    else if (target->line)
        core_send_hello(core, target->line->id, target->incarnation, WIRE_WELCOME, false, NULL);
}

void core_targets_documents(node_core *core)
{
    core_target *target, *next;
    HASH_ITER(hh, core->targets, target, next) {
        if ((!target->welcomed || target->waits) && !target->roster->missing)
            welcome(core, target);
    }
}

/* What others in this rank were to ask for may be asked for by who speaks. */
static void make_place(node_core *core, const char *key, const wire_message *message)
{
    core_pairing *pairing, *next;
    HASH_ITER(hh, core->pairings, pairing, next) {
        size_t slot = slot_of(pairing, message->engine_id, &message->body.hello.worker);
        core_member *member;
        if (slot == SIZE_MAX || !core_key_fits(core, pairing->target->wire.members[slot].address, key))
            continue;
        DL_FOREACH2(pairing->slots[slot], member, slot_next) {
            if (strcmp(member->incarnation, message->sender) != 0)
                core_member_replaced(core, member);
        }
    }
}

/* Another worker that has the sender's rank; NULL: none. */
static core_target *find_rank(node_core *core, const wire_message *message)
{
    core_target *target, *next;
    HASH_ITER(hh, core->targets, target, next)
        if (core_same_worker(message->engine_id, &message->body.hello.worker, target->engine_id,
                             &target->member.worker) &&
            strcmp(target->incarnation, message->sender) != 0)
            return target;
    return NULL;
}

/* Others that had this rank of the engine, as far as is known, are no more: what they asked for is settled. */
static void replace(node_core *core, const char *key, const wire_message *message)
{
    const kvferry_worker *worker = &message->body.hello.worker;
    const char *text = "the decode worker was restarted", *who = core_share_who(core, key);
    core_tombstone_remove(core, message->sender);
    make_place(core, key, message);
    core_target *before = find_rank(core, message);
    if (before) {
        core_tombstone_add(core, who, before->incarnation, false);
        core_target_lost(core, before, "incarnation", text);
    }
    core_pairing *pairing, *next;
    HASH_ITER(hh, core->pairings, pairing, next) {
        size_t slot = slot_of(pairing, message->engine_id, worker);
        if (slot == SIZE_MAX || !core_key_fits(core, pairing->target->wire.members[slot].address, key))
            continue;
        if (strcmp(pairing->target->wire.members[slot].incarnation, message->sender) != 0)
            core_tombstone_add(core, who, pairing->target->wire.members[slot].incarnation, false);
        settle_slots(core, pairing, slot, message->sender, true, "incarnation", text);
    }
}

static core_target *make_target(node_core *core, const char *key, const wire_message *message,
                                const wire_member *member)
{
    const wire_hello *hello = &message->body.hello;
    core_target *target = base_alloc(1, sizeof(*target));
    if (!target)
        return NULL;
    memcpy(target->incarnation, message->sender, sizeof(target->incarnation));
    snprintf(target->engine_id, sizeof(target->engine_id), "%s", message->engine_id);
    snprintf(target->key, sizeof(target->key), "%s", key);
    target->member.worker = member->worker;
    target->heard = core->now;
    target->holder = core_holder_get(core, core_share_who(core, key));
    target->binding = malloc(hello->binding_size + 1);
    bool timed = target->holder && target->binding && core_name_keep(core, target->incarnation, key) &&
                 core_timer_begin(core, &target->timer, on_time, target);
    if (timed)
        HASH_ADD_STR(core->targets, incarnation, target);
    if (!target->hh.tbl) {
        if (timed)
            core_timer_end(core, &target->timer);
        core_holder_release(core, target->holder);
        free(target->binding);
        free(target);
        return NULL;
    }
    if (hello->binding_size)
        memcpy(target->binding, hello->binding, hello->binding_size);
    target->binding_size = hello->binding_size;
    core_timer_set(core, &target->timer, core_after(core, core->options.retry_ns));
    return target;
}

/* Whether the sender may be who it says, by this key. A rank stays with its key while its worker is not lost. */
static bool check_sender(node_core *core, const char *key, const wire_message *message, const wire_member *member,
                         kvferry_report *report)
{
    const char *sender = message->sender;
    if (!core_worker_speaks(core, message->engine_id, &message->body.hello.worker, sender, report))
        return false;
    if (!core->keyed)
        return true;
    if (!core_key_fits(core, member->address, key)) {
        core_report_key(report, core_address_key(member->address), key, sender);
        return false;
    }
    core_target *before = core_target_find(core, sender) ? NULL : find_rank(core, message);
    if (before && !core_same_key(before->key, key)) {
        core_report_key(report, before->key, key, sender);
        return false;
    }
    return core_name_key(core, sender) || core_rosters_agree(core, sender, key, report);
}

/* Whether the sender is at its place in the roster, which was looked at. */
static bool check_place(node_core *core, const char *key, const wire_message *message, const wire_roster *roster,
                        kvferry_report *report)
{
    size_t index = core_wire_index(roster, &message->body.hello.worker);
    if (strcmp(roster->engine_id, message->engine_id) == 0 && index != SIZE_MAX &&
        strcmp(roster->members[index].incarnation, message->sender) == 0)
        return check_sender(core, key, message, &roster->members[index], report);
    base_report_add(report, "roster_malformed", NULL, "the sender at its ranks", "another worker or none",
                    "the roster of engine %s", message->engine_id);
    return false;
}

static kvferry_status check_hello(node_core *core, const char *key, const wire_message *message,
                                  core_roster **roster, kvferry_report *report)
{
    const wire_hello *hello = &message->body.hello;
    if (strcmp(hello->engine, core->options.engine) != 0) {
        base_report_add(report, "transfer_engine_differs", NULL, core->options.engine, hello->engine,
                        "the transfer engine of engine %s", message->engine_id);
        return KVFERRY_REFUSED;
    }
    core_roster *found = NULL;
    kvferry_status status = core_roster_check(core, &hello->roster, &found, report);
    if (status != KVFERRY_OK)
        return status;
    if (!check_place(core, key, message, found ? &found->wire : &hello->roster, report)) {
        status = KVFERRY_REFUSED;
    } else if (!core_target_find(core, message->sender) &&
               !core_share_has_room(core, CORE_KEPT_PEERS, core_share_who(core, key), 1)) {
        core_share_report(core, CORE_KEPT_PEERS, report);
        status = KVFERRY_REFUSED;
    } else if (!found) {
        status = core_roster_make(core, core_share_who(core, key), &hello->roster, &found, report);
    }
    if (status == KVFERRY_OK)
        *roster = found;
    else
        core_roster_release(core, found);
    return status;
}

static void accept(node_core *core, core_link link, const char *key, const wire_message *message,
                   core_roster *roster)
{
    size_t index = core_roster_index(roster, &message->body.hello.worker);
    core_target *target = core_target_find(core, message->sender);
    core_line *line = core_line_find(core, link);
    if (line && line->use != CORE_USE_NONE && line->use != CORE_USE_TARGET) {
        core->statistics.ignored++;
        core_roster_release(core, roster);
        return;
    }
    if (!target) {
        replace(core, key, message);
        target = make_target(core, key, message, &roster->wire.members[index]);
    }
    line = target ? core_line_accept(core, link, key) : NULL;
    if (!line) {
        if (target && !target->roster)
            core_target_lost(core, target, "no_memory", "memory ran out");
        core_roster_release(core, roster);
        return;
    }
    join(core, target, line);
    target->knows = *message->body.hello.expects != 0;
    core_roster_release(core, target->roster);
    target->roster = roster;
    core_share_settle(core, CORE_KEPT_PEERS, core_share_who(core, key));
    bool settled = core_share_settle(core, CORE_KEPT_MEMBERS, core_share_who(core, key));
    target = core_target_find(core, message->sender); /* its roster may be of another key, and go */
    if (target && !settled)
        core_target_displaced(core, target, CORE_KEPT_MEMBERS, "there is no room for its engine's workers");
    if (!target || !settled)
        return;
    target->waits = roster->missing != 0;
    if (!target->waits)
        welcome(core, target);
    else if (!roster->asked || core->now - roster->asked >= core->options.retry_ns)
        core_roster_fetch(core, roster, line);
}

void core_received_hello(node_core *core, core_link link, const char *key, const wire_message *message)
{
    const char *expects = message->body.hello.expects;
    const core_line *line = core_line_find(core, link);
    if (line && line->use == CORE_USE_SHUT) {
        core->statistics.ignored++;
        core_send_error(core, link, message, "link_closed", "a hello over a new link", "one over a link that was closed",
                        "the handshake over this link");
        return;
    }
    if (*expects && strcmp(expects, core->incarnation) != 0) {
        core->statistics.ignored++;
        core_send_error(core, link, message, "incarnation", core->incarnation, expects,
                        "the worker that is here now");
        return;
    }
    if (!core->own) {
        core_send_hello(core, link, message->sender, WIRE_WELCOME, false, NULL);
        return;
    }
    kvferry_report *report = NULL;
    core_roster *roster = NULL;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        return;
    kvferry_status status = check_hello(core, key, message, &roster, report);
    if (status == KVFERRY_REFUSED)
        refuse(core, link, message, report);
    else if (status == KVFERRY_OK)
        accept(core, link, key, message, roster);
    kvferry_report_free(report);
}

void core_peer_lost(node_core *core, uint64_t peer, const char *detail, uint64_t now)
{
    core->now = base_max(core->now, now);
    core_channel *channel;
    HASH_FIND(hh, core->channels, &peer, sizeof(peer), channel);
    if (channel && channel->target)
        core_target_lost(core, channel->target, "peer_lost",
                         detail && *detail ? detail : "the transfer engine lost it");
}

void core_peer_refused(node_core *core, uint64_t peer, kvferry_status status, const kvferry_report *report,
                       uint64_t now)
{
    core->now = base_max(core->now, now);
    core_channel *channel;
    HASH_FIND(hh, core->channels, &peer, sizeof(peer), channel);
    if (!channel || !channel->target)
        return;
    kvferry_report *own = kvferry_report_count(report)
                              ? NULL
                              : core_reason(status == KVFERRY_NO_MEMORY ? "no_memory" : "peer_lost", NULL, NULL,
                                            kvferry_status_describe(status));
    core_target_turn_away(core, channel->target, own ? own : report, "the transfer engine does not reach it");
    kvferry_report_free(own);
}

void core_targets_free(node_core *core)
{
    core_target *target, *next;
    HASH_ITER(hh, core->targets, target, next) {
        HASH_DEL(core->targets, target);
        free_target(core, target);
    }
}
