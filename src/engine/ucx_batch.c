/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of one-sided writes and reads over UCX. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ucx_internal.h"

static void note(ucx_batch *batch, ucs_status_t status)
{
    if (status == UCS_OK || batch->status != UCS_OK)
        return;
    batch->status = status;
    const char *said = ucx_words_get();
    snprintf(batch->words, sizeof(batch->words), "%s%s%s", ucs_status_string(status),
             *said ? ": " : "", said);
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

/* Over, if it is: its end is told by the next progress, never from inside UCX or a submission. */
static void check_over(ucx_batch *batch)
{
    if (batch->pending || !batch->posted)
        return;
    if (!batch->peer) {
        free(batch);
        return;
    }
    ucx_engine *engine = batch->peer->engine;
    unlink_out(batch);
    batch->next = NULL;
    *engine->ended_last = batch;
    engine->ended_last = &batch->next;
}

static void on_complete(void *request, ucs_status_t status, void *data)
{
    ucx_batch *batch = data;
    ucp_request_free(request);
    batch->pending--;
    note(batch, status);
    check_over(batch);
}

/* Counts what is not complete yet; false: it could not be posted. */
static inline bool posted(ucx_batch *batch, ucs_status_ptr_t answer)
{
    if (!answer)
        return true;
    if (UCS_PTR_IS_ERR(answer)) {
        note(batch, UCS_PTR_STATUS(answer));
        return false;
    }
    batch->pending++;
    return true;
}

static void post_copies(ucx_batch *batch, kvferry_direction direction,
                        const kvferry_engine_copy *copies, size_t count)
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
        ucp_rkey_h key = ((const ucx_remote *)copy->remote_segment)->key;
        how.memh = local->memory;
        how.memory_type = local->type;
        ucs_status_ptr_t answer =
            direction == KVFERRY_WRITE
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

static ucx_batch *take_batch(ucx_engine *engine)
{
    ucx_batch *batch = engine->spare;
    if (!batch)
        return malloc(sizeof(*batch));
    engine->spare = batch->next;
    return batch;
}

kvferry_status ucx_submit(void *self, void *peer, kvferry_direction direction,
                          const kvferry_engine_copy *copies, size_t count,
                          kvferry_engine_batch_end end, void *handle, kvferry_report *report)
{
    (void)report;
    ucx_engine *engine = self;
    ucx_peer *to = peer;
    if (to->lost)
        return KVFERRY_PEER_LOST;
    ucx_batch *batch = take_batch(engine);
    if (!batch)
        return KVFERRY_NO_MEMORY;
    *batch = (ucx_batch){.peer = to, .end = end, .handle = handle, .next = to->out};
    if (to->out)
        to->out->previous = batch;
    to->out = batch;
    ucx_words_begin();
    post_copies(batch, direction, copies, count);
    post_flush(batch);
    ucx_words_end();
    batch->posted = true;
    check_over(batch);
    return KVFERRY_OK;
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
        batch->next = engine->spare;
        engine->spare = batch;
    }
    return any;
}
