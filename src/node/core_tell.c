/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode side: asks that are released, while sources are still to hear how they ended. One that never answers is told
 * for as long as an end is remembered, and of too many asks the oldest is told no more: the lease there ends by itself.
 */
#include "node/core_internal.h"

void core_request_tell_begin(node_core *core, core_request *request)
{
    request->tells = true;
    request->tell_until = core_after(core, core->options.remember_ns);
    DL_APPEND2(core->telling, request, told_prev, told_next);
    if (++core->statistics.unsettled <= core->options.max_transfers)
        return;
    core_request *oldest = core->telling;
    core_request_tell_end(core, oldest);
    oldest->tell_until = core->now; /* who calls may be walking over its sources' parts: so in its own time */
    core_timer_set(core, &oldest->timer, core->now);
}

void core_request_tell_end(node_core *core, core_request *request)
{
    if (!request->tells)
        return;
    request->tells = false;
    DL_DELETE2(core->telling, request, told_prev, told_next);
    core->statistics.unsettled--;
}
