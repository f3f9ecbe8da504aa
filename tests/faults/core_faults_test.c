/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's core while memory runs out: two nodes shake hands and carry a transfer, one of them ends badly, while
 * the n-th allocation of the library fails, alone or with all that follow for a while. Whatever fails, every offer and
 * every ask that was taken ends once and is released once, later transfers go well, and nothing leaks.
 */
#include "node/directory.h"
#include "node/rig_test.h"

#include "guard.h"

static void ask_or_not(rig *r, const char *id, uint32_t first, bool *taken)
{
    rig_tables t;
    rig_fill_tables(&t, first, 8, true);
    const kvferry_ask ask = {.size = sizeof(kvferry_ask), .transfer_id = id, .engine_id = "prefill",
                             .where = r->nodes[0].address, .tokens = 8, .tables = t.tables,
                             .table_count = t.count, .whole_blocks = true, .allow_part = true};
    kvferry_status status = core_ask(r->nodes[1].core, &ask, r->now, NULL);
    *taken = status == KVFERRY_OK;
    assert_true(*taken || status == KVFERRY_NO_MEMORY);
}

static void offer_or_not(rig *r, const char *id, uint32_t first, kvferry_readiness ready, bool *taken)
{
    rig_tables t;
    rig_fill_tables(&t, first, 8, true);
    kvferry_status status =
        core_offer(r->nodes[0].core, &(kvferry_offer){sizeof(kvferry_offer), id, 8, t.tables, t.count, ready, NULL},
                   r->now, NULL);
    *taken = status == KVFERRY_OK;
    assert_true(*taken || status == KVFERRY_NO_MEMORY);
}

/* Events of the kind about the transfer at the node. */
static size_t count_events(const rig *r, size_t index, kvferry_event_kind kind, const char *id)
{
    size_t count = 0;
    for (size_t i = 0; i < r->nodes[index].event_count; i++)
        count += r->nodes[index].events[i]->kind == kind &&
                 strcmp(r->nodes[index].events[i]->transfer_id, id) == 0;
    return count;
}

static void ended_once(const rig *r, size_t index, const char *id, bool taken)
{
    assert_int_equal(count_events(r, index, KVFERRY_EVENT_ENDED, id), taken);
    assert_int_equal(count_events(r, index, KVFERRY_EVENT_RELEASED, id), taken);
}

/* The rig's own allocations do not fail. */
static void on_own(bool own)
{
    if (own)
        guard_end();
    else
        guard_begin();
}

static void scenario(rig *r)
{
    bool offered[3], asked[3];
    r->own = on_own;
    guard_begin();
    offer_or_not(r, "a", 5, KVFERRY_READY, &offered[0]);
    ask_or_not(r, "a", 9, &asked[0]);
    rig_run(r);
    offer_or_not(r, "b", 5, KVFERRY_NOT_READY, &offered[1]);
    ask_or_not(r, "b", 12, &asked[1]);
    rig_run(r);
    core_abort(r->nodes[1].core, KVFERRY_SIDE_DECODE, "b", r->now);
    rig_run(r);
    base_text text = {0};
    kvferry_status status = core_status(r->nodes[0].core, r->now, &text);
    assert_true(status == KVFERRY_OK || status == KVFERRY_NO_MEMORY);
    free(text.data);
    offer_or_not(r, "c", 5, KVFERRY_READY, &offered[2]);
    ask_or_not(r, "c", 15, &asked[2]);
    rig_wait(r, 1200);
    r->own = NULL;
    guard_end();
    rig_wait(r, RIG_LEASE_MS + RIG_TRANSFER_MS);
    const char *ids[] = {"a", "b", "c"};
    for (size_t i = 0; i < 3; i++) {
        ended_once(r, 0, ids[i], offered[i]);
        ended_once(r, 1, ids[i], asked[i]);
    }
    assert_true(core_idle(r->nodes[0].core) && core_idle(r->nodes[1].core));
    /* And afterwards all is well. */
    offer_or_not(r, "d", 5, KVFERRY_READY, &offered[0]);
    ask_or_not(r, "d", 9, &asked[0]);
    assert_true(offered[0] && asked[0]);
    rig_wait(r, 2000);
    rig_expect_done(r, 1, "d");
    rig_expect_done(r, 0, "d");
}

static bool run(size_t fail_at, bool on)
{
    rig *r = rig_create();
    r->options.log = NULL;
    rig_shape shape = {.engine_id = "prefill", .tps = 1, .pps = 1, .state = true};
    rig_engine_of(r, &shape);
    shape.engine_id = "decode";
    rig_engine_of(r, &shape);
    guard_fail_at(fail_at, on);
    scenario(r);
    bool failed = guard_failed();
    guard_fail_at(0, false);
    rig_free(r);
    return failed;
}

static void loop(bool on)
{
    size_t before = guard_live(), at = 1;
    for (; run(at, on); at++)
        if (guard_live() != before)
            fail_msg("allocation %zu failed: %zu are left", at, guard_live() - before);
    assert_true(at > 300); /* so many there are at least */
}

static void one_allocation_fails(void **state) { (void)state; loop(false); }
static void all_allocations_fail_for_a_while(void **state) { (void)state; loop(true); }

/* Two workers come to be an engine, and a third shakes hands with it, while an allocation fails. */
static bool gather(size_t fail_at)
{
    rig *r = rig_create();
    r->options.log = NULL;
    rig_shape shape = {.engine_id = "prefill", .tps = 2, .pps = 1};
    rig_worker(r, &shape);
    shape.tp = 1;
    rig_worker(r, &shape);
    size_t d = rig_worker(r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1});
    guard_fail_at(fail_at, false);
    r->own = on_own;
    guard_begin();
    kvferry_status led = core_set_leader(r->nodes[1].core, r->nodes[0].address, r->now, NULL);
    kvferry_status begun = core_connect(r->nodes[d].core, "prefill", r->nodes[0].address, r->now, NULL);
    rig_wait(r, 1200);
    r->own = NULL;
    guard_end();
    bool failed = guard_failed();
    guard_fail_at(0, false);
    assert_true(led == KVFERRY_OK || led == KVFERRY_NO_MEMORY);
    assert_true(begun == KVFERRY_OK || begun == KVFERRY_NO_MEMORY);
    assert_int_equal(core_set_leader(r->nodes[1].core, r->nodes[0].address, r->now, NULL), KVFERRY_OK);
    rig_wait(r, RIG_SILENCE_MS); /* what was lost is made good */
    assert_int_equal(core_connect(r->nodes[d].core, "prefill", r->nodes[0].address, r->now, NULL), KVFERRY_OK);
    rig_wait(r, RIG_CONNECT_MS);
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[d].core, &counts);
    assert_int_equal(counts.peers, 2);
    rig_free(r);
    return failed;
}

static void an_engine_comes_together_all_the_same(void **state)
{
    (void)state;
    size_t before = guard_live(), at = 1;
    for (; gather(at); at++)
        if (guard_live() != before)
            fail_msg("allocation %zu failed: %zu are left", at, guard_live() - before);
    assert_true(at > 300);
}

static kvferry_status create(void)
{
    rig *r = rig_create();
    const kvferry_layout *layout = rig_layout(&(rig_shape){.engine_id = "e", .tps = 1, .pps = 1, .state = true});
    core_options options = r->options;
    options.address = "tcp://127.0.0.1:1";
    options.incarnation = "0123456789abcdef";
    options.log = NULL;
    node_core *core = NULL;
    guard_begin();
    kvferry_status status = core_create(&options, layout, 0, &core, r->report);
    guard_end();
    assert_int_equal(core != NULL, status == KVFERRY_OK);
    core_free(core);
    kvferry_layout_free((kvferry_layout *)layout);
    rig_free(r);
    return status;
}

static void a_core_is_made_or_not(void **state)
{
    (void)state;
    size_t before = guard_live(), at = 1;
    for (;; at++) {
        guard_fail_at(at, false);
        kvferry_status status = create();
        bool failed = guard_failed();
        guard_fail_at(0, false);
        assert_int_equal(guard_live(), before);
        assert_true(status == KVFERRY_OK || (failed && status == KVFERRY_NO_MEMORY));
        if (!failed)
            break;
    }
    assert_true(at > 20);
}

/* false: no allocation failed. */
static bool describe(const rig *r, size_t index, size_t fail_at, const char *whole)
{
    base_text text = {0};
    guard_fail_at(fail_at, false);
    guard_begin();
    kvferry_status status = core_status(r->nodes[index].core, r->now, &text);
    guard_end();
    bool failed = guard_failed();
    guard_fail_at(0, false);
    assert_true(status == KVFERRY_OK || (failed && status == KVFERRY_NO_MEMORY));
    if (status == KVFERRY_OK && strcmp(text.data, whole) != 0)
        fail_msg("allocation %zu failed: %s instead of %s", fail_at, text.data, whole);
    free(text.data);
    return failed;
}

static void a_status_is_whole_or_not_there(void **state)
{
    (void)state;
    rig *r = rig_create();
    bool taken;
    r->options.log = NULL;
    rig_engine_of(r, &(rig_shape){.engine_id = "prefill", .tps = 1, .pps = 1, .state = true});
    rig_engine_of(r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1, .state = true});
    offer_or_not(r, "a", 5, KVFERRY_NOT_READY, &taken);
    ask_or_not(r, "a", 9, &taken);
    rig_run(r);
    for (size_t index = 0; index < 2; index++) {
        base_text whole = {0};
        size_t before = guard_live(), at = 1;
        assert_int_equal(core_status(r->nodes[index].core, r->now, &whole), KVFERRY_OK);
        while (describe(r, index, at, whole.data))
            at++;
        assert_true(at > 50);
        assert_int_equal(guard_live(), before);
        free(whole.data);
    }
    rig_free(r);
}

static kvferry_status write_directory(const node_directory *directory, size_t fail_at, char **text, bool *failed)
{
    guard_fail_at(fail_at, false);
    guard_begin();
    kvferry_status status = node_directory_write(directory, text);
    guard_end();
    *failed = guard_failed();
    guard_fail_at(0, false);
    return status;
}

static void a_directory_is_whole_or_not_there(void **state)
{
    (void)state;
    char id[] = "prefill", address[] = "tcp://127.0.0.1:7000", *whole = NULL;
    node_directory directory = {0};
    bool failed = true, replaced;
    for (uint32_t i = 0; i < 4; i++) {
        const node_entry entry = {0, i, 0, id, address, false};
        assert_int_equal(node_directory_put(&directory, &entry, &replaced), KVFERRY_OK);
    }
    assert_int_equal(write_directory(&directory, 0, &whole, &failed), KVFERRY_OK);
    failed = true;
    for (size_t at = 1; failed; at++) {
        char *text = NULL;
        kvferry_status status = write_directory(&directory, at, &text, &failed);
        assert_true(status == KVFERRY_OK || (failed && status == KVFERRY_NO_MEMORY));
        if (status == KVFERRY_OK)
            assert_string_equal(text, whole);
        free(text);
    }
    free(whole);
    node_directory_free(&directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_is_whole_or_not_there),
        cmocka_unit_test(a_directory_is_whole_or_not_there),
        cmocka_unit_test(a_core_is_made_or_not),
        cmocka_unit_test(an_engine_comes_together_all_the_same),
        cmocka_unit_test(one_allocation_fails),
        cmocka_unit_test(all_allocations_fail_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
