/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of nodes, as operands. */
#include <kvferry/node.h>

#include <string.h>

#include "tool.h"

/* The library reads addresses, and refuses one where it is not given just the keys that go with it, before it does
 * anything: so it is asked with those that do not. */
int tool_check_address(const char *address)
{
    const char *host = strstr(address, "://");
    bool has_key = host && strchr(host + 3, '/');
    char *text;
    size_t size;
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    if (kvferry_node_query(address, has_key ? NULL : "-", 0, &text, &size, report) == KVFERRY_NO_MEMORY)
        tool_no_memory();
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    if (reason && strcmp(reason->code, "address_malformed") == 0)
        status = tool_misuse("ADDRESS", reason->expected, reason->found);
    kvferry_report_free(report);
    return status;
}
