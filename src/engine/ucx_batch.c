/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: which way each copy goes, one-sided writes and reads over UCX, and how any batch ends. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/ucx_internal.h"

void ucx_batch_say(ucx_batch *batch, ucs_status_t status, const char *words)
{
    if (status == UCS_OK || batch->status != UCS_OK)
        return;
    batch->status = status;
    snprintf(batch->words, sizeof(batch->words), "%s", words);
}

void ucx_batch_note(ucx_batch *batch, ucs_status_t status)
{
    if (status == UCS_OK)
        return;
    const char *said = ucx_words_get();
    char words[sizeof(batch->words)];
    snprintf(words, sizeof(words), "%s%s%s", ucs_status_string(status), *said ? ": " : "", said);
    ucx_batch_say(batch, status, words);
}

static void spare_batch(ucx_engine *engine, ucx_batch *batch)
{
    batch->next = engine->spare;
    engine->spare = batch;
}

static void unlink_out(ucx_batch *batch)
{
    if (batch->previous)
        batch->previous->next = batch->next;
    else
        batch->peer->out = batch->next;
    if (batch->next)
        batch->next->previous = batch->previous;
}

/* Its end is told by the next progress, never from inside UCX or a submission. */
void ucx_batch_check(ucx_batch *batch)
{
    if (batch->pending || !batch->posted || (batch->left && !(batch->peer && batch->peer->lost)))
        return;
    ucx_engine *engine = batch->engine;
    batch->posted = false;
    batch->serial++;
    if (!batch->peer) {
        spare_batch(engine, batch);
        return;
    }
    if (batch->left)
        ucx_batch_note(batch, UCS_ERR_CONNECTION_RESET);
    unlink_out(batch);
    batch->next = NULL;
    *engine->ended_last = batch;
    engine->ended_last = &batch->next;
}

void ucx_batch_settle(ucx_batch *batch, uint64_t answers)
{
    batch->left -= answers;
    ucx_batch_check(batch);
}

void ucx_batches_abandon(ucx_peer *peer)
{
    for (ucx_batch *batch = peer->out, *next; batch; batch = next) {
        next = batch->next;
        ucx_batch_check(batch);
    }
}

static void on_complete(void *request, ucs_status_t status, void *data)
{
    ucx_batch *batch = data;
    ucp_request_free(request);
    batch->pending--;
    ucx_batch_note(batch, status);
    ucx_batch_check(batch);
}

/* Counts what is not complete yet; false: it could not be posted. */
static inline bool posted(ucx_batch *batch, ucs_status_ptr_t answer)
{
    if (!answer)
        return true;
    if (UCS_PTR_IS_ERR(answer)) {
        ucx_batch_note(batch, UCS_PTR_STATUS(answer));
        return false;
    }
    batch->pending++;
    return true;
}

static void post_copies(ucx_batch *batch, const kvferry_engine_copy *copies, size_t count)
{
    ucp_ep_h endpoint = batch->peer->endpoint;
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH |
                        UCP_OP_ATTR_FLAG_MULTI_SEND,
        .cb.send = on_complete,
        .user_data = batch,
    };
    for (size_t i = 0; i < count; i++) {
        const kvferry_engine_copy *copy = &copies[i];
        const ucx_segment *local = copy->local_segment;
        ucp_rkey_h key = ((const ucx_remote *)copy->remote_segment)->rkey;
        if (batch->peer->local && ucx_is_on_hosts(copy))
            continue;
        how.memh = local->memory;
        how.memory_type = local->type;
        ucs_status_ptr_t answer =
            batch->direction == KVFERRY_WRITE
                ? ucp_put_nbx(endpoint, copy->local, (size_t)copy->bytes, copy->remote, key, &how)
                : ucp_get_nbx(endpoint, copy->local, (size_t)copy->bytes, copy->remote, key, &how);
        if (!posted(batch, answer))
            return;
    }
}

/* A put that is complete has only left; the flush behind it tells that it has arrived. */
static void post_flush(ucx_batch *batch)
{
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_complete,
        .user_data = batch,
    };
    posted(batch, ucp_ep_flush_nbx(batch->peer->endpoint, &how));
}

static ucx_batch *make_batch(ucx_engine *engine)
{
    if (engine->batch_count == UINT32_MAX ||
        !base_grow((void **)&engine->batches, &engine->batch_capacity, engine->batch_count + 1,
                   sizeof(ucx_batch *)))
        return NULL;
    ucx_batch *batch = base_alloc(1, sizeof(*batch));
    if (!batch)
        return NULL;
    batch->engine = engine;
    batch->index = (uint32_t)engine->batch_count;
    engine->batches[engine->batch_count++] = batch;
    return batch;
}

static ucx_batch *take_batch(ucx_peer *peer)
{
    ucx_batch *batch = peer->engine->spare;
    if (!batch && !(batch = make_batch(peer->engine)))
        return NULL;
    if (peer->local && !batch->pieces &&
        !(batch->pieces = base_alloc(UCX_BATCH_COPIES, sizeof(*batch->pieces)))) {
        peer->engine->spare = batch;
        return NULL;
    }
    peer->engine->spare = batch->next;
    batch->peer = peer;
    batch->status = UCS_OK;
    batch->left = 0;
    batch->piece_count = batch->piece = 0;
    batch->previous = NULL;
    batch->next = peer->out;
    if (peer->out)
        peer->out->previous = batch;
    peer->out = batch;
    return batch;
}

static bool has_way(const ucx_peer *peer, const kvferry_engine_copy *copy)
{
    bool hosts = ucx_is_on_hosts(copy);
    return (hosts && (peer->local || peer->connection)) ||
           (peer->endpoint && ((const ucx_remote *)copy->remote_segment)->rkey);
}

/* The last check before a copy: nothing outside what the peer has exported. */
static bool is_inside(const kvferry_engine_copy *copy)
{
    const ucx_key *key = &((const ucx_remote *)copy->remote_segment)->key;
    uint64_t offset = copy->remote - key->address;
    return copy->remote >= key->address && offset <= key->bytes && copy->bytes <= key->bytes - offset;
}

static kvferry_status check_copies(const ucx_peer *peer, const kvferry_engine_copy *copies,
                                   size_t count, kvferry_report *report)
{
    for (size_t i = 0; i < count; i++) {
        if (!is_inside(&copies[i]))
            return KVFERRY_OUT_OF_RANGE;
        if (has_way(peer, &copies[i]))
            continue;
        base_report_add(report, "engine_failed", NULL, "host memory at both ends",
                        "memory of a device", "ucx: a copy without UCX");
        return KVFERRY_UNSUPPORTED;
    }
    return KVFERRY_OK;
}

/* Host memory of a peer on this host by the CPU, what is left by UCX; or all by TCP. */
static void post(ucx_batch *batch, const kvferry_engine_copy *copies, size_t count)
{
    const ucx_peer *peer = batch->peer;
    if (peer->connection) {
        ucx_tcp_post(batch, copies, count);
        return;
    }
    if (peer->local)
        ucx_copy_post(batch, copies, count);
    if (!peer->endpoint || batch->piece_count == count)
        return;
    post_copies(batch, copies, count);
    post_flush(batch);
}

kvferry_status ucx_submit(void *self, void *peer, kvferry_direction direction,
                          const kvferry_engine_copy *copies, size_t count,
                          kvferry_engine_batch_end end, void *handle, kvferry_report *report)
{
    (void)self;
    ucx_peer *to = peer;
    if (to->lost)
        return KVFERRY_PEER_LOST;
    kvferry_status status = check_copies(to, copies, count, report);
    if (status != KVFERRY_OK)
        return status;
    ucx_batch *batch = take_batch(to);
    if (!batch)
        return KVFERRY_NO_MEMORY;
    batch->end = end;
    batch->handle = handle;
    batch->direction = direction;
    ucx_words_begin();
    post(batch, copies, count);
    ucx_words_end();
    batch->posted = true;
    ucx_batch_check(batch);
    return KVFERRY_OK;
}

/* Pieces that are not copied are left; what is with UCX or a socket cannot be called back. */
void ucx_cancel(void *self, void *peer, void *handle)
{
    (void)self;
    for (ucx_batch *batch = ((const ucx_peer *)peer)->out; batch; batch = batch->next)
        if (batch->handle == handle) {
            ucx_copy_drop(batch, "canceled");
            return;
        }
}

bool ucx_batches_end(ucx_engine *engine)
{
    bool any = engine->ended != NULL;
    while (engine->ended) {
        ucx_batch *batch = engine->ended;
        engine->ended = batch->next;
        if (!engine->ended)
            engine->ended_last = &engine->ended;
        batch->end(batch->handle, ucx_status(batch->status),
                   batch->status == UCS_OK ? NULL : batch->words);
        spare_batch(engine, batch);
    }
    return any;
}
