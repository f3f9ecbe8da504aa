/* SPDX-License-Identifier: Apache-2.0 */
/* Single rules with known answers (geometry.json), at a named layer of a model. */
#include "cases.h"

#include "model/model.h"

static const char *case_name;

static void equal(const char *what, uint64_t found, uint64_t known)
{
    if (found != known)
        fail_msg("%s: %s is %llu, not %llu", case_name, what, (unsigned long long)found,
                 (unsigned long long)known);
}

/* A key of `out`; 0 and true if it is there. */
static void equal_key(const json_t *out, const char *key, uint64_t found)
{
    equal(key, found, cases_number(out, key));
}

/* The region and place of the layer whose name ends so. */
static const model_region *find(const model_cache *cache, const char *ending, uint64_t *offset)
{
    for (uint32_t i = 0; i < cache->region_count; i++)
        for (uint32_t l = 0; l < cache->regions[i].count; l++) {
            const char *name = cache->layers[cache->regions[i].layers[l]].name;
            size_t length = strlen(name), tail = strlen(ending);
            if (length < tail || strcmp(name + length - tail, ending) != 0)
                continue;
            *offset = cache->regions[i].offset + l * cache->regions[i].layer_stride;
            return &cache->regions[i];
        }
    fail_msg("%s: no layer %s", case_name, ending);
    return NULL;
}

static void check_page(const model_cache *cache, const char *layer, const json_t *out)
{
    uint64_t offset;
    const model_spec *spec = &cache->specs[find(cache, layer, &offset)->spec];
    equal_key(out, "H", spec->heads);
    equal_key(out, "N", spec->states);
    equal_key(out, "C", spec->cell);
    equal_key(out, "real_bytes", spec->real);
    equal_key(out, "page_bytes", spec->page);
}

static const model_spec *state_of(const model_cache *cache)
{
    for (uint32_t i = 0; i < cache->spec_count; i++)
        if (cache->specs[i].content == MODEL_STATE)
            return &cache->specs[i];
    fail_msg("%s: no state", case_name);
    return NULL;
}

static void check_hybrid(const model_cache *cache, const char *layer, const json_t *out)
{
    uint64_t offset, rows = cache->shape.conv_rows + cache->choice.speculative;
    const model_region *region = find(cache, layer, &offset);
    const model_spec *spec = &cache->specs[region->spec], *state = state_of(cache);
    equal_key(out, "conv_rows", rows);
    equal_key(out, "conv_bytes", state->data);
    equal_key(out, "conv_dim_local", state->data / rows / 2);
    equal_key(out, "ssm_bytes", state->cell - state->data);
    equal_key(out, "mamba_real_bytes", state->real);
    equal_key(out, "attn_block_tokens", spec->block);
    equal_key(out, "page_bytes", spec->page);
    equal_key(out, "page_bytes", state->page);
    if (json_object_get(out, "kernel_block_tokens") == NULL)
        return;
    equal_key(out, "kernel_block_tokens", spec->kernel);
    equal_key(out, "physical_per_logical", region->ratio);
    equal_key(out, "kernel_page_bytes", region->block_stride / region->ratio);
}

static void check_strides(const model_cache *cache, const char *layer, const json_t *out)
{
    uint64_t offset;
    const model_region *region = find(cache, layer, &offset);
    const json_t *strides = json_object_get(out, "stride_bytes");
    equal_key(strides, "L", region->layer_stride);
    equal_key(strides, "B", region->block_stride);
    equal_key(strides, "H", region->head_stride);
    equal_key(strides, "N", region->state_stride);
    equal_key(out, "addr_l1_b3", offset + 3 * region->block_stride);
}

static void check_conv(const kvferry_layout *layout, const char *ending, const json_t *out)
{
    uint64_t bytes = 0;
    size_t found = 0;
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, i);
        if (strstr(stream->layer, ending) == NULL || strncmp(stream->name, "conv.", 5) != 0)
            continue;
        uint64_t channels = stream->axes[0].extent, own = channels * stream->axes[1].extent * 2;
        const json_t *place = json_array_get(json_object_get(out, "local_offsets"), found);
        equal("a projection's channels", channels,
              cases_item(json_object_get(out, "proj_dims"), found++));
        equal("a projection's offset", stream->offset, cases_item(place, 0));
        equal("a projection's bytes", own, cases_item(place, 1));
        bytes += own;
    }
    equal("projections", found, 3);
    equal_key(out, "conv_bytes", bytes);
}

/* Groups and rows of DeepSeek-V4-Flash; the recorded layouts have its regions one by one. */
static void check_pool(const model_cache *cache, const json_t *out)
{
    const json_t *groups = json_object_get(out, "groups");
    equal("groups", cache->group_count, json_array_size(groups));
    for (uint32_t g = 0; g < cache->group_count; g++) {
        const json_t *known = json_array_get(groups, g);
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < cache->groups[g].count; i++)
            bytes += cache->specs[cache->layers[cache->groups[g].layers[i]].spec].page;
        equal_key(known, "layers", cache->groups[g].count);
        equal_key(known, "block_size", cache->specs[cache->groups[g].spec].block);
        equal_key(known, "bytes_used", bytes);
    }
    equal_key(out, "row_bytes", cache->bytes_per_block);
    uint64_t offset;
    find(cache, "layers.8.attn", &offset); /* the fourth layer of ratio 4 */
    equal_key(out, "example_addr_layer_c4mla_idx3_block7", offset + 7 * cache->bytes_per_block);
}

/* The earlier kpool layout: an indexer's rows in kernel pages, and the tail inside them. */
static void check_kpool(const model_cache *cache, const char *layer, const json_t *out)
{
    uint64_t base, tail, blocks = cache->choice.blocks;
    const model_region *rows = find(cache, "layers.3.self_attn.indexer.k_cache", &base);
    const model_region *region = find(cache, layer, &tail);
    equal("the base", tail, base);
    if (json_object_get(out, "tail_span_end") != NULL) {
        equal("a tail's stride", region->block_stride, rows->block_stride);
        equal_key(out, "tail_span_end",
                  (blocks - 1) * region->block_stride + cache->specs[region->spec].real);
        return;
    }
    const json_t *pages = json_object_get(out, "region");
    uint64_t page = rows->block_stride / rows->ratio;
    equal_key(out, "physical_per_logical", rows->ratio);
    equal_key(out, "kernel_page_bytes", page);
    equal_key(pages, "block_stride", page);
    equal_key(pages, "num_blocks", blocks * rows->ratio);
    equal("first page", 5 * rows->ratio, cases_item(json_object_get(out, "kernel_block_of_logical5"), 0));
    equal("first byte", 5 * rows->block_stride, cases_item(json_object_get(out, "bytes_of_logical5"), 0));
    equal("last byte", 6 * rows->block_stride, cases_item(json_object_get(out, "bytes_of_logical5"), 1));
}

static void check(const model_cache *cache, const kvferry_layout *layout, const json_t *known,
                  size_t *counts)
{
    static const char *const kinds[] = {"attn_page",  "hybrid_alignment", "layout_strides",
                                        "conv_split", "packed_pool",      "registration"};
    const char *kind = json_string_value(json_object_get(known, "kind"));
    const char *layer = json_string_value(json_object_get(known, "layer"));
    const json_t *out = json_object_get(known, "out");
    size_t at = 0;
    while (at < 6 && strcmp(kind, kinds[at]) != 0)
        at++;
    switch (at) {
    case 0: check_page(cache, layer, out); break;
    case 1: check_hybrid(cache, layer, out); break;
    case 2: check_strides(cache, layer, out); break;
    case 3: check_conv(layout, layer, out); break;
    case 4: check_pool(cache, out); break;
    case 5: check_kpool(cache, layer, out); break;
    default: fail_msg("%s: no such kind %s", case_name, kind);
    }
    counts[at]++;
}

static void run(const json_t *known, size_t *counts)
{
    kvferry_report *report = NULL;
    kvferry_layout *layout = NULL;
    model_cache cache;
    size_t size;
    const json_t *config = json_object_get(known, "config");
    char *text;
    if (json_is_string(config)) {
        text = cases_config("tests/vectors/configs", json_string_value(config), &size);
    } else {
        text = json_dumps(config, 0);
        size = strlen(text);
    }
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_model_options options = cases_options(json_object_get(known, "options"));
    bool ten = strcmp(json_string_value(json_object_get(known, "kind")), "registration") == 0;
    options.blocks = ten ? 10 : 8;
    kvferry_status status = model_cache_build(text, size, &options, report, &cache);
    if (status == KVFERRY_OK)
        status = kvferry_model_layout(text, size, &options, &layout, report);
    cases_print(report);
    assert_int_equal(status, KVFERRY_OK);
    check(&cache, layout, known, counts);
    kvferry_layout_free(layout);
    model_cache_end(&cache);
    kvferry_report_free(report);
    free(text);
}

static void known_answers_hold(void **state)
{
    (void)state;
    const size_t expected[] = {13, 13, 5, 4, 1, 2};
    size_t counts[6] = {0};
    json_t *cases = cases_load("geometry.json");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        case_name = json_string_value(json_object_get(json_array_get(cases, i), "id"));
        run(json_array_get(cases, i), counts);
    }
    assert_memory_equal(counts, expected, sizeof expected);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
