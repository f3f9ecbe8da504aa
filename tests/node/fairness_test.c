/* SPDX-License-Identifier: Apache-2.0 */
/* Nobody waits for a long request, or for a peer that stands still: fairness_test [ENGINE [TRANSPORT]]. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>

#define RIG_BLOCK_COUNT 25100
#include "nodes.h"

/* In another order at the target, a block is RIG_LAYERS copies. */
enum { LONG_BLOCKS = 25000, LONG_COPIES = LONG_BLOCKS * RIG_LAYERS, SHORT_TOKENS = 10, ROUNDS = 50 };

static uint32_t ascending[RIG_BLOCK_COUNT], descending[RIG_BLOCK_COUNT];

static void make_blocks(void)
{
    for (uint32_t i = 0; i < RIG_BLOCK_COUNT - 1; i++) {
        ascending[i] = i + 1;
        descending[i] = RIG_BLOCK_COUNT - 1 - i;
    }
}

/* The blocks behind those of the long request, and those before them at the target. */
static const uint32_t *const short_from = ascending + LONG_BLOCKS, *const short_to = descending + LONG_BLOCKS;

/* --- a long request and a short one ---------------------------------------------------------- */

typedef struct watch {
    worker *prefill;
    atomic_uint_fast64_t copies; /* done when the short one ended; 0: it has not */
} watch;

/* The prefill node's thread says so as it ends, and no copy is made meanwhile. */
static void see_short_end(void *context, kvferry_log_level level, const char *line)
{
    watch *seen = context;
    if (level == KVFERRY_LOG_DEBUG && strstr(line, "short") && strstr(line, "offer done"))
        atomic_store(&seen->copies, statistics_of(seen->prefill).copies[KVFERRY_SIDE_PREFILL]);
}

/* How many copies were made between the short one's readiness and its end, of a long one in its early part; UINT64_MAX:
 * this thread was held up, and the long one was not in its early part any more. */
static uint64_t measure(watch *seen, worker *prefill, worker *decode, uint32_t round)
{
    char long_id[32], short_id[32];
    snprintf(long_id, sizeof(long_id), "long%u", round);
    snprintf(short_id, sizeof(short_id), "short%u", round);
    const char *where = kvferry_node_address(prefill->node);
    const uint32_t tokens = LONG_BLOCKS * RIG_TOKENS;
    uint64_t begin = statistics_of(prefill).copies[KVFERRY_SIDE_PREFILL];
    atomic_store(&seen->copies, 0);
    MUST(worker_offer(prefill, long_id, ascending, tokens, KVFERRY_NOT_READY, report));
    MUST(worker_offer(prefill, short_id, short_from, SHORT_TOKENS, KVFERRY_NOT_READY, report));
    uint64_t heard = statistics_of(decode).messages_in;
    MUST(worker_ask(decode, long_id, "p", where, descending, tokens, report));
    MUST(worker_ask(decode, short_id, "p", where, short_to, SHORT_TOKENS, report));
    while (statistics_of(decode).messages_in < heard + 2) /* both are answered: they wait */
        sched_yield();
    MUST(kvferry_node_ready(prefill->node, long_id));
    kvferry_node_statistics now = statistics_of(prefill);
    for (; !now.queued_copies && now.copies[KVFERRY_SIDE_PREFILL] == begin; now = statistics_of(prefill))
        sched_yield();
    MUST(kvferry_node_ready(prefill->node, short_id));
    uint64_t ready = statistics_of(prefill).copies[KVFERRY_SIDE_PREFILL];
    expect_done(decode, short_id);
    expect_done(decode, long_id);
    expect_done(prefill, long_id);
    uint64_t end = atomic_load(&seen->copies);
    assert_int_not_equal(end, 0);
    return ready - begin > LONG_COPIES / 4 ? UINT64_MAX : end - ready;
}

static void a_short_request_ends_in_the_early_part_of_a_long_one(void **state)
{
    (void)state;
    worker prefill, decode;
    watch seen = {.prefill = &prefill};
    kvferry_node_options options = nodes_options("p");
    options.max_peer_copies = LONG_COPIES / 2; /* less than the long one has */
    options.log = see_short_end;
    options.log_context = &seen;
    options.log_level = KVFERRY_LOG_DEBUG;
    worker_open(&prefill, &(rig_shape){.engine_id = "p", .tps = 1, .pps = 1}, &options);
    worker_open_alone(&decode, "d");
    MUST(kvferry_node_connect(decode.node, "p", kvferry_node_address(prefill.node), report));
    kvferry_event_free(await_event(&decode, KVFERRY_EVENT_CONNECTED, ""));
    /* Were the short one behind the long one, in every round three quarters of that would be made before its end. */
    uint64_t made = UINT64_MAX;
    for (uint32_t round = 0; round < ROUNDS && made > LONG_COPIES / 2; round++)
        made = measure(&seen, &prefill, &decode, round);
    assert_in_range(made, 0, LONG_COPIES / 2);
    worker_close(&decode);
    worker_close(&prefill);
}

/* --- a peer that stands still ---------------------------------------------------------------- */

enum { MANY = 200, AT_ONCE = 16 };

typedef struct child {
    pid_t pid;
    int orders[2], answers[2]; /* pipes */
} child;

/* What a decode process tells its parent, one at a time. */
static void tell(const child *self, char what)
{
    if (write(self->answers[1], &what, 1) != 1)
        _exit(3);
}

static char hear(int pipe)
{
    char what = 0;
    assert_int_equal(read(pipe, &what, 1), 1);
    return what;
}

static void many_id(char id[16], uint32_t i) { snprintf(id, 16, "many%u", i); }

/* Asks for one long request, and says when it was asked for and when it is done. */
static void ask_long(child *self, worker *decode, const char *where)
{
    MUST(worker_ask(decode, "long", "p", where, descending, LONG_BLOCKS * RIG_TOKENS, report));
    tell(self, 'a');
    expect_done(decode, "long");
    tell(self, 'd');
}

/* Asks for many short ones, some at once, in blocks of their own. */
static void ask_many(child *self, worker *decode, const char *where)
{
    char id[16];
    for (uint32_t i = 0; i < MANY + AT_ONCE; i++) {
        if (i >= AT_ONCE) {
            many_id(id, i - AT_ONCE);
            expect_done(decode, id);
        }
        many_id(id, i);
        if (i < MANY)
            MUST(worker_ask(decode, id, "p", where, ascending + i % AT_ONCE * 4, SHORT_TOKENS, report));
    }
    tell(self, 'd');
}

/* Forks a process of which a node, once an address comes, does `run`. */
static void begin_child(child *self, const char *engine_id, void (*run)(child *, worker *, const char *))
{
    assert_int_equal(pipe(self->orders), 0);
    assert_int_equal(pipe(self->answers), 0);
    self->pid = fork();
    assert_true(self->pid >= 0);
    if (self->pid)
        return;
    worker decode;
    char where[128] = {0};
    assert_true(read(self->orders[0], where, sizeof(where) - 1) > 0);
    worker_open_alone(&decode, engine_id);
    run(self, &decode, where);
    worker_close(&decode);
    _exit(0);
}

static void start_child(const child *self, const char *where)
{
    assert_int_equal(write(self->orders[1], where, strlen(where)), strlen(where));
}

static void end_child(child *self)
{
    int status = 0;
    assert_int_equal(waitpid(self->pid, &status, 0), self->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < 2; i++) {
        close(self->orders[i]);
        close(self->answers[i]);
    }
}

/* One decode process is stopped while it is written to; another one goes on. */
static void a_stopped_peer_stops_no_other(void **state)
{
    (void)state;
    worker prefill;
    child stopped, other;
    char id[16];
    begin_child(&stopped, "stopped", ask_long);
    begin_child(&other, "other", ask_many);
    worker_open_alone(&prefill, "p");
    const char *where = kvferry_node_address(prefill.node);
    MUST(worker_offer(&prefill, "long", ascending, LONG_BLOCKS * RIG_TOKENS, KVFERRY_NOT_READY, report));
    for (uint32_t i = 0; i < MANY; i++) {
        many_id(id, i);
        MUST(worker_offer(&prefill, id, short_from, SHORT_TOKENS, KVFERRY_READY, report));
    }
    start_child(&stopped, where);
    assert_int_equal(hear(stopped.answers[0]), 'a');
    while (!statistics_of(&prefill).peers) /* it has shaken hands, and asks next */
        usleep(1000);
    assert_int_equal(kill(stopped.pid, SIGSTOP), 0);
    MUST(kvferry_node_ready(prefill.node, "long"));
    start_child(&other, where);
    assert_int_equal(hear(other.answers[0]), 'd');
    for (uint32_t i = 0; i < MANY; i++) {
        many_id(id, i);
        expect_ended(&prefill, id, KVFERRY_OUTCOME_DONE, "");
    }
    assert_int_equal(kill(stopped.pid, SIGCONT), 0);
    assert_int_equal(hear(stopped.answers[0]), 'd');
    end_child(&other);
    end_child(&stopped);
    worker_close(&prefill);
}

int main(int argc, char **argv)
{
    nodes_engine = argc > 1 ? argv[1] : "memory";
    nodes_transport = argc > 2 ? argv[2] : "";
    make_blocks();
    const struct CMUnitTest one_process[] = {
        cmocka_unit_test(a_short_request_ends_in_the_early_part_of_a_long_one),
    };
    const struct CMUnitTest processes[] = {
        cmocka_unit_test(a_stopped_peer_stops_no_other),
    };
    if (strcmp(nodes_engine, "memory") == 0) /* it is in one process */
        return cmocka_run_group_tests(one_process, NULL, NULL);
    /* Forks first, while this process has no threads. */
    return cmocka_run_group_tests(processes, NULL, NULL) + cmocka_run_group_tests(one_process, NULL, NULL);
}
