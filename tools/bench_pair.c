/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_pair.h"

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <kvferry/kvferry.h>

enum { BINDING_LIMIT = 1 << 16, WHY_BYTES = 256 };

/* What the initiator's process answers. */
typedef struct pair_answer {
    bool well;
    bench_pair_result result;
    char why[WHY_BYTES];
} pair_answer;

typedef struct pair_side {
    kvferry_engine *engine;
    kvferry_report *report;
    unsigned char *memory;
} pair_side;

double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void bench_pin(unsigned index)
{
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof(may), &may) != 0 || CPU_COUNT(&may) < 2)
        return;
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &may) && index-- == 0)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
}

static unsigned char *map_memory(uint64_t bytes)
{
    void *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool open_side(const bench_pair *pair, pair_side *side)
{
    const kvferry_engine_options options = {.size = sizeof(options), .transport = pair->transport};
    uint32_t segment;
    void *memory = NULL;
    if (kvferry_report_create(&side->report) != KVFERRY_OK ||
        kvferry_engine_open("ucx", &options, &side->engine, side->report) != KVFERRY_OK)
        return false;
    if (pair->allocated)
        kvferry_engine_allocate(side->engine, pair->segment_bytes, &memory, &segment, side->report);
    else if ((memory = map_memory(pair->segment_bytes)) &&
             kvferry_engine_register(side->engine, memory, pair->segment_bytes, KVFERRY_MEMORY_HOST,
                                     &segment, side->report) != KVFERRY_OK)
        memory = NULL;
    side->memory = memory;
    if (memory)
        memset(memory, 0x5a, (size_t)pair->segment_bytes); /* its pages are there before the clock */
    return memory != NULL;
}

static const char *side_words(const pair_side *side)
{
    const kvferry_reason *reason = kvferry_report_get(side->report, 0);
    return reason ? reason->message : "out of memory";
}

/* The target: exports itself, then progresses until the initiator is gone. */
static void serve(const bench_pair *pair, int channel)
{
    pair_side side = {0};
    void *binding;
    size_t size;
    if (!open_side(pair, &side) ||
        kvferry_engine_export(side.engine, &binding, &size, side.report) != KVFERRY_OK ||
        send(channel, binding, size, 0) != (ssize_t)size)
        _exit(1);
    struct pollfd watch = {.fd = channel, .events = POLLIN};
    for (unsigned round = 0; round % 4096 || poll(&watch, 1, 0) == 0; round++)
        kvferry_engine_progress(side.engine, NULL);
    kvferry_engine_close(side.engine);
    _exit(0);
}

/* Blocks in shuffled order; the target's are shuffled otherwise. Same numbers in every run. */
static kvferry_copy *make_copies(const bench_pair *pair)
{
    uint64_t blocks = pair->segment_bytes / pair->block_bytes;
    kvferry_copy *copies = calloc((size_t)pair->copies, sizeof(*copies));
    uint64_t *order = calloc((size_t)blocks, sizeof(*order));
    uint64_t random = 12345;
    for (int target = 0; copies && order && target < 2; target++) {
        for (uint64_t i = 0; i < blocks; i++)
            order[i] = i;
        for (uint64_t i = blocks; i > 1; i--) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t other = (random >> 33) % i, kept = order[i - 1];
            order[i - 1] = order[other];
            order[other] = kept;
        }
        for (uint64_t i = 0; i < pair->copies; i++) {
            uint64_t offset = order[i % blocks] * pair->block_bytes;
            *(target ? &copies[i].target_offset : &copies[i].source_offset) = offset;
            copies[i].bytes = pair->block_bytes;
        }
    }
    free(order);
    return order ? copies : NULL;
}

static kvferry_status move_once(const pair_side *side, kvferry_peer *peer,
                                const kvferry_copy *copies, uint64_t count, double *seconds)
{
    kvferry_transfer *transfer;
    double start = bench_now();
    kvferry_status status = kvferry_transfer_begin(side->engine, peer, KVFERRY_WRITE, copies,
                                                   (size_t)count, 0, &transfer, side->report);
    if (status != KVFERRY_OK)
        return status;
    const kvferry_transfer_state *state = kvferry_transfer_get(transfer);
    while (!state->over)
        kvferry_engine_progress(side->engine, NULL);
    *seconds = bench_now() - start;
    status = state->status;
    kvferry_transfer_free(transfer);
    return status;
}

static double memcpy_once(const kvferry_copy *copies, uint64_t count, const unsigned char *source,
                          unsigned char *target)
{
    double start = bench_now();
    for (uint64_t i = 0; i < count; i++)
        memcpy(target + copies[i].target_offset, source + copies[i].source_offset,
               (size_t)copies[i].bytes);
    return bench_now() - start;
}

static void keep_best(double *best, double seconds)
{
    if (*best <= 0 || seconds < *best)
        *best = seconds;
}

/* What a measurement works on; the buffers are memcpy's. */
typedef struct pair_work {
    kvferry_copy *copies;
    unsigned char *from, *to;
    double *transfer, *memcpy; /* by part */
    unsigned parts;
} pair_work;

static bool make_work(const bench_pair *pair, pair_work *work)
{
    work->parts = pair->parts ? pair->parts : 1;
    work->copies = make_copies(pair);
    work->transfer = calloc(work->parts, sizeof(double));
    work->memcpy = calloc(work->parts, sizeof(double));
    if (!work->copies || !work->transfer || !work->memcpy)
        return false;
    if (!pair->memcpy_too)
        return true;
    work->from = map_memory(pair->segment_bytes);
    work->to = map_memory(pair->segment_bytes);
    if (!work->from || !work->to)
        return false;
    memset(work->from, 1, (size_t)pair->segment_bytes);
    memset(work->to, 1, (size_t)pair->segment_bytes);
    return true;
}

static kvferry_status measure_pass(const bench_pair *pair, pair_work *work, const pair_side *side,
                                   kvferry_peer *peer, bool counts)
{
    for (unsigned part = 0; part < work->parts; part++) {
        uint64_t first = pair->copies * part / work->parts;
        uint64_t count = pair->copies * (part + 1) / work->parts - first;
        double seconds = 0;
        kvferry_status status = move_once(side, peer, work->copies + first, count, &seconds);
        if (status != KVFERRY_OK)
            return status;
        if (counts)
            keep_best(&work->transfer[part], seconds);
        if (!pair->memcpy_too)
            continue;
        seconds = memcpy_once(work->copies + first, count, work->from, work->to);
        if (counts)
            keep_best(&work->memcpy[part], seconds);
    }
    return KVFERRY_OK;
}

/* The first pass is not counted: it makes connections and page tables. The process ends afterwards, and
 * its memory with it. */
static kvferry_status measure(const bench_pair *pair, const pair_side *side, kvferry_peer *peer,
                              bench_pair_result *result)
{
    pair_work work = {0};
    kvferry_status status = make_work(pair, &work) ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    for (unsigned pass = 0; pass <= pair->passes && status == KVFERRY_OK; pass++)
        status = measure_pass(pair, &work, side, peer, pass > 0);
    for (unsigned part = 0; part < work.parts && status == KVFERRY_OK; part++) {
        result->transfer += work.transfer[part];
        result->memcpy += work.memcpy[part];
    }
    return status;
}

static void find_version(char version[16])
{
    void (*get)(unsigned *, unsigned *, unsigned *);
    unsigned major = 0, minor = 0, release = 0;
    *(void **)&get = dlsym(RTLD_DEFAULT, "ucp_get_version");
    if (get)
        get(&major, &minor, &release);
    snprintf(version, 16, "%u.%u.%u", major % 1000, minor % 1000, release % 1000);
}

/* The initiator; its answer goes through `answers`. */
static void initiate(const bench_pair *pair, int channel, int answers)
{
    pair_side side = {0};
    pair_answer answer = {0};
    kvferry_peer *peer;
    char *binding = malloc(BINDING_LIMIT);
    ssize_t size = binding ? recv(channel, binding, BINDING_LIMIT, 0) : -1;
    kvferry_status status = KVFERRY_IO;
    if (size <= 0)
        snprintf(answer.why, sizeof(answer.why), "the target's process could not start");
    else if (!open_side(pair, &side) ||
             (status = kvferry_engine_connect(side.engine, binding, (size_t)size, &peer,
                                              side.report)) != KVFERRY_OK)
        snprintf(answer.why, sizeof(answer.why), "%s", side_words(&side));
    else if ((status = measure(pair, &side, peer, &answer.result)) != KVFERRY_OK)
        snprintf(answer.why, sizeof(answer.why), "%s", kvferry_status_describe(status));
    answer.well = status == KVFERRY_OK;
    find_version(answer.result.ucx);
    _exit(write(answers, &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
}

static pid_t start(const bench_pair *pair, int channel, int other, int answers)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    close(other);
    bench_pin(answers < 0);
    if (answers < 0)
        serve(pair, channel);
    else
        initiate(pair, channel, answers);
    _exit(1);
}

bool bench_pair_run(const bench_pair *pair, bench_pair_result *result, const char **why)
{
    static pair_answer answer;
    int ends[2], answers[2];
    *why = "no socket pair";
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        return false;
    if (pipe(answers) != 0) {
        close(ends[0]);
        close(ends[1]);
        return false;
    }
    fflush(NULL);
    pid_t target = start(pair, ends[0], ends[1], -1);
    pid_t initiator = target > 0 ? start(pair, ends[1], ends[0], answers[1]) : -1;
    close(ends[0]);
    close(ends[1]);
    close(answers[1]);
    ssize_t size = read(answers[0], &answer, sizeof(answer));
    close(answers[0]);
    if (initiator > 0)
        waitpid(initiator, NULL, 0);
    if (target > 0)
        waitpid(target, NULL, 0);
    *why = size == (ssize_t)sizeof(answer) ? answer.why : "a process of the measurement died";
    if (size != (ssize_t)sizeof(answer) || !answer.well)
        return false;
    *result = answer.result;
    return true;
}
