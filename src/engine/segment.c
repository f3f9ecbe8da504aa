/* SPDX-License-Identifier: Apache-2.0 */
/* Registered segments of this worker. They are few: searches are linear. */
#include "engine/engine.h"

#include <stdlib.h>

static const char *range_text(uint64_t address, uint64_t bytes)
{
    return base_format("0x%llx..0x%llx", (unsigned long long)address,
                       (unsigned long long)(address + bytes));
}

/* All ranges that the new one meets, each with both ranges. */
static bool check_overlap(const kvferry_engine *engine, uint64_t address, uint64_t bytes,
                          kvferry_report *report)
{
    bool free_range = true;
    for (size_t i = 0; i < engine->segment_count; i++) {
        const engine_segment *other = &engine->segments[i];
        if (!other->live || address >= other->address + other->bytes ||
            other->address >= address + bytes)
            continue;
        free_range = false;
        base_report_add(report, "segment_overlap",
                        &(base_where){.place = base_format("segment %zu", i)},
                        base_format("nothing of %s", range_text(other->address, other->bytes)),
                        range_text(address, bytes),
                        "a registration overlaps one that is there already");
    }
    return free_range;
}

static kvferry_status check_range(const kvferry_engine *engine, const void *address, uint64_t bytes,
                                  kvferry_memory memory, kvferry_report *report)
{
    uint64_t end;
    if (!address || !bytes || bytes > SIZE_MAX || !base_add((uint64_t)(uintptr_t)address, bytes, &end)) {
        base_report_add(report, "segment_invalid", NULL, "an address and at least one byte",
                        base_format("%p, %llu bytes", address, (unsigned long long)bytes),
                        "a range cannot be registered");
        return KVFERRY_INVALID;
    }
    if (memory != KVFERRY_MEMORY_HOST && !engine->capabilities.device_memory) {
        base_report_add(report, "segment_memory", NULL, "host memory",
                        base_format("memory kind %d", (int)memory),
                        "engine %s moves no device memory here", engine->capabilities.name);
        return KVFERRY_UNSUPPORTED;
    }
    return check_overlap(engine, (uint64_t)(uintptr_t)address, bytes, report) ? KVFERRY_OK
                                                                              : KVFERRY_INVALID;
}

/* Room for one more comes before the engine registers, so that nothing is to be undone. */
static bool reserve_segment(kvferry_engine *engine)
{
    return engine->segment_count < UINT32_MAX &&
           base_grow((void **)&engine->segments, &engine->segment_capacity,
                     engine->segment_count + 1, sizeof(*engine->segments));
}

static void add_segment(kvferry_engine *engine, const void *address, uint64_t bytes,
                        kvferry_memory memory, void *handle, uint32_t *segment)
{
    *segment = (uint32_t)engine->segment_count;
    engine->segments[engine->segment_count++] =
        (engine_segment){.address = (uint64_t)(uintptr_t)address,
                         .bytes = bytes,
                         .handle = handle,
                         .memory = memory,
                         .live = true};
}

kvferry_status kvferry_engine_register(kvferry_engine *engine, void *address, uint64_t bytes,
                                       kvferry_memory memory, uint32_t *segment,
                                       kvferry_report *report)
{
    if (!engine || !segment)
        return KVFERRY_INVALID;
    kvferry_status status = check_range(engine, address, bytes, memory, report);
    if (status != KVFERRY_OK)
        return status;
    if (!reserve_segment(engine))
        return KVFERRY_NO_MEMORY;
    void *handle;
    status = engine->ops->segment_register(engine->self, address, bytes, memory, &handle, report);
    if (status == KVFERRY_OK)
        add_segment(engine, address, bytes, memory, handle, segment);
    return status;
}

kvferry_status kvferry_engine_allocate(kvferry_engine *engine, uint64_t bytes, void **address,
                                       uint32_t *segment, kvferry_report *report)
{
    if (!engine || !address || !segment)
        return KVFERRY_INVALID;
    if (!bytes || bytes > SIZE_MAX) {
        base_report_add(report, "segment_invalid", NULL, "at least one byte",
                        base_format("%llu bytes", (unsigned long long)bytes),
                        "a segment cannot be allocated");
        return KVFERRY_INVALID;
    }
    if (!engine->ops->segment_allocate) {
        base_report_add(report, "segment_memory", NULL, "memory of the caller's own", "none",
                        "engine %s allocates no memory", engine->capabilities.name);
        return KVFERRY_UNSUPPORTED;
    }
    if (!reserve_segment(engine))
        return KVFERRY_NO_MEMORY;
    void *handle, *allocated;
    kvferry_status status =
        engine->ops->segment_allocate(engine->self, bytes, &allocated, &handle, report);
    if (status != KVFERRY_OK)
        return status;
    add_segment(engine, allocated, bytes, KVFERRY_MEMORY_HOST, handle, segment);
    *address = allocated;
    return KVFERRY_OK;
}

/* Looks through the copies themselves: a transfer then keeps no list of what it uses. */
static bool transfer_uses(const kvferry_transfer *transfer, uint32_t segment)
{
    for (size_t i = 0; i < transfer->count; i++) {
        const kvferry_copy *copy = &transfer->copies[i];
        if ((transfer->direction == KVFERRY_WRITE ? copy->source_segment : copy->target_segment) ==
            segment)
            return true;
    }
    return false;
}

static bool segment_in_use(const kvferry_engine *engine, uint32_t segment)
{
    const kvferry_peer *peer = engine->peers;
    if (!peer)
        return false;
    do {
        const kvferry_transfer *transfer = peer->turn;
        if (transfer)
            do {
                if (transfer_uses(transfer, segment))
                    return true;
                transfer = transfer->next;
            } while (transfer != peer->turn);
        peer = peer->next;
    } while (peer != engine->peers);
    return false;
}

kvferry_status kvferry_engine_unregister(kvferry_engine *engine, uint32_t segment)
{
    if (!engine)
        return KVFERRY_INVALID;
    if (segment >= engine->segment_count || !engine->segments[segment].live)
        return KVFERRY_NOT_FOUND;
    if (segment_in_use(engine, segment))
        return KVFERRY_BUSY;
    engine->segments[segment].live = false;
    engine->ops->segment_unregister(engine->self, engine->segments[segment].handle);
    return KVFERRY_OK;
}

void engine_segments_close(kvferry_engine *engine)
{
    for (size_t i = engine->segment_count; i-- > 0;)
        if (engine->segments[i].live)
            engine->ops->segment_unregister(engine->self, engine->segments[i].handle);
    free(engine->segments);
}
