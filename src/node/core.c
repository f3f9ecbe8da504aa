/* SPDX-License-Identifier: Apache-2.0 */
/* The core: made, told what happens, freed. */
#include "node/core_internal.h"

#include <stdio.h>

/* --- life ---------------------------------------------------------------------------------------------- */

static bool copy_options(node_core *core, const core_options *options)
{
    core->options = *options;
    char *address = base_arena_strdup(&core->arena, options->address);
    char *host = base_arena_strdup(&core->arena, options->host ? options->host : "");
    char *engine = base_arena_strdup(&core->arena, options->engine);
    void *binding = base_arena_alloc(&core->arena, options->binding_size + 1, 1);
    if (!address || !host || !engine || !binding)
        return false;
    if (options->binding_size)
        memcpy(binding, options->binding, options->binding_size);
    core->options.address = address;
    core->options.host = host;
    core->options.engine = engine;
    core->options.binding = binding;
    core->options.incarnation = core->incarnation;
    snprintf(core->incarnation, sizeof(core->incarnation), "%s", options->incarnation);
    core->keyed = *core_address_key(address) != 0;
    return core_name_keep(core, core->incarnation, core_address_key(address));
}

static kvferry_status keep_layout(node_core *core, const kvferry_layout *layout, kvferry_report *report)
{
    void *data = NULL;
    size_t size = 0;
    kvferry_status status = kvferry_layout_write_msgpack(layout, &data, &size);
    if (status == KVFERRY_OK)
        status = core_document_add(core, data, size, &core->document, report);
    kvferry_free(data);
    if (status != KVFERRY_OK)
        return status;
    core->layout = core->document->layout;
    core->engine_id = kvferry_layout_engine_id(core->layout);
    core->worker = *kvferry_layout_worker(core->layout);
    return core_owners_create(core);
}

kvferry_status core_create(const core_options *options, const kvferry_layout *layout, uint64_t now,
                           node_core **core, kvferry_report *report)
{
    node_core *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->now = now;
    made->place = "";
    made->random = options->seed;
    made->next_line = made->next_peer = made->next_write = made->next_query = 1;
    kvferry_status status = copy_options(made, options) ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    if (status == KVFERRY_OK)
        status = keep_layout(made, layout, report);
    if (status == KVFERRY_OK)
        status = core_own_create(made, report);
    if (status != KVFERRY_OK) {
        core_free(made);
        return status;
    }
    *core = made;
    return KVFERRY_OK;
}

static void free_engines(node_core *core)
{
    core_engine *engine;
    while ((engine = core->engines) != NULL) {
        DL_DELETE(core->engines, engine);
        core_engine_free(core, engine);
    }
    core_source *source, *next;
    HASH_ITER(hh, core->sources, source, next)
        core_source_free(core, source);
}

void core_free(node_core *core)
{
    if (!core)
        return;
    core_requests_free(core);
    free_engines(core);
    core_supplies_free(core);
    core_targets_free(core);
    core_channels_free(core);
    core_pairings_free(core);
    core_own_free(core);
    core_line *line, *next;
    HASH_ITER(hh, core->lines, line, next)
        core_line_close(core, line);
    core_tombstone *stone;
    while ((stone = core->tombstone_list) != NULL)
        core_tombstone_drop(core, stone);
    core_names_free(core);
    core_effects_free(core);
    core_events_free(core);
    core_owners_free(core);
    core_document_release(core, core->document);
    free(core->heap);
    base_arena_free(&core->arena);
    free(core);
}

/* --- messages -------------------------------------------------------------------------------------------- */

/* What was to be reached over the line speaks another version; who spoke over one opened later came later. */
static void other_version(node_core *core, core_line *line, const kvferry_report *report)
{
    if (!line || *line->peer)
        return;
    if (line->use == CORE_USE_GREETER)
        core_engine_fail(core, line->user, report);
    else if (line->use == CORE_USE_SOURCE)
        core_source_other_version(core, line->user, report);
}

/* A message that cannot be read, or of another major version. */
static void bad_message(node_core *core, core_link link, core_line *line, kvferry_status status,
                        const wire_message *message, const kvferry_report *report)
{
    if (status == KVFERRY_NO_MEMORY)
        return;
    core->statistics.malformed++;
    if (status == KVFERRY_UNSUPPORTED && message->major != WIRE_MAJOR) {
        core_refused(core, *message->engine_id ? message->engine_id : "unknown",
                     core_who(*message->sender ? message->sender : "unknown", core->place), report);
        other_version(core, line, report);
    } else {
        core_log(core, KVFERRY_LOG_DEBUG, "engine %s, worker %s: %s", message->engine_id,
                 core_who(message->sender, core->place),
                 core_reasons_text(report, "a message that cannot be read"));
    }
    if (message->type == WIRE_ERROR)
        return;
    core_send_reasons(core, link, message, report);
}

static void answer_status(node_core *core, core_link link, const wire_message *message)
{
    base_text text = {0};
    if (core_much_queued(core))
        return;
    if (core_status(core, core->now, &text) == KVFERRY_OK) {
        wire_message answer = {.type = WIRE_STATUS_TEXT, .body.text = text.data};
        core_send_to(core, link, message->sender, &answer);
    }
    free(text.data);
}

/* Whether a link was opened to a worker of this engine: others know nothing of who has which rank there. */
static bool speaks_for(const core_line *line, const char *engine_id)
{
    const char *its = line->use == CORE_USE_SOURCE    ? ((core_source *)line->user)->engine_id
                      : line->use == CORE_USE_GREETER ? ((core_engine *)line->user)->id
                                                      : NULL;
    return its && (!*its || strcmp(its, engine_id) == 0);
}

/* Who speaks over a link that was opened from here. false: it is not whom the link was opened to. */
static bool check_speaker(node_core *core, core_line *line, const wire_message *message)
{
    const kvferry_worker *worker =
        message->type == WIRE_WELCOME && speaks_for(line, message->engine_id) ? &message->body.hello.worker : NULL;
    bool first = !*line->peer;
    if (first)
        memcpy(line->peer, message->sender, sizeof(line->peer));
    if (first || (worker && strcmp(line->peer, message->sender) == 0)) {
        core_link id = line->id;
        core_sources_replaced(core, line, message->engine_id, worker, message->sender);
        return core_line_find(core, id) != NULL;
    }
    if (strcmp(line->peer, message->sender) == 0)
        return true;
    /* Somebody else: before or after the first? A new link will tell. */
    core->statistics.ignored++;
    core_line_again(core, line);
    return false;
}

static void from_source(node_core *core, core_line *line, const wire_message *message)
{
    core_source *source = line->user;
    if (strcmp(source->incarnation, message->sender) != 0) {
        core->statistics.ignored++;
        return;
    }
    core_source_heard(core, source);
    if (*line->at) /* whatever its name comes to mean, it is asked here from now on */
        memcpy(source->at, line->at, sizeof(source->at));
    switch (message->type) {
    case WIRE_WELCOME:
        core_source_welcome(core, source, message);
        break;
    case WIRE_VERDICT:
        core_received_verdict(core, line, message);
        break;
    case WIRE_SETTLED:
        core_received_settled(core, line, message);
        break;
    case WIRE_ERROR:
        core_received_source_error(core, line, message);
        break;
    case WIRE_BYE:
        core_source_left(core, source);
        break;
    default:
        break;
    }
}

/* Over a link that was opened from here. */
static void from_outgoing(node_core *core, core_line *line, const wire_message *message)
{
    if (line->use == CORE_USE_SOURCE) {
        from_source(core, line, message);
    } else if (line->use == CORE_USE_GREETER) {
        if (message->type == WIRE_WELCOME)
            core_engine_welcome(core, line, message);
        else if (message->type == WIRE_ERROR)
            core_engine_error(core, line->user, message->reasons);
    } else if (line->use == CORE_USE_LEADER) {
        if (message->type == WIRE_WELCOME)
            core_received_own_roster(core, line, message, &message->body.hello.roster);
        else if (message->type == WIRE_ROSTER)
            core_received_own_roster(core, line, message, &message->body.roster);
    }
}

/* Whether a message comes by the key of its sender. Else it is answered by the reason. */
static bool check_key(node_core *core, core_link link, const core_line *line, const char *key,
                      const wire_message *message)
{
    const char *its = line ? line->key : key;
    kvferry_report *report = NULL;
    if (core_name_speaks(core, message->sender, its, NULL))
        return true;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        return false;
    core_name_speaks(core, message->sender, its, report);
    core_refused(core, message->engine_id,
                 core_who(base_format("incarnation %s by key %.64s", message->sender, its), core->place), report);
    if (message->type == WIRE_HELLO)
        core_send_hello(core, link, message->sender, WIRE_WELCOME, false, report);
    else if (message->type != WIRE_ERROR && message->type != WIRE_BYE && message->type != WIRE_PONG)
        core_send_reasons(core, link, message, report);
    kvferry_report_free(report);
    return false;
}

/* Over a link that messages of a peer come in by. */
static void from_incoming(node_core *core, core_link link, core_line *line, const char *key,
                          const wire_message *message)
{
    core_target *target = core_target_speaking(line, message);
    if (target)
        core_target_heard(core, target, line);
    switch (message->type) {
    case WIRE_HELLO:
        if (message->body.hello.sibling)
            core_received_sibling(core, link, key, message);
        else
            core_received_hello(core, link, key, message);
        break;
    case WIRE_ASK:
        core_received_ask(core, link, line, message);
        break;
    case WIRE_SETTLE:
        core_received_settle(core, link, line, message);
        break;
    case WIRE_RENEW:
        core_received_renew(core, link, line, message);
        break;
    case WIRE_BYE:
        if (target)
            core_target_lost(core, target, "peer_left", "the decode worker said goodbye");
        break;
    default:
        break;
    }
}

static void dispatch(node_core *core, core_link link, core_line *line, const char *key,
                     const wire_message *message)
{
    if (message->type == WIRE_STATUS) {
        answer_status(core, link, message);
        return;
    }
    if (message->type == WIRE_DECLARE_DEAD) {
        core_received_death(core, link, key, message);
        return;
    }
    bool late = !*message->sender || core_dead(core, message->sender) || (link % 2 && !line);
    if (late) {
        core->statistics.ignored++;
        return;
    }
    if (!check_key(core, link, line, key, message))
        return;
    if (line && line->outgoing && !check_speaker(core, line, message))
        return;
    if (*message->receiver && strcmp(message->receiver, core->incarnation) != 0) {
        core->statistics.ignored++;
        if (message->type != WIRE_ERROR && message->type != WIRE_BYE && message->type != WIRE_PONG)
            core_send_error(core, link, message, "incarnation", core->incarnation, message->receiver,
                            "the worker that is here now");
        return;
    }
    if (line && line->outgoing)
        from_outgoing(core, line, message);
    else
        from_incoming(core, link, line, key, message);
    if (message->type == WIRE_PING) {
        wire_message pong = {.type = WIRE_PONG};
        core_send_to(core, link, message->sender, &pong);
    } else if (message->type == WIRE_GET) {
        core_received_get(core, link, line, message);
    } else if (message->type == WIRE_DOCUMENTS) {
        core_received_documents(core, link, key, message);
    }
}

void core_received(node_core *core, core_link link, const char *key, const char *place, const void *data,
                   size_t size, uint64_t now)
{
    core->now = base_max(core->now, now);
    core->statistics.messages_in++;
    core->statistics.message_bytes_in += size;
    kvferry_report *report = NULL;
    if (core->left || kvferry_report_create(&report) != KVFERRY_OK)
        return;
    wire_message message;
    kvferry_status status = wire_decode(data, size, &message, report);
    core_line *line = core_line_find(core, link);
    core->place = line && line->outgoing ? line->address : place ? place : "";
    if (status == KVFERRY_OK)
        dispatch(core, link, line, key ? key : "", &message);
    else
        bad_message(core, link, line, status, &message, report);
    core->place = "";
    wire_message_end(&message);
    kvferry_report_free(report);
}

/* --- what else happens ------------------------------------------------------------------------------------ */

void core_link_ended(node_core *core, core_link link, core_link_end how, uint64_t now)
{
    core->now = base_max(core->now, now);
    core_line *line = core_line_find(core, link);
    if (!line)
        return;
    switch (line->use) {
    case CORE_USE_LEADER:
    case CORE_USE_SIBLING:
        core_own_line_ended(core, line, how);
        break;
    case CORE_USE_GREETER:
        core_engine_line_ended(core, line, how);
        break;
    case CORE_USE_SOURCE:
        core_source_line_ended(core, line, how);
        break;
    case CORE_USE_TARGET:
        core_target_line_ended(core, line);
        break;
    case CORE_USE_NONE:
    case CORE_USE_SHUT:
        break;
    }
    core_line_drop(core, line);
}

void core_tick(node_core *core, uint64_t now)
{
    core->now = base_max(core->now, now);
    while (core->heap_count && core->heap[0]->due <= core->now) {
        core_timer *timer = core->heap[0];
        core_timer_stop(core, timer);
        timer->fire(core, timer->owner);
    }
    while (core->tombstone_list && core->tombstone_list->forget_at <= core->now)
        core_tombstone_drop(core, core->tombstone_list);
}

void core_own_changed(node_core *core) { core_engines_own_changed(core); }

kvferry_status core_abort(node_core *core, kvferry_side side, const char *transfer_id, uint64_t now)
{
    core->now = base_max(core->now, now);
    if (!transfer_id)
        return KVFERRY_NOT_FOUND;
    return side == KVFERRY_SIDE_PREFILL ? core_supply_abort(core, transfer_id)
                                        : core_request_abort(core, transfer_id);
}

void core_drain(node_core *core) { core->draining = true; }

bool core_idle(const node_core *core) { return core->offer_count == 0 && core->request_count == 0; }

void core_leave(node_core *core)
{
    if (!core->leaving || core->left || core->writes)
        return;
    core->left = true;
    core_line *line, *next;
    HASH_ITER(hh, core->lines, line, next) {
        wire_message message = {.type = WIRE_BYE};
        core_send(core, line, &message);
    }
}

void core_bye(node_core *core, uint64_t now)
{
    core->now = base_max(core->now, now);
    if (core->leaving)
        return;
    core->draining = core->leaving = true;
    core_abort_all(core);
    core_leave(core);
}
