/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller's own engine through kvferry_engine_add: how transfers are cut and windowed, and what an
 * engine that breaks the contract does to the rest (nothing).
 */
#include "engine/memory_rig_test.h"

#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

enum { QUEUE = 4096, PEERS = 2, SEGMENT = 64 * 1024 * 1024 };

typedef struct own_batch {
    unsigned peer;
    kvferry_engine_batch_end end;
    void *handle;
    size_t count;
    uint64_t bytes, first_remote, largest;
    bool ended;
} own_batch;

/* One engine at a time; the test looks into it. */
static struct {
    kvferry_engine_capabilities can;
    own_batch batches[QUEUE];
    size_t count, next; /* next to end */
    unsigned peers;
    bool lost, end_inside_submit, keep_on_close, waits_on_close;
    kvferry_status submit_status;
    size_t submissions, registered;
} own;

static kvferry_status own_open(const kvferry_engine_options *options, void **self,
                               kvferry_report *report)
{
    (void)report;
    *self = &own;
    return options->own ? KVFERRY_OK : KVFERRY_INVALID;
}

static void own_close(void *self) { assert_ptr_equal(self, &own); }

static void own_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    (void)self;
    *capabilities = own.can;
}

static bool own_progress(void *self)
{
    (void)self;
    return false;
}

static kvferry_status own_register(void *self, void *address, uint64_t bytes, kvferry_memory memory,
                                   void **segment, kvferry_report *report)
{
    (void)self, (void)bytes, (void)memory, (void)report;
    own.registered++;
    *segment = address;
    return KVFERRY_OK;
}

static void own_unregister(void *self, void *segment)
{
    (void)self, (void)segment;
    own.registered--;
}

static kvferry_status own_export(void *self, void *data, size_t *size)
{
    (void)self;
    size_t capacity = *size;
    *size = 3;
    if (capacity < 3)
        return KVFERRY_NO_SPACE;
    memcpy(data, "own", 3);
    return KVFERRY_OK;
}

static kvferry_status own_segment_export(void *self, void *segment, void *data, size_t *size)
{
    (void)segment;
    return own_export(self, data, size);
}

static kvferry_status own_connect(void *self, const void *address, size_t size, void **peer,
                                  kvferry_report *report)
{
    (void)self, (void)report;
    assert_int_equal(size, 3);
    assert_memory_equal(address, "own", 3);
    *peer = (void *)(uintptr_t)++own.peers;
    return KVFERRY_OK;
}

static kvferry_status own_import(void *self, void *peer, const void *data, size_t size,
                                 void **remote_segment, kvferry_report *report)
{
    (void)self, (void)peer, (void)data, (void)size, (void)report;
    *remote_segment = &own;
    return KVFERRY_OK;
}

static bool own_lost(void *self, void *peer)
{
    (void)self, (void)peer;
    return own.lost;
}

static void end_batch(own_batch *batch, kvferry_status status, const char *detail)
{
    batch->ended = true;
    batch->end(batch->handle, status, detail);
}

static bool own_busy(void *self, void *peer)
{
    (void)self;
    for (size_t i = 0; i < own.count && own.waits_on_close; i++)
        if (!own.batches[i].ended && own.batches[i].peer == (unsigned)(uintptr_t)peer)
            return true;
    return false;
}

static void own_peer_close(void *self, void *peer)
{
    (void)self;
    for (size_t i = 0; i < own.count && !own.keep_on_close; i++)
        if (!own.batches[i].ended && own.batches[i].peer == (unsigned)(uintptr_t)peer)
            end_batch(&own.batches[i], KVFERRY_PEER_LOST, NULL);
}

static kvferry_status own_submit(void *self, void *peer, kvferry_direction direction,
                                 const kvferry_engine_copy *copies, size_t count,
                                 kvferry_engine_batch_end end, void *handle, kvferry_report *report)
{
    (void)self, (void)direction, (void)report;
    own.submissions++;
    if (own.submit_status != KVFERRY_OK)
        return own.submit_status;
    assert_in_range(own.count, 0, QUEUE - 1);
    own_batch *batch = &own.batches[own.count++];
    *batch = (own_batch){.peer = (unsigned)(uintptr_t)peer,
                         .end = end,
                         .handle = handle,
                         .count = count,
                         .first_remote = copies[0].remote};
    for (size_t i = 0; i < count; i++) {
        assert_int_not_equal(copies[i].bytes, 0);
        batch->bytes += copies[i].bytes;
        batch->largest = copies[i].bytes > batch->largest ? copies[i].bytes : batch->largest;
    }
    if (own.end_inside_submit)
        end_batch(batch, KVFERRY_OK, NULL);
    return KVFERRY_OK;
}

static const kvferry_engine_ops own_ops = {
    .size = sizeof(own_ops),
    .name = "own",
    .open = own_open,
    .close = own_close,
    .capabilities = own_capabilities,
    .progress = own_progress,
    .segment_register = own_register,
    .segment_unregister = own_unregister,
    .address_export = own_export,
    .segment_export = own_segment_export,
    .peer_connect = own_connect,
    .segment_import = own_import,
    .peer_lost = own_lost,
    .peer_busy = own_busy,
    .peer_close = own_peer_close,
    .submit = own_submit,
};

typedef struct own_rig {
    kvferry_engine *engine;
    kvferry_peer *peers[PEERS];
    kvferry_copy *copies;
} own_rig;

static bool lingers; /* of the engine that is opened next */

/* The memory is never touched: no engine here moves a byte. */
static void setup(own_rig *rig, uint64_t max_batch, uint64_t max_outstanding, uint64_t max_copy_bytes)
{
    memset(&own, 0, sizeof(own));
    own.can = (kvferry_engine_capabilities){.max_batch = max_batch,
                                            .max_outstanding = max_outstanding,
                                            .max_copy_bytes = max_copy_bytes,
                                            .writes = true,
                                            .lingers = lingers};
    kvferry_engine_options options = {.size = sizeof(options), .own = &own};
    uint32_t segment;
    assert_int_equal(kvferry_engine_open("own", &options, &rig->engine, NULL), KVFERRY_OK);
    assert_int_equal(kvferry_engine_register(rig->engine, (void *)(uintptr_t)0x10000000, SEGMENT,
                                             KVFERRY_MEMORY_HOST, &segment, NULL),
                     KVFERRY_OK);
    for (size_t i = 0; i < PEERS; i++)
        rig->peers[i] = rig_connect(rig->engine, rig->engine, NULL);
    rig->copies = calloc(300000, sizeof(*rig->copies));
    assert_non_null(rig->copies);
}

static void teardown(own_rig *rig)
{
    kvferry_engine_close(rig->engine);
    assert_int_equal(own.registered, 0);
    free(rig->copies);
}

static kvferry_transfer *begin(own_rig *rig, unsigned peer, size_t first, size_t count, uint64_t bytes)
{
    kvferry_transfer *transfer;
    for (size_t i = first; i < first + count; i++)
        rig->copies[i] = (kvferry_copy){.target_offset = i, .bytes = bytes};
    assert_int_equal(kvferry_transfer_begin(rig->engine, rig->peers[peer], KVFERRY_WRITE,
                                            rig->copies + first, count, 0, &transfer, NULL),
                     KVFERRY_OK);
    return transfer;
}

static void progress(own_rig *rig)
{
    assert_int_equal(kvferry_engine_progress(rig->engine, NULL), KVFERRY_OK);
}

static void end_next(size_t count)
{
    for (; count && own.next < own.count; count--, own.next++)
        end_batch(&own.batches[own.next], KVFERRY_OK, NULL);
}

static void finish(own_rig *rig, kvferry_transfer *transfer, kvferry_status status)
{
    for (size_t round = 0; round < 10000 && !kvferry_transfer_get(transfer)->over; round++) {
        progress(rig);
        end_next(SIZE_MAX);
    }
    assert_int_equal(kvferry_transfer_get(transfer)->status, status);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
}

static void test_add(void **state)
{
    (void)state;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_engine_ops broken = own_ops;
    broken.submit = NULL;
    broken.peer_lost = NULL;
    broken.name = "";
    broken.fd = (int (*)(void *))(uintptr_t)own_close;
    assert_int_equal(kvferry_engine_add(&broken, report), KVFERRY_INVALID);
    assert_int_equal(kvferry_report_count(report), 4);
    rig_expect_reason(report, 0, "engine_table", "name", "set", "missing");
    rig_expect_reason(report, 1, "engine_table", "peer_lost", "set", "missing");
    rig_expect_reason(report, 2, "engine_table", "submit", "set", "missing");
    rig_expect_reason(report, 3, "engine_table", "arm", "fd and arm both or neither", "one of them");
    kvferry_report_clear(report);
    broken = own_ops;
    broken.size -= 8;
    assert_int_equal(kvferry_engine_add(&broken, report), KVFERRY_INVALID);
    broken = own_ops;
    broken.name = "ucx";
    assert_int_equal(kvferry_engine_add(&broken, report), KVFERRY_INVALID);
    rig_expect_reason(report, 1, "engine_name_taken", "", "a name of its own", "ucx");
    assert_int_equal(kvferry_engine_add(NULL, NULL), KVFERRY_INVALID);
    assert_int_equal(kvferry_engine_add(&own_ops, report), KVFERRY_OK);
    assert_int_equal(kvferry_engine_add(&own_ops, report), KVFERRY_INVALID);
    kvferry_engine *engine = NULL;
    assert_int_equal(kvferry_engine_open("own", NULL, &engine, NULL), KVFERRY_INVALID);
    assert_null(engine); /* its own open refused */
    kvferry_report_clear(report);
    assert_int_equal(kvferry_engine_open("x", NULL, &engine, report), KVFERRY_NOT_FOUND);
    rig_expect_reason(report, 0, "engine_unknown", "", "memory, ucx, mooncake, nixl, own", "x");
    kvferry_report_free(report);
}

/* Batches of at most max_batch copies, at most max_outstanding in flight, refilled as they end. */
static void test_window(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 10, 25, 1000);
    kvferry_transfer *transfer = begin(&rig, 0, 0, 100, 8);
    progress(&rig);
    progress(&rig);
    assert_int_equal(own.count, 3);
    assert_int_equal(own.batches[0].count, 10);
    assert_int_equal(own.batches[1].count, 10);
    assert_int_equal(own.batches[2].count, 5);
    end_next(1);
    progress(&rig);
    assert_int_equal(own.count, 4);
    assert_int_equal(own.batches[3].count, 10);
    assert_int_equal(own.batches[3].first_remote - own.batches[0].first_remote, 25);
    assert_int_equal(kvferry_transfer_get(transfer)->copies_done, 10);
    assert_int_equal(kvferry_transfer_get(transfer)->bytes_done, 80);
    finish(&rig, transfer, KVFERRY_OK);
    teardown(&rig);
}

/* A copy larger than one may be is several pieces, in order, and counts once. */
static void test_large_copy(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 4, 8, 1000);
    kvferry_transfer *transfer = begin(&rig, 0, 0, 1, 9500);
    progress(&rig);
    assert_int_equal(own.count, 2);
    assert_int_equal(own.batches[0].bytes, 4000);
    assert_int_equal(own.batches[0].largest, 1000);
    end_next(1);
    assert_int_equal(kvferry_transfer_get(transfer)->copies_done, 0);
    progress(&rig);
    assert_int_equal(own.count, 3);
    assert_int_equal(own.batches[2].bytes, 1500);
    assert_int_equal(own.batches[2].first_remote - own.batches[0].first_remote, 8000);
    end_next(2);
    assert_int_equal(kvferry_transfer_get(transfer)->copies_done, 1);
    finish(&rig, transfer, KVFERRY_OK);
    teardown(&rig);
}

/* However large one put may be, a batch stays small enough for fair turns. */
static void test_batch_bytes(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 0, 0, 0); /* an engine that says nothing of itself */
    kvferry_transfer *transfer = begin(&rig, 0, 0, 1, SEGMENT - 100);
    progress(&rig);
    uint64_t total = 0;
    for (size_t i = 0; i < own.count; i++) {
        assert_in_range(own.batches[i].bytes, 1, 4 * 1024 * 1024);
        total += own.batches[i].bytes;
    }
    assert_in_range(total, 1, 32 * 1024 * 1024);
    finish(&rig, transfer, KVFERRY_OK);
    teardown(&rig);
}

/* Two transfers to one peer and one to another: no batch twice in a row while others wait. */
static void test_fairness(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 10, 40, 1000);
    kvferry_transfer *first = begin(&rig, 0, 0, 1000, 1);
    kvferry_transfer *second = begin(&rig, 0, 1000, 40, 1);
    kvferry_transfer *other = begin(&rig, 1, 2000, 40, 1);
    unsigned of_first = 0, of_second = 0, of_other = 0;
    progress(&rig);
    assert_int_equal(own.count, 8);
    uint64_t base = 0x10000000;
    for (size_t i = 0; i < own.count; i++) {
        uint64_t at = own.batches[i].first_remote - base;
        of_first += at < 1000;
        of_second += at >= 1000 && at < 2000;
        of_other += at >= 2000;
        if (i)
            assert_int_not_equal(own.batches[i].peer, own.batches[i - 1].peer);
    }
    assert_int_equal(of_first, 2);
    assert_int_equal(of_second, 2);
    assert_int_equal(of_other, 4);
    end_next(8);
    progress(&rig);
    assert_int_equal(kvferry_transfer_get(other)->status, KVFERRY_OK);
    end_next(SIZE_MAX);
    progress(&rig);
    assert_int_equal(kvferry_transfer_get(second)->status, KVFERRY_OK);
    assert_int_equal(kvferry_transfer_get(first)->status, KVFERRY_BUSY);
    finish(&rig, second, KVFERRY_OK);
    finish(&rig, other, KVFERRY_OK);
    finish(&rig, first, KVFERRY_OK);
    teardown(&rig);
}

/* Neither the number of copies nor their batches take memory. */
static void test_memory_bounded(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 1024, 8192, 1 << 30);
    kvferry_transfer *transfer = begin(&rig, 0, 0, 262144, 16);
    size_t before = mallinfo2().uordblks;
    for (unsigned round = 0; !kvferry_transfer_get(transfer)->over; round++) {
        progress(&rig);
        assert_int_equal(mallinfo2().uordblks, before);
        end_next(SIZE_MAX);
    }
    assert_int_equal(own.count, 256);
    finish(&rig, transfer, KVFERRY_OK);
    teardown(&rig);
}

static void test_refuses(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 10, 20, 100);
    own.submit_status = KVFERRY_BUSY;
    kvferry_transfer *transfer = begin(&rig, 0, 0, 30, 5);
    for (unsigned i = 0; i < 10; i++)
        progress(&rig);
    assert_in_range(own.submissions, 10, 20);
    assert_int_equal(kvferry_transfer_get(transfer)->status, KVFERRY_BUSY);
    own.submit_status = KVFERRY_OK;
    progress(&rig);
    assert_int_equal(own.count, 2);
    own.submit_status = KVFERRY_IO;
    end_next(2);
    progress(&rig);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    assert_int_equal(is->status, KVFERRY_IO);
    assert_true(is->over);
    assert_int_equal(is->copies_done, 20);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    kvferry_transfer *unwanted = NULL;
    assert_int_equal(kvferry_transfer_begin(rig.engine, rig.peers[0], KVFERRY_READ, rig.copies, 1, 0,
                                            &unwanted, NULL),
                     KVFERRY_UNSUPPORTED);
    teardown(&rig);
}

/* One batch fails: the first cause stays, the rest is no longer begun, and it is over at the last end. */
static void test_fails(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 10, 30, 100);
    kvferry_transfer *transfer = begin(&rig, 0, 0, 100, 5);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    progress(&rig);
    assert_int_equal(own.count, 3);
    end_batch(&own.batches[1], KVFERRY_ENGINE, "the cable is gone");
    end_batch(&own.batches[2], KVFERRY_BUSY, NULL);
    progress(&rig);
    assert_int_equal(own.count, 3);
    assert_int_equal(is->status, KVFERRY_ENGINE);
    assert_non_null(strstr(is->detail, "the cable is gone; 50 bytes from copy 10 on (peer segment 0, "
                                       "offset 10)"));
    assert_false(is->over);
    end_batch(&own.batches[0], KVFERRY_OK, NULL);
    progress(&rig);
    assert_true(is->over);
    assert_int_equal(is->copies_done, 10);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    teardown(&rig);
}

/* An end told twice, or from inside submit, or never: no count goes wrong. */
static void test_misbehaves(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 10, 20, 100);
    own.end_inside_submit = true;
    kvferry_transfer *transfer = begin(&rig, 0, 0, 95, 5);
    for (unsigned i = 0; i < 20 && !kvferry_transfer_get(transfer)->over; i++)
        progress(&rig);
    assert_int_equal(kvferry_transfer_get(transfer)->copies_done, 95);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    own.end_inside_submit = false;
    transfer = begin(&rig, 0, 0, 60, 5);
    progress(&rig);
    own.next = own.count - 2;
    own_batch *twice = &own.batches[own.next];
    end_next(1);
    end_batch(twice, KVFERRY_ENGINE, "again");
    assert_int_equal(kvferry_transfer_get(transfer)->status, KVFERRY_BUSY);
    finish(&rig, transfer, KVFERRY_OK);
    own.keep_on_close = true;
    transfer = begin(&rig, 1, 0, 60, 5);
    progress(&rig);
    kvferry_peer_close(rig.peers[1]);
    assert_true(kvferry_transfer_get(transfer)->over);
    assert_int_equal(kvferry_transfer_get(transfer)->status, KVFERRY_PEER_LOST);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    teardown(&rig);
}

/* A lost peer ends its transfers; what the engine still has of them keeps them from being over. */
static void test_lost(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 10, 20, 100);
    kvferry_transfer *transfer = begin(&rig, 0, 0, 60, 5);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    progress(&rig);
    own.lost = true;
    progress(&rig);
    assert_int_equal(is->status, KVFERRY_PEER_LOST);
    assert_false(is->over);
    assert_int_equal(own.count, 2);
    end_next(2);
    progress(&rig);
    assert_true(is->over);
    assert_true(kvferry_peer_lost(rig.peers[0]));
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    teardown(&rig);
}

/* A peer that is left is waited for, and holds nobody up; where nothing can be torn down, silence is no end. */
static void test_leave(void **state)
{
    (void)state;
    own_rig rig;
    lingers = true;
    setup(&rig, 10, 20, 100);
    lingers = false;
    own.waits_on_close = true;
    kvferry_transfer *left = begin(&rig, 0, 0, 60, 5), *other = begin(&rig, 1, 100, 10, 5), *refused;
    const kvferry_transfer_state *is = kvferry_transfer_get(left);
    progress(&rig);
    assert_int_equal(own.count, 3);
    kvferry_peer_leave(rig.peers[0]);
    assert_int_equal(is->status, KVFERRY_PEER_LOST);
    assert_int_equal(kvferry_transfer_begin(rig.engine, rig.peers[0], KVFERRY_WRITE, rig.copies, 1, 0,
                                            &refused, NULL),
                     KVFERRY_PEER_LOST);
    bool one = false; /* of the two that are left there */
    for (size_t i = 0; i < 3; i++)
        if (own.batches[i].peer == 2 || !one) {
            one = one || own.batches[i].peer == 1;
            end_batch(&own.batches[i], KVFERRY_OK, NULL);
        }
    sleep(2);
    assert_false(kvferry_peer_leave(rig.peers[0]));
    progress(&rig);
    assert_false(is->over);
    assert_true(kvferry_transfer_get(other)->over);
    assert_int_equal(kvferry_transfer_get(other)->status, KVFERRY_OK);
    assert_int_equal(kvferry_transfer_free(other), KVFERRY_OK);
    for (size_t i = 0; i < 3; i++)
        if (!own.batches[i].ended)
            end_batch(&own.batches[i], KVFERRY_OK, NULL);
    assert_true(kvferry_peer_leave(rig.peers[0]));
    progress(&rig);
    assert_true(is->over);
    assert_int_equal(own.count, 3); /* nothing more was submitted */
    assert_int_equal(kvferry_transfer_free(left), KVFERRY_OK);
    kvferry_peer_close(rig.peers[0]);
    teardown(&rig);
}

/* Of silent ones nothing more is expected after a while: the engine's close waits for all at once. */
static void test_leave_silent(void **state)
{
    (void)state;
    own_rig rig;
    setup(&rig, 10, 20, 100);
    own.waits_on_close = true;
    kvferry_transfer *one = begin(&rig, 0, 0, 10, 5), *other = begin(&rig, 1, 100, 10, 5);
    progress(&rig);
    while (!kvferry_peer_leave(rig.peers[0]))
        progress(&rig);
    assert_false(kvferry_transfer_get(one)->over);
    assert_int_equal(kvferry_transfer_get(other)->status, KVFERRY_BUSY);
    kvferry_engine_close(rig.engine);
    assert_true(kvferry_transfer_get(one)->over);
    assert_int_equal(kvferry_transfer_get(one)->status, KVFERRY_PEER_LOST);
    assert_int_equal(kvferry_transfer_get(other)->status, KVFERRY_CANCELED);
    assert_int_equal(kvferry_transfer_free(one), KVFERRY_OK);
    assert_int_equal(kvferry_transfer_free(other), KVFERRY_OK);
    free(rig.copies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add), /* first: the others open what it adds */
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_large_copy),
        cmocka_unit_test(test_batch_bytes),
        cmocka_unit_test(test_fairness),
        cmocka_unit_test(test_memory_bounded),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_fails),
        cmocka_unit_test(test_misbehaves),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_leave),
        cmocka_unit_test(test_leave_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
