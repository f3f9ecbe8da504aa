/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans, each made once: a target's plan over all sources depends on nothing but their documents, so one
 * is found again after a restart, too. A pairing keeps what this node needs of the plans between two rosters.
 */
#include "node/core_internal.h"

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
    free(pairing->planned);
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

static kvferry_status plan_all(node_core *core, core_pairing *pairing, bool *used)
{
    bool decode = pairing->side == KVFERRY_SIDE_DECODE;
    for (size_t i = 0; i < pairing->target->wire.count; i++) {
        if (decode && pairing->own && i != pairing->own)
            continue;
        core_planned *planned;
        kvferry_status status = get_planned(core, pairing->source, pairing->target->documents[i], &planned);
        if (status != KVFERRY_OK)
            return status;
        if (!planned->plan) {
            status = refuse(pairing, planned);
            release_planned(core, planned);
            if (status != KVFERRY_OK || kvferry_report_count(pairing->refusal) >= WIRE_MAX_REASONS)
                return status;
        } else if (decode) {
            note_decode(core, pairing, i, planned, used);
        } else {
            note_prefill(core, pairing, i, planned);
        }
    }
    return KVFERRY_OK;
}

static kvferry_status fill_pairing(node_core *core, core_pairing *pairing)
{
    size_t targets = pairing->target->wire.count;
    bool decode = pairing->side == KVFERRY_SIDE_DECODE;
    size_t others = decode ? pairing->source->wire.count : targets;
    pairing->planned = base_alloc(targets, sizeof(*pairing->planned));
    pairing->asks = base_alloc(others, sizeof(*pairing->asks));
    pairing->slots = base_alloc(targets, sizeof(*pairing->slots));
    bool *used = base_alloc(others, sizeof(*used));
    kvferry_status status = KVFERRY_NO_MEMORY;
    if (pairing->planned && pairing->asks && pairing->slots && used)
        status = plan_all(core, pairing, used);
    for (size_t i = 0; status == KVFERRY_OK && i < others; i++) {
        if (decode && pairing->own == 0 && !used[i])
            pairing->asks[i] = true;
        pairing->ask_count += pairing->asks[i];
    }
    if (status == KVFERRY_OK && !decode && !pairing->ask_count) {
        pairing->asks[0] = true;
        pairing->ask_count = 1;
    }
    free(used);
    return status;
}

kvferry_status core_pairing_get(node_core *core, kvferry_side side, core_roster *source,
                                core_roster *target, core_pairing **pairing)
{
    char key[WIRE_DIGEST_TEXT * 2 + 1] = {side == KVFERRY_SIDE_DECODE ? 'd' : 'p'};
    memcpy(key + 1, source->wire.digest, WIRE_DIGEST_TEXT - 1);
    memcpy(key + WIRE_DIGEST_TEXT, target->wire.digest, WIRE_DIGEST_TEXT);
    core_pairing *made;
    HASH_FIND_STR(core->pairings, key, made);
    if (made) {
        made->uses++;
        *pairing = made;
        return KVFERRY_OK;
    }
    made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    memcpy(made->key, key, strlen(key) + 1);
    made->side = side;
    made->source = source;
    made->target = target;
    source->uses++;
    target->uses++;
    made->own = core->rank;
    made->uses = 1;
    kvferry_status status = fill_pairing(core, made);
    if (status == KVFERRY_OK)
        HASH_ADD_STR(core->pairings, key, made);
    if (!made->hh.tbl) {
        free_pairing(core, made);
        return status == KVFERRY_OK ? KVFERRY_NO_MEMORY : status;
    }
    *pairing = made;
    return KVFERRY_OK;
}

void core_pairing_release(node_core *core, core_pairing *pairing)
{
    if (!pairing || --pairing->uses)
        return;
    HASH_DEL(core->pairings, pairing);
    free_pairing(core, pairing);
}
