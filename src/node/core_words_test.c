/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of the log that a person needs to see which transfer ended, with whom, and why. */
#include "node/core_internal.h"
#include "node/rig_test.h"

enum { LINES = 512 };

static struct {
    kvferry_log_level level;
    char text[1024];
} lines[LINES];
static size_t line_count;

static void keep(void *context, kvferry_log_level level, const char *line)
{
    (void)context;
    assert_in_range(line_count, 0, LINES - 1);
    lines[line_count].level = level;
    snprintf(lines[line_count++].text, sizeof(lines[0].text), "%s", line);
}

/* There is one such line exactly. */
static void expect_line(kvferry_log_level level, const char *line)
{
    size_t found = 0;
    for (size_t i = 0; i < line_count; i++)
        found += lines[i].level == level && strcmp(lines[i].text, line) == 0;
    if (found == 1)
        return;
    for (size_t i = 0; i < line_count; i++)
        fprintf(stderr, "  %d %s\n", lines[i].level, lines[i].text);
    fail_msg("%zu lines are: %s", found, line);
}

static rig *listen_to(void)
{
    rig *r = rig_create();
    line_count = 0;
    r->options.log = keep;
    return r;
}

static void the_end_of_a_transfer_names_the_engine_and_its_workers(void **state)
{
    (void)state;
    rig *r = listen_to();
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 1, 1);
    for (size_t i = p; i < p + 2; i++)
        assert_int_equal(rig_offer(r, i, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    rig_expect_done(r, d, "t");
    expect_line(KVFERRY_LOG_DEBUG,
                "transfer t: ask done, engine prefill, worker 0000000100000001 0000000200000001");
    expect_line(KVFERRY_LOG_DEBUG,
                "transfer t: asked blocks released, engine prefill, worker 0000000100000001 0000000200000001");
    size_t offers = 0;
    for (size_t i = 0; i < line_count; i++) /* of two prefill workers */
        offers += strcmp(lines[i].text, "transfer t: offer done, engine decode, worker 0000000300000001: "
                                        "all have settled") == 0;
    assert_int_equal(offers, 2);
    rig_free(r);
}

static void a_failed_transfer_says_why_too(void **state)
{
    (void)state;
    rig *r = listen_to();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    r->nodes[p].hold = true;
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    assert_int_equal(core_abort(r->nodes[d].core, KVFERRY_SIDE_DECODE, "t", r->now), KVFERRY_OK);
    rig_run(r);
    rig_wait(r, RIG_LINGER_MS);
    expect_line(KVFERRY_LOG_WARNING, "transfer t: ask aborted, engine prefill, worker 0000000100000001: "
                                     "the decode side aborted");
    expect_line(KVFERRY_LOG_WARNING, "transfer t: offer failed, engine decode, worker 0000000200000001: "
                                     "not all decode workers have got theirs");
    rig_free(r);
}

/* Nobody asked for the one; the engine of the other never answered. */
static void who_was_not_known_is_said_to_be_unknown(void **state)
{
    (void)state;
    rig *r = listen_to();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    assert_int_equal(rig_offer(r, p, "a", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(core_abort(r->nodes[p].core, KVFERRY_SIDE_PREFILL, "a", r->now), KVFERRY_OK);
    rig_kill(r, p);
    assert_int_equal(rig_ask(r, d, "b", p, 1, 8), KVFERRY_OK);
    assert_int_equal(core_abort(r->nodes[d].core, KVFERRY_SIDE_DECODE, "b", r->now), KVFERRY_OK);
    expect_line(KVFERRY_LOG_WARNING, "transfer a: offer aborted, engine unknown, no worker: "
                                     "the prefill side aborted");
    expect_line(KVFERRY_LOG_WARNING, "transfer b: ask aborted, engine prefill, no worker: "
                                     "the decode side aborted");
    rig_free(r);
}

/* So that the line has room for why it failed. */
static void of_many_workers_four_are_named(void **state)
{
    (void)state;
    rig *r = listen_to();
    size_t p = rig_engine(r, "prefill", 4, 2), d = rig_engine(r, "decode", 1, 1);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    assert_int_equal(core_abort(r->nodes[d].core, KVFERRY_SIDE_DECODE, "t", r->now), KVFERRY_OK);
    expect_line(KVFERRY_LOG_WARNING,
                "transfer t: ask aborted, engine prefill, worker 0000000100000001 0000000200000001 "
                "0000000300000001 0000000400000001 ...: the decode side aborted");
    rig_free(r);
}

static void reasons_are_counted_in_words(void **state)
{
    (void)state;
    rig *r = listen_to();
    size_t d = rig_engine(r, "decode", 1, 1);
    kvferry_report *reasons = core_reason("some_code", "one", "two", "why");
    assert_non_null(reasons);
    core_refused(r->nodes[d].core, "prefill", "this worker", reasons);
    expect_line(KVFERRY_LOG_WARNING,
                "engine prefill, this worker: refused, some_code: why: expected one, found two (1 reason)");
    base_report_add(reasons, "other_code", NULL, "three", "four", "why not");
    core_refused(r->nodes[d].core, "prefill", "that worker", reasons);
    expect_line(KVFERRY_LOG_WARNING,
                "engine prefill, that worker: refused, some_code: why: expected one, found two (2 reasons)");
    kvferry_report_free(reasons);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_transfer_names_the_engine_and_its_workers),
        cmocka_unit_test(a_failed_transfer_says_why_too),
        cmocka_unit_test(who_was_not_known_is_said_to_be_unknown),
        cmocka_unit_test(of_many_workers_four_are_named),
        cmocka_unit_test(reasons_are_counted_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
