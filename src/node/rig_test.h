/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few cores that pass each other's messages, at once and in order, over a clock that the test moves. Writes copy
 * bytes between the nodes' memories, at once or when the test says so.
 */
#ifndef KVFERRY_NODE_RIG_TEST_H
#define KVFERRY_NODE_RIG_TEST_H

#include <stdio.h>
#include <string.h>

#include "node/core.h"
#include "node/rig_layout_test.h"
#include "node/rig_version_test.h"
#include "test.h"

enum {
    RIG_NODES = 20,
    RIG_LINKS = 4096,
    RIG_WRITES = 64,
    RIG_EVENTS = 4096,
    RIG_LEASE_MS = 60000, /* and the other times, in the order of node.h */
    RIG_TRANSFER_MS = 20000,
    RIG_CONNECT_MS = 5000,
    RIG_EARLY_MS = 2000,
    RIG_RETRY_MS = 500,
    RIG_SILENCE_MS = 3000,
    RIG_LINGER_MS = 400,
    RIG_REMEMBER_MS = 100000
};

#define RIG_MS UINT64_C(1000000)

typedef struct rig_write {
    bool used, canceled;
    uint64_t write, peer;
    const kvferry_copy *copies;
    size_t count;
} rig_write;

typedef struct rig_node {
    node_core *core;    /* NULL: dead, or never born */
    kvferry_layout *layout;
    rig_shape shape;
    char address[128], incarnation[17], engine[16], key[65]; /* key: "" without keys */
    uint8_t *memory;
    size_t memory_size;
    unsigned life;      /* counts restarts */
    bool cut;           /* messages to and from it are lost, links to it do not end */
    bool hold;          /* its writes wait for rig_finish */
    bool deaf_cancel;   /* its writes do not end when canceled */
    bool damaged;       /* its checksums are wrong */
    size_t sums, sum_slices; /* checksums that are being made; all slices of them */
    bool reaches_nobody; /* its transfer engine */
    const unsigned char *version; /* major and minor, that it and others speak to each other; NULL: this one's */
    rig_write writes[RIG_WRITES];
    size_t write_count; /* all that were begun */
    uint64_t peers[256]; /* node by the core's peer number */
    kvferry_event *events[RIG_EVENTS];
    size_t event_count;
} rig_node;

typedef struct rig_link {
    size_t from, to;
    unsigned from_life, to_life;
    core_link out, in;
    bool open;
} rig_link;

typedef struct rig_letter {
    struct rig_letter *next;
    size_t to, from;
    unsigned life;
    core_link link;
    bool refused, lost;
    void *data;
    size_t size;
} rig_letter;

typedef struct rig {
    rig_node nodes[RIG_NODES];
    size_t count;
    rig_link links[RIG_LINKS];
    size_t link_count;
    rig_letter *first, *last;
    uint64_t now, seed;
    core_link next_in;
    /* Whether a message is lost; NULL: none. */
    bool (*loses)(struct rig *rig, size_t from, size_t to, wire_type type);
    bool doubles;             /* every message arrives twice */
    bool lenient;             /* transfer engines refuse wrong bindings, and copies that leave a target */
    bool keyed;               /* nodes that are made from now on have keys */
    void (*own)(bool own);    /* told where the rig allocates, and no core; NULL: nobody asks */
    unsigned own_depth;
    size_t sent[WIRE_TYPES];  /* messages that were delivered */
    size_t log_lines;
    char last_line[1024];
    core_options options;     /* of nodes that are made from now on */
    kvferry_report *report;   /* of the last call */
} rig;

/* --- life ----------------------------------------------------------------------------------------------- */

static inline void rig_log(void *context, kvferry_log_level level, const char *line)
{
    rig *r = context;
    (void)level;
    r->log_lines++;
    snprintf(r->last_line, sizeof(r->last_line), "%s", line);
}

static inline rig *rig_create(void)
{
    rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    assert_int_equal(kvferry_report_create(&r->report), KVFERRY_OK);
    r->now = 1000 * RIG_MS;
    r->seed = 1;
    r->next_in = 2;
    r->options = (core_options){.lease_ns = RIG_LEASE_MS * RIG_MS,
                                .transfer_ns = RIG_TRANSFER_MS * RIG_MS,
                                .connect_ns = RIG_CONNECT_MS * RIG_MS,
                                .early_ns = RIG_EARLY_MS * RIG_MS,
                                .retry_ns = RIG_RETRY_MS * RIG_MS,
                                .silence_ns = RIG_SILENCE_MS * RIG_MS,
                                .linger_ns = RIG_LINGER_MS * RIG_MS,
                                .remember_ns = RIG_REMEMBER_MS * RIG_MS,
                                .max_transfers = 64,
                                .max_peers = 32,
                                .max_peer_copies = 1 << 20,
                                .max_message_bytes = 16 << 20,
                                .engine = "memory",
                                .log = rig_log,
                                .log_level = KVFERRY_LOG_DEBUG};
    return r;
}

static inline void rig_birth(rig *r, size_t index)
{
    rig_node *node = &r->nodes[index];
    core_options options = r->options;
    snprintf(node->incarnation, sizeof(node->incarnation), "%08x%08x", (unsigned)index + 1, ++node->life);
    if (r->keyed && !*node->key)
        snprintf(node->key, sizeof(node->key), "%064zx", 0xace0 + index);
    char host[40];
    int length = snprintf(host, sizeof(host), "tcp://127.0.0.1:%u%s", 7000 + (unsigned)index, *node->key ? "/" : "");
    memcpy(node->address, host, sizeof(host));
    memcpy(node->address + length, node->key, sizeof(node->key));
    options.address = node->address;
    options.incarnation = node->incarnation;
    options.seed = r->seed++;
    uint64_t binding = index;
    options.binding = &binding;
    options.binding_size = sizeof(binding);
    options.log_context = r;
    options.checksums_context = node;
    assert_int_equal(core_create(&options, node->layout, r->now, &node->core, r->report), KVFERRY_OK);
}

static inline size_t rig_worker(rig *r, const rig_shape *shape)
{
    size_t index = r->count++;
    assert_in_range(index, 0, RIG_NODES - 1);
    rig_node *node = &r->nodes[index];
    node->shape = *shape;
    node->layout = rig_layout(shape);
    node->memory_size = kvferry_layout_segment_count(node->layout)
                            ? kvferry_layout_segment(node->layout, 0)->bytes
                            : 1;
    node->memory = calloc(1, node->memory_size);
    assert_non_null(node->memory);
    rig_birth(r, index);
    return index;
}

static inline void rig_run(rig *r);

/* All workers of an engine, in (pp, tp) order, that know of each other; the first one's index. */
static inline size_t rig_engine_of(rig *r, const rig_shape *like)
{
    size_t first = r->count;
    for (uint32_t pp = 0; pp < like->pps; pp++) {
        for (uint32_t tp = 0; tp < like->tps; tp++) {
            rig_shape shape = *like;
            shape.tp = tp;
            shape.pp = pp;
            size_t index = rig_worker(r, &shape);
            if (index != first)
                assert_int_equal(core_set_leader(r->nodes[index].core, r->nodes[first].address, r->now,
                                                 r->report), KVFERRY_OK);
        }
    }
    rig_run(r);
    return first;
}

static inline size_t rig_engine(rig *r, const char *engine_id, uint32_t tp, uint32_t pp)
{
    return rig_engine_of(r, &(rig_shape){.engine_id = engine_id, .tps = tp, .pps = pp});
}

static inline void rig_free(rig *r)
{
    for (size_t i = 0; i < r->count; i++) {
        core_free(r->nodes[i].core);
        kvferry_layout_free(r->nodes[i].layout);
        free(r->nodes[i].memory);
        for (size_t k = 0; k < r->nodes[i].event_count; k++)
            kvferry_event_free(r->nodes[i].events[k]);
    }
    while (r->first) {
        rig_letter *letter = r->first;
        r->first = letter->next;
        free(letter->data);
        free(letter);
    }
    kvferry_report_free(r->report);
    free(r);
}

/* --- the post --------------------------------------------------------------------------------------------- */

static inline void rig_enter(rig *r)
{
    if (!r->own_depth++ && r->own)
        r->own(true);
}

static inline void rig_leave(rig *r)
{
    if (!--r->own_depth && r->own)
        r->own(false);
}

static inline void rig_post(rig *r, rig_letter letter)
{
    rig_enter(r);
    rig_letter *made = malloc(sizeof(*made));
    rig_leave(r);
    assert_non_null(made);
    *made = letter;
    made->next = NULL;
    if (r->last)
        r->last->next = made;
    else
        r->first = made;
    r->last = made;
}

static inline size_t rig_at(rig *r, const char *address)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->nodes[i].address, address) == 0)
            return i;
    return SIZE_MAX;
}

static inline void rig_open(rig *r, size_t from, const core_effect *effect)
{
    size_t to = rig_at(r, effect->address);
    if (to == SIZE_MAX || !r->nodes[to].core) {
        rig_post(r, (rig_letter){.to = from, .from = to, .life = r->nodes[from].life,
                                 .link = effect->link, .refused = true});
        return;
    }
    assert_in_range(r->link_count, 0, RIG_LINKS - 1);
    r->links[r->link_count++] = (rig_link){from, to, r->nodes[from].life, r->nodes[to].life,
                                           effect->link, r->next_in, true};
    r->next_in += 2;
}

static inline const unsigned char *rig_version(const rig *r, size_t from, size_t to)
{
    const unsigned char *odd = r->nodes[from].version;
    return from == to ? NULL : odd ? odd : r->nodes[to].version;
}

static inline void rig_deliver(rig *r, size_t from, const core_effect *effect)
{
    for (size_t i = 0; i < r->link_count; i++) {
        rig_link *link = &r->links[i];
        bool out = link->from == from && link->from_life == r->nodes[from].life &&
                   link->out == effect->link;
        bool in = link->to == from && link->to_life == r->nodes[from].life && link->in == effect->link;
        if (!link->open || (!out && !in))
            continue;
        wire_message message;
        assert_int_equal(wire_decode(effect->data, effect->size, &message, NULL), KVFERRY_OK);
        wire_type type = message.type;
        wire_message_end(&message);
        size_t to = out ? link->to : link->from;
        if (r->nodes[from].cut || r->nodes[to].cut || (r->loses && r->loses(r, from, to, type)))
            return;
        for (int copy = 0; copy < (r->doubles ? 2 : 1); copy++) {
            r->sent[type]++;
            size_t size = effect->size;
            void *data = rig_in_version(rig_version(r, from, to), effect->data, &size);
            rig_post(r, (rig_letter){.to = to, .from = from, .life = out ? link->to_life : link->from_life,
                                     .link = out ? link->in : link->out, .data = data,
                                     .size = size});
        }
        return;
    }
}

static inline void rig_send(rig *r, size_t from, const core_effect *effect)
{
    rig_enter(r);
    rig_deliver(r, from, effect);
    rig_leave(r);
}

static inline void rig_land(rig *r, size_t from, const rig_write *write)
{
    rig_node *source = &r->nodes[from], *target = &r->nodes[source->peers[write->peer]];
    for (size_t i = 0; i < write->count; i++) {
        const kvferry_copy *copy = &write->copies[i];
        assert_in_range(copy->source_offset + copy->bytes, 0, source->memory_size);
        assert_in_range(copy->target_offset + copy->bytes, 0, target->memory_size);
        memcpy(target->memory + copy->target_offset, source->memory + copy->source_offset, copy->bytes);
    }
}

/* Ends the node's writes that wait: lands them if they are well. */
static inline void rig_finish(rig *r, size_t index, kvferry_status status)
{
    rig_node *node = &r->nodes[index];
    for (size_t i = 0; i < RIG_WRITES; i++) {
        rig_write write = node->writes[i];
        if (!write.used)
            continue;
        node->writes[i].used = false;
        if (status == KVFERRY_OK)
            rig_land(r, index, &write);
        core_write_ended(node->core, write.write, status, "", r->now);
    }
}

/* Whether all of it is in the target's memory. */
static inline bool rig_fits(rig *r, size_t from, const rig_write *write)
{
    const rig_node *target = &r->nodes[r->nodes[from].peers[write->peer]];
    for (size_t i = 0; i < write->count; i++)
        if (write->copies[i].target_offset + write->copies[i].bytes > target->memory_size)
            return false;
    return true;
}

static inline void rig_begin_write(rig *r, size_t index, const core_effect *effect)
{
    rig_node *node = &r->nodes[index];
    rig_write write = {true, false, effect->write, effect->peer, effect->copies, effect->count};
    node->write_count++;
    if (r->lenient && !rig_fits(r, index, &write)) {
        core_write_ended(node->core, write.write, KVFERRY_REFUSED, "", r->now);
        return;
    }
    if (!node->hold) {
        rig_land(r, index, &write);
        core_write_ended(node->core, write.write, KVFERRY_OK, "", r->now);
        return;
    }
    for (size_t i = 0; i < RIG_WRITES; i++) {
        if (!node->writes[i].used) {
            node->writes[i] = write;
            return;
        }
    }
    fail_msg("too many writes");
}

static inline void rig_end_writes(rig *r, size_t index, uint64_t write, uint64_t peer, kvferry_status status)
{
    rig_node *node = &r->nodes[index];
    for (size_t i = 0; i < RIG_WRITES; i++) {
        rig_write *each = &node->writes[i];
        if (!each->used || (each->write != write && each->peer != peer))
            continue;
        each->canceled = true;
        if (node->deaf_cancel && write)
            continue;
        each->used = false;
        core_write_ended(node->core, each->write, status, "", r->now);
    }
}

static inline void rig_close(rig *r, size_t index, core_link number)
{
    for (size_t i = 0; i < r->link_count; i++) {
        rig_link *link = &r->links[i];
        bool out = link->from == index && link->from_life == r->nodes[index].life && link->out == number;
        bool in = link->to == index && link->to_life == r->nodes[index].life && link->in == number;
        if (!link->open || (!out && !in))
            continue;
        if (in) { /* what comes over the connection from now on comes by another link */
            link->in = r->next_in;
            r->next_in += 2;
            continue;
        }
        link->open = false;
        if (!r->nodes[index].cut && !r->nodes[link->to].cut)
            rig_post(r, (rig_letter){.to = link->to, .from = index, .life = link->to_life, .link = link->in,
                                     .lost = true});
    }
}

static inline void rig_do(rig *r, size_t index, const core_effect *effect)
{
    rig_node *node = &r->nodes[index];
    switch (effect->kind) {
    case CORE_OPEN_LINK:
        rig_open(r, index, effect);
        break;
    case CORE_CLOSE_LINK:
        rig_close(r, index, effect->link);
        break;
    case CORE_SEND:
        rig_send(r, index, effect);
        break;
    case CORE_CONNECT_PEER:
        assert_in_range(effect->peer, 0, 255);
        node->peers[effect->peer] = RIG_NODES;
        if (effect->size == sizeof(uint64_t))
            memcpy(&node->peers[effect->peer], effect->data, sizeof(uint64_t));
        assert_true(r->lenient || node->peers[effect->peer] < r->count);
        if (node->reaches_nobody || node->peers[effect->peer] >= r->count)
            core_peer_refused(node->core, effect->peer, KVFERRY_UNSUPPORTED, NULL, r->now);
        break;
    case CORE_CLOSE_PEER:
        rig_end_writes(r, index, 0, effect->peer, KVFERRY_PEER_LOST);
        break;
    case CORE_WRITE:
        rig_begin_write(r, index, effect);
        break;
    case CORE_CANCEL_WRITE:
        rig_end_writes(r, index, effect->write, 0, KVFERRY_CANCELED);
        break;
    case CORE_RESOLVE:
        break; /* tests of it answer themselves */
    }
}

static inline void rig_effects(rig *r)
{
    core_effect effect;
    bool any = true;
    while (any) {
        any = false;
        for (size_t i = 0; i < r->count; i++) {
            while (r->nodes[i].core && core_next_effect(r->nodes[i].core, &effect)) {
                rig_do(r, i, &effect);
                any = true;
            }
        }
    }
    for (size_t i = 0; i < r->count; i++) {
        rig_node *node = &r->nodes[i];
        kvferry_event *event;
        while (node->core && (event = core_next_event(node->core)) != NULL) {
            assert_in_range(node->event_count, 0, RIG_EVENTS - 1);
            node->events[node->event_count++] = event;
        }
    }
}

/* Delivers the oldest letter. false: there is none. */
static inline bool rig_post_one(rig *r)
{
    rig_letter *letter = r->first;
    if (!letter)
        return false;
    r->first = letter->next;
    if (!r->first)
        r->last = NULL;
    rig_node *node = &r->nodes[letter->to];
    if (node->core && node->life == letter->life) {
        if (letter->refused)
            core_link_ended(node->core, letter->link, CORE_LINK_REFUSED, r->now);
        else if (letter->lost)
            core_link_ended(node->core, letter->link, CORE_LINK_LOST, r->now);
        else
            core_received(node->core, letter->link, r->nodes[letter->from].key, NULL, letter->data,
                          letter->size, r->now);
    }
    free(letter->data);
    free(letter);
    return true;
}

/* Until nothing moves but time. */
static inline void rig_run(rig *r)
{
    rig_effects(r);
    while (rig_post_one(r))
        rig_effects(r);
}

/* Moves the clock, and does what is due on the way. */
static inline void rig_wait(rig *r, uint64_t ms)
{
    uint64_t until = r->now + ms * RIG_MS;
    rig_run(r);
    for (;;) {
        uint64_t next = UINT64_MAX;
        for (size_t i = 0; i < r->count; i++)
            if (r->nodes[i].core)
                next = base_min(next, core_next_time(r->nodes[i].core));
        if (next > until)
            break;
        r->now = base_max(r->now, next);
        for (size_t i = 0; i < r->count; i++)
            if (r->nodes[i].core)
                core_tick(r->nodes[i].core, r->now);
        rig_run(r);
    }
    r->now = until;
}

/* --- what tests do to nodes ---------------------------------------------------------------------------------- */

/* kill -9: links to it break, its host answers that nobody listens. */
static inline void rig_kill(rig *r, size_t index)
{
    rig_node *node = &r->nodes[index];
    core_free(node->core);
    node->core = NULL;
    memset(node->writes, 0, sizeof(node->writes));
    for (size_t i = 0; i < r->link_count; i++) {
        rig_link *link = &r->links[i];
        if (!link->open || (link->from != index && link->to != index))
            continue;
        link->open = false;
        bool out = link->from == index;
        rig_post(r, (rig_letter){.to = out ? link->to : link->from, .from = index,
                                 .life = out ? link->to_life : link->from_life,
                                 .link = out ? link->in : link->out, .lost = true});
    }
}

/* The next event of the kind at the node must be this. NULL id: about an engine. */
static inline void rig_expect(rig *r, size_t index, kvferry_event_kind kind, const char *id,
                              kvferry_outcome outcome, const char *code)
{
    rig_node *node = &r->nodes[index];
    rig_run(r);
    for (size_t i = 0; i < node->event_count; i++) {
        kvferry_event *event = node->events[i];
        if (event->kind != kind || (id && strcmp(event->transfer_id, id) != 0))
            continue;
        if (strcmp(event->code, code) != 0)
            for (size_t k = 0; k < kvferry_report_count(event->report); k++)
                fprintf(stderr, "  %s\n", kvferry_report_get(event->report, k)->message);
        assert_string_equal(event->code, code);
        assert_int_equal(event->outcome, outcome);
        assert_int_equal(kvferry_report_count(event->report) != 0, *code != 0);
        kvferry_event_free(event);
        node->event_count--;
        memmove(&node->events[i], &node->events[i + 1], (node->event_count - i) * sizeof(event));
        return;
    }
    fail_msg("node %zu has no event of kind %d about %s", index, kind, id ? id : "an engine");
}

/* No event of a transfer waits at the node. */
static inline void rig_quiet(rig *r, size_t index)
{
    rig_run(r);
    for (size_t i = 0; i < r->nodes[index].event_count; i++)
        if (*r->nodes[index].events[i]->transfer_id)
            fail_msg("node %zu has an event of kind %d about %s, %s", index, r->nodes[index].events[i]->kind,
                     r->nodes[index].events[i]->transfer_id, r->nodes[index].events[i]->code);
}

static inline void rig_expect_done(rig *r, size_t index, const char *id)
{
    rig_expect(r, index, KVFERRY_EVENT_ENDED, id, KVFERRY_OUTCOME_DONE, "");
    rig_expect(r, index, KVFERRY_EVENT_RELEASED, id, KVFERRY_OUTCOME_DONE, "");
}

static inline void rig_expect_end(rig *r, size_t index, const char *id, kvferry_outcome outcome, const char *code)
{
    rig_expect(r, index, KVFERRY_EVENT_ENDED, id, outcome, code);
}

#include "node/rig_transfer_test.h"

#endif
