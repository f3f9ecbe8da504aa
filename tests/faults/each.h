/* SPDX-License-Identifier: Apache-2.0 */
/* A call with each of its allocations failing, one after the other. */
#ifndef KVFERRY_FAULTS_EACH_H
#define KVFERRY_FAULTS_EACH_H

#include "test.h"

#include "guard.h"

typedef struct each_case {
    const char *name;
    const char *detail; /* for the line that is printed: "", or ", and so on" */
    kvferry_status expected;
    /* One run with the n-th allocation failing (`on`: and all after it); 0: none. */
    kvferry_status (*run)(const void *which, size_t n, bool on);
    const void *which;
} each_case;

/* The call answers what is expected, or that there was no memory. */
static inline void each_allocation_fails(const each_case *of, bool on)
{
    assert_int_equal(of->run(of->which, 0, on), of->expected);
    size_t allocations = guard_allocations(), refused = 0;
    for (size_t n = 1;; n++) {
        kvferry_status status = of->run(of->which, n, on);
        if (!guard_failed())
            break;
        if (status != of->expected && status != KVFERRY_NO_MEMORY)
            fail_msg("%s, allocation %zu of %zu: answers %s", of->name, n, allocations,
                     kvferry_status_name(status));
        refused += status == KVFERRY_NO_MEMORY;
    }
    printf("%-22s %5zu allocations, %5zu needed%s%s\n", of->name, allocations, refused, of->detail,
           on ? ", all later ones fail too" : "");
}

#endif
