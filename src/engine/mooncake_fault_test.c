/* SPDX-License-Identifier: Apache-2.0 */
/* Missing and old libraries, options, and what Mooncake was seen to do wrong, on demand by the stand-in of
 * tests/mooncake. Both sides are engines of this process. */
#include "engine/library_rig_test.h"
#include "mooncake/stand_in.h"

static stand_in_faults *faults;

static void body_no_library(void)
{
    check_libraries(12, "createTransferEngine", "freeBatchID", "-DBUILD_SHARED_LIBS=ON");
}

static void test_no_library(void **state)
{
    (void)state;
    in_child(body_no_library);
}

/* A write within this process that cannot arrive yet: over all the same if the library is too early, and
 * else not before the arrivals are let go. */
static void write_held(kvferry_engine *engine, bool early)
{
    static unsigned char memory[2][MIB];
    stand_in_faults *holds = find_stand_in();
    const kvferry_copy copy = {.target_segment = 1, .bytes = 1000};
    kvferry_peer *peer;
    kvferry_transfer *transfer;
    uint32_t segment;
    void *binding;
    size_t size;
    pair_fill(memory[0], MIB, 5);
    for (unsigned i = 0; i < 2; i++)
        PAIR_EQUAL(kvferry_engine_register(engine, memory[i], MIB, KVFERRY_MEMORY_HOST, &segment, NULL),
                   KVFERRY_OK);
    PAIR_EQUAL(kvferry_engine_export(engine, &binding, &size, NULL), KVFERRY_OK);
    PAIR_EQUAL(kvferry_engine_connect(engine, binding, size, &peer, NULL), KVFERRY_OK);
    kvferry_free(binding);
    holds->held_arrivals = 1;
    PAIR_EQUAL(kvferry_transfer_begin(engine, peer, KVFERRY_WRITE, &copy, 1, 0, &transfer, NULL), KVFERRY_OK);
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    for (uint64_t end = pair_now() + 200000000u; !is->over && (early || pair_now() < end);)
        kvferry_engine_progress(engine, NULL);
    PAIR_EQUAL(is->over, early);
    PAIR_CHECK(memcmp(memory[0], memory[1], 1000) != 0);
    holds->held_arrivals = 0;
    while (!is->over)
        kvferry_engine_progress(engine, NULL);
    PAIR_EQUAL(is->status, KVFERRY_OK);
    PAIR_CHECK(early || memcmp(memory[0], memory[1], 1000) == 0);
    PAIR_EQUAL(kvferry_transfer_free(transfer), KVFERRY_OK);
}

static void body_new_library(void)
{
    kvferry_engine *engine;
    PAIR_EQUAL(open_with("tcp", "", &engine), KVFERRY_OK);
    write_held(engine, false);
    kvferry_engine_close(engine);
}

static void test_arrival(void **state)
{
    (void)state;
    in_child(body_new_library);
}

/* Its writes over TCP are complete before they have arrived; of other transports that is not known. */
static void body_old_library(void)
{
    kvferry_engine *engine;
    use_old_library();
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    check_message(0, "0.3.12");
    PAIR_EQUAL(open_with("tcp", "", &engine), KVFERRY_UNSUPPORTED);
    check_message(0, "before they have arrived");
    PAIR_EQUAL(open_with("nvlink", "", &engine), KVFERRY_OK);
    write_held(engine, true);
    kvferry_engine_close(engine);
}

static void test_old_library(void **state)
{
    (void)state;
    in_child(body_old_library);
}

/* --- two engines ------------------------------------------------------------------------------ */

static int setup(void **state)
{
    *state = open_rig();
    faults = find_stand_in();
    return 0;
}

/* Whatever a test did, nothing of it stays with the library. */
static int teardown(void **state)
{
    close_rig(*state);
    assert_int_equal(faults->batches, 0);
    assert_int_equal(faults->instances, 0);
    memset(faults, 0, sizeof(*faults));
    return 0;
}

static void test_options(void **state)
{
    rig *r = *state;
    kvferry_engine *engine;
    char name[100];
    void *address;
    uint32_t segment;
    int before = faults->instances;
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(open_with("rdma", "", &engine), KVFERRY_UNSUPPORTED);
    expect_reason(0, "engine_failed", "rdma");
    assert_int_equal(open_with(name, "", &engine), KVFERRY_INVALID);
    expect_reason(0, "engine_option", "transport");
    assert_int_equal(open_with("", "192.0.2.1", &engine), KVFERRY_UNSUPPORTED);
    expect_reason(0, "engine_failed", "192.0.2.1");
    assert_int_equal(open_at("", "", "192.0.2.2", &engine), KVFERRY_UNSUPPORTED);
    expect_reason(0, "engine_failed", "192.0.2.2");
    assert_int_equal(open_at("", "lo", "192.0.2.2", &engine), KVFERRY_OK);
    kvferry_engine_close(engine);
    char *host = malloc(1000);
    assert_non_null(host);
    memset(host, 'h', 999);
    host[999] = '\0';
    assert_int_equal(open_with("", host, &engine), KVFERRY_INVALID);
    expect_reason(0, "engine_option", "net_devices");
    free(host);
    assert_int_equal(faults->instances, before);
    assert_int_equal(open_with("tcp", "lo", &engine), KVFERRY_OK);
    kvferry_engine_close(engine);
    assert_int_equal(kvferry_engine_fd(r->source), -1);
    assert_int_equal(kvferry_engine_arm(r->source), KVFERRY_UNSUPPORTED);
    assert_int_equal(kvferry_engine_allocate(r->source, 4096, &address, &segment, report),
                     KVFERRY_UNSUPPORTED);
}

static void test_no_instance(void **state)
{
    rig *r = *state;
    kvferry_peer *peer;
    kvferry_engine *engine;
    faults->refused_instances = 1;
    assert_int_equal(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    expect_reason(0, "engine_failed", "createTransferEngine");
    kvferry_engine *source = r->source;
    r->source = r->target; /* it has no initiator yet */
    faults->refused_instances = 1;
    assert_int_equal(connect_to(r, &peer), KVFERRY_UNSUPPORTED);
    assert_int_equal(connect_to(r, &peer), KVFERRY_OK);
    kvferry_peer_close(peer);
    r->source = source;
}

static void test_registration(void **state)
{
    rig *r = *state;
    uint32_t segment = 99;
    unsigned char *more = malloc(4096);
    kvferry_report_clear(report);
    faults->register_code = -7;
    assert_int_equal(kvferry_engine_register(r->source, more, 4096, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_INVALID);
    expect_reason(0, "engine_failed", "address overlapped");
    faults->register_code = -302;
    assert_int_equal(kvferry_engine_register(r->source, more, 4096, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_NO_MEMORY);
    faults->register_code = -999;
    assert_int_equal(kvferry_engine_register(r->source, more, 4096, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_ENGINE);
    expect_reason(2, "engine_failed", "code -999");
    assert_int_equal(segment, 99);
    assert_int_equal(kvferry_engine_register(r->source, more, 4096, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_OK);
    assert_int_equal(kvferry_engine_unregister(r->source, segment), KVFERRY_OK);
    assert_int_equal(kvferry_engine_register(r->source, more, 4096, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_OK);
    assert_int_equal(kvferry_engine_unregister(r->source, segment), KVFERRY_OK);
    free(more);
}

/* Two connections to one worker share the library's queue, which hangs when it overflows. */
static void test_window(void **state)
{
    rig *r = *state;
    kvferry_peer *second;
    kvferry_transfer *transfers[8];
    assert_int_equal(connect_to(r, &second), KVFERRY_OK);
    for (size_t i = 0; i < 8; i++)
        transfers[i] = begin(r, i % 2 ? second : r->peer, COPIES, 0);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(finish(r, transfers[i], ""), KVFERRY_OK);
    check_moved(r, COPIES);
    assert_true(faults->peak > 0);
    assert_true(faults->peak <= 1024);
    kvferry_peer_close(r->peer);
    assert_int_equal(faults->closes, 0);
    check_serves(r, second);
    kvferry_peer_close(second);
    assert_int_equal(faults->closes, 1);
}

static void test_queue_full(void **state)
{
    rig *r = *state;
    faults->refused_submits = 3;
    check_serves(r, r->peer);
    assert_int_equal(faults->refused_submits, 0);
}

/* The first half of a batch is with the library: it fails, but not before that has ended. */
static void test_queue_full_half_way(void **state)
{
    rig *r = *state;
    faults->stuck = 1;
    faults->halved_submits = 1;
    kvferry_transfer *transfer = begin(r, r->peer, 100, 0);
    for (unsigned i = 0; i < 1000; i++)
        kvferry_engine_progress(r->source, NULL);
    assert_false(kvferry_transfer_get(transfer)->over);
    faults->stuck = 0;
    assert_int_equal(finish(r, transfer, "too many requests"), KVFERRY_ENGINE);
    assert_false(kvferry_peer_lost(r->peer));
    check_moved(r, 50);
    check_serves(r, r->peer);
}

/* The deadline is told at once, the end when the library tells it. */
static void test_stuck(void **state)
{
    rig *r = *state;
    faults->stuck = 1;
    kvferry_transfer *transfer = begin(r, r->peer, 100, pair_now() + 1000000);
    check_timeout(r, transfer);
    faults->stuck = 0;
    assert_int_equal(finish(r, transfer, "deadline"), KVFERRY_TIMEOUT);
    check_serves(r, r->peer);
}

/* A close of what does not end takes the instance, so that nothing leaves it; others are connected anew. */
static void test_stuck_and_closed(void **state)
{
    rig *r = *state;
    kvferry_peer *second;
    assert_int_equal(connect_to(r, &second), KVFERRY_OK);
    faults->stuck = 1;
    kvferry_transfer *transfer = begin(r, r->peer, 100, 0), *beside = begin(r, second, 100, 0);
    kvferry_engine_progress(r->source, NULL);
    kvferry_peer_close(r->peer);
    assert_int_equal(finish(r, transfer, "closed"), KVFERRY_PEER_LOST);
    assert_int_equal(finish(r, beside, "torn down"), KVFERRY_ENGINE);
    assert_int_equal(faults->batches, 0);
    faults->stuck = 0;
    check_nothing_moved(r);
    assert_false(kvferry_peer_lost(second));
    check_serves(r, second);
}

/* A timeout is no end: the library goes on. */
static void test_timeouts(void **state)
{
    rig *r = *state;
    faults->stuck = 1;
    faults->timeouts = 50;
    kvferry_transfer *transfer = begin(r, r->peer, 100, 0);
    while (faults->timeouts)
        kvferry_engine_progress(r->source, NULL);
    assert_int_equal(kvferry_transfer_get(transfer)->status, KVFERRY_BUSY);
    faults->stuck = 0;
    assert_int_equal(finish(r, transfer, ""), KVFERRY_OK);
    check_moved(r, 100);
}

static void test_busy_on_free(void **state)
{
    rig *r = *state;
    faults->busy_frees = 20;
    check_serves(r, r->peer);
    assert_int_equal(faults->busy_frees, 0);
}

/* A failed task leaves the connection in doubt; one that was invalid or canceled does not. */
static void test_failed_task(void **state)
{
    rig *r = *state;
    faults->task_state = INVALID;
    assert_int_equal(finish(r, begin(r, r->peer, 10, 0), "task 1 of 10 invalid"), KVFERRY_ENGINE);
    faults->task_state = 3;
    assert_int_equal(finish(r, begin(r, r->peer, 10, 0), "canceled"), KVFERRY_ENGINE);
    check_serves(r, r->peer);
    faults->task_state = FAILED;
    assert_int_equal(finish(r, begin(r, r->peer, 10, 0), "failed"), KVFERRY_PEER_LOST);
    assert_true(kvferry_peer_lost(r->peer));
    kvferry_peer_close(r->peer);
    assert_int_equal(connect_to(r, &r->peer), KVFERRY_OK);
    check_serves(r, r->peer);
}

/* What was registered after a connection is known to the next one; what is gone fails there. */
static void test_stale_metadata(void **state)
{
    rig *r = *state;
    uint32_t segment;
    kvferry_peer *second;
    unsigned char *more = calloc(1, BYTES);
    assert_non_null(more);
    assert_int_equal(kvferry_engine_register(r->target, more, BYTES, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_OK);
    assert_int_equal(connect_to(r, &second), KVFERRY_OK);
    for (size_t i = 0; i < 10; i++)
        r->copies[i].target_segment = segment;
    assert_int_equal(finish(r, begin(r, second, 10, 0), ""), KVFERRY_OK);
    assert_memory_equal(more + r->copies[9].target_offset, r->from + r->copies[9].source_offset, EACH);
    assert_int_equal(kvferry_engine_unregister(r->target, segment), KVFERRY_OK);
    assert_int_equal(finish(r, begin(r, second, 10, 0), "failed"), KVFERRY_PEER_LOST);
    free(more);
}

static void test_gone_target(void **state)
{
    rig *r = *state;
    kvferry_peer *peer;
    void *binding;
    size_t size;
    assert_int_equal(kvferry_engine_export(r->target, &binding, &size, report), KVFERRY_OK);
    kvferry_engine_close(r->target);
    kvferry_report_clear(report);
    assert_int_equal(kvferry_engine_connect(r->source, binding, size, &peer, report), KVFERRY_PEER_LOST);
    expect_reason(0, "engine_failed", "does not answer");
    kvferry_free(binding);
    r->target = open_engine(r->to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_library),
        cmocka_unit_test(test_arrival),
        cmocka_unit_test(test_old_library),
#define WITH_RIG(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
        WITH_RIG(test_options),
        WITH_RIG(test_no_instance),
        WITH_RIG(test_registration),
        WITH_RIG(test_window),
        WITH_RIG(test_queue_full),
        WITH_RIG(test_queue_full_half_way),
        WITH_RIG(test_stuck),
        WITH_RIG(test_stuck_and_closed),
        WITH_RIG(test_timeouts),
        WITH_RIG(test_busy_on_free),
        WITH_RIG(test_failed_task),
        WITH_RIG(test_stale_metadata),
        WITH_RIG(test_gone_target),
    };
    library_engine = "mooncake";
    library_variable = "KVFERRY_MOONCAKE_LIBRARY";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
