/* SPDX-License-Identifier: Apache-2.0 */
/* Whole documents: random ones against plain counting, and the patterns of hard cases. */
#include "layout/documents.h"
#include "layout/ownership.h"
#include "layout/rules.h"

enum { STREAMS = 10, GROUPS = 3 };

/* A random document of one segment: a paged group of 32 tokens a block and two state groups. */
typedef struct overlap_draft {
    sample samples[STREAMS];
    uint32_t count;
    ownership owned[STREAMS];
} overlap_draft;

/* `period` 0: each stream as it comes; else all repeat alike with it inside of their blocks. */
static void draft_stream(overlap_draft *draft, uint32_t index, uint64_t stride, uint64_t period)
{
    sample *made = &draft->samples[index];
    memset(made, 0, sizeof(*made));
    kvferry_stream *stream = &made->stream;
    stream->group = (uint32_t)pick(0, GROUPS - 1);
    uint64_t ratio = stream->group == 0 ? pick(1, 2) : 1;
    stream->page_tokens = stream->group == 0 ? 32 / ratio : 0;
    stream->pages = pick(ratio, 5);
    stream->page_stride = period || pick(0, 3) ? stride / ratio : pick(4, 60);
    stream->offset = pick(0, 1) ? pick(0, stride - 1) : pick(0, 4) * stride * 5;
    stream->cell_bytes = pick(1, 4);
    stream->axis_count = (uint32_t)pick(0, 2);
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        made->axes[i].name = i ? "y" : "x";
        made->axes[i].extent = pick(1, 3);
        made->axes[i].stride = pick(0, 3) ? pick(1, 20) : stride * stream->pages;
    }
    if (period) {
        stream->axis_count = (uint32_t)pick(1, 2);
        made->axes[0] = (kvferry_axis){.name = "x", .extent = pick(2, 3), .stride = period};
        made->axes[1] = (kvferry_axis){.name = "y", .extent = pick(1, 2), .stride = pick(1, 6)};
    }
    if (stream->group == 0) { /* one state a page, so that any page does */
        stream->tokens_per_state = stream->page_tokens;
        made->axes[stream->axis_count].name = "token";
        made->axes[stream->axis_count].extent = 1;
        stream->axis_count++;
    }
    stream->axes = made->axes;
    stream->layer = "l";
    stream->dtype = "uint8";
}

static kvferry_status finish_draft(const overlap_draft *draft, kvferry_layout **layout,
                                   kvferry_report *report)
{
    static const char *const names[STREAMS] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    const kvferry_worker worker = {0, 1, 0, 1, 0, 1};
    const kvferry_identity identity = {"m", "", ""};
    kvferry_layout_builder *builder;
    assert_int_equal(kvferry_layout_builder_create("e", &worker, &identity, &builder), KVFERRY_OK);
    kvferry_layout_builder_segment(builder, "s", BYTES);
    kvferry_layout_builder_group(
        builder, &(kvferry_group){.name = "p", .kind = KVFERRY_GROUP_PAGED, .block_tokens = 32});
    kvferry_layout_builder_group(builder,
                                 &(kvferry_group){.name = "a", .kind = KVFERRY_GROUP_STATE});
    kvferry_layout_builder_group(builder,
                                 &(kvferry_group){.name = "b", .kind = KVFERRY_GROUP_RING});
    for (uint32_t i = 0; i < draft->count; i++) {
        kvferry_stream stream = draft->samples[i].stream;
        stream.name = names[i];
        kvferry_layout_builder_stream(builder, &stream);
    }
    kvferry_status status = kvferry_layout_builder_finish(builder, layout, report);
    kvferry_layout_builder_free(builder);
    return status;
}

static uint64_t ratio_of(const kvferry_stream *stream)
{
    return stream->page_tokens ? 32 / stream->page_tokens : 1;
}

/* What plain counting says. */
typedef struct overlap_verdict {
    size_t itself, streams, groups;
    bool share[GROUPS][GROUPS];
} overlap_verdict;

static void count_overlaps(overlap_draft *draft, overlap_verdict *verdict)
{
    memset(verdict, 0, sizeof(*verdict));
    bool itself[STREAMS];
    for (uint32_t i = 0; i < draft->count; i++) {
        const sample *made = &draft->samples[i];
        uint64_t ratio = ratio_of(&made->stream);
        own_all(made, ratio, made->stream.pages, &draft->owned[i]);
        itself[i] = draft->owned[i].twice;
        verdict->itself += itself[i];
        own_all(made, ratio, made->stream.pages / ratio * ratio, &draft->owned[i]);
    }
    for (int i = 0; i < GROUPS; i++)
        verdict->share[i][i] = true;
    for (uint32_t i = 0; i < draft->count; i++)
        for (uint32_t k = i + 1; k < draft->count; k++) {
            if (itself[i] || itself[k])
                continue;
            const ownership *a = &draft->owned[i], *b = &draft->owned[k];
            uint32_t group_a = draft->samples[i].stream.group,
                     group_b = draft->samples[k].stream.group;
            if (group_a == group_b) {
                verdict->streams += expected_of_pair(a, b, LAYOUT_BLOCKS_ANY) == LAYOUT_MEET;
                continue;
            }
            verdict->groups += expected_of_pair(a, b, LAYOUT_BLOCKS_UNEQUAL) == LAYOUT_MEET;
            if (expected_of_pair(a, b, LAYOUT_BLOCKS_EQUAL) == LAYOUT_MEET)
                verdict->share[group_a][group_b] = verdict->share[group_b][group_a] = true;
        }
}

static size_t count_code(const kvferry_report *report, const char *code)
{
    size_t count = 0;
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        count += strcmp(kvferry_report_get(report, i)->code, code) == 0;
    return count;
}

static void test_random_documents(void **state)
{
    (void)state;
    static overlap_draft draft;
    unsigned good = 0, shared = 0;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    for (unsigned round = 0; round < 6000; round++) {
        uint64_t stride = 2 * pick(4, 40),
                 period = pick(0, 1) ? pick(stride / 6 + 1, stride / 3 + 1) : 0;
        draft.count = (uint32_t)pick(1, STREAMS);
        for (uint32_t i = 0; i < draft.count; i++)
            draft_stream(&draft, i, stride, period);
        overlap_verdict verdict;
        count_overlaps(&draft, &verdict);
        kvferry_report_clear(report);
        kvferry_layout *layout = NULL;
        kvferry_status status = finish_draft(&draft, &layout, report);
        assert_int_equal(count_code(report, "cells_overlap"), verdict.itself);
        assert_int_equal(count_code(report, "streams_overlap"), verdict.streams);
        assert_int_equal(count_code(report, "groups_overlap"), verdict.groups);
        size_t faults = verdict.itself + verdict.streams + verdict.groups;
        assert_int_equal(kvferry_report_count(report), faults);
        assert_int_equal(status, faults ? KVFERRY_REFUSED : KVFERRY_OK);
        for (uint32_t a = 0; layout && a < GROUPS; a++)
            for (uint32_t b = 0; b < GROUPS; b++) {
                assert_int_equal(kvferry_layout_groups_share(layout, a, b), verdict.share[a][b]);
                shared += a != b && verdict.share[a][b];
            }
        good += layout != NULL;
        kvferry_layout_free(layout);
    }
    kvferry_report_free(report);
    assert_true(good > 500 && good < 5500 && shared > 100);
}

/* Even and odd bytes, by strides that are not nested: apart, but only a long search can tell. */
static void test_too_intricate(void **state)
{
    (void)state;
    json_t *root = parse_small();
    change(root, "segments[2].bytes", "9223372036854775807");
    for (int i = 3; i < 5; i++) {
        static const char *const axes[] = {
            "[{\"name\": \"a\", \"extent\": 997, \"stride\": 2}, {\"name\": \"b\", \"extent\": 1009, \"stride\": 2018},"
            " {\"name\": \"c\", \"extent\": 1013, \"stride\": 2040000}]",
            "[{\"name\": \"a\", \"extent\": 883, \"stride\": 6}, {\"name\": \"b\", \"extent\": 887, \"stride\": 5318},"
            " {\"name\": \"c\", \"extent\": 907, \"stride\": 4900002}]"};
        char path[64];
        snprintf(path, sizeof(path), "streams[%d]", i);
        char value[600];
        snprintf(value, sizeof(value),
                 "{\"layer\": \"x%d\", \"name\": \"x\", \"group\": \"spare\", \"dtype\": \"uint8\","
                 " \"segment\": \"spare\", \"offset\": %d, \"pages\": 1, \"page_stride\": 1, \"cell_bytes\": 1,"
                 " \"axes\": %s}",
                 i, i, axes[i - 3]);
        change(root, path, value);
    }
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    assert_int_equal(read_tree(root, &layout, report), KVFERRY_REFUSED);
    assert_int_equal(kvferry_report_count(report), 1);
    assert_string_equal(kvferry_report_get(report, 0)->code, "overlap_undecided");
    kvferry_report_free(report);
    json_decref(root);
}

/* Many streams that all lie on one another: the end comes soon, and the report is bounded. */
static void test_everything_on_everything(void **state)
{
    (void)state;
    json_t *root = parse_small();
    json_t *streams = json_object_get(root, "streams");
    json_t *pattern = json_deep_copy(json_array_get(streams, 3));
    for (int i = 0; i < 20000; i++) {
        json_t *copy = json_deep_copy(pattern);
        json_object_set_new(copy, "layer", json_sprintf("copy %d", i));
        json_array_append_new(streams, copy);
    }
    json_decref(pattern);
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    assert_int_equal(read_tree(root, &layout, report), KVFERRY_REFUSED);
    assert_int_equal(kvferry_report_count(report), KVFERRY_REPORT_LIMIT);
    assert_true(kvferry_report_dropped(report) > 1000);
    kvferry_report_free(report);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_documents),
        cmocka_unit_test(test_too_intricate),
        cmocka_unit_test(test_everything_on_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
