/* SPDX-License-Identifier: Apache-2.0 */
/* The rules: who owns which bytes, which events may come, and what must be left in the end: nothing. */
#include <string.h>

#include "world.h"

static const char *side_name(kvferry_side side)
{
    return side == KVFERRY_SIDE_PREFILL ? "offer" : "ask";
}

/* --- blocks -------------------------------------------------------------------------------------- */

static const sim_area *area_at(const sim_worker *worker, uint32_t segment, uint64_t offset, sim_pool *pool)
{
    for (*pool = 0; *pool < SIM_POOLS; ++*pool) {
        const sim_area *area = &worker->cache.areas[*pool];
        if (area->blocks > 0 && area->segment == segment && offset >= area->offset &&
            offset < area->offset + area->blocks * area->row)
            return area;
    }
    return NULL;
}

uint32_t sim_owner_of(const sim_world *world, uint32_t slot, uint32_t segment, uint64_t offset,
                      uint64_t bytes)
{
    const sim_worker *worker = &world->workers[slot];
    uint64_t end = offset + bytes;
    uint32_t owner = 0;
    while (offset < end) {
        sim_pool pool;
        const sim_area *area = area_at(worker, segment, offset, &pool);
        if (!area)
            return 0;
        uint64_t block = (offset - area->offset) / area->row;
        uint32_t here = worker->owners[pool][block];
        if (here == 0 || (owner != 0 && here != owner))
            return 0;
        owner = here;
        offset = area->offset + (block + 1) * area->row;
    }
    return owner;
}

void sim_check_copy(sim_world *world, const sim_write *write, const kvferry_copy *copy)
{
    if (write->source_owner && sim_owner_of(world, write->slot, copy->source_segment, copy->source_offset,
                                            copy->bytes) != write->source_owner)
        sim_fail(world, "source_bytes",
                 "worker %" PRIu32 " sends bytes of other blocks than those of r%" PRIu32 ", %" PRIu64 " at %" PRIu64,
                 write->slot, world->transfers[write->source_owner - 1].request, copy->bytes,
                 copy->source_offset);
    if (sim_owner_of(world, write->target, copy->target_segment, copy->target_offset, copy->bytes) !=
        write->target_owner)
        sim_fail(world, "target_bytes",
                 "worker %" PRIu32 " writes %" PRIu64 " bytes at %" PRIu64 " of worker %" PRIu32
                 ", in blocks that are not r%" PRIu32 "'s",
                 write->slot, copy->bytes, copy->target_offset, write->target,
                 world->transfers[write->target_owner - 1].request);
}

void sim_release(sim_world *world, sim_transfer *transfer)
{
    sim_worker *worker = &world->workers[transfer->slot];
    uint32_t number = (uint32_t)(transfer - world->transfers) + 1;
    if (transfer->writes > 0)
        sim_fail(world, "released_early",
                 "worker %" PRIu32 ": the %s r%" PRIu32 " is released, and %" PRIu32 " writes may still touch it",
                 transfer->slot, side_name(transfer->side), transfer->request, transfer->writes);
    for (sim_pool pool = 0; pool < SIM_POOLS; pool++)
        for (uint32_t block = 0; block < SIM_BLOCKS; block++) {
            if (worker->owners[pool][block] != number)
                continue;
            const sim_area *area = &worker->cache.areas[pool];
            worker->owners[pool][block] = 0;
            worker->freed[pool] = block;
            if (transfer->side == KVFERRY_SIDE_PREFILL) /* its next owner writes there at once */
                memset(worker->segments[area->segment] + area->offset + block * area->row, 0xdd, area->row);
        }
    transfer->over = true;
}

/* --- bytes ----------------------------------------------------------------------------------------- */

typedef struct reading {
    sim_world *world;
    const sim_worker *worker;
    const sim_transfer *transfer;
    uint64_t seed;
    bool part;  /* what comes before its window was left out: all of it */
    bool mixed; /* but for what some of the sources had */
} reading;

static bool check_cell(void *context, const sim_cell *cell)
{
    reading *read = context;
    uint64_t value = sim_cell_value(read->seed, cell);
    const unsigned char *found = read->worker->segments[cell->stream->segment] + cell->offset;
    bool right = memcmp(found, &value, cell->stream->cell_bytes) == 0;
    bool left_out = cell->before && !cell->wanted && read->part && !(read->mixed && right);
    if (!cell->wanted && !left_out)
        return true;
    if (left_out)
        memset(&value, read->transfer->scribble, sizeof value);
    read->world->totals->checked_bytes += cell->stream->cell_bytes;
    if (memcmp(found, &value, cell->stream->cell_bytes) == 0)
        return true;
    sim_fail(read->world, "wrong_bytes",
             "worker %" PRIu32 ": r%" PRIu32 " is done, but %s %s, token %" PRIu64 ", at %" PRIu64 " is not what was %s",
             read->worker->slot, read->transfer->request, cell->stream->layer, cell->stream->name, cell->token,
             cell->offset, cell->wanted ? "sent" : "there before");
    return false;
}

static void check_bytes(sim_world *world, const sim_worker *worker, const sim_transfer *transfer, bool part)
{
    const sim_request *request = &world->requests[transfer->request];
    reading read = {world, worker, transfer, request->seed, part, request->mixed};
    sim_tables tables = transfer->tables;
    tables.whole_blocks &= !part;
    sim_visit(world->setup, worker->engine, worker->cache.layout, &tables, check_cell, &read);
}

/* --- events ------------------------------------------------------------------------------------------ */

sim_transfer *sim_find(sim_world *world, uint32_t slot, kvferry_side side, uint32_t request)
{
    const sim_worker *worker = &world->workers[slot];
    for (uint32_t i = 0; i < worker->live_count; i++) {
        sim_transfer *transfer = &world->transfers[worker->live[i]];
        if (transfer->side == side && transfer->request == request)
            return transfer;
    }
    return NULL;
}

static void forget(sim_world *world, sim_worker *worker, const sim_transfer *transfer)
{
    uint32_t index = (uint32_t)(transfer - world->transfers);
    for (uint32_t i = 0; i < worker->live_count; i++)
        if (worker->live[i] == index)
            worker->live[i--] = worker->live[--worker->live_count];
}

/* Whole blocks are refused, or a part, where the source has dropped a part of what they want, and nowhere else. */
static void check_whole(sim_world *world, const sim_worker *worker, const sim_transfer *transfer,
                        const kvferry_event *event)
{
    uint64_t lost, before = sim_before_window(world, &world->requests[transfer->request], &lost);
    const sim_request *request = &world->requests[transfer->request];
    bool refused = strcmp(event->code, "source_null") == 0, here = transfer->tables.of[SIM_WINDOW].listed;
    bool done = event->outcome == KVFERRY_OUTCOME_DONE;
    bool part = request->part && here && lost > 0 && done && transfer->side == KVFERRY_SIDE_DECODE;
    if (event->part != part && !(part && request->mixed)) /* who has none of it may not be asked for it */
        sim_fail(world, "part", "worker %" PRIu32 ": the %s %s is said to be %s, and of %" PRIu64 " tokens before its "
                 "window the source has not %" PRIu64, worker->slot, side_name(transfer->side), event->transfer_id,
                 event->part ? "a part" : "no part", before, lost);
    if (refused && (lost == 0 || request->part))
        sim_fail(world, "source_null", "worker %" PRIu32 ": the %s %s wants %" PRIu64 " tokens before its window, and "
                 "%s", worker->slot, side_name(transfer->side), event->transfer_id, before,
                 lost == 0 ? "the source has them" : "a part is allowed");
    if (transfer->side != KVFERRY_SIDE_DECODE)
        return;
    if (done && here && lost > 0 && !part)
        sim_fail(world, "not_refused", "worker %" PRIu32 ": %s is done, and the source has none of %" PRIu64 " tokens of "
                 "a wanted block", worker->slot, event->transfer_id, lost);
    world->totals->whole += done && here && before > 0 && !event->part;
    world->totals->parts += event->part;
    world->totals->whole_refused += refused;
}

static void on_ended(sim_world *world, sim_worker *worker, sim_transfer *transfer,
                     const kvferry_event *event)
{
    uint64_t now = sim_clock(world, worker);
    bool done = event->outcome == KVFERRY_OUTCOME_DONE;
    if (transfer->ended)
        sim_fail(world, "ended_twice", "worker %" PRIu32 ": the %s %s", worker->slot, side_name(transfer->side),
                 event->transfer_id);
    if ((event->code[0] == 0) != done || (kvferry_report_count(event->report) == 0) != done)
        sim_fail(world, "reason", "worker %" PRIu32 ": the %s %s is %s with the code \"%s\" and %zu reasons",
                 worker->slot, side_name(transfer->side), event->transfer_id,
                 kvferry_outcome_name(event->outcome), event->code, kvferry_report_count(event->report));
    if (event->outcome == KVFERRY_OUTCOME_EXPIRED && transfer->side == KVFERRY_SIDE_DECODE &&
        now < transfer->deadline)
        sim_fail(world, "expired_early", "worker %" PRIu32 ": the ask %s", worker->slot, event->transfer_id);
    if (event->outcome == KVFERRY_OUTCOME_EXPIRED && transfer->side == KVFERRY_SIDE_PREFILL &&
        now < transfer->begun + world->setup->times.lease)
        sim_fail(world, "expired_early", "worker %" PRIu32 ": the offer %s", worker->slot, event->transfer_id);
    transfer->ended = true;
    transfer->outcome = event->outcome;
    worker->ended[transfer->side][event->outcome]++;
    world->totals->ended[transfer->side][event->outcome]++;
    if (world->setup->calm && !done && !world->crowded && world->options->fault == SIM_FAULT_NONE)
        sim_fail(world, "not_done", "worker %" PRIu32 ": the %s %s is %s, %s, and nothing was wrong",
                 worker->slot, side_name(transfer->side), event->transfer_id,
                 kvferry_outcome_name(event->outcome), event->code);
    check_whole(world, worker, transfer, event);
    if (done && transfer->side == KVFERRY_SIDE_DECODE)
        check_bytes(world, worker, transfer, event->part);
    if (!done && transfer->side == KVFERRY_SIDE_DECODE)
        world->totals->quarantines += transfer->writes > 0;
    if (!done && world->options->fault == SIM_FAULT_RELEASE_AT_ONCE)
        sim_release(world, transfer);
}

static void on_released(sim_world *world, sim_worker *worker, sim_transfer *transfer,
                        const kvferry_event *event)
{
    if (!transfer->ended || transfer->released)
        sim_fail(world, "released_when", "worker %" PRIu32 ": the %s %s is released %s", worker->slot,
                 side_name(transfer->side), event->transfer_id,
                 transfer->ended ? "twice" : "before its end");
    if (event->outcome != transfer->outcome)
        sim_fail(world, "outcome", "worker %" PRIu32 ": the %s %s was %s and is %s", worker->slot,
                 side_name(transfer->side), event->transfer_id, kvferry_outcome_name(transfer->outcome),
                 kvferry_outcome_name(event->outcome));
    transfer->released = true;
    if (!transfer->over)
        sim_release(world, transfer);
    forget(world, worker, transfer);
}

void sim_on_transfer_event(sim_world *world, sim_worker *worker, const kvferry_event *event)
{
    uint64_t number = (uint64_t)(uintptr_t)event->context;
    sim_trace(world, "w%u %s of %s %s: %s %s", worker->slot,
              event->kind == KVFERRY_EVENT_ENDED ? "end" : "release", side_name(event->side),
              event->transfer_id, kvferry_outcome_name(event->outcome), event->code);
    sim_transfer *transfer =
        number >= 1 && number <= world->transfer_count ? &world->transfers[number - 1] : NULL;
    if (!transfer || transfer->slot != worker->slot || transfer->incarnation != worker->incarnation ||
        transfer->side != event->side || transfer->released ||
        strcmp(world->requests[transfer->request].id, event->transfer_id) != 0) {
        sim_fail(world, "unknown_event", "worker %" PRIu32 ": of the %s %s, context %" PRIu64, worker->slot,
                 side_name(event->side), event->transfer_id, number);
        return;
    }
    if (event->kind == KVFERRY_EVENT_ENDED)
        on_ended(world, worker, transfer, event);
    else
        on_released(world, worker, transfer, event);
}

/* --- time ---------------------------------------------------------------------------------------------- */

/* Until when a transfer must have ended. */
static uint64_t latest_end(const sim_world *world, const sim_worker *worker, const sim_transfer *transfer)
{
    if (transfer->side == KVFERRY_SIDE_DECODE)
        return transfer->deadline;
    uint64_t lease = transfer->begun + world->setup->times.lease;
    uint64_t asked = worker->asked_until[transfer->request];
    return asked > lease ? asked : lease;
}

void sim_check_times(sim_world *world, sim_worker *worker)
{
    uint64_t now = sim_clock(world, worker), next = core_next_time(worker->core);
    for (uint32_t i = 0; i < worker->live_count && !worker->leaving; i++) {
        const sim_transfer *transfer = &world->transfers[worker->live[i]];
        uint64_t latest = latest_end(world, worker, transfer);
        if (transfer->ended)
            continue;
        if (next > latest + SIM_MS)
            sim_fail(world, "sleeps_on", "worker %" PRIu32 ": the %s r%" PRIu32 " ends in %.3f s, and the core "
                                         "wakes in %.3f s",
                     worker->slot, side_name(transfer->side), transfer->request,
                     ((double)latest - (double)now) / 1e9, ((double)next - (double)now) / 1e9);
        if (worker->tick_at == UINT64_MAX && latest + SIM_GRACE < now)
            sim_fail(world, "too_late", "worker %" PRIu32 ": the %s r%" PRIu32 " has not ended %.3f s after its "
                                        "last moment",
                     worker->slot, side_name(transfer->side), transfer->request, (double)(now - latest) / 1e9);
    }
}

/* --- the end --------------------------------------------------------------------------------------------- */

bool sim_all_settled(const sim_world *world)
{
    if (world->acts_waiting > 0)
        return false;
    for (uint32_t i = 0; i < world->worker_count; i++) {
        const sim_worker *worker = &world->workers[i];
        if (worker->core && (worker->live_count > 0 || worker->live_writes > 0 || worker->leaving ||
                             !core_idle(worker->core)))
            return false;
    }
    return true;
}

static void check_left(sim_world *world, const sim_worker *worker)
{
    kvferry_node_statistics now;
    core_get_statistics(worker->core, &now);
    if (memcmp(now.ended, worker->ended, sizeof now.ended) != 0)
        sim_fail(world, "statistics_ended", "worker %" PRIu32 " counts other ends than its events", worker->slot);
    uint64_t left = now.live[0] + now.live[1] + now.unreleased[0] + now.unreleased[1] +
                    now.quarantined_blocks + now.queued_copies + now.events_waiting;
    if (left > 0)
        sim_fail(world, "statistics_left",
                 "worker %" PRIu32 ": live %" PRIu64 " %" PRIu64 ", unreleased %" PRIu64 " %" PRIu64
                 ", quarantined %" PRIu64 ", queued %" PRIu64 ", events %" PRIu64,
                 worker->slot, now.live[0], now.live[1], now.unreleased[0], now.unreleased[1],
                 now.quarantined_blocks, now.queued_copies, now.events_waiting);
    if (now.malformed > 0)
        sim_fail(world, "statistics_malformed", "worker %" PRIu32 " could not read %" PRIu64 " messages",
                 worker->slot, now.malformed);
}

static void check_peers(sim_world *world)
{
    for (size_t i = 0; i < world->peer_count; i++) {
        const sim_peer *peer = &world->peers[i];
        const sim_worker *worker = &world->workers[peer->slot], *target = &world->workers[peer->target];
        if (peer->open && worker->core && worker->incarnation == peer->incarnation &&
            !(target->core && target->incarnation == peer->target_incarnation))
            sim_fail(world, "peer_left", "worker %" PRIu32 " keeps its connection to a dead process of worker %" PRIu32,
                     peer->slot, peer->target);
    }
}

void sim_check_end(sim_world *world)
{
    for (uint32_t i = 0; i < world->worker_count && !sim_failed(world); i++) {
        const sim_worker *worker = &world->workers[i];
        if (!worker->core)
            continue;
        for (uint32_t k = 0; k < worker->live_count; k++) {
            const sim_transfer *transfer = &world->transfers[worker->live[k]];
            sim_fail(world, transfer->ended ? "not_released" : "not_ended",
                     "worker %" PRIu32 ": the %s r%" PRIu32 " for %.3f s, with nothing wrong for %.3f s",
                     worker->slot, side_name(transfer->side), transfer->request,
                     (double)(sim_clock(world, worker) - transfer->begun) / 1e9,
                     (double)(world->now - world->calm_at) / 1e9);
        }
        if (!core_idle(worker->core))
            sim_fail(world, "not_idle", "worker %" PRIu32, worker->slot);
        check_left(world, worker);
    }
    if (!sim_failed(world) && !sim_all_settled(world))
        sim_fail(world, "not_settled", "something is left to do");
    check_peers(world);
}
