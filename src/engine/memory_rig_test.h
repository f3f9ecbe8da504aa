/* SPDX-License-Identifier: Apache-2.0 */
/* Two memory engines with a segment each, for the tests of the common layer and of the faults. */
#ifndef KVFERRY_SRC_ENGINE_MEMORY_RIG_TEST_H
#define KVFERRY_SRC_ENGINE_MEMORY_RIG_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/memory.h"

#include <kvferry/kvferry.h>

enum { RIG_BYTES = 4096 };

typedef struct memory_rig {
    kvferry_engine *local, *remote;
    kvferry_peer *peer; /* from local to remote */
    kvferry_report *report;
    unsigned char here[RIG_BYTES], there[RIG_BYTES];
} memory_rig;

static inline kvferry_engine *rig_open(const char *name, unsigned char *memory,
                                       kvferry_report *report)
{
    const kvferry_engine_options options = {.size = sizeof(options), .name = name};
    kvferry_engine *engine = NULL;
    uint32_t segment = 7;
    assert_int_equal(kvferry_engine_open("memory", &options, &engine, report), KVFERRY_OK);
    assert_int_equal(kvferry_engine_register(engine, memory, RIG_BYTES, KVFERRY_MEMORY_HOST, &segment,
                                             report),
                     KVFERRY_OK);
    assert_int_equal(segment, 0);
    return engine;
}

static inline kvferry_peer *rig_connect(kvferry_engine *from, kvferry_engine *to,
                                        kvferry_report *report)
{
    void *binding;
    size_t size;
    kvferry_peer *peer = NULL;
    assert_int_equal(kvferry_engine_export(to, &binding, &size, report), KVFERRY_OK);
    assert_int_equal(kvferry_engine_connect(from, binding, size, &peer, report), KVFERRY_OK);
    kvferry_free(binding);
    return peer;
}

static inline void rig_setup(memory_rig *rig)
{
    memset(rig, 0, sizeof(*rig));
    for (size_t i = 0; i < RIG_BYTES; i++)
        rig->here[i] = (unsigned char)(1 + i % 251);
    assert_int_equal(kvferry_report_create(&rig->report), KVFERRY_OK);
    rig->local = rig_open("here", rig->here, rig->report);
    rig->remote = rig_open("there", rig->there, rig->report);
    rig->peer = rig_connect(rig->local, rig->remote, rig->report);
}

static inline void rig_teardown(memory_rig *rig)
{
    kvferry_engine_close(rig->local);
    kvferry_engine_close(rig->remote);
    kvferry_report_free(rig->report);
}

static inline kvferry_transfer *rig_begin(memory_rig *rig, const kvferry_copy *copies, size_t count,
                                          uint64_t deadline_ns)
{
    kvferry_transfer *transfer = NULL;
    assert_int_equal(kvferry_transfer_begin(rig->local, rig->peer, KVFERRY_WRITE, copies, count,
                                            deadline_ns, &transfer, rig->report),
                     KVFERRY_OK);
    return transfer;
}

static inline void rig_step(memory_rig *rig, unsigned steps)
{
    while (steps--)
        assert_int_equal(kvferry_engine_progress(rig->local, NULL), KVFERRY_OK);
}

/* Progresses till it is over (a bounded number of steps), frees it, and returns how it ended. */
static inline kvferry_status rig_finish(memory_rig *rig, kvferry_transfer *transfer)
{
    for (unsigned step = 0; step < 100000 && !kvferry_transfer_get(transfer)->over; step++)
        rig_step(rig, 1);
    kvferry_status status = kvferry_transfer_get(transfer)->status;
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    return status;
}

static inline uint64_t rig_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The reason at index must have this code, place, expected and found. */
static inline void rig_expect_reason(const kvferry_report *report, size_t index, const char *code,
                                     const char *place, const char *expected, const char *found)
{
    const kvferry_reason *reason = kvferry_report_get(report, index);
    assert_non_null(reason);
    assert_string_equal(reason->code, code);
    assert_string_equal(reason->place, place);
    assert_string_equal(reason->expected, expected);
    assert_string_equal(reason->found, found);
}

#endif
