/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps one worker's stream from becoming another's. */
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

bool layout_match_stream(const kvferry_layout *source, const kvferry_layout *target,
                         uint32_t target_stream, uint32_t *source_stream)
{
    const kvferry_stream *wanted = &target->streams[target_stream];
    for (uint32_t i = 0; i <= wanted->alias_count; i++) {
        const char *layer = i ? wanted->aliases[i - 1] : wanted->layer;
        uint32_t found;
        if (layout_names_find(&source->names, layer, wanted->name, &found) &&
            source->streams[found].policy != KVFERRY_POLICY_LOCAL) {
            *source_stream = found;
            return true;
        }
    }
    return false;
}

/* The pair that is compared, and how it comes out. */
typedef struct stream_pair {
    const kvferry_stream *source, *target;
    base_where where;
    kvferry_report *report;
    bool same;
} stream_pair;

static void differ_text(stream_pair *pair, const char *code, const char *target, const char *source,
                        const char *message)
{
    if (strcmp(source, target) == 0)
        return;
    base_report_add(pair->report, code, &pair->where, base_format("\"%s\"", target),
                    base_format("\"%s\"", source), "%s", message);
    pair->same = false;
}

static void differ_number(stream_pair *pair, const char *code, uint64_t target, uint64_t source,
                          const char *message)
{
    if (source == target)
        return;
    base_report_add(pair->report, code, &pair->where,
                    base_format("%llu", (unsigned long long)target),
                    base_format("%llu", (unsigned long long)source), "%s", message);
    pair->same = false;
}

static void list_axes(const kvferry_stream *stream, base_text *text)
{
    for (uint32_t i = 0; i < stream->axis_count; i++)
        base_text_append(text, "%s%s", i ? ", " : "", stream->axes[i].name);
    if (!stream->axis_count)
        base_text_append(text, "none");
}

/* Names are unique within a stream, so equal counts and every name found mean equal sets. */
static void differ_axis_names(stream_pair *pair)
{
    bool same = pair->source->axis_count == pair->target->axis_count;
    for (uint32_t i = 0; i < pair->target->axis_count && same; i++)
        same = layout_find_axis(pair->source, pair->target->axes[i].name) != NULL;
    if (same)
        return;
    base_text source = {0}, target = {0};
    list_axes(pair->source, &source);
    list_axes(pair->target, &target);
    base_report_add(pair->report, "axes_differ", &pair->where, target.failed ? "" : target.data,
                    source.failed ? "" : source.data, "the streams have other axes");
    free(source.data);
    free(target.data);
    pair->same = false;
}

static void differ_extents(stream_pair *pair)
{
    for (uint32_t i = 0; i < pair->target->axis_count; i++) {
        const kvferry_axis *target = &pair->target->axes[i];
        const kvferry_axis *source = layout_find_axis(pair->source, target->name);
        if (!source || layout_is_token_axis(target))
            continue;
        pair->where.axis = target->name;
        differ_number(pair, "global_extent_differs", target->global, source->global,
                      "the axis has another length over all workers");
    }
    pair->where.axis = NULL;
}

static const char *kind_name(const kvferry_layout *layout, const kvferry_stream *stream)
{
    return layout_kind_names[layout->groups[stream->group].kind];
}

bool layout_stream_differences(const kvferry_layout *source, uint32_t source_stream,
                               const kvferry_layout *target, uint32_t target_stream,
                               kvferry_report *report)
{
    const kvferry_stream *from = &source->streams[source_stream];
    const kvferry_stream *to = &target->streams[target_stream];
    stream_pair pair = {.source = from,
                 .target = to,
                 .where = {.worker = source->worker_text, .layer = to->layer, .stream = to->name},
                 .report = report,
                 .same = true};
    differ_text(&pair, "kind_differs", kind_name(target, to), kind_name(source, from),
                "the stream's group is of another kind");
    differ_text(&pair, "dtype_differs", to->dtype, from->dtype, "the elements have another type");
    differ_text(&pair, "format_differs", to->format, from->format,
                "the cells are packed in another way");
    differ_number(&pair, "cell_bytes_differ", to->cell_bytes, from->cell_bytes,
                  "a cell has another size");
    differ_number(&pair, "tokens_per_state_differs", to->tokens_per_state, from->tokens_per_state,
                  "a state covers another number of tokens");
    differ_axis_names(&pair);
    differ_extents(&pair);
    return pair.same;
}

static const char *identity_words(const kvferry_identity *identity)
{
    return base_format("model \"%.110s\", revision \"%.110s\"", identity->model,
                       identity->revision);
}

bool layout_identity_differences(const kvferry_layout *source, const kvferry_layout *target,
                                 kvferry_report *report)
{
    if (strcmp(source->identity.model, target->identity.model) == 0 &&
        strcmp(source->identity.revision, target->identity.revision) == 0)
        return true;
    base_where where = {.worker = source->worker_text};
    base_report_add(report, "identity_differs", &where, identity_words(&target->identity),
                    identity_words(&source->identity), "the workers do not serve the same model");
    return false;
}

kvferry_status kvferry_layout_compare(const kvferry_layout *a, const kvferry_layout *b,
                                      kvferry_report *report)
{
    bool same = layout_identity_differences(a, b, report);
    for (uint32_t i = 0; i < b->stream_count; i++) {
        uint32_t match;
        if (b->streams[i].policy == KVFERRY_POLICY_REQUIRED && layout_match_stream(a, b, i, &match))
            same = layout_stream_differences(a, match, b, i, report) && same;
    }
    return same ? KVFERRY_OK : KVFERRY_REFUSED;
}
