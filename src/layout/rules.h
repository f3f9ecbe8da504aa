/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the format, on a layout whose values are read but not yet believed. */
#ifndef KVFERRY_LAYOUT_RULES_H
#define KVFERRY_LAYOUT_RULES_H

#include "layout/layout.h"

/* A layout that is being checked. */
typedef struct layout_check {
    kvferry_layout *layout;
    kvferry_report *report;
    bool *sound; /* per stream: values and references are good so far; rules on bytes need it */
    uint64_t findings;
    uint64_t steps; /* what is left for deciding whether cells meet */
} layout_check;

/* Group and segment of a stream that names none. */
#define LAYOUT_NONE UINT32_MAX

/*
 * Checks everything, adds every finding, and sets what follows from the streams: group_blocks, share
 * and names. KVFERRY_OK (with or without findings) or KVFERRY_NO_MEMORY.
 */
kvferry_status layout_check_rules(layout_check *check);

/* Adds a finding. */
void layout_refuse(layout_check *check, const base_where *where, const char *code,
                   const char *expected, const char *found, const char *message);

/* The same about a stream, or one of its axes (-1: none). It is not sound from then on. */
void layout_refuse_stream(layout_check *check, uint32_t stream, int axis, const char *code,
                          const char *expected, const char *found, const char *message);

/* Steps that deciding on overlaps may take in all: some tenths of a second. Documents of real caches
 * need a few a stream. */
#define LAYOUT_STEPS 20000000u

/* Finds streams whose own cells, and pairs of streams whose cells, share bytes where they must not;
 * fills layout->share. */
kvferry_status layout_check_overlaps(layout_check *check);

#endif
