/* SPDX-License-Identifier: Apache-2.0 */
/* What each target worker gets from each source, folded over layers and streams. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

static bool same_ranges(const explain_piece *a, const explain_piece *b)
{
    if (a->stream->axis_count != b->stream->axis_count)
        return false;
    for (uint32_t i = 0; i < a->stream->axis_count; i++) {
        const kvferry_axis *x = &a->stream->axes[i], *y = &b->stream->axes[i];
        if (strcmp(x->name, y->name) != 0 || a->ranges[i].start != b->ranges[i].start ||
            a->ranges[i].extent != b->ranges[i].extent)
            return false;
        if (!explain_is_token(x) && x->global != y->global)
            return false;
    }
    return true;
}

static bool same_part(const explain_piece *a, const explain_piece *b)
{
    return a->source == b->source && a->target == b->target && a->kind == b->kind &&
           a->state_bytes == b->state_bytes && a->tokens_per_state == b->tokens_per_state &&
           same_ranges(a, b);
}

/* Adds to the list from `start` on: a layer to the stream's piece, or a new piece. */
static void add_piece(explain *all, size_t start, const explain_piece *piece)
{
    size_t p = start;
    while (p < all->piece_count && !(strcmp(all->pieces[p].stream->name, piece->stream->name) == 0 &&
                                     same_part(&all->pieces[p], piece)))
        p++;
    if (p == all->piece_count) {
        all->pieces = tool_grow(all->pieces, p + 1, sizeof(*all->pieces));
        all->pieces[all->piece_count++] = *piece;
        tool_list_add(&all->pieces[p].streams, piece->stream->name);
    }
    tool_list_add(&all->pieces[p].layers, piece->stream->layer);
}

/* Streams of the same layers and part ("k" and "v") become one piece. */
static void merge_streams(explain *all, size_t start)
{
    size_t kept = start;
    for (size_t p = start; p < all->piece_count; p++) {
        explain_piece *piece = &all->pieces[p];
        size_t q = start;
        while (q < kept && !(same_part(&all->pieces[q], piece) && explain_list_equal(&all->pieces[q].layers, &piece->layers)))
            q++;
        if (q < kept) {
            tool_list_add(&all->pieces[q].streams, piece->streams.items[0]);
            tool_list_free(&piece->streams);
            tool_list_free(&piece->layers);
        } else {
            all->pieces[kept++] = *piece;
        }
    }
    all->piece_count = kept;
}

static int by_target_stream(const void *a, const void *b)
{
    const kvferry_piece *x = *(const kvferry_piece *const *)a, *y = *(const kvferry_piece *const *)b;
    return x->target_stream < y->target_stream ? -1 : x->target_stream > y->target_stream;
}

const kvferry_piece **explain_planned(const kvferry_plan *plan, size_t source, size_t *count)
{
    *count = kvferry_plan_piece_count(plan, source);
    const kvferry_piece **planned = tool_alloc(*count, sizeof(*planned));
    for (size_t i = 0; i < *count; i++)
        planned[i] = kvferry_plan_piece(plan, source, i);
    qsort(planned, *count, sizeof(*planned), by_target_stream);
    return planned;
}

static void study_pair(explain *all, size_t target, size_t source)
{
    size_t start = all->piece_count, count;
    const kvferry_layout *layout = all->target.workers.layouts[target];
    const kvferry_piece **planned = explain_planned(all->plans[target], source, &count);
    for (size_t i = 0; i < count; i++) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, planned[i]->target_stream);
        explain_piece piece = {.source = source,
                               .target = target,
                               .kind = kvferry_layout_group(layout, stream->group)->kind,
                               .state_bytes = planned[i]->state_bytes,
                               .tokens_per_state = stream->tokens_per_state,
                               .stream = stream,
                               .ranges = planned[i]->ranges};
        add_piece(all, start, &piece);
    }
    free(planned);
    merge_streams(all, start);
}

/* Layers of the target with a stream that no source gives (optional or local ones). */
static void find_unsent(explain *all, size_t target)
{
    const kvferry_layout *layout = all->target.workers.layouts[target];
    uint32_t count = kvferry_layout_stream_count(layout);
    bool *sent = tool_alloc(count, sizeof(*sent));
    for (size_t s = 0; s < all->source.workers.count; s++)
        for (size_t i = 0; i < kvferry_plan_piece_count(all->plans[target], s); i++)
            sent[kvferry_plan_piece(all->plans[target], s, i)->target_stream] = true;
    for (uint32_t i = 0; i < count; i++)
        if (!sent[i])
            explain_list_add_once(&all->unsent, kvferry_layout_stream(layout, i)->layer);
    free(sent);
}

/* Layers of a source with a stream that no target takes. */
static void find_unused(explain *all)
{
    json_t *used = json_object();
    for (size_t t = 0; t < all->target.workers.count; t++)
        for (size_t s = 0; s < all->source.workers.count; s++)
            for (size_t i = 0; i < kvferry_plan_piece_count(all->plans[t], s); i++) {
                uint32_t stream = kvferry_plan_piece(all->plans[t], s, i)->source_stream;
                const kvferry_layout *layout = all->source.workers.layouts[s];
                json_object_set_new(used, kvferry_layout_stream(layout, stream)->layer, json_true());
            }
    for (size_t s = 0; s < all->source.workers.count; s++) {
        const kvferry_layout *layout = all->source.workers.layouts[s];
        for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
            const char *layer = kvferry_layout_stream(layout, i)->layer;
            if (!json_object_get(used, layer))
                explain_list_add_once(&all->unused, layer);
        }
    }
    json_decref(used);
}

void explain_pieces_study(explain *all)
{
    for (size_t t = 0; t < all->target.workers.count; t++) {
        for (size_t s = 0; s < all->source.workers.count; s++)
            study_pair(all, t, s);
        find_unsent(all, t);
    }
    find_unused(all);
}

char *explain_range_text(const explain_piece *piece)
{
    char *text = tool_text("%s", "");
    for (uint32_t i = 0; i < piece->stream->axis_count; i++) {
        const kvferry_axis *axis = &piece->stream->axes[i];
        const kvferry_range *range = &piece->ranges[i];
        if (explain_is_token(axis) || range->extent == axis->global)
            continue;
        char *longer = tool_text("%s%s%s %llu..%llu of %llu", text, *text ? ", " : "", axis->name,
                                 (unsigned long long)range->start,
                                 (unsigned long long)(range->start + range->extent - 1),
                                 (unsigned long long)axis->global);
        free(text);
        text = longer;
    }
    if (*text)
        return text;
    free(text);
    return tool_text("whole");
}
