/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random set-ups: a seed makes a spec (plain numbers, without pointers into itself), a spec makes
 * the documents and requests. Everything random is decided in the spec, so that it can be made
 * smaller step by step and built again. docs/proof.md is the page about this.
 */
#ifndef KVFERRY_RANDOM_H
#define KVFERRY_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <kvferry/layout.h>
#include <kvferry/plan.h>

#include "oracle.h"

#define MAX_STREAMS 14
#define MAX_RANKS 8
#define MAX_STAGES 4
#define MAX_GROUPS 8
#define MAX_REQUESTS 3
#define MAX_BLOCKS 48 /* in a table */
#define MAX_IDS 100
#define MAX_TOKENS 60 /* tokens of a request are bits of a word */
#define MAX_WORKERS (MAX_RANKS * MAX_STAGES)

/* --- random numbers ------------------------------------------------------------------------- */

typedef struct random_dice {
    uint64_t state;
} random_dice;

uint64_t dice_next(random_dice *dice);
uint32_t dice_below(random_dice *dice, uint32_t count);              /* 0 .. count-1 */
uint32_t dice_range(random_dice *dice, uint32_t low, uint32_t high); /* low .. high */
bool dice_one_in(random_dice *dice, uint32_t count);

/* --- the spec ------------------------------------------------------------------------------- */

enum { SOURCE = 0, TARGET = 1 };

typedef struct axis_spec {
    const char *name;
    uint16_t global;
} axis_spec;

/* What a stream is on both sides. */
typedef struct stream_spec {
    bool dropped; /* by the shrinker */
    uint8_t layer;
    const char *name;
    kvferry_group_kind kind;
    uint8_t window_class; /* paged: 0 or 1, index of spec.window */
    uint8_t axis_count;   /* without the token axis */
    axis_spec axes[2];
    uint8_t tokens_per_state, cell_bytes;
    const char *dtype, *format;
    uint8_t bundle; /* streams of equal number may be laid out together */
} stream_spec;

typedef struct cut_spec {
    uint16_t start, extent;
} cut_spec;

enum { NAME_OWN, NAME_OTHER_WITH_ALIAS, NAME_OTHER };

/* Dimensions of a bundle, for its order in memory. */
enum { DIM_PAGE, DIM_TOKEN, DIM_FIRST, DIM_SECOND, DIM_MEMBER, DIM_COUNT };

/* What one side makes of a stream. */
typedef struct side_stream {
    bool absent;
    uint8_t policy;
    uint8_t naming;
    bool names_other; /* lists the other side's name as an alias */
    uint8_t stages;   /* one bit a stage */
    uint8_t group;
    uint8_t ratio; /* pages a block */
    uint8_t extra_pages;
    uint8_t bundle; /* streams of equal number are laid out together: one order, one area */
    uint8_t area;
    uint8_t order[DIM_COUNT]; /* outermost first */
    uint8_t padding[DIM_COUNT];
    bool page_inside; /* the page takes its place in the order; else it is outermost */
    uint8_t gap;      /* bytes before it */
    cut_spec cuts[2][MAX_RANKS];
    /* Lies about the stream, for refusals: 0 is the truth. */
    uint8_t lie;
} side_stream;

enum { LIE_NONE, LIE_DTYPE, LIE_FORMAT, LIE_CELL, LIE_STATE, LIE_AXIS, LIE_GLOBAL, LIE_KIND };

typedef struct side_group {
    uint16_t block_tokens; /* 0 unless paged */
    kvferry_group_kind kind;
    uint8_t window_class;
    int8_t null_block;
    uint8_t blocks; /* ids in use are below this */
    uint8_t pool;   /* groups of equal number never use the same id */
} side_group;

typedef struct side_area {
    bool overlay; /* groups lie over one another; else behind one another */
    bool tight;   /* no padding after the last cell */
    uint8_t segment, gap, padding;
} side_area;

typedef struct side_spec {
    uint8_t tp, pp, dp, segments; /* the workers are of the last of dp ranks */
    bool shuffled_documents;      /* groups and streams are listed in another order */
    side_stream streams[MAX_STREAMS];
    side_group groups[MAX_GROUPS];
    side_area areas[MAX_STREAMS];
} side_spec;

#define NULL_ID (-1)

typedef struct table_spec {
    bool listed;
    uint16_t first_token;
    uint8_t count;
    int16_t ids[MAX_BLOCKS];
} table_spec;

typedef struct request_spec {
    bool dropped, whole_blocks;
    uint16_t source_tokens, target_tokens;
    table_spec tables[2][MAX_GROUPS];
} request_spec;

/* What was made wrong on purpose. */
typedef enum fault_kind {
    FAULT_NONE,
    /* of the documents */
    FAULT_NO_SOURCES,
    FAULT_WORKER_TWICE,
    FAULT_IDENTITY,
    FAULT_STREAM,
    FAULT_MISSING,
    FAULT_HOLE,
    /* of a request */
    FAULT_SOURCE_NULL,
    FAULT_SOURCE_SHORT,
    FAULT_SOURCE_TOKENS,
    FAULT_SOURCE_WHOLE,
    FAULT_BLOCK_RANGE,
    FAULT_BLOCK_TWICE,
    FAULT_BLOCK_SHARED,
    FAULT_GROUP_MISSING,
    FAULT_GROUP_UNKNOWN,
    FAULT_GROUP_TWICE,
    FAULT_MISALIGNED,
    FAULT_STATE_POSITION,
    FAULT_STATE_BLOCKS,
    FAULT_HOSTILE, /* numbers from anywhere: refused, or copies inside the segments */
    FAULT_KINDS
} fault_kind;

typedef struct fault_spec {
    fault_kind kind;
    uint8_t side, stream, group, other_group, worker;
    uint16_t index; /* of a block in its table */
    bool second;    /* one more thing is wrong: another model, or a group that nobody has */
} fault_spec;

typedef struct random_spec {
    uint64_t seed;
    uint8_t stream_count, group_count[2], request_count;
    uint16_t window[2];     /* by class; [0] is 0 */
    uint16_t source_window; /* of class 1 on the source, which does not matter */
    stream_spec streams[MAX_STREAMS];
    side_spec sides[2];
    request_spec requests[MAX_REQUESTS];
    fault_spec fault;
    uint64_t order;     /* of the sources */
    uint64_t far;       /* every segment has so many bytes before its first stream */
    uint8_t round_trip; /* 1: documents go through JSON, 2: through msgpack */
} random_spec;

/* generate.c, generate_side.c, generate_request.c */
void spec_generate(random_spec *spec, uint64_t seed);
void spec_generate_side(random_spec *spec, random_dice *dice, int side);
void spec_generate_request(random_spec *spec, random_dice *dice, int index,
                           uint8_t used[2][MAX_GROUPS][MAX_IDS]);

/* Whether a stream can be moved: both sides have it and no policy is against it. */
bool spec_is_moved(const random_spec *spec, int stream);

/* The tokens that a target group wants of a request, one bit each. */
uint64_t spec_wanted_tokens(const random_spec *spec, const request_spec *request, int group);
/* What all target groups want of a source group's tokens; false: none is filled from it. */
bool spec_needed_tokens(const random_spec *spec, const request_spec *request, int group,
                        uint64_t *tokens);
/* The tokens of live blocks in a paged group's table. */
uint64_t spec_live_tokens(const random_spec *spec, const request_spec *request, int side, int group);

/* fault.c: makes something wrong in a right spec; false: this kind does not fit this spec. The dice
 * decide where, and whether a second thing is wrong too. */
bool spec_break(random_spec *spec, random_dice *dice, fault_kind kind);
const char *spec_fault_code(const random_spec *spec); /* the reason that must be reported */
const char *spec_fault_name(fault_kind kind);

/* --- what is built of it -------------------------------------------------------------------- */

typedef struct built_side {
    size_t count;
    kvferry_layout *layouts[MAX_WORKERS];
} built_side;

typedef struct built_request {
    kvferry_request request;
    char id[8];
    char names[2][MAX_GROUPS + 1][12];
    kvferry_block_table tables[2][MAX_GROUPS + 1];
    uint32_t blocks[2][MAX_GROUPS][MAX_BLOCKS];
} built_request;

/* A group's name in its side's documents. */
void spec_group_name(int side, int group, char name[12]);

/* build.c. false: the spec is no right one, or no memory: `report` says why. */
bool build_side(const random_spec *spec, int side, built_side *built, kvferry_report *report);
void built_side_free(built_side *built);
/* As `target` may ask it: without target groups that this worker does not have. NULL: all. */
void build_request(const random_spec *spec, int index, const kvferry_layout *target,
                   built_request *built);

/* --- moving --------------------------------------------------------------------------------- */

typedef struct random_memory {
    oracle_worker worker;
    unsigned char *segments[MAX_STREAMS + 1];
    unsigned char *nulls[MAX_STREAMS + 1];   /* by segment: 1 where a null block's cell is */
    unsigned char *written[MAX_STREAMS + 1]; /* by segment: 1 where this request wrote */
    unsigned char *all;
    uint64_t bytes; /* of all segments */
} random_memory;

#define FINDING_TEXT 1200

/* What went wrong in a run: a stable word and a text; an empty word: nothing. */
typedef struct random_finding {
    char what[32];
    char text[FINDING_TEXT];
} random_finding;

void finding_set(random_finding *finding, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* move.c: a worker's memory, and moving copies into it. Every copy is checked against both sides'
 * segments, must not read or write a null block, and must not write what another copy of the same
 * request wrote (move_begin starts a request). */
bool memory_make(random_memory *memory, const kvferry_layout *layout, uint64_t noise);
void memory_free(random_memory *memory);
void move_begin(random_memory *target);
/* Whether a copy lies inside a segment of a side. */
bool move_inside(const kvferry_layout *layout, uint32_t segment, uint64_t offset, uint64_t bytes);
bool move_copy(const random_memory *source, random_memory *target, const kvferry_copy *copy,
               random_finding *finding);

/* --- running -------------------------------------------------------------------------------- */

typedef struct random_totals {
    uint64_t runs, refusals, requests, workers, copies, naive_copies, wanted_bytes, moved_bytes,
        allowed_bytes, checked_bytes;
    uint64_t continued; /* copies that go on where the one before them ended, on both sides */
    uint64_t whole; /* requests, of all workers, that want more because of whole_blocks */
    uint64_t faults[FAULT_KINDS];
} random_totals;

/* run_checksum.c: compares the checksums of a request that was moved. */
void run_checksums(const kvferry_plan *plan, const random_memory *sources, const random_memory *target,
                   const kvferry_request *request, random_finding *finding);

/* run.c: builds and checks one spec. `naive`: without the planner, to prove the proof. */
void run_spec(const random_spec *spec, bool naive, random_finding *finding, random_totals *totals);

/* run_far.c: the same set-up in segments of terabytes, planned from documents that are gone when it
 * is expanded: the same copies, only further on. */
void run_far(const random_spec *spec, const built_side sides[2], random_finding *finding);

/* run_refusal.c */
void run_refusal(const random_spec *spec, const built_side sides[2], random_finding *finding,
                 random_totals *totals);

/* shrink.c: makes a failing spec smaller as long as the same finding stays. */
void spec_shrink(random_spec *spec, bool naive, random_finding *finding);

/* print.c: documents, requests and finding, for a person. */
void spec_print(const random_spec *spec, const random_finding *finding, FILE *out);

#endif
