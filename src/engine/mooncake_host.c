/* SPDX-License-Identifier: Apache-2.0 */
/* The address that peers reach this worker by: Mooncake takes one, and not a list of devices. */
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "engine/mooncake_internal.h"

typedef struct wanted {
    const char *device;
    bool ipv4;
    base_host host;
} wanted;

static bool is_wanted(void *context, const base_interface *one)
{
    wanted *it = context;
    it->host = one->host;
    return strcmp(one->name, it->device) == 0 && base_host_is_ipv4(&one->host) == it->ipv4;
}

/* The interface's first IPv4 address, else its first IPv6 address; false: it has none. */
static bool find_address(const char *device, char *host, size_t size)
{
    wanted it = {.device = device, .ipv4 = true};
    char text[BASE_HOST_TEXT];
    if (!base_interfaces_find(is_wanted, &it)) {
        it.ipv4 = false;
        if (!base_interfaces_find(is_wanted, &it))
            return false;
    }
    base_host_format(&it.host, text);
    return snprintf(host, size, "%s", text) < (int)size;
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
