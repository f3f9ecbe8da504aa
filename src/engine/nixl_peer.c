/* SPDX-License-Identifier: Apache-2.0 */
/* Connections over NIXL: an agent of its own, and what it knows of the peer's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/nixl_internal.h"

/* The binding's digest has been checked, so what the library refuses it cannot reach, or it is another's. */
static kvferry_status meet(const nixl_engine *engine, nixl_peer *peer, const void *address, size_t size,
                           kvferry_report *report)
{
    char *name = NULL;
    int code = engine->api->load(peer->agent.agent, address, size, &name);
    if (code) {
        nixl_report(report, "the peer cannot be reached, or is of another version", code);
        return KVFERRY_PEER_LOST;
    }
    bool fits = strlen(name) < sizeof(peer->name);
    if (fits)
        snprintf(peer->name, sizeof(peer->name), "%s", name);
    engine->api->free(name);
    return fits ? KVFERRY_OK : KVFERRY_MALFORMED;
}

kvferry_status nixl_peer_connect(void *self, const void *address, size_t size, void **peer,
                                 kvferry_report *report)
{
    nixl_engine *engine = self;
    if (!size) {
        base_report_add(report, "binding_malformed", &(base_where){.place = "engine address"},
                        "the metadata of a NIXL agent", "nothing", "the binding cannot be used");
        return KVFERRY_MALFORMED;
    }
    nixl_peer *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->last = &made->first;
    kvferry_status status = nixl_agent_open(engine, &made->agent, report);
    if (status == KVFERRY_OK)
        status = meet(engine, made, address, size, report);
    if (status != KVFERRY_OK) {
        nixl_agent_close(engine, &made->agent);
        free(made);
        return status;
    }
    made->next = engine->peers;
    if (made->next)
        made->next->previous = made;
    engine->peers = made;
    *peer = made;
    return KVFERRY_OK;
}

/* The metadata had its key. */
kvferry_status nixl_segment_import(void *self, void *peer, const void *data, size_t size,
                                   void **remote_segment, kvferry_report *report)
{
    (void)self, (void)data, (void)size, (void)report;
    *remote_segment = peer;
    return KVFERRY_OK;
}

bool nixl_peer_lost(void *self, void *peer)
{
    (void)self;
    return ((const nixl_peer *)peer)->lost;
}

bool nixl_peer_busy(void *self, void *peer)
{
    (void)self;
    return ((const nixl_peer *)peer)->first != NULL;
}

void nixl_peer_close(void *self, void *peer)
{
    nixl_engine *engine = self;
    nixl_peer *gone = peer;
    nixl_tear_down(engine, gone, "the connection was closed");
    if (gone->previous)
        gone->previous->next = gone->next;
    else
        engine->peers = gone->next;
    if (gone->next)
        gone->next->previous = gone->previous;
    free(gone);
}
