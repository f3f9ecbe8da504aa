/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of a target worker, in three passes over its memory:
 *   1. every wanted cell is compared with its value and then set back to noise;
 *   2. every other byte that a transfer may change is set back to noise;
 *   3. the whole memory is compared with noise.
 * So a byte that is neither wanted nor allowed is compared with what it was, and no picture of the
 * memory is ever built beside it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_checker.h"
#include "oracle_value.h"

token_range checker_wanted_tokens(const kvferry_group *group, const kvferry_block_table *table,
                                  const kvferry_request *request)
{
    token_range range = {table->first_token, request->target_tokens};
    if (!group->window || range.end <= range.first || range.end - range.first <= group->window)
        return range;
    uint64_t before = range.end - range.first - group->window; /* listed tokens that the window drops */
    if (request->whole_blocks)
        before -= before % group->block_tokens;
    range.first += before;
    return range;
}

bool checker_block_is_wanted(const view_stream *stream, const kvferry_block_table *table,
                             size_t index, token_range range)
{
    if (!view_block_exists(stream, table->blocks[index]))
        return false;
    if (stream->group->kind != KVFERRY_GROUP_PAGED)
        return true;
    uint64_t first = table->first_token + index * stream->group->block_tokens;
    return first < range.end && first + stream->group->block_tokens > range.first &&
           range.first < range.end;
}

oracle_finding *checker_finding(oracle_result *result)
{
    if (result->finding_count == ORACLE_FINDINGS) {
        result->more++;
        return NULL;
    }
    oracle_finding *finding = &result->findings[result->finding_count++];
    memset(finding, 0, sizeof *finding);
    finding->transfer_id = finding->layer = finding->stream = finding->group = "";
    return finding;
}

/* --- pass 3: everything else ---------------------------------------------------------------- */

/* Finds the stream and page whose cell holds a byte. */
static const view_stream *byte_owner(const view_layout *view, uint32_t segment, uint64_t offset,
                                     uint64_t *page)
{
    for (uint32_t i = 0; i < view->stream_count; i++) {
        const view_stream *stream = &view->streams[i];
        const kvferry_stream *s = stream->stream;
        for (size_t r = 0; s->segment == segment && r < stream->run_count; r++) {
            uint64_t start = s->offset + stream->runs[r].start;
            if (offset < start)
                break;
            *page = s->page_stride ? (offset - start) / s->page_stride : 0;
            if (*page < s->pages && offset - start - *page * s->page_stride < stream->runs[r].bytes)
                return stream;
        }
    }
    return NULL;
}

static oracle_finding *stray_finding(checker *check, uint32_t segment, uint64_t offset)
{
    uint64_t page = 0;
    const view_stream *owner = byte_owner(&check->view, segment, offset, &page);
    const char *layer = owner ? owner->stream->layer : "", *name = owner ? owner->stream->name : "";
    oracle_result *result = check->result;
    for (size_t i = 0; i < result->finding_count; i++) {
        oracle_finding *finding = &result->findings[i];
        if (finding->kind == ORACLE_STRAY && finding->segment == segment &&
            strcmp(finding->layer, layer) == 0 && strcmp(finding->stream, name) == 0)
            return finding;
    }
    oracle_finding *finding = checker_finding(result);
    if (!finding)
        return NULL;
    finding->kind = ORACLE_STRAY;
    finding->segment = segment;
    finding->offset = offset;
    finding->layer = layer;
    finding->stream = name;
    if (owner) {
        finding->group = owner->group->name;
        finding->block = page / owner->ratio;
        snprintf(finding->where, sizeof finding->where,
                 "a cell of group %s block %" PRIu64 " that keeps its value", finding->group,
                 finding->block);
    } else {
        snprintf(finding->where, sizeof finding->where, "no stream owns the byte");
    }
    explain_sample sample = {.segment_offset = offset};
    uint64_t end = kvferry_layout_segment(check->target->layout, segment)->bytes;
    sample.size = end - offset < sizeof sample.bytes ? (size_t)(end - offset) : sizeof sample.bytes;
    memcpy(sample.bytes, check->target->segments[segment] + offset, sample.size);
    check->explain.transfer = NULL;
    explain_instead(&check->explain, NULL, &sample, 1, finding->instead, sizeof finding->instead);
    return finding;
}

static void check_rest(checker *check, uint32_t segment)
{
    unsigned char *memory = check->target->segments[segment];
    uint64_t bytes = kvferry_layout_segment(check->target->layout, segment)->bytes;
    uint64_t noise = oracle_noise_key(check->target->noise, segment);
    check->result->checked_bytes += bytes;
    const uint64_t chunk = 4096;
    for (uint64_t at = 0; at < bytes; at += chunk) {
        uint64_t end = bytes - at < chunk ? bytes : at + chunk;
        if (oracle_equal(memory + at, end - at, noise, at / 8))
            continue;
        oracle_finding *finding = NULL;
        uint64_t last = UINT64_MAX;
        for (uint64_t i = at; i < end; i++) {
            uint64_t word = oracle_word(noise, i / 8);
            if (memory[i] == ((unsigned char *)&word)[i % 8])
                continue;
            check->result->stray_bytes++;
            if (last == UINT64_MAX || i - last > 8)
                finding = stray_finding(check, segment, i);
            if (finding)
                finding->bytes++;
            last = i;
        }
        oracle_noise_write(memory, at, end - at, noise);
    }
}

/* --- the whole ------------------------------------------------------------------------------ */

static bool make_checker(checker *check, const oracle_worker *target)
{
    if (!view_make(&check->view, target->layout))
        return false;
    check->mask_size = 1;
    for (uint32_t i = 0; i < check->view.stream_count; i++) {
        const kvferry_stream *stream = check->view.streams[i].stream;
        uint64_t size = kvferry_layout_segment(target->layout, stream->segment)->bytes;
        uint64_t row = stream->page_stride < size ? stream->page_stride : size;
        check->mask_size = row > check->mask_size ? row : check->mask_size;
    }
    check->named = calloc((size_t)check->view.group_count + 1, sizeof *check->named);
    bool fine = check->named != NULL;
    for (uint32_t g = 0; fine && g < check->view.group_count; g++) {
        check->named[g] = malloc((size_t)kvferry_layout_group_blocks(target->layout, g) + 1);
        fine = check->named[g] != NULL;
    }
    check->mask = malloc((size_t)check->mask_size);
    check->matches = calloc((size_t)check->view.stream_count + 1, sizeof *check->matches);
    return fine && check->mask && check->matches;
}

bool oracle_check(const oracle_worker *target, const oracle_worker *sources, size_t source_count,
                  const oracle_transfer *transfers, size_t transfer_count, oracle_result *result)
{
    oracle_result *made = calloc(1, sizeof *made);
    checker check = {
        .target = target,
        .explain = {target, sources, source_count, transfers, transfer_count, NULL},
        .result = made,
    };
    bool fine = made && make_checker(&check, target);
    if (fine) {
        view_match_streams(&check.view, sources, source_count, check.matches);
        for (size_t i = 0; i < transfer_count; i++)
            checker_check_cells(&check, &transfers[i]);
        for (size_t i = 0; i < transfer_count; i++)
            checker_restore_rows(&check, &transfers[i]);
        for (uint32_t i = 0; i < kvferry_layout_segment_count(target->layout); i++)
            check_rest(&check, i);
        *result = *made;
    }
    for (uint32_t g = 0; check.named && g < check.view.group_count; g++)
        free(check.named[g]);
    free(check.named);
    free(check.mask);
    free(check.matches);
    view_free(&check.view);
    free(made);
    return fine;
}
