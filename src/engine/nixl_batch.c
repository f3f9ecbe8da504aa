/* SPDX-License-Identifier: Apache-2.0 */
/* Batches over NIXL: a request for each, polled until it has ended. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/nixl_internal.h"

/* --- what is out ---------------------------------------------------------------------------------- */

static nixl_batch *take_batch(nixl_engine *engine)
{
    nixl_batch *batch = engine->spare;
    if (!batch)
        return malloc(sizeof(*batch));
    engine->spare = batch->next;
    return batch;
}

static void give_back(nixl_engine *engine, nixl_batch *batch)
{
    batch->next = engine->spare;
    engine->spare = batch;
}

static void let_go(const nixl_engine *engine, const nixl_peer *peer, void *request)
{
    engine->api->request_release(peer->agent.agent, request);
    engine->api->request_destroy(request);
}

/* Takes the batch that `place` points to out of the list, and ends it. */
static void end(nixl_engine *engine, nixl_peer *peer, nixl_batch **place, kvferry_status status,
                const char *words)
{
    nixl_batch *batch = *place;
    *place = batch->next;
    if (!batch->next)
        peer->last = place;
    batch->end(batch->handle, status, words);
    give_back(engine, batch);
}

/*
 * A request that is let go may go on, and one that failed may have parts that do: only after the agent is
 * gone nothing leaves. Requests are let go before, since they point into it.
 */
void nixl_tear_down(nixl_engine *engine, nixl_peer *peer, const char *words)
{
    for (const nixl_batch *batch = peer->first; batch; batch = batch->next)
        let_go(engine, peer, batch->request);
    nixl_agent_close(engine, &peer->agent);
    while (peer->first)
        end(engine, peer, &peer->first, KVFERRY_PEER_LOST, words);
}

/* --- submission ------------------------------------------------------------------------------- */

static int fill_lists(const nixl_engine *engine, const kvferry_engine_copy *copies, size_t count)
{
    const nixl_api *api = engine->api;
    int code = api->list_clear(engine->local);
    if (!code)
        code = api->list_clear(engine->remote);
    for (size_t i = 0; i < count && !code; i++) {
        code = api->list_add(engine->local, (uintptr_t)copies[i].local, (size_t)copies[i].bytes, 0);
        if (!code)
            code = api->list_add(engine->remote, (uintptr_t)copies[i].remote, (size_t)copies[i].bytes, 0);
    }
    return code;
}

/* Begins nothing if it answers an error. */
static kvferry_status make_request(const nixl_engine *engine, const nixl_peer *peer,
                                   kvferry_direction direction, const kvferry_engine_copy *copies,
                                   size_t count, void **request, kvferry_report *report)
{
    int code = fill_lists(engine, copies, count);
    if (!code)
        code = engine->api->request_create(peer->agent.agent,
                                           direction == KVFERRY_WRITE ? NIXL_WRITE : NIXL_READ,
                                           engine->local, engine->remote, peer->name, request,
                                           peer->agent.options);
    if (code)
        nixl_report(report, "a request was refused", code);
    return code ? KVFERRY_ENGINE : KVFERRY_OK;
}

/* One that fails as it is posted may be under way in part: it is out, and ends by progress, as does the
 * connection. */
kvferry_status nixl_submit(void *self, void *peer, kvferry_direction direction,
                           const kvferry_engine_copy *copies, size_t count,
                           kvferry_engine_batch_end on_end, void *handle, kvferry_report *report)
{
    nixl_engine *engine = self;
    nixl_peer *to = peer;
    if (to->lost)
        return KVFERRY_PEER_LOST;
    if (to->failed)
        return KVFERRY_BUSY;
    nixl_batch *batch = take_batch(engine);
    if (!batch)
        return KVFERRY_NO_MEMORY;
    *batch = (nixl_batch){.end = on_end, .handle = handle};
    kvferry_status status = make_request(engine, to, direction, copies, count, &batch->request, report);
    if (status != KVFERRY_OK) {
        give_back(engine, batch);
        return status;
    }
    batch->posted = engine->api->request_post(to->agent.agent, batch->request, to->agent.options);
    to->failed = batch->posted != NIXL_IN_PROGRESS && batch->posted != NIXL_DONE;
    *to->last = batch;
    to->last = &batch->next;
    return KVFERRY_OK;
}

/* --- progress --------------------------------------------------------------------------------- */

/* A failure does not say whose it was, nor what is still under way: the connection ends with it. */
static void fail(nixl_engine *engine, nixl_peer *peer, int code)
{
    char words[96];
    snprintf(words, sizeof(words), "NIXL: %s, the connection was closed", nixl_code_name(code));
    peer->lost = true;
    nixl_tear_down(engine, peer, words);
}

static bool advance(nixl_engine *engine, nixl_peer *peer)
{
    bool active = false;
    for (nixl_batch **place = &peer->first; *place;) {
        nixl_batch *batch = *place;
        int code = batch->posted;
        if (code == NIXL_IN_PROGRESS)
            code = engine->api->request_poll(peer->agent.agent, batch->request);
        if (code == NIXL_IN_PROGRESS) {
            place = &batch->next;
            continue;
        }
        active = true;
        if (code != NIXL_DONE) {
            fail(engine, peer, code);
            return active;
        }
        let_go(engine, peer, batch->request);
        end(engine, peer, place, KVFERRY_OK, NULL);
    }
    return active;
}

/* The target is moved on by the question for news, of which there are none. */
bool nixl_progress(void *self)
{
    nixl_engine *engine = self;
    bool active = false;
    engine->api->news_take(engine->target.agent, engine->news, NULL);
    for (nixl_peer *peer = engine->peers; peer; peer = peer->next)
        active = advance(engine, peer) || active;
    return active;
}
