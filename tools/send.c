/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry send: a prefill engine that has a `kvferry serve` fetch requests, and says what came of it. */
#include <kvferry/node.h>

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "try.h"

typedef struct sender {
    try_options options;
    const char *address; /* of the `serve` */
    uint64_t tokens, requests;
    int fd;
    uint64_t seed, most; /* tokens that both sides can hold */
    tool_side side, targets;
    try_engine engine;
    demo_pools pools;
    demo_random random;
    json_t *introduction; /* the receiver's */
    json_t *results;      /* one a request */
    uint64_t right;
} sender;

static int parse(int argc, char **argv, sender *s)
{
    tool_option options[TRY_OPTION_LIMIT] = {
        {"tokens", 'n', TOOL_NUMBER, &s->tokens, "N",
         "tokens of a request (default 1000; fewer where the memory is small)", 1, UINT64_C(1) << 30},
        {"requests", 'r', TOOL_NUMBER, &s->requests, "N", "how many, one after the other (default 1)", 1,
         1000000},
    };
    size_t count = 2 + try_option_rows(&s->options, "prefill", options + 2);
    const tool_usage usage = {
        .synopsis = "ADDRESS --model FILE|NAME [options]\nADDRESS --layout FILE... [options]",
        .about = "Starts the workers of a prefill engine, with memory of their own, and has the engine of\n"
                 "'kvferry serve' at ADDRESS (as it printed it) fetch requests from them. The receiver looks at\n"
                 "every byte of its memory. What does not work is said with every reason that either side has.",
        .options = options,
        .option_count = count,
        .notes = "The workers listen at the address that leads to the receiver; other addresses than loopback\n"
                 "need keys on both sides, or --insecure.\n"
                 "Exit status 1: it was refused, it failed, or a byte is wrong.",
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand + 1 != argc)
        return tool_misuse("ADDRESS", "one address", operand < argc ? argv[operand + 1] : "none");
    s->address = argv[operand];
    return TOOL_GO_ON;
}

/* --- before anything moves ------------------------------------------------------------------- */

/* Every reason why the two cannot work together, as the nodes will find it too. */
static int compare(const sender *s)
{
    tool_reasons reasons = {0};
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < s->targets.count && status == TOOL_GO_ON; i++) {
        kvferry_plan *plan = NULL;
        kvferry_status made = kvferry_plan_create((const kvferry_layout *const *)s->side.layouts,
                                                  s->side.count, s->targets.layouts[i], &plan, report);
        status = tool_check_status(made, s->address, &reasons, report, NULL);
        kvferry_plan_free(plan);
    }
    kvferry_report_free(report);
    if (status == TOOL_GO_ON && tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "the two engines do not fit", stdout);
    tool_reasons_free(&reasons);
    return status;
}

static void print_heads(const sender *s)
{
    const char *theirs = demo_text(s->introduction, "version");
    printf("sender    %zu %s of %s at %s, kvferry %s\n", s->side.count,
           s->side.count == 1 ? "worker" : "workers", kvferry_layout_engine_id(s->side.layouts[0]),
           try_engine_address(&s->engine), kvferry_version());
    printf("receiver  %zu %s of ", s->targets.count, s->targets.count == 1 ? "worker" : "workers");
    tool_put(kvferry_layout_engine_id(s->targets.layouts[0]), stdout);
    printf(" at ");
    tool_put(demo_text(s->introduction, "address"), stdout);
    printf(", kvferry ");
    tool_put(theirs, stdout);
    printf("\n");
    if (strcmp(theirs, kvferry_version()) != 0)
        tool_log("the two sides have other versions of kvferry");
    fflush(stdout);
}

/* Both sides say who they are; the layouts must fit before a node is started. */
static int introduce(sender *s, const char *host)
{
    json_t *hello = json_pack("{s:s, s:s}", "try", TRY_PROTOCOL, "version", kvferry_version());
    if (!demo_channel_write(s->fd, hello)) {
        tool_log("%s: the connection was closed", s->address);
        return TOOL_FAILED;
    }
    s->introduction = demo_channel_read(s->fd);
    int status = try_read_introduction(s->introduction, s->address, &s->targets);
    if (status == TOOL_GO_ON)
        status = compare(s);
    if (status == TOOL_GO_ON)
        status = try_engine_start(&s->engine, &s->options, KVFERRY_SIDE_PREFILL, &s->side, host, s->seed);
    if (status == TOOL_GO_ON && !demo_channel_write(s->fd, try_introduction(&s->engine, s->seed)))
        status = TOOL_FAILED;
    return status;
}

/* --- one request ----------------------------------------------------------------------------- */

/* The tables as the library takes them; free() it. */
static kvferry_block_table *tables_of(const demo_tables *tables)
{
    kvferry_block_table *list = tool_alloc(tables->count + 1, sizeof *list);
    for (size_t i = 0; i < tables->count; i++)
        list[i] = (kvferry_block_table){tables->items[i].group, tables->items[i].first_token,
                                        tables->items[i].blocks, tables->items[i].count};
    return list;
}

static int offer(sender *s, const char *id, const demo_request *request, kvferry_report *report)
{
    kvferry_block_table *tables = tables_of(&request->tables[DEMO_PREFILL]);
    size_t count = request->tables[DEMO_PREFILL].count;
    const kvferry_request whole = {.transfer_id = id, .source_tokens = request->tokens,
                                   .target_tokens = request->tokens, .source = tables,
                                   .source_count = count};
    const oracle_transfer transfer = {&whole, s->seed + request->number};
    const kvferry_offer offered = {.size = sizeof offered, .transfer_id = id,
                                   .tokens = request->tokens, .tables = tables, .table_count = count,
                                   .readiness = KVFERRY_READY};
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < s->side.count && status == TOOL_GO_ON; i++) {
        oracle_worker self = {s->side.layouts[i], s->engine.workers[i].segments,
                              s->engine.workers[i].noise};
        if (!oracle_fill(&self, &transfer))
            tool_no_memory();
        kvferry_status answer = kvferry_node_offer(s->engine.workers[i].node, &offered, report);
        tool_reasons reasons = {0};
        status = tool_check_status(answer, "the offer", &reasons, report, NULL);
        if (status == TOOL_GO_ON && answer != KVFERRY_OK)
            status = tool_refuse(&reasons, "the request cannot be offered", stdout);
        tool_reasons_free(&reasons);
    }
    free(tables);
    return status;
}

/* What this side knows of a request that did not go well. */
static json_t *own_results(const sender *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->side.count; i++)
        json_array_append_new(list, try_result_json(&s->engine, i));
    return list;
}

static int finish(sender *s, const char *id, const demo_request *request, json_t *answer)
{
    bool right = answer && json_is_true(json_object_get(answer, "right"));
    if (!answer)
        tool_log("%s: the receiver did not answer within %llu seconds", s->address,
                 (unsigned long long)s->options.timeout);
    for (size_t i = 0; i < s->side.count && !right; i++) /* nobody will ask for it any more */
        kvferry_node_abort(s->engine.workers[i].node, KVFERRY_SIDE_PREFILL, id);
    bool released = try_engine_wait(&s->engine, id, true, -1);
    if (!released)
        tool_log("request %s: its blocks are not released yet", id);
    s->right += right && released;
    json_t *result = answer ? json_incref(answer) : json_object();
    json_object_set_new(result, "request", json_string(id));
    json_object_set_new(result, "tokens", json_integer((json_int_t)request->tokens));
    json_object_set_new(result, "released", json_boolean(released));
    json_object_set_new(result, "sources", own_results(s));
    json_array_append_new(s->results, result);
    return right && released ? TOOL_GO_ON : TOOL_FAILED;
}

static int move(sender *s, uint32_t number)
{
    demo_request request = {.number = number, .tokens = s->tokens < s->most ? s->tokens : s->most};
    char *id = tool_text("try-%016llx-%u", (unsigned long long)s->seed, number);
    kvferry_report *report = tool_report();
    demo_tables_take(&s->pools, (demo_extent){request.tokens, 0}, &s->random,
                     &request.tables[DEMO_PREFILL]);
    try_engine_clear_results(&s->engine);
    int status = offer(s, id, &request, report);
    if (status == TOOL_GO_ON) {
        json_t *message = demo_request_json(&request);
        json_object_set_new(message, "transfer_id", json_string(id));
        json_t *wrapped = json_pack("{s:o, s:I}", "request", message, "seed",
                                    (json_int_t)(s->seed + number));
        json_t *answer = demo_channel_write(s->fd, wrapped) ? demo_channel_read(s->fd) : NULL;
        status = finish(s, id, &request, answer);
        json_decref(answer);
    }
    demo_tables_give_back(&s->pools, &request.tables[DEMO_PREFILL]);
    demo_tables_free(&request.tables[DEMO_PREFILL]);
    kvferry_report_free(report);
    free(id);
    return status;
}

/* --- output ---------------------------------------------------------------------------------- */

static void print_worker(tool_table *table, const json_t *request, const json_t *worker)
{
    char *time = tool_text("%.2f ms", (double)demo_number(worker, "elapsed_ns") / 1e6);
    const char *cells[] = {demo_text(request, "request"), demo_text(worker, "worker"),
                           tool_number(demo_number(request, "tokens")),
                           tool_number(demo_number(worker, "copies")),
                           tool_number(demo_number(worker, "bytes")), time,
                           demo_text(worker, "outcome"), demo_text(worker, "check")};
    tool_table_row(table, cells);
    free(time);
}

static void print_text(const sender *s)
{
    static const char *const columns[] = {"request", "receiver", ">tokens", ">copies",
                                          ">bytes",  ">time",    "outcome", "bytes"};
    tool_table *table = tool_table_create(columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < json_array_size(s->results); i++) {
        const json_t *request = json_array_get(s->results, i);
        const json_t *workers = json_object_get(request, "workers");
        for (size_t w = 0; w < json_array_size(workers); w++)
            print_worker(table, request, json_array_get(workers, w));
    }
    tool_table_print(table);
    for (size_t i = 0; i < json_array_size(s->results); i++) {
        const json_t *request = json_array_get(s->results, i);
        try_print_reasons(json_object_get(request, "workers"), "receiver");
        try_print_reasons(json_object_get(request, "sources"), "sender");
    }
    printf("%llu of %llu requests: every byte right\n", (unsigned long long)s->right,
           (unsigned long long)s->requests);
}

static int conclude(sender *s)
{
    bool ok = s->right == s->requests;
    if (tool_json())
        tool_print_json(json_pack("{s:b, s:s, s:s, s:O, s:I}", "ok", ok, "address",
                                  try_engine_address(&s->engine), "version", kvferry_version(),
                                  "requests", s->results, "right", (json_int_t)s->right));
    else
        print_text(s);
    return ok ? TOOL_FINE : TOOL_FAILED;
}

/* --- the run --------------------------------------------------------------------------------- */

static int run(sender *s)
{
    char *host = NULL;
    int status = try_side_make(&s->options, &s->side);
    if (status == TOOL_GO_ON)
        status = try_dial(s->address, s->options.timeout, &s->fd, &host);
    if (status == TOOL_GO_ON)
        status = introduce(s, host);
    free(host);
    if (status != TOOL_GO_ON)
        return status;
    if (!tool_json())
        print_heads(s);
    s->random = (demo_random){s->seed};
    demo_pools_create(&s->side, &s->random, &s->pools);
    s->most = demo_pools_most(&s->pools, 1, s->tokens);
    uint64_t theirs = demo_number(s->introduction, "most");
    if (theirs < s->most)
        s->most = theirs;
    s->results = json_array();
    /* The receiver may wait for its deadline, and look at all of its memory. */
    try_set_patience(s->fd, 3 * s->options.timeout);
    for (uint32_t i = 1; i <= s->requests && s->most && status == TOOL_GO_ON; i++)
        status = move(s, i);
    if (!s->most) {
        tool_log("the memory is too small for a single token: more --blocks are needed");
        return TOOL_FAILED;
    }
    return json_array_size(s->results) ? conclude(s) : status;
}

int tool_send(int argc, char **argv)
{
    sender s = {.tokens = 1000, .requests = 1, .fd = -1};
    int status = parse(argc, argv, &s);
    if (status != TOOL_GO_ON)
        return status;
    if (getrandom(&s.seed, sizeof s.seed, 0) != (ssize_t)sizeof s.seed)
        return tool_unexpected("no random number");
    s.seed >>= 2; /* sums of it stay numbers of JSON */
    status = run(&s);
    if (s.fd >= 0)
        close(s.fd);
    try_engine_stop(&s.engine);
    demo_pools_free(&s.pools);
    tool_side_free(&s.side);
    tool_side_free(&s.targets);
    tool_list_free(&s.options.layouts);
    json_decref(s.introduction);
    json_decref(s.results);
    return status;
}
