/* SPDX-License-Identifier: Apache-2.0 */
/* Rows: where the pages of a group's layers lie side by side, and what of them is padding. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

/* Streams of one group of one worker, in the order of memory. */
static int by_memory(const void *a, const void *b)
{
    const kvferry_stream *x = *(const kvferry_stream *const *)a;
    const kvferry_stream *y = *(const kvferry_stream *const *)b;
    if (x->segment != y->segment)
        return x->segment < y->segment ? -1 : 1;
    if (x->page_stride != y->page_stride)
        return x->page_stride < y->page_stride ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Rows of one group that look the same, in one worker or several, are one line of the table. */
static bool alike(const explain_row *a, const explain_row *b)
{
    return strcmp(a->group, b->group) == 0 && a->kind == b->kind &&
           a->block_tokens == b->block_tokens && a->window == b->window &&
           a->page_tokens == b->page_tokens && a->row_bytes == b->row_bytes &&
           a->row_layers == b->row_layers && a->payload == b->payload &&
           explain_list_equal(&a->streams, &b->streams);
}

static void take_row(explain_side *side, explain_row *row)
{
    size_t r = 0;
    while (r < side->row_count && !alike(&side->rows[r], row))
        r++;
    if (r == side->row_count) {
        side->rows = tool_grow(side->rows, r + 1, sizeof(*side->rows));
        side->rows[side->row_count++] = *row;
        return;
    }
    explain_row *known = &side->rows[r];
    known->blocks = row->blocks < known->blocks ? row->blocks : known->blocks;
    explain_list_add_once(&known->workers, row->workers.items[0]);
    for (size_t i = 0; i < row->layers.count; i++)
        explain_list_add_once(&known->layers, row->layers.items[i]);
    tool_list_free(&row->workers);
    tool_list_free(&row->layers);
    tool_list_free(&row->streams);
}

/* One row: streams[0 .. count-1]. */
static void make_row(explain_side *side, size_t worker, const kvferry_group *group, uint64_t blocks,
                     const kvferry_stream *const *streams, size_t count)
{
    explain_row row = {.group = group->name,
                       .kind = group->kind,
                       .block_tokens = group->block_tokens,
                       .window = group->window,
                       .blocks = blocks,
                       .page_tokens = streams[0]->page_tokens,
                       .row_bytes = streams[0]->page_stride};
    tool_list_add(&row.workers, side->workers.names[worker]);
    for (size_t s = 0; s < count; s++) {
        row.payload += explain_page_payload(streams[s]);
        explain_list_add_once(&row.layers, streams[s]->layer);
        explain_list_add_once(&row.streams, streams[s]->name);
    }
    row.row_layers = row.layers.count;
    take_row(side, &row);
}

static void study_group(explain_side *side, size_t worker, uint32_t index)
{
    const kvferry_layout *layout = side->workers.layouts[worker];
    uint32_t total = kvferry_layout_stream_count(layout);
    const kvferry_stream **streams = tool_alloc(total, sizeof(*streams));
    size_t count = 0;
    for (uint32_t s = 0; s < total; s++)
        if (kvferry_layout_stream(layout, s)->group == index)
            streams[count++] = kvferry_layout_stream(layout, s);
    qsort(streams, count, sizeof(*streams), by_memory);
    for (size_t start = 0; start < count;) {
        const kvferry_stream *first = streams[start];
        size_t end = start + 1;
        while (end < count && streams[end]->segment == first->segment &&
               streams[end]->page_stride == first->page_stride &&
               streams[end]->offset - first->offset < first->page_stride)
            end++;
        make_row(side, worker, kvferry_layout_group(layout, index),
                 kvferry_layout_group_blocks(layout, index), streams + start, end - start);
        start = end;
    }
    free(streams);
}

void explain_rows_study(explain_side *side)
{
    for (size_t w = 0; w < side->workers.count; w++)
        for (uint32_t g = 0; g < kvferry_layout_group_count(side->workers.layouts[w]); g++)
            study_group(side, w, g);
}
