/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's workers as nodes of this process. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "try.h"

#define MILLISECOND UINT64_C(1000000)

uint64_t try_noise(uint64_t seed, size_t worker)
{
    demo_random random = {seed + worker};
    return demo_random_next(&random);
}

/* --- life ------------------------------------------------------------------------------------ */

static void say(const char *line)
{
    char *text = tool_name_options(line);
    tool_log("%s", text);
    free(text);
}

static void log_line(void *context, kvferry_log_level level, const char *line)
{
    (void)context;
    (void)level;
    if (!strstr(line, "peer_left")) /* the other side's goodbye is how things end here */
        say(line);
}

static int refuse(kvferry_status status, kvferry_report *report, const char *headline)
{
    if (status == KVFERRY_NO_MEMORY)
        tool_no_memory();
    tool_reasons reasons = {0};
    tool_reasons_take(&reasons, report, NULL);
    tool_reasons_name_options(&reasons);
    if (tool_reasons_count(&reasons))
        return tool_refuse(&reasons, headline, stdout);
    return tool_unexpected("%s: %s", headline, kvferry_status_describe(status));
}

static int start_worker(try_engine *engine, const try_options *options, size_t index,
                        const char *listen)
{
    try_worker *worker = &engine->workers[index];
    const kvferry_layout *layout = engine->side->layouts[index];
    uint32_t count = kvferry_layout_segment_count(layout);
    kvferry_engine_options transport = {.size = sizeof transport, .transport = options->transport,
                                        .name = engine->side->names[index]};
    const kvferry_node_options node = {.size = sizeof node,
                                       .listen = listen,
                                       .leader = index ? try_engine_address(engine) : NULL,
                                       .engine_options = &transport,
                                       .key_file = options->key,
                                       .allowed_keys = options->allowed,
                                       .insecure = options->insecure,
                                       .transfer_ms = 1000 * engine->timeout_s,
                                       .connect_ms = 1000 * engine->timeout_s,
                                       .lease_ms = 2000 * engine->timeout_s,
                                       .verify = options->verify,
                                       .log = log_line,
                                       .log_level = KVFERRY_LOG_WARNING};
    kvferry_node_segment *segments = tool_alloc(count + 1u, sizeof *segments);
    kvferry_report *report = tool_report();
    kvferry_status made = kvferry_node_create(&node, layout, segments, count, &worker->node, report);
    int status = made == KVFERRY_OK ? TOOL_GO_ON : refuse(made, report, "a node could not be started");
    kvferry_report_free(report);
    free(segments);
    if (status != TOOL_GO_ON)
        return status;
    worker->segments = tool_alloc(count + 1u, sizeof *worker->segments);
    for (uint32_t i = 0; i < count; i++)
        worker->segments[i] = kvferry_node_segment_address(worker->node, i);
    oracle_worker self = {layout, worker->segments, worker->noise};
    oracle_noise(&self);
    return TOOL_GO_ON;
}

int try_engine_start(try_engine *engine, const try_options *options, kvferry_side role,
                     const tool_side *side, const char *host, uint64_t seed)
{
    *engine = (try_engine){.role = role, .side = side, .timeout_s = options->timeout};
    engine->workers = tool_alloc(side->count + 1, sizeof *engine->workers);
    int status = TOOL_GO_ON;
    char *listen = tool_text("tcp://%s:0", host);
    for (size_t i = 0; i < side->count && status == TOOL_GO_ON; i++) {
        engine->workers[i].noise = try_noise(seed, i);
        status = start_worker(engine, options, i, listen);
    }
    free(listen);
    return status;
}

void try_engine_stop(try_engine *engine)
{
    size_t count = engine->side ? engine->side->count : 0;
    for (size_t i = 0; i < count; i++)
        if (engine->workers[i].node)
            kvferry_node_drain(engine->workers[i].node, 1000 * engine->timeout_s);
    for (size_t i = 0; i < count; i++) {
        if (engine->workers[i].node)
            kvferry_node_close(engine->workers[i].node);
        tool_reasons_free(&engine->workers[i].result.reasons);
        free(engine->workers[i].segments);
    }
    free(engine->workers);
    *engine = (try_engine){0};
}

const char *try_engine_address(const try_engine *engine)
{
    return kvferry_node_address(engine->workers[0].node);
}

/* --- events ---------------------------------------------------------------------------------- */

void try_engine_clear_results(try_engine *engine)
{
    for (size_t i = 0; i < engine->side->count; i++) {
        tool_reasons_free(&engine->workers[i].result.reasons);
        engine->workers[i].result = (try_result){0};
    }
}

static void take_reasons(tool_reasons *reasons, const kvferry_report *from)
{
    for (size_t i = 0; i < kvferry_report_count(from); i++)
        tool_reasons_add(reasons, kvferry_report_get(from, i));
    tool_reasons_name_options(reasons);
}

static void take_event(const try_engine *engine, try_worker *worker, const kvferry_event *event,
                       const char *transfer_id)
{
    bool ours = event->side == engine->role && strcmp(event->transfer_id, transfer_id) == 0;
    try_result *result = &worker->result;
    if (event->kind == KVFERRY_EVENT_ENDED && ours) {
        result->ended = true;
        result->outcome = event->outcome;
        result->copies = event->copies;
        result->bytes = event->bytes;
        result->elapsed_ns = event->elapsed_ns;
        take_reasons(&result->reasons, event->report);
    } else if (event->kind == KVFERRY_EVENT_RELEASED && ours) {
        result->released = true;
    }
}

static bool take_events(try_engine *engine, const char *transfer_id, bool released)
{
    bool all = true;
    for (size_t i = 0; i < engine->side->count; i++) {
        try_worker *worker = &engine->workers[i];
        kvferry_event *event;
        while ((event = kvferry_node_next_event(worker->node))) {
            take_event(engine, worker, event, transfer_id);
            kvferry_event_free(event);
        }
        all &= released ? worker->result.released : worker->result.ended;
    }
    return all;
}

bool try_engine_wait(try_engine *engine, const char *transfer_id, bool released, int stop)
{
    size_t count = engine->side->count;
    struct pollfd *polls = tool_alloc(count + 1, sizeof *polls);
    for (size_t i = 0; i < count; i++)
        polls[i] = (struct pollfd){.fd = kvferry_node_fd(engine->workers[i].node), .events = POLLIN};
    polls[count] = (struct pollfd){.fd = stop, .events = POLLIN};
    /* The transfer's own deadline comes first: a second more for it to be told. */
    uint64_t end = demo_now_ns() + (engine->timeout_s + 1) * 1000 * MILLISECOND;
    bool all = take_events(engine, transfer_id, released);
    while (!all && !polls[count].revents && demo_now_ns() < end) {
        uint64_t left = (end - demo_now_ns()) / MILLISECOND + 1;
        if (poll(polls, (nfds_t)count + 1, left < 1000 ? (int)left : 1000) < 0 && errno != EINTR)
            break;
        all = take_events(engine, transfer_id, released);
    }
    free(polls);
    return all;
}

json_t *try_result_json(const try_engine *engine, size_t worker)
{
    const try_result *result = &engine->workers[worker].result;
    json_t *reasons = result->reasons.list ? json_incref(result->reasons.list) : json_array();
    json_t *value = json_pack("{s:o, s:s, s:I, s:I, s:I, s:b, s:o}", "worker",
                              tool_json_text(engine->side->names[worker]), "outcome",
                              result->ended ? kvferry_outcome_name(result->outcome) : "unknown", "copies",
                              (json_int_t)result->copies, "bytes", (json_int_t)result->bytes, "elapsed_ns",
                              (json_int_t)result->elapsed_ns, "released", result->released, "reasons",
                              reasons);
    if (!value)
        tool_no_memory();
    return value;
}

void try_print_reasons(const json_t *workers, const char *side)
{
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const json_t *worker = json_array_get(workers, i);
        const json_t *reasons = json_object_get(worker, "reasons");
        for (size_t r = 0; r < json_array_size(reasons); r++) {
            printf("%s ", side);
            tool_put(demo_text(worker, "worker"), stdout);
            printf(": ");
            tool_put(demo_text(json_array_get(reasons, r), "message"), stdout);
            printf(" (");
            tool_put(demo_text(json_array_get(reasons, r), "code"), stdout);
            printf(")\n");
        }
        const json_t *findings = json_object_get(worker, "findings");
        for (size_t f = 0; f < json_array_size(findings); f++) {
            const char *text = json_string_value(json_array_get(findings, f));
            printf("receiver: ");
            tool_put(text ? text : "?", stdout);
            printf("\n");
        }
    }
}

void try_reason(tool_reasons *reasons, const char *code, const char *place, const char *expected, const char *found)
{
    char *message = tool_text("%s: expected %s, found %s", place, expected, found);
    const kvferry_reason reason = {code, "", "", "", "", place, expected, found, message};
    tool_reasons_add(reasons, &reason);
    free(message);
}

void try_take_findings(tool_reasons *reasons, const json_t *workers)
{
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const json_t *worker = json_array_get(workers, i);
        const char *first = json_string_value(json_array_get(json_object_get(worker, "findings"), 0));
        if (first)
            try_reason(reasons, "bytes_wrong", demo_text(worker, "worker"), "every byte right", first);
    }
}

void try_log_reasons(const tool_reasons *reasons)
{
    for (size_t i = 0; i < tool_reasons_count(reasons); i++)
        tool_log("%s", demo_text(json_array_get(reasons->list, i), "message"));
}

/* --- introductions --------------------------------------------------------------------------- */

json_t *try_introduction(const try_engine *engine, uint64_t seed)
{
    json_t *documents = json_array();
    for (size_t i = 0; i < engine->side->count; i++) {
        char *text;
        size_t size;
        if (kvferry_layout_write_json(engine->side->layouts[i], &text, &size) != KVFERRY_OK)
            tool_no_memory();
        json_array_append_new(documents, json_stringn(text, size));
        kvferry_free(text);
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:o}", "try", TRY_PROTOCOL, "version", kvferry_version(),
                     "address", try_engine_address(engine), "seed", (json_int_t)seed, "documents",
                     documents);
}

int try_read_introduction(const json_t *message, const char *who, tool_side *documents, tool_reasons *reasons)
{
    const json_t *list = json_object_get(message, "documents");
    const char *protocol = demo_text(message, "try");
    if (strcmp(protocol, TRY_PROTOCOL) != 0 || !json_array_size(list)) {
        bool other = strcmp(protocol, TRY_PROTOCOL) != 0;
        char *found = other && *protocol ? tool_text("%s", protocol) : tool_text("%s", other ? "another program" : "none");
        try_reason(reasons, "serve_unknown", who, other ? TRY_PROTOCOL : "documents of its workers", found);
        free(found);
        return TOOL_FAILED;
    }
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < json_array_size(list) && status == TOOL_GO_ON; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        kvferry_layout *layout = NULL;
        kvferry_status read = kvferry_layout_read_json(text ? text : "", text ? strlen(text) : 0, &layout, report);
        status = tool_check_status(read, who, reasons, report, who);
        if (read == KVFERRY_OK)
            tool_side_add(documents, layout, tool_text("worker %zu", i));
    }
    kvferry_report_free(report);
    return status == TOOL_GO_ON && tool_reasons_count(reasons) ? TOOL_FAILED : status;
}
