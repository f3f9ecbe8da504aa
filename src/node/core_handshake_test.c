/* SPDX-License-Identifier: Apache-2.0 */
/* Handshakes: what fits, what is refused, who comes late, who comes again. */
#include "node/core_internal.h"
#include "node/rig_test.h"

static void connect_to(rig *r, size_t d, size_t p)
{
    assert_int_equal(core_connect(r->nodes[d].core, r->nodes[p].shape.engine_id, r->nodes[p].address, r->now,
                                  r->report), KVFERRY_OK);
    rig_run(r);
}

static void expect_connected(rig *r, size_t d)
{
    rig_expect(r, d, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
}

static void expect_disconnected(rig *r, size_t d, const char *code)
{
    rig_expect(r, d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, code);
}

static uint64_t peers_of(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts.peers;
}

static uint64_t refused_at(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts.refused;
}

/* Every refusal of the node has this code. */
static void refused_for(rig *r, size_t index, const char *code)
{
    const node_codes *refusals = core_refusals(r->nodes[index].core);
    assert_int_equal(refusals->used, 1);
    assert_string_equal(refusals->of[0].code, code);
    assert_int_equal(refusals->of[0].count[0], refused_at(r, index));
}

static void an_engine_is_connected_by_any_of_its_workers(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 2, 2), d = rig_engine(r, "decode", 1, 1);
    connect_to(r, d, p + 3);
    expect_connected(r, d);
    assert_int_equal(peers_of(r, d), 4);
    assert_int_equal(peers_of(r, p + 2), 1);
    connect_to(r, d, p); /* again: it is */
    expect_connected(r, d);
    assert_int_equal(peers_of(r, d), 4);
    rig_free(r);
}

static void a_document_is_sent_once(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 4, 1);
    size_t before = r->sent[WIRE_DOCUMENTS];
    for (size_t i = d; i < d + 4; i++)
        connect_to(r, i, p);
    for (size_t i = d; i < d + 4; i++)
        expect_connected(r, i);
    /* p's to each of the four, and once the four documents of the decode engine to p */
    assert_int_equal(r->sent[WIRE_DOCUMENTS] - before, 5);
    rig_free(r);
}

static void caches_that_do_not_fit_are_refused_on_both_sides(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1);
    size_t d = rig_engine_of(r, &(rig_shape){.engine_id = "decode", .tps = 2, .pps = 1, .dtype = "float16"});
    connect_to(r, d, p);
    expect_disconnected(r, d, "dtype_differs");
    assert_int_equal(refused_at(r, d), 1);
    assert_int_equal(refused_at(r, p), 1);
    refused_for(r, d, "dtype_differs");
    refused_for(r, p, "dtype_differs");
    assert_int_equal(peers_of(r, p), 0);
    assert_int_equal(rig_ask(r, d + 1, "t", p, 1, 4), KVFERRY_OK);
    rig_expect_end(r, d + 1, "t", KVFERRY_OUTCOME_FAILED, "dtype_differs");
    rig_expect_released(r, d + 1, "t", KVFERRY_OUTCOME_FAILED, "dtype_differs");
    assert_int_equal(r->nodes[p].write_count, 0);
    rig_free(r);
}

/* Whether the caller wants to hear of it or not, and whatever else it has heard of. */
static void a_refused_offer_is_counted_by_its_own_code(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1);
    const kvferry_block_table table = {.group = "no such group"};
    const kvferry_offer offer = {.size = sizeof(offer), .transfer_id = "a", .tokens = 8, .tables = &table, .table_count = 1};
    assert_int_equal(core_offer(r->nodes[p].core, &offer, r->now, NULL), KVFERRY_REFUSED);
    base_report_add(r->report, "heard_before", NULL, NULL, NULL, "of something else");
    assert_int_equal(core_offer(r->nodes[p].core, &offer, r->now, r->report), KVFERRY_REFUSED);
    assert_int_equal(refused_at(r, p), 2);
    refused_for(r, p, "group_unknown");
    rig_free(r);
}

static void another_transfer_engine_is_refused(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1);
    r->options.engine = "ucx";
    size_t d = rig_engine(r, "decode", 1, 1);
    connect_to(r, d, p);
    expect_disconnected(r, d, "transfer_engine_differs");
    assert_int_equal(refused_at(r, p), 1);
    rig_free(r);
}

static void another_engine_at_the_place_is_named(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    assert_int_equal(core_connect(r->nodes[d].core, "other", r->nodes[p].address, r->now, r->report), KVFERRY_OK);
    expect_disconnected(r, d, "engine_id_differs");
    assert_int_equal(core_connect(r->nodes[d].core, "", r->nodes[p].address, r->now, r->report), KVFERRY_OK);
    expect_connected(r, d);
    kvferry_report_clear(r->report);
    assert_int_equal(core_connect(r->nodes[d].core, "other", "", r->now, r->report), KVFERRY_REFUSED);
    assert_true(rig_reports(r, "peer_unknown"));
    rig_free(r);
}

static void an_incomplete_engine_is_waited_for(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_worker(r, &(rig_shape){.engine_id = "prefill", .tps = 2, .pps = 1});
    size_t d = rig_engine(r, "decode", 1, 1);
    connect_to(r, d, p);
    rig_wait(r, 2000);
    rig_quiet(r, d);
    size_t second = rig_worker(r, &(rig_shape){.engine_id = "prefill", .tp = 1, .tps = 2, .pps = 1});
    assert_int_equal(core_set_leader(r->nodes[second].core, r->nodes[p].address, r->now, NULL), KVFERRY_OK);
    rig_wait(r, RIG_RETRY_MS + 1);
    expect_connected(r, d);
    assert_int_equal(peers_of(r, d), 2);
    rig_free(r);
}

static void a_handshake_that_cannot_end_ends_in_time(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_worker(r, &(rig_shape){.engine_id = "prefill", .tps = 2, .pps = 1});
    size_t d = rig_engine(r, "decode", 1, 1);
    connect_to(r, d, p);
    rig_wait(r, RIG_CONNECT_MS - 1);
    assert_int_equal(r->nodes[d].event_count, 0);
    rig_wait(r, 1);
    expect_disconnected(r, d, "connect_timeout");
    rig_kill(r, p);
    connect_to(r, d, p); /* nobody there */
    rig_wait(r, RIG_CONNECT_MS);
    expect_disconnected(r, d, "connect_timeout");
    rig_free(r);
}

static void a_decode_engine_that_is_not_complete_waits_too(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1);
    size_t d = rig_worker(r, &(rig_shape){.engine_id = "decode", .tps = 2, .pps = 1});
    connect_to(r, d, p);
    rig_wait(r, 1000);
    assert_int_equal(r->nodes[d].event_count, 0);
    size_t second = rig_worker(r, &(rig_shape){.engine_id = "decode", .tp = 1, .tps = 2, .pps = 1});
    assert_int_equal(core_set_leader(r->nodes[second].core, r->nodes[d].address, r->now, NULL), KVFERRY_OK);
    rig_run(r);
    expect_connected(r, d);
    rig_free(r);
}

static void siblings_that_do_not_belong_are_refused(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_worker(r, &(rig_shape){.engine_id = "prefill", .tps = 2, .pps = 1});
    size_t other = rig_worker(r, &(rig_shape){.engine_id = "other", .tp = 1, .tps = 2, .pps = 1});
    size_t wide = rig_worker(r, &(rig_shape){.engine_id = "prefill", .tp = 1, .tps = 4, .pps = 1});
    core_set_leader(r->nodes[other].core, r->nodes[p].address, r->now, NULL);
    core_set_leader(r->nodes[wide].core, r->nodes[p].address, r->now, NULL);
    rig_run(r);
    assert_int_equal(refused_at(r, p), 2);
    size_t astray = rig_worker(r, &(rig_shape){.engine_id = "prefill", .tp = 1, .tps = 2, .pps = 1});
    core_set_leader(r->nodes[astray].core, r->nodes[wide].address, r->now, NULL);
    rig_run(r);
    assert_int_equal(refused_at(r, wide), 2); /* what its leader said, and what it says itself */
    rig_free(r);
}

static void a_restarted_sibling_makes_another_roster(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 1, 1);
    connect_to(r, d, p);
    expect_connected(r, d);
    rig_kill(r, p + 1);
    rig_run(r);
    rig_birth(r, p + 1);
    core_set_leader(r->nodes[p + 1].core, r->nodes[p].address, r->now, NULL);
    rig_wait(r, 2 * RIG_RETRY_MS);
    expect_disconnected(r, d, "incarnation");
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_offer(r, p + 1, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    rig_wait(r, 10);
    rig_expect_done(r, d, "t");
    rig_free(r);
}

static void who_greets_with_a_new_roster_is_welcome_once_its_documents_are_there(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 2, 1);
    connect_to(r, d, p);
    expect_connected(r, d);
    rig_node *other = &r->nodes[d + 1];
    rig_kill(r, d + 1);
    rig_run(r);
    other->shape.no_streams = true;
    kvferry_layout_free(other->layout);
    other->layout = rig_layout(&other->shape);
    rig_birth(r, d + 1);
    core_set_leader(other->core, r->nodes[d].address, r->now, NULL);
    rig_run(r);
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    rig_expect_done(r, d, "t"); /* and no time has passed */
    rig_free(r);
}

/* One of two decode workers asks only one of two prefill workers, and does not see that the other was restarted. */
static void a_roster_that_changed_unseen_is_learned_and_asked_with_again(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 2, 1);
    connect_to(r, d, p);
    expect_connected(r, d);
    assert_int_equal(peers_of(r, d), 1);
    rig_kill(r, p + 1);
    rig_run(r);
    rig_birth(r, p + 1);
    core_set_leader(r->nodes[p + 1].core, r->nodes[p].address, r->now, NULL);
    rig_run(r);
    size_t asks = r->sent[WIRE_ASK];
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    rig_expect_done(r, d, "t");
    rig_expect_done(r, p, "t");
    assert_int_equal(r->sent[WIRE_ASK] - asks, 2);
    rig_free(r);
}

/* It is told so, and does not shake hands again and again until its time is over. */
static void who_is_not_reached_by_the_transfer_engine_is_refused(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    r->nodes[p].reaches_nobody = true;
    assert_int_equal(rig_offer(r, p, "a", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "a", p, 1, 8), KVFERRY_OK);
    rig_expect(r, d, KVFERRY_EVENT_ENDED, "a", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_expect(r, d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_expect_released(r, d, "a", KVFERRY_OUTCOME_FAILED, "peer_lost");
    size_t hellos = r->sent[WIRE_HELLO];
    assert_in_range(hellos, 1, 6);
    rig_wait(r, RIG_TRANSFER_MS);
    assert_int_equal(r->sent[WIRE_HELLO], hellos);
    assert_int_equal(peers_of(r, p), 0);
    assert_int_equal(peers_of(r, d), 0);
    r->nodes[p].reaches_nobody = false;
    assert_int_equal(rig_ask(r, d, "b", p, 1, 8), KVFERRY_OK);
    assert_int_equal(rig_offer(r, p, "b", 9, 8, KVFERRY_READY), KVFERRY_OK);
    rig_expect_done(r, d, "b");
    rig_free(r);
}

static void a_lost_leader_is_found_again(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 1, 1);
    rig_kill(r, p);
    rig_wait(r, 2000);
    rig_birth(r, p);
    rig_wait(r, 2 * RIG_SILENCE_MS);
    connect_to(r, d, p);
    rig_wait(r, RIG_CONNECT_MS);
    expect_connected(r, d);
    assert_int_equal(peers_of(r, d), 2);
    rig_free(r);
}

/* Two of five. */
static bool loses_many(rig *r, size_t from, size_t to, wire_type type)
{
    (void)from, (void)to, (void)type;
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (r->seed >> 33) % 5 < 2;
}

static kvferry_status ask_of(rig *r, size_t d, const char *id, const char *engine_id, const char *where, uint32_t first)
{
    rig_tables t;
    rig_fill_tables(&t, first, 8, false);
    const kvferry_ask ask = {.size = sizeof(kvferry_ask), .transfer_id = id, .engine_id = engine_id, .where = where,
                             .tokens = 8, .tables = t.tables, .table_count = t.count, .context = r};
    return core_ask(r->nodes[d].core, &ask, r->now, r->report);
}

/* Somebody is asked at a place where whoever is there is being met. */
static void a_named_engine_is_not_whoever_is_there(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    const char *where = r->nodes[p].address;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rig_offer(r, p, i ? "y" : "x", 1 + 2 * i, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(core_connect(r->nodes[d].core, "", where, r->now, r->report), KVFERRY_OK);
    assert_int_equal(ask_of(r, d, "x", "somebody-else", where, 9), KVFERRY_OK);
    assert_int_equal(ask_of(r, d, "y", "prefill", where, 11), KVFERRY_OK);
    rig_wait(r, RIG_RETRY_MS); /* three handshakes at once: not all are answered at once */
    rig_expect_end(r, d, "x", KVFERRY_OUTCOME_FAILED, "engine_id_differs");
    rig_expect_released(r, d, "x", KVFERRY_OUTCOME_FAILED, "engine_id_differs");
    rig_expect_done(r, d, "y");
    expect_connected(r, d);
    rig_free(r);
}

/* What is wrong with a question for whatever engine is there is not wrong with one for an engine by its name. */
static void a_named_ask_does_not_fail_with_an_unnamed_one(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    node_core *core = r->nodes[d].core;
    const char *where = "http://127.0.0.1:80", *addresses[] = {r->nodes[p].address};
    assert_int_equal(rig_offer(r, p, "x", 1, 8, KVFERRY_READY), KVFERRY_OK);
    core_effect effect;
    uint64_t unnamed = 0, named = 0;
    assert_int_equal(core_connect(core, "", where, r->now, NULL), KVFERRY_OK);
    assert_int_equal(ask_of(r, d, "x", "prefill", where, 9), KVFERRY_OK);
    while (core_next_effect(core, &effect))
        if (effect.kind == CORE_RESOLVE)
            *(*effect.engine_id ? &named : &unnamed) = effect.query;
    assert_true(unnamed && named);
    kvferry_report *several = core_reason("engine_ambiguous", "one engine", "two", "the engines there");
    core_resolved(core, unnamed, KVFERRY_REFUSED, "", NULL, 0, several, r->now);
    kvferry_report_free(several);
    expect_disconnected(r, d, "engine_ambiguous");
    core_resolved(core, named, KVFERRY_OK, "prefill", addresses, 1, NULL, r->now);
    rig_run(r);
    rig_expect_done(r, d, "x");
    rig_free(r);
}

static void lost_messages_are_made_good(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->loses = loses_many;
    r->options.connect_ns = 60000 * RIG_MS;
    r->options.silence_ns = 20000 * RIG_MS;
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 2, 1);
    for (size_t i = p; i < p + 2; i++)
        assert_int_equal(rig_offer(r, i, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    for (size_t i = d; i < d + 2; i++)
        assert_int_equal(rig_ask(r, i, "t", p, 1, 8), KVFERRY_OK);
    rig_wait(r, 19000);
    for (size_t i = p; i < d + 2; i++)
        rig_expect_done(r, i, "t");
    rig_free(r);
}

static bool loses_gets(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_GET;
}

/* Only those that shook hands get documents: D, given up while it fetches, shakes hands again. */
static void who_is_given_up_while_it_fetches_begins_anew(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    core_document *fetched = NULL;
    assert_int_equal(core_document_add(r->nodes[p].core, r->nodes[d].core->document->data,
                                       r->nodes[d].core->document->size, &fetched, NULL), KVFERRY_OK);
    r->loses = loses_gets; /* P has D's document, D has not P's */
    connect_to(r, d, p);
    assert_int_equal(peers_of(r, p), 1);
    core_target_lost(r->nodes[p].core, r->nodes[p].core->targets, "peer_lost", "for the test");
    assert_int_equal(peers_of(r, p), 0);
    size_t hellos = r->sent[WIRE_HELLO];
    r->loses = NULL;
    rig_wait(r, 3 * RIG_RETRY_MS);
    expect_connected(r, d);
    assert_int_equal(peers_of(r, p), 1);
    assert_in_range(r->sent[WIRE_HELLO], hellos + 1, SIZE_MAX);
    core_document_release(r->nodes[p].core, fetched);
    rig_free(r);
}

/* P gives D up, which hears nothing of that until it says something: then the next renewal counts. */
static void who_was_forgotten_learns_it_by_its_renewal(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    connect_to(r, d, p);
    expect_connected(r, d);
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    rig_wait(r, RIG_LEASE_MS - 2 * RIG_RETRY_MS);
    core_target_lost(r->nodes[p].core, r->nodes[p].core->targets, "peer_lost", "for the test");
    rig_run(r);
    assert_int_equal(peers_of(r, p), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(core_renew(r->nodes[d].core, "prefill", "t", r->now, NULL), KVFERRY_OK);
        rig_run(r);
    }
    assert_int_equal(peers_of(r, p), 1);
    rig_wait(r, RIG_LEASE_MS - 1);
    rig_quiet(r, p);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    rig_expect_done(r, d, "t");
    rig_expect_done(r, p, "t");
    rig_free(r);
}

static size_t gets_to_lose;

static bool loses_some_gets(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_GET && gets_to_lose && gets_to_lose--;
}

/* The leader was restarted and lacks its sibling's document, while the sibling knows the engine of before. */
static void a_get_between_siblings_is_repeated_like_any_other(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 2, 1);
    rig_kill(r, p);
    rig_run(r);
    rig_birth(r, p);
    gets_to_lose = 2;
    r->loses = loses_some_gets;
    rig_wait(r, RIG_RETRY_MS);
    assert_int_equal(gets_to_lose, 1);
    for (size_t i = 0; i < 2; i++) {
        assert_null(r->nodes[p].core->own);
        rig_wait(r, RIG_RETRY_MS);
    }
    assert_non_null(r->nodes[p].core->own);
    assert_string_equal(r->nodes[p + 1].core->own->wire.digest, r->nodes[p].core->own->wire.digest);
    size_t hellos = r->sent[WIRE_HELLO];
    rig_wait(r, RIG_RETRY_MS + 10 * RIG_SILENCE_MS); /* from now on only now and then */
    assert_in_range(r->sent[WIRE_HELLO], hellos + 19, hellos + 21);
    rig_free(r);
}

static void too_many_peers_are_refused(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.max_peers = 1;
    size_t p = rig_engine(r, "prefill", 1, 1);
    size_t a = rig_engine(r, "a", 1, 1), b = rig_engine(r, "b", 1, 1);
    connect_to(r, a, p);
    expect_connected(r, a);
    connect_to(r, b, p);
    expect_disconnected(r, b, "too_many_peers");
    rig_kill(r, a);
    rig_wait(r, 2 * RIG_SILENCE_MS);
    connect_to(r, b, p);
    expect_connected(r, b);
    rig_free(r);
}

static void a_refused_peer_is_logged_once_and_counted_always(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.log_level = KVFERRY_LOG_WARNING;
    size_t p = rig_engine(r, "prefill", 1, 1);
    r->options.log = NULL;
    size_t d = rig_engine_of(r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1, .dtype = "float16"});
    for (int i = 0; i < 3; i++) {
        connect_to(r, d, p);
        expect_disconnected(r, d, "dtype_differs");
    }
    assert_int_equal(refused_at(r, p), 3);
    assert_int_equal(r->log_lines, 1);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_is_connected_by_any_of_its_workers),
        cmocka_unit_test(a_document_is_sent_once),
        cmocka_unit_test(caches_that_do_not_fit_are_refused_on_both_sides),
        cmocka_unit_test(a_refused_offer_is_counted_by_its_own_code),
        cmocka_unit_test(another_transfer_engine_is_refused),
        cmocka_unit_test(another_engine_at_the_place_is_named),
        cmocka_unit_test(an_incomplete_engine_is_waited_for),
        cmocka_unit_test(a_handshake_that_cannot_end_ends_in_time),
        cmocka_unit_test(a_decode_engine_that_is_not_complete_waits_too),
        cmocka_unit_test(siblings_that_do_not_belong_are_refused),
        cmocka_unit_test(a_restarted_sibling_makes_another_roster),
        cmocka_unit_test(who_greets_with_a_new_roster_is_welcome_once_its_documents_are_there),
        cmocka_unit_test(a_roster_that_changed_unseen_is_learned_and_asked_with_again),
        cmocka_unit_test(who_is_not_reached_by_the_transfer_engine_is_refused),
        cmocka_unit_test(a_lost_leader_is_found_again),
        cmocka_unit_test(a_named_engine_is_not_whoever_is_there),
        cmocka_unit_test(a_named_ask_does_not_fail_with_an_unnamed_one),
        cmocka_unit_test(lost_messages_are_made_good),
        cmocka_unit_test(who_is_given_up_while_it_fetches_begins_anew),
        cmocka_unit_test(who_was_forgotten_learns_it_by_its_renewal),
        cmocka_unit_test(a_get_between_siblings_is_repeated_like_any_other),
        cmocka_unit_test(too_many_peers_are_refused),
        cmocka_unit_test(a_refused_peer_is_logged_once_and_counted_always),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
