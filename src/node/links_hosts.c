/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With keys, how many connections each host has to the ROUTER. ZeroMQ tells when one is accepted and when it ends, by
 * its descriptor; a question about a key (ZAP) tells from which host it is asked. So one more can be refused, while none
 * can be ended: a silent one stays, but no host has more of them than it leaves to others.
 */
#include "node/links_internal.h"

#include <netdb.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Connections that a host may always have, however few are left: nobody shuts it out by having many. */
enum { HOST_ALWAYS = 64 };

struct links_host {
    char name[LINKS_HOST_TEXT];
    size_t connections;
    UT_hash_handle hh;
};

typedef struct links_connection {
    int fd;
    links_host *host;
    UT_hash_handle hh;
} links_connection;

/* What is left of the process's descriptors is for its own links, files and engines. */
size_t links_most_connections(const node_links *links)
{
    struct rlimit limit;
    uint64_t most = 2 * (1024 + 2 * (uint64_t)links->options.max_peers);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        most = base_min(most, limit.rlim_cur / 4 * 3);
    return most;
}

/* As ZeroMQ names it; "" it has gone already, of which the next event tells. */
static void name_host(int fd, char name[LINKS_HOST_TEXT])
{
    struct sockaddr_storage peer = {0};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0 ||
        getnameinfo((struct sockaddr *)&peer, size, name, LINKS_HOST_TEXT, NULL, 0, NI_NUMERICHOST) != 0)
        name[0] = '\0';
}

static links_host *get_host(node_links *links, const char *name)
{
    links_host *host;
    HASH_FIND_STR(links->hosts, name, host);
    if (host)
        return host;
    host = base_alloc(1, sizeof(*host));
    if (!host)
        return NULL;
    memcpy(host->name, name, strlen(name) + 1);
    HASH_ADD_STR(links->hosts, name, host);
    if (host->hh.tbl)
        return host;
    free(host);
    return NULL;
}

void links_host_ended(node_links *links, int fd)
{
    links_connection *connection;
    HASH_FIND_INT(links->connections, &fd, connection);
    if (!connection)
        return;
    links_host *host = connection->host;
    HASH_DEL(links->connections, connection);
    links->connection_count--;
    free(connection);
    if (--host->connections)
        return;
    HASH_DEL(links->hosts, host);
    free(host);
}

void links_host_accepted(node_links *links, int fd)
{
    char name[LINKS_HOST_TEXT];
    links_host_ended(links, fd);
    name_host(fd, name);
    links_host *host = get_host(links, name);
    links_connection *connection = host ? base_alloc(1, sizeof(*connection)) : NULL;
    if (connection) {
        connection->fd = fd;
        connection->host = host;
        HASH_ADD_INT(links->connections, fd, connection);
        if (connection->hh.tbl) {
            links->connection_count++;
            host->connections++;
        } else {
            free(connection);
        }
    }
    if (host && !host->connections) { /* out of memory: it is not counted */
        HASH_DEL(links->hosts, host);
        free(host);
    }
}

size_t links_host_excess(const node_links *links, const char *name)
{
    const links_host *host;
    size_t all = links->connection_count;
    HASH_FIND_STR(links->hosts, name, host);
    if (!host || host->connections <= HOST_ALWAYS)
        return 0;
    size_t left = links->most_connections > all ? links->most_connections - all : 0;
    return host->connections > left ? host->connections : 0;
}

void links_hosts_free(node_links *links)
{
    links_connection *connection, *next;
    HASH_ITER(hh, links->connections, connection, next)
        links_host_ended(links, connection->fd);
}
