/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a block of a small model from a TP1 worker to rank 1 of a TP2 engine, in one process.
 *   cc -o move_block move_block.c $(pkg-config --cflags --libs kvferry) && ./move_block */
#include <kvferry/kvferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config[] = "{\"model_type\": \"llama\", \"hidden_size\": 256,"
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"head_dim\": 64,"
    "\"num_key_value_heads\": 2, \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}";
static kvferry_report *report;
static void must(kvferry_status status)
{
    for (size_t i = 0; status && i < kvferry_report_count(report); i++)
        fprintf(stderr, "%s\n", kvferry_report_get(report, i)->message);
    if (status)
        exit(1);
}
/* A worker: its caches as vLLM lays them out, an engine, and memory for its one segment. */
static kvferry_layout *worker(uint32_t rank, uint32_t size, kvferry_engine **engine, void **memory)
{
    kvferry_model_options options = {.size = sizeof options, .tp_rank = rank, .tp_size = size,
                                     .block_size = 16, .blocks = 8};
    kvferry_layout *layout;
    must(kvferry_model_layout(config, sizeof config - 1, &options, &layout, report));
    must(kvferry_engine_open("memory", NULL, engine, report));
    must(kvferry_engine_allocate(*engine, kvferry_layout_segment(layout, 0)->bytes, memory,
                                 &(uint32_t){0}, report));
    return layout;
}
int main(void)
{
    must(kvferry_report_create(&report));
    kvferry_engine *prefill, *decode;
    void *from, *to, *binding;
    const kvferry_layout *source = worker(0, 1, &prefill, &from);
    const kvferry_layout *target = worker(1, 2, &decode, &to);
    memset(from, 1, kvferry_layout_segment(source, 0)->bytes); /* the caches of some prompt */
    kvferry_plan *plan; /* made once for these workers; then for each request: */
    must(kvferry_plan_create(&source, 1, target, &plan, report));
    const char *group = kvferry_layout_group(source, 0)->name;
    kvferry_block_table here = {group, 0, &(uint32_t){5}, 1}, there = {group, 0, &(uint32_t){2}, 1};
    kvferry_request request = {.transfer_id = "t1", .source_tokens = 16, .target_tokens = 16, .source = &here,
                               .source_count = 1, .target = &there, .target_count = 1}; /* block 5 is block 2 there */
    kvferry_copy copies[64];
    size_t count, size, arrived = 0;
    must(kvferry_plan_expand(plan, 0, &request, copies, 64, &count, report));
    kvferry_peer *peer; /* the target's binding reaches the source by any channel */
    kvferry_transfer *transfer;
    must(kvferry_engine_export(decode, &binding, &size, report));
    must(kvferry_engine_connect(prefill, binding, size, &peer, report));
    must(kvferry_transfer_begin(prefill, peer, KVFERRY_WRITE, copies, count, 0, &transfer, report));
    while (!kvferry_transfer_get(transfer)->over)
        must(kvferry_engine_progress(prefill, NULL));
    for (size_t i = 0; i < kvferry_layout_segment(target, 0)->bytes; i++)
        arrived += ((unsigned char *)to)[i];
    printf("%zu bytes in %zu copies\n", arrived, count); /* k and v, 16 tokens, 64 dims of bf16 */
    return arrived == 2 * 16 * 64 * 2 ? 0 : 1;
}
