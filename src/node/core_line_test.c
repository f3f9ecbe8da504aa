/* SPDX-License-Identifier: Apache-2.0 */
/* Links that one side has closed, while the other goes on. */
#include "node/rig_test.h"

/* D lives, but P took it for lost. A hello over the link that P closed then begins no handshake; D opens another. */
static void a_hello_over_a_closed_link_is_said_again_over_a_new_one(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    r->nodes[p].hold = r->nodes[p].deaf_cancel = true;
    assert_int_equal(rig_offer(r, p, "t", 5, 8, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(r, d, "t", p, 1, 8), KVFERRY_OK);
    rig_expect(r, d, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
    r->nodes[p].cut = true;
    rig_wait(r, RIG_SILENCE_MS + RIG_RETRY_MS);
    rig_expect(r, d, KVFERRY_EVENT_DISCONNECTED, NULL, KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_expect_end(r, d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    r->nodes[p].cut = false;
    size_t errors = r->sent[WIRE_ERROR];
    assert_int_equal(core_connect(r->nodes[d].core, "prefill", r->nodes[p].address, r->now, NULL), KVFERRY_OK);
    rig_expect(r, d, KVFERRY_EVENT_CONNECTED, NULL, KVFERRY_OUTCOME_DONE, "");
    assert_int_equal(r->sent[WIRE_ERROR], errors + 1); /* it had greeted over the link that it still had */
    rig_wait(r, 2 * RIG_RETRY_MS);
    rig_expect_released(r, d, "t", KVFERRY_OUTCOME_FAILED, "peer_lost");
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_over_a_closed_link_is_said_again_over_a_new_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
