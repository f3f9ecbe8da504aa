/* SPDX-License-Identifier: Apache-2.0 */
/* What is refused, what is remembered, and what verify finds. */
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

static two begin_with(rig *r, bool state)
{
    two t = {.r = r};
    t.p = rig_engine_of(r, &(rig_shape){.engine_id = "prefill", .tps = 1, .pps = 1, .state = state});
    t.d = rig_engine_of(r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1, .state = state});
    return t;
}

static kvferry_status ask_tables(two *t, const char *id, const kvferry_block_table *tables, size_t count)
{
    kvferry_report_clear(t->r->report);
    const kvferry_ask ask = {.size = sizeof(kvferry_ask), .transfer_id = id, .engine_id = "prefill",
                             .where = t->r->nodes[t->p].address, .tokens = 8, .tables = tables,
                             .table_count = count};
    return core_ask(t->r->nodes[t->d].core, &ask, t->r->now, t->r->report);
}

static void bad_target_blocks_are_refused(void **state)
{
    (void)state;
    two t = begin_with(rig_create(), true);
    const struct {
        const char *code;
        kvferry_block_table tables[2];
        size_t count;
    } cases[] = {
        {"group_unknown", {{"nothing", 0, (const uint32_t[]){1}, 1}}, 1},
        {"group_twice", {{"attn", 0, (const uint32_t[]){1}, 1}, {"attn", 0, (const uint32_t[]){2}, 1}}, 2},
        {"first_token_misaligned", {{"attn", 3, (const uint32_t[]){1}, 1}}, 1},
        {"block_range", {{"attn", 0, (const uint32_t[]){1, RIG_BLOCKS}, 2}}, 1},
        {"block_null", {{"ssm", 0, (const uint32_t[]){0}, 1}}, 1},
        {"block_null", {{"ssm", 0, NULL, 0}}, 1},
        {"state_blocks", {{"ssm", 0, (const uint32_t[]){1, 2}, 2}}, 1},
        {"target_block_twice", {{"attn", 0, (const uint32_t[]){3, 4, 3}, 3}}, 1},
        {"transfer_invalid", {{NULL, 0, (const uint32_t[]){3}, 1}}, 1},
        {"transfer_invalid", {{"attn", 0, NULL, 1}}, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(ask_tables(&t, "t", cases[i].tables, cases[i].count), KVFERRY_REFUSED);
        assert_true(rig_reports(t.r, cases[i].code));
        assert_int_equal(counts_of(t.r, t.d).refused, i + 1);
    }
    /* What was refused owns nothing, and null blocks of a paged group are nobody's. */
    const kvferry_block_table fine = {"attn", 0, (const uint32_t[]){3, 0, 4}, 3};
    assert_int_equal(ask_tables(&t, "a", &fine, 1), KVFERRY_OK);
    const kvferry_block_table also = {"attn", 0, (const uint32_t[]){0, 5}, 2};
    assert_int_equal(ask_tables(&t, "b", &also, 1), KVFERRY_OK);
    const kvferry_block_table owned = {"attn", 0, (const uint32_t[]){6, 4}, 2};
    assert_int_equal(ask_tables(&t, "c", &owned, 1), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "block_owned"));
    assert_int_equal(ask_tables(&t, "", &fine, 1), KVFERRY_INVALID);
    rig_free(t.r);
}

static void bad_source_blocks_are_refused(void **state)
{
    (void)state;
    two t = begin_with(rig_create(), false);
    const uint32_t far[] = {RIG_BLOCKS};
    const kvferry_block_table range = {"attn", 0, far, 1}, unknown = {"nothing", 0, far, 1};
    kvferry_offer offer = {sizeof(kvferry_offer), "t", 4, &range, 1, KVFERRY_READY, NULL};
    assert_int_equal(core_offer(t.r->nodes[t.p].core, &offer, t.r->now, t.r->report), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "block_range"));
    offer.tables = &unknown;
    assert_int_equal(core_offer(t.r->nodes[t.p].core, &offer, t.r->now, t.r->report), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "group_unknown"));
    offer.transfer_id = "";
    assert_int_equal(core_offer(t.r->nodes[t.p].core, &offer, t.r->now, t.r->report), KVFERRY_INVALID);
    rig_free(t.r);
}

static void a_request_that_the_source_cannot_serve_is_refused_with_all_reasons(void **state)
{
    (void)state;
    two t = begin_with(rig_create(), true);
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 12), KVFERRY_OK); /* more tokens than there are */
    rig_node *node = &t.r->nodes[t.d];
    bool position = false, missing = false;
    for (size_t i = 0; i < node->event_count; i++)
        for (size_t k = 0; node->events[i]->kind == KVFERRY_EVENT_ENDED &&
                           k < kvferry_report_count(node->events[i]->report); k++) {
            const char *code = kvferry_report_get(node->events[i]->report, k)->code;
            position |= strcmp(code, "state_position") == 0;
            missing |= strcmp(code, "source_null") == 0;
        }
    assert_true(position && missing);
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    assert_int_equal(counts_of(t.r, t.p).refused, 1);
    rig_wait(t.r, RIG_LINGER_MS);
    assert_true(core_idle(t.r->nodes[t.p].core) && core_idle(node->core));
    rig_free(t.r);
}

static void transfers_are_limited(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.max_transfers = 2;
    two t = begin_with(r, false);
    const char *ids[] = {"a", "b", "c"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(rig_offer(r, t.p, ids[i], 5, 8, KVFERRY_NOT_READY), i < 2 ? KVFERRY_OK : KVFERRY_REFUSED);
        assert_int_equal(rig_ask(r, t.d, ids[i], t.p, (uint32_t)(1 + 2 * i), 8),
                         i < 2 ? KVFERRY_OK : KVFERRY_REFUSED);
    }
    assert_true(rig_reports(r, "too_many_transfers"));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(core_expect(r->nodes[t.p].core, base_format("e%zu", i), r->now, NULL),
                         i < 2 ? KVFERRY_OK : KVFERRY_REFUSED);
    rig_free(r);
}

static void early_asks_are_bounded_and_the_oldest_goes(void **state)
{
    (void)state;
    rig *r = rig_create();
    two t = begin_with(r, false);
    core_free(r->nodes[t.p].core); /* remembers less than the other asks */
    r->options.max_transfers = 2;
    rig_birth(r, t.p);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(rig_ask(r, t.d, base_format("t%u", i), t.p, 1 + 2 * i, 8), KVFERRY_OK);
    rig_expect_end(r, t.d, "t0", KVFERRY_OUTCOME_FAILED, "too_many_transfers");
    rig_expect_released(r, t.d, "t0", KVFERRY_OUTCOME_FAILED, "too_many_transfers");
    rig_quiet(r, t.d);
    rig_free(r);
}

static bool no_settles(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_SETTLE;
}

static bool no_asks(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_ASK;
}

/* A copy of its ask that comes behind the refusal would be served: only a settle comes behind all copies. */
static void what_has_no_record_any_more_is_released_by_a_settle(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.max_transfers = 2;
    size_t p = rig_engine(r, "prefill", 1, 1);
    r->options.max_transfers = 100;
    size_t d = rig_engine(r, "decode", 1, 1);
    r->loses = no_settles;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(rig_ask(r, d, base_format("t%u", i), p, 1 + 2 * i, 8), KVFERRY_OK);
    rig_expect_end(r, d, "t0", KVFERRY_OUTCOME_FAILED, "too_many_transfers");
    rig_wait(r, RIG_LINGER_MS + RIG_RETRY_MS);
    rig_quiet(r, d);
    r->loses = NULL;
    rig_wait(r, RIG_RETRY_MS);
    rig_expect_released(r, d, "t0", KVFERRY_OUTCOME_FAILED, "too_many_transfers");
    rig_quiet(r, d); /* the settle took no place from the others */
    rig_free(r);
}

static void a_settle_that_there_is_no_room_to_remember_is_answered(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.max_transfers = 1;
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 4, 1), o = rig_engine(r, "other", 1, 1);
    assert_int_equal(rig_offer(r, p, "past", 1, 8, KVFERRY_READY), KVFERRY_OK);
    for (size_t i = 0; i < 4; i++) /* so many members are remembered, and no more */
        assert_int_equal(rig_ask(r, d + i, "past", p, 1, 8), KVFERRY_OK);
    rig_expect_done(r, p, "past");
    r->loses = no_asks;
    assert_int_equal(rig_ask(r, o, "past", p, 5, 8), KVFERRY_OK);
    r->loses = NULL;
    r->nodes[o].cut = true; /* until both have given the other up */
    rig_wait(r, 2 * RIG_SILENCE_MS + RIG_RETRY_MS);
    rig_expect_end(r, o, "past", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_quiet(r, o);
    r->nodes[o].cut = false;
    rig_wait(r, 2 * RIG_RETRY_MS);
    rig_expect_released(r, o, "past", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_free(r);
}

/* A peer that asks for much that is not offered, and another one. */
typedef struct flood {
    rig *r;
    size_t p, floods, other;
} flood;

static flood begin_flood(uint32_t max_transfers, uint64_t max_message_bytes)
{
    flood f = {.r = rig_create()};
    f.floods = rig_engine(f.r, "floods", 1, 1);
    f.other = rig_engine(f.r, "other", 1, 1);
    f.r->options.max_transfers = max_transfers;
    f.r->options.max_message_bytes = max_message_bytes;
    f.p = rig_engine(f.r, "prefill", 1, 1);
    return f;
}

static void too_many_early_asks_of_one_peer_cost_no_other(void **state)
{
    (void)state;
    flood f = begin_flood(4, 1 << 20);
    assert_int_equal(rig_ask(f.r, f.other, "wanted", f.p, 1, 8), KVFERRY_OK);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(rig_ask(f.r, f.floods, base_format("t%u", i), f.p, 1 + 2 * i, 8), KVFERRY_OK);
    for (uint32_t i = 0; i < 5; i++) /* its own oldest ones */
        rig_expect_end(f.r, f.floods, base_format("t%u", i), KVFERRY_OUTCOME_FAILED, "too_many_transfers");
    rig_quiet(f.r, f.other);
    assert_int_equal(rig_offer(f.r, f.p, "wanted", 5, 8, KVFERRY_READY), KVFERRY_OK);
    rig_expect_done(f.r, f.other, "wanted");
    assert_int_equal(rig_offer(f.r, f.p, "t7", 5, 8, KVFERRY_READY), KVFERRY_OK);
    rig_expect_done(f.r, f.floods, "t7");
    rig_free(f.r);
}

/* Asks for 8 tokens, with a long table that ends in null blocks. */
static void ask_long(flood *f, size_t index, const char *id, uint32_t block)
{
    uint32_t blocks[1000] = {block, block + 1};
    const kvferry_block_table table = {"attn", 0, blocks, 1000};
    const kvferry_ask ask = {.size = sizeof(kvferry_ask), .transfer_id = id, .engine_id = "prefill",
                             .where = f->r->nodes[f->p].address, .tokens = 8, .tables = &table, .table_count = 1};
    assert_int_equal(core_ask(f->r->nodes[index].core, &ask, f->r->now, f->r->report), KVFERRY_OK);
    rig_run(f->r);
}

enum { LONG_ASKS = 15 };

static void too_much_that_one_peer_wants_early_costs_no_other(void **state)
{
    (void)state;
    flood f = begin_flood(64, 2048); /* 32 KiB of tables: 8 of them */
    for (uint32_t i = 0; i < LONG_ASKS; i++)
        ask_long(&f, f.floods, base_format("t%u", i), 1 + 2 * i);
    ask_long(&f, f.other, "wanted", 1);
    size_t asks = f.r->sent[WIRE_ASK];
    assert_int_equal(rig_offer(f.r, f.p, "wanted", 5, 8, KVFERRY_READY), KVFERRY_OK);
    rig_expect_done(f.r, f.other, "wanted"); /* it was kept */
    assert_int_equal(f.r->sent[WIRE_ASK], asks);
    for (uint32_t i = 0; i < LONG_ASKS; i++)
        assert_int_equal(rig_offer(f.r, f.p, base_format("t%u", i), 5, 8, KVFERRY_READY), KVFERRY_OK);
    rig_expect_done(f.r, f.floods, "t1");
    rig_wait(f.r, 2 * RIG_RETRY_MS); /* what was not kept is asked again */
    rig_expect_done(f.r, f.floods, "t0");
    for (uint32_t i = 2; i < LONG_ASKS; i++)
        rig_expect_done(f.r, f.floods, base_format("t%u", i));
    rig_free(f.r);
}

static void one_offer_serves_one_decode_engine(void **state)
{
    (void)state;
    rig *r = rig_create();
    two t = begin_with(r, false);
    size_t other = rig_engine(r, "another", 1, 1);
    assert_int_equal(rig_offer(r, t.p, "t", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, t.d, "t", t.p, 1, 8), KVFERRY_OK);
    assert_int_equal(rig_ask(r, other, "t", t.p, 1, 8), KVFERRY_OK);
    rig_expect_end(r, other, "t", KVFERRY_OUTCOME_FAILED, "transfer_taken");
    rig_expect_released(r, other, "t", KVFERRY_OUTCOME_FAILED, "transfer_taken");
    assert_int_equal(core_ready(r->nodes[t.p].core, "t", r->now), KVFERRY_OK);
    rig_expect_done(r, t.d, "t");
    rig_expect_done(r, t.p, "t");
    rig_free(r);
}

static void many_transfers_leave_no_more_than_is_remembered(void **state)
{
    (void)state;
    rig *r = rig_create();
    two t = begin_with(r, false);
    for (int i = 0; i < 1000; i++) {
        char id[16];
        snprintf(id, sizeof(id), "t%d", i);
        assert_int_equal(rig_offer(r, t.p, id, 5, 8, KVFERRY_READY), KVFERRY_OK);
        assert_int_equal(rig_ask(r, t.d, id, t.p, 9, 8), KVFERRY_OK);
        rig_expect_done(r, t.d, id);
        rig_expect_done(r, t.p, id);
    }
    assert_int_equal(rig_offer(r, t.p, "t999", 5, 8, KVFERRY_READY), KVFERRY_REFUSED);
    assert_int_equal(rig_offer(r, t.p, "t1", 5, 8, KVFERRY_READY), KVFERRY_OK); /* long forgotten */
    assert_int_equal(counts_of(r, t.p).ended[KVFERRY_SIDE_PREFILL][KVFERRY_OUTCOME_DONE], 1000);
    assert_int_equal(counts_of(r, t.d).bytes[KVFERRY_SIDE_DECODE],
                     1000 * RIG_LAYERS * RIG_HEADS * RIG_CELL * 8);
    rig_free(r);
}

/* --- sources that are told, and never answer ---------------------------------------------------------- */

enum { FEW = 4, MORE = 10 };

static bool is_settled(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_SETTLED;
}

static two begin_few(void)
{
    rig *r = rig_create();
    r->options.max_transfers = FEW;
    r->options.verify = true; /* each source hears how it ended, and is to answer */
    r->options.checksums = &rig_checksums;
    r->loses = is_settled;
    return begin_with(r, false);
}

static kvferry_status ask_nth(two *t, uint32_t i)
{
    return rig_ask(t->r, t->d, base_format("t%u", i), t->p, 4 + 2 * (i % FEW), 8);
}

static size_t settles_in(rig *r, uint64_t ms)
{
    size_t before = r->sent[WIRE_SETTLE];
    rig_wait(r, ms);
    return r->sent[WIRE_SETTLE] - before;
}

static void those_that_never_answer_a_settle_are_few(void **state)
{
    (void)state;
    two t = begin_few();
    t.r->nodes[t.p].hold = t.r->nodes[t.p].deaf_cancel = true;
    assert_int_equal(rig_offer(t.r, t.p, "held", 1, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "held", t.p, 1, 8), KVFERRY_OK);
    assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "held", t.r->now), KVFERRY_OK);
    rig_expect_end(t.r, t.d, "held", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    t.r->nodes[t.p].hold = false;
    for (uint32_t i = 0; i < MORE; i++) {
        assert_int_equal(rig_offer(t.r, t.p, base_format("t%u", i), 5, 8, KVFERRY_READY), KVFERRY_OK);
        assert_int_equal(ask_nth(&t, i), KVFERRY_OK);
        rig_expect_done(t.r, t.d, base_format("t%u", i));
        assert_int_equal(counts_of(t.r, t.d).unsettled, base_min(i + 1, FEW));
    }
    assert_int_equal(settles_in(t.r, RIG_RETRY_MS), FEW + 1);
    assert_int_equal(ask_nth(&t, MORE - FEW - FEW), KVFERRY_REFUSED); /* remembered */
    assert_true(rig_reports(t.r, "transfer_over"));
    assert_int_equal(rig_offer(t.r, t.p, "t1", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(ask_nth(&t, MORE - FEW - FEW - 1), KVFERRY_OK); /* forgotten */
    rig_expect_done(t.r, t.d, "t1");
    rig_wait(t.r, RIG_REMEMBER_MS + RIG_RETRY_MS);
    assert_int_equal(counts_of(t.r, t.d).unsettled, 0);
    /* What is in quarantine is told for ever, and stays there until it is confirmed. */
    assert_int_equal(settles_in(t.r, RIG_RETRY_MS), 1);
    assert_int_equal(counts_of(t.r, t.d).quarantined_blocks, 2);
    t.r->loses = NULL;
    rig_finish(t.r, t.p, KVFERRY_CANCELED);
    rig_expect_released(t.r, t.d, "held", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    assert_int_equal(settles_in(t.r, 2 * RIG_RETRY_MS), 0);
    rig_free(t.r);
}

static void those_that_are_told_once_they_are_known_are_few(void **state)
{
    (void)state;
    two t = begin_few();
    t.r->nodes[t.p].cut = true;
    for (uint32_t i = 0; i < MORE; i++) { /* nothing was asked of anybody */
        assert_int_equal(ask_nth(&t, i), KVFERRY_OK);
        const char *id = base_format("t%u", i);
        assert_int_equal(core_abort(t.r->nodes[t.d].core, KVFERRY_SIDE_DECODE, id, t.r->now), KVFERRY_OK);
        rig_expect_end(t.r, t.d, id, KVFERRY_OUTCOME_ABORTED, "target_aborted");
        rig_expect(t.r, t.d, KVFERRY_EVENT_RELEASED, id, KVFERRY_OUTCOME_ABORTED, "target_aborted");
        assert_int_equal(counts_of(t.r, t.d).unsettled, base_min(i + 1, FEW));
    }
    t.r->nodes[t.p].cut = false;
    t.r->loses = NULL;
    rig_wait(t.r, 2 * RIG_RETRY_MS);
    assert_int_equal(t.r->sent[WIRE_SETTLE], FEW);
    assert_int_equal(counts_of(t.r, t.d).unsettled, 0);
    rig_free(t.r);
}

/* --- verify ----------------------------------------------------------------------------------------- */

static two begin_verified(void)
{
    rig *r = rig_create();
    r->options.verify = true;
    r->options.checksums = &rig_checksums;
    two t = {.r = r};
    t.p = rig_engine(r, "prefill", 2, 1);
    t.d = rig_engine(r, "decode", 1, 1);
    return t;
}

static void verify_agrees(void **state)
{
    (void)state;
    two t = begin_verified();
    for (size_t i = t.p; i < t.p + 2; i++)
        assert_int_equal(rig_offer(t.r, i, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 8), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    rig_expect_done(t.r, t.p + 1, "t");
    rig_free(t.r);
}

static void what_verify_finds_fails_all(void **state)
{
    (void)state;
    two t = begin_verified();
    t.r->nodes[t.p + 1].damaged = true;
    for (size_t i = t.p; i < t.p + 2; i++)
        assert_int_equal(rig_offer(t.r, i, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, 8), KVFERRY_OK);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "checksum_differs");
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "checksum_differs");
    for (size_t i = t.p; i < t.p + 2; i++) { /* also at the source whose bytes were right */
        rig_expect_end(t.r, i, "t", KVFERRY_OUTCOME_FAILED, "checksum_differs");
        rig_expect_released(t.r, i, "t", KVFERRY_OUTCOME_FAILED, "checksum_differs");
    }
    rig_free(t.r);
}

static void verify_needs_memory_that_can_be_read(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1);
    r->options.verify = true;
    size_t blind = rig_engine(r, "blind", 1, 1);
    assert_int_equal(rig_ask(r, blind, "t", p, 9, 8), KVFERRY_REFUSED);
    assert_true(rig_reports(r, "verify_unsupported"));
    r->options.checksums = &rig_checksums;
    size_t d = rig_engine(r, "decode", 1, 1);
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 9, 8), KVFERRY_OK);
    rig_expect_end(r, d, "t", KVFERRY_OUTCOME_FAILED, "verify_unsupported");
    rig_free(r);
}

/* What a close aborts is remembered, each in place of an older one: so of one that the close looks at next. */
static void a_close_where_more_ends_than_is_remembered(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.max_transfers = 2;
    two t = begin_with(r, false);
    const char *const over[] = {"a", "b"};
    assert_int_equal(rig_offer(r, t.p, "long", 1, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(rig_offer(r, t.p, over[i], 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
        assert_int_equal(core_abort(r->nodes[t.p].core, KVFERRY_SIDE_PREFILL, over[i], r->now), KVFERRY_OK);
    }
    assert_int_equal(rig_offer(r, t.p, "last", 5, 8, KVFERRY_NOT_READY), KVFERRY_OK);
    core_bye(r->nodes[t.p].core, r->now);
    assert_int_equal(counts_of(r, t.p).live[KVFERRY_SIDE_PREFILL], 0);
    rig_run(r);
    rig_expect(r, t.p, KVFERRY_EVENT_RELEASED, "long", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    rig_expect(r, t.p, KVFERRY_EVENT_RELEASED, "last", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    rig_free(r);
}

static void what_is_past_takes_no_room_of_who_asks_early(void **state)
{
    (void)state;
    enum { MOST = 8, WORKERS = 4 };
    rig *r = rig_create();
    r->options.max_transfers = MOST;
    size_t p = rig_engine(r, "prefill", 1, 1);
    r->options.max_transfers = 64;
    size_t d = rig_engine(r, "decode", WORKERS, 1);
    for (int k = 0; k < MOST; k++) {
        char id[16];
        snprintf(id, sizeof(id), "past%d", k);
        assert_int_equal(rig_offer(r, p, id, 1, 8, KVFERRY_READY), KVFERRY_OK);
        for (size_t i = 0; i < WORKERS; i++)
            assert_int_equal(rig_ask(r, d + i, id, p, 1, 8), KVFERRY_OK);
        rig_expect_done(r, p, id);
    }
    for (size_t i = 0; i < WORKERS; i++)
        assert_int_equal(rig_ask(r, d + i, "early1", p, 5, 8), KVFERRY_OK);
    for (size_t i = 0; i < WORKERS; i++)
        assert_int_equal(rig_ask(r, d + i, "early2", p, 9, 8), KVFERRY_OK);
    assert_int_equal(rig_offer(r, p, "early1", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_offer(r, p, "early2", 9, 8, KVFERRY_READY), KVFERRY_OK);
    rig_expect_done(r, p, "early1");
    rig_expect_done(r, p, "early2");
    rig_free(r);
}

static void the_status_is_json(void **state)
{
    (void)state;
    two t = begin_with(rig_create(), false);
    t.r->nodes[t.p].hold = true;
    assert_int_equal(rig_offer(t.r, t.p, "t \"1\"", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t \"1\"", t.p, 9, 8), KVFERRY_OK);
    for (size_t i = t.p; i <= t.d; i++) {
        base_text text = {0};
        assert_int_equal(core_status(t.r->nodes[i].core, t.r->now, &text), KVFERRY_OK);
        assert_non_null(strstr(text.data, "\"transfer_id\":\"t \\\"1\\\"\""));
        assert_non_null(strstr(text.data, i == t.p ? "\"role\":\"target\"" : "\"role\":\"source\""));
        assert_non_null(strstr(text.data, "\"state\":\"connected\""));
        free(text.data);
    }
    rig_free(t.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_target_blocks_are_refused),
        cmocka_unit_test(bad_source_blocks_are_refused),
        cmocka_unit_test(a_request_that_the_source_cannot_serve_is_refused_with_all_reasons),
        cmocka_unit_test(transfers_are_limited),
        cmocka_unit_test(early_asks_are_bounded_and_the_oldest_goes),
        cmocka_unit_test(what_has_no_record_any_more_is_released_by_a_settle),
        cmocka_unit_test(a_settle_that_there_is_no_room_to_remember_is_answered),
        cmocka_unit_test(too_many_early_asks_of_one_peer_cost_no_other),
        cmocka_unit_test(too_much_that_one_peer_wants_early_costs_no_other),
        cmocka_unit_test(one_offer_serves_one_decode_engine),
        cmocka_unit_test(many_transfers_leave_no_more_than_is_remembered),
        cmocka_unit_test(those_that_never_answer_a_settle_are_few),
        cmocka_unit_test(those_that_are_told_once_they_are_known_are_few),
        cmocka_unit_test(verify_agrees),
        cmocka_unit_test(what_verify_finds_fails_all),
        cmocka_unit_test(verify_needs_memory_that_can_be_read),
        cmocka_unit_test(a_close_where_more_ends_than_is_remembered),
        cmocka_unit_test(what_is_past_takes_no_room_of_who_asks_early),
        cmocka_unit_test(the_status_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
