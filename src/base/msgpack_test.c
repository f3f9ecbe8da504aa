/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "base/msgpack.h"

static kvferry_status parse(const char *data, size_t size, base_json_document *document,
                            kvferry_report **report)
{
    assert_int_equal(kvferry_report_create(report), KVFERRY_OK);
    return base_msgpack_parse(data, size, 0, *report, document);
}

/* The bytes are refused with just this finding. */
static void assert_refused(const char *data, size_t size, const char *code, const char *place)
{
    base_json_document document;
    kvferry_report *report;
    assert_int_equal(parse(data, size, &document, &report), KVFERRY_MALFORMED);
    assert_int_equal(kvferry_report_count(report), 1);
    assert_string_equal(kvferry_report_get(report, 0)->code, code);
    assert_string_equal(kvferry_report_get(report, 0)->place, place);
    assert_null(document.root);
    kvferry_report_free(report);
}

/* The bytes of the specification's own table of formats, by hand. */
static void test_reads_every_format(void **state)
{
    (void)state;
    static const char data[] = "\x8b"
                               "\xa1" "a\x7f"                                 /* 127 */
                               "\xd9\x01" "b\xe0"                             /* -32 */
                               "\xda\x00\x01" "c\xcc\xff"                     /* 255 */
                               "\xdb\x00\x00\x00\x01" "d\xcd\x01\x00"         /* 256 */
                               "\xa1" "e\xce\xff\xff\xff\xff"                 /* 2^32 - 1 */
                               "\xa1" "f\xcf\x7f\xff\xff\xff\xff\xff\xff\xff" /* 2^63 - 1 */
                               "\xa1" "g\xd0\x80"                             /* -128 */
                               "\xa1" "h\xd1\xff\x00"                         /* -256 */
                               "\xa1" "i\xd3\x80\x00\x00\x00\x00\x00\x00\x00" /* -2^63 */
                               "\xa1" "j\x94\xc0\xc2\xc3\xdc\x00\x01\xa2\xc3\xa9"
                               "\xa1" "k\xde\x00\x02\xa1x\xca\x3f\xc0\x00\x00\xa1y\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00";
    base_json_document document;
    kvferry_report *report;
    assert_int_equal(parse(data, sizeof(data) - 1, &document, &report), KVFERRY_OK);
    static const struct {
        const char *key;
        json_int_t value;
    } numbers[] = {{"a", 127}, {"b", -32}, {"c", 255}, {"d", 256}, {"e", 4294967295},
                   {"f", INT64_MAX}, {"g", -128}, {"h", -256}, {"i", INT64_MIN}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        json_t *value = json_object_get(document.root, numbers[i].key);
        assert_true(json_is_integer(value) && json_integer_value(value) == numbers[i].value);
    }
    json_t *list = json_object_get(document.root, "j");
    assert_int_equal(json_array_size(list), 4);
    assert_true(json_is_null(json_array_get(list, 0)) && json_is_false(json_array_get(list, 1)) &&
                json_is_true(json_array_get(list, 2)));
    assert_string_equal(json_string_value(json_array_get(json_array_get(list, 3), 0)), "\xc3\xa9");
    json_t *map = json_object_get(document.root, "k");
    assert_true(json_real_value(json_object_get(map, "x")) == 1.5);
    assert_true(json_real_value(json_object_get(map, "y")) == -1.5);
    base_json_end(&document);
    kvferry_report_free(report);
}

static void test_refuses_bad_bytes(void **state)
{
    (void)state;
#define REFUSED(data, code, place) assert_refused(data, sizeof(data) - 1, code, place)
    REFUSED("", "syntax", "byte 0");
    REFUSED("\x93\x01\x02\x03", "syntax", "byte 0");
    REFUSED("\x80\xc0", "syntax", "byte 1");
    REFUSED("\x81\xa1" "a", "syntax", "byte 3");
    REFUSED("\x82\xa1" "a", "syntax", "byte 0"); /* no room for what is claimed */
    REFUSED("\x81\xa1" "a\xcd\x01", "syntax", "byte 5");
    REFUSED("\x81\xa1" "a\xa5xyz", "syntax", "byte 7");
    REFUSED("\x81\xa9" "a", "syntax", "byte 3");
    REFUSED("\x81\x01\x02", "value_type", "byte 1");
    REFUSED("\x81\xa1" "a\xc1", "value_type", "byte 3");
    REFUSED("\x81\xa1" "a\xc4\x01x", "value_type", "byte 3"); /* binary */
    REFUSED("\x81\xa1" "a\xd4\x01x", "value_type", "byte 3"); /* extension */
    REFUSED("\x81\xa1" "a\xc7\x01\x01x", "value_type", "byte 3");
    REFUSED("\x82\xa1" "a\x01\xa1" "a\x02", "key_duplicate", "byte 4");
    REFUSED("\x81\xa1" "a\xa2\xc3\x28", "text_encoding", "byte 4");
    REFUSED("\x81\xa1" "a\xa3\xed\xa0\x80", "text_encoding", "byte 4"); /* a surrogate */
    REFUSED("\x81\xa1" "a\xa2\xc0\xaf", "text_encoding", "byte 4");     /* too long for '/' */
    REFUSED("\x81\xa1" "a\xa1\x00", "text_encoding", "byte 4");
    REFUSED("\x81\xa1\x00\x01", "text_encoding", "byte 2");
    REFUSED("\x81\xa1" "a\xca\x7f\xc0\x00\x00", "value_range", "byte 3"); /* infinity */
    REFUSED("\x81\xa1" "a\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "value_range", "byte 3");
    REFUSED("\xdf\xff\xff\xff\xff", "syntax", "byte 0");
    REFUSED("\x81\xa1" "a\xdd\xff\xff\xff\xff\xc0", "syntax", "byte 3");
#undef REFUSED
}

static void test_bounds(void **state)
{
    (void)state;
    char deep[1000];
    memset(deep, 0x91, sizeof(deep));
    memcpy(deep, "\x81\xa1" "a", 3);
    assert_refused(deep, sizeof(deep), "nesting_depth", "byte 34");
    size_t size = 1 + 2 + 5 + BASE_JSON_MAX_NESTS;
    char *wide = base_alloc(size, 1);
    assert_non_null(wide);
    memset(wide, 0x90, size);
    memcpy(wide, "\x81\xa1" "a\xdd\x00\x09\x27\xc0", 8); /* an array of 600,000 empty arrays */
    assert_refused(wide, size, "document_size", base_format("byte %zu", size - 2));
    free(wide);
    size = BASE_JSON_MAX_BYTES + 1;
    char *large = base_alloc(size, 1);
    assert_non_null(large);
    assert_refused(large, size, "document_size", "byte 0");
    free(large);
}

/* No cut and no flipped bit does harm; a cut is always noticed. */
static void test_damaged_bytes(void **state)
{
    (void)state;
    json_t *root = json_pack("{s:s, s:[i, f, b, n, {s:I}], s:{s:{s:[[]]}}}", "format", "x", "list",
                             7, 1.5, 1, "large", (json_int_t)INT64_MAX, "o", "p", "q");
    void *data;
    size_t size;
    assert_int_equal(base_msgpack_write(root, &data, &size), KVFERRY_OK);
    base_json_document document;
    assert_int_equal(base_msgpack_parse(data, size, 0, NULL, &document), KVFERRY_OK);
    assert_true(json_equal(root, document.root));
    base_json_end(&document);
    for (size_t cut = 0; cut < size; cut++) {
        char *part = malloc(cut ? cut : 1); /* so that a sanitizer sees a step too far */
        assert_non_null(part);
        memcpy(part, data, cut);
        assert_int_equal(base_msgpack_parse(part, cut, 0, NULL, &document), KVFERRY_MALFORMED);
        free(part);
    }
    for (size_t bit = 0; bit < size * 8; bit++) {
        ((unsigned char *)data)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        kvferry_status status = base_msgpack_parse(data, size, 0, NULL, &document);
        assert_true(status == KVFERRY_OK || status == KVFERRY_MALFORMED);
        base_json_end(&document);
        ((unsigned char *)data)[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    json_decref(root);
    free(data);
}

static void test_large_integers_are_out_of_range(void **state)
{
    (void)state;
    static const char data[] = "\x81\xa1" "a\xcf\x80\x00\x00\x00\x00\x00\x00\x00"; /* 2^63 */
    base_json_document document;
    kvferry_report *report;
    assert_int_equal(parse(data, sizeof(data) - 1, &document, &report), KVFERRY_OK);
    base_json root = base_json_root(&document);
    uint64_t number;
    assert_false(base_json_uint(base_json_get(&root, "a"), 0, BASE_JSON_MAX_NUMBER, &number));
    assert_string_equal(kvferry_report_get(report, 0)->code, "value_range");
    assert_string_equal(kvferry_report_get(report, 0)->place, "a");
    base_json_end(&document);
    kvferry_report_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_every_format),
        cmocka_unit_test(test_refuses_bad_bytes),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_damaged_bytes),
        cmocka_unit_test(test_large_integers_are_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
