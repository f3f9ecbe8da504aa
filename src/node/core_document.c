/* SPDX-License-Identifier: Apache-2.0 */
/* Layout documents, each held and read once, and rosters: which workers an engine has. */
#include "node/core_internal.h"

#include <stdio.h>

/* Digests in one GET, so that no small document draws a great one. Who has more to ask for does so with each answer. */
enum { GET_DIGESTS = 256 };

core_document *core_document_find(node_core *core, const char *digest)
{
    core_document *document;
    HASH_FIND_STR(core->documents, digest, document);
    return document;
}

static void free_document(core_document *document)
{
    kvferry_layout_free(document->layout);
    free(document->data);
    free(document);
}

kvferry_status core_document_add(node_core *core, const void *data, size_t size, core_document **document,
                                 kvferry_report *report)
{
    char digest[WIRE_DIGEST_TEXT];
    wire_digest(data, size, digest);
    core_document *made = core_document_find(core, digest);
    if (made) {
        made->uses++;
        *document = made;
        return KVFERRY_OK;
    }
    made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = kvferry_layout_read_msgpack(data, size, &made->layout, report);
    made->data = status == KVFERRY_OK ? malloc(size) : NULL;
    if (made->data) {
        memcpy(made->data, data, size);
        memcpy(made->digest, digest, sizeof(made->digest));
        made->size = size;
        made->uses = 1;
        HASH_ADD_STR(core->documents, digest, made);
    }
    if (!made->data || !made->hh.tbl) {
        free_document(made);
        return status == KVFERRY_OK ? KVFERRY_NO_MEMORY : status;
    }
    core->document_bytes += size;
    *document = made;
    return KVFERRY_OK;
}

void core_document_release(node_core *core, core_document *document)
{
    if (!document || --document->uses)
        return;
    HASH_DEL(core->documents, document);
    core->document_bytes -= document->size;
    free_document(document);
}

bool core_document_fits(const core_document *document, const char *engine_id, const kvferry_worker *worker,
                        kvferry_report *report)
{
    const char *its_engine = kvferry_layout_engine_id(document->layout);
    const kvferry_worker *its = kvferry_layout_worker(document->layout);
    if (core_same_worker(engine_id, worker, its_engine, its))
        return true;
    char expected[512];
    snprintf(expected, sizeof(expected), "%s", core_worker_words(engine_id, worker, "any"));
    base_report_add(report, "document_differs", NULL, expected, core_worker_words(its_engine, its, "any"),
                    "the layout document of a roster's member");
    return false;
}

/* --- who waits for one --------------------------------------------------------------------------------- */

static core_want *find_want(node_core *core, const char *digest)
{
    core_want *want;
    HASH_FIND_STR(core->wants, digest, want);
    return want;
}

static core_want *make_want(node_core *core, const char *digest)
{
    core_want *want = base_alloc(1, sizeof(*want));
    if (!want)
        return NULL;
    memcpy(want->digest, digest, sizeof(want->digest));
    HASH_ADD_STR(core->wants, digest, want);
    if (want->hh.tbl)
        return want;
    free(want);
    return NULL;
}

bool core_waiter_begin(node_core *core, core_waiter *waiter, const char *digest)
{
    core_want *want = find_want(core, digest);
    if (!want)
        want = make_want(core, digest);
    if (want)
        DL_APPEND(want->waiters, waiter);
    waiter->want = want;
    return want != NULL;
}

void core_waiter_end(node_core *core, core_waiter *waiter)
{
    core_want *want = waiter->want;
    if (!want)
        return;
    waiter->want = NULL;
    DL_DELETE(want->waiters, waiter);
    if (want->waiters)
        return;
    HASH_DEL(core->wants, want);
    free(want);
}

/* --- rosters --------------------------------------------------------------------------------------- */

uint64_t core_worker_count(const kvferry_worker *worker)
{
    uint64_t count;
    if (!base_mul(worker->tp_size, worker->pp_size, &count) || !base_mul(count, worker->dp_size, &count))
        return UINT64_MAX;
    return count;
}

uint32_t core_worker_index(const kvferry_worker *worker)
{
    return (worker->dp_rank * worker->pp_size + worker->pp_rank) * worker->tp_size + worker->tp_rank;
}

static bool same_sizes(const kvferry_worker *a, const kvferry_worker *b)
{
    return a->tp_size == b->tp_size && a->pp_size == b->pp_size && a->dp_size == b->dp_size;
}

size_t core_wire_index(const wire_roster *roster, const kvferry_worker *worker)
{
    const kvferry_worker *first = &roster->members[0].worker;
    if (!same_sizes(first, worker) || worker->tp_rank >= worker->tp_size ||
        worker->pp_rank >= worker->pp_size || worker->dp_rank >= worker->dp_size)
        return SIZE_MAX;
    return core_worker_index(worker);
}

size_t core_roster_index(const core_roster *roster, const kvferry_worker *worker)
{
    return core_wire_index(&roster->wire, worker);
}

/* Whether it is all workers of one engine, in order, and what its digest says. */
static bool check_roster(const wire_roster *wire, kvferry_report *report)
{
    uint64_t count = wire->count ? core_worker_count(&wire->members[0].worker) : 0;
    bool right = count && count == wire->count && count <= WIRE_MAX_WORKERS;
    for (size_t i = 0; right && i < wire->count; i++) {
        const kvferry_worker *worker = &wire->members[i].worker;
        right = same_sizes(&wire->members[0].worker, worker) && worker->tp_rank < worker->tp_size &&
                worker->pp_rank < worker->pp_size && worker->dp_rank < worker->dp_size &&
                core_worker_index(worker) == i && *wire->members[i].incarnation &&
                *wire->members[i].digest;
    }
    if (!right) {
        base_report_add(report, "roster_malformed", NULL, "all workers of one engine in order",
                        base_format("%zu members", wire->count), "the roster of engine %s",
                        wire->engine_id);
        return false;
    }
    char digest[WIRE_DIGEST_TEXT];
    wire_roster_digest(wire, digest);
    if (strcmp(digest, wire->digest) == 0)
        return true;
    base_report_add(report, "roster_malformed", NULL, digest, wire->digest,
                    "the digest of the roster of engine %s", wire->engine_id);
    return false;
}

static void free_roster(node_core *core, core_roster *roster)
{
    for (size_t i = 0; i < roster->wire.count; i++) {
        core_document_release(core, roster->documents[i]);
        core_waiter_end(core, &roster->waiters[i]);
    }
    base_arena_free(&roster->arena);
    core_holder_release(core, roster->holder);
    free(roster);
}

static bool copy_roster(const wire_roster *wire, core_roster *roster)
{
    size_t count = wire->count;
    roster->wire = *wire;
    roster->wire.count = 0;
    roster->wire.engine_id = base_arena_strdup(&roster->arena, wire->engine_id);
    roster->wire.members = base_arena_alloc(&roster->arena, count, sizeof(wire_member));
    roster->documents = base_arena_alloc(&roster->arena, count, sizeof(core_document *));
    roster->waiters = base_arena_alloc(&roster->arena, count, sizeof(core_waiter));
    char *digests = base_alloc(count, WIRE_DIGEST_TEXT);
    if (!roster->wire.engine_id || !roster->wire.members || !roster->documents || !roster->waiters ||
        !digests) {
        free(digests);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        roster->wire.members[i] = wire->members[i];
        roster->wire.members[i].address = base_arena_strdup(&roster->arena, wire->members[i].address);
        memcpy(digests + i * WIRE_DIGEST_TEXT, wire->members[i].digest, WIRE_DIGEST_TEXT);
        if (!roster->wire.members[i].address) {
            free(digests);
            return false;
        }
    }
    wire_digest(digests, count * WIRE_DIGEST_TEXT, roster->documents_digest);
    free(digests);
    roster->wire.count = count;
    return true;
}

/* Those that are here; the others are waited for. KVFERRY_REFUSED: one is another worker's. */
static kvferry_status find_documents(node_core *core, core_roster *roster, kvferry_report *report)
{
    for (size_t i = 0; i < roster->wire.count; i++) {
        const wire_member *member = &roster->wire.members[i];
        core_document *document = core_document_find(core, member->digest);
        if (document && !core_document_fits(document, roster->wire.engine_id, &member->worker, report))
            return KVFERRY_REFUSED;
        roster->documents[i] = document;
        if (document) {
            document->uses++;
            roster->bytes += document->size;
            continue;
        }
        roster->waiters[i] = (core_waiter){.roster = roster, .index = i};
        if (!core_waiter_begin(core, &roster->waiters[i], member->digest))
            return KVFERRY_NO_MEMORY;
        roster->missing++;
    }
    return KVFERRY_OK;
}

kvferry_status core_roster_check(node_core *core, const wire_roster *wire, core_roster **roster,
                                 kvferry_report *report)
{
    core_roster *known;
    HASH_FIND_STR(core->rosters, wire->digest, known);
    if (known && strcmp(known->wire.engine_id, wire->engine_id) == 0) {
        known->uses++;
        *roster = known;
        return KVFERRY_OK;
    }
    *roster = NULL;
    return check_roster(wire, report) ? core_roster_names(core, wire, report) : KVFERRY_REFUSED;
}

kvferry_status core_roster_make(node_core *core, const char *who, const wire_roster *wire, core_roster **roster,
                                kvferry_report *report)
{
    if (!core_share_has_room(core, CORE_KEPT_MEMBERS, who, wire->count)) {
        core_share_report(core, CORE_KEPT_MEMBERS, report);
        return KVFERRY_REFUSED;
    }
    core_roster *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->holder = core_holder_get(core, who);
    kvferry_status status = made->holder && copy_roster(wire, made) ? find_documents(core, made, report)
                                                                    : KVFERRY_NO_MEMORY;
    if (status == KVFERRY_OK)
        HASH_ADD_STR(core->rosters, wire.digest, made);
    if (!made->hh.tbl) {
        free_roster(core, made);
        return status == KVFERRY_OK ? KVFERRY_NO_MEMORY : status;
    }
    made->uses = 1;
    core->roster_members += wire->count;
    *roster = made;
    return KVFERRY_OK;
}

kvferry_status core_roster_get(node_core *core, const char *who, const wire_roster *wire, core_roster **roster,
                               kvferry_report *report)
{
    core_roster *found;
    kvferry_status status = core_roster_check(core, wire, &found, report);
    if (status == KVFERRY_OK && !found) {
        status = core_roster_make(core, who, wire, &found, report);
        if (status == KVFERRY_OK && !core_share_settle(core, CORE_KEPT_MEMBERS, who)) {
            core_share_report(core, CORE_KEPT_MEMBERS, report);
            core_roster_release(core, found);
            status = KVFERRY_REFUSED;
        }
    }
    if (status == KVFERRY_OK)
        *roster = found;
    return status;
}

void core_roster_release(node_core *core, core_roster *roster)
{
    if (!roster || --roster->uses)
        return;
    HASH_DEL(core->rosters, roster);
    core->roster_members -= roster->wire.count;
    free_roster(core, roster);
}

/* --- fetching ---------------------------------------------------------------------------------------- */

void core_roster_fetch(node_core *core, core_roster *roster, core_line *line)
{
    size_t most = base_min(roster->missing, GET_DIGESTS);
    const char **digests = base_alloc(most, sizeof(*digests));
    if (!digests)
        return;
    wire_message message = {.type = WIRE_GET, .body.documents.digests = digests};
    for (size_t i = 0; message.body.documents.count < most; i++)
        if (!roster->documents[i])
            digests[message.body.documents.count++] = roster->wire.members[i].digest;
    roster->asked = core->now;
    core_send(core, line, &message);
    free(digests);
}

/*
 * As many as fit into a message, each once; the other side asks again for the rest. It asks again, too, while much of what
 * others asked for is still here.
 */
static void send_documents(node_core *core, core_link link, const wire_message *message)
{
    const wire_documents *wanted = &message->body.documents;
    size_t count = wanted->count < WIRE_MAX_WORKERS ? wanted->count : WIRE_MAX_WORKERS;
    const char **digests = base_alloc(count + 1, sizeof(*digests));
    const void **data = base_alloc(count + 1, sizeof(*data));
    size_t *sizes = base_alloc(count + 1, sizeof(*sizes));
    wire_message answer = {.type = WIRE_DOCUMENTS, .body.documents = {digests, data, sizes, 0}};
    uint64_t bytes = 0;
    core->answers++;
    for (size_t i = 0; digests && data && sizes && i < count; i++) {
        core_document *document = core_document_find(core, wanted->digests[i]);
        if (!document || document->answer == core->answers ||
            (bytes && bytes + document->size > core->options.max_message_bytes / 2))
            continue;
        document->answer = core->answers;
        bytes += document->size;
        size_t at = answer.body.documents.count++;
        digests[at] = document->digest;
        data[at] = document->data;
        sizes[at] = document->size;
    }
    if (digests && data && sizes)
        core_send_to(core, link, message->sender, &answer);
    free(digests);
    free(data);
    free(sizes);
}

void core_received_get(node_core *core, core_link link, const core_line *line, const wire_message *message)
{
    if (core_line_unused(line)) {
        core->statistics.ignored++;
        core_send_hello_missing(core, link, message);
    } else if (!core_much_queued(core)) {
        send_documents(core, link, message);
    }
}

static bool give(node_core *core, const core_waiter *waiter, core_document *document, kvferry_report *report)
{
    core_roster *roster = waiter->roster;
    size_t i = waiter->index;
    if (!roster)
        return core_own_give(core, i, document, report);
    if (!core_document_fits(document, roster->wire.engine_id, &roster->wire.members[i].worker, report))
        return false;
    roster->documents[i] = document;
    document->uses++;
    roster->bytes += document->size;
    roster->missing--;
    return true;
}

/* The roster whose documents are fetched over the line; NULL: none is. */
static core_roster *roster_of(const node_core *core, const core_line *line)
{
    if (line && line->use == CORE_USE_GREETER)
        return ((core_engine *)line->user)->roster;
    if (line && line->use == CORE_USE_TARGET)
        return ((core_target *)line->user)->roster;
    return line && line->use == CORE_USE_LEADER ? core->fetching : NULL;
}

/* Whether it is lacked by who speaks over the line, for itself or its engine. */
static bool lacked_by(const node_core *core, const core_waiter *waiter, const core_line *line)
{
    if (waiter->roster)
        return waiter->roster == roster_of(core, line);
    return line && core->siblings[waiter->index].link == line->id;
}

/*
 * Gives the document to all that lack it. false: it is nobody's own. That it does not fit is reported of the sender's
 * roster alone: another may claim, falsely, what is the sender's own.
 */
static bool hand_out(node_core *core, core_document *document, core_link link, kvferry_report *report)
{
    const core_line *line = core_line_find(core, link);
    core_want *want = find_want(core, document->digest);
    core_waiter *waiter, *next;
    bool any = false;
    DL_FOREACH_SAFE(want->waiters, waiter, next) {
        if (!give(core, waiter, document, lacked_by(core, waiter, line) ? report : NULL))
            continue;
        core_waiter_end(core, waiter); /* the last one frees the want */
        any = true;
    }
    return any;
}

/* Asks for the rest, where the roster's documents did not fit into one message. */
static void fetch_rest(node_core *core, core_line *line)
{
    core_roster *roster = roster_of(core, line);
    if (roster && roster->missing)
        core_roster_fetch(core, roster, line);
}

/* What it sent is wrong, or finds no room: without its documents nothing comes of who sends them. */
static void refuse_documents(node_core *core, core_link link, const wire_message *message,
                             const kvferry_report *reasons)
{
    core_line *line = core_line_find(core, link);
    core_target *target = line && line->use == CORE_USE_TARGET ? line->user : NULL;
    if (target && target->roster->missing) {
        core_target_turn_away(core, target, reasons, "its layout documents are refused");
        return;
    }
    core_refused(core, message->engine_id, core_who(message->sender, core->place), reasons);
    core_send_reasons(core, link, message, reasons);
    if (line && line->use == CORE_USE_GREETER)
        core_engine_fail(core, line->user, reasons);
}

void core_received_documents(node_core *core, core_link link, const char *key, const wire_message *message)
{
    const wire_documents *got = &message->body.documents;
    kvferry_report *report = NULL;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        return;
    bool any = false; /* is what somebody lacked: only then is it worth to ask for more */
    const core_line *line = core_line_find(core, link);
    char its_key[CORE_KEY_TEXT]; /* the line may go */
    snprintf(its_key, sizeof(its_key), "%s", line ? line->key : key);
    const char *who = core_share_who(core, its_key);
    for (size_t i = 0; i < got->count && kvferry_report_count(report) < WIRE_MAX_REASONS; i++) {
        char digest[WIRE_DIGEST_TEXT];
        wire_digest(got->documents[i], got->sizes[i], digest);
        core_document *document = NULL;
        if (!find_want(core, digest)) {
            core->statistics.ignored++;
            continue;
        }
        if (!core_share_has_room(core, CORE_KEPT_BYTES, who, got->sizes[i])) {
            core_share_report(core, CORE_KEPT_BYTES, report);
            break;
        }
        if (core_document_add(core, got->documents[i], got->sizes[i], &document, report) == KVFERRY_OK) {
            bool given = hand_out(core, document, link, report);
            core->statistics.ignored += !given;
            any |= given;
        }
        core_document_release(core, document);
        if (!core_share_settle(core, CORE_KEPT_BYTES, who))
            core_share_report(core, CORE_KEPT_BYTES, report);
    }
    if (any)
        core_own_documents(core);
    if (kvferry_report_count(report))
        refuse_documents(core, link, message, report);
    else if (any)
        fetch_rest(core, core_line_find(core, link));
    core_engine_documents(core);
    core_targets_documents(core);
    kvferry_report_free(report);
}
