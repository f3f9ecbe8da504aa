/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source document, a target document and a request, with a zero byte after each of the first two:
 * whatever two peers say of themselves, copies stay inside the segments and apart on the target.
 */
#include "fuzz.h"

enum { MAX_COPIES = 1 << 20 };

static kvferry_layout *next_layout(const uint8_t **data, size_t *size)
{
    const uint8_t *end = *size ? memchr(*data, 0, *size) : NULL;
    if (!end)
        return NULL;
    kvferry_layout *layout = NULL;
    size_t length = (size_t)(end - *data);
    kvferry_layout_read_json((const char *)*data, length, &layout, NULL);
    *data += length + 1;
    *size -= length + 1;
    return layout;
}

static int by_target(const void *a, const void *b)
{
    const kvferry_copy *x = a, *y = b;
    if (x->target_segment != y->target_segment)
        return x->target_segment < y->target_segment ? -1 : 1;
    return (x->target_offset > y->target_offset) - (x->target_offset < y->target_offset);
}

static void check_copies(kvferry_copy *copies, size_t count, const kvferry_layout *source,
                         const kvferry_layout *target)
{
    qsort(copies, count, sizeof(*copies), by_target);
    for (size_t i = 0; i < count; i++) {
        const kvferry_copy *copy = &copies[i];
        const kvferry_segment *from = kvferry_layout_segment(source, copy->source_segment);
        const kvferry_segment *to = kvferry_layout_segment(target, copy->target_segment);
        MUST(from && to && copy->bytes);
        MUST(copy->bytes <= from->bytes && copy->source_offset <= from->bytes - copy->bytes);
        MUST(copy->bytes <= to->bytes && copy->target_offset <= to->bytes - copy->bytes);
        if (i + 1 < count && copies[i + 1].target_segment == copy->target_segment)
            MUST(copies[i + 1].target_offset - copy->target_offset >= copy->bytes);
    }
}

static void expand(const kvferry_plan *plan, const kvferry_request *request,
                   const kvferry_layout *source, const kvferry_layout *target)
{
    size_t capacity = kvferry_plan_expand_bound(plan, 0, request), count = 0;
    if (capacity > MAX_COPIES)
        return;
    kvferry_copy *copies = malloc((capacity ? capacity : 1) * sizeof(*copies));
    kvferry_report *report = fuzz_report();
    kvferry_status status =
        kvferry_plan_expand(plan, 0, request, copies, capacity, &count, report);
    fuzz_verdict(status, report);
    MUST(count <= capacity);
    if (status == KVFERRY_OK)
        check_copies(copies, count, source, target);
    kvferry_report_free(report);
    free(copies);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvferry_layout *source = next_layout(&data, &size), *target = next_layout(&data, &size);
    if (source && target) {
        kvferry_report *report = fuzz_report();
        kvferry_plan *plan = NULL;
        kvferry_request *request = NULL;
        kvferry_status status =
            kvferry_plan_create(&(const kvferry_layout *){source}, 1, target, &plan, report);
        fuzz_verdict(status, report);
        if (plan && kvferry_request_read_json((const char *)data, size, &request, NULL) == KVFERRY_OK)
            expand(plan, request, source, target);
        kvferry_request_free(request);
        kvferry_plan_free(plan);
        kvferry_report_free(report);
    }
    kvferry_layout_free(source);
    kvferry_layout_free(target);
    return 0;
}
