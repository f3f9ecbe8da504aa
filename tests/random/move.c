/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "naive.h"

void finding_set(random_finding *finding, const char *what, const char *format, ...)
{
    snprintf(finding->what, sizeof finding->what, "%s", what);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
}

bool memory_make(random_memory *memory, const kvferry_layout *layout, uint64_t noise)
{
    memset(memory, 0, sizeof *memory);
    memory->worker = (oracle_worker){layout, memory->segments, noise};
    uint32_t count = kvferry_layout_segment_count(layout);
    for (uint32_t i = 0; i < count; i++)
        memory->bytes += kvferry_layout_segment(layout, i)->bytes;
    memory->all = calloc((size_t)memory->bytes, 3);
    if (!memory->all)
        return false;
    unsigned char *at = memory->all;
    for (uint32_t i = 0; i < count; i++) {
        memory->segments[i] = at;
        memory->nulls[i] = at + memory->bytes;
        memory->written[i] = at + 2 * memory->bytes;
        at += kvferry_layout_segment(layout, i)->bytes;
    }
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++)
        naive_null_bytes(layout, i, memory->nulls);
    oracle_noise(&memory->worker);
    return true;
}

void memory_free(random_memory *memory)
{
    free(memory->all);
    memory->all = NULL;
}

void move_begin(random_memory *target)
{
    memset(target->all + 2 * target->bytes, 0, (size_t)target->bytes);
}

bool move_inside(const kvferry_layout *layout, uint32_t segment, uint64_t offset, uint64_t bytes)
{
    if (segment >= kvferry_layout_segment_count(layout))
        return false;
    uint64_t size = kvferry_layout_segment(layout, segment)->bytes;
    return bytes > 0 && offset <= size && bytes <= size - offset;
}

static bool bad_copy(random_finding *finding, const char *what, const kvferry_copy *copy)
{
    finding_set(finding, what,
                "copy of %" PRIu64 " bytes from segment %" PRIu32 " + %" PRIu64
                " to segment %" PRIu32 " + %" PRIu64,
                copy->bytes, copy->source_segment, copy->source_offset, copy->target_segment,
                copy->target_offset);
    return false;
}

bool move_copy(const random_memory *source, random_memory *target, const kvferry_copy *copy,
               random_finding *finding)
{
    size_t bytes = (size_t)copy->bytes;
    if (!move_inside(source->worker.layout, copy->source_segment, copy->source_offset, copy->bytes))
        return bad_copy(finding, "source_bounds", copy);
    if (!move_inside(target->worker.layout, copy->target_segment, copy->target_offset, copy->bytes))
        return bad_copy(finding, "target_bounds", copy);
    if (memchr(source->nulls[copy->source_segment] + copy->source_offset, 1, bytes))
        return bad_copy(finding, "null_read", copy);
    if (memchr(target->nulls[copy->target_segment] + copy->target_offset, 1, bytes))
        return bad_copy(finding, "null_written", copy);
    unsigned char *written = target->written[copy->target_segment] + copy->target_offset;
    if (memchr(written, 1, bytes))
        return bad_copy(finding, "written_twice", copy);
    memset(written, 1, bytes);
    memcpy(target->segments[copy->target_segment] + copy->target_offset,
           source->segments[copy->source_segment] + copy->source_offset, bytes);
    return true;
}
