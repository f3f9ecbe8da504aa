/* SPDX-License-Identifier: Apache-2.0 */
/* What the ucx engine's files share. */
#ifndef KVFERRY_SRC_ENGINE_UCX_INTERNAL_H
#define KVFERRY_SRC_ENGINE_UCX_INTERNAL_H

#include <ucp/api/ucp.h>

#include "base/base.h"
#include "engine/engine.h"

enum { UCX_ID_BYTES = 16, UCX_BATCH_COPIES = 1024 };

/* What an address begins with. Both sides are machines of one kind, so numbers need no order of bytes. */
typedef struct ucx_identity {
    uint8_t id[UCX_ID_BYTES];   /* of the engine, random */
    uint8_t host[UCX_ID_BYTES]; /* the same on one host, until it boots again */
    uint64_t mark;              /* where the id lies in the memory of the process `pid` */
    uint32_t pid;
    uint8_t local;              /* peers of this host may move the bytes themselves */
    uint8_t tcp;                /* TCP's part follows, before UCX's */
    uint8_t zero[2];
} ucx_identity;

/* What a segment's key begins with; UCX's follows. */
typedef struct ucx_key {
    uint64_t address, bytes;
    uint64_t device, inode; /* of the file `fd` of the process, which holds the segment */
    int32_t fd;             /* -1: a caller's own memory */
    uint32_t host;          /* the CPU there can write it */
} ucx_key;

typedef struct ucx_segment {
    uint64_t address, bytes;
    ucp_mem_h memory; /* NULL: without UCX */
    ucs_memory_type_t type;
    int fd; /* of the file that holds it; -1: it is the caller's */
} ucx_segment;

typedef struct ucx_remote {
    struct ucx_remote *next;
    ucp_rkey_h rkey;    /* NULL: not over UCX */
    unsigned char *map; /* where it is mapped here; NULL: it is not */
    ucx_key key;
} ucx_remote;

/* A copy that the CPU of this side makes, as far as it is not made yet. */
typedef struct ucx_piece {
    unsigned char *local;
    uint64_t remote; /* at the peer; where it is mapped, here */
    uint64_t bytes;
    bool mapped;
} ucx_piece;

typedef struct ucx_engine ucx_engine;
typedef struct ucx_peer ucx_peer;

/*
 * Over when all its requests have completed, the flush behind them among these, its pieces are copied, and
 * over TCP when its fence is answered.
 */
typedef struct ucx_batch {
    struct ucx_batch *next; /* of the peer's that are out, the engine's ended or its spare ones */
    struct ucx_batch *previous;
    ucx_engine *engine;
    ucx_peer *peer; /* NULL: its peer is closed and nobody waits for it any more */
    kvferry_engine_batch_end end;
    void *handle;
    uint64_t pending;
    uint64_t left;       /* answers, and ends of pieces, that are still to come */
    ucx_piece *pieces;   /* room for as many as a batch has */
    uint32_t piece_count, piece; /* the first that is not copied */
    struct ucx_batch *next_local; /* with pieces left */
    uint32_t index;      /* in the engine's batches, for good */
    uint32_t serial;     /* changes with each use: answers to an earlier one find nothing */
    kvferry_direction direction;
    ucs_status_t status; /* the first that was not well */
    bool posted;         /* all that belongs to it is submitted */
    char words[192];     /* UCX's own about it */
} ucx_batch;

struct ucx_peer {
    ucx_engine *engine;
    struct ucx_local *local; /* a process of this host whose memory this one may touch; or NULL */
    ucp_ep_h endpoint;       /* or NULL */
    ucx_remote *remotes;
    ucx_batch *out;
    bool lost;
    bool opening; /* the connection is not up yet */
    struct ucx_connection *connection; /* over TCP, if there is neither of the others */
};

/*
 * Two workers: UCX makes one connection of two that workers open to each other, and closing the one
 * would tear down the other.
 */
struct ucx_engine {
    ucx_identity identity;
    struct ucx_locals *locals; /* NULL: it has none */
    ucp_context_h context;     /* NULL: without UCX */
    ucp_worker_h worker; /* of what this side begins */
    ucp_worker_h target; /* of what peers begin: its address is the exported one */
    ucp_address_t *address;
    int fd; /* readable when one of the others is */
    size_t address_size;
    struct ucx_tcp *tcp; /* NULL: it has none */
    ucx_segment **segments; /* by address */
    size_t segment_count, segment_capacity;
    ucx_batch **batches; /* all that were ever made */
    size_t batch_count, batch_capacity;
    ucx_batch *ended, **ended_last;
    ucx_batch *spare; /* kept for the next submission */
    bool device_memory;
    uint64_t closing_end;  /* until when endpoints that are closed one right after the other are waited for */
    uint64_t closing_last; /* when the last of them was closed */
};

/* Whether the CPUs can touch both ends. */
static inline bool ucx_is_on_hosts(const kvferry_engine_copy *copy)
{
    return ((const ucx_segment *)copy->local_segment)->type == UCS_MEMORY_TYPE_HOST &&
           ((const ucx_remote *)copy->remote_segment)->key.host;
}

/* ucx_host.c: the interface that has this address, of those that other hosts may reach; IF_NAMESIZE bytes. */
bool ucx_host_device(const char *host, char *device);

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
void ucx_report_at(kvferry_report *report, const char *place, const char *expected, const char *what, ucs_status_t status);

/* ucx_peer.c */
kvferry_status ucx_peer_connect(void *self, const void *address, size_t size, void **peer,
                                kvferry_report *report);
kvferry_status ucx_segment_import(void *self, void *peer, const void *data, size_t size,
                                  void **remote_segment, kvferry_report *report);
bool ucx_peer_lost(void *self, void *peer);
bool ucx_peer_busy(void *self, void *peer);
void ucx_peer_close(void *self, void *peer);

/* ucx_identity.c */
kvferry_status ucx_identity_make(ucx_identity *identity, kvferry_report *report);
bool ucx_identity_same_host(const ucx_identity *one, const ucx_identity *other);

/* ucx_local.c: peers on this host */
typedef struct ucx_refusal {
    kvferry_status status; /* KVFERRY_OK: there is none */
    char words[160];
} ucx_refusal;

kvferry_status ucx_local_open(ucx_engine *engine, kvferry_report *report);
void ucx_local_close(ucx_engine *engine);
void ucx_local_connect(ucx_engine *engine, ucx_peer *peer, const ucx_identity *identity,
                       ucx_refusal *refusal);
void ucx_local_lose(ucx_peer *peer, const char *words);
void ucx_local_disconnect(ucx_peer *peer);
bool ucx_local_progress(ucx_engine *engine);

/* ucx_memory.c: memory that peers on this host map */
void ucx_memory_make_huge(uint64_t address, uint64_t bytes);
kvferry_status ucx_memory_allocate(uint64_t bytes, int *fd, void **address, kvferry_report *report);
void ucx_memory_import(const ucx_peer *peer, ucx_remote *remote);
void ucx_memory_drop(ucx_remote *remote);

/* ucx_copy.c: what the CPU of this side copies */
void ucx_copy_post(ucx_batch *batch, const kvferry_engine_copy *copies, size_t count);
void ucx_copy_drop(ucx_batch *batch, const char *words); /* nothing more of it is copied */
bool ucx_copy_progress(ucx_engine *engine);
bool ucx_copy_waits(const ucx_engine *engine);

/* ucx_batch.c */
void ucx_cancel(void *self, void *peer, void *handle);
kvferry_status ucx_submit(void *self, void *peer, kvferry_direction direction,
                          const kvferry_engine_copy *copies, size_t count,
                          kvferry_engine_batch_end end, void *handle, kvferry_report *report);
bool ucx_batches_end(ucx_engine *engine); /* tells the ends of those that are over */
void ucx_batches_abandon(ucx_peer *peer); /* the peer is lost: no answer comes any more */
void ucx_batch_note(ucx_batch *batch, ucs_status_t status);
void ucx_batch_say(ucx_batch *batch, ucs_status_t status, const char *words);
void ucx_batch_settle(ucx_batch *batch, uint64_t answers);
void ucx_batch_check(ucx_batch *batch); /* over, if it is */

/* ucx_tcp.c: copies over connections of this library's own */
kvferry_status ucx_tcp_open(ucx_engine *engine, const kvferry_engine_options *options,
                            kvferry_report *report);
void ucx_tcp_close(ucx_engine *engine);
kvferry_status ucx_tcp_connect(ucx_engine *engine, ucx_peer *peer, const ucx_identity *identity,
                               const void *data, kvferry_report *report);
void ucx_tcp_disconnect(ucx_peer *peer);
bool ucx_tcp_progress(ucx_engine *engine);
void ucx_tcp_forget(ucx_engine *engine, const ucx_segment *segment); /* it is going */
void ucx_tcp_post(ucx_batch *batch, const kvferry_engine_copy *copies, size_t count);

#endif
