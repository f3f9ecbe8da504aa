/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/meet.h"

#include <string.h>

/* Sums of a few products of 63 bits. */
__extension__ typedef __int128 wide;

/* --- shapes -------------------------------------------------------------------------------- */

/* Keeps the widest stride first; a count of 1 is nothing. */
static void add_dim(layout_dim *dims, uint32_t *dim_count, uint64_t stride, uint64_t count)
{
    if (count == 1)
        return;
    uint32_t i = (*dim_count)++;
    for (; i && dims[i - 1].stride < stride; i--)
        dims[i] = dims[i - 1];
    dims[i] = (layout_dim){stride, count};
}

void layout_shape_of(const kvferry_layout *layout, const kvferry_stream *stream,
                     layout_shape *shape)
{
    uint64_t ratio = layout_stream_ratio(layout, stream);
    shape->offset = stream->offset;
    shape->cell_bytes = stream->cell_bytes;
    shape->block = (layout_dim){stream->page_stride * ratio, stream->pages / ratio};
    shape->dim_count = 0;
    add_dim(shape->dims, &shape->dim_count, stream->page_stride, ratio);
    for (uint32_t i = 0; i < stream->axis_count; i++)
        add_dim(shape->dims, &shape->dim_count, stream->axes[i].stride, stream->axes[i].extent);
    shape->span = stream->cell_bytes;
    for (uint32_t i = 0; i < shape->dim_count; i++)
        shape->span += (shape->dims[i].count - 1) * shape->dims[i].stride;
    shape->end = shape->offset + (shape->block.count - 1) * shape->block.stride + shape->span;
}

/* --- searching ----------------------------------------------------------------------------- */

/* What a term stands for, where that matters. */
typedef enum term_role {
    TERM_PLAIN,
    TERM_NOT_ZERO, /* the difference of two block ids that must not be equal */
    TERM_BLOCK_A,  /* minus the block id of a */
    TERM_BLOCK_B   /* the block id of b, which must not be a's */
} term_role;

/* An unknown: an index, or a difference of two, in [low, high]. */
typedef struct meet_term {
    wide stride; /* > 0 */
    wide low, high;
    term_role role;
} meet_term;

/* Is there a choice of all unknowns with shift + sum of x * stride in [first, last]? */
typedef struct meet_search {
    meet_term terms[2 * LAYOUT_SHAPE_DIMS + 2]; /* widest stride first */
    wide rest_low[2 * LAYOUT_SHAPE_DIMS + 3],
        rest_high[2 * LAYOUT_SHAPE_DIMS + 3]; /* of terms i.. */
    uint32_t count;
    wide first, last;
    bool needs_nonzero; /* not all unknowns zero; the question is symmetric */
    wide block;         /* of the first block term taken */
    bool has_block;
    uint64_t *steps;
} meet_search;

static wide floor_div(wide a, wide b) { return a / b - (a % b < 0); }

/* Without the terms: clearing them would cost more than the search. */
static void begin(meet_search *search, wide first, wide last, uint64_t *steps)
{
    search->count = 0;
    search->first = first;
    search->last = last;
    search->needs_nonzero = false;
    search->block = 0;
    search->has_block = false;
    search->steps = steps;
}

static void add_term(meet_search *search, uint64_t stride, wide low, wide high, term_role role)
{
    uint32_t i = search->count;
    if (!stride) /* of a single page */
        stride = 1;
    for (uint32_t k = 0; k < i; k++) /* equal strides are one unknown */
        if (role == TERM_PLAIN && search->terms[k].role == TERM_PLAIN &&
            search->terms[k].stride == stride) {
            search->terms[k].low += low;
            search->terms[k].high += high;
            return;
        }
    for (; i && search->terms[i - 1].stride < stride; i--)
        search->terms[i] = search->terms[i - 1];
    search->terms[i] = (meet_term){stride, low, high, role};
    search->count++;
}

static void sum_rests(meet_search *search)
{
    search->rest_low[search->count] = search->rest_high[search->count] = 0;
    for (uint32_t i = search->count; i-- > 0;) {
        const meet_term *term = &search->terms[i];
        search->rest_low[i] = search->rest_low[i + 1] + term->low * term->stride;
        search->rest_high[i] = search->rest_high[i + 1] + term->high * term->stride;
    }
}

static layout_meeting look(meet_search *search, uint32_t level, wide sum, bool nonzero);

/* Takes `x` for the unknown at `level` and looks on. */
static layout_meeting take(meet_search *search, uint32_t level, wide sum, bool nonzero, wide x)
{
    const meet_term *term = &search->terms[level];
    if (term->role == TERM_NOT_ZERO && x == 0)
        return LAYOUT_APART;
    if (term->role == TERM_BLOCK_A || term->role == TERM_BLOCK_B) {
        wide block = term->role == TERM_BLOCK_A ? -x : x;
        if (search->has_block && search->block == block)
            return LAYOUT_APART;
        bool had_block = search->has_block;
        if (!had_block)
            search->block = block;
        search->has_block = true;
        layout_meeting meeting = look(search, level + 1, sum + x * term->stride, nonzero || x);
        search->has_block = had_block;
        return meeting;
    }
    return look(search, level + 1, sum + x * term->stride, nonzero || x);
}

static layout_meeting look(meet_search *search, uint32_t level, wide sum, bool nonzero)
{
    if (level == search->count)
        return sum >= search->first && sum <= search->last && (nonzero || !search->needs_nonzero)
                   ? LAYOUT_MEET
                   : LAYOUT_APART;
    const meet_term *term = &search->terms[level];
    wide low = search->first - sum - search->rest_high[level + 1]; /* of x * stride */
    wide high = search->last - sum - search->rest_low[level + 1];
    wide x = low > -term->stride && low <= 0 ? 0 : -floor_div(-low, term->stride);
    wide end = high < term->stride && high >= 0 ? 0 : floor_div(high, term->stride);
    x = x < term->low ? term->low : x;
    end = end > term->high ? term->high : end;
    if (search->needs_nonzero && !nonzero && x < 0)
        x = 0; /* a choice and its opposite are the same pair of cells */
    for (; x <= end; x++) {
        if (!*search->steps)
            return LAYOUT_UNDECIDED;
        --*search->steps;
        layout_meeting meeting = take(search, level, sum, nonzero, x);
        if (meeting != LAYOUT_APART)
            return meeting;
    }
    return LAYOUT_APART;
}

/* Whether each stride is at least as wide as all that lies under it: then no two cells meet. */
static bool is_nested(const layout_dim *dims, uint32_t dim_count, uint64_t cell_bytes)
{
    uint64_t span = cell_bytes;
    for (uint32_t i = dim_count; i-- > 0;) {
        if (dims[i].stride < span)
            return false;
        span += (dims[i].count - 1) * dims[i].stride;
    }
    return true;
}

layout_meeting layout_stream_meets_itself(const kvferry_stream *stream, uint64_t *steps)
{
    layout_dim dims[LAYOUT_SHAPE_DIMS];
    uint32_t dim_count = 0;
    add_dim(dims, &dim_count, stream->page_stride, stream->pages);
    for (uint32_t i = 0; i < stream->axis_count; i++)
        add_dim(dims, &dim_count, stream->axes[i].stride, stream->axes[i].extent);
    if (is_nested(dims, dim_count, stream->cell_bytes))
        return LAYOUT_APART;
    wide reach = (wide)stream->cell_bytes - 1;
    meet_search search;
    begin(&search, -reach, reach, steps);
    search.needs_nonzero = true;
    for (uint32_t i = 0; i < dim_count; i++) {
        wide most = (wide)dims[i].count - 1;
        /* Not by add_term: of two dims of one stride, {1, -1} is a meeting too. */
        search.terms[search.count++] = (meet_term){dims[i].stride, -most, most, TERM_PLAIN};
    }
    sum_rests(&search);
    return look(&search, 0, 0, false);
}

/* Adds what stands for the two block ids. */
static void add_blocks(meet_search *search, const layout_dim *a, const layout_dim *b,
                       layout_blocks blocks)
{
    wide last_a = (wide)a->count - 1, last_b = (wide)b->count - 1;
    if (blocks == LAYOUT_BLOCKS_ANY) {
        add_term(search, a->stride, -last_a, 0, TERM_PLAIN);
        add_term(search, b->stride, 0, last_b, TERM_PLAIN);
    } else if (blocks == LAYOUT_BLOCKS_UNEQUAL && a->stride == b->stride) {
        add_term(search, a->stride, -last_a, last_b, TERM_NOT_ZERO);
    } else if (blocks == LAYOUT_BLOCKS_UNEQUAL) {
        add_term(search, a->stride, -last_a, 0, TERM_BLOCK_A);
        add_term(search, b->stride, 0, last_b, TERM_BLOCK_B);
    } else if (a->stride != b->stride) { /* equal ids: one unknown, times the strides' difference */
        wide last = last_a < last_b ? last_a : last_b;
        bool wider = b->stride > a->stride;
        add_term(search, wider ? b->stride - a->stride : a->stride - b->stride, wider ? 0 : -last,
                 wider ? last : 0, TERM_PLAIN);
    }
}

layout_meeting layout_shapes_meet(const layout_shape *a, const layout_shape *b,
                                  layout_blocks blocks, uint64_t *steps)
{
    /* Cells at p of a and q of b meet if -b's bytes < q - p < a's bytes. */
    meet_search search;
    begin(&search, 1 - (wide)b->cell_bytes, (wide)a->cell_bytes - 1, steps);
    add_blocks(&search, &a->block, &b->block, blocks);
    for (uint32_t i = 0; i < a->dim_count; i++)
        add_term(&search, a->dims[i].stride, 1 - (wide)a->dims[i].count, 0, TERM_PLAIN);
    for (uint32_t i = 0; i < b->dim_count; i++)
        add_term(&search, b->dims[i].stride, 0, (wide)b->dims[i].count - 1, TERM_PLAIN);
    sum_rests(&search);
    return look(&search, 0, (wide)b->offset - (wide)a->offset, false);
}
