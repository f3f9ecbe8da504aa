/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry check: every difference that matters between documents. */
#include "tool.h"

#include <string.h>

typedef struct arguments {
    tool_list sources, targets, pair;
} arguments;

static int parse(int argc, char **argv, arguments *given)
{
    const tool_option options[] = {
        {"source", 's', TOOL_STRINGS, &given->sources, "FILE",
         "layout document of a source worker; once for each", 0, 0},
        {"target", 't', TOOL_STRINGS, &given->targets, "FILE",
         "layout document of a target worker; once for each", 0, 0},
    };
    const tool_usage usage = {
        .synopsis = "FILE FILE\n--source FILE [--source FILE ...] --target FILE [--target FILE ...]",
        .about = "Lists every difference that matters, all at once. Two files are compared as far as\n"
                 "both speak: layers that only one of two stages holds are no difference. With\n"
                 "--source and --target, all workers of one engine are checked to give each target\n"
                 "worker everything that it must get. A FILE '-' is stdin.",
        .options = options,
        .option_count = sizeof(options) / sizeof(*options),
        .notes = "Exit status: 0 nothing differs, 1 something does.",
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    for (; operand < argc; operand++)
        tool_list_add(&given->pair, argv[operand]);
    if (given->pair.count && (given->sources.count || given->targets.count))
        return tool_misuse(given->pair.items[0], "no operand beside --source and --target", "one");
    if (!given->sources.count && !given->targets.count && given->pair.count != 2)
        return tool_misuse("operands", "two layout documents, or --source and --target",
                           given->pair.count == 1  ? "one document"
                           : given->pair.count == 0 ? "none"
                                                    : "more than two");
    if (given->pair.count)
        return TOOL_GO_ON;
    if (!given->sources.count)
        return tool_misuse("--source", "at least one", "none");
    if (!given->targets.count)
        return tool_misuse("--target", "at least one", "none");
    return TOOL_GO_ON;
}

static int compare(const tool_side *pair, tool_reasons *reasons)
{
    kvferry_report *report = tool_report();
    kvferry_status status = kvferry_layout_compare(pair->layouts[0], pair->layouts[1], report);
    int result = tool_check_status(status, "comparing", reasons, report, NULL);
    kvferry_report_free(report);
    return result;
}

static int plan_each(const tool_side *sources, const tool_side *targets, tool_reasons *reasons)
{
    kvferry_report *report = tool_report();
    int result = TOOL_GO_ON;
    for (size_t i = 0; i < targets->count && result == TOOL_GO_ON; i++) {
        kvferry_plan *plan = NULL;
        kvferry_status status = kvferry_plan_create((const kvferry_layout *const *)sources->layouts,
                                                    sources->count, targets->layouts[i], &plan, report);
        result = tool_check_status(status, targets->names[i], reasons, report, NULL);
        if (status == KVFERRY_OK)
            kvferry_plan_free(plan);
    }
    kvferry_report_free(report);
    return result;
}

static bool has_layer(const kvferry_stream *stream, const char *layer)
{
    bool has = strcmp(stream->layer, layer) == 0;
    for (uint32_t i = 0; i < stream->alias_count && !has; i++)
        has = strcmp(stream->aliases[i], layer) == 0;
    return has;
}

static bool is_same(const kvferry_stream *a, const kvferry_stream *b)
{
    bool same = has_layer(b, a->layer);
    for (uint32_t i = 0; i < a->alias_count && !same; i++)
        same = has_layer(b, a->aliases[i]);
    return same && strcmp(a->name, b->name) == 0;
}

/* How many of the second document's streams the first one would have to serve, and has: these are compared. */
static uint32_t count_compared(const tool_side *pair)
{
    const kvferry_layout *a = pair->layouts[0], *b = pair->layouts[1];
    uint32_t compared = 0;
    for (uint32_t i = 0; i < kvferry_layout_stream_count(b); i++) {
        const kvferry_stream *wanted = kvferry_layout_stream(b, i);
        bool found = false;
        for (uint32_t k = 0; k < kvferry_layout_stream_count(a) && !found; k++) {
            const kvferry_stream *has = kvferry_layout_stream(a, k);
            found = has->policy != KVFERRY_POLICY_LOCAL && is_same(wanted, has);
        }
        compared += found && wanted->policy == KVFERRY_POLICY_REQUIRED;
    }
    return compared;
}

static void print_pair(const arguments *given, const tool_side *pair)
{
    uint32_t compared = count_compared(pair), counts[2];
    for (int i = 0; i < 2; i++)
        counts[i] = kvferry_layout_stream_count(pair->layouts[i]);
    if (tool_json())
        tool_print_json(json_pack("{s:b, s:I, s:[I,I]}", "ok", 1, "streams_compared", (json_int_t)compared,
                                  "streams", (json_int_t)counts[0], (json_int_t)counts[1]));
    else
        printf("no difference that matters between %s and %s: %u stream%s compared, of %u and %u\n",
               given->pair.items[0], given->pair.items[1], compared, compared == 1 ? "" : "s", counts[0], counts[1]);
}

static int answer(const arguments *given, const tool_side *first, tool_reasons *reasons)
{
    if (tool_reasons_count(reasons))
        return tool_refuse(reasons,
                           given->pair.count ? "these documents differ"
                                             : "these sources cannot serve these targets",
                           stdout);
    if (given->pair.count)
        print_pair(given, first);
    else if (tool_json())
        tool_print_json(json_pack("{s:b}", "ok", 1));
    else
        printf("no difference that matters: %zu source%s can serve %zu target%s\n",
               given->sources.count, given->sources.count == 1 ? "" : "s", given->targets.count,
               given->targets.count == 1 ? "" : "s");
    return TOOL_FINE;
}

static int run(const arguments *given, tool_side *first, tool_side *second, tool_reasons *reasons)
{
    const tool_list *files = given->pair.count ? &given->pair : &given->sources;
    int status = tool_side_from_files(first, files, reasons);
    if (status == TOOL_GO_ON && !given->pair.count)
        status = tool_side_from_files(second, &given->targets, reasons);
    if (status != TOOL_GO_ON)
        return status;
    if (tool_reasons_count(reasons))
        return tool_refuse(reasons, "not valid layout documents", stdout);
    status = given->pair.count ? compare(first, reasons) : plan_each(first, second, reasons);
    return status == TOOL_GO_ON ? answer(given, first, reasons) : status;
}

int tool_check(int argc, char **argv)
{
    arguments given = {0};
    tool_side first = {0}, second = {0};
    tool_reasons reasons = {0};
    int status = parse(argc, argv, &given);
    if (status == TOOL_GO_ON)
        status = run(&given, &first, &second, &reasons);
    tool_reasons_free(&reasons);
    tool_side_free(&first);
    tool_side_free(&second);
    tool_list_free(&given.sources);
    tool_list_free(&given.targets);
    tool_list_free(&given.pair);
    return status;
}
