/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the request document. */
#include "plan/plan.h"

#include <stdlib.h>

#include "base/json.h"

/* What a request may have at most. */
#define REQUEST_MAX_GROUPS 1024
#define REQUEST_MAX_BLOCKS 4000000 /* of one table */
#define REQUEST_MAX_ID 1024        /* bytes of transfer_id */

/* A request with the memory that it is in. */
typedef struct request_document {
    kvferry_request request; /* first: it is what the caller gets */
    base_arena arena;
} request_document;

/* A request that is being read. */
typedef struct request_job {
    base_json_document *document;
    request_document *made;
    bool no_memory;
} request_job;

static void *allocate(request_job *job, size_t count, size_t size)
{
    void *data = base_arena_alloc(&job->made->arena, count, size);
    if (!data)
        job->no_memory = true;
    return data;
}

static const char *keep(request_job *job, const char *text)
{
    const char *copy = base_arena_strdup(&job->made->arena, text);
    if (!copy)
        job->no_memory = true;
    return copy;
}

static void read_table(request_job *job, base_json node, kvferry_block_table *table)
{
    node = base_json_object(node);
    table->group = keep(job, node.key);
    base_json_uint_or(base_json_get(&node, "first_token"), 0, BASE_JSON_MAX_NUMBER, 0,
                      &table->first_token);
    base_json list = base_json_array(base_json_get(&node, "blocks"), REQUEST_MAX_BLOCKS);
    size_t count = base_json_count(&list);
    uint32_t *blocks = allocate(job, count, sizeof(*blocks));
    for (size_t i = 0; i < count && blocks; i++) {
        uint64_t block = 0;
        base_json_uint(base_json_at(&list, i), 0, UINT32_MAX, &block);
        blocks[i] = (uint32_t)block;
    }
    table->blocks = blocks;
    table->block_count = count;
}

static void read_side(request_job *job, base_json side, const kvferry_block_table **tables,
                      size_t *count)
{
    side = base_json_object(side);
    size_t members = json_object_size(side.value);
    if (members > REQUEST_MAX_GROUPS) {
        base_json_finding(side, "list_length", base_format("at most %d groups", REQUEST_MAX_GROUPS),
                          base_format("%zu", members), "a side has too many groups");
        return;
    }
    kvferry_block_table *read = allocate(job, members, sizeof(*read));
    base_json member;
    void *iterator = NULL;
    for (size_t i = 0; i < members && !job->no_memory && base_json_next(&side, &iterator, &member);
         i++)
        read_table(job, member, &read[i]);
    *tables = read;
    *count = members;
}

static void read_request(request_job *job)
{
    kvferry_request *request = &job->made->request;
    base_json root = base_json_root(job->document);
    const char *id = NULL;
    if (base_json_string_or(base_json_get(&root, "transfer_id"), REQUEST_MAX_ID, NULL, &id) && id)
        request->transfer_id = keep(job, id);
    base_json_uint(base_json_get(&root, "tokens"), 0, BASE_JSON_MAX_NUMBER,
                   &request->target_tokens);
    base_json_uint_or(base_json_get(&root, "source_tokens"), 0, BASE_JSON_MAX_NUMBER,
                      request->target_tokens, &request->source_tokens);
    base_json_bool_or(base_json_get(&root, "whole_blocks"), false, &request->whole_blocks);
    read_side(job, base_json_get(&root, "source"), &request->source, &request->source_count);
    read_side(job, base_json_get(&root, "target"), &request->target, &request->target_count);
}

kvferry_status kvferry_request_read_json(const char *text, size_t size, kvferry_request **request,
                                         kvferry_report *report)
{
    base_json_document document;
    kvferry_status status = base_json_parse(text, size, 0, report, &document);
    if (status != KVFERRY_OK)
        return status;
    request_job job = {.document = &document, .made = base_alloc(1, sizeof(*job.made))};
    if (job.made)
        read_request(&job);
    status = !job.made || job.no_memory ? KVFERRY_NO_MEMORY : base_json_verdict(&document);
    if (status == KVFERRY_OK)
        *request = &job.made->request;
    else if (job.made)
        kvferry_request_free(&job.made->request);
    base_json_end(&document);
    return status;
}

void kvferry_request_free(kvferry_request *request)
{
    if (!request)
        return;
    request_document *made = (request_document *)request;
    base_arena_free(&made->arena);
    free(made);
}
