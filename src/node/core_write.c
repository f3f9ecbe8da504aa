/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill side: writes, and the transfer engine's connections that they go over. */
#include "node/core_internal.h"

static void take_turn(node_core *core, void *owner);

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
    channel->job = (core_job){.run = take_turn, .owner = channel};
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
    core_job_stop(core, &channel->job);
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
    DL_APPEND2(member->writes, write, member_prev, member_next);
    member->write_count++;
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

static void enter_queue(node_core *core, core_member *member, core_channel *channel)
{
    if (!member->channel) {
        member->channel = channel;
        DL_APPEND2(channel->queue, member, queue_prev, queue_next);
    }
    if (!member->write_count)
        member->state = CORE_MEMBER_QUEUED;
    core_job_queue(core, &channel->job);
}

/* A write of the member is over, and others of it may not be. */
static void go_on(node_core *core, core_member *member, core_channel *channel, kvferry_status status,
                  const char *detail)
{
    if (member->pending || status != KVFERRY_OK) {
        if (!member->pending || !member->write_count)
            core_member_write_over(core, member, status, detail);
    } else if (!member->expanded) {
        enter_queue(core, member, channel);
        if (!member->write_count && !member->offer->held) /* its time may be over while it waits */
            core_supply_schedule(core, member->offer);
    } else if (!member->write_count) {
        core_member_write_over(core, member, KVFERRY_OK, "");
    }
}

static void over(node_core *core, core_write *write, kvferry_status status, const char *detail)
{
    core_channel *channel = write->channel;
    core_member *member = write->member;
    HASH_DEL(core->writes, write);
    DL_DELETE(channel->writes, write);
    channel->copies -= write->count;
    core->statistics.queued_copies -= write->count;
    DL_DELETE2(member->writes, write, member_prev, member_next);
    member->write_count--;
    write->offer->writes--;
    if (status == KVFERRY_OK) {
        member->copies += write->count;
        member->bytes += write->bytes;
        write->offer->copies += write->count;
        write->offer->bytes += write->bytes;
        core->statistics.copies[KVFERRY_SIDE_PREFILL] += write->count;
        core->statistics.bytes[KVFERRY_SIDE_PREFILL] += write->bytes;
    }
    free_write(write);
    go_on(core, member, channel, status, detail);
    if (channel->target && channel->queue)
        core_job_queue(core, &channel->job);
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

static void cancel(node_core *core, core_write *write)
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

void core_write_cancel_all(node_core *core, core_member *member)
{
    core_write *write, *next;
    member->write_count++; /* its end is the caller's */
    DL_FOREACH_SAFE2(member->writes, write, next, member_next) {
        cancel(core, write);
    }
    member->write_count--;
}

/* --- from an ask to writes ----------------------------------------------------------------------------------- */

/* A slice has at most so many copies, and no more than a part of the window; a member has so many slices in flight. */
enum { SLICE_COPIES = 8192, WINDOW_PART = 4, MEMBER_SLICES = 4, SLICE_NS = 2000, COPY_NS = 10 };

static void fail(node_core *core, core_member *member, const char *code, const char *text)
{
    core_member_settle(core, member, WIRE_FAILED, code, text, NULL);
}

static void fail_with(node_core *core, core_member *member, const char *code, const kvferry_report *reasons)
{
    core_count_refused(core, code);
    core_member_settle(core, member, WIRE_FAILED, code,
                       core_reasons_text(reasons, "memory ran out at the prefill worker"), reasons);
}

static void too_many(node_core *core, core_member *member, size_t bound)
{
    kvferry_report *reasons = core_reason(
        "too_many_copies", base_format("at most %llu", (unsigned long long)core->options.max_peer_copies),
        base_format("up to %zu", bound), "the copies of one block of this ask, and max_peer_copies");
    fail_with(core, member, "too_many_copies", reasons);
    kvferry_report_free(reasons);
}

/* Writes a slice. false: the member is settled. */
static bool write_slice(node_core *core, core_member *member, core_channel *channel, const plan_slice *slice)
{
    const kvferry_plan *plan = core_member_planned(member)->plan;
    size_t source = member->offer->pairing->own, count = 0;
    kvferry_copy *copies = base_alloc(slice->bound, sizeof(*copies));
    kvferry_report *report = NULL;
    if (!copies || kvferry_report_create(&report) != KVFERRY_OK) {
        free(copies);
        fail(core, member, "no_memory", "memory ran out at the prefill worker");
        return false;
    }
    kvferry_status status =
        kvferry_plan_expand(plan, source, &slice->request, copies, slice->bound, &count, report);
    core_spend(core, SLICE_NS + slice->bound * COPY_NS);
    bool any = status == KVFERRY_OK && count;
    kvferry_copy *fitting = any ? realloc(copies, count * sizeof(*copies)) : NULL;
    copies = fitting ? fitting : copies;
    bool taken = any && make_write(core, member, channel, copies, count);
    if (!taken)
        free(copies);
    if (status != KVFERRY_OK)
        fail_with(core, member, core_reasons_code(report, "no_memory"), report);
    else if (any && !taken)
        fail(core, member, "no_memory", "memory ran out at the prefill worker");
    kvferry_report_free(report);
    return status == KVFERRY_OK && taken == any;
}

/* Before the first slice of several: all of it must be right. false: the member is settled. */
static bool check_whole(node_core *core, core_member *member, const kvferry_request *request)
{
    kvferry_report *report = NULL;
    kvferry_status status = kvferry_report_create(&report);
    if (status == KVFERRY_OK)
        status = plan_slice_check(core_member_planned(member)->plan, member->offer->pairing->own, request, report);
    if (status == KVFERRY_REFUSED)
        fail_with(core, member, core_reasons_code(report, "no_memory"), report);
    else if (status != KVFERRY_OK)
        fail(core, member, "no_memory", "memory ran out at the prefill worker");
    kvferry_report_free(report);
    return status == KVFERRY_OK;
}

/*
 * Once, before anything is written: where not all is held that comes before windows, none of it is written, if that is
 * allowed. What else is wrong is found as ever. false: the member is settled.
 */
static bool decide_part(node_core *core, core_member *member)
{
    if (!member->allow_part)
        return true;
    const kvferry_request request = core_member_request(member);
    kvferry_status status =
        plan_slice_check(core_member_planned(member)->plan, member->offer->pairing->own, &request, NULL);
    member->allow_part = false;
    member->in_part = status == KVFERRY_REFUSED;
    if (member->in_part)
        member->whole_blocks = false;
    if (status == KVFERRY_NO_MEMORY)
        fail(core, member, "no_memory", "memory ran out at the prefill worker");
    return status != KVFERRY_NO_MEMORY;
}

static bool begun(const core_member *member) { return member->cursor.table || member->cursor.block; }

/* Nothing is left to write. */
static void expanded(node_core *core, core_member *member)
{
    member->expanded = true;
    if (!member->write_count)
        core_member_write_over(core, member, KVFERRY_OK, "");
}

/* `slice` NULL: there is none. `after`: where the next one begins; NULL: there is no other. */
static void go_on_with(node_core *core, core_member *member, core_channel *channel, const plan_slice *slice,
                       const plan_cursor *after)
{
    if (slice && !write_slice(core, member, channel, slice))
        return;
    if (!slice || !after) {
        expanded(core, member);
        return;
    }
    member->cursor = *after;
    if (member->write_count < MEMBER_SLICES)
        enter_queue(core, member, channel);
}

/* Writes the next slice of who stands first, if it finds room, and lets the others go before it. */
static void take_turn(node_core *core, void *owner)
{
    core_channel *channel = owner;
    core_member *member = channel->queue;
    if (!member)
        return;
    if (!decide_part(core, member)) {
        core_job_queue(core, &channel->job);
        return;
    }
    const kvferry_request request = core_member_request(member);
    const kvferry_plan *plan = core_member_planned(member)->plan;
    const size_t source = member->offer->pairing->own;
    const uint64_t window = core->options.max_peer_copies, most = base_min(window / WINDOW_PART, SLICE_COPIES);
    plan_slice slice = {.request = request};
    plan_cursor after = member->cursor;
    bool first = !begun(member), any = true;
    if (first)
        slice.bound = kvferry_plan_expand_bound(plan, source, &request);
    bool cuts = !first || slice.bound > most;
    if (cuts)
        any = plan_slice_next(plan, source, &request, most, &after, &slice);
    bool room = !any || (channel->copies <= window && slice.bound <= window - channel->copies);
    if (!room && channel->writes)
        return; /* the end of one of them queues the job again */
    core_member_leave_queue(member);
    if (!room)
        too_many(core, member, slice.bound);
    else if (!(first && cuts) || check_whole(core, member, &request))
        go_on_with(core, member, channel, any ? &slice : NULL, cuts ? &after : NULL);
    if (channel->queue)
        core_job_queue(core, &channel->job);
}

void core_write_begin(node_core *core, core_member *member)
{
    core_target *target = core_target_find(core, member->incarnation);
    if (!target || !target->channel)
        fail(core, member, "peer_lost", "the decode worker is gone");
    else if (!core_member_planned(member) || !member->table_count)
        core_member_write_over(core, member, KVFERRY_OK, "");
    else
        enter_queue(core, member, target->channel);
}

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
        core_job_stop(core, &channel->job);
        core_action *last =
            channel->close_action.queued ? &channel->close_action : &channel->connect_action;
        core_action_free(last, channel->binding, channel);
    }
}
