/* SPDX-License-Identifier: Apache-2.0 */
/* Requests between whole nodes: transfer_test ENGINE [TRANSPORT]. */
#include <poll.h>

#include "nodes.h"

static const uint32_t from[] = {3, 9, 4, 17}, to[] = {8, 2, 30, 5};

static void test_one_to_one(void **state)
{
    (void)state;
    worker prefill, decode;
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    walk_cells(&prefill, from, 14, 1, true);
    MUST(worker_offer(&prefill, "r1", from, 14, KVFERRY_READY, report));
    MUST(worker_ask(&decode, "r1", "p", kvferry_node_address(prefill.node), to, 14, report));
    expect_done(&decode, "r1");
    assert_true(walk_cells(&decode, to, 14, 1, false));
    expect_done(&prefill, "r1");
    kvferry_node_statistics sent = statistics_of(&prefill), got = statistics_of(&decode);
    assert_int_equal(sent.ended[KVFERRY_SIDE_PREFILL][KVFERRY_OUTCOME_DONE], 1);
    assert_int_equal(got.ended[KVFERRY_SIDE_DECODE][KVFERRY_OUTCOME_DONE], 1);
    assert_in_range(got.bytes[KVFERRY_SIDE_DECODE], 14 * RIG_HEADS * RIG_LAYERS * RIG_CELL,
                    1 << 20);
    assert_int_equal(sent.bytes[KVFERRY_SIDE_PREFILL], got.bytes[KVFERRY_SIDE_DECODE]);
    assert_int_equal(sent.live[0] + sent.unreleased[0] + got.live[1] + got.unreleased[1], 0);
    worker_close(&decode);
    worker_close(&prefill);
}

/* --- several workers -------------------------------------------------------------------------- */

enum { WORKERS_MAX = 4 };

typedef struct team {
    worker workers[WORKERS_MAX];
    size_t count;
} team;

static void team_open(team *t, const char *engine_id, uint32_t tps, uint32_t pps, bool verify)
{
    t->count = 0;
    for (uint32_t pp = 0; pp < pps; pp++)
        for (uint32_t tp = 0; tp < tps; tp++) {
            kvferry_node_options options = nodes_options(engine_id);
            options.verify = verify;
            if (t->count)
                options.leader = kvferry_node_address(t->workers[0].node);
            worker_open(
                &t->workers[t->count++],
                &(rig_shape){.engine_id = engine_id, .tp = tp, .tps = tps, .pp = pp, .pps = pps},
                &options);
        }
}

static void team_close(team *t)
{
    for (size_t i = 0; i < t->count; i++)
        worker_close(&t->workers[i]);
}

static void move(team *prefill, team *decode, const char *id, uint32_t tokens, uint32_t seed)
{
    for (size_t i = 0; i < prefill->count; i++) {
        walk_cells(&prefill->workers[i], from, tokens, seed, true);
        MUST(worker_offer(&prefill->workers[i], id, from, tokens, KVFERRY_READY, report));
    }
    for (size_t i = 0; i < decode->count; i++)
        MUST(worker_ask(&decode->workers[i], id, "p",
                        kvferry_node_address(prefill->workers[0].node), to, tokens, report));
    for (size_t i = 0; i < decode->count; i++) {
        expect_done(&decode->workers[i], id);
        assert_true(walk_cells(&decode->workers[i], to, tokens, seed, false));
    }
    for (size_t i = 0; i < prefill->count; i++)
        expect_done(&prefill->workers[i], id);
}

static void move_between(uint32_t tps, uint32_t pps, uint32_t target_tps, uint32_t target_pps,
                         bool verify)
{
    team prefill, decode;
    team_open(&prefill, "p", tps, pps, verify);
    team_open(&decode, "d", target_tps, target_pps, verify);
    move(&prefill, &decode, "r1", 14, 5);
    move(&prefill, &decode, "r2", 3, 6);
    team_close(&decode);
    team_close(&prefill);
}

static void test_tp2_to_tp1(void **state)
{
    (void)state;
    move_between(2, 1, 1, 1, false);
}

static void test_tp2pp2_to_tp4(void **state)
{
    (void)state;
    move_between(2, 2, 4, 1, false);
}

static void test_verify(void **state)
{
    (void)state;
    move_between(2, 1, 1, 1, true);
    move_between(1, 2, 2, 1, true);
}

/* --- windows in whole blocks, or in part -------------------------------------------------------- */

/* Of 15 tokens the last two are the window; the block of the decode side that it begins in has the tokens from 8 on. */
enum { ALL = 15, WINDOW = 2, FIRST = 8, HELD = 12, PAGES = 2 };

/* Whether the tokens from `first` on are what was sent, and all others nothing. */
static bool has_from(const worker *w, const uint32_t *pages, uint32_t first, uint32_t seed)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        for (uint32_t head = 0; head < RIG_HEADS; head++)
            for (uint32_t token = 0; token < ALL; token++)
                for (uint32_t i = 0; i < RIG_CELL; i++)
                    if (cell_of(w, layer, head, pages, token)[i] !=
                        (token < first ? 0 : value_of(seed, layer, head, token, i)))
                        return false;
    return true;
}

static void move_window(const char *id, bool held, bool verify)
{
    static const uint32_t blocks[] = {4, 1}, pages[] = {8, 9, 2, 3};
    const uint32_t first = held ? 0 : HELD;
    worker prefill, decode;
    kvferry_node_options options = nodes_options("p");
    options.verify = verify;
    worker_open(&prefill, &(rig_shape){.engine_id = "p", .tps = 1, .pps = 1, .window = WINDOW}, &options);
    worker_open(&decode, &(rig_shape){.engine_id = "d", .tps = 1, .pps = 1, .window = WINDOW, .pages = PAGES}, &options);
    walk_cells(&prefill, from, ALL, 3, true);
    const kvferry_block_table offered = {"attn", first, from + first / RIG_TOKENS, blocks_of(ALL - first)};
    const kvferry_block_table asked = {"attn", 0, blocks, 2};
    MUST(kvferry_node_offer(prefill.node,
                            &(kvferry_offer){.size = sizeof(kvferry_offer), .transfer_id = id, .tokens = ALL,
                                             .tables = &offered, .table_count = 1, .readiness = KVFERRY_READY,
                                             .context = &prefill},
                            report));
    MUST(kvferry_node_ask(decode.node,
                          &(kvferry_ask){.size = sizeof(kvferry_ask), .transfer_id = id, .engine_id = "p",
                                         .where = kvferry_node_address(prefill.node), .tokens = ALL, .tables = &asked,
                                         .table_count = 1, .whole_blocks = true, .allow_part = true},
                          report));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_ENDED, id);
    assert_non_null(event);
    print_reasons(event->report);
    assert_int_equal(event->outcome, KVFERRY_OUTCOME_DONE);
    assert_int_equal(event->part, !held);
    kvferry_event_free(event);
    assert_true(has_from(&decode, pages, held ? FIRST : ALL - WINDOW, 3));
    expect_done(&prefill, id);
    worker_close(&decode);
    worker_close(&prefill);
}

static void test_what_a_source_does_not_hold_before_a_window_is_left_out(void **state)
{
    (void)state;
    move_window("held", true, false);
    move_window("part", false, false);
    move_window("held and compared", true, true);
    move_window("part and compared", false, true);
}

/* --- one after the other ---------------------------------------------------------------------- */

static void test_an_ask_waits_until_it_is_ready(void **state)
{
    (void)state;
    worker prefill, decode;
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    MUST(worker_ask(&decode, "early", "", kvferry_node_address(prefill.node), to, 14, report));
    kvferry_event_free(await_event(&decode, KVFERRY_EVENT_CONNECTED, ""));
    MUST(worker_offer(&prefill, "early", from, 14, KVFERRY_NOT_READY, report));
    assert_int_equal(kvferry_node_wait(decode.node, 100), KVFERRY_TIMEOUT);
    walk_cells(&prefill, from, 14, 9, true);
    assert_int_equal(kvferry_node_ready(prefill.node, "early"), KVFERRY_OK);
    expect_done(&decode, "early");
    assert_true(walk_cells(&decode, to, 14, 9, false));
    assert_int_equal(kvferry_node_ready(prefill.node, "nothing"), KVFERRY_NOT_FOUND);
    worker_close(&decode);
    worker_close(&prefill);
}

static void test_a_full_prefix_hit_only_releases(void **state)
{
    (void)state;
    worker prefill, decode;
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    MUST(worker_offer(&prefill, "hit", from, 14, KVFERRY_READY, report));
    MUST(worker_ask(&decode, "hit", "p", kvferry_node_address(prefill.node), NULL, 14, report));
    expect_done(&decode, "hit");
    expect_done(&prefill, "hit");
    assert_int_equal(statistics_of(&decode).bytes[KVFERRY_SIDE_DECODE], 0);
    worker_close(&decode);
    worker_close(&prefill);
}

static void test_aborts_are_told(void **state)
{
    (void)state;
    worker prefill, decode;
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    const char *where = kvferry_node_address(prefill.node);
    MUST(worker_offer(&prefill, "a", from, 14, KVFERRY_NOT_READY, report));
    MUST(worker_ask(&decode, "a", "p", where, to, 14, report));
    kvferry_event_free(await_event(&decode, KVFERRY_EVENT_CONNECTED, ""));
    assert_int_equal(kvferry_node_abort(decode.node, KVFERRY_SIDE_DECODE, "a"), KVFERRY_OK);
    expect_ended(&decode, "a", KVFERRY_OUTCOME_ABORTED, "target_aborted");
    expect_released(&decode, "a");
    expect_ended(&prefill, "a", KVFERRY_OUTCOME_FAILED, "target_aborted");
    expect_released(&prefill, "a");
    assert_int_equal(kvferry_node_abort(decode.node, KVFERRY_SIDE_DECODE, "a"), KVFERRY_NOT_FOUND);

    MUST(worker_offer(&prefill, "b", from, 14, KVFERRY_NOT_READY, report));
    uint64_t before = statistics_of(&prefill).messages_in;
    MUST(worker_ask(&decode, "b", "p", where, to, 14, report));
    while (statistics_of(&prefill).messages_in == before)
        assert_int_equal(kvferry_node_wait(decode.node, 10), KVFERRY_TIMEOUT);
    assert_int_equal(kvferry_node_abort(prefill.node, KVFERRY_SIDE_PREFILL, "b"), KVFERRY_OK);
    expect_ended(&prefill, "b", KVFERRY_OUTCOME_ABORTED, "source_aborted");
    expect_ended(&decode, "b", KVFERRY_OUTCOME_FAILED, "source_aborted");
    expect_released(&decode, "b");
    worker_close(&decode);
    worker_close(&prefill);
}

/* The descriptor is readable while there are events, for who has a loop of his own. */
static void test_the_descriptor_tells_of_events(void **state)
{
    (void)state;
    worker prefill, decode;
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    struct pollfd ready = {.fd = kvferry_node_fd(decode.node), .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 0), 0);
    assert_null(kvferry_node_next_event(decode.node));
    MUST(kvferry_node_connect(decode.node, "p", kvferry_node_address(prefill.node), report));
    assert_int_equal(poll(&ready, 1, NODES_PATIENCE_MS), 1);
    assert_int_equal(poll(&ready, 1, 0), 1);
    assert_int_equal(statistics_of(&decode).events_waiting, 1);
    kvferry_event *event = kvferry_node_next_event(decode.node);
    assert_int_equal(event->kind, KVFERRY_EVENT_CONNECTED);
    assert_string_equal(event->engine_id, "p");
    kvferry_event_free(event);
    assert_int_equal(poll(&ready, 1, 0), 0);
    assert_int_equal(kvferry_node_wait(decode.node, 1), KVFERRY_TIMEOUT);
    worker_close(&decode);
    worker_close(&prefill);
}

static void test_the_status_is_the_same_from_afar(void **state)
{
    (void)state;
    worker prefill;
    char *near, *far;
    size_t near_size, far_size;
    worker_open_alone(&prefill, "p");
    MUST(worker_offer(&prefill, "held", from, 14, KVFERRY_READY, report));
    assert_int_equal(kvferry_node_status(prefill.node, &near, &near_size), KVFERRY_OK);
    MUST(kvferry_node_query(kvferry_node_address(prefill.node), NULL, NODES_PATIENCE_MS, &far,
                            &far_size, report));
    assert_int_equal(strlen(near), near_size);
    assert_int_equal(strlen(far), far_size);
    const char *const parts[] = {"held", kvferry_node_incarnation(prefill.node),
                                 kvferry_node_address(prefill.node), "\"engine_id\":\"p\""};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        assert_non_null(strstr(near, parts[i]));
        assert_non_null(strstr(far, parts[i]));
    }
    kvferry_free(near);
    kvferry_free(far);
    char address[128];
    snprintf(address, sizeof(address), "%s", kvferry_node_address(prefill.node));
    worker_close(&prefill);
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_node_query(address, NULL, UINT64_MAX, &far, &far_size, report), KVFERRY_IO); /* at once */
    assert_string_equal(kvferry_report_get(report, 0)->code, "no_answer");
    assert_string_equal(kvferry_report_get(report, 0)->found, "connection refused: nobody listens there");
    kvferry_report_free(report);
}

static void test_what_the_layout_has_not_is_refused_at_once(void **state)
{
    (void)state;
    static const uint32_t outside[] = {3, RIG_BLOCKS, 4, 5};
    worker prefill;
    worker_open_alone(&prefill, "p");
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(worker_offer(&prefill, "r", outside, 14, KVFERRY_READY, report),
                     KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "block_range");
    kvferry_report_clear(report);
    assert_int_equal(worker_ask(&prefill, "r", "q", "", to, 14, report), KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "peer_unknown");
    kvferry_report_clear(report);
    assert_int_equal(worker_ask(&prefill, "r", "q", "10.0.0.1:7", to, 14, report), KVFERRY_INVALID);
    assert_string_equal(kvferry_report_get(report, 0)->code, "address_malformed");
    kvferry_report_free(report);
    worker_close(&prefill);
}

static void test_another_layout_is_refused_with_reasons(void **state)
{
    (void)state;
    worker prefill, decode;
    const kvferry_node_options options = nodes_options("d");
    worker_open_alone(&prefill, "p");
    worker_open(&decode, &(rig_shape){.engine_id = "d", .tps = 1, .pps = 1, .dtype = "float16"},
                &options);
    MUST(kvferry_node_connect(decode.node, "p", kvferry_node_address(prefill.node), report));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_DISCONNECTED, "");
    assert_non_null(event);
    assert_string_equal(event->code, "dtype_differs");
    assert_int_not_equal(kvferry_report_count(event->report), 0);
    kvferry_event_free(event);
    worker_close(&decode);
    worker_close(&prefill);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_to_one),
        cmocka_unit_test(test_tp2_to_tp1),
        cmocka_unit_test(test_tp2pp2_to_tp4),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_what_a_source_does_not_hold_before_a_window_is_left_out),
        cmocka_unit_test(test_an_ask_waits_until_it_is_ready),
        cmocka_unit_test(test_a_full_prefix_hit_only_releases),
        cmocka_unit_test(test_aborts_are_told),
        cmocka_unit_test(test_the_descriptor_tells_of_events),
        cmocka_unit_test(test_the_status_is_the_same_from_afar),
        cmocka_unit_test(test_what_the_layout_has_not_is_refused_at_once),
        cmocka_unit_test(test_another_layout_is_refused_with_reasons),
    };
    nodes_engine = argc > 1 ? argv[1] : nodes_engine;
    nodes_transport = argc > 2 ? argv[2] : nodes_transport;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
