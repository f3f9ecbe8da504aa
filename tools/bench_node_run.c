/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of two engines in this process, and what they cost. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_node.h"

#define PATIENCE_S 60.0
enum { LAYERS = 32, CELL_BYTES = 128 };

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double bench_cpu_s(void) { return seconds(CLOCK_PROCESS_CPUTIME_ID); }
double bench_clock_s(void) { return seconds(CLOCK_MONOTONIC); }

static int failed(const char *what, kvferry_status status, const kvferry_report *report)
{
    tool_log("%s: %s: %s", what, kvferry_status_name(status),
             kvferry_report_count(report) ? kvferry_report_get(report, 0)->message : "");
    return TOOL_FAILED;
}

/* --- nodes ----------------------------------------------------------------------------------- */

static int start_node(bench_nodes *nodes, size_t index, const char *engine)
{
    const kvferry_layout *layout = nodes->side.layouts[index];
    uint32_t count = kvferry_layout_segment_count(layout);
    kvferry_node_segment *segments = tool_alloc(count + 1u, sizeof *segments);
    kvferry_report *report = tool_report();
    const kvferry_engine_options with = {.size = sizeof with, .transport = nodes->transport};
    const kvferry_node_options options = {
        .size = sizeof options, .engine = engine, .engine_options = nodes->transport ? &with : NULL,
        .leader = index ? kvferry_node_address(nodes->nodes[0]) : NULL};
    kvferry_status made = kvferry_node_create(&options, layout, segments, count, &nodes->nodes[index], report);
    int status = made == KVFERRY_OK ? TOOL_GO_ON : failed("a node could not be started", made, report);
    kvferry_report_free(report);
    free(segments);
    return status;
}

/* A node for each layout of the side. */
static int start_all(bench_nodes *nodes, const char *engine)
{
    int status = TOOL_GO_ON;
    nodes->nodes = tool_alloc(nodes->side.count + 1, sizeof(*nodes->nodes));
    for (size_t i = 0; i < nodes->side.count && status == TOOL_GO_ON; i++)
        status = start_node(nodes, i, engine);
    return status;
}

int bench_nodes_start_model(bench_nodes *nodes, const char *model, const tool_topology *topology,
                            uint64_t blocks, const char *engine_id, const char *engine)
{
    tool_model config = {0};
    tool_reasons reasons = {0};
    const kvferry_model_options options = {.size = sizeof options, .engine_id = engine_id, .blocks = blocks};
    int status = tool_model_read("--model", model, &config);
    if (status == TOOL_GO_ON)
        status = tool_side_from_model(&nodes->side, &config, topology, &options, NULL, &reasons);
    tool_model_free(&config);
    if (status == TOOL_GO_ON && tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "a benchmark's layout was refused", stderr);
    tool_reasons_free(&reasons);
    return status == TOOL_GO_ON ? start_all(nodes, engine) : status;
}

/* Layers of `k` and `v`, one head each, every stream on its own: a block is 2 * LAYERS copies. */
static kvferry_layout *small_layout(uint64_t blocks, const char *engine_id)
{
    const kvferry_worker worker = {0, 1, 0, 1, 0, 1};
    const kvferry_group group = {"attn", KVFERRY_GROUP_PAGED, BENCH_BLOCK_TOKENS, 0, -1};
    const uint64_t page = BENCH_BLOCK_TOKENS * CELL_BYTES;
    const kvferry_axis token = {"token", 0, BENCH_BLOCK_TOKENS, BENCH_BLOCK_TOKENS, CELL_BYTES};
    kvferry_layout_builder *builder = NULL;
    kvferry_layout *layout = NULL;
    if (kvferry_layout_builder_create(engine_id, &worker, &(kvferry_identity){"bench", "", ""}, &builder) !=
        KVFERRY_OK)
        tool_no_memory();
    kvferry_layout_builder_segment(builder, "caches", 2 * LAYERS * blocks * page);
    kvferry_layout_builder_group(builder, &group);
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        char layer[16];
        snprintf(layer, sizeof layer, "layers.%u", i / 2);
        const kvferry_stream stream = {.layer = layer, .name = i % 2 ? "v" : "k", .dtype = "bfloat16",
                                       .format = "", .offset = i * blocks * page, .pages = blocks,
                                       .page_stride = page, .page_tokens = BENCH_BLOCK_TOKENS,
                                       .tokens_per_state = 1, .cell_bytes = CELL_BYTES, .axes = &token,
                                       .axis_count = 1};
        kvferry_layout_builder_stream(builder, &stream);
    }
    kvferry_report *report = tool_report();
    kvferry_status status = kvferry_layout_builder_finish(builder, &layout, report);
    if (status != KVFERRY_OK)
        failed("the benchmark's layout", status, report);
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
    return layout;
}

int bench_nodes_start_small(bench_nodes *nodes, uint64_t blocks, const char *engine_id, const char *engine)
{
    kvferry_layout *layout = small_layout(blocks, engine_id);
    if (!layout)
        return TOOL_FAILED;
    tool_side_add(&nodes->side, layout, tool_text("0"));
    return start_all(nodes, engine);
}

void bench_nodes_stop(bench_nodes *nodes)
{
    for (size_t i = 0; nodes->nodes && i < nodes->side.count; i++)
        kvferry_node_close(nodes->nodes[i]);
    free(nodes->nodes);
    nodes->nodes = NULL;
    tool_side_free(&nodes->side);
}

/* --- handshakes ------------------------------------------------------------------------------ */

/* Until this node is connected. */
static int wait_connected(kvferry_node *node, double end)
{
    while (bench_clock_s() < end) {
        kvferry_node_wait(node, 1000);
        kvferry_event *event;
        while ((event = kvferry_node_next_event(node))) {
            kvferry_event_kind kind = event->kind;
            if (kind == KVFERRY_EVENT_DISCONNECTED)
                failed("a handshake failed", KVFERRY_REFUSED, event->report);
            kvferry_event_free(event);
            if (kind == KVFERRY_EVENT_CONNECTED)
                return TOOL_GO_ON;
            if (kind == KVFERRY_EVENT_DISCONNECTED)
                return TOOL_FAILED;
        }
    }
    tool_log("a handshake takes more than %.0f seconds", PATIENCE_S);
    return TOOL_FAILED;
}

int bench_connect_nodes(const char *where, kvferry_node **targets, size_t count, bench_handshake *handshake)
{
    double cpu = bench_cpu_s(), clock = bench_clock_s();
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < count && status == TOOL_GO_ON; i++) {
        kvferry_status begun = kvferry_node_connect(targets[i], "", where, report);
        if (begun != KVFERRY_OK)
            status = failed("no handshake", begun, report);
    }
    for (size_t i = 0; i < count && status == TOOL_GO_ON; i++)
        status = wait_connected(targets[i], clock + PATIENCE_S);
    kvferry_report_free(report);
    handshake->cpu_s = bench_cpu_s() - cpu;
    handshake->clock_s = bench_clock_s() - clock;
    return status;
}

int bench_connect(bench_nodes *sources, bench_nodes *targets, bench_handshake *handshake)
{
    return bench_connect_nodes(kvferry_node_address(sources->nodes[0]), targets->nodes, targets->side.count, handshake);
}

/* --- requests -------------------------------------------------------------------------------- */

typedef struct load_run {
    const bench_load *load;
    kvferry_node *source, *target;
    const kvferry_group *source_group, *target_group;
    const char *engine_id;
    kvferry_report *report;
    uint64_t asked, ended, released[2];
    uint64_t first; /* number of the first request: ids are unique over the nodes' life */
    bench_times *times;
} load_run;

/* Block 0 may be the null block: requests use those from 1 on, each its own while it is in flight. */
static int begin(load_run *run)
{
    char id[32];
    snprintf(id, sizeof id, "bench-%llu", (unsigned long long)(run->first + run->asked));
    uint32_t block = 1 + (uint32_t)(run->asked % run->load->window);
    kvferry_block_table from = {run->source_group->name, 0, &block, 1};
    kvferry_block_table to = {run->target_group->name, 0, &block, 1};
    const kvferry_offer offer = {.size = sizeof offer, .transfer_id = id,
                                 .tokens = run->source_group->block_tokens, .tables = &from,
                                 .table_count = 1, .readiness = KVFERRY_READY};
    const kvferry_ask ask = {.size = sizeof ask, .transfer_id = id, .engine_id = run->engine_id,
                             .where = "", .tokens = run->source_group->block_tokens, .tables = &to,
                             .table_count = !run->load->empty};
    kvferry_status status = kvferry_node_offer(run->source, &offer, run->report);
    if (status == KVFERRY_OK)
        status = kvferry_node_ask(run->target, &ask, run->report);
    if (status != KVFERRY_OK)
        return failed(id, status, run->report);
    run->asked++;
    return TOOL_GO_ON;
}

static int take(load_run *run, kvferry_side side)
{
    kvferry_node *node = side == KVFERRY_SIDE_PREFILL ? run->source : run->target;
    kvferry_event *event;
    int status = TOOL_GO_ON;
    while (status == TOOL_GO_ON && (event = kvferry_node_next_event(node))) {
        if (event->kind == KVFERRY_EVENT_ENDED && event->outcome != KVFERRY_OUTCOME_DONE)
            status = failed(event->transfer_id, KVFERRY_REFUSED, event->report);
        if (event->kind == KVFERRY_EVENT_ENDED && side == KVFERRY_SIDE_DECODE)
            run->times->elapsed_ns[run->ended++] = event->elapsed_ns;
        run->released[side] += event->kind == KVFERRY_EVENT_RELEASED;
        kvferry_event_free(event);
    }
    return status;
}

/* The blocks of a request are free again when both sides have released it. */
static uint64_t in_flight(const load_run *run)
{
    uint64_t least = run->released[0] < run->released[1] ? run->released[0] : run->released[1];
    return run->asked - least;
}

static int drive(load_run *run)
{
    struct pollfd polls[] = {{.fd = kvferry_node_fd(run->source), .events = POLLIN},
                             {.fd = kvferry_node_fd(run->target), .events = POLLIN}};
    double end = bench_clock_s() + PATIENCE_S;
    int status = TOOL_GO_ON;
    while (status == TOOL_GO_ON && (run->asked < run->load->requests || in_flight(run))) {
        while (status == TOOL_GO_ON && run->asked < run->load->requests && in_flight(run) < run->load->window)
            status = begin(run);
        if (status == TOOL_GO_ON)
            poll(polls, 2, 1000);
        for (int side = 0; side < 2 && status == TOOL_GO_ON; side++)
            status = take(run, (kvferry_side)side);
        if (bench_clock_s() > end) {
            tool_log("%llu requests take more than %.0f seconds", (unsigned long long)run->load->requests,
                     PATIENCE_S);
            return TOOL_FAILED;
        }
    }
    return status;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int bench_requests(bench_nodes *source, bench_nodes *target, const bench_load *load, bench_times *times)
{
    static uint64_t used;
    load_run run = {.load = load,
                    .source = source->nodes[0],
                    .target = target->nodes[0],
                    .source_group = kvferry_layout_group(source->side.layouts[0], 0),
                    .target_group = kvferry_layout_group(target->side.layouts[0], 0),
                    .engine_id = kvferry_layout_engine_id(source->side.layouts[0]),
                    .report = tool_report(),
                    .first = used,
                    .times = times};
    used += load->requests;
    times->elapsed_ns = tool_alloc((size_t)load->requests, sizeof *times->elapsed_ns);
    double cpu = bench_cpu_s(), clock = bench_clock_s();
    int status = drive(&run);
    times->cpu_s = bench_cpu_s() - cpu;
    times->clock_s = bench_clock_s() - clock;
    qsort(times->elapsed_ns, (size_t)run.ended, sizeof *times->elapsed_ns, compare);
    kvferry_report_free(run.report);
    return status;
}

/* --- the engine alone ------------------------------------------------------------------------ */

typedef struct engine_end {
    kvferry_engine *engine;
    kvferry_peer *peer;
} engine_end;

static kvferry_status open_end(engine_end *end, const char *engine, const kvferry_layout *layout,
                               kvferry_report *report)
{
    void *address;
    uint32_t segment;
    kvferry_status status = kvferry_engine_open(engine, NULL, &end->engine, report);
    for (uint32_t i = 0; i < kvferry_layout_segment_count(layout) && status == KVFERRY_OK; i++)
        status = kvferry_engine_allocate(end->engine, kvferry_layout_segment(layout, i)->bytes, &address,
                                         &segment, report);
    return status;
}

static kvferry_status connect_end(engine_end *from, const engine_end *to, kvferry_report *report)
{
    void *binding;
    size_t size;
    kvferry_status status = kvferry_engine_export(to->engine, &binding, &size, report);
    if (status != KVFERRY_OK)
        return status;
    status = kvferry_engine_connect(from->engine, binding, size, &from->peer, report);
    kvferry_free(binding);
    return status;
}

/* The copies of a request of block 1. */
static kvferry_status expand(const bench_nodes *source, const bench_nodes *target, kvferry_copy **copies,
                             size_t *count, kvferry_report *report)
{
    static const uint32_t block = 1;
    const kvferry_layout *from = source->side.layouts[0], *to = target->side.layouts[0];
    const kvferry_block_table source_table = {kvferry_layout_group(from, 0)->name, 0, &block, 1};
    const kvferry_block_table target_table = {kvferry_layout_group(to, 0)->name, 0, &block, 1};
    uint64_t tokens = kvferry_layout_group(from, 0)->block_tokens;
    const kvferry_request request = {"bench", tokens, tokens, &source_table, 1, &target_table, 1, false};
    kvferry_plan *plan;
    kvferry_status status = kvferry_plan_create(&from, 1, to, &plan, report);
    if (status != KVFERRY_OK)
        return status;
    size_t bound = kvferry_plan_expand_bound(plan, 0, &request);
    *copies = tool_alloc(bound + 1, sizeof **copies);
    status = kvferry_plan_expand(plan, 0, &request, *copies, bound, count, report);
    kvferry_plan_free(plan);
    return status;
}

static kvferry_status write_once(engine_end *from, engine_end *to, const kvferry_copy *copies, size_t count,
                                 kvferry_report *report)
{
    kvferry_transfer *transfer;
    kvferry_status status = kvferry_transfer_begin(from->engine, from->peer, KVFERRY_WRITE, copies, count, 0,
                                                   &transfer, report);
    if (status != KVFERRY_OK)
        return status;
    while (status == KVFERRY_OK && !kvferry_transfer_get(transfer)->over) {
        status = kvferry_engine_progress(from->engine, NULL);
        if (status == KVFERRY_OK)
            status = kvferry_engine_progress(to->engine, NULL);
    }
    if (status == KVFERRY_OK)
        status = kvferry_transfer_get(transfer)->status;
    kvferry_transfer_free(transfer);
    return status;
}

int bench_engine_alone(const bench_nodes *source, const bench_nodes *target, const char *engine,
                       uint64_t writes, double *cpu_s)
{
    engine_end from = {0}, to = {0};
    kvferry_copy *copies = NULL;
    size_t count = 0;
    kvferry_report *report = tool_report();
    kvferry_status status = open_end(&from, engine, source->side.layouts[0], report);
    if (status == KVFERRY_OK)
        status = open_end(&to, engine, target->side.layouts[0], report);
    if (status == KVFERRY_OK)
        status = connect_end(&from, &to, report);
    if (status == KVFERRY_OK)
        status = expand(source, target, &copies, &count, report);
    if (status == KVFERRY_OK)
        status = write_once(&from, &to, copies, count, report); /* the connection comes up */
    double cpu = bench_cpu_s();
    for (uint64_t i = 0; i < writes && status == KVFERRY_OK; i++)
        status = write_once(&from, &to, copies, count, report);
    *cpu_s = bench_cpu_s() - cpu;
    int result = status == KVFERRY_OK ? TOOL_GO_ON : failed("the engine alone", status, report);
    if (from.peer)
        kvferry_peer_close(from.peer);
    if (from.engine)
        kvferry_engine_close(from.engine);
    if (to.engine)
        kvferry_engine_close(to.engine);
    free(copies);
    kvferry_report_free(report);
    return result;
}
