/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's C interface: that of Mooncake, as far as the engine calls it. */
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC stand_in_faults stand_in;

bool stand_in_take(atomic_int *countdown)
{
    int left = atomic_load(countdown);
    if (left <= 0)
        return false;
    atomic_store(countdown, left - 1);
    return true;
}

/* --- life ------------------------------------------------------------------------------------ */

PUBLIC void *createTransferEngine(const char *metadata, const char *server, const char *host,
                                  uint64_t port, int discover);
PUBLIC void *createTransferEngine(const char *metadata, const char *server, const char *host,
                                  uint64_t port, int discover)
{
    (void)host, (void)port;
    if (strcmp(metadata, "P2PHANDSHAKE") != 0 || strcmp(server, "127.0.0.1") != 0 ||
        stand_in_take(&stand_in.refused_instances) || !getenv("MC_TCP_ENABLE_CONNECTION_POOL"))
        return NULL;
    stand_in_instance *instance = calloc(1, sizeof(*instance));
    if (!instance)
        return NULL;
    pthread_mutex_init(&instance->lock, NULL);
    instance->installed = discover;
    if (!stand_in_serve(instance)) {
        free(instance);
        return NULL;
    }
    atomic_fetch_add(&stand_in.instances, 1);
    return instance;
}

PUBLIC int getLocalIpAndPort(void *self, char *name, size_t size);
PUBLIC int getLocalIpAndPort(void *self, char *name, size_t size)
{
    snprintf(name, size, "127.0.0.1:%u", ((stand_in_instance *)self)->port);
    return 0;
}

PUBLIC void *installTransport(void *self, const char *transport, void **arguments);
PUBLIC void *installTransport(void *self, const char *transport, void **arguments)
{
    (void)arguments;
    if (strcmp(transport, "rdma") == 0)
        return NULL;
    ((stand_in_instance *)self)->installed = true;
    return self;
}

PUBLIC void destroyTransferEngine(void *self);
PUBLIC void destroyTransferEngine(void *self)
{
    stand_in_instance *instance = self;
    pthread_mutex_lock(&instance->lock);
    instance->ending = true;
    for (int32_t i = 0; i < instance->segment_count; i++) {
        if (instance->segments[i].socket >= 0)
            shutdown(instance->segments[i].socket, SHUT_RDWR);
        pthread_cond_signal(&instance->segments[i].more);
    }
    pthread_mutex_unlock(&instance->lock);
    for (int32_t i = 0; i < instance->segment_count; i++) {
        if (instance->segments[i].running)
            pthread_join(instance->segments[i].thread, NULL);
        if (instance->segments[i].socket >= 0)
            close(instance->segments[i].socket);
        pthread_cond_destroy(&instance->segments[i].more);
    }
    stand_in_stop(instance);
    while (instance->batches) {
        stand_in_batch *batch = instance->batches;
        instance->batches = batch->next;
        atomic_fetch_sub(&stand_in.batches, 1);
        free(batch);
    }
    pthread_mutex_destroy(&instance->lock);
    free(instance);
    atomic_fetch_sub(&stand_in.instances, 1);
}

#ifndef STAND_IN_OLD
PUBLIC void enableGracefulShutdown(void *self);
PUBLIC void enableGracefulShutdown(void *self) { (void)self; }
#endif

/* --- memory ---------------------------------------------------------------------------------- */

PUBLIC int registerLocalMemory(void *self, void *address, size_t bytes, const char *location, int remote);
PUBLIC int registerLocalMemory(void *self, void *address, size_t bytes, const char *location, int remote)
{
    (void)location, (void)remote;
    stand_in_instance *instance = self;
    uint64_t begin = (uint64_t)(uintptr_t)address;
    int code = atomic_exchange(&stand_in.register_code, 0);
    pthread_mutex_lock(&instance->lock);
    for (size_t i = 0; i < instance->range_count; i++)
        if (begin < instance->ranges[i].address + instance->ranges[i].bytes &&
            instance->ranges[i].address < begin + bytes)
            code = -7;
    if (!code && instance->range_count == RANGES)
        code = -302;
    if (!code)
        instance->ranges[instance->range_count++] = (stand_in_range){begin, bytes};
    pthread_mutex_unlock(&instance->lock);
    return code;
}

PUBLIC int unregisterLocalMemory(void *self, void *address);
PUBLIC int unregisterLocalMemory(void *self, void *address)
{
    stand_in_instance *instance = self;
    int code = -1;
    pthread_mutex_lock(&instance->lock);
    for (size_t i = 0; i < instance->range_count && code; i++)
        if (instance->ranges[i].address == (uint64_t)(uintptr_t)address) {
            instance->ranges[i] = instance->ranges[--instance->range_count];
            code = 0;
        }
    pthread_mutex_unlock(&instance->lock);
    return code;
}

/* --- peers ----------------------------------------------------------------------------------- */

static int32_t find_segment(stand_in_instance *instance, const char *name, bool fresh)
{
    int32_t id = 1; /* 0 is the own one */
    while (id <= instance->segment_count && strcmp(instance->segments[id - 1].name, name) != 0)
        id++;
    if (id > SEGMENTS || strlen(name) >= sizeof(instance->segments[0].name) || !instance->installed)
        return -1;
    stand_in_segment *segment = &instance->segments[id - 1];
    stand_in_range ranges[RANGES];
    size_t count;
    bool known = id <= instance->segment_count;
    if (known && !fresh)
        return id;
    if (!stand_in_ask_ranges(name, ranges, &count))
        return -1;
    pthread_mutex_lock(&instance->lock);
    memcpy(segment->ranges, ranges, sizeof(ranges));
    segment->range_count = count;
    if (!known) {
        snprintf(segment->name, sizeof(segment->name), "%s", name);
        segment->instance = instance;
        segment->socket = -1;
        segment->last = &segment->first;
        pthread_cond_init(&segment->more, NULL);
        instance->segment_count = id;
        segment->running = pthread_create(&segment->thread, NULL, stand_in_move, segment) == 0;
    }
    pthread_mutex_unlock(&instance->lock);
    return id;
}

PUBLIC int32_t openSegment(void *self, const char *name);
PUBLIC int32_t openSegment(void *self, const char *name) { return find_segment(self, name, false); }

PUBLIC int32_t openSegmentNoCache(void *self, const char *name);
PUBLIC int32_t openSegmentNoCache(void *self, const char *name) { return find_segment(self, name, true); }

PUBLIC int closeSegment(void *self, int32_t id);
PUBLIC int closeSegment(void *self, int32_t id)
{
    atomic_fetch_add(&stand_in.closes, 1);
    return id > 0 && id <= ((stand_in_instance *)self)->segment_count ? 0 : -1;
}

/* --- batches --------------------------------------------------------------------------------- */

PUBLIC uint64_t allocateBatchID(void *self, size_t count);
PUBLIC uint64_t allocateBatchID(void *self, size_t count)
{
    stand_in_instance *instance = self;
    stand_in_batch *batch = calloc(1, sizeof(*batch) + count * sizeof(batch->tasks[0]));
    if (!batch)
        return UINT64_MAX;
    batch->capacity = count;
    batch->next = instance->batches;
    instance->batches = batch;
    atomic_fetch_add(&stand_in.batches, 1);
    return (uint64_t)(uintptr_t)batch;
}

/* The place of a batch in the list. One that was freed ends the process, as the real library may. */
static stand_in_batch **find_batch(stand_in_instance *instance, uint64_t id)
{
    stand_in_batch **place = &instance->batches;
    while (*place && (uint64_t)(uintptr_t)*place != id)
        place = &(*place)->next;
    if (!*place) {
        fprintf(stderr, "stand-in: a batch was used after it was freed\n");
        abort();
    }
    return place;
}

/* Never more than the queue takes; false: it is full, and from then on serves nothing. */
static bool queue_task(stand_in_segment *segment, stand_in_task *task)
{
    if (segment->outstanding == QUEUE) {
        segment->hung = true;
        return false;
    }
    segment->outstanding++;
    if (segment->outstanding > atomic_load(&stand_in.peak))
        atomic_store(&stand_in.peak, segment->outstanding);
    task->next = NULL;
    *segment->last = task;
    segment->last = &task->next;
    return true;
}

static bool submit_task(stand_in_instance *instance, stand_in_task *task)
{
    const stand_in_request *request = &task->request;
    stand_in_segment *segment = &instance->segments[request->target - 1];
    int state = atomic_exchange(&stand_in.task_state, 0);
    if (!state && !stand_in_covers(segment->ranges, segment->range_count, request->offset, request->length))
        state = FAILED;
    if (!state)
        return queue_task(segment, task);
    atomic_store(&task->state, state);
    return true;
}

PUBLIC int submitTransfer(void *self, uint64_t id, stand_in_request *requests, size_t count);
PUBLIC int submitTransfer(void *self, uint64_t id, stand_in_request *requests, size_t count)
{
    stand_in_instance *instance = self;
    stand_in_batch *batch = *find_batch(instance, id);
    if (stand_in_take(&stand_in.refused_submits) || batch->count + count > batch->capacity)
        return 2;
    for (size_t i = 0; i < count; i++)
        if (requests[i].target < 1 || requests[i].target > instance->segment_count)
            return 1;
    bool full = stand_in_take(&stand_in.halved_submits);
    count = full ? count / 2 : count;
    pthread_mutex_lock(&instance->lock);
    for (size_t i = 0; i < count; i++) {
        stand_in_task *task = &batch->tasks[batch->count++];
        task->request = requests[i];
        full = !submit_task(instance, task) || full;
        pthread_cond_signal(&instance->segments[requests[i].target - 1].more);
    }
    pthread_mutex_unlock(&instance->lock);
    return full ? 2 : 0;
}

typedef struct task_progress {
    int state;
    uint64_t bytes;
} task_progress;

PUBLIC int getTransferStatus(void *self, uint64_t id, size_t task, task_progress *progress);
PUBLIC int getTransferStatus(void *self, uint64_t id, size_t task, task_progress *progress)
{
    const stand_in_batch *batch = *find_batch(self, id);
    if (task >= batch->count)
        return 1;
    progress->state = atomic_load(&batch->tasks[task].state);
    progress->bytes = progress->state == COMPLETED ? batch->tasks[task].request.length : 0;
    if (progress->state == WAITING && stand_in_take(&stand_in.timeouts))
        progress->state = TIMEOUT;
    return 0;
}

PUBLIC int freeBatchID(void *self, uint64_t id);
PUBLIC int freeBatchID(void *self, uint64_t id)
{
    stand_in_batch **place = find_batch(self, id), *batch = *place;
    for (size_t i = 0; i < batch->count; i++)
        if (atomic_load(&batch->tasks[i].state) == WAITING)
            return 4;
    if (batch->count && stand_in_take(&stand_in.busy_frees))
        return 4;
    *place = batch->next;
    free(batch);
    atomic_fetch_sub(&stand_in.batches, 1);
    return 0;
}
