/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_MODEL_H
#define KVFERRY_MODEL_H

#include <kvferry/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What a worker's caches would look like under vLLM 0.32, from a model's config.json and a
 * topology, without an engine. docs/models.md lists the models and rules.
 */

/* Set `size` to sizeof(kvferry_model_options). A zero or NULL field is the default. */
typedef struct kvferry_model_options {
    size_t size;
    uint32_t tp_size, pp_size;   /* default 1 */
    uint32_t tp_rank, pp_rank;
    const char *engine_id;       /* default: the model's name */
    const char *model;           /* identity; default: config's _name_or_path, else its model_type */
    const char *platform;        /* "sm90" (default), "sm100", "sm120" (each also with "-fi", for
                                    FlashInfer, which changes nothing), "cpu", "cpu-amx" */
    const char *backend;         /* attention backend, default: the first that serves the rest */
    const char *kv_dtype;        /* "auto" (default: the model's, or the backend's only one), the
                                    model's own, "fp8" ("fp8_e4m3"), "fp8_ds_mla" */
    const char *state_dtype;     /* of ssm: "float32", "bfloat16", "float16"; default: the model's */
    const char *indexer_dtype;   /* "fp8" (default), "mxfp4" */
    const char *conv_layout;     /* "DS" or "SD"; default SD, as vLLM's */
    const char *memory_order;    /* "LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"; default: the
                                    model's, as vLLM's connectors ask for it */
    const char *mamba_mode;      /* "align" (default), "none" */
    uint64_t block_size;         /* --block-size; default: the backend's */
    uint64_t kernel_block_size;  /* tokens a kernel block; default: the backend's */
    uint64_t max_model_len;      /* only mode none: the state group's block; default the config's */
    uint64_t blocks;             /* num_blocks; default 1024 */
    uint32_t mtp_layers;         /* draft layers; default 0 */
    uint32_t speculative_tokens; /* default: 1 if there are draft layers */
    const char *kpool;           /* GLM: "ring" (default, 0.32) or "tail" (the earlier layout) */
} kvferry_model_options;

/*
 * The layout of one worker. `config` is config.json's text. On KVFERRY_OK *layout is the caller's.
 * KVFERRY_MALFORMED: not JSON, or a field is missing or of the wrong type; KVFERRY_REFUSED: a model,
 * size or option outside the rules; the report names each field, with what was expected and found.
 */
KVFERRY_API kvferry_status kvferry_model_layout(const char *config, size_t size,
                                                const kvferry_model_options *options,
                                                kvferry_layout **layout, kvferry_report *report);

#ifdef __cplusplus
}
#endif
#endif
