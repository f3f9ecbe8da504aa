/* SPDX-License-Identifier: Apache-2.0 */
/* A seed makes a schedule: what exists, and what is done to it. */
#include <string.h>

#include "simulator.h"

/* --- slots ------------------------------------------------------------------------------------- */

uint32_t sim_engine_size(const sim_engine *engine)
{
    return engine->tp * engine->pp * engine->dp;
}

uint32_t sim_worker_count(const sim_setup *setup)
{
    return sim_first_slot(setup, setup->engine_count);
}

uint32_t sim_first_slot(const sim_setup *setup, uint32_t engine)
{
    uint32_t slot = 0;
    for (uint32_t i = 0; i < engine; i++)
        slot += sim_engine_size(&setup->engines[i]);
    return slot;
}

uint32_t sim_engine_of(const sim_setup *setup, uint32_t slot, uint32_t *rank)
{
    uint32_t engine = 0;
    while (slot >= sim_engine_size(&setup->engines[engine]))
        slot -= sim_engine_size(&setup->engines[engine++]);
    *rank = slot;
    return engine;
}

/* --- set-up ------------------------------------------------------------------------------------ */

static void generate_engine(sim_engine *engine, sim_dice *dice)
{
    static const uint32_t topologies[][3] = {{1, 1, 1}, {1, 1, 1}, {2, 1, 1}, {2, 1, 1}, {1, 2, 1},
                                             {4, 1, 1}, {2, 2, 1}, {3, 1, 1}, {1, 1, 2}};
    static const uint32_t sizes[] = {2, 4, 4, 6, 8};
    const uint32_t *topology = topologies[sim_below(dice, sizeof topologies / sizeof *topologies)];
    engine->tp = topology[0];
    engine->pp = topology[1];
    engine->dp = topology[2];
    engine->block_tokens[SIM_ATTN] = sizes[sim_below(dice, 5)];
    engine->block_tokens[SIM_WINDOW] = sizes[sim_below(dice, 5)];
    engine->ratio = sim_one_in(dice, 3) ? 2 : 1;
    engine->blocks = (uint32_t)sim_between(dice, 10, SIM_BLOCKS);
    engine->padding = sim_one_in(dice, 2) ? 0 : (uint32_t)sim_between(dice, 1, 9);
    engine->shared = sim_one_in(dice, 3);
    engine->tokens_outside = sim_one_in(dice, 2);
    engine->null_block = !sim_one_in(dice, 4);
    engine->first_stage_only = sim_one_in(dice, 4);
}

static void generate_setup(sim_setup *setup, sim_dice *dice)
{
    setup->prefill_count = sim_one_in(dice, 3) ? 2 : 1;
    setup->engine_count = setup->prefill_count + (sim_one_in(dice, 4) ? 2 : 1);
    setup->both = sim_one_in(dice, 6);
    setup->verify = sim_one_in(dice, 4);
    setup->calm = sim_one_in(dice, 5);
    for (uint32_t i = 0; i < setup->engine_count; i++)
        generate_engine(&setup->engines[i], dice);
    setup->shape.layers[SIM_ATTN] = (uint32_t)sim_between(dice, 0, 2);
    setup->shape.layers[SIM_STATE] = sim_one_in(dice, 2) ? (uint32_t)sim_between(dice, 1, 2) : 0;
    setup->shape.layers[SIM_RING] = sim_one_in(dice, 4);
    setup->shape.layers[SIM_WINDOW] = sim_one_in(dice, 3) ? (uint32_t)sim_between(dice, 1, 2) : 0;
    if (setup->shape.layers[SIM_STATE] + setup->shape.layers[SIM_WINDOW] == 0)
        setup->shape.layers[SIM_ATTN]++;
    setup->shape.heads = (uint32_t)sim_between(dice, 1, 4);
    setup->shape.channels = (uint32_t)sim_between(dice, 2, 6);
    setup->shape.window = (uint32_t)sim_between(dice, 3, 12);
    static const uint64_t copy_times[] = {50 * SIM_US, SIM_MS, 5 * SIM_MS, 20 * SIM_MS, 100 * SIM_MS};
    setup->copy_time = copy_times[sim_below(dice, 5)];
    setup->max_peer_copies = sim_one_in(dice, 4) ? (uint32_t)sim_between(dice, 1500, 3000) : 1u << 20;
}

/* All are so far apart that what a rule forbids is not what a schedule runs into by its times alone. */
static void generate_times(sim_setup *setup, sim_dice *dice)
{
    sim_times *times = &setup->times;
    times->retry = sim_between(dice, 80, 300) * SIM_MS;
    times->silence = sim_between(dice, 1500, 4000) * SIM_MS;
    times->linger = sim_between(dice, 100, 1000) * SIM_MS;
    times->early = sim_between(dice, 300, 1500) * SIM_MS;
    times->connect = sim_between(dice, 2000, 5000) * SIM_MS;
    times->transfer = sim_between(dice, 2000, 12000) * SIM_MS;
    times->lease = sim_one_in(dice, 4) ? sim_between(dice, 500, 2000) * SIM_MS
                                       : sim_between(dice, 4000, 12000) * SIM_MS;
    times->remember = sim_between(dice, 8, 60) * SIM_S;
    if (setup->calm) {
        times->lease = 60 * SIM_S;
        times->transfer = 60 * SIM_S;
        times->connect = 20 * SIM_S;
        times->early = 20 * SIM_S;
        times->silence = 6 * SIM_S;
    }
}

static void generate_weather(const sim_setup *setup, sim_weather *weather, sim_dice *dice)
{
    *weather = (sim_weather){.delay = sim_one_in(dice, 3) ? 30 * SIM_MS : 2 * SIM_MS};
    if (sim_one_in(dice, 2))
        return;
    weather->loss = setup->calm ? (uint32_t)sim_below(dice, 5) : (uint32_t)sim_below(dice, 40);
    weather->twice = (uint32_t)sim_below(dice, 40);
    weather->late = (uint32_t)sim_below(dice, 20);
    if (!setup->calm && sim_one_in(dice, 3)) { /* all in disorder */
        weather->twice = 50;
        weather->late = 50;
    }
    weather->lateness = setup->calm ? 200 * SIM_MS : sim_between(dice, 100, 4000) * SIM_MS;
}

/* --- steps ------------------------------------------------------------------------------------- */

static sim_step *add_step(sim_schedule *schedule, sim_step_kind kind, uint64_t at, uint32_t a, uint32_t b,
                          sim_dice *dice)
{
    sim_step *step = &schedule->steps[schedule->step_count++];
    *step = (sim_step){.at = at, .kind = kind, .a = a, .b = b, .dice = sim_roll(dice)};
    return step;
}

static void add_requests(sim_schedule *schedule, sim_dice *dice, uint64_t *span)
{
    const sim_setup *setup = &schedule->setup;
    uint32_t count = (uint32_t)sim_between(dice, 1, sim_one_in(dice, 4) ? 24 : 8);
    uint64_t at = 0, gap = sim_one_in(dice, 2) ? 20 * SIM_MS : 600 * SIM_MS;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t a = (uint32_t)sim_below(dice, setup->prefill_count);
        uint32_t decoders = setup->engine_count - setup->prefill_count;
        uint32_t b = setup->prefill_count + (uint32_t)sim_below(dice, decoders);
        if (setup->both && decoders > 1 && sim_one_in(dice, 2)) { /* the last one gives to the others */
            a = setup->engine_count - 1;
            b = setup->prefill_count + (uint32_t)sim_below(dice, decoders - 1);
        }
        at += sim_below(dice, gap);
        add_step(schedule, SIM_REQUEST, at, a, b, dice);
    }
    *span = at + SIM_S;
}

static uint32_t any_of_engine(const sim_setup *setup, uint32_t engine, sim_dice *dice)
{
    return sim_first_slot(setup, engine) + (uint32_t)sim_below(dice, sim_engine_size(&setup->engines[engine]));
}

/* About a request: close to its own steps. */
static void add_fault_of_request(sim_schedule *schedule, sim_dice *dice, sim_step_kind kind,
                                 uint32_t requests)
{
    uint32_t request = (uint32_t)sim_below(dice, requests);
    const sim_step *of = &schedule->steps[request];
    const sim_setup *setup = &schedule->setup;
    uint32_t engine = kind != SIM_RENEW && kind != SIM_STEAL && sim_one_in(dice, 2) ? of->a : of->b;
    uint32_t slot = any_of_engine(setup, engine, dice);
    uint64_t most = sim_one_in(dice, 3) ? 2 * SIM_S : sim_one_in(dice, 2) ? 300 * SIM_MS : 60 * SIM_MS;
    add_step(schedule, kind, of->at + sim_below(dice, most), request, slot, dice);
}

/* Anywhere and at any time, or where and while a request is served. */
static void add_fault_of_workers(sim_schedule *schedule, sim_dice *dice, sim_step_kind kind, uint64_t span,
                                 uint32_t requests)
{
    const sim_setup *setup = &schedule->setup;
    uint32_t workers = sim_worker_count(setup);
    uint32_t slot = (uint32_t)sim_below(dice, workers), other = (uint32_t)sim_below(dice, workers);
    uint64_t at = sim_below(dice, span);
    if (!sim_one_in(dice, 3)) {
        const sim_step *request = &schedule->steps[sim_below(dice, requests)];
        bool source = sim_one_in(dice, 2);
        at = request->at + sim_below(dice, sim_one_in(dice, 2) ? SIM_S : 200 * SIM_MS);
        slot = any_of_engine(setup, source ? request->a : request->b, dice);
        other = any_of_engine(setup, source ? request->b : request->a, dice);
    }
    sim_step *step = add_step(schedule, kind, at, slot, other, dice);
    step->amount = sim_one_in(dice, 3) ? sim_between(dice, 1, 100) * SIM_MS
                                       : sim_between(dice, 100, 8000) * SIM_MS;
    if (kind == SIM_KILL)
        step->b = sim_one_in(dice, 3);
    if (kind == SIM_CLOSE)
        step->b = sim_one_in(dice, 2);
    if (kind == SIM_CONNECT)
        step->b = (uint32_t)sim_below(dice, setup->prefill_count);
    if ((kind == SIM_KILL || kind == SIM_CLOSE) && !sim_one_in(dice, 3))
        add_step(schedule, SIM_RESTART, at + sim_between(dice, 1, sim_one_in(dice, 3) ? 1500 : 100) * SIM_MS,
                 slot, 0, dice);
}

static void add_faults(sim_schedule *schedule, sim_dice *dice, uint64_t span)
{
    static const sim_step_kind kinds[] = {SIM_ABORT,  SIM_ABORT,  SIM_ABORT,     SIM_ABORT,     SIM_KILL,  SIM_KILL,
                                          SIM_KILL,   SIM_CLOSE,  SIM_CUT,       SIM_CUT,   SIM_PARTITION,
                                          SIM_WEATHER, SIM_JUMP,  SIM_PAUSE,     SIM_PAUSE, SIM_HANG,
                                          SIM_HANG,   SIM_BREAK,  SIM_PEER_LOST, SIM_REPEAT, SIM_STEAL,
                                          SIM_RENEW,  SIM_CONNECT};
    uint32_t requests = schedule->step_count;
    uint32_t count = (uint32_t)sim_between(dice, 1, sim_one_in(dice, 3) ? 16 : 6);
    for (uint32_t i = 0; i < count && schedule->step_count + 2 < SIM_STEPS; i++) {
        sim_step_kind kind = kinds[sim_below(dice, sizeof kinds / sizeof *kinds)];
        if (kind == SIM_ABORT || kind == SIM_REPEAT || kind == SIM_STEAL || kind == SIM_RENEW)
            add_fault_of_request(schedule, dice, kind, requests);
        else
            add_fault_of_workers(schedule, dice, kind, span, requests);
    }
}

void sim_generate(sim_schedule *schedule, uint64_t seed)
{
    memset(schedule, 0, sizeof *schedule);
    schedule->seed = seed;
    sim_dice dice = {sim_mix(seed + 1)};
    uint64_t span;
    generate_setup(&schedule->setup, &dice);
    generate_times(&schedule->setup, &dice);
    generate_weather(&schedule->setup, &schedule->setup.weather, &dice);
    add_requests(schedule, &dice, &span);
    sim_dice few = {sim_mix(seed ^ UINT64_C(0x666577))};
    schedule->setup.max_transfers = SIM_PLENTY;
    if (!schedule->setup.calm && sim_one_in(&few, 4))
        schedule->setup.max_transfers = (uint32_t)sim_between(&few, 1, 4);
    if (schedule->setup.max_transfers < SIM_PLENTY) /* what is forgotten is safe in order only */
        schedule->setup.weather.late = 0;
    if (!schedule->setup.calm)
        add_faults(schedule, &dice, span);
}

/* --- printing ---------------------------------------------------------------------------------- */

static void print_worker(const sim_setup *setup, uint32_t slot, FILE *out)
{
    uint32_t rank, engine = sim_engine_of(setup, slot, &rank);
    fprintf(out, "worker %" PRIu32 " (e%" PRIu32 " rank %" PRIu32 ")", slot, engine, rank);
}

void sim_print_step(const sim_schedule *schedule, uint32_t index, FILE *out)
{
    const sim_step *step = &schedule->steps[index];
    const sim_setup *setup = &schedule->setup;
    static const char *const words[SIM_STEP_KINDS] = {
        "request", "abort", "kill", "restart", "close", "cut links", "partition", "weather", "clock jump",
        "pause", "engine hangs", "next write fails", "engine loses its peers", "repeat", "steal", "renew",
        "connect"};
    fprintf(out, "%3" PRIu32 "  %9.3f s  %s", index, (double)step->at / 1e9, words[step->kind]);
    switch (step->kind) {
    case SIM_REQUEST:
        fprintf(out, " r%" PRIu32 ": e%" PRIu32 " to e%" PRIu32, index, step->a, step->b);
        break;
    case SIM_ABORT:
    case SIM_REPEAT:
    case SIM_STEAL:
    case SIM_RENEW:
        fprintf(out, " r%" PRIu32 " at ", step->a);
        print_worker(setup, step->b, out);
        break;
    case SIM_CONNECT:
        fprintf(out, " to e%" PRIu32 ": ", step->b);
        print_worker(setup, step->a, out);
        break;
    case SIM_CUT:
    case SIM_PARTITION:
        fprintf(out, " between ");
        print_worker(setup, step->a, out);
        fprintf(out, " and ");
        print_worker(setup, step->b, out);
        break;
    case SIM_WEATHER:
        break;
    default:
        fprintf(out, " ");
        print_worker(setup, step->a, out);
    }
    if (step->kind == SIM_KILL && step->b)
        fprintf(out, ", its host too");
    if (step->kind == SIM_CLOSE && step->b)
        fprintf(out, " after a drain");
    if (step->kind == SIM_PARTITION || step->kind == SIM_JUMP || step->kind == SIM_PAUSE ||
        step->kind == SIM_HANG || step->kind == SIM_WEATHER)
        fprintf(out, ", %.3f s", (double)step->amount / 1e9);
    fprintf(out, "\n");
}

void sim_print(const sim_schedule *schedule, FILE *out)
{
    const sim_setup *setup = &schedule->setup;
    const sim_weather *weather = &setup->weather;
    fprintf(out, "seed %" PRIu64 "%s%s%s", schedule->seed, setup->calm ? ", calm" : "",
            setup->verify ? ", verify" : "", schedule->clear ? ", clear weather" : "");
    if (setup->max_transfers < SIM_PLENTY)
        fprintf(out, ", at most %" PRIu32 " transfers", setup->max_transfers);
    fprintf(out, "\n");
    for (uint32_t i = 0; i < setup->engine_count; i++) {
        const sim_engine *engine = &setup->engines[i];
        fprintf(out, "  e%" PRIu32 " %s tp%" PRIu32 " pp%" PRIu32 " dp%" PRIu32 ", blocks of %" PRIu32 "%s\n", i,
                i < setup->prefill_count ? "prefill" : "decode ", engine->tp, engine->pp, engine->dp,
                engine->block_tokens[SIM_ATTN], engine->shared ? ", state over attention" : "");
    }
    fprintf(out, "  layers: attention %" PRIu32 ", state %" PRIu32 ", ring %" PRIu32 ", window %" PRIu32
                 "; heads %" PRIu32 "\n",
            setup->shape.layers[SIM_ATTN], setup->shape.layers[SIM_STATE], setup->shape.layers[SIM_RING],
            setup->shape.layers[SIM_WINDOW], setup->shape.heads);
    fprintf(out,
            "  weather: %" PRIu32 "%% lost, %" PRIu32 "%% twice, %" PRIu32
            "%% late by %.3f s; lease %.1f s, silence %.1f s, linger %.1f s\n",
            weather->loss, weather->twice, weather->late, (double)weather->lateness / 1e9,
            (double)setup->times.lease / 1e9, (double)setup->times.silence / 1e9,
            (double)setup->times.linger / 1e9);
    for (uint32_t i = 0; i < schedule->step_count; i++)
        if (!schedule->steps[i].dropped)
            sim_print_step(schedule, i, out);
}
