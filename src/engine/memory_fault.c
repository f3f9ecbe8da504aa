/* SPDX-License-Identifier: Apache-2.0 */
/* Which piece of the memory engine is hit by which fault. */
#include "engine/engine.h"
#include "engine/memory_internal.h"

/* splitmix64's finalizer: every bit of the result hangs on every bit of the number. */
static uint64_t mix(uint64_t number)
{
    number += 0x9e3779b97f4a7c15u;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
    return number ^ (number >> 31);
}

const memory_fault *memory_fault_find(const memory_engine *engine, uint64_t piece)
{
    for (size_t i = 0; i < engine->fault_count; i++) {
        const memory_fault *fault = &engine->faults[i];
        if (fault->per_million ? mix(mix(fault->seed) ^ piece) % 1000000 < fault->per_million
                               : fault->piece == piece)
            return fault;
    }
    return NULL;
}

void memory_fault_shuffle(memory_piece *pieces, size_t count, uint64_t seed)
{
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)(mix(seed + i) % i);
        memory_piece kept = pieces[i - 1];
        pieces[i - 1] = pieces[other];
        pieces[other] = kept;
    }
}

kvferry_status memory_engine_inject(kvferry_engine *engine, const memory_fault *fault)
{
    if (!engine || engine->ops != &engine_memory_ops || !fault)
        return KVFERRY_INVALID;
    memory_engine *memory = engine->self;
    if (!base_grow((void **)&memory->faults, &memory->fault_capacity, memory->fault_count + 1,
                   sizeof(*memory->faults)))
        return KVFERRY_NO_MEMORY;
    memory->faults[memory->fault_count++] = *fault;
    return KVFERRY_OK;
}

void memory_engine_clear_faults(kvferry_engine *engine)
{
    if (engine && engine->ops == &engine_memory_ops)
        ((memory_engine *)engine->self)->fault_count = 0;
}

void memory_engine_set_pace(kvferry_engine *engine, uint64_t pieces)
{
    if (engine && engine->ops == &engine_memory_ops)
        ((memory_engine *)engine->self)->pace = pieces;
}
