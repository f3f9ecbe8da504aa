/* SPDX-License-Identifier: Apache-2.0 */
/* NIXL's agents, each with a UCX backend and all segments. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/nixl_internal.h"

static const char plugin[] = "UCX";

/* --- making one ---------------------------------------------------------------------------------- */

/* No two are of one name: what is known of a worker that is gone is not taken for another's. */
static kvferry_status make_name(char name[NIXL_NAME_BYTES], kvferry_report *report)
{
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
        base_report_add(report, "engine_failed", NULL, NULL, strerror(errno), "nixl: no random bytes");
        return KVFERRY_UNSUPPORTED;
    }
    snprintf(name, NIXL_NAME_BYTES, "kvferry-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return KVFERRY_OK;
}

/* Without a thread of the library's: then what arrives does so within this engine's progress. */
static kvferry_status make_agent(const nixl_api *api, nixl_agent *agent, kvferry_report *report)
{
    char name[NIXL_NAME_BYTES];
    kvferry_status status = make_name(name, report);
    if (status != KVFERRY_OK)
        return status;
    const nixl_config config = {.progress_thread = false};
    int code = api->agent_create(name, &config, &agent->agent);
    if (!code)
        return KVFERRY_OK;
    agent->agent = NULL;
    nixl_report(report, "no agent here", code);
    return KVFERRY_UNSUPPORTED;
}

/* For UCX, each without UCX_; a variable of the environment wins. */
static void write_settings(const nixl_engine *engine, char *settings, size_t size)
{
    int used = snprintf(settings, size,
                        "KEEPALIVE_INTERVAL=1s,TCP_TX_SEG_SIZE=256k,TCP_RX_SEG_SIZE=256k,"
                        "TCP_SNDBUF=4m,TCP_RCVBUF=4m");
    if (*engine->transport)
        used += snprintf(settings + used, size - (size_t)used, ",TLS=%s", engine->transport);
    if (*engine->device)
        snprintf(settings + used, size - (size_t)used, ",NET_DEVICES=%s", engine->device);
}

static kvferry_status make_backend(const nixl_engine *engine, nixl_agent *agent, kvferry_report *report)
{
    const nixl_api *api = engine->api;
    char settings[512];
    void *memories, *parameters;
    int code = api->defaults(agent->agent, plugin, &memories, &parameters);
    if (code) {
        nixl_report(report, "there is no UCX plugin", code);
        return KVFERRY_UNSUPPORTED;
    }
    api->memories_destroy(memories);
    write_settings(engine, settings, sizeof(settings));
    code = api->parameter_add(parameters, "engine_config", settings);
    if (!code)
        code = api->backend_create(agent->agent, plugin, parameters, &agent->backend);
    api->parameters_destroy(parameters);
    if (!code)
        return KVFERRY_OK;
    agent->backend = NULL;
    nixl_report(report, base_format("no UCX backend here with %s", settings), code);
    return KVFERRY_UNSUPPORTED;
}

static kvferry_status make_options(const nixl_api *api, nixl_agent *agent, kvferry_report *report)
{
    int code = api->options_create(&agent->options);
    if (code)
        agent->options = NULL;
    else
        code = api->options_add(agent->options, agent->backend);
    if (code)
        nixl_report(report, "no options", code);
    return code ? KVFERRY_ENGINE : KVFERRY_OK;
}

static kvferry_status add(const nixl_api *api, const nixl_agent *agent, const nixl_segment *segment,
                          kvferry_report *report)
{
    int code = api->add(agent->agent, segment->ranges, agent->options);
    if (code)
        nixl_report(report, "memory cannot be registered", code);
    return code ? KVFERRY_ENGINE : KVFERRY_OK;
}

kvferry_status nixl_agent_open(const nixl_engine *engine, nixl_agent *agent, kvferry_report *report)
{
    nixl_agent made = {0};
    kvferry_status status = make_agent(engine->api, &made, report);
    if (status == KVFERRY_OK)
        status = make_backend(engine, &made, report);
    if (status == KVFERRY_OK)
        status = make_options(engine->api, &made, report);
    for (const nixl_segment *segment = engine->segments; segment && status == KVFERRY_OK;
         segment = segment->next)
        status = add(engine->api, &made, segment, report);
    if (status == KVFERRY_OK)
        *agent = made;
    else
        nixl_agent_close(engine, &made);
    return status;
}

void nixl_agent_close(const nixl_engine *engine, nixl_agent *agent)
{
    if (agent->options)
        engine->api->options_destroy(agent->options);
    if (agent->backend)
        engine->api->backend_destroy(agent->backend);
    if (agent->agent)
        engine->api->agent_destroy(agent->agent);
    *agent = (nixl_agent){0};
}

/* --- segments ------------------------------------------------------------------------------------- */

static void remove_from(const nixl_engine *engine, const nixl_agent *agent, const nixl_segment *segment)
{
    if (agent->agent)
        engine->api->remove(agent->agent, segment->ranges, agent->options);
}

static kvferry_status make_ranges(const nixl_api *api, nixl_segment *segment, void *address,
                                  uint64_t bytes)
{
    if (api->ranges_create(NIXL_HOST_MEMORY, &segment->ranges))
        return KVFERRY_NO_MEMORY;
    if (!api->ranges_add(segment->ranges, (uintptr_t)address, (size_t)bytes, 0, NULL, 0))
        return KVFERRY_OK;
    api->ranges_destroy(segment->ranges);
    return KVFERRY_NO_MEMORY;
}

static kvferry_status add_to(const nixl_engine *engine, const nixl_agent *agent,
                             const nixl_segment *segment, kvferry_report *report)
{
    return agent->agent ? add(engine->api, agent, segment, report) : KVFERRY_OK;
}

/* With all agents or none. */
static kvferry_status add_to_all(nixl_engine *engine, const nixl_segment *segment, kvferry_report *report)
{
    kvferry_status status = add_to(engine, &engine->target, segment, report);
    if (status != KVFERRY_OK)
        return status;
    const nixl_peer *peer = engine->peers;
    while (peer && (status = add_to(engine, &peer->agent, segment, report)) == KVFERRY_OK)
        peer = peer->next;
    if (status == KVFERRY_OK)
        return KVFERRY_OK;
    for (const nixl_peer *with = engine->peers; with != peer; with = with->next)
        remove_from(engine, &with->agent, segment);
    remove_from(engine, &engine->target, segment);
    return status;
}

kvferry_status nixl_segment_register(void *self, void *address, uint64_t bytes, kvferry_memory memory,
                                     void **segment, kvferry_report *report)
{
    (void)memory; /* of devices it is refused before */
    nixl_engine *engine = self;
    nixl_segment *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = make_ranges(engine->api, made, address, bytes);
    if (status == KVFERRY_OK) {
        status = add_to_all(engine, made, report);
        if (status != KVFERRY_OK)
            engine->api->ranges_destroy(made->ranges);
    }
    if (status != KVFERRY_OK) {
        free(made);
        return status;
    }
    made->next = engine->segments;
    if (made->next)
        made->next->previous = made;
    engine->segments = made;
    *segment = made;
    return KVFERRY_OK;
}

void nixl_segment_unregister(void *self, void *segment)
{
    nixl_engine *engine = self;
    nixl_segment *gone = segment;
    for (const nixl_peer *peer = engine->peers; peer; peer = peer->next)
        remove_from(engine, &peer->agent, gone);
    remove_from(engine, &engine->target, gone);
    engine->api->ranges_destroy(gone->ranges);
    if (gone->previous)
        gone->previous->next = gone->next;
    else
        engine->segments = gone->next;
    if (gone->next)
        gone->next->previous = gone->previous;
    free(gone);
}
