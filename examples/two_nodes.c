/* SPDX-License-Identifier: Apache-2.0 */
/* A prefill worker and a decode worker as nodes, in one process: a request's blocks are offered and asked for.
 *   cc -o two_nodes two_nodes.c $(pkg-config --cflags --libs kvferry) && ./two_nodes */
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
/* A worker of an engine of one. The engine ("ucx" unless told otherwise) allocates the memory. */
static kvferry_node *worker(const char *engine_id, char **group, size_t *bytes)
{
    kvferry_model_options model = {.size = sizeof model, .tp_size = 1, .engine_id = engine_id,
                                   .block_size = 16, .blocks = 8};
    kvferry_node_options options = {.size = sizeof options};
    kvferry_layout *layout;
    kvferry_node *node;
    must(kvferry_model_layout(config, sizeof config - 1, &model, &layout, report));
    must(kvferry_node_create(&options, layout, &(kvferry_node_segment){0}, 1, &node, report));
    *group = strdup(kvferry_layout_group(layout, 0)->name);
    *bytes = kvferry_layout_segment(layout, 0)->bytes;
    kvferry_layout_free(layout);
    return node;
}
/* Waits until the blocks of the node's transfer may be used again; whether it went well. */
static int released(kvferry_node *node)
{
    for (;;) {
        must(kvferry_node_wait(node, 30000));
        kvferry_event *event = kvferry_node_next_event(node);
        int is_it = event && event->kind == KVFERRY_EVENT_RELEASED;
        int well = is_it && event->outcome == KVFERRY_OUTCOME_DONE;
        kvferry_event_free(event);
        if (is_it)
            return well;
    }
}
int main(void)
{
    char *group;
    size_t bytes, arrived = 0;
    must(kvferry_report_create(&report));
    kvferry_node *prefill = worker("prefill-0", &group, &bytes);
    free(group);
    kvferry_node *decode = worker("decode-0", &group, &bytes);
    memset(kvferry_node_segment_address(prefill, 0), 1, bytes); /* the caches of some prompt of 20 tokens */
    kvferry_block_table here = {group, 0, (uint32_t[]){5, 2}, 2}, there = {group, 0, (uint32_t[]){1, 6}, 2};
    must(kvferry_node_offer(prefill, &(kvferry_offer){.size = sizeof(kvferry_offer), .transfer_id = "t1", .tokens = 20,
                                                      .tables = &here, .table_count = 1,
                                                      .readiness = KVFERRY_READY}, report));
    must(kvferry_node_ask(decode, &(kvferry_ask){.size = sizeof(kvferry_ask), .transfer_id = "t1", .tokens = 20,
                                                 .where = kvferry_node_address(prefill),
                                                 .tables = &there, .table_count = 1}, report));
    int well = released(decode) & released(prefill);
    unsigned char *memory = kvferry_node_segment_address(decode, 0);
    for (size_t i = 0; i < bytes; i++)
        arrived += memory[i];
    printf("%s: %zu bytes arrived\n", well ? "done" : "failed", arrived);
    kvferry_node_close(decode);
    kvferry_node_close(prefill);
    free(group);
    return well && arrived >= 20 * 2 * 2 * 64 * 2 ? 0 : 1; /* k and v, 2 heads, 64 dims of bf16 */
}
