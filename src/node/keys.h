/* SPDX-License-Identifier: Apache-2.0 */
/* Files of CURVE keys: a node's own pair, and the public keys of those who may talk to it. */
#ifndef KVFERRY_NODE_KEYS_H
#define KVFERRY_NODE_KEYS_H

#include "node/address.h"

typedef struct node_key_pair {
    unsigned char public_key[NODE_KEY_BYTES], secret[NODE_KEY_BYTES];
} node_key_pair;

/* Reads a file that kvferry_keys_generate wrote. KVFERRY_IO, KVFERRY_MALFORMED, with a reason.
 * *open_to_others: its mode lets others than its owner read it. */
kvferry_status node_key_pair_read(const char *path, node_key_pair *pair, bool *open_to_others,
                                  kvferry_report *report);

/* The allow-list: read again when its file has changed. One thread at a time. */
typedef struct node_allowed node_allowed;

/* KVFERRY_IO, KVFERRY_MALFORMED, KVFERRY_NO_MEMORY, with a reason. */
kvferry_status node_allowed_open(const char *path, node_allowed **allowed, kvferry_report *report);
void node_allowed_close(node_allowed *allowed);

/* Whether the key is in the list as the file now has it. A file that cannot be read any more leaves
 * the list as it was; then *trouble, if not NULL, gets the reason, once for each change. */
bool node_allowed_has(node_allowed *allowed, const unsigned char key[NODE_KEY_BYTES],
                      kvferry_report *trouble);

#endif
