/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends what: cuts each target stream where its holders' boxes end, proves that every part has
 * a holder, and gives each part to exactly one of them. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* A part of a target stream that every one of its holders has whole. */
typedef struct assign_part {
    uint32_t target_stream;
    kvferry_range *box;
    const plan_holding **holders; /* in (dp, pp, tp) order */
    uint32_t holder_count;
    uint64_t weight;      /* bytes in one block of the target */
    uint64_t state_bytes; /* bytes in one state, or one block where not paged */
} assign_part;

typedef struct assign_job {
    kvferry_plan *plan;
    const kvferry_layout *const *sources;
    const kvferry_layout *target;
    uint32_t *order; /* per source: its place in (dp, pp, tp) order */
    base_arena arena;
    assign_part *parts;
    size_t part_count, part_capacity;
    size_t *refusals;
    kvferry_report *report;
} assign_job;

typedef struct assign_worker {
    kvferry_worker worker;
    uint32_t source;
} assign_worker;

static int compare_workers(const void *a, const void *b)
{
    const assign_worker *left = a, *right = b;
    const uint32_t keys[3][2] = {{left->worker.dp_rank, right->worker.dp_rank},
                                 {left->worker.pp_rank, right->worker.pp_rank},
                                 {left->worker.tp_rank, right->worker.tp_rank}};
    for (size_t i = 0; i < 3; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return left->source < right->source ? -1 : left->source > right->source;
}

static kvferry_status order_sources(assign_job *job)
{
    size_t count = job->plan->source_count;
    assign_worker *workers = base_alloc(count, sizeof(*workers));
    job->order = base_alloc(count, sizeof(*job->order));
    if (!workers || !job->order) {
        free(workers);
        return KVFERRY_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++)
        workers[i] = (assign_worker){*kvferry_layout_worker(job->sources[i]), (uint32_t)i};
    qsort(workers, count, sizeof(*workers), compare_workers);
    for (size_t i = 0; i < count; i++)
        job->order[workers[i].source] = (uint32_t)i;
    free(workers);
    return KVFERRY_OK;
}

/* --- cutting --------------------------------------------------------------------------------- */

/* The cut inside the region that is nearest to its middle, at the end of a holder's box along an axis;
 * false if there is none. Halving keeps the depth low where many workers hold a little each. */
static bool find_cut(const plan_holding *const *holders, uint32_t count, const kvferry_range *region,
                     uint32_t axes, uint32_t *axis, uint64_t *at)
{
    for (uint32_t a = 0; a < axes; a++) {
        uint64_t start = region[a].start, end = start + region[a].extent;
        uint64_t middle = start + region[a].extent / 2, nearest = UINT64_MAX;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t edges[2] = {holders[i]->box[a].start,
                                 holders[i]->box[a].start + holders[i]->box[a].extent};
            for (int k = 0; k < 2; k++) {
                uint64_t off = edges[k] > middle ? edges[k] - middle : middle - edges[k];
                if (edges[k] <= start || edges[k] >= end || off >= nearest)
                    continue;
                nearest = off;
                *axis = a;
                *at = edges[k];
            }
        }
        if (nearest != UINT64_MAX)
            return true;
    }
    return false;
}

static bool overlaps(const kvferry_range *a, const kvferry_range *b, uint32_t axes)
{
    for (uint32_t i = 0; i < axes; i++)
        if (a[i].extent && (a[i].start + a[i].extent <= b[i].start ||
                            b[i].start + b[i].extent <= a[i].start))
            return false;
    return true;
}

static kvferry_status add_part(assign_job *job, uint32_t target_stream,
                               const plan_holding *const *holders, uint32_t count,
                               const kvferry_range *region, uint32_t axes)
{
    if (!base_grow((void **)&job->parts, &job->part_capacity, job->part_count + 1,
                   sizeof(assign_part)))
        return KVFERRY_NO_MEMORY;
    assign_part part = {.target_stream = target_stream, .holder_count = count};
    part.box = base_arena_alloc(&job->arena, axes, sizeof(*part.box));
    part.holders = base_arena_alloc(&job->arena, count, sizeof(*part.holders));
    if (!part.box || !part.holders)
        return KVFERRY_NO_MEMORY;
    const kvferry_stream *stream = kvferry_layout_stream(job->target, target_stream);
    part.state_bytes = stream->cell_bytes;
    for (uint32_t i = 0; i < axes; i++) {
        part.box[i] = region[i];
        if (region[i].extent) /* the token axis has none here */
            part.state_bytes *= region[i].extent;
    }
    const kvferry_group *group = kvferry_layout_group(job->target, stream->group);
    uint64_t states = group->kind == KVFERRY_GROUP_PAGED
                          ? group->block_tokens / stream->tokens_per_state
                          : 1;
    part.weight = part.state_bytes * states;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t place = i; /* kept in order: few, so insertion does */
        while (place && job->order[part.holders[place - 1]->source] > job->order[holders[i]->source]) {
            part.holders[place] = part.holders[place - 1];
            place--;
        }
        part.holders[place] = holders[i];
    }
    job->parts[job->part_count++] = part;
    return KVFERRY_OK;
}

/* Cuts the region until every holder has each part whole or not at all. */
static kvferry_status cut(assign_job *job, uint32_t target_stream,
                          const plan_holding *const *holders, uint32_t count,
                          const kvferry_range *region, uint32_t axes)
{
    uint32_t axis;
    uint64_t at;
    if (!find_cut(holders, count, region, axes, &axis, &at))
        return add_part(job, target_stream, holders, count, region, axes);
    kvferry_range *half = base_arena_alloc(&job->arena, axes, sizeof(*half));
    const plan_holding **inside = base_arena_alloc(&job->arena, count, sizeof(*inside));
    if (!half || !inside)
        return KVFERRY_NO_MEMORY;
    memcpy(half, region, axes * sizeof(*half));
    uint64_t end = region[axis].start + region[axis].extent;
    const kvferry_range halves[2] = {{region[axis].start, at - region[axis].start}, {at, end - at}};
    for (int k = 0; k < 2; k++) {
        half[axis] = halves[k];
        uint32_t kept = 0;
        for (uint32_t i = 0; i < count; i++)
            if (overlaps(half, holders[i]->box, axes))
                inside[kept++] = holders[i];
        kvferry_status status = cut(job, target_stream, inside, kept, half, axes);
        if (status != KVFERRY_OK)
            return status;
    }
    return KVFERRY_OK;
}

/* --- coverage -------------------------------------------------------------------------------- */

static const char *range_text(const kvferry_range *range)
{
    if (range->extent == 1)
        return base_format("%llu", (unsigned long long)range->start);
    return base_format("%llu..%llu", (unsigned long long)range->start,
                       (unsigned long long)(range->start + range->extent - 1));
}

static void report_hole(const assign_job *job, const assign_part *part)
{
    const kvferry_stream *stream = kvferry_layout_stream(job->target, part->target_stream);
    const kvferry_axis *axis = NULL;
    const char *hole = "";
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        const kvferry_range *range = &part->box[i];
        if (range->extent && range->extent != stream->axes[i].extent) {
            axis = &stream->axes[i];
            hole = range_text(range);
            break;
        }
    }
    kvferry_range whole = axis ? (kvferry_range){axis->start, axis->extent} : (kvferry_range){0, 0};
    base_report_add(job->report, "coverage_hole",
                    &(base_where){.worker = layout_worker_text(job->target),
                                  .layer = stream->layer,
                                  .stream = stream->name,
                                  .axis = axis ? axis->name : NULL},
                    axis ? base_format("%s %s of %llu", axis->name, range_text(&whole),
                                       (unsigned long long)axis->global)
                         : "all of it",
                    axis ? base_format("no source holds %s %s", axis->name, hole)
                         : "no source holds any of it",
                    "the sources do not hold all that the target requires");
}

/* Drops the parts of a stream (from `first` on) if one of them has no holder; a required stream is
 * then refused. */
static void prove(assign_job *job, size_t first, uint32_t target_stream)
{
    bool hole = false;
    bool required =
        kvferry_layout_stream(job->target, target_stream)->policy == KVFERRY_POLICY_REQUIRED;
    for (size_t i = first; i < job->part_count; i++) {
        if (job->parts[i].holder_count)
            continue;
        hole = true;
        if (required) {
            (*job->refusals)++;
            report_hole(job, &job->parts[i]);
        }
    }
    if (hole)
        job->part_count = first;
}

/* --- giving ---------------------------------------------------------------------------------- */

/* Whether `more` continues `piece` along one axis and is equal in all others. */
static bool continues(const kvferry_piece *piece, const plan_holding *holder,
                      const kvferry_range *more, uint32_t axes, uint32_t *along)
{
    if (piece->target_stream != holder->target_stream ||
        piece->source_stream != holder->source_stream)
        return false;
    uint32_t different = 0;
    for (uint32_t i = 0; i < axes; i++) {
        if (piece->ranges[i].start == more[i].start && piece->ranges[i].extent == more[i].extent)
            continue;
        if (piece->ranges[i].start + piece->ranges[i].extent != more[i].start)
            return false;
        *along = i;
        different++;
    }
    return different == 1;
}

/* False: no memory. */
static bool pair_streams(const assign_job *job, const plan_holding *holder, plan_pair *pair)
{
    const kvferry_stream *target = kvferry_layout_stream(job->target, holder->target_stream);
    const kvferry_stream *source =
        kvferry_layout_stream(job->sources[holder->source], holder->source_stream);
    uint32_t *axes = base_arena_alloc(&job->plan->arena, target->axis_count, sizeof(*axes));
    for (uint32_t i = 0; axes && i < target->axis_count; i++)
        axes[i] = (uint32_t)(layout_find_axis(source, target->axes[i].name) - source->axes);
    *pair = (plan_pair){source->group, target->group, axes};
    return axes != NULL;
}

static kvferry_status give(assign_job *job, const assign_part *part, const plan_holding *holder)
{
    plan_source *source = &job->plan->sources[holder->source];
    uint32_t axes = kvferry_layout_stream(job->target, part->target_stream)->axis_count;
    uint32_t along = 0;
    kvferry_piece *last = source->piece_count ? &source->pieces[source->piece_count - 1] : NULL;
    if (last && continues(last, holder, part->box, axes, &along)) {
        ((kvferry_range *)last->ranges)[along].extent += part->box[along].extent;
        last->state_bytes += part->state_bytes;
        return KVFERRY_OK;
    }
    if (!base_grow((void **)&source->pieces, &source->piece_capacity, source->piece_count + 1,
                   sizeof(kvferry_piece)) ||
        !base_grow((void **)&source->pairs, &source->pair_capacity, source->piece_count + 1,
                   sizeof(plan_pair)))
        return KVFERRY_NO_MEMORY;
    kvferry_range *ranges = base_arena_alloc(&job->plan->arena, axes, sizeof(*ranges));
    if (!ranges || !pair_streams(job, holder, &source->pairs[source->piece_count]))
        return KVFERRY_NO_MEMORY;
    memcpy(ranges, part->box, axes * sizeof(*ranges));
    source->pieces[source->piece_count++] =
        (kvferry_piece){.source_stream = holder->source_stream,
                        .target_stream = part->target_stream,
                        .ranges = ranges,
                        .range_count = axes,
                        .state_bytes = part->state_bytes};
    return KVFERRY_OK;
}

static int compare_holders(const assign_part *left, const assign_part *right)
{
    if (left->holder_count != right->holder_count)
        return left->holder_count < right->holder_count ? -1 : 1;
    for (uint32_t i = 0; i < left->holder_count; i++)
        if (left->holders[i]->source != right->holders[i]->source)
            return left->holders[i]->source < right->holders[i]->source ? -1 : 1;
    return 0;
}

/* By holders, then by address in the first holder's memory. */
static int compare_parts(const void *a, const void *b, void *context)
{
    const assign_part *left = a, *right = b;
    const assign_job *job = context;
    int order = compare_holders(left, right);
    if (order)
        return order;
    const kvferry_layout *source = job->sources[left->holders[0]->source];
    const kvferry_stream *one = kvferry_layout_stream(source, left->holders[0]->source_stream);
    const kvferry_stream *two = kvferry_layout_stream(source, right->holders[0]->source_stream);
    if (one->segment != two->segment)
        return one->segment < two->segment ? -1 : 1;
    if (one->offset != two->offset)
        return one->offset < two->offset ? -1 : 1;
    if (left->target_stream != right->target_stream)
        return left->target_stream < right->target_stream ? -1 : 1;
    for (uint32_t i = 0; i < kvferry_layout_stream(job->target, left->target_stream)->axis_count; i++)
        if (left->box[i].start != right->box[i].start)
            return left->box[i].start < right->box[i].start ? -1 : 1;
    return 0;
}

/*
 * Parts with the same H holders go to holder i mod H where the target's T ranks are at least as many;
 * else the holders j with j mod T = i share them, in runs of neighbours, balanced by bytes.
 */
static kvferry_status give_alike(assign_job *job, const assign_part *parts, size_t count)
{
    const kvferry_worker *worker = kvferry_layout_worker(job->target);
    uint32_t holders = parts[0].holder_count;
    uint32_t first = worker->tp_rank % holders, step = holders, sharers = 1;
    if (worker->tp_size < holders) {
        first = worker->tp_rank;
        step = worker->tp_size;
        sharers = (holders - first + step - 1) / step;
    }
    __extension__ unsigned __int128 total = 0, before = 0;
    for (size_t i = 0; i < count; i++)
        total += parts[i].weight;
    for (size_t i = 0; i < count; i++) {
        __extension__ unsigned __int128 middle = 2 * before + parts[i].weight;
        uint32_t share = total ? (uint32_t)(middle * sharers / (2 * total)) : 0;
        before += parts[i].weight;
        kvferry_status status =
            give(job, &parts[i], parts[i].holders[first + (size_t)share * step]);
        if (status != KVFERRY_OK)
            return status;
    }
    return KVFERRY_OK;
}

static kvferry_status give_all(assign_job *job)
{
    if (job->part_count)
        qsort_r(job->parts, job->part_count, sizeof(assign_part), compare_parts, job);
    for (size_t first = 0, next; first < job->part_count; first = next) {
        for (next = first + 1; next < job->part_count; next++)
            if (compare_holders(&job->parts[first], &job->parts[next]) != 0)
                break;
        kvferry_status status = give_alike(job, &job->parts[first], next - first);
        if (status != KVFERRY_OK)
            return status;
    }
    return KVFERRY_OK;
}

static kvferry_status cut_stream(assign_job *job, const plan_holding *const *holders,
                                 uint32_t count)
{
    uint32_t target_stream = holders[0]->target_stream;
    const kvferry_stream *stream = kvferry_layout_stream(job->target, target_stream);
    bool paged =
        kvferry_layout_group(job->target, stream->group)->kind == KVFERRY_GROUP_PAGED;
    kvferry_range *region = base_arena_alloc(&job->arena, stream->axis_count, sizeof(*region));
    if (!region)
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < stream->axis_count; i++)
        if (!paged || !layout_is_token_axis(&stream->axes[i]))
            region[i] = (kvferry_range){stream->axes[i].start, stream->axes[i].extent};
    size_t first = job->part_count;
    kvferry_status status = cut(job, target_stream, holders, count, region, stream->axis_count);
    if (status == KVFERRY_OK)
        prove(job, first, target_stream);
    return status;
}

kvferry_status plan_assign(kvferry_plan *plan, const kvferry_layout *const *sources,
                           const kvferry_layout *target, plan_holdings *holdings, size_t *refusals,
                           kvferry_report *report)
{
    assign_job job = {.plan = plan,
                      .sources = sources,
                      .target = target,
                      .refusals = refusals,
                      .report = report};
    const plan_holding **holders = base_alloc(plan->source_count, sizeof(*holders));
    kvferry_status status = holders ? order_sources(&job) : KVFERRY_NO_MEMORY;
    for (size_t first = 0, next; first < holdings->count && status == KVFERRY_OK; first = next) {
        uint32_t count = 0;
        for (next = first; next < holdings->count && holdings->items[next].target_stream ==
                                                         holdings->items[first].target_stream;
             next++)
            holders[count++] = &holdings->items[next];
        status = cut_stream(&job, holders, count);
    }
    if (status == KVFERRY_OK)
        status = give_all(&job);
    free(holders);
    free(job.order);
    free(job.parts);
    base_arena_free(&job.arena);
    return status;
}
