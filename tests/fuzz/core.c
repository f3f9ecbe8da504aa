/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps and messages to a prefill and a decode core that are connected: nothing is touched outside of memory, each
 * transfer has one end, and, where links have keys and what is said comes by another one, no byte that is not asked for
 * is written, and a transfer works afterwards.
 */
#include "fuzz.h"

#include "node/core_internal.h"
#include "node/rig_test.h"
#include "node/rig_transfer_test.h"

#define EVIL_KEY "00000000000000000000000000000000000000000000000000000000000bad00"
#define EVIL_NAME "eeeeeeeeeeeeeeee"

enum { P, D, EVIL, NODES }; /* EVIL has memory, and no core */
enum { STEPS = 48, STRANGER = 9000, ASKED = 12 }; /* blocks below ASKED are those that D asks for */

typedef struct input {
    const uint8_t *data;
    size_t size;
} input;

typedef struct world {
    rig *r;
    input in;
    void *documents[2]; /* of the liar's engine: the one that fits, and one that is a rank of two */
    size_t sizes[2];
    uint8_t *before; /* P's memory */
} world;

static unsigned take(input *in)
{
    if (!in->size)
        return 0;
    in->size--;
    return *in->data++;
}

static uint64_t take_number(input *in)
{
    static const uint64_t ends[] = {0, 1, 8, RIG_BLOCKS, UINT32_MAX, INT64_MAX, UINT64_MAX};
    unsigned which = take(in);
    return which < sizeof(ends) / sizeof(*ends) ? ends[which] : which * (uint64_t)(take(in) + 1);
}

static const char *take_id(input *in)
{
    static const char *const ids[] = {"a", "b", "c", "d"};
    return ids[take(in) % 4];
}

static const char *take_name(world *w)
{
    const char *const names[] = {EVIL_NAME, w->r->nodes[D].incarnation, w->r->nodes[P].incarnation, "eeeeeeeeeeeeeee2"};
    return names[take(&w->in) % 4];
}

static const char *take_engine(world *w)
{
    static const char *const names[] = {"evil", "decode", "prefill"};
    return names[take(&w->in) % 3];
}

/* The attempt that is under way, if one is, or another. */
static void take_attempt(world *w, char attempt[WIRE_INCARNATION_TEXT])
{
    core_request *request;
    unsigned which = take(&w->in);
    HASH_FIND_STR(w->r->nodes[D].core->requests, (const char *)(which & 2 ? "a" : "b"), request);
    if (which & 1 && request && request->part_count)
        memcpy(attempt, request->parts[0].attempt, WIRE_INCARNATION_TEXT);
    else
        core_incarnation_text(which, attempt);
}

/* --- messages --------------------------------------------------------------------------------------------- */

typedef struct parts { /* what a message points to */
    wire_member members[3];
    kvferry_block_table tables[2];
    uint32_t blocks[2][6];
    wire_checksum checksums[3];
    const char *digests[2];
    char digest_texts[2][WIRE_DIGEST_TEXT];
    const void *documents[2];
    size_t sizes[2];
    void *patched;
    uint64_t binding;
    kvferry_report *reasons;
} parts;

static const char *address_of(world *w, unsigned which)
{
    static char evil[128];
    snprintf(evil, sizeof(evil), "tcp://127.0.0.1:6666%s", w->r->keyed ? "/" EVIL_KEY : "");
    return which % 3 == 0 ? evil : w->r->nodes[which % 3 == 1 ? P : D].address;
}

static void fill_roster(world *w, parts *p, wire_roster *roster)
{
    input *in = &w->in;
    unsigned shape = take(in);
    const node_core *core = w->r->nodes[shape & 1 ? P : D].core;
    if (shape & 2 && core->own) { /* one that holds, with other addresses or members */
        *roster = core->own->wire;
        p->members[0] = roster->members[0];
        roster->members = p->members;
        if (shape & 4)
            p->members[0].address = address_of(w, shape >> 4);
        if (shape & 8)
            memcpy(p->members[0].incarnation, take_name(w), WIRE_INCARNATION_TEXT);
    } else {
        uint32_t count = 1 + (shape >> 2) % 2;
        *roster = (wire_roster){.engine_id = take_engine(w), .members = p->members, .count = count};
        for (uint32_t i = 0; i < count; i++) {
            unsigned which = take(in);
            wire_member *member = &p->members[i];
            *member = (wire_member){.worker = {i, count, 0, 1, 0, 1}, .address = address_of(w, which >> 4)};
            memcpy(member->incarnation, take_name(w), WIRE_INCARNATION_TEXT);
            if (which & 4)
                memcpy(member->digest, w->r->nodes[which & 1 ? P : D].core->document->digest, WIRE_DIGEST_TEXT);
            else
                wire_digest(w->documents[which & 1], w->sizes[which & 1], member->digest);
        }
    }
    if (take(in) != 1)
        wire_roster_digest(roster, roster->digest);
}

static void fill_hello(world *w, parts *p, wire_hello *hello)
{
    unsigned how = take(&w->in);
    fill_roster(w, p, &hello->roster);
    hello->worker = hello->roster.members[how & 1 && hello->roster.count > 1].worker;
    hello->expects = how & 2 ? take_name(w) : "";
    hello->sibling = how & 4;
    hello->engine = how & 8 ? "ucx" : "memory";
    p->binding = how & 16 ? take(&w->in) : EVIL;
    if (w->r->keyed && p->binding < EVIL) /* who knows a binding can write: it is not the core's to say */
        p->binding = EVIL;
    hello->binding = &p->binding;
    hello->binding_size = how & 32 ? take(&w->in) % 9 : sizeof(p->binding);
    hello->lease_ms = base_min(take_number(&w->in), WIRE_MAX_MILLISECONDS);
}

static void fill_ask(world *w, parts *p, wire_ask *ask)
{
    static const char *const groups[] = {"attn", "ssm", "none"};
    input *in = &w->in;
    unsigned how = take(in);
    take_attempt(w, ask->attempt);
    const core_target *target = core_target_find(w->r->nodes[P].core, EVIL_NAME);
    const core_roster *own = w->r->nodes[P].core->own;
    const core_roster *its = target ? target->roster : w->r->nodes[D].core->own;
    memcpy(ask->source_roster, (how & 1 && its ? its : own)->wire.digest, WIRE_DIGEST_TEXT);
    memcpy(ask->target_roster, (how & 2 || !its ? own : its)->wire.digest, WIRE_DIGEST_TEXT);
    ask->tokens = base_min(take_number(in), INT64_MAX);
    ask->timeout_ms = base_min(take_number(in), WIRE_MAX_MILLISECONDS);
    ask->verify = how & 4;
    ask->whole_blocks = how & 128;
    ask->part = how & 64;
    ask->tables = p->tables;
    ask->table_count = (how >> 3) % 3;
    for (size_t i = 0; i < ask->table_count; i++) {
        size_t count = take(in) % 6;
        for (size_t k = 0; k < count; k++)
            p->blocks[i][k] = (uint32_t)take_number(in);
        p->tables[i] = (kvferry_block_table){groups[take(in) % 3], base_min(take_number(in), INT64_MAX), p->blocks[i], count};
    }
}

static void fill_documents(world *w, parts *p, wire_documents *documents, bool bodies)
{
    input *in = &w->in;
    *documents = (wire_documents){p->digests, bodies ? p->documents : NULL, bodies ? p->sizes : NULL, 1 + take(in) % 2};
    for (size_t i = 0; i < documents->count; i++) {
        unsigned which = take(in);
        p->documents[i] = w->documents[which & 1];
        p->sizes[i] = w->sizes[which & 1];
        if (bodies && which & 2 && !p->patched) {
            uint8_t *copy = p->patched = malloc(p->sizes[i]);
            MUST(copy);
            memcpy(copy, p->documents[i], p->sizes[i]);
            for (unsigned changes = take(in) % 4; changes; changes--) {
                size_t at = take(in) * 4u + take(in) % 4;
                copy[at % p->sizes[i]] = (uint8_t)take(in);
            }
            p->documents[i] = copy;
        }
        p->digests[i] = p->digest_texts[i];
        wire_digest(p->documents[i], p->sizes[i], p->digest_texts[i]);
        if (which & 4)
            memcpy(p->digest_texts[i], w->r->nodes[which & 8 ? P : D].core->document->digest, WIRE_DIGEST_TEXT);
    }
}

static void fill_verdict(world *w, parts *p, wire_verdict *verdict, bool waits)
{
    input *in = &w->in;
    take_attempt(w, verdict->attempt);
    unsigned how = take(in);
    verdict->outcome = how % (waits ? WIRE_OUTCOMES : WIRE_WAITING);
    verdict->part = how & 128;
    verdict->copies = take_number(in);
    verdict->bytes = take_number(in);
    verdict->checksums = p->checksums;
    verdict->checksum_count = waits ? take(in) % 4 : 0;
    for (size_t i = 0; i < verdict->checksum_count; i++)
        p->checksums[i] = (wire_checksum){(uint32_t)take_number(in), take_number(in)};
}

static void fill(world *w, parts *p, wire_message *message)
{
    static const char *const codes[] = {"roster_changed", "transfer_over", "hello_missing", "incarnation",
                                        "transfer_unknown", "other"};
    input *in = &w->in;
    message->type = take(in) % WIRE_TYPES;
    message->transfer_id = take_id(in);
    switch (message->type) {
    case WIRE_HELLO:
    case WIRE_WELCOME:
        fill_hello(w, p, &message->body.hello);
        break;
    case WIRE_ROSTER:
        fill_roster(w, p, &message->body.roster);
        break;
    case WIRE_GET:
    case WIRE_DOCUMENTS:
        fill_documents(w, p, &message->body.documents, message->type == WIRE_DOCUMENTS);
        break;
    case WIRE_ASK:
        fill_ask(w, p, &message->body.ask);
        break;
    case WIRE_VERDICT:
    case WIRE_SETTLE:
    case WIRE_SETTLED:
        fill_verdict(w, p, &message->body.verdict, message->type == WIRE_VERDICT);
        break;
    case WIRE_STATUS_TEXT:
        message->body.text = "{}";
        break;
    case WIRE_DECLARE_DEAD:
    case WIRE_DECLARED_DEAD: /* of whom does not matter: who says it has no right to */
        snprintf(message->body.death.incarnation, WIRE_INCARNATION_TEXT, "%s", w->r->nodes[take(in) % 2].incarnation);
        break;
    default:
        break;
    }
    unsigned why = take(in);
    if (why & 1 || message->type == WIRE_ERROR)
        message->reasons = p->reasons = core_reason(codes[(why >> 1) % 6], "this", "that", "it is so");
}

/* A link that is open between the two, or one of a stranger's. */
static core_link take_link(world *w, size_t to)
{
    unsigned which = take(&w->in);
    for (size_t i = w->r->link_count; !w->r->keyed && which & 4 && i-- > 0;) {
        const rig_link *link = &w->r->links[i];
        if (link->open && (link->from == to || link->to == to))
            return link->from == to ? link->out : link->in;
    }
    return STRANGER + 2 * (which % 4);
}

static void say(world *w)
{
    parts p = {.reasons = NULL};
    wire_message message = {.major = WIRE_MAJOR, .engine_id = take_engine(w)};
    size_t to = take(&w->in) & 1 ? D : P, size;
    void *data;
    core_link link = take_link(w, to);
    memcpy(message.sender, take_name(w), WIRE_INCARNATION_TEXT);
    if (take(&w->in) & 1)
        memcpy(message.receiver, w->r->nodes[to].incarnation, WIRE_INCARNATION_TEXT);
    fill(w, &p, &message);
    if (wire_encode(&message, &data, &size) == KVFERRY_OK) {
        for (unsigned changes = take(&w->in); changes > 250; changes--) {
            size_t at = (take(&w->in) * 8u + take(&w->in)) % size;
            ((uint8_t *)data)[at] = (uint8_t)take(&w->in);
        }
        core_received(w->r->nodes[to].core, link, w->r->keyed ? EVIL_KEY : "", NULL, data, size,
                      w->r->now);
        free(data);
    }
    kvferry_report_free(p.reasons);
    free(p.patched);
    rig_run(w->r);
}

/* --- what the honest ones do -------------------------------------------------------------------------------- */

static void call(world *w)
{
    rig *r = w->r;
    unsigned what = take(&w->in);
    const char *id = take_id(&w->in);
    const uint32_t block = 1 + take(&w->in) % 8;
    switch (what % 8) {
    case 0:
        rig_offer(r, P, id, block, 8, what & 8 ? KVFERRY_READY : KVFERRY_NOT_READY);
        break;
    case 1:
        rig_ask(r, D, id, P, block, 8);
        break;
    case 2:
        core_ready(r->nodes[P].core, id, r->now);
        break;
    case 3:
        core_abort(r->nodes[what & 8 ? P : D].core, what & 8 ? KVFERRY_SIDE_PREFILL : KVFERRY_SIDE_DECODE, id, r->now);
        break;
    case 4:
        r->nodes[P].hold = !r->nodes[P].hold;
        break;
    case 5:
        rig_finish(r, P, what & 8 ? KVFERRY_OK : KVFERRY_PEER_LOST);
        break;
    case 6:
        core_expect(r->nodes[P].core, id, r->now, r->report);
        break;
    default:
        rig_break(r, what & 8 ? P : D);
        break;
    }
    rig_run(r);
}

/* --- what holds ---------------------------------------------------------------------------------------------- */

/* No transfer has two ends, or is released twice, at one node; none is a part, which nobody allows. */
static void check_events(const rig_node *node)
{
    for (size_t i = 0; i < node->event_count; i++) {
        const kvferry_event *event = node->events[i];
        bool ends = event->kind == KVFERRY_EVENT_ENDED || event->kind == KVFERRY_EVENT_RELEASED;
        MUST(!event->part);
        for (size_t k = 0; ends && k < i; k++)
            MUST(node->events[k]->kind != event->kind || node->events[k]->side != event->side ||
                 strcmp(node->events[k]->transfer_id, event->transfer_id) != 0);
    }
}

static void check_memory(const world *w)
{
    const rig_node *d = &w->r->nodes[D], *p = &w->r->nodes[P];
    const size_t page = (size_t)RIG_HEADS * RIG_TOKENS * RIG_CELL;
    MUST(memcmp(w->before, p->memory, p->memory_size) == 0);
    for (size_t i = 0; w->r->keyed && i < d->memory_size; i++)
        MUST(d->memory[i] == 0 || i / page % RIG_BLOCKS < ASKED);
}

/* Whatever was said by another key, D gets from P what it asks for. */
static void check_service(world *w)
{
    rig *r = w->r;
    r->nodes[P].hold = false;
    rig_finish(r, P, KVFERRY_OK);
    rig_wait(r, 2 * RIG_LEASE_MS);
    MUST(core_idle(r->nodes[P].core) && core_idle(r->nodes[D].core));
    MUST(rig_offer(r, P, "good", 20, 8, KVFERRY_READY) == KVFERRY_OK);
    MUST(rig_ask(r, D, "good", P, 1, 8) == KVFERRY_OK);
    rig_wait(r, RIG_CONNECT_MS);
    rig_expect_done(r, D, "good");
    rig_expect_done(r, P, "good");
    MUST(rig_cells(r, D, 3, 1, 8, true) == 0);
}

static void begin(world *w, bool keyed, bool verify)
{
    rig *r = w->r = rig_create();
    r->keyed = keyed;
    r->lenient = true;
    r->options.max_peers = 256;
    r->options.log = NULL;
    r->options.verify = verify;
    r->options.checksums = &rig_checksums;
    rig_engine(r, "prefill", 1, 1);
    rig_engine(r, "decode", 1, 1);
    rig_engine(r, "evil", 1, 1);
    core_free(r->nodes[EVIL].core);
    r->nodes[EVIL].core = NULL;
    rig_cells(r, P, 3, 20, 8, false);
    w->before = malloc(r->nodes[P].memory_size);
    MUST(w->before);
    memcpy(w->before, r->nodes[P].memory, r->nodes[P].memory_size);
    for (uint32_t i = 0; i < 2; i++) {
        kvferry_layout *layout = rig_layout(&(rig_shape){.engine_id = "evil", .tp = i, .tps = i + 1, .pps = 1});
        MUST(kvferry_layout_write_msgpack(layout, &w->documents[i], &w->sizes[i]) == KVFERRY_OK);
        kvferry_layout_free(layout);
    }
    MUST(core_connect(r->nodes[D].core, "prefill", r->nodes[P].address, r->now, r->report) == KVFERRY_OK);
    rig_run(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world w = {.in = {data, size}};
    unsigned how = take(&w.in);
    begin(&w, how & 1, how & 2);
    for (unsigned i = 0; i < STEPS && w.in.size; i++) {
        unsigned step = take(&w.in);
        if (step < 160)
            say(&w);
        else if (step < 230)
            call(&w);
        else
            rig_wait(w.r, (step - 229) * 97);
        check_memory(&w);
    }
    for (size_t i = 0; i < NODES; i++)
        check_events(&w.r->nodes[i]);
    if (w.r->keyed)
        check_service(&w);
    rig_free(w.r);
    kvferry_free(w.documents[0]);
    kvferry_free(w.documents[1]);
    free(w.before);
    return 0;
}
