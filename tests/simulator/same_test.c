/* SPDX-License-Identifier: Apache-2.0 */
/* A seed is a run, and what once failed stays right. */
#include "simulator.h"

#include <string.h>

#include "test.h"

static uint64_t hash_of(uint64_t seed)
{
    sim_schedule schedule;
    sim_failure failure;
    sim_totals totals = {0};
    sim_options options = {0};
    sim_generate(&schedule, seed);
    return sim_run(&schedule, &options, &failure, &totals);
}

static void the_same_seed_is_the_same_run(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++)
        assert_int_equal(hash_of(seed), hash_of(seed));
}

static void another_seed_is_another_run(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++)
        assert_int_not_equal(hash_of(seed), hash_of(seed + 1));
}

/* Lines of `regressions`: name, seed, "all" or step numbers with commas, "clear" or "weather". */
static void what_failed_is_right(void **state)
{
    (void)state;
    char line[400], name[80], steps[200], weather[20];
    uint64_t seed, count = 0;
    FILE *file = fopen(KVFERRY_SOURCE_DIR "/tests/simulator/regressions", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        sim_schedule schedule;
        sim_failure failure;
        sim_totals totals = {0};
        sim_options options = {0};
        if (line[0] == '#' || line[0] == '\n')
            continue;
        assert_int_equal(sscanf(line, "%79s %" SCNu64 " %199s %19s", name, &seed, steps, weather), 4);
        sim_generate(&schedule, seed);
        schedule.clear = strcmp(weather, "clear") == 0;
        if (strcmp(steps, "all") != 0)
            assert_true(sim_keep_steps(&schedule, steps));
        sim_run(&schedule, &options, &failure, &totals);
        if (failure.what[0])
            print_message("%s: %s: %s\n", name, failure.what, failure.text);
        assert_string_equal(failure.what, "");
        count++;
    }
    fclose(file);
    assert_true(count > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_is_the_same_run),
        cmocka_unit_test(another_seed_is_another_run),
        cmocka_unit_test(what_failed_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
