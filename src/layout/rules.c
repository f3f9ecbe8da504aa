/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that concern one thing at a time; those on shared bytes are in overlap.c. */
#include "layout/rules.h"

#include <stdlib.h>
#include <string.h>

void layout_refuse(layout_check *check, const base_where *where, const char *code,
                   const char *expected, const char *found, const char *message)
{
    base_report_add(check->report, code, where, expected, found, "%s", message);
    check->findings++;
}

void layout_refuse_stream(layout_check *check, uint32_t stream, int axis, const char *code,
                          const char *expected, const char *found, const char *message)
{
    const kvferry_stream *about = &check->layout->streams[stream];
    base_where where = {.layer = about->layer,
                        .stream = about->name,
                        .axis = axis < 0 ? "" : about->axes[axis].name,
                        .place = axis < 0 ? base_format("streams[%u]", stream)
                                          : base_format("streams[%u].axes[%d]", stream, axis)};
    layout_refuse(check, &where, code, expected, found, message);
    check->sound[stream] = false;
}

static const char *number(uint64_t value) { return base_format("%llu", (unsigned long long)value); }

/* --- names --------------------------------------------------------------------------------- */

/* Finds segments or groups of one name. */
static kvferry_status check_list_names(layout_check *check, bool groups)
{
    const kvferry_layout *layout = check->layout;
    const char *list = groups ? "groups" : "segments";
    uint32_t count = groups ? layout->group_count : layout->segment_count;
    layout_names names = {.items = base_alloc(count, sizeof(layout_name))};
    if (!names.items)
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        layout_names_add(&names, groups ? layout->groups[i].name : layout->segments[i].name, "", i);
    layout_names_sort(&names);
    for (uint32_t i = 1; i < count; i++) {
        const layout_name *last = &names.items[i - 1], *name = &names.items[i];
        if (!*name->first || !layout_name_equal(last, name))
            continue;
        base_where where = {.place = base_format("%s[%u].name", list, name->value)};
        layout_refuse(check, &where, "name_duplicate", "a name of its own",
                      base_format("\"%.150s\" of %s[%u]", name->first, list, last->value),
                      "a name comes twice");
    }
    free(names.items);
    return KVFERRY_OK;
}

/* Fills the table of (layer or alias, name) and finds streams of one such name. */
static kvferry_status check_stream_names(layout_check *check)
{
    kvferry_layout *layout = check->layout;
    size_t count = 0;
    for (uint32_t i = 0; i < layout->stream_count; i++)
        count += 1 + (size_t)layout->streams[i].alias_count;
    layout->names.items = base_arena_alloc(&layout->arena, count, sizeof(layout_name));
    if (!layout->names.items)
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < layout->stream_count; i++) {
        const kvferry_stream *stream = &layout->streams[i];
        layout_names_add(&layout->names, stream->layer, stream->name, i);
        for (uint32_t k = 0; k < stream->alias_count; k++)
            layout_names_add(&layout->names, stream->aliases[k], stream->name, i);
    }
    layout_names_sort(&layout->names);
    for (size_t i = 1; i < count; i++) {
        const layout_name *last = &layout->names.items[i - 1], *name = &layout->names.items[i];
        if (!*name->first || !*name->second || !layout_name_equal(last, name))
            continue;
        layout_refuse_stream(check, name->value, -1, "name_duplicate",
                             "a layer or alias and stream name of its own",
                             base_format("\"%.90s\", \"%.90s\" of streams[%u]", name->first,
                                         name->second, last->value),
                             "a name comes twice");
    }
    return KVFERRY_OK;
}

/* --- groups -------------------------------------------------------------------------------- */

static void check_paged_only(layout_check *check, uint32_t group, const char *key, uint64_t value)
{
    const kvferry_group *about = &check->layout->groups[group];
    if (!value || about->kind == KVFERRY_GROUP_PAGED)
        return;
    base_where where = {.place = base_format("groups[%u].%s", group, key)};
    layout_refuse(check, &where, "paged_only",
                  base_format("none, of kind %s", layout_kind_names[about->kind]), number(value),
                  "the value belongs to paged groups only");
}

static void check_groups(layout_check *check)
{
    for (uint32_t i = 0; i < check->layout->group_count; i++) {
        check_paged_only(check, i, "block_tokens", check->layout->groups[i].block_tokens);
        check_paged_only(check, i, "window", check->layout->groups[i].window);
    }
}

/* Sets the groups' block counts, and finds null blocks outside of them. */
static void check_pools(layout_check *check)
{
    kvferry_layout *layout = check->layout;
    for (uint32_t i = 0; i < layout->stream_count; i++) {
        const kvferry_stream *stream = &layout->streams[i];
        if (!check->sound[i])
            continue;
        uint64_t *blocks = &layout->group_blocks[stream->group];
        uint64_t own = stream->pages / layout_stream_ratio(layout, stream);
        *blocks = *blocks ? base_min(*blocks, own) : own;
    }
    for (uint32_t i = 0; i < layout->group_count; i++) {
        const kvferry_group *group = &layout->groups[i];
        uint64_t blocks = layout->group_blocks[i];
        if (!blocks || group->null_block < 0 || (uint64_t)group->null_block < blocks)
            continue;
        base_where where = {.place = base_format("groups[%u].null_block", i)};
        layout_refuse(check, &where, "null_block_range",
                      base_format("-1 or less than %llu", (unsigned long long)blocks),
                      number((uint64_t)group->null_block),
                      "the null block is not one of the group's");
    }
}

/* --- streams ------------------------------------------------------------------------------- */

/* Finds axes of one name, boxes outside of the global array, and strides of nothing. */
static void check_axes(layout_check *check, uint32_t index)
{
    const kvferry_stream *stream = &check->layout->streams[index];
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        const kvferry_axis *axis = &stream->axes[i];
        uint64_t end;
        bool fits = base_add(axis->start, axis->extent, &end) && end <= axis->global;
        if (!fits)
            layout_refuse_stream(check, index, (int)i, "axis_range",
                                 base_format("at most %llu", (unsigned long long)axis->global),
                                 base_format("%llu + %llu", (unsigned long long)axis->start,
                                             (unsigned long long)axis->extent),
                                 "start and extent reach past the axis's global length");
        if (axis->extent > 1 && !axis->stride)
            layout_refuse_stream(check, index, (int)i, "stride_zero", "at least 1", "0",
                                 "the axis has several indexes and no stride");
        for (uint32_t k = 0; k < i; k++)
            if (*axis->name && strcmp(axis->name, stream->axes[k].name) == 0)
                layout_refuse_stream(check, index, (int)i, "name_duplicate", "a name of its own",
                                     base_format("\"%.150s\" of axes[%u]", axis->name, k),
                                     "a name comes twice");
    }
    if (stream->pages > 1 && !stream->page_stride)
        layout_refuse_stream(check, index, -1, "stride_zero", "page_stride of at least 1", "0",
                             "the stream has several pages and no stride");
}

static void check_token_axis(layout_check *check, uint32_t index)
{
    const kvferry_stream *stream = &check->layout->streams[index];
    uint64_t states = stream->page_tokens / stream->tokens_per_state;
    bool found = false;
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        const kvferry_axis *axis = &stream->axes[i];
        if (!layout_is_token_axis(axis))
            continue;
        found = true;
        if (axis->start || axis->extent != states || axis->global != states)
            layout_refuse_stream(
                check, index, (int)i, "token_axis",
                base_format("start 0, extent and global %llu (%llu tokens a page, %llu a state)",
                            (unsigned long long)states, (unsigned long long)stream->page_tokens,
                            (unsigned long long)stream->tokens_per_state),
                base_format("start %llu, extent %llu, global %llu", (unsigned long long)axis->start,
                            (unsigned long long)axis->extent, (unsigned long long)axis->global),
                "the token axis is not a page's states");
    }
    if (!found)
        layout_refuse_stream(check, index, -1, "token_axis", "one axis \"token\"", "none",
                             "a paged stream has no token axis");
}

static void check_paged(layout_check *check, uint32_t index)
{
    const kvferry_stream *stream = &check->layout->streams[index];
    const kvferry_group *group = &check->layout->groups[stream->group];
    bool states = stream->page_tokens % stream->tokens_per_state == 0;
    bool pages = group->block_tokens % stream->page_tokens == 0;
    uint64_t ratio = group->block_tokens / stream->page_tokens;
    if (!pages)
        layout_refuse_stream(
            check, index, -1, "page_tokens_uneven",
            base_format("a divisor of block_tokens %llu", (unsigned long long)group->block_tokens),
            base_format("page_tokens %llu", (unsigned long long)stream->page_tokens),
            "a block is not a whole number of pages");
    if (pages && stream->pages < ratio)
        layout_refuse_stream(check, index, -1, "pages_short",
                             base_format("at least %llu", (unsigned long long)ratio),
                             number(stream->pages), "the pages are less than one block");
    if (states)
        check_token_axis(check, index);
    else
        layout_refuse_stream(
            check, index, -1, "state_tokens_uneven",
            base_format("a divisor of page_tokens %llu", (unsigned long long)stream->page_tokens),
            base_format("tokens_per_state %llu", (unsigned long long)stream->tokens_per_state),
            "a page is not a whole number of states");
}

static void check_unpaged(layout_check *check, uint32_t index)
{
    const kvferry_stream *stream = &check->layout->streams[index];
    const char *kind = layout_kind_names[check->layout->groups[stream->group].kind];
    if (stream->page_tokens)
        layout_refuse_stream(
            check, index, -1, "paged_only", base_format("none, of kind %s", kind),
            base_format("page_tokens %llu", (unsigned long long)stream->page_tokens),
            "the value belongs to paged groups only");
    for (uint32_t i = 0; i < stream->axis_count; i++)
        if (layout_is_token_axis(&stream->axes[i]))
            layout_refuse_stream(check, index, (int)i, "token_axis",
                                 base_format("none, of kind %s", kind), "an axis \"token\"",
                                 "the token axis belongs to paged groups only");
}

/* start + (count - 1) * stride. */
static bool reach(uint64_t start, uint64_t count, uint64_t stride, uint64_t *end)
{
    uint64_t last;
    return base_mul(count - 1, stride, &last) && base_add(start, last, end);
}

static void check_bounds(layout_check *check, uint32_t index)
{
    const kvferry_stream *stream = &check->layout->streams[index];
    uint64_t bytes = check->layout->segments[stream->segment].bytes;
    uint64_t end = stream->offset;
    bool fits = reach(end, stream->pages, stream->page_stride, &end);
    for (uint32_t i = 0; i < stream->axis_count && fits; i++)
        fits = reach(end, stream->axes[i].extent, stream->axes[i].stride, &end);
    fits = fits && base_add(end, stream->cell_bytes, &end);
    if (!fits || end > bytes)
        layout_refuse_stream(
            check, index, -1, "page_bounds",
            base_format("at most the segment's %llu bytes", (unsigned long long)bytes),
            fits ? number(end) : "more than 64 bits hold",
            "the last page ends outside of the segment");
}

static void check_streams(layout_check *check)
{
    const kvferry_layout *layout = check->layout;
    for (uint32_t i = 0; i < layout->stream_count; i++) {
        if (!check->sound[i])
            continue;
        check_axes(check, i);
        if (layout->groups[layout->streams[i].group].kind == KVFERRY_GROUP_PAGED)
            check_paged(check, i);
        else
            check_unpaged(check, i);
        check_bounds(check, i);
    }
}

kvferry_status layout_check_rules(layout_check *check)
{
    kvferry_status status = check_list_names(check, false);
    if (status == KVFERRY_OK)
        status = check_list_names(check, true);
    if (status != KVFERRY_OK)
        return status;
    check_groups(check);
    check_streams(check);
    status = check_stream_names(check);
    if (status != KVFERRY_OK)
        return status;
    check_pools(check);
    return layout_check_overlaps(check);
}
