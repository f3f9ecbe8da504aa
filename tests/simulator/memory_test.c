/* SPDX-License-Identifier: Apache-2.0 */
/* No memory grows: after many transfers the cores hold what they hold after few. */
#include "simulator.h"

#include "test.h"

/* What the cores hold after `count` requests one after another, all of them forgotten again. */
static uint64_t held_after(uint64_t seed, uint32_t count)
{
    sim_schedule schedule;
    sim_failure failure;
    sim_totals totals = {0};
    sim_options options = {0};
    sim_generate(&schedule, seed);
    schedule.setup.times.remember = 8 * SIM_S; /* longer than any message is late */
    schedule.setup.times.silence = 3 * SIM_S;  /* and the run goes on for more than three times that */
    schedule.clear = true; /* who has shaken hands in the end is no matter of luck */
    schedule.step_count = count;
    for (uint32_t i = 0; i < count; i++) {
        sim_step *step = &schedule.steps[i];
        *step = schedule.steps[0];
        step->at = i * 700 * SIM_MS;
        step->dice = sim_mix(seed + i % 4);
    }
    sim_run(&schedule, &options, &failure, &totals);
    assert_string_equal(failure.what, "");
    assert_true(totals.core_bytes > 0);
    return totals.core_bytes;
}

static void many_transfers_leave_no_more_than_few(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        /* Tables grow by doubling, and requests that meet need more than those that do not: hence two. */
        uint64_t few = held_after(seed, 12), some = held_after(seed, 20), many = held_after(seed, 44);
        if (many > (few > some ? few : some) + 1024)
            fail_msg("seed %" PRIu64 ": %" PRIu64 " bytes after 12 requests, %" PRIu64 " after 20, %" PRIu64
                     " after 44",
                     seed, few, some, many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_transfers_leave_no_more_than_few)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
