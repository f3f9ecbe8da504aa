/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts and plans are immutable and calls keep no state: threads use them at once. */
#include <kvferry/kvferry.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults/documents.h"
#include "test.h"

enum { THREADS = 8, TURNS = 40, CAPACITY = 4096 };

static kvferry_layout *source, *target;
static kvferry_plan *plan;
static kvferry_request *request;
static char *source_text;
static kvferry_copy expected[CAPACITY];
static size_t expected_count;
static pthread_barrier_t together;
static atomic_int wrong; /* cmocka's assertions are for its own thread */

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                 \
            atomic_fetch_add(&wrong, 1);                                                            \
        }                                                                                           \
    } while (0)

static void use_documents(kvferry_report *report)
{
    kvferry_layout *layout = NULL;
    char *text;
    void *data;
    size_t size;
    CHECK(kvferry_layout_read_json(source_document, strlen(source_document), &layout, report) ==
          KVFERRY_OK);
    CHECK(kvferry_layout_compare(layout, target, report) == KVFERRY_OK);
    CHECK(kvferry_layout_write_json(source, &text, &size) == KVFERRY_OK);
    CHECK(strcmp(text, source_text) == 0);
    kvferry_free(text);
    kvferry_layout_free(layout);
    CHECK(kvferry_layout_write_msgpack(source, &data, &size) == KVFERRY_OK);
    CHECK(kvferry_layout_read_msgpack(data, size, &layout, report) == KVFERRY_OK);
    kvferry_free(data);
    kvferry_layout_free(layout);
    CHECK(kvferry_model_layout(model_config, strlen(model_config), NULL, &layout, report) ==
          KVFERRY_OK);
    kvferry_layout_free(layout);
    CHECK(kvferry_report_count(report) == 0);
    CHECK(kvferry_layout_read_json(malformed_document, strlen(malformed_document), &layout, report) ==
          KVFERRY_MALFORMED);
    CHECK(kvferry_report_count(report) > 3);
    kvferry_report_clear(report);
}

static void use_plans(kvferry_report *report, kvferry_copy *copies)
{
    kvferry_plan *own = NULL;
    size_t count = 0;
    CHECK(kvferry_plan_create(&(const kvferry_layout *){source}, 1, target, &own, report) ==
          KVFERRY_OK);
    const kvferry_plan *plans[] = {own, plan};
    for (size_t i = 0; i < 2; i++) {
        CHECK(kvferry_plan_expand(plans[i], 0, request, copies, CAPACITY, &count, report) ==
              KVFERRY_OK);
        CHECK(count == expected_count);
        CHECK(memcmp(copies, expected, count * sizeof(*copies)) == 0);
    }
    kvferry_plan_free(own);
}

/* Each thread its own pair of engines, of a kind that all processes share a table for. */
static void use_engines(kvferry_report *report)
{
    static const kvferry_engine_ops incomplete = {.size = sizeof(incomplete), .name = "incomplete"};
    char from[64] = "from one thread's memory to its other", to[64] = "";
    kvferry_engine *sender = NULL, *receiver = NULL;
    kvferry_peer *peer = NULL;
    kvferry_transfer *transfer = NULL;
    void *binding = NULL;
    size_t size = 0;
    uint32_t segment;
    CHECK(kvferry_engine_add(&incomplete, NULL) == KVFERRY_INVALID);
    CHECK(kvferry_engine_open("memory", NULL, &sender, report) == KVFERRY_OK);
    CHECK(kvferry_engine_open("memory", NULL, &receiver, report) == KVFERRY_OK);
    CHECK(kvferry_engine_register(sender, from, sizeof from, KVFERRY_MEMORY_HOST, &segment, report) ==
          KVFERRY_OK);
    CHECK(kvferry_engine_register(receiver, to, sizeof to, KVFERRY_MEMORY_HOST, &segment, report) ==
          KVFERRY_OK);
    CHECK(kvferry_engine_export(receiver, &binding, &size, report) == KVFERRY_OK);
    CHECK(kvferry_engine_connect(sender, binding, size, &peer, report) == KVFERRY_OK);
    const kvferry_copy copy = {.bytes = sizeof from};
    CHECK(kvferry_transfer_begin(sender, peer, KVFERRY_WRITE, &copy, 1, 0, &transfer, report) ==
          KVFERRY_OK);
    while (!kvferry_transfer_get(transfer)->over)
        CHECK(kvferry_engine_progress(sender, NULL) == KVFERRY_OK);
    CHECK(strcmp(from, to) == 0);
    CHECK(kvferry_transfer_free(transfer) == KVFERRY_OK);
    kvferry_free(binding);
    kvferry_engine_close(sender);
    kvferry_engine_close(receiver);
}

static void *use_all(void *unused)
{
    (void)unused;
    kvferry_report *report;
    kvferry_copy *copies = malloc(CAPACITY * sizeof(*copies));
    CHECK(copies && kvferry_report_create(&report) == KVFERRY_OK);
    pthread_barrier_wait(&together);
    for (int turn = 0; turn < TURNS && !atomic_load(&wrong); turn++) {
        use_documents(report);
        use_plans(report, copies);
        use_engines(report);
        CHECK(kvferry_report_count(report) == 0);
    }
    kvferry_report_free(report);
    free(copies);
    return NULL;
}

static void threads_at_once(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    assert_int_equal(pthread_barrier_init(&together, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_all, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&together);
    assert_int_equal(atomic_load(&wrong), 0);
}

static int set_up(void **state)
{
    (void)state;
    size_t size;
    assert_int_equal(kvferry_layout_read_json(source_document, strlen(source_document), &source, NULL),
                     KVFERRY_OK);
    assert_int_equal(kvferry_layout_read_json(target_document, strlen(target_document), &target, NULL),
                     KVFERRY_OK);
    assert_int_equal(kvferry_layout_write_json(source, &source_text, &size), KVFERRY_OK);
    assert_int_equal(kvferry_plan_create(&(const kvferry_layout *){source}, 1, target, &plan, NULL),
                     KVFERRY_OK);
    assert_int_equal(kvferry_request_read_json(request_document, strlen(request_document), &request,
                                               NULL),
                     KVFERRY_OK);
    assert_int_equal(kvferry_plan_expand(plan, 0, request, expected, CAPACITY, &expected_count, NULL),
                     KVFERRY_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvferry_request_free(request);
    kvferry_plan_free(plan);
    kvferry_free(source_text);
    kvferry_layout_free(target);
    kvferry_layout_free(source);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_at_once)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
