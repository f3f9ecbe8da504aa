/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds blocks in quarantine, and the operator's word that a worker is dead: nothing else can end the quarantine of
 * a writer whose host has vanished without a trace.
 */
#include "node/core_internal.h"

#include <stdio.h>

#include "node/address.h"

/* --- what a source holds ---------------------------------------------------------------------------------- */

static bool waits_for_others(const core_request *request, const core_source *source)
{
    for (size_t i = 0; i < request->part_count; i++) {
        const core_part *part = &request->parts[i];
        if (!part->confirmed && part->source && part->source != source && !part->source->dead)
            return true;
    }
    return false;
}

core_hold core_source_holds(const core_source *source)
{
    core_hold hold = {0};
    const core_part *part;
    DL_FOREACH(source->parts, part) {
        const core_request *request = part->request;
        if (request->state != CORE_REQUEST_ENDED || request->released || part->confirmed)
            continue;
        bool waiting = waits_for_others(request, source);
        hold.waiting += waiting;
        hold.transfers += !waiting;
        hold.blocks += waiting ? 0 : request->blocks;
        hold.held += request->blocks;
    }
    return hold;
}

void core_source_log_hold(node_core *core, const core_source *source)
{
    core_hold hold = core_source_holds(source);
    if (!hold.held)
        return;
    core_log(core, KVFERRY_LOG_WARNING,
             "%s of %s stay in quarantine: %s, at %s, says nothing and may still write. If it is surely "
             "dead: kvferry declare-dead %s --incarnation %s",
             core_counted(hold.held, "block"), core_counted(hold.transfers + hold.waiting, "transfer"),
             core_worker_words(source->engine_id, &source->worker, source->incarnation), source->address,
             core->options.address, source->incarnation);
}

/* --- the word ----------------------------------------------------------------------------------------------- */

/* Whether the message that is looked at came from this node's own host. */
static bool is_from_here(const node_core *core)
{
    node_address own = {.port = 0}, from = {.port = 0};
    snprintf(own.host, sizeof(own.host), "%s", core->options.host);
    snprintf(from.host, sizeof(from.host), "%s", core->place);
    return node_address_is_loopback(&from) || node_address_same_host(&own, &from);
}

/* A false word lets late writes reach blocks of new owners, so it is taken only of who could end this node, too. */
static kvferry_report *check_operator(const node_core *core, const char *key)
{
    bool may = core->keyed ? core_same_key(key, core_address_key(core->options.address)) : is_from_here(core);
    if (may)
        return NULL;
    return core_reason("not_operator", core->keyed ? "this node's own key" : "this node's own host",
                       core->keyed ? key : *core->place ? core->place : "an unknown one",
                       "only its operator may tell a node that a worker is dead");
}

/* --- a name that nobody here has ------------------------------------------------------------------------- */

enum { NAMED = 8 }; /* incarnations that fit a reason */

static void name_one(char *list, size_t size, size_t index, const char *incarnation)
{
    size_t used = strlen(list);
    if (index < NAMED)
        snprintf(list + used, size - used, "%s%s", index ? ", " : "", incarnation);
}

/* The workers of other engines that this node has met, in a buffer of base_format. */
static const char *known_workers(const node_core *core)
{
    char list[NAMED * (WIRE_INCARNATION_TEXT + 2)] = "";
    size_t count = 0;
    for (const core_source *source = core->sources; source; source = source->hh.next)
        name_one(list, sizeof(list), count++, source->incarnation);
    for (const core_target *target = core->targets; target; target = target->hh.next)
        name_one(list, sizeof(list), count++, target->incarnation);
    if (!count)
        return "the incarnation of a worker of another engine that this node has met, of which there is none";
    if (count > NAMED)
        return base_format("one of %s and %zu others, the workers of other engines that this node has met", list,
                           count - NAMED);
    return base_format("%s%s, of another engine's worker that this node has met", count > 1 ? "one of " : "", list);
}

void core_report_unknown_worker(const node_core *core, const char *incarnation, kvferry_report *report)
{
    bool own = strcmp(incarnation, core->incarnation) == 0;
    base_report_add(report, "peer_unknown", NULL, known_workers(core),
                    own ? base_format("%s, which is this node itself", incarnation) : incarnation,
                    "nothing here waits for that worker");
}

void core_received_death(node_core *core, core_link link, const char *key, const wire_message *message)
{
    const char *incarnation = message->body.death.incarnation;
    if (link % 2) { /* who was called has no say in this */
        core->statistics.ignored++;
        return;
    }
    if (*message->receiver && strcmp(message->receiver, core->incarnation) != 0) {
        core->statistics.ignored++;
        core_send_error(core, link, message, "incarnation", core->incarnation, message->receiver,
                        "the worker that is here now");
        return;
    }
    kvferry_report *refusal = check_operator(core, key);
    if (refusal) {
        core_refused(core, "unknown", core_who("an operator's word", core->place), refusal);
        core_send_reasons(core, link, message, refusal);
        kvferry_report_free(refusal);
        return;
    }
    if (core_declare_dead(core, incarnation, core->now, NULL) != KVFERRY_OK && !core_dead(core, incarnation)) {
        kvferry_report *unknown = NULL;
        if (kvferry_report_create(&unknown) == KVFERRY_OK)
            core_report_unknown_worker(core, incarnation, unknown);
        if (kvferry_report_count(unknown)) /* else memory has run out */
            core_send_reasons(core, link, message, unknown);
        kvferry_report_free(unknown);
        return;
    }
    const core_source *source = core_source_find(core, incarnation);
    core_hold hold = source ? core_source_holds(source) : (core_hold){0};
    core_log(core, KVFERRY_LOG_WARNING,
             "the operator, at %s, says that incarnation %s is dead; released: %s of %s; waiting for others too: %s",
             *core->place ? core->place : "an unknown host", incarnation, core_counted(hold.blocks, "block"),
             core_counted(hold.transfers, "transfer"), core_counted(hold.waiting, "transfer"));
    wire_message answer = {.type = WIRE_DECLARED_DEAD};
    wire_death *death = &answer.body.death;
    memcpy(death->incarnation, incarnation, sizeof(death->incarnation));
    death->transfers = hold.transfers;
    death->blocks = hold.blocks;
    death->waiting = hold.waiting;
    core_send_to(core, link, message->sender, &answer);
}
