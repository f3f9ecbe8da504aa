/* SPDX-License-Identifier: Apache-2.0 */
/* A spec's documents and requests. */
#include <stdlib.h>
#include <string.h>

#include "random.h"

/* --- one worker's memory -------------------------------------------------------------------- */

typedef struct placed_stream {
    bool here;
    uint64_t extents[DIM_COUNT],
        strides[DIM_COUNT]; /* by dimension; the page and member ones too */
    uint64_t offset;        /* from the bundle's beginning, then in the segment */
    uint64_t page_stride, pages;
} placed_stream;

typedef struct placement {
    const random_spec *spec;
    const side_spec *side;
    uint32_t rank, stage;
    placed_stream streams[MAX_STREAMS];
    uint64_t segment_bytes[4];
} placement;

static uint64_t block_tokens(const placement *placing, int stream)
{
    return placing->side->groups[placing->side->streams[stream].group].block_tokens;
}

static void find_streams(placement *placing)
{
    for (int i = 0; i < placing->spec->stream_count; i++) {
        const stream_spec *spec = &placing->spec->streams[i];
        const side_stream *side = &placing->side->streams[i];
        placed_stream *placed = &placing->streams[i];
        placed->here = !spec->dropped && !side->absent && (side->stages >> placing->stage & 1);
        for (int d = 0; d < DIM_COUNT; d++)
            placed->extents[d] = 1;
        for (int a = 0; a < spec->axis_count; a++) {
            placed->extents[DIM_FIRST + a] = side->cuts[a][placing->rank].extent;
            placed->here = placed->here && placed->extents[DIM_FIRST + a];
        }
        if (spec->kind == KVFERRY_GROUP_PAGED)
            placed->extents[DIM_TOKEN] =
                block_tokens(placing, i) / side->ratio / spec->tokens_per_state;
        placed->pages =
            (uint64_t)placing->side->groups[side->group].blocks * side->ratio + side->extra_pages;
        placed->extents[DIM_PAGE] = placed->pages;
    }
}

/* Lays out the streams of a bundle from the innermost dimension outward, without the page unless it
 * is inside. Returns its bytes. */
static uint64_t place_bundle(placement *placing, const int *members, int count, bool page_inside)
{
    const side_stream *side = &placing->side->streams[members[0]];
    uint64_t sizes[MAX_STREAMS], together = 0;
    bool joined = false;
    for (int m = 0; m < count; m++) {
        sizes[m] = placing->spec->streams[members[m]].cell_bytes;
        placing->streams[members[m]].offset = 0;
    }
    for (int i = DIM_COUNT; i-- > 0;) {
        int dim = side->order[i];
        uint64_t padding = side->padding[dim];
        if (dim == DIM_PAGE && !page_inside)
            continue;
        if (dim == DIM_MEMBER) {
            joined = true;
            for (int m = 0; m < count; m++) {
                placing->streams[members[m]].offset = together;
                together += sizes[m] + (m + 1 < count ? padding : 0);
            }
            continue;
        }
        for (int m = 0; m < count; m++) {
            placed_stream *placed = &placing->streams[members[m]];
            uint64_t *size = joined ? &together : &sizes[m];
            if (joined && m) {
                placed->strides[dim] = placing->streams[members[0]].strides[dim];
                continue;
            }
            placed->strides[dim] = *size + (placed->extents[dim] > 1 ? padding : 0);
            *size = placed->strides[dim] * placed->extents[dim];
        }
    }
    return together;
}

static int bundle_members(const placement *placing, int first, int *members)
{
    int count = 0;
    uint8_t bundle = placing->side->streams[first].bundle;
    for (int i = 0; i < placing->spec->stream_count; i++) {
        if (!placing->streams[i].here || placing->side->streams[i].bundle != bundle)
            continue;
        if (i < first)
            return 0; /* placed with an earlier one */
        members[count++] = i;
    }
    return count;
}

/* The bundles of a group in an area, one behind another from `start` in a page. */
static uint64_t place_group(placement *placing, int area, int group, uint64_t start)
{
    uint64_t at = start;
    for (int i = 0; i < placing->spec->stream_count; i++) {
        const side_stream *side = &placing->side->streams[i];
        int members[MAX_STREAMS];
        if (!placing->streams[i].here || side->area != area || side->group != group)
            continue;
        int count = bundle_members(placing, i, members);
        if (count == 0)
            continue;
        at += side->gap;
        uint64_t bytes = place_bundle(placing, members, count, false);
        for (int m = 0; m < count; m++)
            placing->streams[members[m]].offset += at;
        at += bytes;
    }
    return at - start;
}

static uint64_t group_ratio(const placement *placing, int area, int group)
{
    for (int i = 0; i < placing->spec->stream_count; i++)
        if (placing->side->streams[i].area == area && placing->side->streams[i].group == group)
            return placing->side->streams[i].ratio;
    return 1;
}

/* Rows of equal length, one a block; groups over one another or side by side. Returns the row. */
static uint64_t place_rows(placement *placing, int area, uint64_t row, bool measure)
{
    const side_area *spec = &placing->side->areas[area];
    uint64_t need = 0, at = 0;
    for (int g = 0; g < MAX_GROUPS; g++) {
        uint64_t ratio = group_ratio(placing, area, g);
        uint64_t bytes = place_group(placing, area, g, spec->overlay ? 0 : at);
        at += bytes;
        need = bytes * ratio > need ? bytes * ratio : need;
        for (int i = 0; !measure && i < placing->spec->stream_count; i++)
            if (placing->side->streams[i].area == area && placing->side->streams[i].group == g)
                placing->streams[i].page_stride = row / ratio;
    }
    return spec->overlay || need > at ? need : at;
}

static void place_area(placement *placing, int area)
{
    const side_area *spec = &placing->side->areas[area];
    int first = -1, members[MAX_STREAMS];
    for (int i = placing->spec->stream_count; i-- > 0;)
        if (placing->streams[i].here && placing->side->streams[i].area == area)
            first = i;
    if (first < 0)
        return;
    uint64_t *end = &placing->segment_bytes[spec->segment], last = 0;
    uint64_t start = (*end ? *end : placing->spec->far) + spec->gap;
    if (placing->side->streams[first].page_inside) {
        int count = bundle_members(placing, first, members);
        last = place_bundle(placing, members, count, true);
        for (int m = 0; m < count; m++)
            placing->streams[members[m]].page_stride =
                placing->streams[members[m]].strides[DIM_PAGE];
    } else {
        uint64_t row = place_rows(placing, area, 0, true) + spec->padding;
        uint64_t multiple = 1;
        for (int g = 0; g < MAX_GROUPS; g++) {
            uint64_t ratio = group_ratio(placing, area, g), step = multiple;
            while (multiple % ratio)
                multiple += step;
        }
        row = (row + multiple - 1) / multiple * multiple;
        place_rows(placing, area, row, false);
    }
    uint64_t tight = 0;
    for (int i = 0; i < placing->spec->stream_count; i++) {
        placed_stream *placed = &placing->streams[i];
        if (!placed->here || placing->side->streams[i].area != area)
            continue;
        uint64_t used = placed->offset + placing->spec->streams[i].cell_bytes +
                        (placed->pages - 1) * placed->page_stride;
        for (int d = DIM_TOKEN; d <= DIM_SECOND; d++)
            used += (placed->extents[d] - 1) * placed->strides[d];
        tight = used > tight ? used : tight;
        if (placed->pages * placed->page_stride > last)
            last = placed->pages * placed->page_stride;
        placed->offset += start;
    }
    *end = start + (spec->tight || tight > last ? tight : last);
}

/* --- documents ------------------------------------------------------------------------------ */

void spec_group_name(int side, int group, char name[12])
{
    snprintf(name, 12, side == SOURCE ? "p%d" : "group.%d", group);
}

static uint32_t builder_group(kvferry_layout_builder *builder, const placement *placing, int which,
                              int group)
{
    char name[12];
    const side_group *side = &placing->side->groups[group];
    spec_group_name(which, group, name);
    kvferry_group made = {
        .name = name,
        .kind = side->kind,
        .block_tokens = side->block_tokens,
        .window = side->kind != KVFERRY_GROUP_PAGED || side->window_class == 0 ? 0
                  : which == SOURCE ? placing->spec->source_window
                                    : placing->spec->window[side->window_class],
        .null_block = side->null_block,
    };
    return kvferry_layout_builder_group(builder, &made);
}

static void builder_stream(kvferry_layout_builder *builder, const placement *placing, int index,
                           uint32_t group)
{
    const stream_spec *spec = &placing->spec->streams[index];
    const side_stream *side = &placing->side->streams[index];
    const placed_stream *placed = &placing->streams[index];
    kvferry_axis axes[3];
    uint32_t count = 0;
    for (int i = 0; i < DIM_COUNT; i++) { /* axes are listed in the order of random_memory */
        int dim = side->order[i], a = dim - DIM_FIRST;
        if (dim == DIM_TOKEN && spec->kind == KVFERRY_GROUP_PAGED)
            axes[count++] =
                (kvferry_axis){"token", 0, placed->extents[dim], 0, placed->strides[dim]};
        else if ((dim == DIM_FIRST || dim == DIM_SECOND) && a < spec->axis_count)
            axes[count++] =
                (kvferry_axis){side->lie == LIE_AXIS && a == 0 ? "other" : spec->axes[a].name,
                               side->cuts[a][placing->rank].start, placed->extents[dim],
                               spec->axes[a].global + (side->lie == LIE_GLOBAL && a == 0 ? 1u : 0u),
                               placed->strides[dim]};
    }
    char own[24], other[24];
    snprintf(own, sizeof own, "layers.%u", spec->layer);
    snprintf(other, sizeof other, "shared.%u", spec->layer);
    const char *aliases[1] = {side->naming == NAME_OTHER_WITH_ALIAS ? own : other};
    kvferry_stream stream = {
        .layer = side->naming == NAME_OWN ? own : other,
        .name = spec->name,
        .dtype = side->lie == LIE_DTYPE ? "float16" : spec->dtype,
        .format = side->lie == LIE_FORMAT ? "another" : spec->format,
        .group = group,
        .segment = placing->side->areas[side->area].segment,
        .offset = placed->offset,
        .pages = placed->pages,
        .page_stride = placed->page_stride,
        .page_tokens =
            spec->kind == KVFERRY_GROUP_PAGED ? block_tokens(placing, index) / side->ratio : 0,
        .tokens_per_state = spec->tokens_per_state,
        .cell_bytes = spec->cell_bytes - (side->lie == LIE_CELL ? 1u : 0u),
        .policy = (kvferry_policy)side->policy,
        .axes = axes,
        .axis_count = count,
        .aliases = aliases,
        .alias_count = side->naming == NAME_OTHER_WITH_ALIAS || side->names_other,
    };
    kvferry_layout_builder_stream(builder, &stream);
}

static kvferry_layout *round_trip(const random_spec *spec, kvferry_layout *layout,
                                  kvferry_report *report)
{
    kvferry_layout *again = NULL;
    void *data = NULL;
    char *text = NULL;
    size_t size = 0;
    if (spec->round_trip == 1 && kvferry_layout_write_json(layout, &text, &size) == KVFERRY_OK)
        kvferry_layout_read_json(text, size, &again, report);
    else if (kvferry_layout_write_msgpack(layout, &data, &size) == KVFERRY_OK)
        kvferry_layout_read_msgpack(data, size, &again, report);
    kvferry_free(text);
    kvferry_free(data);
    kvferry_layout_free(layout);
    return again;
}

static kvferry_layout *build_worker(const random_spec *spec, int which, uint32_t rank,
                                    uint32_t stage, kvferry_report *report)
{
    const side_spec *side = &spec->sides[which];
    placement placing = {.spec = spec, .side = side, .rank = rank, .stage = stage};
    find_streams(&placing);
    for (int i = 0; i < MAX_STREAMS; i++)
        place_area(&placing, i);
    kvferry_worker worker = {rank, side->tp, stage, side->pp, side->dp - 1u, side->dp};
    bool other = which == SOURCE && (spec->fault.kind == FAULT_IDENTITY ||
                                     (spec->fault.kind == FAULT_STREAM && spec->fault.second));
    kvferry_identity identity = {other ? "random-2" : "random", "", which == SOURCE ? "" : "draft"};
    kvferry_layout_builder *builder = NULL;
    kvferry_layout *layout = NULL;
    if (kvferry_layout_builder_create(which == SOURCE ? "prefill" : "decode", &worker, &identity,
                                      &builder) != KVFERRY_OK)
        return NULL;
    for (int i = 0; i < side->segments; i++) {
        char name[12];
        snprintf(name, sizeof name, "memory%d", i);
        uint64_t bytes = placing.segment_bytes[i];
        kvferry_layout_builder_segment(builder, name, bytes ? bytes : 1);
    }
    uint32_t groups[MAX_GROUPS];
    bool known[MAX_GROUPS] = {false};
    for (int n = 0; n < 2 * spec->stream_count; n++) {
        int i = n % spec->stream_count;
        if (side->shuffled_documents)
            i = spec->stream_count - 1 - i;
        int group = side->streams[i].group;
        if (!placing.streams[i].here)
            continue;
        if (n < spec->stream_count && !known[group])
            groups[group] = builder_group(builder, &placing, which, group);
        known[group] = true;
        if (n >= spec->stream_count)
            builder_stream(builder, &placing, i, groups[group]);
    }
    kvferry_layout_builder_finish(builder, &layout, report);
    kvferry_layout_builder_free(builder);
    if (layout && (spec->round_trip == 1 || spec->round_trip == 2))
        layout = round_trip(spec, layout, report);
    return layout;
}

bool build_side(const random_spec *spec, int which, built_side *built, kvferry_report *report)
{
    const side_spec *side = &spec->sides[which];
    built->count = 0;
    for (uint32_t stage = 0; stage < side->pp; stage++)
        for (uint32_t rank = 0; rank < side->tp; rank++) {
            kvferry_layout *layout = build_worker(spec, which, rank, stage, report);
            if (!layout) {
                built_side_free(built);
                return false;
            }
            built->layouts[built->count++] = layout;
        }
    /* Sources come in any order. */
    random_dice dice = {spec->order};
    for (size_t i = built->count; which == SOURCE && i > 1; i--) {
        size_t j = dice_below(&dice, (uint32_t)i);
        kvferry_layout *kept = built->layouts[i - 1];
        built->layouts[i - 1] = built->layouts[j];
        built->layouts[j] = kept;
    }
    return true;
}

void built_side_free(built_side *built)
{
    for (size_t i = 0; i < built->count; i++)
        kvferry_layout_free(built->layouts[i]);
    built->count = 0;
}

/* --- requests ------------------------------------------------------------------------------- */

static bool group_lives(const random_spec *spec, int side, int group)
{
    for (int i = 0; i < spec->stream_count; i++)
        if (!spec->streams[i].dropped && !spec->sides[side].streams[i].absent &&
            spec->sides[side].streams[i].group == group)
            return true;
    return false;
}

static bool has_group(const kvferry_layout *layout, const char *name)
{
    for (uint32_t i = 0; i < kvferry_layout_group_count(layout); i++)
        if (strcmp(kvferry_layout_group(layout, i)->name, name) == 0)
            return true;
    return false;
}

void build_request(const random_spec *spec, int index, const kvferry_layout *target,
                   built_request *built)
{
    const request_spec *request = &spec->requests[index];
    memset(&built->request, 0, sizeof built->request);
    snprintf(built->id, sizeof built->id, "r%d", index);
    size_t counts[2] = {0, 0};
    for (int s = 0; s < 2; s++)
        for (int g = 0; g < spec->group_count[s]; g++) {
            const table_spec *table = &request->tables[s][g];
            char *name = built->names[s][counts[s]];
            spec_group_name(s, g, name);
            if (!table->listed || !group_lives(spec, s, g) ||
                (s == TARGET && target && !has_group(target, name)))
                continue;
            uint32_t *blocks = built->blocks[s][counts[s]];
            for (int i = 0; i < table->count; i++)
                blocks[i] = table->ids[i] == NULL_ID ? (uint32_t)spec->sides[s].groups[g].null_block
                                                     : (uint32_t)table->ids[i];
            built->tables[s][counts[s]++] =
                (kvferry_block_table){name, table->first_token, blocks, table->count};
        }
    built->request = (kvferry_request){
        .transfer_id = built->id,
        .source_tokens = request->source_tokens,
        .target_tokens = request->target_tokens,
        .source = built->tables[SOURCE],
        .source_count = counts[SOURCE],
        .target = built->tables[TARGET],
        .target_count = counts[TARGET],
        .whole_blocks = request->whole_blocks,
    };
}
