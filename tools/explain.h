/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry explain: what it finds out about two engines, and its parts. */
#ifndef KVFERRY_EXPLAIN_H
#define KVFERRY_EXPLAIN_H

#include "tool.h"

/* A group of one side, over all its workers (explain_side.c). */
typedef struct explain_group {
    const char *name;
    kvferry_group_kind kind;
    uint64_t block_tokens, window;
    int64_t null_block;
    uint64_t blocks;  /* the least over the workers */
    size_t id_space;  /* groups of one id space must not name a block twice */
} explain_group;

/* How a group's streams lie in memory, for all workers where they lie alike (explain_rows.c). */
typedef struct explain_row {
    const char *group;
    kvferry_group_kind kind;
    uint64_t block_tokens, window, blocks;
    uint64_t page_tokens;   /* 0 unless paged */
    uint64_t row_bytes;     /* from page to page: the streams' page_stride */
    uint64_t row_layers;    /* layers whose pages lie side by side in a row */
    uint64_t payload;       /* bytes of cells of this group in a row */
    tool_list workers, layers, streams;
} explain_row;

typedef struct explain_side {
    const char *title; /* "prefill", "decode", or "source", "target" */
    char *summary;     /* "Qwen3.5-35B-A3B, TP2 PP2, 4 workers" */
    tool_side workers;
    explain_group *groups;
    size_t group_count;
    explain_row *rows;
    size_t row_count;
} explain_side;

/* Fills groups, rows and summary from the workers. */
void explain_side_study(explain_side *side);
void explain_rows_study(explain_side *side);
void explain_side_free(explain_side *side);
/* Where a group of that name is; group_count if nowhere. */
size_t explain_group_find(const explain_side *side, const char *name);
const char *explain_kind(kvferry_group_kind kind);
/* Bytes of a stream's cells in one page. */
uint64_t explain_page_payload(const kvferry_stream *stream);
/* Whether an axis counts states of tokens, which a request cuts and no rank. */
bool explain_is_token(const kvferry_axis *axis);
void explain_list_add_once(tool_list *list, const char *item);
bool explain_list_equal(const tool_list *a, const tool_list *b); /* in any order; nothing twice */

/* The same part of many layers and streams that one source sends one target (explain_pieces.c). */
typedef struct explain_piece {
    size_t source, target;
    kvferry_group_kind kind;
    uint64_t state_bytes, tokens_per_state;
    const kvferry_stream *stream; /* the target's, of the first layer */
    const kvferry_range *ranges;  /* one per axis of that stream */
    tool_list layers, streams;
} explain_piece;

/* A stream's blocks and axes on both sides (explain_cuts.c): one for all streams that are cut alike. */
typedef struct explain_cut {
    tool_list streams, layers;
    kvferry_group_kind kind;
    uint64_t tokens_per_state;
    uint64_t block_tokens[2], page_tokens[2]; /* source, target; 0 unless paged */
    uint64_t window;                          /* the target's */
    const char *axis;                         /* the first that any worker holds a part of; NULL: none */
    uint64_t global;
    uint64_t least[2], most[2];               /* its extents over the workers of each side */
    uint64_t holders[2];                      /* workers that hold the same part, at most */
} explain_cut;

/* What a request comes to between one source and one target, and all (explain_request.c). */
typedef struct explain_count {
    uint64_t copies, bytes;
} explain_count;

enum { EXPLAIN_CONSECUTIVE, EXPLAIN_SHUFFLED, EXPLAIN_ORDERS };

typedef struct explain {
    explain_side source, target;
    kvferry_plan **plans; /* one per target worker */
    explain_piece *pieces;
    size_t piece_count;
    explain_cut *cuts;
    size_t cut_count;
    tool_list unsent; /* layers with streams of the target that get nothing */
    tool_list unused; /* layers of the sources that no target takes */
    uint64_t tokens;
    bool whole_blocks; /* the request wants the first block of a window whole */
    bool tokens_given; /* else fewer where the pools of documents are small */
    explain_count *counts[EXPLAIN_ORDERS]; /* [target * sources + source] */
    explain_count total[EXPLAIN_ORDERS];
    uint64_t wanted; /* bytes of cells that the request wants, all targets together */
    bool verbose;
    tool_reasons reasons;
} explain;

/* What a source sends a target, in the order of the target's streams; free() it. */
const kvferry_piece **explain_planned(const kvferry_plan *plan, size_t source, size_t *count);
void explain_pieces_study(explain *all);
void explain_cuts_study(explain *all);
/* TOOL_GO_ON, also with new reasons; else the exit status. */
int explain_request_count(explain *all);

void explain_print_text(const explain *all);
void explain_print_words(const explain *all);
void explain_print_json(const explain *all);
/* "kv_head 0..0 of 2", "whole"; free() it. */
char *explain_range_text(const explain_piece *piece);

#endif
