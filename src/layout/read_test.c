/* SPDX-License-Identifier: Apache-2.0 */
/* Documents in and out: JSON, msgpack, builder. */
#include "layout/documents.h"

#include "layout/layout.h"

/* --- round trips --------------------------------------------------------------------------- */

static char *to_json(const kvferry_layout *layout)
{
    char *text;
    size_t size;
    assert_int_equal(kvferry_layout_write_json(layout, &text, &size), KVFERRY_OK);
    assert_int_equal(strlen(text), size);
    return text;
}

static void test_reads_every_field(void **state)
{
    (void)state;
    kvferry_layout *layout = read_good(parse_small());
    assert_string_equal(kvferry_layout_engine_id(layout), "decode-0");
    assert_string_equal(layout_worker_text(layout), "decode-0 tp1/4 pp0/1");
    assert_int_equal(kvferry_layout_worker(layout)->tp_rank, 1);
    assert_int_equal(kvferry_layout_worker(layout)->tp_size, 4);
    assert_int_equal(kvferry_layout_worker(layout)->dp_size, 1);
    assert_string_equal(kvferry_layout_identity(layout)->model, "small");
    assert_string_equal(kvferry_layout_identity(layout)->revision, "r1");
    assert_string_equal(kvferry_layout_identity(layout)->draft, "d1");
    assert_int_equal(kvferry_layout_segment_count(layout), 3);
    assert_string_equal(kvferry_layout_segment(layout, 1)->name, "st");
    assert_int_equal(kvferry_layout_segment(layout, 1)->bytes, 4096);
    assert_null(kvferry_layout_segment(layout, 3));
    assert_int_equal(kvferry_layout_group_count(layout), 4);
    const kvferry_group *group = kvferry_layout_group(layout, 0);
    assert_int_equal(group->kind, KVFERRY_GROUP_PAGED);
    assert_int_equal(group->block_tokens, 32);
    assert_int_equal(group->window, 127);
    assert_int_equal(group->null_block, 0);
    assert_int_equal(kvferry_layout_group(layout, 1)->null_block, -1);
    assert_int_equal(kvferry_layout_group(layout, 2)->kind, KVFERRY_GROUP_RING);
    assert_null(kvferry_layout_group(layout, 4));
    assert_int_equal(kvferry_layout_group_blocks(layout, 0), 8);
    assert_int_equal(kvferry_layout_group_blocks(layout, 1), 4);
    assert_int_equal(kvferry_layout_group_blocks(layout, 3), 0);
    assert_int_equal(kvferry_layout_group_blocks(layout, 4), 0);
    assert_true(kvferry_layout_groups_share(layout, 0, 0));
    assert_false(kvferry_layout_groups_share(layout, 0, 1));
    assert_false(kvferry_layout_groups_share(layout, 0, 4));
    assert_int_equal(kvferry_layout_stream_count(layout), 5);
    const kvferry_stream *k = kvferry_layout_stream(layout, 0);
    assert_string_equal(k->layer, "l0");
    assert_string_equal(k->name, "k");
    assert_string_equal(k->dtype, "bfloat16");
    assert_string_equal(k->format, "");
    assert_int_equal(k->group, 0);
    assert_int_equal(k->segment, 0);
    assert_int_equal(k->pages, 16);
    assert_int_equal(k->page_stride, 2048);
    assert_int_equal(k->page_tokens, 16);
    assert_int_equal(k->tokens_per_state, 1);
    assert_int_equal(k->cell_bytes, 32);
    assert_int_equal(k->policy, KVFERRY_POLICY_REQUIRED);
    assert_int_equal(k->axis_count, 2);
    assert_string_equal(k->axes[0].name, "kv_head");
    assert_int_equal(k->axes[0].start, 2);
    assert_int_equal(k->axes[0].extent, 2);
    assert_int_equal(k->axes[0].global, 4);
    assert_int_equal(k->axes[0].stride, 1024);
    assert_int_equal(k->axes[1].start, 0);
    assert_int_equal(k->axes[1].global, 16);
    const kvferry_stream *index = kvferry_layout_stream(layout, 2);
    assert_int_equal(index->page_tokens, 32); /* the block's */
    assert_int_equal(index->tokens_per_state, 4);
    assert_int_equal(index->offset, 32768);
    const kvferry_stream *tail = kvferry_layout_stream(layout, 4);
    assert_int_equal(tail->page_tokens, 0);
    assert_int_equal(tail->policy, KVFERRY_POLICY_OPTIONAL);
    assert_string_equal(tail->format, "packed");
    assert_int_equal(tail->alias_count, 2);
    assert_string_equal(tail->aliases[1], "l5");
    assert_null(kvferry_layout_stream(layout, 5));
    kvferry_layout_free(layout);
    kvferry_layout_free(NULL);
}

static void test_json_and_msgpack_round_trips(void **state)
{
    (void)state;
    kvferry_layout *layout = read_good(parse_small());
    char *text = to_json(layout);
    kvferry_layout *again = NULL;
    assert_int_equal(kvferry_layout_read_json(text, strlen(text), &again, NULL), KVFERRY_OK);
    char *text_again = to_json(again);
    assert_string_equal(text, text_again);
    void *data, *data_again;
    size_t size, size_again;
    assert_int_equal(kvferry_layout_write_msgpack(layout, &data, &size), KVFERRY_OK);
    kvferry_layout *unpacked = NULL;
    assert_int_equal(kvferry_layout_read_msgpack(data, size, &unpacked, NULL), KVFERRY_OK);
    char *text_unpacked = to_json(unpacked);
    assert_string_equal(text, text_unpacked);
    assert_int_equal(kvferry_layout_write_msgpack(unpacked, &data_again, &size_again), KVFERRY_OK);
    assert_int_equal(size, size_again);
    assert_memory_equal(data, data_again, size);
    for (uint32_t i = 0; i <= kvferry_layout_stream_count(layout); i++) {
        assert_string_equal(kvferry_layout_digest(layout, i)->text,
                            kvferry_layout_digest(again, i)->text);
        assert_string_equal(kvferry_layout_digest(layout, i)->text,
                            kvferry_layout_digest(unpacked, i)->text);
    }
    kvferry_free(text);
    kvferry_free(text_again);
    kvferry_free(text_unpacked);
    kvferry_free(data);
    kvferry_free(data_again);
    kvferry_layout_free(layout);
    kvferry_layout_free(again);
    kvferry_layout_free(unpacked);
}

/* The builder, given what the getters say, makes the same document. */
static void test_builder_round_trip(void **state)
{
    (void)state;
    kvferry_layout *layout = read_good(parse_small());
    kvferry_layout_builder *builder = NULL;
    assert_int_equal(kvferry_layout_builder_create(kvferry_layout_engine_id(layout),
                                                   kvferry_layout_worker(layout),
                                                   kvferry_layout_identity(layout), &builder),
                     KVFERRY_OK);
    for (uint32_t i = 0; i < kvferry_layout_segment_count(layout); i++)
        assert_int_equal(kvferry_layout_builder_segment(builder,
                                                        kvferry_layout_segment(layout, i)->name,
                                                        kvferry_layout_segment(layout, i)->bytes),
                         i);
    for (uint32_t i = 0; i < kvferry_layout_group_count(layout); i++)
        assert_int_equal(kvferry_layout_builder_group(builder, kvferry_layout_group(layout, i)), i);
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++)
        assert_int_equal(kvferry_layout_builder_stream(builder, kvferry_layout_stream(layout, i)),
                         i);
    kvferry_layout *built = NULL;
    assert_int_equal(kvferry_layout_builder_finish(builder, &built, NULL), KVFERRY_OK);
    char *text = to_json(layout), *text_built = to_json(built);
    assert_string_equal(text, text_built);
    kvferry_free(text);
    kvferry_free(text_built);
    kvferry_layout_builder_free(builder);
    kvferry_layout_builder_free(NULL);
    kvferry_layout_free(built);
    kvferry_layout_free(layout);
}

static void test_text_is_for_people(void **state)
{
    (void)state;
    json_t *root = parse_small();
    change(root, "streams", "[]");
    change(root, "segments", "[]");
    change(root, "groups", "[{\"name\": \"\\u00e9/\\\"\", \"kind\": \"ring\", \"null_block\": -1},"
                           " {\"name\": \"b\", \"kind\": \"paged\", \"block_tokens\": 7}]");
    change(root, "worker.dp_rank", "1");
    change(root, "worker.dp_size", "2");
    kvferry_layout *layout = read_good(root);
    assert_string_equal(layout_worker_text(layout), "decode-0 tp1/4 pp0/1 dp1/2");
    char *text = to_json(layout);
    assert_string_equal(text,
                        "{\n"
                        "  \"format\": \"kvferry-layout/1\",\n"
                        "  \"engine_id\": \"decode-0\",\n"
                        "  \"worker\": {\"tp_rank\": 1, \"tp_size\": 4, \"pp_rank\": 0, \"pp_size\": 1,"
                        " \"dp_rank\": 1, \"dp_size\": 2},\n"
                        "  \"identity\": {\"model\": \"small\", \"revision\": \"r1\", \"draft\": \"d1\"},\n"
                        "  \"segments\": [],\n"
                        "  \"groups\": [\n"
                        "    {\"name\": \"\xc3\xa9/\\\"\", \"kind\": \"ring\", \"null_block\": -1},\n"
                        "    {\"name\": \"b\", \"kind\": \"paged\", \"block_tokens\": 7}\n"
                        "  ],\n"
                        "  \"streams\": []\n"
                        "}\n");
    kvferry_free(text);
    kvferry_layout_free(layout);
}

/* --- what cannot be read ------------------------------------------------------------------- */

static void test_missing_keys(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        bool needed;
    } keys[] = {
        {"format", true},
        {"engine_id", true},
        {"worker", true},
        {"worker.tp_rank", true},
        {"worker.tp_size", true},
        {"worker.pp_rank", true},
        {"worker.pp_size", true},
        {"worker.dp_rank", false},
        {"worker.dp_size", false},
        {"identity", true},
        {"identity.model", true},
        {"identity.revision", false},
        {"identity.draft", false},
        {"segments", true},
        {"segments[2].name", true},
        {"segments[2].bytes", true},
        {"groups", true},
        {"groups[3].name", true},
        {"groups[3].kind", true},
        {"groups[0].block_tokens", true},
        {"groups[0].window", false},
        {"groups[1].null_block", false},
        {"streams", true},
        {"streams[2].layer", true},
        {"streams[2].name", true},
        {"streams[2].group", true},
        {"streams[2].dtype", true},
        {"streams[4].format", false},
        {"streams[4].policy", false},
        {"streams[4].aliases", false},
        {"streams[2].segment", true},
        {"streams[2].offset", true},
        {"streams[2].pages", true},
        {"streams[2].page_stride", true},
        {"streams[2].axes", true},
        {"streams[3].cell_bytes", true},
        {"streams[4].axes[0].name", true},
        {"streams[4].axes[0].extent", true},
        {"streams[4].axes[0].stride", true},
        {"streams[4].axes[0].start", false},
        {"streams[3].axes[0].global", false},
    };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        kvferry_report *report;
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
        json_t *root = parse_small();
        change(root, keys[i].path, NULL);
        kvferry_layout *layout = NULL;
        kvferry_status status = read_tree(root, &layout, report);
        json_decref(root);
        if (keys[i].needed) {
            assert_int_equal(status, KVFERRY_MALFORMED);
            assert_int_equal(kvferry_report_count(report), 1);
            const kvferry_reason *reason = kvferry_report_get(report, 0);
            assert_string_equal(reason->code, "value_missing");
            assert_string_equal(reason->place, keys[i].path);
        } else {
            assert_int_equal(status, KVFERRY_OK);
        }
        kvferry_layout_free(layout);
        kvferry_report_free(report);
    }
}

static void test_wrong_values(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *code;
    } wrong[] = {
        {"format", "\"kvferry-layout/2\"", "value_unknown"},
        {"format", "1", "value_type"},
        {"engine_id", "null", "value_type"},
        {"worker", "[]", "value_type"},
        {"worker.tp_rank", "-1", "value_range"},
        {"worker.tp_size", "0", "value_range"},
        {"worker.pp_size", "4294967296", "value_range"},
        {"segments", "{}", "value_type"},
        {"segments[2]", "\"kv\"", "value_type"},
        {"segments[2].bytes", "4096.0", "value_type"},
        {"segments[2].bytes", "\"4096\"", "value_type"},
        {"segments[2].bytes", "-4096", "value_range"},
        {"groups[3].kind", "\"Paged\"", "value_unknown"},
        {"groups[3].kind", "0", "value_type"},
        {"groups[0].block_tokens", "0", "value_range"},
        {"groups[3].null_block", "-2", "value_range"},
        {"streams[4].policy", "\"maybe\"", "value_unknown"},
        {"streams[4].aliases", "\"l4\"", "value_type"},
        {"streams[4].aliases[0]", "4", "value_type"},
        {"streams[2].pages", "0", "value_range"},
        {"streams[2].tokens_per_state", "0", "value_range"},
        {"streams[2].page_tokens", "0", "value_range"},
        {"streams[2].cell_bytes", "0", "value_range"},
        {"streams[4].axes[0].extent", "0", "value_range"},
        {"streams[4].axes[0].start", "true", "value_type"},
        {"streams[4].axes[0].global", "0", "value_range"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        kvferry_report *report;
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
        json_t *root = parse_small();
        change(root, wrong[i].path, wrong[i].value);
        kvferry_layout *layout = NULL;
        assert_int_equal(read_tree(root, &layout, report), KVFERRY_MALFORMED);
        json_decref(root);
        assert_null(layout);
        const kvferry_reason *reason = kvferry_report_get(report, 0);
        assert_string_equal(reason->code, wrong[i].code);
        assert_string_equal(reason->place, wrong[i].path);
        kvferry_report_free(report);
    }
}

static void test_limits(void **state)
{
    (void)state;
    json_t *root = parse_small();
    json_t *axes = json_object_get(json_array_get(json_object_get(root, "streams"), 3), "axes");
    for (int i = 1; i < 16; i++)
        json_array_append_new(axes, json_pack("{s:o, s:i, s:i}", "name", json_sprintf("a%d", i),
                                              "extent", 1, "stride", 0));
    kvferry_layout_free(read_good(json_deep_copy(root)));
    json_array_append_new(axes,
                          json_pack("{s:s, s:i, s:i}", "name", "a16", "extent", 1, "stride", 0));
    char longest[1026];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    json_object_set_new(json_array_get(json_object_get(root, "groups"), 3), "name",
                        json_string(longest));
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    assert_int_equal(read_tree(root, &layout, report), KVFERRY_MALFORMED);
    assert_int_equal(kvferry_report_count(report), 2);
    assert_string_equal(kvferry_report_get(report, 0)->code, "value_range");
    assert_string_equal(kvferry_report_get(report, 0)->place, "groups[3].name");
    assert_string_equal(kvferry_report_get(report, 1)->code, "list_length");
    assert_string_equal(kvferry_report_get(report, 1)->place, "streams[3].axes");
    kvferry_report_free(report);
    json_decref(root);
}

static void test_unknown_keys_are_ignored(void **state)
{
    (void)state;
    json_t *root = parse_small();
    change(root, "vendor", "{\"deep\": [1.5, null, {\"x\": -1}]}");
    change(root, "worker.color", "\"red\"");
    change(root, "streams[3].axes[0].note", "[]");
    kvferry_layout_free(read_good(root));
}

/* Bits of good msgpack turned over, and good msgpack cut: an answer, and nothing else. */
static void test_damaged_msgpack(void **state)
{
    (void)state;
    kvferry_layout *layout = read_good(parse_small());
    void *data;
    size_t size;
    assert_int_equal(kvferry_layout_write_msgpack(layout, &data, &size), KVFERRY_OK);
    kvferry_layout_free(layout);
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(kvferry_layout_read_msgpack(data, cut, &layout, NULL), KVFERRY_MALFORMED);
    unsigned fine = 0, refused = 0;
    for (size_t bit = 0; bit < size * 8; bit++) {
        unsigned char *byte = (unsigned char *)data + bit / 8;
        *byte ^= (unsigned char)(1u << bit % 8);
        kvferry_layout *damaged = NULL;
        kvferry_status status = kvferry_layout_read_msgpack(data, size, &damaged, NULL);
        assert_true(status == KVFERRY_OK || status == KVFERRY_REFUSED ||
                    status == KVFERRY_MALFORMED);
        assert_true((status == KVFERRY_OK) == (damaged != NULL));
        fine += status == KVFERRY_OK;
        refused += status == KVFERRY_REFUSED;
        kvferry_layout_free(damaged);
        *byte ^= (unsigned char)(1u << bit % 8);
    }
    assert_true(fine > 100 && refused > 100); /* a name may change; a number seldom */
    kvferry_free(data);
}

/* --- the builder --------------------------------------------------------------------------- */

static void test_builder_findings(void **state)
{
    (void)state;
    const kvferry_worker worker = {0, 1, 0, 0, 0, 1};
    const kvferry_identity identity = {"m\xff", NULL, ""};
    kvferry_layout_builder *builder = NULL;
    assert_int_equal(kvferry_layout_builder_create(NULL, &worker, &identity, &builder),
                     KVFERRY_INVALID);
    assert_int_equal(kvferry_layout_builder_create("e", &worker, &identity, &builder), KVFERRY_OK);
    kvferry_layout_builder_segment(builder, NULL, UINT64_MAX);
    kvferry_layout_builder_group(builder,
                                 &(kvferry_group){.name = "g", .kind = (kvferry_group_kind)9});
    kvferry_layout_builder_group(builder, &(kvferry_group){.name = "p"});
    kvferry_layout_builder_stream(
        builder,
        &(kvferry_stream){
            .layer = "l", .name = "s", .group = 7, .segment = 3, .policy = (kvferry_policy)5});
    static const struct {
        const char *code, *place;
    } expected[] = {
        {"value_range", "worker.pp_size"},       {"text_encoding", "identity.model"},
        {"value_missing", "segments[0].name"},   {"value_range", "segments[0].bytes"},
        {"value_unknown", "groups[0].kind"},     {"value_missing", "groups[1].block_tokens"},
        {"value_missing", "streams[0].dtype"},   {"value_unknown", "streams[0].policy"},
        {"reference_unknown", "streams[0].group"}, {"reference_unknown", "streams[0].segment"},
        {"value_range", "streams[0].pages"},     {"value_range", "streams[0].cell_bytes"},
    };
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_layout_builder_finish(builder, &layout, report), KVFERRY_MALFORMED);
    assert_null(layout);
    size_t count = sizeof(expected) / sizeof(expected[0]);
    assert_int_equal(kvferry_report_count(report), count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(kvferry_report_get(report, i)->code, expected[i].code);
        assert_string_equal(kvferry_report_get(report, i)->place, expected[i].place);
    }
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_every_field),
        cmocka_unit_test(test_json_and_msgpack_round_trips),
        cmocka_unit_test(test_builder_round_trip),
        cmocka_unit_test(test_text_is_for_people),
        cmocka_unit_test(test_missing_keys),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_unknown_keys_are_ignored),
        cmocka_unit_test(test_damaged_msgpack),
        cmocka_unit_test(test_builder_findings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
