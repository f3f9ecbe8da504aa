/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_NODE_FETCH_H
#define KVFERRY_NODE_FETCH_H

#include "base/base.h"

/* Before the first fetch; any thread, any number of times. */
bool node_fetch_begin(void);

/*
 * GET of `base` and `path`, or POST of `body` (JSON) if there is one. Blocks for ten seconds at
 * most, and about a second after `stop` answers true. *text is the caller's, ended by a zero byte
 * that is not counted. KVFERRY_IO with a reason (discovery_failed): no connection, or another
 * answer than 200. KVFERRY_BUSY with such a reason: no answer, or not all of it; another try may get
 * one. KVFERRY_NO_MEMORY.
 */
kvferry_status node_fetch(const char *base, const char *path, const char *body, size_t maximum,
                          bool (*stop)(void *), void *context, char **text, size_t *size,
                          kvferry_report *report);

#endif
