/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes over TCP: a batch is frames and a fence. Bytes go from where they lie to where they
 * belong, through the kernel only. The receiver checks each range against its own segments; TCP
 * keeps the order, so a fence's answer says that all before it is in its place.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/ucx_tcp.h"

/* PARTS: of one sendmsg. TURN: about so many bytes, then it is another connection's turn. */
enum { PARTS = 256, TURN = 4 * 1024 * 1024 };

/* --- sending --------------------------------------------------------------------------------- */

bool tcp_push(ucx_connection *connection, const tcp_frame *frame, const void *data)
{
    tcp_queue *queue = connection->last;
    if (!queue || queue->count == TCP_QUEUE) {
        queue = tcp_take_queue(connection->engine->tcp);
        if (!queue)
            return false;
        if (connection->last)
            connection->last->next = queue;
        else
            connection->first = queue;
        connection->last = queue;
    }
    queue->frames[queue->count] = *frame;
    queue->data[queue->count++] = data;
    return true;
}

static size_t length_of(const tcp_queue *queue, size_t at)
{
    return sizeof(tcp_frame) + (queue->data[at] ? (size_t)queue->frames[at].bytes : 0);
}

static size_t add_part(struct iovec *parts, size_t count, const void *data, size_t bytes,
                       size_t *skip)
{
    size_t skipped = (size_t)base_min(*skip, bytes);
    *skip -= skipped;
    if (bytes == skipped)
        return count;
    parts[count] =
        (struct iovec){.iov_base = (char *)(uintptr_t)data + skipped, .iov_len = bytes - skipped};
    return count + 1;
}

/* The queues' beginning. */
static size_t gather(const ucx_connection *connection, struct iovec *parts)
{
    size_t count = 0, bytes = 0, skip = connection->sent;
    for (const tcp_queue *queue = connection->first; queue; queue = queue->next)
        for (size_t at = queue->at; at < queue->count; at++) {
            if (count + 2 > PARTS || bytes >= TURN)
                return count;
            bytes += length_of(queue, at);
            count = add_part(parts, count, &queue->frames[at], sizeof(tcp_frame), &skip);
            if (queue->data[at])
                count =
                    add_part(parts, count, queue->data[at], (size_t)queue->frames[at].bytes, &skip);
        }
    return count;
}

static void advance(ucx_connection *connection, size_t bytes)
{
    connection->sent += bytes;
    while (connection->first) {
        tcp_queue *queue = connection->first;
        size_t length = length_of(queue, queue->at);
        if (connection->sent < length)
            return;
        connection->sent -= length;
        if (++queue->at < queue->count)
            continue;
        connection->first = queue->next;
        if (!connection->first)
            connection->last = NULL;
        tcp_spare_queue(connection->engine->tcp, queue);
    }
}

bool tcp_send(ucx_connection *connection)
{
    struct iovec parts[PARTS];
    struct msghdr message = {.msg_iov = parts};
    size_t gone = 0;
    bool full = false;
    while (connection->first && gone < TURN && !full) {
        message.msg_iovlen = gather(connection, parts);
        ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            gone += (size_t)sent;
            advance(connection, (size_t)sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            full = true;
        } else if (errno != EINTR) {
            tcp_lose(connection);
            return true;
        }
    }
    tcp_watch(connection, connection->first != NULL);
    return gone > 0;
}

/* --- receiving ------------------------------------------------------------------------------- */

/* Whether the range lies inside one of the own segments that the CPU can touch. */
static bool is_own(const ucx_engine *engine, uint64_t address, uint64_t bytes)
{
    size_t low = 0, high = engine->segment_count; /* the first that begins past the address */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (engine->segments[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low)
        return false;
    const ucx_segment *segment = engine->segments[low - 1];
    uint64_t offset = address - segment->address;
    return segment->type == UCS_MEMORY_TYPE_HOST && offset <= segment->bytes &&
           bytes <= segment->bytes - offset;
}

/* The batch of this connection that the token names, as long as it is out. */
static ucx_batch *find_batch(const ucx_connection *connection, uint64_t token)
{
    const ucx_engine *engine = connection->engine;
    uint32_t index = (uint32_t)token;
    if (index >= engine->batch_count)
        return NULL;
    ucx_batch *batch = engine->batches[index];
    return batch->serial == token >> 32 && batch->posted && batch->peer == connection->peer ? batch
                                                                                            : NULL;
}

static void expect(ucx_connection *connection, bool welcome)
{
    const tcp_frame *frame = &connection->frame;
    bool well = welcome && is_own(connection->engine, frame->to, frame->bytes);
    connection->refused = connection->refused || !well;
    connection->place = well ? (unsigned char *)(uintptr_t)frame->to : NULL;
    connection->follows = frame->bytes;
}

static bool answer(ucx_connection *connection)
{
    const tcp_frame *frame = &connection->frame;
    tcp_frame back = {.batch = frame->batch};
    if (frame->kind == TCP_FENCE) {
        back.kind = TCP_DONE;
        back.refused = connection->refused;
        connection->refused = false;
        return tcp_push(connection, &back, NULL);
    }
    if (!is_own(connection->engine, frame->from, frame->bytes)) {
        connection->refused = true;
        return true;
    }
    back.kind = TCP_ANSWER;
    back.to = frame->to;
    back.bytes = frame->bytes;
    return frame->bytes == 0 || tcp_push(connection, &back, (const void *)(uintptr_t)frame->from);
}

/* What a side that began says. false: it is none of ours, or there is no memory for it. */
static bool take_from_guest(ucx_connection *connection)
{
    const tcp_frame *frame = &connection->frame;
    if (!connection->greeted) {
        connection->greeted =
            frame->kind == TCP_HELLO &&
            memcmp(&frame->from, connection->engine->identity.id, UCX_ID_BYTES) == 0;
        return connection->greeted;
    }
    if (frame->kind == TCP_WRITE)
        expect(connection, true);
    else
        return (frame->kind == TCP_WISH || frame->kind == TCP_FENCE) && answer(connection);
    return true;
}

static bool take_from_peer(ucx_connection *connection)
{
    const tcp_frame *frame = &connection->frame;
    ucx_batch *batch = find_batch(connection, frame->batch);
    if (frame->kind == TCP_ANSWER) {
        expect(connection, batch && batch->direction == KVFERRY_READ);
        return true;
    }
    if (frame->kind != TCP_DONE || !batch)
        return false;
    if (frame->refused || connection->refused)
        ucx_batch_note(batch, UCS_ERR_INVALID_ADDR);
    connection->refused = false;
    ucx_batch_settle(batch, 1);
    return true;
}

/* Uses what the buffer holds. false: the connection is none of ours. */
static bool take_buffered(ucx_connection *connection)
{
    for (;;) {
        size_t held = connection->end - connection->begin;
        const unsigned char *data = connection->buffer + connection->begin;
        if (connection->follows) {
            size_t bytes = (size_t)base_min(held, connection->follows);
            if (!bytes)
                return true;
            if (connection->place) {
                memcpy(connection->place, data, bytes);
                connection->place += bytes;
            }
            connection->follows -= bytes;
            connection->begin += bytes;
        } else {
            if (held < sizeof(tcp_frame))
                return true;
            memcpy(&connection->frame, data, sizeof(tcp_frame));
            connection->begin += sizeof(tcp_frame);
            if (!(connection->peer ? take_from_peer(connection) : take_from_guest(connection)))
                return false;
        }
    }
}

/* What is known to belong somewhere goes there, the rest into the buffer. The buffer holds less
 * than a frame, and nothing if bytes follow one. */
static ssize_t receive_some(ucx_connection *connection)
{
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    size_t direct = connection->place ? (size_t)connection->follows : 0;
    size_t held = connection->end - connection->begin;
    memmove(connection->buffer, connection->buffer + connection->begin, held);
    connection->begin = 0;
    connection->end = held;
    if (direct)
        parts[message.msg_iovlen++] =
            (struct iovec){.iov_base = connection->place, .iov_len = direct};
    parts[message.msg_iovlen++] =
        (struct iovec){.iov_base = connection->buffer + held, .iov_len = TCP_BUFFER - held};
    ssize_t got = recvmsg(connection->fd, &message, MSG_DONTWAIT);
    if (got <= 0)
        return got;
    size_t placed = (size_t)base_min((uint64_t)got, direct);
    if (placed)
        connection->place += placed;
    connection->follows -= placed;
    connection->end += (size_t)got - placed;
    return got;
}

bool tcp_receive(ucx_connection *connection)
{
    size_t come = 0;
    while (come < TURN) {
        ssize_t got = receive_some(connection);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0 || !take_buffered(connection)) {
            tcp_lose(connection);
            return true;
        }
        come += (size_t)got;
    }
    if (connection->first)
        tcp_send(connection);
    return come > 0;
}

/* --- batches --------------------------------------------------------------------------------- */

void ucx_tcp_post(ucx_batch *batch, const kvferry_engine_copy *copies, size_t count)
{
    ucx_connection *connection = batch->peer->connection;
    tcp_frame frame = {.batch = (uint64_t)batch->serial << 32 | batch->index};
    bool write = batch->direction == KVFERRY_WRITE, well = true;
    for (size_t i = 0; i < count && well; i++) {
        uint64_t local = (uint64_t)(uintptr_t)copies[i].local;
        frame.kind = write ? TCP_WRITE : TCP_WISH;
        frame.from = write ? local : copies[i].remote;
        frame.to = write ? copies[i].remote : local;
        frame.bytes = copies[i].bytes;
        well = tcp_push(connection, &frame, write ? copies[i].local : NULL);
    }
    frame = (tcp_frame){.kind = TCP_FENCE, .batch = frame.batch};
    batch->left = 1;
    if (!well || !tcp_push(connection, &frame, NULL)) {
        ucx_batch_note(batch, UCS_ERR_NO_MEMORY);
        tcp_lose(connection); /* half a batch cannot be taken back */
        return;
    }
    if (connection->up)
        tcp_send(connection);
}
