/* SPDX-License-Identifier: Apache-2.0 */
/* How one side holds the streams: workers, boxes, groups, blocks, memory. */
#include <string.h>

#include "random.h"

/* --- boxes ---------------------------------------------------------------------------------- */

/* Rank r of `parts` holds floor(r * global / parts) and on: heads divide unevenly, and where there
 * are more ranks than heads several hold the same one. */
static cut_spec even_cut(uint32_t global, uint32_t rank, uint32_t parts)
{
    uint32_t start = rank * global / parts, end = (rank + 1) * global / parts;
    return (cut_spec){(uint16_t)start, (uint16_t)(end > start ? end - start : 1)};
}

/* Boundaries anywhere, in order; some ranks may hold nothing. */
static void random_cuts(random_dice *dice, cut_spec *cuts, uint32_t global, uint32_t tp)
{
    uint32_t at = 0;
    for (uint32_t r = 0; r < tp; r++) {
        uint32_t end = r + 1 == tp ? global : dice_range(dice, at, global);
        cuts[r] = (cut_spec){(uint16_t)at, (uint16_t)(end - at)};
        at = end;
    }
}

/* Boxes that overlap; together they hold everything. */
static void overlapping_cuts(random_dice *dice, cut_spec *cuts, uint32_t global, uint32_t tp)
{
    for (uint32_t r = 0; r < tp; r++) {
        cut_spec cut = even_cut(global, r, tp);
        uint32_t before = dice_below(dice, cut.start + 1u);
        uint32_t after = dice_below(dice, global - cut.start - cut.extent + 1u);
        cuts[r] =
            (cut_spec){(uint16_t)(cut.start - before), (uint16_t)(cut.extent + before + after)};
    }
}

static void generate_cuts(const stream_spec *stream, side_stream *side, random_dice *dice,
                          uint32_t tp)
{
    for (int a = 0; a < stream->axis_count; a++)
        for (uint32_t r = 0; r < tp; r++)
            side->cuts[a][r] = (cut_spec){0, stream->axes[a].global};
    if (stream->axis_count == 0 || dice_one_in(dice, 8))
        return;
    uint32_t axis = stream->axis_count == 2 && dice_one_in(dice, 6);
    uint32_t global = stream->axes[axis].global;
    switch (dice_below(dice, 8)) {
    case 0: random_cuts(dice, side->cuts[axis], global, tp); break;
    case 1: overlapping_cuts(dice, side->cuts[axis], global, tp); break;
    case 2: /* a grid over both axes */
        if (stream->axis_count == 2 && tp % 2 == 0) {
            for (uint32_t r = 0; r < tp; r++) {
                side->cuts[0][r] = even_cut(stream->axes[0].global, r / 2, tp / 2);
                side->cuts[1][r] = even_cut(stream->axes[1].global, r % 2, 2);
            }
            break;
        } /* fall through */
    default:
        for (uint32_t r = 0; r < tp; r++)
            side->cuts[axis][r] = even_cut(global, r, tp);
    }
}

/* --- bundles -------------------------------------------------------------------------------- */

static bool same_shape(const stream_spec *a, const stream_spec *b)
{
    if (a->axis_count != b->axis_count || a->tokens_per_state != b->tokens_per_state)
        return false;
    for (int i = 0; i < a->axis_count; i++)
        if (a->axes[i].global != b->axes[i].global)
            return false;
    return true;
}

static bool cut_along_second(const stream_spec *spec, const side_stream *stream, uint32_t tp)
{
    for (uint32_t r = 0; spec->axis_count == 2 && r < tp; r++)
        if (stream->cuts[1][r].extent != spec->axes[1].global)
            return true;
    return false;
}

static void shuffle(random_dice *dice, uint8_t *items, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = dice_below(dice, i);
        uint8_t kept = items[i - 1];
        items[i - 1] = items[j];
        items[j] = kept;
    }
}

/* Members of unequal extent along the first axis stand apart outside it (SD convolution states). */
static void member_before_first(uint8_t *order)
{
    int member = 0, first = 0;
    for (int i = 0; i < DIM_COUNT; i++) {
        member = order[i] == DIM_MEMBER ? i : member;
        first = order[i] == DIM_FIRST ? i : first;
    }
    if (member > first) {
        order[member] = DIM_FIRST;
        order[first] = DIM_MEMBER;
    }
}

static void generate_bundles(random_spec *spec, random_dice *dice, side_spec *side)
{
    uint8_t next = 0;
    for (int i = 0; i < spec->stream_count; i++) {
        side_stream *stream = &side->streams[i];
        const side_stream *before = i ? &side->streams[i - 1] : NULL;
        generate_cuts(&spec->streams[i], stream, dice, side->tp);
        bool joins = before && spec->streams[i].bundle == spec->streams[i - 1].bundle &&
                     spec->streams[i].tokens_per_state == spec->streams[i - 1].tokens_per_state &&
                     !cut_along_second(&spec->streams[i], stream, side->tp) &&
                     !cut_along_second(&spec->streams[i - 1], before, side->tp) &&
                     !dice_one_in(dice, 3);
        if (joins) {
            stream->bundle = before->bundle;
            memcpy(stream->order, before->order, sizeof stream->order);
            memcpy(stream->padding, before->padding, sizeof stream->padding);
            if (same_shape(&spec->streams[i], &spec->streams[i - 1])) {
                memcpy(stream->cuts, before->cuts, sizeof stream->cuts);
            } else {
                for (int j = 0; j <= i; j++)
                    if (side->streams[j].bundle == stream->bundle)
                        member_before_first(side->streams[j].order);
            }
            continue;
        }
        stream->bundle = next++;
        for (uint8_t d = 0; d < DIM_COUNT; d++)
            stream->order[d] = d;
        shuffle(dice, stream->order, DIM_COUNT);
        for (int d = 0; d < DIM_COUNT; d++)
            stream->padding[d] = dice_one_in(dice, 6) ? (uint8_t)dice_range(dice, 1, 5) : 0;
        stream->padding[DIM_PAGE] = dice_one_in(dice, 2) ? (uint8_t)dice_range(dice, 1, 9) : 0;
        stream->gap = dice_one_in(dice, 2) ? (uint8_t)dice_range(dice, 1, 9) : 0;
    }
}

/* --- stages and groups ---------------------------------------------------------------------- */

static void generate_stages(const random_spec *spec, random_dice *dice, side_spec *side)
{
    uint8_t stages[256] = {0};
    uint32_t layers = spec->stream_count ? spec->streams[spec->stream_count - 1].layer + 1u : 0;
    bool scattered = dice_one_in(dice, 4);
    for (uint32_t i = 0; i < layers; i++)
        stages[i] = (uint8_t)(scattered ? dice_below(dice, side->pp) : i * side->pp / layers);
    for (int i = 0; i < spec->stream_count; i++) {
        side_stream *stream = &side->streams[i];
        stream->stages = (uint8_t)(1u << stages[spec->streams[i].layer]);
        if (dice_one_in(dice, 12))
            stream->stages |= (uint8_t)(1u << dice_below(dice, side->pp));
        for (int j = 0; j < i; j++)
            if (side->streams[j].bundle == stream->bundle)
                stream->stages = side->streams[j].stages;
    }
}

static int8_t random_null(random_dice *dice)
{
    uint32_t roll = dice_below(dice, 8);
    return roll < 5 ? 0 : roll < 7 ? -1 : (int8_t)dice_below(dice, 5);
}

/* Every kind and window has one or two groups. */
static void generate_groups(random_spec *spec, random_dice *dice, int which)
{
    side_spec *side = &spec->sides[which];
    for (int kind = 0; kind < 3; kind++)
        for (uint8_t window = 0; window < 2; window++) {
            uint8_t first = spec->group_count[which], count = dice_one_in(dice, 3) ? 2 : 1,
                    uses = 0;
            for (int i = 0; i < spec->stream_count; i++) {
                side_stream *stream = &side->streams[i];
                if ((int)spec->streams[i].kind != kind || spec->streams[i].window_class != window)
                    continue;
                stream->group = (uint8_t)(first + dice_below(dice, count));
                for (int j = 0; j < i; j++)
                    if (side->streams[j].bundle == stream->bundle)
                        stream->group = side->streams[j].group;
                uses++;
            }
            for (uint8_t g = first; uses && g < first + count && g < MAX_GROUPS; g++) {
                side->groups[g] = (side_group){.kind = (kvferry_group_kind)kind,
                                               .window_class = window,
                                               .null_block = random_null(dice),
                                               .pool = g};
                spec->group_count[which] = (uint8_t)(g + 1);
            }
        }
}

/* --- memory --------------------------------------------------------------------------------- */

static bool shares_area(const side_spec *side, int count, int stream)
{
    for (int j = 0; j < count; j++)
        if (side->streams[j].area == side->streams[stream].area &&
            side->streams[j].bundle != side->streams[stream].bundle)
            return true;
    return false;
}

static void generate_areas(const random_spec *spec, random_dice *dice, side_spec *side)
{
    uint32_t style = dice_below(dice, 4), areas = dice_range(dice, 1, 3);
    side->segments = (uint8_t)dice_range(dice, 1, dice_one_in(dice, 2) ? 3 : 1);
    for (int i = 0; i < MAX_STREAMS; i++) {
        side->areas[i].overlay = style == 1 || !dice_one_in(dice, 3);
        side->areas[i].tight = dice_one_in(dice, 3);
        side->areas[i].segment = (uint8_t)dice_below(dice, side->segments);
        side->areas[i].gap = dice_one_in(dice, 2) ? (uint8_t)dice_range(dice, 1, 20) : 0;
        side->areas[i].padding = dice_one_in(dice, 2) ? (uint8_t)dice_range(dice, 1, 20) : 0;
    }
    for (int i = 0; i < spec->stream_count; i++) {
        side_stream *stream = &side->streams[i];
        stream->area = style <= 1 ? (style ? 0 : stream->bundle) : (uint8_t)dice_below(dice, areas);
        for (int j = 0; j < i; j++)
            if (side->streams[j].bundle == stream->bundle)
                stream->area = side->streams[j].area;
    }
    for (int i = 0; i < spec->stream_count; i++)
        side->streams[i].page_inside = !shares_area(side, spec->stream_count, i);
}

/* Groups that lie over one another never use the same id. */
static void generate_pools(random_spec *spec, random_dice *dice, int which)
{
    side_spec *side = &spec->sides[which];
    bool all = dice_one_in(dice, 4);
    for (int i = 0; i < spec->stream_count; i++)
        for (int j = 0; j < i; j++) {
            const side_stream *a = &side->streams[i], *b = &side->streams[j];
            if (a->area != b->area || !side->areas[a->area].overlay)
                continue;
            uint8_t from = side->groups[a->group].pool, to = side->groups[b->group].pool;
            for (int g = 0; g < spec->group_count[which]; g++)
                if (side->groups[g].pool == from)
                    side->groups[g].pool = to;
        }
    for (int g = 0; all && g < spec->group_count[which]; g++)
        side->groups[g].pool = 0;
}

static bool only_group_in_area(const random_spec *spec, const side_spec *side, int stream)
{
    for (int j = 0; j < spec->stream_count; j++)
        if (side->streams[j].area == side->streams[stream].area &&
            side->streams[j].group != side->streams[stream].group)
            return false;
    return true;
}

/* Block sizes, and pages inside blocks. */
static void generate_pages(random_spec *spec, random_dice *dice, int which)
{
    side_spec *side = &spec->sides[which];
    for (int g = 0; g < spec->group_count[which]; g++) {
        if (side->groups[g].kind != KVFERRY_GROUP_PAGED)
            continue;
        uint32_t states = dice_range(dice, 1, 6), most = 1;
        for (int i = 0; i < spec->stream_count; i++)
            if (side->streams[i].group == g && spec->streams[i].tokens_per_state > most)
                most = spec->streams[i].tokens_per_state;
        side->groups[g].block_tokens = (uint16_t)(most * states);
        for (int i = 0; i < spec->stream_count; i++) {
            side_stream *stream = &side->streams[i];
            if (stream->group != g)
                continue;
            uint32_t ratio = dice_one_in(dice, 2) ? dice_range(dice, 1, states) : 1;
            bool free = side->areas[stream->area].overlay || only_group_in_area(spec, side, i);
            stream->ratio = (uint8_t)(free && states % ratio == 0 ? ratio : 1);
            for (int j = 0; j < i; j++)
                if (side->streams[j].area == stream->area && side->streams[j].group == g)
                    stream->ratio = side->streams[j].ratio;
        }
    }
    for (int i = 0; i < spec->stream_count; i++) {
        side_stream *stream = &side->streams[i];
        stream->ratio = stream->ratio ? stream->ratio : 1;
        stream->extra_pages = dice_one_in(dice, 8) ? (uint8_t)dice_range(dice, 1, 3) : 0;
        for (int j = 0; j < i; j++)
            if (side->streams[j].bundle == stream->bundle)
                stream->extra_pages = side->streams[j].extra_pages;
    }
}

void spec_generate_side(random_spec *spec, random_dice *dice, int which)
{
    static const uint8_t sizes[] = {1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 8};
    static const uint8_t stages[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4};
    side_spec *side = &spec->sides[which];
    side->tp = sizes[dice_below(dice, sizeof sizes)];
    side->pp = stages[dice_below(dice, sizeof stages)];
    side->dp = (uint8_t)dice_range(dice, 1, 2);
    side->shuffled_documents = dice_one_in(dice, 3);
    generate_bundles(spec, dice, side);
    generate_stages(spec, dice, side);
    generate_groups(spec, dice, which);
    generate_areas(spec, dice, side);
    generate_pools(spec, dice, which);
    generate_pages(spec, dice, which);
}
