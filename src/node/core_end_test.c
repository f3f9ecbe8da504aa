/* SPDX-License-Identifier: Apache-2.0 */
/* How transfers end: on both sides, at each step, with writers that are slow, silent, dead, back again. */
#include "node/rig_test.h"

static kvferry_node_statistics counts_of(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts;
}

/* One prefill worker and one decode worker that shook hands. */
typedef struct two {
    rig *r;
    size_t p, d;
} two;

static two begin(void)
{
    two t = {.r = rig_create()};
    t.p = rig_engine(t.r, "prefill", 1, 1);
    t.d = rig_engine(t.r, "decode", 1, 1);
    assert_int_equal(core_connect(t.r->nodes[t.d].core, "prefill", t.r->nodes[t.p].address, t.r->now, NULL), 0);
    rig_expect(t.r, t.d, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
    return t;
}

static void end(two *t)
{
    for (size_t i = 0; i < t->r->count; i++) {
        rig_quiet(t->r, i);
        if (!t->r->nodes[i].core)
            continue;
        assert_true(core_idle(t->r->nodes[i].core));
        assert_int_equal(counts_of(t->r, i).quarantined_blocks, 0);
        assert_int_equal(counts_of(t->r, i).queued_copies, 0);
    }
    rig_free(t->r);
}

static void offer(two *t, const char *id) { assert_int_equal(rig_offer(t->r, t->p, id, 5, 8, KVFERRY_READY), 0); }
static void ask(two *t, const char *id) { assert_int_equal(rig_ask(t->r, t->d, id, t->p, 9, 8), 0); }
static void abort_at(two *t, size_t index, const char *id)
{
    kvferry_side side = index == t->p ? KVFERRY_SIDE_PREFILL : KVFERRY_SIDE_DECODE;
    assert_int_equal(core_abort(t->r->nodes[index].core, side, id, t->r->now), KVFERRY_OK);
    assert_int_equal(core_abort(t->r->nodes[index].core, side, id, t->r->now), KVFERRY_NOT_FOUND);
    rig_run(t->r);
}

static void ended(two *t, size_t index, const char *id, kvferry_outcome outcome, const char *code)
{
    rig_expect_end(t->r, index, id, outcome, code);
    rig_expect_released(t->r, index, id, outcome, code);
}

/* --- nothing to send --------------------------------------------------------------------------------- */

static void a_full_prefix_hit_moves_nothing_and_ends(void **state)
{
    (void)state;
    two t = begin();
    offer(&t, "t");
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 0, 0), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    end(&t);
}

static void a_source_in_no_plan_is_released_by_the_lowest_target(void **state)
{
    (void)state;
    two t = {.r = rig_create()};
    for (int side = 0; side < 2; side++) {
        rig_shape shape = {.engine_id = side ? "decode" : "prefill", .tps = 1, .pps = 2};
        size_t first = rig_worker(t.r, &shape);
        shape.pp = 1;
        shape.no_streams = true;
        size_t second = rig_worker(t.r, &shape);
        core_set_leader(t.r->nodes[second].core, t.r->nodes[first].address, t.r->now, NULL);
    }
    t.d = 2;
    rig_run(t.r);
    offer(&t, "t");
    assert_int_equal(core_offer(t.r->nodes[1].core,
                                &(kvferry_offer){sizeof(kvferry_offer), "t", 8, NULL, 0, KVFERRY_READY, NULL},
                                t.r->now, NULL), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, 3, "t", 0, 0, 0), KVFERRY_OK);
    rig_expect_done(t.r, 3, "t"); /* a worker that gets nothing has nobody to ask */
    rig_quiet(t.r, 1);
    ask(&t, "t");
    rig_expect_done(t.r, 2, "t");
    rig_expect_done(t.r, 0, "t");
    rig_expect_done(t.r, 1, "t");
    end(&t);
}

/* --- too early, twice, too late -------------------------------------------------------------------------- */

static void an_ask_before_the_offer_waits(void **state)
{
    (void)state;
    two t = begin();
    ask(&t, "t");
    rig_wait(t.r, RIG_EARLY_MS - 1);
    rig_quiet(t.r, t.d);
    offer(&t, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    end(&t);
}

static void an_ask_that_is_never_offered_fails(void **state)
{
    (void)state;
    two t = begin();
    ask(&t, "t");
    rig_wait(t.r, RIG_EARLY_MS);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "transfer_unknown");
    offer(&t, "t"); /* later than that: it is known that nobody will come */
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "transfer_unknown");
    end(&t);
}

static void an_expected_offer_is_waited_for(void **state)
{
    (void)state;
    two t = begin();
    node_core *core = t.r->nodes[t.p].core;
    assert_int_equal(core_expect(core, "t", t.r->now, t.r->report), KVFERRY_OK);
    assert_int_equal(core_expect(core, "t", t.r->now, t.r->report), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_known"));
    ask(&t, "t");
    rig_wait(t.r, 5 * RIG_EARLY_MS);
    rig_quiet(t.r, t.d);
    offer(&t, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    end(&t);
}

/* A prefill request that its client gives up: its decode side must not wait for a lease. */
static void an_expectation_that_is_aborted_ends_asks(void **state)
{
    (void)state;
    two t = begin();
    node_core *core = t.r->nodes[t.p].core;
    assert_int_equal(core_expect(core, "t", t.r->now, t.r->report), KVFERRY_OK);
    ask(&t, "t");
    abort_at(&t, t.p, "t");
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "source_aborted");
    assert_int_equal(core_expect(core, "u", t.r->now, t.r->report), KVFERRY_OK);
    abort_at(&t, t.p, "u");
    ask(&t, "u"); /* afterwards */
    ended(&t, t.d, "u", KVFERRY_OUTCOME_FAILED, "transfer_over");
    assert_int_equal(core_expect(core, "u", t.r->now, t.r->report), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_over"));
    assert_int_equal(rig_offer(t.r, t.p, "u", 5, 8, KVFERRY_READY), KVFERRY_REFUSED);
    rig_quiet(t.r, t.p); /* nothing was offered: no events */
    end(&t);
}

static void an_ask_before_ready_waits(void **state)
{
    (void)state;
    two t = begin();
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    ask(&t, "t");
    rig_wait(t.r, 4 * RIG_SILENCE_MS); /* both sides keep showing life */
    rig_quiet(t.r, t.d);
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    assert_int_equal(core_ready(t.r->nodes[t.p].core, "t", t.r->now), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    assert_int_equal(core_ready(t.r->nodes[t.p].core, "t", t.r->now), KVFERRY_NOT_FOUND);
    end(&t);
}

static void doubled_messages_change_nothing(void **state)
{
    (void)state;
    two t = begin();
    t.r->doubles = true;
    offer(&t, "t");
    ask(&t, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    assert_int_equal(t.r->nodes[t.p].write_count, 1);
    assert_true(counts_of(t.r, t.d).ignored > 0);
    assert_true(counts_of(t.r, t.p).ignored > 0);
    end(&t);
}

static void ids_are_used_once(void **state)
{
    (void)state;
    two t = begin();
    offer(&t, "t");
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_READY), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_known"));
    t.r->nodes[t.p].hold = true;
    ask(&t, "t");
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 20, 8), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_known"));
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_READY), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_over"));
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 8), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_over"));
    rig_wait(t.r, RIG_REMEMBER_MS); /* it is forgotten in the end */
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 8), KVFERRY_OK);
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    end(&t);
}

/* --- aborts ------------------------------------------------------------------------------------------------- */

static void the_decode_side_aborts_at_each_step(void **state)
{
    (void)state;
    two t = begin();
    /* before the offer */
    ask(&t, "a");
    abort_at(&t, t.d, "a");
    ended(&t, t.d, "a", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    offer(&t, "a");
    ended(&t, t.p, "a", KVFERRY_OUTCOME_FAILED, "target_aborted");
    /* before ready */
    assert_int_equal(rig_offer(t.r, t.p, "b", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    ask(&t, "b");
    abort_at(&t, t.d, "b");
    ended(&t, t.d, "b", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    ended(&t, t.p, "b", KVFERRY_OUTCOME_FAILED, "target_aborted");
    /* while it is written, by a writer that cannot stop at once */
    t.r->nodes[t.p].hold = t.r->nodes[t.p].deaf_cancel = true;
    offer(&t, "c");
    ask(&t, "c");
    abort_at(&t, t.d, "c");
    rig_expect_end(t.r, t.d, "c", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    rig_wait(t.r, 5 * RIG_SILENCE_MS); /* no time ends the quarantine of a writer that lives */
    rig_quiet(t.r, t.d);
    rig_quiet(t.r, t.p);
    assert_int_equal(counts_of(t.r, t.d).quarantined_blocks, 2);
    rig_finish(t.r, t.p, KVFERRY_CANCELED);
    rig_expect_released(t.r, t.d, "c", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    ended(&t, t.p, "c", KVFERRY_OUTCOME_FAILED, "target_aborted");
    /* when all is done there is nothing to abort */
    t.r->nodes[t.p].hold = false;
    offer(&t, "e");
    ask(&t, "e");
    assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "e", t.r->now), KVFERRY_NOT_FOUND);
    rig_expect_done(t.r, t.d, "e");
    rig_expect_done(t.r, t.p, "e");
    end(&t);
}

static void an_abort_before_the_handshake_tells_the_sources_later(void **state)
{
    (void)state;
    two t = {.r = rig_create()};
    t.p = rig_engine(t.r, "prefill", 1, 1);
    t.d = rig_engine(t.r, "decode", 1, 1);
    offer(&t, "t");
    t.r->nodes[t.p].cut = true;
    ask(&t, "t");
    abort_at(&t, t.d, "t");
    ended(&t, t.d, "t", KVFERRY_OUTCOME_ABORTED, "target_aborted"); /* nothing was asked: released at once */
    rig_quiet(t.r, t.p);
    t.r->nodes[t.p].cut = false;
    rig_break(t.r, t.p);
    rig_wait(t.r, 3 * RIG_RETRY_MS);
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "target_aborted");
    end(&t);
}

static void the_prefill_side_aborts_at_each_step(void **state)
{
    (void)state;
    two t = begin();
    offer(&t, "a"); /* before anybody asked */
    abort_at(&t, t.p, "a");
    ended(&t, t.p, "a", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    ask(&t, "a");
    ended(&t, t.d, "a", KVFERRY_OUTCOME_FAILED, "transfer_over");
    assert_int_equal(rig_offer(t.r, t.p, "b", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    ask(&t, "b");
    abort_at(&t, t.p, "b");
    ended(&t, t.p, "b", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    ended(&t, t.d, "b", KVFERRY_OUTCOME_FAILED, "source_aborted");
    t.r->nodes[t.p].hold = t.r->nodes[t.p].deaf_cancel = true; /* while it writes */
    offer(&t, "c");
    ask(&t, "c");
    abort_at(&t, t.p, "c");
    rig_expect_end(t.r, t.p, "c", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    rig_quiet(t.r, t.p);
    rig_quiet(t.r, t.d); /* the verdict says that nothing is written any more */
    rig_finish(t.r, t.p, KVFERRY_CANCELED);
    rig_expect_released(t.r, t.p, "c", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    ended(&t, t.d, "c", KVFERRY_OUTCOME_FAILED, "source_aborted");
    end(&t);
}

/* --- time ------------------------------------------------------------------------------------------------------ */

static void a_lease_ends_and_is_renewed(void **state)
{
    (void)state;
    two t = begin();
    offer(&t, "t");
    rig_wait(t.r, RIG_LEASE_MS - 1);
    rig_quiet(t.r, t.p);
    assert_int_equal(core_renew(t.r->nodes[t.d].core, "prefill", "t", t.r->now, NULL), KVFERRY_OK);
    assert_int_equal(core_renew(t.r->nodes[t.d].core, "nobody", "t", t.r->now, NULL), KVFERRY_NOT_FOUND);
    rig_wait(t.r, RIG_LEASE_MS - 1);
    rig_quiet(t.r, t.p);
    rig_wait(t.r, 1);
    ended(&t, t.p, "t", KVFERRY_OUTCOME_EXPIRED, "lease_ended");
    ask(&t, "t");
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "transfer_over");
    end(&t);
}

static void a_waiting_ask_holds_the_lease(void **state)
{
    (void)state;
    two t = begin();
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    rig_wait(t.r, RIG_LEASE_MS - 1000);
    ask(&t, "t");
    rig_wait(t.r, 10000);
    rig_quiet(t.r, t.p);
    assert_int_equal(core_ready(t.r->nodes[t.p].core, "t", t.r->now), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    end(&t);
}

static void a_deadline_ends_an_ask_and_its_source_is_told(void **state)
{
    (void)state;
    two t = begin();
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    ask(&t, "t");
    rig_wait(t.r, RIG_TRANSFER_MS - 1);
    rig_quiet(t.r, t.d);
    rig_wait(t.r, 1);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_EXPIRED, "deadline");
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "deadline");
    end(&t);
}

static void a_deadline_while_it_is_written_leaves_a_quarantine(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = t.r->nodes[t.p].deaf_cancel = true;
    offer(&t, "t");
    ask(&t, "t");
    rig_wait(t.r, RIG_TRANSFER_MS);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_EXPIRED, "deadline");
    assert_int_equal(counts_of(t.r, t.d).quarantined_blocks, 2);
    assert_int_equal(rig_ask(t.r, t.d, "u", t.p, 9, 8), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "block_owned"));
    rig_finish(t.r, t.p, KVFERRY_TIMEOUT);
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_EXPIRED, "deadline");
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "deadline");
    end(&t);
}

/* --- writers ----------------------------------------------------------------------------------------------------- */

static void a_write_that_fails_fails_the_transfer(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    rig_finish(t.r, t.p, KVFERRY_ENGINE);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "write_failed");
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "write_failed");
    end(&t);
}

static void a_dead_writer_lingers(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    rig_kill(t.r, t.p);
    rig_wait(t.r, RIG_RETRY_MS); /* the link is opened again, and refused */
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_quiet(t.r, t.d);
    rig_wait(t.r, RIG_LINGER_MS - 1);
    rig_quiet(t.r, t.d);
    rig_wait(t.r, 1);
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    end(&t);
}

/* What its kernel holds has not arrived while a process is stopped: the time that it slept does not count. */
static void nobody_lingers_in_their_sleep(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    rig_kill(t.r, t.p);
    rig_wait(t.r, RIG_RETRY_MS);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    t.r->now += 100 * RIG_LINGER_MS * RIG_MS;
    rig_wait(t.r, RIG_LINGER_MS * 9 / 10);
    rig_quiet(t.r, t.d);
    rig_wait(t.r, RIG_LINGER_MS / 10);
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    end(&t);
}

static void a_silent_writer_is_not_dead(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = t.r->nodes[t.p].deaf_cancel = true;
    offer(&t, "t");
    ask(&t, "t");
    t.r->nodes[t.p].cut = true;
    rig_wait(t.r, RIG_SILENCE_MS + RIG_RETRY_MS);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_wait(t.r, 20 * RIG_SILENCE_MS);
    rig_quiet(t.r, t.d);
    assert_int_equal(counts_of(t.r, t.d).quarantined_blocks, 2);
    t.r->nodes[t.p].cut = false; /* it had given up the decode worker, and its engine the write */
    rig_wait(t.r, 2 * RIG_RETRY_MS);
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    end(&t);
}

static void a_silent_writer_can_be_declared_dead(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    t.r->nodes[t.p].cut = true;
    node_core *core = t.r->nodes[t.d].core;
    assert_int_equal(core_declare_dead(core, "0123456789abcdef", t.r->now, NULL), KVFERRY_NOT_FOUND);
    assert_int_equal(core_declare_dead(core, t.r->nodes[t.p].incarnation, t.r->now, NULL), KVFERRY_OK);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_wait(t.r, RIG_LINGER_MS);
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_kill(t.r, t.p);
    end(&t);
}

static bool loses_gets(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_GET;
}

/* P has forgotten D, and wants its documents: that D tells it meanwhile how the ask ended begins nothing anew. */
static void a_settle_before_the_handshake_disturbs_it_not(void **state)
{
    (void)state;
    two t = begin();
    ask(&t, "t");
    t.r->nodes[t.p].cut = true;
    rig_wait(t.r, RIG_SILENCE_MS + RIG_RETRY_MS);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_wait(t.r, RIG_REMEMBER_MS);
    rig_break(t.r, t.p);
    t.r->nodes[t.p].cut = false;
    t.r->loses = loses_gets;
    rig_wait(t.r, RIG_RETRY_MS);
    size_t links = t.r->link_count, errors = t.r->sent[WIRE_ERROR];
    rig_wait(t.r, 5 * RIG_RETRY_MS);
    assert_int_equal(t.r->link_count, links);
    assert_in_range(t.r->sent[WIRE_ERROR], errors + 5, SIZE_MAX);
    t.r->loses = NULL;
    rig_wait(t.r, 3 * RIG_RETRY_MS);
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    end(&t);
}

static void a_broken_link_is_opened_again(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    rig_break(t.r, t.p);
    rig_wait(t.r, 2 * RIG_RETRY_MS);
    rig_quiet(t.r, t.d);
    rig_quiet(t.r, t.p);
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_wait(t.r, RIG_RETRY_MS);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    end(&t);
}

static void a_dead_reader_frees_the_lease(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    rig_kill(t.r, t.d);
    rig_wait(t.r, RIG_SILENCE_MS + RIG_RETRY_MS);
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_birth(t.r, t.d);
    offer(&t, "u");
    ask(&t, "u");
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "u");
    rig_expect_done(t.r, t.p, "u");
    end(&t);
}

static void goodbye_ends_all_at_once(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    core_drain(t.r->nodes[t.p].core);
    assert_int_equal(rig_offer(t.r, t.p, "u", 5, 8, KVFERRY_READY), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "node_closing"));
    assert_false(core_idle(t.r->nodes[t.p].core));
    core_bye(t.r->nodes[t.p].core, t.r->now);
    rig_run(t.r);
    ended(&t, t.p, "t", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "source_aborted");
    rig_expect(t.r, t.d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, "peer_left");
    end(&t);
}

static void the_engine_loses_a_reader(void **state)
{
    (void)state;
    two t = begin();
    t.r->nodes[t.p].hold = true;
    offer(&t, "t");
    ask(&t, "t");
    core_peer_lost(t.r->nodes[t.p].core, 1, "the wire was cut", t.r->now);
    rig_run(t.r);
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_wait(t.r, 2 * RIG_RETRY_MS);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_prefix_hit_moves_nothing_and_ends),
        cmocka_unit_test(a_source_in_no_plan_is_released_by_the_lowest_target),
        cmocka_unit_test(an_ask_before_the_offer_waits),
        cmocka_unit_test(an_ask_that_is_never_offered_fails),
        cmocka_unit_test(an_expected_offer_is_waited_for),
        cmocka_unit_test(an_expectation_that_is_aborted_ends_asks),
        cmocka_unit_test(an_ask_before_ready_waits),
        cmocka_unit_test(doubled_messages_change_nothing),
        cmocka_unit_test(ids_are_used_once),
        cmocka_unit_test(the_decode_side_aborts_at_each_step),
        cmocka_unit_test(an_abort_before_the_handshake_tells_the_sources_later),
        cmocka_unit_test(the_prefill_side_aborts_at_each_step),
        cmocka_unit_test(a_lease_ends_and_is_renewed),
        cmocka_unit_test(a_waiting_ask_holds_the_lease),
        cmocka_unit_test(a_deadline_ends_an_ask_and_its_source_is_told),
        cmocka_unit_test(a_deadline_while_it_is_written_leaves_a_quarantine),
        cmocka_unit_test(a_write_that_fails_fails_the_transfer),
        cmocka_unit_test(a_dead_writer_lingers),
        cmocka_unit_test(nobody_lingers_in_their_sleep),
        cmocka_unit_test(a_silent_writer_is_not_dead),
        cmocka_unit_test(a_silent_writer_can_be_declared_dead),
        cmocka_unit_test(a_settle_before_the_handshake_disturbs_it_not),
        cmocka_unit_test(a_broken_link_is_opened_again),
        cmocka_unit_test(a_dead_reader_frees_the_lease),
        cmocka_unit_test(goodbye_ends_all_at_once),
        cmocka_unit_test(the_engine_loses_a_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
