/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and connections of `serve` and `send`. */
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "try.h"

static bool is_port(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return digits && !text[digits] && digits <= 5 && strtoul(text, NULL, 10) <= UINT16_MAX;
}

/* Where the port of HOST:PORT begins; 0: it is not of that form. */
static size_t port_at(const char *address)
{
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || !colon[1])
        return 0;
    size_t host = (size_t)(colon - address);
    bool bracketed = address[0] == '[' && address[host - 1] == ']' && host > 2;
    bool plain = !memchr(address, ':', host) && !strpbrk(address, "[]");
    return (bracketed || plain) && is_port(colon + 1) ? host + 1 : 0;
}

char *try_host(const char *address)
{
    size_t port = port_at(address);
    return tool_text("%.*s", port ? (int)port - 1 : (int)strlen(address), address);
}

/* Wrong use of an address, which is named with what is the matter. */
static int cannot(const char *option, const char *expected, const char *address, const char *why)
{
    char *found = tool_text("%s (%s)", address, why);
    int status = tool_misuse(option, expected, found);
    free(found);
    return status;
}

static int resolve(const char *option, const char *address, int flags, struct addrinfo **found)
{
    size_t port = port_at(address);
    if (!port)
        return tool_misuse(option, "HOST:PORT, an IPv6 host in brackets, a port up to 65535", address);
    bool bracketed = address[0] == '[';
    char *host = tool_text("%.*s", (int)port - 1 - 2 * bracketed, address + bracketed);
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM,
                                   .ai_flags = flags | AI_NUMERICSERV};
    int error = getaddrinfo(host, address + port, &hints, found);
    free(host);
    return error ? cannot(option, "an address that can be looked up", address, gai_strerror(error)) : TOOL_GO_ON;
}

/* "HOST:PORT", or with `port` false the host alone. */
static char *name_of(const struct sockaddr_storage *address, socklen_t size, bool with_port)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)address, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return tool_text("?");
    bool brackets = strchr(host, ':') != NULL;
    char *name = tool_text("%s%s%s", brackets ? "[" : "", host, brackets ? "]" : "");
    if (!with_port)
        return name;
    char *whole = tool_text("%s:%s", name, port);
    free(name);
    return whole;
}

static char *own_name(int fd, bool with_port)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &size);
    return name_of(&address, size, with_port);
}

char *try_peer_name(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    getpeername(fd, (struct sockaddr *)&address, &size);
    return name_of(&address, size, true);
}

void try_set_patience(int fd, uint64_t timeout_s)
{
    struct timeval patience = {.tv_sec = (time_t)timeout_s};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

static int listen_at(const struct addrinfo *at)
{
    int yes = 1, fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 16) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int try_listen(const char *address, int *fd, char **bound)
{
    struct addrinfo *found;
    int status = resolve("--listen", address, AI_PASSIVE, &found);
    if (status != TOOL_GO_ON)
        return status;
    *fd = listen_at(found);
    freeaddrinfo(found);
    if (*fd < 0)
        return cannot("--listen", "an address of this host whose port is free", address, strerror(errno));
    *bound = own_name(*fd, true);
    return TOOL_GO_ON;
}

static int unreachable(const char *address, uint64_t timeout_s, int error)
{
    bool late = error == EINPROGRESS || error == EAGAIN || error == ETIMEDOUT;
    char *found = late ? tool_text("no connection within %llu s", (unsigned long long)timeout_s)
                       : tool_text("%s%s", strerror(error), error == ECONNREFUSED ? " (nobody listens there)" : "");
    int status = tool_fail("serve_unreachable", address, "a 'kvferry serve' that can be reached", found);
    free(found);
    return status;
}

int try_dial(const char *address, uint64_t timeout_s, int *fd, char **host)
{
    struct addrinfo *found;
    int status = resolve("ADDRESS", address, 0, &found), error = 0;
    if (status != TOOL_GO_ON)
        return status;
    *fd = -1;
    for (const struct addrinfo *at = found; at && *fd < 0; at = at->ai_next) {
        *fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
        if (*fd < 0)
            continue;
        try_set_patience(*fd, timeout_s);
        if (connect(*fd, at->ai_addr, at->ai_addrlen) == 0)
            break;
        error = errno;
        close(*fd);
        *fd = -1;
    }
    freeaddrinfo(found);
    if (*fd < 0)
        return unreachable(address, timeout_s, error);
    *host = own_name(*fd, false);
    return TOOL_GO_ON;
}
