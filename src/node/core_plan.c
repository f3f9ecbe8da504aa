/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans, each made once: a target's plan over all sources depends on nothing but their documents, so one
 * is found again after a restart, too. A pairing keeps what this node needs of the plans between two rosters.
 */
#include "node/core_internal.h"

/* What a plan takes, about: those of large engines have hundreds of pieces. */
enum { PLAN_NS = 20000, PIECE_NS = 1500 };

static void release_planned(node_core *core, core_planned *planned)
{
    if (!planned || --planned->uses)
        return;
    HASH_DEL(core->planned, planned);
    kvferry_plan_free(planned->plan);
    kvferry_report_free(planned->refusal);
    free(planned);
}

static kvferry_status make_plan(const core_roster *sources, core_document *target, core_planned *planned)
{
    const kvferry_layout **layouts = base_alloc(sources->wire.count, sizeof(*layouts));
    kvferry_status status = layouts ? kvferry_report_create(&planned->refusal) : KVFERRY_NO_MEMORY;
    if (status == KVFERRY_OK) {
        for (size_t i = 0; i < sources->wire.count; i++)
            layouts[i] = sources->documents[i]->layout;
        status = kvferry_plan_create(layouts, sources->wire.count, target->layout, &planned->plan,
                                     planned->refusal);
    }
    free(layouts);
    return status == KVFERRY_REFUSED ? KVFERRY_OK : status;
}

/* In use once more. */
static kvferry_status get_planned(node_core *core, core_roster *sources, core_document *target,
                                  core_planned **planned)
{
    char key[WIRE_DIGEST_TEXT * 2];
    memcpy(key, sources->documents_digest, WIRE_DIGEST_TEXT - 1);
    memcpy(key + WIRE_DIGEST_TEXT - 1, target->digest, WIRE_DIGEST_TEXT);
    core_planned *made;
    HASH_FIND_STR(core->planned, key, made);
    if (made) {
        made->uses++;
        *planned = made;
        return KVFERRY_OK;
    }
    made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    memcpy(made->key, key, strlen(key) + 1);
    kvferry_status status = make_plan(sources, target, made);
    uint64_t pieces = 0;
    for (size_t i = 0; made->plan && i < sources->wire.count; i++)
        pieces += kvferry_plan_piece_count(made->plan, i);
    core_spend(core, PLAN_NS + pieces * PIECE_NS);
    if (status == KVFERRY_OK) {
        made->uses = 1;
        HASH_ADD_STR(core->planned, key, made);
    }
    if (!made->hh.tbl) {
        kvferry_plan_free(made->plan);
        kvferry_report_free(made->refusal);
        free(made);
        return status == KVFERRY_OK ? KVFERRY_NO_MEMORY : status;
    }
    *planned = made;
    return KVFERRY_OK;
}

/* --- pairings ------------------------------------------------------------------------------------------ */

static void free_pairing(node_core *core, core_pairing *pairing)
{
    for (size_t i = 0; pairing->planned && i < pairing->target->wire.count; i++)
        release_planned(core, pairing->planned[i]);
    core_job_stop(core, &pairing->job);
    free(pairing->planned);
    free(pairing->used);
    free(pairing->asks);
    free(pairing->slots);
    kvferry_report_free(pairing->refusal);
    core_roster_release(core, pairing->source);
    core_roster_release(core, pairing->target);
    free(pairing);
}

static kvferry_status refuse(core_pairing *pairing, const core_planned *planned)
{
    if (!pairing->refusal && kvferry_report_create(&pairing->refusal) != KVFERRY_OK)
        return KVFERRY_NO_MEMORY;
    core_reasons_copy(pairing->refusal, planned->refusal, WIRE_MAX_REASONS);
    if (!kvferry_report_count(pairing->refusal))
        return KVFERRY_NO_MEMORY;
    return KVFERRY_OK;
}

/* Prefill: a target asks here if its plan takes something from here; if none does, the lowest asks. */
static void note_prefill(node_core *core, core_pairing *pairing, size_t target, core_planned *planned)
{
    if (kvferry_plan_piece_count(planned->plan, pairing->own)) {
        pairing->asks[target] = true;
        pairing->planned[target] = planned;
    } else {
        release_planned(core, planned);
    }
}

/* Decode: this node asks the sources of its plan; the lowest also those in no target's plan. */
static void note_decode(node_core *core, core_pairing *pairing, size_t target, core_planned *planned,
                        bool *used)
{
    for (size_t i = 0; i < pairing->source->wire.count; i++) {
        if (!kvferry_plan_piece_count(planned->plan, i))
            continue;
        used[i] = true;
        if (target == pairing->own)
            pairing->asks[i] = true;
    }
    if (target == pairing->own)
        pairing->planned[target] = planned;
    else
        release_planned(core, planned);
}

/* Looks at one target. */
static kvferry_status plan_one(node_core *core, core_pairing *pairing, size_t target)
{
    bool decode = pairing->side == KVFERRY_SIDE_DECODE;
    core_planned *planned;
    kvferry_status status = get_planned(core, pairing->source, pairing->target->documents[target], &planned);
    if (status != KVFERRY_OK)
        return status;
    if (!planned->plan) {
        status = refuse(pairing, planned);
        release_planned(core, planned);
    } else if (decode) {
        note_decode(core, pairing, target, planned, pairing->used);
    } else {
        note_prefill(core, pairing, target, planned);
    }
    return status;
}

/* Who is asked, now that all plans are there. */
static void note_asks(core_pairing *pairing)
{
    bool decode = pairing->side == KVFERRY_SIDE_DECODE;
    size_t others = decode ? pairing->source->wire.count : pairing->target->wire.count;
    for (size_t i = 0; i < others; i++) {
        if (decode && pairing->own == 0 && !pairing->used[i])
            pairing->asks[i] = true;
        pairing->ask_count += pairing->asks[i];
    }
    if (!decode && !pairing->ask_count) {
        pairing->asks[0] = true;
        pairing->ask_count = 1;
    }
}

/* The next plan. Once all are there, those who wait for them look again; without memory they do so in their time. */
static void step(node_core *core, void *owner)
{
    core_pairing *pairing = owner;
    kvferry_status status = KVFERRY_OK;
    size_t count = pairing->target->wire.count;
    bool one = pairing->side == KVFERRY_SIDE_DECODE && pairing->own; /* needs but its own */
    if (pairing->next == 0 && one)
        pairing->next = pairing->own;
    if (pairing->next < count)
        status = plan_one(core, pairing, pairing->next++);
    bool full = pairing->refusal && kvferry_report_count(pairing->refusal) >= WIRE_MAX_REASONS;
    if (status == KVFERRY_OK && !full && !one && pairing->next < count) {
        core_job_queue(core, &pairing->job);
        return;
    }
    pairing->complete = status == KVFERRY_OK;
    if (pairing->complete) {
        note_asks(pairing);
        core_targets_documents(core);
        core_engine_documents(core);
    }
    core_pairing_release(core, pairing);
}

static kvferry_status begin_pairing(node_core *core, kvferry_side side, core_roster *source, core_roster *target,
                                    const char *key)
{
    core_pairing *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    memcpy(made->key, key, strlen(key) + 1);
    made->side = side;
    made->source = source;
    made->target = target;
    source->uses++;
    target->uses++;
    made->own = core->rank;
    made->uses = 1; /* until it is complete: the job's */
    made->job = (core_job){.run = step, .owner = made};
    size_t targets = target->wire.count, others = side == KVFERRY_SIDE_DECODE ? source->wire.count : targets;
    made->planned = base_alloc(targets, sizeof(*made->planned));
    made->asks = base_alloc(others, sizeof(*made->asks));
    made->slots = base_alloc(targets, sizeof(*made->slots));
    made->used = base_alloc(others, sizeof(*made->used));
    if (made->planned && made->asks && made->slots && made->used)
        HASH_ADD_STR(core->pairings, key, made);
    if (!made->hh.tbl) {
        free_pairing(core, made);
        return KVFERRY_NO_MEMORY;
    }
    core_job_queue(core, &made->job);
    return KVFERRY_BUSY;
}

kvferry_status core_pairing_get(node_core *core, kvferry_side side, core_roster *source,
                                core_roster *target, core_pairing **pairing)
{
    char key[WIRE_DIGEST_TEXT * 2 + 1] = {side == KVFERRY_SIDE_DECODE ? 'd' : 'p'};
    memcpy(key + 1, source->wire.digest, WIRE_DIGEST_TEXT - 1);
    memcpy(key + WIRE_DIGEST_TEXT, target->wire.digest, WIRE_DIGEST_TEXT);
    core_pairing *known;
    HASH_FIND_STR(core->pairings, key, known);
    if (!known)
        return begin_pairing(core, side, source, target, key);
    if (!known->complete)
        return KVFERRY_BUSY;
    known->uses++;
    *pairing = known;
    return KVFERRY_OK;
}

void core_pairings_free(node_core *core)
{
    core_pairing *pairing, *next;
    HASH_ITER(hh, core->pairings, pairing, next) {
        core_pairing_release(core, pairing);
    }
}

void core_pairing_release(node_core *core, core_pairing *pairing)
{
    if (!pairing || --pairing->uses)
        return;
    HASH_DEL(core->pairings, pairing);
    free_pairing(core, pairing);
}
