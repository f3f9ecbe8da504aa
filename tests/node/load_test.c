/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many transfers: a thousand at once between eight prefill and eight decode engines, and many one after the other.
 *   node_load_test [ENGINE TRANSPORT [NUMBER]]     NUMBER: one after the other (5,000)
 * Each ends right, nothing is left of it, and memory does not grow.
 */
#define RIG_BLOCK_COUNT 160
#include <malloc.h>

#include "nodes.h"

enum { SIDES = 8, OF_PAIR = 16, AT_ONCE = SIDES * SIDES * OF_PAIR, TOKENS = 4 };

static uint32_t sequence = 5000;
static worker prefill[SIDES], decode[SIDES];
static const char *const prefill_names[SIDES] = {"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"};
static const char *const decode_names[SIDES] = {"d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"};

/* Ends are remembered for a moment only, so that what is measured is what is lost. */
static void open_one(worker *w, const char *engine_id)
{
    kvferry_node_options options = nodes_options(engine_id);
    options.remember_ms = 20;
    options.log_level = KVFERRY_LOG_ERROR;
    worker_open(w, &(rig_shape){.engine_id = engine_id, .tps = 1, .pps = 1}, &options);
}

static int open_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIDES; i++) {
        open_one(&prefill[i], prefill_names[i]);
        open_one(&decode[i], decode_names[i]);
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIDES; i++) {
        worker_close(&decode[i]);
        worker_close(&prefill[i]);
    }
    return 0;
}

/* Which block transfer `n` of a pair has at either side: of its own. */
static uint32_t block_of(size_t other, size_t n) { return (uint32_t)(1 + other * OF_PAIR + n); }

static void name_of(char id[32], size_t p, size_t d, size_t n, uint32_t round)
{
    snprintf(id, 32, "%u.%zu.%zu.%zu", round, p, d, n);
}

/* Takes events until `count` transfers are released; all must have been done. */
static void await_released(worker *w, size_t count)
{
    for (size_t released = 0; released < count;) {
        assert_int_equal(kvferry_node_wait(w->node, NODES_PATIENCE_MS), KVFERRY_OK);
        for (kvferry_event *event; (event = kvferry_node_next_event(w->node));) {
            bool ends = event->kind == KVFERRY_EVENT_ENDED || event->kind == KVFERRY_EVENT_RELEASED;
            if (ends && event->outcome != KVFERRY_OUTCOME_DONE)
                print_reasons(event->report);
            assert_true(!ends || event->outcome == KVFERRY_OUTCOME_DONE);
            released += event->kind == KVFERRY_EVENT_RELEASED;
            kvferry_event_free(event);
        }
    }
}

static void nothing_is_left(const worker *w)
{
    kvferry_node_statistics now = statistics_of(w);
    for (size_t side = 0; side < 2; side++)
        assert_int_equal(now.live[side] + now.unreleased[side], 0);
    assert_int_equal(now.quarantined_blocks + now.queued_copies + now.events_waiting, 0);
}

static void a_thousand_at_once(void **state)
{
    (void)state;
    char id[32];
    for (size_t p = 0; p < SIDES; p++)
        for (size_t d = 0; d < SIDES; d++)
            for (size_t n = 0; n < OF_PAIR; n++) {
                uint32_t from = block_of(d, n), to = block_of(p, n);
                name_of(id, p, d, n, 0);
                walk_cells(&prefill[p], &from, TOKENS, (uint32_t)(p * 1000 + d * 100 + n), true);
                MUST(worker_offer(&prefill[p], id, &from, TOKENS, KVFERRY_NOT_READY, report));
                MUST(worker_ask(&decode[d], id, prefill_names[p], kvferry_node_address(prefill[p].node), &to, TOKENS, report));
            }
    uint64_t live = 0;
    for (size_t d = 0; d < SIDES; d++)
        live += statistics_of(&decode[d]).live[KVFERRY_SIDE_DECODE];
    assert_int_equal(live, AT_ONCE);
    for (size_t p = 0; p < SIDES; p++)
        for (size_t d = 0; d < SIDES; d++)
            for (size_t n = 0; n < OF_PAIR; n++) {
                name_of(id, p, d, n, 0);
                assert_int_equal(kvferry_node_ready(prefill[p].node, id), KVFERRY_OK);
            }
    for (size_t i = 0; i < SIDES; i++) {
        await_released(&decode[i], SIDES * OF_PAIR);
        await_released(&prefill[i], SIDES * OF_PAIR);
    }
    for (size_t p = 0; p < SIDES; p++)
        for (size_t d = 0; d < SIDES; d++)
            for (size_t n = 0; n < OF_PAIR; n++) {
                uint32_t to = block_of(p, n);
                assert_true(walk_cells(&decode[d], &to, TOKENS, (uint32_t)(p * 1000 + d * 100 + n), false));
            }
    for (size_t i = 0; i < SIDES; i++) {
        nothing_is_left(&prefill[i]);
        nothing_is_left(&decode[i]);
    }
}

static void one_after_the_other(uint32_t begin, uint32_t end)
{
    char id[32];
    for (uint32_t round = begin; round < end; round++) {
        size_t p = round % SIDES, d = round / SIDES % SIDES;
        uint32_t from = 1 + round % 100, to = 1 + round * 7 % 100;
        name_of(id, p, d, 0, round + 1);
        walk_cells(&prefill[p], &from, TOKENS, round, true);
        MUST(worker_offer(&prefill[p], id, &from, TOKENS, KVFERRY_READY, report));
        MUST(worker_ask(&decode[d], id, prefill_names[p], kvferry_node_address(prefill[p].node), &to,
                        TOKENS, report));
        await_released(&decode[d], 1);
        await_released(&prefill[p], 1);
        assert_true(walk_cells(&decode[d], &to, TOKENS, round, false));
    }
}

/* Bytes that the process has in memory once the ends of transfers are forgotten. */
static size_t resident(void)
{
    usleep(200000);
    malloc_trim(0);
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %lu", &pages), 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void many_one_after_the_other(void **state)
{
    (void)state;
    one_after_the_other(0, sequence / 2);
    size_t before = resident();
    one_after_the_other(sequence / 2, sequence);
    size_t after = resident();
    printf("%u transfers: %zu bytes in memory after half of them, %zu in the end\n", sequence, before, after);
    assert_in_range(after, 0, before + (4 << 20));
    for (size_t i = 0; i < SIDES; i++) {
        nothing_is_left(&prefill[i]);
        nothing_is_left(&decode[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2) {
        nodes_engine = argv[1];
        nodes_transport = argv[2];
    }
    if (argc > 3)
        sequence = (uint32_t)strtoul(argv[3], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_at_once),
        cmocka_unit_test(many_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
