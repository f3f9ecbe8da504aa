/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ucx engine: shared memory, TCP, RDMA and device memory through UCX. Its context, its workers
 * and its segments; connections are in ucx_peer.c, batches in ucx_batch.c.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "engine/ucx_internal.h"

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
    ucx_report(report, "no such transport or device here", status);
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
    engine->fd = epoll_create1(EPOLL_CLOEXEC);
    ucs_status_t status = engine->fd < 0 ? UCS_ERR_IO_ERROR : open_worker(engine, &engine->worker);
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
    while (engine->spare) {
        ucx_batch *batch = engine->spare;
        engine->spare = batch->next;
        free(batch);
    }
    free(engine);
}

static kvferry_status ucx_open(const kvferry_engine_options *options, void **self,
                               kvferry_report *report)
{
    ucx_engine *engine = base_alloc(1, sizeof(*engine));
    if (!engine)
        return KVFERRY_NO_MEMORY;
    engine->ended_last = &engine->ended;
    engine->fd = -1;
    ucx_words_install();
    ucx_words_begin();
    kvferry_status status = open_context(engine, options, report);
    if (status == KVFERRY_OK)
        status = open_workers(engine, report);
    ucx_words_end();
    if (status != KVFERRY_OK) {
        ucx_close(engine);
        return status;
    }
    find_device_memory(engine);
    *self = engine;
    return KVFERRY_OK;
}

static void ucx_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    capabilities->max_batch = 1024;
    capabilities->max_outstanding = 8192;
    capabilities->max_copy_bytes = UINT32_MAX; /* what one put over shared memory takes */
    capabilities->writes = capabilities->reads = true;
    capabilities->device_memory = ((const ucx_engine *)self)->device_memory;
}

/* --- progress -------------------------------------------------------------------------------- */

static int ucx_fd(void *self) { return ((const ucx_engine *)self)->fd; }

static kvferry_status ucx_arm(void *self)
{
    const ucx_engine *engine = self;
    if (engine->ended)
        return KVFERRY_BUSY;
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
    ucx_words_begin();
    bool active = progress_worker(engine->worker);
    active = progress_worker(engine->target) || active;
    ucx_words_end();
    return ucx_batches_end(engine) || active;
}

/* --- segments -------------------------------------------------------------------------------- */

static kvferry_status map(ucx_engine *engine, const ucp_mem_map_params_t *params,
                          ucs_memory_type_t type, void **segment, kvferry_report *report)
{
    ucx_segment *mapped = base_alloc(1, sizeof(*mapped));
    if (!mapped)
        return KVFERRY_NO_MEMORY;
    mapped->type = type;
    ucx_words_begin();
    ucs_status_t status = ucp_mem_map(engine->context, params, &mapped->memory);
    if (status != UCS_OK)
        ucx_report(report, "memory cannot be registered", status);
    ucx_words_end();
    if (status != UCS_OK) {
        free(mapped);
        return ucx_status(status);
    }
    *segment = mapped;
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
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = address,
        .length = (size_t)bytes,
        .memory_type = types[memory],
    };
    return map(self, &params, types[memory], segment, report);
}

static void ucx_segment_unregister(void *self, void *segment)
{
    ucx_segment *gone = segment;
    ucx_words_begin();
    ucp_mem_unmap(((ucx_engine *)self)->context, gone->memory);
    ucx_words_end();
    free(gone);
}

static kvferry_status ucx_segment_allocate(void *self, uint64_t bytes, void **address,
                                           void **segment, kvferry_report *report)
{
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .length = (size_t)bytes,
        .flags = UCP_MEM_MAP_ALLOCATE,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    void *mapped;
    kvferry_status status = map(self, &params, UCS_MEMORY_TYPE_HOST, &mapped, report);
    if (status != KVFERRY_OK)
        return status;
    ucp_mem_attr_t found = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucs_status_t asked = ucp_mem_query(((ucx_segment *)mapped)->memory, &found);
    if (asked != UCS_OK) {
        ucx_segment_unregister(self, mapped);
        return ucx_status(asked);
    }
    *address = found.address;
    *segment = mapped;
    return KVFERRY_OK;
}

/* --- binding --------------------------------------------------------------------------------- */

static kvferry_status put(const void *from, size_t bytes, void *data, size_t *size)
{
    size_t capacity = *size;
    *size = bytes;
    if (capacity < bytes)
        return KVFERRY_NO_SPACE;
    memcpy(data, from, bytes);
    return KVFERRY_OK;
}

static kvferry_status ucx_address_export(void *self, void *data, size_t *size)
{
    const ucx_engine *engine = self;
    return put(engine->address, engine->address_size, data, size);
}

static kvferry_status ucx_segment_export(void *self, void *segment, void *data, size_t *size)
{
    void *key;
    size_t bytes;
    ucs_status_t packed = ucp_rkey_pack(((const ucx_engine *)self)->context,
                                        ((const ucx_segment *)segment)->memory, &key, &bytes);
    if (packed != UCS_OK)
        return ucx_status(packed);
    kvferry_status status = put(key, bytes, data, size);
    ucp_rkey_buffer_release(key);
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
    .peer_close = ucx_peer_close,
    .submit = ucx_submit,
};
