/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack with the meaning of JSON: maps with string keys, arrays, strings, numbers, booleans, nil. */
#ifndef KVFERRY_BASE_MSGPACK_H
#define KVFERRY_BASE_MSGPACK_H

#include "base/json.h"

/*
 * Reads one map of msgpack into the tree that the same JSON would give, with the same limits and
 * statuses as base_json_parse; findings are placed by byte. Binary and extension types, keys that are no
 * strings and bytes after the map are refused. Integers of more than 63 bits become reals, so that
 * base_json_uint finds them out of range at their place.
 */
kvferry_status base_msgpack_parse(const void *data, size_t size, unsigned flags,
                                  kvferry_report *report, base_json_document *document);

/* Writes a tree; *data is the caller's to free. KVFERRY_NO_MEMORY. */
kvferry_status base_msgpack_write(json_t *root, void **data, size_t *size);

#endif
