/* SPDX-License-Identifier: Apache-2.0 */
#include "node/address.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/host.h"
#include "node/node_internal.h"

enum { SILENT_MOST = 8, /* addresses of one name that are waited for */ PROBE_MS = 1000 };

static const char *const schemes[] = {"tcp://", "http://", ""};
static const char *const forms[] = {"tcp://HOST:PORT", "http://HOST:PORT", "HOST:PORT"};

void node_key_format(const unsigned char key[NODE_KEY_BYTES], char text[NODE_KEY_TEXT])
{
    sodium_bin2hex(text, NODE_KEY_TEXT, key, NODE_KEY_BYTES);
}

bool node_key_parse(const char *text, size_t size, unsigned char key[NODE_KEY_BYTES])
{
    size_t length = 0;
    return size == NODE_KEY_TEXT - 1 &&
           sodium_hex2bin(key, NODE_KEY_BYTES, text, size, NULL, &length, NULL) == 0 &&
           length == NODE_KEY_BYTES;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Takes "HOST:" or "[HOST]:" from the front of *text. */
static bool take_host(const char **text, node_address *address)
{
    const char *from = *text, *end;
    bool bracket = *from == '[';
    if (bracket) {
        end = strchr(++from, ']');
        if (!end || end[1] != ':')
            return false;
        *text = end + 2;
    } else {
        end = strchr(from, ':');
        if (!end)
            return false;
        *text = end + 1;
    }
    size_t size = (size_t)(end - from);
    if (size == 0 || size > NODE_HOST_MAX)
        return false;
    static const char digits[] = "0123456789", hex[] = "0123456789abcdefABCDEF:.";
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    memcpy(address->host, from, size);
    address->host[size] = '\0';
    if (bracket) {
        size_t number = strspn(address->host, hex);
        bool zone = address->host[number] == '%' && address->host[number + 1] &&
                    !address->host[number + 1 + strspn(address->host + number + 1, letters)];
        if (!strchr(address->host, ':') || (number != size && !zone))
            return false;
    } else if (strcmp(address->host, "*") == 0) {
        strcpy(address->host, "0.0.0.0");
    } else if (strspn(address->host, letters) != size) {
        return false;
    } else if (strcmp(address->host, "localhost") == 0) {
        strcpy(address->host, "127.0.0.1");
    }
    /* What looks like a number is one: "1.2.3" and "127.1" mean other hosts to other readers. */
    bool numeric =
        bracket
            ? !strchr(address->host, '%')
            : !address->host[strspn(address->host, digits) + strspn(address->host, "0123456789.") -
                             strspn(address->host, digits)];
    return !numeric || node_address_is_numeric(address);
}

static bool take_port(const char **text, node_address *address)
{
    uint32_t port = 0;
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 5)
        return false;
    for (size_t i = 0; i < digits; i++)
        port = port * 10 + (uint32_t)((*text)[i] - '0');
    *text += digits;
    address->port = (uint16_t)port;
    return port <= UINT16_MAX;
}

bool node_address_parse(const char *text, node_address_form form, node_address *address,
                        const char *place, kvferry_report *report)
{
    node_address read = {.port = 0};
    const char *rest = text;
    size_t scheme = strlen(schemes[form]);
    bool good = strncmp(text, schemes[form], scheme) == 0;
    rest += good ? scheme : 0;
    good = good && take_host(&rest, &read) && take_port(&rest, &read);
    if (good && form == NODE_ADDRESS_HTTP && strcmp(rest, "/") == 0)
        rest++;
    if (good && form == NODE_ADDRESS_TCP && *rest == '/') {
        rest++;
        good = read.has_key = node_key_parse(rest, strlen(rest), read.key);
        rest += strlen(rest);
    }
    if (!good || *rest) {
        base_report_add(
            report, "address_malformed", &(base_where){.place = place},
            base_format("%s%s", forms[form],
                        form == NODE_ADDRESS_TCP ? ", with /64 hexadecimal digits for a key" : ""),
            base_format("\"%.200s\"", text), "an address could not be read");
        return false;
    }
    *address = read;
    return true;
}

void node_address_format(const node_address *address, node_address_form form,
                         char text[NODE_ADDRESS_TEXT])
{
    bool bracket = strchr(address->host, ':') != NULL;
    char key[NODE_KEY_TEXT] = "";
    if (address->has_key && form == NODE_ADDRESS_TCP)
        node_key_format(address->key, key);
    snprintf(text, NODE_ADDRESS_TEXT, "%s%s%s%s:%u%s%s", schemes[form], bracket ? "[" : "",
             address->host, bracket ? "]" : "", address->port, *key ? "/" : "", key);
}

/* --- what kind of host ------------------------------------------------------------------------ */

bool node_address_socket(const node_address *address, struct sockaddr_storage *socket_address,
                         socklen_t *size)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *list;
    char port[8];
    *socket_address = (struct sockaddr_storage){0};
    snprintf(port, sizeof(port), "%u", address->port);
    if (getaddrinfo(address->host, port, &hints, &list) != 0)
        return false;
    memcpy(socket_address, list->ai_addr, list->ai_addrlen);
    *size = list->ai_addrlen;
    freeaddrinfo(list);
    return true;
}

bool node_address_is_numeric(const node_address *address)
{
    base_host host;
    return base_host_parse(address->host, &host);
}

bool node_address_is_loopback(const node_address *address)
{
    base_host host;
    return base_host_parse(address->host, &host) && base_host_is_loopback(&host);
}

bool node_address_is_wildcard(const node_address *address)
{
    base_host host;
    return base_host_parse(address->host, &host) && base_host_is_wildcard(&host);
}

bool node_address_same_host(const node_address *a, const node_address *b)
{
    base_host first, second;
    return base_host_parse(a->host, &first) && base_host_parse(b->host, &second) && base_host_same(&first, &second);
}

static bool is_it(void *context, const base_interface *one) { return base_host_same(context, &one->host); }

bool node_address_is_here(const node_address *address)
{
    base_host host;
    return base_host_parse(address->host, &host) && base_interfaces_find(is_it, &host);
}

static bool look_up(const node_address *address, struct addrinfo **list, const char **why)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    int failure = getaddrinfo(address->host, NULL, &hints, list);
    if (failure)
        *why = gai_strerror(failure);
    return failure == 0;
}

static bool take(node_address *address, const struct addrinfo *one, const char **why)
{
    int failure = getnameinfo(one->ai_addr, one->ai_addrlen, address->host, sizeof(address->host), NULL, 0, NI_NUMERICHOST);
    if (failure)
        *why = gai_strerror(failure);
    return failure == 0;
}

bool node_address_resolve(node_address *address, const char **why)
{
    struct addrinfo *list;
    if (node_address_is_numeric(address))
        return true;
    if (!look_up(address, &list, why))
        return false;
    bool good = take(address, list, why);
    freeaddrinfo(list);
    return good;
}

int node_address_probe(const node_address *address, uint64_t most_ms)
{
    struct sockaddr_storage where;
    socklen_t size, length = sizeof(int);
    int failure = 0;
    if (!most_ms)
        return ETIMEDOUT;
    if (!node_address_socket(address, &where, &size))
        return EINVAL;
    int fd = socket(where.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct pollfd item = {.fd = fd, .events = POLLOUT};
    if (fd < 0)
        return errno;
    if (connect(fd, (struct sockaddr *)&where, size) != 0)
        failure = errno;
    if (failure == EINPROGRESS)
        failure = poll(&item, 1, (int)base_min(most_ms, PROBE_MS)) == 1 &&
                          getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &length) == 0
                      ? failure
                      : ETIMEDOUT;
    close(fd);
    return failure;
}

/* Until somebody listens, or so many say nothing; those that refuse cost no time, and all of them are asked. */
static bool reach(node_address *address, const struct addrinfo *list, uint64_t most_ms, const char **why)
{
    const uint64_t begun = node_now();
    node_address one = *address, best;
    unsigned silent = 0;
    for (const struct addrinfo *at = list; at && silent < SILENT_MOST; at = at->ai_next) {
        uint64_t spent = (node_now() - begun) / 1000000;
        if (!take(&one, at, why))
            return false;
        int failure = node_address_probe(&one, most_ms > spent ? most_ms - spent : 0);
        if (at == list || !failure || (failure != ECONNREFUSED && !silent))
            best = one;
        if (!failure)
            break;
        silent += failure != ECONNREFUSED;
    }
    *address = best;
    return true;
}

bool node_address_reach(node_address *address, uint64_t most_ms, const char **why)
{
    struct addrinfo *list;
    if (node_address_is_numeric(address))
        return true;
    if (!look_up(address, &list, why))
        return false;
    bool good = list->ai_next ? reach(address, list, most_ms, why) : take(address, list, why);
    freeaddrinfo(list);
    return good;
}
