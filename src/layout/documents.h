/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests: a small document with something of everything, and ways to change it. */
#ifndef KVFERRY_LAYOUT_DOCUMENTS_H
#define KVFERRY_LAYOUT_DOCUMENTS_H

#include "test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <kvferry/layout.h>

/* 8 blocks of 32 tokens in 2 pages of 16: k and v in one page, 2 of 4 heads, 32 bytes each; an indexer
 * with 4 tokens a state, 8 blocks of one page; a state with 4 of 8 heads; a ring. */
static const char small_document[] =
    "{\"format\": \"kvferry-layout/1\", \"engine_id\": \"decode-0\","
    " \"worker\": {\"tp_rank\": 1, \"tp_size\": 4, \"pp_rank\": 0, \"pp_size\": 1,"
    "              \"dp_rank\": 0, \"dp_size\": 1},"
    " \"identity\": {\"model\": \"small\", \"revision\": \"r1\", \"draft\": \"d1\"},"
    " \"segments\": [{\"name\": \"kv\", \"bytes\": 65536}, {\"name\": \"st\", \"bytes\": 4096},"
    "                {\"name\": \"spare\", \"bytes\": 0}],"
    " \"groups\": [{\"name\": \"attn\", \"kind\": \"paged\", \"block_tokens\": 32, \"window\": 127},"
    "              {\"name\": \"gdn\", \"kind\": \"state\", \"null_block\": -1},"
    "              {\"name\": \"ring\", \"kind\": \"ring\"}, {\"name\": \"spare\", \"kind\": \"state\"}],"
    " \"streams\": ["
    "  {\"layer\": \"l0\", \"name\": \"k\", \"group\": \"attn\", \"dtype\": \"bfloat16\", \"segment\": \"kv\","
    "   \"offset\": 0, \"pages\": 16, \"page_stride\": 2048, \"page_tokens\": 16, \"cell_bytes\": 32,"
    "   \"axes\": [{\"name\": \"kv_head\", \"start\": 2, \"extent\": 2, \"global\": 4, \"stride\": 1024},"
    "              {\"name\": \"token\", \"extent\": 16, \"stride\": 64}]},"
    "  {\"layer\": \"l0\", \"name\": \"v\", \"group\": \"attn\", \"dtype\": \"bfloat16\", \"segment\": \"kv\","
    "   \"offset\": 32, \"pages\": 16, \"page_stride\": 2048, \"page_tokens\": 16, \"cell_bytes\": 32,"
    "   \"axes\": [{\"name\": \"kv_head\", \"start\": 2, \"extent\": 2, \"global\": 4, \"stride\": 1024},"
    "              {\"name\": \"token\", \"extent\": 16, \"stride\": 64}]},"
    "  {\"layer\": \"l1\", \"name\": \"index\", \"group\": \"attn\", \"dtype\": \"uint8\", \"segment\": \"kv\","
    "   \"offset\": 32768, \"pages\": 8, \"page_stride\": 1024, \"tokens_per_state\": 4,"
    "   \"cell_bytes\": 128, \"axes\": [{\"name\": \"token\", \"extent\": 8, \"stride\": 128}]},"
    "  {\"layer\": \"l2\", \"name\": \"ssm\", \"group\": \"gdn\", \"dtype\": \"float32\", \"segment\": \"st\","
    "   \"offset\": 0, \"pages\": 4, \"page_stride\": 512, \"cell_bytes\": 128,"
    "   \"axes\": [{\"name\": \"head\", \"extent\": 4, \"global\": 8, \"stride\": 128}]},"
    "  {\"layer\": \"l3\", \"name\": \"tail\", \"group\": \"ring\", \"dtype\": \"bfloat16\","
    "   \"format\": \"packed\", \"policy\": \"optional\", \"aliases\": [\"l4\", \"l5\"], \"segment\": \"st\","
    "   \"offset\": 2048, \"pages\": 8, \"page_stride\": 256, \"cell_bytes\": 32,"
    "   \"axes\": [{\"name\": \"part\", \"extent\": 2, \"stride\": 128},"
    "              {\"name\": \"slot\", \"extent\": 4, \"stride\": 32}]}]}";

static inline json_t *parse_small(void)
{
    json_t *root = json_loads(small_document, 0, NULL);
    assert_non_null(root);
    return root;
}

/* Sets what is at `path` ("streams[0].axes[1].extent"), or removes it (NULL). */
static inline void change(json_t *root, const char *path, const char *value)
{
    json_t *at = root;
    json_t *changed = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    char key[64];
    int used;
    for (;;) {
        path += *path == '.';
        if (sscanf(path, "[%63[0-9]]%n", key, &used) == 1) {
            path += used;
            size_t index = strtoul(key, NULL, 10);
            if (!*path) {
                if (!changed)
                    json_array_remove(at, index);
                else if (index < json_array_size(at))
                    json_array_set_new(at, index, changed);
                else
                    json_array_append_new(at, changed);
                return;
            }
            at = json_array_get(at, index);
        } else {
            assert_int_equal(sscanf(path, "%63[^].[]%n", key, &used), 1);
            path += used;
            if (!*path) {
                if (changed)
                    json_object_set_new(at, key, changed);
                else
                    json_object_del(at, key);
                return;
            }
            at = json_object_get(at, key);
        }
        assert_non_null(at);
    }
}

static inline kvferry_status read_tree(json_t *root, kvferry_layout **layout,
                                       kvferry_report *report)
{
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    kvferry_status status = kvferry_layout_read_json(text, strlen(text), layout, report);
    free(text);
    return status;
}

/* The layout of a tree that must be good; the tree is freed. */
static inline kvferry_layout *read_good(json_t *root)
{
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_layout *layout = NULL;
    kvferry_status status = read_tree(root, &layout, report);
    if (kvferry_report_count(report))
        print_error("%s\n", kvferry_report_get(report, 0)->message);
    assert_int_equal(status, KVFERRY_OK);
    assert_int_equal(kvferry_report_count(report), 0);
    kvferry_report_free(report);
    json_decref(root);
    return layout;
}

#endif
