/* SPDX-License-Identifier: Apache-2.0 */
/* The address that peers on other hosts reach this worker by, and whose interface has it. */
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "engine/ucx_tcp.h"

bool tcp_take_host(const base_host *host, tcp_address *address)
{
    bool four = base_host_is_ipv4(host);
    *address = (tcp_address){.family = four ? 4 : 6};
    memcpy(address->ip, host->ip + (four ? 12 : 0), four ? 4 : sizeof(host->ip));
    return !base_host_is_link_local(host);
}

bool tcp_read_host(const char *text, base_host *host)
{
    return base_host_parse(text, host) && !base_host_is_loopback(host) && !base_host_is_link_local(host);
}

typedef struct wanted {
    base_host host;
    char *device;
} wanted;

static bool has_host(void *context, const base_interface *one)
{
    const wanted *it = context;
    if (!base_host_same(&one->host, &it->host))
        return false;
    snprintf(it->device, IF_NAMESIZE, "%s", one->name);
    return true;
}

bool ucx_host_device(const char *host, char *device)
{
    wanted it = {.device = device};
    return tcp_read_host(host, &it.host) && base_interfaces_find(has_host, &it);
}
