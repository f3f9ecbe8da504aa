/* SPDX-License-Identifier: Apache-2.0 */
#include "node/once.h"

#include <string.h>

#include <xxhash.h>

bool node_once_first(node_once *once, const char *what, const char *about)
{
    uint64_t hash = XXH3_64bits_withSeed(about, strlen(about), XXH3_64bits(what, strlen(what))) | 1;
    for (size_t i = 0; i < NODE_ONCE_SLOTS; i++)
        if (once->seen[i] == hash)
            return false;
    once->seen[once->next] = hash;
    once->next = (once->next + 1) % NODE_ONCE_SLOTS;
    return true;
}
