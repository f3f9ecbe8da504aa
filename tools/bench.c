/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry bench: finds the benchmark. */
#include "tool.h"

#include <string.h>

typedef struct benchmark {
    const char *name, *verb;
    int (*run)(int argc, char **argv);
} benchmark;

static const benchmark benchmarks[] = {
    {"plan", "bench plan", bench_plan},
    {"transfer", "bench transfer", bench_transfer},
    {"node", "bench node", bench_node},
};
#define COUNT (sizeof(benchmarks) / sizeof(*benchmarks))
#define NAMES "plan, transfer, node"

static int run(const benchmark *chosen, int argc, char **argv)
{
    tool_set_verb(chosen->verb);
    return chosen->run(argc, argv);
}

static int run_all(void)
{
    if (tool_json())
        return tool_misuse("benchmark", "one of " NAMES " beside --json", "none");
    int worst = TOOL_FINE;
    for (size_t i = 0; i < COUNT; i++) {
        char name[16] = {0}, *arguments[] = {name, NULL};
        memcpy(name, benchmarks[i].name, strlen(benchmarks[i].name));
        printf("%s%s\n", i ? "\n" : "", benchmarks[i].verb);
        int status = run(&benchmarks[i], 1, arguments);
        worst = status > worst ? status : worst;
    }
    return worst;
}

int tool_bench(int argc, char **argv)
{
    const tool_usage usage = {
        .synopsis = "[plan|transfer|node [options]]",
        .about = "Measures against the machine's own limits, in one run; without a name, everything.\n"
                 "  plan      compiling plans and expanding requests into copies\n"
                 "  transfer  moving blocks between two processes\n"
                 "  node      handshakes, and requests from offer to release\n"
                 "'kvferry bench NAME --help' lists a benchmark's options.",
    };
    /* Only what stands before the benchmark's name is parsed here: behind it are its own options. */
    int first = 1;
    while (first < argc && strcmp(argv[first], "--json") == 0)
        first++;
    if (first == argc)
        return run_all();
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(argv[first], benchmarks[i].name) == 0)
            return run(&benchmarks[i], argc - first, argv + first);
    if (argv[first][0] == '-') {
        int operand, status = tool_parse(&usage, argc, argv, &operand);
        if (status != TOOL_GO_ON)
            return status;
    }
    return tool_misuse("benchmark", "one of " NAMES, argv[first]);
}
