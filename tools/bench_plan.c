/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry bench plan: what planning costs, beside a loop that only writes as many copies. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "allocations.h"
#include "tool.h"

typedef enum bench_ids { BENCH_SHUFFLED, BENCH_CONSECUTIVE, BENCH_APART } bench_ids;

/* One request between two engines of a model; the options are those of both sides. */
typedef struct bench_case {
    const char *name, *model;
    tool_topology source, target;
    uint64_t tokens;
    bench_ids ids;
    kvferry_model_options options;
} bench_case;

static const bench_case cases[] = {
    {"llama-8b-shuffled", "Llama-3.1-8B", {1, 1}, {1, 1}, 8192 * 16, BENCH_SHUFFLED, {.blocks = 8200}},
    {"llama-8b-consecutive", "Llama-3.1-8B", {1, 1}, {1, 1}, 8192 * 16, BENCH_CONSECUTIVE,
     {.blocks = 8200}},
    {"deepseek-v3-shuffled", "DeepSeek-V3", {1, 1}, {1, 1}, 2048 * 64, BENCH_SHUFFLED,
     {.blocks = 2100, .backend = "FLASHMLA"}},
    {"qwen3.5-35b-shuffled", "Qwen3.5-35B-A3B", {4, 1}, {4, 1}, 63 * 528, BENCH_SHUFFLED,
     {.blocks = 200}},
    {"qwen3-next-shuffled", "Qwen3-Next-80B-A3B", {4, 1}, {4, 1}, 964 * 272, BENCH_SHUFFLED,
     {.blocks = 1100}},
    {"qwen3.5-35b-pp2tp2-tp4", "Qwen3.5-35B-A3B", {2, 2}, {4, 1}, 32768, BENCH_SHUFFLED,
     {.blocks = 200}},
    {"glm-5.3-one-block", "GLM-5.3-Flash", {4, 1}, {4, 1}, 1500, BENCH_APART,
     {.blocks = 64, .kv_dtype = "fp8", .platform = "sm120-fi", .kpool = "tail"}},
    {"glm-5.3-one-block-ring", "GLM-5.3-Flash", {4, 1}, {4, 1}, 1500, BENCH_APART,
     {.blocks = 64, .kv_dtype = "fp8", .platform = "sm90-fi"}},
    {"packed-rows", "DeepSeek-V4-Flash", {8, 1}, {8, 1}, 131072, BENCH_SHUFFLED, {.blocks = 40000}},
};

/* GLM's indexer pages have one interior at all sizes of TP only on SM120. */
static const struct {
    const char *name;
    kvferry_model_options options;
} models[] = {
    {"Llama-3.1-8B", {.blocks = 1024}},      {"DeepSeek-V3", {.blocks = 1024}},
    {"Qwen3-Next-80B-A3B", {.blocks = 1024}}, {"Qwen3.5-27B", {.blocks = 1024}},
    {"Qwen3.5-35B-A3B", {.blocks = 1024}},   {"Qwen3.5-397B-A17B", {.blocks = 1024}},
    {"DeepSeek-V4-Flash", {.blocks = 1024}},
    {"GLM-5.3-Flash", {.blocks = 1024, .kv_dtype = "fp8", .platform = "sm120-fi"}},
};

typedef struct bench_result {
    const char *name;
    uint64_t copies, bytes, allocations, memory;
    double ms, floor_ms;
    char *note;
} bench_result;

/* --- time ------------------------------------------------------------------------------------------ */

static double cpu_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Repeats of something that takes about `ms`, so that the clock's own cost does not count. */
static unsigned repeats_for(double ms) { return ms > 0.2 ? 1 : ms > 0.002 ? 20 : 200; }

/* The best of several rounds, in milliseconds a call. */
#define BENCH_BEST(best, statement)                                                                \
    do {                                                                                           \
        double begun_ = cpu_ms();                                                                  \
        statement;                                                                                 \
        best = cpu_ms() - begun_;                                                                  \
        for (int round_ = 0; round_ < 15; round_++) {                                              \
            unsigned repeats_ = repeats_for(best);                                                 \
            begun_ = cpu_ms();                                                                     \
            for (unsigned i_ = 0; i_ < repeats_; i_++)                                             \
                statement;                                                                         \
            double each_ = (cpu_ms() - begun_) / repeats_;                                         \
            if (each_ < best)                                                                      \
                best = each_;                                                                      \
        }                                                                                          \
    } while (0)

/* Writes `count` copies, as cheaply as a loop can. */
static void write_floor(kvferry_copy *copies, size_t count)
{
    for (size_t i = 0; i < count; i++)
        copies[i] = (kvferry_copy){i * 4096, i * 8192, 4096, 0, 0};
    __asm__ volatile("" : : "r"(copies) : "memory");
}

/* --- a side ------------------------------------------------------------------------------------------- */

/* Which worker of a side was refused is said by the reasons; nothing here should be. */
static int make_side(tool_side *side, const char *model, const tool_topology *topology,
                     const kvferry_model_options *options)
{
    tool_model config = {0};
    tool_reasons reasons = {0};
    int status = tool_model_read("--model", model, &config);
    if (status != TOOL_GO_ON)
        return status;
    kvferry_model_options all = *options;
    all.size = sizeof(all);
    status = tool_side_from_model(side, &config, topology, &all, NULL, &reasons);
    tool_model_free(&config);
    if (status == TOOL_GO_ON && tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "a benchmark's layout was refused", stderr);
    tool_reasons_free(&reasons);
    return status;
}

static int make_plan(const tool_side *sources, size_t count, const kvferry_layout *target,
                     kvferry_plan **plan)
{
    kvferry_report *report = tool_report();
    kvferry_status status = kvferry_plan_create((const kvferry_layout *const *)sources->layouts,
                                                count, target, plan, report);
    if (status != KVFERRY_OK)
        tool_log("%s: %s", kvferry_status_name(status),
                 kvferry_report_count(report) ? kvferry_report_get(report, 0)->message : "");
    kvferry_report_free(report);
    return status == KVFERRY_OK ? TOOL_GO_ON : TOOL_FAILED;
}

/* --- a request ------------------------------------------------------------------------------------------ */

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* All ids of a pool but the null block, in the order in which requests take them. */
static uint32_t *pool_ids(uint64_t blocks, bench_ids ids, uint64_t seed)
{
    uint32_t *pool = tool_alloc((size_t)blocks, sizeof(*pool));
    uint64_t count = blocks - 1;
    for (uint64_t i = 0; i < count; i++)
        pool[i] = (uint32_t)(ids == BENCH_APART ? (2 * i) % count + 1 : i + 1);
    for (uint64_t i = count; ids == BENCH_SHUFFLED && i > 1; i--) {
        uint64_t other = random_next(&seed) % i;
        uint32_t id = pool[i - 1];
        pool[i - 1] = pool[other];
        pool[other] = id;
    }
    return pool;
}

/* A table a group of the document, all from one pool; blocks that a window drops are null. */
static kvferry_block_table *make_tables(const kvferry_layout *layout, uint64_t tokens, bench_ids ids,
                                        uint64_t seed)
{
    uint32_t groups = kvferry_layout_group_count(layout);
    kvferry_block_table *tables = tool_alloc(groups, sizeof(*tables));
    uint32_t *pool = pool_ids(kvferry_layout_group_blocks(layout, 0), ids, seed);
    size_t taken = 0;
    for (uint32_t i = 0; i < groups; i++) {
        const kvferry_group *group = kvferry_layout_group(layout, i);
        bool paged = group->kind == KVFERRY_GROUP_PAGED;
        size_t count = paged ? (size_t)((tokens + group->block_tokens - 1) / group->block_tokens) : 1;
        uint32_t *blocks = tool_alloc(count, sizeof(*blocks));
        for (size_t k = 0; k < count; k++) {
            bool dropped = group->window && (k + 1) * group->block_tokens + group->window <= tokens;
            blocks[k] = dropped ? 0 : pool[taken++];
        }
        tables[i] = (kvferry_block_table){group->name, 0, blocks, count};
    }
    free(pool);
    return tables;
}

static void free_tables(kvferry_block_table *tables, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free((uint32_t *)tables[i].blocks);
    free(tables);
}

/* --- expanding -------------------------------------------------------------------------------------------- */

static bool expand_all(const kvferry_plan *plan, const kvferry_request *request,
                       kvferry_copy *copies, size_t capacity, size_t *total)
{
    size_t sum = 0, count = 0;
    for (size_t i = 0; i < kvferry_plan_source_count(plan); i++) {
        if (kvferry_plan_piece_count(plan, i) == 0)
            continue;
        if (kvferry_plan_expand(plan, i, request, copies + sum, capacity - sum, &count, NULL) !=
            KVFERRY_OK)
            return false;
        sum += count;
    }
    *total = sum;
    return true;
}

static int measure_request(const kvferry_plan *plan, const kvferry_request *request,
                           bench_result *result)
{
    size_t capacity = 0, total = 0;
    for (size_t i = 0; i < kvferry_plan_source_count(plan); i++)
        capacity += kvferry_plan_expand_bound(plan, i, request);
    kvferry_copy *copies = tool_alloc(capacity, sizeof(*copies));
    memset(copies, 0, capacity * sizeof(*copies)); /* so that no page is touched first below */
    if (!expand_all(plan, request, copies, capacity, &total)) {
        free(copies);
        return tool_unexpected("%s: the request was refused", result->name);
    }
    result->copies = total;
    for (size_t i = 0; i < total; i++)
        result->bytes += copies[i].bytes;
    uint64_t before = tool_allocations();
    expand_all(plan, request, copies, capacity, &total);
    result->allocations = tool_allocations() - before;
    BENCH_BEST(result->ms, expand_all(plan, request, copies, capacity, &total));
    BENCH_BEST(result->floor_ms, write_floor(copies, total));
    free(copies);
    return TOOL_GO_ON;
}

static int run_case(const bench_case *one, bench_result *result)
{
    tool_side sources = {0}, targets = {0};
    kvferry_plan *plan = NULL;
    result->name = one->name;
    int status = make_side(&sources, one->model, &one->source, &one->options);
    if (status == TOOL_GO_ON)
        status = make_side(&targets, one->model, &one->target, &one->options);
    if (status == TOOL_GO_ON)
        status = make_plan(&sources, sources.count, targets.layouts[0], &plan);
    if (status == TOOL_GO_ON) {
        uint32_t mine = kvferry_layout_group_count(targets.layouts[0]);
        uint32_t theirs = kvferry_layout_group_count(sources.layouts[0]);
        kvferry_request request = {
            .source_tokens = one->tokens,
            .target_tokens = one->tokens,
            .source = make_tables(sources.layouts[0], one->tokens, one->ids, 1),
            .source_count = theirs,
            .target = make_tables(targets.layouts[0], one->tokens, one->ids, 2),
            .target_count = mine};
        status = measure_request(plan, &request, result);
        free_tables((kvferry_block_table *)request.source, theirs);
        free_tables((kvferry_block_table *)request.target, mine);
    }
    kvferry_plan_free(plan);
    tool_side_free(&sources);
    tool_side_free(&targets);
    return status;
}

/* --- compiling -------------------------------------------------------------------------------------------- */

static bool create_and_free(const kvferry_layout *const *sources, size_t count,
                            const kvferry_layout *target)
{
    kvferry_plan *plan = NULL;
    if (kvferry_plan_create(sources, count, target, &plan, NULL) != KVFERRY_OK)
        return false;
    kvferry_plan_free(plan);
    return true;
}

/* The slowest pair of one worker and one worker that holds all of it: equal sides, and a target that
 * takes part of what the source has. */
static int slowest_pair(const char *model, const kvferry_model_options *options,
                        bench_result *result)
{
    static const uint32_t sizes[][2] = {{1, 1}, {1, 2}, {1, 4}, {2, 2}, {2, 4}, {4, 4}, {4, 8}, {8, 8}};
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && status == TOOL_GO_ON; i++) {
        tool_side sources = {0}, targets = {0};
        status = make_side(&sources, model, &(tool_topology){sizes[i][0], 1}, options);
        if (status == TOOL_GO_ON)
            status = make_side(&targets, model, &(tool_topology){sizes[i][1], 1}, options);
        if (status == TOOL_GO_ON) {
            const kvferry_layout *const *layouts = (const kvferry_layout *const *)sources.layouts;
            double ms;
            if (!create_and_free(layouts, 1, targets.layouts[0]))
                status = tool_unexpected("%s TP%u to TP%u: no plan", model, sizes[i][0], sizes[i][1]);
            BENCH_BEST(ms, create_and_free(layouts, 1, targets.layouts[0]));
            if (ms > result->ms) {
                result->ms = ms;
                free(result->note);
                result->note = tool_text("%s TP%u to TP%u", model, sizes[i][0], sizes[i][1]);
            }
        }
        tool_side_free(&sources);
        tool_side_free(&targets);
    }
    return status;
}

static int run_compile(bench_result *result)
{
    int status = TOOL_GO_ON;
    result->name = "compile";
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]) && status == TOOL_GO_ON; i++)
        status = slowest_pair(models[i].name, &models[i].options, result);
    return status;
}

enum { FLEET_ENGINES = 16 };

static int fill_fleet(const tool_side *sources, const kvferry_layout *target, kvferry_plan **plans)
{
    int status = TOOL_GO_ON;
    for (int i = 0; i < FLEET_ENGINES && status == TOOL_GO_ON; i++)
        status = make_plan(sources, sources->count, target, &plans[i]);
    return status;
}

static void free_fleet(kvferry_plan **plans)
{
    for (int i = 0; i < FLEET_ENGINES; i++) {
        kvferry_plan_free(plans[i]);
        plans[i] = NULL;
    }
}

/* One target worker against 16 engines of PP8 TP8: 1,024 source workers. */
static int run_fleet(bench_result *result)
{
    tool_side sources = {0}, targets = {0};
    kvferry_plan *plans[FLEET_ENGINES] = {0};
    const kvferry_model_options options = {.blocks = 1024};
    result->name = "fleet";
    result->note = tool_text("Qwen3.5-35B-A3B, %d engines of PP8 TP8 to TP4", FLEET_ENGINES);
    int status = make_side(&sources, "Qwen3.5-35B-A3B", &(tool_topology){8, 8}, &options);
    if (status == TOOL_GO_ON)
        status = make_side(&targets, "Qwen3.5-35B-A3B", &(tool_topology){4, 1}, &options);
    for (int round = 0; round < 5 && status == TOOL_GO_ON; round++) {
        uint64_t memory = tool_allocated_bytes(), allocations = tool_allocations();
        double begun = cpu_ms();
        status = fill_fleet(&sources, targets.layouts[0], plans);
        double ms = cpu_ms() - begun;
        if (round == 0 || ms < result->ms)
            result->ms = ms;
        result->memory = tool_allocated_bytes() - memory;
        result->allocations = tool_allocations() - allocations;
        free_fleet(plans);
    }
    free_fleet(plans);
    tool_side_free(&sources);
    tool_side_free(&targets);
    return status;
}

/* --- output ------------------------------------------------------------------------------------------------ */

static json_t *result_json(const bench_result *result)
{
    json_t *value = json_pack("{s:s, s:I, s:I, s:f, s:f, s:I}", "name", result->name, "copies",
                              (json_int_t)result->copies, "bytes", (json_int_t)result->bytes, "ms",
                              result->ms, "floor_ms", result->floor_ms, "allocations",
                              (json_int_t)result->allocations);
    if (value && result->memory)
        json_object_set_new(value, "memory_bytes", json_integer((json_int_t)result->memory));
    if (value && result->note)
        json_object_set_new(value, "note", json_string(result->note));
    return value;
}

static void print_results(const bench_result *results, size_t count)
{
    if (tool_json()) {
        json_t *list = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append_new(list, result_json(&results[i]));
        tool_print_json(json_pack("{s:o}", "cases", list));
        return;
    }
    static const char *const columns[] = {"case", ">copies", ">moved", ">ms", ">floors",
                                          ">allocations", "note"};
    tool_table *table = tool_table_create(columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < count; i++) {
        const bench_result *result = &results[i];
        char *ms = tool_text("%.4f", result->ms);
        char *floors = result->floor_ms > 0 ? tool_text("%.2f", result->ms / result->floor_ms)
                                            : tool_text("-");
        char *note = result->memory ? tool_text("%s; %s of memory", result->note,
                                                tool_size(result->memory))
                                    : tool_text("%s", result->note ? result->note : "");
        const char *const cells[] = {result->name, tool_number(result->copies),
                                     tool_size(result->bytes), ms, floors,
                                     tool_number(result->allocations), note};
        tool_table_row(table, cells);
        free(ms);
        free(floors);
        free(note);
    }
    tool_table_print(table);
}

int bench_plan(int argc, char **argv)
{
    static const tool_usage usage = {
        .synopsis = "[--json]",
        .about = "Measures what planning costs: CPU time of the best of several runs on one core. A\n"
                 "floor is a plain loop that writes as many copies in the same run."};
    int operand;
    int status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand < argc)
        return tool_misuse("bench plan", "no operands", argv[operand]);
    enum { CASES = sizeof(cases) / sizeof(cases[0]) };
    bench_result results[CASES + 2] = {0};
    for (size_t i = 0; i < CASES && status == TOOL_GO_ON; i++)
        status = run_case(&cases[i], &results[i]);
    if (status == TOOL_GO_ON)
        status = run_compile(&results[CASES]);
    if (status == TOOL_GO_ON)
        status = run_fleet(&results[CASES + 1]);
    if (status == TOOL_GO_ON) {
        print_results(results, CASES + 2);
        status = TOOL_FINE;
    }
    for (size_t i = 0; i < CASES + 2; i++)
        free(results[i].note);
    return status;
}
