/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* --- what all steps use ---------------------------------------------------------------------- */

void model_refuse(model_cache *cache, const char *code, const char *place, const char *expected,
                  const char *found, const char *message)
{
    base_where where = {.place = place};
    base_report_add(cache->report, code, &where, expected, found, "%s", message);
    cache->refused = true;
}

void *model_alloc(model_cache *cache, size_t count, size_t size)
{
    void *data = base_arena_alloc(&cache->arena, count, size);
    cache->no_memory = cache->no_memory || data == NULL;
    return data;
}

const char *model_text(model_cache *cache, const char *text)
{
    const char *copy = base_arena_strdup(&cache->arena, text);
    cache->no_memory = cache->no_memory || copy == NULL;
    return copy;
}

/* --- options against the model ----------------------------------------------------------------- */

static void check_drafts(model_cache *cache)
{
    if (cache->choice.drafts > cache->shape.draft_layers)
        model_refuse(cache, "option_unfit", "mtp_layers",
                     base_format("at most the model's %llu",
                                 (unsigned long long)cache->shape.draft_layers),
                     base_format("%llu", (unsigned long long)cache->choice.drafts),
                     "the model has fewer draft layers");
}

/* vLLM refuses heads that do not divide. */
static void check_divides(model_cache *cache, const char *field, uint64_t heads)
{
    if (heads % cache->choice.tp != 0)
        model_refuse(cache, "tp_unfit", "tp_size",
                     base_format("a divisor of %s %llu", field, (unsigned long long)heads),
                     base_format("%llu", (unsigned long long)cache->choice.tp),
                     "heads cannot be cut into as many parts");
}

static void check_heads(model_cache *cache)
{
    const model_shape *shape = &cache->shape;
    uint64_t kv = shape->kv_heads, tp = cache->choice.tp;
    check_divides(cache, "num_attention_heads", shape->heads);
    if (kv != 0 && (kv >= tp ? kv % tp != 0 : tp % kv != 0))
        model_refuse(cache, "tp_unfit", "tp_size",
                     base_format("a divisor or a multiple of num_key_value_heads %llu",
                                 (unsigned long long)kv),
                     base_format("%llu", (unsigned long long)tp),
                     "heads can neither be cut nor repeated so often");
    if (shape->type->use == MODEL_SPARSE_MLA) {
        check_divides(cache, "linear_attn_config.num_heads", shape->v_heads);
    } else if (shape->type->hybrid) {
        check_divides(cache, "linear_num_key_heads", shape->k_heads);
        check_divides(cache, "linear_num_value_heads", shape->v_heads);
    }
}

static void check_fits(model_cache *cache)
{
    const model_shape *shape = &cache->shape;
    model_choice *choice = &cache->choice;
    check_drafts(cache);
    check_heads(cache);
    if (choice->positions == 0)
        choice->positions = shape->positions;
    if (choice->pp > shape->layers)
        model_refuse(cache, "pp_unfit", "pp_size",
                     base_format("at most num_hidden_layers %llu", (unsigned long long)shape->layers),
                     base_format("%llu", (unsigned long long)choice->pp),
                     "there would be stages without layers");
    if (choice->kpool_tail && shape->kpool == 0)
        model_refuse(cache, "option_unfit", "kpool", "a model with index_kpool", shape->type->name,
                     "this model has no pooled indexer");
    if (choice->mxfp4 && (shape->type->use != MODEL_V4 || choice->platform != MODEL_SM100))
        model_refuse(cache, "option_unfit", "indexer_dtype", "deepseek_v4 on sm100", "mxfp4",
                     "only there indexers come in mxfp4");
    bool kda = shape->type->use == MODEL_SPARSE_MLA;
    if (kda && choice->state_dtype != NULL && strcmp(choice->state_dtype, "float16") == 0)
        model_refuse(cache, "option_unfit", "state_dtype", "float32 or bfloat16", "float16",
                     "KDA keeps no state in this type");
    bool named = choice->kv_dtype != NULL && choice->precision == MODEL_NATIVE;
    if (named && strcmp(choice->kv_dtype, shape->dtype) != 0)
        model_refuse(cache, "option_unfit", "kv_dtype", shape->dtype, choice->kv_dtype,
                     "the cache holds the model's type or a quantised one");
    if (choice->platform == MODEL_CPU_AMX && strcmp(shape->dtype, "bfloat16") != 0)
        model_refuse(cache, "option_unfit", "platform", "a model in bfloat16", shape->dtype,
                     "AMX tiles hold bfloat16 only");
}

/* --- one cache ----------------------------------------------------------------------------- */

static bool stopped(const model_cache *cache) { return cache->refused || cache->no_memory; }

/* Each step needs the one before; findings of one step all come at once. */
static void build(model_cache *cache)
{
    check_fits(cache);
    model_backend_choose(cache);
    if (stopped(cache))
        return;
    cache->shape.type->list(cache);
    if (stopped(cache))
        return;
    model_order_choose(cache);
    if (stopped(cache))
        return;
    model_group_layers(cache);
    if (stopped(cache))
        return;
    model_place(cache);
}

kvferry_status model_cache_build(const char *config, size_t size,
                                 const kvferry_model_options *options, kvferry_report *report,
                                 model_cache *cache)
{
    *cache = (model_cache){.report = report};
    model_choice_read(options, cache);
    kvferry_status status = model_config_read(config, size, cache);
    if (status != KVFERRY_OK)
        return status;
    if (cache->shape.type != NULL && !cache->no_memory)
        build(cache);
    return cache->no_memory ? KVFERRY_NO_MEMORY : cache->refused ? KVFERRY_REFUSED : KVFERRY_OK;
}

void model_cache_end(model_cache *cache)
{
    free(cache->layers);
    free(cache->groups);
    base_arena_free(&cache->arena);
}

/* --- the document -------------------------------------------------------------------------- */

static kvferry_status write_layout(model_cache *cache, kvferry_layout **layout)
{
    const model_choice *choice = &cache->choice;
    const char *model = choice->model != NULL ? choice->model : cache->shape.name;
    const char *engine = choice->engine_id != NULL ? choice->engine_id : model;
    kvferry_worker worker = {(uint32_t)choice->tp_rank, (uint32_t)choice->tp,
                             (uint32_t)choice->pp_rank, (uint32_t)choice->pp, 0, 1};
    kvferry_identity identity = {model, "", choice->drafts > 0 ? "mtp" : ""};
    kvferry_layout_builder *builder = NULL;
    kvferry_status status = kvferry_layout_builder_create(engine, &worker, &identity, &builder);
    if (status != KVFERRY_OK)
        return status;
    model_streams_add(cache, builder);
    status = kvferry_layout_builder_finish(builder, layout, cache->report);
    kvferry_layout_builder_free(builder);
    return status;
}

kvferry_status kvferry_model_layout(const char *config, size_t size,
                                    const kvferry_model_options *options, kvferry_layout **layout,
                                    kvferry_report *report)
{
    if (config == NULL || layout == NULL)
        return KVFERRY_INVALID;
    model_cache cache;
    kvferry_status status = model_cache_build(config, size, options, report, &cache);
    if (status == KVFERRY_OK)
        status = write_layout(&cache, layout);
    model_cache_end(&cache);
    return status;
}
