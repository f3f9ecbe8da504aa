/* SPDX-License-Identifier: Apache-2.0 */
/* Who an engine is: which process of which host. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/ucx_internal.h"

/* The number that the kernel drew when it booted; zeros where it is not told. */
static void read_host(uint8_t host[UCX_ID_BYTES])
{
    char text[64] = "";
    size_t got = 0;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        got = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
    }
    for (size_t i = 0, digits = 0; i < got && digits < 2 * UCX_ID_BYTES; i++) {
        static const char hex[] = "0123456789abcdef";
        const char *digit = text[i] ? strchr(hex, text[i]) : NULL;
        if (!digit)
            continue;
        host[digits / 2] |= (uint8_t)((digit - hex) << (digits % 2 ? 0 : 4));
        digits++;
    }
}

kvferry_status ucx_identity_make(ucx_identity *identity, kvferry_report *report)
{
    *identity = (ucx_identity){.pid = (uint32_t)getpid()};
    if (getrandom(identity->id, UCX_ID_BYTES, 0) != UCX_ID_BYTES) {
        base_report_add(report, "engine_failed", NULL, NULL, strerror(errno), "ucx: no random bytes");
        return KVFERRY_UNSUPPORTED;
    }
    read_host(identity->host);
    return KVFERRY_OK;
}

bool ucx_identity_same_host(const ucx_identity *one, const ucx_identity *other)
{
    return memcmp(one->host, other->host, UCX_ID_BYTES) == 0;
}
