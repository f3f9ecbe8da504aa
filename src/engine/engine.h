/* SPDX-License-Identifier: Apache-2.0 */
/* The common layer over all engines: what its files share. Nothing else includes this header. */
#ifndef KVFERRY_SRC_ENGINE_H
#define KVFERRY_SRC_ENGINE_H

#include <kvferry/engine.h>

#include "base/base.h"

/*
 * A batch is what one submission moves: small enough that transfers and peers take fair turns, big
 * enough that a flush per batch costs nothing. Both bounds hold beside the engine's own.
 */
enum {
    ENGINE_BATCH_COPIES = 1024,
    ENGINE_BATCH_BYTES = 4 * 1024 * 1024,
    ENGINE_BATCHES = 8, /* in flight to one peer; the header promises at most 64 */
    ENGINE_NAME_BYTES = 128
};

typedef struct engine_segment {
    uint64_t address, bytes;
    void *handle; /* the implementation's */
    kvferry_memory memory;
    bool live;
} engine_segment;

/* Pieces in flight: whole copies, but where one is larger than a batch may be. */
typedef struct engine_batch {
    kvferry_peer *peer;
    kvferry_transfer *transfer;
    struct engine_batch *next_free;
    size_t first;     /* index of its first copy */
    uint64_t pieces;  /* what the engine was given */
    uint64_t finishes;/* copies whose last byte is in it */
    uint64_t bytes;
    bool flying;
} engine_batch;

struct kvferry_transfer {
    kvferry_peer *peer; /* NULL once it is over */
    kvferry_transfer *next, *previous; /* ring of the peer's transfers that are not over */
    const kvferry_copy *copies;
    size_t count;
    size_t cursor;         /* first copy that is not wholly submitted */
    uint64_t cursor_bytes; /* bytes of it that are */
    uint64_t deadline_ns;
    unsigned flying;       /* batches in flight */
    bool cancel_sent;
    kvferry_direction direction;
    kvferry_transfer_state state;
    char detail[400];
};

struct kvferry_peer {
    kvferry_engine *engine;
    kvferry_peer *next, *previous;
    void *handle;
    engine_segment *segments; /* as the peer exported them */
    uint32_t segment_count;
    kvferry_transfer *turn; /* the transfer whose turn is next; NULL: none */
    engine_batch batches[ENGINE_BATCHES];
    engine_batch *free_first, *free_last; /* first in, first out: a stray second end hits no new one */
    uint64_t outstanding; /* pieces in flight */
    bool lost;
    bool leaving, left;   /* kvferry_peer_leave was called; it has been true */
    uint64_t ends;        /* batches that have ended: signs of life */
    uint64_t heard;       /* `ends` at silent_ns */
    uint64_t silent_ns;   /* since when nothing has ended, while it is leaving */
    char name[ENGINE_NAME_BYTES];
};

struct kvferry_engine {
    const kvferry_engine_ops *ops;
    void *self;
    kvferry_engine_capabilities capabilities;
    engine_segment *segments;
    size_t segment_count, segment_capacity;
    kvferry_peer *peers;         /* ring; the pointer moves on, so that no peer is always first */
    kvferry_engine_copy *pieces; /* a batch being cut */
    uint64_t piece_capacity;
    kvferry_report *submit_report; /* an engine's words about a refused submission; cleared each time */
    char name[ENGINE_NAME_BYTES];
};

/* registry.c */
const kvferry_engine_ops *engine_find(const char *name);
void engine_report_unknown(kvferry_report *report, const char *name);

/* segment.c */
void engine_segments_close(kvferry_engine *engine);

/* peer.c */
void engine_peer_check_lost(kvferry_peer *peer);
void engine_peer_link(kvferry_peer *peer); /* the peer is complete: the engine has it from now on */
bool engine_peers_leave(kvferry_engine *engine); /* kvferry_peer_leave of all; whether all are true */
void engine_wait(kvferry_engine *engine); /* moves the implementation on, or sleeps a moment */

/* engine.c */
uint64_t engine_now_ns(void);

/* transfer.c */
void engine_transfer_settle(kvferry_transfer *transfer, kvferry_status status, const char *detail);
void engine_transfer_retire(kvferry_transfer *transfer); /* makes it over */
void engine_batch_ended(void *batch, kvferry_status status, const char *detail);

/* pump.c: cuts the next batch of the peer's transfer whose turn it is, and submits it; false: there
 * is none, or no room. */
bool engine_peer_pump(kvferry_peer *peer);

/* The implementations of this build. */
extern const kvferry_engine_ops engine_memory_ops;
extern const kvferry_engine_ops engine_ucx_ops;
extern const kvferry_engine_ops engine_mooncake_ops;
extern const kvferry_engine_ops engine_nixl_ops;

#endif
