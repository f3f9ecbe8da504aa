/* SPDX-License-Identifier: Apache-2.0 */
/* Missing and other libraries, options, and what NIXL was seen to do wrong, on demand by the stand-in of
 * tests/nixl. Both sides are engines of this process. */
#include "engine/library_rig_test.h"
#include "nixl/stand_in.h"

static stand_in_faults *faults;

/* --- libraries ------------------------------------------------------------------------------------- */

static void body_no_library(void)
{
    check_libraries(30, "nixl_capi_create_configured_agent", "nixl_capi_get_notifs", "wheel");
}

static void test_no_library(void **state)
{
    (void)state;
    in_child(body_no_library);
}

/* Each is refused by what it says of itself; the next open looks anew. */
static void body_other_libraries(void)
{
    kvferry_engine *engine;
    PAIR_EQUAL(setenv("STAND_IN_STUB", "1", 1), 0);
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    check_message(0, "a stub");
    PAIR_EQUAL(unsetenv("STAND_IN_STUB"), 0);
    PAIR_EQUAL(setenv("STAND_IN_VERSION", "2", 1), 0);
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    check_message(0, "expected 0.1, found 0.2");
    PAIR_EQUAL(unsetenv("STAND_IN_VERSION"), 0);
    PAIR_EQUAL(setenv("NIXL_PLUGIN_DIR", "/elsewhere", 1), 0); /* this test is linked to UCX */
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    check_message(0, "found /elsewhere");
    PAIR_EQUAL(unsetenv("NIXL_PLUGIN_DIR"), 0);
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_OK);
    kvferry_engine_close(engine);
}

static void body_old_library(void)
{
    kvferry_engine *engine;
    use_old_library();
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    check_message(0, "NIXL 1.0 or later");
}

static void test_other_libraries(void **state)
{
    (void)state;
    in_child(body_other_libraries);
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
    const int left[] = {faults->agents, faults->backends, faults->options, faults->lists,
                        faults->requests, faults->news, faults->given};
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++)
        assert_int_equal(left[i], 0);
    memset(faults, 0, sizeof(*faults));
    return 0;
}

static void test_options(void **state)
{
    rig *r = *state;
    kvferry_engine *engine;
    char word[65];
    void *address;
    uint32_t segment;
    memset(word, 'x', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    assert_int_equal(open_with("tcp,self", "", &engine), KVFERRY_INVALID);
    expect_reason(0, "engine_option", "transport");
    assert_int_equal(open_with(word, "", &engine), KVFERRY_INVALID);
    assert_int_equal(open_with("", "lo=1", &engine), KVFERRY_INVALID);
    expect_reason(0, "engine_option", "net_devices");
    assert_int_equal(open_with("tcp", "lo", &engine), KVFERRY_OK);
    assert_non_null(strstr(faults->settings, ",TLS=tcp,NET_DEVICES=lo"));
    kvferry_engine_close(engine);
    assert_int_equal(open_with("", "", &engine), KVFERRY_OK);
    assert_null(strstr(faults->settings, "TLS"));
    assert_null(strstr(faults->settings, "NET_DEVICES"));
    kvferry_engine_close(engine);
    assert_int_equal(kvferry_engine_fd(r->source), -1);
    assert_int_equal(kvferry_engine_allocate(r->source, 4096, &address, &segment, report),
                     KVFERRY_UNSUPPORTED);
    assert_int_equal(kvferry_engine_register(r->source, word, 64, KVFERRY_MEMORY_CUDA, &segment, report),
                     KVFERRY_UNSUPPORTED);
}

/* Of what cannot be made nothing stays, at either place where it is made. */
static void test_no_agent(void **state)
{
    rig *r = *state;
    int *const refusals[] = {&faults->refused_agents, &faults->refused_plugins, &faults->refused_backends};
    static const char *const words[] = {"no agent here", "there is no UCX plugin", "no UCX backend here"};
    for (size_t i = 0; i < 3; i++) {
        kvferry_engine *engine;
        kvferry_peer *peer;
        int before = faults->agents;
        *refusals[i] = 1;
        assert_int_equal(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
        expect_reason(0, "engine_failed", words[i]);
        *refusals[i] = 1;
        assert_int_equal(connect_to(r, &peer), KVFERRY_UNSUPPORTED);
        expect_reason(0, "engine_failed", words[i]);
        assert_int_equal(faults->agents, before);
    }
    check_serves(r, r->peer);
}

/* A segment is with the target and with each connection, or with none of them. */
static void test_registration(void **state)
{
    rig *r = *state;
    uint32_t segment = 99;
    kvferry_peer *second;
    unsigned char *more = malloc(4096);
    assert_non_null(more);
    assert_int_equal(connect_to(r, &second), KVFERRY_OK);
    for (int nth = 1; nth <= 3; nth++) {
        faults->refused_adds = nth;
        kvferry_report_clear(report);
        assert_int_equal(kvferry_engine_register(r->source, more, 4096, KVFERRY_MEMORY_HOST, &segment, report),
                         KVFERRY_ENGINE);
        expect_reason(0, "engine_failed", "cannot be registered: found backend error");
        assert_int_equal(segment, 99);
    }
    assert_int_equal(kvferry_engine_register(r->source, more, 4096, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_OK);
    assert_int_equal(kvferry_engine_unregister(r->source, segment), KVFERRY_OK);
    faults->refused_adds = 1;
    kvferry_peer *third;
    assert_int_equal(connect_to(r, &third), KVFERRY_ENGINE);
    check_serves(r, second);
    free(more);
}

/* Nothing of it was begun: the transfer fails, the connection serves. */
static void test_refused_request(void **state)
{
    rig *r = *state;
    faults->refused_requests = 1;
    assert_int_equal(finish(r, begin(r, r->peer, 10, 0), "not found"), KVFERRY_ENGINE);
    assert_false(kvferry_peer_lost(r->peer));
    check_nothing_moved(r);
    check_serves(r, r->peer);
}

static void test_instant(void **state)
{
    rig *r = *state;
    faults->instant_posts = 2;
    check_serves(r, r->peer);
    assert_int_equal(faults->instant_posts, 0);
}

/* What is under way of a failed request leaves no more once the transfer is over: the connection ends, and
 * with it what else it had. Others go on. */
static void check_doubt(rig *r, int *failures)
{
    kvferry_peer *second;
    assert_int_equal(connect_to(r, &second), KVFERRY_OK);
    faults->stuck = 1;
    kvferry_transfer *before = begin(r, r->peer, 100, 0), *beside = begin(r, second, 100, 0);
    progress(r, 10);
    *failures = 1;
    kvferry_transfer *transfer = begin(r, r->peer, 100, 0);
    assert_int_equal(finish(r, transfer, "backend error"), KVFERRY_PEER_LOST);
    assert_int_equal(*failures, 0);
    assert_int_equal(finish(r, before, "backend error"), KVFERRY_PEER_LOST);
    assert_true(kvferry_peer_lost(r->peer));
    assert_int_equal(kvferry_transfer_get(beside)->status, KVFERRY_BUSY);
    memset(r->from, 0, BYTES);
    faults->stuck = 0;
    assert_int_equal(finish(r, beside, ""), KVFERRY_OK);
    pair_fill(r->from, BYTES, 3);
    progress(r, 1000);
    check_nothing_moved(r);
    assert_int_equal(finish(r, begin(r, r->peer, 1, 0), ""), KVFERRY_PEER_LOST);
    kvferry_peer_close(r->peer);
    assert_int_equal(connect_to(r, &r->peer), KVFERRY_OK);
    check_serves(r, r->peer);
    check_serves(r, second);
}

static void test_failed_post(void **state)
{
    rig *r = *state;
    check_doubt(r, &faults->failed_posts);
}

static void test_failed_poll(void **state)
{
    rig *r = *state;
    check_doubt(r, &faults->failed_polls);
}

/* What follows a failed post waits for its end, and is not posted. */
static void test_failed_post_of_many(void **state)
{
    rig *r = *state;
    faults->failed_posts = 2;
    assert_int_equal(finish(r, begin(r, r->peer, COPIES, 0), "backend error"), KVFERRY_PEER_LOST);
    assert_int_equal(faults->failed_posts, 1);
}

/* A peer that answers nothing keeps a request in progress for ever. */
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

/* A request that is let go may go on: a close takes the agent, so that nothing leaves it. */
static void test_stuck_and_closed(void **state)
{
    rig *r = *state;
    kvferry_peer *second;
    assert_int_equal(connect_to(r, &second), KVFERRY_OK);
    faults->stuck = 1;
    kvferry_transfer *transfer = begin(r, r->peer, 100, 0), *beside = begin(r, second, 100, 0);
    progress(r, 1);
    int agents = faults->agents;
    kvferry_peer_close(r->peer);
    assert_int_equal(faults->agents, agents - 1);
    assert_int_equal(finish(r, transfer, "closed"), KVFERRY_PEER_LOST);
    assert_int_equal(kvferry_transfer_get(beside)->status, KVFERRY_BUSY);
    memset(r->from, 0, BYTES);
    faults->stuck = 0;
    assert_int_equal(finish(r, beside, ""), KVFERRY_OK);
    pair_fill(r->from, BYTES, 3);
    progress(r, 1000);
    check_nothing_moved(r);
    check_serves(r, second);
}

/* What the target has given back is not written to, and the connection is lost; a new one knows. */
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
    assert_int_equal(finish(r, begin(r, second, 10, 0), "backend error"), KVFERRY_PEER_LOST);
    kvferry_peer_close(second);
    assert_int_equal(connect_to(r, &second), KVFERRY_OK);
    for (size_t i = 0; i < 10; i++)
        r->copies[i].target_segment = 0;
    check_serves(r, second);
    free(more);
}

static void test_gone_target(void **state)
{
    rig *r = *state;
    kvferry_peer *peer;
    void *binding;
    size_t size;
    int before = faults->loads;
    assert_int_equal(kvferry_engine_export(r->target, &binding, &size, report), KVFERRY_OK);
    kvferry_engine_close(r->target);
    kvferry_report_clear(report);
    assert_int_equal(kvferry_engine_connect(r->source, binding, size, &peer, report), KVFERRY_PEER_LOST);
    assert_int_equal(faults->loads, before + 1);
    expect_reason(0, "engine_failed", "cannot be reached");
    kvferry_free(binding);
    r->target = open_engine(r->to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_library),
        cmocka_unit_test(test_other_libraries),
#define WITH_RIG(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
        WITH_RIG(test_options),
        WITH_RIG(test_no_agent),
        WITH_RIG(test_registration),
        WITH_RIG(test_refused_request),
        WITH_RIG(test_instant),
        WITH_RIG(test_failed_post),
        WITH_RIG(test_failed_poll),
        WITH_RIG(test_failed_post_of_many),
        WITH_RIG(test_stuck),
        WITH_RIG(test_stuck_and_closed),
        WITH_RIG(test_stale_metadata),
        WITH_RIG(test_gone_target),
    };
    library_engine = "nixl";
    library_variable = "KVFERRY_NIXL_LIBRARY";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
