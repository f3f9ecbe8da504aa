/* SPDX-License-Identifier: Apache-2.0 */
/* What arrived has the checksums of what was sent, piece by piece, whatever the two layouts are. */
#include "plan/checksum.h"
#include "random.h"

static bool checksum(const kvferry_plan *plan, size_t source, size_t piece, bool of_source,
                     const random_memory *memory, const kvferry_request *request, uint64_t *value)
{
    const kvferry_piece *what = kvferry_plan_piece(plan, source, piece);
    const kvferry_stream *stream = kvferry_layout_stream(
        memory->worker.layout, of_source ? what->source_stream : what->target_stream);
    return plan_checksum(plan, source, piece, of_source, memory->worker.layout,
                         memory->segments[stream->segment], request, value) == KVFERRY_OK;
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
