/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_LAYOUT_H
#define KVFERRY_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvferry/report.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A layout document says what caches one worker holds and where they lie in its segments,
 * without addresses. docs/layout-format.md is the normative page of the format.
 *
 * A kvferry_layout is immutable once read or finished, so any number of threads may use it.
 * The structs below are views into it: they belong to the layout and live as long as it does.
 * Later versions may add fields at their ends; never create or copy them by sizeof.
 */
typedef struct kvferry_layout kvferry_layout;

/* The worker that a document describes: ranks 0 .. size-1. */
typedef struct kvferry_worker {
    uint32_t tp_rank, tp_size;
    uint32_t pp_rank, pp_size;
    uint32_t dp_rank, dp_size;
} kvferry_worker;

/* What must be the same model. Strings, "" if unknown. The draft is not compared. */
typedef struct kvferry_identity {
    const char *model;
    const char *revision;
    const char *draft;
} kvferry_identity;

/* One allocation that is registered with a transfer engine, once. */
typedef struct kvferry_segment {
    const char *name;
    uint64_t bytes;
} kvferry_segment;

typedef enum kvferry_group_kind {
    KVFERRY_GROUP_PAGED = 0, /* a request owns many blocks of block_tokens tokens each */
    KVFERRY_GROUP_STATE = 1, /* one live block per request, valid at one position */
    KVFERRY_GROUP_RING = 2   /* one block per request for its whole life */
} kvferry_group_kind;

/* Layers that share a block table. */
typedef struct kvferry_group {
    const char *name;
    kvferry_group_kind kind;
    uint64_t block_tokens; /* tokens a block; 0 unless paged */
    uint64_t window;       /* only the last `window` tokens are wanted; 0: all. Paged only. */
    int64_t null_block;    /* a block id that is never read and never written; -1: none */
} kvferry_group;

/* A named dimension of a stream. Indexes are local, 0 .. extent-1; global index = start + local. */
typedef struct kvferry_axis {
    const char *name;
    uint64_t start;  /* global index of the first local one */
    uint64_t extent; /* how many this worker holds; the token axis: states a page */
    uint64_t global; /* how many there are over all workers */
    uint64_t stride; /* bytes from one index to the next */
} kvferry_axis;

typedef enum kvferry_policy {
    KVFERRY_POLICY_REQUIRED = 0, /* the target must get it */
    KVFERRY_POLICY_OPTIONAL = 1, /* sent where both sides have it */
    KVFERRY_POLICY_LOCAL = 2     /* never sent */
} kvferry_policy;

/*
 * One strided array. Address of a cell, relative to its segment:
 *   offset + page * page_stride + sum over axes of (local index * stride), cell_bytes long.
 * Block b of a paged group is the pages b*r .. b*r+r-1 with r = block_tokens / page_tokens;
 * in the other kinds block b is page b.
 */
typedef struct kvferry_stream {
    const char *layer;
    const char *name;
    const char *dtype;
    const char *format;  /* opaque tag of quantised cells, "" if none */
    uint32_t group;      /* index */
    uint32_t segment;    /* index */
    uint64_t offset;     /* bytes from the segment's start to page 0's first cell */
    uint64_t pages;      /* how many pages there are */
    uint64_t page_stride;/* bytes from page to page */
    uint64_t page_tokens;/* tokens a page; paged only, else 0 */
    uint64_t tokens_per_state; /* >= 1; divides page_tokens */
    uint64_t cell_bytes; /* contiguous bytes under the innermost axis */
    kvferry_policy policy;
    const kvferry_axis *axes; /* in the document's order, at least one where paged (the token axis) */
    uint32_t axis_count;
    const char *const *aliases; /* other layer names of the same bytes */
    uint32_t alias_count;
} kvferry_stream;

/* --- reading ------------------------------------------------------------------------------ */

/*
 * Reads a document of `size` bytes of JSON (UTF-8) or msgpack and validates it.
 * On KVFERRY_OK *layout is the caller's to free. KVFERRY_MALFORMED: not such a document;
 * KVFERRY_REFUSED: well formed, but against a rule of the format; in both cases the report
 * holds every finding with its place. KVFERRY_NO_MEMORY. Any thread.
 */
KVFERRY_API kvferry_status kvferry_layout_read_json(const char *text, size_t size,
                                                    kvferry_layout **layout, kvferry_report *report);
KVFERRY_API kvferry_status kvferry_layout_read_msgpack(const void *data, size_t size,
                                                       kvferry_layout **layout,
                                                       kvferry_report *report);

/* Frees the layout with all views into it; NULL is fine. */
KVFERRY_API void kvferry_layout_free(kvferry_layout *layout);

/* --- writing ------------------------------------------------------------------------------ */

/*
 * Writes the document; the bytes in *text or *data (*size of them; the text is also terminated
 * by a zero byte) are the caller's, to be freed with kvferry_free. Reading them gives an equal
 * document. KVFERRY_NO_MEMORY. Any thread.
 */
KVFERRY_API kvferry_status kvferry_layout_write_json(const kvferry_layout *layout, char **text,
                                                     size_t *size);
KVFERRY_API kvferry_status kvferry_layout_write_msgpack(const kvferry_layout *layout, void **data,
                                                        size_t *size);

/* Frees what a kvferry function returned as plain bytes. */
KVFERRY_API void kvferry_free(void *data);

/* --- looking ------------------------------------------------------------------------------ */

/* Whose document it is. Never NULL. */
KVFERRY_API const char *kvferry_layout_engine_id(const kvferry_layout *layout);
KVFERRY_API const kvferry_worker *kvferry_layout_worker(const kvferry_layout *layout);
KVFERRY_API const kvferry_identity *kvferry_layout_identity(const kvferry_layout *layout);

/* How many there are of each. */
KVFERRY_API uint32_t kvferry_layout_segment_count(const kvferry_layout *layout);
KVFERRY_API uint32_t kvferry_layout_group_count(const kvferry_layout *layout);
KVFERRY_API uint32_t kvferry_layout_stream_count(const kvferry_layout *layout);

/* The element at index; NULL past the end. */
KVFERRY_API const kvferry_segment *kvferry_layout_segment(const kvferry_layout *layout, uint32_t index);
KVFERRY_API const kvferry_group *kvferry_layout_group(const kvferry_layout *layout, uint32_t index);
KVFERRY_API const kvferry_stream *kvferry_layout_stream(const kvferry_layout *layout, uint32_t index);

/* How many blocks a group has: the least over its streams of pages / (pages a block). */
KVFERRY_API uint64_t kvferry_layout_group_blocks(const kvferry_layout *layout, uint32_t group);

/* Whether two groups (or one with itself: true) own bytes in common, so that a block id is
 * exclusive over both: a request must not name it in both. */
KVFERRY_API bool kvferry_layout_groups_share(const kvferry_layout *layout, uint32_t a, uint32_t b);

/* --- comparing ---------------------------------------------------------------------------- */

#define KVFERRY_DIGEST_TEXT 33 /* 32 hexadecimal digits and a zero byte */

/* One digest of the fingerprint: what must agree before data moves (docs/layout-format.md). */
typedef struct kvferry_digest {
    const char *layer;  /* "" in the first one, of the format version and the identity */
    const char *stream;
    kvferry_policy policy;
    char text[KVFERRY_DIGEST_TEXT];
} kvferry_digest;

/* The fingerprint has 1 + stream_count digests; index 0 is the document's own, index 1 + i
 * stream i's. NULL past the end. */
KVFERRY_API const kvferry_digest *kvferry_layout_digest(const kvferry_layout *layout, uint32_t index);

/*
 * Compares two documents as far as both speak: the identity, and every stream that both have.
 * A stream that only one has is no difference (another stage may hold it), nor is anything that a
 * transfer may change (sizes of TP, PP, blocks, pages; strides, offsets, counts, grouping); a
 * difference in an optional stream only leaves the stream out. `a` is taken for the source and `b`
 * for the target, where it matters: b's policies count, and the reasons expect what b has.
 * KVFERRY_OK, or KVFERRY_REFUSED with every difference in the report. Any thread.
 */
KVFERRY_API kvferry_status kvferry_layout_compare(const kvferry_layout *a, const kvferry_layout *b,
                                                  kvferry_report *report);

/* --- building ----------------------------------------------------------------------------- */

/*
 * Builds a document from code: create, add, finish. All strings are copied. The builder is used
 * by one thread. An add that runs out of memory makes finish answer KVFERRY_NO_MEMORY.
 */
typedef struct kvferry_layout_builder kvferry_layout_builder;

/* A new builder in *builder, for the caller to free; NULL identity: unknown. KVFERRY_NO_MEMORY. */
KVFERRY_API kvferry_status kvferry_layout_builder_create(const char *engine_id,
                                                         const kvferry_worker *worker,
                                                         const kvferry_identity *identity,
                                                         kvferry_layout_builder **builder);
/* Frees the builder, finished or not; NULL is fine. */
KVFERRY_API void kvferry_layout_builder_free(kvferry_layout_builder *builder);

/* Each returns the new element's index, for use in streams. */
KVFERRY_API uint32_t kvferry_layout_builder_segment(kvferry_layout_builder *builder, const char *name,
                                                    uint64_t bytes);
/* `group`: zero block_tokens and window unless paged; null_block as in the struct (0 is a block!). */
KVFERRY_API uint32_t kvferry_layout_builder_group(kvferry_layout_builder *builder,
                                                  const kvferry_group *group);
/* `stream` is copied with its axes and aliases. A zero page_tokens of a paged group, a zero
 * tokens_per_state or an axis's zero `global` take the format's defaults; NULL format is "". */
KVFERRY_API uint32_t kvferry_layout_builder_stream(kvferry_layout_builder *builder,
                                                   const kvferry_stream *stream);

/* Validates as reading does. On KVFERRY_OK *layout is the caller's; the builder is still to be
 * freed in any case. */
KVFERRY_API kvferry_status kvferry_layout_builder_finish(kvferry_layout_builder *builder,
                                                         kvferry_layout **layout,
                                                         kvferry_report *report);

#ifdef __cplusplus
}
#endif
#endif
