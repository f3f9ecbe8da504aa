/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests: who owns which byte, by plain counting, and numbers to try. */
#ifndef KVFERRY_LAYOUT_OWNERSHIP_H
#define KVFERRY_LAYOUT_OWNERSHIP_H

#include "test.h"

#include <string.h>

#include "layout/meet.h"

enum { BYTES = 4096 };

/* One sequence for each test program. */
static uint64_t seed = 1;

/* A number in [low, high]. */
static inline uint64_t pick(uint64_t low, uint64_t high)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low + (seed >> 33) % (high - low + 1);
}

/* A stream of small numbers. */
typedef struct sample {
    kvferry_axis axes[3];
    kvferry_stream stream;
} sample;

/* For each cell of whole blocks, or of all pages: calls back with its block and first byte. */
typedef void (*visit_cell)(void *data, uint64_t block, uint64_t byte);

static inline void visit(const sample *made, uint64_t ratio, uint64_t pages, visit_cell call,
                         void *data)
{
    uint64_t cells = 1;
    for (uint32_t i = 0; i < made->stream.axis_count; i++)
        cells *= made->axes[i].extent;
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t cell = 0; cell < cells; cell++) {
            uint64_t byte = made->stream.offset + page * made->stream.page_stride, rest = cell;
            for (uint32_t i = 0; i < made->stream.axis_count; i++) {
                byte += rest % made->axes[i].extent * made->axes[i].stride;
                rest /= made->axes[i].extent;
            }
            call(data, page / ratio, byte);
        }
}

/* Which blocks (a bit each) own each byte, and whether a byte was owned twice. */
typedef struct ownership {
    uint64_t bytes, blocks[BYTES];
    bool twice;
} ownership;

static inline void own(void *data, uint64_t block, uint64_t byte)
{
    ownership *owned = data;
    for (uint64_t i = byte; i < byte + owned->bytes; i++) {
        assert_true(i < BYTES);
        owned->twice = owned->twice || owned->blocks[i];
        owned->blocks[i] |= (uint64_t)1 << block;
    }
}

static inline void own_all(const sample *made, uint64_t ratio, uint64_t pages, ownership *owned)
{
    memset(owned, 0, sizeof(*owned));
    owned->bytes = made->stream.cell_bytes;
    visit(made, ratio, pages, own, owned);
}

static inline layout_meeting expected_of_pair(const ownership *a, const ownership *b,
                                              layout_blocks blocks)
{
    for (size_t i = 0; i < BYTES; i++) {
        bool equal = a->blocks[i] & b->blocks[i];
        bool any = a->blocks[i] && b->blocks[i];
        /* Unequal: a pair of ids other than (x, x), so not both the one same id only. */
        bool unequal = any && !(a->blocks[i] == b->blocks[i] &&
                                (a->blocks[i] & (a->blocks[i] - 1)) == 0);
        if ((blocks == LAYOUT_BLOCKS_ANY && any) || (blocks == LAYOUT_BLOCKS_EQUAL && equal) ||
            (blocks == LAYOUT_BLOCKS_UNEQUAL && unequal))
            return LAYOUT_MEET;
    }
    return LAYOUT_APART;
}

#endif
