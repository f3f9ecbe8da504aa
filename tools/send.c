/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry send: a prefill engine that has a `kvferry serve` fetch requests, and says what came of it. */
#include <kvferry/node.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "try.h"

/* Times --timeout: the receiver may wait for its deadline, and look at all of its memory. */
enum { PATIENCE = 3 };

#define DEFAULT_TOKENS 1000

typedef struct sender {
    try_options options;
    const char *address; /* of the `serve` */
    uint64_t tokens, requests;
    bool tokens_given;
    int fd;
    uint64_t seed, most; /* tokens that both sides can hold */
    tool_side side, targets;
    try_engine engine;
    demo_pools pools;
    demo_random random;
    json_t *introduction; /* the receiver's */
    json_t *results;      /* one a request */
    tool_reasons reasons; /* why the receiver did not answer */
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
    s->tokens_given = s->tokens != 0;
    s->tokens = s->tokens ? s->tokens : DEFAULT_TOKENS;
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

/* Why the receiver's word did not come, as errno tells. */
static void take_silence(sender *s, const char *wanted, uint64_t seconds)
{
    bool late = errno == EAGAIN || errno == EWOULDBLOCK;
    char *expected = late ? tool_text("%s within %llu s", wanted, (unsigned long long)seconds) : tool_text("%s", wanted);
    if (late)
        try_reason(&s->reasons, "serve_silent", s->address, expected,
                   "a connection and no word: it is busy, perhaps with another sender, hangs, or is no 'kvferry serve'");
    else if (errno == EPROTO)
        try_reason(&s->reasons, "serve_unknown", s->address, expected, "another program");
    else
        try_reason(&s->reasons, "serve_gone", s->address, expected,
                   "the end of the connection: it was stopped, or has sent this one away, as its messages say");
    free(expected);
}

/* The reasons so far, where nothing else is printed. */
static int give_up(sender *s)
{
    try_log_reasons(&s->reasons);
    if (tool_json())
        return tool_refuse(&s->reasons, "", stdout);
    tool_reasons_free(&s->reasons);
    return TOOL_FAILED;
}

static int read_answer(sender *s)
{
    s->introduction = demo_channel_read(s->fd);
    if (!s->introduction) {
        take_silence(s, "an answer of 'kvferry serve'", s->options.timeout);
        return give_up(s);
    }
    int status = try_read_introduction(s->introduction, s->address, &s->targets, &s->reasons);
    return status == TOOL_FAILED ? give_up(s) : status;
}

/* Both sides say who they are; the layouts must fit before a node is started. */
static int introduce(sender *s, const char *host)
{
    json_t *hello = json_pack("{s:s, s:s}", "try", TRY_PROTOCOL, "version", kvferry_version());
    demo_channel_write(s->fd, hello); /* where that fails, so does reading */
    int status = read_answer(s);
    if (status == TOOL_GO_ON)
        status = compare(s);
    if (status == TOOL_GO_ON)
        status = try_engine_start(&s->engine, &s->options, KVFERRY_SIDE_PREFILL, &s->side, host, s->seed);
    if (status == TOOL_GO_ON && !demo_channel_write(s->fd, try_introduction(&s->engine, s->seed))) {
        take_silence(s, "it to take who this side is", s->options.timeout);
        status = give_up(s);
    }
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
        status = tool_check_status(answer, "the offer", &s->reasons, report, NULL);
        if (status == TOOL_GO_ON && answer != KVFERRY_OK)
            status = TOOL_FAILED;
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
    for (size_t i = 0; i < s->side.count && !right; i++) /* nobody will ask for it any more */
        kvferry_node_abort(s->engine.workers[i].node, KVFERRY_SIDE_PREFILL, id);
    bool released = try_engine_wait(&s->engine, id, true, -1);
    if (!released)
        try_reason(&s->reasons, "not_released", id, "the blocks to be released", "blocks that may still be read");
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
    demo_tables_take(&s->pools, (demo_extent){.tokens = request.tokens}, &s->random,
                     &request.tables[DEMO_PREFILL]);
    try_engine_clear_results(&s->engine);
    int status = offer(s, id, &request, report);
    if (status == TOOL_GO_ON) {
        json_t *message = demo_request_json(&request);
        json_object_set_new(message, "transfer_id", json_string(id));
        json_t *wrapped = json_pack("{s:o, s:I}", "request", message, "seed",
                                    (json_int_t)(s->seed + number));
        demo_channel_write(s->fd, wrapped); /* where that fails, so does reading */
        json_t *answer = demo_channel_read(s->fd);
        if (!answer)
            take_silence(s, "the outcome of a request", PATIENCE * s->options.timeout);
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

static void take_reasons(json_t *list, const json_t *workers)
{
    for (size_t i = 0; i < json_array_size(workers); i++)
        json_array_extend(list, json_object_get(json_array_get(workers, i), "reasons"));
}

/* All reasons of both sides, and those of the connection between them. */
static json_t *all_reasons(sender *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(s->results); i++) {
        const json_t *request = json_array_get(s->results, i);
        take_reasons(list, json_object_get(request, "workers"));
        take_reasons(list, json_object_get(request, "sources"));
        try_take_findings(&s->reasons, json_object_get(request, "workers"));
    }
    json_array_extend(list, s->reasons.list);
    return list;
}

static void print_json(sender *s, bool ok)
{
    json_t *value = json_pack("{s:b, s:s, s:s, s:O, s:I}", "ok", ok, "address", try_engine_address(&s->engine),
                              "version", kvferry_version(), "requests", s->results, "right", (json_int_t)s->right);
    if (!ok)
        json_object_set_new(value, "reasons", all_reasons(s));
    tool_print_json(value);
}

static int conclude(sender *s)
{
    bool ok = s->right == s->requests;
    try_log_reasons(&s->reasons);
    if (tool_json())
        print_json(s, ok);
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
    uint64_t theirs = demo_number(s->introduction, "most"), own = s->most;
    if (theirs < s->most)
        s->most = theirs;
    if (!s->most)
        return tool_fail("memory_small", theirs ? "--blocks" : s->address, "room for a request of one token", "none");
    if (s->tokens_given && s->most < s->tokens)
        tool_log("requests of %s instead of %s: the memory of the %s holds no more (--blocks)",
                 tool_count(s->most, "token"), tool_number(s->tokens), own <= theirs ? "sender" : "receiver");
    s->results = json_array();
    try_set_patience(s->fd, PATIENCE * s->options.timeout);
    for (uint32_t i = 1; i <= s->requests && status == TOOL_GO_ON; i++)
        status = move(s, i);
    return status == TOOL_UNEXPECTED ? status : conclude(s);
}

int tool_send(int argc, char **argv)
{
    sender s = {.requests = 1, .fd = -1};
    int status = parse(argc, argv, &s);
    if (status != TOOL_GO_ON)
        return status;
    if (getrandom(&s.seed, sizeof s.seed, 0) != (ssize_t)sizeof s.seed)
        return tool_unexpected("no random number");
    s.seed >>= 2; /* sums of it stay numbers of JSON */
    status = run(&s);
    try_engine_stop(&s.engine); /* before the receiver may end: that it goes is nothing to warn of */
    if (s.fd >= 0)
        close(s.fd);
    demo_pools_free(&s.pools);
    tool_side_free(&s.side);
    tool_side_free(&s.targets);
    tool_list_free(&s.options.layouts);
    json_decref(s.introduction);
    json_decref(s.results);
    tool_reasons_free(&s.reasons);
    return status;
}
