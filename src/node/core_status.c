/* SPDX-License-Identifier: Apache-2.0 */
/* What a person or a monitor sees of the core. */
#include "node/core_internal.h"

#include "base/json.h"

void core_get_statistics(const node_core *core, kvferry_node_statistics *statistics)
{
    *statistics = core->statistics;
    statistics->malformed += core->driver.malformed;
    statistics->refused_keys = core->driver.refused_keys;
    statistics->events_waiting += core->driver.events;
}

void core_driver_counts(node_core *core, uint64_t malformed, uint64_t refused_keys, uint64_t refused_connections,
                        uint64_t events)
{
    for (; core->driver.refused_connections < refused_connections; core->driver.refused_connections++)
        core_count_refused(core, "too_many_connections");
    core->driver.malformed = malformed;
    core->driver.refused_keys = refused_keys;
    core->driver.events = events;
}

static json_int_t number(uint64_t value) { return value > INT64_MAX ? INT64_MAX : (json_int_t)value; }

static json_int_t milliseconds(uint64_t ns) { return number(ns / 1000000); }

static json_t *worker(const char *engine_id, const char *incarnation, const kvferry_worker *ranks)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I}", "engine_id", engine_id, "incarnation", incarnation,
                     "tp_rank", (json_int_t)ranks->tp_rank, "pp_rank", (json_int_t)ranks->pp_rank,
                     "dp_rank", (json_int_t)ranks->dp_rank);
}

static const char *source_state(const core_source *source)
{
    return source->dead ? "dead" : source->lost ? "silent" : source->welcomed ? "connected" : "connecting";
}

static json_t *list_peers(const node_core *core)
{
    json_t *list = json_array();
    int failed = 0;
    for (core_source *source = core->sources; source; source = source->hh.next) {
        json_t *item = worker(source->engine_id, source->incarnation, &source->worker);
        failed |= json_object_set_new(item, "role", json_string("source"));
        failed |= json_object_set_new(item, "address", json_string(source->address));
        failed |= json_object_set_new(item, "state", json_string(source_state(source)));
        failed |= json_array_append_new(list, item);
    }
    for (core_target *target = core->targets; target; target = target->hh.next) {
        json_t *item = worker(target->engine_id, target->incarnation, &target->member.worker);
        const char *state = target->welcomed ? "connected" : "connecting";
        failed |= json_object_set_new(item, "role", json_string("target"));
        failed |= json_object_set_new(item, "state", json_string(state));
        failed |= json_array_append_new(list, item);
    }
    if (failed) {
        json_decref(list);
        return NULL;
    }
    return list;
}

static json_t *describe_offer(const core_supply *offer, uint64_t now)
{
    uint64_t end = core_supply_held_until(offer), left = end > now ? end - now : 0;
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:I, s:I}", "transfer_id", offer->id, "side",
                     "prefill", "state", offer->state == CORE_SUPPLY_LIVE ? "live" : "ended", "engine_id",
                     offer->engine_id, "ready", offer->ready, "members_open", number(offer->open),
                     "writes", number(offer->writes), "lease_ms", milliseconds(left));
}

static json_t *describe_request(const core_request *request, uint64_t now)
{
    static const char *const states[] = {"connecting", "asking", "quarantined", "past"};
    json_t *waits = json_array();
    uint64_t left = request->deadline > now ? request->deadline - now : 0;
    int failed = 0;
    for (size_t i = 0; i < request->part_count; i++)
        if (request->parts[i].source && !request->parts[i].confirmed)
            failed |= json_array_append_new(waits, json_string(request->parts[i].source->incarnation));
    json_t *item = json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "transfer_id", request->id, "side",
                             "decode", "state", states[request->state], "blocks",
                             number(request->blocks), "deadline_ms", milliseconds(left), "waits_for",
                             waits);
    if (failed) {
        json_decref(item);
        return NULL;
    }
    return item;
}

static json_t *list_transfers(const node_core *core, uint64_t now)
{
    json_t *list = json_array();
    int failed = 0;
    for (core_supply *offer = core->offers; offer; offer = offer->hh.next)
        if (offer->state == CORE_SUPPLY_LIVE || offer->state == CORE_SUPPLY_ENDED)
            failed |= json_array_append_new(list, describe_offer(offer, now));
    for (core_request *request = core->requests; request; request = request->hh.next)
        if (!request->released)
            failed |= json_array_append_new(list, describe_request(request, now));
    if (failed) {
        json_decref(list);
        return NULL;
    }
    return list;
}

/* The workers whose word the blocks in quarantine wait for. */
static json_t *list_quarantine(const node_core *core)
{
    json_t *list = json_array();
    int failed = 0;
    for (core_source *source = core->sources; source; source = source->hh.next) {
        core_hold hold = core_source_holds(source);
        if (!hold.transfers && !hold.waiting)
            continue;
        uint64_t silent = source->unanswered ? core->now - source->unanswered : 0;
        json_t *item = worker(source->engine_id, source->incarnation, &source->worker);
        failed |= json_object_set_new(item, "address", json_string(source->address));
        failed |= json_object_set_new(item, "state", json_string(source_state(source)));
        failed |= json_object_set_new(item, "silent_ms", json_integer(milliseconds(silent)));
        failed |= json_object_set_new(item, "transfers", json_integer(number(hold.transfers + hold.waiting)));
        failed |= json_object_set_new(item, "blocks", json_integer(number(hold.held)));
        failed |= json_array_append_new(list, item);
    }
    if (failed) {
        json_decref(list);
        return NULL;
    }
    return list;
}

static json_t *list_counts(const node_core *core)
{
    kvferry_node_statistics sum;
    core_get_statistics(core, &sum);
    const kvferry_node_statistics *counts = &sum;
    static const char *const sides[] = {"prefill", "decode"};
    json_t *item = json_object();
    int failed = 0;
    for (size_t side = 0; side < 2; side++) {
        json_t *ended = json_object();
        for (size_t i = 0; i < 4; i++)
            failed |= json_object_set_new(ended, kvferry_outcome_name((kvferry_outcome)i),
                                          json_integer(number(counts->ended[side][i])));
        json_t *its = json_pack("{s:o, s:I, s:I, s:I, s:I}", "ended", ended, "bytes",
                                number(counts->bytes[side]), "copies", number(counts->copies[side]),
                                "live", number(counts->live[side]), "unreleased",
                                number(counts->unreleased[side]));
        failed |= json_object_set_new(item, sides[side], its);
    }
    const struct {
        const char *name;
        uint64_t value;
    } others[] = {{"quarantined_blocks", counts->quarantined_blocks},
                  {"transfers_unsettled", counts->unsettled},
                  {"queued_copies", counts->queued_copies},
                  {"peers", counts->peers},
                  {"messages_in", counts->messages_in},
                  {"messages_out", counts->messages_out},
                  {"message_bytes_in", counts->message_bytes_in},
                  {"message_bytes_out", counts->message_bytes_out},
                  {"malformed", counts->malformed},
                  {"ignored", counts->ignored},
                  {"refused", counts->refused},
                  {"refused_keys", counts->refused_keys},
                  {"events_waiting", counts->events_waiting}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        failed |= json_object_set_new(item, others[i].name, json_integer(number(others[i].value)));
    json_t *refusals = json_object();
    for (size_t i = 0; i <= NODE_CODES; i++)
        if (core->refusals.of[i].count[0])
            failed |= json_object_set_new(refusals, core->refusals.of[i].code,
                                          json_integer(number(core->refusals.of[i].count[0])));
    failed |= json_object_set_new(item, "refused_by_code", refusals);
    if (failed) {
        json_decref(item);
        return NULL;
    }
    return item;
}

kvferry_status core_status(const node_core *core, uint64_t now, base_text *json)
{
    json_t *self = worker(core->engine_id, core->incarnation, &core->worker);
    json_t *peers = list_peers(core), *transfers = list_transfers(core, now), *counts = list_counts(core);
    json_t *quarantine = list_quarantine(core);
    json_t *root = json_pack("{s:o*, s:s, s:b, s:o*, s:o*, s:o*, s:o*}", "worker", self, "address",
                             core->options.address, "complete", core->own != NULL, "peers", peers,
                             "transfers", transfers, "quarantine", quarantine, "counts", counts);
    bool whole = root && self && peers && transfers && quarantine && counts;
    if (whole)
        base_json_dump(root, JSON_COMPACT, json);
    json_decref(root);
    return whole && !json->failed ? KVFERRY_OK : KVFERRY_NO_MEMORY;
}
