/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an engine, and its progress. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* An older caller's options are shorter: what it does not know is the default. */
static kvferry_status read_options(const kvferry_engine_options *given,
                                   kvferry_engine_options *options, kvferry_report *report)
{
    *options = (kvferry_engine_options){.size = sizeof(*options)};
    if (given) {
        if (given->size < offsetof(kvferry_engine_options, name)) {
            base_report_add(report, "engine_option", &(base_where){.place = "size"},
                            base_format("%zu", sizeof(*options)), base_format("%zu", given->size),
                            "engine options");
            return KVFERRY_INVALID;
        }
        memcpy(options, given, given->size < sizeof(*options) ? given->size : sizeof(*options));
        options->size = sizeof(*options);
    }
    options->transport = options->transport ? options->transport : "";
    options->net_devices = options->net_devices ? options->net_devices : "";
    options->name = options->name ? options->name : "";
    options->host = options->host ? options->host : "";
    if (strlen(options->name) >= ENGINE_NAME_BYTES) {
        base_report_add(report, "engine_option", &(base_where){.place = "name"},
                        base_format("at most %d bytes", ENGINE_NAME_BYTES - 1),
                        base_format("%zu bytes", strlen(options->name)), "engine options");
        return KVFERRY_INVALID;
    }
    return KVFERRY_OK;
}

static void set_name(kvferry_engine *engine, const char *name)
{
    char host[64] = "";
    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = '\0';
    if (*name)
        snprintf(engine->name, sizeof(engine->name), "%s", name);
    else
        snprintf(engine->name, sizeof(engine->name), "%s/%ld", host, (long)getpid());
}

/* What an engine leaves out or overstates must not make a window of zero or one without end. */
static void set_capabilities(kvferry_engine *engine, uint64_t max_outstanding)
{
    kvferry_engine_capabilities *can = &engine->capabilities;
    engine->ops->capabilities(engine->self, can);
    can->name = engine->ops->name;
    can->max_batch = can->max_batch ? can->max_batch : ENGINE_BATCH_COPIES;
    can->max_outstanding = can->max_outstanding ? can->max_outstanding : can->max_batch;
    can->max_copy_bytes = can->max_copy_bytes ? can->max_copy_bytes : ENGINE_BATCH_BYTES;
    if (max_outstanding)
        can->max_outstanding = base_min(can->max_outstanding, max_outstanding);
    can->max_batch = base_min(can->max_batch, can->max_outstanding);
    can->allocates = engine->ops->segment_allocate != NULL;
    can->cancels = can->cancels && engine->ops->cancel;
    engine->piece_capacity = base_min(can->max_batch, ENGINE_BATCH_COPIES);
}

kvferry_status kvferry_engine_open(const char *name, const kvferry_engine_options *options,
                                   kvferry_engine **engine, kvferry_report *report)
{
    if (!name || !engine)
        return KVFERRY_INVALID;
    kvferry_engine_options settings;
    kvferry_status status = read_options(options, &settings, report);
    if (status != KVFERRY_OK)
        return status;
    const kvferry_engine_ops *ops = engine_find(name);
    if (!ops) {
        engine_report_unknown(report, name);
        return KVFERRY_NOT_FOUND;
    }
    kvferry_engine *opened = base_alloc(1, sizeof(*opened));
    if (!opened)
        return KVFERRY_NO_MEMORY;
    opened->ops = ops;
    set_name(opened, settings.name);
    settings.name = opened->name;
    status = ops->open(&settings, &opened->self, report);
    if (status != KVFERRY_OK) {
        free(opened);
        return status;
    }
    set_capabilities(opened, settings.max_outstanding);
    opened->pieces = base_alloc((size_t)opened->piece_capacity, sizeof(*opened->pieces));
    if (!opened->pieces || kvferry_report_create(&opened->submit_report) != KVFERRY_OK) {
        kvferry_engine_close(opened);
        return KVFERRY_NO_MEMORY;
    }
    *engine = opened;
    return KVFERRY_OK;
}

static void cancel_all(const kvferry_engine *engine)
{
    const kvferry_peer *peer = engine->peers;
    if (peer)
        do {
            kvferry_transfer *transfer = peer->turn;
            if (transfer)
                do {
                    engine_transfer_settle(transfer, KVFERRY_CANCELED, "the engine was closed");
                    transfer = transfer->next;
                } while (transfer != peer->turn);
            peer = peer->next;
        } while (peer != engine->peers);
}

void kvferry_engine_close(kvferry_engine *engine)
{
    if (!engine)
        return;
    cancel_all(engine);
    while (!engine_peers_leave(engine))
        engine_wait(engine);
    while (engine->peers)
        kvferry_peer_close(engine->peers);
    engine_segments_close(engine);
    engine->ops->close(engine->self);
    kvferry_report_free(engine->submit_report);
    free(engine->pieces);
    free(engine);
}

const kvferry_engine_capabilities *kvferry_engine_get_capabilities(const kvferry_engine *engine)
{
    return &engine->capabilities;
}

int kvferry_engine_fd(const kvferry_engine *engine)
{
    return engine->ops->fd ? engine->ops->fd(engine->self) : -1;
}

/* Whether a progress would begin, settle or retire something of the peer's transfers. */
static bool peer_has_work(const kvferry_peer *peer)
{
    const kvferry_transfer *transfer = peer->turn;
    if (!transfer)
        return false;
    bool room = peer->free_first && peer->outstanding < peer->engine->capabilities.max_outstanding;
    do {
        if (transfer->state.status != KVFERRY_BUSY ? !transfer->cancel_sent
                                                   : room && transfer->cursor < transfer->count)
            return true;
        if (transfer->flying == 0)
            return true;
        transfer = transfer->next;
    } while (transfer != peer->turn);
    return false;
}

kvferry_status kvferry_engine_arm(kvferry_engine *engine)
{
    if (!engine->ops->arm)
        return KVFERRY_UNSUPPORTED;
    const kvferry_peer *peer = engine->peers;
    if (peer)
        do {
            if (peer_has_work(peer))
                return KVFERRY_BUSY;
            peer = peer->next;
        } while (peer != engine->peers);
    return engine->ops->arm(engine->self);
}

uint64_t engine_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Ends what is finished, late, or stopped. The clock is read only if something has a deadline. */
static bool peer_review(kvferry_peer *peer, uint64_t *now)
{
    bool active = false;
    kvferry_transfer *transfer = peer->turn;
    if (!transfer)
        return false;
    engine_peer_check_lost(peer);
    kvferry_transfer *last = transfer->previous;
    for (bool more = true; more;) {
        kvferry_transfer *next = transfer->next;
        more = transfer != last;
        if (transfer->state.status == KVFERRY_BUSY && peer->lost)
            engine_transfer_settle(transfer, KVFERRY_PEER_LOST, "the connection is lost");
        if (transfer->state.status == KVFERRY_BUSY && transfer->cursor == transfer->count &&
            !transfer->flying)
            engine_transfer_settle(transfer, KVFERRY_OK, "");
        if (transfer->state.status == KVFERRY_BUSY && transfer->deadline_ns) {
            *now = *now ? *now : engine_now_ns();
            if (*now >= transfer->deadline_ns)
                engine_transfer_settle(transfer, KVFERRY_TIMEOUT, "the deadline passed");
        }
        if (transfer->state.status != KVFERRY_BUSY) {
            active = active || !transfer->flying || !transfer->cancel_sent;
            engine_transfer_retire(transfer);
        }
        transfer = next;
    }
    return active;
}

static bool review_all(kvferry_engine *engine)
{
    uint64_t now = 0;
    bool active = false;
    kvferry_peer *peer = engine->peers;
    if (peer)
        do {
            active = peer_review(peer, &now) || active;
            peer = peer->next;
        } while (peer != engine->peers);
    return active;
}

/* Peers take turns by batches, until no window has room. What an engine moves inside submit frees no
 * room before its progress, so one call moves a bounded amount. */
static bool pump_all(kvferry_engine *engine)
{
    bool active = false;
    if (!engine->peers)
        return false;
    engine->peers = engine->peers->next;
    for (bool any = true; any;) {
        any = false;
        kvferry_peer *peer = engine->peers;
        do {
            any = engine_peer_pump(peer) || any;
            peer = peer->next;
        } while (peer != engine->peers);
        active = active || any;
    }
    return active;
}

kvferry_status kvferry_engine_progress(kvferry_engine *engine, bool *active)
{
    if (!engine)
        return KVFERRY_INVALID;
    bool any = review_all(engine);
    any = pump_all(engine) || any;
    any = engine->ops->progress(engine->self) || any;
    any = review_all(engine) || any;
    if (active)
        *active = any;
    return KVFERRY_OK;
}
