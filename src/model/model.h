/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a config.json and options to what vLLM 0.32 would allocate, step by step:
 *
 *   config.c    config.json -> model_shape          option.c  options -> model_choice
 *   backend.c   the attention backends and which one is taken
 *   family.c    shape and choice -> specs and layers, one function per family; block.c  block sizes
 *   group.c     layers -> groups, over all stages   place.c   one stage's groups -> regions of memory
 *   stream.c    regions -> streams of a layout document
 *
 * docs/models.md says the rules in words and where they come from.
 */
#ifndef KVFERRY_MODEL_MODEL_H
#define KVFERRY_MODEL_MODEL_H

#include <kvferry/model.h>

#include "base/base.h"

/* Sizes beyond these are refused: with them no product below overflows before it is checked. */
#define MODEL_MAX_LAYERS 1024
#define MODEL_MAX_HEADS 4096
#define MODEL_MAX_DIM 8192
#define MODEL_MAX_BLOCK ((uint64_t)1 << 20)
#define MODEL_MAX_BLOCKS ((uint64_t)1 << 31)
#define MODEL_MAX_TOKENS ((uint64_t)1 << 40)
#define MODEL_MAX_DRAFTS 16
#define MODEL_MAX_RANKS 4096

typedef enum model_platform {
    MODEL_SM90 = 1,
    MODEL_SM100 = 2,
    MODEL_SM120 = 4,
    MODEL_CPU = 8,
    MODEL_CPU_AMX = 16
} model_platform;
#define MODEL_ANY_CPU (MODEL_CPU | MODEL_CPU_AMX)
#define MODEL_ANY_GPU (MODEL_SM90 | MODEL_SM100 | MODEL_SM120)

/* What a cache holds of a token, as asked for; NATIVE is the model's own type. */
typedef enum model_precision {
    MODEL_NATIVE = 1,
    MODEL_FP8 = 2,
    MODEL_FP8_DS_MLA = 4 /* packed with its scales; the bytes depend on the model */
} model_precision;

/* What attention a model needs of a backend. */
typedef enum model_use { MODEL_DENSE, MODEL_MLA, MODEL_SPARSE_MLA, MODEL_V4 } model_use;

/* What else attention may have, that not every backend takes. */
typedef enum model_trait {
    MODEL_IMAGES = 1, /* tokens of an image see all of it */
    MODEL_SINKS = 2,
    MODEL_SOFTCAP = 4 /* scores are capped */
} model_trait;

/* How a config says which layers have a sliding window instead of full attention. */
typedef enum model_windows {
    MODEL_NO_WINDOWS,
    MODEL_LISTED,   /* layer_types; without them all layers if there is a sliding_window */
    MODEL_SWITCHED, /* all layers or none, by use_sliding_window */
    MODEL_REPEATED, /* layer_types; without them all but each n-th layer */
    MODEL_IN_TURN   /* the first, third, fifth ... layer */
} model_windows;

struct model_cache;
struct model_shape;

typedef struct model_type {
    const char *name; /* config's model_type */
    bool text_config; /* sizes lie in text_config, and layers are named language_model.* */
    model_use use;
    bool hybrid; /* has recurrent state beside attention */
    void (*list)(struct model_cache *cache);
    model_windows windows;
    unsigned traits; /* set of model_trait */
} model_type;

/* The sizes that matter, whatever the family calls them. Zero where a family has no such thing. */
typedef struct model_shape {
    const model_type *type;
    const char *name, *prefix;
    const char *dtype, *ssm_dtype; /* ssm_dtype: NULL if the config does not say */
    uint64_t dtype_bytes;
    uint64_t layers, heads, kv_heads, head_dim, positions;
    uint64_t draft_layers; /* how many the model has */
    unsigned traits;       /* set of model_trait */
    uint64_t *kinds;       /* per layer: 1 where full attention; DeepSeek-V4 its compress ratio */
    uint64_t k_heads, v_heads, k_dim, v_dim, conv_rows; /* linear attention; rows without drafts */
    uint64_t lora, rope, nope;                          /* MLA */
    uint64_t index_dim, kpool, topk, window;
} model_shape;

typedef struct model_choice {
    uint64_t tp, pp, tp_rank, pp_rank;
    const char *engine_id, *model; /* NULL: by the config */
    model_platform platform;
    const char *backend; /* NULL: the platform's */
    model_precision precision;
    bool precision_auto;
    const char *kv_dtype; /* as asked for, NULL: auto */
    const char *state_dtype;
    bool mxfp4, conv_dim_first, align, kpool_tail;
    const char *order; /* NULL: the model's */
    uint64_t block, kernel, positions, blocks, drafts, speculative;
} model_choice;

typedef struct model_backend {
    const char *name;
    model_use use;
    unsigned platforms, precisions; /* sets of model_platform and model_precision */
    uint64_t multiple;              /* kernel blocks are any multiple of it; 0: one of sizes */
    uint64_t sizes[8];              /* ends with a zero */
    uint64_t rows;                  /* blocks are whole pages of so many rows apart; 0: no such need */
    uint64_t head_dims[12];         /* ends with a zero; none: any multiple of 8 up to 256 */
    const char *orders;             /* the memory orders that it takes; NULL: all */
    unsigned without, only;         /* sets of model_trait: what it takes none of, what it is for */
} model_backend;

/* What a layer's cache holds, and so what streams it becomes. */
typedef enum model_content {
    MODEL_KV,         /* k and v of each head */
    MODEL_LATENT,     /* one vector a state, scales after all data of a page if apart */
    MODEL_INDEX,      /* the same, for a sparse indexer */
    MODEL_COMPRESSOR, /* one slot a token */
    MODEL_STATE,      /* conv.q, conv.k, conv.v, ssm */
    MODEL_RING        /* raw keys and gate scores of an open pool */
} model_content;

/* Which layers may be in one group: those of one class, and of one block size and window. */
typedef enum model_class { MODEL_FULL, MODEL_SLIDING, MODEL_RECURRENT, MODEL_CIRCULAR } model_class;

typedef struct model_spec {
    model_content content;
    model_class class;
    const char *group; /* what its groups are called */
    uint64_t block;    /* tokens a block; of a ring: slots */
    uint64_t window;   /* sliding window, 0: none */
    uint64_t tokens_per_state;
    uint64_t heads, states, cell; /* H, N, C of vLLM: a page is their product ... */
    uint64_t real, page;          /* ... in bytes; and with what pads it */
    uint64_t alignment;           /* blocks are a multiple of these bytes apart */
    uint64_t kernel;              /* tokens that the kernels take at a time; a divisor of block */
    uint64_t data, scale;         /* bytes of a state where scales lie apart, else scale is 0 */
    const char *dtype, *format;
} model_spec;

#define MODEL_SPECS 8

typedef struct model_layer {
    const char *name;
    uint32_t spec;
    uint32_t stage;
    bool draft;
} model_layer;

typedef struct model_group {
    const char *name;
    uint32_t *layers; /* of all stages */
    uint32_t count;
    uint32_t spec; /* its first layer's */
} model_group;

/* What vLLM calls a cache tensor: this stage's layers of one group and spec, one stride apart. */
typedef struct model_region {
    uint32_t group, spec;
    uint32_t *layers;
    uint32_t count;
    uint64_t offset, layer_stride, block_stride; /* of blocks */
    uint64_t ratio;                              /* pages a block */
    uint64_t head_stride, state_stride;          /* inside a page */
} model_region;

typedef struct model_cache {
    base_arena arena;
    kvferry_report *report;
    bool refused, no_memory;
    model_shape shape;
    model_choice choice;
    const model_backend *backend;
    model_spec specs[MODEL_SPECS];
    uint32_t spec_count;
    model_layer *layers; /* of all stages, in the order in which vLLM meets them */
    uint32_t layer_count;
    size_t layer_capacity;
    model_group *groups;
    uint32_t group_count;
    size_t group_capacity;
    model_region *regions;
    uint32_t region_count;
    const char *order;
    uint64_t block;           /* tokens: vLLM's cache_config.block_size */
    uint64_t bytes_per_block; /* of all layers of this stage */
    uint64_t bytes;
} model_cache;

/* Reads the config into cache->shape. KVFERRY_MALFORMED, KVFERRY_REFUSED, KVFERRY_NO_MEMORY. */
kvferry_status model_config_read(const char *text, size_t size, model_cache *cache);

/* Reads the options into cache->choice; findings make cache->refused. NULL: all defaults. */
void model_choice_read(const kvferry_model_options *options, model_cache *cache);

/* Sets cache->backend. */
void model_backend_choose(model_cache *cache);

/* Whether blocks of so many tokens can be cut into kernel blocks of the backend. */
bool model_backend_takes(const model_backend *backend, uint64_t block);

/* Types of config.json by name. */
const model_type *model_type_find(const char *name);

/* Sets cache->block, from what one token takes in an attention layer and one layer's state. */
void model_block_choose(model_cache *cache, uint64_t token_bytes, uint64_t state_bytes);

/* The block of a layer with a window, of so many heads here: the largest kernel block within cache->block. */
uint64_t model_block_windowed(const model_cache *cache, uint64_t heads);

/* The page's sizes from heads, states and cell, padded to a multiple of `padding` (1: not). */
void model_spec_size(model_spec *spec, uint64_t padding);

/* Sets kernel and alignment by the backend, or those of a kpool indexer. After model_spec_size. */
void model_spec_kernel(model_cache *cache, model_spec *spec);
void model_spec_index_kernel(model_cache *cache, model_spec *spec);

/* Sets groups, regions, order and sizes from specs and layers. */
void model_group_layers(model_cache *cache);
void model_order_choose(model_cache *cache);
void model_place(model_cache *cache);

/* All of the above. On KVFERRY_OK the cache holds an allocation; end it with model_cache_end always. */
kvferry_status model_cache_build(const char *config, size_t size,
                                 const kvferry_model_options *options, kvferry_report *report,
                                 model_cache *cache);
void model_cache_end(model_cache *cache);

/* Adds segment, groups and streams of this worker. */
void model_streams_add(model_cache *cache, kvferry_layout_builder *builder);

/* A finding about an option or a field of the config: its name is the place. */
void model_refuse(model_cache *cache, const char *code, const char *place, const char *expected,
                  const char *found, const char *message);

/* Memory of the cache; NULL, and cache->no_memory set, when there is none. */
void *model_alloc(model_cache *cache, size_t count, size_t size);
const char *model_text(model_cache *cache, const char *text);

#endif
