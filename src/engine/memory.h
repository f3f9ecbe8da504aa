/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory engine's controls: faults on demand and pace, for tests and simulation.
 *
 * Everything happens inside kvferry_engine_progress of the engine that began the transfer, and follows
 * only from the calls made: the same calls give the same bytes, the same order, the same faults. A
 * step is one such progress. Faults hit pieces: copies as the engine is given them (a copy of more than
 * max_copy_bytes, or of more than a batch holds, is several), numbered from 0 per engine in the order
 * of submission.
 */
#ifndef KVFERRY_SRC_ENGINE_MEMORY_H
#define KVFERRY_SRC_ENGINE_MEMORY_H

#include <kvferry/engine.h>

typedef enum memory_fault_kind {
    MEMORY_FAULT_SHORT,     /* only the first `bytes` arrive; said to be done */
    MEMORY_FAULT_LOST,      /* does not arrive; said to be done */
    MEMORY_FAULT_LATE,      /* said to be done; arrives `steps` later, as the source is then */
    MEMORY_FAULT_REPEATED,  /* arrives, and again `steps` later, as the source is then */
    MEMORY_FAULT_FAILED,    /* the batch ends with KVFERRY_ENGINE here, the rest of it unwritten */
    MEMORY_FAULT_REORDERED, /* its batch goes behind all that are queued, in a shuffled order */
    MEMORY_FAULT_STUCK,     /* its batch stops here and never ends, cancel or not, till the peer closes */
    MEMORY_FAULT_DIES       /* the peer is lost from here on: all its batches end so */
} memory_fault_kind;

typedef struct memory_fault {
    memory_fault_kind kind;
    uint64_t piece;       /* the piece that is hit, if per_million is 0 */
    uint32_t per_million; /* else how often, by a hash of seed and the piece's number */
    uint64_t seed;
    uint64_t bytes;       /* short */
    uint64_t steps;       /* late, repeated */
} memory_fault;

/* Adds a fault. KVFERRY_INVALID: not a memory engine. The first that fits a piece is the one. */
kvferry_status memory_engine_inject(kvferry_engine *engine, const memory_fault *fault);

/* Forgets the faults; what was put off by one still arrives. */
void memory_engine_clear_faults(kvferry_engine *engine);

/* How many pieces one progress writes; 0 (the default): all. */
void memory_engine_set_pace(kvferry_engine *engine, uint64_t pieces);

#endif
