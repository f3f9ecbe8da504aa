/* SPDX-License-Identifier: Apache-2.0 */
/* A run: the virtual clock, and what happens next. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "world.h"

/* --- failure and trace --------------------------------------------------------------------------- */

bool sim_failed(const sim_world *world)
{
    return world->failure->what[0] != 0;
}

void sim_fail(sim_world *world, const char *what, const char *format, ...)
{
    if (sim_failed(world))
        return;
    snprintf(world->failure->what, sizeof world->failure->what, "%s", what);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world->failure->text, sizeof world->failure->text, format, arguments);
    va_end(arguments);
    world->failure->at = world->now;
    sim_trace(world, "FAILURE %s: %s", what, world->failure->text);
}

void sim_trace(sim_world *world, const char *format, ...)
{
    char line[400];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    world->hash = sim_mix(world->hash ^ world->now);
    for (int i = 0; i < size && i < (int)sizeof line - 1; i++)
        world->hash = (world->hash ^ (unsigned char)line[i]) * UINT64_C(0x100000001b3);
    if (world->options->trace)
        fprintf(world->options->trace, "%10.6f %s\n", (double)world->now / 1e9, line);
}

/* --- the heap of events ----------------------------------------------------------------------------- */

void *sim_grow(void *data, size_t *room, size_t count, size_t size)
{
    if (count <= *room)
        return data;
    *room = count * 2 + 16;
    data = realloc(data, *room * size);
    if (!data)
        abort();
    return data;
}

static bool before(const sim_event *a, const sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_schedule_event(sim_world *world, uint64_t at, sim_event event)
{
    event.at = at < world->now ? world->now : at;
    event.order = world->order++;
    world->heap = sim_grow(world->heap, &world->heap_room, world->heap_count + 1, sizeof *world->heap);
    size_t i = world->heap_count++;
    for (; i > 0 && before(&event, &world->heap[(i - 1) / 2]); i = (i - 1) / 2)
        world->heap[i] = world->heap[(i - 1) / 2];
    world->heap[i] = event;
}

static sim_event next_event(sim_world *world)
{
    sim_event first = world->heap[0], last = world->heap[--world->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < world->heap_count) {
        child += child + 1 < world->heap_count && before(&world->heap[child + 1], &world->heap[child]);
        if (!before(&world->heap[child], &last))
            break;
        world->heap[i] = world->heap[child];
        i = child;
    }
    world->heap[i] = last;
    return first;
}

/* --- chance ------------------------------------------------------------------------------------------ */

uint64_t sim_random_time(sim_world *world, uint64_t least, uint64_t most)
{
    return sim_between(&world->dice, least, most);
}

uint64_t sim_flight(sim_world *world)
{
    if (world->calm || world->schedule->clear)
        return 100 * SIM_US;
    uint64_t flight = sim_random_time(world, 50 * SIM_US, 100 * SIM_US + world->weather.delay);
    if (sim_percent(&world->dice, world->weather.late))
        flight += sim_below(&world->dice, world->weather.lateness);
    return flight;
}

bool sim_cut_off(const sim_world *world, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < world->partition_count && !world->calm; i++) {
        const sim_partition *partition = &world->partitions[i];
        if (partition->until > world->now && ((partition->a == a && partition->b == b) ||
                                              (partition->a == b && partition->b == a)))
            return true;
    }
    return false;
}

/* --- what happens -------------------------------------------------------------------------------------- */

/* The operator's word, over a link of its own. */
static void say_dead(sim_world *world, sim_worker *worker, uint32_t slot, uint32_t incarnation)
{
    wire_message message = {.type = WIRE_DECLARE_DEAD, .major = WIRE_MAJOR, .engine_id = "", .transfer_id = ""};
    void *data;
    size_t size;
    sim_incarnation_name(world, slot, incarnation, message.body.death.incarnation);
    if (wire_encode(&message, &data, &size) != KVFERRY_OK)
        abort();
    core_received(worker->core, worker->next_link += 2, NULL, "127.0.0.1", data, size, sim_clock(world, worker));
    free(data);
    world->totals->words++;
    sim_worker_after(world, worker);
}

/* About every process that was there up to this one: a peer may know an older one than the last. */
static void declare_dead(sim_world *world, uint32_t slot, uint32_t last)
{
    for (uint32_t to = 0; to < world->worker_count; to++) {
        sim_worker *worker = &world->workers[to];
        bool hears = world->calm || worker->paused_until <= world->now;
        for (uint32_t i = 1; i <= last && hears && worker->core && !worker->leaving && !worker->closing; i++)
            say_dead(world, worker, slot, i);
    }
}

/* From here on nothing is done to the world any more, and whatever was wrong with it is mended. */
static void calm_down(sim_world *world)
{
    sim_trace(world, "calm");
    world->calm = true;
    for (uint32_t dead = 0; dead < world->worker_count; dead++)
        if (!world->workers[dead].core && world->workers[dead].host_down)
            declare_dead(world, dead, world->workers[dead].incarnation);
}

/* What nobody looks at any more once the thread of a node that closes is over. */
static bool is_for_thread(sim_event_kind kind)
{
    return kind == SIM_ON_TICK || kind == SIM_ON_LINK_END || kind == SIM_ON_RESOLVED;
}

static void dispatch(sim_world *world, sim_event *event)
{
    sim_worker *worker = NULL;
    if (event->slot != SIM_NOBODY) {
        worker = sim_worker_of(world, event);
        if (!worker || (worker->closing && is_for_thread(event->kind)))
            return;
        if (worker->paused_until > world->now && !world->calm) {
            sim_event later = *event; /* it waits, with what it carries */
            event->data = NULL;
            sim_schedule_event(world, worker->paused_until, later);
            return;
        }
    }
    switch (event->kind) {
    case SIM_ON_STEP: sim_on_step(world, (uint32_t)event->a); break;
    case SIM_ON_CALM: calm_down(world); break;
    case SIM_ON_STOP: world->stop = true; break;
    case SIM_ON_WORD: declare_dead(world, (uint32_t)event->a, (uint32_t)event->b); break;
    case SIM_ON_ACT: sim_on_act(world, (uint32_t)event->a); break;
    case SIM_ON_TICK: sim_worker_tick(world, worker); break;
    case SIM_ON_CONNECT: sim_on_connect(world, event); break;
    case SIM_ON_MESSAGE: sim_on_message(world, event); break;
    case SIM_ON_LINK_END:
        sim_trace(world, "w%u link %" PRIu64 " %s", event->slot, event->a,
                  event->b == CORE_LINK_REFUSED ? "refused" : "lost");
        core_link_ended(worker->core, event->a, (core_link_end)event->b, sim_clock(world, worker));
        sim_worker_after(world, worker);
        break;
    case SIM_ON_RESOLVED: sim_worker_resolved(world, worker, event); break;
    case SIM_ON_PEER_LOST: sim_on_peer_lost(world, event); break;
    case SIM_ON_COPY: sim_on_copy(world, event); break;
    case SIM_ON_LANDING: sim_on_landing(world, event); break;
    case SIM_ON_WRITE_END: sim_on_write_end(world, event); break;
    case SIM_ON_DEADLINE: sim_on_write_deadline(world, event); break;
    case SIM_ON_LEAVE: sim_worker_leave(world, worker); break;
    }
}

/* --- a run ------------------------------------------------------------------------------------------------ */

static void begin(sim_world *world)
{
    const sim_schedule *schedule = world->schedule;
    uint64_t last = 0;
    for (uint32_t i = 0; i < world->setup->engine_count; i++)
        snprintf(world->engine_ids[i], sizeof world->engine_ids[i], "engine-%" PRIu32, i);
    world->worker_count = sim_worker_count(world->setup);
    for (uint32_t i = 0; i < world->worker_count && !sim_failed(world); i++)
        sim_worker_start(world, i);
    for (uint32_t i = 0; i < schedule->step_count; i++) {
        const sim_step *step = &schedule->steps[i];
        world->request_of_step[i] = SIM_NOBODY;
        if (step->dropped)
            continue;
        sim_schedule_event(world, SIM_S + step->at, (sim_event){.kind = SIM_ON_STEP, .slot = SIM_NOBODY, .a = i});
        uint64_t end = step->at + (step->kind == SIM_REQUEST ? 0 : step->amount);
        last = end > last ? end : last;
    }
    const sim_times *times = &world->setup->times;
    world->calm_at = SIM_S + last + 3 * SIM_S;
    world->give_up_at = world->calm_at + times->lease + times->transfer + times->connect +
                        3 * times->silence + 2 * times->linger + 10 * times->retry + 10 * SIM_S;
    sim_schedule_event(world, world->calm_at, (sim_event){.kind = SIM_ON_CALM, .slot = SIM_NOBODY});
}

static void run(sim_world *world)
{
    while (!sim_failed(world) && !world->stop && world->heap_count > 0) {
        sim_event event = next_event(world);
        world->now = event.at;
        world->totals->events++;
        dispatch(world, &event);
        free(event.data);
        if (world->weather_until != 0 && world->now >= world->weather_until) {
            world->weather = world->setup->weather;
            world->weather_until = 0;
        }
        if (!world->calm || !sim_all_settled(world)) {
            world->quiet_since = 0;
        } else if (world->quiet_since == 0) { /* what is late may come yet */
            world->quiet_since = world->now;
            sim_schedule_event(world, world->now + 3 * world->setup->times.silence + 2 * SIM_S,
                               (sim_event){.kind = SIM_ON_STOP, .slot = SIM_NOBODY});
        }
        if (world->now > world->give_up_at)
            break;
    }
    if (!sim_failed(world))
        sim_check_end(world);
}

static void end(sim_world *world)
{
    while (world->heap_count > 0)
        free(world->heap[--world->heap_count].data);
    sim_movers_end(world);
    for (uint32_t i = 0; i < world->worker_count; i++)
        sim_worker_free(world, &world->workers[i]);
    free(world->heap);
    free(world->transfers);
    free(world->connections);
    free(world->peers);
    free(world->writes);
    free(world->acts);
}

uint64_t sim_run(const sim_schedule *schedule, const sim_options *options, sim_failure *failure,
                 sim_totals *totals)
{
    int64_t held = sim_memory_held ? sim_memory_held() : 0;
    sim_world *world = calloc(1, sizeof *world);
    if (!world)
        abort();
    memset(failure, 0, sizeof *failure);
    world->schedule = schedule;
    world->setup = &schedule->setup;
    world->options = options;
    world->failure = failure;
    world->totals = totals;
    world->dice.state = sim_mix(schedule->seed ^ UINT64_C(0x73696d));
    world->now = SIM_S / 2;
    world->weather = schedule->setup.weather;
    totals->schedules++;
    totals->core_bytes = 0;
    begin(world);
    if (!sim_failed(world))
        run(world);
    uint64_t hash = world->hash;
    end(world);
    free(world);
    int64_t left = sim_memory_held ? sim_memory_held() - held : 0;
    if (left != 0 && failure->what[0] == 0) {
        snprintf(failure->what, sizeof failure->what, "leak");
        snprintf(failure->text, sizeof failure->text, "%" PRId64 " bytes", left);
    }
    return hash;
}
