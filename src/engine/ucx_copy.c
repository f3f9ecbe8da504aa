/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between processes of one host, made by this side alone. They wait in their batches; each progress
 * makes some, by turns of the peers.
 */
#include "engine/ucx_local.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

/*
 * TURN: about so many bytes are copied by one progress. Small copies and visits of a peer take time
 * without bytes: they count as SMALL and VISIT. No visit has less than LEAST. PARTS: of one system call; IOV_MAX is 1,024.
 */
enum { TURN = 1024 * 1024, SMALL = 256, VISIT = 4096, LEAST = 64 * 1024, PARTS = 256 };

/* --- the ring -------------------------------------------------------------------------------- */

static void enter(ucx_local *local)
{
    ucx_locals *locals = local->peer->engine->locals;
    if (!locals->turn) {
        local->next = local->previous = locals->turn = local;
        return;
    }
    local->next = locals->turn;
    local->previous = locals->turn->previous;
    local->previous->next = local->next->previous = local;
}

static void leave(ucx_local *local)
{
    ucx_locals *locals = local->peer->engine->locals;
    if (locals->turn == local)
        locals->turn = local->next == local ? NULL : local->next;
    local->previous->next = local->next;
    local->next->previous = local->previous;
}

static void queue_batch(ucx_local *local, ucx_batch *batch)
{
    bool idle = !local->first;
    batch->next_local = NULL;
    if (idle)
        local->first = batch;
    else
        local->last->next_local = batch;
    local->last = batch;
    if (idle)
        enter(local);
}

static void unqueue_batch(ucx_local *local, ucx_batch *batch)
{
    ucx_batch *before = NULL;
    for (ucx_batch *one = local->first; one != batch; one = one->next_local)
        before = one;
    if (before)
        before->next_local = batch->next_local;
    else
        local->first = batch->next_local;
    if (local->last == batch)
        local->last = before;
    if (!local->first)
        leave(local);
    batch->piece_count = 0;
    ucx_batch_settle(batch, 1);
}

void ucx_copy_drop(ucx_batch *batch, const char *words)
{
    if (batch->piece_count == 0)
        return;
    ucx_batch_say(batch, UCS_ERR_CONNECTION_RESET, words);
    unqueue_batch(batch->peer->local, batch);
}

bool ucx_copy_waits(const ucx_engine *engine) { return engine->locals && engine->locals->turn; }

/* --- posting --------------------------------------------------------------------------------- */

void ucx_copy_post(ucx_batch *batch, const kvferry_engine_copy *copies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const kvferry_engine_copy *copy = &copies[i];
        const ucx_remote *remote = copy->remote_segment;
        if (!ucx_is_on_hosts(copy))
            continue;
        uint64_t mapped = (uint64_t)(uintptr_t)remote->map + (copy->remote - remote->key.address);
        batch->pieces[batch->piece_count++] =
            (ucx_piece){.local = copy->local,
                        .remote = remote->map ? mapped : copy->remote,
                        .bytes = copy->bytes,
                        .mapped = remote->map != NULL};
    }
    if (!batch->piece_count)
        return;
    batch->left = 1;
    queue_batch(batch->peer->local, batch);
}

/* --- copying --------------------------------------------------------------------------------- */

static void advance(ucx_batch *batch, uint64_t bytes)
{
    while (bytes) {
        ucx_piece *piece = &batch->pieces[batch->piece];
        uint64_t part = base_min(bytes, piece->bytes);
        piece->local += part;
        piece->remote += part;
        piece->bytes -= part;
        bytes -= part;
        if (!piece->bytes)
            batch->piece++;
    }
}

/* What it cost. */
static uint64_t copy_mapped(ucx_batch *batch, uint64_t budget)
{
    ucx_piece *piece = &batch->pieces[batch->piece];
    uint64_t bytes = base_min(piece->bytes, budget);
    unsigned char *remote = (unsigned char *)(uintptr_t)piece->remote;
    if (batch->direction == KVFERRY_WRITE)
        memcpy(remote, piece->local, (size_t)bytes);
    else
        memcpy(piece->local, remote, (size_t)bytes);
    advance(batch, bytes);
    return bytes + SMALL;
}

/* As many of the next pieces as one call takes, all in the peer's own memory. */
static size_t gather(const ucx_batch *batch, uint64_t budget, struct iovec *here, struct iovec *there,
                     uint64_t *cost)
{
    size_t count = 0;
    for (uint32_t at = batch->piece; at < batch->piece_count && count < PARTS && *cost < budget; at++) {
        const ucx_piece *piece = &batch->pieces[at];
        if (piece->mapped)
            break;
        size_t bytes = (size_t)base_min(piece->bytes, budget - *cost);
        here[count] = (struct iovec){.iov_base = piece->local, .iov_len = bytes};
        there[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)piece->remote, .iov_len = bytes};
        *cost += bytes + SMALL;
    }
    return count;
}

static ucs_status_t status_of(int error)
{
    return error == ENOMEM ? UCS_ERR_NO_MEMORY : error == EFAULT ? UCS_ERR_INVALID_ADDR
                                                                 : UCS_ERR_CONNECTION_RESET;
}

/* Whether the engine is still in its process; if not, the peer is lost. */
static bool is_there(ucx_local *local)
{
    int error;
    if (ucx_local_is_there(local, &error))
        return true;
    ucx_local_lose(local->peer, error ? strerror(error) : "its engine is gone");
    return false;
}

/* Through the kernel; false: it would not, and the batch has ended. Memory that is missing is looked at twice:
 * all of it goes when the process ends, or runs another program, just after it was seen. */
static bool copy_through(ucx_batch *batch, uint64_t budget, uint64_t *cost)
{
    struct iovec here[PARTS], there[PARTS];
    bool write = batch->direction == KVFERRY_WRITE;
    ucx_local *local = batch->peer->local;
    size_t count = gather(batch, budget, here, there, cost);
    ssize_t done = write ? process_vm_writev(local->pid, here, count, there, count, 0)
                         : process_vm_readv(local->pid, here, count, there, count, 0);
    if (done > 0) {
        advance(batch, (uint64_t)done);
        return true;
    }
    int error = done < 0 ? errno : EFAULT;
    if (error == EFAULT && !is_there(local))
        return false;
    char words[100];
    snprintf(words, sizeof(words), "process_vm_%s: %s", write ? "writev" : "readv", strerror(error));
    ucs_status_t status = status_of(error);
    if (status == UCS_ERR_CONNECTION_RESET) {
        ucx_local_lose(batch->peer, words);
    } else {
        ucx_batch_say(batch, status, words);
        unqueue_batch(local, batch);
    }
    return false;
}

/* Some of the peer's first batch; what it cost. */
static uint64_t visit(ucx_local *local, uint64_t budget)
{
    ucx_batch *batch = local->first;
    uint64_t cost = VISIT;
    if (!is_there(local))
        return cost;
    while (batch->piece < batch->piece_count && cost < budget) {
        uint64_t spent = 0;
        if (batch->pieces[batch->piece].mapped)
            spent = copy_mapped(batch, budget - cost);
        else if (!copy_through(batch, budget - cost, &spent))
            return cost + spent;
        cost += spent;
    }
    if (batch->piece == batch->piece_count) {
        atomic_thread_fence(memory_order_seq_cst); /* all is visible before anybody is told */
        unqueue_batch(local, batch);
    }
    return cost;
}

bool ucx_copy_progress(ucx_engine *engine)
{
    ucx_locals *locals = engine->locals;
    bool any = locals->turn != NULL;
    for (uint64_t spent = 0; locals->turn && spent < TURN;) {
        ucx_local *local = locals->turn;
        locals->turn = local->next;
        spent += visit(local, TURN - spent < LEAST ? LEAST : TURN - spent);
    }
    return any;
}
