/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that a prefill worker plants in what it sends, as a faulty connector would: it acts on wrong
 * documents, or it makes wrong copies of right ones. */
#ifndef KVFERRY_DEMO_FAULT_H
#define KVFERRY_DEMO_FAULT_H

#include "demo.h"

/* --- what a stream's neighbourhood looks like -------------------------------------------------- */

/* Where the streams of a group that share pages with one begin, the last of them begins and all end,
 * in page 0. */
typedef struct demo_row {
    uint64_t start, last, end;
} demo_row;
demo_row demo_fault_row(const kvferry_layout *layout, const kvferry_stream *stream);

/* Bytes from a page to the next if all layers' pages of a block lay together. */
uint64_t demo_fault_row_stride(const kvferry_layout *layout, const kvferry_stream *stream);

/* Pages a block. */
uint64_t demo_fault_ratio(const kvferry_layout *layout, const kvferry_stream *stream);

/* --- faults -------------------------------------------------------------------------------------- */

/* The layout as a sender with this fault takes it to be: a new document, or `layout` itself where the
 * fault leaves documents alone; NULL if it cannot be written, with the message given. */
kvferry_layout *demo_fault_layout(demo_fault fault, kvferry_layout *layout);

/* The copies of one request to one target, and how many of them are as the fault would have it. */
typedef struct demo_copies {
    kvferry_copy *items;
    size_t count, capacity;
    uint64_t planted;
} demo_copies;

/* Changes the copies from one source to one target, by their true documents. All stay inside the
 * segments of both sides. */
void demo_fault_copies(demo_fault fault, const kvferry_layout *source, const kvferry_layout *target,
                       const kvferry_request *request, demo_copies *copies);

/* Whether the fault can show between these sides: NULL, or what it needs. */
const char *demo_fault_needs(demo_fault fault, const tool_side sides[DEMO_ROLES]);

#endif
