/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines while memory runs out: engine_faults_test ENGINE. Every allocation of the library in every
 * call fails, alone and with all later ones; the call says so, its output is not set, and closing frees everything.
 */
#include <kvferry/engine.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "each.h"
#include "guard.h"
#include "test.h"

#define FAULTS(function) _Static_assert(sizeof(&function) == sizeof(void *), #function);
#define QUIET(function) _Static_assert(sizeof(&function) == sizeof(void *), #function);

static char untouched_byte;
#define UNTOUCHED ((void *)&untouched_byte)
#define UNTOUCHED_INDEX 7777u

enum { BYTES = 64 * 1024, COPIES = 64, PATIENCE_SECONDS = 20 };

static const char *engine_name;
static kvferry_report *report;
static char caches[2][BYTES];

static void must(kvferry_status status)
{
    for (size_t i = 0; status != KVFERRY_OK && i < kvferry_report_count(report); i++)
        print_error("%s\n", kvferry_report_get(report, i)->message);
    assert_int_equal(status, KVFERRY_OK);
}

static kvferry_engine *open_engine(void)
{
    kvferry_engine *engine;
    must(kvferry_engine_open(engine_name, NULL, &engine, report));
    return engine;
}

static kvferry_engine *open_with_segment(int side)
{
    kvferry_engine *engine = open_engine();
    uint32_t segment;
    must(kvferry_engine_register(engine, caches[side], BYTES, KVFERRY_MEMORY_HOST, &segment,
                                 report));
    return engine;
}

/* --- one engine ------------------------------------------------------------------------------ */

FAULTS(kvferry_engine_open)
static kvferry_status engine_open(void)
{
    kvferry_engine *engine = UNTOUCHED;
    guard_begin();
    kvferry_status status = kvferry_engine_open(engine_name, NULL, &engine, report);
    guard_end();
    if (status == KVFERRY_OK)
        kvferry_engine_close(engine);
    else
        assert_ptr_equal(engine, UNTOUCHED);
    return status;
}

FAULTS(kvferry_engine_register)
static kvferry_status engine_register(void)
{
    kvferry_engine *engine = open_engine();
    uint32_t segment = UNTOUCHED_INDEX;
    guard_begin();
    kvferry_status status = kvferry_engine_register(engine, caches[0], BYTES, KVFERRY_MEMORY_HOST,
                                                    &segment, report);
    guard_end();
    assert_int_equal(segment, status == KVFERRY_OK ? 0 : UNTOUCHED_INDEX);
    kvferry_engine_close(engine);
    return status;
}

FAULTS(kvferry_engine_allocate)
static kvferry_status engine_allocate(void)
{
    kvferry_engine *engine = open_engine();
    if (!kvferry_engine_get_capabilities(engine)->allocates) {
        kvferry_engine_close(engine);
        return KVFERRY_OK; /* the refusal allocates nothing */
    }
    uint32_t segment = UNTOUCHED_INDEX;
    void *address = UNTOUCHED;
    guard_begin();
    kvferry_status status = kvferry_engine_allocate(engine, BYTES, &address, &segment, report);
    guard_end();
    if (status == KVFERRY_OK) {
        memset(address, 1, BYTES);
    } else {
        assert_ptr_equal(address, UNTOUCHED);
        assert_int_equal(segment, UNTOUCHED_INDEX);
    }
    kvferry_engine_close(engine);
    return status;
}

FAULTS(kvferry_engine_export)
static kvferry_status engine_export(void)
{
    kvferry_engine *engine = open_with_segment(0);
    void *binding = UNTOUCHED;
    size_t size = 77;
    guard_begin();
    kvferry_status status = kvferry_engine_export(engine, &binding, &size, report);
    guard_end();
    if (status == KVFERRY_OK) {
        kvferry_free(binding);
    } else {
        assert_ptr_equal(binding, UNTOUCHED);
        assert_int_equal(size, 77);
    }
    kvferry_engine_close(engine);
    return status;
}

/* --- two engines ----------------------------------------------------------------------------- */

typedef struct pair {
    kvferry_engine *source, *target;
    void *binding; /* the target's */
    size_t size;
    kvferry_peer *peer;
} pair;

static pair open_pair(bool connect)
{
    pair p = {.source = open_with_segment(0), .target = open_with_segment(1)};
    must(kvferry_engine_export(p.target, &p.binding, &p.size, report));
    if (connect)
        must(kvferry_engine_connect(p.source, p.binding, p.size, &p.peer, report));
    return p;
}

static void close_pair(pair *p)
{
    kvferry_free(p->binding);
    kvferry_engine_close(p->source);
    kvferry_engine_close(p->target);
}

FAULTS(kvferry_engine_connect)
static kvferry_status engine_connect(void)
{
    pair p = open_pair(false);
    p.peer = UNTOUCHED;
    guard_begin();
    kvferry_status status = kvferry_engine_connect(p.source, p.binding, p.size, &p.peer, report);
    guard_end();
    if (status == KVFERRY_OK)
        kvferry_peer_close(p.peer);
    else
        assert_ptr_equal(p.peer, UNTOUCHED);
    close_pair(&p);
    return status;
}

static kvferry_status connect_malformed(void)
{
    pair p = open_pair(false);
    p.peer = UNTOUCHED;
    guard_begin();
    kvferry_status status = kvferry_engine_connect(p.source, p.binding, p.size - 1, &p.peer, report);
    guard_end();
    assert_ptr_equal(p.peer, UNTOUCHED);
    close_pair(&p);
    return status;
}

/* Progress of both sides, only the source's within the guard, until the transfer is over. */
static kvferry_status drive(pair *p, const kvferry_transfer *transfer)
{
    time_t end = time(NULL) + PATIENCE_SECONDS;
    while (!kvferry_transfer_get(transfer)->over) {
        guard_begin();
        kvferry_status status = kvferry_engine_progress(p->source, NULL);
        guard_end();
        if (status != KVFERRY_OK)
            return status;
        must(kvferry_engine_progress(p->target, NULL));
        if (time(NULL) > end)
            fail_msg("%s: the transfer does not end", engine_name);
    }
    return kvferry_transfer_get(transfer)->status;
}

static void make_copies(kvferry_copy *copies, uint64_t bytes)
{
    for (uint64_t i = 0; i < COPIES; i++)
        copies[i] = (kvferry_copy){.source_offset = i * 1024, .target_offset = (COPIES - 1 - i) * 1024,
                                   .bytes = bytes};
}

FAULTS(kvferry_transfer_begin)
FAULTS(kvferry_engine_progress)
static kvferry_status transfer_whole(void)
{
    kvferry_copy copies[COPIES];
    make_copies(copies, 512);
    pair p = open_pair(true);
    kvferry_transfer *transfer = UNTOUCHED;
    guard_begin();
    kvferry_status status = kvferry_transfer_begin(p.source, p.peer, KVFERRY_WRITE, copies, COPIES, 0,
                                                   &transfer, report);
    guard_end();
    if (status == KVFERRY_OK) {
        status = drive(&p, transfer);
        if (status == KVFERRY_OK)
            for (size_t i = 0; i < COPIES; i++)
                assert_memory_equal(caches[1] + copies[i].target_offset,
                                    caches[0] + copies[i].source_offset, 512);
        kvferry_peer_close(p.peer);
        assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    } else {
        assert_ptr_equal(transfer, UNTOUCHED);
    }
    close_pair(&p);
    return status;
}

static kvferry_status transfer_out_of_range(void)
{
    enum { BAD = 3 }; /* each is a reason with allocations of its own */
    kvferry_copy copies[COPIES];
    make_copies(copies, BYTES);
    pair p = open_pair(true);
    kvferry_transfer *transfer = UNTOUCHED;
    guard_begin();
    kvferry_status status = kvferry_transfer_begin(p.source, p.peer, KVFERRY_WRITE, copies + 1, BAD, 0,
                                                   &transfer, report);
    guard_end();
    assert_ptr_equal(transfer, UNTOUCHED);
    close_pair(&p);
    return status;
}

/* --- the loop -------------------------------------------------------------------------------- */

static const struct fault_case {
    const char *name;
    kvferry_status expected;
    kvferry_status (*call)(void);
} cases[] = {
    {"open", KVFERRY_OK, engine_open},
    {"register", KVFERRY_OK, engine_register},
    {"allocate", KVFERRY_OK, engine_allocate},
    {"export", KVFERRY_OK, engine_export},
    {"connect", KVFERRY_OK, engine_connect},
    {"connect, malformed", KVFERRY_MALFORMED, connect_malformed},
    {"transfer", KVFERRY_OK, transfer_whole},
    {"transfer, out of range", KVFERRY_OUT_OF_RANGE, transfer_out_of_range},
};

static kvferry_status run_once(const void *which, size_t n, bool on)
{
    const struct fault_case *c = which;
    memset(caches[1], 0, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        caches[0][i] = (char)(i / 512 + i % 7);
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
    char detail[64];
    snprintf(detail, sizeof detail, ", %s", engine_name);
    each_allocation_fails(&(each_case){c->name, detail, c->expected, run_once, c}, on);
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

/* --- calls that allocate nothing of their own ------------------------------------------------ */

static bool idle(void *self) { return self != NULL; }

QUIET(kvferry_engine_add)
QUIET(kvferry_engine_get_capabilities)
QUIET(kvferry_engine_fd)
QUIET(kvferry_engine_arm)
QUIET(kvferry_engine_unregister)
QUIET(kvferry_engine_close)
QUIET(kvferry_peer_lost)
QUIET(kvferry_peer_leave)
QUIET(kvferry_peer_close)
QUIET(kvferry_transfer_get)
QUIET(kvferry_transfer_cancel)
QUIET(kvferry_transfer_free)
static void ending_allocates_nothing(void **state)
{
    (void)state;
    static const kvferry_engine_ops incomplete = {.size = sizeof(incomplete), .name = "incomplete",
                                                  .progress = idle};
    must(kvferry_report_create(&report));
    kvferry_copy copies[COPIES];
    make_copies(copies, 512);
    pair p = open_pair(true);
    kvferry_transfer *transfer;
    must(kvferry_transfer_begin(p.source, p.peer, KVFERRY_WRITE, copies, COPIES, 0, &transfer,
                                report));
    guard_fail_at(0, false);
    guard_begin();
    kvferry_status added = kvferry_engine_add(&incomplete, NULL);
    bool named = strcmp(kvferry_engine_get_capabilities(p.source)->name, engine_name) == 0;
    int fd = kvferry_engine_fd(p.source);
    kvferry_status armed = kvferry_engine_arm(p.source);
    bool lost = kvferry_peer_lost(p.peer);
    kvferry_transfer_cancel(transfer);
    kvferry_status canceled = kvferry_transfer_get(transfer)->status;
    bool left = kvferry_peer_leave(p.peer);
    kvferry_peer_close(p.peer);
    kvferry_status freed = kvferry_transfer_free(transfer);
    kvferry_status unregistered = kvferry_engine_unregister(p.source, 0);
    kvferry_engine_close(p.source);
    guard_end();
    assert_int_equal(guard_allocations(), 0);
    assert_int_equal(added, KVFERRY_INVALID);
    assert_true(named);
    assert_true(armed == KVFERRY_OK || armed == KVFERRY_BUSY || fd < 0);
    assert_false(lost);
    assert_true(left);
    assert_int_equal(canceled, KVFERRY_CANCELED);
    assert_int_equal(freed, KVFERRY_OK);
    assert_int_equal(unregistered, KVFERRY_OK);
    kvferry_free(p.binding);
    kvferry_engine_close(p.target);
    kvferry_report_free(report);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: engine_faults_test ENGINE\n");
        return 2;
    }
    engine_name = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_allocation_fails),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(ending_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
