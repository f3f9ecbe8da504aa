/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons, log lines, numbers, and the dead. */
#include "node/core_internal.h"

#include <stdio.h>

/* Whether such lines are made. */
static bool logs(const node_core *core, kvferry_log_level level)
{
    return core->options.log && level <= core->options.log_level;
}

void core_log(node_core *core, kvferry_log_level level, const char *format, ...)
{
    if (!logs(core, level))
        return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    core->options.log(core->options.log_context, level, line);
}

const char *core_worker_words(const char *engine_id, const kvferry_worker *worker, const char *incarnation)
{
    const char *dp = worker->dp_size > 1 ? base_format(" dp%u/%u", worker->dp_rank, worker->dp_size) : "";
    return base_format("%.120s tp%u/%u pp%u/%u%s, incarnation %s", engine_id, worker->tp_rank,
                       worker->tp_size, worker->pp_rank, worker->pp_size, dp, incarnation);
}

/* --- lines about transfers: each names the transfer, the other side's engine and its workers ------------------ */

enum { NAMED = 4 }; /* workers, of very many */

/* Takes in the n-th worker. */
static void name_peer(base_text *text, size_t n, const char *incarnation)
{
    if (n < NAMED)
        base_text_append(text, "%s%s", n ? " " : "", incarnation);
    else if (n == NAMED)
        base_text_append(text, " ...");
}

static void log_transfer(node_core *core, kvferry_log_level level, const char *id, const char *engine_id,
                         const base_text *peers, const char *what, const char *text)
{
    const char *names = peers->failed || !peers->size ? NULL : peers->data;
    core_log(core, level, "transfer %s: %s, engine %s, %s%s%s%s", id, what, *engine_id ? engine_id : "unknown",
             names ? "worker " : "no worker", names ? names : "", *text ? ": " : "", text);
}

void core_log_request(node_core *core, kvferry_log_level level, const core_request *request, const char *what,
                      const char *text)
{
    base_text peers = {0};
    if (!logs(core, level))
        return;
    for (size_t i = 0; i < request->part_count; i++)
        name_peer(&peers, i, request->pairing->source->wire.members[request->parts[i].index].incarnation);
    log_transfer(core, level, request->id, core_event_engine(request->released_event), &peers, what, text);
    free(peers.data);
}

void core_log_supply(node_core *core, kvferry_log_level level, const core_supply *offer, const char *what,
                     const char *text)
{
    base_text peers = {0};
    size_t count = 0;
    if (!logs(core, level))
        return;
    for (const core_member *member = offer->members; member; member = member->next)
        name_peer(&peers, count++, member->incarnation);
    log_transfer(core, level, offer->id, offer->engine_id, &peers, what, text);
    free(peers.data);
}

/* Whether it is said for the first time, as far back as that is remembered. */
static bool first_time(node_core *core, const char *who, const char *code)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = who; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    hash = (hash ^ 0xff) * 0x100000001b3u;
    for (const char *c = code; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    for (size_t i = 0; i < CORE_TOLD; i++)
        if (core->told[i] == hash)
            return false;
    core->told[core->told_at] = hash;
    core->told_at = (core->told_at + 1) % CORE_TOLD;
    return true;
}

void core_count_refused(node_core *core, const char *code)
{
    core->statistics.refused++;
    node_codes_count(&core->refusals, code, 0);
}

const node_codes *core_refusals(const node_core *core) { return &core->refusals; }

const char *core_who(const char *who, const char *place)
{
    return *place ? base_format("%.120s at %.120s", who, place) : who;
}

const char *core_counted(uint64_t count, const char *one)
{
    return base_format("%llu %s%s", (unsigned long long)count, one, count == 1 ? "" : "s");
}

void core_refused(node_core *core, const char *engine_id, const char *who, const kvferry_report *reasons)
{
    const char *code = core_reasons_code(reasons, "no_memory");
    core_count_refused(core, code);
    if (first_time(core, who, code))
        core_log(core, KVFERRY_LOG_WARNING, "engine %s, %s: refused, %s: %s (%s)", engine_id, who, code,
                 core_reasons_text(reasons, ""), core_counted(kvferry_report_count(reasons), "reason"));
}

uint64_t core_random(node_core *core)
{
    uint64_t value = core->random += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

void core_incarnation_text(uint64_t value, char text[WIRE_INCARNATION_TEXT])
{
    snprintf(text, WIRE_INCARNATION_TEXT, "%016llx", (unsigned long long)value);
}

/* --- reasons ---------------------------------------------------------------------------------------------- */

kvferry_report *core_reason(const char *code, const char *expected, const char *found, const char *text)
{
    kvferry_report *report = NULL;
    if (kvferry_report_create(&report) == KVFERRY_OK)
        base_report_add(report, code, NULL, expected, found, "%s", text);
    return report;
}

void core_reasons_copy(kvferry_report *to, const kvferry_report *from, size_t limit)
{
    const kvferry_reason *reason;
    for (size_t i = 0; kvferry_report_count(to) < limit && (reason = kvferry_report_get(from, i)); i++)
        base_report_copy(to, reason);
}

const char *core_reasons_code(const kvferry_report *reasons, const char *otherwise)
{
    const kvferry_reason *first = kvferry_report_get(reasons, 0);
    return first && *first->code ? first->code : otherwise;
}

const char *core_reasons_text(const kvferry_report *reasons, const char *otherwise)
{
    const kvferry_reason *first = kvferry_report_get(reasons, 0);
    return first ? first->message : otherwise;
}

void core_code_set(char code[CORE_CODE], const char *from) { snprintf(code, CORE_CODE, "%s", from); }

/* --- the dead --------------------------------------------------------------------------------------------- */

static core_tombstone *find_stone(node_core *core, const char *incarnation)
{
    core_tombstone *stone;
    HASH_FIND_STR(core->tombstones, incarnation, stone);
    return stone;
}

bool core_dead(node_core *core, const char *incarnation)
{
    const core_tombstone *stone = find_stone(core, incarnation);
    return stone && stone->proven;
}

bool core_replaced(node_core *core, const char *incarnation) { return find_stone(core, incarnation) != NULL; }

void core_tombstone_remove(node_core *core, const char *incarnation)
{
    core_tombstone *stone = find_stone(core, incarnation);
    if (stone)
        core_tombstone_drop(core, stone);
}

void core_tombstone_drop(node_core *core, core_tombstone *stone)
{
    DL_DELETE(core->tombstone_list, stone);
    HASH_DEL(core->tombstones, stone);
    stone->holder->stones--;
    core_holder_release(core, stone->holder);
    free(stone);
}

void core_tombstone_add(node_core *core, const char *who, const char *incarnation, bool proven)
{
    core_tombstone *stone = find_stone(core, incarnation);
    if (stone) {
        stone->proven |= proven;
        return;
    }
    stone = base_alloc(1, sizeof(*stone));
    if (!stone)
        return;
    stone->proven = proven;
    snprintf(stone->incarnation, sizeof(stone->incarnation), "%s", incarnation);
    stone->forget_at = core_after(core, core->options.remember_ns);
    stone->holder = core_holder_get(core, who);
    if (stone->holder)
        HASH_ADD_STR(core->tombstones, incarnation, stone);
    if (!stone->hh.tbl) {
        core_holder_release(core, stone->holder);
        free(stone);
        return;
    }
    stone->holder->stones++;
    DL_APPEND(core->tombstone_list, stone);
    if (HASH_COUNT(core->tombstones) > core->options.max_peers)
        core_tombstone_drop(core, core_share_stone(core));
}
