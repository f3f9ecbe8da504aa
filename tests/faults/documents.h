/* SPDX-License-Identifier: Apache-2.0 */
/* Small documents that have something of everything. */
#ifndef KVFERRY_FAULTS_DOCUMENTS_H
#define KVFERRY_FAULTS_DOCUMENTS_H

#define WORKER(engine, rank, size)                                                                  \
    "{\"format\": \"kvferry-layout/1\", \"engine_id\": \"" engine "\","                              \
    "\"worker\": {\"tp_rank\": " #rank ", \"tp_size\": " #size ", \"pp_rank\": 0, \"pp_size\": 1,"   \
    "\"dp_rank\": 0, \"dp_size\": 1},"                                                               \
    "\"identity\": {\"model\": \"small\", \"revision\": \"1\", \"draft\": \"d\"},"                   \
    "\"segments\": [{\"name\": \"kv\", \"bytes\": 8192}, {\"name\": \"state\", \"bytes\": 2048}],"
#define GROUPS(block_tokens)                                                                        \
    "\"groups\": [{\"name\": \"attn\", \"kind\": \"paged\", \"block_tokens\": " #block_tokens "},"    \
    "{\"name\": \"gdn\", \"kind\": \"state\"}, {\"name\": \"ring\", \"kind\": \"ring\"}],"
#define KEYS(name, offset, stride, heads, start, head_stride, tokens)                               \
    "{\"layer\": \"layers.0.attn\", \"name\": \"" name "\", \"group\": \"attn\","                    \
    "\"dtype\": \"bfloat16\", \"segment\": \"kv\", \"offset\": " #offset ", \"pages\": 8,"           \
    "\"page_stride\": " #stride ", \"cell_bytes\": 16, \"aliases\": [\"layers.9.attn\"],"            \
    "\"axes\": [{\"name\": \"kv_head\", \"start\": " #start ", \"extent\": " #heads ","              \
    "\"global\": 2, \"stride\": " #head_stride "},"                                                  \
    "{\"name\": \"token\", \"extent\": " #tokens ", \"stride\": 16}]},"
#define STATE(rows, start)                                                                          \
    "{\"layer\": \"layers.1.gdn\", \"name\": \"ssm\", \"group\": \"gdn\", \"dtype\": \"float32\","     \
    "\"segment\": \"state\", \"offset\": 0, \"pages\": 4, \"page_stride\": 128, \"cell_bytes\": 32,"  \
    "\"axes\": [{\"name\": \"head\", \"start\": " #start ", \"extent\": " #rows ","                   \
    "\"global\": 4, \"stride\": 32}]},"                                                              \
    "{\"layer\": \"layers.2.tail\", \"name\": \"tail\", \"group\": \"ring\", \"dtype\": \"uint8\","     \
    "\"format\": \"packed\", \"policy\": \"optional\", \"segment\": \"state\", \"offset\": 1024,"      \
    "\"pages\": 4, \"page_stride\": 64, \"cell_bytes\": 8,"                                           \
    "\"axes\": [{\"name\": \"slot\", \"extent\": 4, \"stride\": 8}]}]}"

/* TP1, blocks of 16 tokens, K and V apart. */
static const char source_document[] =
    WORKER("prefill", 0, 1) GROUPS(16) "\"streams\": ["
    KEYS("k", 0, 512, 2, 0, 256, 16) KEYS("v", 4096, 512, 2, 0, 256, 16) STATE(4, 0);

/* Rank 1 of TP2, blocks of 8 tokens, K and V in one page. */
static const char target_document[] =
    WORKER("decode", 1, 2) GROUPS(8) "\"streams\": ["
    KEYS("k", 0, 256, 1, 1, 128, 8) KEYS("v", 128, 256, 1, 1, 128, 8) STATE(2, 2);

/* The same model's other layers: nothing that the target wants. */
static const char other_document[] =
    WORKER("other", 0, 1) GROUPS(16) "\"streams\": [" STATE(4, 0);

/* Well formed, but past the segment's end, and with keys and values in the same bytes. */
static const char refused_document[] =
    WORKER("bad", 0, 1) GROUPS(16) "\"streams\": ["
    KEYS("k", 4096, 1024, 2, 0, 256, 16) KEYS("v", 4352, 1024, 2, 0, 256, 16) STATE(4, 0);

static const char malformed_document[] =
    "{\"format\": \"kvferry-layout/1\", \"worker\": 3, \"segments\": [{\"bytes\": -1}, {}],"
    "\"groups\": [{\"kind\": \"sideways\"}], \"streams\": [{\"axes\": [{}]}]}";

static const char request_document[] =
    "{\"transfer_id\": \"t1\", \"tokens\": 40, \"source\": {\"attn\": {\"first_token\": 0, \"blocks\":"
    "[3, 4, 7]}, \"gdn\": {\"blocks\": [0, 2]}, \"ring\": {\"blocks\": [3]}}, \"target\": {\"attn\":"
    "{\"first_token\": 8, \"blocks\": [1, 2, 5, 6]}, \"gdn\": {\"blocks\": [3]},"
    "\"ring\": {\"blocks\": [1]}}}";

static const char refused_request_document[] =
    "{\"transfer_id\": \"t2\", \"tokens\": 40, \"source_tokens\": 39, \"source\": {\"attn\":"
    "{\"first_token\": 3, \"blocks\": [0, 400]}, \"gdn\": {\"blocks\": [0, 0]}}, \"target\": {\"attn\":"
    "{\"first_token\": 8, \"blocks\": [1, 200, 5, 5]}, \"gdn\": {\"blocks\": [3, 2]},"
    "\"ring\": {\"blocks\": [1]}, \"none\": {\"blocks\": [1]}}}";

static const char malformed_request_document[] =
    "{\"tokens\": -1, \"source\": {\"attn\": 3}, \"target\": {\"attn\": {\"blocks\": [1, \"2\"]}}}";

static const char model_config[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 256,"
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    "\"head_dim\": 64, \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}";

static const char refused_config[] = "{\"model_type\": \"nobody's\", \"num_hidden_layers\": 2}";

#endif
