/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as nodes of two versions hear each other. */
#ifndef KVFERRY_NODE_RIG_VERSION_TEST_H
#define KVFERRY_NODE_RIG_VERSION_TEST_H

#include <stdlib.h>
#include <string.h>

#include "test.h"

/* A copy to be freed; of another version (NULL: this one) with a field more, whose name nobody knows. */
static inline void *rig_in_version(const unsigned char version[2], const void *data, size_t *size)
{
    static const char field[] = "\xa5" "newer" "\x82\x01\xc3\xa1" "a\x91\xc0", key[] = "\xa7" "kvferry\x92";
    unsigned char *copy = malloc(*size + sizeof(field));
    assert_non_null(copy);
    memcpy(copy, data, *size);
    if (!version)
        return copy;
    unsigned char *at = memmem(copy, *size, key, sizeof(key) - 1);
    assert_non_null(at);
    memcpy(at + sizeof(key) - 1, version, 2);
    unsigned char *count = copy[0] == 0xde ? &copy[2] : &copy[0]; /* of a map of 16 bits, or a small one */
    assert_true(count == copy ? *count >= 0x80 && *count < 0x8f : *count < 0xff);
    ++*count;
    memcpy(copy + *size, field, sizeof(field) - 1);
    *size += sizeof(field) - 1;
    return copy;
}

#endif
