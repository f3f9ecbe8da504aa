/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry bench transfer: the ucx engine beside memcpy and ucx_perftest, measured in one run. */
#include <stdlib.h>

#include "bench_pair.h"
#include "tool.h"

enum { MIB = 1024 * 1024, BLOCK = MIB, COLD = 256 * MIB };

/* What 1 MiB blocks reach, as a share of something that was measured in turns with them. */
typedef struct transfer_ratio {
    const char *name, *transport, *against;
    bool allocated;
    double goal;
    double speed, reference; /* bytes a second; 0: not measured */
} transfer_ratio;

typedef struct transfer_row {
    const char *transport, *memory;
    uint64_t block_bytes, copies;
    double seconds, memcpy_seconds;
} transfer_row;

enum { RATIOS = 3, ROWS_LIMIT = 32 };

typedef struct transfer_bench {
    transfer_ratio ratios[RATIOS];
    transfer_row rows[ROWS_LIMIT];
    size_t row_count;
    char ucx[16];
    uint64_t rounds;
} transfer_bench;

static bool run_pair(transfer_bench *bench, const bench_pair *pair, bench_pair_result *result)
{
    const char *why;
    if (bench_pair_run(pair, result, &why)) {
        snprintf(bench->ucx, sizeof(bench->ucx), "%s", result->ucx);
        return true;
    }
    tool_log("%s, blocks of %llu bytes: %s", pair->transport, (unsigned long long)pair->block_bytes,
             why);
    return false;
}

static void keep_fastest(double *best, double speed) { *best = speed > *best ? speed : *best; }

/* Against memcpy: cold memory of the same size, the same blocks in the same order, a few blocks each in
 * turn. One run has as many turns as all rounds of the others. */
static bool against_memcpy(transfer_bench *bench, transfer_ratio *ratio)
{
    const bench_pair pair = {.transport = ratio->transport,
                             .allocated = ratio->allocated,
                             .segment_bytes = COLD,
                             .block_bytes = BLOCK,
                             .copies = COLD / BLOCK,
                             .passes = (unsigned)bench->rounds,
                             .parts = COLD / BLOCK / 4,
                             .memcpy_too = true};
    bench_pair_result result = {0};
    if (!run_pair(bench, &pair, &result))
        return false;
    keep_fastest(&ratio->speed, COLD / result.transfer);
    keep_fastest(&ratio->reference, COLD / result.memcpy);
    return true;
}

/* What ucx_perftest took for few and for many blocks, each at its best. Its time has a constant part of a
 * tenth of a second or more over shared memory, which only the difference is without. */
typedef struct perftest_times {
    double few, many;
} perftest_times;

enum { FEW = 500, MANY = 1500 };

static void run_perftest(transfer_ratio *ratio, perftest_times *best)
{
    double few = 0, many = 0;
    const char *why;
    if (!bench_perftest_run(ratio->transport, BLOCK, FEW, &few, &why) ||
        !bench_perftest_run(ratio->transport, BLOCK, MANY, &many, &why)) {
        tool_log("%s: %s", ratio->transport, why);
        return;
    }
    best->few = best->few > 0 && best->few < few ? best->few : few;
    best->many = best->many > 0 && best->many < many ? best->many : many;
    if (best->many > best->few)
        ratio->reference = (double)(MANY - FEW) * BLOCK / (best->many - best->few);
}

/* ucx_perftest moves one block over and over: so do we, as often. */
static bool against_perftest(transfer_bench *bench, transfer_ratio *ratio, perftest_times *best)
{
    const bench_pair pair = {.transport = ratio->transport,
                             .allocated = ratio->allocated,
                             .segment_bytes = BLOCK,
                             .block_bytes = BLOCK,
                             .copies = MANY - FEW,
                             .passes = 1};
    bench_pair_result result = {0};
    if (!run_pair(bench, &pair, &result))
        return false;
    keep_fastest(&ratio->speed, (double)pair.copies * BLOCK / result.transfer);
    if (bench_perftest_found())
        run_perftest(ratio, best);
    return true;
}

static int measure_ratios(transfer_bench *bench)
{
    static const transfer_ratio wanted[RATIOS] = {
        {.name = "shm-allocated", .transport = "shm", .against = "memcpy", .allocated = true, .goal = 0.9},
        {.name = "shm-own", .transport = "shm", .against = "ucx_perftest", .goal = 0.95},
        {.name = "tcp", .transport = "tcp", .against = "ucx_perftest", .goal = 0.95},
    };
    perftest_times times[RATIOS] = {{0}};
    for (size_t i = 0; i < RATIOS; i++)
        bench->ratios[i] = wanted[i];
    if (!bench_perftest_found())
        tool_log("ucx_perftest is not on the path (Debian package ucx-utils): no ratios to it");
    if (!against_memcpy(bench, &bench->ratios[0]))
        return TOOL_UNEXPECTED;
    for (uint64_t round = 0; round < bench->rounds; round++)
        for (size_t i = 1; i < RATIOS; i++)
            if (!against_perftest(bench, &bench->ratios[i], &times[i]))
                return TOOL_UNEXPECTED;
    return TOOL_FINE;
}

static int measure_rows(transfer_bench *bench)
{
    static const uint64_t sizes[] = {512, 4096, 16384, 65536, 262144, MIB, 4 * MIB, 16 * MIB};
    static const struct {
        const char *transport, *memory;
    } kinds[] = {{"shm", "allocated"}, {"shm", "own"}, {"tcp", "own"}};
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            enum { SEGMENT = 64 * MIB, COPIES_LIMIT = 32768 };
            uint64_t copies = SEGMENT / sizes[i];
            bench_pair pair = {.transport = kinds[kind].transport,
                               .allocated = kind == 0,
                               .segment_bytes = SEGMENT,
                               .block_bytes = sizes[i],
                               .copies = copies < COPIES_LIMIT ? copies : COPIES_LIMIT,
                               .passes = 4,
                               .parts = 4,
                               .memcpy_too = kind == 0};
            bench_pair_result result = {0};
            if (!run_pair(bench, &pair, &result))
                return TOOL_UNEXPECTED;
            bench->rows[bench->row_count++] =
                (transfer_row){kinds[kind].transport, kinds[kind].memory, sizes[i],
                               pair.copies,           result.transfer,    result.memcpy};
        }
    return TOOL_FINE;
}

/* --- output --------------------------------------------------------------------------------- */

static double row_speed(const transfer_row *row, double seconds)
{
    return seconds > 0 ? (double)row->copies * (double)row->block_bytes / seconds / 1e9 : 0;
}

static json_t *ratio_json(const transfer_ratio *ratio)
{
    json_t *value = json_pack("{s:s, s:s, s:s, s:s, s:f, s:f}", "name", ratio->name, "transport",
                              ratio->transport, "memory", ratio->allocated ? "allocated" : "own",
                              "against", ratio->against, "goal", ratio->goal, "gb_per_s",
                              ratio->speed / 1e9);
    if (!value)
        tool_no_memory();
    bool known = ratio->reference > 0;
    json_object_set_new(value, "reference_gb_per_s",
                        known ? json_real(ratio->reference / 1e9) : json_null());
    json_object_set_new(value, "ratio", known ? json_real(ratio->speed / ratio->reference) : json_null());
    return value;
}

static json_t *row_json(const transfer_row *row)
{
    json_t *value = json_pack("{s:s, s:s, s:I, s:I, s:f, s:f}", "transport", row->transport, "memory",
                              row->memory, "block_bytes", (json_int_t)row->block_bytes, "copies",
                              (json_int_t)row->copies, "us_per_copy",
                              row->seconds / (double)row->copies * 1e6, "gb_per_s",
                              row_speed(row, row->seconds));
    if (value && row->memcpy_seconds > 0)
        json_object_set_new(value, "memcpy_gb_per_s", json_real(row_speed(row, row->memcpy_seconds)));
    return value;
}

static void print_json(const transfer_bench *bench)
{
    json_t *ratios = json_array(), *rows = json_array();
    for (size_t i = 0; i < RATIOS; i++)
        json_array_append_new(ratios, ratio_json(&bench->ratios[i]));
    for (size_t i = 0; i < bench->row_count; i++)
        json_array_append_new(rows, row_json(&bench->rows[i]));
    tool_print_json(json_pack("{s:s, s:i, s:o, s:o}", "ucx", bench->ucx, "block_bytes", BLOCK, "ratios",
                              ratios, "table", rows));
}

static void print_ratios(const transfer_bench *bench)
{
    static const char *const columns[] = {"blocks of 1 MiB", ">GB/s", "against", ">GB/s", ">ratio",
                                          ">goal"};
    tool_table *table = tool_table_create(columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < RATIOS; i++) {
        const transfer_ratio *ratio = &bench->ratios[i];
        bool known = ratio->reference > 0;
        char *speed = tool_text("%.2f", ratio->speed / 1e9);
        char *reference = known ? tool_text("%.2f", ratio->reference / 1e9) : tool_text("-");
        char *share = known ? tool_text("%.2f", ratio->speed / ratio->reference) : tool_text("-");
        char *goal = tool_text("%.2f", ratio->goal);
        const char *const cells[] = {ratio->name, speed, ratio->against, reference, share, goal};
        tool_table_row(table, cells);
        free(speed);
        free(reference);
        free(share);
        free(goal);
    }
    tool_table_print(table);
}

static void print_rows(const transfer_bench *bench)
{
    static const char *const columns[] = {"transport", "memory",  ">block", ">copies",
                                          ">us/copy",  ">GB/s", ">memcpy GB/s"};
    tool_table *table = tool_table_create(columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < bench->row_count; i++) {
        const transfer_row *row = &bench->rows[i];
        char *each = tool_text("%.3f", row->seconds / (double)row->copies * 1e6);
        char *speed = tool_text("%.2f", row_speed(row, row->seconds));
        char *memcpy_speed = row->memcpy_seconds > 0
                                 ? tool_text("%.2f", row_speed(row, row->memcpy_seconds))
                                 : tool_text("%s", "");
        const char *const cells[] = {row->transport, row->memory, tool_size(row->block_bytes),
                                     tool_number(row->copies), each, speed, memcpy_speed};
        tool_table_row(table, cells);
        free(each);
        free(speed);
        free(memcpy_speed);
    }
    tool_table_print(table);
}

static int run_bench(transfer_bench *bench)
{
    int status = measure_ratios(bench);
    if (status == TOOL_FINE)
        status = measure_rows(bench);
    if (status != TOOL_FINE)
        return status;
    if (tool_json()) {
        print_json(bench);
        return TOOL_FINE;
    }
    printf("UCX %s\n", bench->ucx);
    print_ratios(bench);
    printf("\n");
    print_rows(bench);
    return TOOL_FINE;
}

int bench_transfer(int argc, char **argv)
{
    uint64_t rounds = 8;
    const tool_option options[] = {
        {.name = "rounds", .take = TOOL_NUMBER, .value = &rounds, .argument = "N", .least = 1,
         .most = 1000, .help = "turns of each against its reference; the best counts (8)"},
    };
    const tool_usage usage = {
        .synopsis = "[options]",
        .about = "Moves blocks between two processes with the ucx engine, and measures memcpy and\n"
                 "ucx_perftest (UCX's own shared memory and TCP, tuned) in turns with it.",
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .notes = "Both processes are busy all the time: on a machine with other work, or with one\n"
                 "core, the figures say little.",
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand < argc)
        return tool_misuse("operand", "none", argv[operand]);
    transfer_bench *bench = tool_alloc(1, sizeof(*bench));
    bench->rounds = rounds;
    status = run_bench(bench);
    free(bench);
    return status;
}
