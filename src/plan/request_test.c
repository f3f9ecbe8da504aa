/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include <kvferry/plan.h>

/* The example of the design's request page, with what is optional. */
static const char good[] = "{\"transfer_id\": \"t1\", \"whole_blocks\": true, \"tokens\": 1233, \"note\": [\"ignored\"],"
                           " \"source\": {\"gdn0\": {\"blocks\": [7]},"
                           "              \"attn\": {\"first_token\": 0, \"blocks\": [3, 4, 9]}},"
                           " \"target\": {\"gdn0\": {\"blocks\": [5], \"color\": 1},"
                           "              \"attn\": {\"first_token\": 528, \"blocks\": [11, 4294967295]}}}";

static void test_reads_a_request(void **state)
{
    (void)state;
    kvferry_request *request = NULL;
    assert_int_equal(kvferry_request_read_json(good, strlen(good), &request, NULL), KVFERRY_OK);
    assert_string_equal(request->transfer_id, "t1");
    assert_int_equal(request->target_tokens, 1233);
    assert_int_equal(request->source_tokens, 1233);
    assert_true(request->whole_blocks);
    assert_int_equal(request->source_count, 2);
    assert_string_equal(request->source[0].group, "gdn0");
    assert_int_equal(request->source[0].block_count, 1);
    assert_int_equal(request->source[0].blocks[0], 7);
    assert_string_equal(request->source[1].group, "attn");
    assert_int_equal(request->source[1].block_count, 3);
    assert_int_equal(request->source[1].blocks[2], 9);
    assert_int_equal(request->target_count, 2);
    assert_int_equal(request->target[0].first_token, 0);
    assert_int_equal(request->target[1].first_token, 528);
    assert_int_equal(request->target[1].blocks[1], UINT32_MAX);
    kvferry_request_free(request);
    kvferry_request_free(NULL);
}

static void test_defaults(void **state)
{
    (void)state;
    static const char text[] =
        "{\"tokens\": 5, \"source_tokens\": 6, \"source\": {}, \"target\": {\"a\": {\"blocks\": []}}}";
    kvferry_request *request = NULL;
    assert_int_equal(kvferry_request_read_json(text, strlen(text), &request, NULL), KVFERRY_OK);
    assert_null(request->transfer_id);
    assert_int_equal(request->source_tokens, 6);
    assert_int_equal(request->target_tokens, 5);
    assert_false(request->whole_blocks);
    assert_int_equal(request->source_count, 0);
    assert_int_equal(request->target_count, 1);
    assert_int_equal(request->target[0].block_count, 0);
    kvferry_request_free(request);
}

static void test_finds_everything(void **state)
{
    (void)state;
    static const char text[] =
        "{\"transfer_id\": 7, \"source_tokens\": 2.0,"
        " \"source\": {\"attn\": {\"first_token\": -1, \"blocks\": [1, -2, 4294967296, \"3\", 4.0]},"
        "              \"a b\": 3},"
        " \"target\": {\"gdn\": {}}}";
    static const struct {
        const char *code, *place;
    } expected[] = {
        {"value_type", "transfer_id"},
        {"value_missing", "tokens"},
        {"value_type", "source_tokens"},
        {"value_range", "source.attn.first_token"},
        {"value_range", "source.attn.blocks[1]"},
        {"value_range", "source.attn.blocks[2]"},
        {"value_type", "source.attn.blocks[3]"},
        {"value_type", "source.attn.blocks[4]"},
        {"value_type", "source[\"a b\"]"},
        {"value_missing", "target.gdn.blocks"},
    };
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_request *request = NULL;
    assert_int_equal(kvferry_request_read_json(text, strlen(text), &request, report),
                     KVFERRY_MALFORMED);
    assert_null(request);
    size_t count = sizeof(expected) / sizeof(expected[0]);
    assert_int_equal(kvferry_report_count(report), count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(kvferry_report_get(report, i)->code, expected[i].code);
        assert_string_equal(kvferry_report_get(report, i)->place, expected[i].place);
    }
    kvferry_report_free(report);
}

static void test_refuses_what_is_no_request(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"tokens\": 1}",
        "{\"tokens\": 1, \"source\": [], \"target\": {}}",
        "{\"tokens\": null, \"source\": {}, \"target\": {}}",
        "{\"tokens\": 1, \"source\": {}, \"target\": {\"a\": {\"blocks\": {}}}}",
        "{\"tokens\": 1, \"source\": {\"a\": {\"blocks\": []}, \"a\": {\"blocks\": []}}, \"target\": {}}",
        "{\"tokens\": 9223372036854775808, \"source\": {}, \"target\": {}}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        kvferry_request *request = NULL;
        assert_int_equal(kvferry_request_read_json(texts[i], strlen(texts[i]), &request, NULL),
                         KVFERRY_MALFORMED);
        assert_null(request);
    }
    /* A cut is always noticed. */
    for (size_t cut = 0; cut < strlen(good); cut++) {
        kvferry_request *request = NULL;
        assert_int_equal(kvferry_request_read_json(good, cut, &request, NULL), KVFERRY_MALFORMED);
    }
}

static void test_too_many_groups(void **state)
{
    (void)state;
    size_t capacity = 1100 * 32, used;
    char *text = malloc(capacity);
    assert_non_null(text);
    used = (size_t)snprintf(text, capacity, "{\"tokens\": 1, \"target\": {}, \"source\": {");
    for (int i = 0; i < 1025; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s\"g%d\":{\"blocks\":[]}",
                                 i ? "," : "", i);
    used += (size_t)snprintf(text + used, capacity - used, "}}");
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_request *request = NULL;
    assert_int_equal(kvferry_request_read_json(text, used, &request, report), KVFERRY_MALFORMED);
    assert_int_equal(kvferry_report_count(report), 1);
    assert_string_equal(kvferry_report_get(report, 0)->code, "list_length");
    kvferry_report_free(report);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_a_request),  cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_finds_everything), cmocka_unit_test(test_refuses_what_is_no_request),
        cmocka_unit_test(test_too_many_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
