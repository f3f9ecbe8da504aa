/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong copies of right documents. */
#include "demo_fault.h"

#include <stdlib.h>
#include <string.h>

/* Where a copy lands: a page of a stream of a group that owns the block. */
typedef struct landing {
    const kvferry_stream *stream;
    const demo_row *row;
    uint64_t page, within; /* `within` counts from the stream's first cell */
} landing;

/* What finding a landing needs: which blocks each target group was given by the request. */
typedef struct block_owners {
    const kvferry_layout *layout;
    unsigned char **named; /* per group, a byte per block */
    demo_row *rows;        /* per stream */
} block_owners;

static void owners_create(block_owners *owners, const kvferry_layout *layout,
                          const kvferry_request *request)
{
    uint32_t groups = kvferry_layout_group_count(layout);
    uint32_t streams = kvferry_layout_stream_count(layout);
    owners->layout = layout;
    owners->rows = tool_alloc(streams + 1u, sizeof *owners->rows);
    for (uint32_t i = 0; i < streams; i++)
        owners->rows[i] = demo_fault_row(layout, kvferry_layout_stream(layout, i));
    owners->named = tool_alloc(groups + 1u, sizeof *owners->named);
    for (uint32_t g = 0; g < groups; g++) {
        const kvferry_group *group = kvferry_layout_group(layout, g);
        uint64_t blocks = kvferry_layout_group_blocks(layout, g);
        owners->named[g] = tool_alloc((size_t)blocks + 1, 1);
        for (size_t t = 0; t < request->target_count; t++) {
            const kvferry_block_table *table = &request->target[t];
            if (strcmp(table->group, group->name) != 0)
                continue;
            for (size_t b = 0; b < table->block_count; b++)
                if (table->blocks[b] < blocks && (int64_t)table->blocks[b] != group->null_block)
                    owners->named[g][table->blocks[b]] = 1;
        }
    }
}

static void owners_free(block_owners *owners)
{
    for (uint32_t g = 0; g < kvferry_layout_group_count(owners->layout); g++)
        free(owners->named[g]);
    free(owners->named);
    free(owners->rows);
}

static bool find_landing(const block_owners *owners, uint32_t segment, uint64_t offset, landing *found)
{
    for (uint32_t i = 0; i < kvferry_layout_stream_count(owners->layout); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(owners->layout, i);
        if (stream->segment != segment || offset < stream->offset)
            continue;
        uint64_t page = (offset - stream->offset) / stream->page_stride;
        uint64_t within = (offset - stream->offset) % stream->page_stride;
        const demo_row *row = &owners->rows[i];
        if (page >= stream->pages || within >= row->end - stream->offset)
            continue;
        if (!owners->named[stream->group][page / demo_fault_ratio(owners->layout, stream)])
            continue;
        *found = (landing){stream, row, page, within};
        return true;
    }
    return false;
}

static void add_copy(demo_copies *copies, kvferry_copy copy)
{
    if (copies->count == copies->capacity) {
        copies->capacity = copies->capacity * 2 + 64;
        copies->items = tool_grow(copies->items, copies->capacity, sizeof *copies->items);
    }
    copies->items[copies->count++] = copy;
}

/* --- padded-length --------------------------------------------------------------------------- */

/* A copy that ends what is in a page goes on as if the last stream were a padded page long. false where it
 * does not end a page, or would leave a segment. */
static bool pad_copy(const block_owners *owners, const kvferry_layout *source, kvferry_copy *copy)
{
    landing last;
    uint64_t end = copy->target_offset + copy->bytes;
    if (!find_landing(owners, copy->target_segment, end - 1, &last))
        return false;
    const demo_row *row = last.row;
    uint64_t stride = last.stream->page_stride, more = row->last + stride - row->end;
    if (end != last.page * stride + row->end || row->last == row->start ||
        row->end - row->start >= stride ||
        end + more > kvferry_layout_segment(owners->layout, copy->target_segment)->bytes ||
        copy->source_offset + copy->bytes + more >
            kvferry_layout_segment(source, copy->source_segment)->bytes)
        return false;
    copy->bytes += more;
    return true;
}

/* Padded pages (states) come behind all others, as connectors list them: none of these heals what they did. */
static void pad_copies(const block_owners *owners, const kvferry_layout *source,
                       const demo_copies *copies, demo_copies *result)
{
    demo_copies padded = {0};
    for (size_t i = 0; i < copies->count; i++) {
        kvferry_copy copy = copies->items[i];
        add_copy(pad_copy(owners, source, &copy) ? &padded : result, copy);
    }
    for (size_t i = 0; i < padded.count; i++)
        add_copy(result, padded.items[i]);
    result->planted += padded.count;
    free(padded.items);
}

/* --- row-stride, kernel-block ---------------------------------------------------------------- */

/* Where page `page` would be for a sender with the fault. */
static uint64_t wrong_page(demo_fault fault, const block_owners *owners, const landing *at)
{
    if (fault == DEMO_ROW_STRIDE)
        return at->page * demo_fault_row_stride(owners->layout, at->stream);
    uint64_t ratio = demo_fault_ratio(owners->layout, at->stream);
    return (at->page / ratio + at->page % ratio) * at->stream->page_stride;
}

/* Cuts a copy into pages of the target and puts each where the fault takes it to be; a page that would lie
 * outside the segment stays where it belongs. */
static void misplace_copy(demo_fault fault, const block_owners *owners, kvferry_copy copy,
                          demo_copies *result)
{
    uint64_t limit = kvferry_layout_segment(owners->layout, copy.target_segment)->bytes;
    while (copy.bytes > 0) {
        landing at;
        kvferry_copy part = copy;
        if (find_landing(owners, copy.target_segment, copy.target_offset, &at)) {
            uint64_t left = at.stream->page_stride - at.within;
            part.bytes = left < copy.bytes ? left : copy.bytes;
            uint64_t wrong = at.stream->offset + wrong_page(fault, owners, &at) + at.within;
            if (wrong != part.target_offset && wrong + part.bytes <= limit) {
                part.target_offset = wrong;
                result->planted++;
            }
        }
        add_copy(result, part);
        copy.source_offset += part.bytes;
        copy.target_offset += part.bytes;
        copy.bytes -= part.bytes;
    }
}

void demo_fault_copies(demo_fault fault, const kvferry_layout *source, const kvferry_layout *target,
                       const kvferry_request *request, demo_copies *copies)
{
    if (fault != DEMO_PADDED_LENGTH && fault != DEMO_ROW_STRIDE && fault != DEMO_KERNEL_BLOCK)
        return;
    block_owners owners;
    owners_create(&owners, target, request);
    demo_copies result = {0};
    if (fault == DEMO_PADDED_LENGTH)
        pad_copies(&owners, source, copies, &result);
    for (size_t i = 0; i < copies->count && fault != DEMO_PADDED_LENGTH; i++)
        misplace_copy(fault, &owners, copies->items[i], &result);
    owners_free(&owners);
    free(copies->items);
    *copies = result;
}
