/* SPDX-License-Identifier: Apache-2.0 */
/* The address that peers on other hosts reach this worker by, and whose interface has it. */
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "engine/ucx_tcp.h"

bool tcp_read_address(const struct sockaddr *found, tcp_address *address)
{
    *address = (tcp_address){0};
    if (found && found->sa_family == AF_INET) {
        address->family = 4;
        memcpy(address->ip, &((const struct sockaddr_in *)found)->sin_addr, 4);
        return true;
    }
    if (!found || found->sa_family != AF_INET6)
        return false;
    const struct in6_addr *ip = &((const struct sockaddr_in6 *)found)->sin6_addr;
    bool four = IN6_IS_ADDR_V4MAPPED(ip);
    address->family = four ? 4 : 6;
    memcpy(address->ip, ip->s6_addr + (four ? 12 : 0), four ? 4 : sizeof(*ip));
    return !IN6_IS_ADDR_LINKLOCAL(ip);
}

bool tcp_same_host(const tcp_address *a, const tcp_address *b)
{
    return a->family == b->family && memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

static bool is_loopback(const tcp_address *address)
{
    static const struct in6_addr six = IN6ADDR_LOOPBACK_INIT;
    return address->family == 4 ? address->ip[0] == 127 : memcmp(address->ip, &six, sizeof(six)) == 0;
}

bool tcp_read_host(const char *host, tcp_address *address)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST};
    struct addrinfo *found;
    *address = (tcp_address){0};
    if (!*host || getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    bool good = tcp_read_address(found->ai_addr, address) && !is_loopback(address);
    freeaddrinfo(found);
    if (!good)
        *address = (tcp_address){0};
    return good;
}

bool ucx_host_device(const char *host, char *device)
{
    struct ifaddrs *all;
    tcp_address wanted, address;
    bool found = false;
    if (!tcp_read_host(host, &wanted) || getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *one = all; one && !found; one = one->ifa_next) {
        found = tcp_read_address(one->ifa_addr, &address) && tcp_same_host(&address, &wanted);
        if (found)
            snprintf(device, IF_NAMESIZE, "%s", one->ifa_name);
    }
    freeifaddrs(all);
    return found;
}
