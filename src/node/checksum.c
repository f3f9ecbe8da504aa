/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node_internal.h"
#include "plan/checksum.h"

static void *begin(void *context)
{
    (void)context;
    return plan_sum_create();
}

static kvferry_status add(void *context, void *sum, const kvferry_plan *plan, size_t source, size_t piece,
                          kvferry_side side, const kvferry_request *request)
{
    const kvferry_node *node = context;
    const kvferry_piece *what = kvferry_plan_piece(plan, source, piece);
    if (!what)
        return KVFERRY_INVALID;
    bool of_source = side == KVFERRY_SIDE_PREFILL;
    const kvferry_stream *stream =
        kvferry_layout_stream(node->layout, of_source ? what->source_stream : what->target_stream);
    if (!stream)
        return KVFERRY_INVALID;
    if (node->device[stream->segment])
        return KVFERRY_UNSUPPORTED;
    return plan_checksum(plan, source, piece, of_source, node->layout,
                         node->segments[stream->segment], request, sum);
}

static uint64_t end(void *context, void *sum)
{
    uint64_t value = plan_sum_value(sum);
    (void)context;
    plan_sum_free(sum);
    return value;
}

const core_checksums node_checksums = {begin, add, end};
