/* SPDX-License-Identifier: Apache-2.0 */
#include "node/table.h"

#include <pthread.h>
#include <string.h>

#include <sodium.h>

static unsigned char key[crypto_shorthash_KEYBYTES];

static void draw(void) { crypto_shorthash_keygen(key); }

unsigned node_table_hash(const void *data, size_t size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned char bytes[crypto_shorthash_BYTES];
    unsigned hash;
    pthread_once(&once, draw);
    crypto_shorthash(bytes, data, size, key);
    memcpy(&hash, bytes, sizeof(hash));
    return hash;
}
