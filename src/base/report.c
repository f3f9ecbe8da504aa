/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvferry_report {
    base_arena arena;
    kvferry_reason *reasons;
    size_t count, capacity;
    size_t dropped;
};

kvferry_status kvferry_report_create(kvferry_report **report)
{
    if (!report)
        return KVFERRY_INVALID;
    kvferry_report *created = base_alloc(1, sizeof(*created));
    if (!created)
        return KVFERRY_NO_MEMORY;
    *report = created;
    return KVFERRY_OK;
}

void kvferry_report_free(kvferry_report *report)
{
    if (!report)
        return;
    base_arena_free(&report->arena);
    free(report->reasons);
    free(report);
}

void kvferry_report_add(kvferry_report *report, const char *code, const char *message)
{
    base_report_add(report, code, NULL, NULL, NULL, "%s", message ? message : "");
}

void kvferry_report_clear(kvferry_report *report)
{
    if (!report)
        return;
    base_arena_free(&report->arena);
    report->count = 0;
    report->dropped = 0;
}

size_t kvferry_report_count(const kvferry_report *report) { return report ? report->count : 0; }

size_t kvferry_report_dropped(const kvferry_report *report) { return report ? report->dropped : 0; }

const kvferry_reason *kvferry_report_get(const kvferry_report *report, size_t index)
{
    return report && index < report->count ? &report->reasons[index] : NULL;
}

/* The place in words: "decode-0 tp1/4 pp0/1, layer x, stream k, axis kv_head: ". */
static void append_place(base_text *text, const base_where *where)
{
    const struct {
        const char *before, *value;
    } parts[] = {{"", where->worker},
                 {"", where->place},
                 {"layer ", where->layer},
                 {"stream ", where->stream},
                 {"axis ", where->axis}};
    bool any = false;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (!parts[i].value || !*parts[i].value)
            continue;
        base_text_append(text, "%s%s%s", any ? ", " : "", parts[i].before, parts[i].value);
        any = true;
    }
    if (any)
        base_text_append(text, ": ");
}

/* A copy in UTF-8: what came from elsewhere, or was cut inside of a character, gets question marks. */
static const char *copy_text(kvferry_report *report, const char *text)
{
    size_t length = strlen(text), bytes;
    char *copy = base_arena_strndup(&report->arena, text, length);
    for (size_t i = 0; copy && i < length; i += bytes) {
        bytes = base_text_character(copy + i, length - i);
        if (!bytes) {
            copy[i] = '?';
            bytes = 1;
        }
    }
    return copy;
}

static bool fill_reason(kvferry_report *report, kvferry_reason *reason, const kvferry_reason *from)
{
    const struct {
        const char **to;
        const char *from;
    } fields[] = {{&reason->code, from->code},         {&reason->worker, from->worker},
                  {&reason->layer, from->layer},       {&reason->stream, from->stream},
                  {&reason->axis, from->axis},         {&reason->place, from->place},
                  {&reason->expected, from->expected}, {&reason->found, from->found},
                  {&reason->message, from->message}};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const char *copy = copy_text(report, fields[i].from ? fields[i].from : "");
        if (!copy)
            return false;
        *fields[i].to = copy;
    }
    return true;
}

void base_report_copy(kvferry_report *report, const kvferry_reason *reason)
{
    if (!report)
        return;
    if (report->count < KVFERRY_REPORT_LIMIT &&
        base_grow((void **)&report->reasons, &report->capacity, report->count + 1,
                  sizeof(kvferry_reason)) &&
        fill_reason(report, &report->reasons[report->count], reason))
        report->count++;
    else
        report->dropped++;
}

void base_report_add(kvferry_report *report, const char *code, const base_where *where,
                     const char *expected, const char *found, const char *format, ...)
{
    if (!report)
        return;
    if (report->count >= KVFERRY_REPORT_LIMIT) {
        report->dropped++;
        return;
    }
    static const base_where nowhere;
    if (!where)
        where = &nowhere;
    char words[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof(words), format, arguments);
    va_end(arguments);
    base_text message = {0};
    append_place(&message, where);
    base_text_append(&message, "%s", words);
    if (expected && *expected)
        base_text_append(&message, ": expected %s", expected);
    if (found && *found)
        base_text_append(&message, "%s found %s", expected && *expected ? "," : ":", found);
    if (message.failed)
        report->dropped++;
    else
        base_report_copy(report, &(kvferry_reason){code, where->worker, where->layer, where->stream,
                                                   where->axis, where->place, expected, found,
                                                   message.data});
    free(message.data);
}
