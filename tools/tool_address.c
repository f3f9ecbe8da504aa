/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of nodes, as operands. */
#include <kvferry/node.h>

#include "tool.h"

int tool_check_address(const char *address)
{
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    if (kvferry_node_check_address(address, report) != KVFERRY_OK) {
        const kvferry_reason *reason = kvferry_report_get(report, 0);
        if (!reason)
            tool_no_memory();
        status = tool_misuse("ADDRESS", reason->expected, reason->found);
    }
    kvferry_report_free(report);
    return status;
}
