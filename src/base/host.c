/* SPDX-License-Identifier: Apache-2.0 */
#include "base/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};

/* False: it is of another family. */
static bool take(const struct sockaddr *address, base_host *host)
{
    *host = (base_host){.scope = 0};
    if (address && address->sa_family == AF_INET) {
        memcpy(host->ip, mapped, sizeof(mapped));
        memcpy(host->ip + sizeof(mapped), &((const struct sockaddr_in *)address)->sin_addr, 4);
        return true;
    }
    if (!address || address->sa_family != AF_INET6)
        return false;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    memcpy(host->ip, &six->sin6_addr, sizeof(host->ip));
    host->scope = base_host_is_link_local(host) ? six->sin6_scope_id : 0;
    return true;
}

bool base_host_parse(const char *text, base_host *host)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST};
    struct addrinfo *found;
    struct in_addr four;
    if (!strchr(text, ':') && inet_pton(AF_INET, text, &four) != 1) /* "127.1" is none */
        return false;
    if (getaddrinfo(text, NULL, &hints, &found) != 0)
        return false;
    bool good = take(found->ai_addr, host);
    freeaddrinfo(found);
    return good;
}

void base_host_format(const base_host *host, char text[BASE_HOST_TEXT])
{
    char zone[IF_NAMESIZE];
    bool four = base_host_is_ipv4(host);
    inet_ntop(four ? AF_INET : AF_INET6, host->ip + (four ? sizeof(mapped) : 0), text, BASE_HOST_TEXT);
    size_t length = strlen(text);
    if (host->scope && if_indextoname(host->scope, zone))
        snprintf(text + length, BASE_HOST_TEXT - length, "%%%s", zone);
}

bool base_host_same(const base_host *a, const base_host *b)
{
    return memcmp(a->ip, b->ip, sizeof(a->ip)) == 0 && a->scope == b->scope;
}

bool base_host_is_ipv4(const base_host *host) { return memcmp(host->ip, mapped, sizeof(mapped)) == 0; }

bool base_host_is_loopback(const base_host *host)
{
    return base_host_is_ipv4(host) ? host->ip[sizeof(mapped)] == 127
                                   : memcmp(host->ip, &in6addr_loopback, sizeof(host->ip)) == 0;
}

bool base_host_is_wildcard(const base_host *host)
{
    return memcmp(host->ip + (base_host_is_ipv4(host) ? sizeof(mapped) : 0), &in6addr_any,
                  base_host_is_ipv4(host) ? 4 : sizeof(host->ip)) == 0;
}

bool base_host_is_link_local(const base_host *host) { return host->ip[0] == 0xfe && (host->ip[1] & 0xc0) == 0x80; }

bool base_interfaces_find(bool (*look)(void *context, const base_interface *one), void *context)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *at = all; at && !found; at = at->ifa_next) {
        base_interface one = {.name = at->ifa_name, .loopback = (at->ifa_flags & IFF_LOOPBACK) != 0};
        found = (at->ifa_flags & IFF_UP) && take(at->ifa_addr, &one.host) && look(context, &one);
    }
    freeifaddrs(all);
    return found;
}
