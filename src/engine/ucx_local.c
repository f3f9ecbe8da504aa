/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers on this host: this side moves the bytes in both directions itself, into the peer's memory and out
 * of it, and the peer has no part in it. So there is nothing at a target that a peer could leave half done
 * when it dies. Memory of kvferry_engine_allocate is a file without a name, which the peer maps; a
 * caller's own memory is reached through process_vm_writev and process_vm_readv.
 *
 * A process is known by the random id of its engine, which lies in its memory and is read before each
 * turn of copies: another process with the same number has it not, nor has a child with a copy of the
 * memory, and not the same process either once its engine is closed or it runs another program.
 */
#include "engine/ucx_local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* --- the engine's part ----------------------------------------------------------------------- */

/* A page that is zeroed in a child: its number may one day be this process's. */
static unsigned char *make_mark(const uint8_t id[UCX_ID_BYTES])
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *mark =
        mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mark == MAP_FAILED)
        return NULL;
    if (madvise(mark, page, MADV_WIPEONFORK) != 0) {
        munmap(mark, page);
        return NULL;
    }
    memcpy(mark, id, UCX_ID_BYTES);
    return mark;
}

kvferry_status ucx_local_open(ucx_engine *engine, kvferry_report *report)
{
    ucx_locals *locals = base_alloc(1, sizeof(*locals));
    if (!locals)
        return KVFERRY_NO_MEMORY;
    engine->locals = locals;
    struct epoll_event event = {.events = EPOLLIN};
    locals->fd = epoll_create1(EPOLL_CLOEXEC);
    if (locals->fd >= 0 && epoll_ctl(engine->fd, EPOLL_CTL_ADD, locals->fd, &event) == 0)
        locals->mark = make_mark(engine->identity.id);
    if (!locals->mark) {
        base_report_add(report, "engine_failed", NULL, NULL, strerror(errno), "ucx: no shared memory");
        return KVFERRY_UNSUPPORTED;
    }
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* where Yama asks for it; else it is refused */
#endif
    engine->identity.mark = (uint64_t)(uintptr_t)locals->mark;
    engine->identity.local = 1;
    return KVFERRY_OK;
}

void ucx_local_close(ucx_engine *engine)
{
    ucx_locals *locals = engine->locals;
    if (!locals)
        return;
    if (locals->mark)
        munmap(locals->mark, (size_t)sysconf(_SC_PAGESIZE));
    if (locals->fd >= 0)
        close(locals->fd);
    free(locals);
    engine->locals = NULL;
}

/* --- connections ----------------------------------------------------------------------------- */

bool ucx_local_is_there(const ucx_local *local, int *error)
{
    uint8_t found[UCX_ID_BYTES];
    const struct iovec here = {.iov_base = found, .iov_len = sizeof(found)};
    const struct iovec there = {.iov_base = (void *)(uintptr_t)local->mark, .iov_len = sizeof(found)};
    ssize_t got = process_vm_readv(local->pid, &here, 1, &there, 1, 0);
    *error = got < 0 && errno != EFAULT && errno != ESRCH ? errno : 0;
    return got == (ssize_t)sizeof(found) && memcmp(found, local->id, sizeof(found)) == 0;
}

static ucx_refusal make_refusal(kvferry_status status, const char *what, int error)
{
    ucx_refusal refusal = {.status = status};
    snprintf(refusal.words, sizeof(refusal.words), "%s%s%s", what, error ? ": " : "",
             error ? strerror(error) : "");
    return refusal;
}

/* The first look at the process: whether it is the peer, and what this one may do to it. */
static ucx_refusal look_at(ucx_local *local)
{
    int error;
    local->pidfd = (int)syscall(SYS_pidfd_open, local->pid, 0);
    if (local->pidfd < 0)
        return make_refusal(errno == ESRCH ? KVFERRY_PEER_LOST : KVFERRY_UNSUPPORTED, "pidfd_open",
                            errno);
    if (!ucx_local_is_there(local, &error))
        return make_refusal(error ? KVFERRY_UNSUPPORTED : KVFERRY_PEER_LOST,
                            error ? "process_vm_readv" : "no such engine in the process of this number", error);
    if (process_vm_writev(local->pid, NULL, 0, NULL, 0, 0) != 0)
        return make_refusal(KVFERRY_UNSUPPORTED, "process_vm_writev", errno);
    return (ucx_refusal){.status = KVFERRY_OK};
}

void ucx_local_connect(ucx_engine *engine, ucx_peer *peer, const ucx_identity *identity,
                       ucx_refusal *refusal)
{
    if (!identity->local || !ucx_identity_same_host(&engine->identity, identity)) {
        *refusal = make_refusal(KVFERRY_UNSUPPORTED,
                          identity->local ? "it is on another host" : "it offers none", 0);
        return;
    }
    ucx_local *local = base_alloc(1, sizeof(*local));
    if (!local) {
        *refusal = make_refusal(KVFERRY_NO_MEMORY, "", 0);
        return;
    }
    local->peer = peer;
    local->pid = (pid_t)identity->pid;
    local->mark = identity->mark;
    memcpy(local->id, identity->id, UCX_ID_BYTES);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = local};
    *refusal = look_at(local);
    if (refusal->status == KVFERRY_OK &&
        epoll_ctl(engine->locals->fd, EPOLL_CTL_ADD, local->pidfd, &event) != 0)
        *refusal = make_refusal(KVFERRY_UNSUPPORTED, "epoll_ctl", errno);
    if (refusal->status != KVFERRY_OK) {
        if (local->pidfd >= 0)
            close(local->pidfd);
        free(local);
        return;
    }
    engine->locals->peers++;
    peer->local = local;
}

static void drop_batches(ucx_local *local, const char *words)
{
    while (local->first)
        ucx_copy_drop(local->first, words);
}

static void unwatch(ucx_local *local)
{
    if (local->pidfd < 0)
        return;
    close(local->pidfd); /* and with it the watch */
    local->pidfd = -1;
    local->peer->engine->locals->peers--;
}

void ucx_local_lose(ucx_peer *peer, const char *words)
{
    peer->lost = true;
    drop_batches(peer->local, words);
    unwatch(peer->local);
}

void ucx_local_disconnect(ucx_peer *peer)
{
    drop_batches(peer->local, "the connection was closed");
    unwatch(peer->local);
    free(peer->local);
    peer->local = NULL;
}

bool ucx_local_progress(ucx_engine *engine)
{
    struct epoll_event events[16];
    if (!engine->locals->peers)
        return false;
    int count = epoll_wait(engine->locals->fd, events, 16, 0);
    for (int i = 0; i < count; i++)
        ucx_local_lose(((ucx_local *)events[i].data.ptr)->peer, "its process has ended");
    return ucx_copy_progress(engine) || count > 0;
}
