/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads at once; drains and closes under load; what is left behind. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "nodes.h"

static const uint32_t from[] = {3, 9, 4}, to[] = {8, 2, 30};

static size_t descriptors(void)
{
    size_t found = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory))
        found++;
    closedir(directory);
    return found;
}

/* --- threads ---------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 60 };

typedef struct crowd {
    worker prefill, decode;
    atomic_uint ended[2], released[2]; /* by side */
} crowd;

typedef struct crowd_member {
    crowd *all;
    unsigned number;
} crowd_member;

/* Offers, asks and aborts of its own, in blocks of its own. */
static void *work(void *context)
{
    const crowd_member *me = context;
    crowd *all = me->all;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        char id[32];
        const uint32_t blocks[] = {1 + 3 * me->number, 2 + 3 * me->number, 3 + 3 * me->number};
        snprintf(id, sizeof(id), "t%u-%u", me->number, i);
        worker_offer(&all->prefill, id, blocks, 10, i % 2 ? KVFERRY_READY : KVFERRY_NOT_READY,
                     NULL);
        /* The blocks of the one before may be in quarantine still: then it is refused. */
        while (worker_ask(&all->decode, id, "p", kvferry_node_address(all->prefill.node), blocks,
                          10, NULL) != KVFERRY_OK)
            usleep(500);
        if (i % 2 == 0)
            kvferry_node_ready(all->prefill.node, id);
        if (i % 5 == 4)
            kvferry_node_abort(all->decode.node, KVFERRY_SIDE_DECODE, id);
    }
    return NULL;
}

/* Takes the events of both sides and looks at all there is to look at. */
static void *look(void *context)
{
    crowd *all = context;
    while (atomic_load(&all->released[0]) < THREADS * ROUNDS ||
           atomic_load(&all->released[1]) < THREADS * ROUNDS) {
        worker *const sides[] = {&all->prefill, &all->decode};
        for (int side = 0; side < 2; side++) {
            kvferry_event *event = kvferry_node_next_event(sides[side]->node);
            if (event && event->kind == KVFERRY_EVENT_ENDED)
                atomic_fetch_add(&all->ended[side], 1);
            if (event && event->kind == KVFERRY_EVENT_RELEASED)
                atomic_fetch_add(&all->released[side], 1);
            if (!event)
                kvferry_node_wait(sides[side]->node, 1);
            kvferry_event_free(event);
            statistics_of(sides[side]);
            char *text;
            size_t size;
            if (kvferry_node_status(sides[side]->node, &text, &size) == KVFERRY_OK)
                kvferry_free(text);
        }
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    static crowd all;
    pthread_t threads[THREADS], watchers[2];
    crowd_member members[THREADS];
    worker_open_alone(&all.prefill, "p");
    worker_open_alone(&all.decode, "d");
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&watchers[i], NULL, look, &all), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        members[i] = (crowd_member){&all, i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &members[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(watchers[i], NULL);
    for (int side = 0; side < 2; side++) { /* each once, and once */
        assert_int_equal(atomic_load(&all.ended[side]), THREADS * ROUNDS);
        assert_int_equal(atomic_load(&all.released[side]), THREADS * ROUNDS);
    }
    kvferry_node_statistics now = statistics_of(&all.decode);
    assert_int_equal(now.ended[1][0] + now.ended[1][1] + now.ended[1][2] + now.ended[1][3],
                     THREADS * ROUNDS);
    assert_in_range(now.ended[1][KVFERRY_OUTCOME_DONE], THREADS * ROUNDS / 2, THREADS * ROUNDS);
    worker_close(&all.decode);
    worker_close(&all.prefill);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void test_drain(void **state)
{
    (void)state;
    worker prefill;
    kvferry_report *refusal;
    assert_int_equal(kvferry_report_create(&refusal), KVFERRY_OK);
    worker_open_alone(&prefill, "p");
    MUST(worker_offer(&prefill, "r", from, 10, KVFERRY_READY, report));
    assert_int_equal(kvferry_node_drain(prefill.node, 20), KVFERRY_TIMEOUT);
    assert_int_equal(worker_offer(&prefill, "s", from, 10, KVFERRY_READY, refusal),
                     KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(refusal, 0)->code, "node_closing");
    assert_int_equal(kvferry_node_abort(prefill.node, KVFERRY_SIDE_PREFILL, "r"), KVFERRY_OK);
    assert_int_equal(kvferry_node_drain(prefill.node, NODES_PATIENCE_MS), KVFERRY_OK);
    kvferry_report_free(refusal);
    worker_close(&prefill);
}

/* One side goes while everything is under way; the other one hears of it and goes on. */
static void close_under_load(bool decode_goes)
{
    enum { COUNT = 8 };
    worker prefill, decode;
    char id[16];
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t blocks[] = {1 + 3 * i, 2 + 3 * i, 3 + 3 * i};
        snprintf(id, sizeof(id), "r%u", i);
        MUST(worker_offer(&prefill, id, blocks, 10, i % 2 ? KVFERRY_READY : KVFERRY_NOT_READY,
                          report));
        MUST(worker_ask(&decode, id, "p", kvferry_node_address(prefill.node), blocks, 10, report));
    }
    worker *goes = decode_goes ? &decode : &prefill, *stays = decode_goes ? &prefill : &decode;
    kvferry_event_free(await_event(&decode, KVFERRY_EVENT_CONNECTED, ""));
    worker_close(goes);
    unsigned released = 0;
    while (released < COUNT) {
        kvferry_event *event = await_event(stays, KVFERRY_EVENT_RELEASED, "");
        assert_non_null(event);
        kvferry_event_free(event);
        released++;
    }
    worker other;
    worker_open_alone(&other, decode_goes ? "e" : "q");
    worker *source = decode_goes ? stays : &other, *target = decode_goes ? &other : stays;
    MUST(worker_offer(source, "again", from, 10, KVFERRY_READY, report));
    MUST(worker_ask(target, "again", "", kvferry_node_address(source->node), to, 10, report));
    expect_done(target, "again");
    worker_close(&other);
    worker_close(stays);
}

static void test_a_decode_worker_goes(void **state)
{
    (void)state;
    close_under_load(true);
}

static void test_a_prefill_worker_goes(void **state)
{
    (void)state;
    close_under_load(false);
}

static void test_nothing_is_left(void **state)
{
    (void)state;
    close_under_load(true); /* what libraries keep for good is there after the first time */
    size_t before = descriptors();
    for (int i = 0; i < 3; i++)
        close_under_load(i % 2);
    assert_int_equal(descriptors(), before);
}

/* --- no descriptors left ---------------------------------------------------------------------- */

/* The most that this process may have: as many as it has, and `more`. */
static void limit_descriptors(const struct rlimit *whole, rlim_t more)
{
    struct rlimit limit = *whole;
    if (more < 1000) {
        int highest = dup(0);
        assert_true(highest >= 0);
        close(highest);
        limit.rlim_cur = (rlim_t)highest + more;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void test_no_descriptors_left(void **state)
{
    (void)state;
    struct rlimit whole;
    worker prefill, decode;
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &whole), 0);
    /* However few there are: a node that is open stays whole, and one that cannot be opened says
     * so. */
    for (rlim_t more = 0; more < 24; more++) {
        const kvferry_node_segment segment = {NULL, KVFERRY_MEMORY_HOST};
        kvferry_node_options options = nodes_options("q");
        options.bootstrap_listen = "127.0.0.1:0";
        options.log = NULL;
        kvferry_node *node = NULL;
        limit_descriptors(&whole, more);
        kvferry_status status =
            kvferry_node_create(&options, prefill.layout, &segment, 1, &node, NULL);
        if (status == KVFERRY_OK)
            kvferry_node_close(node);
        kvferry_node_connect(decode.node, "p", kvferry_node_address(prefill.node), NULL);
        kvferry_node_wait(decode.node, 20);
        limit_descriptors(&whole, 1000);
        assert_true(status == KVFERRY_OK || status == KVFERRY_IO || status == KVFERRY_NO_MEMORY ||
                    status == KVFERRY_UNSUPPORTED);
    }
    MUST(worker_offer(&prefill, "r", from, 10, KVFERRY_READY, report));
    MUST(worker_ask(&decode, "r", "p", kvferry_node_address(prefill.node), to, 10, report));
    expect_done(&decode, "r");
    worker_close(&decode);
    worker_close(&prefill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),         cmocka_unit_test(test_drain),
        cmocka_unit_test(test_a_decode_worker_goes), cmocka_unit_test(test_a_prefill_worker_goes),
        cmocka_unit_test(test_nothing_is_left),      cmocka_unit_test(test_no_descriptors_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
