/* SPDX-License-Identifier: Apache-2.0 */
#include "classify.h"

#include <stdlib.h>
#include <string.h>

/* One cell of one page of one stream. */
typedef struct owner {
    uint32_t stream;
    uint64_t block, start;
    uint64_t token; /* its first, from the block's first */
} owner;

#define MAX_OWNERS 16

struct byte_judge {
    const kvferry_layout *layout;
    bool *moved;
    uint64_t *row_low; /* by stream: where row 0 begins */
    owner **owners;    /* by segment: MAX_OWNERS a byte, `stream` UINT32_MAX where there is none */
};

static const kvferry_group *group_of(const byte_judge *classifier, uint32_t stream)
{
    return kvferry_layout_group(classifier->layout,
                                kvferry_layout_stream(classifier->layout, stream)->group);
}

static uint64_t pages_of(const byte_judge *classifier, uint32_t stream)
{
    const kvferry_group *group = group_of(classifier, stream);
    return group->kind == KVFERRY_GROUP_PAGED
               ? group->block_tokens /
                     kvferry_layout_stream(classifier->layout, stream)->page_tokens
               : 1;
}

static void own_bytes(byte_judge *classifier, const owner *cell)
{
    const kvferry_stream *stream = kvferry_layout_stream(classifier->layout, cell->stream);
    for (uint64_t b = 0; b < stream->cell_bytes; b++) {
        owner *list = classifier->owners[stream->segment] + (cell->start + b) * MAX_OWNERS;
        int n = 0;
        while (n < MAX_OWNERS && list[n].stream != UINT32_MAX)
            n++;
        if (n == MAX_OWNERS)
            abort();
        list[n] = *cell;
    }
}

static void own_stream(byte_judge *classifier, uint32_t index)
{
    const kvferry_stream *stream = kvferry_layout_stream(classifier->layout, index);
    uint64_t ratio = pages_of(classifier, index);
    for (uint64_t page = 0; page < stream->pages; page++) {
        uint64_t at[8] = {0};
        for (bool more = true; more;) {
            owner cell = {index, page / ratio, stream->offset + page * stream->page_stride,
                          page % ratio * stream->page_tokens};
            more = false;
            for (uint32_t i = 0; i < stream->axis_count; i++) {
                cell.start += at[i] * stream->axes[i].stride;
                if (ratio && strcmp(stream->axes[i].name, "token") == 0)
                    cell.token += at[i] * stream->tokens_per_state;
            }
            own_bytes(classifier, &cell);
            for (uint32_t i = stream->axis_count; i-- > 0 && !more;) {
                more = ++at[i] < stream->axes[i].extent;
                at[i] = more ? at[i] : 0;
            }
        }
    }
}

/* The lowest offset of the streams of equal stride that a row begins with: from the lowest on, each
 * stream less than a stride above it is in its row. */
static uint64_t find_row(const kvferry_layout *layout, const kvferry_stream *stream)
{
    uint64_t low = 0;
    for (bool first = true;; first = false) {
        uint64_t next = UINT64_MAX;
        for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
            const kvferry_stream *other = kvferry_layout_stream(layout, i);
            if (other->segment == stream->segment && other->page_stride == stream->page_stride &&
                (first || other->offset >= low + stream->page_stride) && other->offset < next)
                next = other->offset;
        }
        if (stream->offset - next < stream->page_stride && stream->offset >= next)
            return next;
        low = next;
    }
}

byte_judge *classifier_make(const kvferry_layout *const *sources, size_t source_count,
                            const kvferry_layout *target)
{
    byte_judge *made = calloc(1, sizeof *made);
    uint32_t streams = kvferry_layout_stream_count(target);
    uint32_t segments = kvferry_layout_segment_count(target);
    if (!made)
        return NULL;
    made->layout = target;
    made->moved = calloc(streams + 1, sizeof *made->moved);
    made->row_low = calloc(streams + 1, sizeof *made->row_low);
    made->owners = calloc(segments, sizeof *made->owners);
    bool fine = made->moved && made->row_low && made->owners;
    for (uint32_t i = 0; fine && i < segments; i++) {
        size_t bytes = kvferry_layout_segment(target, i)->bytes * MAX_OWNERS * sizeof(owner);
        made->owners[i] = malloc(bytes);
        fine = made->owners[i] != NULL;
        if (fine)
            memset(made->owners[i], 0xff, bytes);
    }
    for (uint32_t i = 0; fine && i < streams; i++) {
        const kvferry_stream *stream = kvferry_layout_stream(target, i);
        const kvferry_stream *matches[MAX_WORKERS];
        made->moved[i] = naive_match(sources, source_count, stream, matches) > 0;
        made->row_low[i] = find_row(target, stream);
        own_stream(made, i);
    }
    if (!fine) {
        classifier_free(made);
        return NULL;
    }
    return made;
}

void classifier_free(byte_judge *classifier)
{
    for (uint32_t i = 0; classifier->owners && i < kvferry_layout_segment_count(classifier->layout);
         i++)
        free(classifier->owners[i]);
    free(classifier->owners);
    free(classifier->moved);
    free(classifier->row_low);
    free(classifier);
}

/* --- one named block ------------------------------------------------------------------------ */

typedef struct named_block {
    const byte_judge *classifier;
    uint32_t group;
    uint64_t block;
    bool paged;
    uint64_t token;      /* the block's first */
    uint64_t first, end; /* the wanted tokens of the request */
    const kvferry_request *request;
} named_block;

static bool is_own(const named_block *named, const owner *cell)
{
    const kvferry_stream *stream = kvferry_layout_stream(named->classifier->layout, cell->stream);
    return stream->group == named->group && cell->block == named->block;
}

static bool is_wanted(const named_block *named, const owner *cell)
{
    const kvferry_stream *stream = kvferry_layout_stream(named->classifier->layout, cell->stream);
    uint64_t token = named->token + cell->token;
    return is_own(named, cell) && named->classifier->moved[cell->stream] &&
           (!named->paged ||
            (token < named->end && token + stream->tokens_per_state > named->first));
}

static bool moves_any(const byte_judge *classifier, uint32_t group)
{
    for (uint32_t i = 0; i < kvferry_layout_stream_count(classifier->layout); i++)
        if (classifier->moved[i] && kvferry_layout_stream(classifier->layout, i)->group == group)
            return true;
    return false;
}

bool classifier_share(const byte_judge *classifier, uint32_t a, uint32_t b)
{
    for (uint32_t s = 0; s < kvferry_layout_segment_count(classifier->layout); s++)
        for (uint64_t x = 0; x < kvferry_layout_segment(classifier->layout, s)->bytes; x++) {
            const owner *list = classifier->owners[s] + x * MAX_OWNERS;
            for (int i = 0; i < MAX_OWNERS && list[i].stream != UINT32_MAX; i++)
                for (int j = 0; j < MAX_OWNERS && list[j].stream != UINT32_MAX; j++)
                    if (kvferry_layout_stream(classifier->layout, list[i].stream)->group == a &&
                        kvferry_layout_stream(classifier->layout, list[j].stream)->group == b)
                        return true;
        }
    return false;
}

/* Whether a wanted cell lies in [from, to) of a segment. */
static bool wanted_within(const named_block *named, uint32_t segment, uint64_t from, uint64_t to)
{
    uint64_t bytes = kvferry_layout_segment(named->classifier->layout, segment)->bytes;
    for (uint64_t x = from; x < to && x < bytes; x++) {
        const owner *list = named->classifier->owners[segment] + x * MAX_OWNERS;
        for (int i = 0; i < MAX_OWNERS && list[i].stream != UINT32_MAX; i++)
            if (is_wanted(named, &list[i]))
                return true;
    }
    return false;
}

static bool name_block(const byte_judge *classifier, const kvferry_request *request,
                       const kvferry_block_table *table, size_t index, named_block *named);

/* Whether a group's block is its view of a block that the request names in a group that shares
 * bytes with it. */
static bool is_view_of_named(const named_block *named, uint32_t group, uint64_t block)
{
    const kvferry_request *request = named->request;
    for (size_t t = 0; t < request->target_count; t++)
        for (size_t b = 0; b < request->target[t].block_count; b++) {
            named_block other;
            if (name_block(named->classifier, request, &request->target[t], b, &other) &&
                other.block == block && other.group != group &&
                moves_any(named->classifier, other.group) &&
                classifier_share(named->classifier, group, other.group))
                return true;
        }
    return false;
}

/* What one owner has against a change of byte x, which is in a row [low, low + bytes) of the block.
 */
static bool forbids(const named_block *named, const owner *cell, uint32_t segment, uint64_t low,
                    uint64_t bytes)
{
    const byte_judge *classifier = named->classifier;
    const kvferry_stream *stream = kvferry_layout_stream(classifier->layout, cell->stream);
    if (!is_own(named, cell))
        return stream->group == named->group ||
               !is_view_of_named(named, stream->group, cell->block);
    if (!classifier->moved[cell->stream])
        return true;
    if (!named->paged || named->token + cell->token + stream->tokens_per_state > named->first)
        return false; /* wanted, or past the request's tokens */
    return cell->start < low || cell->start + stream->cell_bytes > low + bytes ||
           !wanted_within(named, segment, low, cell->start) ||
           !wanted_within(named, segment, cell->start + stream->cell_bytes, low + bytes);
}

static bool is_free(const named_block *named, const owner *list, uint32_t segment, uint64_t x)
{
    const byte_judge *classifier = named->classifier;
    for (uint32_t s = 0; s < kvferry_layout_stream_count(classifier->layout); s++) {
        const kvferry_stream *stream = kvferry_layout_stream(classifier->layout, s);
        uint64_t ratio = pages_of(classifier, s);
        if (stream->group != named->group || stream->segment != segment || !classifier->moved[s])
            continue;
        for (uint64_t p = 0; p < ratio; p++) {
            uint64_t low =
                classifier->row_low[s] + (named->block * ratio + p) * stream->page_stride;
            bool free = x >= low && x < low + stream->page_stride;
            for (int i = 0; free && i < MAX_OWNERS && list[i].stream != UINT32_MAX; i++)
                free = !forbids(named, &list[i], segment, low, stream->page_stride);
            if (free)
                return true;
        }
    }
    /* Cells past the request's tokens, wherever they lie. */
    for (int i = 0; i < MAX_OWNERS && list[i].stream != UINT32_MAX; i++)
        if (is_own(named, &list[i]) && classifier->moved[list[i].stream] && named->paged &&
            named->token + list[i].token >= named->end)
            return true;
    return false;
}

static void classify_block(const named_block *named, unsigned char *const *classes)
{
    const kvferry_layout *layout = named->classifier->layout;
    for (uint32_t s = 0; s < kvferry_layout_segment_count(layout); s++)
        for (uint64_t x = 0; x < kvferry_layout_segment(layout, s)->bytes; x++) {
            const owner *list = named->classifier->owners[s] + x * MAX_OWNERS;
            for (int i = 0; i < MAX_OWNERS && list[i].stream != UINT32_MAX; i++)
                if (is_wanted(named, &list[i]))
                    classes[s][x] = BYTE_WANTED;
            if (classes[s][x] == BYTE_KEEPS && is_free(named, list, s, x))
                classes[s][x] = BYTE_FREE;
        }
}

/* The block of a table of the target, as a named one; false: it is null, or nothing in it is
 * wanted. */
static bool name_block(const byte_judge *classifier, const kvferry_request *request,
                       const kvferry_block_table *table, size_t index, named_block *named)
{
    for (uint32_t g = 0; g < kvferry_layout_group_count(classifier->layout); g++) {
        const kvferry_group *group = kvferry_layout_group(classifier->layout, g);
        if (strcmp(group->name, table->group) != 0)
            continue;
        *named = (named_block){.classifier = classifier,
                               .request = request,
                               .group = g,
                               .block = table->blocks[index],
                               .paged = group->kind == KVFERRY_GROUP_PAGED,
                               .token = table->first_token + index * group->block_tokens,
                               .first = table->first_token,
                               .end = request->target_tokens};
        if (group->window && named->end > named->first + group->window)
            named->first = named->end - group->window;
        uint64_t block_end = named->token + group->block_tokens;
        if (request->whole_blocks && named->first > named->token && named->first < block_end)
            named->first = named->token; /* a block is kept whole or not at all */
        bool wanted = !named->paged || (named->token < named->end && named->first < named->end &&
                                        named->token + group->block_tokens > named->first);
        return wanted && (int64_t)named->block != group->null_block;
    }
    return false;
}

void classifier_request(const byte_judge *classifier, const kvferry_request *request,
                        unsigned char *const *classes)
{
    for (size_t t = 0; t < request->target_count; t++)
        for (size_t b = 0; b < request->target[t].block_count; b++) {
            named_block named;
            if (name_block(classifier, request, &request->target[t], b, &named))
                classify_block(&named, classes);
        }
}
