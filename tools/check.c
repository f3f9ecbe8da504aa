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

static int answer(const arguments *given, tool_reasons *reasons)
{
    if (tool_reasons_count(reasons))
        return tool_refuse(reasons,
                           given->pair.count ? "these documents differ"
                                             : "these sources cannot serve these targets",
                           stdout);
    if (tool_json())
        tool_print_json(json_pack("{s:b}", "ok", 1));
    else if (given->pair.count)
        printf("no difference that matters between %s and %s\n", given->pair.items[0],
               given->pair.items[1]);
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
    return status == TOOL_GO_ON ? answer(given, reasons) : status;
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
