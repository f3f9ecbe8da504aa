/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual transfer engine: writes proceed copy by copy, and take their time to stop. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

#define FLYING 8 /* copies that a dead process's kernel still sends, at most */

static bool target_lives(const sim_world *world, const sim_write *write)
{
    const sim_worker *target = &world->workers[write->target];
    return target->core && target->incarnation == write->target_incarnation;
}

static sim_worker *mover(sim_world *world, const sim_write *write)
{
    return &world->workers[write->slot];
}

static sim_event of_write(const sim_world *world, const sim_write *write, sim_event_kind kind)
{
    return (sim_event){.kind = kind, .slot = write->slot, .incarnation = write->incarnation,
                       .a = (uint64_t)(write - world->writes)};
}

/* --- peers ---------------------------------------------------------------------------------------- */

static sim_peer *find_peer(sim_world *world, const sim_worker *worker, uint64_t number)
{
    for (size_t i = 0; i < world->peer_count; i++) {
        sim_peer *peer = &world->peers[i];
        if (peer->slot == worker->slot && peer->incarnation == worker->incarnation && peer->number == number)
            return peer;
    }
    return NULL;
}

static void lose(sim_world *world, sim_peer *peer, uint64_t wait)
{
    if (peer->lost || !peer->open)
        return;
    peer->lost = true;
    sim_schedule_event(world, world->now + wait,
                       (sim_event){.kind = SIM_ON_PEER_LOST, .slot = peer->slot,
                                   .incarnation = peer->incarnation,
                                   .a = (uint64_t)(peer - world->peers)});
}

void sim_peer_connect(sim_world *world, sim_worker *worker, uint64_t number, const void *binding, size_t size)
{
    uint32_t to[2] = {SIM_NOBODY, 0};
    if (size == sizeof to)
        memcpy(to, binding, size);
    if (to[0] >= world->worker_count || find_peer(world, worker, number)) {
        sim_fail(world, "connect_peer", "worker %" PRIu32 ", peer %" PRIu64 ": no such binding, or twice",
                 worker->slot, number);
        return;
    }
    sim_trace(world, "w%u peer %" PRIu64 " is w%u, incarnation %u", worker->slot, number, to[0], to[1]);
    world->peers = sim_grow(world->peers, &world->peer_room, world->peer_count + 1, sizeof *world->peers);
    sim_peer *peer = &world->peers[world->peer_count++];
    *peer = (sim_peer){.slot = worker->slot, .incarnation = worker->incarnation, .number = number,
                       .target = to[0], .target_incarnation = to[1], .open = true};
    const sim_worker *target = &world->workers[to[0]];
    if (!target->core || target->incarnation != to[1])
        lose(world, peer, sim_random_time(world, SIM_MS, 300 * SIM_MS));
}

/* Writes to it end by themselves when the connection is lost, and by force when it is closed. */
static void end_writes(sim_world *world, const sim_peer *peer, sim_write_state state, uint64_t most)
{
    for (size_t i = 0; i < world->write_count; i++) {
        sim_write *write = &world->writes[i];
        if (write->slot != peer->slot || write->incarnation != peer->incarnation ||
            write->peer != peer->number || (write->state != SIM_RUNS && write->state != SIM_CANCELED))
            continue;
        write->state = state;
        write->status = KVFERRY_PEER_LOST;
        sim_schedule_event(world, world->now + sim_random_time(world, 0, most),
                           of_write(world, write, SIM_ON_WRITE_END));
    }
}

void sim_peer_close(sim_world *world, sim_worker *worker, uint64_t number)
{
    sim_peer *peer = find_peer(world, worker, number);
    if (!peer || !peer->open) {
        sim_fail(world, "close_peer", "worker %" PRIu32 " has no peer %" PRIu64, worker->slot, number);
        return;
    }
    sim_trace(world, "w%u closes peer %" PRIu64, worker->slot, number);
    peer->open = false;
    end_writes(world, peer, SIM_CLOSED, world->calm ? SIM_MS : 400 * SIM_MS);
}

void sim_on_peer_lost(sim_world *world, const sim_event *event)
{
    const sim_peer *peer = &world->peers[event->a];
    sim_worker *worker = &world->workers[peer->slot];
    if (!peer->open)
        return;
    sim_trace(world, "w%u loses peer %" PRIu64, worker->slot, peer->number);
    end_writes(world, peer, SIM_CLOSED, 50 * SIM_MS);
    if (!worker->closing)
        core_peer_lost(worker->core, peer->number, "simulated loss", sim_clock(world, worker));
    sim_worker_after(world, worker);
}

void sim_peers_lose(sim_world *world, sim_worker *worker)
{
    for (size_t i = 0; i < world->peer_count; i++)
        if (world->peers[i].slot == worker->slot && world->peers[i].incarnation == worker->incarnation)
            lose(world, &world->peers[i], sim_random_time(world, 0, 5 * SIM_MS));
}

/* --- writes ----------------------------------------------------------------------------------------- */

static bool inside(const sim_world *world, uint32_t slot, uint32_t segment, uint64_t offset, uint64_t bytes)
{
    if (segment > 1)
        return false;
    uint64_t size = world->workers[slot].cache.segment_bytes[segment];
    return bytes > 0 && offset <= size && bytes <= size - offset;
}

static bool check_bounds(sim_world *world, const sim_write *write)
{
    for (size_t i = 0; i < write->count; i++) {
        const kvferry_copy *copy = &write->copies[i];
        if (inside(world, write->slot, copy->source_segment, copy->source_offset, copy->bytes) &&
            inside(world, write->target, copy->target_segment, copy->target_offset, copy->bytes))
            continue;
        sim_fail(world, "bounds", "worker %" PRIu32 " writes %" PRIu64 " bytes from %" PRIu64 " to %" PRIu64
                                  " of worker %" PRIu32,
                 write->slot, copy->bytes, copy->source_offset, copy->target_offset, write->target);
        return false;
    }
    return true;
}

/* The transfers that a write is of, from the blocks that its copies name. */
static bool check_owners(sim_world *world, sim_write *write)
{
    const kvferry_copy *first = &write->copies[0];
    write->source_owner =
        sim_owner_of(world, write->slot, first->source_segment, first->source_offset, first->bytes);
    if (write->source_owner == 0) {
        sim_fail(world, "source_owner", "worker %" PRIu32 " reads blocks that it does not offer", write->slot);
        return false;
    }
    const sim_transfer *source = &world->transfers[write->source_owner - 1];
    if (source->side != KVFERRY_SIDE_PREFILL || !source->ready || source->ended) {
        sim_fail(world, "source_ready", "worker %" PRIu32 " sends r%" PRIu32 ", which is %s", write->slot,
                 source->request, source->ended ? "over" : "not ready");
        return false;
    }
    if (!target_lives(world, write))
        return true;
    write->target_owner =
        sim_owner_of(world, write->target, first->target_segment, first->target_offset, first->bytes);
    const sim_transfer *target =
        write->target_owner ? &world->transfers[write->target_owner - 1] : NULL;
    if (!target || target->side != KVFERRY_SIDE_DECODE || target->request != source->request) {
        sim_fail(world, "target_owner", "worker %" PRIu32 " begins to write r%" PRIu32
                                        " into blocks of worker %" PRIu32 " which are %s",
                 write->slot, source->request, write->target, target ? "of another request" : "nobody's");
        return false;
    }
    for (size_t i = 0; i < write->count && !sim_failed(world); i++)
        sim_check_copy(world, write, &write->copies[i]);
    return !sim_failed(world);
}

static void count_owners(sim_world *world, const sim_write *write, int change)
{
    if (write->source_owner)
        world->transfers[write->source_owner - 1].writes += (uint32_t)change;
    if (write->target_owner)
        world->transfers[write->target_owner - 1].writes += (uint32_t)change;
}

void sim_write_begin(sim_world *world, sim_worker *worker, const core_effect *effect)
{
    const sim_peer *peer = find_peer(world, worker, effect->peer);
    if (!peer || !peer->open) {
        sim_fail(world, "write_peer", "worker %" PRIu32 " writes to peer %" PRIu64 ", which is closed",
                 worker->slot, effect->peer);
        return;
    }
    world->writes = sim_grow(world->writes, &world->write_room, world->write_count + 1, sizeof *world->writes);
    sim_write *write = &world->writes[world->write_count++];
    *write = (sim_write){.slot = worker->slot, .incarnation = worker->incarnation, .target = peer->target,
                         .target_incarnation = peer->target_incarnation, .number = effect->write,
                         .peer = effect->peer, .count = effect->count, .given = effect->copies};
    write->copies = malloc(effect->count * sizeof *write->copies + 1);
    if (!write->copies)
        abort();
    memcpy(write->copies, effect->copies, effect->count * sizeof *write->copies);
    sim_trace(world, "w%u write %" PRIu64 ": %zu copies to w%u", worker->slot, write->number, write->count,
              write->target);
    if (effect->count > 0 && (!check_bounds(world, write) || !check_owners(world, write))) {
        write->state = SIM_OVER;
        return;
    }
    count_owners(world, write, 1);
    worker->live_writes++;
    world->totals->writes++;
    uint64_t now = sim_clock(world, worker);
    if (effect->deadline_ns && effect->deadline_ns < now + 1000 * SIM_S)
        sim_schedule_event(world,
                           world->now + (effect->deadline_ns > now ? effect->deadline_ns - now : 0),
                           of_write(world, write, SIM_ON_DEADLINE));
    sim_schedule_event(world, world->now + sim_random_time(world, 0, world->setup->copy_time),
                       of_write(world, write, SIM_ON_COPY));
    if (world->options->fault == SIM_FAULT_DONE_BEFORE_VISIBLE) {
        sim_event said = of_write(world, write, SIM_ON_WRITE_END);
        said.b = 1;
        sim_schedule_event(world, world->now, said);
    }
}

static void land(sim_world *world, sim_write *write, const kvferry_copy *copy, const unsigned char *bytes)
{
    if (!target_lives(world, write))
        return;
    if (write->target_owner == 0) {
        sim_fail(world, "target_owner", "a write into worker %" PRIu32 " which nobody asked for", write->target);
        return;
    }
    sim_check_copy(world, write, copy);
    world->totals->copies++;
    world->totals->bytes += copy->bytes;
    world->totals->late_landings += world->transfers[write->target_owner - 1].ended;
    memcpy(world->workers[write->target].segments[copy->target_segment] + copy->target_offset, bytes,
           copy->bytes);
}

static void stop_at(sim_world *world, sim_write *write, kvferry_status status, uint64_t most)
{
    write->status = status;
    sim_schedule_event(world, world->now + sim_random_time(world, 0, most),
                       of_write(world, write, SIM_ON_WRITE_END));
}

void sim_on_copy(sim_world *world, const sim_event *event)
{
    sim_write *write = &world->writes[event->a];
    sim_worker *worker = mover(world, write);
    if (write->state == SIM_OVER || write->next > write->count)
        return;
    if ((worker->hung_until > world->now || sim_cut_off(world, write->slot, write->target)) && !world->calm) {
        uint64_t until = worker->hung_until > world->now ? worker->hung_until : world->now + 20 * SIM_MS;
        sim_schedule_event(world, until, *event);
        return;
    }
    sim_peer *peer = find_peer(world, worker, write->peer);
    if (peer->lost) {
        stop_at(world, write, KVFERRY_PEER_LOST, SIM_MS);
        return;
    }
    if (!target_lives(world, write)) {
        lose(world, peer, world->workers[write->target].host_down ? SIM_S : 10 * SIM_MS);
        return;
    }
    uint64_t at_once = sim_random_time(world, 1, 6);
    for (uint64_t i = 0; i < at_once && write->next < write->count; i++) {
        const kvferry_copy *copy = &write->copies[write->next++];
        land(world, write, copy, worker->segments[copy->source_segment] + copy->source_offset);
    }
    if (worker->break_next) {
        worker->break_next = false;
        stop_at(world, write, KVFERRY_ENGINE, SIM_MS);
    } else if (write->next == write->count) {
        write->next++;
        stop_at(world, write, write->state == SIM_RUNS ? KVFERRY_OK : write->status, SIM_MS);
    } else {
        sim_schedule_event(world,
                           world->now + sim_random_time(world, SIM_US, at_once * world->setup->copy_time),
                           *event);
    }
}

void sim_write_cancel(sim_world *world, sim_worker *worker, uint64_t number)
{
    for (size_t i = 0; i < world->write_count; i++) {
        sim_write *write = &world->writes[i];
        if (write->slot != worker->slot || write->incarnation != worker->incarnation ||
            write->number != number)
            continue;
        if (write->state != SIM_RUNS)
            return;
        sim_trace(world, "w%u cancels write %" PRIu64, worker->slot, number);
        world->totals->canceled_writes++;
        write->state = SIM_CANCELED;
        if (write->next <= write->count)
            stop_at(world, write, KVFERRY_CANCELED, world->calm ? SIM_MS : 60 * SIM_MS);
        if (world->options->fault == SIM_FAULT_CANCEL_IS_END) {
            sim_event said = of_write(world, write, SIM_ON_WRITE_END);
            said.b = 1;
            sim_schedule_event(world, world->now, said);
        }
        return;
    }
    sim_fail(world, "cancel", "worker %" PRIu32 " cancels write %" PRIu64 ", which it never began", worker->slot,
             number);
}

void sim_on_write_deadline(sim_world *world, const sim_event *event)
{
    sim_write *write = &world->writes[event->a];
    if (write->state != SIM_RUNS || write->next > write->count)
        return;
    write->state = SIM_CANCELED;
    stop_at(world, write, KVFERRY_TIMEOUT, 30 * SIM_MS);
}

static void say_end(sim_world *world, sim_write *write, kvferry_status status)
{
    sim_worker *worker = mover(world, write);
    if (write->told)
        return;
    write->told = true;
    sim_trace(world, "w%u write %" PRIu64 " is over: %s", worker->slot, write->number,
              kvferry_status_name(status));
    if (write->count > 0 && memcmp(write->given, write->copies, write->count * sizeof *write->copies) != 0)
        sim_fail(world, "copies_changed", "worker %" PRIu32 ", write %" PRIu64, worker->slot, write->number);
    if (!worker->closing)
        core_write_ended(worker->core, write->number, status, status == KVFERRY_OK ? "" : "simulated",
                         sim_clock(world, worker));
    sim_worker_after(world, worker);
}

void sim_on_write_end(sim_world *world, const sim_event *event)
{
    sim_write *write = &world->writes[event->a];
    sim_worker *worker = mover(world, write);
    if (event->b == 1) {
        say_end(world, write, write->state == SIM_CANCELED ? KVFERRY_CANCELED : KVFERRY_OK);
        return;
    }
    if (write->state == SIM_OVER)
        return;
    if (write->state != SIM_CLOSED && worker->hung_until > world->now && !world->calm) {
        sim_schedule_event(world, worker->hung_until, *event);
        return;
    }
    write->state = SIM_OVER;
    count_owners(world, write, -1);
    worker->live_writes--;
    say_end(world, write, write->status);
}

/* --- what a dead process leaves ------------------------------------------------------------------------ */

static void keep_flying(sim_world *world, sim_write *write)
{
    const sim_worker *worker = mover(world, write);
    size_t left = write->next < write->count ? write->count - write->next : 0;
    size_t flying = sim_below(&world->dice, (left < FLYING ? left : FLYING) + 1), bytes = 0;
    write->count = write->next + flying;
    if (flying == 0 || !target_lives(world, write)) {
        write->state = SIM_OVER;
        count_owners(world, write, -1);
        return;
    }
    for (size_t i = write->next; i < write->count; i++)
        bytes += write->copies[i].bytes;
    write->flying = malloc(bytes);
    if (!write->flying)
        abort();
    bytes = 0;
    for (size_t i = write->next; i < write->count; bytes += write->copies[i++].bytes)
        memcpy(write->flying + bytes,
               worker->segments[write->copies[i].source_segment] + write->copies[i].source_offset,
               write->copies[i].bytes);
    write->state = SIM_FLIES;
    if (write->source_owner) /* its memory is gone, and its promises with it */
        world->transfers[write->source_owner - 1].writes--;
    write->source_owner = 0;
    uint64_t linger = world->setup->times.linger;
    sim_schedule_event(world, world->now + sim_random_time(world, sim_below(&world->dice, linger / 2), linger - linger / 10),
                       (sim_event){.kind = SIM_ON_LANDING, .slot = SIM_NOBODY,
                                   .a = (uint64_t)(write - world->writes)});
}

void sim_writes_of_dead(sim_world *world, uint32_t slot)
{
    for (size_t i = 0; i < world->write_count; i++) {
        sim_write *write = &world->writes[i];
        if (write->slot == slot && write->state != SIM_OVER && write->state != SIM_FLIES)
            keep_flying(world, write);
    }
}

void sim_on_landing(sim_world *world, const sim_event *event)
{
    sim_write *write = &world->writes[event->a];
    size_t bytes = 0;
    const sim_worker *target = &world->workers[write->target];
    if (target->paused_until > world->now && !world->calm) { /* its kernel holds it until it reads on */
        uint64_t resumed = target->paused_until < world->calm_at ? target->paused_until : world->calm_at;
        sim_schedule_event(world, resumed + sim_random_time(world, 0, SIM_MS), *event);
        return;
    }
    sim_trace(world, "what w%u had sent lands at w%u", write->slot, write->target);
    for (; write->next < write->count && !sim_failed(world); bytes += write->copies[write->next++].bytes)
        land(world, write, &write->copies[write->next], write->flying + bytes);
    write->state = SIM_OVER;
    count_owners(world, write, -1);
}

void sim_movers_end(sim_world *world)
{
    for (size_t i = 0; i < world->write_count; i++) {
        free(world->writes[i].copies);
        free(world->writes[i].flying);
    }
}
