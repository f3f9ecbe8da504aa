/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of --break, what they need, and the documents that a faulty sender believes in. */
#include "demo_fault.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *describe, *needs;
} faults[] = {
    [DEMO_SOUND] = {"", "", NULL},
    [DEMO_CONV_WHOLE] = {"conv-whole",
                         "each sender moves the convolution state as one piece instead of by projection",
                         "convolution states, and another TP size on each side"},
    [DEMO_PADDED_LENGTH] = {"padded-length",
                            "each sender takes the padded length of a page for the length of what is in it",
                            "pages on the decode side that are padded behind several streams"},
    [DEMO_HALF_HEADS] = {"half-heads",
                         "each sender sends each of two ranks half of the KV head that both hold whole",
                         "KV heads that are replicated on the decode side (TP > KV heads)"},
    [DEMO_ROW_STRIDE] = {"row-stride",
                         "each sender takes the row stride (a block of all layers) for the page stride",
                         "pages on the decode side that lie closer together than rows do"},
    [DEMO_KERNEL_BLOCK] = {"kernel-block",
                           "each sender takes the ids of blocks for the ids of kernel blocks",
                           "blocks of several kernel blocks on the decode side"},
    [DEMO_LATE_WRITE] = {"late-write",
                         "one sender says that all is done before one copy is on its way", NULL},
    [DEMO_LOST_WRITE] = {"lost-write", "one sender leaves one copy out and says that all is done", NULL},
};

demo_fault demo_fault_parse(const char *name)
{
    for (int i = DEMO_CONV_WHOLE; name && i <= DEMO_LOST_WRITE; i++)
        if (strcmp(faults[i].name, name) == 0)
            return (demo_fault)i;
    return DEMO_SOUND;
}

const char *demo_fault_name(demo_fault fault) { return faults[fault].name; }
const char *demo_fault_describe(demo_fault fault) { return faults[fault].describe; }

/* --- what the documents show ----------------------------------------------------------------- */

static const kvferry_axis *find_axis(const kvferry_stream *stream, const char *name)
{
    for (uint32_t i = 0; i < stream->axis_count; i++)
        if (strcmp(stream->axes[i].name, name) == 0)
            return &stream->axes[i];
    return NULL;
}

static bool is_projection(const kvferry_stream *stream)
{
    return strncmp(stream->name, "conv.", 5) == 0 && find_axis(stream, "channel");
}

/* A KV head that other ranks hold too. */
static bool is_replicated(const kvferry_layout *layout, const kvferry_stream *stream)
{
    const kvferry_axis *heads = find_axis(stream, "kv_head");
    return heads && heads->extent * kvferry_layout_worker(layout)->tp_size > heads->global;
}

/* Bytes from the first cell of a page to past its last one. */
static uint64_t stream_span(const kvferry_stream *stream)
{
    uint64_t span = stream->cell_bytes;
    for (uint32_t i = 0; i < stream->axis_count; i++)
        span += (stream->axes[i].extent - 1) * stream->axes[i].stride;
    return span;
}

/* Whether two streams of a group lie in the same row. */
static bool same_row(const kvferry_stream *a, const kvferry_stream *b)
{
    uint64_t apart = a->offset > b->offset ? a->offset - b->offset : b->offset - a->offset;
    return a->group == b->group && a->segment == b->segment && a->page_stride == b->page_stride &&
           apart < a->page_stride;
}

demo_row demo_fault_row(const kvferry_layout *layout, const kvferry_stream *stream)
{
    demo_row row = {stream->offset, stream->offset, stream->offset + stream_span(stream)};
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        const kvferry_stream *other = kvferry_layout_stream(layout, i);
        if (!same_row(stream, other))
            continue;
        uint64_t end = other->offset + stream_span(other);
        if (other->offset < row.start)
            row.start = other->offset;
        if (other->offset > row.last)
            row.last = other->offset;
        if (end > row.end)
            row.end = end;
    }
    return row;
}

uint64_t demo_fault_row_stride(const kvferry_layout *layout, const kvferry_stream *stream)
{
    return kvferry_layout_segment(layout, stream->segment)->bytes / stream->pages;
}

uint64_t demo_fault_ratio(const kvferry_layout *layout, const kvferry_stream *stream)
{
    const kvferry_group *group = kvferry_layout_group(layout, stream->group);
    return group->kind == KVFERRY_GROUP_PAGED ? group->block_tokens / stream->page_tokens : 1;
}

static bool stream_serves(demo_fault fault, const tool_side sides[DEMO_ROLES],
                          const kvferry_layout *layout, const kvferry_stream *stream)
{
    demo_row row = demo_fault_row(layout, stream);
    switch (fault) {
    case DEMO_CONV_WHOLE:
        return is_projection(stream) && kvferry_layout_worker(layout)->tp_size !=
                                            kvferry_layout_worker(sides[DEMO_PREFILL].layouts[0])->tp_size;
    case DEMO_PADDED_LENGTH:
        return row.end - row.start < stream->page_stride && row.last > row.start;
    case DEMO_HALF_HEADS:
        return is_replicated(layout, stream) && stream->cell_bytes % 2 == 0;
    case DEMO_ROW_STRIDE:
        return demo_fault_row_stride(layout, stream) > stream->page_stride;
    case DEMO_KERNEL_BLOCK:
        return demo_fault_ratio(layout, stream) > 1;
    default:
        return true;
    }
}

const char *demo_fault_needs(demo_fault fault, const tool_side sides[DEMO_ROLES])
{
    for (size_t w = 0; w < sides[DEMO_DECODE].count; w++) {
        const kvferry_layout *layout = sides[DEMO_DECODE].layouts[w];
        for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++)
            if (stream_serves(fault, sides, layout, kvferry_layout_stream(layout, i)))
                return NULL;
    }
    return faults[fault].needs;
}

/* --- wrong documents ------------------------------------------------------------------------- */

/* The projections of the layer of stream `first` as one stream of all their channels: what each rank holds
 * is one stretch of them. false where `first` is not its layer's first projection. */
static bool merge_projections(const kvferry_layout *layout, uint32_t first, kvferry_stream *merged,
                              kvferry_axis *axes)
{
    const kvferry_stream *stream = kvferry_layout_stream(layout, first);
    uint64_t extent = 0, global = 0;
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        const kvferry_stream *other = kvferry_layout_stream(layout, i);
        if (!is_projection(other) || strcmp(other->layer, stream->layer) != 0)
            continue;
        if (i < first)
            return false;
        extent += find_axis(other, "channel")->extent;
        global += find_axis(other, "channel")->global;
        if (other->offset < merged->offset)
            merged->offset = other->offset;
    }
    for (uint32_t i = 0; i < stream->axis_count; i++)
        if (strcmp(axes[i].name, "channel") == 0) {
            axes[i].extent = extent;
            axes[i].global = global;
            axes[i].start = kvferry_layout_worker(layout)->tp_rank * extent;
        }
    merged->name = "conv";
    return true;
}

/* Each replica as if it held one half of each cell, at the cell's beginning; others hold both halves. */
static void halve_cells(const kvferry_layout *layout, kvferry_stream *stream, kvferry_axis *axes)
{
    const kvferry_worker *worker = kvferry_layout_worker(layout);
    bool replicated = is_replicated(layout, stream);
    stream->cell_bytes /= 2;
    axes[stream->axis_count++] = (kvferry_axis){.name = "half",
                                                .start = replicated ? worker->tp_rank % 2 : 0,
                                                .extent = replicated ? 1 : 2,
                                                .global = 2,
                                                .stride = stream->cell_bytes};
}

static void add_stream(kvferry_layout_builder *builder, demo_fault fault,
                       const kvferry_layout *layout, uint32_t index)
{
    kvferry_stream stream = *kvferry_layout_stream(layout, index);
    kvferry_axis *axes = tool_alloc(stream.axis_count + 1, sizeof *axes);
    memcpy(axes, stream.axes, stream.axis_count * sizeof *axes);
    stream.axes = axes;
    bool take = true;
    if (fault == DEMO_CONV_WHOLE && is_projection(&stream))
        take = merge_projections(layout, index, &stream, axes);
    else if (fault == DEMO_HALF_HEADS && find_axis(&stream, "kv_head"))
        halve_cells(layout, &stream, axes);
    if (take)
        kvferry_layout_builder_stream(builder, &stream);
    free(axes);
}

kvferry_layout *demo_fault_layout(demo_fault fault, kvferry_layout *layout)
{
    if (fault != DEMO_CONV_WHOLE && fault != DEMO_HALF_HEADS)
        return layout;
    kvferry_layout_builder *builder = NULL;
    if (kvferry_layout_builder_create(kvferry_layout_engine_id(layout), kvferry_layout_worker(layout),
                                      kvferry_layout_identity(layout), &builder) != KVFERRY_OK)
        tool_no_memory();
    for (uint32_t i = 0; i < kvferry_layout_segment_count(layout); i++) {
        const kvferry_segment *segment = kvferry_layout_segment(layout, i);
        kvferry_layout_builder_segment(builder, segment->name, segment->bytes);
    }
    for (uint32_t i = 0; i < kvferry_layout_group_count(layout); i++)
        kvferry_layout_builder_group(builder, kvferry_layout_group(layout, i));
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++)
        add_stream(builder, fault, layout, i);
    kvferry_layout *believed = NULL;
    kvferry_report *report = tool_report();
    kvferry_status status = kvferry_layout_builder_finish(builder, &believed, report);
    if (status != KVFERRY_OK) {
        const kvferry_reason *reason = kvferry_report_get(report, 0);
        tool_log("the faulty document is no document: %s",
                 reason ? reason->message : kvferry_status_describe(status));
    }
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
    return believed;
}
