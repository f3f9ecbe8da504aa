/* SPDX-License-Identifier: Apache-2.0 */
#include "fleet.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

enum { CHANNEL = 3, ATTEMPTS = 5 };

uint64_t fleet_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static const char *name_of(const fleet *all, size_t member)
{
    static char text[32];
    const setup *how = &all->members[member].setup;
    snprintf(text, sizeof(text), "%s tp%u", how->decode ? "decode" : "prefill", how->tp);
    return text;
}

bool fleet_is_living(const fleet *all, size_t member)
{
    return all->members[member].pid && !all->members[member].stopped;
}

/* --- what is told ----------------------------------------------------------------------------- */

static bool is_one_of(const char *code, const char *const codes[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(code, codes[i]) == 0)
            return true;
    return false;
}

/* What a transfer may end with when a worker is stopped, dies, starts anew or goes, or its link is cut.
 */
static bool is_code_of_chaos(const fleet *all, const char *code)
{
    static const char *const codes[] = {"peer_lost",     "incarnation",      "roster_changed",
                                        "lease_ended",   "transfer_unknown", "connect_timeout",
                                        "transfer_over", "target_unexpected"};
    static const char *const leaves[] = {"peer_left", "source_aborted", "target_aborted"};
    return is_one_of(code, codes, sizeof(codes) / sizeof(*codes)) ||
           (all->left && is_one_of(code, leaves, sizeof(leaves) / sizeof(*leaves)));
}

static void check_end(const fleet *all, size_t member, const tell *in)
{
    if (in->number ? !is_code_of_chaos(all, in->text) : *in->text != '\0')
        fail_msg("%s: request %u of %s ended with outcome %u, code \"%s\"", all->what, in->request,
                 name_of(all, member), (unsigned)in->number, in->text);
}

static void take(fleet *all, size_t member, const tell *in)
{
    fleet_member *m = &all->members[member];
    entry *at = &m->entries[in->request];
    switch (in->kind) {
    case TELL_OPEN:
        snprintf(m->setup.address, sizeof(m->setup.address), "%.95s", in->text);
        m->done = true;
        break;
    case TELL_TAKEN:
        if (in->number)
            fail_msg("%s: %s refused request %u: %s", all->what, name_of(all, member), in->request,
                     in->text);
        m->done = true;
        break;
    case TELL_ENDED:
        if (!at->ordered || at->ended)
            fail_msg("%s: %s told of a second end of request %u", all->what, name_of(all, member),
                     in->request);
        check_end(all, member, in);
        at->ended = true;
        at->outcome = (int)in->number;
        snprintf(at->code, sizeof(at->code), "%.47s", in->text);
        break;
    case TELL_RELEASED:
        if (!at->ended || at->released)
            fail_msg("%s: %s released request %u %s", all->what, name_of(all, member), in->request,
                     at->ended ? "twice" : "before its end");
        at->released = true;
        break;
    case TELL_CHECKED:
        m->checked = true;
        m->descriptors = in->number;
        break;
    case TELL_DONE:
        m->done = true;
        break;
    case TELL_WRONG:
        fail_msg("%s: %s: request %u: %s", all->what, name_of(all, member), in->request, in->text);
    }
}

/* One packet of the worker. A worker that ended by itself is an error. */
static void receive(fleet *all, size_t member)
{
    tell in;
    ssize_t size = recv(all->members[member].channel, &in, sizeof(in), MSG_DONTWAIT);
    if (size < 0)
        return;
    if (size != sizeof(in) && all->members[member].trapped)
        return; /* who waits for that will see it */
    if (size != sizeof(in))
        fail_msg("%s: %s has ended", all->what, name_of(all, member));
    take(all, member, &in);
}

static bool step(fleet *all, int wait_ms)
{
    struct pollfd files[MEMBERS_MAX];
    for (size_t i = 0; i < all->count; i++)
        files[i] = (struct pollfd){.fd = all->members[i].pid ? all->members[i].channel : -1,
                                   .events = POLLIN};
    int ready = poll(files, all->count, wait_ms);
    for (size_t i = 0; i < all->count; i++)
        if (files[i].revents)
            receive(all, i);
    return ready > 0;
}

void fleet_pump(fleet *all, int wait_ms)
{
    uint64_t end = fleet_now_ms() + (uint64_t)wait_ms;
    for (uint64_t now = fleet_now_ms(); now < end; now = fleet_now_ms())
        step(all, (int)(end - now));
}

/* --- processes -------------------------------------------------------------------------------- */

static void become_member(int channel)
{
    if (channel == CHANNEL) /* dup2 would leave it to be closed */
        fcntl(channel, F_SETFD, 0);
    else
        dup2(channel, CHANNEL);
    execl("/proc/self/exe", "chaos", "member", (char *)NULL);
    _exit(127);
}

/* Waits until the worker's answer to the last order is there. */
static void await_done(fleet *all, size_t member)
{
    uint64_t end = fleet_now_ms() + PATIENCE_MS;
    while (!all->members[member].done && fleet_now_ms() < end)
        step(all, 100);
    if (!all->members[member].done)
        fail_msg("%s: %s does not answer", all->what, name_of(all, member));
}

void fleet_start(fleet *all, size_t member)
{
    fleet_member *m = &all->members[member];
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    m->channel = pair[0];
    m->stopped = false;
    m->trapped = 0;
    m->done = false;
    memset(m->entries, 0, sizeof(m->entries));
    m->pid = fork();
    assert_true(m->pid >= 0);
    if (m->pid == 0)
        become_member(pair[1]);
    close(pair[1]);
    assert_int_equal(send(m->channel, &m->setup, sizeof(m->setup), 0), sizeof(m->setup));
    await_done(all, member);
}

static void forget(fleet_member *m)
{
    close(m->channel);
    m->pid = 0;
}

static int reap(fleet_member *m)
{
    int status = -1;
    assert_int_equal(waitpid(m->pid, &status, 0), m->pid);
    forget(m);
    return status;
}

void fleet_end(fleet *all, size_t member)
{
    assert_int_equal(kill(all->members[member].pid, SIGKILL), 0);
    assert_true(WIFSIGNALED(reap(&all->members[member])));
}

void fleet_stop(fleet *all, size_t member)
{
    assert_int_equal(kill(all->members[member].pid, SIGSTOP), 0);
    all->members[member].stopped = true;
}

void fleet_continue(fleet *all, size_t member)
{
    all->members[member].stopped = false;
    assert_int_equal(kill(all->members[member].pid, SIGCONT), 0);
}

void fleet_open(fleet *all, const char *transport, bool tp2_first, const char *const spaces[2],
                const char *const hosts[2], const char *device)
{
    memset(all, 0, sizeof(*all));
    all->what = "opening";
    all->count = MEMBERS_MAX;
    all->prefills = tp2_first ? 2 : 1;
    for (size_t i = 0; i < all->count; i++) {
        bool decode = i >= all->prefills;
        setup *how = &all->members[i].setup;
        how->decode = decode;
        how->tps = decode == tp2_first ? 1 : 2;
        how->tp = (uint32_t)(decode ? i - all->prefills : i);
        snprintf(how->transport, sizeof(how->transport), "%s", transport);
        snprintf(how->space, sizeof(how->space), "%s", spaces[decode]);
        snprintf(how->device, sizeof(how->device), "%s", device);
        snprintf(how->address, sizeof(how->address), "tcp://%s:0", hosts[decode]);
        if (how->tp)
            snprintf(how->leader, sizeof(how->leader), "%s", all->members[i - 1].setup.address);
        fleet_start(all, i);
    }
}

void fleet_close(fleet *all)
{
    const order close = {.kind = ORDER_CLOSE};
    for (size_t i = 0; i < all->count; i++)
        assert_int_equal(send(all->members[i].channel, &close, sizeof(close), 0), sizeof(close));
    for (size_t i = 0; i < all->count; i++) {
        int status = reap(&all->members[i]);
        if (status)
            fail_msg("%s: %s ended with %d", all->what, name_of(all, i), status);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

void fleet_kill(fleet *all)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->members[i].pid) {
            kill(all->members[i].pid, SIGKILL);
            reap(&all->members[i]);
        }
}

/* --- traps ------------------------------------------------------------------------------------ */

void fleet_trap(fleet *all, size_t member, const trap *traps, size_t count)
{
    order out = {.kind = ORDER_TRAP};
    fleet_member *m = &all->members[member];
    assert_true(count <= TRAPS);
    memcpy(out.traps, traps, count * sizeof(*traps));
    m->done = false;
    assert_int_equal(send(m->channel, &out, sizeof(out), 0), sizeof(out));
    await_done(all, member);
    m->trapped = count;
}

/* Waits until the worker stops, if that is meant, or has ended; *status is how. False: it does neither. */
static bool await_change(fleet *all, size_t member, int options, int *status)
{
    fleet_member *m = &all->members[member];
    uint64_t end = fleet_now_ms() + PATIENCE_MS;
    pid_t found;
    while ((found = waitpid(m->pid, status, WNOHANG | options)) == 0 && fleet_now_ms() < end)
        fleet_pump(all, 5);
    if (found == 0)
        return false;
    assert_int_equal(found, m->pid);
    m->trapped--;
    return true;
}

void fleet_await_trap(fleet *all, size_t member)
{
    fleet_member *m = &all->members[member];
    int status;
    if (!await_change(all, member, WUNTRACED, &status))
        fail_msg("%s: the message did not come to %s", all->what, name_of(all, member));
    m->stopped = WIFSTOPPED(status);
    if (WIFSTOPPED(status))
        return;
    assert_true(WIFSIGNALED(status));
    forget(m);
}

void fleet_leave(fleet *all, size_t member)
{
    const order out = {.kind = ORDER_LEAVE};
    fleet_member *m = &all->members[member];
    m->trapped++;
    all->left = true;
    assert_int_equal(send(m->channel, &out, sizeof(out), 0), sizeof(out));
}

void fleet_await_end(fleet *all, size_t member)
{
    int status;
    if (!await_change(all, member, 0, &status))
        fail_msg("%s: %s does not end", all->what, name_of(all, member));
    if (status)
        fail_msg("%s: %s ended with %d", all->what, name_of(all, member), status);
    forget(&all->members[member]);
}

/* --- requests --------------------------------------------------------------------------------- */

uint32_t fleet_request(fleet *all)
{
    assert_true(all->requests + 1 < REQUESTS_MAX);
    return ++all->requests;
}

static void begin(fleet *all, uint32_t request, uint32_t slot, size_t first, size_t last, order_kind offer)
{
    for (size_t i = first; i < last; i++) {
        fleet_member *m = &all->members[i];
        order out = {.kind = m->setup.decode ? ORDER_ASK : offer, .request = request, .slot = slot};
        snprintf(out.where, sizeof(out.where), "%s", all->members[0].setup.address);
        if (!m->pid)
            continue;
        m->entries[request].ordered = true;
        m->done = m->trapped > 0; /* it may fall before it answers */
        assert_int_equal(send(m->channel, &out, sizeof(out), 0), sizeof(out));
        await_done(all, i);
    }
}

void fleet_order(fleet *all, uint32_t request, uint32_t slot, size_t first, size_t last)
{
    begin(all, request, slot, first, last, ORDER_OFFER);
}

void fleet_park(fleet *all, uint32_t request, uint32_t slot)
{
    begin(all, request, slot, 0, all->prefills, ORDER_PARK);
}

void fleet_tell_of(fleet *all, size_t member, order_kind kind, uint32_t request)
{
    const order out = {.kind = kind, .request = request};
    fleet_member *m = &all->members[member];
    m->done = m->trapped > 0; /* as above */
    assert_int_equal(send(m->channel, &out, sizeof(out), 0), sizeof(out));
    await_done(all, member);
}

void fleet_tell(fleet *all, size_t member, order_kind kind) { fleet_tell_of(all, member, kind, 0); }

void fleet_await(fleet *all, uint32_t request, size_t first, size_t last, bool released)
{
    uint64_t end = fleet_now_ms() + PATIENCE_MS;
    for (size_t i = first; i < last; i++) {
        const entry *at = &all->members[i].entries[request];
        while (fleet_is_living(all, i) && at->ordered && !(released ? at->released : at->ended) &&
               fleet_now_ms() < end)
            step(all, 100);
        if (fleet_is_living(all, i) && at->ordered && !(released ? at->released : at->ended))
            fail_msg("%s: request %u of %s %s", all->what, request, name_of(all, i),
                     at->ended ? "is not released" : "does not end");
    }
}

static bool is_done(const fleet *all, uint32_t request)
{
    for (size_t i = 0; i < all->count; i++) {
        const entry *at = &all->members[i].entries[request];
        if (at->outcome)
            printf("%s: request %u at %s: %s\n", all->what, request, name_of(all, i), at->code);
        if (at->outcome)
            return false;
    }
    return true;
}

bool fleet_was_asked(const entry *at)
{
    return at->ended && at->outcome && strcmp(at->code, "connect_timeout") != 0;
}

void fleet_check_fresh(fleet *all, uint32_t slot)
{
    for (size_t i = 0; i < ATTEMPTS; i++) {
        uint32_t request = fleet_request(all);
        fleet_order(all, request, slot, 0, all->count);
        fleet_await(all, request, 0, all->count, true);
        if (is_done(all, request))
            return;
    }
    fail_msg("%s: no transfer goes through any more", all->what);
}

void fleet_check(fleet *all)
{
    const order out = {.kind = ORDER_CHECK};
    for (size_t i = 0; i < all->count; i++) {
        fleet_member *m = &all->members[i];
        m->checked = false;
        assert_int_equal(send(m->channel, &out, sizeof(out), 0), sizeof(out));
    }
    uint64_t end = fleet_now_ms() + PATIENCE_MS;
    for (size_t i = 0; i < all->count; i++) {
        while (!all->members[i].checked && fleet_now_ms() < end)
            step(all, 100);
        if (!all->members[i].checked)
            fail_msg("%s: %s does not answer", all->what, name_of(all, i));
    }
}
