/* SPDX-License-Identifier: Apache-2.0 */
/* What was read and written again reads as the same document, in both encodings and across them. */
#include "fuzz.h"

/* The document as JSON, which has all of it; the caller frees. */
static char *as_json(const kvferry_layout *layout)
{
    char *text = NULL;
    size_t size = 0;
    MUST(kvferry_layout_write_json(layout, &text, &size) == KVFERRY_OK);
    MUST(strlen(text) == size);
    return text;
}

static void must_equal(const kvferry_layout *a, const kvferry_layout *b)
{
    char *a_text = as_json(a), *b_text = as_json(b);
    MUST(strcmp(a_text, b_text) == 0);
    kvferry_free(a_text);
    kvferry_free(b_text);
    MUST(kvferry_layout_compare(a, b, NULL) == KVFERRY_OK);
    for (uint32_t i = 0; i <= kvferry_layout_stream_count(a); i++)
        MUST(strcmp(kvferry_layout_digest(a, i)->text, kvferry_layout_digest(b, i)->text) == 0);
    for (uint32_t i = 0; i < kvferry_layout_group_count(a); i++)
        for (uint32_t k = 0; k < kvferry_layout_group_count(a); k++)
            MUST(kvferry_layout_groups_share(a, i, k) == kvferry_layout_groups_share(b, i, k));
}

static void again_by_json(const kvferry_layout *layout)
{
    char *text = as_json(layout);
    kvferry_layout *again;
    MUST(kvferry_layout_read_json(text, strlen(text), &again, NULL) == KVFERRY_OK);
    must_equal(layout, again);
    kvferry_layout_free(again);
    kvferry_free(text);
}

static void again_by_msgpack(const kvferry_layout *layout)
{
    void *data;
    size_t size;
    MUST(kvferry_layout_write_msgpack(layout, &data, &size) == KVFERRY_OK);
    kvferry_layout *again;
    MUST(kvferry_layout_read_msgpack(data, size, &again, NULL) == KVFERRY_OK);
    must_equal(layout, again);
    kvferry_layout_free(again);
    kvferry_free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvferry_layout *layout = NULL;
    kvferry_status status = size && data[0] < 0x80
                                ? kvferry_layout_read_json((const char *)data, size, &layout, NULL)
                                : kvferry_layout_read_msgpack(data, size, &layout, NULL);
    if (status != KVFERRY_OK)
        return 0;
    again_by_json(layout);
    again_by_msgpack(layout);
    kvferry_layout_free(layout);
    return 0;
}
