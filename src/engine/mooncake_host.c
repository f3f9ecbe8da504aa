/* SPDX-License-Identifier: Apache-2.0 */
/* The address that peers reach this worker by: Mooncake takes one, and not a list of devices. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/mooncake_internal.h"

static socklen_t address_size(const struct sockaddr *address)
{
    return address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* The interface's first IPv4 address, else its first IPv6 address; false: it has none. */
static bool find_address(const char *device, char *host, size_t size)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (size_t i = 0; i < 2 && !found; i++)
        for (const struct ifaddrs *one = all; one && !found; one = one->ifa_next)
            found = one->ifa_addr && one->ifa_addr->sa_family == families[i] &&
                    strcmp(one->ifa_name, device) == 0 &&
                    getnameinfo(one->ifa_addr, address_size(one->ifa_addr), host, (socklen_t)size, NULL,
                                0, NI_NUMERICHOST) == 0;
    freeifaddrs(all);
    return found;
}

kvferry_status mooncake_find_host(const char *device, char *host, size_t size, kvferry_report *report)
{
    bool interface = if_nametoindex(device) != 0;
    if (interface ? find_address(device, host, size) : strlen(device) < size) {
        if (!interface)
            snprintf(host, size, "%s", *device ? device : "127.0.0.1");
        return KVFERRY_OK;
    }
    base_report_add(report, "engine_option", &(base_where){.place = "net_devices"},
                    "an interface with an IP address, an address, or a host name",
                    base_format("%.64s", device), "engine mooncake");
    return KVFERRY_INVALID;
}
