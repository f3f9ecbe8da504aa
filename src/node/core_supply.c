/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill side: offers, from the first that is heard of one until it is forgotten. */
#include "node/core_internal.h"

#include <stdio.h>

core_supply *core_supply_find(node_core *core, const char *id)
{
    core_supply *offer;
    HASH_FIND_STR(core->offers, id, offer);
    return offer;
}

static void free_members(node_core *core, core_supply *offer)
{
    core_member *member;
    while ((member = offer->members) != NULL) {
        offer->members = member->next;
        core_member_free(core, member);
    }
}

/* What is not needed to remember how it ended. */
static void empty_offer(node_core *core, core_supply *offer)
{
    base_arena_free(&offer->arena);
    offer->tables = NULL;
    offer->table_count = 0;
    core_event_discard(offer->ended);
    core_event_discard(offer->released);
    offer->ended = offer->released = NULL;
    core_pairing_release(core, offer->pairing);
    offer->pairing = NULL;
}

static void free_offer(node_core *core, core_supply *offer)
{
    free_members(core, offer);
    empty_offer(core, offer);
    core_timer_end(core, &offer->timer);
    core_share_leave(offer);
    free(offer);
}

/* A worker's offers have few members; where they have many, less is remembered. */
size_t core_kept_limit(const node_core *core) { return 4 * (size_t)core->options.max_transfers; }

size_t *core_kept_members(node_core *core, const core_supply *offer)
{
    if (offer->state == CORE_SUPPLY_PAST)
        return &core->kept_members[CORE_OFFERS_PAST];
    return &core->kept_members[offer->expected ? CORE_OFFERS_EXPECTED : CORE_OFFERS_EARLY];
}

/* Out of the list that its state puts it into. */
static void leave_list(node_core *core, core_supply *offer)
{
    if (offer->state == CORE_SUPPLY_PAST || offer->state == CORE_SUPPLY_EARLY)
        *core_kept_members(core, offer) -= offer->member_count;
    if (offer->state == CORE_SUPPLY_PAST) {
        DL_DELETE(core->past_offers, offer);
        core->past_count--;
    } else if (offer->state == CORE_SUPPLY_EARLY && offer->expected) {
        DL_DELETE(core->expected_offers, offer);
        core->expected_count--;
    } else if (offer->state == CORE_SUPPLY_EARLY) {
        core_share_leave(offer);
        core->early_count--;
    }
}

/* `target`: for whom, where it is early. */
static void enter_list(node_core *core, core_supply *offer, core_target *target)
{
    *core_kept_members(core, offer) += offer->member_count;
    if (offer->state == CORE_SUPPLY_PAST) {
        DL_APPEND(core->past_offers, offer);
        core->past_count++;
    } else if (offer->expected) {
        DL_APPEND(core->expected_offers, offer);
        core->expected_count++;
    } else {
        core_share_enter(core, target, offer);
        core->early_count++;
    }
}

static void forget(node_core *core, core_supply *offer)
{
    leave_list(core, offer);
    HASH_DEL(core->offers, offer);
    free_offer(core, offer);
}

/* --- time ---------------------------------------------------------------------------------------------- */

/* Until when a member's ask waits, or is waited for. */
static uint64_t patience(const node_core *core, const core_supply *offer, const core_member *member)
{
    uint64_t early;
    if (member->state == CORE_MEMBER_EXPECTED && member->replaced)
        return member->deadline;
    if (member->state != CORE_MEMBER_WAITS && member->state != CORE_MEMBER_QUEUED)
        return UINT64_MAX;
    if (offer->state != CORE_SUPPLY_EARLY || offer->expected ||
        !base_add(member->asked_at, core->options.early_ns, &early))
        return member->deadline;
    return base_min(member->deadline, early);
}

uint64_t core_supply_held_until(const core_supply *offer)
{
    uint64_t end = offer->lease_end;
    for (const core_member *member = offer->members; member; member = member->next)
        if (member->asked && member->state != CORE_MEMBER_SETTLED)
            end = base_max(end, member->deadline);
    return end;
}

void core_supply_schedule(node_core *core, core_supply *offer)
{
    uint64_t due = core_supply_held_until(offer);
    if (offer->state == CORE_SUPPLY_ENDED) {
        core_timer_stop(core, &offer->timer);
        return;
    }
    if (offer->state != CORE_SUPPLY_PAST)
        for (core_member *member = offer->members; member; member = member->next)
            due = base_min(due, patience(core, offer, member));
    core_timer_set(core, &offer->timer, due);
}

static void settle_impatient(node_core *core, core_supply *offer)
{
    offer->held = true;
    for (core_member *member = offer->members; member; member = member->next) {
        if (core->now < patience(core, offer, member))
            continue;
        if (member->state == CORE_MEMBER_EXPECTED)
            core_member_settle(core, member, WIRE_FAILED, "incarnation",
                               "the decode worker was restarted, and the new one has not asked", NULL);
        else if (core->now >= member->deadline)
            core_member_settle(core, member, WIRE_EXPIRED, "deadline",
                               "the ask's time is over, and the blocks are not ready", NULL);
        else {
            core_count_refused(core, "transfer_unknown");
            core_member_settle(core, member, WIRE_FAILED, "transfer_unknown",
                               "no request of this id was offered", NULL);
        }
    }
    offer->held = false;
}

static void on_time(node_core *core, void *owner)
{
    core_supply *offer = owner;
    bool over = core->now >= core_supply_held_until(offer);
    if (over && offer->state == CORE_SUPPLY_EARLY && offer->expected) {
        leave_list(core, offer);
        offer->expected = false;
        enter_list(core, offer, NULL);
        offer->lease_end = core_after(core, core->options.remember_ns);
        over = false;
    }
    if (offer->state == CORE_SUPPLY_PAST || (over && offer->state == CORE_SUPPLY_EARLY)) {
        settle_impatient(core, offer);
        forget(core, offer);
        return;
    }
    if (over) {
        core_supply_end(core, offer, KVFERRY_OUTCOME_EXPIRED, "lease_ended",
                       "the lease is over, and not all decode workers have settled", NULL);
        return;
    }
    settle_impatient(core, offer);
    core_supply_schedule(core, offer);
    core_supply_advance(core, offer);
}

/* --- the end ---------------------------------------------------------------------------------------------- */

static void settle_all(node_core *core, core_supply *offer, wire_outcome outcome, const char *code,
                       const char *text, const kvferry_report *reasons)
{
    offer->held = true;
    for (core_member *member = offer->members; member; member = member->next)
        core_member_settle(core, member, outcome, code, text, reasons);
    offer->held = false;
}

/* That it is over, for those who still ask. */
static void remember(node_core *core, core_supply *offer)
{
    empty_offer(core, offer);
    offer->state = CORE_SUPPLY_PAST;
    offer->lease_end = core_after(core, core->options.remember_ns);
    core_supply_schedule(core, offer);
    for (core_member *member = offer->members; member; member = member->next)
        core_member_shrink(member);
    enter_list(core, offer, NULL);
    while (core->past_offers != offer && (core->past_count > core->options.max_transfers ||
                                          core->kept_members[CORE_OFFERS_PAST] > core_kept_limit(core)))
        forget(core, core->past_offers);
}

static void become_past(node_core *core, core_supply *offer)
{
    core->offer_count--;
    core->statistics.unreleased[KVFERRY_SIDE_PREFILL]--;
    core_event_set_work(offer->released, 0, 0, core->now - offer->ended_at);
    core_event_queue(core, offer->released);
    offer->released = NULL;
    core_log_supply(core, KVFERRY_LOG_DEBUG, offer, "offered blocks released", "");
    remember(core, offer);
}

void core_supply_end(node_core *core, core_supply *offer, kvferry_outcome outcome, const char *code,
                    const char *text, const kvferry_report *reasons)
{
    if (offer->state != CORE_SUPPLY_LIVE)
        return;
    uint64_t elapsed = core->now - offer->begun;
    bool done = outcome == KVFERRY_OUTCOME_DONE;
    offer->state = CORE_SUPPLY_ENDED;
    offer->outcome = outcome;
    offer->ended_at = core->now;
    core_event_set_engine(offer->ended, offer->engine_id);
    core_event_set_engine(offer->released, offer->engine_id);
    core_event_set_outcome(offer->ended, outcome, code, text, reasons);
    core_event_copy_outcome(offer->released, offer->ended);
    core_event_set_work(offer->ended, offer->bytes, offer->copies, elapsed);
    core_event_queue(core, offer->ended);
    offer->ended = NULL;
    kvferry_node_statistics *counts = &core->statistics;
    counts->ended[KVFERRY_SIDE_PREFILL][outcome]++;
    counts->transfer_ns[KVFERRY_SIDE_PREFILL] += elapsed;
    counts->live[KVFERRY_SIDE_PREFILL]--;
    counts->unreleased[KVFERRY_SIDE_PREFILL]++;
    core_log_supply(core, done ? KVFERRY_LOG_DEBUG : KVFERRY_LOG_WARNING, offer,
                    base_format("offer %s", kvferry_outcome_name(outcome)), done ? "all have settled" : text);
    core_supply_schedule(core, offer);
    wire_outcome told = outcome == KVFERRY_OUTCOME_ABORTED ? WIRE_ABORTED : WIRE_FAILED;
    settle_all(core, offer, told, code, text, reasons);
    core_supply_advance(core, offer);
}

void core_supply_advance(node_core *core, core_supply *offer)
{
    if (offer->state == CORE_SUPPLY_ENDED && !offer->writes) {
        become_past(core, offer);
        return;
    }
    if (offer->state != CORE_SUPPLY_LIVE || !*offer->engine_id || offer->open)
        return;
    const core_member *failed = NULL;
    for (const core_member *member = offer->members; member; member = member->next)
        if (member->counted && member->outcome != WIRE_DONE)
            failed = member;
    if (failed)
        core_supply_end(core, offer, KVFERRY_OUTCOME_FAILED, failed->code,
                       "not all decode workers have got theirs", failed->reasons);
    else
        core_supply_end(core, offer, KVFERRY_OUTCOME_DONE, NULL, NULL, NULL);
}

/* --- beginning ---------------------------------------------------------------------------------------------- */

static core_supply *make_offer(node_core *core, const char *id)
{
    core_supply *offer = base_alloc(1, sizeof(*offer));
    if (!offer)
        return NULL;
    snprintf(offer->id, sizeof(offer->id), "%s", id);
    bool timed = core_timer_begin(core, &offer->timer, on_time, offer);
    if (timed)
        HASH_ADD_STR(core->offers, id, offer);
    if (!offer->hh.tbl) {
        free_offer(core, offer);
        return NULL;
    }
    return offer;
}

static bool is_crowded(const node_core *core)
{
    return core->early_count && (core->early_count >= core->options.max_transfers ||
                                 core->kept_members[CORE_OFFERS_EARLY] > core_kept_limit(core));
}

/* Where there are too many, who has most of them loses its oldest. */
static void drop_early(node_core *core)
{
    core_supply *oldest = core_share_oldest(core);
    core->statistics.ignored++;
    settle_all(core, oldest, WIRE_FAILED, "too_many_transfers",
               "too many asks wait for what was not offered", NULL);
    forget(core, oldest);
}

bool core_supply_is_loose(const core_supply *offer)
{
    return offer->state == CORE_SUPPLY_EARLY && !offer->expected;
}

void core_supplies_forget(node_core *core, const core_roster *roster, const char *code, const char *text)
{
    core_supply *offer, *next;
    HASH_ITER(hh, core->offers, offer, next) {
        if (!core_supply_is_loose(offer) || !offer->pairing || offer->pairing->target != roster)
            continue;
        settle_all(core, offer, WIRE_FAILED, code, text, NULL);
        forget(core, offer);
    }
}

/* A record of what was not offered yet. */
static core_supply *make_early(node_core *core, const char *id, bool expected, core_target *target)
{
    core_supply *offer = make_offer(core, id);
    if (!offer)
        return NULL;
    offer->expected = expected;
    offer->lease_end = core_after(core, expected ? core->options.lease_ns : core->options.remember_ns);
    while (!expected && is_crowded(core))
        drop_early(core);
    enter_list(core, offer, target);
    core_supply_schedule(core, offer);
    return offer;
}

static kvferry_status refuse(node_core *core, kvferry_report *report, const char *code,
                             const char *expected, const char *found, const char *id)
{
    core_count_refused(core, code);
    base_report_add(report, code, NULL, expected, found, "the offer of transfer \"%s\"", id);
    return KVFERRY_REFUSED;
}

static bool valid_id(node_core *core, const char *id, kvferry_report *report)
{
    if (id && *id && strlen(id) <= WIRE_MAX_ID)
        return true;
    core_count_refused(core, "transfer_invalid");
    base_report_add(report, "transfer_invalid", NULL, "an id of 1 to 255 bytes",
                    id ? base_format("%zu bytes", strlen(id)) : "nothing", "the offer");
    return false;
}

/* Whether an offer of this id may begin. */
static kvferry_status check_id(node_core *core, const char *id, const core_supply *known,
                               kvferry_report *report)
{
    if (core->draining)
        return refuse(core, report, "node_closing", "a node that takes offers", "one that closes", id);
    if (known && known->state == CORE_SUPPLY_LIVE)
        return refuse(core, report, "transfer_known", "an id that was not offered", "one that is", id);
    if (known && known->state != CORE_SUPPLY_EARLY)
        return refuse(core, report, "transfer_over", "an id that was not offered", "one that has ended", id);
    return KVFERRY_OK;
}

kvferry_status core_expect(node_core *core, const char *transfer_id, uint64_t now, kvferry_report *report)
{
    core->now = base_max(core->now, now);
    if (!valid_id(core, transfer_id, report))
        return KVFERRY_INVALID;
    core_supply *known = core_supply_find(core, transfer_id);
    kvferry_status status = check_id(core, transfer_id, known, report);
    if (status != KVFERRY_OK)
        return status;
    if (known && known->expected)
        return refuse(core, report, "transfer_known", "an id that is not expected", "one that is",
                      transfer_id);
    if (core->expected_count >= core->options.max_transfers)
        return refuse(core, report, "too_many_transfers",
                      base_format("at most %u", core->options.max_transfers), "as many", transfer_id);
    if (!known)
        return make_early(core, transfer_id, true, NULL) ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    leave_list(core, known);
    known->expected = true;
    known->lease_end = core_after(core, core->options.lease_ns);
    enter_list(core, known, NULL);
    core_supply_schedule(core, known);
    return KVFERRY_OK;
}

static void proceed_all(node_core *core, core_supply *offer)
{
    offer->held = true;
    for (core_member *member = offer->members; member; member = member->next)
        core_member_proceed(core, member);
    offer->held = false;
    core_supply_schedule(core, offer);
    core_supply_advance(core, offer);
}

static void go_live(node_core *core, core_supply *offer, const kvferry_offer *from)
{
    offer->state = CORE_SUPPLY_LIVE;
    offer->expected = false;
    offer->ready = from->readiness == KVFERRY_READY;
    offer->tokens = from->tokens;
    offer->table_count = from->table_count;
    offer->begun = core->now;
    offer->lease_end = core_after(core, core->options.lease_ns);
    core->offer_count++;
    core->statistics.live[KVFERRY_SIDE_PREFILL]++;
    proceed_all(core, offer);
}

/* Offers what was checked. */
static kvferry_status begin(node_core *core, core_supply *known, const kvferry_offer *from)
{
    core_supply *offer = known ? known : make_offer(core, from->transfer_id);
    core_event *ended = core_event_create(KVFERRY_EVENT_ENDED, KVFERRY_SIDE_PREFILL, "",
                                          from->transfer_id, from->context);
    core_event *released = core_event_create(KVFERRY_EVENT_RELEASED, KVFERRY_SIDE_PREFILL, "",
                                             from->transfer_id, from->context);
    if (!offer || !ended || !released ||
        !core_tables_copy(&offer->arena, from->tables, from->table_count, &offer->tables)) {
        core_event_discard(ended);
        core_event_discard(released);
        if (known) {
            base_arena_free(&known->arena);
        } else if (offer) {
            HASH_DEL(core->offers, offer);
            free_offer(core, offer);
        }
        return KVFERRY_NO_MEMORY;
    }
    offer->ended = ended;
    offer->released = released;
    if (known)
        leave_list(core, offer);
    go_live(core, offer, from);
    return KVFERRY_OK;
}

kvferry_status core_offer(node_core *core, const kvferry_offer *offer, uint64_t now, kvferry_report *report)
{
    core->now = base_max(core->now, now);
    if (offer && !core_check_size(core, "the offer", offer->size, sizeof(*offer), report))
        return KVFERRY_INVALID;
    if (!offer || (offer->table_count && !offer->tables)) {
        base_report_add(report, "transfer_invalid", NULL, "all pointers set", NULL, "the offer");
        core_count_refused(core, "transfer_invalid");
        return KVFERRY_INVALID;
    }
    if (!valid_id(core, offer->transfer_id, report))
        return KVFERRY_INVALID;
    core_supply *known = core_supply_find(core, offer->transfer_id);
    kvferry_status status = check_id(core, offer->transfer_id, known, report);
    if (status != KVFERRY_OK)
        return status;
    if (core->offer_count >= core->options.max_transfers)
        return refuse(core, report, "too_many_transfers",
                      base_format("at most %u", core->options.max_transfers), "as many",
                      offer->transfer_id);
    const char *code = core_check_offer(core, offer, report);
    if (!code)
        return begin(core, known, offer);
    core_count_refused(core, code);
    return KVFERRY_REFUSED;
}

kvferry_status core_ready(node_core *core, const char *transfer_id, uint64_t now)
{
    core->now = base_max(core->now, now);
    core_supply *offer = transfer_id ? core_supply_find(core, transfer_id) : NULL;
    if (!offer || offer->state != CORE_SUPPLY_LIVE)
        return KVFERRY_NOT_FOUND;
    if (offer->ready)
        return KVFERRY_OK;
    offer->ready = true;
    proceed_all(core, offer);
    return KVFERRY_OK;
}

kvferry_status core_supply_abort(node_core *core, const char *transfer_id)
{
    static const char code[] = "source_aborted", text[] = "the prefill side aborted";
    core_supply *offer = core_supply_find(core, transfer_id);
    if (offer && offer->state == CORE_SUPPLY_LIVE) {
        core_supply_end(core, offer, KVFERRY_OUTCOME_ABORTED, code, text, NULL);
        return KVFERRY_OK;
    }
    if (!offer || !offer->expected)
        return KVFERRY_NOT_FOUND;
    settle_all(core, offer, WIRE_ABORTED, code, text, NULL);
    leave_list(core, offer);
    offer->expected = false;
    offer->outcome = KVFERRY_OUTCOME_ABORTED;
    core_log_supply(core, KVFERRY_LOG_INFO, offer, "expected, and not offered", text);
    remember(core, offer);
    return KVFERRY_OK;
}

core_supply *core_supply_get(node_core *core, const char *id, core_target *target)
{
    core_supply *offer = core_supply_find(core, id);
    return offer ? offer : make_early(core, id, false, target);
}

core_supply *core_supply_get_free(node_core *core, const char *id, core_target *target)
{
    core_supply *offer = core_supply_find(core, id);
    const core_share *share = target ? &target->share : &core->strangers;
    bool own = !offer && is_crowded(core) && core_share_oldest(core)->share == share;
    return offer || own ? offer : make_early(core, id, false, target);
}

void core_supplies_free(node_core *core)
{
    core_supply *offer, *next;
    HASH_ITER(hh, core->offers, offer, next) {
        HASH_DEL(core->offers, offer);
        free_offer(core, offer);
    }
}

static core_supply *live_from(core_supply *offer)
{
    while (offer && offer->state != CORE_SUPPLY_LIVE)
        offer = offer->hh.next;
    return offer;
}

static core_request *open_from(core_request *request)
{
    while (request && request->state >= CORE_REQUEST_ENDED)
        request = request->hh.next;
    return request;
}

/* The end of one may be the last that is remembered of another; but no other that has not ended goes. */
void core_abort_all(node_core *core)
{
    core_supply *next_offer;
    for (core_supply *offer = live_from(core->offers); offer; offer = next_offer) {
        next_offer = live_from(offer->hh.next);
        core_supply_abort(core, offer->id);
    }
    core_request *next_request;
    for (core_request *request = open_from(core->requests); request; request = next_request) {
        next_request = open_from(request->hh.next);
        core_request_abort(core, request->id);
    }
}
