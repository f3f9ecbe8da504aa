/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a layout, and what other layers need of it beyond the public header. */
#ifndef KVFERRY_LAYOUT_INTERNAL_H
#define KVFERRY_LAYOUT_INTERNAL_H

#include <kvferry/layout.h>

#include "base/base.h"

/* --- names --------------------------------------------------------------------------------- */

/* A table of pairs of names, sorted once and then only looked at. */
typedef struct layout_name {
    uint64_t hash;
    const char *first, *second;
    uint32_t value;
} layout_name;

typedef struct layout_names {
    layout_name *items;
    size_t count;
} layout_names;

/* Adds to `items`, which has room. `second` may be "". */
void layout_names_add(layout_names *names, const char *first, const char *second, uint32_t value);
/* Equal pairs come to stand side by side, the lower value first. */
void layout_names_sort(layout_names *names);
bool layout_name_equal(const layout_name *a, const layout_name *b);
/* The lowest value of the pair; false if it is not there. */
bool layout_names_find(const layout_names *names, const char *first, const char *second,
                       uint32_t *value);

/* --- the layout ---------------------------------------------------------------------------- */

struct kvferry_layout {
    base_arena arena; /* holds all that the pointers below show */
    const char *engine_id;
    const char *worker_text;
    kvferry_worker worker;
    kvferry_identity identity;
    kvferry_segment *segments;
    kvferry_group *groups;
    kvferry_stream *streams;
    uint32_t segment_count, group_count, stream_count;
    uint64_t *group_blocks;
    bool *share; /* group_count x group_count: whether they own bytes in common */
    kvferry_digest *digests;
    layout_names names; /* (layer or alias, stream name) to stream */
};

/* Names of kvferry_group_kind and kvferry_policy, by value. */
#define LAYOUT_KINDS 3
#define LAYOUT_POLICIES 3
extern const char *const layout_kind_names[LAYOUT_KINDS];
extern const char *const layout_policy_names[LAYOUT_POLICIES];

/* The worker in words: "decode-0 tp1/4 pp0/1", with " dp0/2" where there are several. Belongs to the
 * layout. */
const char *layout_worker_text(const kvferry_layout *layout);

/* Pages a block: 1 unless a block is several kernel blocks. */
static inline uint64_t layout_stream_ratio(const kvferry_layout *layout,
                                           const kvferry_stream *stream)
{
    return stream->page_tokens ? layout->groups[stream->group].block_tokens / stream->page_tokens
                               : 1;
}

/* Whether axis `axis` is the one that a request cuts. */
bool layout_is_token_axis(const kvferry_axis *axis);

/* The stream's axis of that name; NULL if it has none. */
const kvferry_axis *layout_find_axis(const kvferry_stream *stream, const char *name);

/* --- comparing ------------------------------------------------------------------------------ */

/* The stream of `source` that is the target's stream: that of the same layer and stream name, or else
 * the first that has the layer, or one of the aliases in order, among its layer name and aliases.
 * Streams that are local do not match. */
bool layout_match_stream(const kvferry_layout *source, const kvferry_layout *target,
                         uint32_t target_stream, uint32_t *source_stream);

/* Adds every reason why the source's stream cannot become the target's; true if it can. */
bool layout_stream_differences(const kvferry_layout *source, uint32_t source_stream,
                               const kvferry_layout *target, uint32_t target_stream,
                               kvferry_report *report);

/* The same for the identities. */
bool layout_identity_differences(const kvferry_layout *source, const kvferry_layout *target,
                                 kvferry_report *report);

#endif
