/* SPDX-License-Identifier: Apache-2.0 */
/* Documents as trees of values, the one form between JSON, msgpack and the builder. */
#ifndef KVFERRY_LAYOUT_TREE_H
#define KVFERRY_LAYOUT_TREE_H

#include "base/json.h"
#include "layout/layout.h"

#define LAYOUT_FORMAT "kvferry-layout/1"

/* What a document may have at most. */
#define LAYOUT_MAX_SEGMENTS 1024
#define LAYOUT_MAX_GROUPS 1024
#define LAYOUT_MAX_STREAMS 100000
#define LAYOUT_MAX_AXES 16      /* of a stream */
#define LAYOUT_MAX_ALIASES 1024 /* of a stream */
#define LAYOUT_MAX_NAME 1024    /* bytes of a string */

/* --- making: each NULL when out of memory. What has no place in a tree is put so that reading refuses
 * it. `head` is the root, its lists empty. */
json_t *layout_tree_head(const char *engine_id, const kvferry_worker *worker,
                         const kvferry_identity *identity);
json_t *layout_tree_segment(const char *name, uint64_t bytes);
json_t *layout_tree_group(const kvferry_group *group);
json_t *layout_tree_stream(const kvferry_stream *stream, const char *group, const char *segment);

/* --- reading: the one way into a layout. Answers as kvferry_layout_read_json does. */
kvferry_status layout_read_tree(base_json_document *document, kvferry_layout **layout);

#endif
