/* SPDX-License-Identifier: Apache-2.0 */
/* What every fuzz target is: one function that takes bytes of anybody's making. */
#ifndef KVFERRY_FUZZ_H
#define KVFERRY_FUZZ_H

#include <kvferry/kvferry.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of the library that no input may break. */
#define MUST(condition)                                                                             \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                 \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

/* A reader's verdict with its report: nothing is refused without a reason, or read with one. */
static inline void fuzz_verdict(kvferry_status status, const kvferry_report *report)
{
    MUST(status == KVFERRY_OK || status == KVFERRY_MALFORMED || status == KVFERRY_REFUSED);
    MUST((status == KVFERRY_OK) == (kvferry_report_count(report) == 0));
    for (size_t i = 0; i < kvferry_report_count(report); i++) {
        const kvferry_reason *reason = kvferry_report_get(report, i);
        MUST(*reason->code && *reason->message);
    }
}

static inline kvferry_report *fuzz_report(void)
{
    kvferry_report *report;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        abort();
    return report;
}

#endif
