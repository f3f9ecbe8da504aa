/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/documents.h"

/* What is changed, and the one finding that it must give. */
typedef struct rule_fault {
    const char *code, *place;
    const char *changes[6]; /* path, value, path, value, ... */
} rule_fault;

#define MOST "9223372036854775807"

static const rule_fault faults[] = {
    {"name_empty", "streams[0].layer", {"streams[0].layer", "\"\""}},
    {"name_empty", "streams[2].name", {"streams[2].name", "\"\""}},
    {"name_empty", "streams[2].dtype", {"streams[2].dtype", "\"\""}},
    {"name_empty", "streams[4].aliases[1]", {"streams[4].aliases[1]", "\"\""}},
    {"name_empty", "streams[3].axes[0].name", {"streams[3].axes[0].name", "\"\""}},
    {"name_empty", "groups[3].name", {"groups[3].name", "\"\""}},
    {"name_empty", "segments[2].name", {"segments[2].name", "\"\""}},
    {"name_duplicate", "groups[3].name", {"groups[3].name", "\"attn\""}},
    {"name_duplicate", "segments[2].name", {"segments[2].name", "\"kv\""}},
    {"name_duplicate", "streams[1]", {"streams[1].name", "\"k\""}},
    {"name_duplicate", "streams[2]", {"streams[2].name", "\"v\"", "streams[2].aliases", "[\"l0\"]"}},
    {"name_duplicate", "streams[4]", {"streams[4].aliases[0]", "\"l3\""}},
    {"name_duplicate", "streams[4]", {"streams[4].aliases[1]", "\"l4\""}},
    {"name_duplicate", "streams[4].axes[1]", {"streams[4].axes[1].name", "\"part\""}},
    {"rank_range", "worker.tp_rank", {"worker.tp_rank", "4"}},
    {"rank_range", "worker.pp_rank", {"worker.pp_rank", "4294967295"}},
    {"rank_range", "worker.dp_rank", {"worker.dp_rank", "1"}},
    {"rank_range", "worker.dp_rank", {"worker.dp_rank", "1", "worker.dp_size", NULL}},
    {"reference_unknown", "streams[0].group", {"streams[0].group", "\"nobody\""}},
    {"reference_unknown", "streams[0].segment", {"streams[0].segment", "\"attn\""}},
    {"paged_only", "groups[3].block_tokens", {"groups[3].block_tokens", "16"}},
    {"paged_only", "groups[2].window", {"groups[2].window", "5"}},
    {"paged_only", "streams[3]", {"streams[3].page_tokens", "4"}},
    {"page_tokens_uneven",
     "streams[0]",
     {"streams[0].page_tokens", "12", "streams[0].axes[1].extent", "12"}},
    {"page_tokens_uneven",
     "streams[0]",
     {"streams[0].page_tokens", "64", "streams[0].axes[1].extent", "64"}},
    {"state_tokens_uneven", "streams[2]", {"streams[2].tokens_per_state", "5"}},
    {"state_tokens_uneven", "streams[2]", {"streams[2].tokens_per_state", MOST}},
    {"token_axis", "streams[2].axes[0]", {"streams[2].axes[0].extent", "4"}},
    {"token_axis",
     "streams[2].axes[0]",
     {"streams[2].axes[0].start", "1", "streams[2].axes[0].global", "9"}},
    {"token_axis", "streams[2].axes[0]", {"streams[2].axes[0].global", "9"}},
    {"token_axis", "streams[2]", {"streams[2].axes[0].name", "\"tokens\""}},
    {"token_axis", "streams[3].axes[0]", {"streams[3].axes[0].name", "\"token\""}},
    {"axis_range", "streams[3].axes[0]", {"streams[3].axes[0].start", "5"}},
    {"axis_range", "streams[3].axes[0]", {"streams[3].axes[0].start", MOST}},
    {"axis_range", "streams[3].axes[0]", {"streams[3].axes[0].global", "3"}},
    {"stride_zero", "streams[3].axes[0]", {"streams[3].axes[0].stride", "0"}},
    {"stride_zero", "streams[3]", {"streams[3].page_stride", "0"}},
    {"pages_short", "streams[0]", {"streams[0].pages", "1"}},
    {"page_bounds", "streams[2]", {"streams[2].pages", "33"}},
    {"page_bounds", "streams[4]", {"streams[4].offset", "2049"}},
    {"page_bounds", "streams[3]", {"streams[3].cell_bytes", MOST}},
    {"page_bounds", "streams[3]", {"streams[3].pages", MOST, "streams[3].page_stride", MOST}},
    {"page_bounds", "streams[3]", {"streams[3].offset", MOST, "streams[3].page_stride", MOST}},
    {"page_bounds", "streams[2]", {"streams[2].segment", "\"spare\""}},
    {"null_block_range", "groups[0].null_block", {"groups[0].null_block", "8"}},
    {"null_block_range", "groups[1].null_block", {"groups[1].null_block", MOST}},
    {"cells_overlap", "streams[3]", {"streams[3].axes[0].stride", "127"}},
    {"cells_overlap", "streams[3]", {"streams[3].page_stride", "384"}},
    {"streams_overlap", "streams[1]", {"streams[1].offset", "31"}},
    {"streams_overlap", "streams[2]", {"streams[2].offset", "32767"}},
    {"groups_overlap", "streams[4]", {"streams[4].offset", "2047"}},
};

static void apply(json_t *root, const rule_fault *fault)
{
    for (size_t i = 0; i < 6 && fault->changes[i]; i += 2)
        change(root, fault->changes[i], fault->changes[i + 1]);
}

static void test_each_rule_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        kvferry_report *report;
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
        json_t *root = parse_small();
        apply(root, &faults[i]);
        kvferry_layout *layout = NULL;
        kvferry_status status = read_tree(root, &layout, report);
        json_decref(root);
        if (status != KVFERRY_REFUSED || kvferry_report_count(report) != 1)
            for (size_t k = 0; k < kvferry_report_count(report); k++)
                print_error("%zu: %s\n", i, kvferry_report_get(report, k)->message);
        assert_int_equal(status, KVFERRY_REFUSED);
        assert_null(layout);
        assert_int_equal(kvferry_report_count(report), 1);
        const kvferry_reason *reason = kvferry_report_get(report, 0);
        assert_string_equal(reason->code, faults[i].code);
        assert_string_equal(reason->place, faults[i].place);
        assert_true(*reason->expected && *reason->found);
        kvferry_report_free(report);
    }
}

static void test_words_of_a_finding(void **state)
{
    (void)state;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    json_t *root = parse_small();
    change(root, "streams[3].axes[0].start", "5");
    change(root, "streams[2].pages", "33");
    kvferry_layout *layout = NULL;
    assert_int_equal(read_tree(root, &layout, report), KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->message,
                        "streams[2], layer l1, stream index: the last page ends outside of the segment:"
                        " expected at most the segment's 65536 bytes, found 66560");
    assert_string_equal(kvferry_report_get(report, 1)->message,
                        "streams[3].axes[0], layer l2, stream ssm, axis head: start and extent reach past"
                        " the axis's global length: expected at most 8, found 5 + 4");
    kvferry_report_free(report);
    json_decref(root);
}

/* Every fault of one kind of place at once, values that cannot be read among them. */
static void test_all_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *code, *place;
    } changes[] = {
        {"worker.pp_rank", "7", "rank_range", "worker.pp_rank"},
        {"groups[0].kind", "\"square\"", "value_unknown", "groups[0].kind"},
        {"groups[2].window", "5", "paged_only", "groups[2].window"},
        {"streams[1].offset", "-1", "value_range", "streams[1].offset"},
        {"streams[2].segment", "\"no\"", "reference_unknown", "streams[2].segment"},
        {"streams[3].axes[0].start", "5", "axis_range", "streams[3].axes[0]"},
        {"streams[3].pages", "100", "page_bounds", "streams[3]"},
        {"streams[4].axes[1].name", "\"part\"", "name_duplicate", "streams[4].axes[1]"},
        {"streams[4].axes[0].stride", "0", "stride_zero", "streams[4].axes[0]"},
        {"streams[4].page_stride", "0", "stride_zero", "streams[4]"},
        {"streams[4].aliases", "[\"l3\"]", "name_duplicate", "streams[4]"},
    };
    size_t count = sizeof(changes) / sizeof(changes[0]);
    json_t *root = parse_small();
    for (size_t i = 0; i < count; i++)
        change(root, changes[i].path, changes[i].value);
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    assert_int_equal(read_tree(root, &layout, report), KVFERRY_MALFORMED);
    assert_int_equal(kvferry_report_count(report), count);
    for (size_t i = 0; i < count; i++) {
        bool found = false;
        for (size_t k = 0; k < count; k++) {
            const kvferry_reason *reason = kvferry_report_get(report, k);
            found = found || (!strcmp(reason->code, changes[i].code) &&
                              !strcmp(reason->place, changes[i].place));
        }
        if (!found)
            fail_msg("no %s at %s", changes[i].code, changes[i].place);
    }
    kvferry_report_free(report);
    json_decref(root);
}

static void test_what_is_allowed(void **state)
{
    (void)state;
    static const rule_fault fine[] = {
        {NULL, NULL, {"streams", "[]"}}, /* a worker without streams */
        {NULL, NULL, {"engine_id", "\"\"", "identity.model", "\"\""}},
        {NULL, NULL, {"groups[0].null_block", "7"}},
        {NULL, NULL, {"groups[0].null_block", "-1"}},
        {NULL, NULL, {"groups[3].null_block", "1000"}}, /* a group without streams has no pool */
        {NULL, NULL, {"groups[1].block_tokens", "0", "groups[1].window", "0"}},
        {NULL,
         NULL,
         {"streams[0].pages", "17", "streams[1].pages", "17", "streams[2].offset", "34816"}},
        {NULL, NULL, {"streams[3].axes[0].extent", "1", "streams[3].axes[0].stride", "0"}},
        {NULL, NULL, {"streams[3].pages", "1", "streams[3].page_stride", "0"}},
        {NULL, NULL, {"streams[3].axes", "[]"}},
        {NULL, NULL, {"segments[0].bytes", MOST}},
        {NULL, NULL, {"streams[4].tokens_per_state", "4"}},
    };
    for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++) {
        json_t *root = parse_small();
        apply(root, &fine[i]);
        kvferry_layout_free(read_good(root));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rule_alone),
        cmocka_unit_test(test_words_of_a_finding),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_what_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
