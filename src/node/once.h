/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_NODE_ONCE_H
#define KVFERRY_NODE_ONCE_H

#include "base/base.h"

enum { NODE_ONCE_SLOTS = 1024 };

/* What was told already, so that it is told once: the last 1,024 things at least by their hashes.
 * Starts zeroed. */
typedef struct node_once {
    uint64_t seen[NODE_ONCE_SLOTS];
    size_t next;
} node_once;

/* True the first time that this (what, about) comes. */
bool node_once_first(node_once *once, const char *what, const char *about);

#endif
