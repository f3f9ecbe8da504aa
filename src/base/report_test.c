/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "test.h"

#include <string.h>

static void test_keeps_every_field(void **state)
{
    (void)state;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    base_report_add(report, "stream_missing",
                    &(base_where){.worker = "decode-0 tp1/4", .layer = "l3", .stream = "k"},
                    "a source", "none", "no source has the stream");
    base_report_add(report, "bare", NULL, NULL, NULL, "nothing but %s", "words");
    assert_int_equal(kvferry_report_count(report), 2);
    const kvferry_reason *first = kvferry_report_get(report, 0);
    assert_string_equal(first->code, "stream_missing");
    assert_string_equal(first->axis, "");
    assert_string_equal(first->message, "decode-0 tp1/4, layer l3, stream k: no source has the stream:"
                                        " expected a source, found none");
    assert_string_equal(kvferry_report_get(report, 1)->message, "nothing but words");
    assert_null(kvferry_report_get(report, 2));
    kvferry_report_clear(report);
    assert_int_equal(kvferry_report_count(report), 0);
    kvferry_report_free(report);
}

static void test_counts_what_it_cannot_keep(void **state)
{
    (void)state;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    for (int i = 0; i < KVFERRY_REPORT_LIMIT + 5; i++)
        base_report_add(report, "code", NULL, NULL, NULL, "reason %d", i);
    assert_int_equal(kvferry_report_count(report), KVFERRY_REPORT_LIMIT);
    assert_int_equal(kvferry_report_dropped(report), 5);
    kvferry_report_free(report);
    base_report_add(NULL, "code", NULL, NULL, NULL, "nobody reads this");
    assert_int_equal(kvferry_report_count(NULL), 0);
}

static void test_copies_as_it_is(void **state)
{
    (void)state;
    kvferry_report *from = NULL, *to = NULL;
    assert_int_equal(kvferry_report_create(&from), KVFERRY_OK);
    assert_int_equal(kvferry_report_create(&to), KVFERRY_OK);
    base_report_add(from, "code", &(base_where){.worker = "w", .axis = "a"}, "one", "two", "words");
    base_report_copy(to, kvferry_report_get(from, 0));
    base_report_copy(NULL, kvferry_report_get(from, 0));
    kvferry_report_free(from);
    const kvferry_reason *reason = kvferry_report_get(to, 0);
    assert_string_equal(reason->code, "code");
    assert_string_equal(reason->worker, "w");
    assert_string_equal(reason->axis, "a");
    assert_string_equal(reason->layer, "");
    assert_string_equal(reason->message, "w, axis a: words: expected one, found two");
    const kvferry_reason again = *reason;
    for (int i = 0; i < KVFERRY_REPORT_LIMIT; i++)
        base_report_copy(to, &again);
    assert_int_equal(kvferry_report_count(to), KVFERRY_REPORT_LIMIT);
    assert_int_equal(kvferry_report_dropped(to), 1);
    kvferry_report_free(to);
}

static void test_takes_a_callers_own_words(void **state)
{
    (void)state;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_report_add(report, "engine", "queue 7%s is full");
    kvferry_report_add(report, NULL, NULL);
    kvferry_report_add(NULL, "engine", "nobody reads this");
    assert_int_equal(kvferry_report_count(report), 2);
    assert_string_equal(kvferry_report_get(report, 0)->code, "engine");
    assert_string_equal(kvferry_report_get(report, 0)->message, "queue 7%s is full");
    assert_string_equal(kvferry_report_get(report, 1)->message, "");
    kvferry_report_free(report);
}

static void test_is_utf8_whatever_comes(void **state)
{
    (void)state;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    base_report_add(report, "code", NULL, "a\xc3\xa9\xf0\x9f\x9a\xa2", "\xff" "b\xc3", "cut %.1s", "\xc3\xa9");
    assert_string_equal(kvferry_report_get(report, 0)->expected, "a\xc3\xa9\xf0\x9f\x9a\xa2");
    assert_string_equal(kvferry_report_get(report, 0)->found, "?b?");
    assert_string_equal(kvferry_report_get(report, 0)->message,
                        "cut ?: expected a\xc3\xa9\xf0\x9f\x9a\xa2, found ?b?");
    kvferry_report_free(report);
}

/* At each place of a longer text: what is no character is seen. */
static void test_utf8_anywhere(void **state)
{
    (void)state;
    char text[21];
    for (size_t size = 0; size < sizeof(text); size++) {
        memset(text, 'x', sizeof(text));
        assert_true(base_text_is_utf8(text, size));
        for (size_t at = 0; at < size; at++) {
            static const char bad[] = {0, (char)0x80, (char)0xc3, (char)0xff};
            for (size_t i = 0; i < sizeof(bad); i++) {
                text[at] = bad[i];
                assert_false(base_text_is_utf8(text, size));
            }
            text[at] = 'x';
            if (at + 1 == size)
                continue;
            memcpy(text + at, "\xc3\xa9", 2);
            assert_true(base_text_is_utf8(text, size));
            memcpy(text + at, "xx", 2);
        }
    }
}

static void test_status_table(void **state)
{
    (void)state;
    assert_string_equal(kvferry_status_name(KVFERRY_OK), "ok");
    assert_string_equal(kvferry_status_name(KVFERRY_INTERNAL), "internal");
    assert_string_equal(kvferry_status_name((kvferry_status)999), "unknown");
    assert_true(strlen(kvferry_status_describe(KVFERRY_TIMEOUT)) > 0);
}

static void test_arena_and_text(void **state)
{
    (void)state;
    base_arena arena = {0};
    char *big = base_arena_alloc(&arena, 100000, 1);
    assert_non_null(big);
    assert_int_equal(big[99999], 0);
    assert_string_equal(base_arena_strndup(&arena, "hello", 4), "hell");
    assert_null(base_arena_alloc(&arena, SIZE_MAX, 2));
    base_arena_free(&arena);
    base_text text = {0};
    for (int i = 0; i < 300; i++)
        base_text_append(&text, "%d,", i);
    base_text_append(&text, "%0700d", 1);
    assert_false(text.failed);
    assert_int_equal(text.size, 10 * 2 + 90 * 3 + 200 * 4 + 700);
    free(text.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps_every_field),
        cmocka_unit_test(test_counts_what_it_cannot_keep),
        cmocka_unit_test(test_copies_as_it_is),
        cmocka_unit_test(test_takes_a_callers_own_words),
        cmocka_unit_test(test_is_utf8_whatever_comes),
        cmocka_unit_test(test_utf8_anywhere),
        cmocka_unit_test(test_status_table),
        cmocka_unit_test(test_arena_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
