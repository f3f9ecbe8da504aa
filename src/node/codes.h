/* SPDX-License-Identifier: Apache-2.0 */
/* How often each reason code came, in a few columns. */
#ifndef KVFERRY_NODE_CODES_H
#define KVFERRY_NODE_CODES_H

#include <stddef.h>
#include <stdint.h>

enum {
    NODE_CODES = 64, /* that are counted apart */
    NODE_CODES_TEXT = 48,
    NODE_CODES_COLUMNS = 3
};

typedef struct node_codes {
    struct {
        char code[NODE_CODES_TEXT];
        uint64_t count[NODE_CODES_COLUMNS];
    } of[NODE_CODES + 1]; /* the last, "more": all others */
    size_t used;
} node_codes;

/* Codes come from peers too: what does not look like one is counted as "other". */
void node_codes_count(node_codes *codes, const char *code, size_t column);

#endif
