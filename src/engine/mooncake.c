/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mooncake engine: Mooncake Transfer Engine through its C interface, found while running. Its
 * instances and its segments; connections are in mooncake_peer.c, batches in mooncake_batch.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/mooncake_internal.h"

/* --- instances --------------------------------------------------------------------------------- */

/* Without a transport's name Mooncake takes RDMA where it finds devices for it, and else TCP. */
static kvferry_status make_instance(const mooncake_engine *engine, void **instance,
                                    kvferry_report *report)
{
    const mooncake_api *api = engine->api;
    const char *transport = engine->transport;
    int discover = strcmp(transport, "tcp") != 0;
    void *made = api->create("P2PHANDSHAKE", engine->host, engine->host, 0, discover);
    if (!made) {
        mooncake_report(report, "no transfer engine here",
                        base_format("createTransferEngine refused host %.128s", engine->host));
        return KVFERRY_UNSUPPORTED;
    }
    if (*transport && !api->install(made, transport, NULL)) {
        mooncake_report(report, "no such transport here",
                        base_format("installTransport refused %s", transport));
        api->destroy(made);
        return KVFERRY_UNSUPPORTED;
    }
    *instance = made;
    return KVFERRY_OK;
}

static kvferry_status add(const mooncake_engine *engine, void *instance, void *address, uint64_t bytes,
                          kvferry_report *report)
{
    int code = engine->api->add(instance, address, (size_t)bytes, "*", instance == engine->target);
    if (code)
        mooncake_report(report, "memory cannot be registered", mooncake_error_name(code));
    return mooncake_status(code);
}

kvferry_status mooncake_begin(mooncake_engine *engine, kvferry_report *report)
{
    if (engine->initiator)
        return KVFERRY_OK;
    void *made;
    kvferry_status status = make_instance(engine, &made, report);
    if (status != KVFERRY_OK)
        return status;
    for (const mooncake_segment *segment = engine->segments; segment && status == KVFERRY_OK;
         segment = segment->next)
        status = add(engine, made, segment->address, segment->bytes, report);
    if (status == KVFERRY_OK)
        engine->initiator = made;
    else
        engine->api->destroy(made);
    return status;
}

/* --- life ------------------------------------------------------------------------------------ */

static void mooncake_close(void *self)
{
    mooncake_engine *engine = self;
    if (engine->initiator)
        engine->api->destroy(engine->initiator);
    if (engine->target)
        engine->api->destroy(engine->target);
    while (engine->spare) {
        mooncake_batch *batch = engine->spare;
        engine->spare = batch->next;
        free(batch);
    }
    free(engine);
}

static kvferry_status read_transport(mooncake_engine *engine, const char *transport,
                                     kvferry_report *report)
{
    if (strlen(transport) < sizeof(engine->transport)) {
        snprintf(engine->transport, sizeof(engine->transport), "%s", transport);
        return KVFERRY_OK;
    }
    base_report_add(report, "engine_option", &(base_where){.place = "transport"},
                    "the name of one of Mooncake's transports", base_format("%.64s...", transport),
                    "engine mooncake");
    return KVFERRY_INVALID;
}

static kvferry_status open_target(mooncake_engine *engine, const kvferry_engine_options *options,
                                  kvferry_report *report)
{
    kvferry_status status = read_transport(engine, options->transport, report);
    if (status == KVFERRY_OK)
        status = mooncake_find_host(*options->net_devices ? options->net_devices : options->host,
                                    engine->host, sizeof(engine->host), report);
    if (status != KVFERRY_OK)
        return status;
    engine->api = mooncake_load(engine->transport, report);
    if (!engine->api)
        return KVFERRY_UNSUPPORTED;
    status = make_instance(engine, &engine->target, report);
    if (status == KVFERRY_OK && engine->api->get_name(engine->target, engine->name, sizeof(engine->name)))
        status = KVFERRY_ENGINE;
    return status;
}

static kvferry_status mooncake_open(const kvferry_engine_options *options, void **self,
                                    kvferry_report *report)
{
    mooncake_engine *engine = base_alloc(1, sizeof(*engine));
    if (!engine)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = open_target(engine, options, report);
    if (status == KVFERRY_OK)
        *self = engine;
    else
        mooncake_close(engine);
    return status;
}

/* Whether it was built for devices the library does not tell; one that was not refuses their memory. */
static void mooncake_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    (void)self;
    capabilities->max_batch = MOONCAKE_OUTSTANDING;
    capabilities->max_outstanding = MOONCAKE_OUTSTANDING;
    capabilities->writes = capabilities->reads = true;
    capabilities->device_memory = true;
}

/* --- segments -------------------------------------------------------------------------------- */

static kvferry_status mooncake_segment_register(void *self, void *address, uint64_t bytes,
                                                kvferry_memory memory, void **segment,
                                                kvferry_report *report)
{
    (void)memory; /* the library finds out itself whose it is */
    mooncake_engine *engine = self;
    mooncake_segment *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = add(engine, engine->target, address, bytes, report);
    if (status == KVFERRY_OK && engine->initiator) {
        status = add(engine, engine->initiator, address, bytes, report);
        if (status != KVFERRY_OK)
            engine->api->remove(engine->target, address);
    }
    if (status != KVFERRY_OK) {
        free(made);
        return status;
    }
    *made = (mooncake_segment){.next = engine->segments, .address = address, .bytes = bytes};
    if (made->next)
        made->next->previous = made;
    engine->segments = made;
    *segment = made;
    return KVFERRY_OK;
}

static void mooncake_segment_unregister(void *self, void *segment)
{
    mooncake_engine *engine = self;
    mooncake_segment *gone = segment;
    if (engine->initiator)
        engine->api->remove(engine->initiator, gone->address);
    engine->api->remove(engine->target, gone->address);
    if (gone->previous)
        gone->previous->next = gone->next;
    else
        engine->segments = gone->next;
    if (gone->next)
        gone->next->previous = gone->previous;
    free(gone);
}

/* --- binding --------------------------------------------------------------------------------- */

static kvferry_status mooncake_address_export(void *self, void *data, size_t *size)
{
    const mooncake_engine *engine = self;
    size_t capacity = *size;
    *size = strlen(engine->name);
    if (capacity < *size)
        return KVFERRY_NO_SPACE;
    memcpy(data, engine->name, *size);
    return KVFERRY_OK;
}

/* The library's own metadata has the keys. */
static kvferry_status mooncake_segment_export(void *self, void *segment, void *data, size_t *size)
{
    (void)self, (void)segment, (void)data;
    *size = 0;
    return KVFERRY_OK;
}

const kvferry_engine_ops engine_mooncake_ops = {
    .size = sizeof(engine_mooncake_ops),
    .name = "mooncake",
    .open = mooncake_open,
    .close = mooncake_close,
    .capabilities = mooncake_capabilities,
    .progress = mooncake_progress_all,
    .segment_register = mooncake_segment_register,
    .segment_unregister = mooncake_segment_unregister,
    .address_export = mooncake_address_export,
    .segment_export = mooncake_segment_export,
    .peer_connect = mooncake_peer_connect,
    .segment_import = mooncake_segment_import,
    .peer_lost = mooncake_peer_lost,
    .peer_busy = mooncake_peer_busy,
    .peer_close = mooncake_peer_close,
    .submit = mooncake_submit,
};
