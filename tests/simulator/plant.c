/* SPDX-License-Identifier: Apache-2.0 */
/* Planted faults that lie in messages: a core that is wrong looks like this from outside. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

static const char *const names[SIM_FAULTS] = {
    "none",          "release-at-once", "count",       "no-deadline",
    "no-lease-end",  "done-before-visible", "cancel-is-end", "forgotten-settle", "unheard-settled",
    "not-ready",     "no-linger",       "silent-is-dead", "event-twice"};

const char *sim_fault_name(sim_fault fault)
{
    return fault < SIM_FAULTS ? names[fault] : "";
}

/* A decoded message's fields are changed and written again. */
static void write_again(sim_event *event, const wire_message *message)
{
    void *data;
    size_t size;
    if (wire_encode(message, &data, &size) != KVFERRY_OK)
        abort();
    free(event->data);
    event->data = data;
    event->size = size;
}

static void set_text(char *to, const char *from)
{
    memcpy(to, from, WIRE_INCARNATION_TEXT);
}

/* A second event with the verdict of another source of the same engine. */
static void count_twice(sim_world *world, const sim_connection *connection, const sim_event *event)
{
    wire_message message;
    if (wire_decode(event->data, event->size, &message, NULL) == KVFERRY_OK &&
        message.body.verdict.outcome == WIRE_DONE)
        for (size_t i = 0; i < world->connection_count; i++) {
            const sim_connection *other = &world->connections[i];
            const sim_worker *source = &world->workers[other->acceptor];
            if (!other->open || other->opener != connection->opener || other == connection || !source->core ||
                other->opener_incarnation != connection->opener_incarnation ||
                source->engine != world->workers[connection->acceptor].engine ||
                other->acceptor == connection->acceptor)
                continue;
            sim_event forged = *event;
            forged.a = i;
            forged.b = 2; /* not to be forged again */
            forged.data = NULL;
            set_text(message.sender, source->name);
            write_again(&forged, &message);
            sim_schedule_event(world, world->now, forged);
        }
    wire_message_end(&message);
}

bool sim_plant_message(sim_world *world, const sim_connection *connection, sim_event *event)
{
    switch (world->options->fault) {
    case SIM_FAULT_COUNT:
        if (event->type == WIRE_VERDICT && event->b == 0)
            count_twice(world, connection, event);
        return true;
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
