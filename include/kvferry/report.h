/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_REPORT_H
#define KVFERRY_REPORT_H

#include <stddef.h>
#include <stdbool.h>

#include <kvferry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Why something was refused: a list of reasons, all that were found, not only the first.
 * A call that takes a report adds to it and never clears it; NULL is allowed and means that
 * nobody reads the reasons. One thread at a time may use a report.
 */
typedef struct kvferry_report kvferry_report;

/* One reason. Every string is non-NULL, "" where it does not apply, and belongs to the report. */
typedef struct kvferry_reason {
    const char *code;     /* stable, e.g. "stream_missing"; docs/reasons.md lists all */
    const char *worker;   /* engine id and ranks of the worker concerned, e.g. "decode-0 tp1/4 pp0/1" */
    const char *layer;    /* layer name */
    const char *stream;   /* stream name, e.g. "conv.q" */
    const char *axis;     /* axis name, e.g. "kv_head" */
    const char *place;    /* where in a document, e.g. "streams[3].axes[1].extent" */
    const char *expected; /* what would have been right */
    const char *found;    /* what was there */
    const char *message;  /* one line for a person: all of the above in words */
} kvferry_reason;

/* A new empty report in *report. KVFERRY_NO_MEMORY. The caller frees it. */
KVFERRY_API kvferry_status kvferry_report_create(kvferry_report **report);

/* Frees the report and all its strings; NULL is fine. */
KVFERRY_API void kvferry_report_free(kvferry_report *report);

/* Adds a reason with a code and a message, both copied: the words of a caller's own engine, in the report that
 * its function was given. A NULL report, or one that is full or out of memory, is fine. */
KVFERRY_API void kvferry_report_add(kvferry_report *report, const char *code, const char *message);

/* Forgets all reasons. */
KVFERRY_API void kvferry_report_clear(kvferry_report *report);

/* How many reasons the report holds. At most KVFERRY_REPORT_LIMIT are kept. */
KVFERRY_API size_t kvferry_report_count(const kvferry_report *report);

/* How many reasons were found beyond those that are kept (limit reached, or no memory for them). */
KVFERRY_API size_t kvferry_report_dropped(const kvferry_report *report);

#define KVFERRY_REPORT_LIMIT 1000

/* The reason at index, oldest first; NULL past the end. Valid until the report is cleared or freed. */
KVFERRY_API const kvferry_reason *kvferry_report_get(const kvferry_report *report, size_t index);

#ifdef __cplusplus
}
#endif
#endif
