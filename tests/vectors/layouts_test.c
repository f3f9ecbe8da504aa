/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts that vLLM 0.32 computed, against those of src/model: what README.md here says. */
#include "cases.h"

#include "model/model.h"

#define COMPARED 173
#define REFUSED 1
#define LEFT_OUT 12
#define OTHER_BLOCKS 777

static const char *case_name;

static void equal(const char *what, uint64_t found, uint64_t recorded)
{
    if (found != recorded)
        fail_msg("%s: %s is %llu, recorded %llu", case_name, what, (unsigned long long)found,
                 (unsigned long long)recorded);
}

static void equal_text(const char *what, const char *found, const char *recorded)
{
    if (strcmp(found, recorded) != 0)
        fail_msg("%s: %s is %s, recorded %s", case_name, what, found, recorded);
}

/* --- what the steps compute ------------------------------------------------------------------ */

static bool here(const model_cache *cache, uint32_t layer)
{
    return cache->layers[layer].stage == cache->choice.pp_rank;
}

/* Layers are recorded as [pattern, index, index ...]: all names, in order. */
static void compare_members(const model_cache *cache, const model_group *group, const json_t *runs,
                            const json_t *patterns)
{
    uint32_t at = 0;
    for (size_t r = 0; r < json_array_size(runs); r++) {
        const json_t *run = json_array_get(runs, r);
        const char *pattern = json_string_value(json_array_get(patterns, cases_item(run, 0)));
        const char *hole = strstr(pattern, "{}");
        for (size_t i = 1; i < json_array_size(run); i++) {
            char name[256];
            snprintf(name, sizeof name, "%.*s%llu%s", (int)(hole - pattern), pattern,
                     (unsigned long long)cases_item(run, i), hole + 2);
            while (at < group->count && !here(cache, group->layers[at]))
                at++;
            equal_text("a member", at < group->count ? cache->layers[group->layers[at]].name : "none",
                       name);
            at++;
        }
    }
    while (at < group->count && !here(cache, group->layers[at]))
        at++;
    equal("the number of members", at, group->count);
}

static void compare_state(const model_cache *cache, const model_spec *spec, const json_t *part)
{
    const json_t *states = json_object_get(part, "states");
    const json_t *conv = json_array_get(states, 0), *ssm = json_array_get(states, 1);
    equal("conv bytes", spec->data, cases_item(conv, 2));
    equal("ssm offset", spec->data, cases_item(ssm, 3));
    equal("ssm bytes", spec->cell - spec->data, cases_item(ssm, 2));
    equal_text("ssm dtype", spec->dtype, json_string_value(json_array_get(ssm, 1)));
    equal_text("conv dtype", cache->shape.dtype, json_string_value(json_array_get(conv, 1)));
}

static void compare_part(const model_cache *cache, const model_spec *spec, const json_t *part)
{
    equal("real bytes", spec->real, cases_number(part, "real"));
    equal("page bytes", spec->page, cases_number(part, "page"));
    equal("alignment", spec->alignment, cases_number(part, "alignment"));
    if (json_object_get(part, "states") != NULL) {
        compare_state(cache, spec, part);
        return;
    }
    bool ring = spec->content == MODEL_RING; /* its type is apart from C */
    equal("H", spec->heads, cases_number(part, "H"));
    equal("N", spec->states, cases_number(part, "N"));
    equal("C", spec->cell, cases_number(part, "C"));
    equal("tokens per state", spec->tokens_per_state, cases_number(part, "tokens_per_state"));
    equal("kernel tokens", spec->kernel, cases_number(part, "backend_kernel_tokens"));
    equal_text("dtype", ring ? "bfloat16" : spec->dtype,
               json_string_value(json_object_get(part, "dtype")));
}

/* Parts are a group's specs, in the order of its layers. */
static void compare_group(const model_cache *cache, uint32_t g, const json_t *recorded,
                          const json_t *patterns)
{
    const model_group *group = &cache->groups[g];
    equal("block tokens", cache->specs[group->spec].block, cases_number(recorded, "block_tokens"));
    compare_members(cache, group, json_object_get(recorded, "layers"), patterns);
    const json_t *parts = json_object_get(recorded, "parts");
    uint64_t bytes = 0, ratio = 1;
    size_t count = 0;
    for (uint32_t i = 0; i < cache->region_count; i++) {
        const model_region *region = &cache->regions[i];
        if (region->group != g)
            continue;
        bytes += region->count * cache->specs[region->spec].page;
        ratio = region->ratio;
        const json_t *part = json_array_get(parts, count++);
        assert_non_null(part);
        equal("layers of a spec", region->count, cases_number(part, "layers"));
        compare_part(cache, &cache->specs[region->spec], part);
    }
    equal("the number of specs", count, json_array_size(parts));
    equal("bytes per block of a group", bytes, cases_number(recorded, "bytes_per_block"));
    equal("kernel ratio", ratio, cases_number(recorded, "kernel_ratio"));
}

static uint64_t formula(const json_t *tensor, const char *key, uint64_t blocks)
{
    const json_t *pair = json_object_get(tensor, key);
    return cases_item(pair, 0) + cases_item(pair, 1) * blocks;
}

static void compare_region(const model_cache *cache, const model_region *region, const json_t *tensor,
                           bool view)
{
    uint64_t blocks = cache->choice.blocks;
    const model_spec *spec = &cache->specs[region->spec];
    equal("a region's group", region->group, cases_number(tensor, "group"));
    equal_text("a region's first layer", cache->layers[region->layers[0]].name,
               json_string_value(json_object_get(tensor, "first")));
    equal("a region's layers", region->count, cases_number(tensor, "count"));
    equal("offset", region->offset, formula(tensor, "offset", blocks));
    equal("layer stride", region->layer_stride, formula(tensor, "layer_stride", blocks));
    equal("block stride", region->block_stride, formula(tensor, "block_stride", blocks));
    equal("size", cache->bytes, formula(tensor, "size", blocks));
    if (!view)
        return;
    const json_t *shape = json_object_get(tensor, "shape"), *strides = json_object_get(tensor, "strides");
    equal("view blocks", blocks * region->ratio, cases_item(shape, 0));
    equal("view heads", spec->heads, cases_item(shape, 1));
    equal("view states", spec->states / region->ratio, cases_item(shape, 2));
    equal("view block stride", region->block_stride / region->ratio, cases_item(strides, 0));
    equal("view head stride", region->head_stride, cases_item(strides, 1));
    equal("view state stride", region->state_stride, cases_item(strides, 2));
}

static void compare_cache(const model_cache *cache, const json_t *recorded, bool view)
{
    equal_text("memory order", cache->order, json_string_value(json_object_get(recorded, "order")));
    equal("bytes per block", cache->bytes_per_block, cases_number(recorded, "bytes_per_block"));
    const json_t *groups = json_object_get(recorded, "groups");
    const json_t *tensors = json_object_get(recorded, "tensors");
    equal("the number of groups", cache->group_count, json_array_size(groups));
    for (uint32_t g = 0; g < cache->group_count; g++)
        compare_group(cache, g, json_array_get(groups, g), json_object_get(recorded, "patterns"));
    equal("the number of regions", cache->region_count, json_array_size(tensors));
    for (uint32_t i = 0; i < cache->region_count; i++)
        compare_region(cache, &cache->regions[i], json_array_get(tensors, i), view);
}

/* --- what the document says ------------------------------------------------------------------ */

static uint64_t payload(const kvferry_stream *stream, uint64_t pages_a_block)
{
    uint64_t bytes = stream->cell_bytes;
    for (uint32_t i = 0; i < stream->axis_count; i++)
        bytes *= stream->axes[i].extent;
    return bytes * pages_a_block;
}

/* All streams of a layer: the first byte, real bytes and strides that vLLM has for it. */
static void compare_layer(const kvferry_layout *layout, const model_region *region,
                          const model_spec *spec, const char *layer, uint64_t offset)
{
    uint64_t least = UINT64_MAX, bytes = 0;
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, i);
        if (strcmp(stream->layer, layer) != 0)
            continue;
        least = base_min(least, stream->offset);
        bytes += payload(stream, region->ratio);
        equal("a stream's page stride", stream->page_stride, region->block_stride / region->ratio);
        equal("a stream's group", stream->group, region->group);
    }
    equal("a layer's first byte", least, offset);
    equal("a layer's bytes in a block", bytes, spec->real);
}

/* Projections are recorded as [offset, bytes, channels] where channels are outermost. */
static void compare_conv(const kvferry_layout *layout, const char *layer, uint64_t offset,
                         const json_t *split)
{
    static const char *const names[] = {"conv.q", "conv.k", "conv.v"};
    size_t found = 0;
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        const kvferry_stream *stream = kvferry_layout_stream(layout, i);
        if (strcmp(stream->layer, layer) != 0 || strncmp(stream->name, "conv.", 5) != 0)
            continue;
        const json_t *one = json_array_get(split, found);
        equal_text("a projection", stream->name, names[found++]);
        equal("a projection's offset", stream->offset - offset, cases_item(one, 0));
        equal("a projection's bytes", payload(stream, 1), cases_item(one, 1));
        equal("a projection's channels", stream->axes[0].extent, cases_item(one, 2));
    }
    equal("the number of projections", found, 3);
}

static void compare_layout(const kvferry_layout *layout, const model_cache *cache,
                           const json_t *recorded)
{
    const json_t *groups = json_object_get(recorded, "groups");
    equal("a document's groups", kvferry_layout_group_count(layout), json_array_size(groups));
    for (uint32_t g = 0; g < cache->group_count; g++)
        if (kvferry_layout_group(layout, g)->kind == KVFERRY_GROUP_PAGED)
            equal("a document's block tokens", kvferry_layout_group(layout, g)->block_tokens,
                  cases_number(json_array_get(groups, g), "block_tokens"));
    equal("a document's bytes", kvferry_layout_segment(layout, 0)->bytes, cache->bytes);
    for (uint32_t i = 0; i < cache->region_count; i++) {
        const model_region *region = &cache->regions[i];
        const json_t *part =
            json_array_get(json_object_get(json_array_get(groups, region->group), "parts"), 0);
        for (uint32_t l = 0; l < region->count; l++) {
            uint64_t offset = region->offset + l * region->layer_stride;
            const char *layer = cache->layers[region->layers[l]].name;
            compare_layer(layout, region, &cache->specs[region->spec], layer, offset);
            if (cache->specs[region->spec].content == MODEL_STATE && cache->choice.conv_dim_first)
                compare_conv(layout, layer, offset, json_object_get(part, "conv_split"));
        }
    }
}

/* --- the cases ----------------------------------------------------------------------------- */

static void compare_case(const json_t *recorded, const char *config, size_t size, uint64_t blocks,
                         bool view)
{
    kvferry_report *report = NULL;
    kvferry_layout *layout = NULL;
    model_cache cache;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_model_options options = cases_options(json_object_get(recorded, "options"));
    options.blocks = blocks;
    kvferry_status status = model_cache_build(config, size, &options, report, &cache);
    if (status == KVFERRY_OK)
        status = kvferry_model_layout(config, size, &options, &layout, report);
    if (status != KVFERRY_OK) {
        cases_print(report);
        fail_msg("%s: %s", case_name, kvferry_status_name(status));
    }
    compare_cache(&cache, recorded, view);
    compare_layout(layout, &cache, recorded);
    kvferry_layout_free(layout);
    model_cache_end(&cache);
    kvferry_report_free(report);
}

/* Refused, with this reason at this place. */
static void refuse(const json_t *recorded, const char *config, size_t size, const char *code,
                   const char *place)
{
    kvferry_report *report = NULL;
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_model_options options = cases_options(json_object_get(recorded, "options"));
    assert_int_equal(kvferry_model_layout(config, size, &options, &layout, report), KVFERRY_REFUSED);
    bool named = false;
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        named = named || (strcmp(kvferry_report_get(report, i)->code, code) == 0 &&
                          strcmp(kvferry_report_get(report, i)->place, place) == 0);
    assert_true(named);
    kvferry_report_free(report);
}

static void recorded_cases_hold(void **state)
{
    (void)state;
    json_t *cases = cases_load("vllm-0.32.json");
    size_t compared = 0, refused = 0, left_out = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *recorded = json_array_get(cases, i);
        size_t size;
        char *config = cases_config("tests/vectors/configs",
                                    json_string_value(json_object_get(recorded, "config")), &size);
        case_name = json_string_value(json_object_get(recorded, "name"));
        if (json_object_get(recorded, "needs") != NULL) {
            refuse(recorded, config, size, "model_unknown", "model_type");
            print_message("left out: %s needs %s\n", case_name,
                          json_string_value(json_object_get(recorded, "needs")));
            left_out++;
        } else if (json_object_get(recorded, "refused") != NULL) {
            refuse(recorded, config, size, json_string_value(json_object_get(recorded, "refused")),
                   "pp_size");
            refused++;
        } else {
            compare_case(recorded, config, size, cases_number(recorded, "blocks"), true);
            compare_case(recorded, config, size, OTHER_BLOCKS, false);
            compared++;
        }
        free(config);
    }
    print_message("%zu recorded cases compared, %zu refused as in vLLM, %zu left out\n", compared,
                  refused, left_out);
    assert_int_equal(compared, COMPARED);
    assert_int_equal(refused, REFUSED);
    assert_int_equal(left_out, LEFT_OUT);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded_cases_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
