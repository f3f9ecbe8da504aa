/* SPDX-License-Identifier: Apache-2.0 */
/* What is done a part at a time: windows of copies, turns of requests, checksums, plans. */
#define RIG_CELL_BYTES 16384
#define RIG_BLOCK_COUNT 16
#include "node/rig_test.h"

typedef struct two {
    rig *r;
    size_t p, d;
} two;

static kvferry_node_statistics counts_of(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts;
}

/* Two nodes of which the first has so many copies in flight to one peer, each ended by rig_finish. A block has 4. */
static two begin_held(uint64_t max_peer_copies)
{
    rig *r = rig_create();
    r->options.max_peer_copies = max_peer_copies;
    two t = {.r = r, .p = rig_engine(r, "prefill", 1, 1)};
    t.d = rig_engine(r, "decode", 1, 1);
    r->nodes[t.p].hold = true;
    return t;
}

static void move(two *t, const char *id, uint32_t block, uint64_t tokens)
{
    assert_int_equal(rig_offer(t->r, t->p, id, 2, tokens, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t->r, t->d, id, t->p, block, tokens), KVFERRY_OK);
}

static size_t copies_in_flight(const two *t)
{
    size_t count = 0;
    for (size_t i = 0; i < RIG_WRITES; i++)
        count += t->r->nodes[t->p].writes[i].used ? t->r->nodes[t->p].writes[i].count : 0;
    return count;
}

static void copies_to_one_peer_wait_their_turn(void **state)
{
    (void)state;
    two t = begin_held(11);
    rig *r = t.r;
    move(&t, "a", 1, 8);
    move(&t, "b", 3, 8);
    move(&t, "c", 5, 8);
    assert_int_equal(copies_in_flight(&t), 8);
    rig_wait(r, 2 * RIG_SILENCE_MS);
    rig_quiet(r, t.d);
    assert_int_equal(core_abort(r->nodes[t.d].core, KVFERRY_SIDE_DECODE, "b", r->now), KVFERRY_OK);
    rig_expect_end(r, t.d, "b", KVFERRY_OUTCOME_ABORTED, "target_aborted"); /* one that waits can go */
    rig_run(r);
    while (copies_in_flight(&t)) {
        rig_finish(r, t.p, KVFERRY_OK);
        rig_run(r);
    }
    rig_expect_done(r, t.d, "a");
    rig_expect_done(r, t.d, "c");
    rig_expect_released(r, t.d, "b", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    rig_free(r);
}

static void a_request_of_more_copies_than_the_window_moves_in_slices(void **state)
{
    (void)state;
    two t = begin_held(11);
    rig_cells(t.r, t.p, 3, 2, 39, false);
    move(&t, "long", 4, 39);
    size_t rounds = 0;
    for (; copies_in_flight(&t); rounds++) {
        assert_in_range(copies_in_flight(&t), 4, 11);
        rig_quiet(t.r, t.d);
        rig_finish(t.r, t.p, KVFERRY_OK);
        rig_run(t.r);
    }
    assert_int_equal(rounds, 5); /* 10 blocks, 2 at a time */
    rig_expect_done(t.r, t.d, "long");
    rig_expect_done(t.r, t.p, "long");
    assert_int_equal(rig_cells(t.r, t.d, 3, 4, 39, true), 0);
    assert_int_equal(counts_of(t.r, t.p).queued_copies, 0);
    assert_int_equal(counts_of(t.r, t.p).copies[KVFERRY_SIDE_PREFILL], 40);
    rig_free(t.r);
}

static void a_short_request_goes_beside_a_long_one(void **state)
{
    (void)state;
    two t = begin_held(16);
    move(&t, "long", 1, 48); /* 12 blocks, of which 4 are in flight at a time */
    assert_int_equal(copies_in_flight(&t), 16);
    move(&t, "short", 13, 4);
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_run(t.r);
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "short");
    assert_in_range(counts_of(t.r, t.p).copies[KVFERRY_SIDE_PREFILL], 4 + 16, 4 + 28); /* of 4 and 48 */
    rig_quiet(t.r, t.d);
    rig_free(t.r);
}

/* The rest of a request is not written, and its end waits for all that is in flight. */
static void one_slice_that_fails_ends_the_others(void **state)
{
    (void)state;
    two t = begin_held(16);
    move(&t, "t", 1, 48);
    rig_node *node = &t.r->nodes[t.p];
    node->deaf_cancel = true;
    rig_write first = node->writes[0];
    node->writes[0].used = false;
    core_write_ended(node->core, first.write, KVFERRY_ENGINE, "it broke", t.r->now);
    rig_run(t.r);
    rig_quiet(t.r, t.d);
    assert_int_equal(copies_in_flight(&t), 12);
    rig_finish(t.r, t.p, KVFERRY_OK);
    assert_int_equal(copies_in_flight(&t), 0);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "write_failed");
    rig_expect_end(t.r, t.p, "t", KVFERRY_OUTCOME_FAILED, "write_failed");
    assert_int_equal(node->write_count, 4);
    rig_free(t.r);
}

static void what_is_wrong_between_slices_is_refused(void **state)
{
    (void)state;
    two t = begin_held(16);
    assert_int_equal(rig_offer(t.r, t.p, "t", 2, 40, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 2, 48), KVFERRY_OK); /* the last tokens are nowhere */
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "source_null");
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    rig_free(t.r);
}

static void a_block_of_more_copies_than_the_window_is_refused(void **state)
{
    (void)state;
    two t = begin_held(3);
    move(&t, "t", 1, 4);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "too_many_copies");
    rig_free(t.r);
}

/* The time of one of which nothing is in flight ends by itself. */
static void who_waits_for_its_turn_expires(void **state)
{
    (void)state;
    two t = begin_held(4);
    move(&t, "a", 1, 8);
    move(&t, "b", 3, 8);
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_run(t.r); /* now b is in flight, and the rest of a waits */
    rig_wait(t.r, RIG_TRANSFER_MS + RIG_RETRY_MS);
    rig_expect_end(t.r, t.d, "a", KVFERRY_OUTCOME_EXPIRED, "deadline");
    rig_expect(t.r, t.d, KVFERRY_EVENT_RELEASED, "a", KVFERRY_OUTCOME_EXPIRED, "deadline");
    rig_free(t.r);
}

/* --- verify ----------------------------------------------------------------------------------------- */

static two begin_verified(void)
{
    rig *r = rig_create();
    r->options.verify = true;
    r->options.checksums = &rig_checksums;
    two t = {.r = r, .p = rig_engine(r, "prefill", 1, 1)};
    t.d = rig_engine(r, "decode", 1, 1);
    assert_int_equal(rig_offer(r, t.p, "t", 2, 48, KVFERRY_NOT_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, t.d, "t", t.p, 2, 48), KVFERRY_OK);
    return t;
}

/* Looks for effects as the driver does, until there are none; how many slices of checksums were made meanwhile. */
static size_t look(two *t, size_t index)
{
    rig_node *node = &t->r->nodes[index];
    core_effect effect;
    size_t before = node->sum_slices;
    while (core_next_effect(node->core, &effect))
        rig_do(t->r, index, &effect);
    return node->sum_slices - before;
}

enum { ALL_SLICES = RIG_LAYERS * 6, TURN_SLICES = 3 }; /* a block has 256 KiB of a layer, a slice two blocks */

/* Sums of 12 MiB: between two looks for effects, when calls of the program find the lock free, few are made. */
static void checksums_are_made_a_little_at_a_time(void **state)
{
    (void)state;
    two t = begin_verified();
    node_core *core = t.r->nodes[t.p].core;
    assert_int_equal(core_ready(core, "t", t.r->now), KVFERRY_OK);
    assert_int_equal(t.r->nodes[t.p].write_count, 0); /* the call expands nothing */
    size_t looks = 0;
    do {
        assert_in_range(look(&t, t.p), 0, TURN_SLICES);
        assert_int_equal(core_abort(core, KVFERRY_SIDE_PREFILL, "another", t.r->now), KVFERRY_NOT_FOUND);
        looks++;
    } while (core_next_time(core) <= t.r->now); /* there is more to do, at once */
    assert_int_equal(t.r->nodes[t.p].sum_slices, ALL_SLICES);
    assert_in_range(looks, ALL_SLICES / TURN_SLICES, ALL_SLICES + 2);
    rig_wait(t.r, 1); /* the same at the target */
    assert_int_equal(t.r->nodes[t.d].sum_slices, ALL_SLICES);
    rig_expect_done(t.r, t.d, "t");
    rig_expect_done(t.r, t.p, "t");
    assert_int_equal(t.r->nodes[t.p].sums + t.r->nodes[t.d].sums, 0);
    rig_free(t.r);
}

static void an_abort_ends_checksums_that_are_being_made(void **state)
{
    (void)state;
    two t = begin_verified();
    node_core *core = t.r->nodes[t.p].core;
    assert_int_equal(core_ready(core, "t", t.r->now), KVFERRY_OK);
    while (!look(&t, t.p))
        assert_true(core_next_time(core) <= t.r->now);
    assert_int_equal(core_abort(core, KVFERRY_SIDE_PREFILL, "t", t.r->now), KVFERRY_OK);
    assert_int_equal(t.r->nodes[t.p].sums, 0);
    assert_int_equal(look(&t, t.p), 0);
    rig_expect_end(t.r, t.p, "t", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    rig_expect_released(t.r, t.p, "t", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "source_aborted");
    rig_free(t.r);
}

/* At the target: its blocks are read no more once they are released. */
static void an_abort_ends_the_comparing_of_checksums(void **state)
{
    (void)state;
    two t = begin_verified();
    rig_node *target = &t.r->nodes[t.d];
    assert_int_equal(core_ready(t.r->nodes[t.p].core, "t", t.r->now), KVFERRY_OK);
    while (t.r->nodes[t.p].sum_slices < ALL_SLICES)
        look(&t, t.p);
    while (!target->sums) {
        look(&t, t.p);
        rig_post_one(t.r);
        look(&t, t.d);
    }
    assert_in_range(target->sum_slices, 1, ALL_SLICES - 1);
    assert_int_equal(core_abort(target->core, KVFERRY_SIDE_DECODE, "t", t.r->now), KVFERRY_OK);
    assert_int_equal(target->sums, 0);
    size_t made = target->sum_slices;
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    rig_expect_released(t.r, t.d, "t", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    rig_expect_end(t.r, t.p, "t", KVFERRY_OUTCOME_FAILED, "target_aborted");
    assert_int_equal(target->sum_slices, made);
    rig_free(t.r);
}

/* --- plans -------------------------------------------------------------------------------------------- */

/* One prefill worker plans for all workers of a decode engine: calls of the program find the lock free meanwhile. */
static void plans_are_made_a_few_at_a_time(void **state)
{
    (void)state;
    rig *r = rig_create();
    two t = {.r = r, .p = rig_engine(r, "prefill", 1, 1)};
    t.d = rig_engine(r, "decode", 4, 4);
    node_core *core = r->nodes[t.p].core;
    assert_int_equal(core_connect(r->nodes[t.d].core, "", r->nodes[t.p].address, r->now, r->report), KVFERRY_OK);
    size_t rests = 0;
    do {
        for (size_t i = 0; i < r->count; i++)
            look(&t, i);
        rests += core_next_time(core) <= r->now;
        assert_int_equal(core_abort(core, KVFERRY_SIDE_PREFILL, "another", r->now), KVFERRY_NOT_FOUND);
    } while (rig_post_one(r) || core_next_time(core) <= r->now);
    assert_in_range(rests, 1, 16); /* 16 plans */
    rig_wait(r, 2 * RIG_RETRY_MS);
    rig_expect(r, t.d, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_to_one_peer_wait_their_turn),
        cmocka_unit_test(a_request_of_more_copies_than_the_window_moves_in_slices),
        cmocka_unit_test(a_short_request_goes_beside_a_long_one),
        cmocka_unit_test(one_slice_that_fails_ends_the_others),
        cmocka_unit_test(what_is_wrong_between_slices_is_refused),
        cmocka_unit_test(a_block_of_more_copies_than_the_window_is_refused),
        cmocka_unit_test(who_waits_for_its_turn_expires),
        cmocka_unit_test(checksums_are_made_a_little_at_a_time),
        cmocka_unit_test(an_abort_ends_checksums_that_are_being_made),
        cmocka_unit_test(an_abort_ends_the_comparing_of_checksums),
        cmocka_unit_test(plans_are_made_a_few_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
