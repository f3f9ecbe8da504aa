/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a document as trees of values: what the writer and the builder have in common. */
#include "layout/tree.h"

#include <string.h>

/* An object that is being filled. */
typedef struct tree_filler {
    json_t *object;
    bool failed;
} tree_filler;

static void put(tree_filler *filler, const char *key, json_t *value)
{
    if (json_object_set_new_nocheck(filler->object, key, value))
        filler->failed = true;
}

/* A NULL is left out, for the reader to miss it. */
static void put_text(tree_filler *filler, const char *key, const char *text)
{
    if (text)
        put(filler, key, json_stringn_nocheck(text, strlen(text)));
}

/* What is too large for an integer becomes a real, for the reader to refuse it. */
static void put_number(tree_filler *filler, const char *key, uint64_t number)
{
    put(filler, key,
        number > INT64_MAX ? json_real((double)number) : json_integer((json_int_t)number));
}

/* A name by its number; one outside the table becomes a name that no reader knows. */
static void put_choice(tree_filler *filler, const char *key, const char *const *names, size_t count,
                       unsigned number)
{
    put_text(filler, key, number < count ? names[number] : base_format("number %u", number));
}

static json_t *finish(tree_filler *filler)
{
    if (!filler->failed)
        return filler->object;
    json_decref(filler->object);
    return NULL;
}

json_t *layout_tree_head(const char *engine_id, const kvferry_worker *worker,
                         const kvferry_identity *identity)
{
    tree_filler ranks = {.object = json_object()};
    put_number(&ranks, "tp_rank", worker->tp_rank);
    put_number(&ranks, "tp_size", worker->tp_size);
    put_number(&ranks, "pp_rank", worker->pp_rank);
    put_number(&ranks, "pp_size", worker->pp_size);
    put_number(&ranks, "dp_rank", worker->dp_rank);
    put_number(&ranks, "dp_size", worker->dp_size);
    tree_filler names = {.object = json_object()};
    put_text(&names, "model", identity->model);
    put_text(&names, "revision", identity->revision);
    put_text(&names, "draft", identity->draft);
    tree_filler root = {.object = json_object()};
    put_text(&root, "format", LAYOUT_FORMAT);
    put_text(&root, "engine_id", engine_id);
    put(&root, "worker", finish(&ranks));
    put(&root, "identity", finish(&names));
    put(&root, "segments", json_array());
    put(&root, "groups", json_array());
    put(&root, "streams", json_array());
    return finish(&root);
}

json_t *layout_tree_segment(const char *name, uint64_t bytes)
{
    tree_filler filler = {.object = json_object()};
    put_text(&filler, "name", name);
    put_number(&filler, "bytes", bytes);
    return finish(&filler);
}

json_t *layout_tree_group(const kvferry_group *group)
{
    tree_filler filler = {.object = json_object()};
    put_text(&filler, "name", group->name);
    put_choice(&filler, "kind", layout_kind_names, LAYOUT_KINDS, group->kind);
    if (group->block_tokens)
        put_number(&filler, "block_tokens", group->block_tokens);
    if (group->window)
        put_number(&filler, "window", group->window);
    if (group->null_block)
        put(&filler, "null_block", json_integer(group->null_block));
    return finish(&filler);
}

static json_t *axis_tree(const kvferry_axis *axis)
{
    tree_filler filler = {.object = json_object()};
    put_text(&filler, "name", axis->name);
    if (axis->start)
        put_number(&filler, "start", axis->start);
    put_number(&filler, "extent", axis->extent);
    if (axis->global && axis->global != axis->extent)
        put_number(&filler, "global", axis->global);
    put_number(&filler, "stride", axis->stride);
    return finish(&filler);
}

static json_t *axes_tree(const kvferry_stream *stream)
{
    json_t *axes = json_array();
    for (uint32_t i = 0; axes && i < stream->axis_count; i++)
        if (json_array_append_new(axes, axis_tree(&stream->axes[i]))) {
            json_decref(axes);
            return NULL;
        }
    return axes;
}

static json_t *aliases_tree(const kvferry_stream *stream)
{
    json_t *aliases = json_array();
    for (uint32_t i = 0; aliases && i < stream->alias_count; i++) {
        const char *alias = stream->aliases[i] ? stream->aliases[i] : "";
        if (json_array_append_new(aliases, json_stringn_nocheck(alias, strlen(alias)))) {
            json_decref(aliases);
            return NULL;
        }
    }
    return aliases;
}

json_t *layout_tree_stream(const kvferry_stream *stream, const char *group, const char *segment)
{
    tree_filler filler = {.object = json_object()};
    put_text(&filler, "layer", stream->layer);
    put_text(&filler, "name", stream->name);
    put_text(&filler, "group", group);
    put_text(&filler, "dtype", stream->dtype);
    if (stream->format && *stream->format)
        put_text(&filler, "format", stream->format);
    if (stream->policy != KVFERRY_POLICY_REQUIRED)
        put_choice(&filler, "policy", layout_policy_names, LAYOUT_POLICIES, stream->policy);
    if (stream->alias_count)
        put(&filler, "aliases", aliases_tree(stream));
    put_text(&filler, "segment", segment);
    put_number(&filler, "offset", stream->offset);
    put_number(&filler, "pages", stream->pages);
    put_number(&filler, "page_stride", stream->page_stride);
    if (stream->page_tokens)
        put_number(&filler, "page_tokens", stream->page_tokens);
    if (stream->tokens_per_state > 1)
        put_number(&filler, "tokens_per_state", stream->tokens_per_state);
    put(&filler, "axes", axes_tree(stream));
    put_number(&filler, "cell_bytes", stream->cell_bytes);
    return finish(&filler);
}
