/* SPDX-License-Identifier: Apache-2.0 */
/* With verify: checksums of what was sent, or has arrived, a slice of a piece at a time. */
#include "node/core_internal.h"

enum { SLICE_BYTES = 512 * 1024, CALL_NS = 500, BYTES_A_NS = 5 };

static void run(node_core *core, void *owner)
{
    core_sum *sum = owner;
    const core_checksums *checksums = core->options.checksums;
    void *context = core->options.checksums_context;
    kvferry_status status = KVFERRY_OK;
    plan_slice slice;
    if (sum->piece < sum->count && !sum->open) {
        sum->open = checksums->begin(context);
        status = sum->open ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    }
    if (sum->open && plan_slice_next_sum(sum->plan, sum->source, sum->piece, &sum->request, SLICE_BYTES,
                                         &sum->cursor, &slice)) {
        status = checksums->add(context, sum->open, sum->plan, sum->source, sum->piece, sum->side, &slice.request);
        core_spend(core, CALL_NS + slice.bytes / BYTES_A_NS);
    } else if (sum->open) {
        sum->values[sum->piece] = (wire_checksum){.piece = (uint32_t)sum->piece,
                                                  .value = checksums->end(context, sum->open)};
        sum->open = NULL;
        sum->cursor = (plan_cursor){0};
        sum->piece++;
        core_spend(core, CALL_NS);
    }
    if (status == KVFERRY_OK && sum->piece < sum->count)
        core_job_queue(core, &sum->job);
    else
        sum->over(core, sum->owner, status);
}

bool core_sum_begin(node_core *core, core_sum *sum)
{
    sum->piece = 0;
    sum->count = kvferry_plan_piece_count(sum->plan, sum->source);
    sum->values = base_alloc(sum->count + 1, sizeof(*sum->values));
    if (!sum->values)
        return false;
    sum->job.run = run;
    sum->job.owner = sum;
    core_job_queue(core, &sum->job);
    return true;
}

void core_sum_end(node_core *core, core_sum *sum)
{
    core_job_stop(core, &sum->job);
    if (sum->open)
        core->options.checksums->end(core->options.checksums_context, sum->open);
    free(sum->values);
    sum->open = NULL;
    sum->values = NULL;
    sum->cursor = (plan_cursor){0};
    sum->count = 0;
}
