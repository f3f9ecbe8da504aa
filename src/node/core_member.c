/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill side: what one decode worker does with an offer. */
#include "node/core_internal.h"

core_member *core_member_find(core_supply *offer, const char *incarnation)
{
    core_member *member;
    for (member = offer->members; member; member = member->next)
        if (strcmp(member->incarnation, incarnation) == 0)
            return member;
    return NULL;
}

core_member *core_member_add(node_core *core, core_supply *offer, const char *incarnation)
{
    core_member *member = offer->member_count < WIRE_MAX_WORKERS ? base_alloc(1, sizeof(*member)) : NULL;
    if (!member)
        return NULL;
    memcpy(member->incarnation, incarnation, sizeof(member->incarnation));
    member->offer = offer;
    member->slot = SIZE_MAX;
    member->next = offer->members;
    offer->members = member;
    offer->member_count++;
    if (offer->state == CORE_SUPPLY_EARLY || offer->state == CORE_SUPPLY_PAST)
        ++*core_kept_members(core, offer);
    return member;
}

void core_member_shrink(core_member *member)
{
    if (kvferry_report_count(member->reasons) <= 1)
        return;
    kvferry_report *first = core_reason(member->code, NULL, NULL, core_reasons_text(member->reasons, ""));
    kvferry_report_free(member->reasons);
    member->reasons = first;
}

static void leave_tables(node_core *core, core_member *member)
{
    core_share_unpark(member);
    base_arena_free(&member->arena);
    core->early_bytes -= member->table_bytes;
    member->tables = NULL;
    member->table_count = 0;
    member->table_bytes = 0;
}

void core_member_leave_queue(core_member *member)
{
    if (member->channel)
        DL_DELETE2(member->channel->queue, member, queue_prev, queue_next);
    member->channel = NULL;
}

/* Out of all lists: it wants nothing more. */
static void leave_lists(node_core *core, core_member *member)
{
    core_member_leave_queue(member);
    core_sum_end(core, &member->sum);
    if (member->pairing)
        DL_DELETE2(member->pairing->slots[member->slot], member, slot_prev, slot_next);
    member->pairing = NULL;
    leave_tables(core, member);
}

void core_member_free(node_core *core, core_member *member)
{
    leave_lists(core, member);
    kvferry_report_free(member->reasons);
    free(member);
}

/* --- answers -------------------------------------------------------------------------------------------- */

static core_link way_to(node_core *core, const core_member *member)
{
    core_target *target = core_target_find(core, member->incarnation);
    return target && target->line ? target->line->id : 0;
}

void core_member_send_verdict(node_core *core, core_member *member, core_link link)
{
    bool said = member->state == CORE_MEMBER_SETTLED || member->state == CORE_MEMBER_WRITTEN;
    wire_message message = {.type = WIRE_VERDICT, .transfer_id = member->offer->id};
    wire_verdict *verdict = &message.body.verdict;
    memcpy(verdict->attempt, member->attempt, sizeof(verdict->attempt));
    verdict->outcome = member->state == CORE_MEMBER_WRITTEN ? WIRE_DONE
                       : said                               ? member->outcome
                                                            : WIRE_WAITING;
    if (verdict->outcome == WIRE_DONE) {
        verdict->copies = member->copies;
        verdict->bytes = member->bytes;
        verdict->checksums = member->sum.values;
        verdict->checksum_count = member->sum.count;
        verdict->part = member->in_part;
    } else if (said) {
        message.reasons = member->reasons;
    }
    core_send_to(core, link, member->incarnation, &message);
}

static void send_settled(node_core *core, core_member *member)
{
    const core_line *line = core_line_find(core, member->settle_link);
    core_link link = line && line->use != CORE_USE_SHUT ? line->id : way_to(core, member);
    wire_message message = {.type = WIRE_SETTLED, .transfer_id = member->offer->id};
    memcpy(message.body.verdict.attempt, member->settle_attempt, sizeof(message.body.verdict.attempt));
    message.body.verdict.outcome = member->outcome;
    if (link)
        core_send_to(core, link, member->incarnation, &message);
}

/* --- asking ----------------------------------------------------------------------------------------------- */

bool core_member_ask(node_core *core, core_member *member, core_target *target, const wire_ask *ask)
{
    if (!core_tables_copy(&member->arena, ask->tables, ask->table_count, &member->tables)) {
        base_arena_free(&member->arena);
        return false;
    }
    member->table_count = ask->table_count;
    member->table_bytes = core_tables_size(ask->tables, ask->table_count);
    core->early_bytes += member->table_bytes;
    core_share_park(target, member);
    memcpy(member->attempt, ask->attempt, sizeof(member->attempt));
    member->asked = true;
    member->verify = ask->verify;
    member->whole_blocks = ask->whole_blocks;
    member->allow_part = ask->whole_blocks && ask->part;
    member->in_part = false;
    member->tokens = ask->tokens;
    member->asked_at = core->now;
    uint64_t timeout;
    member->deadline = base_mul(ask->timeout_ms, 1000000, &timeout) ? core_after(core, timeout) : UINT64_MAX;
    member->state = CORE_MEMBER_WAITS;
    core_target_busy(core, target, true);
    return true;
}

void core_member_forget_ask(node_core *core, core_member *member)
{
    core_target *target = core_target_find(core, member->incarnation);
    if (target && target->busy)
        core_target_busy(core, target, false);
    leave_tables(core, member);
    member->attempt[0] = 0;
    member->asked = false;
    member->state = CORE_MEMBER_EXPECTED;
    core_supply_schedule(core, member->offer);
}

void core_member_proceed(node_core *core, core_member *member)
{
    core_supply *offer = member->offer;
    if (member->state != CORE_MEMBER_WAITS || offer->state != CORE_SUPPLY_LIVE || !offer->ready)
        return;
    if (member->verify && !core->options.checksums) {
        core_count_refused(core, "verify_unsupported");
        core_member_settle(core, member, WIRE_FAILED, "verify_unsupported",
                           "the prefill worker cannot make checksums of its memory", NULL);
        return;
    }
    core_write_begin(core, member);
}

void core_member_replaced(node_core *core, core_member *member)
{
    if (member->state != CORE_MEMBER_EXPECTED || member->replaced)
        return;
    member->replaced = true;
    member->deadline = core_after(core, core->options.early_ns);
    core_supply_schedule(core, member->offer);
}

/* --- ends --------------------------------------------------------------------------------------------------- */

static void finish(node_core *core, core_member *member)
{
    core_supply *offer = member->offer;
    if (member->asked) {
        core_target *target = core_target_find(core, member->incarnation);
        if (target && target->busy)
            core_target_busy(core, target, false);
    }
    member->state = CORE_MEMBER_SETTLED;
    member->pending = false;
    leave_lists(core, member);
    if (member->counted)
        offer->open--;
    core_link link = way_to(core, member);
    if (member->settle_asked)
        send_settled(core, member);
    else if (member->asked && link)
        core_member_send_verdict(core, member, link);
    if (!offer->held) {
        core_supply_schedule(core, offer);
        core_supply_advance(core, offer);
    }
}

void core_member_settle(node_core *core, core_member *member, wire_outcome outcome, const char *code,
                        const char *text, const kvferry_report *reasons)
{
    if (member->state == CORE_MEMBER_SETTLED || member->pending)
        return;
    member->outcome = outcome;
    if (outcome != WIRE_DONE) {
        core_code_set(member->code, code);
        kvferry_report_free(member->reasons);
        member->reasons = core_reason(code, NULL, NULL, text);
        if (member->reasons && kvferry_report_count(reasons)) {
            kvferry_report_clear(member->reasons);
            core_reasons_copy(member->reasons, reasons, WIRE_MAX_REASONS);
        }
        core_log(core, KVFERRY_LOG_INFO, "transfer %s, engine %s, incarnation %s: %s, %s",
                 member->offer->id, member->offer->engine_id, member->incarnation, code, text);
    }
    core_member_leave_queue(member);
    if (member->write_count) {
        member->pending = true;
        core_write_cancel_all(core, member);
    }
    if (!member->write_count)
        finish(core, member);
}

core_planned *core_member_planned(const core_member *member)
{
    return member->slot == SIZE_MAX ? NULL : member->offer->pairing->planned[member->slot];
}

kvferry_request core_member_request(const core_member *member)
{
    const core_supply *offer = member->offer;
    return (kvferry_request){.transfer_id = offer->id,
                             .source_tokens = offer->tokens,
                             .target_tokens = member->tokens,
                             .source = offer->tables,
                             .source_count = offer->table_count,
                             .target = member->tables,
                             .target_count = member->table_count,
                             .whole_blocks = member->whole_blocks};
}

/* The checksums of what was read are there: says that it is written. */
static void summed(node_core *core, void *owner, kvferry_status status)
{
    core_member *member = owner;
    if (status != KVFERRY_OK) {
        core_member_settle(core, member, WIRE_FAILED, "verify_unsupported",
                           "the prefill worker could not make checksums", NULL);
        return;
    }
    member->state = CORE_MEMBER_WRITTEN;
    core_link link = way_to(core, member);
    if (link)
        core_member_send_verdict(core, member, link);
}

static void written(node_core *core, core_member *member)
{
    core_planned *planned = core_member_planned(member);
    if (!member->verify) {
        core_member_settle(core, member, WIRE_DONE, NULL, NULL, NULL);
        return;
    }
    member->state = CORE_MEMBER_SUMS;
    if (!planned || !member->table_count) {
        summed(core, member, KVFERRY_OK);
        return;
    }
    member->sum = (core_sum){.over = summed,
                             .owner = member,
                             .plan = planned->plan,
                             .source = member->offer->pairing->own,
                             .side = KVFERRY_SIDE_PREFILL,
                             .request = core_member_request(member)};
    if (!core_sum_begin(core, &member->sum))
        summed(core, member, KVFERRY_NO_MEMORY);
}

void core_member_write_over(node_core *core, core_member *member, kvferry_status status, const char *detail)
{
    if (member->pending)
        finish(core, member);
    else if (status == KVFERRY_OK)
        written(core, member);
    else if (status == KVFERRY_TIMEOUT)
        core_member_settle(core, member, WIRE_EXPIRED, "deadline",
                           *detail ? detail : "the ask's time is over, and it is not written", NULL);
    else if (status == KVFERRY_PEER_LOST)
        core_member_settle(core, member, WIRE_FAILED, "peer_lost",
                           *detail ? detail : "the transfer engine lost the decode worker", NULL);
    else
        core_member_settle(core, member, WIRE_FAILED, "write_failed",
                           *detail ? detail : kvferry_status_describe(status), NULL);
}
