/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a layout. */
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

const char *const layout_kind_names[LAYOUT_KINDS] = {"paged", "state", "ring"};
const char *const layout_policy_names[LAYOUT_POLICIES] = {"required", "optional", "local"};

void kvferry_layout_free(kvferry_layout *layout)
{
    if (!layout)
        return;
    base_arena arena = layout->arena; /* the layout itself is in it */
    base_arena_free(&arena);
}

const char *kvferry_layout_engine_id(const kvferry_layout *layout) { return layout->engine_id; }

const kvferry_worker *kvferry_layout_worker(const kvferry_layout *layout)
{
    return &layout->worker;
}

const kvferry_identity *kvferry_layout_identity(const kvferry_layout *layout)
{
    return &layout->identity;
}

uint32_t kvferry_layout_segment_count(const kvferry_layout *layout)
{
    return layout->segment_count;
}

uint32_t kvferry_layout_group_count(const kvferry_layout *layout) { return layout->group_count; }

uint32_t kvferry_layout_stream_count(const kvferry_layout *layout) { return layout->stream_count; }

const kvferry_segment *kvferry_layout_segment(const kvferry_layout *layout, uint32_t index)
{
    return index < layout->segment_count ? &layout->segments[index] : NULL;
}

const kvferry_group *kvferry_layout_group(const kvferry_layout *layout, uint32_t index)
{
    return index < layout->group_count ? &layout->groups[index] : NULL;
}

const kvferry_stream *kvferry_layout_stream(const kvferry_layout *layout, uint32_t index)
{
    return index < layout->stream_count ? &layout->streams[index] : NULL;
}

uint64_t kvferry_layout_group_blocks(const kvferry_layout *layout, uint32_t group)
{
    return group < layout->group_count ? layout->group_blocks[group] : 0;
}

bool kvferry_layout_groups_share(const kvferry_layout *layout, uint32_t a, uint32_t b)
{
    return a < layout->group_count && b < layout->group_count &&
           layout->share[(size_t)a * layout->group_count + b];
}

const kvferry_digest *kvferry_layout_digest(const kvferry_layout *layout, uint32_t index)
{
    return index <= layout->stream_count ? &layout->digests[index] : NULL;
}

const char *layout_worker_text(const kvferry_layout *layout) { return layout->worker_text; }

bool layout_is_token_axis(const kvferry_axis *axis) { return strcmp(axis->name, "token") == 0; }

const kvferry_axis *layout_find_axis(const kvferry_stream *stream, const char *name)
{
    for (uint32_t i = 0; i < stream->axis_count; i++)
        if (strcmp(stream->axes[i].name, name) == 0)
            return &stream->axes[i];
    return NULL;
}
