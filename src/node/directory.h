/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which workers there are, in the JSON of vLLM's Mooncake bootstrap server:
 * {"0": {"engine_id": "e", "worker_addr": {"<tp_rank>": {"<pp_rank>": "tcp://HOST:PORT"}}}}, by
 * dp_rank.
 */
#ifndef KVFERRY_NODE_DIRECTORY_H
#define KVFERRY_NODE_DIRECTORY_H

#include "base/base.h"

enum {
    NODE_DIRECTORY_MAX = 65536,
    NODE_DIRECTORY_RANK_MAX = 65535,
    NODE_DIRECTORY_BYTES_MAX = 16 << 20
};

typedef struct node_entry {
    uint32_t dp, tp, pp;
    char *engine_id, *address; /* "tcp://HOST:PORT", with a key perhaps */
    bool own; /* of the process that keeps the directory: whoever registers does not take its place */
} node_entry;

/* In (dp, pp, tp) order. Starts zeroed. */
typedef struct node_directory {
    node_entry *entries;
    size_t count, capacity;
} node_directory;

void node_directory_free(node_directory *directory);

/* Adds or replaces one; the strings are copied. Another engine id under a dp_rank replaces all of
 * that rank: *replaced. KVFERRY_NO_MEMORY; KVFERRY_REFUSED: too many. */
kvferry_status node_directory_put(node_directory *directory, const node_entry *entry,
                                  bool *replaced);

/* Reads all; on a status other than OK the directory is empty. KVFERRY_MALFORMED, with reasons. */
kvferry_status node_directory_read(const char *text, size_t size, node_directory *directory,
                                   kvferry_report *report);

/* {"engine_id": "e", "dp_rank": 0, "tp_rank": 0, "pp_rank": 0, "addr": "tcp://HOST:PORT"}: *text is
 * the caller's. */
kvferry_status node_directory_write_entry(const node_entry *entry, char **text);
/* Reads it and puts it. KVFERRY_MALFORMED, with reasons; KVFERRY_REFUSED: with one if it would take the place of
 * an own entry (rank_taken), else as above. */
kvferry_status node_directory_read_entry(const char *text, size_t size, node_directory *directory,
                                         bool *replaced, kvferry_report *report);

/* KVFERRY_NO_MEMORY. */
kvferry_status node_directory_write(const node_directory *directory, char **text);

/* The engine's entries follow one another or not; this is the id that `engine_id` "" means.
 * KVFERRY_REFUSED with a reason (engine_absent, engine_ambiguous); *found belongs to the directory.
 */
kvferry_status node_directory_engine(const node_directory *directory, const char *engine_id,
                                     const char **found, kvferry_report *report);

#endif
