/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a wrong place: values and noise are words of known sequences, so a word that was
 * found is turned back into the place it belongs to. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_value.h"
#include "oracle_view.h"

/* A decoded word counts as found if its place is below this: a chance of 2^-24 for each sequence.
 */
#define PLACES (UINT64_C(1) << 40)
#define SEARCH_CELLS (UINT64_C(1) << 22)

static void append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

void explain_coordinates(const view_stream *stream, uint64_t index, char *text, size_t size)
{
    text[0] = 0;
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        const view_axis *axis = &stream->axes[i];
        append(text, size, "%s%s %" PRIu64, i ? ", " : "", axis->name,
               index / axis->weight % axis->global);
    }
    if (stream->group->kind == KVFERRY_GROUP_PAGED) {
        uint64_t state = index / stream->token.weight, per = stream->stream->tokens_per_state;
        append(text, size, "%stoken %" PRIu64, stream->axis_count ? ", " : "", state * per);
        if (per > 1)
            append(text, size, "..%" PRIu64, state * per + per - 1);
    } else if (stream->axis_count == 0) {
        append(text, size, "its only cell");
    }
}

/* --- values of 8 bytes and more ------------------------------------------------------------- */

static bool say_value(const explain_context *context, const oracle_transfer *transfer,
                      const view_stream *stream, uint64_t word, uint64_t shift, char *text,
                      size_t size)
{
    const kvferry_stream *s = stream->stream;
    uint64_t key = oracle_stream_key(transfer->seed, s->layer, s->name);
    uint64_t place = oracle_word_place(key, word);
    if (place >= PLACES)
        return false;
    char at[ORACLE_TEXT];
    explain_coordinates(stream, place / stream->words, at, sizeof at);
    append(text, size, "%s %s %s", s->layer, s->name, at);
    uint64_t byte = place % stream->words * 8;
    if (byte || shift)
        append(text, size, ", byte %" PRIu64, byte);
    if (shift)
        append(text, size, ", found %" PRIu64 " bytes further on", shift);
    if (transfer != context->transfer && transfer->request->transfer_id)
        append(text, size, " of request %s", transfer->request->transfer_id);
    return true;
}

static bool say_noise(const oracle_worker *worker, bool own, uint64_t place, uint64_t word,
                      uint64_t shift, char *text, size_t size)
{
    for (uint32_t i = 0; i < kvferry_layout_segment_count(worker->layout); i++) {
        const kvferry_segment *segment = kvferry_layout_segment(worker->layout, i);
        uint64_t n = oracle_word_place(oracle_noise_key(worker->noise, i), word);
        if (n >= segment->bytes / 8)
            continue;
        if (own && n * 8 == place + shift) {
            append(text, size, "what was there before: it was never written");
            return true;
        }
        const kvferry_worker *w = kvferry_layout_worker(worker->layout);
        append(text, size,
               "what %s tp%" PRIu32 " pp%" PRIu32 " has at segment %s + %" PRIu64
               ", which holds no value of a request",
               kvferry_layout_engine_id(worker->layout), w->tp_rank, w->pp_rank, segment->name,
               n * 8 - shift);
        return true;
    }
    return false;
}

/* Tries the 8 bytes at each of the sample's first 8 bytes as a word. */
static bool explain_word(const explain_context *context, const view_layout *sources,
                         const explain_sample *sample, char *text, size_t size)
{
    for (uint64_t shift = 0; shift < 8 && shift + 8 <= sample->size; shift++) {
        uint64_t word;
        memcpy(&word, sample->bytes + shift, 8);
        for (size_t t = 0; t < context->transfer_count; t++)
            for (size_t s = 0; s < context->source_count; s++)
                for (uint32_t i = 0; i < sources[s].stream_count; i++)
                    if (say_value(context, &context->transfers[t], &sources[s].streams[i], word,
                                  shift, text, size))
                        return true;
        if (say_noise(context->target, true, sample->segment_offset + sample->bad_byte, word, shift,
                      text, size))
            return true;
        for (size_t s = 0; s < context->source_count; s++)
            if (say_noise(&context->sources[s], false, 0, word, shift, text, size))
                return true;
    }
    return false;
}

/* --- values of small cells ------------------------------------------------------------------ */

/* Whether every sample holds the value of the cell `delta` further on in a stream. */
static bool samples_hold(uint64_t key, const view_stream *stream, uint64_t delta,
                         const explain_sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word = oracle_word(key, (samples[i].index + delta) * stream->words);
        if (memcmp(&word, samples[i].bytes, (size_t)stream->stream->cell_bytes) != 0)
            return false;
    }
    return true;
}

/* Looks for a stream of the layer and a distance at which all samples' values are found. */
static bool explain_small(const explain_context *context, const view_layout *sources,
                          const view_stream *stream, const explain_sample *samples, size_t count,
                          char *text, size_t size)
{
    uint64_t cell_bytes = stream->stream->cell_bytes;
    if (cell_bytes >= 8 || cell_bytes * count < 6)
        return false;
    for (size_t s = 0; s < context->source_count; s++)
        for (uint32_t i = 0; i < sources[s].stream_count; i++) {
            const view_stream *other = &sources[s].streams[i];
            if (strcmp(other->stream->layer, stream->stream->layer) != 0 ||
                other->stream->cell_bytes != cell_bytes)
                continue;
            uint64_t key = oracle_stream_key(context->transfer->seed, other->stream->layer,
                                             other->stream->name);
            uint64_t states =
                other->group->kind == KVFERRY_GROUP_PAGED
                    ? context->transfer->request->source_tokens / other->stream->tokens_per_state +
                          1
                    : 1;
            if (other->token.weight == 0 || states > SEARCH_CELLS / other->token.weight)
                continue;
            for (uint64_t at = 0; at < states * other->token.weight; at++) {
                if (!samples_hold(key, other, at - samples[0].index, samples, count))
                    continue;
                char place[ORACLE_TEXT];
                explain_coordinates(other, at, place, sizeof place);
                append(text, size, "%s %s %s", other->stream->layer, other->stream->name, place);
                return true;
            }
        }
    return false;
}

void explain_instead(const explain_context *context, const view_stream *stream,
                     const explain_sample *samples, size_t sample_count, char *text, size_t size)
{
    text[0] = 0;
    view_layout *sources = calloc(context->source_count + 1, sizeof *sources);
    bool made = sources && sample_count;
    for (size_t i = 0; made && i < context->source_count; i++)
        made = view_make(&sources[i], context->sources[i].layout);
    if (made && !explain_word(context, sources, &samples[0], text, size) &&
        !(stream && explain_small(context, sources, stream, samples, sample_count, text, size)))
        append(text, size, "bytes of no known place");
    for (size_t i = 0; sources && i < context->source_count; i++)
        view_free(&sources[i]);
    free(sources);
}
