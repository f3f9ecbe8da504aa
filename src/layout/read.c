/* SPDX-License-Identifier: Apache-2.0 */
/* From a tree of values to a layout: every document comes through here. */
#include "layout/fingerprint.h"
#include "layout/rules.h"
#include "layout/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/msgpack.h"

/* A layout that is being read. */
typedef struct layout_maker {
    base_json_document *document;
    kvferry_layout *layout;
    layout_check check;
    layout_names segments, groups;      /* by name */
    bool *sound_segments, *sound_groups; /* those without findings */
    bool no_memory;
} layout_maker;

static void *allocate(layout_maker *maker, size_t count, size_t size)
{
    void *data = base_arena_alloc(&maker->layout->arena, count, size);
    if (!data)
        maker->no_memory = true;
    return data;
}

/* A copy that lives as long as the layout. */
static const char *keep(layout_maker *maker, const char *text)
{
    const char *copy = base_arena_strdup(&maker->layout->arena, text);
    if (!copy)
        maker->no_memory = true;
    return copy ? copy : "";
}

/* Adds a finding of the rules at a value's place. */
static void refuse_value(layout_maker *maker, base_json node, const char *code,
                         const char *expected, const char *found, const char *message)
{
    base_text place = {0};
    base_json_place(node, &place);
    base_where where = {.place = place.failed ? "" : place.data};
    layout_refuse(&maker->check, &where, code, expected, found, message);
    free(place.data);
}

static const char *read_text(layout_maker *maker, base_json node)
{
    const char *text = "";
    base_json_string(node, LAYOUT_MAX_NAME, &text);
    return keep(maker, text);
}

static const char *read_text_or_none(layout_maker *maker, base_json node)
{
    const char *text = "";
    base_json_string_or(node, LAYOUT_MAX_NAME, "", &text);
    return keep(maker, text);
}

/* A text that is not empty; one with a finding is. */
static const char *read_name(layout_maker *maker, base_json node)
{
    const char *text = "";
    if (base_json_string(node, LAYOUT_MAX_NAME, &text) && !*text)
        refuse_value(maker, node, "name_empty", "a name", "\"\"", "a name is empty");
    return keep(maker, text);
}

static uint64_t read_number(base_json node, uint64_t minimum)
{
    uint64_t number = minimum;
    base_json_uint(node, minimum, BASE_JSON_MAX_NUMBER, &number);
    return number;
}

static uint64_t read_number_or(base_json node, uint64_t minimum, uint64_t fallback)
{
    uint64_t number = fallback;
    base_json_uint_or(node, minimum, BASE_JSON_MAX_NUMBER, fallback, &number);
    return number;
}

/* --- the head ------------------------------------------------------------------------------ */

static bool read_ranks(base_json node, bool needed, uint64_t minimum, uint64_t *value)
{
    return needed ? base_json_uint(node, minimum, UINT32_MAX, value)
                  : base_json_uint_or(node, minimum, UINT32_MAX, minimum, value);
}

/* A rank and how many there are; rank 0 of 1 by default, where they are not needed. */
static void read_rank(layout_maker *maker, const base_json *worker, const char *rank_key,
                      const char *size_key, bool needed, uint32_t *rank, uint32_t *size)
{
    uint64_t ranks[2] = {0, 1};
    base_json node = base_json_get(worker, rank_key);
    bool fine = read_ranks(node, needed, 0, &ranks[0]);
    fine = read_ranks(base_json_get(worker, size_key), needed, 1, &ranks[1]) && fine;
    if (fine && ranks[0] >= ranks[1])
        refuse_value(maker, node, "rank_range", base_format("less than %u", (uint32_t)ranks[1]),
                     base_format("%u", (uint32_t)ranks[0]), "a rank is not below its size");
    *rank = (uint32_t)ranks[0];
    *size = (uint32_t)ranks[1];
}

static const char *make_worker_text(layout_maker *maker)
{
    const kvferry_worker *worker = &maker->layout->worker;
    char dp[32] = "";
    if (worker->dp_size > 1)
        snprintf(dp, sizeof(dp), " dp%u/%u", worker->dp_rank, worker->dp_size);
    char ranks[96];
    snprintf(ranks, sizeof(ranks), " tp%u/%u pp%u/%u%s", worker->tp_rank, worker->tp_size,
             worker->pp_rank, worker->pp_size, dp);
    size_t length = strlen(maker->layout->engine_id);
    char *text = allocate(maker, length + strlen(ranks) + 1, 1);
    if (!text)
        return "";
    memcpy(text, maker->layout->engine_id, length);
    memcpy(text + length, ranks, strlen(ranks) + 1);
    return text;
}

static void read_head(layout_maker *maker, const base_json *root)
{
    kvferry_layout *layout = maker->layout;
    static const char *const formats[] = {LAYOUT_FORMAT};
    size_t format;
    base_json_choice(base_json_get(root, "format"), formats, 1, &format);
    layout->engine_id = read_text(maker, base_json_get(root, "engine_id"));
    base_json worker = base_json_object(base_json_get(root, "worker"));
    read_rank(maker, &worker, "tp_rank", "tp_size", true, &layout->worker.tp_rank,
              &layout->worker.tp_size);
    read_rank(maker, &worker, "pp_rank", "pp_size", true, &layout->worker.pp_rank,
              &layout->worker.pp_size);
    read_rank(maker, &worker, "dp_rank", "dp_size", false, &layout->worker.dp_rank,
              &layout->worker.dp_size);
    layout->worker_text = make_worker_text(maker);
    base_json identity = base_json_object(base_json_get(root, "identity"));
    layout->identity.model = read_text(maker, base_json_get(&identity, "model"));
    layout->identity.revision = read_text_or_none(maker, base_json_get(&identity, "revision"));
    layout->identity.draft = read_text_or_none(maker, base_json_get(&identity, "draft"));
}

/* --- segments and groups ------------------------------------------------------------------- */

static void read_segments(layout_maker *maker, base_json list)
{
    kvferry_layout *layout = maker->layout;
    size_t count = base_json_count(&list);
    if (!base_json_present(list))
        return;
    layout->segments = allocate(maker, count, sizeof(*layout->segments));
    maker->segments.items = allocate(maker, count, sizeof(layout_name));
    maker->sound_segments = allocate(maker, count, sizeof(bool));
    for (size_t i = 0; i < count && !maker->no_memory; i++) {
        size_t findings = maker->document->findings;
        base_json node = base_json_object(base_json_at(&list, i));
        kvferry_segment *segment = &layout->segments[layout->segment_count];
        segment->name = read_name(maker, base_json_get(&node, "name"));
        segment->bytes = read_number(base_json_get(&node, "bytes"), 0);
        maker->sound_segments[i] = maker->document->findings == findings;
        layout_names_add(&maker->segments, segment->name, "", layout->segment_count++);
    }
    layout_names_sort(&maker->segments);
}

static void read_group(layout_maker *maker, const base_json *node, kvferry_group *group)
{
    size_t kind = KVFERRY_GROUP_PAGED;
    group->name = read_name(maker, base_json_get(node, "name"));
    bool known =
        base_json_choice(base_json_get(node, "kind"), layout_kind_names, LAYOUT_KINDS, &kind);
    group->kind = (kvferry_group_kind)kind;
    if (known && kind == KVFERRY_GROUP_PAGED)
        group->block_tokens = read_number(base_json_get(node, "block_tokens"), 1);
    else
        group->block_tokens = read_number_or(base_json_get(node, "block_tokens"), 0, 0);
    group->window = read_number_or(base_json_get(node, "window"), 0, 0);
    base_json_int_or(base_json_get(node, "null_block"), -1, INT64_MAX, 0, &group->null_block);
}

static void read_groups(layout_maker *maker, base_json list)
{
    kvferry_layout *layout = maker->layout;
    size_t count = base_json_count(&list);
    if (!base_json_present(list))
        return;
    layout->groups = allocate(maker, count, sizeof(*layout->groups));
    layout->group_blocks = allocate(maker, count, sizeof(*layout->group_blocks));
    layout->share = allocate(maker, count * count, sizeof(*layout->share));
    maker->groups.items = allocate(maker, count, sizeof(layout_name));
    maker->sound_groups = allocate(maker, count, sizeof(bool));
    for (size_t i = 0; i < count && !maker->no_memory; i++) {
        size_t findings = maker->document->findings;
        base_json node = base_json_object(base_json_at(&list, i));
        kvferry_group *group = &layout->groups[layout->group_count];
        read_group(maker, &node, group);
        maker->sound_groups[i] = maker->document->findings == findings;
        layout_names_add(&maker->groups, group->name, "", layout->group_count++);
    }
    layout_names_sort(&maker->groups);
}

/* --- streams ------------------------------------------------------------------------------- */

static void read_axes(layout_maker *maker, base_json list, kvferry_stream *stream)
{
    size_t count = base_json_count(&list);
    kvferry_axis *axes = allocate(maker, count, sizeof(*axes));
    for (size_t i = 0; i < count && axes; i++) {
        base_json node = base_json_object(base_json_at(&list, i));
        axes[i].name = read_name(maker, base_json_get(&node, "name"));
        axes[i].start = read_number_or(base_json_get(&node, "start"), 0, 0);
        axes[i].extent = read_number(base_json_get(&node, "extent"), 1);
        axes[i].global = read_number_or(base_json_get(&node, "global"), 1, axes[i].extent);
        axes[i].stride = read_number(base_json_get(&node, "stride"), 0);
    }
    stream->axes = axes;
    stream->axis_count = axes ? (uint32_t)count : 0;
}

static void read_aliases(layout_maker *maker, base_json list, kvferry_stream *stream)
{
    size_t count = base_json_count(&list);
    const char **aliases = allocate(maker, count, sizeof(*aliases));
    for (size_t i = 0; i < count && aliases; i++)
        aliases[i] = read_name(maker, base_json_at(&list, i));
    stream->aliases = aliases;
    stream->alias_count = aliases ? (uint32_t)count : 0;
}

/* The index of what a stream names; LAYOUT_NONE if there is no such thing. Without a list of them
 * there is a finding already. */
static uint32_t read_reference(layout_maker *maker, base_json node, const layout_names *names)
{
    const char *name;
    uint32_t index = LAYOUT_NONE;
    if (!base_json_string(node, LAYOUT_MAX_NAME, &name) || !names->items)
        return LAYOUT_NONE;
    if (layout_names_find(names, name, "", &index))
        return index;
    refuse_value(maker, node, "reference_unknown", "a name of the document", base_json_words(node),
                 "a stream names what the document does not have");
    return LAYOUT_NONE;
}

/* page_tokens, where the group is known; 0: not there. */
static uint64_t read_page_tokens(layout_maker *maker, base_json node, uint32_t group)
{
    uint64_t tokens = read_number_or(node, 1, 0);
    bool paged = group != LAYOUT_NONE && maker->layout->groups[group].kind == KVFERRY_GROUP_PAGED;
    return tokens || !paged ? tokens : maker->layout->groups[group].block_tokens;
}

static void read_stream(layout_maker *maker, const base_json *node, kvferry_stream *stream)
{
    size_t policy = KVFERRY_POLICY_REQUIRED;
    stream->layer = read_name(maker, base_json_get(node, "layer"));
    stream->name = read_name(maker, base_json_get(node, "name"));
    stream->dtype = read_name(maker, base_json_get(node, "dtype"));
    stream->format = read_text_or_none(maker, base_json_get(node, "format"));
    base_json_choice_or(base_json_get(node, "policy"), layout_policy_names, LAYOUT_POLICIES, policy,
                        &policy);
    stream->policy = (kvferry_policy)policy;
    stream->group = read_reference(maker, base_json_get(node, "group"), &maker->groups);
    stream->segment = read_reference(maker, base_json_get(node, "segment"), &maker->segments);
    stream->offset = read_number(base_json_get(node, "offset"), 0);
    stream->pages = read_number(base_json_get(node, "pages"), 1);
    stream->page_stride = read_number(base_json_get(node, "page_stride"), 0);
    stream->page_tokens =
        read_page_tokens(maker, base_json_get(node, "page_tokens"), stream->group);
    stream->tokens_per_state = read_number_or(base_json_get(node, "tokens_per_state"), 1, 1);
    stream->cell_bytes = read_number(base_json_get(node, "cell_bytes"), 1);
    read_axes(maker, base_json_array(base_json_get(node, "axes"), LAYOUT_MAX_AXES), stream);
    read_aliases(maker, base_json_array_or(base_json_get(node, "aliases"), LAYOUT_MAX_ALIASES),
                 stream);
}

static void read_streams(layout_maker *maker, base_json list)
{
    kvferry_layout *layout = maker->layout;
    size_t count = base_json_count(&list);
    layout->streams = allocate(maker, count, sizeof(*layout->streams));
    bool *sound = maker->check.sound = allocate(maker, count, sizeof(bool));
    for (size_t i = 0; i < count && !maker->no_memory; i++) {
        size_t findings = maker->document->findings;
        base_json node = base_json_object(base_json_at(&list, i));
        kvferry_stream *stream = &layout->streams[layout->stream_count++];
        read_stream(maker, &node, stream);
        sound[i] = maker->document->findings == findings && stream->group != LAYOUT_NONE &&
                   stream->segment != LAYOUT_NONE && maker->sound_groups[stream->group] &&
                   maker->sound_segments[stream->segment];
    }
}

/* --- the whole ----------------------------------------------------------------------------- */

/* Everything but the rules. */
static void read_layout(layout_maker *maker)
{
    base_json root = base_json_root(maker->document);
    read_head(maker, &root);
    read_segments(maker, base_json_array(base_json_get(&root, "segments"), LAYOUT_MAX_SEGMENTS));
    read_groups(maker, base_json_array(base_json_get(&root, "groups"), LAYOUT_MAX_GROUPS));
    if (!maker->no_memory)
        read_streams(maker, base_json_array(base_json_get(&root, "streams"), LAYOUT_MAX_STREAMS));
}

kvferry_status layout_read_tree(base_json_document *document, kvferry_layout **layout)
{
    base_arena arena = {0};
    layout_maker maker = {.document = document};
    maker.layout = base_arena_alloc(&arena, 1, sizeof(*maker.layout));
    if (!maker.layout)
        return KVFERRY_NO_MEMORY;
    maker.layout->arena = arena;
    maker.check = (layout_check){.layout = maker.layout, .report = document->report};
    read_layout(&maker);
    kvferry_status status = maker.no_memory ? KVFERRY_NO_MEMORY : KVFERRY_OK;
    if (status == KVFERRY_OK)
        status = layout_check_rules(&maker.check);
    if (status == KVFERRY_OK)
        status = base_json_verdict(document);
    if (status == KVFERRY_OK && maker.check.findings)
        status = KVFERRY_REFUSED;
    if (status == KVFERRY_OK)
        status = layout_make_fingerprint(maker.layout);
    if (status == KVFERRY_OK)
        *layout = maker.layout;
    else
        kvferry_layout_free(maker.layout);
    return status;
}

static kvferry_status read_document(kvferry_status parsed, base_json_document *document,
                                    kvferry_layout **layout)
{
    if (parsed != KVFERRY_OK)
        return parsed;
    kvferry_status status = layout_read_tree(document, layout);
    base_json_end(document);
    return status;
}

kvferry_status kvferry_layout_read_json(const char *text, size_t size, kvferry_layout **layout,
                                        kvferry_report *report)
{
    base_json_document document;
    return read_document(base_json_parse(text, size, 0, report, &document), &document, layout);
}

kvferry_status kvferry_layout_read_msgpack(const void *data, size_t size, kvferry_layout **layout,
                                           kvferry_report *report)
{
    base_json_document document;
    return read_document(base_msgpack_parse(data, size, 0, report, &document), &document, layout);
}
