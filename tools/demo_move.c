/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's node: it offers requests, or asks for them, and waits for their ends. */
#include "demo_worker.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "demo_engine.h"

#define MILLISECOND UINT64_C(1000000)

/* --- start ----------------------------------------------------------------------------------- */

/* Over shared memory the engine's own memory is the fastest; over TCP any memory is as good, and so the demo
 * registers some of its own there. */
static int map_segments(demo_worker *worker, kvferry_node_segment *segments, uint32_t count)
{
    worker->mapped = strcmp(worker->config->transport, "tcp") == 0;
    for (uint32_t i = 0; worker->mapped && i < count; i++) {
        uint64_t bytes = kvferry_layout_segment(worker->layout, i)->bytes;
        void *address = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED)
            return demo_worker_fail(worker, "no memory for a segment of %s", tool_size(bytes));
        segments[i].address = worker->segments[i] = address;
    }
    return TOOL_GO_ON;
}

static kvferry_status create(demo_worker *worker, const kvferry_layout *believed,
                             const kvferry_node_segment *segments, uint32_t count)
{
    const demo_config *config = worker->config;
    bool broken = demo_engine_needed(config->fault);
    char name[64];
    snprintf(name, sizeof name, "%s %zu", demo_role_name(worker->role), worker->rank);
    const kvferry_engine_options engine = {.size = sizeof engine, .transport = config->transport, .name = name};
    const uint64_t patience_ms = config->timeout_ns / MILLISECOND;
    const kvferry_node_options options = {.size = sizeof options,
                                          .engine = broken ? DEMO_ENGINE : config->engine,
                                          .engine_options = &engine,
                                          .lease_ms = 2 * patience_ms,
                                          .transfer_ms = patience_ms,
                                          .connect_ms = patience_ms,
                                          .early_ms = patience_ms};
    if (broken) {
        kvferry_status status = demo_engine_add(config, worker->rank, worker->report);
        if (status != KVFERRY_OK)
            return status;
    }
    return kvferry_node_create(&options, believed, segments, count, &worker->node, worker->report);
}

int demo_move_start(demo_worker *worker)
{
    uint32_t count = kvferry_layout_segment_count(worker->layout);
    kvferry_layout *believed = demo_fault_layout(worker->config->fault, worker->layout);
    if (!believed)
        return demo_worker_fail(worker, "no document for the fault");
    kvferry_node_segment *segments = tool_alloc(count + 1u, sizeof *segments);
    worker->segments = tool_alloc(count + 1u, sizeof *worker->segments);
    int go_on = map_segments(worker, segments, count);
    if (go_on == TOOL_GO_ON) {
        kvferry_status status = create(worker, believed, segments, count);
        if (status != KVFERRY_OK)
            go_on = demo_worker_fail(worker, "no node (%s)", kvferry_status_name(status));
    }
    for (uint32_t i = 0; go_on == TOOL_GO_ON && i < count; i++)
        worker->segments[i] = kvferry_node_segment_address(worker->node, i);
    if (believed != worker->layout)
        kvferry_layout_free(believed);
    free(segments);
    return go_on;
}

void demo_move_close(demo_worker *worker)
{
    kvferry_node_close(worker->node);
    for (uint32_t i = 0; worker->mapped && i < kvferry_layout_segment_count(worker->layout); i++)
        if (worker->segments[i])
            munmap(worker->segments[i], (size_t)kvferry_layout_segment(worker->layout, i)->bytes);
    free(worker->segments);
}

/* --- events ---------------------------------------------------------------------------------- */

/* What an event means for the wait that it comes in: TOOL_GO_ON, or the exit status. */
typedef int (*take_event)(demo_worker *worker, const kvferry_event *event, size_t *left);

/* Takes events until `left` is 0. In this time the parent sends nothing: a sign from it means its end. */
static int wait_for(demo_worker *worker, take_event take, size_t left)
{
    struct pollfd polls[] = {{.fd = worker->fd, .events = POLLIN},
                             {.fd = kvferry_node_fd(worker->node), .events = POLLIN}};
    while (left > 0) {
        kvferry_event *event = kvferry_node_next_event(worker->node);
        if (event) {
            int status = take(worker, event, &left);
            kvferry_event_free(event);
            if (status != TOOL_GO_ON)
                return status;
            continue;
        }
        if (poll(polls, 2, 1000) < 0 && errno != EINTR)
            return demo_worker_fail(worker, "cannot wait: %s", strerror(errno));
        if (polls[0].revents)
            return DEMO_PARENT_GONE;
    }
    return TOOL_GO_ON;
}

static const char *first_message(const kvferry_event *event)
{
    const kvferry_reason *reason = kvferry_report_get(event->report, 0);
    return reason ? reason->message : event->code;
}

static int take_connected(demo_worker *worker, const kvferry_event *event, size_t *left)
{
    if (event->kind == KVFERRY_EVENT_DISCONNECTED)
        return demo_worker_fail(worker, "no handshake with the prefill side: %s", first_message(event));
    *left -= event->kind == KVFERRY_EVENT_CONNECTED;
    return TOOL_GO_ON;
}

int demo_move_connect(demo_worker *worker, const char *own_leader)
{
    if (worker->role == DEMO_PREFILL && demo_engine_needed(worker->config->fault))
        demo_engine_know(worker->layout, worker->sides[DEMO_DECODE].layouts);
    kvferry_status status = KVFERRY_OK;
    if (worker->rank > 0)
        status = kvferry_node_set_leader(worker->node, own_leader, worker->report);
    if (status == KVFERRY_OK && worker->role == DEMO_DECODE)
        status = kvferry_node_connect(worker->node, demo_role_name(DEMO_PREFILL), worker->where,
                                      worker->report);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "cannot connect (%s)", kvferry_status_name(status));
    return worker->role == DEMO_DECODE ? wait_for(worker, take_connected, 1) : TOOL_GO_ON;
}

/* --- requests -------------------------------------------------------------------------------- */

static kvferry_status offer(demo_worker *worker, const kvferry_request *request)
{
    const kvferry_offer offered = {.size = sizeof offered,
                                   .transfer_id = request->transfer_id,
                                   .tokens = request->source_tokens,
                                   .tables = request->source,
                                   .table_count = request->source_count,
                                   .readiness = KVFERRY_READY};
    return kvferry_node_offer(worker->node, &offered, worker->report);
}

/* A stage has the groups of its own document only. */
static kvferry_status ask(demo_worker *worker, const kvferry_request *request)
{
    kvferry_block_table *tables = tool_alloc(request->target_count + 1, sizeof *tables);
    size_t count = 0;
    for (size_t i = 0; i < request->target_count; i++)
        for (uint32_t g = 0; g < kvferry_layout_group_count(worker->layout); g++)
            if (strcmp(kvferry_layout_group(worker->layout, g)->name, request->target[i].group) == 0)
                tables[count++] = request->target[i];
    const kvferry_ask asked = {.size = sizeof asked,
                               .transfer_id = request->transfer_id,
                               .engine_id = demo_role_name(DEMO_PREFILL),
                               .where = worker->where,
                               .tokens = request->target_tokens,
                               .tables = tables,
                               .table_count = count,
                               .whole_blocks = request->whole_blocks,
                               .allow_part = true}; /* the prefill side has all: nothing may be left out */
    kvferry_status status = kvferry_node_ask(worker->node, &asked, worker->report);
    free(tables);
    return status;
}

/* Tells the parent of a request's end here. */
static int confirm(demo_worker *worker, const kvferry_event *event)
{
    uint64_t now = demo_now_ns(), planted = 0;
    if (worker->config->fault == DEMO_CONV_WHOLE || worker->config->fault == DEMO_HALF_HEADS)
        planted = event->copies; /* the documents are wrong already */
    else if (demo_engine_needed(worker->config->fault))
        planted = demo_engine_planted();
    json_t *message = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s}", "did", "end", "request", event->transfer_id,
        "copies", (json_int_t)event->copies, "bytes", (json_int_t)event->bytes, "begin_ns",
        (json_int_t)(now - event->elapsed_ns), "end_ns", (json_int_t)now, "planted", (json_int_t)planted,
        "outcome", kvferry_outcome_name(event->outcome), "detail", first_message(event));
    return demo_channel_write(worker->fd, message) ? TOOL_GO_ON : DEMO_PARENT_GONE;
}

static int take_released(demo_worker *worker, const kvferry_event *event, size_t *left)
{
    *left -= event->kind == KVFERRY_EVENT_RELEASED;
    return event->kind == KVFERRY_EVENT_ENDED ? confirm(worker, event) : TOOL_GO_ON;
}

int demo_move_all(demo_worker *worker)
{
    bool broken = worker->role == DEMO_PREFILL && demo_engine_needed(worker->config->fault);
    bool late = worker->held; /* from a round before */
    if (broken)
        demo_engine_round(worker->requests, worker->request_count, worker->config->seed);
    for (size_t i = 0; i < worker->request_count; i++) {
        const kvferry_request *request = worker->requests[i];
        kvferry_status status = worker->role == DEMO_PREFILL ? offer(worker, request) : ask(worker, request);
        if (status != KVFERRY_OK)
            return demo_worker_fail(worker, "request %s: not taken (%s)", request->transfer_id,
                                    kvferry_status_name(status));
    }
    int status = wait_for(worker, take_released, worker->request_count);
    if (status != TOOL_GO_ON)
        return status;
    worker->held = broken && worker->request_count > 0;
    /* Long after its transfer was said to be done: into blocks that may have a new owner by now. */
    if (broken && late)
        demo_engine_send_held();
    return TOOL_GO_ON;
}
