/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a failing spec smaller: tries one simplification after another, and keeps each after which
 * the same finding is still there. */
#include <string.h>

#include "random.h"

/* A simplification of a spec at a place; false: nothing to do there. */
typedef bool shrink_step(random_spec *spec, int side, int index);

static bool drop_request(random_spec *spec, int side, int index)
{
    if (side || index >= spec->request_count || spec->requests[index].dropped)
        return false;
    return spec->requests[index].dropped = true;
}

static bool drop_stream(random_spec *spec, int side, int index)
{
    if (side || index >= spec->stream_count || spec->streams[index].dropped)
        return false;
    return spec->streams[index].dropped = true;
}

static bool unlist_group(random_spec *spec, int side, int index)
{
    bool done = false;
    for (int r = 0; r < spec->request_count && index < MAX_GROUPS; r++) {
        done = done || spec->requests[r].tables[side][index].listed;
        spec->requests[r].tables[side][index].listed = false;
    }
    return done;
}

static bool fewer_tokens(random_spec *spec, int side, int index)
{
    if (side || index >= spec->request_count || spec->requests[index].target_tokens < 2)
        return false;
    spec->requests[index].target_tokens--;
    spec->requests[index].source_tokens--;
    return true;
}

static bool partial_blocks(random_spec *spec, int side, int index)
{
    if (side || index >= spec->request_count || !spec->requests[index].whole_blocks)
        return false;
    spec->requests[index].whole_blocks = false;
    return true;
}

static bool shorter_table(random_spec *spec, int side, int index)
{
    table_spec *table =
        &spec->requests[index % MAX_REQUESTS].tables[side][index / MAX_REQUESTS % MAX_GROUPS];
    if (index >= MAX_REQUESTS * MAX_GROUPS || table->count < 2)
        return false;
    table->count--;
    return true;
}

static bool one_stage(random_spec *spec, int side, int index)
{
    if (index || spec->sides[side].pp == 1)
        return false;
    spec->sides[side].pp = 1;
    for (int i = 0; i < MAX_STREAMS; i++)
        spec->sides[side].streams[i].stages = 1;
    return true;
}

static void whole_cuts(random_spec *spec, int side, int stream, int axis)
{
    for (int r = 0; r < MAX_RANKS; r++)
        spec->sides[side].streams[stream].cuts[axis][r] =
            (cut_spec){0, spec->streams[stream].axes[axis].global};
}

static bool whole_boxes(random_spec *spec, int side, int index)
{
    side_stream before = spec->sides[side].streams[index % MAX_STREAMS];
    if (index >= spec->stream_count)
        return false;
    for (int a = 0; a < spec->streams[index].axis_count; a++)
        whole_cuts(spec, side, index, a);
    return memcmp(&before, &spec->sides[side].streams[index], sizeof before) != 0;
}

static bool one_rank(random_spec *spec, int side, int index)
{
    if (index || spec->sides[side].tp == 1)
        return false;
    spec->sides[side].tp = 1;
    for (int i = 0; i < spec->stream_count; i++)
        whole_boxes(spec, side, i);
    return true;
}

static bool fewer_ranks(random_spec *spec, int side, int index)
{
    side_spec *spec_side = &spec->sides[side];
    if (index || spec_side->tp == 1)
        return false;
    uint32_t tp = --spec_side->tp;
    for (int i = 0; i < spec->stream_count; i++)
        for (int a = 0; a < spec->streams[i].axis_count; a++)
            for (uint32_t r = 0; a == 0 && r < tp; r++) {
                uint32_t global = spec->streams[i].axes[a].global;
                uint32_t start = r * global / tp, end = (r + 1) * global / tp;
                spec_side->streams[i].cuts[a][r] =
                    (cut_spec){(uint16_t)start, (uint16_t)(end > start ? end - start : 1)};
            }
    return true;
}

static bool shorter_axis(random_spec *spec, int side, int index)
{
    axis_spec *axis = &spec->streams[index / 2 % MAX_STREAMS].axes[index % 2];
    if (side || index >= 2 * spec->stream_count || axis->global < 2)
        return false;
    axis->global--;
    whole_cuts(spec, SOURCE, index / 2, index % 2);
    whole_cuts(spec, TARGET, index / 2, index % 2);
    return true;
}

static bool small_cell(random_spec *spec, int side, int index)
{
    if (side || index >= spec->stream_count || spec->streams[index].cell_bytes <= 2)
        return false;
    spec->streams[index].cell_bytes = 2;
    return true;
}

static bool plain_stream(random_spec *spec, int side, int index)
{
    if (index >= spec->stream_count)
        return false;
    side_stream *stream = &spec->sides[side].streams[index], before = *stream;
    memset(stream->padding, 0, sizeof stream->padding);
    stream->gap = stream->extra_pages = 0;
    return memcmp(stream, &before, sizeof before) != 0;
}

static bool plain_order(random_spec *spec, int side, int index)
{
    if (index >= spec->stream_count)
        return false;
    side_stream *stream = &spec->sides[side].streams[index], before = *stream;
    static const uint8_t order[DIM_COUNT] = {DIM_PAGE, DIM_MEMBER, DIM_TOKEN, DIM_FIRST,
                                             DIM_SECOND};
    memcpy(stream->order, order, sizeof order);
    return memcmp(stream, &before, sizeof before) != 0;
}

static bool plain_ratio(random_spec *spec, int side, int index)
{
    if (index >= spec->stream_count || spec->sides[side].streams[index].ratio == 1)
        return false;
    spec->sides[side].streams[index].ratio = 1;
    return true;
}

static bool plain_name(random_spec *spec, int side, int index)
{
    if (side || index >= spec->stream_count)
        return false;
    bool done = false;
    for (int s = 0; s < 2; s++) {
        side_stream *stream = &spec->sides[s].streams[index];
        done = done || stream->naming != NAME_OWN || stream->names_other;
        stream->naming = NAME_OWN;
        stream->names_other = false;
    }
    return done;
}

static bool plain_area(random_spec *spec, int side, int index)
{
    if (index >= MAX_STREAMS)
        return false;
    side_area *area = &spec->sides[side].areas[index], before = *area;
    area->gap = area->padding = area->segment = 0;
    area->tight = false;
    return memcmp(area, &before, sizeof before) != 0;
}

static bool plain_rest(random_spec *spec, int side, int index)
{
    if (index)
        return false;
    bool done =
        spec->sides[side].shuffled_documents || spec->round_trip || spec->sides[side].dp > 1;
    spec->sides[side].dp = 1;
    spec->sides[side].shuffled_documents = false;
    spec->round_trip = 0;
    return done;
}

void spec_shrink(random_spec *spec, bool naive, random_finding *finding)
{
    static shrink_step *const steps[] = {
        drop_request, one_stage,    one_rank,    drop_stream,  unlist_group, fewer_ranks,
        whole_boxes,  shorter_axis, plain_order, plain_ratio,  plain_stream, plain_area,
        plain_name,   plain_rest,   small_cell,  fewer_tokens, partial_blocks,
        shorter_table};
    random_totals ignored = {0};
    for (bool progress = true; progress;) {
        progress = false;
        for (size_t s = 0; s < sizeof steps / sizeof *steps; s++)
            for (int side = 0; side < 2; side++)
                for (int index = 0; index < 2 * MAX_STREAMS; index++) {
                    random_spec smaller = *spec;
                    random_finding found;
                    if (!steps[s](&smaller, side, index))
                        continue;
                    run_spec(&smaller, naive, &found, &ignored);
                    if (strcmp(found.what, finding->what) != 0)
                        continue;
                    *spec = smaller;
                    *finding = found;
                    progress = true;
                }
    }
}
