/* SPDX-License-Identifier: Apache-2.0 */
/* Decode side: asks, from the call to the last word of every source. */
#include "node/core_internal.h"

#include <stdio.h>

static core_request *find_request(node_core *core, const char *id)
{
    core_request *request;
    HASH_FIND_STR(core->requests, id, request);
    return request;
}

/* What is not needed to remember that it was there. */
static void empty_request(node_core *core, core_request *request)
{
    core_parts_free(core, request);
    core_pairing_release(core, request->pairing);
    request->pairing = NULL;
    base_arena_free(&request->arena);
    request->tables = NULL;
    request->table_count = 0;
    kvferry_report_free(request->reasons);
    request->reasons = NULL;
    core_event_discard(request->ended);
    core_event_discard(request->released_event);
    request->ended = request->released_event = NULL;
}

static void free_request(node_core *core, core_request *request)
{
    empty_request(core, request);
    core_timer_end(core, &request->timer);
    free(request);
}

static void leave_engine(core_request *request)
{
    if (!request->engine)
        return;
    DL_DELETE(request->engine->requests, request);
    request->engine = NULL;
}

static void forget(node_core *core, core_request *request)
{
    DL_DELETE(core->past_requests, request);
    core->past_request_count--;
    HASH_DEL(core->requests, request);
    free_request(core, request);
}

/* --- time ---------------------------------------------------------------------------------------------------- */

static void schedule(node_core *core, core_request *request)
{
    uint64_t retry = core_after(core, core->options.retry_ns);
    if (request->state == CORE_REQUEST_CONNECTS)
        core_timer_set(core, &request->timer, request->deadline);
    else if (request->state == CORE_REQUEST_ASKS)
        core_timer_set(core, &request->timer, base_min(request->deadline, retry));
    else if (request->state == CORE_REQUEST_ENDED)
        core_timer_set(core, &request->timer, base_min(request->tell_until, retry));
}

static void become_past(node_core *core, core_request *request)
{
    core_request_tell_end(core, request);
    empty_request(core, request);
    request->state = CORE_REQUEST_PAST;
    core_timer_set(core, &request->timer, core_after(core, core->options.remember_ns));
    DL_APPEND(core->past_requests, request);
    if (++core->past_request_count > core->options.max_transfers)
        forget(core, core->past_requests);
}

static void on_time(node_core *core, void *owner)
{
    core_request *request = owner;
    if (request->state == CORE_REQUEST_PAST) {
        forget(core, request);
        return;
    }
    if (request->state == CORE_REQUEST_ENDED && core->now >= request->tell_until) {
        leave_engine(request);
        become_past(core, request);
        return;
    }
    if (request->state != CORE_REQUEST_ENDED && core->now >= request->deadline) {
        core_request_end(core, request, KVFERRY_OUTCOME_EXPIRED, "deadline",
                         request->state == CORE_REQUEST_CONNECTS
                             ? "the ask's time is over, and its engine is not connected"
                             : "the ask's time is over, and not all of its sources are done",
                         NULL);
        return;
    }
    schedule(core, request);
    for (size_t i = 0; !request->lingers && i < request->part_count; i++)
        if (request->parts[i].source)
            core_part_send(core, &request->parts[i]);
    if (request->lingers && !request->released)
        core_request_advance(core, request);
}

/* --- the end --------------------------------------------------------------------------------------------------- */

static void release(node_core *core, core_request *request)
{
    request->released = true;
    if (request->blocks) {
        core_owners_set(core, request->tables, request->table_count, false);
        core->statistics.quarantined_blocks -= request->blocks;
    }
    core->request_count--;
    core->statistics.unreleased[KVFERRY_SIDE_DECODE]--;
    core_event_set_work(request->released_event, 0, 0, core->now - request->ended_at);
    core_log_request(core, KVFERRY_LOG_DEBUG, request, "asked blocks released", "");
    core_event_queue(core, request->released_event);
    request->released_event = NULL;
}

/*
 * A writer that was stopped in the middle says so by another way than its bytes come: where it gave up the
 * connection (it took this node for lost), the last ones may lie in a queue here, behind its word.
 */
static bool was_cut(const core_request *request)
{
    for (size_t i = 0; request->blocks && i < request->part_count; i++)
        if (request->parts[i].asked && !request->parts[i].done && !request->parts[i].arrived)
            return true;
    return false;
}

static bool still_arriving(node_core *core, core_request *request)
{
    if (!request->lingers && !request->released && was_cut(request)) {
        request->lingers = true;
        core_linger_begin(core, &request->linger);
    }
    if (request->lingers && core_linger_on(core, &request->linger, &request->timer))
        return true;
    request->lingers = false;
    return false;
}

void core_request_advance(node_core *core, core_request *request)
{
    if (request->state != CORE_REQUEST_ENDED)
        return;
    bool confirmed = true, told = !request->engine;
    for (size_t i = 0; i < request->part_count; i++) {
        confirmed &= request->parts[i].confirmed;
        told &= request->parts[i].told;
    }
    if (!confirmed || still_arriving(core, request))
        return;
    bool first = !request->released;
    if (first)
        release(core, request);
    if (told)
        become_past(core, request);
    else if (first)
        core_request_tell_begin(core, request);
}

void core_request_end(node_core *core, core_request *request, kvferry_outcome outcome, const char *code,
                      const char *text, const kvferry_report *reasons)
{
    if (request->state == CORE_REQUEST_ENDED || request->state == CORE_REQUEST_PAST)
        return;
    bool done = outcome == KVFERRY_OUTCOME_DONE;
    bool in_part = false;
    uint64_t copies = 0, bytes = 0;
    for (size_t i = 0; i < request->part_count; i++) {
        copies += request->parts[i].copies;
        bytes += request->parts[i].bytes;
        in_part |= request->parts[i].in_part;
    }
    request->outcome = outcome;
    request->ended_at = core->now;
    if (!done) {
        request->reasons = core_reason(code, NULL, NULL, text);
        if (kvferry_report_count(reasons) && request->reasons) {
            kvferry_report_clear(request->reasons);
            core_reasons_copy(request->reasons, reasons, WIRE_MAX_REASONS);
        }
    }
    core_event_set_outcome(request->ended, outcome, code, text, request->reasons);
    core_event_copy_outcome(request->released_event, request->ended);
    core_event_set_work(request->ended, bytes, copies, core->now - request->begun);
    core_event_set_part(request->ended, done && in_part);
    core_event_queue(core, request->ended);
    request->ended = NULL;
    kvferry_node_statistics *counts = &core->statistics;
    counts->ended[KVFERRY_SIDE_DECODE][outcome]++;
    counts->transfer_ns[KVFERRY_SIDE_DECODE] += core->now - request->begun;
    counts->copies[KVFERRY_SIDE_DECODE] += copies;
    counts->bytes[KVFERRY_SIDE_DECODE] += bytes;
    counts->live[KVFERRY_SIDE_DECODE]--;
    counts->unreleased[KVFERRY_SIDE_DECODE]++;
    counts->quarantined_blocks += request->blocks;
    core_log_request(core, done ? KVFERRY_LOG_DEBUG : KVFERRY_LOG_WARNING, request,
                     base_format("ask %s%s", kvferry_outcome_name(outcome), done && in_part ? " in part" : ""),
                     core_reasons_text(request->reasons, ""));
    /* Where the engine is not known yet its workers are told once they are; nothing was asked of them. */
    if (request->part_count)
        leave_engine(request);
    request->state = CORE_REQUEST_ENDED;
    schedule(core, request);
    for (size_t i = 0; i < request->part_count; i++) {
        core_part *part = &request->parts[i];
        core_part_leave_sum(core, part);
        part->confirmed |= !part->asked || part->done;
        part->told |= part->done && !request->verify;
        if (part->told)
            core_part_close(core, part);
        else
            core_part_send(core, part);
    }
    core_request_advance(core, request);
}

/* --- asking ------------------------------------------------------------------------------------------------------ */

static void look_done(node_core *core, core_request *request)
{
    for (size_t i = 0; i < request->part_count; i++)
        if (!request->parts[i].done)
            return;
    core_request_end(core, request, KVFERRY_OUTCOME_DONE, NULL, NULL, NULL);
}

/* A source that does not know of whole blocks would leave them in part, and say that all is done. */
static bool refuse_old_sources(node_core *core, core_request *request)
{
    const core_source *old = NULL;
    for (size_t i = 0; request->whole_blocks && request->table_count && i < request->part_count && !old; i++)
        if (request->parts[i].source->minor < WIRE_MINOR_WHOLE_BLOCKS)
            old = request->parts[i].source;
    if (!old)
        return false;
    kvferry_report *reasons = core_reason(
        "message_version", base_format("at least %d.%d, of every prefill worker", WIRE_MAJOR, WIRE_MINOR_WHOLE_BLOCKS),
        base_format("%d.%u of %.200s", WIRE_MAJOR, old->minor, old->address), "a source of whole blocks");
    core_request_end(core, request, KVFERRY_OUTCOME_FAILED, "message_version", "a source is too old for whole blocks",
                     reasons);
    kvferry_report_free(reasons);
    return true;
}

void core_request_connected(node_core *core, core_request *request)
{
    core_engine *engine = request->engine;
    request->engine = NULL;
    if (request->ended)
        core_event_set_engine(request->ended, engine->id);
    if (request->released_event)
        core_event_set_engine(request->released_event, engine->id);
    bool made = core_parts_make(core, request, engine);
    if (!made) {
        core_request_end(core, request, KVFERRY_OUTCOME_FAILED,
                         request->part_count ? "incarnation" : "no_memory",
                         request->part_count ? "a worker that was asked is not in the engine any more"
                                             : "memory ran out", NULL);
        core_request_advance(core, request);
        return;
    }
    core_pairing_release(core, request->pairing);
    request->pairing = engine->pairing;
    request->pairing->uses++;
    if (request->state == CORE_REQUEST_ENDED) {
        for (size_t i = 0; i < request->part_count; i++)
            request->parts[i].confirmed = true;
    } else {
        request->state = CORE_REQUEST_ASKS;
    }
    schedule(core, request);
    if (request->state == CORE_REQUEST_ASKS && refuse_old_sources(core, request))
        return;
    for (size_t i = 0; i < request->part_count; i++)
        core_part_send(core, &request->parts[i]);
    if (request->state == CORE_REQUEST_ASKS)
        look_done(core, request);
    else
        core_request_advance(core, request);
}

static kvferry_status refuse(node_core *core, kvferry_report *report, const char *code,
                             const char *expected, const char *found, const char *id)
{
    core_count_refused(core, code);
    base_report_add(report, code, NULL, expected, found, "the ask for transfer \"%s\"", id);
    return KVFERRY_REFUSED;
}

static kvferry_status check_ask(node_core *core, const kvferry_ask *ask, kvferry_report *report)
{
    const char *id = ask->transfer_id;
    if (core->draining)
        return refuse(core, report, "node_closing", "a node that takes asks", "one that closes", id);
    core_request *known = find_request(core, id);
    if (known && known->state < CORE_REQUEST_ENDED)
        return refuse(core, report, "transfer_known", "an id that was not asked for", "one that is", id);
    if (known)
        return refuse(core, report, "transfer_over", "an id that was not asked for",
                      "one that has ended", id);
    if (core->request_count >= core->options.max_transfers)
        return refuse(core, report, "too_many_transfers",
                      base_format("at most %u", core->options.max_transfers), "as many", id);
    if (core->options.verify && !core->options.checksums)
        return refuse(core, report, "verify_unsupported", "memory that checksums can be made of",
                      "none", id);
    const char *code = core_check_ask(core, ask, report);
    if (!code)
        return KVFERRY_OK;
    core_count_refused(core, code);
    return KVFERRY_REFUSED;
}

static core_request *make_request(node_core *core, const kvferry_ask *ask)
{
    core_request *request = base_alloc(1, sizeof(*request));
    if (!request)
        return NULL;
    snprintf(request->id, sizeof(request->id), "%s", ask->transfer_id);
    request->ended = core_event_create(KVFERRY_EVENT_ENDED, KVFERRY_SIDE_DECODE, ask->engine_id,
                                       ask->transfer_id, ask->context);
    request->released_event = core_event_create(KVFERRY_EVENT_RELEASED, KVFERRY_SIDE_DECODE,
                                                ask->engine_id, ask->transfer_id, ask->context);
    bool made = request->ended && request->released_event &&
                core_tables_copy(&request->arena, ask->tables, ask->table_count, &request->tables) &&
                core_timer_begin(core, &request->timer, on_time, request);
    if (made)
        HASH_ADD_STR(core->requests, id, request);
    if (!request->hh.tbl) {
        free_request(core, request);
        return NULL;
    }
    request->table_count = ask->table_count;
    request->tell_until = UINT64_MAX;
    return request;
}

kvferry_status core_ask(node_core *core, const kvferry_ask *ask, uint64_t now, kvferry_report *report)
{
    core->now = base_max(core->now, now);
    if (ask && !core_check_size(core, "the ask", ask->size, sizeof(*ask), report))
        return KVFERRY_INVALID;
    if (!ask || !ask->engine_id || !ask->where || !ask->transfer_id ||
        !*ask->transfer_id || strlen(ask->transfer_id) > WIRE_MAX_ID ||
        (ask->table_count && !ask->tables)) {
        base_report_add(report, "transfer_invalid", NULL, "an id of 1 to 255 bytes, and all pointers set",
                        NULL, "the ask");
        core_count_refused(core, "transfer_invalid");
        return KVFERRY_INVALID;
    }
    kvferry_status status = check_ask(core, ask, report);
    if (status != KVFERRY_OK)
        return status;
    core_request *request = make_request(core, ask);
    if (!request)
        return KVFERRY_NO_MEMORY;
    core_engine *engine = NULL;
    status = core_engine_get(core, ask->engine_id, ask->where, &engine, report);
    if (status != KVFERRY_OK) {
        if (status == KVFERRY_REFUSED)
            core_count_refused(core, "peer_unknown");
        HASH_DEL(core->requests, request);
        free_request(core, request);
        return status;
    }
    request->where = base_arena_strdup(&request->arena, engine->where);
    request->tokens = ask->tokens;
    request->verify = core->options.verify;
    request->whole_blocks = ask->whole_blocks;
    request->allow_part = ask->whole_blocks && ask->allow_part;
    request->begun = core->now;
    uint64_t timeout = core->options.transfer_ns;
    if (ask->timeout_ms && !base_mul(ask->timeout_ms, 1000000, &timeout))
        timeout = UINT64_MAX;
    request->deadline = core_after(core, timeout);
    request->blocks = core_owners_set(core, request->tables, request->table_count, true);
    core->request_count++;
    core->statistics.live[KVFERRY_SIDE_DECODE]++;
    request->engine = engine;
    if (engine->state == CORE_ENGINE_CONNECTED) {
        core_request_connected(core, request);
    } else {
        DL_APPEND(engine->requests, request);
        schedule(core, request);
    }
    return KVFERRY_OK;
}

/* --- what arrives ----------------------------------------------------------------------------------------------- */

/* The part that a message is about; NULL: none that waits for it. */
static core_part *find_addressed(node_core *core, core_line *line, const wire_message *message)
{
    core_request *request = find_request(core, message->transfer_id);
    core_part *part =
        request && line->use == CORE_USE_SOURCE ? core_parts_find(request, message->sender) : NULL;
    if (part && strcmp(part->attempt, message->body.verdict.attempt) != 0)
        part = NULL;
    if (!part)
        core->statistics.ignored++;
    return part;
}

/* What is asked next is not answered by what was said before. */
static void new_attempt(node_core *core, core_part *part)
{
    core_incarnation_text(core_random(core), part->attempt);
    part->again = true;
}

/* A roster has changed since the handshake: shakes hands again and asks again, once for each state of things. */
static bool ask_again(node_core *core, core_part *part)
{
    core_request *request = part->request;
    core_engine *engine = part->source->engine;
    char rosters[WIRE_DIGEST_TEXT * 2];
    memcpy(rosters, request->pairing->source->wire.digest, WIRE_DIGEST_TEXT - 1);
    memcpy(rosters + WIRE_DIGEST_TEXT - 1, request->pairing->target->wire.digest, WIRE_DIGEST_TEXT);
    if (!engine || strcmp(rosters, request->refused_rosters) == 0)
        return false;
    memcpy(request->refused_rosters, rosters, sizeof(rosters));
    new_attempt(core, part);
    request->state = CORE_REQUEST_CONNECTS;
    request->engine = engine;
    DL_APPEND(engine->requests, request);
    schedule(core, request);
    if (engine->state == CORE_ENGINE_CONNECTED)
        core_engine_again(core, engine);
    return true;
}

/*
 * Refused by who has no record of it: that decides nothing, since a late copy of this ask may be served. Only a settle,
 * behind which no copy comes, makes sure.
 */
static bool is_open(const core_part *part, const char *code)
{
    static const char *const unrecorded[] = {"roster_changed", "too_many_transfers", "transfer_taken",
                                             "target_unexpected", "transfer_unknown"};
    for (size_t i = 0; i < sizeof(unrecorded) / sizeof(*unrecorded); i++)
        if (strcmp(code, unrecorded[i]) == 0)
            return true;
    return part->again && strcmp(code, "transfer_over") == 0; /* of an earlier attempt */
}

static void failed_verdict(node_core *core, core_part *part, const wire_message *message)
{
    static const char *const codes[] = {"", "source_failed", "source_aborted", "source_expired"};
    core_request *request = part->request;
    const char *code = core_reasons_code(message->reasons, codes[message->body.verdict.outcome]);
    bool changed = strcmp(code, "roster_changed") == 0;
    if (request->state == CORE_REQUEST_ASKS && changed && ask_again(core, part))
        return;
    if (request->state == CORE_REQUEST_CONNECTS && changed) {
        new_attempt(core, part);
        return;
    }
    bool open = is_open(part, code);
    if (open && request->state == CORE_REQUEST_ENDED)
        return;
    part->confirmed = !open;
    part->told |= !open;
    if (request->state == CORE_REQUEST_ENDED)
        core_part_confirm(core, part, part->told);
    else if (request->restarted && strcmp(code, "transfer_unknown") == 0)
        core_request_end(core, request, KVFERRY_OUTCOME_FAILED, "incarnation",
                         "the prefill worker was restarted, and offers no such request", NULL);
    else
        core_request_end(core, request, KVFERRY_OUTCOME_FAILED, code,
                         core_reasons_text(message->reasons, "the prefill worker gave no reason"),
                         message->reasons);
}

void core_part_done(node_core *core, core_part *part, uint64_t copies, uint64_t bytes)
{
    part->done = part->confirmed = true;
    part->copies = copies;
    part->bytes = bytes;
    if (part->request->state == CORE_REQUEST_ASKS)
        look_done(core, part->request);
}

/* What it left out would be taken for moved. */
static void refuse_part(node_core *core, core_part *part)
{
    kvferry_report *reasons = core_reason("part_not_allowed", "all of what was asked for, or a failure",
                                          base_format("a part, of worker %s", part->source->incarnation),
                                          "what a source says that it has moved");
    part->confirmed = true;
    core_request_end(core, part->request, KVFERRY_OUTCOME_FAILED, "part_not_allowed",
                     "a source moved a part, which was not allowed", reasons);
    kvferry_report_free(reasons);
}

static void done_verdict(node_core *core, core_part *part, const wire_message *message)
{
    core_request *request = part->request;
    const wire_verdict *verdict = &message->body.verdict;
    if (request->state == CORE_REQUEST_ENDED) {
        core_part_confirm(core, part, !request->verify);
        return;
    }
    if (part->done || part->verifies)
        return;
    if (verdict->part && !request->allow_part) {
        refuse_part(core, part);
        return;
    }
    part->in_part = verdict->part;
    if (request->verify)
        core_part_verify(core, part, verdict);
    else
        core_part_done(core, part, verdict->copies, verdict->bytes);
}

void core_received_verdict(node_core *core, core_line *line, const wire_message *message)
{
    core_part *part = find_addressed(core, line, message);
    wire_outcome outcome = message->body.verdict.outcome;
    if (!part)
        return;
    part->answered = true;
    if (outcome == WIRE_WAITING)
        return;
    if (part->confirmed && part->told)
        core->statistics.ignored++;
    else if (outcome == WIRE_DONE)
        done_verdict(core, part, message);
    else
        failed_verdict(core, part, message);
}

void core_received_settled(node_core *core, core_line *line, const wire_message *message)
{
    core_part *part = find_addressed(core, line, message);
    if (part && part->request->state == CORE_REQUEST_ENDED)
        core_part_confirm(core, part, true);
}

void core_received_source_error(node_core *core, core_line *line, const wire_message *message)
{
    core_source *source = line->user;
    const char *code = core_reasons_code(message->reasons, "");
    bool closed = strcmp(code, "link_closed") == 0;
    if (closed || strcmp(code, "hello_missing") == 0) {
        if (closed || source->welcomed) /* else hello is on its way: over another link, all would begin anew */
            core_source_again(core, source);
        return;
    }
    core_request *request = find_request(core, message->transfer_id);
    core_part *part = request ? core_parts_find(request, message->sender) : NULL;
    if (part && request->state == CORE_REQUEST_ASKS)
        core_request_end(core, request, KVFERRY_OUTCOME_FAILED,
                         core_reasons_code(message->reasons, "source_failed"),
                         core_reasons_text(message->reasons, "the prefill worker gave no reason"),
                         message->reasons);
}

/* --- calls --------------------------------------------------------------------------------------------------------- */

kvferry_status core_request_abort(node_core *core, const char *transfer_id)
{
    core_request *request = find_request(core, transfer_id);
    if (!request || request->state >= CORE_REQUEST_ENDED)
        return KVFERRY_NOT_FOUND;
    core_request_end(core, request, KVFERRY_OUTCOME_ABORTED, "target_aborted", "the decode side aborted",
                     NULL);
    return KVFERRY_OK;
}

void core_requests_free(node_core *core)
{
    core_request *request, *next;
    HASH_ITER(hh, core->requests, request, next) {
        HASH_DEL(core->requests, request);
        free_request(core, request);
    }
}
