/* SPDX-License-Identifier: Apache-2.0 */
/* Whole blocks of windows of which a source does not hold all: what an ask that allows a part gets, and who says so. */
#include "node/liar_test.h"

/*
 * Of 23 tokens the last ten: the window begins at token 13, in the decode side's block of the tokens from 8 on. The
 * prefill side's blocks are half as long: those of the tokens from 12 on have all of the window.
 */
enum { ALL = 23, WINDOW = 10, FIRST = 8, SALT = 3, OFFERED = 5, ASKED = 4, PAGES = 2, SOURCES = 2 };

typedef enum holding { ALL_OF_IT, CUT, NULLS, NO_WINDOW } holding;

typedef struct windows {
    rig *r;
    size_t p, d;
} windows;

static windows begin_with(rig *r)
{
    size_t p = rig_engine_of(r, &(rig_shape){.engine_id = "prefill", .tps = SOURCES, .pps = 1, .window = WINDOW});
    size_t d = rig_engine_of(
        r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1, .window = WINDOW, .pages = PAGES});
    return (windows){r, p, d};
}

static windows begin_windows(bool verify)
{
    rig *r = rig_create();
    if (verify) {
        r->options.verify = true;
        r->options.checksums = &rig_checksums;
    }
    return begin_with(r);
}

/* The blocks from OFFERED on, of which the worker does not hold all. */
static void offer(const windows *w, size_t rank, const char *id, holding holds)
{
    static const uint32_t blocks[] = {OFFERED, OFFERED + 1, OFFERED + 2, OFFERED + 3, OFFERED + 4, OFFERED + 5};
    static const uint32_t nulls[] = {0, 0, 0, OFFERED + 3, OFFERED + 4, OFFERED + 5};
    static const kvferry_block_table tables[] = {[ALL_OF_IT] = {"attn", 0, blocks, 6},
                                                 [CUT] = {"attn", 12, blocks + 3, 3},
                                                 [NULLS] = {"attn", 0, nulls, 6},
                                                 [NO_WINDOW] = {"attn", 12, blocks + 3, 2}};
    const kvferry_offer offered = {sizeof(offered), id, ALL, &tables[holds], 1, KVFERRY_READY, w->r};
    rig_cells(w->r, w->p + rank, SALT, OFFERED, ALL, false);
    assert_int_equal(core_offer(w->r->nodes[w->p + rank].core, &offered, w->r->now, w->r->report), KVFERRY_OK);
    rig_run(w->r);
}

static void offer_all(const windows *w, const char *id, holding holds)
{
    for (size_t i = 0; i < SOURCES; i++)
        offer(w, i, id, holds);
}

static void ask_with(const windows *w, const char *id, bool whole, bool part, size_t tables)
{
    static const uint32_t blocks[] = {ASKED, ASKED + 1, ASKED + 2};
    const kvferry_block_table table = {"attn", 0, blocks, 3};
    const kvferry_ask asked = {.size = sizeof(asked), .transfer_id = id, .engine_id = "prefill",
                               .where = w->r->nodes[w->p].address, .tokens = ALL, .tables = &table,
                               .table_count = tables, .whole_blocks = whole, .allow_part = part};
    assert_int_equal(core_ask(w->r->nodes[w->d].core, &asked, w->r->now, w->r->report), KVFERRY_OK);
    rig_run(w->r);
}

static void ask(const windows *w, const char *id) { ask_with(w, id, true, true, 1); }

/* The heads of a rank, from a token of its window's block on; nothing else. */
static void assert_moved(const windows *w, size_t rank, uint32_t from)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        for (uint32_t token = 0; token < ALL; token++)
            for (uint32_t head = 0; head < RIG_HEADS / SOURCES; head++) {
                uint32_t global = (uint32_t)rank * RIG_HEADS / SOURCES + head;
                uint8_t found = *rig_cell(w->r, w->d, layer, ASKED * PAGES + token / RIG_TOKENS, token % RIG_TOKENS,
                                          global);
                assert_int_equal(found, token >= from ? rig_value(SALT, layer, token, global) : 0);
            }
}

static const kvferry_event *event_of(const windows *w, size_t index, kvferry_event_kind kind, const char *id)
{
    const rig_node *node = &w->r->nodes[index];
    for (size_t i = 0; i < node->event_count; i++)
        if (node->events[i]->kind == kind && strcmp(node->events[i]->transfer_id, id) == 0)
            return node->events[i];
    fail_msg("no event of %s", id);
    return NULL;
}

static bool said_part(const windows *w, size_t index, kvferry_event_kind kind, const char *id)
{
    return event_of(w, index, kind, id)->part;
}

/* Why the ask failed. */
static const char *why(const windows *w, const char *id)
{
    const kvferry_event *event = event_of(w, w->d, KVFERRY_EVENT_ENDED, id);
    assert_int_equal(kvferry_report_count(event->report), 1);
    return kvferry_report_get(event->report, 0)->message;
}

/* All are done, and only the decode side's end says that it is a part. */
static void expect_done(const windows *w, const char *id, bool part)
{
    rig_run(w->r);
    assert_int_equal(said_part(w, w->d, KVFERRY_EVENT_ENDED, id), part);
    assert_false(said_part(w, w->d, KVFERRY_EVENT_RELEASED, id));
    rig_expect_done(w->r, w->d, id);
    for (size_t i = w->p; i < w->p + SOURCES; i++) {
        assert_false(said_part(w, i, KVFERRY_EVENT_ENDED, id));
        rig_expect_done(w->r, i, id);
    }
}

static void expect_failed(const windows *w, const char *id, const char *code)
{
    rig_run(w->r);
    assert_false(said_part(w, w->d, KVFERRY_EVENT_ENDED, id));
    rig_expect_end(w->r, w->d, id, KVFERRY_OUTCOME_FAILED, code);
    rig_expect_released(w->r, w->d, id, KVFERRY_OUTCOME_FAILED, code);
}

/* --- what moves ------------------------------------------------------------------------------------------ */

/* By what the sources hold. */
static void expect_moved(const windows *w, holding first, holding second)
{
    expect_done(w, "t", first != ALL_OF_IT || second != ALL_OF_IT);
    assert_moved(w, 0, first == ALL_OF_IT ? FIRST : ALL - WINDOW);
    assert_moved(w, 1, second == ALL_OF_IT ? FIRST : ALL - WINDOW);
}

static void moves(holding first, holding second, bool verify)
{
    windows w = begin_windows(verify);
    offer(&w, 0, "t", first);
    offer(&w, 1, "t", second);
    ask(&w, "t");
    expect_moved(&w, first, second);
    rig_free(w.r);
}

static void where_all_is_held_all_is_moved(void **state)
{
    (void)state;
    moves(ALL_OF_IT, ALL_OF_IT, false);
}

/* Also not what is held of it. */
static void where_it_is_not_held_the_window_alone_is_moved(void **state)
{
    (void)state;
    moves(CUT, CUT, false);
    moves(NULLS, NULLS, false);
}

static void each_source_moves_what_it_holds(void **state)
{
    (void)state;
    moves(ALL_OF_IT, CUT, false);
    moves(NULLS, ALL_OF_IT, false);
}

static void verify_compares_what_each_source_moved(void **state)
{
    (void)state;
    moves(ALL_OF_IT, ALL_OF_IT, true);
    moves(CUT, NULLS, true);
    moves(CUT, ALL_OF_IT, true);
    moves(ALL_OF_IT, NULLS, true);
}

/* What is decided is decided for all of them. */
static void slices_are_of_one_mind(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.max_peer_copies = 16;
    windows w = begin_with(r);
    offer(&w, 0, "t", CUT);
    offer(&w, 1, "t", ALL_OF_IT);
    ask(&w, "t");
    expect_done(&w, "t", true);
    for (size_t i = w.p; i < w.p + SOURCES; i++)
        assert_true(r->nodes[i].write_count > 1);
    assert_moved(&w, 0, ALL - WINDOW);
    assert_moved(&w, 1, FIRST);
    rig_free(w.r);
}

/* --- what is refused as ever ------------------------------------------------------------------------------ */

static void who_does_not_allow_it_gets_nothing(void **state)
{
    (void)state;
    windows w = begin_windows(false);
    offer_all(&w, "t", CUT);
    ask_with(&w, "t", true, false, 1);
    expect_failed(&w, "t", "source_null");
    rig_free(w.r);
}

/* The reason is of the window, not of what comes before it. */
static void the_window_itself_is_no_part(void **state)
{
    (void)state;
    windows w = begin_windows(false);
    offer(&w, 0, "t", ALL_OF_IT);
    offer(&w, 1, "t", NO_WINDOW);
    ask(&w, "t");
    assert_non_null(strstr(why(&w, "t"), "token 20"));
    assert_null(strstr(why(&w, "t"), "whole_blocks"));
    expect_failed(&w, "t", "source_null");
    assert_moved(&w, 1, ALL);
    rig_free(w.r);
}

static void without_whole_blocks_nothing_is_left_out(void **state)
{
    (void)state;
    windows w = begin_windows(false);
    offer_all(&w, "t", CUT);
    ask_with(&w, "t", false, true, 1);
    expect_done(&w, "t", false);
    offer_all(&w, "hit", CUT);
    ask_with(&w, "hit", true, true, 0);
    expect_done(&w, "hit", false);
    rig_free(w.r);
}

/* --- messages that get lost, and who is older --------------------------------------------------------------- */

static size_t verdicts_lost;

static bool loses_first_verdicts(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_VERDICT && verdicts_lost++ < 2 * SOURCES;
}

static void repeats(bool verify)
{
    windows w = begin_windows(verify);
    verdicts_lost = 0;
    w.r->loses = loses_first_verdicts;
    offer(&w, 0, "t", CUT);
    offer(&w, 1, "t", ALL_OF_IT);
    ask(&w, "t");
    assert_false(rig_has(w.r, w.d, KVFERRY_EVENT_ENDED, "t"));
    rig_wait(w.r, 4 * RIG_RETRY_MS);
    assert_true(verdicts_lost > 2 * SOURCES);
    expect_done(&w, "t", true);
    assert_moved(&w, 0, ALL - WINDOW);
    rig_free(w.r);
}

static void a_verdict_that_is_repeated_says_the_same(void **state)
{
    (void)state;
    repeats(false);
    repeats(true);
}

static void is_born_again(const windows *w, size_t rank)
{
    rig_kill(w->r, w->p + rank);
    rig_birth(w->r, w->p + rank);
}

static void is_led(const windows *w)
{
    const rig_node *nodes = &w->r->nodes[w->p];
    assert_int_equal(core_set_leader(nodes[1].core, nodes[0].address, w->r->now, NULL), KVFERRY_OK);
}

static bool loses_asks_of_second(rig *r, size_t from, size_t to, wire_type type)
{
    return type == WIRE_ASK && to == 1 && from + 1 == r->count;
}

/* The second one dies before it heard the ask; what the first one said holds when its successor is asked. */
static void what_was_said_holds_when_another_source_is_asked_again(void **state)
{
    (void)state;
    windows w = begin_windows(false);
    assert_int_equal(w.p, 0);
    w.r->loses = loses_asks_of_second;
    offer(&w, 0, "t", CUT);
    offer(&w, 1, "t", ALL_OF_IT);
    ask(&w, "t");
    is_born_again(&w, 1);
    is_led(&w);
    w.r->loses = NULL;
    offer(&w, 1, "t", ALL_OF_IT);
    rig_wait(w.r, 4 * RIG_RETRY_MS);
    expect_done(&w, "t", true);
    assert_moved(&w, 0, ALL - WINDOW);
    assert_moved(&w, 1, FIRST);
    rig_free(w.r);
}

static bool loses_verdicts_of_second(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)to;
    return type == WIRE_VERDICT && from == 1;
}

/* The first one was done and is gone when the second one's verdict arrives. */
static void outlives(bool verify, holding second)
{
    windows w = begin_windows(verify);
    assert_int_equal(w.p, 0);
    w.r->loses = loses_verdicts_of_second;
    offer(&w, 0, "t", CUT);
    offer(&w, 1, "t", second);
    ask(&w, "t");
    rig_wait(w.r, RIG_RETRY_MS);
    is_born_again(&w, 0);
    is_led(&w);
    rig_wait(w.r, 3 * RIG_RETRY_MS);
    assert_false(rig_has(w.r, w.d, KVFERRY_EVENT_ENDED, "t"));
    w.r->loses = NULL;
    rig_wait(w.r, 6 * RIG_RETRY_MS);
    assert_true(said_part(&w, w.d, KVFERRY_EVENT_ENDED, "t"));
    rig_expect_done(w.r, w.d, "t");
    assert_moved(&w, 0, ALL - WINDOW);
    assert_moved(&w, 1, second == ALL_OF_IT ? FIRST : ALL - WINDOW);
    rig_free(w.r);
}

static void what_was_said_outlives_who_said_it(void **state)
{
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        outlives(verify, ALL_OF_IT);
        outlives(verify, CUT);
    }
}

static bool loses_the_second(rig *r, size_t from, size_t to, wire_type type)
{
    return loses_asks_of_second(r, from, to, type) || loses_verdicts_of_second(r, from, to, type);
}

/* Both are replaced, and the request is offered anew: what counts is what the new ones hold. */
static void replaced(bool verify, holding first, holding second)
{
    windows w = begin_windows(verify);
    w.r->loses = loses_the_second;
    offer_all(&w, "t", CUT);
    ask(&w, "t");
    rig_wait(w.r, RIG_RETRY_MS);
    is_born_again(&w, 0);
    is_born_again(&w, 1);
    is_led(&w);
    w.r->loses = NULL;
    offer(&w, 0, "t", first);
    offer(&w, 1, "t", second);
    rig_wait(w.r, 20 * RIG_RETRY_MS);
    expect_moved(&w, first, second);
    rig_free(w.r);
}

static void new_sources_speak_for_themselves(void **state)
{
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        replaced(verify, ALL_OF_IT, ALL_OF_IT);
        replaced(verify, CUT, ALL_OF_IT);
        replaced(verify, ALL_OF_IT, NULLS);
    }
}

static void an_older_source_is_asked_if_it_knows_whole_blocks(void **state)
{
    (void)state;
    static const unsigned char whole[] = {1, 2}, older[] = {1, 1};
    windows w = begin_windows(false);
    w.r->nodes[w.p].version = w.r->nodes[w.p + 1].version = whole;
    offer_all(&w, "t", ALL_OF_IT);
    ask(&w, "t");
    expect_done(&w, "t", false);
    w.r->nodes[w.p].version = w.r->nodes[w.p + 1].version = older;
    rig_break(w.r, w.d);
    rig_wait(w.r, RIG_RETRY_MS);
    offer_all(&w, "u", ALL_OF_IT);
    ask(&w, "u");
    expect_failed(&w, "u", "message_version");
    rig_free(w.r);
}

static bool loses_verdicts(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_VERDICT;
}

/* A source that is wrong: what it left out was wanted. */
static void lies(bool verify, bool whole)
{
    windows w = begin_windows(verify);
    w.r->loses = loses_verdicts;
    offer_all(&w, "t", ALL_OF_IT);
    ask_with(&w, "t", whole, !whole, 1);
    liar l = make_liar(w.r, w.d, "prefill");
    l.name = w.r->nodes[w.p].incarnation;
    l.link = link_between(w.r, w.d, w.p);
    const core_part *part = core_parts_find(w.r->nodes[w.d].core->requests, l.name);
    wire_message done = {.type = WIRE_VERDICT, .transfer_id = "t"};
    memcpy(done.body.verdict.attempt, part->attempt, WIRE_INCARNATION_TEXT);
    done.body.verdict.part = true;
    tell(&l, done);
    assert_non_null(strstr(why(&w, "t"), l.name));
    rig_wait(w.r, 2 * RIG_RETRY_MS); /* the liar has heard the settle */
    expect_failed(&w, "t", "part_not_allowed");
    for (size_t i = w.p; i < w.p + SOURCES; i++) { /* who waits for a word has it; who does not was done */
        if (verify)
            rig_expect_end(w.r, i, "t", KVFERRY_OUTCOME_FAILED, "part_not_allowed");
        else
            rig_expect_done(w.r, i, "t");
    }
    end_liar(&l);
    rig_free(w.r);
}

static void a_part_that_was_not_allowed_is_a_failure(void **state)
{
    (void)state;
    lies(false, true);
    lies(true, true);
    lies(false, false);
    lies(true, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_all_is_held_all_is_moved),
        cmocka_unit_test(where_it_is_not_held_the_window_alone_is_moved),
        cmocka_unit_test(each_source_moves_what_it_holds),
        cmocka_unit_test(verify_compares_what_each_source_moved),
        cmocka_unit_test(slices_are_of_one_mind),
        cmocka_unit_test(who_does_not_allow_it_gets_nothing),
        cmocka_unit_test(the_window_itself_is_no_part),
        cmocka_unit_test(without_whole_blocks_nothing_is_left_out),
        cmocka_unit_test(a_verdict_that_is_repeated_says_the_same),
        cmocka_unit_test(what_was_said_holds_when_another_source_is_asked_again),
        cmocka_unit_test(what_was_said_outlives_who_said_it),
        cmocka_unit_test(new_sources_speak_for_themselves),
        cmocka_unit_test(an_older_source_is_asked_if_it_knows_whole_blocks),
        cmocka_unit_test(a_part_that_was_not_allowed_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
