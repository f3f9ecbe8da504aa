/* SPDX-License-Identifier: Apache-2.0 */
/* How each kind of stream is blocked and cut on the two sides, and how many hold the same part. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

/* How often each box of a layer's stream is held on a side: {"<layer> <stream> <starts, extents>": n}. */
static char *box_key(const kvferry_stream *stream)
{
    char *key = tool_text("%s %s", stream->layer, stream->name);
    for (uint32_t a = 0; a < stream->axis_count; a++) {
        const kvferry_axis *axis = &stream->axes[a];
        if (explain_is_token(axis))
            continue;
        char *longer = tool_text("%s %llu+%llu", key, (unsigned long long)axis->start,
                                 (unsigned long long)axis->extent);
        free(key);
        key = longer;
    }
    return key;
}

static json_t *count_holders(const tool_side *side)
{
    json_t *holders = json_object();
    for (size_t w = 0; w < side->count; w++)
        for (uint32_t s = 0; s < kvferry_layout_stream_count(side->layouts[w]); s++) {
            char *key = box_key(kvferry_layout_stream(side->layouts[w], s));
            json_int_t before = json_integer_value(json_object_get(holders, key));
            if (json_object_set_new(holders, key, json_integer(before + 1)) != 0)
                tool_no_memory();
            free(key);
        }
    return holders;
}

static uint64_t holders_of(const json_t *holders, const kvferry_stream *stream)
{
    char *key = box_key(stream);
    uint64_t count = (uint64_t)json_integer_value(json_object_get(holders, key));
    free(key);
    return count;
}

/* The first axis that one of the two holds only a part of; -1 if both hold all. */
static int cut_axis(const kvferry_stream *source, const kvferry_stream *target)
{
    for (uint32_t a = 0; a < target->axis_count; a++) {
        const kvferry_axis *axis = &target->axes[a];
        if (explain_is_token(axis))
            continue;
        if (axis->extent < axis->global)
            return (int)a;
        for (uint32_t b = 0; b < source->axis_count; b++)
            if (strcmp(source->axes[b].name, axis->name) == 0 &&
                source->axes[b].extent < source->axes[b].global)
                return (int)a;
    }
    return -1;
}

static uint64_t extent_of(const kvferry_stream *stream, const char *axis)
{
    for (uint32_t a = 0; a < stream->axis_count; a++)
        if (strcmp(stream->axes[a].name, axis) == 0)
            return stream->axes[a].extent;
    return 0;
}

static void widen(explain_cut *cut, int side, uint64_t extent, uint64_t holders)
{
    if (!cut->least[side] || extent < cut->least[side])
        cut->least[side] = extent;
    if (extent > cut->most[side])
        cut->most[side] = extent;
    if (holders > cut->holders[side])
        cut->holders[side] = holders;
}

static bool same_kind(const explain_cut *a, const explain_cut *b)
{
    return a->kind == b->kind && a->tokens_per_state == b->tokens_per_state &&
           memcmp(a->block_tokens, b->block_tokens, sizeof(a->block_tokens)) == 0 &&
           memcmp(a->page_tokens, b->page_tokens, sizeof(a->page_tokens)) == 0 &&
           a->window == b->window && a->global == b->global && !a->axis == !b->axis &&
           (!a->axis || strcmp(a->axis, b->axis) == 0);
}

static explain_cut *find_cut(explain *all, const explain_cut *wanted, const char *stream)
{
    for (size_t c = 0; c < all->cut_count; c++)
        if (strcmp(all->cuts[c].streams.items[0], stream) == 0 && same_kind(&all->cuts[c], wanted))
            return &all->cuts[c];
    all->cuts = tool_grow(all->cuts, all->cut_count + 1, sizeof(*all->cuts));
    explain_cut *cut = &all->cuts[all->cut_count++];
    *cut = *wanted;
    tool_list_add(&cut->streams, stream);
    return cut;
}

static void study_piece(explain *all, const kvferry_layout *from, const kvferry_layout *to,
                        const kvferry_piece *piece, const json_t *const holders[2])
{
    const kvferry_stream *streams[2] = {kvferry_layout_stream(from, piece->source_stream),
                                        kvferry_layout_stream(to, piece->target_stream)};
    const kvferry_group *groups[2] = {kvferry_layout_group(from, streams[0]->group),
                                      kvferry_layout_group(to, streams[1]->group)};
    int axis = cut_axis(streams[0], streams[1]);
    explain_cut wanted = {.kind = groups[1]->kind,
                          .tokens_per_state = streams[1]->tokens_per_state,
                          .block_tokens = {groups[0]->block_tokens, groups[1]->block_tokens},
                          .page_tokens = {streams[0]->page_tokens, streams[1]->page_tokens},
                          .window = groups[1]->window,
                          .axis = axis < 0 ? NULL : streams[1]->axes[axis].name,
                          .global = axis < 0 ? 0 : streams[1]->axes[axis].global};
    explain_cut *cut = find_cut(all, &wanted, streams[1]->name);
    explain_list_add_once(&cut->layers, streams[1]->layer);
    for (int side = 0; side < 2; side++)
        widen(cut, side, cut->axis ? extent_of(streams[side], cut->axis) : 0,
              holders_of(holders[side], streams[side]));
}

static bool same_cut(const explain_cut *a, const explain_cut *b)
{
    return same_kind(a, b) && memcmp(a->least, b->least, sizeof(a->least)) == 0 &&
           memcmp(a->most, b->most, sizeof(a->most)) == 0 &&
           memcmp(a->holders, b->holders, sizeof(a->holders)) == 0 &&
           explain_list_equal(&a->layers, &b->layers);
}

/* Streams that are cut alike in the same layers share a line. */
static void merge_cuts(explain *all)
{
    size_t kept = 0;
    for (size_t c = 0; c < all->cut_count; c++) {
        explain_cut *cut = &all->cuts[c];
        size_t k = 0;
        while (k < kept && !same_cut(&all->cuts[k], cut))
            k++;
        if (k < kept) {
            tool_list_add(&all->cuts[k].streams, cut->streams.items[0]);
            tool_list_free(&cut->streams);
            tool_list_free(&cut->layers);
        } else {
            all->cuts[kept++] = *cut;
        }
    }
    all->cut_count = kept;
}

static void study_pair(explain *all, size_t target, size_t source, const json_t *const holders[2])
{
    size_t count;
    const kvferry_piece **planned = explain_planned(all->plans[target], source, &count);
    for (size_t i = 0; i < count; i++)
        study_piece(all, all->source.workers.layouts[source], all->target.workers.layouts[target],
                    planned[i], holders);
    free(planned);
}

void explain_cuts_study(explain *all)
{
    json_t *holders[2] = {count_holders(&all->source.workers), count_holders(&all->target.workers)};
    for (size_t t = 0; t < all->target.workers.count; t++)
        for (size_t s = 0; s < all->source.workers.count; s++)
            study_pair(all, t, s, (const json_t *const[2]){holders[0], holders[1]});
    merge_cuts(all);
    json_decref(holders[0]);
    json_decref(holders[1]);
}
