/* SPDX-License-Identifier: Apache-2.0 */
/* A worker process: its caches, its node, and the steps that the parent asks for. */
#include "demo_worker.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

/* Document and address, for the others. */
static int introduce(demo_worker *worker)
{
    char *document = NULL;
    size_t size;
    if (kvferry_layout_write_json(worker->layout, &document, &size) != KVFERRY_OK)
        tool_no_memory();
    json_t *message = json_pack("{s:s, s:s, s:s}", "did", "start", "document", document, "address",
                                kvferry_node_address(worker->node));
    kvferry_free(document);
    return say(worker, message);
}

static int start(demo_worker *worker)
{
    int status = make_layout(worker);
    if (status == TOOL_GO_ON)
        status = demo_move_start(worker);
    if (status != TOOL_GO_ON)
        return status;
    oracle_worker self = oracle_self(worker);
    oracle_noise(&self);
    return introduce(worker);
}

/* --- steps ----------------------------------------------------------------------------------- */

static int read_documents(demo_worker *worker, demo_role role, const json_t *texts)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        kvferry_layout *layout;
        kvferry_status status = kvferry_layout_read_json(text, strlen(text), &layout, worker->report);
        if (status != KVFERRY_OK)
            return demo_worker_fail(worker, "a %s worker's document is %s", demo_role_name(role),
                                    kvferry_status_name(status));
        tool_side_add(&worker->sides[role], layout, tool_text("%zu", i));
    }
    return TOOL_GO_ON;
}

static int meet_peers(demo_worker *worker, const json_t *message)
{
    const json_t *documents = json_object_get(message, "documents");
    const json_t *leaders = json_object_get(message, "leaders");
    int status = TOOL_GO_ON;
    for (int role = 0; role < DEMO_ROLES && status == TOOL_GO_ON; role++)
        status = read_documents(worker, (demo_role)role, json_array_get(documents, (size_t)role));
    if (status != TOOL_GO_ON)
        return status;
    worker->where = tool_text("%s", json_string_value(json_array_get(leaders, DEMO_PREFILL)));
    status = demo_move_connect(worker, json_string_value(json_array_get(leaders, worker->role)));
    return status == TOOL_GO_ON ? say_done(worker, "connect") : status;
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
    const tool_side *prefill = &worker->sides[DEMO_PREFILL];
    oracle_worker *sources = tool_alloc(prefill->count + 1, sizeof *sources);
    for (size_t i = 0; i < prefill->count; i++)
        sources[i] = (oracle_worker){.layout = prefill->layouts[i],
                                     .noise = demo_noise_seed(worker->config, DEMO_PREFILL, i)};
    oracle_result *result = tool_alloc(1, sizeof *result);
    if (!oracle_check(&self, sources, prefill->count, worker->transfers,
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
    if (strcmp(step, "move") == 0) {
        int status = demo_move_all(worker);
        return status == TOOL_GO_ON ? say_done(worker, "move") : status;
    }
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
    demo_move_close(worker);
    drop_requests(worker);
    for (int role = 0; role < DEMO_ROLES; role++)
        tool_side_free(&worker->sides[role]);
    free(worker->where);
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
