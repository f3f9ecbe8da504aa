/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ucx engine: RDMA and device memory through UCX, shared memory and TCP without it. Its life and its
 * segments; connections are in ucx_peer.c, batches in ucx_batch.c, shared memory in ucx_local.c, TCP in
 * ucx_tcp.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/ucx_tcp.h"

/* --- life ------------------------------------------------------------------------------------ */

static kvferry_status open_context(ucx_engine *engine, const kvferry_engine_options *options,
                                   kvferry_report *report)
{
    ucp_config_t *config;
    kvferry_status result = ucx_settings_read(options, &config, report);
    if (result != KVFERRY_OK)
        return result;
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP};
    ucs_status_t status = ucp_init(&params, config, &engine->context);
    ucp_config_release(config);
    if (status == UCS_OK)
        return KVFERRY_OK;
    ucx_report_at(report, *options->transport ? "transport" : "", "transports and devices that UCX has here",
                  "no such transport or device here", status);
    return status == UCS_ERR_NO_MEMORY ? KVFERRY_NO_MEMORY : KVFERRY_UNSUPPORTED;
}

static ucs_status_t open_worker(ucx_engine *engine, ucp_worker_h *worker)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    struct epoll_event event = {.events = EPOLLIN};
    int fd;
    ucs_status_t status = ucp_worker_create(engine->context, &params, worker);
    if (status == UCS_OK)
        status = ucp_worker_get_efd(*worker, &fd);
    if (status == UCS_OK && epoll_ctl(engine->fd, EPOLL_CTL_ADD, fd, &event) != 0)
        status = UCS_ERR_IO_ERROR;
    return status;
}

static kvferry_status open_workers(ucx_engine *engine, kvferry_report *report)
{
    ucs_status_t status = open_worker(engine, &engine->worker);
    if (status == UCS_OK)
        status = open_worker(engine, &engine->target);
    if (status == UCS_OK)
        status = ucp_worker_get_address(engine->target, &engine->address, &engine->address_size);
    if (status == UCS_OK)
        return KVFERRY_OK;
    ucx_report(report, "no worker", status);
    return status == UCS_ERR_NO_MEMORY ? KVFERRY_NO_MEMORY : KVFERRY_UNSUPPORTED;
}

static void find_device_memory(ucx_engine *engine)
{
    ucp_context_attr_t found = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    if (ucp_context_query(engine->context, &found) == UCS_OK)
        engine->device_memory =
            found.memory_types & (UCS_BIT(UCS_MEMORY_TYPE_CUDA) | UCS_BIT(UCS_MEMORY_TYPE_ROCM));
}

static void ucx_close(void *self)
{
    ucx_engine *engine = self;
    ucx_tcp_close(engine);
    ucx_local_close(engine);
    ucx_words_begin();
    if (engine->address)
        ucp_worker_release_address(engine->target, engine->address);
    if (engine->target)
        ucp_worker_destroy(engine->target);
    if (engine->worker)
        ucp_worker_destroy(engine->worker);
    if (engine->context)
        ucp_cleanup(engine->context);
    ucx_words_end();
    if (engine->fd >= 0)
        close(engine->fd);
    for (size_t i = 0; i < engine->batch_count; i++) {
        free(engine->batches[i]->pieces);
        free(engine->batches[i]);
    }
    free(engine->batches);
    free(engine->segments);
    free(engine);
}

static kvferry_status open_ucx(ucx_engine *engine, const kvferry_engine_options *options,
                               kvferry_report *report)
{
    ucx_words_install();
    ucx_words_begin();
    kvferry_status status = open_context(engine, options, report);
    if (status == KVFERRY_OK)
        status = open_workers(engine, report);
    ucx_words_end();
    if (status == KVFERRY_OK)
        find_device_memory(engine);
    return status;
}

/* The engine's own choice has all three ways; a name stands for one. */
static kvferry_status open_ways(ucx_engine *engine, const kvferry_engine_options *options,
                                kvferry_report *report)
{
    bool all = !*options->transport, local = strcmp(options->transport, "shm") == 0,
         tcp = strcmp(options->transport, "tcp") == 0;
    engine->fd = epoll_create1(EPOLL_CLOEXEC);
    if (engine->fd < 0) {
        base_report_add(report, "engine_failed", NULL, NULL, strerror(errno), "ucx: no descriptor");
        return KVFERRY_UNSUPPORTED;
    }
    kvferry_status status = ucx_identity_make(&engine->identity, report);
    if (status == KVFERRY_OK && (all || local))
        status = ucx_local_open(engine, report);
    if (status == KVFERRY_OK && !local && !tcp)
        status = open_ucx(engine, options, report);
    if (status == KVFERRY_OK && (all || tcp))
        status = ucx_tcp_open(engine, options, report);
    return status;
}

static kvferry_status ucx_open(const kvferry_engine_options *options, void **self,
                               kvferry_report *report)
{
    ucx_engine *engine = base_alloc(1, sizeof(*engine));
    if (!engine)
        return KVFERRY_NO_MEMORY;
    engine->ended_last = &engine->ended;
    kvferry_status status = open_ways(engine, options, report);
    if (status != KVFERRY_OK) {
        ucx_close(engine);
        return status;
    }
    *self = engine;
    return KVFERRY_OK;
}

static void ucx_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    const ucx_engine *engine = self;
    capabilities->max_batch = UCX_BATCH_COPIES;
    capabilities->max_outstanding = 8192;
    capabilities->max_copy_bytes = UINT32_MAX; /* what one put of UCX takes over shared memory */
    capabilities->writes = capabilities->reads = true;
    capabilities->cancels = engine->locals != NULL;
    capabilities->device_memory = engine->device_memory;
}

/* --- progress -------------------------------------------------------------------------------- */

static int ucx_fd(void *self) { return ((const ucx_engine *)self)->fd; }

static kvferry_status ucx_arm(void *self)
{
    const ucx_engine *engine = self;
    if (engine->ended || ucx_copy_waits(engine))
        return KVFERRY_BUSY;
    if (!engine->context)
        return KVFERRY_OK;
    ucs_status_t status = ucp_worker_arm(engine->worker);
    if (status == UCS_OK)
        status = ucp_worker_arm(engine->target);
    return status == UCS_ERR_BUSY ? KVFERRY_BUSY : ucx_status(status);
}

static bool progress_worker(ucp_worker_h worker)
{
    bool active = false;
    for (unsigned round = 0; round < 16 && ucp_worker_progress(worker); round++)
        active = true;
    return active;
}

static bool ucx_progress(void *self)
{
    ucx_engine *engine = self;
    bool active = false;
    ucx_words_begin();
    if (engine->context) {
        active = progress_worker(engine->worker);
        active = progress_worker(engine->target) || active;
    }
    ucx_words_end();
    if (engine->locals)
        active = ucx_local_progress(engine) || active;
    if (engine->tcp)
        active = ucx_tcp_progress(engine) || active;
    return ucx_batches_end(engine) || active;
}

/* --- segments -------------------------------------------------------------------------------- */

/* Puts it in its place by address; there is room. */
static void insert_segment(ucx_engine *engine, ucx_segment *segment)
{
    size_t at = engine->segment_count++;
    for (; at && engine->segments[at - 1]->address > segment->address; at--)
        engine->segments[at] = engine->segments[at - 1];
    engine->segments[at] = segment;
}

static kvferry_status map(ucx_engine *engine, ucx_segment *segment, kvferry_report *report)
{
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = (void *)(uintptr_t)segment->address,
        .length = (size_t)segment->bytes,
        .memory_type = segment->type,
    };
    if (!engine->context)
        return KVFERRY_OK;
    ucx_words_begin();
    ucs_status_t status = ucp_mem_map(engine->context, &params, &segment->memory);
    if (status != UCS_OK)
        ucx_report(report, "memory cannot be registered", status);
    ucx_words_end();
    return ucx_status(status);
}

static kvferry_status add_segment(ucx_engine *engine, const ucx_segment *wanted, void **segment,
                                  kvferry_report *report)
{
    if (!base_grow((void **)&engine->segments, &engine->segment_capacity, engine->segment_count + 1,
                   sizeof(ucx_segment *)))
        return KVFERRY_NO_MEMORY;
    ucx_segment *added = base_alloc(1, sizeof(*added));
    if (!added)
        return KVFERRY_NO_MEMORY;
    *added = *wanted;
    kvferry_status status = map(engine, added, report);
    if (status != KVFERRY_OK) {
        free(added);
        return status;
    }
    insert_segment(engine, added);
    *segment = added;
    return KVFERRY_OK;
}

static kvferry_status ucx_segment_register(void *self, void *address, uint64_t bytes,
                                           kvferry_memory memory, void **segment,
                                           kvferry_report *report)
{
    static const ucs_memory_type_t types[] = {[KVFERRY_MEMORY_HOST] = UCS_MEMORY_TYPE_HOST,
                                              [KVFERRY_MEMORY_CUDA] = UCS_MEMORY_TYPE_CUDA,
                                              [KVFERRY_MEMORY_ROCM] = UCS_MEMORY_TYPE_ROCM};
    if ((size_t)memory >= sizeof(types) / sizeof(types[0]))
        return KVFERRY_INVALID;
    const ucx_engine *engine = self;
    if (engine->locals && memory == KVFERRY_MEMORY_HOST)
        ucx_memory_make_huge((uint64_t)(uintptr_t)address, bytes);
    const ucx_segment wanted = {
        .address = (uint64_t)(uintptr_t)address, .bytes = bytes, .type = types[memory], .fd = -1};
    return add_segment(self, &wanted, segment, report);
}

static void free_file(int fd, uint64_t address, uint64_t bytes)
{
    if (fd < 0)
        return;
    munmap((void *)(uintptr_t)address, (size_t)bytes);
    close(fd);
}

static void ucx_segment_unregister(void *self, void *segment)
{
    ucx_engine *engine = self;
    ucx_segment *gone = segment;
    size_t at = 0;
    if (engine->tcp)
        ucx_tcp_forget(engine, gone);
    while (engine->segments[at] != gone)
        at++;
    for (engine->segment_count--; at < engine->segment_count; at++)
        engine->segments[at] = engine->segments[at + 1];
    ucx_words_begin();
    if (gone->memory)
        ucp_mem_unmap(engine->context, gone->memory);
    ucx_words_end();
    free_file(gone->fd, gone->address, gone->bytes);
    free(gone);
}

static kvferry_status ucx_segment_allocate(void *self, uint64_t bytes, void **address,
                                           void **segment, kvferry_report *report)
{
    ucx_segment wanted = {.bytes = bytes, .type = UCS_MEMORY_TYPE_HOST};
    void *allocated;
    kvferry_status status = ucx_memory_allocate(bytes, &wanted.fd, &allocated, report);
    if (status != KVFERRY_OK)
        return status;
    wanted.address = (uint64_t)(uintptr_t)allocated;
    status = add_segment(self, &wanted, segment, report);
    if (status == KVFERRY_OK)
        *address = allocated;
    else
        free_file(wanted.fd, wanted.address, bytes);
    return status;
}

/* --- binding --------------------------------------------------------------------------------- */

/* What is exported, part by part. */
typedef struct export_part {
    const void *data;
    size_t bytes;
} export_part;

static kvferry_status put(const export_part *parts, size_t count, void *data, size_t *size)
{
    size_t capacity = *size, bytes = 0;
    unsigned char *to = data;
    for (size_t i = 0; i < count; i++)
        bytes += parts[i].bytes;
    *size = bytes;
    if (capacity < bytes)
        return KVFERRY_NO_SPACE;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].bytes)
            memcpy(to, parts[i].data, parts[i].bytes);
        to += parts[i].bytes;
    }
    return KVFERRY_OK;
}

static kvferry_status ucx_address_export(void *self, void *data, size_t *size)
{
    const ucx_engine *engine = self;
    ucx_identity identity = engine->identity;
    identity.tcp = engine->tcp != NULL;
    const export_part parts[] = {
        {&identity, sizeof(identity)},
        {engine->tcp ? &engine->tcp->exported : NULL, engine->tcp ? sizeof(tcp_export) : 0},
        {engine->address, engine->address_size},
    };
    return put(parts, 3, data, size);
}

static kvferry_status ucx_segment_export(void *self, void *segment, void *data, size_t *size)
{
    const ucx_engine *engine = self;
    const ucx_segment *exported = segment;
    ucx_key key = {.address = exported->address,
                   .bytes = exported->bytes,
                   .fd = exported->fd,
                   .host = exported->type == UCS_MEMORY_TYPE_HOST};
    export_part parts[] = {{&key, sizeof(key)}, {NULL, 0}};
    struct stat file;
    void *packed = NULL;
    if (exported->fd >= 0 && fstat(exported->fd, &file) == 0) {
        key.device = (uint64_t)file.st_dev;
        key.inode = (uint64_t)file.st_ino;
    }
    if (exported->memory) {
        ucs_status_t answer =
            ucp_rkey_pack(engine->context, exported->memory, &packed, &parts[1].bytes);
        if (answer != UCS_OK)
            return ucx_status(answer);
        parts[1].data = packed;
    }
    kvferry_status status = put(parts, 2, data, size);
    if (packed)
        ucp_rkey_buffer_release(packed);
    return status;
}

const kvferry_engine_ops engine_ucx_ops = {
    .size = sizeof(engine_ucx_ops),
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .capabilities = ucx_capabilities,
    .fd = ucx_fd,
    .arm = ucx_arm,
    .progress = ucx_progress,
    .segment_register = ucx_segment_register,
    .segment_allocate = ucx_segment_allocate,
    .segment_unregister = ucx_segment_unregister,
    .address_export = ucx_address_export,
    .segment_export = ucx_segment_export,
    .peer_connect = ucx_peer_connect,
    .segment_import = ucx_segment_import,
    .peer_lost = ucx_peer_lost,
    .peer_busy = ucx_peer_busy,
    .peer_close = ucx_peer_close,
    .submit = ucx_submit,
    .cancel = ucx_cancel,
};
