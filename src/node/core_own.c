/* SPDX-License-Identifier: Apache-2.0 */
/* The own engine: its leader gathers the workers, and tells each who all of them are. */
#include "node/core_internal.h"

static void take_roster(node_core *core, core_roster *roster)
{
    if (core->own == roster) {
        core_roster_release(core, roster);
        return;
    }
    core_roster_release(core, core->own);
    core->own = roster;
    core_log(core, KVFERRY_LOG_INFO, "engine %s: complete, %zu workers", core->engine_id,
             roster->wire.count);
    core_own_changed(core);
}

static void send_roster(node_core *core, core_sibling *sibling)
{
    wire_message message = {.type = WIRE_ROSTER, .body.roster = core->own->wire};
    if (sibling->link)
        core_send_to(core, sibling->link, sibling->member.incarnation, &message);
}

/* At the leader: once all are known with their documents, everybody is told. */
static void gather(node_core *core)
{
    size_t count = core->sibling_count;
    for (size_t i = 0; i < count; i++)
        if (!core->siblings[i].known || !core->siblings[i].document)
            return;
    wire_member *members = base_alloc(count, sizeof(*members));
    if (!members)
        return;
    for (size_t i = 0; i < count; i++) {
        members[i] = core->siblings[i].member;
        members[i].address = core->siblings[i].address;
    }
    wire_roster wire = {.engine_id = core->engine_id, .members = members, .count = count};
    wire_roster_digest(&wire, wire.digest);
    core_roster *roster = NULL;
    if (core_roster_get(core, core_share_who_at(core, core->options.address), &wire, &roster, NULL) == KVFERRY_OK) {
        core->agreed = true;
        bool news = roster != core->own;
        take_roster(core, roster);
        for (size_t i = 0; news && i < count; i++)
            send_roster(core, &core->siblings[i]);
    }
    free(members);
}

bool core_own_give(node_core *core, size_t sibling, core_document *document, kvferry_report *report)
{
    core_sibling *its = &core->siblings[sibling];
    if (!core_document_fits(document, core->engine_id, &its->member.worker, report))
        return false;
    its->document = document;
    document->uses++;
    return true;
}

void core_own_documents(node_core *core)
{
    if (core->siblings && !core->agreed)
        gather(core);
    if (core->fetching && !core->fetching->missing) {
        core_roster *roster = core->fetching;
        core->fetching = NULL;
        core->agreed = true;
        take_roster(core, roster);
    }
}

/* --- at the leader --------------------------------------------------------------------------------- */

/* What the worker says of itself. */
static const wire_member *find_self(const wire_message *message)
{
    const wire_roster *roster = &message->body.hello.roster;
    for (size_t i = 0; i < roster->count; i++)
        if (strcmp(roster->members[i].incarnation, message->sender) == 0)
            return &roster->members[i];
    return NULL;
}

/* Whether it is nobody else, and comes by the key of its address. A rank stays with its key while its link is there. */
static bool check_self(node_core *core, const char *key, const wire_message *message, kvferry_report *report)
{
    const kvferry_worker *worker = &message->body.hello.worker;
    const core_sibling *before = &core->siblings[core_worker_index(worker)];
    const wire_member *self = find_self(message);
    for (size_t i = 0; i < core->sibling_count; i++) {
        const core_sibling *each = &core->siblings[i];
        if (!each->known || each == before || strcmp(each->member.incarnation, message->sender) != 0)
            continue;
        core_report_worker(report, base_format("rank %zu of its engine", i), "another rank", message->sender);
        return false;
    }
    if (!core_worker_speaks(core, message->engine_id, worker, message->sender, report))
        return false;
    if (self && !core_key_fits(core, self->address, key)) {
        core_report_key(report, core_address_key(self->address), key, message->sender);
        return false;
    }
    if (before->known && before->link && !core_key_fits(core, before->address, key)) {
        wire_message ping = {.type = WIRE_PING}; /* if it is gone, its link ends with this */
        core_send_to(core, before->link, before->member.incarnation, &ping);
        core_report_key(report, core_address_key(before->address), key, message->sender);
        return false;
    }
    return true;
}

static bool check_sibling(node_core *core, const char *key, const wire_message *message,
                          kvferry_report *report)
{
    const kvferry_worker *own = &core->worker, *its = &message->body.hello.worker;
    if (core->rank) {
        base_report_add(report, "not_leader", NULL, "the engine's first worker",
                        base_format("dp%u pp%u tp%u", own->dp_rank, own->pp_rank, own->tp_rank),
                        "this worker gathers no engine");
        return false;
    }
    if (strcmp(message->engine_id, core->engine_id) != 0 || own->tp_size != its->tp_size ||
        own->pp_size != its->pp_size || own->dp_size != its->dp_size ||
        its->tp_rank >= its->tp_size || its->pp_rank >= its->pp_size || its->dp_rank >= its->dp_size ||
        core_worker_index(its) == 0) {
        base_report_add(report, "sibling_differs", NULL,
                        base_format("another worker of engine %s with tp %u, pp %u, dp %u",
                                    core->engine_id, own->tp_size, own->pp_size, own->dp_size),
                        base_format("rank tp%u pp%u dp%u of engine %s with tp %u, pp %u, dp %u",
                                    its->tp_rank, its->pp_rank, its->dp_rank, message->engine_id,
                                    its->tp_size, its->pp_size, its->dp_size),
                        "a worker that reports to this one as its leader");
        return false;
    }
    return check_self(core, key, message, report);
}

/* Puts what the worker says into its place. false: out of memory, and the place is empty. */
static bool note_sibling(node_core *core, core_sibling *sibling, const wire_message *message)
{
    const wire_hello *hello = &message->body.hello;
    const wire_member *self = find_self(message);
    if (!self || !core_name_keep(core, message->sender, core_address_key(self->address)))
        return false;
    char *address = strdup(self->address);
    if (!address)
        return false;
    free(sibling->address);
    core_document_release(core, sibling->document);
    core_waiter_end(core, &sibling->waiter);
    *sibling = (core_sibling){.member = *self, .address = address, .known = true};
    sibling->member.worker = hello->worker;
    core->agreed = false;
    sibling->waiter.index = (size_t)(sibling - core->siblings);
    sibling->document = core_document_find(core, self->digest);
    if (sibling->document)
        sibling->document->uses++;
    else
        sibling->known = core_waiter_begin(core, &sibling->waiter, self->digest);
    return sibling->known;
}

static void ask_document(node_core *core, core_sibling *sibling)
{
    const char *digest = sibling->member.digest;
    wire_message message = {.type = WIRE_GET, .body.documents = {.digests = &digest, .count = 1}};
    core_send_to(core, sibling->link, sibling->member.incarnation, &message);
}

void core_received_sibling(node_core *core, core_link link, const char *key, const wire_message *message)
{
    kvferry_report *report = NULL;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        return;
    core_line *line = core_line_accept(core, link, key);
    if (line && (line->use == CORE_USE_NONE || line->use == CORE_USE_SIBLING)) {
        line->use = CORE_USE_SIBLING;
        memcpy(line->peer, message->sender, sizeof(line->peer));
        if (!check_sibling(core, key, message, report)) {
            core_refused(core, message->engine_id, core_who(message->sender, core->place), report);
            core_send_hello(core, link, message->sender, WIRE_WELCOME, false, report);
            core_line_close(core, line);
        } else {
            core_sibling *sibling = &core->siblings[core_worker_index(&message->body.hello.worker)];
            bool same = sibling->known &&
                        strcmp(sibling->member.incarnation, message->sender) == 0;
            if (same || note_sibling(core, sibling, message)) {
                core_line *before = sibling->link == link ? NULL : core_line_find(core, sibling->link);
                if (before && before->use == CORE_USE_SIBLING)
                    core_line_close(core, before);
                sibling->link = link;
                if (!sibling->document)
                    ask_document(core, sibling);
                else if (!core->agreed)
                    gather(core);
                core_send_hello(core, link, message->sender, WIRE_WELCOME, false, NULL);
            }
        }
    }
    kvferry_report_free(report);
}

/* --- at the others ---------------------------------------------------------------------------------- */

/* Takes what the leader says. false: one of the two lacks something still. */
static bool take_word(node_core *core, core_line *line, const wire_message *message, const wire_roster *wire)
{
    if (kvferry_report_count(message->reasons)) {
        core_refused(core, message->engine_id, line->address, message->reasons);
        return false;
    }
    if (!*wire->digest || wire->count <= core->rank ||
        strcmp(wire->engine_id, core->engine_id) != 0 ||
        strcmp(wire->members[core->rank].incarnation, core->incarnation) != 0)
        return false;
    core_roster *roster = NULL;
    if (core_roster_get(core, core_share_who_at(core, line->address), wire, &roster, NULL) != KVFERRY_OK)
        return false;
    if (!roster->missing) {
        core_roster_release(core, core->fetching);
        core->fetching = NULL;
        core->agreed = true;
        take_roster(core, roster);
        return true;
    }
    if (core->fetching != roster) {
        core_roster_release(core, core->fetching);
        core->fetching = roster;
    } else {
        core_roster_release(core, roster);
    }
    core_roster_fetch(core, core->fetching, line);
    return false;
}

/* What was asked for may get lost: reports to the leader again soon, who asks again for what it lacks, and is asked. */
static void disagree(node_core *core)
{
    uint64_t due = core_after(core, core->options.retry_ns);
    core->agreed = false;
    if (!core->own_timer.place || core->own_timer.due > due)
        core_timer_set(core, &core->own_timer, due);
}

void core_received_own_roster(node_core *core, core_line *line, const wire_message *message,
                              const wire_roster *wire)
{
    if (!take_word(core, line, message, wire))
        disagree(core);
}

/* Reports to the leader: often until both agree who is in the engine, then now and then, so that a roster that was
 * lost is made good. */
static void report_self(node_core *core, void *owner)
{
    (void)owner;
    if (!core->leader || core->leaving)
        return;
    if (!core->leader_line)
        core->leader_line = core_line_open(core, core->leader, CORE_USE_LEADER, NULL);
    if (core->leader_line)
        core_send_hello(core, core->leader_line->id, core->leader_line->peer, WIRE_HELLO, true, NULL);
    uint64_t pause = core->agreed ? base_max(core->options.silence_ns / 2, core->options.retry_ns)
                                  : core->options.retry_ns;
    core_timer_set(core, &core->own_timer, core_after(core, pause));
}

void core_own_again(node_core *core)
{
    core_line_close(core, core->leader_line);
    core->leader_line = NULL;
    core->agreed = false;
    report_self(core, NULL);
}

void core_own_line_ended(node_core *core, core_line *line, core_link_end how)
{
    (void)how;
    if (line->use == CORE_USE_LEADER) {
        core->leader_line = NULL;
        disagree(core);
        return;
    }
    for (size_t i = 0; i < core->sibling_count; i++)
        if (core->siblings[i].link == line->id)
            core->siblings[i].link = 0;
}

kvferry_status core_set_leader(node_core *core, const char *address, uint64_t now, kvferry_report *report)
{
    core->now = base_max(core->now, now);
    if (!address || !*address) {
        base_report_add(report, "address_invalid", NULL, "the address of a control socket", "nothing",
                        "where the engine's first worker is");
        return KVFERRY_INVALID;
    }
    if (core->rank == 0 || (core->leader && strcmp(core->leader, address) == 0))
        return KVFERRY_OK;
    char *copy = strdup(address);
    if (!copy)
        return KVFERRY_NO_MEMORY;
    free(core->leader);
    core->leader = copy;
    if (core->leader_line)
        core_line_close(core, core->leader_line);
    core->leader_line = NULL;
    core->agreed = false;
    report_self(core, NULL);
    return KVFERRY_OK;
}

kvferry_status core_own_create(node_core *core, kvferry_report *report)
{
    uint64_t count = core_worker_count(&core->worker);
    if (count > WIRE_MAX_WORKERS) {
        base_report_add(report, "too_many_workers", NULL, base_format("at most %d", WIRE_MAX_WORKERS),
                        base_format("%llu", (unsigned long long)count), "the workers of engine %s",
                        core->engine_id);
        return KVFERRY_REFUSED;
    }
    core->rank = core_worker_index(&core->worker);
    if (!core_timer_begin(core, &core->own_timer, report_self, NULL))
        return KVFERRY_NO_MEMORY;
    if (core->rank)
        return KVFERRY_OK;
    core->siblings = base_alloc((size_t)count, sizeof(core_sibling));
    if (!core->siblings)
        return KVFERRY_NO_MEMORY;
    core->sibling_count = (size_t)count;
    core_sibling *self = &core->siblings[0];
    self->address = strdup(core->options.address);
    if (!self->address)
        return KVFERRY_NO_MEMORY;
    self->known = true;
    self->member.worker = core->worker;
    memcpy(self->member.incarnation, core->incarnation, sizeof(self->member.incarnation));
    memcpy(self->member.digest, core->document->digest, sizeof(self->member.digest));
    self->document = core->document;
    core->document->uses++;
    gather(core);
    return count == 1 && !core->own ? KVFERRY_NO_MEMORY : KVFERRY_OK;
}

void core_own_free(node_core *core)
{
    for (size_t i = 0; i < core->sibling_count; i++) {
        free(core->siblings[i].address);
        core_document_release(core, core->siblings[i].document);
        core_waiter_end(core, &core->siblings[i].waiter);
    }
    free(core->siblings);
    free(core->leader);
    core_timer_end(core, &core->own_timer);
    core_roster_release(core, core->fetching);
    core_roster_release(core, core->own);
}
