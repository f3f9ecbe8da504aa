/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that go well, in many shapes. */
#include "node/rig_test.h"

/* Offers on all workers of P, asks on all of D, checks every cell and every event. */
static void transfer(rig *r, size_t p, size_t p_count, size_t d, size_t d_count, const char *id, uint64_t tokens)
{
    for (size_t i = p; i < p + p_count; i++) {
        rig_cells(r, i, 3, 5, tokens, false);
        assert_int_equal(rig_offer(r, i, id, 5, tokens, KVFERRY_READY), KVFERRY_OK);
    }
    for (size_t i = d; i < d + d_count; i++)
        assert_int_equal(rig_ask(r, i, id, p, 9, tokens), KVFERRY_OK);
    rig_wait(r, 10);
    for (size_t i = d; i < d + d_count; i++) {
        rig_expect_done(r, i, id);
        assert_int_equal(rig_cells(r, i, 3, 9, tokens, true), 0);
    }
    for (size_t i = p; i < p + p_count; i++)
        rig_expect_done(r, i, id);
}

static void shapes(uint32_t p_tp, uint32_t p_pp, uint32_t d_tp, uint32_t d_pp)
{
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", p_tp, p_pp), d = rig_engine(r, "decode", d_tp, d_pp);
    transfer(r, p, p_tp * p_pp, d, d_tp * d_pp, "t1", 11);
    transfer(r, p, p_tp * p_pp, d, d_tp * d_pp, "t2", 4);
    for (size_t i = 0; i < r->count; i++) {
        assert_true(core_idle(r->nodes[i].core));
        rig_quiet(r, i);
    }
    rig_free(r);
}

static void one_to_one(void **state) { (void)state; shapes(1, 1, 1, 1); }
static void tp2_to_tp1(void **state) { (void)state; shapes(2, 1, 1, 1); }
static void tp1_to_tp4(void **state) { (void)state; shapes(1, 1, 4, 1); }
static void pp2_tp2_to_tp4(void **state) { (void)state; shapes(2, 2, 4, 1); }
static void tp4_to_pp2(void **state) { (void)state; shapes(4, 1, 1, 2); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_to_one),     cmocka_unit_test(tp2_to_tp1), cmocka_unit_test(tp1_to_tp4),
        cmocka_unit_test(pp2_tp2_to_tp4), cmocka_unit_test(tp4_to_pp2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
