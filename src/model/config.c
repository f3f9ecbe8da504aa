/* SPDX-License-Identifier: Apache-2.0 */
/* config.json -> model_shape: which family it is, and the sizes that its caches hang on. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define NAME_BYTES 256

/* What the classes of the transformers package take where a config leaves a field out. 0: it must be
 * there; KV heads: as many as heads; head_dim: hidden_size by heads; window: none. */
typedef struct left_out {
    const char *type;
    uint64_t heads, positions, kv_heads, head_dim, window;
} left_out;

typedef struct reader {
    model_cache *cache;
    model_shape *shape;
    const left_out *left_out;
    base_json root, sizes; /* sizes: text_config where there is one, else the root */
} reader;

static uint64_t size_or(const reader *r, const char *key, uint64_t maximum, uint64_t fallback)
{
    uint64_t value = fallback;
    base_json_uint_or(base_json_get(&r->sizes, key), 0, maximum, fallback, &value);
    return value;
}

/* A size that must be there, and at least 1. */
static uint64_t size_of(const reader *r, const char *key, uint64_t maximum)
{
    uint64_t value = 1;
    base_json_uint(base_json_get(&r->sizes, key), 1, maximum, &value);
    return value;
}

/* A size of at least 1; it may be left out if there is a fallback. */
static uint64_t size_given(const reader *r, const char *key, uint64_t maximum, uint64_t fallback)
{
    uint64_t value = base_max(1, fallback);
    if (fallback == 0)
        return size_of(r, key, maximum);
    base_json_uint_or(base_json_get(&r->sizes, key), 1, maximum, fallback, &value);
    return value;
}

/* Whether the key is there with null, which says "none" where leaving it out says something else. */
static bool is_null(const reader *r, const char *key)
{
    return json_is_null(json_object_get(r->sizes.value, key));
}

/* A value that is well formed but outside what the rules cover. */
static void outside(const reader *r, base_json node, const char *expected, const char *found,
                    const char *message)
{
    base_text place = {0};
    base_json_place(node, &place);
    model_refuse(r->cache, "config_value", place.failed || place.data == NULL ? "" : place.data,
                 expected, found, message);
    free(place.data);
}

/* --- what all have ------------------------------------------------------------------------- */

static const left_out *left_out_of(const char *type)
{
    static const left_out types[] = {
        {.type = "mistral", .kv_heads = 8, .window = 4096},
        {.type = "qwen2", .kv_heads = 32, .window = 4096},
        {.type = "qwen3", .kv_heads = 32, .head_dim = 128, .window = 4096},
        {.type = "gemma2", .kv_heads = 4, .head_dim = 256},
        {.type = "gemma3", .heads = 8, .positions = 131072, .kv_heads = 4, .head_dim = 256},
        {.type = "gemma3_text", .heads = 8, .positions = 131072, .kv_heads = 4, .head_dim = 256},
        {.type = "gpt_oss", .kv_heads = 8, .head_dim = 64}};
    static const left_out none = {0};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].type, type) == 0)
            return &types[i];
    return &none;
}

static bool read_type(reader *r)
{
    const char *name = NULL;
    base_json node = base_json_get(&r->root, "model_type");
    if (!base_json_string(node, NAME_BYTES, &name))
        return false;
    r->shape->type = model_type_find(name);
    if (r->shape->type == NULL) {
        model_refuse(r->cache, "model_unknown", "model_type",
                     "a model of docs/models.md: llama, mistral, qwen2, qwen3, gemma2, gemma3, gpt_oss, "
                     "deepseek_v3, qwen3_next, qwen3_5, qwen3_5_moe, deepseek_v4, glm5_next, or one of "
                     "their _text",
                     name, "the layout of this model is not known without an engine");
        return false;
    }
    r->sizes = r->root;
    r->shape->prefix = "";
    if (r->shape->type->text_config) {
        r->sizes = base_json_object(base_json_get(&r->root, "text_config"));
        r->shape->prefix = "language_model.";
    }
    const char *path = NULL;
    base_json_string_or(base_json_get(&r->root, "_name_or_path"), NAME_BYTES, "", &path);
    r->shape->name = model_text(r->cache, path != NULL && path[0] != '\0' ? path : name);
    return true;
}

/* The type of weights and states: in text_config or at the top, under its old or its new name. */
static void read_dtype(reader *r)
{
    static const char *const names[] = {"bfloat16", "float16"};
    base_json nodes[] = {base_json_get(&r->sizes, "dtype"), base_json_get(&r->sizes, "torch_dtype"),
                         base_json_get(&r->root, "torch_dtype"), base_json_get(&r->root, "dtype")};
    size_t at = 0;
    while (at < 3 && nodes[at].value == NULL)
        at++;
    if (nodes[at].value == NULL)
        at = 2;
    size_t choice = 0;
    base_json_choice(nodes[at], names, 2, &choice);
    r->shape->dtype = names[choice];
    r->shape->dtype_bytes = 2;
}

static void read_common(reader *r)
{
    model_shape *shape = r->shape;
    shape->layers = size_of(r, "num_hidden_layers", MODEL_MAX_LAYERS);
    r->left_out = left_out_of(shape->type->name);
    shape->heads = size_given(r, "num_attention_heads", MODEL_MAX_HEADS, r->left_out->heads);
    shape->positions = size_given(r, "max_position_embeddings", MODEL_MAX_TOKENS, r->left_out->positions);
    shape->kinds = model_alloc(r->cache, shape->layers, sizeof *shape->kinds);
    read_dtype(r);
}

/* --- attention with heads ------------------------------------------------------------------ */

static void read_heads(reader *r)
{
    model_shape *shape = r->shape;
    shape->kv_heads = size_or(r, "num_key_value_heads", MODEL_MAX_HEADS,
                              is_null(r, "num_key_value_heads") ? 0 : r->left_out->kv_heads);
    if (shape->kv_heads == 0)
        shape->kv_heads = shape->heads;
    uint64_t hidden = size_of(r, "hidden_size", (uint64_t)MODEL_MAX_HEADS * MODEL_MAX_DIM);
    shape->head_dim = size_or(r, "head_dim", MODEL_MAX_DIM,
                              is_null(r, "head_dim") ? 0 : r->left_out->head_dim);
    bool cut = strcmp(shape->type->name, "qwen2") == 0; /* by vLLM, whatever head_dim says */
    if (shape->head_dim == 0 || cut) /* as models do that leave it out */
        shape->head_dim = base_min(hidden / shape->heads, MODEL_MAX_DIM);
    if (shape->head_dim == 0)
        outside(r, base_json_get(&r->sizes, "hidden_size"),
                          "at least num_attention_heads", base_format("%llu", (unsigned long long)hidden),
                          "heads would be empty");
}

/* --- which layers have full attention --------------------------------------------------------- */

/* Each layer has full attention or is of the `other` type. */
static bool read_layer_types(reader *r, base_json list, const char *other)
{
    const char *const names[] = {other, "full_attention"};
    model_shape *shape = r->shape;
    size_t count = base_json_count(&list);
    if (base_json_present(list) && count != shape->layers) {
        outside(r, list,
                          base_format("%llu entries, as num_hidden_layers",
                                      (unsigned long long)shape->layers),
                          base_format("%zu entries", count), "one type per layer");
        return false;
    }
    bool known = base_json_present(list);
    for (size_t i = 0; shape->kinds != NULL && i < count; i++) {
        size_t kind = 0;
        known = base_json_choice(base_json_at(&list, i), names, 2, &kind) && known;
        shape->kinds[i] = kind;
    }
    return known;
}

static void read_hybrid(reader *r, bool interval)
{
    base_json list = base_json_get(&r->sizes, "layer_types");
    if (!interval || list.value != NULL) {
        read_layer_types(r, base_json_array(list, MODEL_MAX_LAYERS), "linear_attention");
        return;
    }
    uint64_t every = size_or(r, "full_attention_interval", MODEL_MAX_LAYERS, 4);
    for (uint64_t i = 0; r->shape->kinds != NULL && every > 0 && i < r->shape->layers; i++)
        r->shape->kinds[i] = (i + 1) % every == 0;
}

static void all_layers(const model_shape *shape, uint64_t kind)
{
    for (uint64_t i = 0; shape->kinds != NULL && i < shape->layers; i++)
        shape->kinds[i] = kind;
}

/* All but each n-th layer have a window. */
static void repeat_windows(const model_shape *shape, uint64_t every)
{
    for (uint64_t i = 0; shape->kinds != NULL && i < shape->layers; i++)
        shape->kinds[i] = (i + 1) % every == 0;
}

/* vLLM looks at no list here, so one that says otherwise would be passed over. */
static void check_turns(const reader *r, base_json list)
{
    const model_shape *shape = r->shape;
    for (uint64_t i = 0; shape->kinds != NULL && list.value != NULL && i < shape->layers; i++)
        if (shape->kinds[i] != i % 2) {
            outside(r, list, "sliding_attention and full_attention in turn",
                    base_format("otherwise at layer %llu", (unsigned long long)i),
                    "every other layer has a window, the first one too");
            return;
        }
}

/* Without the list, layers from max_window_layers on. vLLM takes a window for all layers or none. */
static void read_switch(reader *r, base_json list)
{
    model_shape *shape = r->shape;
    bool used = false;
    base_json_bool_or(base_json_get(&r->sizes, "use_sliding_window"), false, &used);
    used = used && !is_null(r, "sliding_window");
    base_json first = base_json_get(&r->sizes, "max_window_layers");
    uint64_t full = size_or(r, "max_window_layers", MODEL_MAX_LAYERS, 28), windows = 0;
    for (uint64_t i = 0; shape->kinds != NULL && i < shape->layers; i++) {
        if (list.value == NULL)
            shape->kinds[i] = !used || i < full;
        windows += shape->kinds[i] == 0;
    }
    if (windows != 0 && windows != shape->layers)
        outside(r, list.value != NULL ? list : first, "all layers with a window, or none",
                base_format("%llu of %llu", (unsigned long long)windows, (unsigned long long)shape->layers),
                "vLLM has no windows on some layers of this model");
    if (!used)
        all_layers(shape, 1);
}

/* Which layer in so many has full attention. */
static uint64_t every_of(const reader *r)
{
    if (strncmp(r->shape->type->name, "gemma3", 6) != 0)
        return 2;
    return size_given(r, "sliding_window_pattern", MODEL_MAX_LAYERS, 6);
}

static void read_windows(reader *r)
{
    model_shape *shape = r->shape;
    model_windows how = shape->type->windows;
    base_json list = base_json_get(&r->sizes, "layer_types");
    bool listed = list.value != NULL;
    if (listed && !read_layer_types(r, base_json_array(list, MODEL_MAX_LAYERS), "sliding_attention"))
        return;
    uint64_t fallback = is_null(r, "sliding_window") ? 0 : r->left_out->window;
    if (how == MODEL_SWITCHED)
        read_switch(r, list);
    else if (how == MODEL_IN_TURN && listed)
        check_turns(r, list);
    else if (how == MODEL_LISTED && !listed) {
        shape->window = size_or(r, "sliding_window", MODEL_MAX_TOKENS, fallback);
        all_layers(shape, shape->window == 0);
    } else if (!listed)
        repeat_windows(shape, every_of(r));
    for (uint64_t i = 0; shape->kinds != NULL && shape->window == 0 && i < shape->layers; i++)
        if (shape->kinds[i] == 0)
            shape->window = size_given(r, "sliding_window", MODEL_MAX_TOKENS, fallback);
}

/* Tokens of an encoder see both ways, and it has no cache. */
static void read_gemma(reader *r)
{
    base_json both = base_json_get(&r->sizes, "use_bidirectional_attention"),
              cap = base_json_get(&r->sizes, "attn_logit_softcapping");
    bool encoder = false;
    if (base_json_bool_or(both, false, &encoder) && encoder)
        outside(r, both, "false", "true", "a model that attends both ways has no cache");
    bool gemma2 = strcmp(r->shape->type->name, "gemma2") == 0;
    if (cap.value != NULL || (gemma2 && !is_null(r, "attn_logit_softcapping")))
        r->shape->traits |= MODEL_SOFTCAP;
}

/* --- families ------------------------------------------------------------------------------ */

static void read_attention(reader *r)
{
    read_heads(r);
    r->shape->traits = r->shape->type->traits;
    read_windows(r);
    if (r->shape->type->windows == MODEL_REPEATED)
        read_gemma(r);
}

static void read_qwen(reader *r)
{
    static const char *const types[] = {"float32", "bfloat16", "float16"};
    model_shape *shape = r->shape;
    read_heads(r);
    read_hybrid(r, true);
    shape->k_heads = size_of(r, "linear_num_key_heads", MODEL_MAX_HEADS);
    shape->v_heads = size_of(r, "linear_num_value_heads", MODEL_MAX_HEADS);
    shape->k_dim = size_of(r, "linear_key_head_dim", MODEL_MAX_DIM);
    shape->v_dim = size_of(r, "linear_value_head_dim", MODEL_MAX_DIM);
    shape->conv_rows = size_of(r, "linear_conv_kernel_dim", MODEL_MAX_HEADS) - 1;
    if (strncmp(shape->type->name, "qwen3_5", 7) != 0) {
        shape->draft_layers = size_or(r, "num_nextn_predict_layers", MODEL_MAX_DRAFTS, 1);
        return;
    }
    shape->draft_layers = size_or(r, "mtp_num_hidden_layers", MODEL_MAX_DRAFTS, 1);
    base_json type = base_json_get(&r->sizes, "mamba_ssm_dtype");
    size_t choice = 0;
    if (type.value != NULL && base_json_choice(type, types, 3, &choice))
        shape->ssm_dtype = types[choice];
}

static void read_mla(reader *r)
{
    model_shape *shape = r->shape;
    shape->lora = size_of(r, "kv_lora_rank", MODEL_MAX_DIM);
    base_json_uint(base_json_get(&r->sizes, "qk_rope_head_dim"), 0, MODEL_MAX_DIM, &shape->rope);
    shape->nope = size_of(r, "qk_nope_head_dim", MODEL_MAX_DIM);
    shape->draft_layers = size_or(r, "num_nextn_predict_layers", MODEL_MAX_DRAFTS, 0);
}

static void read_indexer(reader *r)
{
    model_shape *shape = r->shape;
    base_json dim = base_json_get(&r->sizes, "index_head_dim");
    if (base_json_uint(dim, 1, MODEL_MAX_DIM, &shape->index_dim) && shape->index_dim % 128 != 0)
        outside(r, dim, "a multiple of 128",
                          base_format("%llu", (unsigned long long)shape->index_dim),
                          "the indexer has one scale per 128 values");
    shape->topk = size_of(r, "index_topk", MODEL_MAX_TOKENS);
}

static void read_glm(reader *r)
{
    model_shape *shape = r->shape;
    read_mla(r);
    read_indexer(r);
    read_hybrid(r, false);
    base_json kpool = base_json_get(&r->sizes, "index_kpool");
    base_json_uint(kpool, 2, MODEL_MAX_HEADS, &shape->kpool);
    base_json linear = base_json_object(base_json_get(&r->sizes, "linear_attn_config"));
    uint64_t kernel = 1;
    base_json_uint(base_json_get(&linear, "num_heads"), 1, MODEL_MAX_HEADS, &shape->v_heads);
    base_json_uint(base_json_get(&linear, "head_dim"), 1, MODEL_MAX_DIM, &shape->v_dim);
    base_json_uint(base_json_get(&linear, "short_conv_kernel_size"), 1, MODEL_MAX_HEADS, &kernel);
    shape->k_heads = shape->v_heads;
    shape->k_dim = shape->v_dim;
    shape->conv_rows = kernel - 1;
}

/* Ratio 0 (or 1) is a layer with its sliding window only. */
static void read_ratios(reader *r)
{
    model_shape *shape = r->shape;
    base_json list = base_json_array(base_json_get(&r->sizes, "compress_ratios"),
                                     MODEL_MAX_LAYERS + MODEL_MAX_DRAFTS);
    size_t count = base_json_count(&list);
    if (base_json_present(list) && count < shape->layers)
        outside(r, list,
                          base_format("at least %llu entries, as num_hidden_layers",
                                      (unsigned long long)shape->layers),
                          base_format("%zu entries", count), "one ratio per layer");
    for (size_t i = 0; shape->kinds != NULL && i < count && i < shape->layers; i++) {
        base_json node = base_json_at(&list, i);
        uint64_t ratio = 0;
        if (base_json_uint(node, 0, 128, &ratio) && ratio > 1 && ratio != 4 && ratio != 128)
            outside(r, node, "0, 1, 4 or 128",
                              base_format("%llu", (unsigned long long)ratio),
                              "no other compression is known");
        shape->kinds[i] = ratio > 1 ? ratio : 0;
    }
}

static void read_v4(reader *r)
{
    model_shape *shape = r->shape;
    base_json dim = base_json_get(&r->sizes, "head_dim");
    if (base_json_uint(dim, 1, MODEL_MAX_DIM, &shape->head_dim) && shape->head_dim != 512)
        outside(r, dim, "512", base_format("%llu", (unsigned long long)shape->head_dim),
                          "the kernels of DeepSeek-V4 take no other");
    read_indexer(r);
    read_ratios(r);
    shape->window = size_of(r, "sliding_window", MODEL_MAX_TOKENS);
    shape->draft_layers = size_or(r, "num_nextn_predict_layers", MODEL_MAX_DRAFTS, 0);
}

static void read_family(reader *r)
{
    read_common(r);
    switch (r->shape->type->use) {
    case MODEL_DENSE:
        if (r->shape->type->hybrid)
            read_qwen(r);
        else
            read_attention(r);
        break;
    case MODEL_MLA: read_mla(r); break;
    case MODEL_SPARSE_MLA: read_glm(r); break;
    case MODEL_V4: read_v4(r); break;
    }
}

kvferry_status model_config_read(const char *text, size_t size, model_cache *cache)
{
    base_json_document document;
    kvferry_status status =
        base_json_parse(text, size, BASE_JSON_NULL_IS_ABSENT, cache->report, &document);
    if (status != KVFERRY_OK)
        return status;
    reader r = {.cache = cache, .shape = &cache->shape};
    r.root = base_json_root(&document);
    if (read_type(&r))
        read_family(&r);
    status = base_json_verdict(&document);
    base_json_end(&document);
    if (status == KVFERRY_OK && cache->no_memory)
        status = KVFERRY_NO_MEMORY;
    return status;
}
