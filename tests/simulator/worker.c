/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's process: it is started, killed and closed, and what its core wants is carried out. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

uint64_t sim_clock(const sim_world *world, const sim_worker *worker)
{
    return world->now + worker->offset;
}

sim_worker *sim_worker_of(sim_world *world, const sim_event *event)
{
    sim_worker *worker = &world->workers[event->slot];
    return worker->core && worker->incarnation == event->incarnation ? worker : NULL;
}

void sim_incarnation_name(const sim_world *world, uint32_t slot, uint32_t incarnation,
                          char name[WIRE_INCARNATION_TEXT])
{
    snprintf(name, WIRE_INCARNATION_TEXT, "%08" PRIx32 "%04" PRIx16 "%04" PRIx16,
             (uint32_t)sim_mix(world->schedule->seed), (uint16_t)slot, (uint16_t)incarnation);
}

/* --- starting ---------------------------------------------------------------------------------- */

/* What a person must look at may only be said where a schedule has made it so. */
static void on_log(void *context, kvferry_log_level level, const char *line)
{
    sim_worker *worker = context;
    if (worker->world->options->log)
        sim_trace(worker->world, "w%u log %d: %s", worker->slot, (int)level, line);
    if (level == KVFERRY_LOG_ERROR)
        sim_fail(worker->world, "log_error", "worker %" PRIu32 ": %s", worker->slot, line);
}

static core_options options_of(sim_world *world, sim_worker *worker, const uint32_t binding[2])
{
    const sim_setup *setup = world->setup;
    const sim_times *times = &setup->times;
    sim_fault fault = world->options->fault;
    return (core_options){
        .lease_ns = fault == SIM_FAULT_NO_LEASE_END ? 100 * times->lease : times->lease,
        .transfer_ns = times->transfer,
        .connect_ns = times->connect,
        .early_ns = times->early,
        .retry_ns = times->retry,
        .silence_ns = times->silence,
        .linger_ns = fault == SIM_FAULT_NO_LINGER ? 1 : times->linger,
        .remember_ns = times->remember,
        .max_transfers = setup->max_transfers,
        .max_peers = 64,
        .max_peer_copies = setup->max_peer_copies,
        .max_message_bytes = 1 << 20,
        .verify = setup->verify,
        .address = worker->address,
        .incarnation = worker->name,
        .engine = "simulated",
        .binding = binding,
        .binding_size = 2 * sizeof *binding,
        .seed = sim_mix(world->schedule->seed + 64 * worker->slot + worker->incarnation),
        .log = on_log,
        .log_context = worker,
        .log_level = world->options->log ? KVFERRY_LOG_DEBUG : KVFERRY_LOG_ERROR,
        .checksums = &sim_checksums,
        .checksums_context = worker,
    };
}

static void first_start(sim_world *world, uint32_t slot)
{
    sim_worker *worker = &world->workers[slot];
    worker->world = world;
    worker->slot = slot;
    worker->engine = sim_engine_of(world->setup, slot, &worker->rank);
    worker->offset = sim_below(&world->dice, 1000) * SIM_S;
    snprintf(worker->address, sizeof worker->address, "tcp://10.0.0.%" PRIu32 ":7000", slot + 1);
    kvferry_report *report = NULL;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        abort();
    if (!sim_cache_make(world->setup, slot, world->engine_ids[worker->engine], &worker->cache, report)) {
        const kvferry_reason *reason = kvferry_report_get(report, 0);
        sim_fail(world, "layout", "worker %" PRIu32 ": %s", slot, reason ? reason->message : "no reason");
    }
    kvferry_report_free(report);
    for (uint32_t i = 0; i < 2; i++)
        worker->segments[i] = malloc(worker->cache.segment_bytes[i]);
    if (!worker->segments[0] || !worker->segments[1])
        abort();
}

void sim_worker_start(sim_world *world, uint32_t slot)
{
    sim_worker *worker = &world->workers[slot];
    if (!worker->world)
        first_start(world, slot);
    if (sim_failed(world))
        return;
    worker->incarnation++;
    worker->host_down = worker->leaving = worker->drained = worker->closing = worker->break_next = false;
    worker->paused_until = worker->hung_until = 0;
    worker->tick_at = UINT64_MAX;
    worker->next_link = 0;
    worker->live_count = worker->live_writes = worker->spins = 0;
    memset(worker->owners, 0, sizeof worker->owners);
    memset(worker->asked_until, 0, sizeof worker->asked_until);
    memset(worker->withdrawn, 0, sizeof worker->withdrawn);
    memset(worker->ended, 0, sizeof worker->ended);
    for (uint32_t i = 0; i < 2; i++)
        memset(worker->segments[i], 0xee, worker->cache.segment_bytes[i]);
    sim_incarnation_name(world, slot, worker->incarnation, worker->name);
    uint32_t binding[2] = {slot, worker->incarnation};
    core_options options = options_of(world, worker, binding);
    sim_trace(world, "w%u starts, incarnation %u", slot, worker->incarnation);
    kvferry_status status =
        core_create(&options, worker->cache.layout, sim_clock(world, worker), &worker->core, NULL);
    if (status != KVFERRY_OK) {
        sim_fail(world, "create", "worker %" PRIu32 ": %s", slot, kvferry_status_name(status));
        return;
    }
    sim_worker_after(world, worker);
    if (worker->rank > 0) {
        uint32_t leader = sim_first_slot(world->setup, worker->engine);
        core_set_leader(worker->core, world->workers[leader].address, sim_clock(world, worker), NULL);
        sim_worker_after(world, worker);
    }
}

/* --- ending -------------------------------------------------------------------------------------- */

void sim_worker_kill(sim_world *world, uint32_t slot, bool host_down)
{
    sim_worker *worker = &world->workers[slot];
    if (!worker->core)
        return;
    sim_trace(world, "w%u is dead%s", slot, host_down ? ", its host too" : "");
    core_free(worker->core);
    worker->core = NULL;
    worker->host_down = host_down;
    worker->killed_at = world->now;
    worker->live_count = 0;
    sim_writes_of_dead(world, slot);
    sim_links_of_dead(world, slot);
    world->totals->kills++;
    uint64_t word = sim_mix(slot ^ world->now); /* the dice are left alone: seeds mean what they meant */
    uint64_t within = word & 2 ? 6 * SIM_S : world->setup->times.linger / 4; /* its last bytes still fly */
    if (host_down && word & 5)
        sim_schedule_event(world, world->now + (word >> 3) % within,
                           (sim_event){.kind = SIM_ON_WORD, .slot = SIM_NOBODY, .a = slot, .b = worker->incarnation});
}

void sim_worker_free(sim_world *world, sim_worker *worker)
{
    int64_t before = sim_memory_held ? sim_memory_held() : 0;
    core_free(worker->core);
    world->totals->core_bytes += (uint64_t)(before - (sim_memory_held ? sim_memory_held() : 0));
    kvferry_layout_free(worker->cache.layout);
    free(worker->segments[0]);
    free(worker->segments[1]);
}

static void leave_at(sim_world *world, sim_worker *worker, uint64_t at)
{
    sim_schedule_event(world, at, (sim_event){.kind = SIM_ON_LEAVE, .slot = worker->slot,
                                              .incarnation = worker->incarnation});
}

/* As kvferry_node_close does, with or without kvferry_node_drain before it. */
void sim_worker_close(sim_world *world, sim_worker *worker, bool drain)
{
    sim_trace(world, "w%u closes%s", worker->slot, drain ? " after a drain" : "");
    worker->leaving = true;
    worker->leave_by = world->now + (drain ? 8 * SIM_S : 0);
    core_drain(worker->core);
    sim_worker_after(world, worker);
    sim_worker_leave(world, worker);
}

/* Of a node that goes, the engine may take its time to stop. */
static void slow_down(const sim_world *world, sim_worker *worker)
{
    sim_dice dice = {sim_mix(world->schedule->seed ^ world->now)};
    uint64_t until = world->now + sim_below(&dice, 5 * SIM_S);
    if (sim_one_in(&dice, 2) && until > worker->hung_until)
        worker->hung_until = until;
}

/* What is under way is waited for; nobody is answered any more, but the socket is open until then. */
static void close_rest(sim_world *world, sim_worker *worker)
{
    if (!worker->closing) {
        sim_trace(world, "w%u closes its engine, with %u writes", worker->slot, worker->live_writes);
        worker->closing = true;
        if (world->options->fault == SIM_FAULT_LINKS_CLOSED_FIRST)
            sim_links_of_dead(world, worker->slot);
    }
    if (worker->live_writes > 0)
        leave_at(world, worker, world->now + 5 * SIM_MS);
    else
        sim_worker_kill(world, worker->slot, false);
}

void sim_worker_leave(sim_world *world, sim_worker *worker)
{
    if (worker->drained) {
        close_rest(world, worker);
    } else if (core_idle(worker->core) || world->now >= worker->leave_by) {
        worker->drained = true;
        slow_down(world, worker);
        leave_at(world, worker, world->now + sim_random_time(world, 50 * SIM_MS, 2 * SIM_S));
        core_bye(worker->core, sim_clock(world, worker));
        sim_worker_after(world, worker);
    } else {
        leave_at(world, worker, world->now + 50 * SIM_MS);
    }
}

/* --- the core's wishes ------------------------------------------------------------------------------ */

static void resolve(sim_world *world, sim_worker *worker, const core_effect *effect)
{
    uint32_t engine = 0;
    while (engine < world->setup->engine_count && !strstr(effect->address, world->engine_ids[engine]))
        engine++;
    if (engine == world->setup->engine_count) {
        sim_fail(world, "resolve", "worker %" PRIu32 " looks for \"%s\"", worker->slot, effect->address);
        return;
    }
    bool fails = !world->calm && !world->setup->calm && sim_one_in(&world->dice, 8);
    sim_schedule_event(world, world->now + sim_random_time(world, SIM_MS, 20 * SIM_MS),
                       (sim_event){.kind = SIM_ON_RESOLVED, .slot = worker->slot,
                                   .incarnation = worker->incarnation, .a = effect->query,
                                   .b = fails ? SIM_NOBODY : sim_first_slot(world->setup, engine)});
}

void sim_worker_resolved(sim_world *world, sim_worker *worker, const sim_event *event)
{
    uint64_t now = sim_clock(world, worker);
    sim_trace(world, "w%u query %" PRIu64 " finds %u", worker->slot, event->a, (uint32_t)event->b);
    if (event->b == SIM_NOBODY) {
        kvferry_report *report = NULL;
        if (kvferry_report_create(&report) != KVFERRY_OK)
            abort();
        base_report_add(report, "simulated", NULL, "an answer", "none", "nobody is there");
        core_resolved(worker->core, event->a, KVFERRY_IO, "", NULL, 0, report, now);
        kvferry_report_free(report);
    } else {
        const sim_worker *found = &world->workers[event->b];
        const char *address = found->address;
        core_resolved(worker->core, event->a, KVFERRY_OK, world->engine_ids[found->engine], &address, 1, NULL,
                      now);
    }
    sim_worker_after(world, worker);
}

static void carry_out(sim_world *world, sim_worker *worker, const core_effect *effect)
{
    switch (effect->kind) {
    case CORE_OPEN_LINK: sim_link_open(world, worker, effect->link, effect->address); break;
    case CORE_CLOSE_LINK: sim_link_close(world, worker, effect->link); break;
    case CORE_SEND: sim_link_send(world, worker, effect->link, effect->data, effect->size); break;
    case CORE_RESOLVE: resolve(world, worker, effect); break;
    case CORE_CONNECT_PEER: sim_peer_connect(world, worker, effect->peer, effect->data, effect->size); break;
    case CORE_CLOSE_PEER: sim_peer_close(world, worker, effect->peer); break;
    case CORE_WRITE: sim_write_begin(world, worker, effect); break;
    case CORE_CANCEL_WRITE: sim_write_cancel(world, worker, effect->write); break;
    }
}

static void tell(sim_world *world, sim_worker *worker, const kvferry_event *event)
{
    if (event->kind == KVFERRY_EVENT_CONNECTED || event->kind == KVFERRY_EVENT_DISCONNECTED) {
        sim_trace(world, "w%u %s %s %s", worker->slot,
                  event->kind == KVFERRY_EVENT_CONNECTED ? "connected" : "disconnected", event->engine_id,
                  event->code);
        return;
    }
    sim_on_transfer_event(world, worker, event);
    if (world->options->fault == SIM_FAULT_EVENT_TWICE)
        sim_on_transfer_event(world, worker, event);
}

static void set_alarm(sim_world *world, sim_worker *worker)
{
    uint64_t next = core_next_time(worker->core), now = sim_clock(world, worker);
    if (next == UINT64_MAX)
        return;
    uint64_t wait = next > now ? next - now : 0;
    if (wait > UINT64_MAX / 2 || world->now + wait >= worker->tick_at)
        return;
    worker->tick_at = world->now + wait;
    uint64_t late = world->calm ? 0 : sim_random_time(world, 0, SIM_MS);
    sim_schedule_event(world, worker->tick_at + late,
                       (sim_event){.kind = SIM_ON_TICK, .slot = worker->slot,
                                   .incarnation = worker->incarnation});
}

void sim_worker_after(sim_world *world, sim_worker *worker)
{
    core_effect effect;
    if (worker->closing)
        return;
    while (!sim_failed(world) && core_next_effect(worker->core, &effect))
        carry_out(world, worker, &effect);
    kvferry_event *event;
    while (!sim_failed(world) && (event = core_next_event(worker->core))) {
        tell(world, worker, event);
        kvferry_event_free(event);
    }
    if (sim_failed(world))
        return;
    sim_check_times(world, worker);
    set_alarm(world, worker);
}

void sim_worker_tick(sim_world *world, sim_worker *worker)
{
    if (worker->tick_at > world->now)
        return; /* an alarm that a nearer one has replaced */
    worker->tick_at = UINT64_MAX;
    uint64_t now = sim_clock(world, worker);
    core_tick(worker->core, now);
    worker->spins = core_next_time(worker->core) <= now ? worker->spins + 1 : 0;
    if (worker->spins > 20)
        sim_fail(world, "spin", "worker %" PRIu32 " wants to be called again and again at one time",
                 worker->slot);
    sim_worker_after(world, worker);
}

void sim_worker_jump(sim_world *world, sim_worker *worker, uint64_t amount)
{
    worker->offset += amount;
    worker->tick_at = UINT64_MAX;
    set_alarm(world, worker);
}
