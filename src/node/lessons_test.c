/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults that others have had in the field, each as a test that fails on the design that had it. The comment names
 * the public report. Those of planning and engines are tested there.
 */
#include "node/metrics.h"
#include "node/rig_test.h"

static kvferry_node_statistics counts_of(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts;
}

typedef struct two {
    rig *r;
    size_t p, d;
} two;

static two begin(uint32_t p_tp, uint32_t d_tp)
{
    two t = {.r = rig_create()};
    t.p = rig_engine(t.r, "prefill", p_tp, 1);
    t.d = rig_engine(t.r, "decode", d_tp, 1);
    return t;
}

static void offer(two *t, size_t index, const char *id)
{
    assert_int_equal(rig_offer(t->r, index, id, 5, 8, KVFERRY_READY), KVFERRY_OK);
}

static void ask(two *t, size_t index, const char *id)
{
    assert_int_equal(rig_ask(t->r, index, id, t->p, 9, 8), KVFERRY_OK);
}

static void ended(two *t, size_t index, const char *id, kvferry_outcome outcome, const char *code)
{
    rig_expect_end(t->r, index, id, outcome, code);
    rig_expect_released(t->r, index, id, outcome, code);
}

/* --- ordering, ownership, races -------------------------------------------------------------------------- */

/* sglang#24527, #32564, #35049: the reader aborts, its pages are reused, and the late write lands in them. */
static void a_late_write_never_lands_in_a_block_with_a_new_owner(void **state)
{
    (void)state;
    two t = begin(1, 1);
    t.r->nodes[t.p].hold = t.r->nodes[t.p].deaf_cancel = true;
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "t", t.r->now), KVFERRY_OK);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    rig_wait(t.r, 10000);
    rig_quiet(t.r, t.d);
    assert_int_equal(rig_ask(t.r, t.d, "next", t.p, 9, 8), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "block_owned"));
    rig_finish(t.r, t.p, KVFERRY_OK); /* the late write: into blocks that nobody has */
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    offer(&t, t.p, "next");
    ask(&t, t.d, "next");
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "next");
    rig_free(t.r);
}

/* The same: the writer gives up a connection whose last bytes lie in a queue here, and its word is faster. */
static void a_writers_word_may_be_ahead_of_its_bytes(void **state)
{
    (void)state;
    two t = begin(1, 1);
    t.r->nodes[t.p].hold = true;
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "t", t.r->now), KVFERRY_OK);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    rig_wait(t.r, RIG_LINGER_MS - 1);
    rig_quiet(t.r, t.d);
    rig_wait(t.r, 1);
    assert_true(rig_has(t.r, t.d, KVFERRY_EVENT_RELEASED, "t"));
    rig_free(t.r);
}

/* sglang#30254, LMCache#5048, #5049: half-written blocks are sent. */
static void nothing_is_sent_before_it_is_ready(void **state)
{
    (void)state;
    two t = begin(1, 1);
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    ask(&t, t.d, "t");
    rig_wait(t.r, 5000);
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    rig_cells(t.r, t.p, 7, 5, 8, false); /* the step that writes them is over only now */
    assert_int_equal(core_ready(t.r->nodes[t.p].core, "t", t.r->now), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    assert_int_equal(rig_cells(t.r, t.d, 7, 9, 8, true), 0);
    rig_free(t.r);
}

/* vllm#44238, kvcache-ai/vllm#3, LMCache#1350: done is said before the bytes are there. */
static void done_comes_after_the_last_write(void **state)
{
    (void)state;
    two t = begin(2, 1);
    t.r->nodes[t.p + 1].hold = true;
    for (size_t i = t.p; i < t.p + 2; i++) {
        rig_cells(t.r, i, 7, 5, 8, false);
        offer(&t, i, "t");
    }
    ask(&t, t.d, "t");
    rig_wait(t.r, 5000);
    rig_quiet(t.r, t.d);
    rig_finish(t.r, t.p + 1, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    assert_int_equal(rig_cells(t.r, t.d, 7, 9, 8, true), 0);
    rig_free(t.r);
}

/* sglang#23020, #22716: a slot is used by the next while the last still has it. */
static void an_id_that_is_over_is_not_taken_for_another_transfer(void **state)
{
    (void)state;
    two t = begin(1, 1);
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 8), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_over"));
    rig_kill(t.r, t.d); /* another life knows nothing of it, and is told */
    rig_birth(t.r, t.d);
    ask(&t, t.d, "t");
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "transfer_over");
    assert_int_equal(t.r->nodes[t.p].write_count, 1);
    rig_free(t.r);
}

/* vllm#26929: the time of a request that is still computed runs out. */
static void an_expected_request_does_not_run_out(void **state)
{
    (void)state;
    two t = begin(1, 1);
    assert_int_equal(core_expect(t.r->nodes[t.p].core, "t", t.r->now, NULL), KVFERRY_OK);
    ask(&t, t.d, "t");
    rig_wait(t.r, RIG_TRANSFER_MS - 1000);
    offer(&t, t.p, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    rig_free(t.r);
}

/* vllm#50297: a request that was preempted in its last step is offered with no blocks. */
static void an_empty_offer_is_a_failure_and_no_success(void **state)
{
    (void)state;
    two t = begin(1, 1);
    assert_int_equal(core_offer(t.r->nodes[t.p].core,
                                &(kvferry_offer){sizeof(kvferry_offer), "t", 8, NULL, 0, KVFERRY_READY, NULL},
                                t.r->now, NULL), KVFERRY_OK);
    ask(&t, t.d, "t");
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "group_missing");
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "group_missing");
    rig_free(t.r);
}

/* vllm#53250, #18631: a load that was preempted asks a second time, and waits for what never comes. */
static void a_second_load_is_answered_at_once(void **state)
{
    (void)state;
    two t = begin(1, 1);
    t.r->nodes[t.p].hold = true;
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "t", t.r->now), KVFERRY_OK);
    rig_run(t.r);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 8), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_over"));
    rig_free(t.r);
}

/* --- failure, time, identity --------------------------------------------------------------------------------- */

/* vllm#35943, #36014, #50719, #55870: a reader waits for ever for a writer that lives, and never is ready. */
static void every_ask_ends_at_its_deadline(void **state)
{
    (void)state;
    two t = begin(1, 1);
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    ask(&t, t.d, "t");
    rig_wait(t.r, RIG_TRANSFER_MS - 1);
    rig_quiet(t.r, t.d);
    rig_quiet(t.r, t.p);
    rig_wait(t.r, 1);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_EXPIRED, "deadline");
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "deadline");
    rig_wait(t.r, RIG_LEASE_MS);
    rig_quiet(t.r, t.d); /* one end on each side, whatever comes later */
    rig_quiet(t.r, t.p);
    assert_true(core_idle(t.r->nodes[t.d].core) && core_idle(t.r->nodes[t.p].core));
    rig_free(t.r);
}

/* The same, where nobody ever answers. */
static void an_ask_of_nobody_ends_too(void **state)
{
    (void)state;
    two t = begin(1, 1);
    rig_kill(t.r, t.p);
    ask(&t, t.d, "a");
    t.r->nodes[t.d].cut = true;
    assert_int_equal(rig_ask(t.r, t.d, "never", t.p, 20, 8), KVFERRY_OK);
    rig_wait(t.r, RIG_TRANSFER_MS);
    ended(&t, t.d, "a", KVFERRY_OUTCOME_FAILED, "connect_timeout");
    ended(&t, t.d, "never", KVFERRY_OUTCOME_FAILED, "connect_timeout");
    assert_true(core_idle(t.r->nodes[t.d].core));
    rig_free(t.r);
}

/* vllm#46283: what a reader aborted is never given back when the writer dies. */
static void an_aborted_load_is_given_back_when_the_writer_dies(void **state)
{
    (void)state;
    two t = begin(1, 1);
    t.r->nodes[t.p].hold = t.r->nodes[t.p].deaf_cancel = true;
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "t", t.r->now), KVFERRY_OK);
    rig_run(t.r);
    rig_kill(t.r, t.p);
    rig_wait(t.r, RIG_RETRY_MS + RIG_LINGER_MS);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    assert_int_equal(counts_of(t.r, t.d).quarantined_blocks, 0);
    rig_free(t.r);
}

/* vllm#50754: one of several writers cannot write, and the reader counts to a number that is never reached. */
static void one_writer_that_fails_fails_the_ask_at_once(void **state)
{
    (void)state;
    two t = begin(2, 1);
    t.r->nodes[t.p].hold = t.r->nodes[t.p + 1].hold = true;
    for (size_t i = t.p; i < t.p + 2; i++)
        offer(&t, i, "t");
    ask(&t, t.d, "t");
    rig_finish(t.r, t.p + 1, KVFERRY_ENGINE);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "write_failed");
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "write_failed"); /* the other one was stopped */
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "write_failed");
    ended(&t, t.p + 1, "t", KVFERRY_OUTCOME_FAILED, "write_failed");
    rig_free(t.r);
}

/* vllm#43226, #46240, #48616, #53079: a completion that comes twice, or of what is not known, ends the process. */
static void what_is_unknown_or_twice_is_counted_and_ignored(void **state)
{
    (void)state;
    two t = begin(1, 1);
    t.r->doubles = true;
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    uint64_t before = counts_of(t.r, t.d).ignored;
    assert_true(before > 0);
    core_write_ended(t.r->nodes[t.p].core, 1, KVFERRY_OK, "", t.r->now);
    core_write_ended(t.r->nodes[t.p].core, 77, KVFERRY_OK, "", t.r->now);
    core_peer_lost(t.r->nodes[t.p].core, 77, "", t.r->now);
    core_link_ended(t.r->nodes[t.p].core, 777, CORE_LINK_LOST, t.r->now);
    core_received(t.r->nodes[t.p].core, 778, NULL, NULL, "nonsense", 8, t.r->now);
    rig_quiet(t.r, t.p);
    rig_quiet(t.r, t.d);
    assert_int_equal(counts_of(t.r, t.p).malformed, 1);
    rig_free(t.r);
}

/* vllm#18632, #56640: with a full prefix hit the writer leaks, or the reader waits for ever. */
static void a_full_hit_of_one_of_two_readers_ends_on_both_sides(void **state)
{
    (void)state;
    two t = begin(1, 2);
    offer(&t, t.p, "t");
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 0, 0), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_wait(t.r, 5000);
    rig_quiet(t.r, t.p); /* the other one has not settled: a set, not a count */
    ask(&t, t.d + 1, "t");
    rig_expect_done(t.r, t.d + 1, "t");
    rig_expect_done(t.r, t.p, "t");
    rig_free(t.r);
}

/* vllm-ascend#10246: ranks without data never say that they are done. */
static void a_source_with_nothing_to_send_answers_too(void **state)
{
    (void)state;
    two t = begin(4, 1);
    for (size_t i = t.p; i < t.p + 4; i++)
        offer(&t, i, "t");
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 0, 0), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    for (size_t i = t.p; i < t.p + 4; i++)
        rig_expect_done(t.r, i, "t");
    rig_free(t.r);
}

/* smg#2492, nixl#795, vllm#50047: after the writer's restart every request hangs. */
static void a_restarted_writer_is_named_soon_and_serves_the_next(void **state)
{
    (void)state;
    two t = begin(1, 1);
    offer(&t, t.p, "a");
    ask(&t, t.d, "a");
    rig_expect_done(t.r, t.d, "a");
    rig_expect_done(t.r, t.p, "a");
    rig_kill(t.r, t.p);
    rig_birth(t.r, t.p);
    ask(&t, t.d, "b"); /* for what the dead one had */
    rig_wait(t.r, RIG_LINGER_MS + RIG_EARLY_MS + RIG_RETRY_MS);
    rig_expect(t.r, t.d, KVFERRY_EVENT_ENDED, "b", KVFERRY_OUTCOME_FAILED, "incarnation");
    offer(&t, t.p, "c");
    assert_int_equal(rig_ask(t.r, t.d, "c", t.p, 20, 8), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "c");
    rig_free(t.r);
}

/* sglang#9266: the connection died while nothing was asked for. */
static void an_idle_connection_that_died_is_opened_again(void **state)
{
    (void)state;
    two t = begin(1, 1);
    offer(&t, t.p, "a");
    ask(&t, t.d, "a");
    rig_expect_done(t.r, t.d, "a");
    rig_expect_done(t.r, t.p, "a");
    rig_break(t.r, t.p);
    offer(&t, t.p, "b");
    ask(&t, t.d, "b");
    rig_wait(t.r, 2 * RIG_RETRY_MS);
    rig_expect_done(t.r, t.d, "b");
    rig_expect_done(t.r, t.p, "b");
    rig_free(t.r);
}

/* vllm#27083: another engine is at the place, and all is computed again in silence. */
static void a_wrong_engine_is_an_error_that_is_counted(void **state)
{
    (void)state;
    two t = begin(1, 1);
    kvferry_ask wrong = {.size = sizeof(kvferry_ask), .transfer_id = "t", .engine_id = "other",
                         .where = t.r->nodes[t.p].address, .tokens = 8};
    assert_int_equal(core_ask(t.r->nodes[t.d].core, &wrong, t.r->now, NULL), KVFERRY_OK);
    rig_run(t.r);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "engine_id_differs");
    assert_int_equal(counts_of(t.r, t.d).ended[KVFERRY_SIDE_DECODE][KVFERRY_OUTCOME_FAILED], 1);
    rig_free(t.r);
}

/* Mooncake#4071: without an id the transfer is silently off. */
static void a_missing_id_is_an_error_that_is_counted(void **state)
{
    (void)state;
    two t = begin(1, 1);
    kvferry_ask none = {.size = sizeof(kvferry_ask), .transfer_id = "", .engine_id = "prefill",
                        .where = t.r->nodes[t.p].address};
    kvferry_report_clear(t.r->report);
    assert_int_equal(core_ask(t.r->nodes[t.d].core, &none, t.r->now, t.r->report), KVFERRY_INVALID);
    assert_true(rig_reports(t.r, "transfer_invalid"));
    assert_int_equal(counts_of(t.r, t.d).refused, 1);
    assert_int_equal(rig_offer(t.r, t.p, "", 5, 8, KVFERRY_READY), KVFERRY_INVALID);
    assert_true(rig_reports(t.r, "transfer_invalid"));
    assert_int_equal(counts_of(t.r, t.p).refused, 1);
    assert_string_equal(core_refusals(t.r->nodes[t.p].core)->of[0].code, "transfer_invalid");
    rig_free(t.r);
}

/*
 * vllm#29503, #49230, #55776, dynamo#10027: another model or configuration, no or half a check, a crash or a silent mix.
 * vllm#54338, kvcached#424: the bits are read as what they are not, cells are wider than is believed.
 */
static void other_caches_are_refused_before_a_byte_moves(void **state)
{
    (void)state;
    const struct {
        rig_shape shape;
        const char *code;
    } others[] = {
        {{.engine_id = "decode", .tps = 1, .pps = 1, .model = "test/other"}, "identity_differs"},
        {{.engine_id = "decode", .tps = 1, .pps = 1, .dtype = "float16"}, "dtype_differs"},
        {{.engine_id = "decode", .tps = 1, .pps = 1, .heads = 2 * RIG_HEADS}, "global_extent_differs"},
        {{.engine_id = "decode", .tps = 1, .pps = 1, .long_cells = true}, "cell_bytes_differ"},
        {{.engine_id = "decode", .tps = 1, .pps = 1, .state = true}, "stream_missing"},
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        two t = {.r = rig_create()};
        t.p = rig_engine(t.r, "prefill", 1, 1);
        t.d = rig_engine_of(t.r, &others[i].shape);
        offer(&t, t.p, "t");
        ask(&t, t.d, "t");
        ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, others[i].code);
        assert_int_equal(t.r->nodes[t.p].write_count, 0);
        rig_free(t.r);
    }
}

/* The same rows: what may differ is no part of the check. */
static void other_ranks_of_the_same_caches_are_served(void **state)
{
    (void)state;
    two t = {.r = rig_create()};
    t.p = rig_engine(t.r, "prefill", 2, 2);
    t.d = rig_engine(t.r, "decode", 1, 1);
    for (size_t i = t.p; i < t.p + 4; i++)
        offer(&t, i, "t");
    ask(&t, t.d, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_free(t.r);
}

/* vllm#47466: the prompt was padded for drafts, so the state has seen a token more than the reader goes on from. */
static void a_state_of_another_position_is_not_moved(void **state)
{
    (void)state;
    two t = {.r = rig_create()};
    const rig_shape p = {.engine_id = "prefill", .tps = 1, .pps = 1, .state = true};
    const rig_shape d = {.engine_id = "decode", .tps = 1, .pps = 1, .state = true};
    t.p = rig_engine_of(t.r, &p);
    t.d = rig_engine_of(t.r, &d);
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 7), KVFERRY_OK);
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "state_position");
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    assert_int_equal(rig_offer(t.r, t.p, "u", 5, 7, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "u", t.p, 9, 7), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "u");
    rig_free(t.r);
}

/* vllm#43828: something that is counted is not as the one who counts believes, and that ends the process. */
static void metrics_take_whatever_is_counted(void **state)
{
    (void)state;
    two t = begin(1, 1);
    node_metrics metrics = {0};
    base_text text = {0};
    kvferry_node_statistics counts;
    node_metrics_begin(&metrics);
    char code[400];
    for (unsigned i = 0; i < 300; i++) {
        snprintf(code, sizeof(code), i % 3 ? "%0*u\"}\n{" : "code_%0*u", (int)(i % 9 ? 1 : 390), i);
        node_metrics_count(&metrics, &(kvferry_event){.kind = KVFERRY_EVENT_ENDED, .side = KVFERRY_SIDE_DECODE,
                                                      .outcome = KVFERRY_OUTCOME_FAILED, .code = code,
                                                      .elapsed_ns = i % 5 ? UINT64_MAX : 0,
                                                      .bytes = UINT64_MAX});
        offer(&t, t.p, base_format("t%u", i));
        assert_int_equal(core_abort(t.r->nodes[t.p].core, KVFERRY_SIDE_PREFILL, base_format("t%u", i), t.r->now),
                         KVFERRY_OK);
    }
    node_metrics_refused(&metrics, core_refusals(t.r->nodes[t.p].core));
    counts = counts_of(t.r, t.p);
    counts.quarantined_blocks = counts.queued_copies = UINT64_MAX; /* less was taken away than was there */
    node_metrics_publish(&metrics, &counts);
    node_metrics_write(&metrics, "engine_id=\"p\"", &text);
    assert_false(text.failed);
    assert_non_null(strstr(text.data, "code=\"more\""));
    assert_non_null(strstr(text.data, "code=\"other\""));
    for (const char *line = text.data; *line; line = strchr(line, '\n') + 1)
        assert_int_equal(strncmp(line, "kvferry_", 8) != 0 && *line != '#', 0);
    free(text.data);
    node_metrics_end(&metrics);
    offer(&t, t.p, "last");
    ask(&t, t.d, "last");
    rig_expect_done(t.r, t.d, "last");
    rig_free(t.r);
}

/* vllm#52617: all was said to be there, and the first token is wrong. */
static void verify_compares_what_arrived(void **state)
{
    (void)state;
    two t = {.r = rig_create()};
    t.r->options.verify = true;
    t.r->options.checksums = &rig_checksums;
    t.p = rig_engine(t.r, "prefill", 1, 1);
    t.d = rig_engine(t.r, "decode", 1, 1);
    t.r->nodes[t.d].damaged = true;
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    ended(&t, t.d, "t", KVFERRY_OUTCOME_FAILED, "checksum_differs");
    ended(&t, t.p, "t", KVFERRY_OUTCOME_FAILED, "checksum_differs");
    rig_free(t.r);
}

/* vllm#56033: the writer counts readers of one kind only, and frees early. */
static void the_writer_waits_for_every_reader_that_gets_something(void **state)
{
    (void)state;
    two t = begin(1, 4);
    offer(&t, t.p, "t");
    for (size_t i = t.d; i < t.d + 4; i++) {
        rig_quiet(t.r, t.p);
        ask(&t, i, "t");
        rig_expect_done(t.r, i, "t");
    }
    rig_expect_done(t.r, t.p, "t");
    rig_free(t.r);
}

/* sglang#33043: one bad request ends the listener, and all others hang. */
static void a_bad_message_is_answered_and_the_next_is_served(void **state)
{
    (void)state;
    two t = begin(1, 1);
    const char *bad[] = {"", "\x81", "\xc1\xc1\xc1\xc1", "\x80", "\xdf\xff\xff\xff\xff"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        core_received(t.r->nodes[t.p].core, 1000 + 2 * i, NULL, NULL, bad[i], strlen(bad[i]), t.r->now);
    assert_int_equal(counts_of(t.r, t.p).malformed, 5);
    offer(&t, t.p, "t");
    ask(&t, t.d, "t");
    rig_expect_done(t.r, t.d, "t");
    rig_free(t.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_write_never_lands_in_a_block_with_a_new_owner),
        cmocka_unit_test(a_writers_word_may_be_ahead_of_its_bytes),
        cmocka_unit_test(nothing_is_sent_before_it_is_ready),
        cmocka_unit_test(done_comes_after_the_last_write),
        cmocka_unit_test(an_id_that_is_over_is_not_taken_for_another_transfer),
        cmocka_unit_test(an_expected_request_does_not_run_out),
        cmocka_unit_test(an_empty_offer_is_a_failure_and_no_success),
        cmocka_unit_test(a_second_load_is_answered_at_once),
        cmocka_unit_test(every_ask_ends_at_its_deadline),
        cmocka_unit_test(an_ask_of_nobody_ends_too),
        cmocka_unit_test(an_aborted_load_is_given_back_when_the_writer_dies),
        cmocka_unit_test(one_writer_that_fails_fails_the_ask_at_once),
        cmocka_unit_test(what_is_unknown_or_twice_is_counted_and_ignored),
        cmocka_unit_test(a_full_hit_of_one_of_two_readers_ends_on_both_sides),
        cmocka_unit_test(a_source_with_nothing_to_send_answers_too),
        cmocka_unit_test(a_restarted_writer_is_named_soon_and_serves_the_next),
        cmocka_unit_test(an_idle_connection_that_died_is_opened_again),
        cmocka_unit_test(a_wrong_engine_is_an_error_that_is_counted),
        cmocka_unit_test(a_missing_id_is_an_error_that_is_counted),
        cmocka_unit_test(other_caches_are_refused_before_a_byte_moves),
        cmocka_unit_test(other_ranks_of_the_same_caches_are_served),
        cmocka_unit_test(a_state_of_another_position_is_not_moved),
        cmocka_unit_test(metrics_take_whatever_is_counted),
        cmocka_unit_test(verify_compares_what_arrived),
        cmocka_unit_test(the_writer_waits_for_every_reader_that_gets_something),
        cmocka_unit_test(a_bad_message_is_answered_and_the_next_is_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
