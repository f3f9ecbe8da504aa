/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nixl engine: NIXL through its C interface, found while running, with its UCX backend. Agents and
 * segments are in nixl_agent.c, connections in nixl_peer.c, batches in nixl_batch.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/nixl_internal.h"

static void nixl_close(void *self)
{
    nixl_engine *engine = self;
    nixl_agent_close(engine, &engine->target);
    if (engine->news)
        engine->api->news_destroy(engine->news);
    if (engine->local)
        engine->api->list_destroy(engine->local);
    if (engine->remote)
        engine->api->list_destroy(engine->remote);
    while (engine->spare) {
        nixl_batch *batch = engine->spare;
        engine->spare = batch->next;
        free(batch);
    }
    free(engine);
}

/* The library separates its settings by commas, and names from values by equals signs. */
static kvferry_status read_word(char word[NIXL_WORD_BYTES], const char *option, const char *value,
                                kvferry_report *report)
{
    if (strlen(value) < NIXL_WORD_BYTES && !strpbrk(value, ",=")) {
        snprintf(word, NIXL_WORD_BYTES, "%s", value);
        return KVFERRY_OK;
    }
    base_report_add(report, "engine_option", &(base_where){.place = option},
                    base_format("one word of fewer than %d bytes; a list is set by UCX's variables",
                                NIXL_WORD_BYTES),
                    base_format("%.64s", value), "engine nixl");
    return KVFERRY_INVALID;
}

static kvferry_status make_lists(nixl_engine *engine)
{
    const nixl_api *api = engine->api;
    if (api->list_create(NIXL_HOST_MEMORY, &engine->local)) {
        engine->local = NULL;
        return KVFERRY_NO_MEMORY;
    }
    if (api->list_create(NIXL_HOST_MEMORY, &engine->remote)) {
        engine->remote = NULL;
        return KVFERRY_NO_MEMORY;
    }
    if (api->news_create(&engine->news)) {
        engine->news = NULL;
        return KVFERRY_NO_MEMORY;
    }
    return KVFERRY_OK;
}

static kvferry_status open_target(nixl_engine *engine, const kvferry_engine_options *options,
                                  kvferry_report *report)
{
    kvferry_status status = read_word(engine->transport, "transport", options->transport, report);
    if (status == KVFERRY_OK)
        status = read_word(engine->device, "net_devices", options->net_devices, report);
    if (status != KVFERRY_OK)
        return status;
    engine->api = nixl_load(report);
    if (!engine->api)
        return KVFERRY_UNSUPPORTED;
    status = make_lists(engine);
    return status == KVFERRY_OK ? nixl_agent_open(engine, &engine->target, report) : status;
}

static kvferry_status nixl_open(const kvferry_engine_options *options, void **self, kvferry_report *report)
{
    nixl_engine *engine = base_alloc(1, sizeof(*engine));
    if (!engine)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = open_target(engine, options, report);
    if (status == KVFERRY_OK)
        *self = engine;
    else
        nixl_close(engine);
    return status;
}

/* No device memory: the library wants to be told of which device it is, and nobody could test it. */
static void nixl_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    (void)self;
    capabilities->max_batch = NIXL_BATCH_COPIES;
    capabilities->max_outstanding = ENGINE_BATCHES * NIXL_BATCH_COPIES;
    capabilities->writes = capabilities->reads = true;
}

/* --- binding --------------------------------------------------------------------------------- */

/* What the library tells peers of this worker: its name, its addresses, its segments with their keys. */
static kvferry_status nixl_address_export(void *self, void *data, size_t *size)
{
    const nixl_engine *engine = self;
    void *metadata;
    size_t there, capacity = *size;
    if (engine->api->metadata(engine->target.agent, &metadata, &there))
        return KVFERRY_ENGINE;
    *size = there;
    if (there <= capacity)
        memcpy(data, metadata, there);
    engine->api->free(metadata);
    return there <= capacity ? KVFERRY_OK : KVFERRY_NO_SPACE;
}

static kvferry_status nixl_segment_export(void *self, void *segment, void *data, size_t *size)
{
    (void)self, (void)segment, (void)data;
    *size = 0;
    return KVFERRY_OK;
}

const kvferry_engine_ops engine_nixl_ops = {
    .size = sizeof(engine_nixl_ops),
    .name = "nixl",
    .open = nixl_open,
    .close = nixl_close,
    .capabilities = nixl_capabilities,
    .progress = nixl_progress,
    .segment_register = nixl_segment_register,
    .segment_unregister = nixl_segment_unregister,
    .address_export = nixl_address_export,
    .segment_export = nixl_segment_export,
    .peer_connect = nixl_peer_connect,
    .segment_import = nixl_segment_import,
    .peer_lost = nixl_peer_lost,
    .peer_busy = nixl_peer_busy,
    .peer_close = nixl_peer_close,
    .submit = nixl_submit,
};
