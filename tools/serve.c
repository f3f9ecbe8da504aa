/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry serve: a decode engine that waits for `kvferry send`, fetches what that offers, and looks at every byte. */
#include <kvferry/node.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "try.h"

#define TOKENS_MOST (UINT64_C(1) << 30) /* of a request */

enum { MEET_S = 5 }; /* until a sender that connected must have said who it is: others wait */

typedef struct server {
    try_options options;
    const char *listen;
    bool once;
    int fd, signals;
    char *bound;
    uint64_t seed;
    tool_side side;
    try_engine engine;
    demo_pools pools;
    demo_random random;
    uint64_t requests, right;
    tool_reasons reasons; /* of requests that did not go well */
} server;

/* A sender that is connected. */
typedef struct client {
    int fd;
    char *name;
    const char *where; /* the address of its leader */
    json_t *introduction;
    tool_side sources;
} client;

static int parse(int argc, char **argv, server *s)
{
    tool_option options[TRY_OPTION_LIMIT] = {
        {"listen", 0, TOOL_STRING, &s->listen, "HOST:PORT",
         "where to wait; the workers listen at ports of their own on that host\n"
         "(default 127.0.0.1:0: any port)", 0, 0},
        {"once", 0, TOOL_FLAG, &s->once, NULL, "end when the first sender that fits has gone", 0, 0},
        {"verify", 0, TOOL_FLAG, &s->options.verify, NULL,
         "the senders' checksums are compared, besides the look at every byte", 0, 0},
    };
    size_t count = 3 + try_option_rows(&s->options, "decode", options + 3);
    const tool_usage usage = {
        .synopsis = "--model FILE|NAME [options]\n--layout FILE... [options]",
        .about = "Starts the workers of a decode engine, with memory of their own, and waits: 'kvferry send'\n"
                 "in another shell, or on another machine, has it fetch requests. After each, every byte of\n"
                 "the memory is looked at. Ends with an interrupt.",
        .options = options,
        .option_count = count,
        .notes = "What 'send' and 'serve' tell each other besides the nodes' own messages is not encrypted,\n"
                 "and anybody who reaches the address may send: for networks that you trust.",
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status == TOOL_GO_ON && operand < argc)
        return tool_misuse("operand", "none", argv[operand]);
    return status;
}

/* --- one request ----------------------------------------------------------------------------- */

/* Reads what the sender says of a request, and puts blocks of this engine's own into it. */
static int make_request(server *s, const client *c, const json_t *message, demo_tables *tables,
                        kvferry_request **request, kvferry_report *report)
{
    json_t *document = json_deep_copy(json_object_get(message, "request"));
    uint64_t tokens = demo_number(document, "tokens");
    if (!document || !tokens || tokens > demo_pools_most(&s->pools, 1, tokens)) {
        json_decref(document);
        tool_log("%s: expected a request of 1 to %s, as the memory holds, found one of %s", c->name,
                 tool_count(demo_pools_most(&s->pools, 1, TOKENS_MOST), "token"), tool_number(tokens));
        return TOOL_FAILED;
    }
    demo_tables_take(&s->pools, (demo_extent){.tokens = tokens}, &s->random, tables);
    json_t *target = json_object();
    for (size_t i = 0; i < tables->count; i++) {
        json_t *blocks = json_array();
        for (size_t b = 0; b < tables->items[i].count; b++)
            json_array_append_new(blocks, json_integer(tables->items[i].blocks[b]));
        json_object_set_new(target, tables->items[i].group,
                            json_pack("{s:I, s:o}", "first_token",
                                      (json_int_t)tables->items[i].first_token, "blocks", blocks));
    }
    json_object_set_new(document, "target", target);
    char *text = json_dumps(document, JSON_COMPACT);
    json_decref(document);
    if (!text)
        tool_no_memory();
    kvferry_status status = kvferry_request_read_json(text, strlen(text), request, report);
    free(text);
    if (status == KVFERRY_OK)
        return TOOL_GO_ON;
    if (status == KVFERRY_NO_MEMORY)
        tool_no_memory();
    tool_reasons reasons = {0};
    tool_reasons_take(&reasons, report, c->name);
    try_log_reasons(&reasons);
    tool_reasons_free(&reasons);
    return TOOL_FAILED;
}

/* A worker has only the groups that its document lists. */
static kvferry_block_table *own_tables(const kvferry_layout *layout, const kvferry_request *request,
                                       size_t *count)
{
    kvferry_block_table *tables = tool_alloc(request->target_count + 1, sizeof *tables);
    *count = 0;
    for (size_t i = 0; i < request->target_count; i++)
        for (uint32_t g = 0; g < kvferry_layout_group_count(layout); g++)
            if (strcmp(kvferry_layout_group(layout, g)->name, request->target[i].group) == 0)
                tables[(*count)++] = request->target[i];
    return tables;
}

static void ask(server *s, const client *c, const kvferry_request *request, kvferry_report *report)
{
    for (size_t i = 0; i < s->side.count; i++) {
        size_t count;
        kvferry_block_table *tables = own_tables(s->side.layouts[i], request, &count);
        const kvferry_ask asked = {.size = sizeof asked, .transfer_id = request->transfer_id,
                                   .engine_id = kvferry_layout_engine_id(c->sources.layouts[0]),
                                   .where = c->where, .tokens = request->target_tokens,
                                   .tables = tables, .table_count = count,
                                   .whole_blocks = request->whole_blocks};
        kvferry_report_clear(report);
        kvferry_status status = kvferry_node_ask(s->engine.workers[i].node, &asked, report);
        free(tables);
        if (status == KVFERRY_OK)
            continue;
        try_result *result = &s->engine.workers[i].result;
        result->ended = result->released = true; /* it never began */
        result->outcome = KVFERRY_OUTCOME_FAILED;
        tool_reasons_take(&result->reasons, report, NULL);
        tool_reasons_name_options(&result->reasons);
    }
}

/* Looks at all of a worker's memory. Answers "right" or "wrong". */
static const char *look(const server *s, const client *c, uint64_t seed, size_t worker,
                        const oracle_transfer *transfer, json_t *findings)
{
    oracle_worker self = {s->side.layouts[worker], s->engine.workers[worker].segments,
                          s->engine.workers[worker].noise};
    oracle_worker *sources = tool_alloc(c->sources.count, sizeof *sources);
    for (size_t i = 0; i < c->sources.count; i++)
        sources[i] = (oracle_worker){.layout = c->sources.layouts[i], .noise = try_noise(seed, i)};
    oracle_result *result = tool_alloc(1, sizeof *result);
    if (!oracle_check(&self, sources, c->sources.count, transfer, 1, result))
        tool_no_memory();
    for (size_t i = 0; i < result->finding_count; i++) {
        char text[1024];
        oracle_finding_text(&self, &result->findings[i], text, sizeof text);
        json_array_append_new(findings, tool_json_text(text));
    }
    bool right = result->finding_count == 0;
    free(result);
    free(sources);
    return right ? "right" : "wrong";
}

/* What came of it, worker by worker. Only blocks that were released are looked at, and given back. */
static json_t *answer(server *s, const client *c, const oracle_transfer *transfer, bool released)
{
    json_t *workers = json_array();
    bool right = released;
    uint64_t seed = demo_number(c->introduction, "seed");
    for (size_t i = 0; i < s->side.count; i++) {
        const try_result *result = &s->engine.workers[i].result;
        bool done = result->ended && result->outcome == KVFERRY_OUTCOME_DONE;
        json_t *worker = try_result_json(&s->engine, i), *findings = json_array();
        const char *check = "not looked at";
        if (done && released)
            check = look(s, c, seed, i, transfer, findings);
        else if (released)
            oracle_noise(&(oracle_worker){s->side.layouts[i], s->engine.workers[i].segments,
                                          s->engine.workers[i].noise});
        right &= strcmp(check, "right") == 0;
        json_object_set_new(worker, "check", json_string(check));
        json_object_set_new(worker, "findings", findings);
        json_array_append_new(workers, worker);
    }
    s->requests++;
    s->right += right;
    return json_pack("{s:b, s:o}", "right", right, "workers", workers);
}

static void print_answer(const client *c, const kvferry_request *request, const json_t *result)
{
    if (tool_json())
        return;
    uint64_t bytes = 0, longest = 0;
    const json_t *workers = json_object_get(result, "workers");
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const json_t *worker = json_array_get(workers, i);
        bytes += demo_number(worker, "bytes");
        uint64_t time = demo_number(worker, "elapsed_ns");
        longest = time > longest ? time : longest;
    }
    printf("%s: ", c->name);
    tool_put(request->transfer_id ? request->transfer_id : "?", stdout);
    printf(": %s, %s in %.2f ms: %s\n", tool_count(request->target_tokens, "token"), tool_size(bytes),
           (double)longest / 1e6,
           json_is_true(json_object_get(result, "right")) ? "every byte right" : "not right");
    try_print_reasons(workers, "receiver");
    fflush(stdout);
}

/* Why it did not go well, for the end of the run. */
static void keep_reasons(server *s, const char *id, const json_t *workers, bool released)
{
    tool_reasons own = {0};
    for (size_t i = 0; i < json_array_size(workers); i++)
        tool_reasons_join(&s->reasons, json_object_get(json_array_get(workers, i), "reasons"));
    try_take_findings(&own, workers);
    if (!released)
        try_reason(&own, "not_released", id, "the blocks to be released", "blocks that may still be written");
    tool_reasons_join(&s->reasons, own.list);
    tool_reasons_free(&own);
}

static int do_request(server *s, client *c, const json_t *message)
{
    demo_tables tables = {0};
    kvferry_request *request = NULL;
    kvferry_report *report = tool_report();
    int status = make_request(s, c, message, &tables, &request, report);
    bool written = false; /* its blocks may still be */
    if (status == TOOL_GO_ON) {
        try_engine_clear_results(&s->engine);
        ask(s, c, request, report);
        bool released = try_engine_wait(&s->engine, request->transfer_id, true, s->signals);
        const oracle_transfer transfer = {request, demo_number(message, "seed")};
        json_t *result = answer(s, c, &transfer, released);
        print_answer(c, request, result);
        keep_reasons(s, request->transfer_id, json_object_get(result, "workers"), released);
        if (!demo_channel_write(c->fd, result))
            status = TOOL_FAILED;
        if (!released) {
            tool_log("blocks of %s are not released: they are left alone", request->transfer_id);
            status = TOOL_FAILED;
            written = true;
        }
    }
    if (!written)
        demo_tables_give_back(&s->pools, &tables);
    demo_tables_free(&tables);
    kvferry_request_free(request);
    kvferry_report_free(report);
    return status;
}

/* --- a sender -------------------------------------------------------------------------------- */

static json_t *introduction(server *s)
{
    json_t *message = try_introduction(&s->engine, s->seed);
    json_object_set_new(message, "most",
                        json_integer((json_int_t)demo_pools_most(&s->pools, 1, TOKENS_MOST)));
    return message;
}

/* Waits for the sender's next word. false: it said nothing for so long, or an interrupt came. */
static bool hear(const server *s, const client *c, uint64_t seconds)
{
    struct pollfd polls[] = {{.fd = c->fd, .events = POLLIN}, {.fd = s->signals, .events = POLLIN}};
    int limit = seconds < INT32_MAX / 1000 ? (int)seconds * 1000 : -1, count;
    do
        count = poll(polls, 2, limit);
    while (count < 0 && errno == EINTR);
    if (count == 0)
        tool_log("%s: it said nothing for %llu s and is not waited for any more", c->name,
                 (unsigned long long)seconds);
    return count > 0 && !polls[1].revents;
}

static int meet(server *s, client *c)
{
    uint64_t first = s->options.timeout < MEET_S ? s->options.timeout : MEET_S;
    try_set_patience(c->fd, first);
    if (!hear(s, c, first))
        return TOOL_FAILED;
    json_t *hello = demo_channel_read(c->fd);
    bool ours = strcmp(demo_text(hello, "try"), TRY_PROTOCOL) == 0;
    json_decref(hello);
    if (!ours) {
        tool_log("%s: this is no 'kvferry send' of this version", c->name);
        return TOOL_FAILED;
    }
    if (!demo_channel_write(c->fd, introduction(s)))
        return TOOL_FAILED;
    /* It compares the two engines, and starts its own, which has memory to fill. */
    try_set_patience(c->fd, s->options.timeout);
    c->introduction = hear(s, c, s->options.timeout) ? demo_channel_read(c->fd) : NULL;
    if (!c->introduction) {
        tool_log("%s: it went away without a request", c->name);
        return TOOL_FAILED;
    }
    tool_reasons reasons = {0};
    int status = try_read_introduction(c->introduction, c->name, &c->sources, &reasons);
    try_log_reasons(&reasons);
    tool_reasons_free(&reasons);
    c->where = demo_text(c->introduction, "address");
    return status;
}

/* Whether it was a sender. */
static bool serve_client(server *s, int fd)
{
    client c = {.fd = fd, .name = try_peer_name(fd)};
    int status = meet(s, &c);
    bool met = status == TOOL_GO_ON;
    while (status == TOOL_GO_ON) {
        json_t *message = hear(s, &c, s->options.timeout) ? demo_channel_read(fd) : NULL;
        if (!message)
            break;
        status = do_request(s, &c, message);
        json_decref(message);
    }
    json_decref(c.introduction);
    tool_side_free(&c.sources);
    free(c.name);
    close(fd);
    return met;
}

/* --- the run --------------------------------------------------------------------------------- */

static int watch_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL); /* the nodes' threads inherit it */
    return signalfd(-1, &set, SFD_CLOEXEC);
}

static void wait_for_senders(server *s)
{
    struct pollfd polls[] = {{.fd = s->fd, .events = POLLIN}, {.fd = s->signals, .events = POLLIN}};
    bool on = true;
    while (on) {
        poll(polls, 2, -1);
        if (polls[1].revents)
            break;
        int fd = polls[0].revents ? accept4(s->fd, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0)
            on = !(serve_client(s, fd) && s->once);
    }
}

/* The line for the shell that sends comes last. */
static void say_addresses(const server *s)
{
    for (size_t i = 0; s->side.count > 1 && i < s->side.count; i++)
        tool_log("%s: status: %s", s->side.names[i], kvferry_node_address(s->engine.workers[i].node));
    tool_log("%zu %s of %s, waiting at %s (status: %s)", s->side.count,
             s->side.count == 1 ? "worker" : "workers", kvferry_layout_engine_id(s->side.layouts[0]),
             s->bound, try_engine_address(&s->engine));
}

static void print_json(const server *s)
{
    bool ok = s->right == s->requests;
    json_t *value = json_pack("{s:b, s:s, s:I, s:I}", "ok", ok, "address", s->bound, "requests", (json_int_t)s->requests,
                              "right", (json_int_t)s->right);
    if (!ok)
        json_object_set_new(value, "reasons", s->reasons.list ? json_incref(s->reasons.list) : json_array());
    if (!ok && s->reasons.dropped)
        json_object_set_new(value, "dropped", json_integer((json_int_t)s->reasons.dropped));
    tool_print_json(value);
}

static int run(server *s)
{
    int status = try_side_make(&s->options, &s->side);
    if (status == TOOL_GO_ON)
        status = try_listen(s->listen, &s->fd, &s->bound);
    if (status != TOOL_GO_ON)
        return status;
    s->signals = watch_signals();
    if (s->signals < 0)
        return tool_unexpected("signals cannot be read");
    char *host = try_host(s->bound);
    status = try_engine_start(&s->engine, &s->options, KVFERRY_SIDE_DECODE, &s->side, host, s->seed);
    free(host);
    if (status != TOOL_GO_ON)
        return status;
    s->random = (demo_random){s->seed};
    demo_pools_create(&s->side, &s->random, &s->pools);
    say_addresses(s);
    wait_for_senders(s);
    if (tool_json())
        print_json(s);
    return s->right == s->requests ? TOOL_FINE : TOOL_FAILED;
}

int tool_serve(int argc, char **argv)
{
    server s = {.listen = "127.0.0.1:0", .fd = -1, .signals = -1};
    int status = parse(argc, argv, &s);
    if (status != TOOL_GO_ON)
        return status;
    if (getrandom(&s.seed, sizeof s.seed, 0) != (ssize_t)sizeof s.seed)
        return tool_unexpected("no random number");
    s.seed >>= 2; /* sums of it stay numbers of JSON */
    status = run(&s);
    try_engine_stop(&s.engine);
    if (s.fd >= 0)
        close(s.fd);
    if (s.signals >= 0)
        close(s.signals);
    demo_pools_free(&s.pools);
    tool_side_free(&s.side);
    tool_list_free(&s.options.layouts);
    tool_reasons_free(&s.reasons);
    free(s.bound);
    return status;
}
