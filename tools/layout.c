/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry layout: a worker's layout document from a model and a topology. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    const char *model;
    uint64_t tp, pp, tp_rank, pp_rank;
    tool_model_values values;
} arguments;

static int parse(int argc, char **argv, arguments *given)
{
    tool_option options[5 + TOOL_MODEL_OPTION_LIMIT] = {
        {"model", 'm', TOOL_STRING, &given->model, "FILE|NAME",
         "a config.json, a folder that has one, '-' for stdin, or the name of\n"
         "a known model", 0, 0},
        {"tp", 0, TOOL_NUMBER, &given->tp, "N", "tensor-parallel size; default 1", 1, 4096},
        {"pp", 0, TOOL_NUMBER, &given->pp, "N", "pipeline-parallel size; default 1", 1, 4096},
        {"tp-rank", 0, TOOL_NUMBER, &given->tp_rank, "R", "default 0", 0, 4095},
        {"pp-rank", 0, TOOL_NUMBER, &given->pp_rank, "R", "default 0", 0, 4095},
    };
    size_t count = 5 + tool_model_option_rows("", "1024", &given->values, options + 5);
    const tool_usage usage = {
        .synopsis = "--model FILE|NAME --tp N [--pp N] [--tp-rank R] [--pp-rank R] [options]",
        .about = "Prints the layout document (kvferry-layout/1, JSON) that the worker has under "
                 "vLLM 0.32.",
        .options = options,
        .option_count = count,
        .notes = "Known models are the files of the folder $KVFERRY_MODELS, else those installed "
                 "with kvferry.",
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand < argc)
        return tool_misuse(argv[operand], "only options", "an operand");
    if (!given->model)
        return tool_misuse("--model", "a config.json or the name of a known model", "nothing");
    return TOOL_GO_ON;
}

static int rank_outside(const char *option, uint64_t rank, uint64_t size)
{
    char *found = tool_text("%llu", (unsigned long long)rank);
    char *expected = tool_text("a rank from 0 to %llu", (unsigned long long)size - 1);
    int status = tool_misuse(option, expected, found);
    free(expected);
    free(found);
    return status;
}

static int print(const kvferry_layout *layout)
{
    char *text;
    size_t size;
    kvferry_status status = kvferry_layout_write_json(layout, &text, &size);
    if (status == KVFERRY_NO_MEMORY)
        tool_no_memory();
    if (status != KVFERRY_OK)
        return tool_unexpected("the document could not be written: %s", kvferry_status_name(status));
    fwrite(text, 1, size, stdout);
    if (size == 0 || text[size - 1] != '\n')
        fputc('\n', stdout);
    kvferry_free(text);
    return TOOL_FINE;
}

static int make(const tool_model *model, const kvferry_model_options *options)
{
    tool_reasons reasons = {0};
    kvferry_report *report = tool_report();
    kvferry_layout *layout = NULL;
    kvferry_status made = kvferry_model_layout(model->config, model->size, options, &layout, report);
    int status = tool_check_status(made, model->name, &reasons, report, tool_model_blamed(model, report));
    if (status == TOOL_GO_ON && made != KVFERRY_OK) {
        /* stdout is for a document; a text for a person would be taken for one */
        status = tool_refuse(&reasons, "no layout", stderr);
    } else if (status == TOOL_GO_ON) {
        status = print(layout);
        kvferry_layout_free(layout);
    }
    kvferry_report_free(report);
    tool_reasons_free(&reasons);
    return status;
}

int tool_layout(int argc, char **argv)
{
    arguments given = {.tp = 1, .pp = 1};
    int status = parse(argc, argv, &given);
    if (status != TOOL_GO_ON)
        return status;
    if (given.tp_rank >= given.tp)
        return rank_outside("--tp-rank", given.tp_rank, given.tp);
    if (given.pp_rank >= given.pp)
        return rank_outside("--pp-rank", given.pp_rank, given.pp);
    kvferry_model_options options = {.size = sizeof(options),
                                     .tp_size = (uint32_t)given.tp,
                                     .pp_size = (uint32_t)given.pp,
                                     .tp_rank = (uint32_t)given.tp_rank,
                                     .pp_rank = (uint32_t)given.pp_rank};
    status = tool_model_options_apply(&given.values, NULL, &options);
    tool_model model;
    if (status == TOOL_GO_ON)
        status = tool_model_read("--model", given.model, &model);
    if (status != TOOL_GO_ON)
        return status;
    status = make(&model, &options);
    tool_model_free(&model);
    return status;
}
