/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_ENGINE_H
#define KVFERRY_ENGINE_H

#include <kvferry/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * An engine moves bytes between registered segments of two workers. It knows no layouts.
 *
 * The same rules hold over every implementation, and are kept here and not in it:
 *   - every copy is checked against the registered segments of both sides before it is submitted;
 *   - a transfer is cut into batches and windowed to what the engine can take;
 *   - a transfer is done only when its bytes are visible at the target;
 *   - a transfer whose deadline passed is not over while the engine may still write: it ends when
 *     the engine reports its end or the peer's connection is torn down.
 *
 * One thread at a time uses an engine with its peers and transfers. Nothing moves and nothing ends
 * but inside kvferry_engine_progress; a *target* must call it too (some transports need it).
 */
typedef struct kvferry_engine kvferry_engine;
typedef struct kvferry_peer kvferry_peer;
typedef struct kvferry_transfer kvferry_transfer;

typedef enum kvferry_memory {
    KVFERRY_MEMORY_HOST = 0,
    KVFERRY_MEMORY_CUDA = 1,
    KVFERRY_MEMORY_ROCM = 2
} kvferry_memory;

typedef enum kvferry_direction {
    KVFERRY_WRITE = 0, /* the local worker is the source: its bytes go to the peer's segments */
    KVFERRY_READ = 1   /* the local worker is the target */
} kvferry_direction;

/* Set `size` to sizeof(kvferry_engine_options); a zero field is the default. */
typedef struct kvferry_engine_options {
    size_t size;
    const char *transport;   /* "": the engine's choice; ucx: "shm", "tcp", or a UCX_TLS list for UCX;
                                mooncake: "tcp", or another of its transports;
                                nixl: one word of UCX_TLS, as "tcp" */
    const char *net_devices; /* "": loopback, the interface of `host`, and all RDMA ports; ucx: as
                                UCX_NET_DEVICES; mooncake: the interface, address or host name that
                                peers reach, "": `host`; nixl: one device as of UCX_NET_DEVICES,
                                "": all */
    uint64_t max_outstanding;/* copies in flight to one peer, at most; 0: the engine's own limit */
    const void *own;         /* passed to the `open` of a caller's own engine */
    const char *name;        /* how peers name this worker in their messages, at most 127 bytes;
                                "": host name and process */
    const char *host;        /* the IP address, without brackets, that peers on other hosts reach this
                                worker by; "": peers are on this host. A node fills it in */
} kvferry_engine_options;

typedef struct kvferry_engine_capabilities {
    const char *name;
    uint64_t max_batch;       /* copies in one submission */
    uint64_t max_outstanding; /* copies in flight to one peer */
    uint64_t max_copy_bytes;  /* bytes of one copy */
    bool writes, reads;
    bool cancels;             /* a submitted batch can be stopped */
    bool allocates;           /* kvferry_engine_allocate gives memory that moves faster */
    bool device_memory;       /* CUDA or ROCm segments */
    bool lingers;             /* what is under way cannot be torn down: a close waits for its end */
} kvferry_engine_capabilities;

/* --- life ---------------------------------------------------------------------------------- */

/* Opens the engine `name`: "memory", "ucx", "mooncake", "nixl", or one that was added with kvferry_engine_add.
 * KVFERRY_NOT_FOUND: no such engine in this build (the report lists those there are);
 * KVFERRY_UNSUPPORTED: it cannot run here (mooncake, nixl: its library is looked for now, and the report says
 * what was looked for). The caller closes it. */
KVFERRY_API kvferry_status kvferry_engine_open(const char *name, const kvferry_engine_options *options,
                                               kvferry_engine **engine, kvferry_report *report);

/* Ends all transfers (KVFERRY_CANCELED), closes all peers, unregisters all segments, frees. */
KVFERRY_API void kvferry_engine_close(kvferry_engine *engine);

/* What the engine can do, within its options. Belongs to the engine. */
KVFERRY_API const kvferry_engine_capabilities *
kvferry_engine_get_capabilities(const kvferry_engine *engine);

/* A descriptor that becomes readable when progress has something to do; -1 if the engine has none.
 * Call kvferry_engine_arm before waiting on it: KVFERRY_BUSY means progress again first,
 * KVFERRY_UNSUPPORTED that there is no descriptor. Deadlines do not wake it: wait no longer than to
 * the nearest one. */
KVFERRY_API int kvferry_engine_fd(const kvferry_engine *engine);
KVFERRY_API kvferry_status kvferry_engine_arm(kvferry_engine *engine);

/* Moves things on without blocking; *active (may be NULL) tells whether anything happened. */
KVFERRY_API kvferry_status kvferry_engine_progress(kvferry_engine *engine, bool *active);

/* --- segments ------------------------------------------------------------------------------ */

/*
 * Registers `bytes` bytes at `address` as the next segment; *segment is its index (0, 1, ...: keep
 * the order of the layout document's segments). Registrations never overlap: KVFERRY_INVALID with
 * both ranges in the report; adjacent ones are fine. The memory stays the caller's and must outlive
 * the registration. Device memory is never touched by the CPU. ucx asks for huge pages: register
 * before the memory is filled, else it is copied into them here.
 */
KVFERRY_API kvferry_status kvferry_engine_register(kvferry_engine *engine, void *address,
                                                   uint64_t bytes, kvferry_memory memory,
                                                   uint32_t *segment, kvferry_report *report);

/* Allocates and registers host memory, zeroed, that the engine moves fastest (shared memory).
 * It belongs to the engine until unregistered. */
KVFERRY_API kvferry_status kvferry_engine_allocate(kvferry_engine *engine, uint64_t bytes,
                                                   void **address, uint32_t *segment,
                                                   kvferry_report *report);

/* KVFERRY_BUSY while a transfer of this engine that is not over names it; KVFERRY_NOT_FOUND. Its
 * index is not used again. What peers still write there is the caller's care: end that first. */
KVFERRY_API kvferry_status kvferry_engine_unregister(kvferry_engine *engine, uint32_t segment);

/*
 * The binding: what a peer needs to reach this worker (engine address, and for each segment its
 * address, bytes and key), as opaque bytes for any channel. *data is the caller's, for kvferry_free.
 * Segments that are registered later are not in it.
 */
KVFERRY_API kvferry_status kvferry_engine_export(kvferry_engine *engine, void **data, size_t *size,
                                                 kvferry_report *report);

/* --- peers --------------------------------------------------------------------------------- */

/* Connects to the worker whose binding this is. Bad or foreign bytes: KVFERRY_MALFORMED. The
 * connection may come up later; an unreachable peer shows as KVFERRY_PEER_LOST of transfers. */
KVFERRY_API kvferry_status kvferry_engine_connect(kvferry_engine *engine, const void *binding,
                                                  size_t size, kvferry_peer **peer,
                                                  kvferry_report *report);

/* Whether the connection is known to be lost. */
KVFERRY_API bool kvferry_peer_lost(const kvferry_peer *peer);

/* The first step of a close, without waiting: transfers that are not over end with KVFERRY_PEER_LOST, and
 * nothing more is submitted to the peer or begun with it. Returns whether kvferry_peer_close has nothing to wait
 * for any more: all that was under way is complete, or will not be, or, unless the engine `lingers`, nothing has been heard
 * of it for a second. Ask again between calls of progress, at least every second or so; once true it stays true. */
KVFERRY_API bool kvferry_peer_leave(kvferry_peer *peer);

/* Tears the connection down by force: transfers that are not over end with KVFERRY_PEER_LOST, all are
 * over, and nothing of them leaves this worker any more. It waits until kvferry_peer_leave is true, moving the engine
 * on: up to a second for a peer that does not answer, or where the engine `lingers` until all is over. Bytes that this
 * worker had sent before may still lie in the peer's own queue and land when the peer progresses next (ucx's shared
 * memory has no queue). Frees the peer; transfers stay the caller's to free. */
KVFERRY_API void kvferry_peer_close(kvferry_peer *peer);

/* --- transfers ----------------------------------------------------------------------------- */

/*
 * Begins to move `count` copies, as a plan expands them: source offsets and segments are the
 * source's, whichever side is local. The array must stay until the transfer is over. No copy may
 * cross a segment's end: KVFERRY_OUT_OF_RANGE with each such copy and its segment in the report, and
 * nothing moves. Copies that overlap each other on the target are not looked for (a plan makes none).
 * Zero copies are a transfer that is done at the next progress. KVFERRY_UNSUPPORTED: the engine has
 * not this direction. KVFERRY_PEER_LOST: kvferry_peer_leave was called.
 * `deadline_ns`: of CLOCK_MONOTONIC; 0: none.
 * *transfer is the caller's, to be freed when it is over.
 */
KVFERRY_API kvferry_status kvferry_transfer_begin(kvferry_engine *engine, kvferry_peer *peer,
                                                  kvferry_direction direction,
                                                  const kvferry_copy *copies, size_t count,
                                                  uint64_t deadline_ns, kvferry_transfer **transfer,
                                                  kvferry_report *report);

typedef struct kvferry_transfer_state {
    kvferry_status status; /* KVFERRY_BUSY while it runs; then how it ended, for good */
    bool over;             /* the engine cannot touch its bytes any more. After a deadline or a
                              cancel the status is set first and `over` later: until then the
                              target's blocks are in quarantine */
    uint64_t copies_done;  /* copies of which the last byte is complete */
    uint64_t bytes_done;
    const char *detail;    /* the engine's words about a failure, with peer and range; "" if none */
} kvferry_transfer_state;

/* The transfer's state as of the last progress. Valid until the next progress. */
KVFERRY_API const kvferry_transfer_state *kvferry_transfer_get(const kvferry_transfer *transfer);

/* Submits nothing more of it; its status becomes KVFERRY_CANCELED at once, unless it had ended. */
KVFERRY_API void kvferry_transfer_cancel(kvferry_transfer *transfer);

/* KVFERRY_BUSY while it is not over. */
KVFERRY_API kvferry_status kvferry_transfer_free(kvferry_transfer *transfer);

/* --- a caller's own engine ------------------------------------------------------------------- */

/* One copy as an engine implementation gets it: checked, absolute at both ends, within the
 * capabilities, never empty. */
typedef struct kvferry_engine_copy {
    void *local;
    uint64_t remote;       /* address at the peer */
    uint64_t bytes;
    void *local_segment;   /* as segment_register gave it */
    void *remote_segment;  /* as segment_import gave it */
} kvferry_engine_copy;

/* An implementation calls this once per batch, from inside its progress, cancel or peer_close (never
 * from submit), when the bytes are visible at the target or it cannot touch them any more. `detail`:
 * its words about a failure, or NULL; copied. */
typedef void (*kvferry_engine_batch_end)(void *batch, kvferry_status status, const char *detail);

/*
 * A table of functions. `self` is what open gave. All are called by one thread at a time. Optional
 * ones may be NULL. Errors: a status, with the engine's own words into the report where there is one.
 */
typedef struct kvferry_engine_ops {
    size_t size; /* sizeof(kvferry_engine_ops) */
    const char *name;
    kvferry_status (*open)(const kvferry_engine_options *options, void **self,
                           kvferry_report *report);
    void (*close)(void *self);
    void (*capabilities)(void *self, kvferry_engine_capabilities *capabilities);
    int (*fd)(void *self);               /* optional */
    kvferry_status (*arm)(void *self);   /* optional */
    bool (*progress)(void *self);

    kvferry_status (*segment_register)(void *self, void *address, uint64_t bytes,
                                       kvferry_memory memory, void **segment,
                                       kvferry_report *report);
    kvferry_status (*segment_allocate)(void *self, uint64_t bytes, void **address, void **segment,
                                       kvferry_report *report); /* optional */
    void (*segment_unregister)(void *self, void *segment);

    /* Each writes at most *size bytes to data and sets *size to what there is; KVFERRY_NO_SPACE if
     * that is more. */
    kvferry_status (*address_export)(void *self, void *data, size_t *size);
    kvferry_status (*segment_export)(void *self, void *segment, void *data, size_t *size);

    kvferry_status (*peer_connect)(void *self, const void *address, size_t size, void **peer,
                                   kvferry_report *report);
    kvferry_status (*segment_import)(void *self, void *peer, const void *data, size_t size,
                                     void **remote_segment, kvferry_report *report);
    bool (*peer_lost)(void *self, void *peer);
    bool (*peer_busy)(void *self, void *peer);  /* optional: whether something is under way with the
                                                   peer that a close should let end; absent: nothing */
    void (*peer_close)(void *self, void *peer); /* ends its batches first; waits only for
                                                   what it cannot tear down alone */

    /* Takes all copies or none. The array is only valid during the call. KVFERRY_BUSY: not now, the
     * same copies are offered again later. Any other error ends the transfer with it. At most 64
     * batches are with one peer at a time. */
    kvferry_status (*submit)(void *self, void *peer, kvferry_direction direction,
                             const kvferry_engine_copy *copies, size_t count,
                             kvferry_engine_batch_end end, void *batch, kvferry_report *report);
    void (*cancel)(void *self, void *peer, void *batch); /* optional; `end` is still called once */
} kvferry_engine_ops;

/* Makes an engine known by its name, for this process. The table must stay valid. KVFERRY_INVALID:
 * the name is taken, or a function that is not optional is missing. Any thread. */
KVFERRY_API kvferry_status kvferry_engine_add(const kvferry_engine_ops *ops, kvferry_report *report);

#ifdef __cplusplus
}
#endif
#endif
