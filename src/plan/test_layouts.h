/* SPDX-License-Identifier: Apache-2.0 */
/* Small layouts for the planner's tests. */
#ifndef KVFERRY_PLAN_TEST_LAYOUTS_H
#define KVFERRY_PLAN_TEST_LAYOUTS_H

#include <stdio.h>
#include <string.h>

#include <kvferry/plan.h>

#include "test.h"

/* A builder for the worker tp_rank of tp_size, stage pp_rank of pp_size. */
static inline kvferry_layout_builder *test_builder(uint32_t tp_rank, uint32_t tp_size,
                                                   uint32_t pp_rank, uint32_t pp_size)
{
    const kvferry_worker worker = {tp_rank, tp_size, pp_rank, pp_size, 0, 1};
    const kvferry_identity identity = {"test/model", "", ""};
    kvferry_layout_builder *builder = NULL;
    assert_int_equal(kvferry_layout_builder_create("engine", &worker, &identity, &builder), KVFERRY_OK);
    return builder;
}

static inline void test_print(const kvferry_report *report)
{
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        fprintf(stderr, "  %s: %s\n", kvferry_report_get(report, i)->code,
                kvferry_report_get(report, i)->message);
}

static inline kvferry_layout *test_finish(kvferry_layout_builder *builder)
{
    kvferry_layout *layout = NULL;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status = kvferry_layout_builder_finish(builder, &layout, report);
    test_print(report);
    assert_int_equal(status, KVFERRY_OK);
    kvferry_report_free(report);
    kvferry_layout_builder_free(builder);
    return layout;
}

static inline uint32_t test_paged(kvferry_layout_builder *builder, const char *name,
                                  uint64_t block_tokens, uint64_t window)
{
    return kvferry_layout_builder_group(
        builder, &(kvferry_group){name, KVFERRY_GROUP_PAGED, block_tokens, window, 0});
}

static inline uint32_t test_one_block(kvferry_layout_builder *builder, const char *name,
                                      kvferry_group_kind kind)
{
    return kvferry_layout_builder_group(builder, &(kvferry_group){name, kind, 0, 0, 0});
}

/* Plans and expects it to work. */
static inline kvferry_plan *test_plan(kvferry_layout *const *sources, size_t count,
                                      const kvferry_layout *target)
{
    kvferry_plan *plan = NULL;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status = kvferry_plan_create((const kvferry_layout *const *)sources, count,
                                                target, &plan, report);
    test_print(report);
    assert_int_equal(status, KVFERRY_OK);
    assert_int_equal(kvferry_report_count(report), 0);
    kvferry_report_free(report);
    return plan;
}

/* Whether the report has a reason of this code; `layer` and `axis` NULL: any. */
static inline const kvferry_reason *test_reason(const kvferry_report *report, const char *code)
{
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        if (strcmp(kvferry_report_get(report, i)->code, code) == 0)
            return kvferry_report_get(report, i);
    return NULL;
}

/* Expands one source's part into `copies` (room for 4,096) and expects it to work. */
static inline size_t test_expand(const kvferry_plan *plan, size_t source,
                                 const kvferry_request *request, kvferry_copy *copies)
{
    size_t count = SIZE_MAX;
    kvferry_report *report = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    size_t bound = kvferry_plan_expand_bound(plan, source, request);
    assert_in_range(bound, 0, 4096);
    kvferry_status status =
        kvferry_plan_expand(plan, source, request, copies, 4096, &count, report);
    test_print(report);
    assert_int_equal(status, KVFERRY_OK);
    assert_in_range(count, 0, bound);
    kvferry_report_free(report);
    return count;
}

#define ASSERT_COPY(copy, source, target, size)                                                    \
    do {                                                                                           \
        assert_int_equal((copy).source_offset, source);                                            \
        assert_int_equal((copy).target_offset, target);                                            \
        assert_int_equal((copy).bytes, size);                                                      \
    } while (0)

/* A table of the ids that follow. */
#define TABLE(name, first, ...)                                                                    \
    {                                                                                              \
        (name), (first), (const uint32_t[]){__VA_ARGS__},                                          \
            sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)                                   \
    }

#endif
