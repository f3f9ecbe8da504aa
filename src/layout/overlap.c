/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who shares bytes with whom. Streams whose blocks lie equally far apart are laid out on a plane, rows
 * of one block stride each, and only those that meet there are looked at cell by cell. Caches as they
 * are come apart by sorting: layers that lie one after the other into planes of their own; those that
 * lie in one row by their places in it; and where they alternate inside of a row (head by head, say), by
 * their places in one period.
 */
#include "layout/meet.h"
#include "layout/rules.h"

#include <stdlib.h>
#include <string.h>

/* A stream on its plane. */
typedef struct overlap_place {
    uint32_t stream;
    uint32_t segment;
    layout_shape shape;
    /* On its plane: the row that its first block is in, and whether its blocks may leave their rows. */
    uint64_t row;
    bool loose;
    /* While a row, or a period inside of one, is swept: the bytes of it that the cells may touch.
     * `whole`: all of it, and nothing finer is known. */
    uint64_t first, end;
    bool whole;
} overlap_place;

/* Neighbours in address that overlap as a whole, of one block stride: places [begin, end). */
typedef struct overlap_plane {
    uint32_t segment;
    uint64_t low, high; /* the bytes they span */
    size_t begin, end;
} overlap_plane;

typedef struct overlap_job {
    layout_check *check;
    overlap_place *places;
    size_t place_count;
    overlap_plane *planes;
    size_t plane_count;
    bool undecided;
} overlap_job;

/* --- pairs --------------------------------------------------------------------------------- */

static bool meets(overlap_job *overlap, const overlap_place *a, const overlap_place *b,
                  layout_blocks blocks)
{
    layout_meeting meeting =
        layout_shapes_meet(&a->shape, &b->shape, blocks, &overlap->check->steps);
    if (meeting == LAYOUT_UNDECIDED)
        overlap->undecided = true;
    return meeting == LAYOUT_MEET;
}

/* A finding costs as much as a thousand steps. */
static void refuse_pair(overlap_job *overlap, const overlap_place *a, const overlap_place *b,
                        const char *code, const char *expected, const char *message)
{
    uint32_t later = a->stream > b->stream ? a->stream : b->stream;
    uint32_t earlier = a->stream > b->stream ? b->stream : a->stream;
    const kvferry_stream *other = &overlap->check->layout->streams[earlier];
    layout_refuse_stream(overlap->check, later, -1, code, expected,
                         base_format("bytes of layer %.90s, stream %.90s (streams[%u])",
                                     other->layer, other->name, earlier),
                         message);
    overlap->check->steps -= base_min(overlap->check->steps, 1000);
}

/* Whether the two can only meet in blocks of equal ids: the same row is the same id. */
static bool keep_to_rows(const overlap_place *a, const overlap_place *b)
{
    return !a->loose && !b->loose && a->row == b->row &&
           a->shape.block.stride == b->shape.block.stride;
}

static void look_at_groups(overlap_job *overlap, const overlap_place *a, const overlap_place *b)
{
    kvferry_layout *layout = overlap->check->layout;
    size_t group_a = layout->streams[a->stream].group, group_b = layout->streams[b->stream].group;
    bool *share = &layout->share[group_a * layout->group_count + group_b];
    if (!keep_to_rows(a, b) && meets(overlap, a, b, LAYOUT_BLOCKS_UNEQUAL))
        refuse_pair(overlap, a, b, "groups_overlap", "shared bytes in blocks of equal ids only",
                    "streams of two groups share bytes of blocks with unequal ids");
    if (!*share && meets(overlap, a, b, LAYOUT_BLOCKS_EQUAL))
        *share = layout->share[group_b * layout->group_count + group_a] = true;
}

/* Whatever the two are, this takes a step: so hostile documents come to an end. */
static void look_at_pair(overlap_job *overlap, const overlap_place *a, const overlap_place *b)
{
    layout_check *check = overlap->check;
    if (!check->steps) {
        overlap->undecided = true;
        return;
    }
    check->steps--;
    if (a->shape.offset >= b->shape.end || b->shape.offset >= a->shape.end)
        return;
    if (check->layout->streams[a->stream].group != check->layout->streams[b->stream].group)
        look_at_groups(overlap, a, b);
    else if (meets(overlap, a, b, LAYOUT_BLOCKS_ANY))
        refuse_pair(overlap, a, b, "streams_overlap", "bytes of its own",
                    "two streams of one group share bytes");
}

/* --- planes -------------------------------------------------------------------------------- */

static int compare_addresses(const void *a, const void *b)
{
    const overlap_place *left = a, *right = b;
    if (left->segment != right->segment)
        return left->segment < right->segment ? -1 : 1;
    if (left->shape.block.stride != right->shape.block.stride)
        return left->shape.block.stride < right->shape.block.stride ? -1 : 1;
    if (left->shape.offset != right->shape.offset)
        return left->shape.offset < right->shape.offset ? -1 : 1;
    return left->stream < right->stream ? -1 : left->stream > right->stream;
}

static int compare_rows(const void *a, const void *b)
{
    const overlap_place *left = a, *right = b;
    if (left->first != right->first)
        return left->first < right->first ? -1 : 1;
    return left->stream < right->stream ? -1 : left->stream > right->stream;
}

static int compare_planes(const void *a, const void *b)
{
    const overlap_plane *left = a, *right = b;
    if (left->segment != right->segment)
        return left->segment < right->segment ? -1 : 1;
    return left->low < right->low ? -1 : left->low > right->low;
}

/* Cuts the places, sorted by address, into planes. */
static void make_planes(overlap_job *overlap)
{
    for (size_t i = 0; i < overlap->place_count; i++) {
        const overlap_place *place = &overlap->places[i];
        overlap_plane *last =
            overlap->plane_count ? &overlap->planes[overlap->plane_count - 1] : NULL;
        if (last && last->segment == place->segment && place->shape.offset < last->high &&
            overlap->places[last->begin].shape.block.stride == place->shape.block.stride) {
            last->high = base_max(last->high, place->shape.end);
            last->end = i + 1;
        } else {
            overlap->planes[overlap->plane_count++] =
                (overlap_plane){place->segment, place->shape.offset, place->shape.end, i, i + 1};
        }
    }
}

/* Puts the cells at [first, first + span) of a period; if they leave it, anywhere. */
static void put(overlap_place *place, uint64_t first, uint64_t span, uint64_t period)
{
    place->whole = span > period - first;
    place->first = place->whole ? 0 : first;
    place->end = place->whole ? period : first + span;
}

static void put_on_plane(overlap_place *place, const overlap_plane *plane)
{
    uint64_t stride = place->shape.block.stride ? place->shape.block.stride : 1;
    place->row = (place->shape.offset - plane->low) / stride;
    put(place, (place->shape.offset - plane->low) % stride, place->shape.span, stride);
    place->loose = place->whole;
}

/* Whether the cells of all places repeat alike, along dimension `dim` of each. */
static bool is_periodic(const overlap_place *places, size_t count, uint32_t dim)
{
    for (size_t i = 0; i < count; i++) {
        const layout_shape *shape = &places[i].shape;
        if (places[i].whole || dim >= shape->dim_count ||
            shape->dims[dim].stride != places[0].shape.dims[dim].stride)
            return false;
    }
    return true;
}

/* Folds the places into one period of dimension `dim`: cells that meet anywhere meet there. */
static void fold(overlap_place *places, size_t count, uint32_t dim)
{
    uint64_t low = places[0].first; /* the lowest: they are sorted */
    for (size_t i = 0; i < count; i++) {
        overlap_place *place = &places[i];
        const layout_dim *period = &place->shape.dims[dim];
        uint64_t span = place->end - place->first - (period->count - 1) * period->stride;
        put(place, (place->first - low) % period->stride, span, period->stride);
    }
}

/* Looks at all pairs that overlap. Those that repeat alike are first folded, so that few do. */
static void sweep(overlap_job *overlap, overlap_place *places, size_t count, uint32_t dim)
{
    enum { FEW = 4 };
    qsort(places, count, sizeof(*places), compare_rows);
    for (size_t begin = 0, end; begin < count; begin = end) {
        uint64_t high = places[begin].end;
        for (end = begin + 1; end < count && places[end].first < high; end++)
            high = base_max(high, places[end].end);
        if (end - begin > FEW && is_periodic(places + begin, end - begin, dim)) {
            fold(places + begin, end - begin, dim);
            sweep(overlap, places + begin, end - begin, dim + 1);
            continue;
        }
        for (size_t i = begin; i < end; i++)
            for (size_t k = i + 1;
                 k < end && places[k].first < places[i].end && !overlap->undecided; k++)
                look_at_pair(overlap, &places[i], &places[k]);
    }
}

static void sweep_plane(overlap_job *overlap, const overlap_plane *plane)
{
    overlap_place *places = overlap->places + plane->begin;
    size_t count = plane->end - plane->begin;
    for (size_t i = 0; i < count; i++)
        put_on_plane(&places[i], plane);
    sweep(overlap, places, count, 0);
}

/* Looks at all pairs between two planes, which have unequal block strides, if they overlap at all. */
static void cross_planes(overlap_job *overlap, const overlap_plane *a, const overlap_plane *b)
{
    for (size_t i = a->begin; i < a->end; i++)
        for (size_t k = b->begin; k < b->end && !overlap->undecided; k++)
            look_at_pair(overlap, &overlap->places[i], &overlap->places[k]);
}

static void look_at_planes(overlap_job *overlap)
{
    const overlap_plane *planes = overlap->planes;
    for (size_t i = 0; i < overlap->plane_count; i++)
        sweep_plane(overlap, &planes[i]);
    qsort(overlap->planes, overlap->plane_count, sizeof(overlap_plane), compare_planes);
    for (size_t i = 0; i < overlap->plane_count; i++)
        for (size_t k = i + 1; k < overlap->plane_count && planes[k].segment == planes[i].segment &&
                               planes[k].low < planes[i].high && !overlap->undecided;
             k++)
            cross_planes(overlap, &planes[i], &planes[k]);
}

/* --- all ----------------------------------------------------------------------------------- */

/* Finds streams whose own cells meet, and collects the others. */
static void collect(overlap_job *overlap)
{
    layout_check *check = overlap->check;
    const kvferry_layout *layout = check->layout;
    for (uint32_t i = 0; i < layout->stream_count && !overlap->undecided; i++) {
        const kvferry_stream *stream = &layout->streams[i];
        if (!check->sound[i])
            continue;
        switch (layout_stream_meets_itself(stream, &check->steps)) {
        case LAYOUT_MEET:
            layout_refuse_stream(check, i, -1, "cells_overlap", "cells apart from one another",
                                 "two that share bytes", "the strides let cells of the stream overlap");
            break;
        case LAYOUT_UNDECIDED:
            overlap->undecided = true;
            break;
        default: {
            overlap_place *place = &overlap->places[overlap->place_count++];
            place->stream = i;
            place->segment = stream->segment;
            layout_shape_of(layout, stream, &place->shape);
        }
        }
    }
}

kvferry_status layout_check_overlaps(layout_check *check)
{
    kvferry_layout *layout = check->layout;
    overlap_job overlap = {.check = check};
    check->steps = LAYOUT_STEPS;
    for (size_t i = 0; i < layout->group_count; i++)
        layout->share[i * layout->group_count + i] = true;
    overlap.places = base_alloc(layout->stream_count, sizeof(overlap_place));
    overlap.planes = base_alloc(layout->stream_count, sizeof(overlap_plane));
    if (overlap.places && overlap.planes) {
        collect(&overlap);
        qsort(overlap.places, overlap.place_count, sizeof(overlap_place), compare_addresses);
        make_planes(&overlap);
        look_at_planes(&overlap);
        if (overlap.undecided)
            layout_refuse(check, NULL, "overlap_undecided", "strides that are mostly nested",
                          base_format("no answer after %u steps", LAYOUT_STEPS),
                          "it cannot be told in reasonable time whether cells overlap");
    }
    kvferry_status status = overlap.places && overlap.planes ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    free(overlap.places);
    free(overlap.planes);
    return status;
}
