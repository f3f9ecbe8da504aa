/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory engine's files share. */
#ifndef KVFERRY_SRC_ENGINE_MEMORY_INTERNAL_H
#define KVFERRY_SRC_ENGINE_MEMORY_INTERNAL_H

#include "base/base.h"
#include "engine/memory.h"

typedef struct memory_segment {
    struct memory_segment *next;
    uint64_t id; /* never used again within the process */
    unsigned char *address;
    uint64_t bytes;
    bool allocated;
} memory_segment;

typedef struct memory_remote {
    struct memory_remote *next;
    uint64_t id; /* of the target's memory_segment */
} memory_remote;

typedef struct memory_engine memory_engine;

typedef struct memory_peer {
    memory_engine *engine;
    memory_remote *remotes;
    uint64_t target; /* id of its engine */
    bool lost;
} memory_peer;

/* A copy with its ends by name, so that memory which is gone is not touched. */
typedef struct memory_piece {
    uint64_t number;
    uint64_t local, remote, bytes; /* addresses */
    uint64_t local_segment, remote_segment; /* ids */
} memory_piece;

typedef struct memory_batch {
    struct memory_batch *next;
    memory_peer *peer;
    kvferry_engine_batch_end end;
    void *handle;
    kvferry_direction direction;
    kvferry_status status; /* once it is to end */
    const char *detail;
    bool stuck, reordered;
    size_t count, at;
    memory_piece pieces[];
} memory_batch;

/* A write that was put off. */
typedef struct memory_delayed {
    struct memory_delayed *next;
    memory_peer *peer;
    kvferry_direction direction;
    uint64_t due;
    memory_piece piece;
} memory_delayed;

struct memory_engine {
    memory_engine *next; /* in the process's list */
    uint64_t id;
    memory_segment *segments;
    memory_batch *first, **last; /* queue */
    memory_delayed *delayed;
    memory_fault *faults;
    size_t fault_count, fault_capacity;
    uint64_t pace, step, numbered;
};

/* The fault that hits the piece; NULL: none. */
const memory_fault *memory_fault_find(const memory_engine *engine, uint64_t piece);

/* The same permutation for the same seed. */
void memory_fault_shuffle(memory_piece *pieces, size_t count, uint64_t seed);

#endif
