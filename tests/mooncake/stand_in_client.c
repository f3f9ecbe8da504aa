/* SPDX-License-Identifier: Apache-2.0 */
/* The initiator's side of the stand-in: one connection and one thread for each peer. */
#include "stand_in.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PIPELINE = 64 };

/* Before 0.3.12 a write was complete when it had left. */
#ifdef STAND_IN_OLD
static const bool early = true;
#else
static const bool early = false;
#endif

static int connect_to(const char *name)
{
    char host[64];
    unsigned port;
    struct sockaddr_in address = {.sin_family = AF_INET};
    int on = 1;
    if (sscanf(name, "%63[^:]:%u", host, &port) != 2 || port > 65535 ||
        inet_pton(AF_INET, host, &address.sin_addr) != 1)
        return -1;
    address.sin_port = htons((uint16_t)port);
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made >= 0 && connect(made, (struct sockaddr *)&address, sizeof(address)) == 0) {
        setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        return made;
    }
    if (made >= 0)
        close(made);
    return -1;
}

bool stand_in_ask_ranges(const char *name, stand_in_range *ranges, size_t *count)
{
    const stand_in_header header = {.opcode = 2};
    uint64_t found = 0;
    int with = connect_to(name);
    bool well = with >= 0 && stand_in_send(with, &header, sizeof(header)) &&
                stand_in_receive(with, &found, sizeof(found)) &&
                stand_in_receive(with, ranges, RANGES * sizeof(*ranges)) && found <= RANGES;
    if (with >= 0)
        close(with);
    *count = (size_t)found;
    return well;
}

static bool send_write(int socket, const stand_in_request *request)
{
    stand_in_header header = {1, request->offset, request->length};
    struct iovec parts[] = {{&header, sizeof(header)}, {request->source, (size_t)request->length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < (ssize_t)sizeof(header))
        return false;
    size_t done = (size_t)sent - sizeof(header);
    return stand_in_send(socket, (const char *)request->source + done, (size_t)request->length - done);
}

static bool read_now(int socket, const stand_in_request *request)
{
    const stand_in_header header = {0, request->offset, request->length};
    char there = 0;
    return stand_in_send(socket, &header, sizeof(header)) && stand_in_receive(socket, &there, 1) &&
           there && stand_in_receive(socket, request->source, (size_t)request->length);
}

static void finish(stand_in_segment *segment, stand_in_task *task, int state)
{
    pthread_mutex_lock(&segment->instance->lock);
    segment->outstanding--;
    atomic_store(&task->state, state);
    pthread_mutex_unlock(&segment->instance->lock);
}

/* Up to PIPELINE writes in a row, and then their answers; or one read. */
static void move_some(stand_in_segment *segment, stand_in_task *const *tasks, size_t count)
{
    size_t sent = 0;
    if (segment->socket < 0) {
        int made = connect_to(segment->name);
        pthread_mutex_lock(&segment->instance->lock);
        segment->socket = made;
        if (segment->instance->ending && made >= 0)
            shutdown(made, SHUT_RDWR);
        pthread_mutex_unlock(&segment->instance->lock);
    }
    bool well = segment->socket >= 0;
    if (well && tasks[0]->request.opcode == 0)
        well = read_now(segment->socket, &tasks[0]->request);
    else
        while (well && sent < count)
            well = send_write(segment->socket, &tasks[sent++]->request);
    for (size_t i = 0; i < count; i++) {
        char there = 1;
        bool written = tasks[i]->request.opcode == 1;
        if (early)
            finish(segment, tasks[i], well ? COMPLETED : FAILED);
        if (well && written)
            well = stand_in_receive(segment->socket, &there, 1) && there;
        if (!early)
            finish(segment, tasks[i], well ? COMPLETED : FAILED);
    }
    if (!well && segment->socket >= 0) {
        pthread_mutex_lock(&segment->instance->lock);
        close(segment->socket);
        segment->socket = -1;
        pthread_mutex_unlock(&segment->instance->lock);
    }
}

/* What may go together; 0: the instance ends. */
static size_t take_tasks(stand_in_segment *segment, stand_in_task **tasks)
{
    stand_in_instance *instance = segment->instance;
    size_t count = 0;
    pthread_mutex_lock(&instance->lock);
    while (!instance->ending && (!segment->first || segment->hung || atomic_load(&stand_in.stuck))) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 1000000;
        if (soon.tv_nsec >= 1000000000) {
            soon.tv_nsec -= 1000000000;
            soon.tv_sec++;
        }
        pthread_cond_timedwait(&segment->more, &instance->lock, &soon);
    }
    while (!instance->ending && segment->first && count < PIPELINE) {
        stand_in_task *task = segment->first;
        if (count && (task->request.opcode == 0 || tasks[0]->request.opcode == 0))
            break;
        segment->first = task->next;
        if (!segment->first)
            segment->last = &segment->first;
        tasks[count++] = task;
    }
    pthread_mutex_unlock(&instance->lock);
    return count;
}

void *stand_in_move(void *argument)
{
    stand_in_segment *segment = argument;
    stand_in_task *tasks[PIPELINE];
    for (size_t count; (count = take_tasks(segment, tasks)) > 0;)
        move_some(segment, tasks, count);
    return NULL;
}
