/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory engine: workers of one process, one memcpy per copy. A worker's address is its number
 * in the process's list of engines. One lock covers the list, the segments and the copying, so that
 * workers of several threads can be each other's peers, and close at any time.
 */
#include "engine/engine.h"
#include "engine/memory_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    memory_engine *engines;
    uint64_t last_id;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What a key or an address holds; the process tells a foreign one apart. */
typedef struct memory_key {
    uint64_t process, id;
} memory_key;

static uint64_t new_id(void) { return ++process.last_id; }

/* --- life ------------------------------------------------------------------------------------ */

static kvferry_status memory_open(const kvferry_engine_options *options, void **self,
                                  kvferry_report *report)
{
    if (*options->transport) {
        base_report_add(report, "engine_option", &(base_where){.place = "transport"}, "\"\"",
                        options->transport, "the memory engine has one transport");
        return KVFERRY_INVALID;
    }
    memory_engine *engine = base_alloc(1, sizeof(*engine));
    if (!engine)
        return KVFERRY_NO_MEMORY;
    engine->last = &engine->first;
    pthread_mutex_lock(&process.lock);
    engine->id = new_id();
    engine->next = process.engines;
    process.engines = engine;
    pthread_mutex_unlock(&process.lock);
    *self = engine;
    return KVFERRY_OK;
}

static void memory_close(void *self)
{
    memory_engine *engine = self;
    pthread_mutex_lock(&process.lock);
    memory_engine **link = &process.engines;
    while (*link != engine)
        link = &(*link)->next;
    *link = engine->next;
    pthread_mutex_unlock(&process.lock);
    free(engine->faults);
    free(engine);
}

static void memory_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    (void)self;
    capabilities->max_batch = 1024;
    capabilities->max_outstanding = 8192;
    capabilities->max_copy_bytes = UINT64_MAX;
    capabilities->writes = capabilities->reads = capabilities->cancels = true;
}

/* --- segments -------------------------------------------------------------------------------- */

static kvferry_status add_segment(memory_engine *engine, void *address, uint64_t bytes,
                                  bool allocated, void **segment)
{
    memory_segment *added = base_alloc(1, sizeof(*added));
    if (!added)
        return KVFERRY_NO_MEMORY;
    added->address = address;
    added->bytes = bytes;
    added->allocated = allocated;
    pthread_mutex_lock(&process.lock);
    added->id = new_id();
    added->next = engine->segments;
    engine->segments = added;
    pthread_mutex_unlock(&process.lock);
    *segment = added;
    return KVFERRY_OK;
}

static kvferry_status memory_segment_register(void *self, void *address, uint64_t bytes,
                                              kvferry_memory memory, void **segment,
                                              kvferry_report *report)
{
    (void)memory; /* host: it has no other capability */
    (void)report;
    return add_segment(self, address, bytes, false, segment);
}

static kvferry_status memory_segment_allocate(void *self, uint64_t bytes, void **address,
                                              void **segment, kvferry_report *report)
{
    (void)report;
    void *allocated = base_alloc(1, (size_t)bytes);
    if (!allocated)
        return KVFERRY_NO_MEMORY;
    kvferry_status status = add_segment(self, allocated, bytes, true, segment);
    if (status == KVFERRY_OK)
        *address = allocated;
    else
        free(allocated);
    return status;
}

static void memory_segment_unregister(void *self, void *segment)
{
    memory_engine *engine = self;
    memory_segment *gone = segment;
    pthread_mutex_lock(&process.lock);
    memory_segment **link = &engine->segments;
    while (*link != gone)
        link = &(*link)->next;
    *link = gone->next;
    pthread_mutex_unlock(&process.lock);
    if (gone->allocated)
        free(gone->address);
    free(gone);
}

/* --- binding --------------------------------------------------------------------------------- */

static kvferry_status put_key(uint64_t id, void *data, size_t *size)
{
    memory_key key = {(uint64_t)getpid(), id};
    size_t capacity = *size;
    *size = sizeof(key);
    if (capacity < sizeof(key))
        return KVFERRY_NO_SPACE;
    memcpy(data, &key, sizeof(key));
    return KVFERRY_OK;
}

static kvferry_status get_key(const void *data, size_t size, memory_key *key, kvferry_report *report)
{
    if (size != sizeof(*key)) {
        base_report_add(report, "binding_malformed", NULL, base_format("%zu bytes", sizeof(*key)),
                        base_format("%zu", size), "not an address of the memory engine");
        return KVFERRY_MALFORMED;
    }
    memcpy(key, data, sizeof(*key));
    return KVFERRY_OK;
}

static kvferry_status memory_address_export(void *self, void *data, size_t *size)
{
    return put_key(((memory_engine *)self)->id, data, size);
}

static kvferry_status memory_segment_export(void *self, void *segment, void *data, size_t *size)
{
    (void)self;
    return put_key(((memory_segment *)segment)->id, data, size);
}

/* --- peers ----------------------------------------------------------------------------------- */

static memory_engine *find_engine(uint64_t id)
{
    memory_engine *engine = process.engines;
    while (engine && engine->id != id)
        engine = engine->next;
    return engine;
}

static kvferry_status memory_peer_connect(void *self, const void *address, size_t size, void **peer,
                                          kvferry_report *report)
{
    memory_key key;
    kvferry_status status = get_key(address, size, &key, report);
    if (status != KVFERRY_OK)
        return status;
    memory_peer *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    made->engine = self;
    made->target = key.id;
    made->lost = key.process != (uint64_t)getpid();
    *peer = made;
    return KVFERRY_OK;
}

static kvferry_status memory_segment_import(void *self, void *peer, const void *data, size_t size,
                                            void **remote_segment, kvferry_report *report)
{
    (void)self;
    memory_peer *owner = peer;
    memory_key key;
    kvferry_status status = get_key(data, size, &key, report);
    if (status != KVFERRY_OK)
        return status;
    memory_remote *remote = base_alloc(1, sizeof(*remote));
    if (!remote)
        return KVFERRY_NO_MEMORY;
    remote->id = key.id;
    remote->next = owner->remotes;
    owner->remotes = remote;
    *remote_segment = remote;
    return KVFERRY_OK;
}

static bool memory_peer_lost(void *self, void *peer)
{
    (void)self;
    memory_peer *asked = peer;
    pthread_mutex_lock(&process.lock);
    if (!find_engine(asked->target))
        asked->lost = true;
    pthread_mutex_unlock(&process.lock);
    return asked->lost;
}

/* Takes the batches of the peer that the test names out of the queue, and ends them. */
static void end_batches(memory_engine *engine, const memory_peer *peer, const void *handle,
                        kvferry_status status, const char *detail)
{
    memory_batch **link = &engine->first;
    while (*link) {
        memory_batch *batch = *link;
        if (batch->peer != peer || (handle && (batch->handle != handle || batch->stuck))) {
            link = &batch->next;
            continue;
        }
        *link = batch->next;
        batch->end(batch->handle, status, detail);
        free(batch);
    }
    engine->last = link;
}

static void memory_peer_close(void *self, void *peer)
{
    memory_engine *engine = self;
    memory_peer *gone = peer;
    end_batches(engine, gone, NULL, KVFERRY_PEER_LOST, "the connection was closed");
    for (memory_delayed **link = &engine->delayed; *link;) {
        memory_delayed *delayed = *link;
        if (delayed->peer != gone) {
            link = &delayed->next;
            continue;
        }
        *link = delayed->next;
        free(delayed);
    }
    while (gone->remotes) {
        memory_remote *remote = gone->remotes;
        gone->remotes = remote->next;
        free(remote);
    }
    free(gone);
}

static void memory_cancel(void *self, void *peer, void *batch)
{
    end_batches(self, peer, batch, KVFERRY_CANCELED, "canceled");
}

/* --- batches --------------------------------------------------------------------------------- */

static void append_batch(memory_engine *engine, memory_batch *batch)
{
    batch->next = NULL;
    *engine->last = batch;
    engine->last = &batch->next;
}

static kvferry_status memory_submit(void *self, void *peer, kvferry_direction direction,
                                    const kvferry_engine_copy *copies, size_t count,
                                    kvferry_engine_batch_end end, void *handle,
                                    kvferry_report *report)
{
    (void)report;
    memory_engine *engine = self;
    memory_batch *batch = base_alloc(1, sizeof(*batch) + count * sizeof(batch->pieces[0]));
    if (!batch)
        return KVFERRY_NO_MEMORY;
    batch->peer = peer;
    batch->end = end;
    batch->handle = handle;
    batch->direction = direction;
    batch->count = count;
    for (size_t i = 0; i < count; i++)
        batch->pieces[i] = (memory_piece){
            .number = engine->numbered++,
            .local = (uint64_t)(uintptr_t)copies[i].local,
            .remote = copies[i].remote,
            .bytes = copies[i].bytes,
            .local_segment = ((const memory_segment *)copies[i].local_segment)->id,
            .remote_segment = ((const memory_remote *)copies[i].remote_segment)->id};
    append_batch(engine, batch);
    return KVFERRY_OK;
}

/* The bytes, if the segment is still registered with that engine and holds them; NULL if not. */
static unsigned char *find_range(const memory_engine *engine, uint64_t id, uint64_t address,
                                 uint64_t bytes)
{
    const memory_segment *segment = engine ? engine->segments : NULL;
    while (segment && segment->id != id)
        segment = segment->next;
    uint64_t base = segment ? (uint64_t)(uintptr_t)segment->address : 0;
    bool holds = segment && address >= base && address - base <= segment->bytes &&
                 bytes <= segment->bytes - (address - base);
    return holds ? segment->address + (address - base) : NULL;
}

/* false: an end of it is no longer registered. */
static bool write_piece(const memory_engine *engine, const memory_peer *peer,
                        kvferry_direction direction, const memory_piece *piece, uint64_t bytes)
{
    unsigned char *local = find_range(engine, piece->local_segment, piece->local, piece->bytes);
    unsigned char *remote =
        find_range(find_engine(peer->target), piece->remote_segment, piece->remote, piece->bytes);
    if (!local || !remote)
        return false;
    bool write = direction == KVFERRY_WRITE;
    memmove(write ? remote : local, write ? local : remote, (size_t)base_min(bytes, piece->bytes));
    return true;
}

static bool put_off(memory_engine *engine, const memory_batch *batch, const memory_piece *piece,
                    uint64_t steps)
{
    memory_delayed *delayed = base_alloc(1, sizeof(*delayed));
    if (!delayed)
        return false;
    *delayed = (memory_delayed){.peer = batch->peer,
                                .direction = batch->direction,
                                .due = engine->step + steps,
                                .piece = *piece};
    memory_delayed **link = &engine->delayed;
    while (*link)
        link = &(*link)->next;
    *link = delayed;
    return true;
}

static bool write_delayed(memory_engine *engine)
{
    bool active = false;
    for (memory_delayed **link = &engine->delayed; *link;) {
        memory_delayed *delayed = *link;
        active = true;
        if (delayed->due > engine->step) {
            link = &delayed->next;
            continue;
        }
        write_piece(engine, delayed->peer, delayed->direction, &delayed->piece, UINT64_MAX);
        *link = delayed->next;
        free(delayed);
    }
    return active;
}

static void stop_batch(memory_batch *batch, kvferry_status status, const char *detail)
{
    batch->status = status;
    batch->detail = detail;
    batch->at = batch->count;
}

/* One piece, as its fault has it. */
static void do_piece(memory_engine *engine, memory_batch *batch)
{
    const memory_piece *piece = &batch->pieces[batch->at];
    const memory_fault *fault = memory_fault_find(engine, piece->number);
    uint64_t bytes = piece->bytes;
    batch->at++;
    if (batch->peer->lost || (fault && fault->kind == MEMORY_FAULT_DIES)) {
        batch->peer->lost = true;
        stop_batch(batch, KVFERRY_PEER_LOST, "the peer died");
        return;
    }
    if (fault && fault->kind == MEMORY_FAULT_FAILED) {
        stop_batch(batch, KVFERRY_ENGINE, "a write failed on demand");
        return;
    }
    if (fault && fault->kind == MEMORY_FAULT_STUCK) {
        batch->stuck = true;
        return;
    }
    if (fault && fault->kind == MEMORY_FAULT_SHORT)
        bytes = base_min(bytes, fault->bytes);
    if (fault && (fault->kind == MEMORY_FAULT_LATE || fault->kind == MEMORY_FAULT_REPEATED) &&
        !put_off(engine, batch, piece, fault->steps)) {
        stop_batch(batch, KVFERRY_NO_MEMORY, "no memory for a late write");
        return;
    }
    if (fault && (fault->kind == MEMORY_FAULT_LATE || fault->kind == MEMORY_FAULT_LOST))
        return;
    if (!write_piece(engine, batch->peer, batch->direction, piece, bytes)) {
        bool gone = !find_engine(batch->peer->target);
        batch->peer->lost = batch->peer->lost || gone;
        stop_batch(batch, gone ? KVFERRY_PEER_LOST : KVFERRY_ENGINE,
                   gone ? "the peer's engine is closed" : "a segment is no longer registered");
    }
}

/* A batch that is to be reordered goes to the end of the queue, once. */
static bool reorder(memory_engine *engine, memory_batch *batch)
{
    if (batch->reordered || batch->at)
        return false;
    const memory_fault *found = NULL;
    for (size_t i = 0; i < batch->count && !found; i++) {
        const memory_fault *fault = memory_fault_find(engine, batch->pieces[i].number);
        if (fault && fault->kind == MEMORY_FAULT_REORDERED)
            found = fault;
    }
    batch->reordered = true;
    if (found)
        memory_fault_shuffle(batch->pieces, batch->count, found->seed + batch->pieces[0].number);
    return found != NULL;
}

/* Writes what the pace allows; batches that are to end come out in a list, in order. */
static memory_batch *write_queue(memory_engine *engine)
{
    memory_batch *ended = NULL, **ended_last = &ended;
    uint64_t left = engine->pace ? engine->pace : UINT64_MAX;
    memory_batch **link = &engine->first;
    while (*link && left) {
        memory_batch *batch = *link;
        if (reorder(engine, batch) && batch->next) {
            *link = batch->next;
            append_batch(engine, batch);
            continue;
        }
        for (; left && batch->at < batch->count && !batch->stuck; left--)
            do_piece(engine, batch);
        if (batch->stuck && !batch->peer->lost) {
            link = &batch->next;
            continue;
        }
        if (batch->at < batch->count && !batch->stuck)
            break;
        if (batch->stuck)
            stop_batch(batch, KVFERRY_PEER_LOST, "the peer died");
        *link = batch->next;
        if (!*link)
            engine->last = link;
        *ended_last = batch;
        ended_last = &batch->next;
    }
    *ended_last = NULL;
    return ended;
}

static bool memory_progress(void *self)
{
    memory_engine *engine = self;
    pthread_mutex_lock(&process.lock);
    engine->step++;
    bool active = write_delayed(engine);
    memory_batch *ended = write_queue(engine);
    pthread_mutex_unlock(&process.lock);
    while (ended) {
        memory_batch *batch = ended;
        ended = batch->next;
        batch->end(batch->handle, batch->status, batch->detail);
        free(batch);
        active = true;
    }
    return active;
}

const kvferry_engine_ops engine_memory_ops = {
    .size = sizeof(engine_memory_ops),
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .capabilities = memory_capabilities,
    .progress = memory_progress,
    .segment_register = memory_segment_register,
    .segment_allocate = memory_segment_allocate,
    .segment_unregister = memory_segment_unregister,
    .address_export = memory_address_export,
    .segment_export = memory_segment_export,
    .peer_connect = memory_peer_connect,
    .segment_import = memory_segment_import,
    .peer_lost = memory_peer_lost,
    .peer_close = memory_peer_close,
    .submit = memory_submit,
    .cancel = memory_cancel,
};
