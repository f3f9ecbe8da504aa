/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "base/json.h"

/* A document and a report, for one test. */
typedef struct fixture {
    kvferry_report *report;
    base_json_document document;
} fixture;

static fixture open_text(const char *text, size_t size, unsigned flags, kvferry_status expected)
{
    fixture opened = {0};
    assert_int_equal(kvferry_report_create(&opened.report), KVFERRY_OK);
    assert_int_equal(base_json_parse(text, size, flags, opened.report, &opened.document), expected);
    return opened;
}

static fixture open_good(const char *text, unsigned flags)
{
    return open_text(text, strlen(text), flags, KVFERRY_OK);
}

static void close_fixture(fixture *opened)
{
    base_json_end(&opened->document);
    kvferry_report_free(opened->report);
}

static void assert_reason(const fixture *opened, size_t index, const char *code, const char *place,
                          const char *expected, const char *found)
{
    const kvferry_reason *reason = kvferry_report_get(opened->report, index);
    assert_non_null(reason);
    assert_string_equal(reason->code, code);
    assert_string_equal(reason->place, place);
    assert_string_equal(reason->expected, expected);
    assert_string_equal(reason->found, found);
}

/* The text is refused with just this finding. */
static void assert_refused(const char *text, size_t size, const char *code, const char *place)
{
    fixture opened = open_text(text, size, 0, KVFERRY_MALFORMED);
    assert_int_equal(kvferry_report_count(opened.report), 1);
    assert_string_equal(kvferry_report_get(opened.report, 0)->code, code);
    assert_string_equal(kvferry_report_get(opened.report, 0)->place, place);
    assert_int_equal(base_json_verdict(&opened.document), KVFERRY_MALFORMED);
    close_fixture(&opened);
}

static void test_reads_values(void **state)
{
    (void)state;
    fixture opened = open_good("{\"n\": 9223372036854775807, \"i\": -5, \"r\": 2.5, \"b\": true,"
                               " \"s\": \"h\\u00e9\", \"c\": \"two\", \"list\": [1, 2], \"sub\": {\"x\": 7}}",
                               0);
    base_json root = base_json_root(&opened.document);
    uint64_t number;
    int64_t integer;
    double real;
    bool truth;
    const char *string;
    size_t choice;
    static const char *const names[] = {"one", "two"};
    assert_true(base_json_uint(base_json_get(&root, "n"), 0, BASE_JSON_MAX_NUMBER, &number));
    assert_int_equal(number, INT64_MAX);
    assert_true(base_json_int(base_json_get(&root, "i"), -5, 0, &integer));
    assert_int_equal(integer, -5);
    assert_true(base_json_real(base_json_get(&root, "r"), &real) && real == 2.5);
    assert_true(base_json_real(base_json_get(&root, "i"), &real) && real == -5);
    assert_true(base_json_bool(base_json_get(&root, "b"), &truth) && truth);
    assert_true(base_json_string(base_json_get(&root, "s"), 3, &string));
    assert_string_equal(string, "h\xc3\xa9");
    assert_true(base_json_choice(base_json_get(&root, "c"), names, 2, &choice));
    assert_int_equal(choice, 1);
    base_json list = base_json_array(base_json_get(&root, "list"), 2);
    assert_int_equal(base_json_count(&list), 2);
    assert_true(base_json_uint(base_json_at(&list, 1), 2, 2, &number));
    base_json sub = base_json_object(base_json_get(&root, "sub"));
    assert_true(base_json_uint(base_json_get(&sub, "x"), 0, 10, &number) && number == 7);
    assert_int_equal(base_json_verdict(&opened.document), KVFERRY_OK);
    assert_int_equal(kvferry_report_count(opened.report), 0);
    close_fixture(&opened);
}

static void test_defaults(void **state)
{
    (void)state;
    static const char *const names[] = {"one", "two"};
    for (unsigned with_null = 0; with_null < 2; with_null++) {
        fixture opened = open_good(with_null ? "{\"a\": null, \"o\": null}" : "{}",
                                   BASE_JSON_NULL_IS_ABSENT);
        base_json root = base_json_root(&opened.document);
        base_json a = base_json_get(&root, "a");
        assert_false(base_json_present(a));
        uint64_t number;
        int64_t integer;
        double real;
        bool truth;
        const char *string;
        size_t choice;
        assert_true(base_json_uint_or(a, 1, 2, 40, &number) && number == 40);
        assert_true(base_json_int_or(a, 1, 2, -1, &integer) && integer == -1);
        assert_true(base_json_real_or(a, 0.5, &real) && real == 0.5);
        assert_true(base_json_bool_or(a, true, &truth) && truth);
        assert_true(base_json_string_or(a, 1, "none", &string));
        assert_string_equal(string, "none");
        assert_true(base_json_choice_or(a, names, 2, 1, &choice) && choice == 1);
        base_json object = base_json_object_or(base_json_get(&root, "o"));
        assert_true(base_json_uint_or(base_json_get(&object, "x"), 0, 9, 3, &number) &&
                    number == 3);
        base_json list = base_json_array_or(base_json_get(&root, "o"), 3);
        assert_int_equal(base_json_count(&list), 0);
        assert_int_equal(opened.document.findings, 0);
        close_fixture(&opened);
    }
}

static void test_finds_everything_at_once(void **state)
{
    (void)state;
    fixture opened = open_good("{\"streams\": [{\"axes\": [{\"extent\": 3.0}, {\"extent\": -1}]},"
                               " {\"axes\": {}}, 7], \"kind\": \"square\", \"a.b\": {\"n\": null}}",
                               0);
    base_json root = base_json_root(&opened.document);
    uint64_t number = 77;
    size_t choice;
    const char *string;
    static const char *const kinds[] = {"paged", "state"};
    base_json streams = base_json_array(base_json_get(&root, "streams"), 10);
    base_json first = base_json_object(base_json_at(&streams, 0));
    base_json axes = base_json_array(base_json_get(&first, "axes"), 10);
    base_json axis0 = base_json_object(base_json_at(&axes, 0));
    base_json axis1 = base_json_object(base_json_at(&axes, 1));
    assert_false(base_json_uint(base_json_get(&axis0, "extent"), 1, BASE_JSON_MAX_NUMBER, &number));
    assert_false(base_json_uint(base_json_get(&axis1, "extent"), 1, 16, &number));
    assert_false(base_json_string(base_json_get(&axis1, "name"), 9, &string));
    base_json second = base_json_object(base_json_at(&streams, 1));
    base_json no_axes = base_json_array(base_json_get(&second, "axes"), 10);
    assert_int_equal(base_json_count(&no_axes), 0);
    base_json third = base_json_object(base_json_at(&streams, 2));
    assert_false(base_json_uint(base_json_get(&third, "offset"), 0, 9, &number)); /* silent */
    assert_false(base_json_uint_or(base_json_get(&third, "offset"), 0, 9, 1, &number)); /* silent */
    assert_false(base_json_choice(base_json_get(&root, "kind"), kinds, 2, &choice));
    base_json dotted = base_json_object(base_json_get(&root, "a.b"));
    assert_false(base_json_uint_or(base_json_get(&dotted, "n"), 0, 9, 1, &number));
    assert_int_equal(number, 77);
    assert_int_equal(base_json_verdict(&opened.document), KVFERRY_MALFORMED);
    assert_int_equal(kvferry_report_count(opened.report), 7);
    assert_reason(&opened, 0, "value_type", "streams[0].axes[0].extent", "an integer from 1",
                  "3.0");
    assert_reason(&opened, 1, "value_range", "streams[0].axes[1].extent", "an integer from 1 to 16",
                  "-1");
    assert_reason(&opened, 2, "value_missing", "streams[0].axes[1].name", "a string", "nothing");
    assert_reason(&opened, 3, "value_type", "streams[1].axes", "an array", "an object");
    assert_reason(&opened, 4, "value_type", "streams[2]", "an object", "7");
    assert_reason(&opened, 5, "value_unknown", "kind", "one of \"paged\", \"state\"", "\"square\"");
    assert_reason(&opened, 6, "value_type", "[\"a.b\"].n", "an integer from 0 to 9", "null");
    close_fixture(&opened);
}

static void test_bounds_of_values(void **state)
{
    (void)state;
    fixture opened =
        open_good("{\"s\": \"abcd\", \"l\": [1, 2, 3], \"big\": 1e30, \"t\": true}", 0);
    base_json root = base_json_root(&opened.document);
    const char *string;
    uint64_t number;
    assert_false(base_json_string(base_json_get(&root, "s"), 3, &string));
    base_json list = base_json_array(base_json_get(&root, "l"), 2);
    assert_int_equal(base_json_count(&list), 0);
    assert_false(base_json_uint(base_json_get(&root, "big"), 0, BASE_JSON_MAX_NUMBER, &number));
    assert_false(base_json_uint(base_json_get(&root, "t"), 0, 1, &number));
    base_json text = base_json_get(&root, "s");
    assert_false(base_json_uint(base_json_get(&text, "x"), 0, 1, &number));
    assert_reason(&opened, 0, "value_range", "s", "at most 3 bytes", "4 bytes");
    assert_reason(&opened, 1, "list_length", "l", "at most 2 elements", "3");
    assert_string_equal(kvferry_report_get(opened.report, 2)->code, "value_range");
    assert_reason(&opened, 3, "value_type", "t", "an integer from 0 to 1", "true");
    assert_reason(&opened, 4, "value_type", "s", "an object", "\"abcd\"");
    assert_int_equal(kvferry_report_count(opened.report), 5);
    close_fixture(&opened);
}

static void test_walks_members_in_order(void **state)
{
    (void)state;
    fixture opened = open_good("{\"z\": 1, \"a\": 2.0, \"m\": 3}", 0);
    base_json root = base_json_root(&opened.document), member;
    void *iterator = NULL;
    char names[4] = "";
    uint64_t number;
    while (base_json_next(&root, &iterator, &member)) {
        strcat(names, member.key);
        base_json_uint(member, 0, 9, &number);
    }
    assert_string_equal(names, "zam");
    assert_int_equal(kvferry_report_count(opened.report), 1);
    assert_reason(&opened, 0, "value_type", "a", "an integer from 0 to 9", "2.0");
    close_fixture(&opened);
}

static void test_refuses_bad_texts(void **state)
{
    (void)state;
#define REFUSED(text, code, place) assert_refused(text, sizeof(text) - 1, code, place)
    REFUSED("", "syntax", "line 1, column 1");
    REFUSED("\n  [1]", "syntax", "line 2, column 3");
    REFUSED("{\"a\": 1", "syntax", "line 1, column 7");
    REFUSED(" {\"a\": x}", "syntax", "line 1, column 8");
    REFUSED("{\n\"a\": 1,\n \"b\" 2}", "syntax", "line 3, column 6");
    REFUSED("{\"a\": 1} x", "syntax", "line 1, column 10");
    REFUSED("{\"a\": 01}", "syntax", "line 1, column 7");
    REFUSED("{\"a\": 1, \"b\": 2, \"a\": 3}", "key_duplicate", "line 1, column 20");
    REFUSED("{\"a\": 9223372036854775808}", "value_range", "line 1, column 25");
    REFUSED("{\"a\": 1e999}", "value_range", "line 1, column 11");
    REFUSED("{\"a\": \"\xff\"}", "text_encoding", "line 1, column 7");
    REFUSED("{\"a\": \"\xc0\x80\"}", "text_encoding", "line 1, column 7");
    REFUSED("{\"a\": \"x\\u0000\"}", "text_encoding", "line 1, column 15");
    REFUSED("{\"a\": \"\0\"}", "text_encoding", "line 1, column 8");
    REFUSED("{\"a\": \"\\ud800\"}", "syntax", "line 1, column 14");
#undef REFUSED
}

/* A text of `count` times `piece` between `head` and `tail`. */
static char *repeat(const char *head, const char *piece, size_t count, const char *tail)
{
    base_text text = {0};
    base_text_append(&text, "%s", head);
    for (size_t i = 0; i < count; i++)
        base_text_append_bytes(&text, piece, strlen(piece));
    base_text_append(&text, "%s", tail);
    assert_false(text.failed);
    return text.data;
}

static void test_bounds_of_documents(void **state)
{
    (void)state;
    char *text = repeat("{\"a\":", "[", 1000000, "");
    assert_refused(text, strlen(text), "nesting_depth", "line 1, column 37");
    free(text);
    text = repeat("{\"a\":[", "[],", 1000000, "[]]}");
    assert_refused(text, strlen(text), "document_size", "line 1, column 1800001");
    free(text);
    text = repeat("{\"a\":[", "1,", 4100000, "1]}");
    assert_refused(text, strlen(text), "document_size", "line 1, column 8000008");
    free(text);
    text = repeat("", "                                                                ",
                  BASE_JSON_MAX_BYTES / 64, "{}");
    assert_refused(text, strlen(text), "document_size", "line 1, column 1");
    free(text);
    /* brackets in strings are no nesting */
    text = repeat("{\"a\":\"\\\"", "[{,", 100000, "\\\\\"}");
    fixture opened = open_good(text, 0);
    base_json root = base_json_root(&opened.document);
    const char *string;
    assert_true(base_json_string(base_json_get(&root, "a"), 300002, &string));
    assert_int_equal(strlen(string), 300002);
    close_fixture(&opened);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_values),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_finds_everything_at_once),
        cmocka_unit_test(test_bounds_of_values),
        cmocka_unit_test(test_walks_members_in_order),
        cmocka_unit_test(test_refuses_bad_texts),
        cmocka_unit_test(test_bounds_of_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
