/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds blocks in quarantine, and the operator's word that ends it: what it does, and of whom it is taken. */
#include "node/liar_test.h"

#include <jansson.h>

#include "node/rig_transfer_test.h"

#define UNKNOWN "0123456789abcdef"

static struct {
    size_t count;
    char last[1024];
} hints; /* lines that say what to do about a silent writer */

static void take_line(void *context, kvferry_log_level level, const char *line)
{
    rig_log(context, level, line);
    if (!strstr(line, "declare-dead"))
        return;
    assert_int_equal(level, KVFERRY_LOG_WARNING);
    hints.count++;
    snprintf(hints.last, sizeof(hints.last), "%s", line);
}

/* A decode worker whose blocks a silent prefill engine may still write, and one who speaks to it. */
static pair begin_held(bool keyed, uint32_t writers)
{
    pair t = {.r = rig_create()};
    memset(&hints, 0, sizeof(hints));
    t.r->keyed = keyed;
    t.r->options.log = take_line;
    t.r->options.host = "10.1.2.3";
    t.p = rig_engine(t.r, "prefill", writers, 1);
    t.d = rig_engine(t.r, "decode", 1, 1);
    connect_to(t.r, t.d, t.p);
    expect_connected(t.r, t.d);
    t.l = make_liar(t.r, t.d, "nobody");
    for (size_t i = t.p; i < t.p + writers; i++) {
        t.r->nodes[i].hold = t.r->nodes[i].deaf_cancel = true;
        assert_int_equal(rig_offer(t.r, i, "t", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    }
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    rig_run(t.r);
    for (size_t i = t.p; i < t.p + writers; i++)
        t.r->nodes[i].cut = true;
    rig_wait(t.r, RIG_SILENCE_MS + RIG_RETRY_MS);
    rig_expect_end(t.r, t.d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_wait(t.r, 20 * RIG_SILENCE_MS);
    rig_quiet(t.r, t.d);
    return t;
}

static void finish(pair *t)
{
    end_liar(&t->l);
    rig_free(t->r);
}

static uint64_t quarantined(const pair *t)
{
    kvferry_node_statistics counts;
    core_get_statistics(t->r->nodes[t->d].core, &counts);
    return counts.quarantined_blocks;
}

static void say_dead(pair *t, const char *incarnation)
{
    wire_message message = {.type = WIRE_DECLARE_DEAD};
    snprintf(message.body.death.incarnation, WIRE_INCARNATION_TEXT, "%s", incarnation);
    tell(&t->l, message);
}

static void expect_taken(const pair *t, uint64_t transfers, uint64_t blocks, uint64_t waiting)
{
    expect_answer(&t->l, WIRE_DECLARED_DEAD, "");
    assert_int_equal(t->l.death.transfers, transfers);
    assert_int_equal(t->l.death.blocks, blocks);
    assert_int_equal(t->l.death.waiting, waiting);
}

/* Nothing but a count and an answer comes of it, however often it is said. */
static void expect_refused(pair *t, const char *key, const char *place)
{
    uint64_t refused = refused_at(t->r, t->d, "not_operator");
    t->l.key = key;
    t->l.place = place;
    for (size_t i = 1; i <= 2; i++) {
        say_dead(t, t->r->nodes[t->p].incarnation);
        expect_answer(&t->l, WIRE_ERROR, "not_operator");
        assert_int_equal(refused_at(t->r, t->d, "not_operator"), refused + i);
    }
    rig_wait(t->r, 2 * RIG_LINGER_MS);
    rig_quiet(t->r, t->d);
    assert_int_equal(quarantined(t), 2);
}

static void expect_released(pair *t)
{
    rig_quiet(t->r, t->d); /* the last bytes are waited for */
    rig_wait(t->r, RIG_LINGER_MS);
    rig_expect_released(t->r, t->d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    assert_int_equal(quarantined(t), 0);
}

static void it_releases_what_a_vanished_writer_holds(void **state)
{
    (void)state;
    pair t = begin_held(false, 1);
    t.l.place = "127.0.0.1";
    say_dead(&t, UNKNOWN);
    expect_answer(&t.l, WIRE_ERROR, "peer_unknown");
    rig_wait(t.r, 2 * RIG_LINGER_MS);
    rig_quiet(t.r, t.d);
    say_dead(&t, t.r->nodes[t.p].incarnation);
    expect_taken(&t, 1, 2, 0);
    expect_released(&t);
    say_dead(&t, t.r->nodes[t.p].incarnation); /* again: it is known, and holds nothing */
    expect_taken(&t, 0, 0, 0);
    rig_kill(t.r, t.p);
    assert_true(core_idle(t.r->nodes[t.d].core));
    finish(&t);
}

static void expect_unknown(rig *r, size_t at, const char *incarnation, const char *expected, const char *found)
{
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(core_declare_dead(r->nodes[at].core, incarnation, r->now, report), KVFERRY_NOT_FOUND);
    assert_int_equal(kvferry_report_count(report), 1);
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    assert_string_equal(reason->code, "peer_unknown");
    assert_string_equal(reason->expected, expected);
    assert_string_equal(reason->found, found);
    kvferry_report_free(report);
}

/* What is not known is answered with what is. */
static void a_name_that_nobody_has(void **state)
{
    (void)state;
    pair t = begin(false, "nobody");
    const char *p = t.r->nodes[t.p].incarnation, *d = t.r->nodes[t.d].incarnation;
    expect_unknown(t.r, t.d, UNKNOWN, base_format("%s, of another engine's worker that this node has met", p), UNKNOWN);
    expect_unknown(t.r, t.p, UNKNOWN, base_format("%s, of another engine's worker that this node has met", d), UNKNOWN);
    expect_unknown(t.r, t.d, d, base_format("%s, of another engine's worker that this node has met", p),
                   base_format("%s, which is this node itself", d));
    size_t alone = rig_engine(t.r, "alone", 1, 1), many = rig_engine(t.r, "many", 4, 1);
    size_t more = rig_engine(t.r, "more", 4, 1), last = rig_engine(t.r, "last", 2, 1);
    expect_unknown(t.r, alone, UNKNOWN,
                   "the incarnation of a worker of another engine that this node has met, of which there is none", UNKNOWN);
    connect_to(t.r, alone, many);
    connect_to(t.r, alone, more);
    connect_to(t.r, alone, last);
    kvferry_report *unknown = NULL;
    assert_int_equal(kvferry_report_create(&unknown), KVFERRY_OK);
    core_report_unknown_worker(t.r->nodes[alone].core, UNKNOWN, unknown);
    const char *expected = kvferry_report_get(unknown, 0)->expected;
    assert_non_null(strstr(expected, t.r->nodes[many].incarnation));
    assert_non_null(strstr(expected, " and 2 others, the workers of other engines that this node has met"));
    kvferry_report_free(unknown);
    end(&t);
}

static void it_is_for_one_incarnation_of_the_node(void **state)
{
    (void)state;
    pair t = begin_held(false, 1);
    wire_message message = {.type = WIRE_DECLARE_DEAD, .receiver = UNKNOWN};
    t.l.place = "127.0.0.1";
    memcpy(message.body.death.incarnation, t.r->nodes[t.p].incarnation, WIRE_INCARNATION_TEXT);
    tell(&t.l, message);
    expect_answer(&t.l, WIRE_ERROR, "incarnation");
    memcpy(message.receiver, t.r->nodes[t.d].incarnation, WIRE_INCARNATION_TEXT);
    tell(&t.l, message);
    expect_taken(&t, 1, 2, 0);
    expect_released(&t);
    finish(&t);
}

static void it_waits_for_the_other_writers(void **state)
{
    (void)state;
    pair t = begin_held(false, 2);
    t.l.place = "127.0.0.1";
    say_dead(&t, t.r->nodes[t.p].incarnation);
    expect_taken(&t, 0, 0, 1);
    rig_wait(t.r, 2 * RIG_LINGER_MS);
    rig_quiet(t.r, t.d);
    assert_int_equal(quarantined(&t), 2);
    say_dead(&t, t.r->nodes[t.p + 1].incarnation);
    expect_taken(&t, 1, 2, 0);
    expect_released(&t);
    finish(&t);
}

static void it_frees_the_lease_of_a_reader(void **state)
{
    (void)state;
    pair t = begin(false, "nobody");
    t.l.place = "127.0.0.1";
    assert_int_equal(rig_offer(t.r, t.p, "t", 5, TOKENS, KVFERRY_NOT_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "t", t.p, 9, TOKENS), KVFERRY_OK);
    rig_run(t.r);
    rig_quiet(t.r, t.p);
    t.r->nodes[t.d].cut = true;
    say_dead(&t, t.r->nodes[t.d].incarnation);
    expect_taken(&t, 0, 0, 0);
    rig_expect_end(t.r, t.p, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_expect_released(t.r, t.p, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    finish(&t);
}

/* Without keys: of this host only. */
static void other_hosts_have_no_say(void **state)
{
    (void)state;
    pair t = begin_held(false, 1);
    expect_refused(&t, "", NULL);
    expect_refused(&t, "", "10.1.2.4");
    expect_refused(&t, "", "::ffff:10.1.2.4");
    expect_refused(&t, "", "0.0.0.0");
    expect_refused(&t, t.r->nodes[t.d].address, "not a host");
    t.l.place = "::ffff:10.1.2.3";
    say_dead(&t, t.r->nodes[t.p].incarnation);
    expect_taken(&t, 1, 2, 0);
    expect_released(&t);
    finish(&t);
}

/* Where a node does not know what it is bound to, nothing but loopback is this host. */
static void a_host_that_is_not_known_is_no_other(void **state)
{
    (void)state;
    pair t = begin(false, "nobody");
    t.l.at = t.d;
    t.l.place = "";
    say_dead(&t, t.r->nodes[t.p].incarnation);
    expect_answer(&t.l, WIRE_ERROR, "not_operator");
    end(&t);
}

/* With keys: of who has the node's own, from wherever; the writer's would be a word about itself, but not proof. */
static void other_keys_have_no_say(void **state)
{
    (void)state;
    pair t = begin_held(true, 1);
    expect_refused(&t, EVIL_KEY, "127.0.0.1");
    expect_refused(&t, t.r->nodes[t.p].key, "10.1.2.3");
    expect_refused(&t, "", "127.0.0.1");
    t.l.key = t.r->nodes[t.d].key;
    t.l.place = "10.9.9.9";
    say_dead(&t, t.r->nodes[t.p].incarnation);
    expect_taken(&t, 1, 2, 0);
    expect_released(&t);
    finish(&t);
}

/* Who answers over a link that the node opened is a peer, even if it has the node's own key or is on its host. */
static void who_was_called_has_no_say(void **state)
{
    (void)state;
    pair t = begin(false, "nobody");
    t.l.at = t.d;
    t.l.place = "127.0.0.1";
    t.l.link = link_between(t.r, t.d, t.p);
    uint64_t ignored = ignored_at(t.r, t.d);
    say_dead(&t, t.r->nodes[t.p].incarnation);
    expect_answer(&t.l, WIRE_TYPES, "");
    assert_int_equal(ignored_at(t.r, t.d), ignored + 1);
    rig_quiet(t.r, t.d);
    end(&t);
}

static json_t *status_of(const pair *t)
{
    base_text text = {0};
    assert_int_equal(core_status(t->r->nodes[t->d].core, t->r->now, &text), KVFERRY_OK);
    json_t *tree = json_loads(text.data, 0, NULL);
    free(text.data);
    assert_non_null(tree);
    return tree;
}

static void it_is_shown_who_holds_what(void **state)
{
    (void)state;
    pair t = begin_held(false, 1);
    const rig_node *writer = &t.r->nodes[t.p], *own = &t.r->nodes[t.d];
    assert_int_equal(hints.count, 1); /* once, however long it lasts */
    assert_non_null(strstr(hints.last, "2 blocks of 1 transfer stay in quarantine"));
    assert_non_null(strstr(hints.last, writer->address));
    assert_non_null(strstr(hints.last, base_format("declare-dead %s --incarnation %s", own->address, writer->incarnation)));
    json_t *tree = status_of(&t), *list = json_object_get(tree, "quarantine"), *item = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(json_string_value(json_object_get(item, "incarnation")), writer->incarnation);
    assert_string_equal(json_string_value(json_object_get(item, "address")), writer->address);
    assert_string_equal(json_string_value(json_object_get(item, "engine_id")), "prefill");
    assert_string_equal(json_string_value(json_object_get(item, "state")), "silent");
    assert_int_equal(json_integer_value(json_object_get(item, "transfers")), 1);
    assert_int_equal(json_integer_value(json_object_get(item, "blocks")), 2);
    assert_in_range(json_integer_value(json_object_get(item, "silent_ms")), 20 * RIG_SILENCE_MS, 30 * RIG_SILENCE_MS);
    json_decref(tree);
    t.l.place = "127.0.0.1";
    say_dead(&t, writer->incarnation);
    expect_released(&t);
    tree = status_of(&t);
    assert_int_equal(json_array_size(json_object_get(tree, "quarantine")), 0);
    json_decref(tree);
    finish(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_releases_what_a_vanished_writer_holds),
        cmocka_unit_test(a_name_that_nobody_has),
        cmocka_unit_test(it_is_for_one_incarnation_of_the_node),
        cmocka_unit_test(it_waits_for_the_other_writers),
        cmocka_unit_test(it_frees_the_lease_of_a_reader),
        cmocka_unit_test(other_hosts_have_no_say),
        cmocka_unit_test(a_host_that_is_not_known_is_no_other),
        cmocka_unit_test(other_keys_have_no_say),
        cmocka_unit_test(who_was_called_has_no_say),
        cmocka_unit_test(it_is_shown_who_holds_what),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
