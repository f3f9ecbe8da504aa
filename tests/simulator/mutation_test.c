/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator can fail: it finds each planted fault, by the rule that the fault breaks. */
#include "simulator.h"

#include <string.h>

#include "test.h"

#define SEEDS 3000

typedef struct planted {
    sim_fault fault;
    const char *rules; /* any of these is broken */
} planted;

static const planted faults[] = {
    {SIM_FAULT_RELEASE_AT_ONCE, "released_early"},
    {SIM_FAULT_NO_DEADLINE, "sleeps_on too_late"},
    {SIM_FAULT_NO_LEASE_END, "sleeps_on too_late"},
    {SIM_FAULT_DONE_BEFORE_VISIBLE, "wrong_bytes released_early"},
    {SIM_FAULT_CANCEL_IS_END, "released_early"},
    {SIM_FAULT_FORGOTTEN_SETTLE, "not_released"},
    {SIM_FAULT_UNHEARD_SETTLED, "not_released"},
    {SIM_FAULT_NOT_READY, "source_ready"},
    {SIM_FAULT_NO_LINGER, "released_early"},
    {SIM_FAULT_SILENT_IS_DEAD, "released_early"},
    {SIM_FAULT_EVENT_TWICE, "ended_twice unknown_event"},
    {SIM_FAULT_LINKS_CLOSED_FIRST, "released_early"},
};

static bool is_among(const char *rule, const char *rules)
{
    const char *found = strstr(rules, rule);
    return found && (found == rules || found[-1] == ' ') &&
           (found[strlen(rule)] == ' ' || found[strlen(rule)] == 0);
}

/* Without the fault. */
static bool is_fine(const sim_schedule *schedule)
{
    sim_options options = {0};
    sim_failure failure;
    sim_totals totals = {0};
    sim_run(schedule, &options, &failure, &totals);
    return failure.what[0] == 0;
}

static void find_fault(void **state)
{
    const planted *wanted = *state;
    sim_options options = {.fault = wanted->fault};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        sim_schedule schedule;
        sim_failure failure;
        sim_totals totals = {0};
        sim_generate(&schedule, seed);
        sim_run(&schedule, &options, &failure, &totals);
        if (failure.what[0] == 0 || !is_among(failure.what, wanted->rules) || !is_fine(&schedule))
            continue;
        sim_shrink(&schedule, &options, &failure);
        print_message("%s: seed %" PRIu64 ", %s: %s\n", sim_fault_name(wanted->fault), seed, failure.what,
                      failure.text);
        for (uint32_t i = 0; i < schedule.step_count; i++)
            if (!schedule.steps[i].dropped)
                sim_print_step(&schedule, i, stdout);
        assert_true(is_among(failure.what, wanted->rules));
        assert_true(is_fine(&schedule));
        return;
    }
    fail_msg("%s is not found in %d schedules", sim_fault_name(wanted->fault), SEEDS);
}

int main(void)
{
    enum { COUNT = sizeof faults / sizeof *faults };
    struct CMUnitTest tests[COUNT];
    for (int i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){sim_fault_name(faults[i].fault), find_fault, NULL, NULL,
                                       (void *)(uintptr_t)&faults[i]};
    return cmocka_run_group_tests_name("simulator_mutations", tests, NULL, NULL);
}
