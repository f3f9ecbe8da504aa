/* SPDX-License-Identifier: Apache-2.0 */
/* Decode side: what one source has been asked and has answered. */
#include "node/core_internal.h"

static void send_ask(node_core *core, core_part *part)
{
    core_request *request = part->request;
    if (!part->source->welcomed)
        return;
    uint64_t left = request->deadline > core->now ? request->deadline - core->now : 0;
    wire_message message = {.type = WIRE_ASK, .transfer_id = request->id};
    wire_ask *ask = &message.body.ask;
    memcpy(ask->attempt, part->attempt, sizeof(ask->attempt));
    memcpy(ask->source_roster, request->pairing->source->wire.digest, sizeof(ask->source_roster));
    memcpy(ask->target_roster, request->pairing->target->wire.digest, sizeof(ask->target_roster));
    ask->tokens = request->tokens;
    ask->timeout_ms = base_ceil_div(left, 1000000);
    ask->verify = request->verify;
    ask->whole_blocks = request->whole_blocks;
    ask->part = request->allow_part;
    ask->tables = request->tables;
    ask->table_count = request->table_count;
    part->asked = true;
    core_source_send(core, part->source, &message);
}

static void send_settle(node_core *core, core_part *part)
{
    core_request *request = part->request;
    if (part->confirmed && !part->source->welcomed)
        return;
    wire_message message = {
        .type = WIRE_SETTLE, .transfer_id = request->id, .reasons = request->reasons};
    wire_verdict *settle = &message.body.verdict;
    memcpy(settle->attempt, part->attempt, sizeof(settle->attempt));
    settle->outcome = (wire_outcome)request->outcome;
    core_source_send(core, part->source, &message);
}

void core_part_send(node_core *core, core_part *part)
{
    if (part->source->dead)
        return;
    core_source_busy(core, part->source);
    if (part->request->state == CORE_REQUEST_ASKS && !part->done && !part->confirmed)
        send_ask(core, part);
    else if (part->request->state == CORE_REQUEST_ENDED && !part->told)
        send_settle(core, part);
}

void core_part_close(node_core *core, core_part *part)
{
    core_source *source = part->source;
    if (!source)
        return;
    part->source = NULL;
    DL_DELETE(source->parts, part);
    core_source_leave(core, source);
}

/*
 * What the replaced one never answered it may not have heard, and what is asked for may have been offered by the
 * other. If not, the other will say so.
 */
bool core_part_survives(node_core *core, core_part *part)
{
    core_request *request = part->request;
    bool asks = request->state == CORE_REQUEST_ASKS ||
                (request->state == CORE_REQUEST_CONNECTS && !request->engine);
    if (!asks || part->answered || !request->where)
        return false;
    request->state = CORE_REQUEST_CONNECTS;
    request->restarted = true;
    core_log(core, KVFERRY_LOG_INFO, "transfer %s: worker %s was restarted, the new one will be asked",
             request->id, part->source->incarnation);
    return true;
}

/* Once nothing of the replaced one can arrive any more: asks the other. */
static void go_on(node_core *core, core_request *request)
{
    if (request->state != CORE_REQUEST_CONNECTS || request->engine)
        return;
    for (size_t i = 0; i < request->part_count; i++)
        if (request->parts[i].source && request->parts[i].source->dead)
            return;
    core_engine *engine = NULL;
    if (core_engine_get(core, request->pairing->source->wire.engine_id, request->where, &engine, NULL) !=
        KVFERRY_OK) {
        core_request_end(core, request, KVFERRY_OUTCOME_FAILED, "no_memory", "memory ran out", NULL);
        return;
    }
    request->engine = engine;
    if (engine->state == CORE_ENGINE_CONNECTED)
        core_request_connected(core, request);
    else
        DL_APPEND(engine->requests, request);
}

void core_part_confirm(node_core *core, core_part *part, bool told)
{
    core_request *request = part->request;
    part->confirmed = true;
    part->told |= told;
    if (part->told)
        core_part_close(core, part);
    go_on(core, request);
    core_request_advance(core, request);
}

/* --- verify ------------------------------------------------------------------------------------------------ */

void core_part_leave_sum(node_core *core, core_part *part)
{
    core_sum_end(core, &part->sum);
    free(part->said.checksums);
    part->said.checksums = NULL;
    part->said.checksum_count = 0;
    part->verifies = false;
}

static void differs(node_core *core, core_part *part, const kvferry_report *report)
{
    part->confirmed = true;
    core_request_end(core, part->request, KVFERRY_OUTCOME_FAILED, core_reasons_code(report, "checksum_differs"),
                     core_reasons_text(report, "no checksums could be made"), report);
}

static void summed(node_core *core, void *owner, kvferry_status status)
{
    core_part *part = owner;
    const wire_verdict *said = &part->said;
    kvferry_report *report = NULL;
    bool fine = status == KVFERRY_OK;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        fine = false;
    for (size_t i = 0; fine && i < said->checksum_count; i++) {
        uint64_t value = part->sum.values[i].value;
        if (said->checksums[i].piece == i && said->checksums[i].value == value)
            continue;
        base_report_add(report, "checksum_differs", NULL,
                        base_format("%016llx", (unsigned long long)said->checksums[i].value),
                        base_format("%016llx", (unsigned long long)value), "piece %zu of what worker %s sent", i,
                        part->source ? part->source->incarnation : "that is gone");
    }
    uint64_t copies = said->copies, bytes = said->bytes;
    fine = fine && !kvferry_report_count(report);
    core_part_leave_sum(core, part);
    if (fine)
        core_part_done(core, part, copies, bytes);
    else
        differs(core, part, report);
    kvferry_report_free(report);
}

void core_part_verify(node_core *core, core_part *part, const wire_verdict *verdict)
{
    core_request *request = part->request;
    const core_pairing *pairing = request->pairing;
    const kvferry_plan *plan = pairing->planned[pairing->own]->plan;
    size_t pieces = request->table_count ? kvferry_plan_piece_count(plan, part->index) : 0;
    if (verdict->checksum_count != pieces) {
        kvferry_report *report = core_reason("checksum_differs", base_format("%zu checksums", pieces),
                                             base_format("%zu", verdict->checksum_count),
                                             base_format("what worker %s sent", part->source->incarnation));
        differs(core, part, report);
        kvferry_report_free(report);
        return;
    }
    if (!pieces) {
        core_part_done(core, part, verdict->copies, verdict->bytes);
        return;
    }
    wire_checksum *said = base_alloc(pieces, sizeof(*said));
    if (!said)
        return; /* it is asked for once more */
    memcpy(said, verdict->checksums, pieces * sizeof(*said));
    part->said = *verdict;
    part->said.checksums = said;
    part->sum = (core_sum){.over = summed,
                           .owner = part,
                           .plan = plan,
                           .source = part->index,
                           .side = KVFERRY_SIDE_DECODE,
                           .request = {.transfer_id = request->id,
                                       .source_tokens = request->tokens,
                                       .target_tokens = request->tokens,
                                       .target = request->tables,
                                       .target_count = request->table_count,
                                       .whole_blocks = request->whole_blocks && !verdict->part}};
    if (core_sum_begin(core, &part->sum))
        part->verifies = part->confirmed = true; /* nothing more is written */
    else
        core_part_leave_sum(core, part);
}

/* --- all of a request -------------------------------------------------------------------------------- */

core_part *core_parts_find(core_request *request, const char *incarnation)
{
    for (size_t i = 0; i < request->part_count; i++)
        if (request->parts[i].source && strcmp(request->parts[i].source->incarnation, incarnation) == 0)
            return &request->parts[i];
    return NULL;
}

void core_parts_free(node_core *core, core_request *request)
{
    for (size_t i = 0; i < request->part_count; i++) {
        core_part_leave_sum(core, &request->parts[i]);
        core_part_close(core, &request->parts[i]);
    }
    free(request->parts);
    request->parts = NULL;
    request->part_count = 0;
}

bool core_parts_make(node_core *core, core_request *request, core_engine *engine)
{
    core_part *parts = base_alloc(engine->pairing->ask_count + 1, sizeof(*parts));
    size_t count = 0, kept = 0, open = 0;
    if (!parts)
        return false;
    for (size_t i = 0; i < request->part_count; i++)
        open += request->parts[i].asked && !request->parts[i].confirmed;
    for (size_t i = 0; i < engine->roster->wire.count; i++) {
        core_source *source = engine->sources[i];
        if (!source)
            continue;
        core_part *before = core_parts_find(request, source->incarnation);
        core_part *part = &parts[count++];
        *part = (core_part){.request = request, .source = source, .index = i};
        core_incarnation_text(core_random(core), part->attempt);
        if (before) {
            kept += before->asked && !before->confirmed;
            memcpy(part->attempt, before->attempt, sizeof(part->attempt));
            part->asked = before->asked;
            part->answered = before->answered;
            part->again = before->again;
            part->done = before->done;
            part->in_part = before->in_part;
            part->confirmed = before->done;
            part->copies = before->copies;
            part->bytes = before->bytes;
        }
    }
    if (kept < open) { /* one that may write is not in the engine any more */
        free(parts);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        DL_APPEND(parts[i].source->parts, &parts[i]);
    core_parts_free(core, request);
    request->parts = parts;
    request->part_count = count;
    return true;
}
