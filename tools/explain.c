/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry explain: who sends what to whom, and why; or every reason why not. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_DEFAULT 1024
#define TOKENS_DEFAULT 4096
#define TOKENS_MOST (16 << 20) /* all copies of a pair are held in memory */

typedef struct arguments {
    const char *model, *prefill, *decode;
    tool_list sources, targets;
    uint64_t tokens;
    bool whole_blocks, verbose;
    tool_model_values common, prefill_values, decode_values;
} arguments;

static const char about[] =
    "Says in words and tables what a transfer between two engines comes to: groups, blocks, rows and\n"
    "padding of both sides, which source worker sends which part of which stream to which target\n"
    "worker, and the copies and bytes of a request. Or lists every reason why it cannot work. The\n"
    "engines are a model in two topologies, or layout documents.";

static const char notes[] =
    "Each option from --platform on holds for both sides; as --prefill-NAME or --decode-NAME (such as\n"
    "--decode-block-size 32) it holds for that side only, and wins. A FILE '-' is stdin.\n"
    "Exit status: 0 it works, 1 it does not.";

static bool any_given(const tool_model_values *values)
{
    for (size_t i = 0; i < TOOL_MODEL_OPTION_LIMIT; i++)
        if (values->given[i])
            return true;
    return false;
}

static int check_modes(const arguments *given)
{
    bool files = given->sources.count || given->targets.count;
    bool model = given->model || given->prefill || given->decode || any_given(&given->common) ||
                 any_given(&given->prefill_values) || any_given(&given->decode_values);
    if (files && model)
        return tool_misuse("--source, --target", "no --model, topology or option of a model beside them",
                           "some");
    if (files && !given->sources.count)
        return tool_misuse("--source", "at least one", "none");
    if (files && !given->targets.count)
        return tool_misuse("--target", "at least one", "none");
    if (files)
        return TOOL_GO_ON;
    if (!given->model)
        return tool_misuse("--model", "a config.json or the name of a known model, or --source and "
                                      "--target with documents", "nothing");
    if (!given->prefill)
        return tool_misuse("--prefill", "a topology such as tp2pp2", "nothing");
    if (!given->decode)
        return tool_misuse("--decode", "a topology such as tp4", "nothing");
    return TOOL_GO_ON;
}

static int parse(int argc, char **argv, arguments *given)
{
    tool_option options[8 + 3 * TOOL_MODEL_OPTION_LIMIT] = {
        {"model", 'm', TOOL_STRING, &given->model, "FILE|NAME",
         "a config.json, a folder that has one, '-' for stdin, or the name of\n"
         "a known model", 0, 0},
        {"prefill", 'p', TOOL_STRING, &given->prefill, "TOPOLOGY",
         "of the source engine: tp4, tp2pp2, pp2tp2, ...", 0, 0},
        {"decode", 'd', TOOL_STRING, &given->decode, "TOPOLOGY", "of the target engine", 0, 0},
        {"source", 's', TOOL_STRINGS, &given->sources, "FILE",
         "layout document of a source worker; once for each", 0, 0},
        {"target", 't', TOOL_STRINGS, &given->targets, "FILE",
         "layout document of a target worker; once for each", 0, 0},
        {"tokens", 'n', TOOL_NUMBER, &given->tokens, "N",
         "tokens of the request that is counted; default 4096, or what fits", 1, TOKENS_MOST},
        {"whole-blocks", 0, TOOL_FLAG, &given->whole_blocks, NULL,
         "it wants the first block of a window whole, as an engine with prefix\n"
         "caching has to", 0, 0},
        {"verbose", 'v', TOOL_FLAG, &given->verbose, NULL, "one row for each layer", 0, 0},
    };
    size_t count = 8;
    count += tool_model_option_rows("", "what the request needs", &given->common, options + count);
    count += tool_model_option_rows("prefill-", "", &given->prefill_values, options + count);
    count += tool_model_option_rows("decode-", "", &given->decode_values, options + count);
    const tool_usage usage = {
        .synopsis = "--model FILE|NAME --prefill TOPOLOGY --decode TOPOLOGY [options]\n"
                    "--source FILE [--source FILE ...] --target FILE [--target FILE ...] [options]",
        .about = about,
        .options = options,
        .option_count = count,
        .notes = notes,
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand < argc)
        return tool_misuse(argv[operand], "only options", "an operand");
    return check_modes(given);
}

/* --- the two sides ------------------------------------------------------------------------- */

static int read_topology(const char *option, const char *text, tool_topology *topology)
{
    if (tool_topology_parse(text, topology))
        return TOOL_GO_ON;
    char *found = tool_text("'%s'", text);
    int status = tool_misuse(option, "a topology such as tp4, pp2 or tp2pp2, of at most 4096 workers",
                             found);
    free(found);
    return status;
}

/* The pool has room for the request, unless the caller says how large it is. */
static int side_options(const explain *all, const char *title, const tool_model_values *common,
                        const tool_model_values *values, kvferry_model_options *options)
{
    uint64_t room = all->tokens + 64;
    *options = (kvferry_model_options){.size = sizeof(*options),
                                       .engine_id = title,
                                       .blocks = room > BLOCKS_DEFAULT ? room : BLOCKS_DEFAULT};
    return tool_model_options_apply(common, values, options);
}

static int make_sides(explain *all, const arguments *given)
{
    tool_topology topologies[2];
    kvferry_model_options options[2];
    tool_model model;
    all->source.title = "prefill";
    all->target.title = "decode";
    int status = read_topology("--prefill", given->prefill, &topologies[0]);
    if (status == TOOL_GO_ON)
        status = read_topology("--decode", given->decode, &topologies[1]);
    if (status == TOOL_GO_ON)
        status = side_options(all, "prefill", &given->common, &given->prefill_values, &options[0]);
    if (status == TOOL_GO_ON)
        status = side_options(all, "decode", &given->common, &given->decode_values, &options[1]);
    if (status == TOOL_GO_ON)
        status = tool_model_read("--model", given->model, &model);
    if (status != TOOL_GO_ON)
        return status;
    status = tool_side_from_model(&all->source.workers, &model, &topologies[0], &options[0], "prefill",
                                  &all->reasons);
    if (status == TOOL_GO_ON)
        status = tool_side_from_model(&all->target.workers, &model, &topologies[1], &options[1],
                                      "decode", &all->reasons);
    tool_model_free(&model);
    return status;
}

static int read_sides(explain *all, const arguments *given)
{
    all->source.title = "source";
    all->target.title = "target";
    int status = tool_side_from_files(&all->source.workers, &given->sources, &all->reasons);
    if (status == TOOL_GO_ON)
        status = tool_side_from_files(&all->target.workers, &given->targets, &all->reasons);
    return status;
}

/* --- planning ------------------------------------------------------------------------------ */

static int plan_targets(explain *all)
{
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    all->plans = tool_alloc(all->target.workers.count, sizeof(*all->plans));
    for (size_t t = 0; t < all->target.workers.count && status == TOOL_GO_ON; t++) {
        kvferry_status made = kvferry_plan_create(
            (const kvferry_layout *const *)all->source.workers.layouts, all->source.workers.count,
            all->target.workers.layouts[t], &all->plans[t], report);
        status = tool_check_status(made, all->target.workers.names[t], &all->reasons, report, NULL);
    }
    kvferry_report_free(report);
    return status;
}

static int study(explain *all)
{
    int status = plan_targets(all);
    if (status != TOOL_GO_ON || tool_reasons_count(&all->reasons))
        return status;
    explain_side_study(&all->source);
    explain_side_study(&all->target);
    explain_pieces_study(all);
    explain_cuts_study(all);
    return explain_request_count(all);
}

static int run(explain *all, const arguments *given)
{
    int status = given->model ? make_sides(all, given) : read_sides(all, given);
    if (status == TOOL_GO_ON && !tool_reasons_count(&all->reasons))
        status = study(all);
    if (status != TOOL_GO_ON)
        return status;
    if (tool_reasons_count(&all->reasons))
        return tool_refuse(&all->reasons, "these two cannot work together", stdout);
    if (tool_json())
        explain_print_json(all);
    else
        explain_print_text(all);
    return TOOL_FINE;
}

static void explain_free(explain *all)
{
    for (size_t t = 0; all->plans && t < all->target.workers.count; t++)
        kvferry_plan_free(all->plans[t]);
    free(all->plans);
    for (size_t p = 0; p < all->piece_count; p++) {
        tool_list_free(&all->pieces[p].layers);
        tool_list_free(&all->pieces[p].streams);
    }
    free(all->pieces);
    for (size_t c = 0; c < all->cut_count; c++) {
        tool_list_free(&all->cuts[c].layers);
        tool_list_free(&all->cuts[c].streams);
    }
    free(all->cuts);
    tool_list_free(&all->unsent);
    tool_list_free(&all->unused);
    for (int order = 0; order < EXPLAIN_ORDERS; order++)
        free(all->counts[order]);
    tool_reasons_free(&all->reasons);
    explain_side_free(&all->source);
    explain_side_free(&all->target);
}

int tool_explain(int argc, char **argv)
{
    arguments given = {0};
    explain all = {0};
    int status = parse(argc, argv, &given);
    if (status == TOOL_GO_ON) {
        all.tokens = given.tokens ? given.tokens : TOKENS_DEFAULT;
        all.tokens_given = given.tokens != 0;
        all.whole_blocks = given.whole_blocks;
        all.verbose = given.verbose;
        status = run(&all, &given);
    }
    explain_free(&all);
    tool_list_free(&given.sources);
    tool_list_free(&given.targets);
    return status;
}
