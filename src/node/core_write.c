/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill side: writes, and the transfer engine's connections that they go over. */
#include "node/core_internal.h"

core_channel *core_channel_open(node_core *core, core_target *target)
{
    core_channel *channel = base_alloc(1, sizeof(*channel));
    if (!channel)
        return NULL;
    channel->peer = core->next_peer++;
    HASH_ADD(hh, core->channels, peer, sizeof(channel->peer), channel);
    if (!channel->hh.tbl) {
        free(channel);
        return NULL;
    }
    channel->target = target;
    channel->binding = target->binding;
    target->binding = NULL;
    channel->connect_action.effect = (core_effect){.kind = CORE_CONNECT_PEER,
                                                   .peer = channel->peer,
                                                   .data = channel->binding,
                                                   .size = target->binding_size};
    core_action_queue(core, &channel->connect_action);
    return channel;
}

/* Closed, and nothing is in flight. */
static void leave_channel(node_core *core, core_channel *channel)
{
    if (channel->target || channel->writes)
        return;
    HASH_DEL(core->channels, channel);
    core_action_free(&channel->close_action, channel->binding, channel);
}

void core_channel_close(node_core *core, core_channel *channel)
{
    channel->target->channel = NULL;
    channel->target = NULL;
    channel->close_action.effect = (core_effect){.kind = CORE_CLOSE_PEER, .peer = channel->peer};
    core_action_queue(core, &channel->close_action);
    leave_channel(core, channel);
}

/* --- writes ------------------------------------------------------------------------------------------------ */

/* Once the driver has seen what there is to be seen of it. */
static void free_write(core_write *write)
{
    write->write_action.skip = write->cancel_action.skip = true;
    core_action *last = write->cancel_action.queued ? &write->cancel_action : &write->write_action;
    core_action_free(last, write->copies, write);
}

static core_write *make_write(node_core *core, core_member *member, core_channel *channel,
                              kvferry_copy *copies, size_t count)
{
    core_write *write = base_alloc(1, sizeof(*write));
    if (!write)
        return NULL;
    write->id = core->next_write++;
    HASH_ADD(hh, core->writes, id, sizeof(write->id), write);
    if (!write->hh.tbl) {
        free(write);
        return NULL;
    }
    write->channel = channel;
    write->offer = member->offer;
    write->member = member;
    write->copies = copies;
    write->count = count;
    for (size_t i = 0; i < count; i++)
        write->bytes += copies[i].bytes;
    DL_APPEND(channel->writes, write);
    channel->copies += count;
    core->statistics.queued_copies += count;
    member->write = write;
    member->state = CORE_MEMBER_WRITES;
    member->offer->writes++;
    write->write_action.effect = (core_effect){.kind = CORE_WRITE,
                                               .write = write->id,
                                               .peer = channel->peer,
                                               .copies = copies,
                                               .count = count,
                                               .deadline_ns = member->deadline};
    core_action_queue(core, &write->write_action);
    return write;
}

static bool try_write(node_core *core, core_member *member, bool first);

/* Whether the one that waits longest could go on. */
static bool take_turn(node_core *core, core_channel *channel)
{
    core_member *member = channel->queue;
    DL_DELETE2(channel->queue, member, queue_prev, queue_next);
    member->channel = NULL;
    member->state = CORE_MEMBER_WAITS;
    return try_write(core, member, true);
}

static void over(node_core *core, core_write *write, kvferry_status status, const char *detail)
{
    core_channel *channel = write->channel;
    core_member *member = write->member;
    HASH_DEL(core->writes, write);
    DL_DELETE(channel->writes, write);
    channel->copies -= write->count;
    core->statistics.queued_copies -= write->count;
    member->write = NULL;
    write->offer->writes--;
    if (status == KVFERRY_OK) {
        member->copies = write->count;
        member->bytes = write->bytes;
        write->offer->copies += write->count;
        write->offer->bytes += write->bytes;
        core->statistics.copies[KVFERRY_SIDE_PREFILL] += write->count;
        core->statistics.bytes[KVFERRY_SIDE_PREFILL] += write->bytes;
    }
    free_write(write);
    core_member_write_over(core, member, status, detail);
    while (channel->target && channel->queue && take_turn(core, channel)) {
    }
    leave_channel(core, channel);
    core_leave(core);
}

void core_write_ended(node_core *core, uint64_t id, kvferry_status status, const char *detail, uint64_t now)
{
    core->now = base_max(core->now, now);
    core_write *write;
    HASH_FIND(hh, core->writes, &id, sizeof(id), write);
    if (write)
        over(core, write, status, detail ? detail : "");
}

void core_write_cancel(node_core *core, core_write *write)
{
    if (write->canceled)
        return;
    write->canceled = true;
    if (write->write_action.queued && core->taken != &write->write_action) { /* nobody began it */
        over(core, write, KVFERRY_CANCELED, "");
        return;
    }
    write->cancel_action.effect = (core_effect){.kind = CORE_CANCEL_WRITE, .write = write->id};
    core_action_queue(core, &write->cancel_action);
}

/* --- from an ask to a write ---------------------------------------------------------------------------------- */

static void fail(node_core *core, core_member *member, const char *code, const char *text)
{
    core_member_settle(core, member, WIRE_FAILED, code, text, NULL);
}

static void expand(node_core *core, core_member *member, core_channel *channel, const kvferry_plan *plan,
                   const kvferry_request *request, size_t bound)
{
    size_t source = member->offer->pairing->own, count = 0;
    kvferry_copy *copies = base_alloc(bound + 1, sizeof(*copies));
    kvferry_report *report = NULL;
    if (!copies || kvferry_report_create(&report) != KVFERRY_OK) {
        free(copies);
        fail(core, member, "no_memory", "memory ran out at the prefill worker");
        return;
    }
    kvferry_status status = kvferry_plan_expand(plan, source, request, copies, bound, &count, report);
    if (status != KVFERRY_OK || !count) {
        free(copies);
        if (status == KVFERRY_OK) {
            core_member_write_over(core, member, KVFERRY_OK, "");
        } else {
            const char *code = core_reasons_code(report, "no_memory");
            core_count_refused(core, code);
            core_member_settle(core, member, WIRE_FAILED, code,
                               core_reasons_text(report, "memory ran out at the prefill worker"), report);
        }
    } else {
        kvferry_copy *fitting = realloc(copies, count * sizeof(*copies));
        copies = fitting ? fitting : copies;
        if (!make_write(core, member, channel, copies, count)) {
            free(copies);
            fail(core, member, "no_memory", "memory ran out at the prefill worker");
        }
    }
    kvferry_report_free(report);
}

/* `first`: it has its turn. false: it waits for one. */
static bool try_write(node_core *core, core_member *member, bool first)
{
    core_supply *offer = member->offer;
    core_target *target = core_target_find(core, member->incarnation);
    core_planned *planned = member->slot == SIZE_MAX ? NULL : offer->pairing->planned[member->slot];
    if (!target || !target->channel) {
        fail(core, member, "peer_lost", "the decode worker is gone");
        return true;
    }
    if (!planned || !member->table_count) {
        core_member_write_over(core, member, KVFERRY_OK, "");
        return true;
    }
    const kvferry_request request = {.transfer_id = offer->id,
                                     .source_tokens = offer->tokens,
                                     .target_tokens = member->tokens,
                                     .source = offer->tables,
                                     .source_count = offer->table_count,
                                     .target = member->tables,
                                     .target_count = member->table_count};
    core_channel *channel = target->channel;
    size_t bound = kvferry_plan_expand_bound(planned->plan, offer->pairing->own, &request);
    if (bound > core->options.max_peer_copies) {
        core_count_refused(core, "too_many_copies");
        kvferry_report *reasons =
            core_reason("too_many_copies", base_format("at most %llu", (unsigned long long)core->options.max_peer_copies),
                        base_format("up to %zu", bound), "the copies of this ask");
        core_member_settle(core, member, WIRE_FAILED, "too_many_copies", "more than max_peer_copies",
                           reasons);
        kvferry_report_free(reasons);
        return true;
    }
    if ((channel->queue && !first) || channel->copies + bound > core->options.max_peer_copies) {
        member->state = CORE_MEMBER_QUEUED;
        member->channel = channel;
        if (first)
            DL_PREPEND2(channel->queue, member, queue_prev, queue_next);
        else
            DL_APPEND2(channel->queue, member, queue_prev, queue_next);
        return false;
    }
    expand(core, member, channel, planned->plan, &request, bound);
    return true;
}

void core_write_begin(node_core *core, core_member *member) { try_write(core, member, false); }

void core_channels_free(node_core *core)
{
    core_write *write, *next_write;
    HASH_ITER(hh, core->writes, write, next_write) {
        HASH_DEL(core->writes, write);
        free_write(write);
    }
    core_channel *channel, *next;
    HASH_ITER(hh, core->channels, channel, next) {
        HASH_DEL(core->channels, channel);
        core_action *last =
            channel->close_action.queued ? &channel->close_action : &channel->connect_action;
        core_action_free(last, channel->binding, channel);
    }
}
