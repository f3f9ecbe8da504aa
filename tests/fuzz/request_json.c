/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvferry_report *report = fuzz_report();
    kvferry_request *request = NULL;
    kvferry_status status = kvferry_request_read_json((const char *)data, size, &request, report);
    fuzz_verdict(status, report);
    MUST((status == KVFERRY_OK) == (request != NULL));
    kvferry_request_free(request);
    kvferry_report_free(report);
    return 0;
}
