/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvferry_report *report = fuzz_report();
    kvferry_layout *layout = NULL;
    kvferry_status status = kvferry_layout_read_json((const char *)data, size, &layout, report);
    fuzz_verdict(status, report);
    MUST((status == KVFERRY_OK) == (layout != NULL));
    kvferry_layout_free(layout);
    kvferry_report_free(report);
    return 0;
}
