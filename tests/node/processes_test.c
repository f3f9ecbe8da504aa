/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many transfers between processes: eight prefill workers (four engines of tp2) and eight decode workers, each a process of
 * its own, over ucx.
 *   node_processes_test [TRANSPORT [NUMBER]]     NUMBER: one after the other (2,000)
 * A thousand at once, of three blocks from two sources each, and many one after the other. Each ends right, nothing is
 * left of it, and neither memory nor descriptors of any process grow.
 */
#define RIG_BLOCK_COUNT 800
#define RIG_CELL_BYTES 64
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "nodes.h"

enum {
    ENGINES = 4,
    TPS = 2, /* of a prefill engine */
    PREFILLS = ENGINES * TPS,
    DECODES = 8,
    WORKERS = PREFILLS + DECODES,
    OF_PAIR = 32,
    AT_ONCE = ENGINES * DECODES * OF_PAIR,
    BLOCKS = 3,
    TOKENS = 10, /* the last block is not full */
    CHANNEL = 3
};

typedef enum order_kind {
    ORDER_OPEN,  /* told: the address */
    ORDER_BEGIN, /* prefill offers all, not ready; decode asks for all. Told: how many are live */
    ORDER_READY, /* prefill: the blocks of all are */
    ORDER_END,   /* waits for their ends, and looks at every byte */
    ORDER_ONE,   /* one transfer, to its end */
    ORDER_LEFT   /* told: memory and descriptors. Nothing else is left */
} order_kind;

typedef struct order {
    order_kind kind;
    uint32_t place;                 /* OPEN: 0 to 7 prefill, then decode */
    char addresses[ENGINES][96];    /* BEGIN, ONE: of the leaders; OPEN: the first is the own */
    char transport[16];
    uint32_t round, engine, decode; /* ONE */
} order;

typedef struct tell {
    char address[96];
    uint64_t live, bytes, descriptors;
} tell;

/* --- a worker's process ----------------------------------------------------------------------------------------- */

static worker self;
static uint32_t place;

static bool decodes(void) { return place >= PREFILLS; }

static void list_blocks(uint32_t first, uint32_t blocks[BLOCKS])
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = 1 + first * BLOCKS + BLOCKS - 1 - i; /* backwards: no two copies become one */
}

/* Of one transfer of a pair, on either side. */
static void list_pair(uint32_t engine, uint32_t decode, uint32_t n, uint32_t blocks[BLOCKS])
{
    list_blocks((decodes() ? engine : decode) * OF_PAIR + n, blocks);
}

static void name_of(char id[32], uint32_t engine, uint32_t decode, uint32_t n, uint32_t round)
{
    snprintf(id, 32, "%u.%u.%u.%u", round, engine, decode, n);
}

static const char *name_of_engine(uint32_t engine)
{
    static const char *const names[ENGINES] = {"p0", "p1", "p2", "p3"};
    return names[engine];
}

/* Ends are remembered for a moment only, so that what is measured is what is lost. */
static void open_self(const order *in, tell *out)
{
    static char name[16], listen[] = "tcp://127.0.0.1:0";
    place = in->place;
    nodes_engine = "ucx";
    nodes_transport = in->transport;
    snprintf(name, sizeof(name), "%s", decodes() ? "d0" : name_of_engine(place / TPS));
    if (decodes())
        name[1] = (char)('0' + place - PREFILLS);
    kvferry_node_options options = nodes_options(name);
    options.listen = listen;
    options.remember_ms = 20;
    options.log_level = KVFERRY_LOG_ERROR;
    options.leader = !decodes() && place % TPS ? in->addresses[0] : NULL;
    worker_open(&self, &(rig_shape){.engine_id = name, .tp = decodes() ? 0 : place % TPS, .tps = decodes() ? 1 : TPS, .pps = 1},
                &options);
    snprintf(out->address, sizeof(out->address), "%s", kvferry_node_address(self.node));
}

typedef void each_pair(uint32_t engine, uint32_t decode, uint32_t n, const order *in);

static void each(each_pair *call, const order *in)
{
    for (uint32_t other = 0; other < (decodes() ? ENGINES : DECODES); other++)
        for (uint32_t n = 0; n < OF_PAIR; n++)
            call(decodes() ? other : place / TPS, decodes() ? place - PREFILLS : other, n, in);
}

static uint32_t seed_of(uint32_t engine, uint32_t decode, uint32_t n) { return engine * 1000 + decode * 100 + n; }

static void begin_one(uint32_t engine, uint32_t decode, uint32_t n, const order *in)
{
    uint32_t blocks[BLOCKS];
    char id[32];
    list_pair(engine, decode, n, blocks);
    name_of(id, engine, decode, n, 0);
    if (decodes()) {
        MUST(worker_ask(&self, id, name_of_engine(engine), in->addresses[engine], blocks, TOKENS, report));
        return;
    }
    walk_cells(&self, blocks, TOKENS, seed_of(engine, decode, n), true);
    MUST(worker_offer(&self, id, blocks, TOKENS, KVFERRY_NOT_READY, report));
}

static void ready_one(uint32_t engine, uint32_t decode, uint32_t n, const order *in)
{
    char id[32];
    (void)in;
    name_of(id, engine, decode, n, 0);
    assert_int_equal(kvferry_node_ready(self.node, id), KVFERRY_OK);
}

static void check_one(uint32_t engine, uint32_t decode, uint32_t n, const order *in)
{
    uint32_t blocks[BLOCKS];
    (void)in;
    list_pair(engine, decode, n, blocks);
    assert_true(walk_cells(&self, blocks, TOKENS, seed_of(engine, decode, n), false));
}

/* Takes events until so many transfers are released; all must have been done. */
static void await_released(size_t count)
{
    for (size_t released = 0; released < count;) {
        assert_int_equal(kvferry_node_wait(self.node, NODES_PATIENCE_MS), KVFERRY_OK);
        for (kvferry_event *event; (event = kvferry_node_next_event(self.node));) {
            bool ends = event->kind == KVFERRY_EVENT_ENDED || event->kind == KVFERRY_EVENT_RELEASED;
            if (ends && event->outcome != KVFERRY_OUTCOME_DONE)
                print_reasons(event->report);
            assert_true(!ends || event->outcome == KVFERRY_OUTCOME_DONE);
            released += event->kind == KVFERRY_EVENT_RELEASED;
            kvferry_event_free(event);
        }
    }
}

static void do_one(const order *in)
{
    uint32_t blocks[BLOCKS];
    char id[32];
    name_of(id, in->engine, in->decode, 0, in->round + 1);
    list_blocks((in->round * (decodes() ? 7 : 1)) % 200, blocks);
    if (decodes()) {
        MUST(worker_ask(&self, id, name_of_engine(in->engine), in->addresses[in->engine], blocks, TOKENS, report));
    } else {
        walk_cells(&self, blocks, TOKENS, in->round, true);
        MUST(worker_offer(&self, id, blocks, TOKENS, KVFERRY_READY, report));
    }
    await_released(1);
    assert_true(!decodes() || walk_cells(&self, blocks, TOKENS, in->round, false));
}

static void tell_left(tell *out)
{
    kvferry_node_statistics now = statistics_of(&self);
    for (size_t side = 0; side < 2; side++)
        assert_int_equal(now.live[side] + now.unreleased[side], 0);
    assert_int_equal(now.quarantined_blocks + now.queued_copies + now.events_waiting, 0);
    usleep(200000); /* until the ends are forgotten */
    malloc_trim(0);
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %lu", &pages), 1);
    fclose(file);
    out->bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory))
        out->descriptors++;
    closedir(directory);
}

static int worker_main(void)
{
    order in;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (recv(CHANNEL, &in, sizeof(in), 0) == sizeof(in)) {
        tell out = {0};
        if (in.kind == ORDER_OPEN)
            open_self(&in, &out);
        else if (in.kind == ORDER_BEGIN)
            each(begin_one, &in);
        else if (in.kind == ORDER_READY)
            each(ready_one, &in);
        else if (in.kind == ORDER_END)
            await_released((decodes() ? ENGINES : DECODES) * (size_t)OF_PAIR);
        else if (in.kind == ORDER_ONE)
            do_one(&in);
        else
            tell_left(&out);
        if (in.kind == ORDER_END && decodes())
            each(check_one, &in);
        if (in.kind == ORDER_BEGIN)
            out.live = statistics_of(&self).live[decodes() ? KVFERRY_SIDE_DECODE : KVFERRY_SIDE_PREFILL];
        if (send(CHANNEL, &out, sizeof(out), 0) != sizeof(out))
            return 1;
    }
    worker_close(&self);
    return 0;
}

/* --- the parent --------------------------------------------------------------------------------------------------- */

static const char *transport = "shm";
static uint32_t sequence = 2000;
static pid_t processes[WORKERS];
static int channels[WORKERS];
static char leaders[ENGINES][96];

static void give(size_t index, order out)
{
    memcpy(out.addresses, leaders, sizeof(leaders));
    if (out.kind == ORDER_OPEN)
        memcpy(out.addresses[0], leaders[index < PREFILLS ? index / TPS : 0], sizeof(leaders[0]));
    out.place = (uint32_t)index;
    snprintf(out.transport, sizeof(out.transport), "%s", transport);
    assert_int_equal(send(channels[index], &out, sizeof(out), 0), sizeof(out));
}

static tell hear(size_t index)
{
    tell in;
    if (recv(channels[index], &in, sizeof(in), 0) != sizeof(in))
        fail_msg("worker %zu has ended, or says nothing", index);
    return in;
}

static void start(size_t index)
{
    int pair[2];
    const struct timeval patience = {.tv_sec = 2 * NODES_PATIENCE_MS / 1000};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    processes[index] = fork();
    assert_true(processes[index] >= 0);
    if (processes[index] == 0) {
        if (pair[1] == CHANNEL) /* dup2 would leave it to be closed */
            fcntl(CHANNEL, F_SETFD, 0);
        else
            dup2(pair[1], CHANNEL);
        execl("/proc/self/exe", "node_processes_test", "worker", (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    channels[index] = pair[0];
}

static int open_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < WORKERS; i++) {
        start(i);
        give(i, (order){.kind = ORDER_OPEN});
        tell in = hear(i);
        if (i < PREFILLS && i % TPS == 0)
            memcpy(leaders[i / TPS], in.address, sizeof(in.address));
    }
    return 0;
}

/* Who does not end well is an error of all tests. */
static int close_all(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = WORKERS; i-- > 0;) {
        int status = -1;
        close(channels[i]);
        if (waitpid(processes[i], &status, 0) != processes[i] || status)
            failed = 1;
    }
    return failed;
}

static uint64_t all_do(order_kind kind, size_t first, size_t last)
{
    uint64_t live = 0;
    for (size_t i = first; i < last; i++)
        give(i, (order){.kind = kind});
    for (size_t i = first; i < last; i++)
        live += hear(i).live;
    return live;
}

static void look(tell left[WORKERS])
{
    for (size_t i = 0; i < WORKERS; i++)
        give(i, (order){.kind = ORDER_LEFT});
    for (size_t i = 0; i < WORKERS; i++)
        left[i] = hear(i);
}

static void a_thousand_at_once(void **state)
{
    (void)state;
    tell left[WORKERS];
    assert_int_equal(all_do(ORDER_BEGIN, 0, PREFILLS), TPS * AT_ONCE);
    assert_int_equal(all_do(ORDER_BEGIN, PREFILLS, WORKERS), AT_ONCE);
    all_do(ORDER_READY, 0, PREFILLS);
    all_do(ORDER_END, 0, WORKERS);
    look(left);
}

static void one_after_the_other(uint32_t begin, uint32_t end)
{
    for (uint32_t round = begin; round < end; round++) {
        order one = {.kind = ORDER_ONE, .round = round, .engine = round % ENGINES, .decode = round / ENGINES % DECODES};
        const size_t which[] = {one.engine * TPS, one.engine * TPS + 1, PREFILLS + one.decode};
        for (size_t i = 0; i < 3; i++)
            give(which[i], one);
        for (size_t i = 0; i < 3; i++)
            hear(which[i]);
    }
}

static void many_one_after_the_other(void **state)
{
    (void)state;
    tell before[WORKERS], after[WORKERS];
    one_after_the_other(0, sequence / 2);
    look(before);
    one_after_the_other(sequence / 2, sequence);
    look(after);
    uint64_t most = 0;
    for (size_t i = 0; i < WORKERS; i++) {
        uint64_t grown = after[i].bytes > before[i].bytes ? after[i].bytes - before[i].bytes : 0;
        most = grown > most ? grown : most;
        assert_in_range(grown, 0, 4 << 20);
        assert_int_equal(after[i].descriptors, before[i].descriptors);
    }
    printf("%u transfers: in the second half the memory of one process grew by %llu bytes at most\n", sequence,
           (unsigned long long)most);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "worker") == 0)
        return worker_main();
    if (argc > 1)
        transport = argv[1];
    if (argc > 2)
        sequence = (uint32_t)strtoul(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_at_once),
        cmocka_unit_test(many_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
