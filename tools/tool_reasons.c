/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons: collected from reports, printed as JSON or, folded, as text. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

kvferry_report *tool_report(void)
{
    kvferry_report *report;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        tool_no_memory();
    return report;
}

/* --- collecting ---------------------------------------------------------------------------- */

static json_t *text_or(const char *text) { return tool_json_text(text ? text : ""); }

/* "worker, place, layer x: words" becomes "worker, file: place, layer x: words". */
static char *message_with_file(const kvferry_reason *reason, const char *file)
{
    size_t front = strlen(reason->worker), place = strlen(reason->place);
    if (strncmp(reason->message, reason->worker, front) != 0)
        front = 0;
    const char *rest = reason->message + front;
    if (front && place && strncmp(rest, ", ", 2) == 0)
        rest += 2;
    if (place && strncmp(rest, reason->place, place) == 0)
        return tool_text("%.*s%s: %s", (int)(rest - reason->message), reason->message, file, rest);
    if (front)
        return tool_text("%s, %s%s", reason->worker, file, rest);
    bool located = *reason->layer || *reason->stream || *reason->axis;
    return tool_text("%s%s%s", file, located ? ", " : ": ", rest);
}

json_t *tool_reason_json(const kvferry_reason *reason, const char *file)
{
    char *place = file && *reason->place ? tool_text("%s: %s", file, reason->place)
                                         : tool_text("%s", file ? file : reason->place);
    char *message = file ? message_with_file(reason, file) : tool_text("%s", reason->message);
    json_t *object = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "code",
                               text_or(reason->code), "worker", text_or(reason->worker), "layer",
                               text_or(reason->layer), "stream", text_or(reason->stream), "axis",
                               text_or(reason->axis), "place", text_or(place), "expected",
                               text_or(reason->expected), "found", text_or(reason->found),
                               "message", text_or(message));
    if (!object)
        tool_no_memory();
    free(message);
    free(place);
    return object;
}

static const char *member(const json_t *reason, const char *key)
{
    const char *text = json_string_value(json_object_get(reason, key));
    return text ? text : "";
}

enum { JOINED_MOST = 1000 };

static void add(tool_reasons *reasons, json_t *object)
{
    if (!reasons->list)
        reasons->list = json_array();
    if (!reasons->seen)
        reasons->seen = json_object();
    char *key = tool_text("%s %s", member(object, "code"), member(object, "message"));
    if (json_object_get(reasons->seen, key))
        json_decref(object);
    else if (json_object_set_new(reasons->seen, key, json_true()) != 0 ||
             json_array_append_new(reasons->list, object) != 0)
        tool_no_memory();
    free(key);
}

void tool_reasons_add(tool_reasons *reasons, const kvferry_reason *reason)
{
    add(reasons, tool_reason_json(reason, NULL));
}

void tool_reasons_take(tool_reasons *reasons, kvferry_report *report, const char *file)
{
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        add(reasons, tool_reason_json(kvferry_report_get(report, i), file));
    reasons->dropped += kvferry_report_dropped(report);
    kvferry_report_clear(report);
}

void tool_reasons_join(tool_reasons *reasons, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (tool_reasons_count(reasons) < JOINED_MOST)
            add(reasons, json_incref(json_array_get(list, i)));
        else
            reasons->dropped++;
    }
}

size_t tool_reasons_count(const tool_reasons *reasons) { return json_array_size(reasons->list); }

void tool_reasons_free(tool_reasons *reasons)
{
    json_decref(reasons->list);
    json_decref(reasons->seen);
    *reasons = (tool_reasons){0};
}

int tool_check_status(kvferry_status status, const char *what, tool_reasons *reasons,
                      kvferry_report *report, const char *file)
{
    if (status == KVFERRY_NO_MEMORY)
        tool_no_memory();
    if (status != KVFERRY_OK && status != KVFERRY_REFUSED && status != KVFERRY_MALFORMED)
        return tool_unexpected("%s: %s (%s)", what, kvferry_status_describe(status),
                               kvferry_status_name(status));
    bool silent = kvferry_report_count(report) + kvferry_report_dropped(report) == 0;
    if (status != KVFERRY_OK && silent)
        return tool_unexpected("%s: %s without a reason", what, kvferry_status_name(status));
    tool_reasons_take(reasons, report, file);
    return TOOL_GO_ON;
}

/* --- as text ------------------------------------------------------------------------------- */

/* Reasons that differ only in their layers, then only in their workers, then only in their streams are
 * one for a person; and so are those of stages, where each worker has layers of its own. */
typedef struct folded {
    const json_t *reason; /* the first one */
    char *words;          /* its message without the place in front */
    bool whole;           /* the message is not of the known form: words are all of it */
    tool_list workers, layers, streams;
    char *layer_text, *worker_text;
} folded;

/* What the library puts in front of a message. */
static char *message_front(const json_t *reason)
{
    static const char *const parts[][2] = {
        {"worker", ""}, {"place", ""}, {"layer", "layer "}, {"stream", "stream "}, {"axis", "axis "}};
    char *front = tool_text("%s", "");
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        const char *value = member(reason, parts[i][0]);
        if (!*value)
            continue;
        char *longer = tool_text("%s%s%s%s", front, *front ? ", " : "", parts[i][1], value);
        free(front);
        front = longer;
    }
    char *result = tool_text("%s%s", front, *front ? ": " : "");
    free(front);
    return result;
}

static bool same(const json_t *a, const json_t *b, const char *key)
{
    return strcmp(member(a, key), member(b, key)) == 0;
}

static bool alike(const folded *a, const folded *b)
{
    return !a->whole && !b->whole && !a->layers.count == !b->layers.count &&
           strcmp(a->words, b->words) == 0 &&
           same(a->reason, b->reason, "code") && same(a->reason, b->reason, "axis") &&
           same(a->reason, b->reason, "place");
}

static void entry_free(folded *entry)
{
    free(entry->words);
    free(entry->layer_text);
    free(entry->worker_text);
    tool_list_free(&entry->streams);
    tool_list_free(&entry->workers);
    tool_list_free(&entry->layers);
}

/* Layers first: entries of one worker. Returns how many are left. */
static size_t fold_layers(const tool_reasons *reasons, folded *entries)
{
    size_t count = 0, i;
    json_t *reason;
    json_array_foreach(reasons->list, i, reason)
    {
        char *front = message_front(reason);
        const char *message = member(reason, "message");
        bool fits = strncmp(message, front, strlen(front)) == 0;
        folded *entry = &entries[count];
        *entry = (folded){.reason = reason,
                          .whole = !fits,
                          .words = tool_text("%s", message + (fits ? strlen(front) : 0))};
        free(front);
        if (fits && *member(reason, "layer"))
            tool_list_add(&entry->layers, member(reason, "layer"));
        tool_list_add(&entry->workers, member(reason, "worker"));
        tool_list_add(&entry->streams, member(reason, "stream"));
        size_t j = 0;
        while (j < count && !(alike(entry, &entries[j]) && same(reason, entries[j].reason, "stream") &&
                              same(reason, entries[j].reason, "worker")))
            j++;
        if (j < count) {
            if (entry->layers.count)
                tool_list_add(&entries[j].layers, entry->layers.items[0]);
            entry_free(entry);
        } else {
            count++;
        }
    }
    for (size_t j = 0; j < count; j++)
        entries[j].layer_text = tool_fold(entries[j].layers.items, entries[j].layers.count);
    return count;
}

static size_t fold_workers(folded *entries, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        size_t j = 0;
        while (j < kept && !(alike(&entries[i], &entries[j]) &&
                             same(entries[i].reason, entries[j].reason, "stream") &&
                             strcmp(entries[i].layer_text, entries[j].layer_text) == 0))
            j++;
        if (j < kept) {
            tool_list_add(&entries[j].workers, entries[i].workers.items[0]);
            entry_free(&entries[i]);
        } else {
            entries[kept++] = entries[i];
        }
    }
    for (size_t j = 0; j < kept; j++)
        entries[j].worker_text = tool_fold(entries[j].workers.items, entries[j].workers.count);
    return kept;
}

static size_t fold_streams(folded *entries, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        size_t j = 0;
        while (j < kept && !(alike(&entries[i], &entries[j]) &&
                             strcmp(entries[i].worker_text, entries[j].worker_text) == 0 &&
                             strcmp(entries[i].layer_text, entries[j].layer_text) == 0))
            j++;
        if (j < kept) {
            tool_list_add(&entries[j].streams, entries[i].streams.items[0]);
            entry_free(&entries[i]);
        } else {
            entries[kept++] = entries[i];
        }
    }
    return kept;
}

static bool disjoint(const tool_list *a, const tool_list *b)
{
    for (size_t i = 0; i < a->count; i++)
        for (size_t j = 0; j < b->count; j++)
            if (strcmp(a->items[i], b->items[j]) == 0)
                return false;
    return true;
}

static bool same_items(const tool_list *a, const tool_list *b)
{
    bool same_so_far = a->count == b->count;
    for (size_t i = 0; i < a->count && same_so_far; i++)
        same_so_far = strcmp(a->items[i], b->items[i]) == 0;
    return same_so_far;
}

static void join_lists(tool_list *to, const tool_list *from)
{
    for (size_t i = 0; i < from->count; i++)
        tool_list_add(to, from->items[i]);
}

static size_t fold_stages(folded *entries, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        folded *entry = &entries[i];
        size_t j = 0;
        while (j < kept && !(alike(entry, &entries[j]) && entry->layers.count &&
                             same_items(&entry->streams, &entries[j].streams) &&
                             disjoint(&entry->layers, &entries[j].layers) &&
                             disjoint(&entry->workers, &entries[j].workers)))
            j++;
        if (j < kept) {
            join_lists(&entries[j].layers, &entry->layers);
            join_lists(&entries[j].workers, &entry->workers);
            entry_free(entry);
        } else {
            entries[kept++] = *entry;
        }
    }
    return kept;
}

static void print_entry(const folded *entry, FILE *file)
{
    char *streams = tool_fold(entry->streams.items, entry->streams.count);
    char *workers = tool_fold(entry->workers.items, entry->workers.count);
    char *layers = tool_fold(entry->layers.items, entry->layers.count);
    const struct {
        const char *before, *text;
    } parts[] = {{"", workers},
                 {"", member(entry->reason, "place")},
                 {entry->layers.count > 1 ? "layers " : "layer ", layers},
                 {entry->streams.count > 1 ? "streams " : "stream ", streams},
                 {"axis ", member(entry->reason, "axis")}};
    fprintf(file, "  %s\n      ", member(entry->reason, "code"));
    bool any = false;
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        if (!*parts[i].text)
            continue;
        fprintf(file, "%s%s", any ? ", " : "", parts[i].before);
        tool_put(parts[i].text, file);
        any = true;
    }
    if (any)
        fprintf(file, ":\n      ");
    tool_put(entry->words, file);
    fputc('\n', file);
    free(layers);
    free(workers);
    free(streams);
}

static void print_text(const tool_reasons *reasons, const char *headline, FILE *file)
{
    size_t total = tool_reasons_count(reasons);
    folded *entries = tool_alloc(total, sizeof(*entries));
    size_t count = fold_workers(entries, fold_layers(reasons, entries));
    count = fold_stages(entries, fold_streams(entries, count));
    fprintf(file, "%s (%zu reason%s", headline, count, count == 1 ? "" : "s");
    if (count != total)
        fprintf(file, "; %zu over all layers and workers", total);
    fprintf(file, "):\n");
    for (size_t i = 0; i < count; i++) {
        print_entry(&entries[i], file);
        entry_free(&entries[i]);
    }
    if (reasons->dropped)
        fprintf(file, "  and %zu more, of which no details were kept\n", reasons->dropped);
    free(entries);
}

int tool_refuse(tool_reasons *reasons, const char *headline, FILE *text)
{
    return tool_refuse_with(reasons, headline, text, NULL, NULL);
}

int tool_refuse_with(tool_reasons *reasons, const char *headline, FILE *text, const char *key, json_t *done)
{
    if (tool_json()) {
        json_t *value = json_pack("{s:b, s:o}", "ok", 0, "reasons",
                                  reasons->list ? json_incref(reasons->list) : json_array());
        if (reasons->dropped)
            json_object_set_new(value, "dropped", json_integer((json_int_t)reasons->dropped));
        if (key)
            json_object_set(value, key, done);
        tool_print_json(value);
    } else {
        print_text(reasons, headline, text);
    }
    json_decref(done);
    tool_reasons_free(reasons);
    return TOOL_FAILED;
}
