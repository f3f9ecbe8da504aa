/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a failing schedule shorter. */
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

bool sim_keep_steps(sim_schedule *schedule, const char *list)
{
    for (uint32_t i = 0; i < schedule->step_count; i++)
        schedule->steps[i].dropped = true;
    for (char *end; *list; list = *end ? end + 1 : end) {
        unsigned long step = strtoul(list, &end, 10);
        if (end == list || step >= schedule->step_count || (*end && *end != ','))
            return false;
        schedule->steps[step].dropped = false;
    }
    return true;
}

static bool fails_still(const sim_schedule *schedule, const sim_options *options, sim_failure *failure)
{
    sim_failure other;
    sim_totals totals = {0};
    sim_run(schedule, options, &other, &totals);
    if (strcmp(other.what, failure->what) != 0)
        return false;
    *failure = other;
    return true;
}

/* Drops up to `count` kept steps from `first` on; how many it dropped. */
static uint32_t drop(sim_schedule *schedule, uint32_t first, uint32_t count)
{
    uint32_t dropped = 0;
    for (uint32_t i = first; i < schedule->step_count && dropped < count; i++) {
        dropped += !schedule->steps[i].dropped;
        schedule->steps[i].dropped = true;
    }
    return dropped;
}

static bool drop_some(sim_schedule *schedule, const sim_options *options, sim_failure *failure, uint32_t size)
{
    bool any = false;
    for (uint32_t first = 0; first < schedule->step_count; first++) {
        if (schedule->steps[first].dropped)
            continue;
        sim_schedule shorter = *schedule;
        if (drop(&shorter, first, size) == 0 || !fails_still(&shorter, options, failure))
            continue;
        *schedule = shorter;
        any = true;
    }
    return any;
}

void sim_shrink(sim_schedule *schedule, const sim_options *options, sim_failure *failure)
{
    sim_options quiet = *options;
    quiet.trace = NULL;
    for (uint32_t size = schedule->step_count / 2; size > 1; size /= 2)
        drop_some(schedule, &quiet, failure, size);
    while (drop_some(schedule, &quiet, failure, 1))
        continue;
    sim_schedule clear = *schedule;
    clear.clear = true;
    if (!schedule->clear && fails_still(&clear, &quiet, failure)) {
        *schedule = clear;
        while (drop_some(schedule, &quiet, failure, 1))
            continue;
    }
}
