/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that are started again on their address: who takes whose place, and what that is called. */
#include "node/rig_test.h"

typedef struct all { /* a prefill worker, and those of a decode engine, which ask it */
    rig *r;
    size_t p, d, end;
} all;

static all begin_with(uint32_t decodes)
{
    all t = {.r = rig_create()};
    t.p = rig_engine(t.r, "prefill", 1, 1);
    t.d = rig_engine(t.r, "decode", decodes, 1);
    t.end = t.d + decodes;
    for (size_t i = t.d; i < t.end; i++) {
        assert_int_equal(core_connect(t.r->nodes[i].core, "prefill", t.r->nodes[t.p].address, t.r->now, NULL),
                         KVFERRY_OK);
        rig_expect(t.r, i, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
    }
    return t;
}

static all begin(void) { return begin_with(2); }

static void offer(all *t, const char *id, uint32_t first)
{
    rig_cells(t->r, t->p, 1, first, 8, false);
    assert_int_equal(rig_offer(t->r, t->p, id, first, 8, KVFERRY_READY), KVFERRY_OK);
}

static void ask(all *t, size_t decode, const char *id, uint32_t first)
{
    assert_int_equal(rig_ask(t->r, t->d + decode, id, t->p, first, 8), KVFERRY_OK);
}

/* The last decode worker is another process. */
static void restart(all *t)
{
    size_t last = t->end - 1;
    rig_kill(t->r, last);
    rig_birth(t->r, last);
    core_set_leader(t->r->nodes[last].core, t->r->nodes[t->d].address, t->r->now, NULL);
    assert_int_equal(core_connect(t->r->nodes[last].core, "prefill", t->r->nodes[t->p].address, t->r->now, NULL),
                     KVFERRY_OK);
    rig_wait(t->r, 2 * RIG_RETRY_MS);
    rig_expect(t->r, last, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
}

static void all_are_done(all *t, const char *id, uint32_t first)
{
    rig_wait(t->r, RIG_RETRY_MS);
    for (size_t i = t->p; i < t->end; i++)
        rig_expect_done(t->r, i, id);
    for (size_t i = t->d; i < t->end; i++)
        assert_int_equal(rig_cells(t->r, i, 1, first, 8, true), 0);
}

static void who_is_started_again_asks_for_what_the_other_had_not_asked_for(void **state)
{
    (void)state;
    all t = begin();
    offer(&t, "a", 5);
    ask(&t, 0, "a", 1);
    restart(&t);
    ask(&t, 1, "a", 1);
    all_are_done(&t, "a", 1);
    offer(&t, "b", 9);
    for (size_t i = 0; i < 2; i++)
        ask(&t, i, "b", 4);
    all_are_done(&t, "b", 4);
    rig_free(t.r);
}

/* Only the leader hears of it: the ask of another one names the roster of before. */
static bool loses_rosters(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r;
    return from == 1 && to == 2 && (type == WIRE_ROSTER || type == WIRE_WELCOME);
}

static void an_ask_with_the_roster_of_before_leaves_room_for_the_new_one(void **state)
{
    (void)state;
    all t = begin_with(4);
    t.r->loses = loses_rosters;
    restart(&t);
    offer(&t, "a", 5);
    ask(&t, 1, "a", 1);
    for (size_t i = 0; i < 4; i++)
        if (i != 1)
            ask(&t, i, "a", 1);
    all_are_done(&t, "a", 1);
    rig_free(t.r);
}

static void who_does_not_ask_in_time_is_not_waited_for(void **state)
{
    (void)state;
    all t = begin();
    offer(&t, "a", 5);
    ask(&t, 0, "a", 1);
    restart(&t);
    assert_false(rig_has(t.r, t.p, KVFERRY_EVENT_ENDED, "a"));
    rig_wait(t.r, RIG_EARLY_MS);
    rig_expect(t.r, t.p, KVFERRY_EVENT_ENDED, "a", KVFERRY_OUTCOME_FAILED, "incarnation");
    rig_expect(t.r, t.p, KVFERRY_EVENT_RELEASED, "a", KVFERRY_OUTCOME_FAILED, "incarnation");
    rig_expect_done(t.r, t.d, "a");
    ask(&t, 1, "a", 1);
    rig_expect_end(t.r, t.d + 1, "a", KVFERRY_OUTCOME_FAILED, "transfer_over");
    rig_free(t.r);
}

static void what_the_other_had_asked_for_is_not_sent_twice(void **state)
{
    (void)state;
    all t = begin();
    offer(&t, "a", 5);
    ask(&t, 1, "a", 1);
    rig_expect_done(t.r, t.d + 1, "a");
    restart(&t);
    ask(&t, 1, "a", 4);
    rig_expect_end(t.r, t.d + 1, "a", KVFERRY_OUTCOME_FAILED, "incarnation");
    ask(&t, 0, "a", 1);
    rig_expect_done(t.r, t.d, "a");
    rig_expect_done(t.r, t.p, "a"); /* the dead one had got it */
    rig_free(t.r);
}

static void who_is_started_again_settles_for_the_other(void **state)
{
    (void)state;
    all t = begin();
    offer(&t, "a", 5);
    ask(&t, 0, "a", 1);
    restart(&t);
    t.r->nodes[t.p].cut = true; /* its ask is lost, what it settles is not */
    ask(&t, 1, "a", 1);
    assert_int_equal(core_abort(t.r->nodes[t.d + 1].core, KVFERRY_SIDE_DECODE, "a", t.r->now), KVFERRY_OK);
    rig_run(t.r);
    t.r->nodes[t.p].cut = false;
    rig_wait(t.r, RIG_RETRY_MS);
    rig_expect(t.r, t.p, KVFERRY_EVENT_ENDED, "a", KVFERRY_OUTCOME_FAILED, "target_aborted");
    rig_free(t.r);
}

/* Two workers of decode are one now. */
static void another_engine_of_the_same_name_is_told_that_the_roster_changed(void **state)
{
    (void)state;
    all t = begin();
    offer(&t, "a", 5);
    ask(&t, 0, "a", 1);
    size_t one = rig_engine(t.r, "decode", 1, 1);
    assert_int_equal(rig_ask(t.r, one, "a", t.p, 1, 8), KVFERRY_OK);
    rig_wait(t.r, RIG_RETRY_MS);
    rig_expect_end(t.r, one, "a", KVFERRY_OUTCOME_FAILED, "roster_changed");
    rig_free(t.r);
}

static void an_ask_that_the_dead_one_did_not_answer_goes_to_the_new_one(void **state)
{
    (void)state;
    all t = begin();
    rig_kill(t.r, t.p);
    rig_birth(t.r, t.p);
    for (size_t i = 0; i < 2; i++) /* before they see that it is dead */
        ask(&t, i, "a", 1);
    offer(&t, "a", 5);
    rig_wait(t.r, RIG_LINGER_MS);
    all_are_done(&t, "a", 1);
    rig_free(t.r);
}

static void an_ask_that_the_dead_one_answered_fails(void **state)
{
    (void)state;
    all t = begin();
    ask(&t, 0, "a", 1); /* waits for its offer */
    rig_kill(t.r, t.p);
    rig_birth(t.r, t.p);
    rig_wait(t.r, RIG_RETRY_MS);
    rig_expect_end(t.r, t.d, "a", KVFERRY_OUTCOME_FAILED, "incarnation");
    rig_free(t.r);
}

static void an_abort_while_the_dead_one_lingers_is_an_end(void **state)
{
    (void)state;
    all t = begin();
    rig_kill(t.r, t.p);
    rig_birth(t.r, t.p);
    ask(&t, 0, "a", 1);
    rig_wait(t.r, RIG_RETRY_MS + RIG_LINGER_MS / 2);
    assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "a", t.r->now), KVFERRY_OK);
    rig_expect_end(t.r, t.d, "a", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    assert_false(rig_has(t.r, t.d, KVFERRY_EVENT_RELEASED, "a"));
    rig_wait(t.r, RIG_LINGER_MS);
    rig_expect(t.r, t.d, KVFERRY_EVENT_RELEASED, "a", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    rig_free(t.r);
}

static bool no_last_words(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_VERDICT || type == WIRE_SETTLED;
}

static void a_writer_that_was_cut_lingers_behind_its_goodbye(void **state)
{
    (void)state;
    all t = begin_with(1);
    t.r->nodes[t.p].hold = true;
    offer(&t, "a", 1);
    ask(&t, 0, "a", 1);
    t.r->loses = no_last_words;
    core_peer_lost(t.r->nodes[t.p].core, 1, "taken for lost in the middle of a write", t.r->now);
    rig_wait(t.r, RIG_RETRY_MS); /* until they have met again */
    core_bye(t.r->nodes[t.p].core, t.r->now);
    rig_expect_end(t.r, t.d, "a", KVFERRY_OUTCOME_FAILED, "peer_left");
    rig_wait(t.r, RIG_LINGER_MS / 2);
    assert_false(rig_has(t.r, t.d, KVFERRY_EVENT_RELEASED, "a"));
    rig_wait(t.r, RIG_LINGER_MS);
    rig_expect(t.r, t.d, KVFERRY_EVENT_RELEASED, "a", KVFERRY_OUTCOME_FAILED, "peer_left");
    rig_free(t.r);
}

static void a_restarted_reader_frees_the_lease_at_once(void **state)
{
    (void)state;
    all t = begin_with(1);
    offer(&t, "a", 5); /* it never asked for this one */
    t.r->nodes[t.p].hold = true;
    offer(&t, "b", 9);
    ask(&t, 0, "b", 4);
    rig_kill(t.r, t.d);
    rig_birth(t.r, t.d);
    assert_int_equal(core_connect(t.r->nodes[t.d].core, "prefill", t.r->nodes[t.p].address, t.r->now, NULL), 0);
    rig_expect(t.r, t.d, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
    rig_expect(t.r, t.p, KVFERRY_EVENT_ENDED, "b", KVFERRY_OUTCOME_FAILED, "incarnation");
    rig_expect(t.r, t.p, KVFERRY_EVENT_RELEASED, "b", KVFERRY_OUTCOME_FAILED, "incarnation");
    rig_quiet(t.r, t.p); /* who was to ask for a is not known before somebody does */
    ask(&t, 0, "a", 1);
    rig_finish(t.r, t.p, KVFERRY_OK);
    all_are_done(&t, "a", 1);
    rig_free(t.r);
}

static void a_restarted_writer_is_another_worker(void **state)
{
    (void)state;
    all t = begin_with(1);
    t.r->nodes[t.p].hold = true;
    offer(&t, "a", 5);
    ask(&t, 0, "a", 1);
    rig_kill(t.r, t.p);
    rig_birth(t.r, t.p);
    rig_wait(t.r, RIG_RETRY_MS);
    rig_expect_end(t.r, t.d, "a", KVFERRY_OUTCOME_FAILED, "incarnation");
    rig_wait(t.r, RIG_LINGER_MS);
    rig_expect_released(t.r, t.d, "a", KVFERRY_OUTCOME_FAILED, "incarnation");
    t.r->nodes[t.p].hold = false;
    offer(&t, "b", 9); /* and serves the next */
    ask(&t, 0, "b", 4);
    all_are_done(&t, "b", 4);
    rig_free(t.r);
}

static void an_ask_that_is_done_holds_no_lease(void **state)
{
    (void)state;
    all t = begin();
    offer(&t, "a", 5);
    const uint64_t lease = RIG_LEASE_MS;
    rig_tables tables;
    rig_fill_tables(&tables, 1, 8, false);
    const kvferry_ask long_one = {.size = sizeof(long_one), .transfer_id = "a", .engine_id = "prefill",
                                  .where = t.r->nodes[t.p].address, .tokens = 8, .tables = tables.tables,
                                  .table_count = tables.count, .timeout_ms = 10 * lease};
    assert_int_equal(core_ask(t.r->nodes[t.d].core, &long_one, t.r->now, NULL), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "a");
    rig_wait(t.r, lease);
    rig_expect(t.r, t.p, KVFERRY_EVENT_ENDED, "a", KVFERRY_OUTCOME_EXPIRED, "lease_ended");
    rig_free(t.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_started_again_asks_for_what_the_other_had_not_asked_for),
        cmocka_unit_test(an_ask_with_the_roster_of_before_leaves_room_for_the_new_one),
        cmocka_unit_test(who_does_not_ask_in_time_is_not_waited_for),
        cmocka_unit_test(what_the_other_had_asked_for_is_not_sent_twice),
        cmocka_unit_test(who_is_started_again_settles_for_the_other),
        cmocka_unit_test(another_engine_of_the_same_name_is_told_that_the_roster_changed),
        cmocka_unit_test(an_ask_that_the_dead_one_did_not_answer_goes_to_the_new_one),
        cmocka_unit_test(an_ask_that_the_dead_one_answered_fails),
        cmocka_unit_test(an_abort_while_the_dead_one_lingers_is_an_end),
        cmocka_unit_test(a_writer_that_was_cut_lingers_behind_its_goodbye),
        cmocka_unit_test(a_restarted_reader_frees_the_lease_at_once),
        cmocka_unit_test(a_restarted_writer_is_another_worker),
        cmocka_unit_test(an_ask_that_is_done_holds_no_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
