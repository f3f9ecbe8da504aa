/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/documents.h"

#include "layout/layout.h"

static kvferry_layout *changed(const char *const *changes)
{
    json_t *root = parse_small();
    for (; *changes; changes += 2)
        change(root, changes[0], changes[1]);
    return read_good(root);
}
#define CHANGED(...) changed((const char *const[]){__VA_ARGS__, NULL})

/* One kind of difference, of the source's stream. */
typedef struct difference {
    const char *code, *layer, *stream, *axis, *expected, *found;
} difference;

static void assert_differences(kvferry_layout *source, const difference *differences, size_t count)
{
    kvferry_layout *target = read_good(parse_small());
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_layout_compare(source, target, report),
                     count ? KVFERRY_REFUSED : KVFERRY_OK);
    assert_int_equal(kvferry_report_count(report), count);
    for (size_t i = 0; i < count; i++) {
        const kvferry_reason *reason = kvferry_report_get(report, i);
        assert_string_equal(reason->code, differences[i].code);
        assert_string_equal(reason->worker, "decode-0 tp1/4 pp0/1");
        assert_string_equal(reason->layer, differences[i].layer);
        assert_string_equal(reason->stream, differences[i].stream);
        assert_string_equal(reason->axis, differences[i].axis);
        assert_string_equal(reason->expected, differences[i].expected);
        assert_string_equal(reason->found, differences[i].found);
    }
    kvferry_report_free(report);
    kvferry_layout_free(source);
    kvferry_layout_free(target);
}
#define DIFFERENCES(source, ...)                                                                   \
    assert_differences(source, (const difference[]){__VA_ARGS__},                                  \
                       sizeof((const difference[]){__VA_ARGS__}) / sizeof(difference))

static void test_each_difference(void **state)
{
    (void)state;
    DIFFERENCES(CHANGED("identity.model", "\"other\""),
                {"identity_differs", "", "", "", "model \"small\", revision \"r1\"",
                 "model \"other\", revision \"r1\""});
    DIFFERENCES(CHANGED("identity.revision", "\"\""),
                {"identity_differs", "", "", "", "model \"small\", revision \"r1\"",
                 "model \"small\", revision \"\""});
    DIFFERENCES(CHANGED("groups[1].kind", "\"ring\""),
                {"kind_differs", "l2", "ssm", "", "\"state\"", "\"ring\""});
    DIFFERENCES(CHANGED("streams[3].dtype", "\"bfloat16\""),
                {"dtype_differs", "l2", "ssm", "", "\"float32\"", "\"bfloat16\""});
    DIFFERENCES(CHANGED("streams[3].format", "\"nvfp4\""),
                {"format_differs", "l2", "ssm", "", "\"\"", "\"nvfp4\""});
    DIFFERENCES(CHANGED("streams[3].cell_bytes", "64"),
                {"cell_bytes_differ", "l2", "ssm", "", "128", "64"});
    DIFFERENCES(CHANGED("streams[2].tokens_per_state", "2", "streams[2].axes[0].extent", "16",
                        "streams[2].axes[0].stride", "64", "streams[2].cell_bytes", "64"),
                {"cell_bytes_differ", "l1", "index", "", "128", "64"},
                {"tokens_per_state_differs", "l1", "index", "", "4", "2"});
    DIFFERENCES(CHANGED("streams[3].axes[0].name", "\"heads\""),
                {"axes_differ", "l2", "ssm", "", "head", "heads"});
    DIFFERENCES(CHANGED("streams[3].axes", "[]"), {"axes_differ", "l2", "ssm", "", "head", "none"});
    DIFFERENCES(CHANGED("streams[3].axes[0].global", "4"),
                {"global_extent_differs", "l2", "ssm", "head", "8", "4"});
}

static void test_all_differences_of_a_pair(void **state)
{
    (void)state;
    DIFFERENCES(CHANGED("streams[0].dtype", "\"float16\"", "streams[0].cell_bytes", "16",
                        "streams[0].axes[0].global", "8", "streams[0].axes[2]",
                        "{\"name\": \"dim\", \"extent\": 2, \"stride\": 16}", "streams[1].format", "\"x\""),
                {"dtype_differs", "l0", "k", "", "\"bfloat16\"", "\"float16\""},
                {"cell_bytes_differ", "l0", "k", "", "32", "16"},
                {"axes_differ", "l0", "k", "", "kv_head, token", "kv_head, token, dim"},
                {"global_extent_differs", "l0", "k", "kv_head", "4", "8"},
                {"format_differs", "l0", "v", "", "\"\"", "\"x\""});
}

static void test_what_may_differ(void **state)
{
    (void)state;
    assert_differences(CHANGED("worker.tp_rank", "0", "worker.tp_size", "2", "worker.dp_rank", "1",
                               "worker.dp_size", "2", "engine_id", "\"decode-0\"", "identity.draft", "\"\"",
                               "engine_id", "\"prefill\""),
                       NULL, 0);
    /* block, page and pool sizes, strides, offsets, boxes, groups, windows, axis order */
    assert_differences(CHANGED("groups[0].block_tokens", "16", "groups[0].window", "0",
                               "groups[0].name", "\"full\"", "streams[0].group", "\"full\"",
                               "streams[1].group", "\"full\"", "streams[2].group", "\"full\"",
                               "streams[2].axes[0].extent", "4", "streams[2].axes[0].stride", "200",
                               "streams[2].offset", "40000", "streams[3].axes[0].start", "2",
                               "streams[3].pages", "2", "streams[4].axes",
                               "[{\"name\": \"slot\", \"extent\": 4, \"stride\": 32}, {\"name\": "
                               "\"part\", \"extent\": 2,"
                               " \"stride\": 128}]"),
                       NULL, 0);
    /* a stream that only one side has, and a difference in an optional one */
    assert_differences(CHANGED("streams[3].layer", "\"l9\"", "streams[3].dtype", "\"x\""), NULL, 0);
    assert_differences(CHANGED("streams[4].dtype", "\"x\""), NULL, 0);
    /* what the source keeps to itself is as good as not there */
    assert_differences(CHANGED("streams[3].dtype", "\"x\"", "streams[3].policy", "\"local\""), NULL,
                       0);
}

static void test_aliases(void **state)
{
    (void)state;
    kvferry_layout *target = read_good(parse_small());
    uint32_t match = 99;
    /* by an alias of the source, by one of the target, by one of each */
    kvferry_layout *source =
        CHANGED("streams[3].layer", "\"x\"", "streams[3].aliases", "[\"y\", \"l2\"]");
    assert_true(layout_match_stream(source, target, 3, &match));
    assert_int_equal(match, 3);
    kvferry_layout_free(source);
    source = CHANGED("streams[4].layer", "\"l5\"", "streams[4].aliases", NULL);
    assert_true(layout_match_stream(source, target, 4, &match));
    assert_int_equal(match, 4);
    kvferry_layout_free(source);
    source = CHANGED("streams[4].layer", "\"x\"", "streams[4].aliases", "[\"l5\"]");
    assert_true(layout_match_stream(source, target, 4, &match));
    kvferry_layout_free(source);
    /* the layer goes before aliases, aliases in the target's order */
    source = CHANGED("streams[3].layer", "\"l5\"", "streams[3].name", "\"tail\"",
                     "streams[4].layer", "\"l4\"", "streams[4].aliases", NULL);
    assert_true(layout_match_stream(source, target, 4, &match));
    assert_int_equal(match, 4);
    kvferry_layout_free(source);
    source = CHANGED("streams[3].layer", "\"l4\"", "streams[3].name", "\"tail\"",
                     "streams[4].layer", "\"l5\"", "streams[4].aliases", NULL);
    assert_true(layout_match_stream(source, target, 4, &match));
    assert_int_equal(match, 3);
    kvferry_layout_free(source);
    /* another stream of the layer is none */
    source = CHANGED("streams[3].name", "\"conv\"");
    assert_false(layout_match_stream(source, target, 3, &match));
    kvferry_layout_free(source);
    /* a difference is found through an alias, and placed where the target has it */
    DIFFERENCES(CHANGED("streams[3].layer", "\"x\"", "streams[3].aliases", "[\"l2\"]",
                        "streams[3].dtype", "\"y\""),
                {"dtype_differs", "l2", "ssm", "", "\"float32\"", "\"y\""});
    kvferry_layout_free(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_difference),
        cmocka_unit_test(test_all_differences_of_a_pair),
        cmocka_unit_test(test_what_may_differ),
        cmocka_unit_test(test_aliases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
