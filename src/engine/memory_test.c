/* SPDX-License-Identifier: Apache-2.0 */
/* Each fault of the memory engine shows in the bytes, or in how a transfer ends, and nowhere else. */
#include "engine/memory_rig_test.h"

/* Eight copies of 64 bytes, the last first on the target. */
enum { COPIES = 8, EACH = 64 };

static void make_copies(kvferry_copy *copies)
{
    for (uint64_t i = 0; i < COPIES; i++)
        copies[i] = (kvferry_copy){.source_offset = 1000 + i * EACH,
                                   .target_offset = (COPIES - 1 - i) * EACH,
                                   .bytes = EACH};
}

/* Which copies have arrived whole, as bits; bytes past them must be as they were. */
static unsigned arrived(const memory_rig *rig, const kvferry_copy *copies)
{
    unsigned bits = 0;
    for (unsigned i = 0; i < COPIES; i++)
        if (memcmp(rig->there + copies[i].target_offset, rig->here + copies[i].source_offset, EACH) == 0)
            bits |= 1u << i;
    for (size_t i = COPIES * EACH; i < RIG_BYTES; i++)
        assert_int_equal(rig->there[i], 0);
    return bits;
}

static kvferry_status run_fault(memory_rig *rig, kvferry_copy *copies, const memory_fault *fault)
{
    make_copies(copies);
    rig_setup(rig);
    if (fault)
        assert_int_equal(memory_engine_inject(rig->local, fault), KVFERRY_OK);
    return rig_finish(rig, rig_begin(rig, copies, COPIES, 0));
}

static void test_no_fault(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    assert_int_equal(run_fault(&rig, copies, NULL), KVFERRY_OK);
    assert_int_equal(arrived(&rig, copies), 0xff);
    rig_teardown(&rig);
}

static void test_short(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    const memory_fault fault = {.kind = MEMORY_FAULT_SHORT, .piece = 2, .bytes = 63};
    assert_int_equal(run_fault(&rig, copies, &fault), KVFERRY_OK);
    assert_int_equal(arrived(&rig, copies), 0xfb);
    assert_memory_equal(rig.there + 5 * EACH, rig.here + 1128, 63);
    assert_int_equal(rig.there[5 * EACH + 63], 0);
    rig_teardown(&rig);
}

static void test_lost(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    const memory_fault fault = {.kind = MEMORY_FAULT_LOST, .piece = 7};
    assert_int_equal(run_fault(&rig, copies, &fault), KVFERRY_OK);
    assert_int_equal(arrived(&rig, copies), 0x7f);
    rig_step(&rig, 100);
    assert_int_equal(arrived(&rig, copies), 0x7f);
    rig_teardown(&rig);
}

static void test_late(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    const memory_fault fault = {.kind = MEMORY_FAULT_LATE, .piece = 0, .steps = 3};
    assert_int_equal(run_fault(&rig, copies, &fault), KVFERRY_OK);
    assert_int_equal(arrived(&rig, copies), 0xfe);
    rig_step(&rig, 2);
    assert_int_equal(arrived(&rig, copies), 0xfe);
    rig_step(&rig, 1);
    assert_int_equal(arrived(&rig, copies), 0xff);
    rig_teardown(&rig);
}

/* What was put off must not touch memory that its owner took back. */
static void test_late_after_unregister(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    const memory_fault fault = {.kind = MEMORY_FAULT_LATE, .piece = 0, .steps = 1};
    assert_int_equal(run_fault(&rig, copies, &fault), KVFERRY_OK);
    assert_int_equal(kvferry_engine_unregister(rig.remote, 0), KVFERRY_OK);
    rig_step(&rig, 2);
    assert_int_equal(arrived(&rig, copies), 0xfe);
    rig_teardown(&rig);
}

static void test_late_after_close(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    const memory_fault fault = {.kind = MEMORY_FAULT_LATE, .piece = 0, .steps = 1};
    assert_int_equal(run_fault(&rig, copies, &fault), KVFERRY_OK);
    kvferry_peer_close(rig.peer);
    rig_step(&rig, 2);
    assert_int_equal(arrived(&rig, copies), 0xfe);
    rig_teardown(&rig);
}

/* The block has a new owner by then, and the second write spoils it. */
static void test_repeated(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    const memory_fault fault = {.kind = MEMORY_FAULT_REPEATED, .piece = 4, .steps = 2};
    assert_int_equal(run_fault(&rig, copies, &fault), KVFERRY_OK);
    assert_int_equal(arrived(&rig, copies), 0xff);
    memset(rig.there, 0, COPIES * EACH);
    rig_step(&rig, 2);
    assert_int_equal(arrived(&rig, copies), 1u << 4);
    rig_teardown(&rig);
}

static void test_failed(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    make_copies(copies);
    rig_setup(&rig);
    const memory_fault fault = {.kind = MEMORY_FAULT_FAILED, .piece = 3};
    assert_int_equal(memory_engine_inject(rig.local, &fault), KVFERRY_OK);
    kvferry_transfer *transfer = rig_begin(&rig, copies, COPIES, 0);
    rig_step(&rig, 1);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    assert_true(is->over);
    assert_int_equal(is->status, KVFERRY_ENGINE);
    assert_int_equal(is->bytes_done, 0);
    assert_string_equal(is->detail, "there: a write failed on demand; 512 bytes from copy 0 on "
                                    "(peer segment 0, offset 448)");
    assert_int_equal(arrived(&rig, copies), 0x07);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    rig_teardown(&rig);
}

/* With one piece per step the order shows. */
static void test_reordered(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    unsigned in_order = 0;
    make_copies(copies);
    rig_setup(&rig);
    const memory_fault fault = {.kind = MEMORY_FAULT_REORDERED, .piece = 0, .seed = 1};
    assert_int_equal(memory_engine_inject(rig.local, &fault), KVFERRY_OK);
    memory_engine_set_pace(rig.local, 1);
    kvferry_transfer *transfer = rig_begin(&rig, copies, COPIES, 0);
    for (unsigned i = 1; i <= COPIES; i++) {
        rig_step(&rig, 1);
        unsigned bits = arrived(&rig, copies);
        assert_int_equal(__builtin_popcount(bits), i);
        in_order += bits == (1u << i) - 1;
    }
    assert_in_range(in_order, 1, COPIES - 2); /* all at last; not each prefix */
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_OK);
    rig_teardown(&rig);
}

/* Neither cancel nor time ends it: only closing the peer does. */
static void test_stuck(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    make_copies(copies);
    rig_setup(&rig);
    const memory_fault fault = {.kind = MEMORY_FAULT_STUCK, .piece = 5};
    assert_int_equal(memory_engine_inject(rig.local, &fault), KVFERRY_OK);
    kvferry_transfer *transfer = rig_begin(&rig, copies, COPIES, 0);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    rig_step(&rig, 1000);
    assert_int_equal(is->status, KVFERRY_BUSY);
    kvferry_transfer_cancel(transfer);
    assert_int_equal(is->status, KVFERRY_CANCELED);
    rig_step(&rig, 1000);
    assert_false(is->over);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_BUSY);
    assert_int_equal(kvferry_engine_unregister(rig.local, 0), KVFERRY_BUSY);
    kvferry_peer_close(rig.peer);
    assert_true(is->over);
    assert_int_equal(is->status, KVFERRY_CANCELED);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    assert_int_equal(kvferry_engine_unregister(rig.local, 0), KVFERRY_OK);
    rig_teardown(&rig);
}

/* A stuck batch does not stop another transfer of the same peer. */
static void test_stuck_beside(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    make_copies(copies);
    rig_setup(&rig);
    const memory_fault fault = {.kind = MEMORY_FAULT_STUCK, .piece = 0};
    assert_int_equal(memory_engine_inject(rig.local, &fault), KVFERRY_OK);
    kvferry_transfer *stuck = rig_begin(&rig, copies, 1, 0);
    assert_int_equal(rig_finish(&rig, rig_begin(&rig, copies + 1, COPIES - 1, 0)), KVFERRY_OK);
    assert_int_equal(kvferry_transfer_get(stuck)->status, KVFERRY_BUSY);
    assert_int_equal(arrived(&rig, copies), 0xfe);
    kvferry_engine_close(rig.local);
    assert_int_equal(kvferry_transfer_get(stuck)->status, KVFERRY_CANCELED);
    assert_int_equal(kvferry_transfer_free(stuck), KVFERRY_OK);
    kvferry_engine_close(rig.remote);
    kvferry_report_free(rig.report);
}

static void test_dies(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    const memory_fault fault = {.kind = MEMORY_FAULT_DIES, .piece = 6};
    assert_int_equal(run_fault(&rig, copies, &fault), KVFERRY_PEER_LOST);
    assert_int_equal(arrived(&rig, copies), 0x3f);
    assert_true(kvferry_peer_lost(rig.peer));
    assert_int_equal(rig_finish(&rig, rig_begin(&rig, copies, COPIES, 0)), KVFERRY_PEER_LOST);
    kvferry_peer_close(rig.peer);
    rig.peer = rig_connect(rig.local, rig.remote, rig.report);
    assert_false(kvferry_peer_lost(rig.peer));
    assert_int_equal(rig_finish(&rig, rig_begin(&rig, copies, COPIES, 0)), KVFERRY_OK);
    assert_int_equal(arrived(&rig, copies), 0xff);
    rig_teardown(&rig);
}

/* The peer's engine closes with writes queued: they end, and touch nothing. */
static void test_peer_engine_closes(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    make_copies(copies);
    rig_setup(&rig);
    memory_engine_set_pace(rig.local, 1);
    kvferry_transfer *transfer = rig_begin(&rig, copies, COPIES, 0);
    rig_step(&rig, 3);
    kvferry_engine_close(rig.remote);
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_PEER_LOST);
    assert_int_equal(arrived(&rig, copies), 0x07);
    assert_true(kvferry_peer_lost(rig.peer));
    kvferry_engine_close(rig.local);
    kvferry_report_free(rig.report);
}

/* The peer unregisters under way: an error, not a write into memory that is no longer its. */
static void test_peer_unregisters(void **state)
{
    (void)state;
    memory_rig rig;
    kvferry_copy copies[COPIES];
    make_copies(copies);
    rig_setup(&rig);
    memory_engine_set_pace(rig.local, 1);
    kvferry_transfer *transfer = rig_begin(&rig, copies, COPIES, 0);
    rig_step(&rig, 2);
    assert_int_equal(kvferry_engine_unregister(rig.remote, 0), KVFERRY_OK);
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_ENGINE);
    assert_int_equal(arrived(&rig, copies), 0x03);
    assert_false(kvferry_peer_lost(rig.peer));
    rig_teardown(&rig);
}

/* The same seed hits the same pieces; another one others; about as many as asked for. */
static uint64_t hit_pieces(uint64_t seed, unsigned *hits)
{
    memory_rig rig;
    kvferry_copy copies[1000];
    uint64_t digest = 0;
    rig_setup(&rig);
    const memory_fault fault = {.kind = MEMORY_FAULT_LOST, .per_million = 100000, .seed = seed};
    assert_int_equal(memory_engine_inject(rig.local, &fault), KVFERRY_OK);
    for (uint64_t i = 0; i < 1000; i++)
        copies[i] = (kvferry_copy){.source_offset = 1, .target_offset = i, .bytes = 1};
    assert_int_equal(rig_finish(&rig, rig_begin(&rig, copies, 1000, 0)), KVFERRY_OK);
    *hits = 0;
    for (unsigned i = 0; i < 1000; i++) {
        digest = digest * 31 + rig.there[i];
        *hits += rig.there[i] == 0;
    }
    memory_engine_clear_faults(rig.local);
    assert_int_equal(rig_finish(&rig, rig_begin(&rig, copies, 1000, 0)), KVFERRY_OK);
    assert_null(memchr(rig.there, 0, 1000));
    rig_teardown(&rig);
    return digest;
}

static void test_random(void **state)
{
    (void)state;
    unsigned first, again, other;
    uint64_t digest = hit_pieces(1, &first);
    assert_int_equal(hit_pieces(1, &again), digest);
    assert_int_equal(first, again);
    assert_int_not_equal(hit_pieces(2, &other), digest);
    assert_in_range(first, 60, 140);
    assert_in_range(other, 60, 140);
}

static void test_controls_of_others(void **state)
{
    (void)state;
    const memory_fault fault = {.kind = MEMORY_FAULT_LOST};
    assert_int_equal(memory_engine_inject(NULL, &fault), KVFERRY_INVALID);
    const kvferry_engine_options options = {.size = sizeof(options), .transport = "tcp"};
    kvferry_engine *engine = NULL;
    assert_int_equal(kvferry_engine_open("memory", &options, &engine, NULL), KVFERRY_INVALID);
    assert_null(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_fault),
        cmocka_unit_test(test_short),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_late_after_unregister),
        cmocka_unit_test(test_late_after_close),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_failed),
        cmocka_unit_test(test_reordered),
        cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_stuck_beside),
        cmocka_unit_test(test_dies),
        cmocka_unit_test(test_peer_engine_closes),
        cmocka_unit_test(test_peer_unregisters),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_controls_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
