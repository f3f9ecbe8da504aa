/* SPDX-License-Identifier: Apache-2.0 */
/* Whether strided sets of cells share a byte. */
#ifndef KVFERRY_LAYOUT_MEET_H
#define KVFERRY_LAYOUT_MEET_H

#include "layout/layout.h"

#define LAYOUT_SHAPE_DIMS 18 /* axes, pages, and pages inside a block */

/* `count` indexes, `stride` bytes apart. */
typedef struct layout_dim {
    uint64_t stride, count;
} layout_dim;

/* Where the cells of a stream's blocks lie. Pages past the last whole block belong to none. */
typedef struct layout_shape {
    uint64_t offset;
    uint64_t cell_bytes;
    layout_dim block; /* block to block */
    uint64_t span;    /* bytes from a block's first to past its last cell */
    uint64_t end;     /* past the last cell of all */
    layout_dim dims[LAYOUT_SHAPE_DIMS]; /* inside a block: counts above 1, widest stride first */
    uint32_t dim_count;
} layout_shape;

/* The shape of a stream that is in the bounds of its segment. */
void layout_shape_of(const kvferry_layout *layout, const kvferry_stream *stream,
                     layout_shape *shape);

typedef enum layout_meeting {
    LAYOUT_APART,
    LAYOUT_MEET,
    LAYOUT_UNDECIDED /* the steps ran out */
} layout_meeting;

/* Which blocks of two streams to look at. */
typedef enum layout_blocks {
    LAYOUT_BLOCKS_ANY,
    LAYOUT_BLOCKS_EQUAL,  /* of equal ids */
    LAYOUT_BLOCKS_UNEQUAL /* of unequal ids */
} layout_blocks;

/*
 * Whether two cells share a byte: two of one stream, or one of each of two. Exact. It searches over the
 * differences of indexes, widest stride first, and follows only what the narrower ones can still make
 * up for: strides that are nested, as caches have them, cost a step or two a dimension. Each step is
 * taken from *steps.
 */
layout_meeting layout_stream_meets_itself(const kvferry_stream *stream, uint64_t *steps);
layout_meeting layout_shapes_meet(const layout_shape *a, const layout_shape *b,
                                  layout_blocks blocks, uint64_t *steps);

#endif
