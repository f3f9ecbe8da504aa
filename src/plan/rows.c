/* SPDX-License-Identifier: Apache-2.0 */
/* Rows: which bytes between cells may be carried along. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* Bytes from the first byte of a stream's cells of one page to past the last. */
static uint64_t stream_hull(const kvferry_stream *stream)
{
    uint64_t bytes = stream->cell_bytes;
    for (uint32_t i = 0; i < stream->axis_count; i++)
        bytes += (stream->axes[i].extent - 1) * stream->axes[i].stride;
    return bytes;
}

static int compare_places(const void *a, const void *b, void *context)
{
    const kvferry_layout *layout = context;
    const kvferry_stream *left = kvferry_layout_stream(layout, *(const uint32_t *)a);
    const kvferry_stream *right = kvferry_layout_stream(layout, *(const uint32_t *)b);
    const uint64_t keys[3][2] = {{left->segment, right->segment},
                                 {left->page_stride, right->page_stride},
                                 {left->offset, right->offset}};
    for (size_t i = 0; i < 3; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

/* The byte after the last one of a stream. */
static uint64_t stream_end(const kvferry_stream *stream, uint64_t hull)
{
    return stream->pages ? stream->offset + (stream->pages - 1) * stream->page_stride + hull : 0;
}

static int compare_starts(const void *a, const void *b, void *context)
{
    const kvferry_layout *layout = context;
    const kvferry_stream *left = kvferry_layout_stream(layout, *(const uint32_t *)a);
    const kvferry_stream *right = kvferry_layout_stream(layout, *(const uint32_t *)b);
    if (left->segment != right->segment)
        return left->segment < right->segment ? -1 : 1;
    return left->offset < right->offset ? -1 : left->offset > right->offset;
}

/* Puts the streams in order of their first bytes, so that a row finds those it meets. */
static void order_by_start(plan_rows *rows, uint32_t count)
{
    const kvferry_layout *layout = rows->layout;
    for (uint32_t i = 0; i < count; i++)
        rows->by_start[i] = i;
    if (count)
        qsort_r(rows->by_start, count, sizeof(*rows->by_start), compare_starts, (void *)layout);
    for (uint32_t i = 0; i < count; i++) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, rows->by_start[i]);
        bool first = i == 0 || kvferry_layout_stream(layout, rows->by_start[i - 1])->segment !=
                                   stream->segment;
        rows->reach[i] = base_max(first ? 0 : rows->reach[i - 1],
                                  stream_end(stream, rows->hull[rows->by_start[i]]));
    }
}

kvferry_status plan_rows_create(const kvferry_layout *layout, base_arena *arena, plan_rows *rows)
{
    uint32_t count = kvferry_layout_stream_count(layout);
    rows->layout = layout;
    rows->low = base_arena_alloc(arena, count, sizeof(*rows->low));
    rows->hull = base_arena_alloc(arena, count, sizeof(*rows->hull));
    rows->by_start = base_arena_alloc(arena, count, sizeof(*rows->by_start));
    rows->reach = base_arena_alloc(arena, count, sizeof(*rows->reach));
    uint32_t *sorted = base_alloc(count, sizeof(*sorted));
    if (!rows->low || !rows->hull || !rows->by_start || !rows->reach || !sorted) {
        free(sorted);
        return KVFERRY_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = i;
    if (count)
        qsort_r(sorted, count, sizeof(*sorted), compare_places, (void *)layout);
    const kvferry_stream *lowest = NULL;
    for (uint32_t i = 0; i < count; i++) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, sorted[i]);
        if (!lowest || lowest->segment != stream->segment ||
            lowest->page_stride != stream->page_stride ||
            stream->offset - lowest->offset >= stream->page_stride)
            lowest = stream;
        rows->low[sorted[i]] = lowest->offset;
        rows->hull[sorted[i]] = stream_hull(stream);
    }
    free(sorted);
    order_by_start(rows, count);
    return KVFERRY_OK;
}

/* --- obstacles -------------------------------------------------------------------------------- */

static bool add_span(plan_obstacles *obstacles, uint64_t start, uint64_t end)
{
    if (!base_grow((void **)&obstacles->spans, &obstacles->capacity, obstacles->count + 1,
                   sizeof(*obstacles->spans)))
        return false;
    obstacles->spans[obstacles->count++] = (plan_span){start, end};
    return true;
}

/* Adds the bytes [offset, offset + bytes) of every row, bytes <= period. */
static bool add_repeated(plan_obstacles *obstacles, uint64_t offset, uint64_t bytes)
{
    uint64_t start = offset % obstacles->period, end = start + bytes;
    if (end <= obstacles->period)
        return add_span(obstacles, start, end);
    return add_span(obstacles, start, obstacles->period) &&
           add_span(obstacles, 0, end - obstacles->period);
}

static int compare_spans(const void *a, const void *b)
{
    const plan_span *left = a, *right = b;
    return left->start < right->start ? -1 : left->start > right->start;
}

/* Sorts the spans and joins those that meet. */
static void unite(plan_obstacles *obstacles)
{
    if (!obstacles->count)
        return;
    qsort(obstacles->spans, obstacles->count, sizeof(*obstacles->spans), compare_spans);
    size_t kept = 1;
    for (size_t i = 1; i < obstacles->count; i++) {
        plan_span *last = &obstacles->spans[kept - 1];
        if (obstacles->spans[i].start <= last->end)
            last->end = base_max(last->end, obstacles->spans[i].end);
        else
            obstacles->spans[kept++] = obstacles->spans[i];
    }
    obstacles->count = kept;
}

/* Whether each block of the stream lies in the rows of the block of that id. */
static bool keeps_to_rows(const kvferry_layout *layout, const kvferry_stream *stream, uint64_t hull,
                          const plan_obstacles *obstacles)
{
    uint64_t ratio = layout_stream_ratio(layout, stream);
    uint64_t block = stream->page_stride * ratio, span = block - stream->page_stride + hull;
    return block == obstacles->block && stream->offset >= obstacles->low && span <= block &&
           stream->offset - obstacles->low <= block - span;
}

/* How many streams of the order start before `end` of the segment, or lie in an earlier segment. */
static uint32_t streams_before(const plan_rows *rows, uint32_t segment, uint64_t end)
{
    uint32_t low = 0, high = kvferry_layout_stream_count(rows->layout);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const kvferry_stream *stream = kvferry_layout_stream(rows->layout, rows->by_start[middle]);
        if (stream->segment < segment || (stream->segment == segment && stream->offset < end))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds what of a stream is in the way, if anything is. */
static bool add_stream(const plan_rows *rows, uint32_t index, plan_obstacles *obstacles)
{
    const kvferry_layout *layout = rows->layout;
    const kvferry_stream *stream = kvferry_layout_stream(layout, index);
    uint64_t hull = rows->hull[index];
    if (stream_end(stream, hull) <= obstacles->low)
        return true;
    if (stream->group != obstacles->group &&
        kvferry_layout_groups_share(layout, stream->group, obstacles->group) &&
        keeps_to_rows(layout, stream, hull, obstacles))
        return true;
    if (stream->page_stride == obstacles->period && hull <= obstacles->period)
        return add_repeated(obstacles, stream->offset, hull);
    return add_span(obstacles, 0, obstacles->period);
}

kvferry_status plan_obstacles_find(const plan_rows *rows, uint32_t like, uint32_t group,
                                   plan_obstacles *obstacles)
{
    const kvferry_layout *layout = rows->layout;
    const kvferry_stream *model = kvferry_layout_stream(layout, like);
    uint64_t low = rows->low[like], end = low + model->pages * model->page_stride;
    uint64_t block = model->page_stride * layout_stream_ratio(layout, model);
    if (obstacles->period == model->page_stride && obstacles->block == block &&
        obstacles->low == low && obstacles->segment == model->segment && obstacles->group == group)
        return KVFERRY_OK;
    obstacles->period = model->page_stride;
    obstacles->block = block;
    obstacles->low = low;
    obstacles->segment = model->segment;
    obstacles->group = group;
    obstacles->count = 0;
    for (uint32_t i = streams_before(rows, model->segment, end); i-- > 0;) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, rows->by_start[i]);
        if (stream->segment != model->segment || rows->reach[i] <= low)
            break;
        if (!add_stream(rows, rows->by_start[i], obstacles))
            return KVFERRY_NO_MEMORY;
    }
    unite(obstacles);
    return KVFERRY_OK;
}

/* Whether no span meets [start, end), which lies inside one period. */
static bool free_between(const plan_obstacles *obstacles, uint64_t start, uint64_t end)
{
    size_t low = 0, high = obstacles->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (obstacles->spans[middle].end > start)
            high = middle;
        else
            low = middle + 1;
    }
    return low == obstacles->count || obstacles->spans[low].start >= end;
}

bool plan_obstacles_free(const plan_obstacles *obstacles, uint64_t offset, uint64_t bytes)
{
    if (bytes == 0)
        return true;
    if (bytes > obstacles->period) /* a single page may have no stride, and so no row */
        return obstacles->period && obstacles->count == 0;
    uint64_t start = offset % obstacles->period, end = start + bytes;
    if (end <= obstacles->period)
        return free_between(obstacles, start, end);
    return free_between(obstacles, start, obstacles->period) &&
           free_between(obstacles, 0, end - obstacles->period);
}
