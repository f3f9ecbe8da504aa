/* SPDX-License-Identifier: Apache-2.0 */
/* Building a document from code: a tree, read as any other. */
#include "layout/tree.h"

#include <stdlib.h>

struct kvferry_layout_builder {
    json_t *root;
    bool failed; /* out of memory */
};

kvferry_status kvferry_layout_builder_create(const char *engine_id, const kvferry_worker *worker,
                                             const kvferry_identity *identity,
                                             kvferry_layout_builder **builder)
{
    if (!engine_id || !worker || !identity || !builder)
        return KVFERRY_INVALID;
    kvferry_layout_builder *created = base_alloc(1, sizeof(*created));
    if (!created)
        return KVFERRY_NO_MEMORY;
    created->root = layout_tree_head(engine_id, worker, identity);
    if (!created->root) {
        free(created);
        return KVFERRY_NO_MEMORY;
    }
    *builder = created;
    return KVFERRY_OK;
}

void kvferry_layout_builder_free(kvferry_layout_builder *builder)
{
    if (!builder)
        return;
    json_decref(builder->root);
    free(builder);
}

/* Appends to the list `key`; the index. */
static uint32_t append(kvferry_layout_builder *builder, const char *key, json_t *element)
{
    json_t *list = json_object_get(builder->root, key);
    uint32_t index = (uint32_t)json_array_size(list);
    if (json_array_append_new(list, element))
        builder->failed = true;
    return index;
}

uint32_t kvferry_layout_builder_segment(kvferry_layout_builder *builder, const char *name,
                                        uint64_t bytes)
{
    return append(builder, "segments", layout_tree_segment(name, bytes));
}

uint32_t kvferry_layout_builder_group(kvferry_layout_builder *builder, const kvferry_group *group)
{
    return append(builder, "groups", layout_tree_group(group));
}

/* The name of an element of the list `key`; one that is not there gets a name that none has. */
static const char *name_of(const kvferry_layout_builder *builder, const char *key, uint32_t index)
{
    json_t *element = json_array_get(json_object_get(builder->root, key), index);
    json_t *name = json_object_get(element, "name");
    return name ? json_string_value(name) : base_format("%s[%u]", key, index);
}

uint32_t kvferry_layout_builder_stream(kvferry_layout_builder *builder,
                                       const kvferry_stream *stream)
{
    const char *group = name_of(builder, "groups", stream->group);
    const char *segment = name_of(builder, "segments", stream->segment);
    return append(builder, "streams", layout_tree_stream(stream, group, segment));
}

kvferry_status kvferry_layout_builder_finish(kvferry_layout_builder *builder,
                                             kvferry_layout **layout, kvferry_report *report)
{
    if (builder->failed)
        return KVFERRY_NO_MEMORY;
    base_json_document document = {
        .root = builder->root, .report = report, .flags = BASE_JSON_CHECK_TEXT};
    return layout_read_tree(&document, layout);
}
