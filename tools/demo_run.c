/* SPDX-License-Identifier: Apache-2.0 */
/* A run from the first worker's start to the last one's end: rounds of requests, each filled, moved and
 * checked by all workers at once. */
#include "demo_run.h"

#include <stdlib.h>
#include <string.h>

enum { PREFILL = 1 << DEMO_PREFILL, DECODE = 1 << DEMO_DECODE };

/* --- what it came to ------------------------------------------------------------------------- */

bool demo_run_right(const demo_run *run)
{
    bool right = !run->failure && json_array_size(run->findings) == 0 && run->more == 0 &&
                 run->wrong == 0 && run->stray == 0;
    for (size_t i = 0; i < run->schedule.count && right; i++)
        right = strcmp(demo_run_verdict(run, &run->schedule.requests[i]), "right") == 0;
    return right;
}

uint64_t demo_run_bytes(const demo_run *run)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < run->schedule.count; i++)
        bytes += run->schedule.requests[i].bytes;
    return bytes;
}

uint64_t demo_run_copies(const demo_run *run)
{
    uint64_t copies = 0;
    for (size_t i = 0; i < run->schedule.count; i++)
        copies += run->schedule.requests[i].copies;
    return copies;
}

const char *demo_run_verdict(const demo_run *run, const demo_request *request)
{
    size_t senders = run->sides[DEMO_PREFILL].count;
    if (request->failure)
        return "failed";
    if (request->findings)
        return "WRONG";
    if (request->stray)
        return "stray";
    return request->sent == senders && request->checks == run->sides[DEMO_DECODE].count
               ? "right" : "not checked";
}

double demo_request_seconds(const demo_request *request)
{
    return request->end_ns > request->begin_ns
               ? (double)(request->end_ns - request->begin_ns) / 1e9 : 0;
}

/* --- what workers say ------------------------------------------------------------------------ */

static demo_request *find_request(demo_run *run, const json_t *message)
{
    uint64_t number = strtoull(demo_text(message, "request"), NULL, 10);
    return number >= 1 && number <= run->schedule.count ? &run->schedule.requests[number - 1] : NULL;
}

static void hear_start(void *context, const demo_process *process, json_t *message)
{
    demo_run *run = context;
    json_array_set(run->documents[process->role], process->rank,
                   json_object_get(message, "document"));
    json_array_set(run->addresses[process->role], process->rank, json_object_get(message, "address"));
}

/* How many requests of the wave are under way. */
static size_t wave_size(const demo_run *run)
{
    size_t size = 0;
    for (size_t i = 0; i < run->schedule.count; i++)
        size += run->schedule.requests[i].wave == run->wave;
    return size;
}

static uint64_t wave_sent(const demo_run *run)
{
    uint64_t sent = 0;
    for (size_t i = 0; i < run->schedule.count; i++)
        if (run->schedule.requests[i].wave == run->wave)
            sent += run->schedule.requests[i].sent;
    return sent;
}

static void take_sent(demo_run *run, demo_request *request, const json_t *message)
{
    uint64_t begin = demo_number(message, "begin_ns"), end = demo_number(message, "end_ns");
    if (request->sent == 0 || begin < request->begin_ns)
        request->begin_ns = begin;
    if (end > request->end_ns)
        request->end_ns = end;
    request->sent++;
    request->copies += demo_number(message, "copies");
    request->bytes += demo_number(message, "bytes");
    run->planted += demo_number(message, "planted");
    demo_bar_draw(run, "moving", 0.3 + 0.4 * (double)wave_sent(run) /
                                           (double)(run->sides[DEMO_PREFILL].count * wave_size(run)));
}

static void hear_end(void *context, const demo_process *process, json_t *message)
{
    demo_run *run = context;
    demo_request *request = find_request(run, message);
    if (!request || strcmp(demo_text(message, "did"), "end") != 0)
        return;
    if (process->role == DEMO_PREFILL)
        take_sent(run, request, message);
    if (strcmp(demo_text(message, "outcome"), "done") != 0 && !request->failure)
        request->failure = tool_text("%s: %s: %s", process->name, demo_text(message, "outcome"),
                                     demo_text(message, "detail"));
}

/* Workers answer in any order; their findings are kept in the order of ranks. */
static void hear_check(void *context, const demo_process *process, json_t *message)
{
    demo_run *run = context;
    if (strcmp(demo_text(message, "did"), "check") == 0)
        json_array_set(run->checks, process->rank, message);
}

static void take_findings(demo_run *run, const char *worker, const json_t *findings)
{
    for (size_t i = 0; i < json_array_size(findings); i++) {
        json_t *finding = json_array_get(findings, i);
        demo_request *request = find_request(run, finding);
        if (request)
            request->findings++;
        json_object_set_new(finding, "worker", tool_json_text(worker));
        json_object_set_new(finding, "round", json_integer((json_int_t)run->wave + 1));
        json_array_append(run->findings, finding);
    }
}

static void take_check(demo_run *run, const char *worker, const json_t *message)
{
    run->checked += demo_number(message, "checked");
    run->wrong += demo_number(message, "wrong");
    run->stray += demo_number(message, "stray");
    run->more += demo_number(message, "more");
    take_findings(run, worker, json_object_get(message, "findings"));
    for (size_t i = 0; i < run->schedule.count; i++) {
        demo_request *request = &run->schedule.requests[i];
        if (request->wave != run->wave)
            continue;
        request->checks++;
        request->stray |= demo_number(message, "stray") > 0;
    }
}

/* --- steps ----------------------------------------------------------------------------------- */

static void tell(demo_run *run, demo_role role, const char *step)
{
    demo_fleet_tell(&run->fleet, role, json_pack("{s:s}", "do", step));
}

static json_t *empty_array(size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_null());
    return array;
}

static json_t *introduction(const demo_run *run)
{
    return json_pack("{s:s, s:[O,O], s:[O,O]}", "do", "connect", "documents", run->documents[DEMO_PREFILL],
                     run->documents[DEMO_DECODE], "leaders", json_array_get(run->addresses[DEMO_PREFILL], 0),
                     json_array_get(run->addresses[DEMO_DECODE], 0));
}

static int introduce(demo_run *run)
{
    demo_bar_draw(run, "starting workers", 0);
    int status = demo_fleet_wait(&run->fleet, PREFILL | DECODE, "start", hear_start, run);
    if (status != TOOL_GO_ON)
        return status;
    demo_fleet_tell(&run->fleet, DEMO_PREFILL, introduction(run));
    demo_fleet_tell(&run->fleet, DEMO_DECODE, introduction(run));
    return demo_fleet_wait(&run->fleet, PREFILL | DECODE, "connect", NULL, NULL);
}

static int fill(demo_run *run)
{
    demo_bar_draw(run, "filling", 0.1);
    json_t *requests = json_array();
    for (size_t i = 0; i < run->schedule.count; i++)
        if (run->schedule.requests[i].wave == run->wave)
            json_array_append_new(requests, demo_request_json(&run->schedule.requests[i]));
    for (int role = 0; role < DEMO_ROLES; role++)
        demo_fleet_tell(&run->fleet, (demo_role)role,
                        json_pack("{s:s, s:O}", "do", "fill", "requests", requests));
    json_decref(requests);
    return demo_fleet_wait(&run->fleet, PREFILL | DECODE, "fill", NULL, NULL);
}

static int move(demo_run *run)
{
    demo_bar_draw(run, "moving", 0.3);
    tell(run, DEMO_DECODE, "move");
    tell(run, DEMO_PREFILL, "move");
    return demo_fleet_wait(&run->fleet, PREFILL | DECODE, "move", hear_end, run);
}

/* The decode side looks at what it got. */
static int check(demo_run *run)
{
    demo_bar_draw(run, "checking", 0.7);
    tell(run, DEMO_DECODE, "check");
    int status = demo_fleet_wait(&run->fleet, DECODE, "check", hear_check, run);
    if (status != TOOL_GO_ON)
        return status;
    size_t first = run->sides[DEMO_PREFILL].count; /* of the decode processes */
    for (size_t i = 0; i < run->sides[DEMO_DECODE].count; i++)
        take_check(run, run->fleet.processes[first + i].name, json_array_get(run->checks, i));
    return TOOL_GO_ON;
}

static int quit(demo_run *run, demo_role role)
{
    tell(run, role, "quit");
    return demo_fleet_wait(&run->fleet, 1u << role, "quit", NULL, NULL);
}

/* Nothing is under way any more: what still arrives is a fault. So everything is checked once more when the
 * senders are gone. */
static int settle(demo_run *run)
{
    int status = fill(run);
    if (status == TOOL_GO_ON)
        status = move(run);
    if (status == TOOL_GO_ON)
        status = quit(run, DEMO_PREFILL);
    if (status == TOOL_GO_ON)
        status = check(run);
    if (status == TOOL_GO_ON)
        status = quit(run, DEMO_DECODE);
    return status;
}

static int go(demo_run *run)
{
    int status = demo_fleet_start(&run->fleet, &run->config, run->sides);
    if (status == TOOL_GO_ON)
        status = introduce(run);
    for (run->wave = 0; run->wave < run->schedule.waves && status == TOOL_GO_ON; run->wave++) {
        status = fill(run);
        if (status == TOOL_GO_ON)
            status = move(run);
        if (status == TOOL_GO_ON)
            status = check(run);
        if (status != TOOL_GO_ON)
            break;
    }
    return status == TOOL_GO_ON ? settle(run) : status;
}

void demo_run_go(demo_run *run)
{
    for (int role = 0; role < DEMO_ROLES; role++) {
        run->documents[role] = empty_array(run->sides[role].count);
        run->addresses[role] = empty_array(run->sides[role].count);
    }
    run->findings = json_array();
    run->checks = empty_array(run->sides[DEMO_DECODE].count);
    run->begin_ns = demo_now_ns();
    go(run);
    if (run->fleet.failure)
        run->failure = tool_text("%s", run->fleet.failure);
    demo_fleet_end(&run->fleet);
    run->end_ns = demo_now_ns();
    demo_bar_clear();
}

void demo_run_free(demo_run *run)
{
    for (int role = 0; role < DEMO_ROLES; role++) {
        json_decref(run->documents[role]);
        json_decref(run->addresses[role]);
        tool_side_free(&run->sides[role]);
    }
    json_decref(run->findings);
    json_decref(run->checks);
    demo_schedule_free(&run->schedule);
    tool_model_free(&run->config.model);
    free(run->failure);
}
