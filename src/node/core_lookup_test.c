/* SPDX-License-Identifier: Apache-2.0 */
/* Where an engine is, is looked up. */
#include "node/liar_test.h"

static void expect_disconnected(rig *r, size_t d, const char *code)
{
    rig_expect(r, d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, code);
}

static void addresses_are_looked_up(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    node_core *core = r->nodes[d].core;
    core_effect effect;
    assert_int_equal(core_connect(core, "prefill", "http://127.0.0.1:80", r->now, NULL), KVFERRY_OK);
    assert_true(core_next_effect(core, &effect));
    assert_int_equal(effect.kind, CORE_RESOLVE);
    assert_string_equal(effect.address, "http://127.0.0.1:80");
    assert_string_equal(effect.engine_id, "prefill");
    const char *addresses[] = {"tcp://127.0.0.1:1", r->nodes[p].address}; /* nobody is at the first */
    core_resolved(core, effect.query, KVFERRY_OK, "prefill", addresses, 2, NULL, r->now);
    rig_run(r);
    expect_connected(r, d);
    core_resolved(core, effect.query, KVFERRY_OK, "prefill", addresses, 2, NULL, r->now); /* once more: late */
    assert_int_equal(core_connect(core, "third", "file:/nowhere", r->now, NULL), KVFERRY_OK);
    assert_true(core_next_effect(core, &effect));
    core_resolved(core, effect.query, KVFERRY_IO, "", NULL, 0, NULL, r->now);
    expect_disconnected(r, d, "address_unknown");
    rig_free(r);
}

static uint64_t next_question(rig *r, size_t d)
{
    core_effect effect;
    assert_true(core_next_effect(r->nodes[d].core, &effect));
    assert_int_equal(effect.kind, CORE_RESOLVE);
    return effect.query;
}

/* As from a server that has too many connections. */
static void addresses_without_an_answer_are_asked_for_again(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    node_core *core = r->nodes[d].core;
    const char *addresses[] = {r->nodes[p].address};
    kvferry_report *why = core_reason("discovery_failed", "an answer", "none", "workers could not be asked for");
    assert_int_equal(core_connect(core, "prefill", "http://127.0.0.1:80", r->now, NULL), KVFERRY_OK);
    for (int i = 0; i < 3; i++) {
        core_resolved(core, next_question(r, d), KVFERRY_BUSY, "", NULL, 0, why, r->now);
        r->now += RIG_RETRY_MS * 1000000ull;
        core_tick(core, r->now);
    }
    core_resolved(core, next_question(r, d), KVFERRY_OK, "prefill", addresses, 1, NULL, r->now);
    rig_run(r);
    expect_connected(r, d);
    assert_int_equal(core_connect(core, "other", "http://127.0.0.1:81", r->now, NULL), KVFERRY_OK);
    core_resolved(core, next_question(r, d), KVFERRY_BUSY, "", NULL, 0, why, r->now);
    r->now += RIG_CONNECT_MS * 1000000ull;
    core_tick(core, r->now);
    expect_disconnected(r, d, "discovery_failed");
    kvferry_report_free(why);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_looked_up),
        cmocka_unit_test(addresses_without_an_answer_are_asked_for_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
