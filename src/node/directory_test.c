/* SPDX-License-Identifier: Apache-2.0 */
#include "node/directory.h"

#include <string.h>

#include "test.h"

#include <stdio.h>

static kvferry_report *report;

static int begin(void **state)
{
    (void)state;
    return kvferry_report_create(&report) != KVFERRY_OK;
}

static int end(void **state)
{
    (void)state;
    kvferry_report_free(report);
    return 0;
}

static void put(node_directory *directory, uint32_t dp, uint32_t tp, uint32_t pp,
                const char *engine_id, const char *address, bool expect_replaced)
{
    bool replaced = !expect_replaced;
    const node_entry entry = {dp, tp, pp, (char *)(uintptr_t)engine_id, (char *)(uintptr_t)address, false};
    assert_int_equal(node_directory_put(directory, &entry, &replaced), KVFERRY_OK);
    assert_int_equal(replaced, expect_replaced);
}

static void expect_text(const node_directory *directory, const char *expected)
{
    char *text;
    assert_int_equal(node_directory_write(directory, &text), KVFERRY_OK);
    assert_string_equal(text, expected);
    free(text);
}

/* The shape that vLLM's Mooncake bootstrap server answers. */
#define TWO_ENGINES                                                                                \
    "{\"0\":{\"engine_id\":\"p0\",\"worker_addr\":{\"0\":{\"0\":\"tcp://10.0.0.1:1\",\"1\":"       \
    "\"tcp://10.0.0.1:3\"},\"1\":{\"0\":\"tcp://10.0.0.1:2\"}}},"                                  \
    "\"1\":{\"engine_id\":\"p1\",\"worker_addr\":{\"0\":{\"0\":\"tcp://[::1]:4\"}}}}"

static void test_what_is_put_is_written_and_read(void **state)
{
    (void)state;
    node_directory directory = {0}, again = {0};
    expect_text(&directory, "{}");
    put(&directory, 1, 0, 0, "p1", "tcp://[::1]:4", false);
    put(&directory, 0, 1, 0, "p0", "tcp://10.0.0.1:2", false);
    put(&directory, 0, 0, 1, "p0", "tcp://10.0.0.1:3", false);
    put(&directory, 0, 0, 0, "p0", "tcp://10.0.0.9:9", false);
    put(&directory, 0, 0, 0, "p0", "tcp://10.0.0.1:1", false);
    expect_text(&directory, TWO_ENGINES);
    assert_int_equal(node_directory_read(TWO_ENGINES, strlen(TWO_ENGINES), &again, report),
                     KVFERRY_OK);
    assert_int_equal(again.count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(again.entries[i].address, directory.entries[i].address);
        assert_int_equal(again.entries[i].tp, directory.entries[i].tp);
    }
    /* A restarted engine has another id. */
    put(&directory, 0, 0, 0, "p2", "tcp://10.0.0.2:1", true);
    expect_text(
        &directory,
        "{\"0\":{\"engine_id\":\"p2\",\"worker_addr\":{\"0\":{\"0\":\"tcp://10.0.0.2:1\"}}},"
        "\"1\":{\"engine_id\":\"p1\",\"worker_addr\":{\"0\":{\"0\":\"tcp://[::1]:4\"}}}}");
    node_directory_free(&again);
    node_directory_free(&directory);
}

static void test_an_engine_is_found(void **state)
{
    (void)state;
    node_directory directory = {0};
    const char *found = NULL;
    assert_int_equal(node_directory_engine(&directory, "", &found, report), KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "engine_absent");
    kvferry_report_clear(report);
    assert_int_equal(node_directory_read(TWO_ENGINES, strlen(TWO_ENGINES), &directory, report),
                     KVFERRY_OK);
    assert_int_equal(node_directory_engine(&directory, "p1", &found, report), KVFERRY_OK);
    assert_string_equal(found, "p1");
    assert_int_equal(node_directory_engine(&directory, "p7", &found, report), KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "engine_absent");
    assert_string_equal(kvferry_report_get(report, 0)->found, "p0, p1");
    kvferry_report_clear(report);
    assert_int_equal(node_directory_engine(&directory, "", &found, report), KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "engine_ambiguous");
    node_directory_free(&directory);
}

static void test_a_registration(void **state)
{
    (void)state;
    node_directory directory = {0};
    bool replaced;
    char *text;
    const node_entry entry = {2, 3, 4, (char *)(uintptr_t) "a \"b\"",
                              (char *)(uintptr_t) "tcp://h:5", false};
    assert_int_equal(node_directory_write_entry(&entry, &text), KVFERRY_OK);
    assert_int_equal(node_directory_read_entry(text, strlen(text), &directory, &replaced, report),
                     KVFERRY_OK);
    assert_int_equal(directory.count, 1);
    assert_int_equal(directory.entries[0].dp, 2);
    assert_int_equal(directory.entries[0].tp, 3);
    assert_int_equal(directory.entries[0].pp, 4);
    assert_string_equal(directory.entries[0].engine_id, "a \"b\"");
    free(text);
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"engine_id\": \"e\", \"dp_rank\": 0, \"tp_rank\": 0, \"pp_rank\": 0}",
        "{\"engine_id\": \"e\", \"dp_rank\": 0, \"tp_rank\": 0, \"pp_rank\": 0, \"addr\": \"h:1\"}",
        "{\"engine_id\": \"e\", \"dp_rank\": -1, \"tp_rank\": 0, \"pp_rank\": 0, \"addr\": "
        "\"tcp://h:1\"}",
        "{\"engine_id\": \"e\", \"dp_rank\": 0, \"tp_rank\": 65536, \"pp_rank\": 0, \"addr\": "
        "\"tcp://h:1\"}",
        "{\"engine_id\": 7, \"dp_rank\": 0, \"tp_rank\": 0, \"pp_rank\": 0, \"addr\": "
        "\"tcp://h:1\"}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        kvferry_report_clear(report);
        if (node_directory_read_entry(bad[i], strlen(bad[i]), &directory, &replaced, report) !=
                KVFERRY_MALFORMED ||
            kvferry_report_count(report) == 0)
            fail_msg("%s was taken", bad[i]);
    }
    assert_int_equal(directory.count, 1);
    node_directory_free(&directory);
}

/* What a server has registered itself stays, whoever comes. */
static void test_an_own_entry_stays(void **state)
{
    (void)state;
    static const char form[] = "{\"engine_id\": \"%s\", \"dp_rank\": %d, \"tp_rank\": %d, \"pp_rank\": 0, "
                               "\"addr\": \"tcp://h:%d\"}";
    static const struct {
        const char *engine;
        int dp, tp, port;
        kvferry_status status;
    } comes[] = {{"other", 0, 0, 6, KVFERRY_REFUSED}, {"other", 0, 1, 6, KVFERRY_REFUSED},
                 {"own", 0, 0, 6, KVFERRY_REFUSED},   {"own", 0, 0, 5, KVFERRY_OK},
                 {"own", 0, 1, 6, KVFERRY_OK},        {"other", 1, 0, 7, KVFERRY_OK}};
    node_directory directory = {0};
    bool replaced;
    const node_entry own = {0, 0, 0, (char *)(uintptr_t) "own", (char *)(uintptr_t) "tcp://h:5", true};
    assert_int_equal(node_directory_put(&directory, &own, &replaced), KVFERRY_OK);
    for (size_t i = 0; i < sizeof(comes) / sizeof(*comes); i++) {
        char text[200];
        snprintf(text, sizeof(text), form, comes[i].engine, comes[i].dp, comes[i].tp, comes[i].port);
        kvferry_report_clear(report);
        assert_int_equal(node_directory_read_entry(text, strlen(text), &directory, &replaced, report),
                         comes[i].status);
        assert_false(replaced);
        assert_string_equal(directory.entries[0].engine_id, "own");
        assert_string_equal(directory.entries[0].address, "tcp://h:5");
        if (comes[i].status == KVFERRY_REFUSED)
            assert_string_equal(kvferry_report_get(report, 0)->code, "rank_taken");
    }
    assert_int_equal(directory.count, 3);
    kvferry_report_clear(report);
    node_directory_free(&directory);
}

static void test_what_is_no_directory(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "7",
        "{\"x\": {\"engine_id\": \"e\", \"worker_addr\": {}}}",
        "{\"-1\": {\"engine_id\": \"e\", \"worker_addr\": {}}}",
        "{\"65536\": {\"engine_id\": \"e\", \"worker_addr\": {}}}",
        "{\"0\": 7}",
        "{\"0\": {\"worker_addr\": {}}}",
        "{\"0\": {\"engine_id\": \"e\"}}",
        "{\"0\": {\"engine_id\": \"e\", \"worker_addr\": {\"0\": []}}}",
        "{\"0\": {\"engine_id\": \"e\", \"worker_addr\": {\"0\": {\"x\": \"tcp://h:1\"}}}}",
        "{\"0\": {\"engine_id\": \"e\", \"worker_addr\": {\"0\": {\"0\": \"h:1\"}}}}",
        "{\"0\": {\"engine_id\": \"e\", \"worker_addr\": {\"0\": {\"0\": \"tcp://h:1\", \"1\": 7}}}}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        node_directory directory = {0};
        kvferry_report_clear(report);
        if (node_directory_read(bad[i], strlen(bad[i]), &directory, report) != KVFERRY_MALFORMED ||
            kvferry_report_count(report) == 0)
            fail_msg("%s was taken", bad[i]);
        assert_null(directory.entries);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_put_is_written_and_read, begin, end),
        cmocka_unit_test_setup_teardown(test_an_engine_is_found, begin, end),
        cmocka_unit_test_setup_teardown(test_a_registration, begin, end),
        cmocka_unit_test_setup_teardown(test_an_own_entry_stays, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_no_directory, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
