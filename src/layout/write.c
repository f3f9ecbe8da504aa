/* SPDX-License-Identifier: Apache-2.0 */
/* Writing documents. */
#include "base/json.h"
#include "base/msgpack.h"
#include "layout/tree.h"

#include <stdlib.h>
#include <string.h>

/* Appends to the list `key` of a document. */
static bool append(json_t *root, const char *key, json_t *element)
{
    return json_array_append_new(json_object_get(root, key), element) == 0;
}

static json_t *layout_tree(const kvferry_layout *layout)
{
    json_t *root = layout_tree_head(layout->engine_id, &layout->worker, &layout->identity);
    bool fine = root != NULL;
    for (uint32_t i = 0; i < layout->segment_count && fine; i++)
        fine = append(root, "segments",
                      layout_tree_segment(layout->segments[i].name, layout->segments[i].bytes));
    for (uint32_t i = 0; i < layout->group_count && fine; i++)
        fine = append(root, "groups", layout_tree_group(&layout->groups[i]));
    for (uint32_t i = 0; i < layout->stream_count && fine; i++) {
        const kvferry_stream *stream = &layout->streams[i];
        fine = append(root, "streams",
                      layout_tree_stream(stream, layout->groups[stream->group].name,
                                         layout->segments[stream->segment].name));
    }
    if (fine)
        return root;
    json_decref(root);
    return NULL;
}

/* A list with one element a line. */
static void write_list(base_text *text, json_t *list)
{
    base_text_append(text, "[");
    for (size_t i = 0; i < json_array_size(list); i++) {
        base_text_append(text, "%s\n    ", i ? "," : "");
        base_json_dump(json_array_get(list, i), JSON_ENCODE_ANY, text);
    }
    base_text_append(text, "%s]", json_array_size(list) ? "\n  " : "");
}

kvferry_status kvferry_layout_write_json(const kvferry_layout *layout, char **text, size_t *size)
{
    json_t *root = layout_tree(layout);
    if (!root)
        return KVFERRY_NO_MEMORY;
    base_text written = {0};
    for (void *i = json_object_iter(root); i; i = json_object_iter_next(root, i)) {
        base_text_append(&written, "%s\n  \"%s\": ", written.size ? "," : "{",
                         json_object_iter_key(i));
        if (json_is_array(json_object_iter_value(i)))
            write_list(&written, json_object_iter_value(i));
        else
            base_json_dump(json_object_iter_value(i), JSON_ENCODE_ANY, &written);
    }
    base_text_append(&written, "\n}\n");
    json_decref(root);
    if (written.failed) {
        free(written.data);
        return KVFERRY_NO_MEMORY;
    }
    *text = written.data;
    *size = written.size;
    return KVFERRY_OK;
}

kvferry_status kvferry_layout_write_msgpack(const kvferry_layout *layout, void **data, size_t *size)
{
    json_t *root = layout_tree(layout);
    if (!root)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = base_msgpack_write(root, data, size);
    json_decref(root);
    return status;
}
