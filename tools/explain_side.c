/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of one side over all its workers, and a summary of the side. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

const char *explain_kind(kvferry_group_kind kind)
{
    switch (kind) {
    case KVFERRY_GROUP_PAGED:
        return "paged";
    case KVFERRY_GROUP_STATE:
        return "state";
    case KVFERRY_GROUP_RING:
        return "ring";
    }
    return "unknown";
}

bool explain_is_token(const kvferry_axis *axis) { return strcmp(axis->name, "token") == 0; }

/* Validated documents: the product fits, since the cells lie inside a segment. */
uint64_t explain_page_payload(const kvferry_stream *stream)
{
    uint64_t bytes = stream->cell_bytes;
    for (uint32_t a = 0; a < stream->axis_count; a++)
        bytes *= stream->axes[a].extent;
    return bytes;
}

static bool contains(const tool_list *list, const char *item)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i], item) == 0)
            return true;
    return false;
}

void explain_list_add_once(tool_list *list, const char *item)
{
    if (!contains(list, item))
        tool_list_add(list, item);
}

bool explain_list_equal(const tool_list *a, const tool_list *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; i < a->count && equal; i++)
        equal = contains(b, a->items[i]);
    return equal;
}

size_t explain_group_find(const explain_side *side, const char *name)
{
    size_t g = 0;
    while (g < side->group_count && strcmp(side->groups[g].name, name) != 0)
        g++;
    return g;
}

static void add_group(explain_side *side, const kvferry_layout *layout, uint32_t index)
{
    const kvferry_group *group = kvferry_layout_group(layout, index);
    uint64_t blocks = kvferry_layout_group_blocks(layout, index);
    if (!blocks)
        return; /* a stage without layers of the group */
    size_t g = explain_group_find(side, group->name);
    if (g < side->group_count) {
        explain_group *known = &side->groups[g];
        known->blocks = blocks < known->blocks ? blocks : known->blocks;
        return;
    }
    side->groups = tool_grow(side->groups, g + 1, sizeof(*side->groups));
    side->groups[g] = (explain_group){group->name,       group->kind, group->block_tokens, group->window,
                                      group->null_block, blocks,      g};
    side->group_count++;
}

/* Groups that share bytes in any worker take the lower one's id space. */
static void join_id_spaces(explain_side *side, const kvferry_layout *layout)
{
    uint32_t count = kvferry_layout_group_count(layout);
    for (uint32_t a = 0; a < count; a++) {
        for (uint32_t b = a + 1; b < count; b++) {
            if (!kvferry_layout_groups_share(layout, a, b))
                continue;
            size_t x = explain_group_find(side, kvferry_layout_group(layout, a)->name);
            size_t y = explain_group_find(side, kvferry_layout_group(layout, b)->name);
            if (x == side->group_count || y == side->group_count)
                continue;
            size_t low = side->groups[x].id_space, high = side->groups[y].id_space;
            if (low > high) {
                size_t swap = low;
                low = high;
                high = swap;
            }
            for (size_t g = 0; g < side->group_count; g++)
                if (side->groups[g].id_space == high)
                    side->groups[g].id_space = low;
        }
    }
}

static char *summary(const explain_side *side)
{
    const kvferry_layout *first = side->workers.layouts[0];
    const kvferry_worker *worker = kvferry_layout_worker(first);
    const char *model = kvferry_layout_identity(first)->model;
    size_t count = side->workers.count;
    char *pp = worker->pp_size > 1 ? tool_text(" PP%u", worker->pp_size) : tool_text("%s", "");
    const char *engine = kvferry_layout_engine_id(first);
    if (strcmp(engine, side->title) == 0)
        engine = "";
    char *text = tool_text("%s, TP%u%s, %zu worker%s%s%s", *model ? model : "unnamed model",
                           worker->tp_size, pp, count, count == 1 ? "" : "s",
                           *engine ? ", engine " : "", engine);
    free(pp);
    return text;
}

void explain_side_study(explain_side *side)
{
    for (size_t w = 0; w < side->workers.count; w++) {
        const kvferry_layout *layout = side->workers.layouts[w];
        for (uint32_t g = 0; g < kvferry_layout_group_count(layout); g++)
            add_group(side, layout, g);
        join_id_spaces(side, layout);
    }
    side->summary = summary(side);
    explain_rows_study(side);
}

void explain_side_free(explain_side *side)
{
    for (size_t r = 0; r < side->row_count; r++) {
        tool_list_free(&side->rows[r].workers);
        tool_list_free(&side->rows[r].layers);
        tool_list_free(&side->rows[r].streams);
    }
    free(side->rows);
    free(side->groups);
    free(side->summary);
    tool_side_free(&side->workers);
}
