/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uthash, as all tables of a node have it. Peers choose much of what their keys are: names, ids, digests. So the hash has a
 * key of its own, which they do not know: nobody can choose many that fall into one place and are searched one by one.
 */
#ifndef KVFERRY_NODE_TABLE_H
#define KVFERRY_NODE_TABLE_H

#include <stddef.h>

#define HASH_NONFATAL_OOM 1
#define HASH_FUNCTION(data, size, hash) ((hash) = node_table_hash(data, size))
#include <uthash.h>

/* SipHash with a random key of this process. The order in which a table is walked does not depend on it. */
unsigned node_table_hash(const void *data, size_t size);

#endif
