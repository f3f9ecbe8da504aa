/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails every allocation of every public call, alone and with all later ones: the call answers
 * KVFERRY_NO_MEMORY (or what it would have answered, if it could do without), sets no output, and
 * nothing stays allocated once its caller has cleaned up.
 */
#include <kvferry/kvferry.h>

#include <stdio.h>
#include <string.h>

#include "documents.h"
#include "each.h"
#include "guard.h"
#include "test.h"

/* These functions allocate, and a case below fails them; tests/repo compares with the headers. */
#define FAULTS(function) _Static_assert(sizeof(&function) == sizeof(void *), #function);
/* These allocate nothing, and a case below counts. */
#define QUIET(function) _Static_assert(sizeof(&function) == sizeof(void *), #function);

/* What an output must be before a call and after one that failed. */
static char untouched_byte;
#define UNTOUCHED ((void *)&untouched_byte)

static kvferry_report *report;
static kvferry_layout *source, *target, *other;
static kvferry_plan *plan;
static kvferry_request *request, *refused_request;
static void *packed; /* the source's document in msgpack */
static size_t packed_size;
static char *source_text; /* as the library writes it */

/* The call under test, alone, between the guards. */
#define GUARDED(call)                                                                               \
    do {                                                                                            \
        guard_begin();                                                                              \
        call;                                                                                       \
        guard_end();                                                                                \
    } while (0)

/* --- outputs, right or untouched ------------------------------------------------------------- */

static void check_layout(kvferry_status status, kvferry_layout *layout, const char *expected)
{
    if (status != KVFERRY_OK) {
        assert_ptr_equal(layout, UNTOUCHED);
        return;
    }
    char *text;
    size_t size;
    assert_int_equal(kvferry_layout_write_json(layout, &text, &size), KVFERRY_OK);
    assert_string_equal(text, expected);
    kvferry_free(text);
    kvferry_layout_free(layout);
}

static size_t expand(const kvferry_plan *of, kvferry_copy *copies, size_t capacity)
{
    size_t count = 0;
    assert_true(kvferry_plan_expand_bound(of, 0, request) <= capacity);
    assert_int_equal(kvferry_plan_expand(of, 0, request, copies, capacity, &count, NULL),
                     KVFERRY_OK);
    assert_true(count > 0);
    return count;
}

/* --- reports --------------------------------------------------------------------------------- */

FAULTS(kvferry_report_create)
static kvferry_status report_create(void)
{
    kvferry_report *created = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_report_create(&created));
    if (status == KVFERRY_OK)
        kvferry_report_free(created);
    else
        assert_ptr_equal(created, UNTOUCHED);
    return status;
}

FAULTS(kvferry_report_add)
static kvferry_status report_add(void)
{
    GUARDED(kvferry_report_add(report, "engine", "what a caller's own engine has to say"));
    if (report)
        assert_int_equal(kvferry_report_count(report) + kvferry_report_dropped(report), 1);
    return KVFERRY_OK;
}

/* --- layouts --------------------------------------------------------------------------------- */

FAULTS(kvferry_layout_read_json)
static kvferry_status read_json(void)
{
    kvferry_layout *layout = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_layout_read_json(source_document, strlen(source_document), &layout,
                                              report));
    check_layout(status, layout, source_text);
    return status;
}

static kvferry_status read_bad_json(const char *text)
{
    kvferry_layout *layout = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_layout_read_json(text, strlen(text), &layout, report));
    assert_ptr_equal(layout, UNTOUCHED);
    return status;
}
static kvferry_status read_refused_json(void) { return read_bad_json(refused_document); }
static kvferry_status read_malformed_json(void) { return read_bad_json(malformed_document); }
static kvferry_status read_cut_json(void) { return read_bad_json("{\"format\": "); }

FAULTS(kvferry_layout_read_msgpack)
static kvferry_status read_msgpack(void)
{
    kvferry_layout *layout = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_layout_read_msgpack(packed, packed_size, &layout, report));
    check_layout(status, layout, source_text);
    return status;
}

static kvferry_status read_cut_msgpack(void)
{
    kvferry_layout *layout = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_layout_read_msgpack(packed, packed_size / 2, &layout, report));
    assert_ptr_equal(layout, UNTOUCHED);
    return status;
}

FAULTS(kvferry_layout_write_json)
static kvferry_status write_json(void)
{
    char *text = UNTOUCHED;
    size_t size = 77;
    kvferry_status status;
    GUARDED(status = kvferry_layout_write_json(source, &text, &size));
    if (status == KVFERRY_OK) {
        assert_string_equal(text, source_text);
        kvferry_free(text);
    } else {
        assert_ptr_equal(text, UNTOUCHED);
        assert_int_equal(size, 77);
    }
    return status;
}

FAULTS(kvferry_layout_write_msgpack)
static kvferry_status write_msgpack(void)
{
    void *data = UNTOUCHED;
    size_t size = 77;
    kvferry_status status;
    GUARDED(status = kvferry_layout_write_msgpack(source, &data, &size));
    if (status == KVFERRY_OK) {
        assert_int_equal(size, packed_size);
        assert_memory_equal(data, packed, size);
        kvferry_free(data);
    } else {
        assert_ptr_equal(data, UNTOUCHED);
        assert_int_equal(size, 77);
    }
    return status;
}

FAULTS(kvferry_layout_compare)
static kvferry_status compare(void)
{
    kvferry_status status;
    GUARDED(status = kvferry_layout_compare(source, target, report));
    return status;
}

FAULTS(kvferry_layout_builder_create)
FAULTS(kvferry_layout_builder_segment)
FAULTS(kvferry_layout_builder_group)
FAULTS(kvferry_layout_builder_stream)
FAULTS(kvferry_layout_builder_finish)
static kvferry_status build(void)
{
    kvferry_layout *layout = UNTOUCHED;
    kvferry_layout_builder *builder = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_layout_builder_create(kvferry_layout_engine_id(source),
                                                   kvferry_layout_worker(source),
                                                   kvferry_layout_identity(source), &builder));
    if (status != KVFERRY_OK) {
        assert_ptr_equal(builder, UNTOUCHED);
        return status;
    }
    guard_begin();
    for (uint32_t i = 0; i < kvferry_layout_segment_count(source); i++) {
        const kvferry_segment *segment = kvferry_layout_segment(source, i);
        kvferry_layout_builder_segment(builder, segment->name, segment->bytes);
    }
    for (uint32_t i = 0; i < kvferry_layout_group_count(source); i++)
        kvferry_layout_builder_group(builder, kvferry_layout_group(source, i));
    for (uint32_t i = 0; i < kvferry_layout_stream_count(source); i++)
        kvferry_layout_builder_stream(builder, kvferry_layout_stream(source, i));
    status = kvferry_layout_builder_finish(builder, &layout, report);
    guard_end();
    kvferry_layout_builder_free(builder);
    check_layout(status, layout, source_text);
    return status;
}

/* --- models ---------------------------------------------------------------------------------- */

static const char *config = model_config;
static size_t config_size = sizeof(model_config) - 1;
static char *model_text; /* what the config gives */

FAULTS(kvferry_model_layout)
static kvferry_status model(void)
{
    const kvferry_model_options options = {.size = sizeof(options), .tp_size = 2, .blocks = 8};
    kvferry_layout *layout = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_model_layout(config, config_size, &options, &layout, report));
    if (status == KVFERRY_OK && !model_text) { /* the first run, in which nothing fails */
        size_t size;
        assert_int_equal(kvferry_layout_write_json(layout, &model_text, &size), KVFERRY_OK);
    }
    check_layout(status, layout, model_text);
    return status;
}

static kvferry_status model_refused(void)
{
    kvferry_layout *layout = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_model_layout(refused_config, strlen(refused_config), NULL, &layout,
                                          report));
    assert_ptr_equal(layout, UNTOUCHED);
    return status;
}

/* --- plans ----------------------------------------------------------------------------------- */

enum { COPIES = 4096 };

FAULTS(kvferry_plan_create)
static kvferry_status plan_create(void)
{
    static kvferry_copy expected[COPIES], found[COPIES];
    const kvferry_layout *sources[] = {source};
    kvferry_plan *created = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_plan_create(sources, 1, target, &created, report));
    if (status == KVFERRY_OK) {
        size_t count = expand(plan, expected, COPIES);
        assert_int_equal(expand(created, found, COPIES), count);
        assert_memory_equal(found, expected, count * sizeof(kvferry_copy));
        kvferry_plan_free(created);
    } else {
        assert_ptr_equal(created, UNTOUCHED);
    }
    return status;
}

static kvferry_status plan_refused(void)
{
    const kvferry_layout *sources[] = {other};
    kvferry_plan *created = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_plan_create(sources, 1, target, &created, report));
    assert_ptr_equal(created, UNTOUCHED);
    return status;
}

/* With a report it may allocate: for the reasons, and nothing else. */
FAULTS(kvferry_plan_expand)
static kvferry_status expand_refused(void)
{
    static kvferry_copy copies[COPIES];
    size_t count = 77;
    kvferry_status status;
    GUARDED(status = kvferry_plan_expand(plan, 0, refused_request, copies, COPIES, &count, report));
    assert_int_equal(count, 77);
    return status;
}

FAULTS(kvferry_request_read_json)
static kvferry_status request_read(void)
{
    kvferry_request *read = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_request_read_json(request_document, strlen(request_document), &read,
                                               report));
    if (status != KVFERRY_OK) {
        assert_ptr_equal(read, UNTOUCHED);
        return status;
    }
    assert_int_equal(read->target_tokens, 40);
    assert_int_equal(read->source_count, 3);
    assert_int_equal(read->target_count, 3);
    for (size_t i = 0; i < read->source_count; i++)
        assert_memory_equal(read->source[i].blocks, request->source[i].blocks,
                            read->source[i].block_count * sizeof(uint32_t));
    kvferry_request_free(read);
    return status;
}

static kvferry_status request_malformed(void)
{
    kvferry_request *read = UNTOUCHED;
    kvferry_status status;
    GUARDED(status = kvferry_request_read_json(malformed_request_document,
                                               strlen(malformed_request_document), &read, report));
    assert_ptr_equal(read, UNTOUCHED);
    return status;
}

/* --- the loop -------------------------------------------------------------------------------- */

typedef struct fault_case {
    const char *name;
    kvferry_status expected;
    kvferry_status (*call)(void);
} fault_case;

static const fault_case cases[] = {
    {"report create", KVFERRY_OK, report_create},
    {"report add", KVFERRY_OK, report_add},
    {"read json", KVFERRY_OK, read_json},
    {"read json, refused", KVFERRY_REFUSED, read_refused_json},
    {"read json, malformed", KVFERRY_MALFORMED, read_malformed_json},
    {"read json, cut", KVFERRY_MALFORMED, read_cut_json},
    {"read msgpack", KVFERRY_OK, read_msgpack},
    {"read msgpack, cut", KVFERRY_MALFORMED, read_cut_msgpack},
    {"write json", KVFERRY_OK, write_json},
    {"write msgpack", KVFERRY_OK, write_msgpack},
    {"compare", KVFERRY_OK, compare},
    {"build", KVFERRY_OK, build},
    {"model", KVFERRY_OK, model},
    {"model, refused", KVFERRY_REFUSED, model_refused},
    {"plan", KVFERRY_OK, plan_create},
    {"plan, refused", KVFERRY_REFUSED, plan_refused},
    {"expand, refused", KVFERRY_REFUSED, expand_refused},
    {"request", KVFERRY_OK, request_read},
    {"request, malformed", KVFERRY_MALFORMED, request_malformed},
};

/* One run with the n-th allocation failing (and all after it), with or without a report. */
static kvferry_status run_once(const fault_case *c, size_t n, bool on, bool with_report)
{
    report = NULL;
    if (with_report)
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    guard_fail_at(n, on);
    kvferry_status status = c->call();
    if (with_report && status == c->expected && status != KVFERRY_OK && n == 0)
        assert_true(kvferry_report_count(report) > 0);
    /* A reason that there was no memory for is counted, never forgotten. */
    if (with_report && (status == KVFERRY_REFUSED || status == KVFERRY_MALFORMED))
        assert_true(kvferry_report_count(report) + kvferry_report_dropped(report) > 0);
    kvferry_report_free(report);
    if (guard_live() != 0)
        fail_msg("%s, allocation %zu: %zu allocations are left", c->name, n, guard_live());
    return status;
}

static kvferry_status run_with(const void *c, size_t n, bool on) { return run_once(c, n, on, true); }
static kvferry_status run_without(const void *c, size_t n, bool on) { return run_once(c, n, on, false); }

static void fail_each(const fault_case *c, bool on, bool with_report)
{
    const each_case both[] = {{c->name, "", c->expected, run_without, c},
                              {c->name, ", with a report", c->expected, run_with, c}};
    each_allocation_fails(&both[with_report], on);
}

static void one_allocation_fails(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fail_each(&cases[i], false, true);
        fail_each(&cases[i], false, false);
    }
}

static void memory_runs_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fail_each(&cases[i], true, true);
        fail_each(&cases[i], true, false);
    }
}

/* The same for a small config of every model: their rules differ. Made for the fuzzer, which takes
 * eight bytes of options before the config. */
static void every_model_runs_out(void **state)
{
    (void)state;
    static const char *const names[] = {"DeepSeek-V3",        "DeepSeek-V4-Flash", "GLM-5.3-Flash",
                                        "Qwen3-Next-80B-A3B", "Qwen3.5-35B-A3B",   "gpt-oss-120b"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512], data[4096];
        snprintf(path, sizeof(path), KVFERRY_SOURCE_DIR "/tests/fuzz/corpus/model_config/%s",
                 names[i]);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t size = fread(data, 1, sizeof(data), file);
        fclose(file);
        assert_in_range(size, 9, sizeof(data) - 1);
        kvferry_free(model_text);
        model_text = NULL;
        config = data + 8;
        config_size = size - 8;
        const fault_case c = {names[i], KVFERRY_OK, model};
        fail_each(&c, false, true);
        fail_each(&c, true, false);
    }
}

/* --- calls that allocate nothing ------------------------------------------------------------- */

QUIET(kvferry_version)
QUIET(kvferry_status_name)
QUIET(kvferry_status_describe)
QUIET(kvferry_report_free)
QUIET(kvferry_report_clear)
QUIET(kvferry_report_count)
QUIET(kvferry_report_dropped)
QUIET(kvferry_report_get)
QUIET(kvferry_free)
QUIET(kvferry_layout_free)
QUIET(kvferry_layout_engine_id)
QUIET(kvferry_layout_worker)
QUIET(kvferry_layout_identity)
QUIET(kvferry_layout_segment_count)
QUIET(kvferry_layout_group_count)
QUIET(kvferry_layout_stream_count)
QUIET(kvferry_layout_segment)
QUIET(kvferry_layout_group)
QUIET(kvferry_layout_stream)
QUIET(kvferry_layout_group_blocks)
QUIET(kvferry_layout_groups_share)
QUIET(kvferry_layout_digest)
QUIET(kvferry_layout_builder_free)
QUIET(kvferry_plan_free)
QUIET(kvferry_plan_source_count)
QUIET(kvferry_plan_piece_count)
QUIET(kvferry_plan_piece)
QUIET(kvferry_plan_expand_bound)
QUIET(kvferry_request_free)
static void looking_allocates_nothing(void **state)
{
    (void)state;
    size_t seen = 0;
    guard_fail_at(0, false);
    guard_begin();
    seen += strlen(kvferry_version()) + strlen(kvferry_status_name(KVFERRY_OK)) +
            strlen(kvferry_status_describe(KVFERRY_OK));
    seen += kvferry_report_count(NULL) + kvferry_report_dropped(NULL);
    seen += kvferry_report_get(NULL, 0) != NULL;
    kvferry_report_clear(NULL);
    kvferry_report_free(NULL);
    kvferry_free(NULL);
    kvferry_layout_free(NULL);
    kvferry_layout_builder_free(NULL);
    kvferry_plan_free(NULL);
    kvferry_request_free(NULL);
    seen += strlen(kvferry_layout_engine_id(source)) + kvferry_layout_worker(source)->tp_size +
            strlen(kvferry_layout_identity(source)->model);
    for (uint32_t i = 0; i < kvferry_layout_segment_count(source); i++)
        seen += kvferry_layout_segment(source, i)->bytes;
    for (uint32_t i = 0; i < kvferry_layout_group_count(source); i++)
        seen += strlen(kvferry_layout_group(source, i)->name) +
                kvferry_layout_group_blocks(source, i) + kvferry_layout_groups_share(source, i, 0);
    for (uint32_t i = 0; i < kvferry_layout_stream_count(source); i++)
        seen += strlen(kvferry_layout_stream(source, i)->name) +
                strlen(kvferry_layout_digest(source, i + 1)->text);
    for (size_t i = 0; i < kvferry_plan_source_count(plan); i++)
        for (size_t k = 0; k < kvferry_plan_piece_count(plan, i); k++)
            seen += kvferry_plan_piece(plan, i, k)->state_bytes;
    seen += kvferry_plan_expand_bound(plan, 0, request);
    guard_end();
    assert_true(seen > 8192);
    assert_int_equal(guard_allocations(), 0);
    assert_int_equal(guard_locks(), 0);
}

/* --- set-up ---------------------------------------------------------------------------------- */

static void must(kvferry_status status)
{
    for (size_t i = 0; status != KVFERRY_OK && i < kvferry_report_count(report); i++)
        print_error("%s\n", kvferry_report_get(report, i)->message);
    assert_int_equal(status, KVFERRY_OK);
}

static int set_up(void **state)
{
    (void)state;
    size_t size;
    must(kvferry_report_create(&report));
    must(kvferry_layout_read_json(source_document, strlen(source_document), &source, report));
    must(kvferry_layout_read_json(target_document, strlen(target_document), &target, report));
    must(kvferry_layout_read_json(other_document, strlen(other_document), &other, report));
    must(kvferry_layout_write_json(source, &source_text, &size));
    must(kvferry_layout_write_msgpack(source, &packed, &packed_size));
    must(kvferry_plan_create(&(const kvferry_layout *){source}, 1, target, &plan, report));
    must(kvferry_request_read_json(request_document, strlen(request_document), &request, report));
    must(kvferry_request_read_json(refused_request_document, strlen(refused_request_document),
                                   &refused_request, report));
    kvferry_report_free(report);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    guard_fail_at(0, false);
    guard_begin();
    kvferry_request_free(refused_request);
    kvferry_request_free(request);
    kvferry_plan_free(plan);
    kvferry_free(packed);
    kvferry_free(source_text);
    kvferry_free(model_text);
    kvferry_layout_free(other);
    kvferry_layout_free(target);
    kvferry_layout_free(source);
    guard_end();
    return guard_allocations() ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_allocation_fails),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(every_model_runs_out),
        cmocka_unit_test(looking_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
