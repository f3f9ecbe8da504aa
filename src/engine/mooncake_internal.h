/* SPDX-License-Identifier: Apache-2.0 */
/* What the mooncake engine's files share. */
#ifndef KVFERRY_SRC_ENGINE_MOONCAKE_INTERNAL_H
#define KVFERRY_SRC_ENGINE_MOONCAKE_INTERNAL_H

#include "base/base.h"
#include "engine/engine.h"

/* --- the library's C interface (its transfer_engine_c.h), as far as it is used ------------------ */

typedef struct mooncake_request {
    int opcode;
    void *source; /* the local address, of reads too */
    int32_t target; /* as openSegment gave it */
    uint32_t file;
    uint64_t offset; /* an absolute address at the target */
    uint64_t length;
} mooncake_request;
_Static_assert(sizeof(mooncake_request) == 40, "the library's struct transfer_request");

typedef struct mooncake_progress {
    int state;
    uint64_t bytes;
} mooncake_progress;
_Static_assert(sizeof(mooncake_progress) == 16, "the library's struct transfer_status");

enum { MOONCAKE_READ = 0, MOONCAKE_WRITE = 1 };
enum mooncake_state {
    MOONCAKE_WAITING = 0,
    MOONCAKE_PENDING = 1,
    MOONCAKE_INVALID = 2,
    MOONCAKE_CANCELED = 3,
    MOONCAKE_COMPLETED = 4,
    MOONCAKE_TIMEOUT = 5,
    MOONCAKE_FAILED = 6
};
/* Of submitTransfer, getTransferStatus and freeBatchID; the other calls give them negated. */
enum mooncake_error {
    MOONCAKE_INVALID_ARGUMENT = 1,
    MOONCAKE_TOO_MANY_REQUESTS = 2,
    MOONCAKE_NOT_REGISTERED = 3,
    MOONCAKE_BATCH_BUSY = 4,
    MOONCAKE_OVERLAPPED = 7,
    MOONCAKE_NO_MEMORY = 302
};

typedef struct mooncake_api {
    void *(*create)(const char *metadata, const char *server, const char *host, uint64_t port,
                    int discover);
    void (*destroy)(void *instance);
    int (*get_name)(void *instance, char *name, size_t size);
    void *(*install)(void *instance, const char *transport, void **arguments);
    int32_t (*open)(void *instance, const char *name);
    int32_t (*open_fresh)(void *instance, const char *name); /* NULL in old ones */
    int (*close)(void *instance, int32_t id);
    int (*add)(void *instance, void *address, size_t bytes, const char *location, int remote);
    int (*remove)(void *instance, void *address);
    uint64_t (*batch)(void *instance, size_t count);
    int (*submit)(void *instance, uint64_t batch, mooncake_request *requests, size_t count);
    int (*poll)(void *instance, uint64_t batch, size_t task, mooncake_progress *progress);
    int (*free)(void *instance, uint64_t batch);
    bool acknowledges; /* 0.3.12 or later: a write over TCP is complete when it has arrived */
} mooncake_api;

/* --- the engine ------------------------------------------------------------------------------ */

/* The library's queue to one peer overflows from 2,048 on, and then answers nothing any more. */
enum { MOONCAKE_OUTSTANDING = 1024, MOONCAKE_NAME_BYTES = 256 };

typedef struct mooncake_engine mooncake_engine;
typedef struct mooncake_peer mooncake_peer;

typedef struct mooncake_segment {
    struct mooncake_segment *next, *previous;
    void *address;
    uint64_t bytes;
} mooncake_segment;

typedef struct mooncake_batch {
    struct mooncake_batch *next, *previous;
    mooncake_peer *peer;
    kvferry_engine_batch_end end;
    void *handle;
    uint64_t id;
    size_t count;
    size_t at; /* the first task that is not known to have ended */
    kvferry_status status;
    char words[96]; /* about the first failure */
} mooncake_batch;

struct mooncake_peer {
    mooncake_peer *next, *previous;
    int32_t id;     /* in the initiator; peers of one name share it */
    bool open;      /* not since the initiator was torn down */
    bool lost;
    size_t outstanding; /* tasks with the library */
    char name[MOONCAKE_NAME_BYTES];
};

/*
 * Two of the library's instances: peers reach the target, copies are begun from the initiator. What
 * was submitted can be stopped in one way only, by destroying the instance, and the target must outlive
 * that.
 */
struct mooncake_engine {
    const mooncake_api *api;
    void *target, *initiator; /* the latter is made when it is first needed */
    mooncake_segment *segments;
    mooncake_peer *peers;
    mooncake_batch *out; /* what the library has */
    mooncake_batch *spare;
    char transport[32];
    char host[MOONCAKE_NAME_BYTES];
    char name[MOONCAKE_NAME_BYTES]; /* the target's: what is exported */
    mooncake_request requests[MOONCAKE_OUTSTANDING];
};

/* mooncake_api.c: NULL if there is none that serves. */
const mooncake_api *mooncake_load(const char *transport, kvferry_report *report);
const char *mooncake_error_name(int code); /* of either sign */
kvferry_status mooncake_status(int code);
void mooncake_report(kvferry_report *report, const char *what, const char *words);

/* mooncake.c: the initiator, made with all segments if there is none. */
kvferry_status mooncake_begin(mooncake_engine *engine, kvferry_report *report);

/* mooncake_host.c: the address that peers reach this worker by. */
kvferry_status mooncake_find_host(const char *device, char *host, size_t size, kvferry_report *report);

/* mooncake_peer.c */
kvferry_status mooncake_peer_connect(void *self, const void *address, size_t size, void **peer,
                                     kvferry_report *report);
kvferry_status mooncake_segment_import(void *self, void *peer, const void *data, size_t size,
                                       void **remote_segment, kvferry_report *report);
bool mooncake_peer_lost(void *self, void *peer);
bool mooncake_peer_busy(void *self, void *peer);
void mooncake_peer_close(void *self, void *peer);
kvferry_status mooncake_peer_open(mooncake_engine *engine, mooncake_peer *peer,
                                  kvferry_report *report);

/* mooncake_batch.c */
kvferry_status mooncake_submit(void *self, void *peer, kvferry_direction direction,
                               const kvferry_engine_copy *copies, size_t count,
                               kvferry_engine_batch_end end, void *handle, kvferry_report *report);
bool mooncake_progress_all(void *self);
/* Ends a batch without the library, which cannot touch it any more. */
void mooncake_batch_abandon(mooncake_engine *engine, mooncake_batch *batch, kvferry_status status,
                            const char *words);

#endif
