/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: the target takes no part, only the right process is touched, and what is missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "engine/pair_faults_test.h"
#include "engine/ucx_internal.h"

/* --- commands of the target ------------------------------------------------------------------ */

/* 'c' closes the engine, 'f' forks a child that stays, 'u' gives back the second half of its memory, 'x' runs
 * another program in the same process. */
static void serve(pair_served *served, char command)
{
    pid_t child;
    if (command == 'c') {
        kvferry_engine_close(served->engine);
        served->engine = NULL;
    } else if (command == 'f') {
        child = fork();
        PAIR_CHECK(child >= 0);
        while (child == 0)
            pause();
        memcpy(served->window, &child, sizeof(child));
    } else if (command == 'u') {
        PAIR_CHECK(munmap(served->memory + FAULTS_SEGMENT / 2, FAULTS_SEGMENT / 2) == 0);
    } else if (command == 'x') {
        execlp("sleep", "sleep", "1000", (char *)NULL);
        exit(1);
    }
}

static void run(const char *transport, void (*body)(pair_world *), unsigned peers, bool allocated)
{
    const pair_setup setup = {.serve = serve,
                              .engine = "ucx",
                              .transport = transport,
                              .bytes = FAULTS_SEGMENT,
                              .allocated = allocated,
                              .peers = peers};
    int result = pair_run(&setup, body);
    if (result)
        fail_msg("transport \"%s\", %s memory: ended with %d", transport,
                 allocated ? "allocated" : "own", result);
}

static void run_both(void (*body)(pair_world *), unsigned peers)
{
    run("shm", body, peers, false);
    run("shm", body, peers, true);
    run("", body, peers, false);
    run("", body, peers, true);
}

/* --- the target takes no part ---------------------------------------------------------------- */

static kvferry_status move(pair_world *pair, kvferry_peer *peer, kvferry_direction direction)
{
    return pair_finish(pair, pair_begin(pair, peer, direction, &everything, 1, 0));
}

static void body_stopped(pair_world *pair)
{
    kvferry_peer *peer = pair_connect(pair, 0);
    unsigned char *kept = malloc(FAULTS_SEGMENT);
    PAIR_CHECK(kept);
    pair_fill(pair->memory, FAULTS_SEGMENT, 1);
    memcpy(kept, pair->memory, FAULTS_SEGMENT);
    PAIR_CHECK(kill(pair->peers[0].pid, SIGSTOP) == 0);
    PAIR_EQUAL(move(pair, peer, KVFERRY_WRITE), KVFERRY_OK);
    memset(pair->memory, 0, FAULTS_SEGMENT);
    PAIR_EQUAL(move(pair, peer, KVFERRY_READ), KVFERRY_OK);
    PAIR_CHECK(memcmp(pair->memory, kept, FAULTS_SEGMENT) == 0);
    kvferry_peer_close(peer);
    PAIR_CHECK(kill(pair->peers[0].pid, SIGCONT) == 0);
    pair_command(pair, 0, 'd');
    PAIR_CHECK(memcmp(pair->peers[0].window, kept, FAULTS_SEGMENT) == 0);
    free(kept);
}

static void test_stopped(void **state)
{
    (void)state;
    run_both(body_stopped, 1);
}

/* Nothing of a transfer that is over is still to land. */
static void check_still(pair_world *pair)
{
    unsigned char *kept = malloc(FAULTS_SEGMENT);
    PAIR_CHECK(kept);
    pair_fill(pair->memory, FAULTS_SEGMENT, 2);
    pair_command(pair, 0, 'd');
    memcpy(kept, pair->peers[0].window, FAULTS_SEGMENT);
    for (unsigned i = 0; i < 100; i++)
        kvferry_engine_progress(pair->engine, NULL);
    pair_command(pair, 0, 'd');
    PAIR_CHECK(memcmp(pair->peers[0].window, kept, FAULTS_SEGMENT) == 0);
    free(kept);
}

/* Canceled, late, closed: over with the next progress, or at once. */
static void body_still(pair_world *pair)
{
    kvferry_copy copies[64];
    for (size_t i = 0; i < 64; i++)
        copies[i] = everything;
    for (unsigned round = 0; round < 3; round++) {
        kvferry_peer *peer = pair_connect(pair, 0);
        kvferry_transfer *transfer =
            pair_begin(pair, peer, KVFERRY_WRITE, copies, 64, round == 1 ? pair_now() + 50000000 : 0);
        const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
        for (unsigned i = 0; i < 10; i++)
            kvferry_engine_progress(pair->engine, NULL);
        if (round == 0)
            kvferry_transfer_cancel(transfer);
        while (round == 1 && is->status == KVFERRY_BUSY)
            kvferry_engine_progress(pair->engine, NULL);
        if (round == 2)
            kvferry_peer_close(peer);
        else
            kvferry_engine_progress(pair->engine, NULL);
        PAIR_CHECK(is->over);
        PAIR_EQUAL(is->status, round == 0   ? KVFERRY_CANCELED
                               : round == 1 ? KVFERRY_TIMEOUT
                                            : KVFERRY_PEER_LOST);
        PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_OK);
        check_still(pair);
        if (round < 2)
            kvferry_peer_close(peer);
    }
    check_alive(pair, 0, 3);
}

static void test_still(void **state)
{
    (void)state;
    run_both(body_still, 1);
}

/* One progress moves a bounded amount, and peers take turns whatever the others have to move. */
static void body_turns(pair_world *pair)
{
    enum { CALLS = 40 };
    static kvferry_copy small[4096];
    kvferry_copy copies[64];
    for (size_t i = 0; i < 64; i++)
        copies[i] = everything;
    for (uint64_t i = 0; i < 4096; i++)
        small[i] = (kvferry_copy){.source_offset = i * 100, .target_offset = i * 100, .bytes = 10};
    kvferry_peer *peer = pair_connect(pair, 0), *other = pair_connect(pair, 1);
    kvferry_transfer *large = pair_begin(pair, peer, KVFERRY_WRITE, copies, 64, 0);
    kvferry_transfer *many = pair_begin(pair, other, KVFERRY_READ, small, 4096, 0);
    for (unsigned i = 0; i < CALLS; i++)
        kvferry_engine_progress(pair->engine, NULL);
    PAIR_CHECK(kvferry_transfer_get(many)->over);
    PAIR_CHECK(kvferry_transfer_get(large)->bytes_done <= (CALLS + 4) * (uint64_t)MIB);
    PAIR_CHECK(kvferry_transfer_get(large)->bytes_done >= CALLS / 4 * (uint64_t)MIB);
    PAIR_EQUAL(pair_finish(pair, many), KVFERRY_OK);
    PAIR_EQUAL(pair_finish(pair, large), KVFERRY_OK);
}

static void test_turns(void **state)
{
    (void)state;
    run_both(body_turns, 2);
}

/* --- only the right process ------------------------------------------------------------------ */

/* Moves until the peer is lost: it must be, soon, and every new transfer says so. */
static void expect_lost(pair_world *pair, kvferry_peer *peer)
{
    kvferry_status status = KVFERRY_OK;
    while (status == KVFERRY_OK)
        status = move(pair, peer, KVFERRY_WRITE);
    PAIR_EQUAL(status, KVFERRY_PEER_LOST);
    PAIR_CHECK(kvferry_peer_lost(peer));
    PAIR_EQUAL(move(pair, peer, KVFERRY_READ), KVFERRY_PEER_LOST);
    kvferry_peer_close(peer);
}

static void body_engine_closed(pair_world *pair)
{
    kvferry_peer *peer = pair_connect(pair, 0);
    PAIR_EQUAL(move(pair, peer, KVFERRY_WRITE), KVFERRY_OK);
    pair_command(pair, 0, 'c');
    PAIR_EQUAL(move(pair, peer, KVFERRY_WRITE), KVFERRY_PEER_LOST);
    expect_lost(pair, peer);
}

static void test_engine_closed(void **state)
{
    (void)state;
    run_both(body_engine_closed, 1);
}

static void body_other_program(pair_world *pair)
{
    kvferry_peer *peer = pair_connect(pair, 0);
    PAIR_EQUAL(move(pair, peer, KVFERRY_WRITE), KVFERRY_OK);
    PAIR_CHECK(send(pair->peers[0].channel, "x", 1, 0) == 1);
    expect_lost(pair, peer);
    kill_peer(pair, 0);
}

static void test_other_program(void **state)
{
    (void)state;
    run_both(body_other_program, 1);
}

/* The system call is not made, but answered in this way. */
static void filter_call(long call, unsigned answer)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    PAIR_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    PAIR_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static pair_world *vanishing;

/* In place of the copy: the target is gone, and so is all of its memory. */
static void vanish(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    ucontext_t *at = context;
    kill_peer(vanishing, 0);
#if defined(__x86_64__)
    at->uc_mcontext.gregs[REG_RAX] = -EFAULT;
#elif defined(__aarch64__)
    at->uc_mcontext.regs[0] = (unsigned long long)-EFAULT;
#else
#error "where does this processor keep what a system call answers?"
#endif
}

/* It goes between the look at it and the copy: it is lost, which is not an error of the copy. */
static void body_vanished(pair_world *pair)
{
    const struct sigaction action = {.sa_sigaction = vanish, .sa_flags = SA_SIGINFO};
    kvferry_peer *peer = pair_connect(pair, 0);
    vanishing = pair;
    PAIR_CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    filter_call(SYS_process_vm_writev, SECCOMP_RET_TRAP);
    PAIR_EQUAL(move(pair, peer, KVFERRY_WRITE), KVFERRY_PEER_LOST);
    expect_lost(pair, peer);
}

static void test_vanished(void **state)
{
    (void)state;
    run("shm", body_vanished, 1, false);
}

/* A target that forks stays the target, and its death is noticed though its child lives. */
static void body_forked(pair_world *pair)
{
    pid_t child;
    kvferry_peer *peer = pair_connect(pair, 0);
    pair_command(pair, 0, 'f');
    memcpy(&child, pair->peers[0].window, sizeof(child));
    pair_fill(pair->memory, FAULTS_SEGMENT, 4);
    PAIR_CHECK(write_arrives(pair, peer, 0));
    kill_peer(pair, 0);
    expect_lost(pair, peer);
    PAIR_CHECK(kill(child, SIGKILL) == 0);
}

static void test_forked(void **state)
{
    (void)state;
    run_both(body_forked, 1);
}

/* What was promised is not there any more: an error of the copy, and of nothing else. */
static void body_unmapped(pair_world *pair)
{
    const kvferry_copy first = {.bytes = FAULTS_SEGMENT / 2};
    kvferry_peer *peer = pair_connect(pair, 0);
    pair_command(pair, 0, 'u');
    PAIR_EQUAL(move(pair, peer, KVFERRY_WRITE), KVFERRY_ENGINE);
    PAIR_EQUAL(move(pair, peer, KVFERRY_READ), KVFERRY_ENGINE);
    PAIR_CHECK(!kvferry_peer_lost(peer));
    PAIR_EQUAL(pair_finish(pair, pair_begin(pair, peer, KVFERRY_WRITE, &first, 1, 0)), KVFERRY_OK);
    kvferry_peer_close(peer);
}

static void test_unmapped(void **state)
{
    (void)state;
    run("shm", body_unmapped, 1, false);
}

static void end_batch(void *batch, kvferry_status status, const char *detail)
{
    (void)detail;
    *(kvferry_status *)batch = status;
}

static kvferry_status open_local(void **engine)
{
    static const kvferry_engine_options options = {
        .size = sizeof(options), .transport = "shm", .net_devices = "", .name = "test"};
    return engine_ucx_ops.open(&options, engine, NULL);
}

/* Another process has the number, with a copy of all memory: it is not the peer. */
static void test_reused_number(void **state)
{
    (void)state;
    void *target, *source, *peer = NULL;
    ucx_identity identity;
    kvferry_report *report;
    size_t size = sizeof(identity);
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(open_local(&target), KVFERRY_OK);
    assert_int_equal(open_local(&source), KVFERRY_OK);
    assert_int_equal(engine_ucx_ops.address_export(target, &identity, &size), KVFERRY_OK);
    pid_t child = fork();
    while (child == 0)
        pause();
    assert_true(child > 0);
    identity.pid = (uint32_t)child;
    assert_int_equal(engine_ucx_ops.peer_connect(source, &identity, size, &peer, report),
                     KVFERRY_PEER_LOST);
    assert_null(peer);
    assert_string_equal(kvferry_report_get(report, 0)->found,
                        "no such engine in the process of this number");
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(engine_ucx_ops.peer_connect(source, &identity, size, &peer, report),
                     KVFERRY_PEER_LOST);
    identity.pid = (uint32_t)getpid();
    identity.host[0] ^= 1;
    assert_int_equal(engine_ucx_ops.peer_connect(source, &identity, size, &peer, report),
                     KVFERRY_UNSUPPORTED);
    identity.host[0] ^= 1;
    assert_int_equal(engine_ucx_ops.peer_connect(source, &identity, size, &peer, report), KVFERRY_OK);
    engine_ucx_ops.peer_close(source, peer);
    engine_ucx_ops.close(source);
    engine_ucx_ops.close(target);
    kvferry_report_free(report);
}

static const ucx_remote *import(void *engine, void *peer, const ucx_key *key)
{
    void *remote = NULL;
    assert_int_equal(engine_ucx_ops.segment_import(engine, peer, key, sizeof(*key), &remote, NULL), KVFERRY_OK);
    return remote;
}

/* The engine itself leaves no segment, whatever it is asked to copy; and it maps no file but the one that the
 * key means. */
static void test_edges(void **state)
{
    (void)state;
    enum { BYTES = 8192 };
    void *target, *source, *peer, *allocated, *there, *here, *own;
    static unsigned char memory[BYTES];
    unsigned char address[sizeof(ucx_identity)];
    ucx_key key;
    size_t size = sizeof(address), key_size = sizeof(key);
    kvferry_status end = KVFERRY_BUSY;
    assert_int_equal(open_local(&target), KVFERRY_OK);
    assert_int_equal(open_local(&source), KVFERRY_OK);
    assert_int_equal(engine_ucx_ops.segment_allocate(target, BYTES, &allocated, &there, NULL), KVFERRY_OK);
    assert_int_equal(engine_ucx_ops.segment_register(source, memory, BYTES, KVFERRY_MEMORY_HOST, &here, NULL),
                     KVFERRY_OK);
    assert_int_equal(engine_ucx_ops.address_export(target, address, &size), KVFERRY_OK);
    assert_int_equal(engine_ucx_ops.segment_export(target, there, &key, &key_size), KVFERRY_OK);
    assert_int_equal(engine_ucx_ops.peer_connect(source, address, size, &peer, NULL), KVFERRY_OK);
    assert_int_equal(key_size, sizeof(key));
    key.inode ^= 1;
    assert_null(import(source, peer, &key)->map);
    key.inode ^= 1;
    key.bytes *= 2;
    assert_null(import(source, peer, &key)->map);
    key.bytes /= 2;
    const ucx_remote *remote = import(source, peer, &key);
    assert_non_null(remote->map);
    kvferry_engine_copy copy = {.local = memory,
                                .bytes = 100,
                                .local_segment = here,
                                .remote_segment = (void *)(uintptr_t)remote};
    const uint64_t outside[] = {key.address - 1, key.address + BYTES - 99, 0, UINT64_MAX - 50};
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        copy.remote = outside[i];
        assert_int_equal(engine_ucx_ops.submit(source, peer, KVFERRY_WRITE, &copy, 1, end_batch, &end, NULL),
                         KVFERRY_OUT_OF_RANGE);
    }
    copy.remote = key.address + BYTES - 100;
    memset(memory, 7, BYTES);
    assert_int_equal(engine_ucx_ops.submit(source, peer, KVFERRY_WRITE, &copy, 1, end_batch, &end, NULL),
                     KVFERRY_OK);
    assert_int_equal(end, KVFERRY_BUSY); /* never from inside submit */
    while (end == KVFERRY_BUSY)
        engine_ucx_ops.progress(source);
    assert_int_equal(end, KVFERRY_OK);
    own = (unsigned char *)allocated + BYTES - 100;
    assert_memory_equal(own, memory, 100);
    assert_int_equal(((unsigned char *)allocated)[BYTES - 101], 0);
    engine_ucx_ops.peer_close(source, peer);
    engine_ucx_ops.segment_unregister(source, here);
    engine_ucx_ops.segment_unregister(target, there);
    engine_ucx_ops.close(source);
    engine_ucx_ops.close(target);
}

/* --- permission is missing ------------------------------------------------------------------- */

static void expect_refusal(pair_world *pair, const char *words)
{
    kvferry_peer *peer = NULL;
    PAIR_EQUAL(kvferry_engine_connect(pair->engine, pair->peers[0].binding,
                                      pair->peers[0].binding_size, &peer, pair->report),
               KVFERRY_UNSUPPORTED);
    PAIR_CHECK(!peer);
    const char *found = kvferry_report_get(pair->report, 0)->found;
    if (strcmp(found, words) != 0)
        fprintf(stderr, "found \"%s\"\n", found);
    PAIR_CHECK(strcmp(found, words) == 0);
}

/* By name it is refused, the engine's own choice takes TCP. */
static void expect_without(pair_world *pair, const char *words)
{
    if (*pair->setup->transport)
        expect_refusal(pair, words);
    else
        check_alive(pair, 0, 5);
}

/* As container engines do. */
static void deny(long call) { filter_call(call, SECCOMP_RET_ERRNO | EPERM); }

static void body_no_reading(pair_world *pair)
{
    deny(SYS_process_vm_readv);
    expect_without(pair, "process_vm_readv: Operation not permitted");
}

static void body_no_writing(pair_world *pair)
{
    deny(SYS_process_vm_writev);
    expect_without(pair, "process_vm_writev: Operation not permitted");
}

static void body_no_pidfd(pair_world *pair)
{
    deny(SYS_pidfd_open);
    expect_without(pair, "pidfd_open: Operation not permitted");
}

/* Taken away while bytes move: the peer is lost, and says why. */
static void body_no_more(pair_world *pair)
{
    kvferry_peer *peer = pair_connect(pair, 0);
    PAIR_EQUAL(move(pair, peer, KVFERRY_WRITE), KVFERRY_OK);
    deny(SYS_process_vm_writev);
    expect_lost(pair, peer);
}

/* Root gives its rights up; everybody else is kept out by the target that does not let itself be seen. */
static void body_other_user(pair_world *pair)
{
    if (geteuid() == 0)
        PAIR_CHECK(setresuid(65534, 65534, 65534) == 0);
    expect_without(pair, "process_vm_readv: Operation not permitted");
}

static void test_forbidden(void **state)
{
    (void)state;
    static const char *const transports[] = {"shm", ""};
    int seen = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
    for (size_t i = 0; i < 4; i++) {
        run(transports[i / 2], body_no_reading, 1, i % 2);
        run(transports[i / 2], body_no_writing, 1, i % 2);
        run(transports[i / 2], body_no_pidfd, 1, i % 2);
        assert_int_equal(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), 0);
        run(transports[i / 2], body_other_user, 1, i % 2);
        assert_int_equal(prctl(PR_SET_DUMPABLE, seen, 0, 0, 0), 0);
    }
    run("shm", body_no_more, 1, false);
}

/* UCX 1.13 keeps a hundred bytes of a connection that it could not make. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libuct\n"; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped),       cmocka_unit_test(test_still),
        cmocka_unit_test(test_turns),         cmocka_unit_test(test_engine_closed),
        cmocka_unit_test(test_other_program), cmocka_unit_test(test_forked),
        cmocka_unit_test(test_unmapped),      cmocka_unit_test(test_reused_number),
        cmocka_unit_test(test_edges),         cmocka_unit_test(test_forbidden),
        cmocka_unit_test(test_vanished),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
