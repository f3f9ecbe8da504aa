/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode side: the prefill workers that this node asks. One lives for as long as its engine is connected or
 * anything is not confirmed by it; a link that is lost is opened again, and only proof makes it dead.
 */
#include "node/core_internal.h"

#include <stdio.h>

core_source *core_source_find(node_core *core, const char *incarnation)
{
    core_source *source;
    HASH_FIND_STR(core->sources, incarnation, source);
    return source;
}

void core_source_free(node_core *core, core_source *source)
{
    if (source->line)
        core_line_close(core, source->line);
    core_timer_end(core, &source->timer);
    HASH_DEL(core->sources, source);
    core->statistics.peers -= source->welcomed;
    free(source->address);
    free(source);
}

static const char *words_of(const core_source *source)
{
    return core_worker_words(source->engine_id, &source->worker, source->incarnation);
}

static void set_welcomed(node_core *core, core_source *source, bool welcomed)
{
    core->statistics.peers += welcomed;
    core->statistics.peers -= source->welcomed;
    source->welcomed = welcomed;
}

static void greet(node_core *core, core_source *source)
{
    if (!source->line)
        source->line = core_line_open(core, *source->at ? source->at : source->address, CORE_USE_SOURCE, source);
    if (!source->line)
        return;
    if (!source->unanswered)
        source->unanswered = core->now;
    core_send_hello(core, source->line->id, source->incarnation, WIRE_HELLO, false, NULL);
}

static void ping(node_core *core, core_source *source)
{
    wire_message message = {.type = WIRE_PING};
    if (!source->unanswered)
        source->unanswered = core->now;
    core_send(core, source->line, &message);
}

/* Fails all that it was asked for. */
static void end_requests(node_core *core, core_source *source, const char *code, const char *text)
{
    core_part *part, *next;
    source->held = true;
    DL_FOREACH_SAFE(source->parts, part, next) { /* one request has one part here */
        if (part->request->state != CORE_REQUEST_ENDED && !part->confirmed &&
            !(source->replaced && core_part_survives(core, part)))
            core_request_end(core, part->request, KVFERRY_OUTCOME_FAILED, code, text, NULL);
    }
    source->held = false;
}

/* Where it only had to be told: the lease there ends by itself. May free the source. */
static void give_up(node_core *core, core_source *source)
{
    core_part *part, *next;
    source->held = true;
    DL_FOREACH_SAFE(source->parts, part, next) {
        if (part->confirmed)
            core_part_confirm(core, part, true);
    }
    source->held = false;
    core_source_leave(core, source);
}

/* Silent for too long: what it was asked for has failed, but it may still write. */
static void lost(node_core *core, core_source *source)
{
    source->lost = true;
    core_log(core, KVFERRY_LOG_WARNING, "%s, at %s: peer_lost, silent", words_of(source), source->address);
    char text[160];
    snprintf(text, sizeof(text), "worker %s of the prefill engine says nothing", source->incarnation);
    end_requests(core, source, "peer_lost", text);
    core_source_log_hold(core, source);
    if (source->engine)
        core_engine_fail_with(core, source->engine, "peer_lost", "an answer within silence_ms", "none",
                              text);
    else
        give_up(core, source);
}

static void on_time(node_core *core, void *owner)
{
    core_source *source = owner;
    const core_options *options = &core->options;
    if (source->dead) {
        if (core_linger_on(core, &source->linger, &source->timer))
            return;
        core_part *part;
        while ((part = source->parts) != NULL) {
            part->arrived = true;
            core_part_confirm(core, part, true);
        }
        core_source_free(core, source);
        return;
    }
    bool busy = source->parts || !source->welcomed;
    core_timer_set(core, &source->timer,
                   core_after(core, busy ? options->retry_ns : options->silence_ns));
    if (source->unanswered && core->now - source->unanswered >= options->silence_ns && !source->lost) {
        lost(core, source); /* may free it */
        return;
    }
    if (!source->line || !source->welcomed)
        greet(core, source);
    else if (!source->parts && core->now - source->heard >= options->silence_ns)
        ping(core, source);
}

core_source *core_source_get(node_core *core, core_engine *engine, const wire_member *member)
{
    if (core_dead(core, member->incarnation))
        return NULL;
    core_source *source = core_source_find(core, member->incarnation);
    if (source && (source->dead || (source->engine && source->engine != engine) ||
                   strcmp(source->engine_id, engine->id) != 0))
        return NULL;
    if (!source) {
        source = base_alloc(1, sizeof(*source));
        if (!source)
            return NULL;
        memcpy(source->incarnation, member->incarnation, sizeof(source->incarnation));
        snprintf(source->engine_id, sizeof(source->engine_id), "%s", engine->id);
        source->worker = member->worker;
        source->address = strdup(member->address);
        bool timed = source->address && core_timer_begin(core, &source->timer, on_time, source);
        bool named = timed && core_name_keep(core, source->incarnation, core_address_key(source->address));
        if (named)
            HASH_ADD_STR(core->sources, incarnation, source);
        if (!source->hh.tbl) {
            if (timed)
                core_timer_end(core, &source->timer);
            free(source->address);
            free(source);
            return NULL;
        }
    }
    source->engine = engine;
    source->lost = false;
    source->unanswered = 0;
    set_welcomed(core, source, false);
    greet(core, source);
    core_timer_set(core, &source->timer, core_after(core, core->options.retry_ns));
    return source;
}

void core_source_unuse(node_core *core, core_source *source)
{
    source->engine = NULL;
    core_source_leave(core, source);
}

void core_source_leave(node_core *core, core_source *source)
{
    if (!source->engine && !source->parts && !source->dead && !source->held)
        core_source_free(core, source);
}

void core_source_heard(node_core *core, core_source *source)
{
    source->heard = core->now;
    source->unanswered = 0;
    source->lost = false;
}

/* There is something to wait for: looks often. */
void core_source_busy(node_core *core, core_source *source)
{
    uint64_t due = core_after(core, core->options.retry_ns);
    if (!source->timer.place || source->timer.due > due)
        core_timer_set(core, &source->timer, due);
}

void core_source_send(node_core *core, core_source *source, wire_message *message)
{
    if (!source->line || source->dead)
        return;
    if (!source->unanswered)
        source->unanswered = core->now;
    core_send_to(core, source->line->id, source->incarnation, message);
}

void core_source_welcome(node_core *core, core_source *source, const wire_message *message)
{
    core_engine *engine = source->engine;
    const char *digest = message->body.hello.roster.digest;
    if (kvferry_report_count(message->reasons)) {
        end_requests(core, source, core_reasons_code(message->reasons, "no_memory"),
                     core_reasons_text(message->reasons, "memory ran out"));
        if (engine) {
            core_refused(core, message->engine_id, source->address, message->reasons);
            core_engine_fail(core, engine, message->reasons);
            return;
        }
        give_up(core, source);
        return;
    }
    if (!*digest) /* its engine is not complete; the timer asks again */
        return;
    if (engine && engine->roster && strcmp(digest, engine->roster->wire.digest) != 0) {
        core_engine_again(core, engine);
        return;
    }
    source->lease_ns = message->body.hello.lease_ms * 1000000;
    source->minor = message->minor;
    set_welcomed(core, source, true);
    core_part *part;
    DL_FOREACH(source->parts, part) {
        core_part_send(core, part);
    }
    if (engine)
        core_engine_source_ready(core, engine);
}

void core_source_again(node_core *core, core_source *source)
{
    if (source->line)
        core_line_close(core, source->line);
    source->line = NULL;
    set_welcomed(core, source, false); /* until it answers over the new link, it is greeted again and again */
    core_source_busy(core, source);
    greet(core, source);
}

void core_source_died(node_core *core, core_source *source, bool lingers, const char *code, const char *why)
{
    if (source->dead)
        return;
    source->dead = true;
    core_tombstone_add(core, core_share_who_at(core, source->address), source->incarnation, true);
    core_log(core, KVFERRY_LOG_WARNING, "%s, at %s: dead, %s: %s", words_of(source), source->address, code,
             why);
    if (source->line)
        core_line_close(core, source->line);
    source->line = NULL;
    core_linger_begin(core, &source->linger);
    if (!lingers || !core_linger_on(core, &source->linger, &source->timer)) {
        source->linger.waited = core->options.linger_ns;
        core_timer_set(core, &source->timer, core->now);
    }
    char text[256];
    snprintf(text, sizeof(text), "worker %s of the prefill engine: %.180s", source->incarnation, why);
    end_requests(core, source, code, text);
    if (source->engine)
        core_engine_fail_with(core, source->engine, code, "the worker that shook hands", "it is gone", text);
}

void core_source_left(node_core *core, core_source *source)
{
    bool cut = false;
    const core_part *part;
    DL_FOREACH(source->parts, part) {
        cut = cut || (part->asked && !part->done);
    }
    core_source_died(core, source, cut, "peer_left", "it said goodbye");
}

typedef struct speaker { /* who speaks now, and where */
    const char *address, *at, *engine_id, *incarnation;
    const kvferry_worker *worker; /* NULL: unknown */
    uint64_t opened;
} speaker;

/* Another address of its name may be another host's. */
static bool is_at_its_place(const core_source *source, const speaker *who)
{
    return (*source->at && strcmp(source->at, who->address) == 0) ||
           (strcmp(source->address, who->address) == 0 && strcmp(source->at, who->at) == 0);
}

static core_source *find_replaced(node_core *core, const speaker *who)
{
    core_source *source, *next;
    HASH_ITER(hh, core->sources, source, next) {
        bool there = is_at_its_place(source, who);
        bool rank = who->worker && core_key_fits(core, source->address, core_address_key(who->address)) &&
                    core_same_worker(who->engine_id, who->worker, source->engine_id, &source->worker);
        if (!source->dead && (there || rank) && source->heard <= who->opened &&
            strcmp(source->incarnation, who->incarnation) != 0)
            return source;
    }
    return NULL;
}

void core_sources_replaced(node_core *core, const core_line *line, const char *engine_id,
                           const kvferry_worker *worker, const char *incarnation)
{
    char address[WIRE_MAX_ADDRESS + 1], at[CORE_PLACE_TEXT]; /* the link may end with what it tells */
    snprintf(address, sizeof(address), "%s", line->address);
    snprintf(at, sizeof(at), "%s", line->at);
    const speaker who = {address, at, engine_id, incarnation, worker, line->opened};
    core_source *source;
    while ((source = find_replaced(core, &who)) != NULL) {
        char why[128];
        snprintf(why, sizeof(why), "incarnation %s has taken its place", incarnation);
        source->replaced = true;
        core_source_died(core, source, true, "incarnation", why);
    }
}

void core_source_other_version(node_core *core, core_source *source, const kvferry_report *reasons)
{
    char why[256];
    snprintf(why, sizeof(why), "%s", core_reasons_text(reasons, "another version of the protocol is spoken there"));
    core_source_died(core, source, true, core_reasons_code(reasons, "message_version"), why);
}

void core_source_line_ended(node_core *core, core_line *line, core_link_end how)
{
    core_source *source = line->user;
    source->line = NULL;
    set_welcomed(core, source, false);
    if (how == CORE_LINK_REFUSED) {
        core_source_died(core, source, true, "peer_lost", "nobody listens at its address");
        return;
    }
    if (!source->unanswered)
        source->unanswered = core->now;
    core_source_busy(core, source);
}

kvferry_status core_declare_dead(node_core *core, const char *incarnation, uint64_t now,
                                 kvferry_report *report)
{
    core->now = base_max(core->now, now);
    core_source *source = incarnation ? core_source_find(core, incarnation) : NULL;
    core_target *target = incarnation ? core_target_find(core, incarnation) : NULL;
    if (!source && !target) {
        core_report_unknown_worker(core, incarnation ? incarnation : "nothing", report);
        return KVFERRY_NOT_FOUND;
    }
    if (source)
        core_source_died(core, source, true, "peer_lost", "it was declared dead");
    if (target)
        core_target_lost(core, target, "peer_lost", "the decode worker was declared dead");
    return KVFERRY_OK;
}
