/* SPDX-License-Identifier: Apache-2.0 */
/* Runs schedules by seed, and replays and shrinks what fails. */
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

static const char usage[] =
    "usage: simulate [--seed N] [--runs N] [--steps I,J,...] [--clear] [--fault NAME]\n"
    "                [--must-fail] [--trace] [--log]\n"
    "  --seed N       the first seed (1)\n"
    "  --runs N       how many seeds, one after another (1)\n"
    "  --steps I,J    only these steps of the schedule\n"
    "  --clear        no loss and no delay of messages\n"
    "  --fault NAME   behave as a core that is wrong\n"
    "  --must-fail    one schedule has to fail: 0 then, else 1\n"
    "  --trace        every happening, one a line\n"
    "  --log          the cores' log lines in the trace\n";

typedef struct arguments {
    uint64_t seed, runs;
    const char *steps;
    bool clear, must_fail;
    sim_options options;
} arguments;

static bool read_fault(const char *name, sim_fault *fault)
{
    for (*fault = SIM_FAULT_NONE; *fault < SIM_FAULTS; ++*fault)
        if (strcmp(sim_fault_name(*fault), name) == 0)
            return true;
    return false;
}

static bool read_arguments(int count, char **values, arguments *read)
{
    *read = (arguments){.seed = 1, .runs = 1};
    for (int i = 1; i < count; i++) {
        const char *option = values[i];
        if (strcmp(option, "--trace") == 0)
            read->options.trace = stdout;
        else if (strcmp(option, "--log") == 0)
            read->options.log = true;
        else if (strcmp(option, "--clear") == 0)
            read->clear = true;
        else if (strcmp(option, "--must-fail") == 0)
            read->must_fail = true;
        else if (++i == count)
            return false;
        else if (strcmp(option, "--seed") == 0)
            read->seed = strtoull(values[i], NULL, 0);
        else if (strcmp(option, "--runs") == 0)
            read->runs = strtoull(values[i], NULL, 0);
        else if (strcmp(option, "--steps") == 0)
            read->steps = values[i];
        else if (strcmp(option, "--fault") != 0 || !read_fault(values[i], &read->options.fault))
            return false;
    }
    return true;
}

static void print_failure(const sim_schedule *schedule, const sim_failure *failure)
{
    printf("%s at %.6f s: %s\n", failure->what, (double)failure->at / 1e9, failure->text);
    sim_print(schedule, stdout);
    printf("replay: simulate --seed %" PRIu64 "%s --steps ", schedule->seed,
           schedule->clear ? " --clear" : "");
    const char *comma = "";
    for (uint32_t i = 0; i < schedule->step_count; i++)
        if (!schedule->steps[i].dropped) {
            printf("%s%" PRIu32, comma, i);
            comma = ",";
        }
    printf(" --trace --log\n");
}

static bool run_one(const arguments *wanted, uint64_t seed, sim_totals *totals)
{
    sim_schedule schedule;
    sim_failure failure;
    sim_generate(&schedule, seed);
    schedule.clear = wanted->clear;
    if (wanted->steps && !sim_keep_steps(&schedule, wanted->steps)) {
        fprintf(stderr, "no list of steps: %s\n", wanted->steps);
        return false;
    }
    if (wanted->options.trace)
        sim_print(&schedule, stdout);
    sim_run(&schedule, &wanted->options, &failure, totals);
    if (failure.what[0] == 0)
        return true;
    if (!wanted->steps)
        sim_shrink(&schedule, &wanted->options, &failure);
    print_failure(&schedule, &failure);
    return false;
}

/* What a run did not reach it proves nothing about. */
static bool reached_all(const sim_totals *totals)
{
    static const char *const sides[2] = {"offers", "asks"};
    bool all = true;
    for (int side = 0; side < 2; side++) {
        printf("%s:", sides[side]);
        for (int i = 0; i < 4; i++) {
            printf(" %" PRIu64 " %s", totals->ended[side][i], kvferry_outcome_name((kvferry_outcome)i));
            all = all && totals->ended[side][i] > 0;
        }
        printf("\n");
    }
    printf("%" PRIu64 " schedules, %" PRIu64 " happenings, %" PRIu64 " messages (%" PRIu64 " lost), %" PRIu64
           " writes (%" PRIu64 " canceled), %" PRIu64 " copies, %" PRIu64 " of them after the ask's end,\n%" PRIu64
           " asks ended under a write, %" PRIu64 " processes killed, %" PRIu64 " started again, %" PRIu64
           " bytes checked, %" PRIu64 " calls refused, %" PRIu64 " words of the operator,\n%" PRIu64
           " asks done with what whole blocks want before a window, %" PRIu64 " refused for it, %" PRIu64
           " done in part\n",
           totals->schedules, totals->events, totals->messages, totals->lost_messages, totals->writes,
           totals->canceled_writes, totals->copies, totals->late_landings, totals->quarantines, totals->kills,
           totals->restarts, totals->checked_bytes, totals->refused, totals->words,
           totals->whole, totals->whole_refused, totals->parts);
    return all && totals->late_landings > 0 && totals->quarantines > 0 && totals->restarts > 0 &&
           totals->checked_bytes > 0 && totals->refused > 0 && totals->words > 0 &&
           totals->whole > 0 && totals->whole_refused > 0 && totals->parts > 0;
}

int main(int count, char **values)
{
    arguments wanted;
    sim_totals totals = {0};
    uint64_t failures = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* what a long run finds is seen at once */
    if (!read_arguments(count, values, &wanted)) {
        fputs(usage, stderr);
        return 2;
    }
    uint64_t enough = wanted.must_fail ? 1 : 5;
    for (uint64_t i = 0; i < wanted.runs && failures < enough; i++)
        failures += !run_one(&wanted, wanted.seed + i, &totals);
    if (wanted.must_fail)
        return failures == 0;
    bool reached = wanted.runs > 0 && reached_all(&totals);
    if (wanted.runs >= 500 && !reached && failures == 0)
        printf("something above never happened\n");
    return failures > 0 || (wanted.runs >= 500 && !reached);
}
