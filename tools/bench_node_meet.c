/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One prefill worker, the only node of this process, shakes hands with the workers of many decode engines, which are
 * nodes of other processes: what this process takes is what it costs the one.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_node.h"

/* So many nodes do without UCX, and without an engine that has to be looked at again and again. */
#define TRANSPORT "tcp"
enum { ENGINES_OF_A_PROCESS = 32, WHERE = 128, STEPS = 2 };

/* What goes to a process of decode workers, and back: a step's begin and its end. */
typedef struct order {
    char where[WHERE];
} order;

typedef struct answer {
    int status;
    double cpu_s;
} answer;

typedef struct process {
    pid_t pid;
    int channel;
} process;

typedef struct crowd { /* in such a process */
    bench_nodes engines[ENGINES_OF_A_PROCESS];
    size_t count;
} crowd;

/* Each node has a few descriptors. */
static void allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Workers first .. last - 1 of each engine. */
static int connect_all(crowd *all, size_t first, size_t last, const char *where)
{
    kvferry_node *nodes[ENGINES_OF_A_PROCESS * BENCH_MEET_TP];
    bench_handshake ignored;
    size_t count = 0;
    for (size_t i = 0; i < all->count; i++)
        for (size_t k = first; k < last; k++)
            nodes[count++] = all->engines[i].nodes[k];
    return bench_connect_nodes(where, nodes, count, &ignored);
}

/* The first answer says that all are started. Ends when the parent closes the channel. */
static int run_crowd(int channel, const char *model, uint64_t blocks, size_t first, size_t count)
{
    const tool_topology topology = {BENCH_MEET_TP, 1};
    static crowd all;
    answer out = {.status = TOOL_GO_ON};
    order in;
    allow_descriptors();
    for (; all.count < count && out.status == TOOL_GO_ON; all.count++) {
        char id[32];
        snprintf(id, sizeof id, "decode-%zu", first + all.count);
        all.engines[all.count].transport = TRANSPORT;
        out.status = bench_nodes_start_model(&all.engines[all.count], model, &topology, blocks, id, "ucx");
    }
    for (size_t step = 0; send(channel, &out, sizeof out, MSG_NOSIGNAL) == sizeof out; step++) {
        if (recv(channel, &in, sizeof in, MSG_WAITALL) != sizeof in || step == STEPS)
            break;
        double before = bench_cpu_s();
        out.status = connect_all(&all, step ? 1 : 0, step ? BENCH_MEET_TP : 1, in.where);
        out.cpu_s = bench_cpu_s() - before;
    }
    return 0;
}

static int start_process(process *made, const char *model, uint64_t blocks, size_t first, size_t count)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return tool_unexpected("no sockets for a process of decode workers");
    fflush(stdout);
    made->pid = fork();
    if (made->pid == 0) {
        close(ends[0]);
        _exit(run_crowd(ends[1], model, blocks, first, count)); /* its nodes die with it */
    }
    close(ends[1]);
    made->channel = ends[0];
    return made->pid > 0 ? TOOL_GO_ON : tool_unexpected("no process for decode workers");
}

static int hear_all(const process *processes, size_t count, double *cpu_s)
{
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < count; i++) {
        answer in = {0};
        if (recv(processes[i].channel, &in, sizeof in, MSG_WAITALL) != sizeof in)
            status = tool_unexpected("a process of decode workers ended");
        else if (in.status != TOOL_GO_ON)
            status = in.status;
        *cpu_s += in.cpu_s;
    }
    return status;
}

static int meet(const bench_nodes *prefill, const process *processes, size_t count, bench_met *met)
{
    order out = {{0}};
    double cpu = bench_cpu_s(), clock = bench_clock_s();
    snprintf(out.where, sizeof out.where, "%s", kvferry_node_address(prefill->nodes[0]));
    for (size_t i = 0; i < count; i++)
        send(processes[i].channel, &out, sizeof out, MSG_NOSIGNAL);
    int status = hear_all(processes, count, &met->others_cpu_s);
    met->cpu_s = bench_cpu_s() - cpu;
    met->clock_s = bench_clock_s() - clock;
    return status;
}

int bench_meet(const char *model, uint64_t blocks, uint64_t workers, bench_met mets[2])
{
    const tool_topology topology = {1, 1};
    size_t engines = (size_t)workers / BENCH_MEET_TP, first = 0, count = 0;
    process *processes = tool_alloc(engines / ENGINES_OF_A_PROCESS + 1, sizeof *processes);
    bench_nodes prefill = {.transport = TRANSPORT};
    int status = TOOL_GO_ON;
    for (; first < engines && status == TOOL_GO_ON; first += ENGINES_OF_A_PROCESS, count++) {
        size_t left = engines - first;
        status = start_process(&processes[count], model, blocks, first,
                               left < ENGINES_OF_A_PROCESS ? left : ENGINES_OF_A_PROCESS);
    }
    double ignored = 0;
    if (status == TOOL_GO_ON) /* threads of a node come after the last fork */
        status = bench_nodes_start_model(&prefill, model, &topology, blocks, "prefill", "ucx");
    if (status == TOOL_GO_ON)
        status = hear_all(processes, count, &ignored);
    mets[0].workers = engines;
    mets[1].workers = engines * (BENCH_MEET_TP - 1);
    for (size_t step = 0; step < STEPS && status == TOOL_GO_ON; step++)
        status = meet(&prefill, processes, count, &mets[step]);
    for (size_t i = 0; i < count; i++) {
        close(processes[i].channel);
        if (processes[i].pid > 0) {
            kill(processes[i].pid, SIGKILL);
            waitpid(processes[i].pid, NULL, 0);
        }
    }
    bench_nodes_stop(&prefill);
    free(processes);
    return status;
}
