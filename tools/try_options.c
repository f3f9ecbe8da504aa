/* SPDX-License-Identifier: Apache-2.0 */
/* What `serve` and `send` take, and the documents that come of it. */
#include <stdlib.h>
#include <string.h>

#include "try.h"

/* Blocks of a model's workers, where no option says how many: enough for some requests. */
#define DEFAULT_BLOCKS 16
#define DEFAULT_BLOCKS_TEXT "16"

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
    return count + tool_model_option_rows("", DEFAULT_BLOCKS_TEXT, &options->values, rows + count);
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

/* --- the workers of documents -------------------------------------------------------------------- */

#define WORKER_LIMIT 4096 /* of one engine */
#define NAMED_LIMIT 8     /* workers that are not there, by name */

static uint64_t place_of(const kvferry_worker *worker)
{
    return ((uint64_t)worker->dp_rank * worker->pp_size + worker->pp_rank) * worker->tp_size + worker->tp_rank;
}

static char *name_of(const kvferry_worker *sizes, uint64_t place)
{
    uint64_t tp = place % sizes->tp_size, pp = place / sizes->tp_size % sizes->pp_size;
    return tool_text("tp%u pp%u dp%u", (unsigned)tp, (unsigned)pp,
                     (unsigned)(place / sizes->tp_size / sizes->pp_size));
}

static bool same_sizes(const kvferry_worker *a, const kvferry_worker *b)
{
    return a->tp_size == b->tp_size && a->pp_size == b->pp_size && a->dp_size == b->dp_size;
}

/* Puts one more finding behind those of `text`, and gives it up. */
static void append(char **text, char *finding)
{
    char *longer = tool_text("%s%s%s", *text, **text ? "; " : "", finding);
    free(finding);
    free(*text);
    *text = longer;
}

/* Documents of another engine than the first. */
static char *find_strangers(const tool_side *side)
{
    char *found = tool_text("%s", "");
    const kvferry_worker *first = kvferry_layout_worker(side->layouts[0]);
    const char *engine = kvferry_layout_engine_id(side->layouts[0]);
    for (size_t i = 1; i < side->count; i++) {
        const kvferry_worker *worker = kvferry_layout_worker(side->layouts[i]);
        const char *own = kvferry_layout_engine_id(side->layouts[i]);
        if (strcmp(own, engine) != 0)
            append(&found, tool_text("%s of engine %s, %s of %s", side->names[0], engine, side->names[i], own));
        if (!same_sizes(worker, first))
            append(&found, tool_text("%s of tp%u pp%u dp%u, %s of tp%u pp%u dp%u", side->names[0],
                                          first->tp_size, first->pp_size, first->dp_size, side->names[i],
                                          worker->tp_size, worker->pp_size, worker->dp_size));
    }
    return found;
}

static void find_missing(const kvferry_worker *sizes, const size_t *holders, uint64_t count, char **found)
{
    uint64_t missing = 0;
    for (uint64_t place = 0; place < count; place++) {
        if (holders[place] || missing++ >= NAMED_LIMIT)
            continue;
        char *name = name_of(sizes, place);
        append(found, tool_text("none of %s", name));
        free(name);
    }
    if (missing > NAMED_LIMIT)
        append(found, tool_text("none of %llu more", (unsigned long long)(missing - NAMED_LIMIT)));
}

/* Workers that are named twice, or not at all; of documents of one engine. */
static char *find_gaps(const tool_side *side, uint64_t count)
{
    char *found = tool_text("%s", "");
    const kvferry_worker *sizes = kvferry_layout_worker(side->layouts[0]);
    size_t *holders = tool_alloc(count, sizeof *holders); /* the document's index, from 1 on */
    for (size_t i = 0; i < side->count; i++) {
        uint64_t place = place_of(kvferry_layout_worker(side->layouts[i]));
        if (!holders[place]) {
            holders[place] = i + 1;
            continue;
        }
        char *name = name_of(sizes, place);
        append(&found, tool_text("%s twice, in %s and %s", name, side->names[holders[place] - 1], side->names[i]));
        free(name);
    }
    find_missing(sizes, holders, count, &found);
    if (!*found && holders[0] != 1)
        append(&found, tool_text("%s first", side->names[0]));
    free(holders);
    return found;
}

/* The nodes of an engine wait for all of its workers, so each must be there once; the first one leads. */
static int check_workers(const tool_side *side)
{
    const kvferry_worker *sizes = kvferry_layout_worker(side->layouts[0]);
    uint64_t count = (uint64_t)sizes->tp_size * sizes->pp_size;
    bool many = __builtin_mul_overflow(count, sizes->dp_size, &count) || count > WORKER_LIMIT;
    char *found = many ? tool_text("%s of tp%u pp%u dp%u", side->names[0], sizes->tp_size, sizes->pp_size, sizes->dp_size)
                       : find_strangers(side);
    if (!*found) {
        free(found);
        found = find_gaps(side, count);
    }
    char *expected = many ? tool_text("an engine of at most %d workers", WORKER_LIMIT)
                          : tool_text("each worker of one engine once (%llu of them), the one of the lowest ranks first",
                                      (unsigned long long)count);
    int status = *found ? tool_misuse("--layout", expected, found) : TOOL_GO_ON;
    free(expected);
    free(found);
    return status;
}

/* Documents say it all: what would make another engine of a model is not passed over. */
static int check_documents_alone(const try_options *options)
{
    char *given = tool_model_options_given(&options->values);
    char *names = tool_text("%s%s%s", options->topology ? "--topology" : "", options->topology && *given ? ", " : "", given);
    int status = TOOL_GO_ON;
    if (options->layouts.count && *names)
        status = tool_misuse(names, "options of a model with --model only", "them with --layout");
    free(names);
    free(given);
    return status;
}

int try_side_make(const try_options *options, tool_side *side)
{
    tool_reasons reasons = {0};
    if (!options->model == !options->layouts.count)
        return tool_misuse("--model", "either --model or --layout", options->model ? "both" : "neither");
    if (!options->key != !options->allowed)
        return tool_misuse(options->key ? "--allow" : "--key", "--key and --allow together",
                           options->key ? "--key alone" : "--allow alone");
    int status = check_documents_alone(options);
    if (status == TOOL_GO_ON)
        status = tool_check_file("--key", "a file that can be read", options->key);
    if (status == TOOL_GO_ON)
        status = tool_check_file("--allow", "a file that can be read", options->allowed);
    if (status != TOOL_GO_ON)
        return status;
    status = options->model ? side_from_model(options, side, &reasons)
                                : tool_side_from_files(side, &options->layouts, &reasons);
    if (status == TOOL_GO_ON && tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "no layout", stdout);
    tool_reasons_free(&reasons);
    return status == TOOL_GO_ON && !options->model ? check_workers(side) : status;
}
