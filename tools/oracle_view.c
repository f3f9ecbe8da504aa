/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle_view.h"

#include <stdlib.h>
#include <string.h>

/* --- axes ---------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const view_axis *)a)->name, ((const view_axis *)b)->name);
}

static int by_stride(const void *a, const void *b)
{
    uint64_t x = ((const view_axis *)a)->stride, y = ((const view_axis *)b)->stride;
    return x < y ? 1 : x > y ? -1 : 0;
}

static bool make_axes(view_stream *view)
{
    const kvferry_stream *stream = view->stream;
    view->token = (view_axis){.name = "token", .extent = 1};
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        const kvferry_axis *axis = &stream->axes[i];
        view_axis made = {axis->name, axis->start, axis->extent, axis->global, axis->stride, 0};
        bool token = view->group->kind == KVFERRY_GROUP_PAGED && strcmp(axis->name, "token") == 0;
        if (!token && view->axis_count == VIEW_AXES)
            return false;
        if (token)
            view->token = made;
        else
            view->axes[view->axis_count++] = made;
    }
    qsort(view->axes, view->axis_count, sizeof *view->axes, by_name);
    uint64_t weight = 1;
    for (uint32_t i = view->axis_count; i-- > 0;) {
        view->axes[i].weight = weight;
        weight *= view->axes[i].global;
    }
    view->token.weight = weight;
    qsort(view->axes, view->axis_count, sizeof *view->axes, by_stride);
    return true;
}

/* --- walking ------------------------------------------------------------------------------- */

void view_walk(const view_stream *view, uint64_t page, uint64_t state, uint64_t from, uint64_t to,
               view_visit *visit, void *context)
{
    if (from >= to)
        return;
    /* The axes that are counted, widest first, the token axis at its place among them. */
    view_axis axes[VIEW_AXES + 1] = {{0}};
    uint64_t at[VIEW_AXES + 1] = {0}, index = 0;
    uint32_t count = 0;
    view_axis token = view->token;
    token.extent = to - from;
    token.start = state + from;
    for (uint32_t i = 0; i <= view->axis_count; i++) {
        bool here = i == view->axis_count || token.stride > view->axes[i].stride;
        if (token.extent && here) {
            index += token.start * token.weight;
            if (token.extent > 1)
                axes[count++] = token;
            token.extent = 0;
        }
        if (i == view->axis_count)
            break;
        index += view->axes[i].start * view->axes[i].weight;
        if (view->axes[i].extent == 0)
            return;
        if (view->axes[i].extent > 1)
            axes[count++] = view->axes[i];
    }
    if (count == 0)
        axes[count++] = (view_axis){.extent = 1};

    const kvferry_stream *stream = view->stream;
    view_cells cells = {
        .offset = stream->offset + page * stream->page_stride + from * token.stride,
        .stride = axes[count - 1].stride,
        .count = axes[count - 1].extent,
        .index = index,
        .step = axes[count - 1].weight,
    };
    for (;;) {
        visit(context, &cells);
        uint32_t i = count - 1;
        while (i > 0 && at[i - 1] + 1 == axes[i - 1].extent) {
            i--;
            cells.offset -= at[i] * axes[i].stride;
            cells.index -= at[i] * axes[i].weight;
            at[i] = 0;
        }
        if (i == 0)
            return;
        at[i - 1]++;
        cells.offset += axes[i - 1].stride;
        cells.index += axes[i - 1].weight;
    }
}

/* --- a page as runs of bytes --------------------------------------------------------------- */

typedef struct run_list {
    view_run *runs;
    size_t count, capacity;
    uint64_t cell_bytes, base;
    bool failed;
} run_list;

static void add_run(run_list *list, uint64_t start, uint64_t bytes)
{
    if (list->count &&
        list->runs[list->count - 1].start + list->runs[list->count - 1].bytes == start) {
        list->runs[list->count - 1].bytes += bytes;
        return;
    }
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 8;
        view_run *runs = realloc(list->runs, capacity * sizeof *runs);
        if (!runs) {
            list->failed = true;
            return;
        }
        list->runs = runs;
        list->capacity = capacity;
    }
    list->runs[list->count++] = (view_run){start, bytes};
}

static void collect_run(void *context, const view_cells *cells)
{
    run_list *list = context;
    uint64_t start = cells->offset - list->base;
    if (cells->stride == list->cell_bytes) {
        add_run(list, start, cells->count * list->cell_bytes);
        return;
    }
    for (uint64_t i = 0; i < cells->count; i++)
        add_run(list, start + i * cells->stride, list->cell_bytes);
}

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const view_run *)a)->start, y = ((const view_run *)b)->start;
    return x < y ? -1 : x > y;
}

static bool make_runs(view_stream *view)
{
    run_list list = {.cell_bytes = view->stream->cell_bytes, .base = view->stream->offset};
    view_walk(view, 0, 0, 0, view->token.extent, collect_run, &list);
    view->runs = list.runs;
    if (list.failed)
        return false;
    bool sorted = true;
    for (size_t i = 1; i < list.count; i++)
        sorted = sorted && list.runs[i - 1].start < list.runs[i].start;
    if (!sorted)
        qsort(list.runs, list.count, sizeof *list.runs, by_start);
    size_t kept = 0;
    for (size_t i = 0; i < list.count; i++) {
        view_run *last = kept ? &list.runs[kept - 1] : NULL;
        if (last && last->start + last->bytes == list.runs[i].start)
            last->bytes += list.runs[i].bytes;
        else
            list.runs[kept++] = list.runs[i];
    }
    view->run_count = kept;
    view->low = kept ? list.runs[0].start : 0;
    view->high = kept ? list.runs[kept - 1].start + list.runs[kept - 1].bytes : 0;
    return true;
}

/* --- rows ---------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
    const view_stream *x = *(view_stream *const *)a, *y = *(view_stream *const *)b;
    if (x->stream->segment != y->stream->segment)
        return x->stream->segment < y->stream->segment ? -1 : 1;
    if (x->stream->page_stride != y->stream->page_stride)
        return x->stream->page_stride < y->stream->page_stride ? -1 : 1;
    return x->stream->offset < y->stream->offset ? -1 : x->stream->offset > y->stream->offset;
}

/* Streams of a segment with equal page strides, whose offsets lie less than a stride above the
 * lowest of them. */
static bool make_rows(view_layout *view)
{
    view_stream **order = malloc((view->stream_count + 1) * sizeof(view_stream *));
    if (!order)
        return false;
    for (uint32_t i = 0; i < view->stream_count; i++)
        order[i] = &view->streams[i];
    qsort(order, view->stream_count, sizeof *order, by_offset);
    uint32_t cluster = 0;
    for (uint32_t i = 0; i < view->stream_count; i++) {
        const view_stream *last = i ? order[i - 1] : NULL;
        bool joins = last && last->stream->segment == order[i]->stream->segment &&
                     last->stream->page_stride == order[i]->stream->page_stride &&
                     order[i]->stream->offset - last->row_offset < last->stream->page_stride;
        cluster += !joins;
        order[i]->row_cluster = cluster;
        order[i]->row_offset = joins ? last->row_offset : order[i]->stream->offset;
    }
    free(order);
    return true;
}

/* --- sharing ------------------------------------------------------------------------------- */

static bool page_bytes_meet(const view_stream *a, uint64_t page_a, const view_stream *b,
                            uint64_t page_b)
{
    uint64_t base_a = a->stream->offset + page_a * a->stream->page_stride;
    uint64_t base_b = b->stream->offset + page_b * b->stream->page_stride;
    if (base_a + a->high <= base_b + b->low || base_b + b->high <= base_a + a->low)
        return false;
    for (size_t i = 0, j = 0; i < a->run_count && j < b->run_count;) {
        uint64_t end_a = base_a + a->runs[i].start + a->runs[i].bytes;
        uint64_t end_b = base_b + b->runs[j].start + b->runs[j].bytes;
        if (end_a <= base_b + b->runs[j].start)
            i++;
        else if (end_b <= base_a + a->runs[i].start)
            j++;
        else
            return true;
    }
    return false;
}

/* Bytes are shared between equal block ids only, so it is enough to look at block 0, and at the
 * last block that both have. */
static bool streams_share(const view_stream *a, const view_stream *b)
{
    if (a->stream->segment != b->stream->segment)
        return false;
    uint64_t blocks_a = a->stream->pages / a->ratio, blocks_b = b->stream->pages / b->ratio;
    uint64_t blocks = blocks_a < blocks_b ? blocks_a : blocks_b;
    for (int end = 0; blocks && end < 2; end++) {
        uint64_t block = end ? blocks - 1 : 0;
        for (uint64_t i = 0; i < a->ratio; i++)
            for (uint64_t j = 0; j < b->ratio; j++)
                if (page_bytes_meet(a, block * a->ratio + i, b, block * b->ratio + j))
                    return true;
    }
    return false;
}

static bool make_sharing(view_layout *view)
{
    view->share = calloc((size_t)view->group_count * view->group_count + 1, sizeof *view->share);
    if (!view->share)
        return false;
    for (uint32_t i = 0; i < view->stream_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            uint32_t a = view->streams[i].stream->group, b = view->streams[j].stream->group;
            bool *share = &view->share[a * view->group_count + b];
            if (a == b || *share || !streams_share(&view->streams[i], &view->streams[j]))
                continue;
            *share = view->share[b * view->group_count + a] = true;
        }
    return true;
}

/* --- the whole ----------------------------------------------------------------------------- */

bool view_make(view_layout *view, const kvferry_layout *layout)
{
    memset(view, 0, sizeof *view);
    view->layout = layout;
    view->group_count = kvferry_layout_group_count(layout);
    uint32_t count = kvferry_layout_stream_count(layout);
    view->streams = calloc((size_t)count + 1, sizeof *view->streams);
    if (!view->streams)
        return false;
    view->stream_count = count;
    for (uint32_t i = 0; i < count; i++) {
        view_stream *made = &view->streams[i];
        made->stream = kvferry_layout_stream(layout, i);
        made->group = kvferry_layout_group(layout, made->stream->group);
        made->ratio = made->group->kind == KVFERRY_GROUP_PAGED
                          ? made->group->block_tokens / made->stream->page_tokens
                          : 1;
        made->words = (made->stream->cell_bytes + 7) / 8;
        if (!make_axes(made) || !make_runs(made))
            return false;
    }
    return make_rows(view) && make_sharing(view);
}

void view_free(view_layout *view)
{
    for (uint32_t i = 0; i < view->stream_count; i++)
        free(view->streams[i].runs);
    free(view->streams);
    free(view->share);
    memset(view, 0, sizeof *view);
}

/* --- tables -------------------------------------------------------------------------------- */

const kvferry_block_table *view_table(const kvferry_block_table *tables, size_t count,
                                      const char *group)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(tables[i].group, group) == 0)
            return &tables[i];
    return NULL;
}

bool view_block_exists(const view_stream *stream, uint64_t id)
{
    const kvferry_group *group = stream->group;
    if (group->null_block >= 0 && (uint64_t)group->null_block == id)
        return false;
    return id < stream->stream->pages / stream->ratio;
}

void view_page_at(const view_stream *view, const kvferry_block_table *table, size_t index,
                  uint64_t page, uint64_t first, uint64_t end, view_page *result)
{
    const kvferry_stream *stream = view->stream;
    *result = (view_page){.page = (uint64_t)table->blocks[index] * view->ratio + page, .to = 1};
    if (view->group->kind != KVFERRY_GROUP_PAGED)
        return;
    uint64_t per = stream->tokens_per_state;
    uint64_t token =
        table->first_token + index * view->group->block_tokens + page * stream->page_tokens;
    result->token = token;
    result->state = token / per;
    result->from = first > token ? (first - token) / per : 0;
    result->to = end > token ? (end - token + per - 1) / per : 0;
    if (result->to > view->token.extent)
        result->to = view->token.extent;
    if (result->from > result->to)
        result->from = result->to;
}

/* --- matching ------------------------------------------------------------------------------ */

static bool lists_alias(const kvferry_stream *stream, const char *layer)
{
    for (uint32_t i = 0; i < stream->alias_count; i++)
        if (strcmp(stream->aliases[i], layer) == 0)
            return true;
    return false;
}

static bool same_axis(const kvferry_stream *source, const kvferry_axis *axis, bool token)
{
    for (uint32_t i = 0; i < source->axis_count; i++)
        if (strcmp(source->axes[i].name, axis->name) == 0)
            return token || source->axes[i].global == axis->global;
    return false;
}

/* Whether the fingerprints differ. */
static bool differs(const view_stream *target, const kvferry_layout *layout,
                    const kvferry_stream *source)
{
    const kvferry_stream *stream = target->stream;
    bool same = strcmp(source->dtype, stream->dtype) == 0 &&
                strcmp(source->format, stream->format) == 0 &&
                source->cell_bytes == stream->cell_bytes &&
                source->tokens_per_state == stream->tokens_per_state &&
                source->axis_count == stream->axis_count &&
                kvferry_layout_group(layout, source->group)->kind == target->group->kind;
    bool paged = target->group->kind == KVFERRY_GROUP_PAGED;
    for (uint32_t i = 0; same && i < stream->axis_count; i++)
        same = same_axis(source, &stream->axes[i],
                         paged && strcmp(stream->axes[i].name, "token") == 0);
    return !same;
}

/* The first source stream of the same layer and name. An optional stream that differs is left out;
 * of required ones the planner refuses a difference. */
static const kvferry_stream *find_stream(const oracle_worker *sources, size_t source_count,
                                         const view_stream *target, bool by_alias)
{
    const kvferry_stream *wanted = target->stream;
    for (size_t s = 0; s < source_count; s++)
        for (uint32_t i = 0; i < kvferry_layout_stream_count(sources[s].layout); i++) {
            const kvferry_stream *source = kvferry_layout_stream(sources[s].layout, i);
            if (source->policy == KVFERRY_POLICY_LOCAL || strcmp(source->name, wanted->name) != 0)
                continue;
            bool fits =
                by_alias ? lists_alias(wanted, source->layer) || lists_alias(source, wanted->layer)
                         : strcmp(source->layer, wanted->layer) == 0;
            if (!fits)
                continue;
            return wanted->policy == KVFERRY_POLICY_OPTIONAL &&
                           differs(target, sources[s].layout, source)
                       ? NULL
                       : source;
        }
    return NULL;
}

void view_match_streams(const view_layout *target, const oracle_worker *sources,
                        size_t source_count, const kvferry_stream **matches)
{
    for (uint32_t i = 0; i < target->stream_count; i++) {
        const view_stream *stream = &target->streams[i];
        matches[i] = NULL;
        if (stream->stream->policy == KVFERRY_POLICY_LOCAL)
            continue;
        matches[i] = find_stream(sources, source_count, stream, false);
        if (!matches[i])
            matches[i] = find_stream(sources, source_count, stream, true);
    }
}
