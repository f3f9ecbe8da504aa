/* SPDX-License-Identifier: Apache-2.0 */
/* How the stand-in moves bytes: over TCP on loopback, without a thread, a bounded part in each call. */
#include "stand_in.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURN_BYTES = 1 << 20 };

bool stand_in_covers(const stand_in_range *ranges, size_t count, const stand_in_range *part)
{
    for (size_t i = 0; i < count; i++)
        if (part->address >= ranges[i].address && part->bytes <= ranges[i].bytes &&
            part->address - ranges[i].address <= ranges[i].bytes - part->bytes)
            return true;
    return false;
}

/* --- sockets: how many bytes went; -1: the connection is gone -------------------------------------- */

static int64_t push(int socket, const void *data, uint64_t bytes)
{
    ssize_t sent = send(socket, data, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent >= 0 ? sent : errno == EAGAIN || errno == EINTR ? 0 : -1;
}

static int64_t pull(int socket, void *data, uint64_t bytes)
{
    ssize_t got = recv(socket, data, (size_t)bytes, MSG_DONTWAIT);
    return got > 0 ? got : got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static struct sockaddr_in at_port(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
}

static void hurry(int socket)
{
    int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool stand_in_listen(stand_in_agent *agent)
{
    struct sockaddr_in address = at_port(0);
    socklen_t size = sizeof(address);
    agent->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (agent->listener < 0 || bind(agent->listener, (struct sockaddr *)&address, size) ||
        listen(agent->listener, 64) || getsockname(agent->listener, (struct sockaddr *)&address, &size))
        return false;
    agent->port = ntohs(address.sin_port);
    return true;
}

bool stand_in_connect(stand_in_agent *agent, uint64_t port)
{
    struct sockaddr_in address = at_port((uint16_t)port);
    agent->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (agent->socket < 0 || connect(agent->socket, (struct sockaddr *)&address, sizeof(address)))
        return false;
    hurry(agent->socket);
    return true;
}

/* --- the target's side ------------------------------------------------------------------------------ */

/* A write's bytes, or what is read; then the next one begins with its header. */
static int64_t serve_bytes(const stand_in_agent *agent, stand_in_served *with)
{
    static char fine = 1;
    const stand_in_header *header = &with->header;
    const stand_in_range part = {header->address, header->bytes};
    char *memory = (char *)(uintptr_t)header->address;
    uint64_t all = header->bytes + !header->write;
    int64_t went;
    if (!stand_in_covers(agent->ranges, agent->range_count, &part))
        return -1;
    if (header->write)
        went = pull(with->socket, memory + with->done, header->bytes - with->done);
    else if (!with->done)
        went = push(with->socket, &fine, 1);
    else
        went = push(with->socket, memory + with->done - 1, all - with->done);
    if (went <= 0)
        return went;
    with->done += (uint64_t)went;
    if (with->done < all)
        return went;
    with->got = with->done = 0;
    return !header->write || push(with->socket, &fine, 1) == 1 ? went : -1;
}

static int64_t serve_one(const stand_in_agent *agent, stand_in_served *with)
{
    if (with->got == sizeof(with->header))
        return serve_bytes(agent, with);
    int64_t went = pull(with->socket, (char *)&with->header + with->got, sizeof(with->header) - with->got);
    with->got += went > 0 ? (uint64_t)went : 0;
    return went;
}

static void accept_all(stand_in_agent *agent)
{
    for (int made; (made = accept4(agent->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        stand_in_served *with = calloc(1, sizeof(*with));
        if (!with) {
            close(made);
            continue;
        }
        hurry(made);
        *with = (stand_in_served){.next = agent->served, .socket = made};
        agent->served = with;
    }
}

void stand_in_serve(stand_in_agent *agent)
{
    accept_all(agent);
    for (stand_in_served **place = &agent->served, *with; (with = *place);) {
        int64_t went = 1;
        for (int64_t all = 0; went > 0 && all < TURN_BYTES; all += went)
            went = serve_one(agent, with);
        if (went >= 0) {
            place = &with->next;
            continue;
        }
        *place = with->next;
        close(with->socket);
        free(with);
    }
}

/* --- the initiator's side --------------------------------------------------------------------------- */

static int64_t send_piece(int socket, stand_in_request *request)
{
    const stand_in_range *local = &request->local[request->sent], *remote = &request->remote[request->sent];
    const stand_in_header header = {request->write, remote->address, remote->bytes};
    uint64_t at = request->sent_bytes, all = sizeof(header) + (request->write ? local->bytes : 0);
    int64_t went = at < sizeof(header)
                       ? push(socket, (const char *)&header + at, sizeof(header) - at)
                       : push(socket, (const char *)(uintptr_t)local->address + at - sizeof(header), all - at);
    if (went > 0 && (request->sent_bytes += (uint64_t)went) == all) {
        request->sent_bytes = 0;
        request->sent++;
    }
    return went;
}

static int64_t take_answer(int socket, stand_in_request *request)
{
    const stand_in_range *local = &request->local[request->answered];
    uint64_t at = request->answered_bytes, all = 1 + (request->write ? 0 : local->bytes);
    char fine = 0;
    int64_t went = at ? pull(socket, (char *)(uintptr_t)local->address + at - 1, all - at)
                      : pull(socket, &fine, 1);
    if (went > 0 && !at && !fine)
        return -1;
    if (went > 0 && (request->answered_bytes += (uint64_t)went) == all) {
        request->answered_bytes = 0;
        request->answered++;
    }
    return went;
}

/* Each of the queue's first request that is not done with this; all of them fail where one does. */
static void go_on(stand_in_agent *agent, int64_t (*step)(int, stand_in_request *), bool answers)
{
    int64_t went = 1, all = 0;
    for (stand_in_request *request = agent->first; request && went > 0; request = request->next)
        while (went > 0 && all < TURN_BYTES && !request->failed &&
               (answers ? request->answered < request->sent : request->sent < request->limit)) {
            went = step(agent->socket, request);
            all += went > 0 ? went : 0;
        }
    for (stand_in_request *request = agent->first; request && went < 0; request = request->next)
        request->failed = true;
}

void stand_in_move(stand_in_agent *agent)
{
    if (agent->socket < 0 || stand_in.stuck)
        return;
    go_on(agent, send_piece, false);
    go_on(agent, take_answer, true);
}

void stand_in_close(stand_in_agent *agent)
{
    while (agent->served) {
        stand_in_served *with = agent->served;
        agent->served = with->next;
        close(with->socket);
        free(with);
    }
    if (agent->socket >= 0)
        close(agent->socket);
    if (agent->listener >= 0)
        close(agent->listener);
}
