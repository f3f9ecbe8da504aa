/* SPDX-License-Identifier: Apache-2.0 */
/* A set-up with one thing wrong is refused, by the right reason, by everyone whom it concerns. */
#include <stdlib.h>
#include <string.h>

#include "naive.h"

typedef struct refusal {
    const random_spec *spec;
    const built_side *sides;
    random_finding *finding;
    kvferry_report *report;
    const kvferry_layout *sources[MAX_WORKERS + 1];
    size_t source_count;
} refusal;

/* --- what must happen ----------------------------------------------------------------------- */

/* Whether the remaining sources hold every cell of a stream's box. */
static bool is_covered(const refusal *run, const kvferry_stream *stream,
                       const kvferry_stream *const *matches)
{
    uint64_t at[8] = {0}, cell[8];
    for (;;) {
        for (uint32_t i = 0; i < stream->axis_count; i++)
            cell[i] = stream->axes[i].start + at[i];
        bool held = false;
        for (size_t s = 0; s < run->source_count; s++)
            held = held || (matches[s] && naive_holds(matches[s], stream, cell));
        if (!held)
            return false;
        uint32_t i = stream->axis_count;
        while (i > 0 && ++at[i - 1] == stream->axes[i - 1].extent)
            at[--i] = 0;
        if (i == 0)
            return true;
    }
}

static bool other_kind(const refusal *run, const kvferry_layout *target,
                       const kvferry_stream *stream, const kvferry_stream *const *matches)
{
    for (size_t s = 0; s < run->source_count; s++)
        if (matches[s] && kvferry_layout_group(run->sources[s], matches[s]->group)->kind !=
                              kvferry_layout_group(target, stream->group)->kind)
            return true;
    return false;
}

/* The code of the refusal that planning for this target must end in, "" if none; for a stream's
 * fault also the stream. */
static const char *expected_code(const refusal *run, const kvferry_layout *target,
                                 const kvferry_stream **where)
{
    fault_kind kind = run->spec->fault.kind;
    *where = NULL;
    if (kind > FAULT_HOLE)
        return "";
    if (kind <= FAULT_IDENTITY)
        return spec_fault_code(run->spec);
    bool other_model = kind == FAULT_STREAM && run->spec->fault.second;
    const stream_spec *spec = &run->spec->streams[run->spec->fault.stream];
    uint8_t lie = run->spec->sides[SOURCE].streams[run->spec->fault.stream].lie;
    for (uint32_t i = 0; i < kvferry_layout_stream_count(target); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(target, i);
        const kvferry_stream *matches[MAX_WORKERS];
        if (stream->policy != KVFERRY_POLICY_REQUIRED)
            continue;
        size_t found = naive_match(run->sources, run->source_count, stream, matches);
        char own[24], other[24];
        snprintf(own, sizeof own, "layers.%u", spec->layer);
        snprintf(other, sizeof other, "shared.%u", spec->layer);
        bool meant = strcmp(stream->name, spec->name) == 0 &&
                     (strcmp(stream->layer, own) == 0 || strcmp(stream->layer, other) == 0);
        /* A group's kind is that of all its streams. */
        if (kind == FAULT_STREAM && lie == LIE_KIND)
            meant = found && other_kind(run, target, stream, matches);
        if (kind == FAULT_HOLE ? !is_covered(run, stream, matches) : meant) {
            *where = stream;
            return kind == FAULT_HOLE && !found ? "stream_missing" : spec_fault_code(run->spec);
        }
    }
    return other_model ? "identity_differs" : "";
}

/* --- what happened -------------------------------------------------------------------------- */

/* Every reason is whole; one of them has the code (and place), and where a second thing is wrong
 * one has that one's. Other codes: `others` allows them. */
static void check_report(refusal *run, const char *code, const kvferry_stream *where, bool others,
                         bool concerned, const char *who)
{
    const fault_spec *fault = &run->spec->fault;
    const char *second = !fault->second                ? ""
                         : fault->kind == FAULT_STREAM ? "identity_differs"
                         : fault->kind > FAULT_HOLE    ? "group_unknown"
                                                       : "";
    bool seen = !concerned, second_seen = !second[0];
    for (size_t i = 0; i < kvferry_report_count(run->report); i++) {
        const kvferry_reason *reason = kvferry_report_get(run->report, i);
        bool right = strcmp(reason->code, code) == 0;
        if (!reason->message[0] || !reason->expected[0] || !reason->found[0])
            finding_set(run->finding, "reason_not_whole", "%s: %s: %s", who, reason->code,
                        reason->message);
        bool also = second[0] && strcmp(reason->code, second) == 0;
        second_seen = second_seen || also;
        if (!right && !also && !others)
            finding_set(run->finding, "reason_unexpected", "%s: expected only %s, found %s: %s",
                        who, code, reason->code, reason->message);
        seen = seen || (right && (!where || (strcmp(reason->layer, where->layer) == 0 &&
                                             strcmp(reason->stream, where->name) == 0)));
    }
    if (!second_seen)
        finding_set(run->finding, "reason_missing", "%s: expected %s as well", who, second);
    if (!seen)
        finding_set(run->finding, "reason_missing",
                    "%s: expected %s %s %s; the report has %zu reasons", who, code,
                    where ? where->layer : "", where ? where->name : "",
                    kvferry_report_count(run->report));
}

static bool share(const kvferry_layout *layout, const char *a, const char *b)
{
    uint32_t count = kvferry_layout_group_count(layout);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < count; j++)
            if (strcmp(kvferry_layout_group(layout, i)->name, a) == 0 &&
                strcmp(kvferry_layout_group(layout, j)->name, b) == 0)
                return kvferry_layout_groups_share(layout, i, j);
    return false;
}

/* Whether a source that sends these pieces is concerned by the fault of the request. */
static bool concerns_piece(const refusal *run, const kvferry_layout *source,
                           const kvferry_layout *target, const kvferry_request *request,
                           const kvferry_piece *piece)
{
    const fault_spec *fault = &run->spec->fault;
    const request_spec *spec = &run->spec->requests[0];
    const kvferry_group *to =
        kvferry_layout_group(target, kvferry_layout_stream(target, piece->target_stream)->group);
    const kvferry_group *from =
        kvferry_layout_group(source, kvferry_layout_stream(source, piece->source_stream)->group);
    char name[12];
    bool listed = false;
    int index = 0;
    for (size_t i = 0; i < request->target_count; i++)
        listed = listed || strcmp(request->target[i].group, to->name) == 0;
    for (int g = 0; g < run->spec->group_count[TARGET]; g++) {
        spec_group_name(TARGET, g, name);
        index = strcmp(name, to->name) == 0 ? g : index;
    }
    spec_group_name(fault->side, fault->group, name);
    bool here = strcmp(name, fault->side == SOURCE ? from->name : to->name) == 0;
    uint32_t block = run->spec->sides[SOURCE].groups[fault->group].block_tokens;
    char other[12];
    spec_group_name(TARGET, fault->other_group, other);
    switch (fault->kind) {
    case FAULT_GROUP_UNKNOWN: return listed;
    case FAULT_BLOCK_SHARED:
        return listed && (here || strcmp(other, to->name) == 0) && share(target, name, other);
    case FAULT_SOURCE_TOKENS:
        return listed && here && spec_wanted_tokens(run->spec, spec, index) >> spec->source_tokens;
    case FAULT_STATE_POSITION: return listed && to->kind != KVFERRY_GROUP_PAGED;
    case FAULT_SOURCE_WHOLE:
        return listed && here &&
               (spec_wanted_tokens(run->spec, spec, index) &
                ~spec_live_tokens(run->spec, spec, SOURCE, fault->group));
    case FAULT_SOURCE_NULL:
    case FAULT_SOURCE_SHORT:
    case FAULT_BLOCK_RANGE:
        if (fault->side == SOURCE && listed && here) {
            uint64_t wanted = spec_wanted_tokens(run->spec, spec, index);
            uint32_t at = spec->tables[SOURCE][fault->group].first_token + fault->index * block;
            for (uint32_t t = at; t < at + block && t < MAX_TOKENS; t++)
                if (wanted >> t & 1)
                    return true;
            return false;
        }
        return listed && here;
    default: return listed && here;
    }
}

static void add_tables(const random_spec *spec, built_request *built)
{
    kvferry_request *request = &built->request;
    const fault_spec *fault = &spec->fault;
    kvferry_block_table *tables = built->tables[fault->side];
    size_t *count = fault->side == SOURCE ? &request->source_count : &request->target_count;
    char name[12];
    spec_group_name(fault->side, fault->group, name);
    if ((fault->kind == FAULT_GROUP_UNKNOWN || fault->second) && *count < MAX_GROUPS)
        tables[(*count)++] = (kvferry_block_table){"nobody", 0, built->blocks[fault->side][0], 0};
    for (size_t i = 0; fault->kind == FAULT_GROUP_TWICE && i < *count; i++)
        if (strcmp(tables[i].group, name) == 0) {
            tables[*count] = tables[i];
            (*count)++;
            break;
        }
}

/* Overwrites some of a request's numbers by the worst ones. */
static void make_hostile(const random_spec *spec, built_request *built)
{
    static const uint64_t numbers[] = {
        0,         1, INT64_MAX, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 32, UINT64_C(1) << 63,
        UINT32_MAX};
    random_dice dice = {spec->fault.index};
    kvferry_request *request = &built->request;
    for (uint32_t n = dice_range(&dice, 1, 3); n > 0; n--) {
        int side = (int)dice_below(&dice, 2);
        size_t tables = side == SOURCE ? request->source_count : request->target_count;
        uint64_t number = numbers[dice_below(&dice, sizeof numbers / sizeof *numbers)];
        if (dice_one_in(&dice, 2))
            number -= number % 60; /* of many block sizes */
        size_t t = tables ? dice_below(&dice, (uint32_t)tables) : 0;
        kvferry_block_table *table = &built->tables[side][t];
        switch (dice_below(&dice, 5)) {
        case 0: request->source_tokens = number; break;
        case 1: request->target_tokens = number; break;
        case 2: request->source_tokens = request->target_tokens = number; break;
        case 3:
            if (tables)
                table->first_token = number;
            break;
        default:
            if (tables && table->block_count)
                built->blocks[side][t][dice_below(&dice, (uint32_t)table->block_count)] =
                    (uint32_t)number;
        }
    }
}

static void check_hostile(refusal *run, const kvferry_plan *plan, size_t source,
                          const kvferry_layout *target, const kvferry_request *request)
{
    size_t bound = kvferry_plan_expand_bound(plan, source, request), count = 0;
    kvferry_copy *copies = calloc(bound + 1, sizeof *copies);
    if (!copies)
        abort();
    kvferry_report_clear(run->report);
    kvferry_status status =
        kvferry_plan_expand(plan, source, request, copies, bound, &count, run->report);
    if ((status != KVFERRY_OK && status != KVFERRY_REFUSED) || count > bound)
        finding_set(run->finding, "hostile", "source %zu: status %s, %zu copies, bound %zu", source,
                    kvferry_status_name(status), count, bound);
    for (size_t i = 0; i < count && !run->finding->what[0]; i++)
        if (!move_inside(run->sources[source], copies[i].source_segment, copies[i].source_offset,
                         copies[i].bytes) ||
            !move_inside(target, copies[i].target_segment, copies[i].target_offset,
                         copies[i].bytes))
            finding_set(run->finding, "hostile", "source %zu: copy %zu is out of bounds", source,
                        i);
    free(copies);
}

/* The same request, if it does not want whole blocks, is fine. */
static void check_without_whole(refusal *run, const kvferry_plan *plan, size_t source,
                                const kvferry_request *request)
{
    kvferry_request plain = *request;
    plain.whole_blocks = false;
    size_t bound = kvferry_plan_expand_bound(plan, source, &plain), count = 0;
    kvferry_copy *copies = calloc(bound + 1, sizeof *copies);
    if (!copies)
        abort();
    kvferry_report_clear(run->report);
    kvferry_status status = kvferry_plan_expand(plan, source, &plain, copies, bound, &count, run->report);
    const kvferry_reason *reason = kvferry_report_get(run->report, 0);
    free(copies);
    if (status != KVFERRY_OK)
        finding_set(run->finding, "request_refused", "%s, source %zu, without whole_blocks: %s: %s",
                    spec_fault_name(run->spec->fault.kind), source, kvferry_status_name(status),
                    reason ? reason->message : "no reason");
}

static void check_expand(refusal *run, const kvferry_plan *plan, size_t source,
                         const kvferry_layout *target, const kvferry_request *request)
{
    bool concerned = false;
    for (size_t i = 0; i < kvferry_plan_piece_count(plan, source); i++)
        concerned = concerned || concerns_piece(run, run->sources[source], target, request,
                                                kvferry_plan_piece(plan, source, i));
    size_t bound = kvferry_plan_expand_bound(plan, source, request), count = 12345;
    kvferry_copy *copies = calloc(bound + 1, sizeof *copies);
    if (!copies)
        abort();
    kvferry_report_clear(run->report);
    kvferry_status status =
        kvferry_plan_expand(plan, source, request, copies, bound, &count, run->report);
    free(copies);
    char who[80];
    snprintf(who, sizeof who, "%s, source %zu", spec_fault_name(run->spec->fault.kind), source);
    if (concerned && status != KVFERRY_REFUSED)
        finding_set(run->finding, "not_refused", "%s: expected %s, found status %s", who,
                    spec_fault_code(run->spec), kvferry_status_name(status));
    else if (status == KVFERRY_REFUSED && count != 12345)
        finding_set(run->finding, "count_changed", "%s", who);
    else if (status == KVFERRY_REFUSED)
        check_report(run, spec_fault_code(run->spec), NULL,
                     run->spec->fault.kind == FAULT_GROUP_TWICE ||
                         run->spec->fault.kind == FAULT_MISALIGNED,
                     concerned || !run->spec->fault.second, who);
    else if (status != KVFERRY_OK)
        finding_set(run->finding, "status", "%s: status %s", who, kvferry_status_name(status));
    if (run->spec->fault.kind == FAULT_SOURCE_WHOLE && !run->spec->fault.second)
        check_without_whole(run, plan, source, request);
}

static void check_target(refusal *run, const kvferry_layout *target)
{
    kvferry_plan *plan = NULL;
    const kvferry_stream *where;
    const char *code = expected_code(run, target, &where);
    kvferry_report_clear(run->report);
    kvferry_status status =
        kvferry_plan_create(run->sources, run->source_count, target, &plan, run->report);
    const char *who = spec_fault_name(run->spec->fault.kind);
    if (*code && status != KVFERRY_REFUSED) {
        finding_set(run->finding, "not_refused", "%s: expected %s, found status %s", who, code,
                    kvferry_status_name(status));
    } else if (*code) {
        /* Leaving out workers may tear several streams, some of them wholly. */
        fault_kind kind = run->spec->fault.kind;
        check_report(run, code, where, kind == FAULT_HOLE || kind == FAULT_NO_SOURCES, true, who);
    } else if (status != KVFERRY_OK) {
        const kvferry_reason *reason = kvferry_report_get(run->report, 0);
        finding_set(run->finding, "plan_refused", "%s, a target that it does not concern: %s: %s",
                    who, kvferry_status_name(status), reason ? reason->message : "no reason");
    } else {
        built_request built;
        build_request(run->spec, 0, target, &built);
        add_tables(run->spec, &built);
        bool hostile = run->spec->fault.kind == FAULT_HOSTILE;
        if (hostile)
            make_hostile(run->spec, &built);
        for (size_t s = 0;
             s < run->source_count && run->spec->fault.kind > FAULT_HOLE && !run->finding->what[0];
             s++)
            (hostile ? check_hostile : check_expand)(run, plan, s, target, &built.request);
    }
    kvferry_plan_free(plan);
}

void run_refusal(const random_spec *spec, const built_side sides[2], random_finding *finding,
                 random_totals *totals)
{
    refusal run = {.spec = spec, .sides = sides, .finding = finding};
    if (kvferry_report_create(&run.report) != KVFERRY_OK)
        abort();
    for (size_t s = 0; s < sides[SOURCE].count && spec->fault.kind != FAULT_NO_SOURCES; s++)
        if (spec->fault.kind != FAULT_HOLE || s != spec->fault.worker % sides[SOURCE].count)
            run.sources[run.source_count++] = sides[SOURCE].layouts[s];
    if (spec->fault.kind == FAULT_WORKER_TWICE)
        run.sources[run.source_count++] =
            sides[SOURCE].layouts[spec->fault.worker % sides[SOURCE].count];
    for (size_t t = 0; t < sides[TARGET].count && !finding->what[0]; t++)
        check_target(&run, sides[TARGET].layouts[t]);
    totals->refusals++;
    totals->faults[spec->fault.kind]++;
    kvferry_report_free(run.report);
}
