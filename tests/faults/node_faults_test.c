/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes while memory runs out: every allocation that a call makes on its caller's thread fails, alone and with
 * all later ones. The call says so, what it answers is not set, and closing frees everything.
 */
#include <stdio.h>
#include <string.h>

#include <kvferry/node.h>

#include "each.h"
#include "guard.h"
#include "node/rig_layout_test.h"
#include "node/scratch_test.h"

#define FAULTS(function) _Static_assert(sizeof(&function) == sizeof(void *), #function);
#define QUIET(function) _Static_assert(sizeof(&function) == sizeof(void *), #function);

static char untouched_byte;
#define UNTOUCHED ((void *)&untouched_byte)

enum { PATIENCE_MS = 20000 };

static kvferry_report *report;
static kvferry_layout *layout;
static const uint32_t blocks[] = {3, 9, 4};
static const kvferry_block_table table = {"attn", 0, blocks, 3};

static void must(kvferry_status status)
{
    for (size_t i = 0; status != KVFERRY_OK && i < kvferry_report_count(report); i++)
        print_error("%s\n", kvferry_report_get(report, i)->message);
    assert_int_equal(status, KVFERRY_OK);
}

static kvferry_status create(kvferry_node **node, bool all)
{
    const kvferry_node_segment segment = {NULL, KVFERRY_MEMORY_HOST};
    kvferry_node_options options = {.size = sizeof(options), .engine = "memory"};
    if (all) {
        options.bootstrap_listen = options.metrics_listen = "127.0.0.1:0";
        options.key_file = scratch("key");
        options.allowed_keys = scratch("key.pub");
    }
    return kvferry_node_create(&options, layout, &segment, 1, node, report);
}

static kvferry_node *open_node(void)
{
    kvferry_node *node;
    must(create(&node, false));
    return node;
}

static kvferry_status node_create(bool all)
{
    kvferry_node *node = UNTOUCHED;
    guard_begin();
    kvferry_status status = create(&node, all);
    guard_end();
    if (status == KVFERRY_OK)
        kvferry_node_close(node);
    else
        assert_ptr_equal(node, UNTOUCHED);
    return status;
}

FAULTS(kvferry_node_create)
static kvferry_status create_plain(void) { return node_create(false); }
static kvferry_status create_with_all(void) { return node_create(true); }

FAULTS(kvferry_keys_generate)
static kvferry_status keys_generate(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s", scratch("made"));
    guard_begin();
    kvferry_status status = kvferry_keys_generate(path, report);
    guard_end();
    assert_int_equal(access(path, F_OK) == 0, status == KVFERRY_OK);
    unlink(path);
    unlink(scratch("made.pub"));
    return status;
}

/* --- calls of a node that is open ------------------------------------------------------------- */

/* `call` once within the guard. */
static kvferry_status with_node(kvferry_status (*call)(kvferry_node *))
{
    kvferry_node *node = open_node();
    guard_begin();
    kvferry_status status = call(node);
    guard_end();
    kvferry_node_close(node);
    return status;
}

#define CALL(name, function, ...)                                                                  \
    static kvferry_status call_##name(kvferry_node *node) { return function(node, __VA_ARGS__); } \
    static kvferry_status name(void) { return with_node(call_##name); }

FAULTS(kvferry_node_set_leader)
CALL(set_leader, kvferry_node_set_leader, "tcp://127.0.0.1:1", report)
FAULTS(kvferry_node_connect)
CALL(connect_to, kvferry_node_connect, "p", "tcp://127.0.0.1:1", report)
CALL(connect_file, kvferry_node_connect, "p", "file:/nowhere", report)
FAULTS(kvferry_node_declare_dead)
CALL(declare_dead, kvferry_node_declare_dead, "0123456789abcdef", report)
FAULTS(kvferry_node_expect)
CALL(expect, kvferry_node_expect, "r", report)
FAULTS(kvferry_node_renew)
CALL(renew, kvferry_node_renew, "p", "r", report)
FAULTS(kvferry_node_offer)
CALL(offer, kvferry_node_offer,
     &(kvferry_offer){.size = sizeof(kvferry_offer), .transfer_id = "r", .tokens = 10, .tables = &table,
                      .table_count = 1, .readiness = KVFERRY_READY},
     report)
FAULTS(kvferry_node_ask)
CALL(ask, kvferry_node_ask,
     &(kvferry_ask){.size = sizeof(kvferry_ask), .transfer_id = "r", .engine_id = "p",
                    .where = "tcp://127.0.0.1:1", .tokens = 10, .tables = &table, .table_count = 1},
     report)

FAULTS(kvferry_node_status)
static kvferry_status node_status(void)
{
    char *text = UNTOUCHED;
    size_t size = 77;
    kvferry_node *node = open_node();
    guard_begin();
    kvferry_status status = kvferry_node_status(node, &text, &size);
    guard_end();
    kvferry_node_close(node);
    if (status == KVFERRY_OK) {
        kvferry_free(text);
    } else {
        assert_ptr_equal(text, UNTOUCHED);
        assert_int_equal(size, 77);
    }
    return status;
}

FAULTS(kvferry_node_query)
static kvferry_status node_query(void)
{
    char *text = UNTOUCHED;
    size_t size = 77;
    kvferry_node *node = open_node();
    guard_begin();
    kvferry_status status = kvferry_node_query(kvferry_node_address(node), NULL, PATIENCE_MS, &text, &size,
                                               report);
    guard_end();
    kvferry_node_close(node);
    if (status == KVFERRY_OK) {
        kvferry_free(text);
    } else {
        assert_ptr_equal(text, UNTOUCHED);
        assert_int_equal(size, 77);
    }
    return status;
}

FAULTS(kvferry_node_declare_dead_at)
static kvferry_status declare_dead_at(void)
{
    kvferry_declared declared = {.blocks = 77};
    kvferry_node *node = open_node();
    guard_begin();
    kvferry_status status = kvferry_node_declare_dead_at(kvferry_node_address(node), NULL, "0123456789abcdef", PATIENCE_MS,
                                                         &declared, report);
    guard_end();
    kvferry_node_close(node);
    assert_int_equal(declared.blocks, 77);
    return status;
}

FAULTS(kvferry_node_ready)
FAULTS(kvferry_node_abort)
FAULTS(kvferry_node_next_event)
FAULTS(kvferry_node_drain)
static kvferry_status whole_life(void)
{
    kvferry_node *node = open_node();
    const kvferry_offer given = {.size = sizeof(given), .transfer_id = "r", .tokens = 10, .tables = &table,
                                 .table_count = 1, .readiness = KVFERRY_NOT_READY};
    must(kvferry_node_offer(node, &given, report));
    guard_begin();
    kvferry_status status = kvferry_node_ready(node, "r");
    kvferry_status aborted = kvferry_node_abort(node, KVFERRY_SIDE_PREFILL, "r");
    kvferry_status drained = kvferry_node_drain(node, aborted == KVFERRY_OK ? PATIENCE_MS : 0);
    kvferry_event_free(kvferry_node_next_event(node));
    guard_end();
    kvferry_node_close(node);
    if (status == KVFERRY_OK)
        status = aborted;
    return status == KVFERRY_OK ? drained : status;
}

/* --- the loop --------------------------------------------------------------------------------- */

static const struct fault_case {
    const char *name;
    kvferry_status expected;
    kvferry_status (*call)(void);
} cases[] = {
    {"create", KVFERRY_OK, create_plain},
    {"create, with all", KVFERRY_OK, create_with_all},
    {"keys", KVFERRY_OK, keys_generate},
    {"set_leader", KVFERRY_OK, set_leader},
    {"connect", KVFERRY_OK, connect_to},
    {"connect, file", KVFERRY_OK, connect_file},
    {"declare_dead", KVFERRY_NOT_FOUND, declare_dead},
    {"expect", KVFERRY_OK, expect},
    {"renew", KVFERRY_NOT_FOUND, renew},
    {"offer", KVFERRY_OK, offer},
    {"ask", KVFERRY_OK, ask},
    {"status", KVFERRY_OK, node_status},
    {"query", KVFERRY_OK, node_query},
    {"declare_dead_at", KVFERRY_NOT_FOUND, declare_dead_at},
    {"ready, abort, drain", KVFERRY_OK, whole_life},
};

static kvferry_status run_once(const void *which, size_t n, bool on)
{
    const struct fault_case *c = which;
    must(kvferry_report_create(&report));
    guard_fail_at(n, on);
    kvferry_status status = c->call();
    kvferry_report_free(report);
    if (guard_live() != 0)
        fail_msg("%s, allocation %zu: %zu allocations are left", c->name, n, guard_live());
    return status;
}

static void fail_each(const struct fault_case *c, bool on)
{
    each_allocation_fails(&(each_case){c->name, "", c->expected, run_once, c}, on);
}

static void one_allocation_fails(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fail_each(&cases[i], false);
}

static void memory_runs_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fail_each(&cases[i], true);
}

/* --- calls that allocate nothing of their own ------------------------------------------------- */

QUIET(kvferry_node_close)
QUIET(kvferry_node_segment_address)
QUIET(kvferry_node_address)
QUIET(kvferry_node_bootstrap)
QUIET(kvferry_node_metrics)
QUIET(kvferry_node_incarnation)
QUIET(kvferry_node_fd)
QUIET(kvferry_node_wait)
QUIET(kvferry_node_get_statistics)
QUIET(kvferry_outcome_name)
QUIET(kvferry_event_free)
QUIET(kvferry_node_check_address)
static void looking_allocates_nothing(void **state)
{
    (void)state;
    must(kvferry_report_create(&report));
    kvferry_node *node = open_node();
    kvferry_node_statistics statistics;
    guard_fail_at(0, false);
    guard_begin();
    bool memory = kvferry_node_segment_address(node, 0) && !kvferry_node_segment_address(node, 1);
    bool named = *kvferry_node_address(node) && !*kvferry_node_bootstrap(node) &&
                 !*kvferry_node_metrics(node) && strlen(kvferry_node_incarnation(node)) == 16;
    bool waits = kvferry_node_wait(node, 1) == KVFERRY_TIMEOUT && kvferry_node_fd(node) >= 0;
    kvferry_node_get_statistics(node, &statistics);
    bool address = kvferry_node_check_address(kvferry_node_address(node), report) == KVFERRY_OK;
    bool outcome = strcmp(kvferry_outcome_name(KVFERRY_OUTCOME_EXPIRED), "expired") == 0;
    kvferry_event_free(NULL);
    kvferry_node_close(node);
    guard_end();
    assert_int_equal(guard_allocations(), 0);
    assert_true(memory);
    assert_true(named);
    assert_true(waits);
    assert_true(address);
    assert_true(outcome);
    assert_int_equal(statistics.live[0], 0);
    kvferry_report_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_allocation_fails),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(looking_allocates_nothing),
    };
    must(kvferry_report_create(&report));
    layout = rig_layout(&(rig_shape){.engine_id = "e", .tps = 1, .pps = 1});
    must(kvferry_keys_generate(scratch("key"), report));
    kvferry_report_free(report);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kvferry_layout_free(layout);
    scratch_end();
    return failed;
}
