/* SPDX-License-Identifier: Apache-2.0 */
/* Builds one set-up, plans it, moves its requests and has the oracle look at every byte. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "naive.h"
#include "plan/slice.h"

typedef struct run_state {
    const random_spec *spec;
    bool naive;
    random_finding *finding;
    random_totals *totals;
    built_side sides[2];
    const kvferry_layout *source_layouts[MAX_WORKERS];
    random_memory sources[MAX_WORKERS];
    oracle_worker source_workers[MAX_WORKERS];
    built_request whole[MAX_REQUESTS]; /* with the groups of all target workers */
    kvferry_report *report;
} run_state;

static bool failed(const run_state *run)
{
    return run->finding->what[0] != 0;
}

static const char *first_reason(kvferry_report *report)
{
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    return reason ? reason->message : "no reason";
}

/* --- pieces --------------------------------------------------------------------------------- */

static uint64_t holder_order(const kvferry_layout *layout)
{
    const kvferry_worker *worker = kvferry_layout_worker(layout);
    return ((uint64_t)worker->dp_rank << 40) + ((uint64_t)worker->pp_rank << 20) + worker->tp_rank;
}

/* Whether `source` is one of those that the rule of section 5 lets send a cell. */
static bool may_send(const run_state *run, const kvferry_layout *target,
                     const kvferry_stream *stream, const kvferry_stream *const *matches,
                     const uint64_t *cell, size_t source)
{
    size_t holders = 0, before = 0;
    if (!matches[source] || !naive_holds(matches[source], stream, cell))
        return false;
    for (size_t s = 0; s < run->sides[SOURCE].count; s++) {
        if (!matches[s] || !naive_holds(matches[s], stream, cell))
            continue;
        holders++;
        before += holder_order(run->source_layouts[s]) < holder_order(run->source_layouts[source]);
    }
    const kvferry_worker *worker = kvferry_layout_worker(target);
    return worker->tp_size >= holders ? before == worker->tp_rank % holders
                                      : before % worker->tp_size == worker->tp_rank;
}

static bool check_piece(run_state *run, const kvferry_layout *target, size_t source,
                        const kvferry_piece *piece, uint64_t *volumes)
{
    const kvferry_stream *stream = kvferry_layout_stream(target, piece->target_stream);
    const kvferry_stream *matches[MAX_WORKERS];
    uint64_t low[8], high[8], volume = 1;
    if (!stream || piece->range_count != stream->axis_count || stream->axis_count > 8 ||
        piece->source_stream >= kvferry_layout_stream_count(run->source_layouts[source]))
        return false;
    naive_match(run->source_layouts, run->sides[SOURCE].count, stream, matches);
    bool paged = kvferry_layout_group(target, stream->group)->kind == KVFERRY_GROUP_PAGED;
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        const kvferry_axis *axis = &stream->axes[i];
        kvferry_range range = piece->ranges[i];
        low[i] = high[i] = 0;
        if (paged && strcmp(axis->name, "token") == 0)
            continue;
        if (range.extent == 0 || range.start < axis->start ||
            range.start + range.extent > axis->start + axis->extent)
            return false;
        low[i] = range.start;
        high[i] = range.start + range.extent - 1;
        volume *= range.extent;
    }
    volumes[piece->target_stream] += volume;
    return matches[source] ==
               kvferry_layout_stream(run->source_layouts[source], piece->source_stream) &&
           piece->state_bytes == volume * stream->cell_bytes &&
           may_send(run, target, stream, matches, low, source) &&
           may_send(run, target, stream, matches, high, source);
}

/* Pieces lie inside the target's boxes, fill them, and come from the right holders. That none of
 * them overlap is seen when they are moved. */
static void check_pieces(run_state *run, const kvferry_layout *target, const kvferry_plan *plan)
{
    uint64_t volumes[MAX_STREAMS] = {0};
    for (size_t s = 0; s < run->sides[SOURCE].count; s++)
        for (size_t i = 0; i < kvferry_plan_piece_count(plan, s); i++)
            if (!check_piece(run, target, s, kvferry_plan_piece(plan, s, i), volumes)) {
                const kvferry_stream *stream =
                    kvferry_layout_stream(target, kvferry_plan_piece(plan, s, i)->target_stream);
                finding_set(run->finding, "piece", "source %zu, piece %zu, %s %s", s, i,
                            stream->layer, stream->name);
                return;
            }
    for (uint32_t i = 0; i < kvferry_layout_stream_count(target); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(target, i);
        const kvferry_stream *matches[MAX_WORKERS];
        uint64_t volume =
            naive_match(run->source_layouts, run->sides[SOURCE].count, stream, matches) > 0;
        bool paged = kvferry_layout_group(target, stream->group)->kind == KVFERRY_GROUP_PAGED;
        for (uint32_t a = 0; a < stream->axis_count; a++)
            if (!paged || strcmp(stream->axes[a].name, "token") != 0)
                volume *= stream->axes[a].extent;
        if (volumes[i] != volume)
            finding_set(run->finding, "piece_volume",
                        "%s %s: the pieces have %" PRIu64 " cells of %" PRIu64, stream->layer,
                        stream->name, volumes[i], volume);
    }
}

/* --- moving --------------------------------------------------------------------------------- */

#define CANARY 0xa5

static bool untouched(const unsigned char *at, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (at[i] != CANARY)
            return false;
    return true;
}

static bool follows(const kvferry_copy *lower, const kvferry_copy *upper)
{
    return lower->source_offset + lower->bytes == upper->source_offset &&
           lower->target_offset + lower->bytes == upper->target_offset;
}

static bool continues(const kvferry_copy *before, const kvferry_copy *copy)
{
    return before->source_segment == copy->source_segment &&
           before->target_segment == copy->target_segment &&
           (follows(before, copy) || follows(copy, before));
}

static void expand_and_move(run_state *run, const kvferry_plan *plan, size_t source,
                            const kvferry_request *request, random_memory *target)
{
    size_t bound = kvferry_plan_expand_bound(plan, source, request);
    size_t size = bound * sizeof(kvferry_copy), count = 12345;
    kvferry_copy *copies = malloc(size + sizeof(kvferry_copy));
    if (!copies)
        abort();
    memset(copies, CANARY, size + sizeof(kvferry_copy));
    if (bound > 0 && (kvferry_plan_expand(plan, source, request, copies, bound - 1, &count, NULL) !=
                          KVFERRY_NO_SPACE ||
                      count != 12345))
        finding_set(run->finding, "no_space", "a buffer of bound - 1 is taken");
    kvferry_report_clear(run->report);
    kvferry_status status =
        kvferry_plan_expand(plan, source, request, copies, bound, &count, run->report);
    if (status != KVFERRY_OK) {
        const kvferry_reason *reason = kvferry_report_get(run->report, 0);
        finding_set(run->finding, "request_refused", "request %s, source %zu: %s: %s: %s",
                    request->transfer_id, source, kvferry_status_name(status),
                    reason ? reason->code : "", first_reason(run->report));
    } else if (count > bound || !untouched((unsigned char *)(copies + bound), sizeof *copies)) {
        finding_set(run->finding, "bound", "request %s, source %zu: %zu copies, bound %zu",
                    request->transfer_id, source, count, bound);
    } else if (count > 0 && kvferry_plan_piece_count(plan, source) == 0) {
        finding_set(run->finding, "no_piece", "source %zu sends, but has no piece", source);
    }
    for (size_t i = 0; i < count && !failed(run); i++) {
        move_copy(&run->sources[source], target, &copies[i], run->finding);
        run->totals->continued += i > 0 && continues(&copies[i - 1], &copies[i]);
        run->totals->moved_bytes += copies[i].bytes;
        run->totals->copies++;
    }
    free(copies);
}

/* As one, or in slices. */
static void move_request(run_state *run, const kvferry_plan *plan, size_t source, const kvferry_request *request,
                         random_memory *target)
{
    plan_cursor cursor = {0};
    plan_slice slice;
    uint64_t copies = (run->spec->seed + request->target_tokens) % 8;
    if (copies >= 4) {
        expand_and_move(run, plan, source, request, target);
        return;
    }
    if (plan_slice_check(plan, source, request, run->report) != KVFERRY_OK)
        finding_set(run->finding, "request_refused", "request %s, source %zu: the check of the whole",
                    request->transfer_id, source);
    while (!failed(run) && plan_slice_next(plan, source, request, copies, &cursor, &slice))
        expand_and_move(run, plan, source, &slice.request, target);
}

/* The second opinion: what the reference planner would copy lies where it would put it. */
static void compare_with_naive(run_state *run, const kvferry_request *request,
                               random_memory *target, bool move)
{
    naive_copy *copies = NULL;
    size_t count = 0;
    if (!naive_plan(run->source_layouts, run->sides[SOURCE].count, target->worker.layout, request,
                    &copies, &count))
        abort();
    run->totals->naive_copies += count;
    for (size_t i = 0; i < count && !failed(run); i++) {
        const kvferry_copy *copy = &copies[i].copy;
        const random_memory *source = &run->sources[copies[i].source];
        if (move) {
            move_copy(source, target, copy, run->finding);
            run->totals->copies++;
            run->totals->moved_bytes += copy->bytes;
        } else if (memcmp(source->segments[copy->source_segment] + copy->source_offset,
                          target->segments[copy->target_segment] + copy->target_offset,
                          (size_t)copy->bytes) != 0) {
            finding_set(run->finding, "differs_from_naive",
                        "request %s: source %zu segment %" PRIu32 " + %" PRIu64
                        " is not at segment %" PRIu32 " + %" PRIu64,
                        request->transfer_id, copies[i].source, copy->source_segment,
                        copy->source_offset, copy->target_segment, copy->target_offset);
        }
    }
    free(copies);
}

static void check_target(run_state *run, random_memory *target)
{
    oracle_transfer transfers[MAX_REQUESTS];
    size_t count = 0;
    oracle_result *result = malloc(sizeof *result);
    for (int i = 0; i < run->spec->request_count; i++)
        if (!run->spec->requests[i].dropped)
            transfers[count++] =
                (oracle_transfer){&run->whole[i].request, run->spec->seed + (uint64_t)i};
    if (!result || !oracle_check(&target->worker, run->source_workers, run->sides[SOURCE].count,
                                 transfers, count, result))
        abort();
    if (result->finding_count > 0) {
        char text[FINDING_TEXT];
        oracle_finding_text(&target->worker, &result->findings[0], text, sizeof text);
        finding_set(run->finding, result->findings[0].kind == ORACLE_WRONG ? "wrong" : "stray",
                    "%s", text);
    }
    run->totals->wanted_bytes += result->wanted_bytes;
    run->totals->allowed_bytes += result->allowed_bytes;
    run->totals->checked_bytes += result->checked_bytes;
    free(result);
}

static void run_target(run_state *run, size_t index)
{
    const random_spec *spec = run->spec;
    const kvferry_layout *layout = run->sides[TARGET].layouts[index];
    kvferry_plan *plan = NULL;
    random_memory target;
    if (!run->naive) {
        kvferry_report_clear(run->report);
        kvferry_status status = kvferry_plan_create(run->source_layouts, run->sides[SOURCE].count,
                                                    layout, &plan, run->report);
        if (status != KVFERRY_OK) {
            finding_set(run->finding, "plan_refused", "target %zu: %s: %s", index,
                        kvferry_status_name(status), first_reason(run->report));
            return;
        }
        check_pieces(run, layout, plan);
    }
    if (!memory_make(&target, layout, ~spec->seed + index))
        abort();
    for (int r = 0; r < spec->request_count && !failed(run); r++) {
        built_request built;
        if (spec->requests[r].dropped)
            continue;
        build_request(spec, r, layout, &built);
        move_begin(&target);
        run->totals->requests++;
        for (size_t s = 0; s < run->sides[SOURCE].count && plan && !failed(run); s++)
            move_request(run, plan, s, &built.request, &target);
        if (plan && !failed(run))
            run_checksums(plan, run->sources, &target, &built.request, run->finding);
        if (!failed(run) && (run->naive || spec->seed % 4 == 0))
            compare_with_naive(run, &built.request, &target, run->naive);
    }
    if (!failed(run))
        check_target(run, &target);
    run->totals->workers++;
    memory_free(&target);
    kvferry_plan_free(plan);
}

/* --- the whole ------------------------------------------------------------------------------ */

/* Whether a request wants anything only because of whole_blocks. */
static bool wants_more(const random_spec *spec, const request_spec *request)
{
    request_spec plain = *request;
    plain.whole_blocks = false;
    for (int g = 0; g < spec->group_count[TARGET]; g++)
        if (spec->sides[TARGET].groups[g].kind == KVFERRY_GROUP_PAGED &&
            spec_wanted_tokens(spec, request, g) != spec_wanted_tokens(spec, &plain, g))
            return true;
    return false;
}

static void make_sources(run_state *run)
{
    for (int r = 0; r < run->spec->request_count; r++)
        build_request(run->spec, r, NULL, &run->whole[r]);
    for (int r = 0; r < run->spec->request_count; r++)
        run->totals->whole +=
            !run->spec->requests[r].dropped && wants_more(run->spec, &run->spec->requests[r]);
    for (size_t s = 0; s < run->sides[SOURCE].count; s++) {
        const kvferry_layout *layout = run->sides[SOURCE].layouts[s];
        if (!memory_make(&run->sources[s], layout, run->spec->seed * 31 + s))
            abort();
        run->source_layouts[s] = layout;
        run->source_workers[s] = (oracle_worker){layout, NULL, run->sources[s].worker.noise};
        for (int r = 0; r < run->spec->request_count; r++) {
            oracle_transfer transfer = {&run->whole[r].request, run->spec->seed + (uint64_t)r};
            if (!run->spec->requests[r].dropped && !oracle_fill(&run->sources[s].worker, &transfer))
                abort();
        }
    }
}

void run_spec(const random_spec *spec, bool naive, random_finding *finding, random_totals *totals)
{
    run_state *run = calloc(1, sizeof *run);
    if (!run || kvferry_report_create(&run->report) != KVFERRY_OK)
        abort();
    run->spec = spec;
    run->naive = naive;
    run->finding = finding;
    run->totals = totals;
    finding->what[0] = finding->text[0] = 0;
    totals->runs++;
    bool fine = build_side(spec, SOURCE, &run->sides[SOURCE], run->report) &&
                build_side(spec, TARGET, &run->sides[TARGET], run->report);
    if (!fine) {
        finding_set(finding, "document_refused", "%s", first_reason(run->report));
    } else if (spec->fault.kind != FAULT_NONE) {
        if (!naive)
            run_refusal(spec, run->sides, finding, totals);
    } else {
        make_sources(run);
        for (size_t t = 0; t < run->sides[TARGET].count && !failed(run); t++)
            run_target(run, t);
        if (!failed(run) && !naive && spec->seed % 8 == 0)
            run_far(spec, run->sides, finding);
    }
    for (size_t s = 0; s < run->sides[SOURCE].count; s++)
        memory_free(&run->sources[s]);
    built_side_free(&run->sides[SOURCE]);
    built_side_free(&run->sides[TARGET]);
    kvferry_report_free(run->report);
    free(run);
}
