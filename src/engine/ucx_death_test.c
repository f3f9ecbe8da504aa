/* SPDX-License-Identifier: Apache-2.0 */
/* A target lives through the death of those who write to it and read from it, at any moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_test.h"

enum { SEGMENT = 16 * MIB, DEATHS = 20, COPIES = 16 * 1024, SPACING = 1024 };

/* What a mover is killed in: large copies or many small ones, of which direction. */
typedef struct death {
    kvferry_direction direction;
    bool small;
} death;

static size_t make_copies(const death *moves, kvferry_copy *copies)
{
    copies[0] = (kvferry_copy){.bytes = SEGMENT};
    for (uint64_t i = 0; moves->small && i < COPIES; i++)
        copies[i] = (kvferry_copy){
            .source_offset = i * SPACING, .target_offset = i * SPACING, .bytes = SPACING - 24};
    return moves->small ? COPIES : 1;
}

/* Moves without end over an engine of its own; tells that it is open, and that bytes have moved. */
static void move_until_killed(pair_world *pair, const death *moves, int stages)
{
    static kvferry_copy copies[COPIES];
    size_t count = make_copies(moves, copies);
    pair->engine = pair_open(pair->setup, &pair->memory, pair->report);
    PAIR_CHECK(write(stages, "o", 1) == 1);
    kvferry_peer *peer = pair_connect(pair, 0);
    for (bool moved = false;; moved = true) {
        PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, moves->direction, copies, count, 0)),
                   KVFERRY_OK);
        if (!moved)
            PAIR_CHECK(write(stages, "m", 1) == 1);
    }
}

/* Killed so many microseconds after it has reached the stage. */
static void kill_mover(pair_world *pair, const death *moves, char stage, unsigned wait_us)
{
    int stages[2];
    char reached = 0;
    int status;
    PAIR_CHECK(pipe(stages) == 0);
    pid_t pid = fork();
    PAIR_CHECK(pid >= 0);
    if (pid == 0)
        move_until_killed(pair, moves, stages[1]);
    close(stages[1]);
    while (reached != stage)
        PAIR_EQUAL(read(stages[0], &reached, 1), 1);
    close(stages[0]);
    usleep(wait_us);
    PAIR_CHECK(kill(pid, SIGKILL) == 0);
    PAIR_CHECK(waitpid(pid, &status, 0) == pid);
    PAIR_CHECK(WIFSIGNALED(status));
}

/* A fresh process: the target answers, and what it writes and reads is right. */
static void use_target(pair_world *pair, uint64_t seed)
{
    const kvferry_copy there = {.target_offset = 77, .bytes = MIB};
    const kvferry_copy back = {.source_offset = 77, .target_offset = 2 * MIB, .bytes = MIB};
    pair->engine = pair_open(pair->setup, &pair->memory, pair->report);
    kvferry_peer *peer = pair_connect(pair, 0);
    pair_fill(pair->memory, MIB, seed);
    uint64_t deadline = pair_now() + 30000000000u;
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, &there, 1, deadline)),
               KVFERRY_OK);
    pair_command(pair, 0, 'd');
    PAIR_CHECK(memcmp(pair->peers[0].window + 77, pair->memory, MIB) == 0);
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_READ, &back, 1, deadline)),
               KVFERRY_OK);
    PAIR_CHECK(memcmp(pair->memory + 2 * MIB, pair->memory, MIB) == 0);
    kvferry_engine_close(pair->engine);
    exit(0);
}

static void check_serves(pair_world *pair, uint64_t seed)
{
    int status;
    pid_t pid = fork();
    PAIR_CHECK(pid >= 0);
    if (pid == 0)
        use_target(pair, seed);
    PAIR_CHECK(waitpid(pid, &status, 0) == pid);
    PAIR_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Every fourth is killed while it connects, the others while bytes move. This process has no
 * engine, so that those it forks inherit none. */
static void kill_many(const pair_setup *setup, const death *moves)
{
    pair_world pair = {.setup = setup};
    int status;
    PAIR_EQUAL(kvferry_report_create(&pair.report), KVFERRY_OK);
    pair_start_peer(&pair, 0);
    for (unsigned i = 0; i < DEATHS; i++) {
        kill_mover(&pair, moves, i % 4 ? 'm' : 'o', i * i * 137 % 20000);
        check_serves(&pair, i);
        PAIR_CHECK(waitpid(pair.peers[0].pid, &status, WNOHANG) == 0);
    }
    close(pair.peers[0].channel);
    PAIR_CHECK(waitpid(pair.peers[0].pid, &status, 0) == pair.peers[0].pid);
    PAIR_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    free(pair.peers[0].binding);
    munmap(pair.peers[0].window, setup->bytes);
    kvferry_report_free(pair.report);
    exit(0);
}

static void run(const char *transport, bool allocated)
{
    for (unsigned i = 0; i < 4; i++) {
        const pair_setup setup = {
            .engine = "ucx", .transport = transport, .bytes = SEGMENT, .allocated = allocated};
        const death moves = {.direction = i % 2 ? KVFERRY_READ : KVFERRY_WRITE, .small = i / 2};
        int status = -1;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
            kill_many(&setup, &moves);
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
        if (status != 0)
            fail_msg("%s of %s copies over \"%s\", %s memory: ended with %d", i % 2 ? "read" : "write",
                     moves.small ? "small" : "large", transport, allocated ? "allocated" : "own",
                     status);
    }
}

static void test_shm(void **state)
{
    (void)state;
    run("shm", false);
}

static void test_shm_allocated(void **state)
{
    (void)state;
    run("shm", true);
}

static void test_tcp(void **state)
{
    (void)state;
    run("tcp", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm),
        cmocka_unit_test(test_shm_allocated),
        cmocka_unit_test(test_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
