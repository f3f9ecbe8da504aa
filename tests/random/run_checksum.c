/* SPDX-License-Identifier: Apache-2.0 */
/* What arrived has the checksums of what was sent, piece by piece, whatever the two layouts are. */
#include "plan/checksum.h"
#include "plan/slice.h"
#include "random.h"

static bool add(const kvferry_plan *plan, size_t source, size_t piece, bool of_source,
                const random_memory *memory, const kvferry_request *request, plan_sum *sum)
{
    const kvferry_piece *what = kvferry_plan_piece(plan, source, piece);
    const kvferry_stream *stream = kvferry_layout_stream(
        memory->worker.layout, of_source ? what->source_stream : what->target_stream);
    return plan_checksum(plan, source, piece, of_source, memory->worker.layout,
                         memory->segments[stream->segment], request, sum) == KVFERRY_OK;
}

/* The source's of the whole, the target's slice by slice. */
static bool checksum(const kvferry_plan *plan, size_t source, size_t piece, bool of_source,
                     const random_memory *memory, const kvferry_request *request, uint64_t *value)
{
    plan_sum *sum = plan_sum_create();
    plan_cursor cursor = {0};
    plan_slice slice;
    bool fine = sum && (!of_source || add(plan, source, piece, true, memory, request, sum));
    while (fine && !of_source && plan_slice_next_sum(plan, source, piece, request, 64, &cursor, &slice))
        fine = add(plan, source, piece, false, memory, &slice.request, sum);
    if (fine)
        *value = plan_sum_value(sum);
    plan_sum_free(sum);
    return fine;
}

void run_checksums(const kvferry_plan *plan, const random_memory *sources,
                   const random_memory *target, const kvferry_request *request,
                   random_finding *finding)
{
    for (size_t s = 0; s < kvferry_plan_source_count(plan); s++)
        for (size_t p = 0; p < kvferry_plan_piece_count(plan, s); p++) {
            uint64_t sent = 0, arrived = 1;
            if (!checksum(plan, s, p, true, &sources[s], request, &sent) ||
                !checksum(plan, s, p, false, target, request, &arrived) || sent != arrived)
                finding_set(finding, "checksum",
                            "request %s, source %zu, piece %zu: %llx, arrived %llx",
                            request->transfer_id, s, p, (unsigned long long)sent,
                            (unsigned long long)arrived);
        }
}
