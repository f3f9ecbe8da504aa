/* SPDX-License-Identifier: Apache-2.0 */
/* What `serve` and `send` take, and the documents that come of it. */
#include <string.h>

#include "try.h"

/* Blocks of a model's workers, where no option says how many: enough for some requests. */
#define DEFAULT_BLOCKS 16

size_t try_option_rows(try_options *options, const char *engine_id, tool_option *rows)
{
    options->engine_id = engine_id;
    options->timeout = 30;
    const tool_option common[] = {
        {"model", 'm', TOOL_STRING, &options->model, "FILE|NAME",
         "a config.json, or the name of a known model; the engine has memory for it,\n"
         "but no weights", 0, 0},
        {"topology", 't', TOOL_STRING, &options->topology, "TOPOLOGY",
         "the engine's workers, as tp4 or tp2pp2 (default tp1)", 0, 0},
        {"layout", 'l', TOOL_STRINGS, &options->layouts, "FILE",
         "layout documents instead of a model: one for each worker of the engine", 0, 0},
        {"transport", 0, TOOL_STRING, &options->transport, "NAME",
         "what the bytes go over: shm, tcp, or a UCX_TLS list (default: the best)", 0, 0},
        {"key", 'k', TOOL_STRING, &options->key, "FILE",
         "this side's key pair, from 'kvferry keygen'", 0, 0},
        {"allow", 'a', TOOL_STRING, &options->allowed, "FILE",
         "public keys of those who may connect, one a line; goes with --key", 0, 0},
        {"insecure", 0, TOOL_FLAG, &options->insecure, NULL,
         "without keys, at other addresses than loopback too", 0, 0},
        {"timeout", 0, TOOL_NUMBER, &options->timeout, "SECONDS",
         "how long to wait for the other side (default 30)", 1, 86400},
    };
    size_t count = sizeof common / sizeof *common;
    memcpy(rows, common, sizeof common);
    return count + tool_model_option_rows("", &options->values, rows + count);
}

static int side_from_model(const try_options *options, tool_side *side, tool_reasons *reasons)
{
    tool_topology topology = {1, 1};
    if (options->topology && !tool_topology_parse(options->topology, &topology))
        return tool_misuse("--topology", "a topology as tp4 or tp2pp2", options->topology);
    kvferry_model_options worker = {
        .size = sizeof worker, .engine_id = options->engine_id, .blocks = DEFAULT_BLOCKS};
    int status = tool_model_options_apply(&options->values, NULL, &worker);
    tool_model model = {0};
    if (status == TOOL_GO_ON)
        status = tool_model_read("--model", options->model, &model);
    if (status == TOOL_GO_ON)
        status = tool_side_from_model(side, &model, &topology, &worker, NULL, reasons);
    tool_model_free(&model);
    return status;
}

int try_side_make(const try_options *options, tool_side *side)
{
    tool_reasons reasons = {0};
    if (!options->model == !options->layouts.count)
        return tool_misuse("--model", "either --model or --layout", options->model ? "both" : "neither");
    if (!options->key != !options->allowed)
        return tool_misuse("--allow", "--key and --allow together", "one of them");
    int status = options->model ? side_from_model(options, side, &reasons)
                                : tool_side_from_files(side, &options->layouts, &reasons);
    if (status == TOOL_GO_ON && tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "no layout", stdout);
    tool_reasons_free(&reasons);
    return status;
}
