/* SPDX-License-Identifier: Apache-2.0 */
/* The common layer, over the memory engine: segments, the check of copies, ends of transfers. */
#include "engine/memory_rig_test.h"

#include <stdlib.h>

static void test_open(void **state)
{
    (void)state;
    kvferry_engine *engine = NULL;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_engine_open("carrier-pigeon", NULL, &engine, report), KVFERRY_NOT_FOUND);
    rig_expect_reason(report, 0, "engine_unknown", "", "memory, ucx, mooncake, nixl", "carrier-pigeon");
    assert_int_equal(kvferry_engine_open("carrier-pigeon", NULL, &engine, NULL), KVFERRY_NOT_FOUND);
    kvferry_report_clear(report);
    kvferry_engine_options options = {.size = 4};
    assert_int_equal(kvferry_engine_open("memory", &options, &engine, report), KVFERRY_INVALID);
    char name[200];
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    options = (kvferry_engine_options){.size = sizeof(options), .name = name};
    assert_int_equal(kvferry_engine_open("memory", &options, &engine, report), KVFERRY_INVALID);
    rig_expect_reason(report, 1, "engine_option", "name", "at most 127 bytes", "199 bytes");
    assert_null(engine);
    kvferry_report_free(report);
    assert_int_equal(kvferry_engine_open("memory", NULL, &engine, NULL), KVFERRY_OK);
    assert_string_equal(kvferry_engine_get_capabilities(engine)->name, "memory");
    assert_int_equal(kvferry_engine_fd(engine), -1);
    assert_int_equal(kvferry_engine_arm(engine), KVFERRY_UNSUPPORTED);
    bool active = true;
    assert_int_equal(kvferry_engine_progress(engine, &active), KVFERRY_OK);
    assert_false(active);
    kvferry_engine_close(engine);
    kvferry_engine_close(NULL);
}

/* An option of an older caller's structure that ends before `name`. */
static void test_old_options(void **state)
{
    (void)state;
    const kvferry_engine_options options = {.size = offsetof(kvferry_engine_options, name),
                                            .max_outstanding = 17,
                                            .name = (const char *)(uintptr_t)8};
    kvferry_engine *engine;
    assert_int_equal(kvferry_engine_open("memory", &options, &engine, NULL), KVFERRY_OK);
    assert_int_equal(kvferry_engine_get_capabilities(engine)->max_outstanding, 17);
    assert_int_equal(kvferry_engine_get_capabilities(engine)->max_batch, 17);
    kvferry_engine_close(engine);
}

static void test_segments(void **state)
{
    (void)state;
    static unsigned char memory[1000];
    kvferry_engine *engine;
    kvferry_report *report;
    uint32_t segment = 77;
    char range[64], other[64];
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_engine_open("memory", NULL, &engine, NULL), KVFERRY_OK);
    const struct {
        size_t at, bytes;
        kvferry_status status;
        size_t reasons;
    } steps[] = {{100, 100, KVFERRY_OK, 0},      {200, 100, KVFERRY_OK, 0}, /* adjacent */
                 {199, 1, KVFERRY_INVALID, 1},   {199, 2, KVFERRY_INVALID, 2},
                 {0, 1000, KVFERRY_INVALID, 2},  {150, 10, KVFERRY_INVALID, 1},
                 {0, 100, KVFERRY_OK, 0},        {300, 700, KVFERRY_OK, 0},
                 {400, 0, KVFERRY_INVALID, 1}};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        kvferry_report_clear(report);
        assert_int_equal(kvferry_engine_register(engine, memory + steps[i].at, steps[i].bytes,
                                                 KVFERRY_MEMORY_HOST, &segment, report),
                         steps[i].status);
        assert_int_equal(kvferry_report_count(report), steps[i].reasons);
    }
    assert_int_equal(segment, 3);
    kvferry_report_clear(report);
    kvferry_engine_register(engine, memory + 199, 2, KVFERRY_MEMORY_HOST, &segment, report);
    snprintf(range, sizeof(range), "nothing of 0x%llx..0x%llx",
             (unsigned long long)(uintptr_t)(memory + 200),
             (unsigned long long)(uintptr_t)(memory + 300));
    snprintf(other, sizeof(other), "0x%llx..0x%llx", (unsigned long long)(uintptr_t)(memory + 199),
             (unsigned long long)(uintptr_t)(memory + 201));
    rig_expect_reason(report, 1, "segment_overlap", "segment 1", range, other);
    assert_int_equal(kvferry_engine_register(engine, memory, UINT64_MAX, KVFERRY_MEMORY_HOST, &segment,
                                             NULL),
                     KVFERRY_INVALID);
    assert_int_equal(kvferry_engine_register(engine, memory, 1, KVFERRY_MEMORY_CUDA, &segment, report),
                     KVFERRY_UNSUPPORTED);
    assert_int_equal(kvferry_engine_unregister(engine, 1), KVFERRY_OK);
    assert_int_equal(kvferry_engine_unregister(engine, 1), KVFERRY_NOT_FOUND);
    assert_int_equal(kvferry_engine_unregister(engine, 99), KVFERRY_NOT_FOUND);
    assert_int_equal(kvferry_engine_register(engine, memory + 250, 50, KVFERRY_MEMORY_HOST, &segment,
                                             NULL),
                     KVFERRY_OK);
    assert_int_equal(segment, 4); /* 1 is not used again */
    void *allocated = NULL;
    assert_int_equal(kvferry_engine_allocate(engine, 0, &allocated, &segment, NULL), KVFERRY_INVALID);
    assert_null(allocated);
    assert_int_equal(kvferry_engine_allocate(engine, 64, &allocated, &segment, NULL), KVFERRY_OK);
    assert_int_equal(((unsigned char *)allocated)[63], 0);
    assert_int_equal(segment, 5);
    kvferry_engine_close(engine);
    kvferry_report_free(report);
}

/* Every bad copy is named, with the side and the segment, and nothing moves. */
static void test_out_of_range(void **state)
{
    (void)state;
    memory_rig rig;
    rig_setup(&rig);
    const kvferry_copy copies[] = {
        {.source_offset = 0, .target_offset = 0, .bytes = RIG_BYTES},
        {.source_offset = 1, .target_offset = 0, .bytes = RIG_BYTES},
        {.source_offset = 0, .target_offset = 4096, .bytes = 1},
        {.source_offset = UINT64_MAX, .target_offset = 0, .bytes = 2},
        {.source_offset = 8, .target_offset = 16, .bytes = UINT64_MAX - 4},
        {.source_offset = 0, .target_offset = 0, .bytes = 1, .source_segment = 1},
        {.source_offset = 0, .target_offset = 0, .bytes = 1, .target_segment = UINT32_MAX},
        {.source_offset = RIG_BYTES, .target_offset = RIG_BYTES, .bytes = 0},
    };
    kvferry_transfer *transfer = NULL;
    assert_int_equal(kvferry_transfer_begin(rig.local, rig.peer, KVFERRY_WRITE, copies, 8, 0,
                                            &transfer, rig.report),
                     KVFERRY_OUT_OF_RANGE);
    assert_null(transfer);
    assert_int_equal(kvferry_report_count(rig.report), 7);
    rig_expect_reason(rig.report, 0, "copy_range", "copies[1]", "within the 4096 bytes of segment 0",
                      "offset 1, 4096 bytes");
    assert_string_equal(kvferry_report_get(rig.report, 0)->worker, "here");
    rig_expect_reason(rig.report, 1, "copy_range", "copies[2]", "within the 4096 bytes of segment 0",
                      "offset 4096, 1 bytes");
    assert_string_equal(kvferry_report_get(rig.report, 1)->worker, "there");
    rig_expect_reason(rig.report, 2, "copy_range", "copies[3]", "within the 4096 bytes of segment 0",
                      "offset 18446744073709551615, 2 bytes");
    rig_expect_reason(rig.report, 5, "segment_unknown", "copies[5]", "one of 1 registered segments",
                      "segment 1");
    rig_expect_reason(rig.report, 6, "segment_unknown", "copies[6]", "one of 1 registered segments",
                      "segment 4294967295");
    rig_step(&rig, 10);
    for (size_t i = 0; i < RIG_BYTES; i++)
        assert_int_equal(rig.there[i], 0);
    assert_int_equal(kvferry_transfer_begin(rig.local, rig.peer, KVFERRY_READ, copies + 1, 1, 0,
                                            &transfer, NULL),
                     KVFERRY_OUT_OF_RANGE);
    assert_int_equal(kvferry_transfer_begin(rig.local, rig.peer, KVFERRY_WRITE, NULL, 1, 0, &transfer,
                                            NULL),
                     KVFERRY_INVALID);
    assert_int_equal(kvferry_transfer_begin(rig.remote, rig.peer, KVFERRY_WRITE, copies, 1, 0,
                                            &transfer, NULL),
                     KVFERRY_INVALID);
    rig_teardown(&rig);
}

/* A segment registered after the binding was made is not there for the peer. */
static void test_stale_binding(void **state)
{
    (void)state;
    memory_rig rig;
    static unsigned char more[16];
    uint32_t segment;
    kvferry_transfer *transfer = NULL;
    rig_setup(&rig);
    assert_int_equal(kvferry_engine_register(rig.remote, more, sizeof(more), KVFERRY_MEMORY_HOST,
                                             &segment, NULL),
                     KVFERRY_OK);
    const kvferry_copy copy = {.target_segment = 1, .bytes = 1};
    assert_int_equal(kvferry_transfer_begin(rig.local, rig.peer, KVFERRY_WRITE, &copy, 1, 0, &transfer,
                                            NULL),
                     KVFERRY_OUT_OF_RANGE);
    kvferry_peer_close(rig.peer);
    assert_int_equal(kvferry_engine_unregister(rig.remote, 0), KVFERRY_OK);
    rig.peer = rig_connect(rig.local, rig.remote, rig.report); /* with a hole at 0 */
    assert_int_equal(rig_finish(&rig, rig_begin(&rig, &copy, 1, 0)), KVFERRY_OK);
    assert_int_equal(more[0], rig.here[0]);
    const kvferry_copy hole = {.bytes = 1};
    assert_int_equal(kvferry_transfer_begin(rig.local, rig.peer, KVFERRY_WRITE, &hole, 1, 0, &transfer,
                                            NULL),
                     KVFERRY_OUT_OF_RANGE);
    rig_teardown(&rig);
}

static void test_read(void **state)
{
    (void)state;
    memory_rig rig;
    rig_setup(&rig);
    for (size_t i = 0; i < RIG_BYTES; i++)
        rig.there[i] = (unsigned char)(i * 7);
    unsigned char expected[RIG_BYTES];
    memcpy(expected, rig.here, RIG_BYTES);
    memcpy(expected + 1, rig.there + 4000, 96);
    const kvferry_copy copy = {.source_offset = 4000, .target_offset = 1, .bytes = 96};
    kvferry_transfer *transfer;
    assert_int_equal(kvferry_transfer_begin(rig.local, rig.peer, KVFERRY_READ, &copy, 1, 0, &transfer,
                                            NULL),
                     KVFERRY_OK);
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_OK);
    assert_memory_equal(rig.here, expected, RIG_BYTES);
    rig_teardown(&rig);
}

/* Nothing to move is a normal end, at the next progress and not before. */
static void test_nothing(void **state)
{
    (void)state;
    memory_rig rig;
    rig_setup(&rig);
    static const kvferry_copy empty[3];
    for (size_t count = 0; count <= 3; count += 3) {
        kvferry_transfer *transfer = rig_begin(&rig, count ? empty : NULL, count, 0);
        const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
        assert_int_equal(is->status, KVFERRY_BUSY);
        assert_false(is->over);
        rig_step(&rig, 1);
        assert_int_equal(is->status, KVFERRY_OK);
        assert_true(is->over);
        assert_int_equal(is->copies_done, count);
        assert_string_equal(is->detail, "");
        assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    }
    assert_int_equal(kvferry_transfer_free(NULL), KVFERRY_OK);
    rig_teardown(&rig);
}

/* A passed deadline ends a transfer that waits; what it had begun is stopped, and it is over. */
static void test_deadline(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[100];
    for (uint64_t i = 0; i < 100; i++)
        copies[i] = (kvferry_copy){.source_offset = i, .target_offset = i, .bytes = 1};
    rig_setup(&rig);
    memory_engine_set_pace(rig.local, 1);
    kvferry_transfer *far = rig_begin(&rig, copies, 100, rig_now() + 3600000000000u);
    kvferry_transfer *transfer = rig_begin(&rig, copies, 100, 1);
    rig_step(&rig, 1);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    assert_int_equal(is->status, KVFERRY_TIMEOUT);
    assert_string_equal(is->detail, "there: the deadline passed");
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_TIMEOUT);
    assert_int_equal(rig_finish(&rig, far), KVFERRY_OK);
    rig_teardown(&rig);
}

/* The status comes at once, `over` only when the engine has ended what it cannot stop. */
static void test_deadline_quarantine(void **state)
{
    (void)state;
    memory_rig rig;
    const kvferry_copy copy = {.bytes = 10};
    rig_setup(&rig);
    const memory_fault fault = {.kind = MEMORY_FAULT_STUCK};
    assert_int_equal(memory_engine_inject(rig.local, &fault), KVFERRY_OK);
    kvferry_transfer *transfer = rig_begin(&rig, &copy, 1, rig_now() + 500000000);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    while (is->status == KVFERRY_BUSY)
        rig_step(&rig, 1);
    assert_int_equal(is->status, KVFERRY_TIMEOUT);
    rig_step(&rig, 100);
    assert_false(is->over);
    kvferry_peer_close(rig.peer);
    assert_true(is->over);
    assert_int_equal(is->status, KVFERRY_TIMEOUT);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    rig_teardown(&rig);
}

static void test_cancel(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[100];
    for (uint64_t i = 0; i < 100; i++)
        copies[i] = (kvferry_copy){.source_offset = i, .target_offset = i, .bytes = 1};
    rig_setup(&rig);
    memory_engine_set_pace(rig.local, 10);
    kvferry_transfer *transfer = rig_begin(&rig, copies, 100, 0);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    rig_step(&rig, 3);
    kvferry_transfer_cancel(transfer);
    kvferry_transfer_cancel(transfer);
    assert_int_equal(is->status, KVFERRY_CANCELED);
    assert_false(is->over); /* a batch is with the engine */
    rig_step(&rig, 1);
    assert_true(is->over);
    assert_memory_equal(rig.there, rig.here, 30);
    assert_int_equal(rig.there[30], 0);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    transfer = rig_begin(&rig, copies, 100, 0);
    kvferry_transfer_cancel(transfer); /* before anything began */
    assert_true(kvferry_transfer_get(transfer)->over);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    rig_step(&rig, 10);
    assert_int_equal(rig.there[30], 0);
    transfer = rig_begin(&rig, copies, 100, 0);
    rig_step(&rig, 20);
    kvferry_transfer_cancel(transfer); /* too late: it is done */
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_OK);
    rig_teardown(&rig);
}

static void test_close_with_transfers(void **state)
{
    (void)state;
    memory_rig rig;
    const kvferry_copy copy = {.bytes = 10};
    rig_setup(&rig);
    memory_engine_set_pace(rig.local, 1);
    kvferry_transfer *transfers[3];
    for (size_t i = 0; i < 3; i++)
        transfers[i] = rig_begin(&rig, &copy, 1, 0);
    rig_step(&rig, 1);
    kvferry_engine_close(rig.local);
    assert_int_equal(kvferry_transfer_get(transfers[0])->status, KVFERRY_OK);
    for (size_t i = 0; i < 3; i++) {
        if (i)
            assert_int_equal(kvferry_transfer_get(transfers[i])->status, KVFERRY_CANCELED);
        assert_true(kvferry_transfer_get(transfers[i])->over);
        assert_int_equal(kvferry_transfer_free(transfers[i]), KVFERRY_OK);
    }
    kvferry_engine_close(rig.remote);
    kvferry_report_free(rig.report);
}

/* A quarter of a million small copies, as shuffled blocks of a long prompt. */
static void test_many(void **state)
{
    (void)state;
    enum { MANY = 262144 };
    memory_rig rig;
    rig_setup(&rig);
    kvferry_copy *copies = calloc(MANY, sizeof(*copies));
    assert_non_null(copies);
    for (uint64_t i = 0; i < MANY; i++) {
        uint64_t at = i * 2654435761u % (RIG_BYTES - 3);
        copies[i] = (kvferry_copy){.source_offset = at, .target_offset = at, .bytes = 4};
    }
    kvferry_transfer *transfer = rig_begin(&rig, copies, MANY, 0);
    while (!kvferry_transfer_get(transfer)->over)
        rig_step(&rig, 1);
    assert_int_equal(kvferry_transfer_get(transfer)->copies_done, MANY);
    assert_int_equal(kvferry_transfer_get(transfer)->bytes_done, 4 * MANY);
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_OK);
    assert_memory_equal(rig.there, rig.here, RIG_BYTES);
    free(copies);
    rig_teardown(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_old_options),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_stale_binding),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_deadline_quarantine),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_close_with_transfers),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
