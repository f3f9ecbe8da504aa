/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of different versions of the protocol. */
#include "node/rig_test.h"

static const unsigned char other_major[] = {2, 0}, other_minor[] = {1, 9};

static kvferry_node_statistics counts_of(rig *r, size_t index)
{
    kvferry_node_statistics counts;
    core_get_statistics(r->nodes[index].core, &counts);
    return counts;
}

/* All that the node refused, it refused for the version. */
static void refused_for_version(rig *r, size_t index)
{
    const node_codes *refusals = core_refusals(r->nodes[index].core);
    assert_int_equal(refusals->used, 1);
    assert_string_equal(refusals->of[0].code, "message_version");
    assert_true(refusals->of[0].count[0] > 0);
    assert_int_equal(refusals->of[0].count[0], counts_of(r, index).refused);
}

/* The next event of the transfer names both versions. */
static void names_versions(rig *r, size_t index, const char *id)
{
    const rig_node *node = &r->nodes[index];
    for (size_t i = 0; i < node->event_count; i++) {
        const kvferry_event *event = node->events[i];
        if (strcmp(event->transfer_id, id) != 0)
            continue;
        const kvferry_reason *reason = kvferry_report_get(event->report, 0);
        assert_non_null(reason);
        assert_non_null(strstr(reason->message, "1.x"));
        assert_non_null(strstr(reason->message, "2.0"));
        return;
    }
    fail_msg("no event of %s", id);
}

static char last_warning[1024];
static size_t warnings;

static void keep_warnings(void *context, kvferry_log_level level, const char *line)
{
    (void)context;
    if (level == KVFERRY_LOG_WARNING) {
        warnings++;
        snprintf(last_warning, sizeof(last_warning), "%s", line);
    }
}

/* `odd` is the one whose version is another; either sees the other as one of another. */
static void majors_differ(bool odd_prefill)
{
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    r->nodes[odd_prefill ? p : d].version = other_major;
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK); /* without any time passing */
    names_versions(r, d, "t");
    rig_expect_end(r, d, "t", KVFERRY_OUTCOME_FAILED, "message_version");
    rig_expect(r, d, KVFERRY_EVENT_RELEASED, "t", KVFERRY_OUTCOME_FAILED, "message_version");
    refused_for_version(r, d);
    refused_for_version(r, p);
    assert_int_equal(counts_of(r, p).peers, 0);
    assert_int_equal(r->nodes[p].write_count, 0);
    rig_quiet(r, p); /* the offer waits for one that can read it */
    r->nodes[p].version = r->nodes[d].version = NULL;
    assert_int_equal(rig_ask(r, d, "u", p, 1, 8), KVFERRY_OK);
    assert_int_equal(rig_offer(r, p, "u", 9, 8, KVFERRY_READY), KVFERRY_OK);
    rig_expect_done(r, d, "u");
    rig_free(r);
}

static void a_reader_of_another_major_version_is_refused_at_once(void **state)
{
    (void)state;
    majors_differ(false);
}

static void a_writer_of_another_major_version_is_refused_at_once(void **state)
{
    (void)state;
    majors_differ(true);
}

static void the_log_names_both_versions_once(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t d = rig_engine(r, "decode", 1, 1);
    r->options.log = keep_warnings;
    size_t p = rig_engine(r, "prefill", 1, 1);
    r->nodes[p].version = other_major;
    warnings = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(core_connect(r->nodes[d].core, "prefill", r->nodes[p].address, r->now, NULL), KVFERRY_OK);
        rig_expect(r, d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, "message_version");
    }
    assert_int_equal(warnings, 1);
    assert_int_equal(counts_of(r, p).refused, 3);
    assert_non_null(strstr(last_warning, "decode"));
    assert_non_null(strstr(last_warning, "message_version"));
    assert_non_null(strstr(last_warning, "1.x"));
    assert_non_null(strstr(last_warning, "2.0"));
    rig_free(r);
}

/* Of one that cannot be read nothing else is known: the line says where it is, once for each place. */
static void the_log_says_where_one_of_another_version_is(void **state)
{
    (void)state;
    static const char strange[] = "\x82\xa7" "kvferry\x92\x02\x00\xa4type\xa5" "hello";
    rig *r = rig_create();
    r->options.log = keep_warnings;
    size_t p = rig_engine(r, "prefill", 1, 1);
    node_core *core = r->nodes[p].core;
    warnings = 0;
    for (core_link link = 1000; link < 1006; link += 2)
        core_received(core, link, NULL, "192.0.2.1", strange, sizeof(strange) - 1, r->now);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, " at 192.0.2.1: refused, message_version"));
    core_received(core, 1006, NULL, "192.0.2.2", strange, sizeof(strange) - 1, r->now);
    assert_int_equal(warnings, 2);
    assert_non_null(strstr(last_warning, " at 192.0.2.2: refused, message_version"));
    core_received(core, 1008, NULL, NULL, strange, sizeof(strange) - 1, r->now);
    assert_int_equal(warnings, 3);
    assert_non_null(strstr(last_warning, "unknown, unknown: refused, message_version"));
    rig_free(r);
}

/* It died, so late bytes are waited for; but nothing waits for a silence of which there is none. */
static void a_writer_that_comes_back_with_another_major_version_is_another(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    r->nodes[p].hold = true;
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    rig_kill(r, p);
    r->nodes[p].version = other_major;
    rig_birth(r, p);
    rig_wait(r, RIG_RETRY_MS);
    names_versions(r, d, "t");
    rig_expect_end(r, d, "t", KVFERRY_OUTCOME_FAILED, "message_version");
    rig_expect_released(r, d, "t", KVFERRY_OUTCOME_FAILED, "message_version");
    assert_int_equal(counts_of(r, d).quarantined_blocks, 0);
    rig_free(r);
}

/* A message that was damaged, or comes from before, is not taken for another worker. */
static void a_strange_version_of_one_that_has_spoken_ends_nothing(void **state)
{
    (void)state;
    static const char strange[] = "\x82\xa7" "kvferry\x92\x02\x00\xa4type\xa5" "error";
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    r->nodes[p].hold = true;
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    for (size_t i = 0; i < r->link_count; i++)
        if (r->links[i].open && r->links[i].from == d)
            core_received(r->nodes[d].core, r->links[i].out, "", NULL, strange, sizeof(strange) - 1, r->now);
    rig_quiet(r, d);
    refused_for_version(r, d);
    rig_finish(r, p, KVFERRY_OK);
    rig_expect_done(r, d, "t");
    rig_free(r);
}

static void another_minor_version_with_fields_that_are_not_known_works(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 1, 1);
    r->nodes[d].version = other_minor;
    for (size_t i = p; i < p + 2; i++) {
        rig_cells(r, i, 7, 5, 8, false);
        assert_int_equal(rig_offer(r, i, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    }
    assert_int_equal(rig_ask(r, d, "t", p, 9, 8), KVFERRY_OK);
    rig_expect_done(r, d, "t");
    for (size_t i = p; i < p + 2; i++)
        rig_expect_done(r, i, "t");
    assert_int_equal(rig_cells(r, d, 7, 9, 8, true), 0);
    assert_int_equal(counts_of(r, p).refused + counts_of(r, d).refused, 0);
    assert_int_equal(counts_of(r, p).malformed + counts_of(r, d).malformed, 0);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_of_another_major_version_is_refused_at_once),
        cmocka_unit_test(a_writer_of_another_major_version_is_refused_at_once),
        cmocka_unit_test(the_log_names_both_versions_once),
        cmocka_unit_test(the_log_says_where_one_of_another_version_is),
        cmocka_unit_test(a_writer_that_comes_back_with_another_major_version_is_another),
        cmocka_unit_test(a_strange_version_of_one_that_has_spoken_ends_nothing),
        cmocka_unit_test(another_minor_version_with_fields_that_are_not_known_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
