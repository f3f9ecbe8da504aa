/* SPDX-License-Identifier: Apache-2.0 */
/* A prefill worker's sending: plans per decode worker, copies per request, transfers. */
#include "demo_worker.h"

#include <stdlib.h>
#include <string.h>

static void free_sendings(demo_worker *worker)
{
    for (size_t i = 0; i < worker->sending_count; i++) {
        if (worker->sendings[i].transfer)
            kvferry_transfer_free(worker->sendings[i].transfer);
        free(worker->sendings[i].copies.items);
    }
    free(worker->sendings);
    worker->sendings = NULL;
    worker->sending_count = 0;
}

/* --- plans and peers ------------------------------------------------------------------------- */

static int make_plan(demo_worker *worker, kvferry_layout *const *believed, demo_link *link)
{
    kvferry_layout *target = demo_fault_layout(worker->config->fault, link->layout);
    if (!target)
        return demo_worker_fail(worker, "no document for the fault");
    kvferry_status status = kvferry_plan_create((const kvferry_layout *const *)believed,
                                                worker->source_count, target, &link->plan,
                                                worker->report);
    if (target != link->layout)
        kvferry_layout_free(target);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "cannot plan (%s)", kvferry_status_name(status));
    return TOOL_GO_ON;
}

static int make_link(demo_worker *worker, const json_t *target, kvferry_layout *const *believed,
                     demo_link *link)
{
    const char *text = demo_text(target, "document");
    kvferry_status status = kvferry_layout_read_json(text, strlen(text), &link->layout,
                                                     worker->report);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "a decode worker's document is %s",
                                kvferry_status_name(status));
    int go_on = make_plan(worker, believed, link);
    if (go_on != TOOL_GO_ON)
        return go_on;
    size_t size;
    void *binding = demo_bytes_read(demo_text(target, "binding"), &size);
    status = kvferry_engine_connect(worker->engine, binding, size, &link->peer, worker->report);
    free(binding);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "cannot connect to a decode worker (%s)",
                                kvferry_status_name(status));
    return TOOL_GO_ON;
}

int demo_send_connect(demo_worker *worker, const json_t *targets)
{
    kvferry_layout **believed = tool_alloc(worker->source_count, sizeof *believed);
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < worker->source_count && status == TOOL_GO_ON; i++) {
        believed[i] = demo_fault_layout(worker->config->fault, worker->sources[i]);
        if (!believed[i])
            status = demo_worker_fail(worker, "no document for the fault");
    }
    worker->link_count = json_array_size(targets);
    worker->links = tool_alloc(worker->link_count + 1, sizeof *worker->links);
    for (size_t i = 0; i < worker->link_count && status == TOOL_GO_ON; i++)
        status = make_link(worker, json_array_get(targets, i), believed, &worker->links[i]);
    for (size_t i = 0; i < worker->source_count; i++)
        if (believed[i] != worker->sources[i])
            kvferry_layout_free(believed[i]);
    free(believed);
    return status;
}

/* The engine may read the copies until their transfers are over: all are once the peers are closed. */
void demo_send_close(demo_worker *worker)
{
    for (size_t i = 0; i < worker->link_count; i++) {
        if (worker->links[i].peer)
            kvferry_peer_close(worker->links[i].peer);
        kvferry_plan_free(worker->links[i].plan);
        kvferry_layout_free(worker->links[i].layout);
    }
    free_sendings(worker);
    free(worker->links);
    worker->links = NULL;
    worker->link_count = 0;
}

/* --- copies ---------------------------------------------------------------------------------- */

/* The first worker's first copies lose one of them. */
static void hold_back(demo_worker *worker, demo_sending *sending)
{
    demo_fault fault = worker->config->fault;
    demo_copies *copies = &sending->copies;
    if ((fault != DEMO_LATE_WRITE && fault != DEMO_LOST_WRITE) || worker->rank != 0 ||
        worker->broken || copies->count == 0)
        return;
    demo_random random = {worker->config->seed};
    size_t index = (size_t)demo_random_below(&random, copies->count);
    if (fault == DEMO_LATE_WRITE) {
        worker->held = copies->items[index];
        worker->held_link = &worker->links[sending->target];
    }
    memmove(&copies->items[index], &copies->items[index + 1],
            (copies->count - index - 1) * sizeof *copies->items);
    copies->count--;
    copies->planted++;
    worker->broken = true;
}

static int expand(demo_worker *worker, demo_sending *sending)
{
    const demo_link *link = &worker->links[sending->target];
    const kvferry_request *request = worker->requests[sending->request];
    demo_copies *copies = &sending->copies;
    copies->capacity = kvferry_plan_expand_bound(link->plan, worker->rank, request);
    copies->items = tool_alloc(copies->capacity + 1, sizeof *copies->items);
    kvferry_status status = kvferry_plan_expand(link->plan, worker->rank, request, copies->items,
                                                copies->capacity, &copies->count, worker->report);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "request %s: no copies (%s)", request->transfer_id,
                                kvferry_status_name(status));
    demo_fault_copies(worker->config->fault, worker->layout, link->layout, request, copies);
    hold_back(worker, sending);
    for (size_t i = 0; i < copies->count; i++)
        sending->bytes += copies->items[i].bytes;
    return TOOL_GO_ON;
}

/* --- transfers ------------------------------------------------------------------------------- */

static int begin(demo_worker *worker, demo_sending *sending)
{
    sending->begin_ns = demo_now_ns();
    int go_on = expand(worker, sending);
    if (go_on != TOOL_GO_ON)
        return go_on;
    kvferry_status status =
        kvferry_transfer_begin(worker->engine, worker->links[sending->target].peer, KVFERRY_WRITE,
                               sending->copies.items, sending->copies.count,
                               sending->begin_ns + worker->config->timeout_ns, &sending->transfer,
                               worker->report);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "request %s: the engine does not take the copies (%s)",
                                worker->requests[sending->request]->transfer_id,
                                kvferry_status_name(status));
    return TOOL_GO_ON;
}

static int confirm(demo_worker *worker, const demo_sending *sending, const kvferry_transfer_state *state)
{
    json_t *message = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "did", "sent", "request",
        worker->requests[sending->request]->transfer_id, "target", (json_int_t)sending->target,
        "copies", (json_int_t)sending->copies.count, "bytes", (json_int_t)sending->bytes, "begin_ns",
        (json_int_t)sending->begin_ns, "end_ns", (json_int_t)demo_now_ns(), "planted",
        (json_int_t)sending->copies.planted, "status", kvferry_status_name(state->status), "detail",
        state->detail);
    return demo_channel_write(worker->fd, message) ? TOOL_GO_ON : DEMO_PARENT_GONE;
}

/* Confirms the transfers that are over and frees them; *left: how many are not. */
static int collect(demo_worker *worker, size_t *left)
{
    *left = 0;
    for (size_t i = 0; i < worker->sending_count; i++) {
        demo_sending *sending = &worker->sendings[i];
        if (!sending->transfer)
            continue;
        const kvferry_transfer_state *state = kvferry_transfer_get(sending->transfer);
        if (!state->over) {
            ++*left;
            continue;
        }
        int status = confirm(worker, sending, state);
        if (status != TOOL_GO_ON)
            return status;
        kvferry_transfer_free(sending->transfer);
        sending->transfer = NULL;
    }
    return TOOL_GO_ON;
}

/* Until all are over. In this time the parent sends nothing: a sign from it means its end. */
static int finish(demo_worker *worker)
{
    for (;;) {
        size_t left;
        int status = collect(worker, &left);
        if (status != TOOL_GO_ON || left == 0)
            return status;
        bool heard;
        status = demo_worker_step(worker, 1000, &heard);
        if (status != TOOL_GO_ON)
            return status;
        if (heard)
            return DEMO_PARENT_GONE;
    }
}

/* The held copy goes its way, long after its transfer was said to be done: into blocks that may have a new
 * owner by now. */
static int send_held(demo_worker *worker)
{
    worker->sendings = tool_alloc(1, sizeof *worker->sendings);
    worker->sending_count = 1;
    kvferry_transfer **transfer = &worker->sendings[0].transfer;
    kvferry_status status = kvferry_transfer_begin(worker->engine, worker->held_link->peer,
                                                   KVFERRY_WRITE, &worker->held, 1, 0, transfer,
                                                   worker->report);
    worker->held_link = NULL;
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "the engine does not take the late copy (%s)",
                                kvferry_status_name(status));
    bool heard = false;
    int go_on = TOOL_GO_ON;
    while (go_on == TOOL_GO_ON && !heard && !kvferry_transfer_get(*transfer)->over)
        go_on = demo_worker_step(worker, 1000, &heard);
    if (go_on != TOOL_GO_ON || heard)
        return heard ? DEMO_PARENT_GONE : go_on;
    free_sendings(worker);
    return TOOL_GO_ON;
}

int demo_send_all(demo_worker *worker)
{
    bool late = worker->held_link != NULL; /* from a round before */
    worker->sendings = tool_alloc(worker->request_count * worker->link_count + 1,
                                  sizeof *worker->sendings);
    for (size_t r = 0; r < worker->request_count; r++)
        for (size_t t = 0; t < worker->link_count; t++) {
            demo_sending *sending = &worker->sendings[worker->sending_count++];
            *sending = (demo_sending){.request = r, .target = t};
            int status = begin(worker, sending);
            if (status != TOOL_GO_ON)
                return status;
        }
    int status = finish(worker);
    if (status != TOOL_GO_ON)
        return status;
    free_sendings(worker);
    return late ? send_held(worker) : TOOL_GO_ON;
}
