/* SPDX-License-Identifier: Apache-2.0 */
/* The target's side of the stand-in: threads that read and write registered memory for peers. */
#include "stand_in.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

bool stand_in_send(int socket, const void *data, size_t bytes)
{
    while (bytes) {
        ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        data = (const char *)data + sent;
        bytes -= (size_t)sent;
    }
    return true;
}

bool stand_in_receive(int socket, void *data, size_t bytes)
{
    while (bytes) {
        ssize_t got = recv(socket, data, bytes, 0);
        if (got <= 0)
            return false;
        data = (char *)data + got;
        bytes -= (size_t)got;
    }
    return true;
}

/* A range stays within one registration, though the next may touch it. */
bool stand_in_covers(const stand_in_range *ranges, size_t count, uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (address >= ranges[i].address && bytes <= ranges[i].bytes &&
            address - ranges[i].address <= ranges[i].bytes - bytes)
            return true;
    return false;
}

static bool answer_ranges(stand_in_instance *instance, int socket)
{
    pthread_mutex_lock(&instance->lock);
    uint64_t count = instance->range_count;
    stand_in_range ranges[RANGES];
    memcpy(ranges, instance->ranges, sizeof(ranges));
    pthread_mutex_unlock(&instance->lock);
    return stand_in_send(socket, &count, sizeof(count)) && stand_in_send(socket, ranges, sizeof(ranges));
}

static bool ending(stand_in_instance *instance)
{
    pthread_mutex_lock(&instance->lock);
    bool ends = instance->ending;
    pthread_mutex_unlock(&instance->lock);
    return ends;
}

static bool answer(stand_in_instance *instance, int socket, const stand_in_header *header)
{
    if (header->opcode == 2)
        return answer_ranges(instance, socket);
    pthread_mutex_lock(&instance->lock);
    char there = stand_in_covers(instance->ranges, instance->range_count, header->address, header->bytes);
    pthread_mutex_unlock(&instance->lock);
    const struct timespec pause = {.tv_nsec = 100000};
    while (header->opcode == 1 && atomic_load(&stand_in.held_arrivals) && !ending(instance))
        nanosleep(&pause, NULL);
    void *memory = (void *)(uintptr_t)header->address;
    if (header->opcode == 0)
        return stand_in_send(socket, &there, 1) && there &&
               stand_in_send(socket, memory, (size_t)header->bytes);
    return there && stand_in_receive(socket, memory, (size_t)header->bytes) &&
           stand_in_send(socket, &there, 1);
}

typedef struct connection {
    stand_in_instance *instance;
    int socket;
} connection;

static void *serve(void *argument)
{
    connection with = *(connection *)argument;
    free(argument);
    stand_in_header header;
    while (stand_in_receive(with.socket, &header, sizeof(header)) &&
           answer(with.instance, with.socket, &header))
        ;
    shutdown(with.socket, SHUT_RDWR);
    return NULL;
}

static void *accept_all(void *argument)
{
    stand_in_instance *instance = argument;
    int socket;
    while ((socket = accept(instance->listener, NULL, NULL)) >= 0) {
        int on = 1;
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        connection *with = malloc(sizeof(*with));
        pthread_mutex_lock(&instance->lock);
        if (!with || instance->ending || instance->server_count == 1024) {
            free(with);
            close(socket);
        } else {
            *with = (connection){instance, socket};
            instance->sockets[instance->server_count] = socket;
            if (pthread_create(&instance->servers[instance->server_count], NULL, serve, with) == 0)
                instance->server_count++;
        }
        pthread_mutex_unlock(&instance->lock);
    }
    return NULL;
}

bool stand_in_serve(stand_in_instance *instance)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    instance->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (instance->listener < 0 || bind(instance->listener, (struct sockaddr *)&address, size) ||
        listen(instance->listener, 64) ||
        getsockname(instance->listener, (struct sockaddr *)&address, &size) ||
        pthread_create(&instance->acceptor, NULL, accept_all, instance))
        return false;
    instance->port = ntohs(address.sin_port);
    return true;
}

void stand_in_stop(stand_in_instance *instance)
{
    pthread_mutex_lock(&instance->lock);
    instance->ending = true;
    for (size_t i = 0; i < instance->server_count; i++)
        shutdown(instance->sockets[i], SHUT_RDWR);
    pthread_mutex_unlock(&instance->lock);
    shutdown(instance->listener, SHUT_RDWR);
    pthread_join(instance->acceptor, NULL);
    close(instance->listener);
    for (size_t i = 0; i < instance->server_count; i++) {
        pthread_join(instance->servers[i], NULL);
        close(instance->sockets[i]);
    }
}
