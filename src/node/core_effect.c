/* SPDX-License-Identifier: Apache-2.0 */
/* Effects, in the order in which they came about. */
#include "node/core_internal.h"

void core_action_queue(node_core *core, core_action *action)
{
    action->next = NULL;
    action->queued = true;
    if (core->last_action)
        core->last_action->next = action;
    else
        core->first_action = action;
    core->last_action = action;
}

void core_action_free(core_action *action, void *inner, void *object)
{
    if (action->queued) {
        action->free_first = inner;
        action->free_then = object;
    } else {
        free(inner);
        free(object);
    }
}

/* What was taken last is over. */
static void leave_taken(node_core *core)
{
    core_action *action = core->taken;
    core->taken = NULL;
    if (!action)
        return;
    action->queued = false;
    if (action->effect.kind == CORE_SEND)
        core->queued_bytes -= action->effect.size;
    void *first = action->free_first, *then = action->free_then;
    free(first);
    free(then);
}

static core_action *take(node_core *core)
{
    leave_taken(core);
    core_action *action = core->first_action;
    if (!action)
        return NULL;
    core->first_action = action->next;
    if (!core->first_action)
        core->last_action = NULL;
    core->taken = action;
    return action;
}

bool core_next_effect(node_core *core, core_effect *effect)
{
    do {
        core_action *action;
        while ((action = take(core)) != NULL) {
            if (action->skip)
                continue;
            *effect = action->effect;
            return true;
        }
    } while (core_job_turn(core));
    return false;
}

void core_effects_free(node_core *core)
{
    while (take(core)) {
    }
}
