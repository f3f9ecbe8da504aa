/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo: options, and what the run came to. */
#include "demo_fault.h"
#include "demo_run.h"

#include <string.h>

#define DEFAULT_MODEL "Qwen3.5-35B-A3B"
#define DEFAULT_PREFILL "pp2tp2"
#define DEFAULT_DECODE "tp4"
#define DEFAULT_REQUESTS 10
#define DEFAULT_MEMORY (UINT64_C(3200) << 20)
#define SECOND UINT64_C(1000000000)

/* Tokens of a kernel block where a fault needs several in a block. */
#define KERNEL_BLOCK_TOKENS 16

typedef struct given_options {
    const char *model, *prefill, *decode, *engine, *transport, *fault;
    uint64_t requests, seed, memory, timeout;
} given_options;

static int parse(int argc, char **argv, given_options *given)
{
    const tool_option options[] = {
        {"model", 'm', TOOL_STRING, &given->model, "FILE|NAME",
         "the model's config.json, or a model's name (default " DEFAULT_MODEL ")", 0, 0},
        {"prefill", 0, TOOL_STRING, &given->prefill, "TOPOLOGY",
         "the prefill side's workers (default " DEFAULT_PREFILL ")", 0, 0},
        {"decode", 0, TOOL_STRING, &given->decode, "TOPOLOGY",
         "the decode side's workers (default " DEFAULT_DECODE ")", 0, 0},
        {"engine", 0, TOOL_CHOICE, &given->engine, "ucx|mooncake|nixl",
         "what moves the bytes (default ucx)", 0, 0},
        {"transport", 0, TOOL_CHOICE, &given->transport, "shm|tcp",
         "what they go over (default shm; mooncake and nixl: tcp only)", 0, 0},
        {"requests", 'n', TOOL_NUMBER, &given->requests, "N", "how many (default 10)", 1, 10000},
        {"seed", 0, TOOL_NUMBER, &given->seed, "N",
         "of lengths, block ids and values (default 1)", 0, 0},
        {"memory", 0, TOOL_NUMBER, &given->memory, "BYTES",
         "of all workers' segments together (default 3200M)", 1, UINT64_C(1) << 40},
        {"timeout", 0, TOOL_NUMBER, &given->timeout, "SECONDS",
         "how long a worker may say nothing (default 120)", 1, 86400},
        {"break", 0, TOOL_CHOICE, &given->fault, DEMO_FAULT_CHOICES,
         "plants a fault in what the prefill side sends", 0, 0},
    };
    const tool_usage usage = {
        .synopsis = "[options]",
        .about = "Starts the workers of a prefill and a decode engine as processes of their own, moves the "
                 "caches of several requests between them, and checks every byte of every decode "
                 "worker's memory.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .notes = "Exit status 1: a byte is wrong, or a worker failed.",
    };
    int operand;
    int status = tool_parse(&usage, argc, argv, &operand);
    if (status == TOOL_GO_ON && operand < argc)
        return tool_misuse("operand", "none", argv[operand]);
    return status;
}

static int take_topology(const char *option, const char *text, tool_topology *topology)
{
    if (!tool_topology_parse(text, topology))
        return tool_misuse(option, "a topology as tp4 or tp2pp2", text);
    return TOOL_GO_ON;
}

/* This fault shows where blocks are several kernel blocks: small ones make them so wherever the memory order
 * allows it. */
static void take_fault(const given_options *given, demo_config *config)
{
    config->fault = demo_fault_parse(given->fault);
    if (config->fault == DEMO_KERNEL_BLOCK)
        config->kernel_block_size = KERNEL_BLOCK_TOKENS;
}

/* Mooncake has no shared memory, and NIXL none by that name. */
static int take_engine(const given_options *given, demo_config *config)
{
    config->engine = given->engine ? given->engine : "ucx";
    bool ucx = strcmp(config->engine, "ucx") == 0;
    config->transport = given->transport ? given->transport : ucx ? "shm" : "tcp";
    if (!ucx && strcmp(config->transport, "tcp") != 0)
        return tool_misuse("--transport", "tcp, with an --engine other than ucx", config->transport);
    return TOOL_GO_ON;
}

static int configure(const given_options *given, demo_config *config)
{
    config->requests = given->requests;
    config->seed = given->seed;
    config->memory = given->memory;
    config->timeout_ns = given->timeout * SECOND;
    take_fault(given, config);
    int status = take_engine(given, config);
    if (status == TOOL_GO_ON)
        status = take_topology("--prefill", given->prefill ? given->prefill : DEFAULT_PREFILL,
                               &config->topology[DEMO_PREFILL]);
    if (status == TOOL_GO_ON)
        status = take_topology("--decode", given->decode ? given->decode : DEFAULT_DECODE,
                               &config->topology[DEMO_DECODE]);
    if (status == TOOL_GO_ON)
        status = tool_model_read("--model", given->model ? given->model : DEFAULT_MODEL,
                                 &config->model);
    return status;
}

/* A fault that cannot show would look like a proof of nothing. */
static int check_fault(const demo_run *run)
{
    const char *needs = demo_fault_needs(run->config.fault, run->sides);
    if (!needs)
        return TOOL_GO_ON;
    char option[32];
    snprintf(option, sizeof option, "--break %s", demo_fault_name(run->config.fault));
    return tool_misuse(option, needs, "none between these sides");
}

static int conclude(const demo_run *run)
{
    if (tool_json())
        tool_print_json(demo_run_json(run));
    else
        demo_print_run(run);
    if (run->failure)
        tool_log("%s", run->failure);
    if (!demo_run_right(run))
        return TOOL_FAILED;
    if (run->config.fault == DEMO_SOUND)
        return TOOL_FINE;
    tool_log("--break %s: %s", demo_fault_name(run->config.fault),
             run->planted ? "the fault did no harm to these requests"
                          : "nothing in these requests can be broken so");
    return TOOL_UNEXPECTED;
}

int tool_demo(int argc, char **argv)
{
    given_options given = {.requests = DEFAULT_REQUESTS, .seed = 1, .memory = DEFAULT_MEMORY, .timeout = 120};
    demo_run run = {0};
    int status = parse(argc, argv, &given);
    if (status == TOOL_GO_ON)
        status = configure(&given, &run.config);
    if (status == TOOL_GO_ON)
        status = demo_setup(&run.config, run.sides);
    if (status == TOOL_GO_ON)
        status = check_fault(&run);
    if (status == TOOL_GO_ON)
        status = demo_schedule_make(&run.config, run.sides, &run.schedule);
    if (status == TOOL_GO_ON) {
        if (!tool_json())
            demo_print_head(&run);
        demo_run_go(&run);
        status = conclude(&run);
    }
    demo_run_free(&run);
    return status;
}
