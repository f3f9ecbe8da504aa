/* SPDX-License-Identifier: Apache-2.0 */
/* One who sends a core of the rig messages in good form that are not true, and hears its answers. */
#ifndef KVFERRY_NODE_LIAR_TEST_H
#define KVFERRY_NODE_LIAR_TEST_H

#include "node/core_internal.h"
#include "node/rig_test.h"

enum { STRANGER = 9000, TOKENS = 8 }; /* a link of nobody in the rig */

#define EVIL_KEY "00000000000000000000000000000000000000000000000000000000000bad00"
#define EVIL_NAME "eeeeeeeeeeeeeeee"
#define EVIL_ADDRESS "tcp://127.0.0.1:6666"

/* Who lies, and what it was answered last. */
typedef struct liar {
    rig *r;
    size_t at; /* to this node */
    core_link link;
    const char *key, *place, *engine_id, *name, *address;
    kvferry_layout *layout;
    void *document;
    size_t document_size;
    wire_member member;
    wire_roster roster;
    wire_type answer; /* WIRE_TYPES: none */
    wire_outcome outcome;
    char code[64];
    wire_death death; /* in a DECLARED_DEAD */
    size_t documents; /* in it, or that it asks for */
} liar;

static inline uint64_t ignored_at(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts.ignored;
}

static inline uint64_t malformed_at(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts.malformed;
}

static inline uint64_t refused_at(rig *r, size_t index, const char *code)
{
    const node_codes *refusals = core_refusals(r->nodes[index].core);
    for (size_t i = 0; i < refusals->used; i++)
        if (strcmp(refusals->of[i].code, code) == 0)
            return refusals->of[i].count[0];
    return 0;
}

static inline void hear(liar *l, const core_effect *effect)
{
    wire_message message;
    assert_int_equal(wire_decode(effect->data, effect->size, &message, NULL), KVFERRY_OK);
    l->answer = message.type;
    snprintf(l->code, sizeof(l->code), "%s", core_reasons_code(message.reasons, ""));
    if (message.type == WIRE_VERDICT)
        l->outcome = message.body.verdict.outcome;
    if (message.type == WIRE_DECLARED_DEAD)
        l->death = message.body.death;
    l->documents = message.type == WIRE_DOCUMENTS || message.type == WIRE_GET ? message.body.documents.count : 0;
    wire_message_end(&message);
}

/* Says it, and hears the last answer. */
static inline void tell(liar *l, wire_message message)
{
    void *data;
    size_t size;
    core_effect effect;
    rig_node *node = &l->r->nodes[l->at];
    message.major = WIRE_MAJOR;
    message.engine_id = l->engine_id;
    message.transfer_id = message.transfer_id ? message.transfer_id : "";
    snprintf(message.sender, sizeof(message.sender), "%s", l->name);
    assert_int_equal(wire_encode(&message, &data, &size), KVFERRY_OK);
    l->answer = WIRE_TYPES;
    l->code[0] = '\0';
    core_received(node->core, l->link, l->key, l->place, data, size, l->r->now);
    free(data);
    while (core_next_effect(node->core, &effect)) {
        if (effect.kind == CORE_SEND && effect.link == l->link)
            hear(l, &effect);
        else
            rig_do(l->r, l->at, &effect);
    }
    rig_run(l->r);
}

static inline void expect_answer(const liar *l, wire_type type, const char *code)
{
    assert_string_equal(l->code, code);
    assert_int_equal(l->answer, type);
}

/* One worker, which is all of its engine. */
static inline void set_roster(liar *l, const kvferry_worker *worker)
{
    l->member = (wire_member){.worker = *worker, .address = l->address};
    snprintf(l->member.incarnation, sizeof(l->member.incarnation), "%s", l->name);
    wire_digest(l->document, l->document_size, l->member.digest);
    l->roster = (wire_roster){.engine_id = l->engine_id, .members = &l->member, .count = 1};
    wire_roster_digest(&l->roster, l->roster.digest);
}

static inline liar make_liar(rig *r, size_t at, const char *engine_id)
{
    liar l = {.r = r, .at = at, .link = STRANGER, .engine_id = engine_id, .name = EVIL_NAME,
              .key = r->keyed ? EVIL_KEY : "",
              .address = r->keyed ? EVIL_ADDRESS "/" EVIL_KEY : EVIL_ADDRESS};
    l.layout = rig_layout(&(rig_shape){.engine_id = engine_id, .tps = 1, .pps = 1});
    assert_int_equal(kvferry_layout_write_msgpack(l.layout, &l.document, &l.document_size), KVFERRY_OK);
    return l;
}

static inline void end_liar(liar *l)
{
    kvferry_layout_free(l->layout);
    kvferry_free(l->document);
}

static inline wire_message hello_of(wire_type type, const wire_roster *roster)
{
    static const uint64_t binding = 0;
    wire_message message = {.type = type};
    message.body.hello = (wire_hello){.worker = roster->members[0].worker, .expects = "", .roster = *roster,
                                      .engine = "memory", .binding = &binding,
                                      .binding_size = sizeof(binding), .lease_ms = 1000};
    return message;
}

static inline void say_documents(liar *l, const void *document, size_t size)
{
    char digest[WIRE_DIGEST_TEXT];
    const char *digests[] = {digest};
    wire_digest(document, size, digest);
    wire_message message = {.type = WIRE_DOCUMENTS};
    message.body.documents = (wire_documents){digests, &document, &size, 1};
    tell(l, message);
}

/* Shakes hands as a worker of an engine of its own. */
static inline void shake_hands(liar *l)
{
    set_roster(l, kvferry_layout_worker(l->layout));
    tell(l, hello_of(WIRE_HELLO, &l->roster));
    expect_answer(l, WIRE_GET, "");
    say_documents(l, l->document, l->document_size);
    expect_answer(l, WIRE_WELCOME, "");
}

static inline wire_message ask_of(const liar *l, const char *id, const kvferry_block_table *tables, size_t count)
{
    wire_message message = {.type = WIRE_ASK, .transfer_id = id};
    wire_ask *ask = &message.body.ask;
    const node_core *core = l->r->nodes[l->at].core;
    snprintf(ask->attempt, sizeof(ask->attempt), "%016zx", (size_t)(uintptr_t)id & 0xffffff);
    memcpy(ask->source_roster, core->own->wire.digest, sizeof(ask->source_roster));
    memcpy(ask->target_roster, l->roster.digest, sizeof(ask->target_roster));
    ask->tokens = TOKENS;
    ask->timeout_ms = 5000;
    ask->tables = (kvferry_block_table *)(uintptr_t)tables;
    ask->table_count = count;
    return message;
}

static inline wire_message settle_of(wire_type type, const char *id)
{
    wire_message message = {.type = type, .transfer_id = id};
    message.body.verdict = (wire_verdict){.attempt = "1234567812345678", .outcome = WIRE_ABORTED};
    return message;
}

static inline void connect_to(rig *r, size_t d, size_t p)
{
    assert_int_equal(core_connect(r->nodes[d].core, r->nodes[p].shape.engine_id, r->nodes[p].address, r->now,
                                  r->report), KVFERRY_OK);
    rig_run(r);
}

static inline void expect_connected(rig *r, size_t d)
{
    rig_expect(r, d, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
}

/* A transfer between honest ones, which works whatever was said. */
static inline void move(rig *r, size_t p, size_t d, const char *id)
{
    rig_cells(r, p, 3, 20, TOKENS, false);
    assert_int_equal(rig_offer(r, p, id, 20, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, id, p, 24, TOKENS), KVFERRY_OK);
    rig_expect_done(r, d, id);
    rig_expect_done(r, p, id);
    assert_int_equal(rig_cells(r, d, 3, 24, TOKENS, true), 0);
}

typedef struct pair {
    rig *r;
    size_t p, d;
    liar l;
} pair;

/* A prefill and a decode worker that are connected, and one who lies to the first. */
static inline pair begin(bool keyed, const char *engine_id)
{
    pair t = {.r = rig_create()};
    t.r->keyed = keyed;
    t.p = rig_engine(t.r, "prefill", 1, 1);
    t.d = rig_engine(t.r, "decode", 1, 1);
    connect_to(t.r, t.d, t.p);
    expect_connected(t.r, t.d);
    t.l = make_liar(t.r, t.p, engine_id);
    return t;
}

static inline void end(pair *t)
{
    move(t->r, t->p, t->d, "good");
    end_liar(&t->l);
    rig_free(t->r);
}

/* The link that one node has opened to another. */
static inline core_link link_between(rig *r, size_t from, size_t to)
{
    for (size_t i = r->link_count; i-- > 0;)
        if (r->links[i].open && r->links[i].from == from && r->links[i].to == to)
            return r->links[i].out;
    fail_msg("no link");
    return 0;
}

#endif
