/* SPDX-License-Identifier: Apache-2.0 */
/* What the embedding engine does: it takes blocks, fills them, offers them and asks for them. */
#include <stdlib.h>
#include <string.h>

#include "world.h"

/* --- blocks -------------------------------------------------------------------------------------- */

/* A free block, the one that was free last before all others. */
static bool take_block(sim_worker *worker, const sim_engine *engine, sim_pool pool, uint32_t owner,
                       uint32_t *block)
{
    for (uint32_t i = 0; i < engine->blocks; i++) {
        *block = (worker->freed[pool] + i) % engine->blocks;
        if (worker->owners[pool][*block] == 0 && !(engine->null_block && *block == 0)) {
            worker->owners[pool][*block] = owner;
            return true;
        }
    }
    return false;
}

static void give_back(sim_worker *worker, uint32_t owner)
{
    for (sim_pool pool = 0; pool < SIM_POOLS; pool++)
        for (uint32_t block = 0; block < SIM_BLOCKS; block++)
            if (worker->owners[pool][block] == owner)
                worker->owners[pool][block] = 0;
}

enum { SPARE = 4 }; /* a source may have more tokens than are asked for, and its window is theirs */

/* Tokens before its window that a source has blocks of. */
static uint64_t kept_tokens(const sim_world *world, const sim_request *request, bool keeps)
{
    if (!request->whole_blocks)
        return SPARE;
    if (keeps)
        return SPARE + world->setup->engines[request->target].block_tokens[SIM_WINDOW];
    return request->source_tokens - request->tokens;
}

static bool is_dropped(uint64_t block_end, uint64_t window, uint64_t kept, uint64_t end)
{
    return block_end + window + kept <= end;
}

/* The blocks of tokens [from, end) of a paged group, those that its window drops left out where there is a
 * null block, or where the table is to begin with the window. */
static bool take_paged(const sim_world *world, sim_worker *worker, sim_pool kind, sim_tables *tables,
                       uint64_t from, uint32_t owner)
{
    sim_table *table = &tables->of[kind];
    uint64_t end = tables->tokens;
    const sim_engine *engine = &world->setup->engines[worker->engine];
    uint64_t block_tokens = engine->block_tokens[kind], window = world->setup->shape.window;
    table->first_token = from / block_tokens * block_tokens;
    for (uint64_t at = table->first_token; at < end && table->count < SIM_TABLE; at += block_tokens) {
        bool dropped = kind == SIM_WINDOW && is_dropped(at + block_tokens, window, tables->kept, end);
        uint32_t block = 0;
        if (dropped && !engine->null_block && tables->cut) {
            table->first_token += block_tokens;
            continue;
        }
        if (!(dropped && engine->null_block) &&
            !take_block(worker, engine, sim_pool_of(engine, kind), owner, &block))
            return false;
        table->blocks[table->count++] = block;
    }
    return true;
}

uint64_t sim_before_window(const sim_world *world, const sim_request *request, uint64_t *lost)
{
    const sim_engine *source = &world->setup->engines[request->source];
    uint64_t window = world->setup->shape.window, tokens = request->tokens, before = 0;
    uint64_t from = source->block_tokens[SIM_WINDOW], kept = kept_tokens(world, request, request->keeps);
    uint64_t block = world->setup->engines[request->target].block_tokens[SIM_WINDOW];
    *lost = 0;
    if (!request->whole_blocks || request->full_hit || world->setup->shape.layers[SIM_WINDOW] == 0)
        return 0;
    for (uint64_t token = request->hit / block * block; token + window < tokens; token++) {
        if (token / block * block + block + window <= tokens)
            continue;
        before++;
        *lost += is_dropped(token / from * from + from, window, kept, request->source_tokens) &&
                 (source->null_block || !request->keeps);
    }
    return before;
}

/* Whether the worker itself has streams of a kind. */
static bool has_kind(const sim_world *world, const sim_worker *worker, sim_pool kind)
{
    char name[16];
    sim_group_name(worker->engine, kind, name);
    for (uint32_t i = 0; i < kvferry_layout_group_count(worker->cache.layout); i++)
        if (strcmp(kvferry_layout_group(worker->cache.layout, i)->name, name) == 0)
            return world->setup->shape.layers[kind] > 0;
    return false;
}

static bool take_tables(const sim_world *world, sim_worker *worker, sim_tables *tables, uint64_t from,
                        uint32_t owner)
{
    const sim_engine *engine = &world->setup->engines[worker->engine];
    for (sim_pool kind = 0; kind < SIM_POOLS; kind++) {
        sim_table *table = &tables->of[kind];
        if (!has_kind(world, worker, kind))
            continue;
        table->listed = true;
        bool fine = true;
        if (engine->block_tokens[kind] > 0)
            fine = take_paged(world, worker, kind, tables, from, owner);
        else
            fine = take_block(worker, engine, sim_pool_of(engine, kind), owner, &table->blocks[table->count++]);
        if (!fine) {
            give_back(worker, owner);
            return false;
        }
    }
    return true;
}

/* What was there before must not pass for what is sent. */
static void scribble(sim_world *world, sim_worker *worker, uint32_t owner, sim_transfer *transfer)
{
    transfer->scribble = (unsigned char)sim_mix(owner + world->now);
    for (sim_pool pool = 0; pool < SIM_POOLS; pool++)
        for (uint32_t block = 0; block < SIM_BLOCKS; block++) {
            const sim_area *area = &worker->cache.areas[pool];
            if (worker->owners[pool][block] == owner && area->blocks > 0)
                memset(worker->segments[area->segment] + area->offset + block * area->row,
                       transfer->scribble, area->row);
        }
}

typedef struct filling {
    sim_worker *worker;
    uint64_t seed;
} filling;

static bool fill_cell(void *context, const sim_cell *cell)
{
    filling *fill = context;
    uint64_t value = sim_cell_value(fill->seed, cell);
    memcpy(fill->worker->segments[cell->stream->segment] + cell->offset, &value, cell->stream->cell_bytes);
    return true;
}

static void fill_blocks(sim_world *world, sim_worker *worker, sim_transfer *transfer)
{
    filling fill = {worker, world->requests[transfer->request].seed};
    sim_visit(world->setup, worker->engine, worker->cache.layout, &transfer->tables, fill_cell, &fill);
    transfer->ready = true;
}

/* --- transfers -------------------------------------------------------------------------------------- */

typedef struct given_tables {
    kvferry_block_table tables[SIM_POOLS];
    char names[SIM_POOLS][16];
    size_t count;
} given_tables;

static void give_tables(const sim_worker *worker, const sim_tables *tables, given_tables *given)
{
    given->count = 0;
    for (sim_pool kind = 0; kind < SIM_POOLS; kind++) {
        const sim_table *table = &tables->of[kind];
        if (!table->listed)
            continue;
        sim_group_name(worker->engine, kind, given->names[given->count]);
        given->tables[given->count] = (kvferry_block_table){given->names[given->count], table->first_token,
                                                            table->blocks, table->count};
        given->count++;
    }
}

/* A new transfer at the end of the list, not yet known to be one. */
static sim_transfer *new_transfer(sim_world *world, const sim_worker *worker, uint32_t request,
                                  kvferry_side side)
{
    world->transfers = sim_grow(world->transfers, &world->transfer_room, world->transfer_count + 1,
                                sizeof *world->transfers);
    sim_transfer *transfer = &world->transfers[world->transfer_count];
    *transfer = (sim_transfer){.request = request, .slot = worker->slot, .incarnation = worker->incarnation,
                               .side = side, .begun = sim_clock(world, worker)};
    return transfer;
}

static void keep_transfer(sim_world *world, sim_worker *worker)
{
    worker->live[worker->live_count++] = (uint32_t)world->transfer_count++;
}

static bool answered(sim_world *world, sim_worker *worker, const char *call, const char *id,
                     kvferry_status status, kvferry_report *report)
{
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    sim_trace(world, "w%u %s %s: %s %s", worker->slot, call, id, kvferry_status_name(status),
              reason ? reason->code : "");
    if (status != KVFERRY_OK) {
        world->totals->refused++;
        if (!reason)
            sim_fail(world, "no_reason", "worker %" PRIu32 ": %s %s: %s", worker->slot, call, id,
                     kvferry_status_name(status));
    }
    return status == KVFERRY_OK;
}

static kvferry_report *new_report(void)
{
    kvferry_report *report = NULL;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        abort();
    return report;
}

static kvferry_status call_offer(sim_world *world, sim_worker *worker, const sim_transfer *transfer,
                                 kvferry_readiness readiness, kvferry_report *report)
{
    const sim_request *request = &world->requests[transfer->request];
    given_tables given;
    give_tables(worker, &transfer->tables, &given);
    kvferry_offer offer = {.size = sizeof offer, .transfer_id = request->id, .tokens = transfer->tables.tokens,
                           .tables = given.tables, .table_count = given.count, .readiness = readiness,
                           .context = (void *)(uintptr_t)(world->transfer_count + 1)};
    return core_offer(worker->core, &offer, sim_clock(world, worker), report);
}

static kvferry_status call_ask(sim_world *world, sim_worker *worker, const sim_transfer *transfer,
                               const char *id, uint64_t dice, kvferry_report *report)
{
    const sim_request *request = &world->requests[transfer->request];
    const char *engine_id = world->engine_ids[request->source];
    uint32_t size = sim_engine_size(&world->setup->engines[request->source]);
    uint32_t slot = sim_first_slot(world->setup, request->source) + (uint32_t)(dice / 8 % size);
    given_tables given;
    char where[64];
    give_tables(worker, &transfer->tables, &given);
    if (dice % 8 == 0)
        snprintf(where, sizeof where, "http://%s", engine_id);
    else
        snprintf(where, sizeof where, "%s", world->workers[slot].address);
    uint64_t scale = world->options->fault == SIM_FAULT_NO_DEADLINE ? 100 : 1;
    uint64_t timeout = request->timeout ? request->timeout : world->setup->times.transfer / SIM_MS;
    kvferry_ask ask = {.size = sizeof ask, .transfer_id = id, .engine_id = dice % 8 == 1 ? "" : engine_id,
                       .where = where, .tokens = transfer->tables.tokens, .tables = given.tables,
                       .table_count = given.count,
                       .timeout_ms = request->timeout || scale > 1 ? scale * timeout : 0,
                       .context = (void *)(uintptr_t)(world->transfer_count + 1),
                       .whole_blocks = request->whole_blocks,
                       .allow_part = request->part};
    return core_ask(worker->core, &ask, sim_clock(world, worker), report);
}

/* --- acts ------------------------------------------------------------------------------------------- */

/* Another time, when blocks are free; false: it is too late for that. */
static bool wait_for_blocks(sim_world *world, const sim_act *act)
{
    world->crowded = true;
    if (world->calm)
        return false;
    sim_act_at(world, world->now + 50 * SIM_MS, *act);
    return true;
}

static bool has_code(const kvferry_report *report, const char *first, const char *second)
{
    for (size_t i = 0; i < kvferry_report_count(report); i++) {
        const char *code = kvferry_report_get(report, i)->code;
        if (strcmp(code, first) == 0 || strcmp(code, second) == 0)
            return true;
    }
    return false;
}

/* A call that must be served, or may be refused only because there are as many as may be. */
static void served(sim_world *world, sim_worker *worker, const char *call, const sim_act *act,
                   kvferry_status status, kvferry_report *report)
{
    const char *id = world->requests[act->request].id;
    uint32_t owner = (uint32_t)world->transfer_count + 1;
    if (answered(world, worker, call, id, status, report))
        keep_transfer(world, worker);
    else if (world->setup->max_transfers < SIM_PLENTY && has_code(report, "too_many_transfers", ""))
        give_back(worker, owner);
    else
        sim_fail(world, act->kind == SIM_ACT_ASK ? "ask_refused" : "offer_refused",
                 "worker %" PRIu32 ": %s: %s", worker->slot, id, kvferry_report_get(report, 0)->message);
}

static void act_offer(sim_world *world, sim_worker *worker, const sim_act *act)
{
    const sim_request *request = &world->requests[act->request];
    if (worker->withdrawn[act->request])
        return;
    sim_transfer *transfer = new_transfer(world, worker, act->request, KVFERRY_SIDE_PREFILL);
    uint32_t owner = (uint32_t)world->transfer_count + 1;
    transfer->tables.tokens = request->source_tokens;
    bool keeps = request->keeps || (request->mixed && worker->rank % 2);
    transfer->tables.kept = kept_tokens(world, request, keeps);
    transfer->tables.cut = request->whole_blocks && !keeps;
    if (!take_tables(world, worker, &transfer->tables, 0, owner)) {
        wait_for_blocks(world, act);
        return;
    }
    scribble(world, worker, owner, transfer);
    bool ready = act->kind == SIM_ACT_OFFER;
    if (ready)
        fill_blocks(world, worker, transfer);
    if (world->options->fault == SIM_FAULT_NOT_READY)
        ready = true;
    kvferry_report *report = new_report();
    kvferry_status status =
        call_offer(world, worker, transfer, ready ? KVFERRY_READY : KVFERRY_NOT_READY, report);
    served(world, worker, "offers", act, status, report);
    kvferry_report_free(report);
    sim_worker_after(world, worker);
}

static void act_ready(sim_world *world, sim_worker *worker, const sim_act *act)
{
    sim_transfer *transfer = sim_find(world, worker->slot, KVFERRY_SIDE_PREFILL, act->request);
    bool live = transfer && !transfer->ended;
    if (transfer)
        fill_blocks(world, worker, transfer);
    kvferry_status status =
        core_ready(worker->core, world->requests[act->request].id, sim_clock(world, worker));
    sim_trace(world, "w%u r%u is ready: %s", worker->slot, act->request, kvferry_status_name(status));
    if (live && status != KVFERRY_OK && world->options->fault == SIM_FAULT_NONE)
        sim_fail(world, "ready", "worker %" PRIu32 ": r%" PRIu32 ": %s", worker->slot, act->request,
                 kvferry_status_name(status));
    sim_worker_after(world, worker);
}

static void act_ask(sim_world *world, sim_worker *worker, const sim_act *act)
{
    const sim_request *request = &world->requests[act->request];
    sim_transfer *transfer = new_transfer(world, worker, act->request, KVFERRY_SIDE_DECODE);
    uint32_t owner = (uint32_t)world->transfer_count + 1;
    transfer->tables.tokens = request->tokens;
    transfer->tables.kept = SPARE;
    transfer->tables.whole_blocks = request->whole_blocks;
    if (!request->full_hit && !take_tables(world, worker, &transfer->tables, request->hit, owner)) {
        if (wait_for_blocks(world, act))
            return;
        memset(transfer->tables.of, 0, sizeof transfer->tables.of);
    }
    scribble(world, worker, owner, transfer);
    uint64_t timeout = request->timeout ? request->timeout * SIM_MS : world->setup->times.transfer;
    transfer->deadline = transfer->begun + timeout / SIM_MS * SIM_MS;
    kvferry_report *report = new_report();
    kvferry_status status = call_ask(world, worker, transfer, request->id, act->dice, report);
    served(world, worker, "asks for", act, status, report);
    kvferry_report_free(report);
    sim_worker_after(world, worker);
}

static void act_other(sim_world *world, sim_worker *worker, const sim_act *act)
{
    const sim_request *request = &world->requests[act->request];
    uint64_t now = sim_clock(world, worker);
    kvferry_report *report = new_report();
    kvferry_status status = act->kind == SIM_ACT_EXPECT
                                ? core_expect(worker->core, request->id, now, report)
                                : core_renew(worker->core, world->engine_ids[request->source], request->id, now,
                                             report);
    if (status == KVFERRY_NOT_FOUND && act->kind == SIM_ACT_RENEW)
        sim_trace(world, "w%u cannot renew %s", worker->slot, request->id);
    else
        answered(world, worker, act->kind == SIM_ACT_EXPECT ? "expects" : "renews", request->id, status, report);
    kvferry_report_free(report);
    sim_worker_after(world, worker);
}

void sim_on_act(sim_world *world, uint32_t index)
{
    sim_act act = world->acts[index];
    sim_worker *worker = &world->workers[act.slot];
    world->acts_waiting--;
    if (!worker->core || worker->leaving)
        return;
    if (worker->paused_until > world->now && !world->calm) {
        sim_act_at(world, worker->paused_until, act);
        return;
    }
    if (act.kind == SIM_ACT_ASK)
        act_ask(world, worker, &act);
    else if (act.kind == SIM_ACT_OFFER || act.kind == SIM_ACT_OFFER_NOT_READY)
        act_offer(world, worker, &act);
    else if (act.kind == SIM_ACT_READY)
        act_ready(world, worker, &act);
    else
        act_other(world, worker, &act);
}

/* --- what must be refused ----------------------------------------------------------------------------- */

static void must_refuse(sim_world *world, sim_worker *worker, const char *call, kvferry_status status,
                        kvferry_report *report, const char *first, const char *second)
{
    if (!answered(world, worker, call, "what it must not", status, report) && status == KVFERRY_REFUSED &&
        has_code(report, first, second))
        return;
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    sim_fail(world, "not_refused", "worker %" PRIu32 " %s again: %s, %s; expected %s or %s", worker->slot, call,
             kvferry_status_name(status), reason ? reason->code : "no reason", first, second);
}

/* The last transfer of this process with that id, if the core must still know of it. */
static const sim_transfer *known(const sim_world *world, const sim_worker *worker, kvferry_side side,
                                 uint32_t request)
{
    for (size_t i = world->transfer_count; i > 0; i--) {
        const sim_transfer *transfer = &world->transfers[i - 1];
        if (transfer->slot == worker->slot && transfer->incarnation == worker->incarnation &&
            transfer->side == side && transfer->request == request)
            return !transfer->released ||
                           (world->setup->max_transfers == SIM_PLENTY &&
                            sim_clock(world, worker) < transfer->begun + world->setup->times.remember)
                       ? transfer
                       : NULL;
    }
    return NULL;
}

void sim_repeat(sim_world *world, sim_worker *worker, uint32_t request)
{
    for (kvferry_side side = 0; side < 2; side++) {
        if (!known(world, worker, side, request))
            continue;
        sim_transfer *again = new_transfer(world, worker, request, side);
        again->tables.tokens = world->requests[request].tokens;
        kvferry_report *report = new_report();
        kvferry_status status =
            side == KVFERRY_SIDE_PREFILL
                ? call_offer(world, worker, again, KVFERRY_READY, report)
                : call_ask(world, worker, again, world->requests[request].id, 2, report);
        must_refuse(world, worker, side == KVFERRY_SIDE_PREFILL ? "offers" : "asks", status, report,
                    "transfer_known", "transfer_over");
        kvferry_report_free(report);
        sim_worker_after(world, worker);
    }
}

void sim_steal(sim_world *world, sim_worker *worker, uint32_t request)
{
    const sim_transfer *owner = sim_find(world, worker->slot, KVFERRY_SIDE_DECODE, request);
    bool blocks = false;
    for (sim_pool kind = 0; owner && kind < SIM_POOLS; kind++)
        for (uint32_t i = 0; i < owner->tables.of[kind].count; i++)
            blocks = blocks || owner->tables.of[kind].blocks[i] != 0 ||
                     !world->setup->engines[worker->engine].null_block;
    if (!blocks)
        return;
    uint32_t index = (uint32_t)(owner - world->transfers);
    sim_transfer *thief = new_transfer(world, worker, request, KVFERRY_SIDE_DECODE);
    thief->tables = world->transfers[index].tables;
    kvferry_report *report = new_report();
    kvferry_status status = call_ask(world, worker, thief, "thief", 2, report);
    must_refuse(world, worker, "asks", status, report, "block_owned",
                world->setup->max_transfers < SIM_PLENTY ? "too_many_transfers" : "block_owned");
    kvferry_report_free(report);
    sim_worker_after(world, worker);
}

void sim_abort_one(sim_world *world, sim_worker *worker, uint32_t request, kvferry_side side)
{
    sim_transfer *transfer = sim_find(world, worker->slot, side, request);
    uint32_t index = transfer ? (uint32_t)(transfer - world->transfers) : 0;
    bool live = transfer && !transfer->ended;
    kvferry_status status =
        core_abort(worker->core, side, world->requests[request].id, sim_clock(world, worker));
    sim_trace(world, "w%u aborts r%u: %s", worker->slot, request, kvferry_status_name(status));
    if (!live && status == KVFERRY_OK)
        worker->withdrawn[request] = true;
    if (live && status != KVFERRY_OK)
        sim_fail(world, "abort", "worker %" PRIu32 ": r%" PRIu32 ": %s", worker->slot, request,
                 kvferry_status_name(status));
    sim_worker_after(world, worker);
    if (live && !sim_failed(world) &&
        (!world->transfers[index].ended || world->transfers[index].outcome != KVFERRY_OUTCOME_ABORTED))
        sim_fail(world, "abort_at_once", "worker %" PRIu32 ": r%" PRIu32 " has no end after its abort",
                 worker->slot, request);
}
