/* SPDX-License-Identifier: Apache-2.0 */
/* Links between workers, and the messages on them. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

static void end_link(sim_world *world, uint32_t slot, uint32_t incarnation, core_link link, core_link_end how,
                     uint64_t wait)
{
    if (world->options->fault == SIM_FAULT_SILENT_IS_DEAD)
        how = CORE_LINK_REFUSED;
    sim_schedule_event(world, world->now + wait,
                       (sim_event){.kind = SIM_ON_LINK_END, .slot = slot, .incarnation = incarnation,
                                   .a = link, .b = how});
}

/* The opener's link is over, and it is told. */
static void end_opener(sim_world *world, sim_connection *connection, core_link_end how, uint64_t wait)
{
    if (!connection->open)
        return;
    connection->open = false;
    end_link(world, connection->opener, connection->opener_incarnation, connection->opener_link, how, wait);
}

static void end_acceptor(sim_world *world, sim_connection *connection, uint64_t wait)
{
    if (connection->acceptor_link)
        end_link(world, connection->acceptor, connection->acceptor_incarnation, connection->acceptor_link,
                 CORE_LINK_LOST, wait);
    connection->acceptor_link = 0;
}

static sim_connection *find(sim_world *world, const sim_worker *worker, core_link link)
{
    for (size_t i = world->connection_count; i > 0; i--) {
        sim_connection *connection = &world->connections[i - 1];
        bool opened = connection->opener == worker->slot && connection->opener_link == link &&
                      connection->opener_incarnation == worker->incarnation;
        bool accepted = connection->acceptor == worker->slot && connection->acceptor_link == link &&
                        connection->acceptor_incarnation == worker->incarnation;
        if (link % 2 == 1 ? opened : accepted)
            return connection;
    }
    return NULL;
}

bool sim_listens(const sim_world *world, const sim_worker *worker)
{
    return worker->core && !(worker->closing && world->options->fault == SIM_FAULT_LINKS_CLOSED_FIRST);
}

/* --- opening and closing --------------------------------------------------------------------------- */

void sim_link_open(sim_world *world, sim_worker *worker, core_link link, const char *address)
{
    uint32_t slot = 0;
    while (slot < world->worker_count && strcmp(world->workers[slot].address, address) != 0)
        slot++;
    if (slot == world->worker_count || link % 2 == 0) {
        sim_fail(world, "open_link", "worker %" PRIu32 " opens link %" PRIu64 " to \"%s\"", worker->slot, link,
                 address);
        return;
    }
    sim_trace(world, "w%u opens link %" PRIu64 " to w%u", worker->slot, link, slot);
    world->connections = sim_grow(world->connections, &world->connection_room, world->connection_count + 1,
                                  sizeof *world->connections);
    world->connections[world->connection_count] =
        (sim_connection){.opener = worker->slot, .opener_incarnation = worker->incarnation,
                         .opener_link = link, .acceptor = slot, .open = true,
                         .silent = !world->calm && sim_one_in(&world->dice, 2)};
    sim_schedule_event(world, world->now + sim_flight(world),
                       (sim_event){.kind = SIM_ON_CONNECT, .slot = worker->slot,
                                   .incarnation = worker->incarnation, .a = world->connection_count++});
}

void sim_on_connect(sim_world *world, const sim_event *event)
{
    sim_connection *connection = &world->connections[event->a];
    const sim_worker *to = &world->workers[connection->acceptor];
    uint64_t second = world->calm ? SIM_S : sim_random_time(world, SIM_S, 3 * SIM_S);
    if (!connection->open)
        return;
    if (to->core)
        connection->acceptor_incarnation = to->incarnation;
    if (sim_cut_off(world, connection->opener, connection->acceptor) || (!to->core && to->host_down)) {
        if (!connection->silent)
            end_opener(world, connection, CORE_LINK_LOST, second);
    } else if (!sim_listens(world, to)) {
        end_opener(world, connection, CORE_LINK_REFUSED, 0);
    }
}

void sim_link_close(sim_world *world, sim_worker *worker, core_link link)
{
    sim_connection *connection = find(world, worker, link);
    if (!connection)
        return;
    sim_trace(world, "w%u closes link %" PRIu64, worker->slot, link);
    if (link % 2 == 0) {
        connection->acceptor_link = 0;
        return;
    }
    uint64_t wait = connection->silent ? 2 * SIM_S : sim_flight(world);
    connection->open = false;
    connection->read_until = world->now + wait;
    if (connection->acceptor_link)
        end_link(world, connection->acceptor, connection->acceptor_incarnation, connection->acceptor_link,
                 CORE_LINK_LOST, wait);
}

void sim_links_cut(sim_world *world, uint32_t a, uint32_t b)
{
    for (size_t i = 0; i < world->connection_count; i++) {
        sim_connection *connection = &world->connections[i];
        if (!connection->open || !((connection->opener == a && connection->acceptor == b) ||
                                   (connection->opener == b && connection->acceptor == a)))
            continue;
        end_opener(world, connection, CORE_LINK_LOST, sim_random_time(world, 0, 200 * SIM_MS));
        if (!connection->silent)
            end_acceptor(world, connection, sim_random_time(world, 0, 200 * SIM_MS));
    }
}

/* Who had a link to a process that died is told soon, or when it next sends. */
void sim_links_of_dead(sim_world *world, uint32_t slot)
{
    const sim_worker *dead = &world->workers[slot];
    for (size_t i = 0; i < world->connection_count; i++) {
        sim_connection *connection = &world->connections[i];
        uint64_t wait = sim_random_time(world, 0, 300 * SIM_MS);
        if (!connection->open)
            continue;
        if (connection->opener == slot && connection->opener_incarnation == dead->incarnation) {
            connection->open = false;
            if (!connection->silent)
                end_acceptor(world, connection, wait);
        } else if (connection->acceptor == slot && !connection->silent && !dead->host_down) {
            end_opener(world, connection,
                       sim_one_in(&world->dice, 2) ? CORE_LINK_LOST : CORE_LINK_REFUSED, wait);
        }
        if (connection->acceptor == slot)
            connection->acceptor_link = 0;
    }
}

/* --- messages ---------------------------------------------------------------------------------------- */

static bool read_type(sim_world *world, const sim_worker *worker, const void *data, size_t size,
                      wire_type *type, char *text, size_t text_size)
{
    wire_message message;
    kvferry_status status = wire_decode(data, size, &message, NULL);
    *type = message.type;
    snprintf(text, text_size, "%s %s", wire_type_name(message.type), message.transfer_id);
    wire_message_end(&message);
    if (status == KVFERRY_OK)
        return true;
    sim_fail(world, "malformed", "worker %" PRIu32 " sends what nobody can read: %s, %s", worker->slot, text,
             kvferry_status_name(status));
    return false;
}

static void send_once(sim_world *world, sim_connection *connection, sim_event event, const void *data)
{
    bool late = !world->calm && sim_percent(&world->dice, world->weather.late);
    uint64_t at = world->now + sim_flight(world), *last = &connection->last[event.b];
    if (!late) { /* in the order in which they were sent */
        at = at < *last ? *last : at;
        *last = at;
    }
    event.data = malloc(event.size ? event.size : 1);
    if (!event.data)
        abort();
    memcpy(event.data, data, event.size);
    sim_schedule_event(world, at, event);
}

void sim_link_send(sim_world *world, sim_worker *worker, core_link link, const void *data, size_t size)
{
    sim_connection *connection = find(world, worker, link);
    sim_event event = {.kind = SIM_ON_MESSAGE, .slot = SIM_NOBODY, .b = link % 2, .size = size};
    char text[300];
    world->totals->messages++;
    if (!read_type(world, worker, data, size, &event.type, text, sizeof text))
        return;
    if (event.type == WIRE_BYE && worker->live_writes > 0)
        sim_fail(world, "bye_while_writing", "worker %" PRIu32 " says bye in %" PRIu32 " writes", worker->slot,
                 worker->live_writes);
    bool lost = !world->calm && !world->schedule->clear &&
                sim_percent(&world->dice, world->weather.loss);
    sim_trace(world, "w%u sends %s on link %" PRIu64 "%s", worker->slot, text, link,
              !connection ? ", which is gone" : lost ? ", lost" : "");
    if (!connection)
        return;
    event.a = (uint64_t)(connection - world->connections);
    if (!connection->open) {
        if (link % 2 == 0)
            end_acceptor(world, connection, sim_flight(world));
        return;
    }
    if (link % 2 == 0) {
        event.slot = connection->opener;
        event.incarnation = connection->opener_incarnation;
    }
    if (lost) {
        world->totals->lost_messages++;
        return;
    }
    send_once(world, connection, event, data);
    if (!world->calm && !world->schedule->clear && sim_percent(&world->dice, world->weather.twice))
        send_once(world, connection, event, data);
}

/* Who accepts a message at the other end; NULL: nobody, and the opener is told. */
static sim_worker *acceptor_of(sim_world *world, sim_connection *connection)
{
    sim_worker *to = &world->workers[connection->acceptor];
    if (!sim_listens(world, to)) {
        if (!to->host_down)
            end_opener(world, connection, CORE_LINK_REFUSED, sim_flight(world));
        else if (world->calm)
            end_opener(world, connection, CORE_LINK_LOST, SIM_S);
        return NULL;
    }
    if (connection->acceptor_incarnation != to->incarnation) {
        /* A socket that connects anew by itself leads to the next process at the address. */
        connection->acceptor_link = 0;
        connection->acceptor_incarnation = to->incarnation;
    }
    if (connection->acceptor_link == 0)
        connection->acceptor_link = to->next_link += 2;
    return to;
}

static void prolong(sim_world *world, sim_worker *to, const sim_event *event)
{
    wire_message message;
    unsigned request;
    if (wire_decode(event->data, event->size, &message, NULL) == KVFERRY_OK &&
        sscanf(message.transfer_id, "r%u", &request) == 1 && request < world->request_count) {
        uint64_t span = world->setup->times.lease;
        if (message.type == WIRE_ASK && message.body.ask.timeout_ms * SIM_MS > span)
            span = message.body.ask.timeout_ms * SIM_MS;
        uint64_t until = sim_clock(world, to) + span;
        if (until > to->asked_until[request])
            to->asked_until[request] = until;
    }
    wire_message_end(&message);
}

void sim_on_message(sim_world *world, sim_event *event)
{
    sim_connection *connection = &world->connections[event->a];
    /* What was sent before its opener closed a link may be read later, until the reader is told. */
    bool unread = event->b == 1 && connection->acceptor_link && world->now < connection->read_until;
    if ((!connection->open && !unread) || sim_cut_off(world, connection->opener, connection->acceptor)) {
        world->totals->lost_messages++;
        return;
    }
    bool to_acceptor = event->b == 1;
    sim_worker *to = to_acceptor ? acceptor_of(world, connection) : &world->workers[connection->opener];
    if (!to)
        return;
    if (to_acceptor && to->paused_until > world->now && !world->calm) {
        sim_event later = *event;
        event->data = NULL;
        sim_schedule_event(world, to->paused_until, later);
        return;
    }
    if (to->closing)
        return;
    if (world->options->fault != SIM_FAULT_NONE && !sim_plant_message(world, event))
        return;
    if (event->type == WIRE_ASK || event->type == WIRE_RENEW)
        prolong(world, to, event);
    core_link link = to_acceptor ? connection->acceptor_link : connection->opener_link;
    sim_trace(world, "w%u gets %s on link %" PRIu64, to->slot, wire_type_name(event->type), link);
    core_received(to->core, link, NULL, NULL, event->data, event->size, sim_clock(world, to));
    sim_worker_after(world, to);
}
