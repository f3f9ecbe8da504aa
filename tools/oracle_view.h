/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's own picture of a layout: streams with canonical coordinates, pages as runs of bytes,
 * rows, and which groups share bytes. Derived from the document's definitions only. */
#ifndef KVFERRY_ORACLE_VIEW_H
#define KVFERRY_ORACLE_VIEW_H

#include "oracle.h"

#define VIEW_AXES 16
#define VIEW_NONE UINT32_MAX

typedef struct view_axis {
    const char *name;
    uint64_t start, extent,
        global; /* global indexes; the token axis counts states of the request */
    uint64_t stride;
    uint64_t weight; /* what one step adds to a cell's index */
} view_axis;

typedef struct view_run {
    uint64_t start, bytes; /* from the page's address (offset + page * page_stride) */
} view_run;

/* A stream. A cell's index counts all cells of the stream over all workers and tokens: its axes in
 * the order of their names, the token axis outermost. It is the same on both sides. */
typedef struct view_stream {
    const kvferry_stream *stream;
    const kvferry_group *group;
    uint64_t ratio;            /* pages a block */
    view_axis axes[VIEW_AXES]; /* without the token axis, widest stride first */
    uint32_t axis_count;
    view_axis token; /* extent 1 and stride 0 where the group is not paged */
    uint64_t words;  /* of 8 bytes, in a cell */
    view_run *runs;  /* the bytes of a page's cells, ascending, joined where they touch */
    size_t run_count;
    uint64_t low, high;   /* [low, high) from the page's address holds all runs */
    uint64_t row_offset;  /* page 0's row begins here in the segment */
    uint32_t row_cluster; /* streams of the same rows have the same number */
} view_stream;

typedef struct view_layout {
    const kvferry_layout *layout;
    view_stream *streams;
    uint32_t stream_count, group_count;
    bool *share; /* group_count squared: own bytes of equal block ids in common */
} view_layout;

/* false: no memory; the view is to be freed in any case. */
bool view_make(view_layout *view, const kvferry_layout *layout);
void view_free(view_layout *view);

/* A run of cells along the narrowest axis: cell i is at offset + i * stride of the segment, its
 * index is index + i * step. */
typedef struct view_cells {
    uint64_t offset, stride, count, index, step;
} view_cells;
typedef void view_visit(void *context, const view_cells *cells);

/* Visits the cells of a page whose state within the page is in [from, to). `state` is the request's
 * number of the page's first state. */
void view_walk(const view_stream *stream, uint64_t page, uint64_t state, uint64_t from, uint64_t to,
               view_visit *visit, void *context);

/* The table of a group by name; NULL if it is not listed. */
const kvferry_block_table *view_table(const kvferry_block_table *tables, size_t count,
                                      const char *group);

/* Whether `id` is a real block of a table (not null and inside the group's pages). */
bool view_block_exists(const view_stream *stream, uint64_t id);

/* A page of a table's block: where it is, and which states of it hold tokens of [first, end). */
typedef struct view_page {
    uint64_t page;
    uint64_t token;    /* the page's first one */
    uint64_t state;    /* the page's first one, in the request */
    uint64_t from, to; /* states in the page */
} view_page;
void view_page_at(const view_stream *stream, const kvferry_block_table *table, size_t index,
                  uint64_t page, uint64_t first, uint64_t end, view_page *result);

/* For every stream of `target` the source stream that it is filled from, by the rules of matching
 * and policy; NULL where it is not transferred. */
void view_match_streams(const view_layout *target, const oracle_worker *sources,
                        size_t source_count, const kvferry_stream **matches);

/* --- explaining (oracle_explain.c) --------------------------------------------------------- */

#define EXPLAIN_SAMPLES 8

/* A wrong cell as it was found, and up to 15 bytes that follow its beginning. */
typedef struct explain_sample {
    uint64_t segment_offset, index, bad_byte; /* bad_byte: the first wrong one in the cell */
    unsigned char bytes[24];
    size_t size;
} explain_sample;

typedef struct explain_context {
    const oracle_worker *target;
    const oracle_worker *sources;
    size_t source_count;
    const oracle_transfer *transfers;
    size_t transfer_count;
    const oracle_transfer *transfer; /* the one that the samples belong to; NULL for stray bytes */
} explain_context;

/* "kv_head 3, state 17" of a cell's index. */
void explain_coordinates(const view_stream *stream, uint64_t index, char *text, size_t size);

/* What the samples hold instead of the values of `stream` (NULL: of noise). */
void explain_instead(const explain_context *context, const view_stream *stream,
                     const explain_sample *samples, size_t sample_count, char *text, size_t size);

#endif
