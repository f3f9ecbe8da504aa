/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of a faulty connector: a table of functions around another one. */
#include "demo_engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A segment of either side: what the table's handles stand for. */
typedef struct broken_segment {
    uint64_t base;
    uint32_t index;
    struct broken_segment *next; /* of a peer's */
} broken_segment;

typedef struct broken_peer {
    kvferry_peer *inner;
    uint32_t rank;
    broken_segment *segments; /* that were imported: they end with the peer */
} broken_peer;

typedef struct broken_batch {
    struct broken_batch *next;
    broken_peer *peer;
    kvferry_transfer *transfer;
    kvferry_copy *copies;
    kvferry_engine_batch_end end; /* NULL: the held copy's */
    void *batch;
} broken_batch;

enum { WHOLE = 1 << 20 }; /* copies that the engine takes at once: a request's all */

/* One a process. Everything from `lock` on is shared by the node's thread and the worker's own. */
static struct {
    const char *name; /* of the inner engine */
    kvferry_engine *inner;
    demo_fault fault;
    uint32_t rank;
    int wait, wake; /* an epoll set of the inner engine's descriptor and of `wake` */
    broken_batch *batches;

    pthread_mutex_t lock;
    pthread_cond_t sent;
    const kvferry_layout *source;
    kvferry_layout *const *targets;
    kvferry_request all; /* the target tables of all requests of the round */
    uint64_t seed, planted;
    bool chosen; /* the one copy of late-write or lost-write was */
    kvferry_copy held;
    broken_peer *held_peer;
    bool send_held;
} broken = {.lock = PTHREAD_MUTEX_INITIALIZER, .sent = PTHREAD_COND_INITIALIZER, .wait = -1, .wake = -1};

bool demo_engine_needed(demo_fault fault)
{
    return fault != DEMO_SOUND && fault != DEMO_CONV_WHOLE && fault != DEMO_HALF_HEADS;
}

/* --- life ------------------------------------------------------------------------------------ */

static void watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(broken.wait, EPOLL_CTL_ADD, fd, &event);
}

static kvferry_status broken_open(const kvferry_engine_options *options, void **self,
                                  kvferry_report *report)
{
    kvferry_status status = kvferry_engine_open(broken.name, options, &broken.inner, report);
    if (status != KVFERRY_OK)
        return status;
    broken.wait = epoll_create1(EPOLL_CLOEXEC);
    broken.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (kvferry_engine_fd(broken.inner) >= 0)
        watch(kvferry_engine_fd(broken.inner));
    watch(broken.wake);
    *self = &broken;
    return KVFERRY_OK;
}

static void broken_close(void *self)
{
    (void)self;
    kvferry_engine_close(broken.inner);
    broken.inner = NULL;
    close(broken.wait);
    close(broken.wake);
}

static void broken_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    (void)self;
    *capabilities = *kvferry_engine_get_capabilities(broken.inner);
    capabilities->name = DEMO_ENGINE;
    capabilities->max_batch = WHOLE;
    capabilities->max_outstanding = WHOLE;
    capabilities->cancels = false;
}

static int broken_fd(void *self)
{
    (void)self;
    return kvferry_engine_fd(broken.inner) < 0 ? -1 : broken.wait;
}

static kvferry_status broken_arm(void *self)
{
    (void)self;
    return kvferry_engine_arm(broken.inner);
}

/* --- segments and peers ---------------------------------------------------------------------- */

static broken_segment *new_segment(uint64_t base, uint32_t index)
{
    broken_segment *segment = tool_alloc(1, sizeof *segment);
    *segment = (broken_segment){.base = base, .index = index};
    return segment;
}

static kvferry_status broken_register(void *self, void *address, uint64_t bytes, kvferry_memory memory,
                                      void **segment, kvferry_report *report)
{
    (void)self;
    uint32_t index;
    kvferry_status status = kvferry_engine_register(broken.inner, address, bytes, memory, &index, report);
    if (status == KVFERRY_OK)
        *segment = new_segment((uintptr_t)address, index);
    return status;
}

static kvferry_status broken_allocate(void *self, uint64_t bytes, void **address, void **segment,
                                      kvferry_report *report)
{
    (void)self;
    uint32_t index;
    kvferry_status status = kvferry_engine_allocate(broken.inner, bytes, address, &index, report);
    if (status == KVFERRY_OK)
        *segment = new_segment((uintptr_t)*address, index);
    return status;
}

static void broken_unregister(void *self, void *segment)
{
    (void)self;
    kvferry_engine_unregister(broken.inner, ((broken_segment *)segment)->index);
    free(segment);
}

static kvferry_status give(const void *from, size_t size, void *data, size_t *room)
{
    size_t given = *room;
    *room = size;
    if (!data || given < size)
        return KVFERRY_NO_SPACE;
    memcpy(data, from, size);
    return KVFERRY_OK;
}

/* The rank, and the inner engine's whole binding. */
static kvferry_status broken_export(void *self, void *data, size_t *size)
{
    (void)self;
    void *binding;
    size_t binding_size;
    kvferry_status status = kvferry_engine_export(broken.inner, &binding, &binding_size, NULL);
    if (status != KVFERRY_OK)
        return status;
    size_t whole = sizeof broken.rank + binding_size;
    unsigned char *address = tool_alloc(whole, 1);
    memcpy(address, &broken.rank, sizeof broken.rank);
    memcpy(address + sizeof broken.rank, binding, binding_size);
    status = give(address, whole, data, size);
    free(address);
    kvferry_free(binding);
    return status;
}

static kvferry_status broken_segment_export(void *self, void *segment, void *data, size_t *size)
{
    (void)self;
    return give(segment, sizeof(broken_segment), data, size);
}

static kvferry_status broken_connect(void *self, const void *address, size_t size, void **peer,
                                     kvferry_report *report)
{
    (void)self;
    broken_peer *made = tool_alloc(1, sizeof *made);
    kvferry_status status = KVFERRY_MALFORMED;
    if (size > sizeof made->rank) {
        memcpy(&made->rank, address, sizeof made->rank);
        status = kvferry_engine_connect(broken.inner, (const char *)address + sizeof made->rank,
                                        size - sizeof made->rank, &made->inner, report);
    }
    if (status == KVFERRY_OK)
        *peer = made;
    else
        free(made);
    return status;
}

static kvferry_status broken_import(void *self, void *peer, const void *data, size_t size,
                                    void **remote_segment, kvferry_report *report)
{
    (void)self;
    (void)report;
    broken_peer *of = peer;
    broken_segment sent, *segment;
    if (size != sizeof sent)
        return KVFERRY_MALFORMED;
    memcpy(&sent, data, sizeof sent);
    segment = new_segment(sent.base, sent.index);
    segment->next = of->segments;
    of->segments = segment;
    *remote_segment = segment;
    return KVFERRY_OK;
}

static bool broken_peer_lost(void *self, void *peer)
{
    (void)self;
    return kvferry_peer_lost(((broken_peer *)peer)->inner);
}

/* --- batches --------------------------------------------------------------------------------- */

static void tell_sent(void)
{
    pthread_mutex_lock(&broken.lock);
    broken.held_peer = NULL;
    pthread_cond_broadcast(&broken.sent);
    pthread_mutex_unlock(&broken.lock);
}

/* Ends the batches that are over; of `peer` only, if it is not NULL. */
static bool end_batches(const broken_peer *peer)
{
    bool any = false;
    for (broken_batch **at = &broken.batches; *at;) {
        broken_batch *batch = *at;
        const kvferry_transfer_state *state = kvferry_transfer_get(batch->transfer);
        if (!state->over || (peer && batch->peer != peer)) {
            at = &batch->next;
            continue;
        }
        *at = batch->next;
        if (batch->end)
            batch->end(batch->batch, state->status, state->detail);
        else
            tell_sent();
        kvferry_transfer_free(batch->transfer);
        free(batch->copies);
        free(batch);
        any = true;
    }
    return any;
}

static void broken_peer_close(void *self, void *peer)
{
    (void)self;
    broken_peer *closed = peer;
    kvferry_peer_close(closed->inner); /* all its transfers are over then */
    end_batches(closed);
    pthread_mutex_lock(&broken.lock);
    bool held = broken.held_peer == closed;
    pthread_mutex_unlock(&broken.lock);
    if (held)
        tell_sent();
    while (closed->segments) {
        broken_segment *segment = closed->segments;
        closed->segments = segment->next;
        free(segment);
    }
    free(closed);
}

/* Gives the copies to the inner engine, and takes them over if it takes them. */
static kvferry_status begin(broken_peer *peer, kvferry_copy *copies, size_t count,
                            kvferry_engine_batch_end end, void *batch, kvferry_report *report)
{
    broken_batch *made = tool_alloc(1, sizeof *made);
    *made = (broken_batch){.next = broken.batches, .peer = peer, .copies = copies, .end = end,
                           .batch = batch};
    kvferry_status status = kvferry_transfer_begin(broken.inner, peer->inner, KVFERRY_WRITE, copies, count,
                                                   0, &made->transfer, report);
    if (status == KVFERRY_OK)
        broken.batches = made;
    else
        free(made);
    return status;
}

/* The first worker's first copies lose one of them. */
static void hold_back(broken_peer *peer, demo_copies *copies)
{
    if ((broken.fault != DEMO_LATE_WRITE && broken.fault != DEMO_LOST_WRITE) || broken.rank != 0 ||
        broken.chosen || copies->count == 0)
        return;
    demo_random random = {broken.seed};
    size_t index = (size_t)demo_random_below(&random, copies->count);
    if (broken.fault == DEMO_LATE_WRITE) {
        broken.held = copies->items[index];
        broken.held_peer = peer;
    }
    memmove(&copies->items[index], &copies->items[index + 1],
            (copies->count - index - 1) * sizeof *copies->items);
    copies->count--;
    copies->planted++;
    broken.chosen = true;
}

static kvferry_status broken_submit(void *self, void *peer, kvferry_direction direction,
                                    const kvferry_engine_copy *copies, size_t count,
                                    kvferry_engine_batch_end end, void *batch, kvferry_report *report)
{
    (void)self;
    (void)direction;
    broken_peer *to = peer;
    demo_copies made = {.items = tool_alloc(count + 1, sizeof *made.items), .count = count, .capacity = count + 1};
    for (size_t i = 0; i < count; i++) {
        const broken_segment *local = copies[i].local_segment, *remote = copies[i].remote_segment;
        made.items[i] = (kvferry_copy){(uintptr_t)copies[i].local - local->base,
                                       copies[i].remote - remote->base, copies[i].bytes, local->index,
                                       remote->index};
    }
    pthread_mutex_lock(&broken.lock);
    demo_fault_copies(broken.fault, broken.source, broken.targets[to->rank], &broken.all, &made);
    hold_back(to, &made);
    broken.planted += made.planted;
    pthread_mutex_unlock(&broken.lock);
    kvferry_status status = begin(to, made.items, made.count, end, batch, report);
    if (status != KVFERRY_OK)
        free(made.items);
    return status;
}

static void begin_held(void)
{
    pthread_mutex_lock(&broken.lock);
    broken_peer *peer = broken.send_held ? broken.held_peer : NULL;
    kvferry_copy *copy = tool_alloc(1, sizeof *copy);
    *copy = broken.held;
    broken.send_held = false;
    pthread_mutex_unlock(&broken.lock);
    if (peer && begin(peer, copy, 1, NULL, NULL, NULL) == KVFERRY_OK)
        return;
    free(copy);
    if (peer)
        tell_sent();
}

static bool broken_progress(void *self)
{
    (void)self;
    uint64_t number;
    bool active = false;
    if (read(broken.wake, &number, sizeof number) == (ssize_t)sizeof number)
        begin_held();
    kvferry_engine_progress(broken.inner, &active);
    return end_batches(NULL) || active;
}

/* --- the worker's side ----------------------------------------------------------------------- */

kvferry_status demo_engine_add(const demo_config *config, size_t rank, kvferry_report *report)
{
    static const kvferry_engine_ops ops = {.size = sizeof ops,
                                           .name = DEMO_ENGINE,
                                           .open = broken_open,
                                           .close = broken_close,
                                           .capabilities = broken_capabilities,
                                           .fd = broken_fd,
                                           .arm = broken_arm,
                                           .progress = broken_progress,
                                           .segment_register = broken_register,
                                           .segment_allocate = broken_allocate,
                                           .segment_unregister = broken_unregister,
                                           .address_export = broken_export,
                                           .segment_export = broken_segment_export,
                                           .peer_connect = broken_connect,
                                           .segment_import = broken_import,
                                           .peer_lost = broken_peer_lost,
                                           .peer_close = broken_peer_close,
                                           .submit = broken_submit};
    broken.name = config->engine;
    broken.fault = config->fault;
    broken.rank = (uint32_t)rank;
    return kvferry_engine_add(&ops, report);
}

void demo_engine_know(const kvferry_layout *source, kvferry_layout *const *targets)
{
    pthread_mutex_lock(&broken.lock);
    broken.source = source;
    broken.targets = targets;
    pthread_mutex_unlock(&broken.lock);
}

void demo_engine_round(kvferry_request *const *requests, size_t count, uint64_t seed)
{
    size_t tables = 0;
    for (size_t i = 0; i < count; i++)
        tables += requests[i]->target_count;
    kvferry_block_table *all = tool_alloc(tables + 1, sizeof *all);
    tables = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t t = 0; t < requests[i]->target_count; t++)
            all[tables++] = requests[i]->target[t];
    pthread_mutex_lock(&broken.lock);
    free((kvferry_block_table *)broken.all.target);
    broken.all = (kvferry_request){.target = all, .target_count = tables};
    broken.seed = seed;
    pthread_mutex_unlock(&broken.lock);
}

uint64_t demo_engine_planted(void)
{
    pthread_mutex_lock(&broken.lock);
    uint64_t planted = broken.planted;
    broken.planted = 0;
    pthread_mutex_unlock(&broken.lock);
    return planted;
}

void demo_engine_send_held(void)
{
    static const uint64_t one = 1;
    pthread_mutex_lock(&broken.lock);
    broken.send_held = broken.held_peer != NULL;
    if (broken.send_held && write(broken.wake, &one, sizeof one) != (ssize_t)sizeof one)
        broken.held_peer = NULL;
    while (broken.held_peer)
        pthread_cond_wait(&broken.sent, &broken.lock);
    pthread_mutex_unlock(&broken.lock);
}
