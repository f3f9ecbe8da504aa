/* SPDX-License-Identifier: Apache-2.0 */
/* The one value that --json prints. */
#include "demo_run.h"

static json_t *request_json(const demo_run *run, const demo_request *request)
{
    json_t *object = json_pack(
        "{s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:s}", "request",
        (json_int_t)request->number, "round", (json_int_t)request->wave + 1, "kind",
        demo_kind_name(request->kind), "prompt", (json_int_t)request->prompt, "hit",
        (json_int_t)request->hit, "tokens", (json_int_t)request->tokens, "copies",
        (json_int_t)request->copies, "bytes", (json_int_t)request->bytes, "seconds",
        demo_request_seconds(request), "verdict", demo_run_verdict(run, request));
    if (request->failure)
        json_object_set_new(object, "failure", tool_json_text(request->failure));
    return object;
}

static json_t *topology_json(const tool_topology *topology)
{
    return json_pack("{s:I, s:I}", "tp", (json_int_t)topology->tp, "pp", (json_int_t)topology->pp);
}

json_t *demo_run_json(const demo_run *run)
{
    json_t *requests = json_array();
    for (size_t i = 0; i < run->schedule.count; i++)
        json_array_append_new(requests, request_json(run, &run->schedule.requests[i]));
    json_t *value = json_pack(
        "{s:b, s:o, s:o, s:o, s:s, s:s, s:I, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:O, s:I, s:f}", "ok",
        demo_run_right(run), "model", tool_json_text(run->config.model.name), "prefill",
        topology_json(&run->config.topology[DEMO_PREFILL]), "decode",
        topology_json(&run->config.topology[DEMO_DECODE]), "engine", run->config.engine, "transport",
        run->config.transport,
        "seed", (json_int_t)run->config.seed, "break", demo_fault_name(run->config.fault), "requests",
        requests, "copies", (json_int_t)demo_run_copies(run), "bytes",
        (json_int_t)demo_run_bytes(run), "checked_bytes", (json_int_t)run->checked, "wrong_bytes",
        (json_int_t)run->wrong, "stray_bytes", (json_int_t)run->stray, "findings", run->findings,
        "more_findings", (json_int_t)run->more, "seconds",
        (double)(run->end_ns - run->begin_ns) / 1e9);
    if (value && run->failure)
        json_object_set_new(value, "failure", tool_json_text(run->failure));
    return value;
}
