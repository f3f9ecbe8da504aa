/* SPDX-License-Identifier: Apache-2.0 */
/* UCX's settings: in code, so that workers need no environment; a variable that is set still wins. */
#include <dirent.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/ucx_internal.h"

/*
 * MM_ERROR_HANDLING: without it UCX gives up its shared memory as soon as it is to notice lost peers.
 * KEEPALIVE_INTERVAL: a dead peer is noticed after one instead of 20 s.
 * TCP_*: the defaults give a quarter of the bandwidth.
 */
static const struct {
    const char *name, *value;
    const char *old; /* as ucp_config_modify took it before transports' prefixes counted (1.13) */
} tuned[] = {
    {"MM_ERROR_HANDLING", "y", NULL},
    {"KEEPALIVE_INTERVAL", "1s", NULL},
    {"TCP_TX_SEG_SIZE", "256k", "TX_SEG_SIZE"},
    {"TCP_RX_SEG_SIZE", "256k", "RX_SEG_SIZE"},
    {"TCP_SNDBUF", "4m", "SNDBUF"},
    {"TCP_RCVBUF", "4m", "RCVBUF"},
};

/* The engine's own choice, without what ucx_local.c and ucx_tcp.c do. With a GPU, UCX's shared memory is
 * what its messages about memory of devices go through on one host. */
#define WITHOUT_GPU "self,rc,ud,dc"
#define WITH_GPU WITHOUT_GPU ",posix,sysv,cuda_copy,cuda_ipc,rocm_copy,rocm_ipc,gdr_copy"

static bool in_environment(const char *name)
{
    char variable[64];
    snprintf(variable, sizeof(variable), "UCX_%s", name);
    return getenv(variable) != NULL;
}

static const char *transport_list(const char *transport)
{
    if (*transport)
        return transport;
    bool gpu = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/kfd", F_OK) == 0;
    return gpu ? WITH_GPU : WITHOUT_GPU;
}

/* "lo", the device of `host`, and each port of each RDMA device: TCP then listens on no other. */
static void device_list(base_text *list, const char *host)
{
    char own[IF_NAMESIZE];
    base_text_append(list, "lo");
    if (ucx_host_device(host, own))
        base_text_append(list, ",%s", own);
    DIR *devices = opendir("/sys/class/infiniband");
    for (const struct dirent *device; devices && (device = readdir(devices));) {
        if (device->d_name[0] == '.')
            continue;
        char path[512];
        snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports", device->d_name);
        DIR *ports = opendir(path);
        for (const struct dirent *port; ports && (port = readdir(ports));)
            if (port->d_name[0] != '.')
                base_text_append(list, ",%s:%s", device->d_name, port->d_name);
        if (ports)
            closedir(ports);
    }
    if (devices)
        closedir(devices);
}

static kvferry_status set(ucp_config_t *config, const char *name, const char *value,
                          kvferry_report *report)
{
    ucs_status_t status = ucp_config_modify(config, name, value);
    if (status == UCS_OK)
        return KVFERRY_OK;
    base_report_add(report, "engine_option", &(base_where){.place = name},
                    "a setting that this UCX knows", value, "ucx: %s", ucs_status_string(status));
    return KVFERRY_INVALID;
}

/* Speed, not correctness: a UCX that has no such setting any more does without. */
static void tune(ucp_config_t *config, const char *name, const char *old, const char *value)
{
    if (in_environment(name))
        return;
    ucp_config_modify(config, name, value);
    if (old)
        ucp_config_modify(config, old, value);
}

static kvferry_status set_devices(ucp_config_t *config, const kvferry_engine_options *options,
                                  kvferry_report *report)
{
    const char *wanted = options->net_devices;
    if (*wanted)
        return set(config, "NET_DEVICES", wanted, report);
    if (in_environment("NET_DEVICES"))
        return KVFERRY_OK;
    base_text list = {0};
    device_list(&list, options->host);
    kvferry_status status =
        list.failed ? KVFERRY_NO_MEMORY : set(config, "NET_DEVICES", list.data, report);
    free(list.data);
    return status;
}

kvferry_status ucx_settings_read(const kvferry_engine_options *options, ucp_config_t **config,
                                 kvferry_report *report)
{
    ucp_config_t *read;
    ucs_status_t answer = ucp_config_read(NULL, NULL, &read);
    if (answer != UCS_OK) {
        ucx_report(report, "settings cannot be read", answer);
        return ucx_status(answer);
    }
    for (size_t i = 0; i < sizeof(tuned) / sizeof(tuned[0]); i++)
        tune(read, tuned[i].name, tuned[i].old, tuned[i].value);
    kvferry_status status = KVFERRY_OK;
    if (*options->transport || !in_environment("TLS"))
        status = set(read, "TLS", transport_list(options->transport), report);
    if (status == KVFERRY_OK)
        status = set_devices(read, options, report);
    if (status != KVFERRY_OK)
        ucp_config_release(read);
    else
        *config = read;
    return status;
}
