/* SPDX-License-Identifier: Apache-2.0 */
/* What the ucx engine's files share. */
#ifndef KVFERRY_SRC_ENGINE_UCX_INTERNAL_H
#define KVFERRY_SRC_ENGINE_UCX_INTERNAL_H

#include <ucp/api/ucp.h>

#include "base/base.h"
#include "engine/engine.h"

typedef struct ucx_segment {
    uint64_t address, bytes;
    ucp_mem_h memory;
    ucs_memory_type_t type;
} ucx_segment;

typedef struct ucx_remote {
    struct ucx_remote *next;
    ucp_rkey_h key; /* NULL: over TCP */
    bool host;      /* the CPU there can write it */
} ucx_remote;

typedef struct ucx_engine ucx_engine;
typedef struct ucx_peer ucx_peer;

/*
 * Over when all its requests have completed, the flush behind them among these, or over TCP when its fence
 * is answered.
 */
typedef struct ucx_batch {
    struct ucx_batch *next; /* of the peer's that are out, the engine's ended or its spare ones */
    struct ucx_batch *previous;
    ucx_engine *engine;
    ucx_peer *peer; /* NULL: its peer is closed and nobody waits for it any more */
    kvferry_engine_batch_end end;
    void *handle;
    uint64_t pending;
    uint64_t left;       /* answers that are still to come */
    uint32_t index;      /* in the engine's batches, for good */
    uint32_t serial;     /* changes with each use: answers to an earlier one find nothing */
    kvferry_direction direction;
    ucs_status_t status; /* the first that was not well */
    bool posted;         /* all that belongs to it is submitted */
    char words[192];     /* UCX's own about it */
} ucx_batch;

struct ucx_peer {
    ucx_engine *engine;
    ucp_ep_h endpoint; /* NULL: over TCP */
    ucx_remote *remotes;
    ucx_batch *out;
    bool lost;
    bool opening; /* the connection is not up yet */
    struct ucx_connection *connection; /* over TCP; else there is the endpoint */
};

/*
 * Two workers: UCX makes one connection of two that workers open to each other, and closing the one
 * would tear down the other.
 */
struct ucx_engine {
    ucp_context_h context;
    ucp_worker_h worker; /* of what this side begins */
    ucp_worker_h target; /* of what peers begin: its address is the exported one */
    ucp_address_t *address;
    int fd; /* readable when one of the workers' descriptors is */
    size_t address_size;
    struct ucx_tcp *tcp; /* NULL: it has none */
    bool tcp_only;
    ucx_segment **segments; /* by address */
    size_t segment_count, segment_capacity;
    ucx_batch **batches; /* all that were ever made */
    size_t batch_count, batch_capacity;
    ucx_batch *ended, **ended_last;
    ucx_batch *spare; /* kept for the next submission */
    bool device_memory;
    uint64_t silent_ns; /* when a close last ended its wait for a peer that gave no sign */
};

/* ucx_settings.c: a configuration that the caller releases. */
kvferry_status ucx_settings_read(const kvferry_engine_options *options, ucp_config_t **config,
                                 kvferry_report *report);

/* ucx_words.c: between begin and end, on this thread, what UCX would print is kept instead. */
void ucx_words_install(void);
void ucx_words_begin(void);
void ucx_words_end(void);
const char *ucx_words_get(void); /* the last since begin; "" */
kvferry_status ucx_status(ucs_status_t status);
void ucx_report(kvferry_report *report, const char *what, ucs_status_t status);

/* ucx_peer.c */
kvferry_status ucx_peer_connect(void *self, const void *address, size_t size, void **peer,
                                kvferry_report *report);
kvferry_status ucx_segment_import(void *self, void *peer, const void *data, size_t size,
                                  void **remote_segment, kvferry_report *report);
bool ucx_peer_lost(void *self, void *peer);
void ucx_peer_close(void *self, void *peer);

/* ucx_batch.c */
kvferry_status ucx_submit(void *self, void *peer, kvferry_direction direction,
                          const kvferry_engine_copy *copies, size_t count,
                          kvferry_engine_batch_end end, void *handle, kvferry_report *report);
bool ucx_batches_end(ucx_engine *engine); /* tells the ends of those that are over */
void ucx_batches_abandon(ucx_peer *peer); /* the peer is lost: no answer comes any more */
void ucx_batch_note(ucx_batch *batch, ucs_status_t status);
void ucx_batch_settle(ucx_batch *batch, uint64_t answers);
void ucx_batch_check(ucx_batch *batch); /* over, if it is */

/* ucx_tcp.c: copies over connections of this library's own */
kvferry_status ucx_tcp_open(ucx_engine *engine, const char *devices, kvferry_report *report);
void ucx_tcp_close(ucx_engine *engine);
const void *ucx_tcp_export(const ucx_engine *engine, size_t *size);
kvferry_status ucx_tcp_connect(ucx_engine *engine, ucx_peer *peer, const void *data, size_t size,
                               kvferry_report *report);
void ucx_tcp_disconnect(ucx_peer *peer);
bool ucx_tcp_progress(ucx_engine *engine);
void ucx_tcp_forget(ucx_engine *engine, const ucx_segment *segment); /* it is going */
void ucx_tcp_post(ucx_batch *batch, const kvferry_engine_copy *copies, size_t count);

#endif
