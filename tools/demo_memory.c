/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there is for the segments. */
#include "demo.h"

#include <stdio.h>

/* Bytes that can be taken without swapping, as the kernel reckons; 0: it does not say. */
static uint64_t available(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && !kib && fgets(line, sizeof(line), file))
        sscanf(line, "MemAvailable: %llu", &kib);
    if (file)
        fclose(file);
    return kib * 1024;
}

void demo_memory_mind(demo_config *config)
{
    uint64_t room = available() / 8 * 7;
    if (!room || room >= config->memory)
        return;
    tool_log("there is memory for segments of %s only: taking that instead of %s (see --memory)",
             tool_size(room), tool_size(config->memory));
    config->memory = room;
}
