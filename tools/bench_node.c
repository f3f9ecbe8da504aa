/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry bench node: what a request and a handshake cost, beside what the engine alone costs. */
#include <stdlib.h>
#include <string.h>

#include "bench_node.h"

/* Its documents are large. */
#define HANDSHAKE_MODEL "Qwen3.5-35B-A3B"
#define HANDSHAKE_BLOCKS 4
#define GOAL_US 100.0

typedef struct arguments {
    uint64_t requests, window, workers, handshakes;
    const char *engine;
} arguments;

typedef struct row {
    const char *name;
    uint64_t requests, window;
    double per_s, cpu_us;          /* of a request and side */
    double beyond_us;              /* beyond the engine's own; < 0: it does not apply */
    double p50_us, p90_us, p99_us, most_us;
} row;

enum { ROWS = 3 };

typedef struct node_bench {
    arguments given;
    row rows[ROWS];
    bench_handshake handshake;
} node_bench;

static int parse(int argc, char **argv, arguments *given)
{
    const tool_option options[] = {
        {"requests", 'n', TOOL_NUMBER, &given->requests, "N", "of each kind (default 2000)", 10, 10000000},
        {"window", 'w', TOOL_NUMBER, &given->window, "N", "in flight at a time (default 64)", 2, 4096},
        {"workers", 0, TOOL_NUMBER, &given->workers, "N",
         "of each side, for handshakes: a power of 2 (default 4)", 1, 32},
        {"handshakes", 0, TOOL_NUMBER, &given->handshakes, "N",
         "only this: one prefill worker meets N decode workers, 4 an engine", BENCH_MEET_TP, 4096},
        {"engine", 0, TOOL_CHOICE, &given->engine, "ucx|memory", "what moves the bytes (default ucx)", 0, 0},
    };
    const tool_usage usage = {
        .synopsis = "[options]",
        .about = "Nodes of a prefill and a decode engine in this process: requests of one block (64 copies,\n"
                 "128 KiB) from offer to release, one at a time and several, and such that move nothing;\n"
                 "then the handshake of all workers of two engines of " HANDSHAKE_MODEL ". CPU time is that\n"
                 "of both sides and of the caller, halved; the engine's own is measured without nodes.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .notes = "On a machine with other work, look at the CPU time and not at the speed.",
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status == TOOL_GO_ON && operand < argc)
        return tool_misuse("operand", "none", argv[operand]);
    if (status == TOOL_GO_ON && given->workers & (given->workers - 1))
        return tool_misuse("--workers", "a power of 2", tool_number(given->workers));
    if (status == TOOL_GO_ON && given->handshakes % BENCH_MEET_TP)
        return tool_misuse("--handshakes", "a multiple of 4", tool_number(given->handshakes));
    return status;
}

/* --- measuring ------------------------------------------------------------------------------- */

static double percentile_us(const bench_times *times, uint64_t requests, unsigned percent)
{
    uint64_t index = requests * percent / 100;
    return (double)times->elapsed_ns[index < requests ? index : requests - 1] / 1e3;
}

static int measure_row(bench_nodes *source, bench_nodes *target, const bench_load *load, double engine_s,
                       row *result)
{
    bench_times times = {0};
    int status = bench_requests(source, target, load, &times);
    if (status == TOOL_GO_ON) {
        double requests = (double)load->requests;
        result->requests = load->requests;
        result->window = load->window;
        result->per_s = requests / times.clock_s;
        result->cpu_us = times.cpu_s / requests / 2 * 1e6;
        result->beyond_us = (times.cpu_s - engine_s) / requests / 2 * 1e6;
        result->p50_us = percentile_us(&times, load->requests, 50);
        result->p90_us = percentile_us(&times, load->requests, 90);
        result->p99_us = percentile_us(&times, load->requests, 99);
        result->most_us = percentile_us(&times, load->requests, 100);
    }
    free(times.elapsed_ns);
    return status;
}

static int measure_requests(node_bench *bench)
{
    const arguments *given = &bench->given;
    bench_nodes source = {0}, target = {0};
    bench_handshake ignored;
    double engine_s = 0;
    const bench_load warm = {.requests = 10, .window = 2};
    const bench_load loads[ROWS] = {{given->requests, 1, false},
                                    {given->requests, given->window, false},
                                    {given->requests, given->window, true}};
    static const char *const names[ROWS] = {"one at a time", "several", "several, nothing to move"};
    int status = bench_nodes_start_small(&source, given->window + 1, "prefill", given->engine);
    if (status == TOOL_GO_ON)
        status = bench_nodes_start_small(&target, given->window + 1, "decode", given->engine);
    if (status == TOOL_GO_ON)
        status = bench_engine_alone(&source, &target, given->engine, given->requests, &engine_s);
    if (status == TOOL_GO_ON)
        status = bench_connect(&source, &target, &ignored);
    if (status == TOOL_GO_ON)
        status = measure_row(&source, &target, &warm, 0, &bench->rows[0]);
    for (size_t i = 0; i < ROWS && status == TOOL_GO_ON; i++) {
        bench->rows[i].name = names[i];
        status = measure_row(&source, &target, &loads[i], loads[i].empty ? 0 : engine_s, &bench->rows[i]);
    }
    bench_nodes_stop(&target);
    bench_nodes_stop(&source);
    return status;
}

static int measure_handshake(node_bench *bench)
{
    bench_nodes sources = {0}, targets = {0};
    uint32_t workers = (uint32_t)bench->given.workers, tp = workers < 4 ? workers : 4;
    const tool_topology topology = {tp, workers / tp};
    int status = bench_nodes_start_model(&sources, HANDSHAKE_MODEL, &topology, HANDSHAKE_BLOCKS, "prefill",
                                         bench->given.engine);
    if (status == TOOL_GO_ON)
        status = bench_nodes_start_model(&targets, HANDSHAKE_MODEL, &topology, HANDSHAKE_BLOCKS, "decode",
                                         bench->given.engine);
    if (status == TOOL_GO_ON)
        status = bench_connect(&sources, &targets, &bench->handshake);
    bench_nodes_stop(&targets);
    bench_nodes_stop(&sources);
    return status;
}

/* --- output ---------------------------------------------------------------------------------- */

static void print_json(const node_bench *bench)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < ROWS; i++) {
        const row *r = &bench->rows[i];
        json_array_append_new(
            rows, json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "name", r->name, "requests",
                            (json_int_t)r->requests, "window", (json_int_t)r->window, "requests_per_s",
                            r->per_s, "cpu_us_per_side", r->cpu_us, "cpu_us_beyond_engine", r->beyond_us,
                            "p50_us", r->p50_us, "p90_us", r->p90_us, "p99_us", r->p99_us, "max_us",
                            r->most_us));
    }
    tool_print_json(json_pack("{s:s, s:f, s:o, s:{s:I, s:s, s:f, s:f}}", "engine", bench->given.engine,
                              "goal_us_beyond_engine", GOAL_US, "requests", rows, "handshake",
                              "workers_per_side", (json_int_t)bench->given.workers, "model", HANDSHAKE_MODEL,
                              "cpu_s", bench->handshake.cpu_s, "clock_s", bench->handshake.clock_s));
}

static void print_text(const node_bench *bench)
{
    static const char *const columns[] = {"requests of one block", ">count", ">in flight", ">requests/s",
                                          ">p50 us", ">p90 us", ">p99 us", ">max us", ">CPU us/side",
                                          ">beyond engine", ">goal"};
    tool_table *table = tool_table_create(columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < ROWS; i++) {
        const row *r = &bench->rows[i];
        const double values[] = {r->per_s, r->p50_us, r->p90_us, r->p99_us, r->most_us, r->cpu_us, r->beyond_us};
        char text[sizeof values / sizeof *values][32];
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            snprintf(text[v], sizeof text[v], "%.0f", values[v]);
        const char *cells[] = {r->name, tool_number(r->requests), tool_number(r->window), text[0], text[1],
                               text[2], text[3],  text[4], text[5], text[6], "100"};
        tool_table_row(table, cells);
    }
    tool_table_print(table);
    printf("handshake of %llu and %llu workers of " HANDSHAKE_MODEL ": %.1f ms of CPU, %.1f ms by the clock\n",
           (unsigned long long)bench->given.workers, (unsigned long long)bench->given.workers,
           bench->handshake.cpu_s * 1e3, bench->handshake.clock_s * 1e3);
}

/* --- one that meets many --------------------------------------------------------------------- */

static void print_mets(const bench_met mets[2])
{
    static const char *const names[] = {"first of each engine, with its documents", "others, documents known"};
    static const char *const columns[] = {"decode workers that one prefill worker meets", ">count", ">CPU ms of it",
                                          ">us each", ">CPU ms of them", ">clock ms"};
    tool_table *table = tool_table_create(columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < 2; i++) {
        const double values[] = {mets[i].cpu_s * 1e3, mets[i].cpu_s * 1e6 / (double)mets[i].workers,
                                 mets[i].others_cpu_s * 1e3, mets[i].clock_s * 1e3};
        char text[sizeof values / sizeof *values][32];
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            snprintf(text[v], sizeof text[v], "%.0f", values[v]);
        const char *cells[] = {names[i], tool_number(mets[i].workers), text[0], text[1], text[2], text[3]};
        tool_table_row(table, cells);
    }
    tool_table_print(table);
}

static void print_mets_json(const bench_met mets[2])
{
    json_t *list = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(list, json_pack("{s:I, s:b, s:f, s:f, s:f}", "workers", (json_int_t)mets[i].workers,
                                              "documents_known", i, "cpu_s", mets[i].cpu_s, "cpu_s_of_them",
                                              mets[i].others_cpu_s, "clock_s", mets[i].clock_s));
    tool_print_json(json_pack("{s:s, s:o}", "model", HANDSHAKE_MODEL, "handshakes", list));
}

static int measure_meeting(const arguments *given)
{
    bench_met mets[2] = {0};
    int status = bench_meet(HANDSHAKE_MODEL, HANDSHAKE_BLOCKS, given->handshakes, mets);
    if (status != TOOL_GO_ON)
        return status;
    if (tool_json())
        print_mets_json(mets);
    else
        print_mets(mets);
    return TOOL_FINE;
}

int bench_node(int argc, char **argv)
{
    node_bench bench = {.given = {.requests = 2000, .window = 64, .workers = 4, .engine = "ucx"}};
    int status = parse(argc, argv, &bench.given);
    if (status == TOOL_GO_ON && bench.given.handshakes)
        return measure_meeting(&bench.given);
    if (status == TOOL_GO_ON)
        status = measure_requests(&bench);
    if (status == TOOL_GO_ON)
        status = measure_handshake(&bench);
    if (status != TOOL_GO_ON)
        return status;
    if (tool_json())
        print_json(&bench);
    else
        print_text(&bench);
    return TOOL_FINE;
}
