/* SPDX-License-Identifier: Apache-2.0 */
/* Who speaks in another's name, or names another's workers as its own: refused, and nothing of theirs ends. */
#include "node/liar_test.h"

/* --- in another's name ------------------------------------------------------------------------------------- */

static void by_another_key_nothing_is_said_in_a_workers_name(void **state)
{
    (void)state;
    pair t = begin(true, "decode");
    uint32_t blocks[] = {1, 2};
    const kvferry_block_table table = {"attn", 0, blocks, 2};
    t.l.name = t.r->nodes[t.d].incarnation;
    set_roster(&t.l, kvferry_layout_worker(t.l.layout));
    t.r->nodes[t.p].hold = true;
    assert_int_equal(rig_offer(t.r, t.p, "a", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_offer(t.r, t.p, "b", 9, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "b", t.p, 9, TOKENS), KVFERRY_OK);
    assert_int_equal(t.r->nodes[t.p].write_count, 1);
    const wire_message said[] = {ask_of(&t.l, "a", &table, 1), settle_of(WIRE_SETTLE, "a"), settle_of(WIRE_SETTLE, "b"),
                                 {.type = WIRE_RENEW, .transfer_id = "b"}, {.type = WIRE_PING}};
    size_t lines = t.r->log_lines;
    for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++) {
        tell(&t.l, said[i]);
        expect_answer(&t.l, WIRE_ERROR, "key_of_another");
        assert_int_equal(refused_at(t.r, t.p, "key_of_another"), i + 1);
        assert_int_equal(t.r->log_lines, lines + 1); /* once */
    }
    tell(&t.l, (wire_message){.type = WIRE_BYE});
    expect_answer(&t.l, WIRE_TYPES, "");
    tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
    expect_answer(&t.l, WIRE_WELCOME, "key_of_another");
    assert_int_equal(t.r->nodes[t.p].write_count, 1);
    rig_quiet(t.r, t.p);
    t.r->nodes[t.p].hold = false;
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "b");
    rig_expect_done(t.r, t.p, "b");
    end(&t);
}

static void a_rank_stays_with_its_key_until_its_worker_is_lost(void **state)
{
    (void)state;
    pair t = begin(true, "decode");
    set_roster(&t.l, kvferry_layout_worker(t.l.layout));
    tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
    expect_answer(&t.l, WIRE_WELCOME, "key_of_another");
    move(t.r, t.p, t.d, "still");
    rig_kill(t.r, t.d);
    rig_wait(t.r, 2 * RIG_SILENCE_MS);
    tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
    expect_answer(&t.l, WIRE_GET, ""); /* another host has another key */
    end_liar(&t.l);
    rig_free(t.r);
}

/* The members of an offer that one worker has claimed are those of its roster, with the keys that are there. */
static void what_a_worker_is_to_ask_for_is_not_taken_by_another_key(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->keyed = true;
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 2, 1);
    connect_to(r, d, p); /* the other one has said nothing yet */
    expect_connected(r, d);
    rig_cells(r, p, 3, 5, TOKENS, false);
    assert_int_equal(rig_offer(r, p, "a", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "a", p, 1, TOKENS), KVFERRY_OK);
    rig_expect_done(r, d, "a");
    liar l = make_liar(r, p, "decode");
    wire_roster forged = r->nodes[p].core->targets->roster->wire;
    wire_member members[2] = {forged.members[0], forged.members[1]};
    forged.members = members;
    /* in its name, with a false address: the roster is the one that is known */
    l.name = r->nodes[d + 1].incarnation;
    members[1].address = l.address;
    wire_message hello = hello_of(WIRE_HELLO, &forged);
    hello.body.hello.worker = members[1].worker;
    tell(&l, hello);
    expect_answer(&l, WIRE_WELCOME, "key_of_another");
    tell(&l, settle_of(WIRE_SETTLE, "a"));
    expect_answer(&l, WIRE_ERROR, "hello_missing");
    /* in its rank */
    l.name = EVIL_NAME;
    memcpy(members[1].incarnation, EVIL_NAME, sizeof(members[1].incarnation));
    wire_roster_digest(&forged, forged.digest);
    tell(&l, hello_of(WIRE_HELLO, &forged));
    hello = hello_of(WIRE_HELLO, &forged);
    hello.body.hello.worker = members[1].worker;
    tell(&l, hello);
    expect_answer(&l, WIRE_WELCOME, "");
    l.roster = forged;
    tell(&l, ask_of(&l, "a", NULL, 0));
    expect_answer(&l, WIRE_VERDICT, "incarnation");
    rig_quiet(r, p);
    connect_to(r, d + 1, p);
    rig_wait(r, 2 * RIG_SILENCE_MS); /* the other one does not answer */
    connect_to(r, d + 1, p);
    rig_wait(r, RIG_RETRY_MS);
    assert_int_equal(rig_ask(r, d + 1, "a", p, 1, TOKENS), KVFERRY_OK);
    rig_expect_done(r, d + 1, "a");
    rig_expect_done(r, p, "a");
    end_liar(&l);
    rig_free(r);
}

static void an_address_has_the_key_of_who_speaks(void **state)
{
    (void)state;
    pair t = begin(true, "evil");
    t.l.address = t.r->nodes[t.d].address;
    set_roster(&t.l, kvferry_layout_worker(t.l.layout));
    tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
    expect_answer(&t.l, WIRE_WELCOME, "key_of_another");
    t.l.address = EVIL_ADDRESS; /* none */
    set_roster(&t.l, kvferry_layout_worker(t.l.layout));
    tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
    expect_answer(&t.l, WIRE_WELCOME, "key_of_another");
    assert_int_equal(refused_at(t.r, t.p, "key_of_another"), 2);
    end(&t);
}

static void a_place_in_the_own_engine_stays_with_its_key(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->keyed = true;
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 1, 1);
    core_roster *own = r->nodes[p].core->own;
    liar l = make_liar(r, p, "prefill");
    set_roster(&l, &own->wire.members[1].worker);
    l.roster.digest[0] = '\0'; /* what is known so far */
    wire_message hello = hello_of(WIRE_HELLO, &l.roster);
    hello.body.hello.sibling = true;
    tell(&l, hello);
    expect_answer(&l, WIRE_WELCOME, "key_of_another");
    assert_ptr_equal(r->nodes[p].core->own, own);
    l.name = r->nodes[p + 1].incarnation; /* in its name */
    set_roster(&l, &own->wire.members[1].worker);
    l.roster.digest[0] = '\0';
    hello = hello_of(WIRE_HELLO, &l.roster);
    hello.body.hello.sibling = true;
    tell(&l, hello);
    expect_answer(&l, WIRE_WELCOME, "key_of_another");
    assert_string_equal(own->wire.members[1].address, r->nodes[p + 1].address);
    connect_to(r, d, p);
    expect_connected(r, d);
    end_liar(&l);
    rig_free(r);
}

/* --- settling without a handshake --------------------------------------------------------------------------- */

static void who_has_not_shaken_hands_settles_nothing(void **state)
{
    (void)state;
    pair t = begin(false, "decode");
    t.r->nodes[t.p].hold = true;
    assert_int_equal(rig_offer(t.r, t.p, "a", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_offer(t.r, t.p, "b", 9, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "b", t.p, 9, TOKENS), KVFERRY_OK);
    const char *const names[] = {t.r->nodes[t.d].incarnation, EVIL_NAME};
    for (size_t i = 0; i < 4; i++) {
        t.l.name = names[i / 2];
        tell(&t.l, settle_of(WIRE_SETTLE, i % 2 ? "a" : "b"));
        if (i / 2) /* nothing is written to one that is not known */
            expect_answer(&t.l, WIRE_SETTLED, "");
        else
            expect_answer(&t.l, WIRE_ERROR, "hello_missing");
    }
    rig_quiet(t.r, t.p);
    rig_finish(t.r, t.p, KVFERRY_OK);
    t.r->nodes[t.p].hold = false;
    rig_expect_done(t.r, t.d, "b");
    rig_expect_done(t.r, t.p, "b");
    assert_int_equal(rig_ask(t.r, t.d, "a", t.p, 1, TOKENS), KVFERRY_OK);
    rig_expect_done(t.r, t.p, "a");
    rig_expect_done(t.r, t.d, "a");
    end(&t);
}

/* It holds its blocks until it hears that nothing is written to it: that its key has had many names since is no matter. */
static void who_is_forgotten_hears_that_nothing_is_written_to_it(void **state)
{
    (void)state;
    pair t = begin(true, "evil");
    node_core *core = t.r->nodes[t.p].core;
    rig_tables tables;
    rig_fill_tables(&tables, 1, TOKENS, false);
    shake_hands(&t.l);
    wire_message ask = ask_of(&t.l, "a", tables.tables, tables.count);
    memcpy(ask.body.ask.source_roster, ask.body.ask.target_roster, sizeof(ask.body.ask.source_roster));
    tell(&t.l, ask);
    expect_answer(&t.l, WIRE_VERDICT, "roster_changed"); /* of which nothing is noted */
    core_target_lost(core, core_target_find(core, t.l.name), "peer_lost", "a test");
    for (uint64_t i = 0; core_name_key(core, t.l.name); i++) {
        char name[WIRE_INCARNATION_TEXT];
        core_incarnation_text(i, name);
        assert_true(core_name_keep(core, name, t.l.key));
        assert_true(i <= 4 * (uint64_t)t.r->options.max_peers);
    }
    t.l.link += 2;
    tell(&t.l, settle_of(WIRE_SETTLE, "a"));
    expect_answer(&t.l, WIRE_SETTLED, "");
    const core_supply *offer = core_supply_find(core, "a");
    assert_true(!offer || !offer->members);
    t.l.link -= 2; /* what it asked before comes to nothing */
    tell(&t.l, ask_of(&t.l, "a", tables.tables, tables.count));
    expect_answer(&t.l, WIRE_ERROR, "hello_missing");
    end(&t);
}

static bool is_welcome_of_last(rig *r, size_t from, size_t to, wire_type type)
{
    (void)to;
    return type == WIRE_WELCOME && from == r->count - 1;
}

static void a_prefill_engine_has_no_workers_of_another(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        rig *r = rig_create();
        r->keyed = i == 3;
        size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
        size_t q = rig_engine(r, "other", 1, 1);
        connect_to(r, d, p);
        expect_connected(r, d);
        r->loses = is_welcome_of_last;
        connect_to(r, d, q);
        liar l = make_liar(r, d, "other");
        l.link = link_between(r, d, q);
        l.address = r->nodes[q].address;
        l.name = r->nodes[q].incarnation;
        set_roster(&l, kvferry_layout_worker(l.layout));
        wire_member two[2] = {l.member, l.member};
        wire_roster roster = {.engine_id = "other", .members = two, .count = 2};
        two[0].worker.tp_size = two[1].worker.tp_size = 2;
        two[1].worker.tp_rank = 1;
        if (i) /* 0: itself, twice */
            memcpy(two[1].incarnation, r->nodes[i == 2 ? d : p].incarnation, WIRE_INCARNATION_TEXT);
        wire_roster_digest(&roster, roster.digest);
        tell(&l, hello_of(WIRE_WELCOME, &roster));
        rig_expect(r, d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, "worker_of_another");
        r->loses = NULL;
        move(r, p, d, "good");
        connect_to(r, d, q);
        expect_connected(r, d);
        end_liar(&l);
        rig_free(r);
    }
}

/* Which would take a writer for dead that is not, and its late bytes would arrive in blocks of others. */
static void nobody_takes_a_rank_in_another_engine(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1), q = rig_engine(r, "other", 1, 1);
    connect_to(r, d, p);
    expect_connected(r, d);
    rig_wait(r, 10);
    r->loses = is_welcome_of_last;
    connect_to(r, d, q);
    liar l = make_liar(r, d, "prefill");
    l.link = link_between(r, d, q);
    l.name = EVIL_NAME;
    set_roster(&l, kvferry_layout_worker(l.layout));
    r->nodes[p].hold = true;
    assert_int_equal(rig_offer(r, p, "a", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "a", p, 1, TOKENS), KVFERRY_OK);
    core_source *source = core_source_find(r->nodes[d].core, r->nodes[p].incarnation);
    source->heard = 0; /* as if it were silent for a while */
    core_engine *engine = core_engine_find(r->nodes[d].core, "other", "");
    assert_non_null(engine);
    tell(&l, hello_of(WIRE_WELCOME, &l.roster));
    assert_false(source->dead);
    rig_quiet(r, d);
    r->loses = NULL;
    r->nodes[p].hold = false;
    rig_finish(r, p, KVFERRY_OK);
    rig_expect_done(r, d, "a");
    end_liar(&l);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_another_key_nothing_is_said_in_a_workers_name),
        cmocka_unit_test(a_rank_stays_with_its_key_until_its_worker_is_lost),
        cmocka_unit_test(what_a_worker_is_to_ask_for_is_not_taken_by_another_key),
        cmocka_unit_test(an_address_has_the_key_of_who_speaks),
        cmocka_unit_test(a_place_in_the_own_engine_stays_with_its_key),
        cmocka_unit_test(who_has_not_shaken_hands_settles_nothing),
        cmocka_unit_test(who_is_forgotten_hears_that_nothing_is_written_to_it),
        cmocka_unit_test(a_prefill_engine_has_no_workers_of_another),
        cmocka_unit_test(nobody_takes_a_rank_in_another_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
