/* SPDX-License-Identifier: Apache-2.0 */
/* Who has most of what is bounded for all loses of its own, so that others find room. */
#include "node/liar_test.h"

enum { PLACES = 4, ALL_MEMBERS = 16 * WIRE_MAX_WORKERS, ALL_MESSAGES = 64 };

/* Workers of engines of their own, one after the other. */
typedef struct crowd {
    rig *r;
    size_t at;
    unsigned count;
    const char *key, *place;
} crowd;

static void name_one(liar *l, unsigned nth, char name[WIRE_INCARNATION_TEXT], char address[128])
{
    snprintf(name, WIRE_INCARNATION_TEXT, "eeee%012x", nth);
    snprintf(address, 128, "tcp://127.0.0.1:%u%s%s", 20000 + nth, *l->key ? "/" : "", l->key);
    l->name = name;
    l->address = address;
    l->link = STRANGER + 2 * nth;
}

/* The answer to its hello, and to its document if that is asked for. `asks`: for what nobody offers, and leaves. */
static const char *comes(crowd *c, bool asks)
{
    static char code[64];
    char engine[16], name[WIRE_INCARNATION_TEXT], address[128], attempt[WIRE_INCARNATION_TEXT];
    snprintf(engine, sizeof(engine), "evil-%u", ++c->count);
    snprintf(attempt, sizeof(attempt), "%016x", c->count);
    liar l = make_liar(c->r, c->at, engine);
    l.key = c->key;
    l.place = c->place;
    name_one(&l, c->count, name, address);
    set_roster(&l, kvferry_layout_worker(l.layout));
    tell(&l, hello_of(WIRE_HELLO, &l.roster));
    if (l.answer == WIRE_GET)
        say_documents(&l, l.document, l.document_size);
    snprintf(code, sizeof(code), "%s", l.code);
    if (asks && l.answer == WIRE_WELCOME && !*l.code) {
        wire_message ask = ask_of(&l, attempt, NULL, 0);
        memcpy(ask.body.ask.attempt, attempt, sizeof(attempt));
        tell(&l, ask);
        expect_answer(&l, WIRE_VERDICT, "");
        tell(&l, (wire_message){.type = WIRE_BYE});
    }
    end_liar(&l);
    return code;
}

static const char *one_comes(crowd *c) { return comes(c, false); }

static size_t targets_of(const crowd *c, const char *key)
{
    size_t count = 0;
    for (core_target *target = c->r->nodes[c->at].core->targets; target; target = target->hh.next)
        count += strcmp(target->key, key) == 0;
    return count;
}

static crowd begin_crowd(bool keyed, uint32_t max_peers)
{
    crowd c = {.r = rig_create(), .key = keyed ? EVIL_KEY : ""};
    c.r->keyed = keyed;
    c.r->options.max_peers = max_peers;
    c.at = rig_engine(c.r, "prefill", 1, 1);
    return c;
}

static size_t honest_one(crowd *c, const char *engine_id)
{
    size_t d = rig_engine(c->r, engine_id, 1, 1);
    connect_to(c->r, d, c->at);
    return d;
}

static void one_key_that_takes_all_places_leaves_room_for_others(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, PLACES);
    for (size_t i = 0; i < PLACES; i++)
        assert_string_equal(one_comes(&c), "");
    assert_string_equal(one_comes(&c), "too_many_peers");
    assert_int_equal(targets_of(&c, EVIL_KEY), PLACES);
    size_t a = honest_one(&c, "a");
    expect_connected(c.r, a);
    size_t b = honest_one(&c, "b");
    expect_connected(c.r, b);
    assert_int_equal(targets_of(&c, EVIL_KEY), 2);
    assert_int_equal(refused_at(c.r, c.at, "too_many_peers"), 3);
    assert_string_equal(one_comes(&c), "too_many_peers"); /* and takes none of them back */
    move(c.r, c.at, a, "of a");
    move(c.r, c.at, b, "of b");
    rig_free(c.r);
}

/* The others wait longer, or have not come as far. */
static void who_is_asking_goes_last(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, 2);
    size_t a = rig_engine(c.r, "a", 1, 1);
    c.key = c.r->nodes[a].key;
    connect_to(c.r, a, c.at);
    c.r->nodes[c.at].hold = true;
    assert_int_equal(rig_offer(c.r, c.at, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(c.r, a, "t", c.at, 1, TOKENS), KVFERRY_OK);
    assert_string_equal(one_comes(&c), "");
    expect_connected(c.r, honest_one(&c, "b"));
    rig_finish(c.r, c.at, KVFERRY_OK);
    rig_expect_done(c.r, a, "t");
    rig_free(c.r);
}

static void all_may_have_one_key(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, PLACES);
    for (size_t i = 0; i < PLACES; i++)
        assert_string_equal(one_comes(&c), "");
    for (size_t i = 0; i < PLACES; i++)
        assert_string_equal(one_comes(&c), "too_many_peers");
    assert_int_equal(targets_of(&c, EVIL_KEY), PLACES);
    rig_free(c.r);
}

static void without_keys_a_host_has_a_share(void **state)
{
    (void)state;
    crowd c = begin_crowd(false, PLACES);
    c.place = "192.0.2.1";
    for (size_t i = 0; i < PLACES; i++)
        assert_string_equal(one_comes(&c), "");
    assert_string_equal(one_comes(&c), "too_many_peers");
    c.place = "192.0.2.2";
    assert_string_equal(one_comes(&c), "");
    assert_string_equal(one_comes(&c), "");
    assert_string_equal(one_comes(&c), "too_many_peers");
    rig_free(c.r);
}

/* A place that the program needs itself, for an engine that it asks. */
static void workers_that_the_node_asks_find_room(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, PLACES);
    size_t source = rig_engine(c.r, "source", 1, 1);
    for (size_t i = 0; i < PLACES; i++)
        assert_string_equal(one_comes(&c), "");
    connect_to(c.r, c.at, source);
    expect_connected(c.r, c.at);
    assert_int_equal(targets_of(&c, EVIL_KEY), PLACES - 1);
    rig_free(c.r);
}

/* Says hello in a roster of many, of which only the first one has a document. */
static const char *great_roster_comes(crowd *c, uint32_t size)
{
    static char code[64];
    char engine[16], name[WIRE_INCARNATION_TEXT], address[128];
    snprintf(engine, sizeof(engine), "evil-%u", ++c->count);
    liar l = make_liar(c->r, c->at, engine);
    l.key = c->key;
    name_one(&l, c->count, name, address);
    wire_member *members = calloc(size, sizeof(*members));
    assert_non_null(members);
    for (uint32_t i = 0; i < size; i++) {
        members[i] = (wire_member){.worker = {0, 1, 0, 1, i, size}, .address = address};
        snprintf(members[i].incarnation, sizeof(members[i].incarnation), "eeee%04x%08x", c->count, i);
        snprintf(members[i].digest, sizeof(members[i].digest), "%016x%016x", c->count, i);
    }
    memcpy(members[0].incarnation, name, WIRE_INCARNATION_TEXT);
    l.roster = (wire_roster){.engine_id = engine, .members = members, .count = size};
    wire_roster_digest(&l.roster, l.roster.digest);
    tell(&l, hello_of(WIRE_HELLO, &l.roster));
    snprintf(code, sizeof(code), "%s", l.code);
    free(members);
    end_liar(&l);
    return code;
}

static void one_key_with_great_rosters_leaves_room_for_others(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, 32);
    node_core *core = c.r->nodes[c.at].core;
    size_t others = ALL_MEMBERS - 100 - core->roster_members; /* as if that were known already */
    core->roster_members += others;
    assert_string_equal(great_roster_comes(&c, 50), "");
    assert_string_equal(great_roster_comes(&c, 50), "");
    assert_string_equal(great_roster_comes(&c, 1), "too_many_workers");
    size_t a = honest_one(&c, "a");
    expect_connected(c.r, a);
    assert_int_equal(targets_of(&c, EVIL_KEY), 1);
    assert_int_equal(core->roster_members, ALL_MEMBERS - 50 + 1);
    move(c.r, c.at, a, "good");
    core->roster_members -= others;
    rig_free(c.r);
}

/* What is refused after all costs nobody anything. */
static void a_roster_for_which_there_is_no_room_takes_none(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, 32);
    node_core *core = c.r->nodes[c.at].core;
    size_t a = honest_one(&c, "a");
    size_t others = ALL_MEMBERS - core->roster_members;
    core->roster_members += others;
    for (uint32_t i = 1; i < 4; i++)
        assert_string_equal(great_roster_comes(&c, i), "too_many_workers");
    assert_int_equal(core->roster_members, ALL_MEMBERS);
    assert_int_equal(targets_of(&c, EVIL_KEY), 0);
    expect_connected(c.r, a);
    move(c.r, c.at, a, "good");
    core->roster_members -= others;
    rig_free(c.r);
}

static void one_key_with_many_documents_leaves_room_for_others(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, 32);
    node_core *core = c.r->nodes[c.at].core;
    uint64_t bytes = core->document_bytes;
    assert_string_equal(one_comes(&c), "");
    uint64_t size = core->document_bytes - bytes;
    uint64_t others = ALL_MESSAGES * core->options.max_message_bytes - core->document_bytes - 2 * size - size / 2;
    core->document_bytes += others;
    assert_string_equal(one_comes(&c), "");
    assert_string_equal(one_comes(&c), "");
    one_comes(&c);
    assert_int_equal(refused_at(c.r, c.at, "too_many_documents"), 1);
    size_t a = honest_one(&c, "a");
    rig_wait(c.r, 2 * RIG_RETRY_MS);
    expect_connected(c.r, a);
    assert_in_range(core->document_bytes, 0, ALL_MESSAGES * core->options.max_message_bytes);
    move(c.r, c.at, a, "good");
    core->document_bytes -= others;
    rig_free(c.r);
}

/* As if so much were known of others that there is room for `left` bytes of documents. */
static uint64_t leave_bytes(node_core *core, uint64_t left)
{
    uint64_t others = ALL_MESSAGES * core->options.max_message_bytes - core->document_bytes - left;
    core->document_bytes += others;
    return others;
}

/* Of engines that ask for what nobody offers and go, rosters and documents stay for a while. */
static void what_asks_keep_of_who_is_gone_is_its_own(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, 32);
    node_core *core = c.r->nodes[c.at].core;
    size_t a = honest_one(&c, "an-honest-decode-engine-with-a-long-name");
    expect_connected(c.r, a);
    c.r->nodes[c.at].hold = true;
    assert_int_equal(rig_offer(c.r, c.at, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(c.r, a, "t", c.at, 1, TOKENS), KVFERRY_OK);
    uint64_t before = core->document_bytes;
    assert_string_equal(comes(&c, true), "");
    uint64_t one = core->document_bytes - before, others = leave_bytes(core, 4 * one);
    for (int i = 0; i < 4; i++)
        assert_string_equal(comes(&c, true), "");
    assert_int_equal(targets_of(&c, EVIL_KEY), 0);
    for (int i = 0; i < 4; i++)
        assert_string_equal(comes(&c, true), "too_many_documents");
    assert_int_equal(targets_of(&c, c.r->nodes[a].key), 1);
    size_t b = honest_one(&c, "another-honest-decode-engine-with-a-long-name");
    expect_connected(c.r, b);
    assert_int_equal(core->early_count, 3); /* of five */
    rig_finish(c.r, c.at, KVFERRY_OK);
    rig_expect_done(c.r, a, "t");
    core->document_bytes -= others;
    rig_free(c.r);
}

static void who_is_in_a_transfer_keeps_its_roster(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, 32);
    node_core *core = c.r->nodes[c.at].core;
    size_t a = honest_one(&c, "an-honest-decode-engine-with-a-long-name");
    expect_connected(c.r, a);
    c.key = c.r->nodes[a].key;
    c.r->nodes[c.at].hold = true;
    assert_int_equal(rig_offer(c.r, c.at, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(c.r, a, "t", c.at, 1, TOKENS), KVFERRY_OK);
    for (int i = 0; i < 3; i++)
        assert_string_equal(one_comes(&c), "");
    uint64_t others = leave_bytes(core, 0);
    c.key = EVIL_KEY;
    assert_string_equal(one_comes(&c), "");
    assert_string_equal(one_comes(&c), "");
    for (int i = 0; i < 4; i++)
        assert_string_equal(one_comes(&c), "too_many_documents");
    assert_int_equal(targets_of(&c, EVIL_KEY), 2);
    assert_int_equal(targets_of(&c, c.r->nodes[a].key), 2);
    rig_finish(c.r, c.at, KVFERRY_OK);
    rig_expect_done(c.r, a, "t");
    core->document_bytes -= others;
    rig_free(c.r);
}

static void who_would_not_fit_displaces_nobody(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, 32);
    node_core *core = c.r->nodes[c.at].core;
    size_t others = ALL_MEMBERS - 60 - core->roster_members;
    core->roster_members += others;
    assert_string_equal(great_roster_comes(&c, 30), "");
    assert_string_equal(great_roster_comes(&c, 30), "");
    c.key = "0000000000000000000000000000000000000000000000000000000000000bad";
    assert_string_equal(great_roster_comes(&c, 50), "too_many_workers");
    assert_int_equal(targets_of(&c, EVIL_KEY), 2);
    assert_string_equal(great_roster_comes(&c, 30), "");
    assert_int_equal(targets_of(&c, EVIL_KEY), 1);
    core->roster_members -= others;
    rig_free(c.r);
}

/* Of a key, whatever connection they come over. */
static void documents_over_another_link_are_of_their_key(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        crowd c = begin_crowd(true, 32);
        node_core *core = c.r->nodes[c.at].core;
        size_t a = honest_one(&c, "an-honest-decode-engine-with-a-long-name");
        expect_connected(c.r, a);
        assert_string_equal(one_comes(&c), "");
        uint64_t others = leave_bytes(core, 0);
        char name[WIRE_INCARNATION_TEXT], address[128];
        liar l = make_liar(c.r, c.at, "e2");
        name_one(&l, 77, name, address);
        set_roster(&l, kvferry_layout_worker(l.layout));
        tell(&l, hello_of(WIRE_HELLO, &l.roster));
        expect_answer(&l, WIRE_GET, "");
        l.link += other ? 1000 : 0; /* of nobody that said hello */
        say_documents(&l, l.document, l.document_size);
        expect_answer(&l, other ? WIRE_ERROR : WIRE_WELCOME, "too_many_documents");
        assert_int_equal(targets_of(&c, c.r->nodes[a].key), 1);
        end_liar(&l);
        core->document_bytes -= others;
        rig_free(c.r);
    }
}

/* One that was greeted by the first worker of its engine. */
static void a_worker_without_room_says_so(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->keyed = true;
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 1, 1);
    rig_wait(r, 2 * RIG_RETRY_MS);
    node_core *second = r->nodes[p + 1].core;
    uint64_t others = leave_bytes(second, 0);
    connect_to(r, d, p);
    rig_expect(r, d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, "too_many_documents");
    assert_int_equal(refused_at(r, p + 1, "too_many_documents"), 1);
    assert_null(second->targets);
    second->document_bytes -= others;
    rig_free(r);
}

/* Without keys a worker that is asked has the share of its host. */
static void a_host_that_is_asked_has_one_share(void **state)
{
    (void)state;
    crowd c = begin_crowd(false, PLACES);
    c.place = "127.0.0.1";
    size_t source = rig_engine(c.r, "source", 1, 1);
    for (size_t i = 0; i < PLACES; i++)
        assert_string_equal(one_comes(&c), "");
    connect_to(c.r, c.at, source);
    rig_expect(c.r, c.at, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, "too_many_peers");
    assert_int_equal(targets_of(&c, ""), PLACES);
    node_core *core = c.r->nodes[c.at].core;
    static const char *const same[][2] = {{"tcp://192.0.2.1:5", "192.0.2.1"}, {"tcp://[2001:DB8::1]:5", "2001:db8::1"}};
    for (size_t i = 0; i < 2; i++) {
        core_holder *holder = core_holder_get(core, core_share_who_at(core, same[i][0]));
        assert_ptr_equal(core_holder_get(core, same[i][1]), holder);
        core_holder_release(core, holder);
        core_holder_release(core, holder);
    }
    rig_free(c.r);
}

static void one_key_that_restarts_does_not_make_others_be_forgotten(void **state)
{
    (void)state;
    crowd c = begin_crowd(true, PLACES);
    size_t d = honest_one(&c, "decode");
    char before[WIRE_INCARNATION_TEXT];
    memcpy(before, c.r->nodes[d].incarnation, sizeof(before));
    rig_kill(c.r, d);
    rig_birth(c.r, d);
    connect_to(c.r, d, c.at);
    assert_true(core_replaced(c.r->nodes[c.at].core, before));
    liar l = make_liar(c.r, c.at, "evil");
    for (unsigned i = 1; i < 4 * PLACES; i++) {
        char name[WIRE_INCARNATION_TEXT], address[128];
        name_one(&l, i, name, address);
        set_roster(&l, kvferry_layout_worker(l.layout));
        tell(&l, hello_of(WIRE_HELLO, &l.roster));
        if (i == 1)
            say_documents(&l, l.document, l.document_size);
        expect_answer(&l, WIRE_WELCOME, "");
    }
    assert_true(core_replaced(c.r->nodes[c.at].core, before));
    assert_int_equal(HASH_COUNT(c.r->nodes[c.at].core->tombstones), PLACES);
    end_liar(&l);
    rig_free(c.r);
}

/* Who withholds all documents but one at a time. */
static void a_document_draws_no_great_get(void **state)
{
    (void)state;
    enum { MANY = 3000, MOST = 256 };
    pair t = begin(false, "evil");
    wire_member *members = calloc(MANY, sizeof(*members));
    assert_non_null(members);
    kvferry_layout *layout = rig_layout(&(rig_shape){.engine_id = "evil", .tps = MANY, .pps = 1, .no_streams = true});
    void *document;
    size_t size;
    assert_int_equal(kvferry_layout_write_msgpack(layout, &document, &size), KVFERRY_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        members[i] = (wire_member){.worker = *kvferry_layout_worker(layout), .address = EVIL_ADDRESS};
        members[i].worker.tp_rank = i;
        snprintf(members[i].incarnation, sizeof(members[i].incarnation), "eeee%012x", i);
        snprintf(members[i].digest, sizeof(members[i].digest), "%032x", i);
    }
    wire_digest(document, size, members[0].digest);
    wire_roster roster = {.engine_id = "evil", .members = members, .count = MANY};
    wire_roster_digest(&roster, roster.digest);
    t.l.name = members[0].incarnation;
    tell(&t.l, hello_of(WIRE_HELLO, &roster));
    expect_answer(&t.l, WIRE_GET, "");
    assert_in_range(t.l.documents, 1, MOST);
    say_documents(&t.l, document, size);
    expect_answer(&t.l, WIRE_GET, "");
    assert_in_range(t.l.documents, 1, MOST);
    kvferry_layout_free(layout);
    kvferry_free(document);
    free(members);
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_key_that_takes_all_places_leaves_room_for_others),
        cmocka_unit_test(who_is_asking_goes_last),
        cmocka_unit_test(all_may_have_one_key),
        cmocka_unit_test(without_keys_a_host_has_a_share),
        cmocka_unit_test(workers_that_the_node_asks_find_room),
        cmocka_unit_test(one_key_with_great_rosters_leaves_room_for_others),
        cmocka_unit_test(a_roster_for_which_there_is_no_room_takes_none),
        cmocka_unit_test(one_key_with_many_documents_leaves_room_for_others),
        cmocka_unit_test(what_asks_keep_of_who_is_gone_is_its_own),
        cmocka_unit_test(who_is_in_a_transfer_keeps_its_roster),
        cmocka_unit_test(who_would_not_fit_displaces_nobody),
        cmocka_unit_test(documents_over_another_link_are_of_their_key),
        cmocka_unit_test(a_worker_without_room_says_so),
        cmocka_unit_test(a_host_that_is_asked_has_one_share),
        cmocka_unit_test(one_key_that_restarts_does_not_make_others_be_forgotten),
        cmocka_unit_test(a_document_draws_no_great_get),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
