/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes that are all right by themselves cannot do with each other, one case each: the asking side hears by name
 * why, the other side counts it, and nothing is written. What is said untruly is in core_lies_test.c.
 */
#include "node/rig_test.h"

enum { TOKENS = 8 };

static uint64_t refused_for(rig *r, size_t index, const char *code)
{
    const node_codes *refusals = core_refusals(r->nodes[index].core);
    for (size_t i = 0; i < refusals->used; i++)
        if (strcmp(refusals->of[i].code, code) == 0)
            return refusals->of[i].count[0];
    return 0;
}

static uint64_t failed_at(rig *r, size_t index, kvferry_side side)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts.ended[side][KVFERRY_OUTCOME_FAILED];
}

static void ended(rig *r, size_t index, const char *id, const char *code)
{
    rig_expect_end(r, index, id, KVFERRY_OUTCOME_FAILED, code);
    rig_expect_released(r, index, id, KVFERRY_OUTCOME_FAILED, code);
}

/* --- other caches: refused in the handshake, before anything is asked ------------------------------------------- */

/* The decode engine is `other`; the offer of a prefill engine waits for one that fits. */
static void caches_do_not_fit(rig_shape other, const char *code)
{
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1);
    other.engine_id = "decode";
    other.tps = other.pps = 1;
    size_t d = rig_engine_of(r, &other), fits = rig_engine(r, "fits", 1, 1);
    assert_int_equal(rig_offer(r, p, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    uint64_t asks = r->sent[WIRE_ASK], before = r->now;
    assert_int_equal(rig_ask(r, d, "t", p, 9, TOKENS), KVFERRY_OK);
    ended(r, d, "t", code);
    assert_int_equal(r->now, before); /* at once */
    assert_int_equal(r->sent[WIRE_ASK], asks);
    assert_int_equal(r->nodes[p].write_count, 0);
    assert_int_equal(refused_for(r, p, code), 1);
    assert_int_equal(refused_for(r, d, code), 1);
    assert_int_equal(failed_at(r, d, KVFERRY_SIDE_DECODE), 1);
    rig_quiet(r, p);
    assert_int_equal(rig_ask(r, fits, "t", p, 9, TOKENS), KVFERRY_OK);
    rig_expect_done(r, fits, "t");
    rig_expect_done(r, p, "t");
    rig_free(r);
}

static void another_model_is_refused(void **state)
{
    (void)state;
    caches_do_not_fit((rig_shape){.model = "test/other"}, "identity_differs");
}

static void another_type_of_elements_is_refused(void **state)
{
    (void)state;
    caches_do_not_fit((rig_shape){.dtype = "float16"}, "dtype_differs");
}

static void another_number_of_heads_is_refused(void **state)
{
    (void)state;
    caches_do_not_fit((rig_shape){.heads = 2 * RIG_HEADS}, "global_extent_differs");
}

static void another_size_of_cells_is_refused(void **state)
{
    (void)state;
    caches_do_not_fit((rig_shape){.long_cells = true}, "cell_bytes_differ");
}

static void a_group_that_the_source_lacks_is_refused(void **state)
{
    (void)state;
    caches_do_not_fit((rig_shape){.state = true}, "stream_missing");
}

/* All reasons that planning has, and no fewer, on both sides' reports and over the wire. */
static void every_reason_is_told_at_once(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1);
    size_t d = rig_engine_of(r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1, .model = "test/other",
                                             .dtype = "float16", .long_cells = true});
    assert_int_equal(rig_ask(r, d, "t", p, 9, TOKENS), KVFERRY_OK);
    const rig_node *node = &r->nodes[d];
    bool identity = false, dtype = false, cell = false;
    for (size_t i = 0; i < node->event_count; i++)
        for (size_t k = 0; k < kvferry_report_count(node->events[i]->report); k++) {
            const char *code = kvferry_report_get(node->events[i]->report, k)->code;
            identity |= strcmp(code, "identity_differs") == 0;
            dtype |= strcmp(code, "dtype_differs") == 0;
            cell |= strcmp(code, "cell_bytes_differ") == 0;
        }
    assert_true(identity && dtype && cell);
    rig_free(r);
}

/* --- asks that do not fit what is there -------------------------------------------------------------------------- */

typedef struct two {
    rig *r;
    size_t p, d;
} two;

static two begin(bool state)
{
    two t = {.r = rig_create()};
    t.p = rig_engine_of(t.r, &(rig_shape){.engine_id = "prefill", .tps = 1, .pps = 1, .state = state});
    t.d = rig_engine_of(t.r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1, .state = state});
    return t;
}

/* Refused by the call, counted there; no ask leaves the node. */
static void call_refuses(two *t, const kvferry_block_table *table, const char *code)
{
    const kvferry_ask ask = {.size = sizeof(kvferry_ask), .transfer_id = "bad", .engine_id = "prefill",
                             .where = t->r->nodes[t->p].address, .tokens = TOKENS, .tables = table,
                             .table_count = 1};
    size_t asks = t->r->sent[WIRE_ASK];
    uint64_t before = refused_for(t->r, t->d, code);
    kvferry_report_clear(t->r->report);
    assert_int_equal(core_ask(t->r->nodes[t->d].core, &ask, t->r->now, t->r->report), KVFERRY_REFUSED);
    assert_true(rig_reports(t->r, code));
    assert_int_equal(refused_for(t->r, t->d, code), before + 1);
    rig_run(t->r);
    assert_int_equal(t->r->sent[WIRE_ASK], asks);
}

static void wrong_null_and_foreign_target_blocks_are_refused(void **state)
{
    (void)state;
    two t = begin(true);
    t.r->nodes[t.p].hold = true;
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    const kvferry_block_table wrong = {"attn", 0, (const uint32_t[]){RIG_BLOCKS}, 1};
    const kvferry_block_table null = {"ssm", 0, (const uint32_t[]){0}, 1};
    const kvferry_block_table foreign = {"attn", 0, (const uint32_t[]){1, 10}, 2};
    call_refuses(&t, &wrong, "block_range");
    call_refuses(&t, &null, "block_null");
    call_refuses(&t, &foreign, "block_owned");
    assert_int_equal(t.r->nodes[t.p].write_count, 1);
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_free(t.r);
}

/* A null block that stands for tokens that nobody wants is never written, whatever else is asked for. */
static void a_null_block_is_not_written(void **state)
{
    (void)state;
    two t = begin(false);
    rig_cells(t.r, t.p, 7, 5, TOKENS, false);
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    const kvferry_block_table table = {"attn", 0, (const uint32_t[]){0, 9}, 2};
    const kvferry_ask ask = {.size = sizeof(kvferry_ask), .transfer_id = "t", .engine_id = "prefill",
                             .where = t.r->nodes[t.p].address, .tokens = TOKENS, .tables = &table,
                             .table_count = 1};
    assert_int_equal(core_ask(t.r->nodes[t.d].core, &ask, t.r->now, NULL), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    uint64_t page = RIG_HEADS * RIG_TOKENS * RIG_CELL;
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        for (uint64_t i = 0; i < page; i++)
            assert_int_equal(rig_cell(t.r, t.d, layer, 0, 0, 0)[i], 0);
    assert_int_not_equal(*rig_cell(t.r, t.d, 0, 9, 0, 0), 0);
    rig_free(t.r);
}

/* Halves of a request come in any order, so it is known only after early_ms. */
static void what_was_never_offered_is_unknown(void **state)
{
    (void)state;
    two t = begin(false);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    rig_wait(t.r, RIG_EARLY_MS - 1);
    rig_quiet(t.r, t.d);
    rig_wait(t.r, 1);
    ended(t.r, t.d, "t", "transfer_unknown");
    assert_int_equal(refused_for(t.r, t.p, "transfer_unknown"), 1);
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    rig_free(t.r);
}

static void what_is_offered_twice_is_known(void **state)
{
    (void)state;
    two t = begin(false);
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_offer(t.r, t.p, "t", 9, TOKENS, KVFERRY_READY), KVFERRY_REFUSED);
    assert_true(rig_reports(t.r, "transfer_known"));
    assert_int_equal(refused_for(t.r, t.p, "transfer_known"), 1);
    rig_cells(t.r, t.p, 7, 5, TOKENS, false); /* the first offer's blocks are those that are sent */
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    assert_int_equal(rig_cells(t.r, t.d, 7, 9, TOKENS, true), 0);
    rig_free(t.r);
}

static void what_is_done_is_over_for_the_next_life_and_for_others(void **state)
{
    (void)state;
    two t = begin(false);
    size_t other = rig_engine(t.r, "other", 1, 1);
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_REFUSED);
    assert_int_equal(refused_for(t.r, t.d, "transfer_over"), 1);
    assert_int_equal(rig_ask(t.r, other, "t", t.p, 9, TOKENS), KVFERRY_OK);
    ended(t.r, other, "t", "transfer_over");
    rig_kill(t.r, t.d);
    rig_birth(t.r, t.d);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    ended(t.r, t.d, "t", "transfer_over");
    assert_int_equal(refused_for(t.r, t.p, "transfer_over"), 2);
    assert_int_equal(t.r->nodes[t.p].write_count, 1);
    rig_free(t.r);
}

/* The one that is there now does not take what was meant for the one before. */
static void what_is_meant_for_another_incarnation_is_refused(void **state)
{
    (void)state;
    two t = begin(false);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    rig_kill(t.r, t.p);
    rig_birth(t.r, t.p);
    kvferry_node_statistics before, after;
    core_get_statistics(t.r->nodes[t.p].core, &before);
    rig_wait(t.r, RIG_RETRY_MS + RIG_LINGER_MS + RIG_EARLY_MS);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "incarnation");
    core_get_statistics(t.r->nodes[t.p].core, &after);
    assert_true(after.ignored > before.ignored);
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    rig_free(t.r);
}

/* --- who listens at the address has not proved its key ------------------------------------------------------- */

/* The link that the core opens next, after a while. */
static core_link next_link(rig *r, node_core *core)
{
    core_effect effect;
    core_link link = 0;
    r->now += RIG_RETRY_MS * RIG_MS;
    core_tick(core, r->now);
    while (core_next_effect(core, &effect))
        if (effect.kind == CORE_OPEN_LINK)
            link = effect.link;
    assert_int_not_equal(link, 0);
    return link;
}

static const char other_key[] =
    "tcp://127.0.0.1:9/00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static void a_key_that_is_not_proved_ends_the_handshake(void **state)
{
    (void)state;
    const char *where = other_key;
    rig *r = rig_create();
    r->keyed = true;
    size_t d = rig_engine(r, "decode", 1, 1);
    node_core *core = r->nodes[d].core;
    assert_int_equal(core_connect(core, "prefill", where, r->now, r->report), KVFERRY_OK);
    /* For a while they may be of a process that goes or comes, behind a proxy; another end begins the time anew. */
    for (int i = 0; i < 2 + RIG_SILENCE_MS / RIG_RETRY_MS; i++) {
        core_link_ended(core, next_link(r, core), i == 1 ? CORE_LINK_LOST : CORE_LINK_UNPROVED, r->now);
        rig_quiet(r, d);
        assert_int_equal(r->nodes[d].event_count, 0);
    }
    core_link_ended(core, next_link(r, core), CORE_LINK_UNPROVED, r->now);
    rig_run(r);
    assert_int_equal(r->nodes[d].event_count, 1);
    const kvferry_reason *reason = kvferry_report_get(r->nodes[d].events[0]->report, 0);
    assert_string_equal(reason->code, "key_unproved");
    assert_non_null(strstr(reason->expected, strrchr(where, '/') + 1));
    rig_free(r);
}

/* Where connect_ms is less than that. */
static void a_key_that_is_not_proved_is_the_reason_at_the_deadline(void **state)
{
    (void)state;
    for (int often = 0; often < 2; often++) {
        rig *r = rig_create();
        r->keyed = true;
        r->options.connect_ns = (RIG_SILENCE_MS - RIG_RETRY_MS) * RIG_MS;
        size_t d = rig_engine(r, "decode", 1, 1);
        node_core *core = r->nodes[d].core;
        assert_int_equal(core_connect(core, "prefill", other_key, r->now, r->report), KVFERRY_OK);
        for (int i = 0; i < (often ? 3 : 1); i++)
            core_link_ended(core, next_link(r, core), CORE_LINK_UNPROVED, r->now);
        r->now += RIG_SILENCE_MS * RIG_MS; /* what is open then says nothing */
        core_tick(core, r->now);
        rig_run(r);
        assert_int_equal(r->nodes[d].event_count, 1);
        assert_string_equal(r->nodes[d].events[0]->code, often ? "key_unproved" : "connect_timeout");
        rig_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(another_type_of_elements_is_refused),
        cmocka_unit_test(another_number_of_heads_is_refused),
        cmocka_unit_test(another_size_of_cells_is_refused),
        cmocka_unit_test(a_group_that_the_source_lacks_is_refused),
        cmocka_unit_test(every_reason_is_told_at_once),
        cmocka_unit_test(wrong_null_and_foreign_target_blocks_are_refused),
        cmocka_unit_test(a_null_block_is_not_written),
        cmocka_unit_test(what_was_never_offered_is_unknown),
        cmocka_unit_test(what_is_offered_twice_is_known),
        cmocka_unit_test(what_is_done_is_over_for_the_next_life_and_for_others),
        cmocka_unit_test(what_is_meant_for_another_incarnation_is_refused),
        cmocka_unit_test(a_key_that_is_not_proved_ends_the_handshake),
        cmocka_unit_test(a_key_that_is_not_proved_is_the_reason_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
