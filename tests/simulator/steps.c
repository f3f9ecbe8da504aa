/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a schedule, as they come. */
#include <stdlib.h>

#include "world.h"

void sim_act_at(sim_world *world, uint64_t at, sim_act act)
{
    world->acts = sim_grow(world->acts, &world->act_room, world->act_count + 1, sizeof *world->acts);
    world->acts[world->act_count] = act;
    world->acts_waiting++;
    sim_schedule_event(world, at,
                       (sim_event){.kind = SIM_ON_ACT, .slot = SIM_NOBODY, .a = world->act_count++});
}

/* --- requests ------------------------------------------------------------------------------------ */

/* No more blocks than a pool and a table have. */
static uint64_t most_tokens(const sim_setup *setup, const sim_request *request)
{
    const uint32_t sides[2] = {request->source, request->target};
    uint64_t most = SIM_TOKENS;
    for (int i = 0; i < 2; i++) {
        const sim_engine *engine = &setup->engines[sides[i]];
        for (sim_pool kind = 0; kind < SIM_POOLS; kind++) {
            uint64_t room = (engine->blocks - 3) * (uint64_t)engine->block_tokens[kind];
            if (room > 0 && room < most)
                most = room;
        }
    }
    return most;
}

static void offer(sim_world *world, const sim_request *request, uint32_t index, sim_dice *dice)
{
    const sim_setup *setup = world->setup;
    bool calm = setup->calm, late = sim_one_in(dice, 4), not_ready = sim_one_in(dice, 4);
    bool never_ready = !calm && sim_one_in(dice, 30), expect = sim_one_in(dice, 6);
    uint64_t lateness = late ? sim_below(dice, calm ? setup->times.early / 4 : 2 * setup->times.early) : 0;
    uint32_t first = sim_first_slot(setup, request->source);
    uint32_t size = sim_engine_size(&setup->engines[request->source]);
    uint32_t never = !calm && sim_one_in(dice, 20) ? (uint32_t)sim_below(dice, size) : SIM_NOBODY;
    for (uint32_t i = 0; i < size; i++) {
        sim_act act = {.request = index, .slot = first + i, .dice = sim_roll(dice)};
        uint64_t at = world->now + lateness + sim_below(dice, 20 * SIM_MS);
        if (expect) {
            act.kind = SIM_ACT_EXPECT;
            sim_act_at(world, world->now + sim_below(dice, at - world->now + 1), act);
        }
        if (i == never)
            continue;
        act.kind = not_ready ? SIM_ACT_OFFER_NOT_READY : SIM_ACT_OFFER;
        sim_act_at(world, at, act);
        if (not_ready && !never_ready) {
            act.kind = SIM_ACT_READY;
            sim_act_at(world, at + sim_below(dice, 500 * SIM_MS), act);
        }
    }
}

static void ask(sim_world *world, const sim_request *request, uint32_t index, sim_dice *dice)
{
    const sim_setup *setup = world->setup;
    bool calm = setup->calm, renew = !calm && sim_one_in(dice, 12);
    uint64_t lateness = renew ? sim_below(dice, 3 * SIM_S) : 0;
    uint32_t first = sim_first_slot(setup, request->target);
    uint32_t size = sim_engine_size(&setup->engines[request->target]);
    uint32_t never = !calm && sim_one_in(dice, 20) ? (uint32_t)sim_below(dice, size) : SIM_NOBODY;
    for (uint32_t i = 0; i < size; i++) {
        sim_act act = {.kind = SIM_ACT_RENEW, .request = index, .slot = first + i, .dice = sim_roll(dice)};
        uint64_t at = world->now + lateness + sim_below(dice, 40 * SIM_MS);
        for (uint64_t t = 0; renew && t < lateness; t += 300 * SIM_MS)
            sim_act_at(world, world->now + t, act);
        act.kind = SIM_ACT_ASK;
        if (i != never)
            sim_act_at(world, at, act);
    }
}

static void begin_request(sim_world *world, const sim_step *step, uint32_t number)
{
    sim_dice dice = {step->dice};
    uint32_t index = world->request_count++;
    sim_request *request = &world->requests[index];
    bool states = world->setup->shape.layers[SIM_STATE] + world->setup->shape.layers[SIM_RING] > 0;
    *request = (sim_request){.step = number, .source = step->a, .target = step->b,
                             .seed = sim_roll(&dice)};
    world->request_of_step[number] = index;
    snprintf(request->id, sizeof request->id, "r%" PRIu32, index);
    request->tokens = sim_between(&dice, 1, most_tokens(world->setup, request));
    request->source_tokens = request->tokens;
    if (!states && sim_one_in(&dice, 4))
        request->source_tokens += sim_below(&dice, 4);
    request->full_hit = sim_one_in(&dice, 8);
    request->hit = sim_one_in(&dice, 3) ? sim_below(&dice, request->tokens) : 0;
    if (!world->setup->calm && sim_one_in(&dice, 4))
        request->timeout = sim_between(&dice, 20, 1000);
    sim_dice own = {sim_mix(request->seed ^ UINT64_C(0x77686f6c65))}; /* moves no other throw */
    request->whole_blocks = sim_one_in(&own, 2);
    sim_dice another = {sim_mix(request->seed ^ UINT64_C(0x70617274))};
    request->part = request->whole_blocks && sim_one_in(&another, 2);
    request->mixed = request->part && sim_one_in(&another, 2);
    request->keeps = (world->setup->calm && !request->part) || sim_one_in(&own, 2);
    sim_trace(world, "%s: %" PRIu64 " tokens, e%u to e%u%s%s%s", request->id, request->tokens, step->a, step->b,
              request->full_hit ? ", a full hit" : "", request->whole_blocks ? ", whole blocks" : "",
              request->part ? " or a part" : "");
    offer(world, request, index, &dice);
    ask(world, request, index, &dice);
}

/* --- the others ------------------------------------------------------------------------------------ */

static void connect_to(sim_world *world, sim_worker *worker, uint32_t engine)
{
    if (worker->engine == engine || worker->leaving)
        return;
    core_connect(worker->core, world->engine_ids[engine],
                 world->workers[sim_first_slot(world->setup, engine)].address, sim_clock(world, worker), NULL);
    sim_worker_after(world, worker);
}

static void on_request_step(sim_world *world, const sim_step *step)
{
    uint32_t request = world->request_of_step[step->a];
    sim_worker *worker = &world->workers[step->b];
    if (request == SIM_NOBODY || !worker->core || worker->leaving)
        return;
    if (step->kind == SIM_REPEAT)
        sim_repeat(world, worker, request);
    else if (step->kind == SIM_STEAL)
        sim_steal(world, worker, request);
    else if (step->kind == SIM_ABORT)
        sim_abort_one(world, worker, request,
                      worker->engine == world->requests[request].source ? KVFERRY_SIDE_PREFILL
                                                                        : KVFERRY_SIDE_DECODE);
    else
        sim_act_at(world, world->now, (sim_act){.kind = SIM_ACT_RENEW, .request = request, .slot = step->b});
}

static void change_weather(sim_world *world, const sim_step *step)
{
    sim_dice dice = {step->dice};
    bool in_order = world->setup->max_transfers < SIM_PLENTY;
    world->weather_until = world->now + step->amount;
    world->weather = (sim_weather){.loss = (uint32_t)sim_below(&dice, 90),
                                   .twice = (uint32_t)sim_below(&dice, 50),
                                   .late = in_order ? 0 : (uint32_t)sim_below(&dice, 60),
                                   .delay = sim_below(&dice, 100 * SIM_MS),
                                   .lateness = sim_below(&dice, 4 * SIM_S)};
}

/* What is stopped, or hangs, until then; a shorter one that begins meanwhile does not end it. */
static void not_before(uint64_t *until, uint64_t then) { *until = then > *until ? then : *until; }

void sim_on_step(sim_world *world, uint32_t number)
{
    const sim_step *step = &world->schedule->steps[number];
    sim_worker *worker = step->a < world->worker_count ? &world->workers[step->a] : NULL;
    bool alive = worker && worker->core && !worker->leaving;
    switch (step->kind) {
    case SIM_REQUEST: begin_request(world, step, number); return;
    case SIM_ABORT:
    case SIM_REPEAT:
    case SIM_STEAL:
    case SIM_RENEW: on_request_step(world, step); return;
    case SIM_WEATHER: change_weather(world, step); return;
    case SIM_CUT: sim_links_cut(world, step->a, step->b); return;
    case SIM_PARTITION:
        world->partitions[world->partition_count++] =
            (sim_partition){step->a, step->b, world->now + step->amount};
        return;
    case SIM_RESTART:
        if (worker && !worker->core) {
            world->totals->restarts++;
            sim_worker_start(world, step->a);
        }
        return;
    case SIM_KILL: sim_worker_kill(world, step->a, step->b == 1); return;
    default: break;
    }
    if (!alive)
        return;
    switch (step->kind) {
    case SIM_CLOSE: sim_worker_close(world, worker, step->b == 1); break;
    case SIM_JUMP: sim_worker_jump(world, worker, step->amount); break;
    case SIM_PAUSE: not_before(&worker->paused_until, world->now + step->amount); break;
    case SIM_HANG: not_before(&worker->hung_until, world->now + step->amount); break;
    case SIM_BREAK: worker->break_next = true; break;
    case SIM_PEER_LOST: sim_peers_lose(world, worker); break;
    default: connect_to(world, worker, step->b); break;
    }
}
