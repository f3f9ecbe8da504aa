/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode side: the handshake with a prefill engine. Its states and what ends them are those of core_engine_state,
 * in order; what goes wrong on the way is tried again until the deadline, what is refused ends it.
 */
#include "node/core_internal.h"

#include <stdio.h>

enum { UNPROVED_MOST = 3 }; /* in silence_ms: fewer may be of a process that is just started again, behind a proxy */

static void advance(node_core *core, core_engine *engine);

core_engine *core_engine_find(node_core *core, const char *engine_id, const char *where)
{
    core_engine *engine;
    DL_FOREACH(core->engines, engine) {
        if (*engine_id && strcmp(engine->id, engine_id) == 0)
            return engine;
        if (!*engine_id && *where && strcmp(engine->where, where) == 0)
            return engine;
    }
    return NULL;
}

static void leave_greeter(node_core *core, core_engine *engine)
{
    if (engine->line)
        core_line_close(core, engine->line);
    engine->line = NULL;
}

static void leave_sources(node_core *core, core_engine *engine)
{
    core_source **sources = engine->sources;
    size_t count = sources ? engine->roster->wire.count : 0;
    engine->sources = NULL;
    for (size_t i = 0; i < count; i++)
        if (sources[i])
            core_source_unuse(core, sources[i]);
    free(sources);
}

/* Forgets what was agreed. */
static void leave_roster(node_core *core, core_engine *engine)
{
    leave_sources(core, engine);
    core_pairing_release(core, engine->pairing);
    core_roster_release(core, engine->roster);
    engine->pairing = NULL;
    engine->roster = NULL;
}

void core_engine_free(node_core *core, core_engine *engine)
{
    leave_greeter(core, engine);
    leave_roster(core, engine);
    core_engine_forget_addresses(engine);
    core_timer_end(core, &engine->timer);
    core_event_discard(engine->event);
    kvferry_report_free(engine->trouble);
    free(engine->where);
    free(engine);
}

/* --- ends ------------------------------------------------------------------------------------------------ */

static void tell(node_core *core, core_engine *engine, kvferry_event_kind kind,
                 const kvferry_report *reasons)
{
    core_event *event = core_event_create(kind, KVFERRY_SIDE_DECODE, engine->id, "", NULL);
    if (!event) { /* there is one for this case */
        event = engine->event;
        engine->event = NULL;
    }
    if (!event)
        return;
    core_event_set_kind(event, kind);
    core_event_set_engine(event, engine->id);
    if (kind == KVFERRY_EVENT_DISCONNECTED)
        core_event_set_outcome(event, KVFERRY_OUTCOME_FAILED, core_reasons_code(reasons, "no_memory"),
                               "memory ran out", reasons);
    core_event_queue(core, event);
}

void core_engine_fail(node_core *core, core_engine *engine, const kvferry_report *reasons)
{
    const char *code = core_reasons_code(reasons, "no_memory");
    const char *text = core_reasons_text(reasons, "memory ran out");
    core_log(core, KVFERRY_LOG_WARNING, "engine %s at %s: disconnected, %s: %s", engine->id,
             engine->where, code, text);
    DL_DELETE(core->engines, engine);
    tell(core, engine, KVFERRY_EVENT_DISCONNECTED, reasons);
    core_request *request;
    while ((request = engine->requests) != NULL) {
        core_request_end(core, request, KVFERRY_OUTCOME_FAILED, code, text, reasons);
        if (engine->requests == request) { /* had ended before: nobody can be told */
            DL_DELETE(engine->requests, request);
            request->engine = NULL;
            core_request_advance(core, request);
        }
    }
    core_engine_free(core, engine);
}

void core_engine_fail_with(node_core *core, core_engine *engine, const char *code, const char *expected,
                           const char *found, const char *text)
{
    kvferry_report *reasons = core_reason(code, expected, found, text);
    core_engine_fail(core, engine, reasons);
    kvferry_report_free(reasons);
}

static void connected(node_core *core, core_engine *engine)
{
    engine->state = CORE_ENGINE_CONNECTED;
    core_timer_stop(core, &engine->timer);
    leave_greeter(core, engine);
    core_log(core, KVFERRY_LOG_INFO, "engine %s at %s: connected, asks %zu of %zu workers", engine->id,
             engine->where, engine->pairing->ask_count, engine->roster->wire.count);
    if (engine->announce)
        tell(core, engine, KVFERRY_EVENT_CONNECTED, NULL);
    engine->announce = false;
    core_request *waiting = engine->requests, *request;
    engine->requests = NULL;
    while ((request = waiting) != NULL) {
        DL_DELETE(waiting, request);
        DL_APPEND(engine->requests, request);
    }
    while (engine->state == CORE_ENGINE_CONNECTED && (request = engine->requests) != NULL) {
        DL_DELETE(engine->requests, request);
        core_request_connected(core, request);
    }
}

/* --- on the way ------------------------------------------------------------------------------------------- */

static const char *const waits_for[] = {"the own engine is not complete", "no addresses were found",
                                        "no worker answers with a complete roster",
                                        "documents are missing", "not all workers answer", ""};

static const char *handshake_with(const core_engine *engine)
{
    return base_format("the handshake with engine \"%.80s\" at %.120s", engine->id, engine->where);
}

static bool unproved_often(const core_engine *engine)
{
    return engine->unproved >= UNPROVED_MOST * engine->address_count;
}

static void fail_unproved(node_core *core, core_engine *engine, const char *address)
{
    core_engine_fail_with(core, engine, "key_unproved", base_format("who has the key %.64s", core_address_key(address)),
                          "one that ends the connection in the handshake",
                          base_format("whoever listens at %.200s", address));
}

/* Both sides read it: so it says on which of them the list is. */
static void fail_refused_key(node_core *core, core_engine *engine, const char *address, core_link_end how)
{
    bool theirs = how == CORE_LINK_DENIED;
    const char *key = core_address_key(theirs ? core->options.address : address);
    const char *expected = theirs ? "the decode side's key in the prefill side's allowed_keys"
                           : *key ? "the prefill side's key in the decode side's allowed_keys"
                                  : "an address of the prefill side with a key, as the decode side has keys";
    core_engine_fail_with(core, engine, "key_refused", expected,
                          *key ? base_format("the key %.64s, which is not there", key) : "one without a key",
                          handshake_with(engine));
}

static void on_time(node_core *core, void *owner)
{
    core_engine *engine = owner;
    if (core->now < engine->deadline)
        advance(core, engine);
    else if (engine->state == CORE_ENGINE_RESOLVES && engine->trouble)
        core_engine_fail(core, engine, engine->trouble);
    else if (engine->state == CORE_ENGINE_GREETS && unproved_often(engine))
        fail_unproved(core, engine, engine->addresses[engine->address_at]);
    else
        core_engine_fail_with(core, engine, "connect_timeout", "a handshake within connect_ms",
                              waits_for[engine->state], handshake_with(engine));
}

static void wait_retry(node_core *core, core_engine *engine)
{
    core_timer_set(core, &engine->timer,
                   base_min(engine->deadline, core_after(core, core->options.retry_ns)));
}

typedef struct resolving {
    core_action action;
    char texts[];
} resolving;

static void resolve(node_core *core, core_engine *engine)
{
    size_t where = strlen(engine->where) + 1, id = strlen(engine->id) + 1;
    resolving *made = base_alloc(1, sizeof(*made) + where + id);
    if (!made) {
        wait_retry(core, engine);
        return;
    }
    memcpy(made->texts, engine->where, where);
    memcpy(made->texts + where, engine->id, id);
    engine->query = core->next_query++;
    made->action.effect = (core_effect){.kind = CORE_RESOLVE,
                                        .query = engine->query,
                                        .address = made->texts,
                                        .engine_id = made->texts + where};
    core_action_queue(core, &made->action);
    core_action_free(&made->action, NULL, made);
    core_timer_set(core, &engine->timer, engine->deadline);
}

void core_resolved(node_core *core, uint64_t query, kvferry_status status, const char *engine_id,
                   const char *const *addresses, size_t count, const kvferry_report *report, uint64_t now)
{
    core->now = base_max(core->now, now);
    core_engine *engine;
    DL_FOREACH(core->engines, engine) {
        if (engine->state == CORE_ENGINE_RESOLVES && engine->query == query)
            break;
    }
    if (!engine)
        return;
    if (status == KVFERRY_BUSY) {
        core_engine_keep_trouble(engine, report);
        wait_retry(core, engine);
        return;
    }
    if (status != KVFERRY_OK || !count) {
        if (kvferry_report_count(report))
            core_engine_fail(core, engine, report);
        else
            core_engine_fail_with(core, engine, "address_unknown", "addresses of workers",
                                  status == KVFERRY_OK ? "none" : kvferry_status_name(status),
                                  base_format("looking up %.200s", engine->where));
        return;
    }
    if (engine_id && *engine_id && *engine->id && strcmp(engine->id, engine_id) != 0) {
        core_engine_fail_with(core, engine, "engine_id_differs", engine->id, engine_id,
                              base_format("the engine at %.200s", engine->where));
        return;
    }
    if (core_engine_set_addresses(engine, addresses, count)) {
        engine->state = CORE_ENGINE_GREETS;
        advance(core, engine);
    } else {
        wait_retry(core, engine);
    }
}

static void greet(node_core *core, core_engine *engine)
{
    if (!engine->line)
        engine->line = core_line_open(core, engine->addresses[engine->address_at], CORE_USE_GREETER,
                                      engine);
    if (engine->line)
        core_send_hello(core, engine->line->id, "", WIRE_HELLO, false, NULL);
    wait_retry(core, engine);
}

/* How many the engine needs that are not there. */
static size_t count_new_sources(node_core *core, const core_engine *engine)
{
    size_t count = 0;
    for (size_t i = 0; i < engine->roster->wire.count; i++)
        count += engine->pairing->asks[i] &&
                 !core_source_find(core, engine->roster->wire.members[i].incarnation);
    return count;
}

/* All documents are here: plans, and links to those that are to be asked. */
static void plan(node_core *core, core_engine *engine)
{
    kvferry_status status =
        core_pairing_get(core, KVFERRY_SIDE_DECODE, engine->roster, core->own, &engine->pairing);
    size_t count = engine->roster->wire.count;
    if (status == KVFERRY_BUSY) {
        wait_retry(core, engine);
        return;
    }
    if (status == KVFERRY_OK)
        engine->sources = base_alloc(count, sizeof(*engine->sources));
    if (!engine->sources) {
        core_engine_fail_with(core, engine, "no_memory", NULL, NULL, "memory ran out in the handshake");
        return;
    }
    if (engine->pairing->refusal) {
        core_pairing *pairing = engine->pairing;
        pairing->uses++; /* outlives the engine */
        core_refused(core, engine->id, engine->where, pairing->refusal);
        core_engine_fail(core, engine, pairing->refusal);
        core_pairing_release(core, pairing);
        return;
    }
    const char *who = core_share_who_at(core, engine->roster->wire.members[0].address);
    if (!core_share_has_room(core, CORE_KEPT_PEERS, who, count_new_sources(core, engine))) {
        core_engine_fail_with(core, engine, "too_many_peers",
                              base_format("at most %u", core->options.max_peers), "more",
                              "workers of other engines");
        return;
    }
    engine->state = CORE_ENGINE_LINKS;
    core_timer_set(core, &engine->timer, engine->deadline);
    for (size_t i = 0; i < count; i++) {
        if (!engine->pairing->asks[i])
            continue;
        engine->sources[i] = core_source_get(core, engine, &engine->roster->wire.members[i]);
        if (!engine->sources[i]) { /* a roster of yesterday, or no memory: from the beginning, later */
            leave_roster(core, engine);
            leave_greeter(core, engine);
            engine->state = CORE_ENGINE_WAITS;
            wait_retry(core, engine);
            return;
        }
    }
    core_share_settle(core, CORE_KEPT_PEERS, who);
    core_engine_source_ready(core, engine);
}

void core_engine_source_ready(node_core *core, core_engine *engine)
{
    if (engine->state != CORE_ENGINE_LINKS)
        return;
    for (size_t i = 0; i < engine->roster->wire.count; i++)
        if (engine->pairing->asks[i] && (!engine->sources[i] || !engine->sources[i]->welcomed))
            return;
    connected(core, engine);
}

static void fetch(node_core *core, core_engine *engine)
{
    if (!engine->roster->missing) {
        plan(core, engine);
        return;
    }
    if (!engine->line) {
        leave_roster(core, engine);
        engine->state = CORE_ENGINE_GREETS;
        greet(core, engine);
        return;
    }
    core_roster_fetch(core, engine->roster, engine->line);
    wait_retry(core, engine);
}

/* Does what the state asks for. */
static void advance(node_core *core, core_engine *engine)
{
    switch (engine->state) {
    case CORE_ENGINE_WAITS:
        if (!core->own) {
            core_timer_set(core, &engine->timer, engine->deadline);
            return;
        }
        if (!core_where_is_direct(engine->where)) {
            engine->state = CORE_ENGINE_RESOLVES;
            resolve(core, engine);
        } else if (core_engine_set_addresses(engine, (const char *const[]){engine->where}, 1)) {
            engine->state = CORE_ENGINE_GREETS;
            greet(core, engine);
        } else {
            wait_retry(core, engine);
        }
        return;
    case CORE_ENGINE_RESOLVES:
        resolve(core, engine);
        return;
    case CORE_ENGINE_GREETS:
        greet(core, engine);
        return;
    case CORE_ENGINE_FETCHES:
        fetch(core, engine);
        return;
    case CORE_ENGINE_LINKS:
    case CORE_ENGINE_CONNECTED:
        return;
    }
}

void core_engine_again(node_core *core, core_engine *engine)
{
    bool anew = engine->state == CORE_ENGINE_CONNECTED;
    leave_greeter(core, engine);
    leave_roster(core, engine);
    engine->state = CORE_ENGINE_WAITS;
    if (anew) {
        engine->deadline = core_after(core, core->options.connect_ns);
        advance(core, engine);
    } else {
        wait_retry(core, engine);
    }
}

void core_engines_own_changed(node_core *core)
{
    core_engine *engine, *next;
    DL_FOREACH_SAFE(core->engines, engine, next) {
        bool waited = engine->state == CORE_ENGINE_WAITS;
        if (!waited)
            core_engine_again(core, engine);
        else
            advance(core, engine);
    }
}

/* --- what arrives --------------------------------------------------------------------------------------- */

void core_engine_welcome(node_core *core, core_line *line, const wire_message *message)
{
    core_engine *engine = line->user;
    const wire_roster *wire = &message->body.hello.roster;
    const bool refused = kvferry_report_count(message->reasons) != 0;
    engine->unproved = 0;
    if (engine->state != CORE_ENGINE_GREETS && !(refused && engine->state == CORE_ENGINE_FETCHES))
        return;
    if (refused) {
        core_refused(core, message->engine_id, line->address, message->reasons);
        core_engine_fail(core, engine, message->reasons);
        return;
    }
    if (*engine->id && strcmp(engine->id, message->engine_id) != 0) {
        core_engine_fail_with(core, engine, "engine_id_differs", engine->id, message->engine_id,
                              base_format("the engine at %.200s", line->address));
        return;
    }
    if (strcmp(message->body.hello.engine, core->options.engine) != 0) {
        core_engine_fail_with(core, engine, "transfer_engine_differs", core->options.engine,
                              message->body.hello.engine,
                              base_format("the transfer engine of the worker at %.200s", line->address));
        return;
    }
    if (!*engine->id) {
        core_engine *same = core_engine_find(core, message->engine_id, "");
        snprintf(engine->id, sizeof(engine->id), "%s", message->engine_id);
        if (same) { /* known by another name: one is enough */
            core_request *request;
            while ((request = engine->requests) != NULL) {
                DL_DELETE(engine->requests, request);
                request->engine = same;
                if (same->state == CORE_ENGINE_CONNECTED)
                    core_request_connected(core, request);
                else
                    DL_APPEND(same->requests, request);
            }
            if (engine->announce && same->state == CORE_ENGINE_CONNECTED)
                tell(core, same, KVFERRY_EVENT_CONNECTED, NULL);
            else
                same->announce |= engine->announce;
            DL_DELETE(core->engines, engine);
            core_engine_free(core, engine);
            return;
        }
    }
    if (!*wire->digest) /* not complete; the timer asks again */
        return;
    kvferry_report *report = NULL;
    kvferry_status status = kvferry_report_create(&report);
    if (status == KVFERRY_OK)
        status = core_roster_get(core, core_share_who_at(core, line->address), wire, &engine->roster, report);
    if (status == KVFERRY_REFUSED) {
        core_engine_fail(core, engine, report);
    } else if (status == KVFERRY_OK) {
        engine->state = CORE_ENGINE_FETCHES;
        fetch(core, engine);
    }
    kvferry_report_free(report);
}

void core_engine_error(node_core *core, core_engine *engine, const kvferry_report *reasons)
{
    const char *code = core_reasons_code(reasons, "");
    bool closed = strcmp(code, "link_closed") == 0;
    if (closed || strcmp(code, "hello_missing") == 0) { /* it was given up there while it fetched */
        if (engine->state == CORE_ENGINE_FETCHES || (closed && engine->state == CORE_ENGINE_GREETS))
            core_engine_again(core, engine);
    } else if (*code && strcmp(code, "incarnation") != 0) {
        core_engine_fail(core, engine, reasons);
    }
}

void core_engine_documents(node_core *core)
{
    core_engine *engine, *next;
    DL_FOREACH_SAFE(core->engines, engine, next) {
        if (engine->state == CORE_ENGINE_FETCHES && !engine->roster->missing)
            plan(core, engine);
    }
}

void core_engine_line_ended(node_core *core, core_line *line, core_link_end how)
{
    core_engine *engine = line->user;
    engine->line = NULL;
    if (engine->state != CORE_ENGINE_GREETS && engine->state != CORE_ENGINE_FETCHES)
        return;
    if (engine->state == CORE_ENGINE_FETCHES)
        leave_roster(core, engine);
    engine->state = CORE_ENGINE_GREETS;
    if (how != CORE_LINK_UNPROVED)
        engine->unproved = 0;
    else if (!engine->unproved++)
        engine->unproved_since = core->now;
    if (++engine->address_at < engine->address_count) {
        greet(core, engine);
        return;
    }
    engine->address_at = 0;
    if (how == CORE_LINK_DENIED || how == CORE_LINK_UNLISTED)
        fail_refused_key(core, engine, line->address, how);
    else if (unproved_often(engine) && core->now - engine->unproved_since >= core->options.silence_ns)
        fail_unproved(core, engine, line->address);
    else
        wait_retry(core, engine);
}

/* --- beginning ------------------------------------------------------------------------------------------- */

kvferry_status core_engine_get(node_core *core, const char *engine_id, const char *where,
                               core_engine **engine, kvferry_report *report)
{
    core_engine *found = core_engine_find(core, engine_id, where);
    if (found) {
        *engine = found;
        return KVFERRY_OK;
    }
    if (!*where || strlen(engine_id) > WIRE_MAX_ID) {
        base_report_add(report, "peer_unknown", NULL, "an engine that is connected, or where it is",
                        base_format("\"%s\"", engine_id), "the prefill engine");
        return KVFERRY_REFUSED;
    }
    found = base_alloc(1, sizeof(*found));
    if (!found)
        return KVFERRY_NO_MEMORY;
    found->where = strdup(where);
    found->event = core_event_create(KVFERRY_EVENT_DISCONNECTED, KVFERRY_SIDE_DECODE, engine_id, "", NULL);
    if (!found->where || !found->event || !core_timer_begin(core, &found->timer, on_time, found)) {
        core_engine_free(core, found);
        return KVFERRY_NO_MEMORY;
    }
    snprintf(found->id, sizeof(found->id), "%s", engine_id);
    found->announce = true;
    found->deadline = core_after(core, core->options.connect_ns);
    DL_APPEND(core->engines, found);
    advance(core, found);
    *engine = found;
    return KVFERRY_OK;
}

kvferry_status core_connect(node_core *core, const char *engine_id, const char *where, uint64_t now,
                            kvferry_report *report)
{
    core->now = base_max(core->now, now);
    if (!engine_id || !where)
        return KVFERRY_INVALID;
    core_engine *engine;
    kvferry_status status = core_engine_get(core, engine_id, where, &engine, report);
    if (status != KVFERRY_OK)
        return status;
    if (engine->state == CORE_ENGINE_CONNECTED)
        tell(core, engine, KVFERRY_EVENT_CONNECTED, NULL);
    else
        engine->announce = true;
    return KVFERRY_OK;
}

kvferry_status core_renew(node_core *core, const char *engine_id, const char *transfer_id, uint64_t now,
                          kvferry_report *report)
{
    core->now = base_max(core->now, now);
    core_engine *engine = engine_id && transfer_id ? core_engine_find(core, engine_id, "") : NULL;
    if (!engine || engine->state != CORE_ENGINE_CONNECTED) {
        base_report_add(report, "peer_unknown", NULL, "an engine that is connected",
                        engine_id ? engine_id : "nothing", "the lease's prefill engine");
        return KVFERRY_NOT_FOUND;
    }
    wire_message message = {.type = WIRE_RENEW, .transfer_id = transfer_id};
    for (size_t i = 0; i < engine->roster->wire.count; i++)
        if (engine->sources[i] && engine->sources[i]->line)
            core_send_to(core, engine->sources[i]->line->id, engine->sources[i]->incarnation, &message);
    return KVFERRY_OK;
}
