/* SPDX-License-Identifier: Apache-2.0 */
/* A worker process: its caches, its engine, and the steps that the parent asks for. */
#include "demo_worker.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int say(demo_worker *worker, json_t *message)
{
    return demo_channel_write(worker->fd, message) ? TOOL_GO_ON : DEMO_PARENT_GONE;
}

static int say_done(demo_worker *worker, const char *step)
{
    return say(worker, json_pack("{s:s}", "did", step));
}

int demo_worker_fail(demo_worker *worker, const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    tool_reasons reasons = {0};
    tool_reasons_take(&reasons, worker->report, NULL);
    json_t *message = json_pack("{s:s, s:s}", "did", "failed", "what", what);
    if (reasons.list)
        json_object_set(message, "reasons", reasons.list);
    say(worker, message);
    tool_reasons_free(&reasons);
    return TOOL_FAILED;
}

/* --- progress -------------------------------------------------------------------------------- */

/* Sleeps until the engine or the parent has something; *heard: the parent has. */
static int sleep_until(demo_worker *worker, int timeout_ms, bool *heard)
{
    int engine_fd = kvferry_engine_fd(worker->engine);
    struct pollfd polls[] = {{.fd = worker->fd, .events = POLLIN},
                             {.fd = engine_fd, .events = POLLIN}};
    int ready = poll(polls, 2, engine_fd < 0 && timeout_ms > 1 ? 1 : timeout_ms);
    if (ready < 0 && errno != EINTR)
        return demo_worker_fail(worker, "cannot wait: %s", strerror(errno));
    *heard = ready > 0 && polls[0].revents != 0;
    return TOOL_GO_ON;
}

int demo_worker_step(demo_worker *worker, int timeout_ms, bool *heard)
{
    *heard = false;
    bool active = false;
    kvferry_status status = kvferry_engine_progress(worker->engine, &active);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "the engine does not go on (%s)",
                                kvferry_status_name(status));
    if (active)
        return TOOL_GO_ON;
    if (kvferry_engine_fd(worker->engine) >= 0) {
        status = kvferry_engine_arm(worker->engine);
        if (status == KVFERRY_BUSY)
            return TOOL_GO_ON;
        if (status != KVFERRY_OK)
            return demo_worker_fail(worker, "the engine cannot wait (%s)",
                                    kvferry_status_name(status));
    }
    return sleep_until(worker, timeout_ms, heard);
}

/* --- start ----------------------------------------------------------------------------------- */

static int make_layout(demo_worker *worker)
{
    kvferry_model_options options;
    demo_model_options(worker->config, worker->role, worker->rank, &options);
    kvferry_status status = kvferry_model_layout(worker->config->model.config,
                                                 worker->config->model.size, &options,
                                                 &worker->layout, worker->report);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "no layout (%s)", kvferry_status_name(status));
    return TOOL_GO_ON;
}

/* Over shared memory the engine's own memory is the fastest; over TCP any memory is as good, and so the demo
 * registers some of its own there. */
static int make_segment(demo_worker *worker, uint32_t index)
{
    uint64_t bytes = kvferry_layout_segment(worker->layout, index)->bytes;
    void *address = NULL;
    uint32_t segment = 0;
    kvferry_status status;
    if (worker->mapped) {
        address = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED)
            return demo_worker_fail(worker, "no memory for a segment of %s", tool_size(bytes));
        status = kvferry_engine_register(worker->engine, address, bytes, KVFERRY_MEMORY_HOST,
                                         &segment, worker->report);
    } else {
        status = kvferry_engine_allocate(worker->engine, bytes, &address, &segment, worker->report);
    }
    worker->segments[index] = address;
    if (status != KVFERRY_OK || segment != index)
        return demo_worker_fail(worker, "no segment of %s (%s)", tool_size(bytes),
                                kvferry_status_name(status));
    return TOOL_GO_ON;
}

static int open_engine(demo_worker *worker)
{
    char name[64];
    snprintf(name, sizeof name, "%s %zu", demo_role_name(worker->role), worker->rank);
    kvferry_engine_options options = {
        .size = sizeof options, .transport = worker->config->transport, .name = name};
    kvferry_status status = kvferry_engine_open(worker->config->engine, &options, &worker->engine,
                                                worker->report);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "no engine (%s)", kvferry_status_name(status));
    worker->mapped = strcmp(worker->config->transport, "tcp") == 0;
    uint32_t count = kvferry_layout_segment_count(worker->layout);
    worker->segments = tool_alloc(count + 1u, sizeof *worker->segments);
    int go_on = TOOL_GO_ON;
    for (uint32_t i = 0; i < count && go_on == TOOL_GO_ON; i++)
        go_on = make_segment(worker, i);
    return go_on;
}

static oracle_worker oracle_self(const demo_worker *worker)
{
    return (oracle_worker){.layout = worker->layout,
                           .segments = worker->segments,
                           .noise = demo_noise_seed(worker->config, worker->role, worker->rank)};
}

uint64_t demo_noise_seed(const demo_config *config, demo_role role, size_t rank)
{
    demo_random random = {config->seed ^ ((uint64_t)role << 32 | (rank + 1))};
    return demo_random_next(&random);
}

/* Document and binding, for the others. */
static int introduce(demo_worker *worker)
{
    char *document = NULL;
    void *binding = NULL;
    size_t document_size, binding_size;
    if (kvferry_layout_write_json(worker->layout, &document, &document_size) != KVFERRY_OK)
        tool_no_memory();
    kvferry_status status = kvferry_engine_export(worker->engine, &binding, &binding_size,
                                                  worker->report);
    if (status != KVFERRY_OK) {
        kvferry_free(document);
        return demo_worker_fail(worker, "no binding (%s)", kvferry_status_name(status));
    }
    char *text = demo_bytes_write(binding, binding_size);
    json_t *message = json_pack("{s:s, s:s, s:s}", "did", "start", "document", document, "binding",
                                text);
    free(text);
    kvferry_free(binding);
    kvferry_free(document);
    return say(worker, message);
}

static int start(demo_worker *worker)
{
    int status = make_layout(worker);
    if (status == TOOL_GO_ON)
        status = open_engine(worker);
    if (status != TOOL_GO_ON)
        return status;
    oracle_worker self = oracle_self(worker);
    oracle_noise(&self);
    return introduce(worker);
}

/* --- steps ----------------------------------------------------------------------------------- */

static int meet_peers(demo_worker *worker, const json_t *message)
{
    const json_t *sources = json_object_get(message, "sources");
    worker->sources = tool_alloc(json_array_size(sources) + 1, sizeof(kvferry_layout *));
    for (size_t i = 0; i < json_array_size(sources); i++) {
        const char *text = json_string_value(json_array_get(sources, i));
        kvferry_status status = kvferry_layout_read_json(text, strlen(text), &worker->sources[i],
                                                         worker->report);
        if (status != KVFERRY_OK)
            return demo_worker_fail(worker, "a prefill worker's document is %s",
                                    kvferry_status_name(status));
        worker->source_count = i + 1;
    }
    if (worker->role == DEMO_PREFILL) {
        int status = demo_send_connect(worker, json_object_get(message, "targets"));
        if (status != TOOL_GO_ON)
            return status;
    }
    return say_done(worker, "connect");
}

static void drop_requests(demo_worker *worker)
{
    for (size_t i = 0; i < worker->request_count; i++)
        kvferry_request_free(worker->requests[i]);
    free(worker->requests);
    free(worker->transfers);
    worker->requests = NULL;
    worker->transfers = NULL;
    worker->request_count = 0;
}

static int take_request(demo_worker *worker, const json_t *document)
{
    char *text = json_dumps(document, JSON_COMPACT);
    if (!text)
        tool_no_memory();
    kvferry_request *request = NULL;
    kvferry_status status = kvferry_request_read_json(text, strlen(text), &request, worker->report);
    free(text);
    if (status != KVFERRY_OK)
        return demo_worker_fail(worker, "a request is %s", kvferry_status_name(status));
    demo_random random = {worker->config->seed + strtoull(request->transfer_id, NULL, 10)};
    worker->requests[worker->request_count] = request;
    worker->transfers[worker->request_count++] = (oracle_transfer){request, demo_random_next(&random)};
    return TOOL_GO_ON;
}

/* The requests of a wave; the prefill side computes them. */
static int take_wave(demo_worker *worker, const json_t *message)
{
    drop_requests(worker);
    const json_t *requests = json_object_get(message, "requests");
    size_t count = json_array_size(requests);
    worker->requests = tool_alloc(count + 1, sizeof(kvferry_request *));
    worker->transfers = tool_alloc(count + 1, sizeof *worker->transfers);
    oracle_worker self = oracle_self(worker);
    for (size_t i = 0; i < count; i++) {
        int status = take_request(worker, json_array_get(requests, i));
        if (status != TOOL_GO_ON)
            return status;
        if (worker->role == DEMO_PREFILL && !oracle_fill(&self, &worker->transfers[i]))
            tool_no_memory();
    }
    return say_done(worker, "fill");
}

/* A decode worker lets its engine work until the parent says that all senders have confirmed. */
static int receive_all(demo_worker *worker)
{
    for (;;) {
        bool heard;
        int status = demo_worker_step(worker, 1000, &heard);
        if (status != TOOL_GO_ON || heard)
            return status;
    }
}

static json_t *finding_json(const oracle_worker *self, const oracle_finding *finding)
{
    char text[1024];
    oracle_finding_text(self, finding, text, sizeof text);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s}", "kind",
                     finding->kind == ORACLE_WRONG ? "wrong" : "stray", "request",
                     finding->transfer_id, "layer", finding->layer, "stream", finding->stream,
                     "group", finding->group, "block", (json_int_t)finding->block, "bytes",
                     (json_int_t)finding->bytes, "offset", (json_int_t)finding->offset, "where",
                     finding->where, "instead", finding->instead, "message", text);
}

static int check(demo_worker *worker)
{
    oracle_worker self = oracle_self(worker);
    oracle_worker *sources = tool_alloc(worker->source_count + 1, sizeof *sources);
    for (size_t i = 0; i < worker->source_count; i++)
        sources[i] = (oracle_worker){.layout = worker->sources[i],
                                     .noise = demo_noise_seed(worker->config, DEMO_PREFILL, i)};
    oracle_result *result = tool_alloc(1, sizeof *result);
    if (!oracle_check(&self, sources, worker->source_count, worker->transfers,
                      worker->request_count, result))
        tool_no_memory();
    json_t *findings = json_array();
    for (size_t i = 0; i < result->finding_count; i++)
        json_array_append_new(findings, finding_json(&self, &result->findings[i]));
    json_t *message = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "did", "check", "checked",
                                (json_int_t)result->checked_bytes, "wanted",
                                (json_int_t)result->wanted_bytes, "wrong",
                                (json_int_t)result->wrong_bytes, "stray",
                                (json_int_t)result->stray_bytes, "more", (json_int_t)result->more,
                                "findings", findings);
    free(result);
    free(sources);
    return say(worker, message);
}

/* TOOL_FINE: this was the last step. */
static int do_step(demo_worker *worker, const json_t *message)
{
    const char *step = demo_text(message, "do");
    if (strcmp(step, "connect") == 0)
        return meet_peers(worker, message);
    if (strcmp(step, "fill") == 0)
        return take_wave(worker, message);
    if (strcmp(step, "move") == 0 && worker->role == DEMO_DECODE)
        return receive_all(worker);
    if (strcmp(step, "move") == 0) {
        int status = demo_send_all(worker);
        return status == TOOL_GO_ON ? say_done(worker, "move") : status;
    }
    if (strcmp(step, "rest") == 0)
        return say_done(worker, "rest");
    if (strcmp(step, "check") == 0)
        return check(worker);
    if (strcmp(step, "quit") == 0)
        return TOOL_FINE;
    return demo_worker_fail(worker, "unknown step \"%s\"", step);
}

static int serve(demo_worker *worker)
{
    int status = start(worker);
    while (status == TOOL_GO_ON) {
        json_t *message = demo_channel_read(worker->fd);
        status = message ? do_step(worker, message) : DEMO_PARENT_GONE;
        json_decref(message);
    }
    return status == DEMO_PARENT_GONE ? TOOL_FAILED : status;
}

/* --- end ------------------------------------------------------------------------------------- */

static void finish(demo_worker *worker)
{
    demo_send_close(worker);
    if (worker->engine)
        kvferry_engine_close(worker->engine);
    for (uint32_t i = 0; worker->mapped && worker->segments &&
                         i < kvferry_layout_segment_count(worker->layout); i++)
        if (worker->segments[i] && worker->segments[i] != MAP_FAILED)
            munmap(worker->segments[i], (size_t)kvferry_layout_segment(worker->layout, i)->bytes);
    drop_requests(worker);
    for (size_t i = 0; i < worker->source_count; i++)
        kvferry_layout_free(worker->sources[i]);
    free(worker->sources);
    free(worker->segments);
    kvferry_layout_free(worker->layout);
    kvferry_report_free(worker->report);
}

int demo_worker_main(const demo_config *config, demo_role role, size_t rank, int fd)
{
    demo_worker worker = {
        .config = config, .role = role, .rank = rank, .fd = fd, .report = tool_report()};
    int status = serve(&worker);
    finish(&worker);
    return status;
}
