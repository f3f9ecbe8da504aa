/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: one endpoint of UCX from here to the peer's worker, or where UCX has only TCP, one of this
 * library's own. The way back is the peer's own.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/ucx_tcp.h"

/* UCX reads addresses and keys without their sizes: zeros behind them end what a wrong length begins. */
enum { SLACK = 4096 };

/* How long a close waits for a peer's next sign of life, and for what UCX does without it. */
static const uint64_t settling_ns = 1000000000, closing_ns = 5000000000;

/* Peers that are closed so soon after one another were waited for together: all were moved on meanwhile. */
static const uint64_t together_ns = 50000000;

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

/* The engine's own choice: what UCX has, else TCP. */
static kvferry_status open_either(ucx_engine *engine, ucx_peer *peer, const unsigned char *data,
                                  size_t size, kvferry_report *report)
{
    size_t tcp_size = *data ? sizeof(tcp_export) : 0;
    if (size - 1 < tcp_size)
        return KVFERRY_MALFORMED;
    bool tcp = tcp_size && engine->tcp;
    if (!engine->tcp_only || !tcp) {
        void *address = padded(data + 1 + tcp_size, size - 1 - tcp_size);
        if (!address)
            return KVFERRY_NO_MEMORY;
        kvferry_status status = open_endpoint(engine, peer, address, tcp ? NULL : report);
        free(address);
        if (status == KVFERRY_OK || status == KVFERRY_NO_MEMORY || !tcp)
            return status;
    }
    return ucx_tcp_connect(engine, peer, data + 1, tcp_size, report);
}

kvferry_status ucx_peer_connect(void *self, const void *address, size_t size, void **peer,
                                kvferry_report *report)
{
    if (size < 1)
        return KVFERRY_MALFORMED;
    ucx_peer *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->engine = self;
    kvferry_status status = open_either(self, made, address, size, report);
    if (status == KVFERRY_OK)
        *peer = made;
    else
        free(made);
    return status;
}

kvferry_status ucx_segment_import(void *self, void *peer, const void *data, size_t size,
                                  void **remote_segment, kvferry_report *report)
{
    (void)self;
    ucx_peer *owner = peer;
    if (size < 1)
        return KVFERRY_MALFORMED;
    ucx_remote *remote = base_alloc(1, sizeof(*remote));
    void *copy = padded((const unsigned char *)data + 1, size - 1);
    if (!remote || !copy) {
        free(remote);
        free(copy);
        return KVFERRY_NO_MEMORY;
    }
    ucx_words_begin();
    ucs_status_t status =
        owner->endpoint ? ucp_ep_rkey_unpack(owner->endpoint, copy, &remote->key) : UCS_OK;
    if (status != UCS_OK)
        ucx_report(report, "a segment's key cannot be used", status);
    ucx_words_end();
    free(copy);
    if (status != UCS_OK) {
        free(remote);
        return ucx_status(status);
    }
    remote->host = *(const unsigned char *)data == 0;
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

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What was begun is finished first, as long as it goes on: then nothing of it is still to land. */
static void settle(ucx_engine *engine, const ucx_peer *peer)
{
    bool waited = engine->silent_ns && now_ns() - engine->silent_ns < together_ns;
    uint64_t end = now_ns() + (waited ? 0 : settling_ns);
    ucx_batch **last = engine->ended_last;
    while ((peer->opening || peer->out) && !peer->lost && now_ns() < end) {
        if (last != engine->ended_last) {
            last = engine->ended_last;
            end = now_ns() + settling_ns;
        }
        ucp_worker_progress(engine->worker);
        if (engine->tcp)
            ucx_tcp_progress(engine);
        ucp_worker_progress(engine->target); /* the peer may be closing, too, and wait for this side */
    }
    if ((peer->opening || peer->out) && !peer->lost)
        engine->silent_ns = now_ns();
}

/* Closes by force, and lets UCX complete what was out. */
static void close_endpoint(ucx_engine *engine, ucx_peer *peer)
{
    const ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucp_ep_close_nbx(peer->endpoint, &how);
    uint64_t end = now_ns() + closing_ns;
    do {
        bool closed = !UCS_PTR_IS_PTR(request) || ucp_request_check_status(request) != UCS_INPROGRESS;
        if (closed && !peer->out && !peer->opening)
            break;
        ucp_worker_progress(engine->worker);
    } while (now_ns() < end);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

void ucx_peer_close(void *self, void *peer)
{
    ucx_engine *engine = self;
    ucx_peer *gone = peer;
    ucx_words_begin();
    settle(engine, gone);
    gone->lost = true;
    if (gone->connection)
        ucx_tcp_disconnect(gone);
    else
        close_endpoint(engine, gone);
    while (gone->remotes) {
        ucx_remote *remote = gone->remotes;
        gone->remotes = remote->next;
        if (remote->key)
            ucp_rkey_destroy(remote->key);
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
