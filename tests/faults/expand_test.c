/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expanding a request allocates nothing, takes no lock and makes no system call: the allocator and
 * the locks count, and a child process in which the kernel kills at any system call comes through.
 */
#include <kvferry/kvferry.h>

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

#include "documents.h"
#include "guard.h"
#include "test.h"

enum { BLOCKS = 7, CAPACITY = 4096, TIMES = 100, CHILD_FINE = 17 };

static kvferry_plan *plan;
static kvferry_copy copies[CAPACITY];

static kvferry_layout *read_layout(const char *document)
{
    kvferry_layout *layout;
    assert_int_equal(kvferry_layout_read_json(document, strlen(document), &layout, NULL),
                     KVFERRY_OK);
    return layout;
}

static int set_up(void **state)
{
    (void)state;
    kvferry_layout *source = read_layout(source_document), *target = read_layout(target_document);
    assert_int_equal(kvferry_plan_create(&(const kvferry_layout *){source}, 1, target, &plan, NULL),
                     KVFERRY_OK);
    kvferry_layout_free(source);
    kvferry_layout_free(target);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvferry_plan_free(plan);
    return 0;
}

/* A request of every kind of group; `shuffled`: no two blocks beside each other. */
typedef struct tables {
    uint32_t source[BLOCKS], target[BLOCKS], state[1], ring[1];
    kvferry_block_table from[3], to[3];
    kvferry_request request;
} tables;

static void make_request(tables *t, bool shuffled)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        t->source[i] = 1 + (shuffled ? i * 3 % BLOCKS : i);
        t->target[i] = 1 + (shuffled ? i * 5 % BLOCKS : i);
    }
    t->state[0] = 3;
    t->ring[0] = 2;
    t->from[0] = (kvferry_block_table){"attn", 0, t->source, BLOCKS};
    t->to[0] = (kvferry_block_table){"attn", 0, t->target, BLOCKS};
    t->from[1] = t->to[1] = (kvferry_block_table){"gdn", 0, t->state, 1};
    t->from[2] = t->to[2] = (kvferry_block_table){"ring", 0, t->ring, 1};
    /* The target's blocks are half as long. */
    t->request = (kvferry_request){"t", BLOCKS * 8, BLOCKS * 8, t->from, 3, t->to, 3, false};
}

/* Only calls of the library: this runs where a system call kills. */
static bool expand_many(const tables *t)
{
    bool fine = true;
    for (int i = 0; i < TIMES; i++) {
        size_t count = 0;
        fine &= kvferry_plan_expand_bound(plan, 0, &t->request) <= CAPACITY;
        fine &= kvferry_plan_expand(plan, 0, &t->request, copies, CAPACITY, &count, NULL) ==
                KVFERRY_OK;
        fine &= count > 0;
        /* Too small a buffer, and a refusal whose reasons nobody reads. */
        fine &= kvferry_plan_expand(plan, 0, &t->request, copies, 0, &count, NULL) ==
                KVFERRY_NO_SPACE;
        kvferry_request bad = t->request;
        const kvferry_block_table none = {"none", 0, t->target, 1};
        bad.target = &none;
        bad.target_count = 1;
        fine &= kvferry_plan_expand(plan, 0, &bad, copies, CAPACITY, &count, NULL) ==
                KVFERRY_REFUSED;
    }
    return fine;
}

static void allocates_nothing_and_takes_no_lock(void **state)
{
    (void)state;
    for (int shuffled = 0; shuffled <= 1; shuffled++) {
        tables t;
        make_request(&t, shuffled);
        guard_fail_at(0, false);
        guard_begin();
        bool fine = expand_many(&t);
        guard_end();
        assert_true(fine);
        assert_int_equal(guard_allocations(), 0);
        assert_int_equal(guard_locks(), 0);
    }
}

/* From here on any system call but exit kills the process. */
static bool forbid_system_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Runs in a child: `call_kernel`, to show that the filter bites. Returns how the child ended. */
static int in_child(const tables *t, bool call_kernel)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!forbid_system_calls())
            _exit(1);
        bool fine = expand_many(t);
        if (call_kernel)
            syscall(SYS_getppid);
        syscall(SYS_exit, fine ? CHILD_FINE : 2);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    return how;
}

static void makes_no_system_call(void **state)
{
    (void)state;
    tables t;
    make_request(&t, true);
    int how = in_child(&t, true);
    assert_true(WIFSIGNALED(how));
    how = in_child(&t, false);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), CHILD_FINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocates_nothing_and_takes_no_lock),
        cmocka_unit_test(makes_no_system_call),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
