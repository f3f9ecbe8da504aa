/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: to a process of this host without anything between, else an endpoint of UCX from here to
 * the peer's worker, else TCP of this library's own. The way back is the peer's own.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/ucx_tcp.h"

/* UCX reads addresses and keys without their sizes: zeros behind them end what a wrong length begins. */
enum { SLACK = 4096 };

/* How long closes, of however many peers one after the other, wait for what UCX does without the peers. */
static const uint64_t closing_ns = 5000000000, together_ns = 100000000;

static void *padded(const void *data, size_t size)
{
    unsigned char *copy = size < SIZE_MAX - SLACK ? base_alloc(size + SLACK, 1) : NULL;
    if (copy && size)
        memcpy(copy, data, size);
    return copy;
}

static void on_error(void *data, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint, (void)status;
    ucx_peer *peer = data;
    peer->lost = true;
    if (peer->local)
        ucx_local_lose(peer, "its endpoint of UCX is lost");
    ucx_batches_abandon(peer);
}

static void on_open(void *request, ucs_status_t status, void *data)
{
    (void)status; /* a failure comes to on_error too */
    ((ucx_peer *)data)->opening = false;
    ucp_request_free(request);
}

/* Brings the connection up before its first copy, and lets a close know that it is. */
static void begin_opening(ucx_peer *peer)
{
    const ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_open,
        .user_data = peer,
    };
    ucs_status_ptr_t answer = ucp_ep_flush_nbx(peer->endpoint, &how);
    peer->opening = UCS_PTR_IS_PTR(answer);
    peer->lost = peer->lost || UCS_PTR_IS_ERR(answer);
}

static kvferry_status open_endpoint(ucx_engine *engine, ucx_peer *peer, const void *address,
                                    kvferry_report *report)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = peer},
    };
    ucx_words_begin();
    ucs_status_t status = ucp_ep_create(engine->worker, &params, &peer->endpoint);
    if (status != UCS_OK)
        ucx_report(report, "no way to the peer with these transports", status);
    else
        begin_opening(peer);
    ucx_words_end();
    return ucx_status(status);
}

/* What a peer's address is made of. */
typedef struct peer_address {
    ucx_identity identity;
    const unsigned char *tcp; /* NULL: it has none */
    const unsigned char *ucx;
    size_t ucx_size; /* 0: it has none */
} peer_address;

static bool read_address(const unsigned char *data, size_t size, peer_address *address)
{
    if (size < sizeof(address->identity))
        return false;
    memcpy(&address->identity, data, sizeof(address->identity));
    const unsigned char *at = data + sizeof(address->identity), *end = data + size;
    address->tcp = address->identity.tcp ? at : NULL;
    if (address->tcp && (size_t)(end - at) < sizeof(tcp_export))
        return false;
    address->ucx = at + (address->tcp ? sizeof(tcp_export) : 0);
    address->ucx_size = (size_t)(end - address->ucx);
    return true;
}

static kvferry_status open_ucx(ucx_engine *engine, ucx_peer *peer, const peer_address *address,
                               kvferry_report *report)
{
    void *copy = padded(address->ucx, address->ucx_size);
    if (!copy)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = open_endpoint(engine, peer, copy, report);
    free(copy);
    return status;
}

static void report_refusal(kvferry_report *report, const ucx_refusal *refusal)
{
    base_report_add(report, "engine_failed", NULL,
                    "a process of this host whose memory this one may touch", refusal->words,
                    "ucx: no shared memory with the peer");
}

static void report_no_common(kvferry_report *report)
{
    base_report_add(report, "engine_failed", NULL, "a transport that both sides have", "none",
                    "ucx: no way to the peer");
}

/* The best way that there is. UCX also moves memory of devices to a peer on this host. */
static kvferry_status open_best(ucx_engine *engine, ucx_peer *peer, const peer_address *address,
                                kvferry_report *report)
{
    ucx_refusal refusal = {.status = KVFERRY_OK};
    bool tcp = engine->tcp && address->tcp, ucx = engine->context && address->ucx_size;
    kvferry_status status = KVFERRY_UNSUPPORTED;
    if (engine->locals)
        ucx_local_connect(engine, peer, &address->identity, &refusal);
    if (refusal.status == KVFERRY_NO_MEMORY)
        return KVFERRY_NO_MEMORY;
    if (ucx && (!peer->local || engine->device_memory))
        status = open_ucx(engine, peer, address, tcp || peer->local ? NULL : report);
    if (status == KVFERRY_OK || peer->local)
        return KVFERRY_OK;
    if (tcp && status != KVFERRY_NO_MEMORY)
        return ucx_tcp_connect(engine, peer, &address->identity, address->tcp, report);
    if (refusal.status != KVFERRY_OK)
        report_refusal(report, &refusal);
    else if (!ucx)
        report_no_common(report);
    return ucx || refusal.status == KVFERRY_OK ? status : refusal.status;
}

kvferry_status ucx_peer_connect(void *self, const void *address, size_t size, void **peer,
                                kvferry_report *report)
{
    peer_address read;
    if (!read_address(address, size, &read))
        return KVFERRY_MALFORMED;
    ucx_peer *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->engine = self;
    kvferry_status status = open_best(self, made, &read, report);
    if (status == KVFERRY_OK)
        *peer = made;
    else
        free(made);
    return status;
}

/* UCX's part of the key, where it is used. */
static kvferry_status unpack(const ucx_peer *peer, const unsigned char *data, size_t size,
                             ucx_remote *remote, kvferry_report *report)
{
    if (!peer->endpoint || !size)
        return KVFERRY_OK;
    void *copy = padded(data, size);
    if (!copy)
        return KVFERRY_NO_MEMORY;
    ucx_words_begin();
    ucs_status_t status = ucp_ep_rkey_unpack(peer->endpoint, copy, &remote->rkey);
    if (status != UCS_OK)
        ucx_report(report, "a segment's key cannot be used", status);
    ucx_words_end();
    free(copy);
    return ucx_status(status);
}

kvferry_status ucx_segment_import(void *self, void *peer, const void *data, size_t size,
                                  void **remote_segment, kvferry_report *report)
{
    (void)self;
    ucx_peer *owner = peer;
    if (size < sizeof(ucx_key))
        return KVFERRY_MALFORMED;
    ucx_remote *remote = base_alloc(1, sizeof(*remote));
    if (!remote)
        return KVFERRY_NO_MEMORY;
    memcpy(&remote->key, data, sizeof(remote->key));
    kvferry_status status = unpack(owner, (const unsigned char *)data + sizeof(ucx_key),
                                   size - sizeof(ucx_key), remote, report);
    if (status != KVFERRY_OK) {
        free(remote);
        return status;
    }
    ucx_memory_import(owner, remote);
    remote->next = owner->remotes;
    owner->remotes = remote;
    *remote_segment = remote;
    return KVFERRY_OK;
}

bool ucx_peer_lost(void *self, void *peer)
{
    (void)self;
    return ((const ucx_peer *)peer)->lost;
}

/* What was begun is finished first: then nothing of it is still to land. */
bool ucx_peer_busy(void *self, void *peer)
{
    (void)self;
    const ucx_peer *leaving = peer;
    return !leaving->lost && (leaving->opening || leaving->out);
}

/* Closes by force, and lets UCX complete what was out. */
static void close_endpoint(ucx_engine *engine, ucx_peer *peer)
{
    const ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucp_ep_close_nbx(peer->endpoint, &how);
    uint64_t now = engine_now_ns();
    if (now >= engine->closing_last + together_ns)
        engine->closing_end = now + closing_ns;
    else /* only what closes take counts */
        engine->closing_end += now - engine->closing_last;
    do {
        bool closed = !UCS_PTR_IS_PTR(request) || ucp_request_check_status(request) != UCS_INPROGRESS;
        if (closed && !peer->out && !peer->opening)
            break;
        ucp_worker_progress(engine->worker);
    } while (engine_now_ns() < engine->closing_end);
    engine->closing_last = engine_now_ns();
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

void ucx_peer_close(void *self, void *peer)
{
    ucx_engine *engine = self;
    ucx_peer *gone = peer;
    ucx_words_begin();
    if (gone->local)
        ucx_local_disconnect(gone);
    gone->lost = true;
    if (gone->connection)
        ucx_tcp_disconnect(gone);
    if (gone->endpoint)
        close_endpoint(engine, gone);
    while (gone->remotes) {
        ucx_remote *remote = gone->remotes;
        gone->remotes = remote->next;
        ucx_memory_drop(remote);
        if (remote->rkey)
            ucp_rkey_destroy(remote->rkey);
        free(remote);
    }
    ucx_words_end();
    ucx_batches_end(engine);
    /* What UCX still has not completed it will complete, or not, to nobody. */
    while (gone->out) {
        ucx_batch *batch = gone->out;
        gone->out = batch->next;
        batch->peer = NULL;
        batch->end(batch->handle, KVFERRY_PEER_LOST, "the connection was closed");
    }
    if (!gone->opening) /* else UCX may still call back: it is not worth a crash */
        free(gone);
}
