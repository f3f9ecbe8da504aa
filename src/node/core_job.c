/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that may be long (expanding, checksums) is done a little at a time, each in its turn, when the driver looks
 * for effects and there are none; after a while it is told that there are none, and looks again at once.
 */
#include "node/core_internal.h"

/* Of a turn of the driver; so long a call of the program waits for the lock. */
enum { TURN_NS = 200000 };

void core_job_queue(node_core *core, core_job *job)
{
    if (job->queued)
        return;
    job->queued = true;
    DL_APPEND(core->jobs, job);
}

void core_job_stop(node_core *core, core_job *job)
{
    if (!job->queued)
        return;
    job->queued = false;
    DL_DELETE(core->jobs, job);
}

void core_spend(node_core *core, uint64_t cost) { core->spent += cost; }

bool core_job_turn(node_core *core)
{
    core_job *job = core->jobs;
    if (!job || core->spent >= TURN_NS) {
        core->spent = 0;
        return false;
    }
    core_job_stop(core, job);
    job->run(core, job->owner);
    return true;
}
