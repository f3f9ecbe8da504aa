/* SPDX-License-Identifier: Apache-2.0 */
/* Planted faults that lie in messages: a core that is wrong looks like this from outside. */
#include "world.h"

static const char *const names[SIM_FAULTS] = {
    "none",          "release-at-once", "no-deadline", "no-lease-end",
    "done-before-visible", "cancel-is-end", "forgotten-settle", "unheard-settled",
    "not-ready",     "no-linger",       "silent-is-dead", "event-twice",
    "links-closed-first"};

const char *sim_fault_name(sim_fault fault)
{
    return fault < SIM_FAULTS ? names[fault] : "";
}

bool sim_plant_message(const sim_world *world, const sim_event *event)
{
    switch (world->options->fault) {
    case SIM_FAULT_FORGOTTEN_SETTLE: return event->type != WIRE_SETTLE;
    case SIM_FAULT_UNHEARD_SETTLED: {
        wire_message message;
        bool final = event->type == WIRE_VERDICT &&
                     wire_decode(event->data, event->size, &message, NULL) == KVFERRY_OK &&
                     message.body.verdict.outcome != WIRE_WAITING &&
                     message.body.verdict.outcome != WIRE_DONE;
        if (event->type == WIRE_VERDICT)
            wire_message_end(&message);
        return event->type != WIRE_SETTLED && !final;
    }
    default: return true;
    }
}
