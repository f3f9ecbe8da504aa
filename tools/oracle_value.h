/* SPDX-License-Identifier: Apache-2.0 */
/* Values and noise: 8 bytes at a time from a bijection of 64-bit numbers, so that what is found in
 * a wrong place can be turned back into the place it belongs to. */
#ifndef KVFERRY_ORACLE_VALUE_H
#define KVFERRY_ORACLE_VALUE_H

#include <stdint.h>
#include <string.h>

#define ORACLE_STEP 0x9e3779b97f4a7c15u         /* odd: counting by it visits every number once */
#define ORACLE_STEP_INVERSE 0xf1de83e19937733du /* their product is 1 modulo 2^64 */

/* The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
 */
static inline uint64_t oracle_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t oracle_unmix(uint64_t x)
{
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3u;
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089u;
    return x ^ (x >> 30) ^ (x >> 60);
}

/* The n-th word of the sequence `key`, and back. */
static inline uint64_t oracle_word(uint64_t key, uint64_t n)
{
    return oracle_mix(key + n * ORACLE_STEP);
}

static inline uint64_t oracle_word_place(uint64_t key, uint64_t word)
{
    return (oracle_unmix(word) - key) * ORACLE_STEP_INVERSE;
}

static inline uint64_t oracle_text_key(uint64_t key, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        key = (key ^ *c) * 0x100000001b3u;
    return oracle_mix(key + ORACLE_STEP);
}

static inline uint64_t oracle_stream_key(uint64_t seed, const char *layer, const char *stream)
{
    return oracle_text_key(oracle_text_key(oracle_mix(seed), layer), stream);
}

static inline uint64_t oracle_noise_key(uint64_t seed, uint32_t segment)
{
    return oracle_mix(oracle_mix(~seed) + segment * ORACLE_STEP);
}

/* Writes words n, n+1, ... of a sequence over `bytes` bytes, the last one cut. */
static inline void oracle_write(unsigned char *at, uint64_t bytes, uint64_t key, uint64_t n)
{
    for (; bytes >= 8; bytes -= 8, at += 8, n++) {
        uint64_t word = oracle_word(key, n);
        memcpy(at, &word, 8);
    }
    if (bytes) {
        uint64_t word = oracle_word(key, n);
        memcpy(at, &word, bytes);
    }
}

/* Whether oracle_write would change nothing. */
static inline int oracle_equal(const unsigned char *at, uint64_t bytes, uint64_t key, uint64_t n)
{
    uint64_t difference = 0;
    for (; bytes >= 8; bytes -= 8, at += 8, n++) {
        uint64_t found;
        memcpy(&found, at, 8);
        difference |= found ^ oracle_word(key, n);
    }
    if (bytes) {
        uint64_t word = oracle_word(key, n);
        difference |= (uint64_t)(memcmp(at, &word, bytes) != 0);
    }
    return difference == 0;
}

/* The noise of a segment, at any place: word n is the 8 bytes from 8 * n. */
static inline void oracle_noise_write(unsigned char *segment, uint64_t offset, uint64_t bytes,
                                      uint64_t key)
{
    while (bytes && offset % 8) {
        uint64_t word = oracle_word(key, offset / 8);
        segment[offset] = ((unsigned char *)&word)[offset % 8];
        offset++;
        bytes--;
    }
    oracle_write(segment + offset, bytes, key, offset / 8);
}

#endif
