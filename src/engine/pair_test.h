/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two real processes for the tests: one serves as the peer (it registers a segment and progresses),
 * the other runs the test's body. The test program itself forks both and never opens UCX, so that
 * none inherits a used one. A window of shared memory shows the peer's segment to the body.
 */
#ifndef KVFERRY_SRC_ENGINE_PAIR_TEST_H
#define KVFERRY_SRC_ENGINE_PAIR_TEST_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <kvferry/kvferry.h>

#define PAIR_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Both values are shown where they differ. */
#define PAIR_EQUAL(a, b)                                                                           \
    do {                                                                                           \
        unsigned long long a_ = (unsigned long long)(a), b_ = (unsigned long long)(b);             \
        if (a_ != b_) {                                                                            \
            fprintf(stderr, "%s:%d: failed: %s (%llu) == %s (%llu)\n", __FILE__, __LINE__, #a, a_, \
                    #b, b_);                                                                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The peer's side, as it serves. */
typedef struct pair_served {
    kvferry_engine *engine; /* NULL: closed */
    unsigned char *memory, *window;
} pair_served;

typedef struct pair_setup {
    void (*serve)(pair_served *served, char command); /* commands of a test's own; or NULL */
    const char *engine, *transport;
    uint64_t bytes;  /* of each side's segment */
    bool allocated;  /* by the engine; else the caller's own */
    unsigned peers;  /* 0 counts as 1 */
} pair_setup;

enum { PAIR_PEERS = 4, MIB = 1024 * 1024 };

typedef struct pair_peer {
    pid_t pid;
    int channel;
    unsigned char *window; /* shared, of the segment's size */
    void *binding;
    size_t binding_size;
} pair_peer;

/* What the body gets. Its own engine and segment 0 are open; nothing is connected. */
typedef struct pair_world {
    const pair_setup *setup;
    kvferry_engine *engine;
    unsigned char *memory;
    pair_peer peers[PAIR_PEERS];
    kvferry_report *report;
} pair_world;

static inline void pair_say(const kvferry_report *report)
{
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        fprintf(stderr, "  %s: %s\n", kvferry_report_get(report, i)->code,
                kvferry_report_get(report, i)->message);
}

/* Bytes that differ from place to place and from seed to seed. */
static inline void pair_fill(unsigned char *memory, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 7);
}

static inline kvferry_engine *pair_open(const pair_setup *setup, unsigned char **memory,
                                        kvferry_report *report)
{
    const kvferry_engine_options options = {.size = sizeof(options), .transport = setup->transport};
    kvferry_engine *engine;
    kvferry_status status = kvferry_engine_open(setup->engine, &options, &engine, report);
    uint32_t segment = 99;
    void *address = NULL;
    if (status == KVFERRY_OK && setup->allocated) {
        status = kvferry_engine_allocate(engine, setup->bytes, &address, &segment, report);
    } else if (status == KVFERRY_OK) {
        address = mmap(NULL, setup->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        PAIR_CHECK(address != MAP_FAILED);
        status = kvferry_engine_register(engine, address, setup->bytes, KVFERRY_MEMORY_HOST, &segment,
                                         report);
    }
    if (status != KVFERRY_OK)
        pair_say(report);
    PAIR_EQUAL(status, KVFERRY_OK);
    PAIR_EQUAL(segment, 0);
    *memory = address;
    return engine;
}

/* Writes the first half of the own segment to the second half of the body's, whose binding this is. */
static inline void pair_write_back(const pair_setup *setup, kvferry_engine *engine,
                                   const void *binding, size_t size)
{
    kvferry_peer *peer;
    kvferry_transfer *transfer;
    const kvferry_copy copy = {.target_offset = setup->bytes / 2, .bytes = setup->bytes / 2};
    PAIR_EQUAL(kvferry_engine_connect(engine, binding, size, &peer, NULL), KVFERRY_OK);
    PAIR_EQUAL(kvferry_transfer_begin(engine, peer, KVFERRY_WRITE, &copy, 1, 0, &transfer, NULL),
               KVFERRY_OK);
    while (!kvferry_transfer_get(transfer)->over)
        kvferry_engine_progress(engine, NULL);
    PAIR_EQUAL(kvferry_transfer_get(transfer)->status, KVFERRY_OK);
    PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_OK);
    kvferry_peer_close(peer);
}

/* The peer: 'd' dumps its segment into the window, 'l' loads it from there, 'w' and a binding writes
 * back; others are the test's own. It ends with its channel. */
static inline void pair_serve(const pair_setup *setup, int channel, unsigned char *window)
{
    kvferry_report *report;
    pair_served served = {.window = window};
    void *binding;
    size_t size;
    PAIR_EQUAL(kvferry_report_create(&report), KVFERRY_OK);
    served.engine = pair_open(setup, &served.memory, report);
    PAIR_EQUAL(kvferry_engine_export(served.engine, &binding, &size, report), KVFERRY_OK);
    PAIR_CHECK(send(channel, binding, size, 0) == (ssize_t)size);
    kvferry_free(binding);
    static char command[1 << 16];
    for (;;) {
        kvferry_engine_progress(served.engine, NULL);
        ssize_t got = recv(channel, command, sizeof(command), MSG_DONTWAIT);
        if (got == 0)
            break;
        if (got < 0) {
            PAIR_CHECK(errno == EAGAIN);
            continue;
        }
        if (command[0] == 'd')
            memcpy(window, served.memory, setup->bytes);
        else if (command[0] == 'l')
            memcpy(served.memory, window, setup->bytes);
        else if (command[0] == 'w')
            pair_write_back(setup, served.engine, command + 1, (size_t)got - 1);
        else
            setup->serve(&served, command[0]);
        PAIR_CHECK(send(channel, command, 1, 0) == 1);
    }
    kvferry_engine_close(served.engine);
    kvferry_report_free(report);
    exit(0);
}

static inline void pair_start_peer(pair_world *pair, unsigned index)
{
    const pair_setup *setup = pair->setup;
    pair_peer *peer = &pair->peers[index];
    int ends[2];
    PAIR_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    peer->window =
        mmap(NULL, setup->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PAIR_CHECK(peer->window != MAP_FAILED);
    peer->pid = fork();
    PAIR_CHECK(peer->pid >= 0);
    if (peer->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a body that fails leaves nobody, whatever the peer runs by then */
        close(ends[0]);
        while (index--)
            close(pair->peers[index].channel); /* else those would not see their end */
        pair_serve(setup, ends[1], peer->window);
    }
    close(ends[1]);
    peer->channel = ends[0];
    static unsigned char received[1 << 16];
    ssize_t size = recv(peer->channel, received, sizeof(received), 0);
    PAIR_CHECK(size > 0);
    peer->binding_size = (size_t)size;
    peer->binding = malloc(peer->binding_size);
    PAIR_CHECK(peer->binding);
    memcpy(peer->binding, received, peer->binding_size);
}

/* Waits for the peer's answer, progressing meanwhile. */
static inline void pair_wait(pair_world *pair, unsigned index)
{
    for (char answer; recv(pair->peers[index].channel, &answer, 1, MSG_DONTWAIT) != 1;) {
        PAIR_CHECK(errno == EAGAIN);
        kvferry_engine_progress(pair->engine, NULL);
    }
}

static inline void pair_command(pair_world *pair, unsigned index, char command)
{
    PAIR_CHECK(send(pair->peers[index].channel, &command, 1, 0) == 1);
    pair_wait(pair, index);
}

static inline kvferry_peer *pair_connect(pair_world *pair, unsigned index)
{
    kvferry_peer *peer = NULL;
    kvferry_status status =
        kvferry_engine_connect(pair->engine, pair->peers[index].binding,
                               pair->peers[index].binding_size, &peer, pair->report);
    if (status != KVFERRY_OK)
        pair_say(pair->report);
    PAIR_EQUAL(status, KVFERRY_OK);
    return peer;
}

/* Progresses until the transfer is over; its status. */
static inline kvferry_status pair_finish(pair_world *pair, kvferry_transfer *transfer)
{
    const kvferry_transfer_state *state = kvferry_transfer_get(transfer);
    while (!state->over)
        PAIR_EQUAL(kvferry_engine_progress(pair->engine, NULL), KVFERRY_OK);
    kvferry_status status = state->status;
    if (status != KVFERRY_OK && status != KVFERRY_CANCELED)
        fprintf(stderr, "  note: %s: %s\n", kvferry_status_name(status), state->detail);
    PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_OK);
    return status;
}

static inline kvferry_transfer *pair_begin(pair_world *pair, kvferry_peer *peer,
                                           kvferry_direction direction, const kvferry_copy *copies,
                                           size_t count, uint64_t deadline_ns)
{
    kvferry_transfer *transfer = NULL;
    kvferry_status status = kvferry_transfer_begin(pair->engine, peer, direction, copies, count,
                                                   deadline_ns, &transfer, pair->report);
    if (status != KVFERRY_OK)
        pair_say(pair->report);
    PAIR_EQUAL(status, KVFERRY_OK);
    return transfer;
}

static inline uint64_t pair_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void pair_run_body(const pair_setup *setup, void (*body)(pair_world *))
{
    pair_world pair = {.setup = setup};
    PAIR_EQUAL(kvferry_report_create(&pair.report), KVFERRY_OK);
    unsigned peers = setup->peers ? setup->peers : 1;
    for (unsigned i = 0; i < peers; i++)
        pair_start_peer(&pair, i);
    pair.engine = pair_open(setup, &pair.memory, pair.report);
    body(&pair);
    kvferry_engine_close(pair.engine);
    pair.engine = NULL;
    for (unsigned i = 0; i < peers; i++) {
        int status;
        close(pair.peers[i].channel);
        if (pair.peers[i].pid) { /* not killed by the body */
            PAIR_CHECK(waitpid(pair.peers[i].pid, &status, 0) == pair.peers[i].pid);
            PAIR_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        free(pair.peers[i].binding);
        munmap(pair.peers[i].window, setup->bytes);
    }
    kvferry_report_free(pair.report);
    exit(0);
}

/* Runs the body and its peers; how the body's process ended: 0 is well. */
static inline int pair_run(const pair_setup *setup, void (*body)(pair_world *))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        pair_run_body(setup, body);
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#endif
