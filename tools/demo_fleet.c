/* SPDX-License-Identifier: Apache-2.0 */
/* The worker processes as the parent sees them: start, messages, death, end. The parent never blocks
 * on one worker: it waits for all of them, for signals and for the clock at once. */
#include "demo.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
#define END_GRACE (2 * SECOND)    /* for a worker to end by itself */
#define ORPHAN_SECONDS 5 /* its node alone may take two to close */
#define CAUSE_GRACE (SECOND / 4) /* for the death that others complain of to show */

const char *demo_role_name(demo_role role)
{
    return role == DEMO_PREFILL ? "prefill" : "decode";
}

/* Only the first failure counts: what follows is its consequence. */
static void fail(demo_fleet *fleet, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(demo_fleet *fleet, const char *format, ...)
{
    if (fleet->failure)
        return;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&fleet->failure, format, arguments) < 0)
        tool_no_memory();
    va_end(arguments);
}

/* --- start ----------------------------------------------------------------------------------- */

static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGCHLD);
    sigprocmask(SIG_BLOCK, set, NULL);
}

/* The parent died without a word. The worker sees it at the socket and ends by itself, unless it is stuck. */
static void parent_gone(int number)
{
    (void)number;
    alarm(ORPHAN_SECONDS);
}

/* In the child: nothing of the parent's but the one socket. Interrupts are the parent's to handle. */
_Noreturn static void become_worker(demo_fleet *fleet, const demo_config *config, size_t index,
                                    int fd, pid_t parent)
{
    signal(SIGUSR1, parent_gone);
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    if (getppid() != parent)
        _exit(TOOL_UNEXPECTED);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close(fleet->signals);
    for (size_t i = 0; i < index; i++)
        close(fleet->processes[i].fd);
    const demo_process *process = &fleet->processes[index];
    exit(demo_worker_main(config, process->role, process->rank, fd));
}

static int start_one(demo_fleet *fleet, const demo_config *config, size_t index)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        fail(fleet, "no socket for %s: %s", fleet->processes[index].name, strerror(errno));
        return TOOL_FAILED;
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        fail(fleet, "cannot start %s: %s", fleet->processes[index].name, strerror(errno));
        close(pair[0]);
        close(pair[1]);
        return TOOL_FAILED;
    }
    if (pid == 0) {
        close(pair[0]);
        become_worker(fleet, config, index, pair[1], parent);
    }
    close(pair[1]);
    fleet->processes[index].pid = pid;
    fleet->processes[index].fd = pair[0];
    return TOOL_GO_ON;
}

int demo_fleet_start(demo_fleet *fleet, const demo_config *config, const tool_side sides[DEMO_ROLES])
{
    *fleet = (demo_fleet){.timeout_ns = config->timeout_ns};
    size_t count = sides[DEMO_PREFILL].count + sides[DEMO_DECODE].count;
    fleet->processes = tool_alloc(count, sizeof *fleet->processes);
    sigset_t set;
    block_signals(&set);
    fleet->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fleet->signals < 0) {
        fail(fleet, "no descriptor for signals: %s", strerror(errno));
        return TOOL_FAILED;
    }
    fflush(NULL); /* or each child would write what is buffered once more */
    for (size_t i = 0; i < count; i++) {
        demo_process *process = &fleet->processes[i];
        process->role = i < sides[DEMO_PREFILL].count ? DEMO_PREFILL : DEMO_DECODE;
        process->rank = process->role == DEMO_PREFILL ? i : i - sides[DEMO_PREFILL].count;
        process->name = tool_text("%s %s", demo_role_name(process->role),
                                  sides[process->role].names[process->rank]);
        process->fd = -1;
        fleet->count = i + 1;
        int status = start_one(fleet, config, i);
        if (status != TOOL_GO_ON)
            return status;
    }
    return TOOL_GO_ON;
}

/* --- messages -------------------------------------------------------------------------------- */

void demo_fleet_tell(demo_fleet *fleet, demo_role role, json_t *message)
{
    for (size_t i = 0; i < fleet->count; i++) {
        demo_process *process = &fleet->processes[i];
        if (process->role != role || process->lost)
            continue;
        demo_outbox_add(&process->outbox, json_incref(message));
        demo_outbox_flush(&process->outbox, process->fd); /* a lost worker shows when waiting */
    }
    json_decref(message);
}

/* A worker's own words about why it cannot go on. */
static void hear_failure(demo_fleet *fleet, const demo_process *process, const json_t *message)
{
    if (fleet->failure)
        return;
    fleet->hearsay = true;
    json_t *reasons = json_object_get(message, "reasons");
    const char *reason = demo_text(json_array_get(reasons, 0), "message");
    fail(fleet, "%s (pid %d): %s%s%s", process->name, (int)process->pid,
         demo_text(message, "what"), *reason ? ": " : "", reason);
}

static void hear(demo_fleet *fleet, demo_process *process, const char *step, demo_hear handler,
                 void *context)
{
    json_t *message;
    bool malformed;
    while ((message = demo_inbox_next(&process->inbox, &malformed))) {
        const char *did = demo_text(message, "did");
        if (strcmp(did, "failed") == 0)
            hear_failure(fleet, process, message);
        else if (handler)
            handler(context, process, message);
        process->answered |= strcmp(did, step) == 0;
        json_decref(message);
    }
    if (malformed)
        fail(fleet, "%s (pid %d) sent something that is no message", process->name,
             (int)process->pid);
}

/* --- death ----------------------------------------------------------------------------------- */

static void describe_end(demo_fleet *fleet, const demo_process *process, const char *step)
{
    if (WIFSIGNALED(process->end))
        fail(fleet, "%s (pid %d) was killed by signal %d (%s) in step \"%s\"", process->name,
             (int)process->pid, WTERMSIG(process->end), strsignal(WTERMSIG(process->end)), step);
    else
        fail(fleet, "%s (pid %d) ended with status %d in step \"%s\"", process->name,
             (int)process->pid, WEXITSTATUS(process->end), step);
}

/* Takes leave of those that have ended. */
static void reap(demo_fleet *fleet)
{
    for (size_t i = 0; i < fleet->count; i++) {
        demo_process *process = &fleet->processes[i];
        if (process->pid > 0 && !process->ended &&
            waitpid(process->pid, &process->end, WNOHANG) == process->pid)
            process->ended = true;
    }
}

static void hear_signals(demo_fleet *fleet)
{
    struct signalfd_siginfo signal;
    while (read(fleet->signals, &signal, sizeof signal) == (ssize_t)sizeof signal)
        if (signal.ssi_signo != SIGCHLD)
            fail(fleet, "interrupted (%s)", strsignal((int)signal.ssi_signo));
    reap(fleet);
}

/* --- waiting --------------------------------------------------------------------------------- */

/* Polls once; true if anything was heard. */
static bool poll_once(demo_fleet *fleet, struct pollfd *polls, int timeout_ms)
{
    for (size_t i = 0; i < fleet->count; i++) {
        const demo_process *process = &fleet->processes[i];
        bool more = process->outbox.done < process->outbox.size;
        polls[i] = (struct pollfd){.fd = process->lost ? -1 : process->fd,
                                   .events = (short)(POLLIN | (more ? POLLOUT : 0))};
    }
    polls[fleet->count] = (struct pollfd){.fd = fleet->signals, .events = POLLIN};
    return poll(polls, fleet->count + 1, timeout_ms) > 0;
}

static bool all_answered(const demo_fleet *fleet, unsigned roles)
{
    for (size_t i = 0; i < fleet->count; i++)
        if ((roles >> fleet->processes[i].role & 1) && !fleet->processes[i].answered)
            return false;
    return true;
}

static void describe_silence(demo_fleet *fleet, unsigned roles, const char *step)
{
    for (size_t i = 0; i < fleet->count; i++) {
        const demo_process *process = &fleet->processes[i];
        if ((roles >> process->role & 1) && !process->answered)
            fail(fleet, "%s (pid %d) said nothing for %llu s in step \"%s\"", process->name,
                 (int)process->pid, (unsigned long long)(fleet->timeout_ns / SECOND), step);
    }
}

/* A worker answers "quit" by ending well; any other end is a failure. */
static void judge_end(demo_fleet *fleet, demo_process *process, unsigned roles, const char *step)
{
    if (process->finished)
        return;
    process->finished = (roles >> process->role & 1) && strcmp(step, "quit") == 0 &&
                        WIFEXITED(process->end) && WEXITSTATUS(process->end) == 0;
    if (process->finished)
        process->answered = true;
    else
        describe_end(fleet, process, step);
}

/* What one worker sent, and whether it is still there. A socket closes a moment before its process can
 * be waited for. */
static void serve(demo_process *process, const struct pollfd *poll)
{
    if (poll->revents & POLLOUT)
        process->lost |= !demo_outbox_flush(&process->outbox, process->fd);
    if (poll->revents & (POLLIN | POLLHUP | POLLERR))
        process->lost |= !demo_inbox_fill(&process->inbox, process->fd);
}

/* Who complains is often not who failed: a lost peer shows sooner than its death. */
static void look_for_cause(demo_fleet *fleet, const char *step)
{
    for (uint64_t until = demo_now_ns() + CAUSE_GRACE; demo_now_ns() < until;) {
        poll(&(struct pollfd){.fd = fleet->signals, .events = POLLIN}, 1, 50);
        hear_signals(fleet);
    }
    for (size_t i = 0; i < fleet->count && fleet->hearsay; i++)
        if (fleet->processes[i].ended && WIFSIGNALED(fleet->processes[i].end)) {
            free(fleet->failure);
            fleet->failure = NULL;
            fleet->hearsay = false;
            describe_end(fleet, &fleet->processes[i], step);
        }
}

int demo_fleet_wait(demo_fleet *fleet, unsigned roles, const char *step, demo_hear handler,
                    void *context)
{
    struct pollfd *polls = tool_alloc(fleet->count + 1, sizeof *polls);
    for (size_t i = 0; i < fleet->count; i++)
        fleet->processes[i].answered = false;
    uint64_t heard = demo_now_ns();
    while (!fleet->failure && !all_answered(fleet, roles)) {
        if (poll_once(fleet, polls, 1000)) {
            heard = demo_now_ns();
            hear_signals(fleet);
            for (size_t i = 0; i < fleet->count; i++) {
                demo_process *process = &fleet->processes[i];
                serve(process, &polls[i]);
                hear(fleet, process, step, handler, context);
                if (process->ended)
                    judge_end(fleet, process, roles, step);
            }
        } else if (demo_now_ns() - heard > fleet->timeout_ns) {
            describe_silence(fleet, roles, step);
        }
    }
    free(polls);
    if (fleet->hearsay)
        look_for_cause(fleet, step);
    return fleet->failure ? TOOL_FAILED : TOOL_GO_ON;
}

/* --- end ------------------------------------------------------------------------------------- */

static bool all_ended(const demo_fleet *fleet)
{
    for (size_t i = 0; i < fleet->count; i++)
        if (fleet->processes[i].pid > 0 && !fleet->processes[i].ended)
            return false;
    return true;
}

/* A worker whose socket closes ends by itself and lets its memory go. */
static void end_gently(demo_fleet *fleet)
{
    for (size_t i = 0; i < fleet->count; i++)
        if (fleet->processes[i].fd >= 0)
            shutdown(fleet->processes[i].fd, SHUT_RDWR);
    for (uint64_t until = demo_now_ns() + END_GRACE; !all_ended(fleet) && demo_now_ns() < until;) {
        poll(&(struct pollfd){.fd = fleet->signals, .events = POLLIN}, 1, 100);
        hear_signals(fleet);
    }
}

void demo_fleet_end(demo_fleet *fleet)
{
    reap(fleet);
    end_gently(fleet);
    for (size_t i = 0; i < fleet->count; i++) {
        demo_process *process = &fleet->processes[i];
        if (process->pid > 0 && !process->ended) {
            kill(process->pid, SIGKILL);
            waitpid(process->pid, &process->end, 0);
        }
        if (process->fd >= 0)
            close(process->fd);
        demo_buffer_free(&process->outbox);
        demo_buffer_free(&process->inbox);
        free(process->name);
    }
    if (fleet->signals > 0)
        close(fleet->signals);
    free(fleet->processes);
    free(fleet->failure);
    *fleet = (demo_fleet){.signals = -1};
}
