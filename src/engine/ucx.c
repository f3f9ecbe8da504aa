/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ucx engine: shared memory, RDMA and device memory through UCX, and TCP without it. Its context, its
 * workers and its segments; connections are in ucx_peer.c, batches in ucx_batch.c, TCP in ucx_tcp.c.
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
    ucx_tcp_close(engine);
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
    for (size_t i = 0; i < engine->batch_count; i++)
        free(engine->batches[i]);
    free(engine->batches);
    free(engine->segments);
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
    engine->tcp_only = strcmp(options->transport, "tcp") == 0;
    if (status == KVFERRY_OK && (engine->tcp_only || !*options->transport))
        status = ucx_tcp_open(engine, options->net_devices, report);
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

static ucs_status_t map(ucx_engine *engine, const ucp_mem_map_params_t *params, ucx_segment *mapped)
{
    ucp_mem_attr_t found = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucs_status_t status = ucp_mem_map(engine->context, params, &mapped->memory);
    if (status != UCS_OK)
        return status;
    status = ucp_mem_query(mapped->memory, &found);
    if (status != UCS_OK) {
        ucp_mem_unmap(engine->context, mapped->memory);
        return status;
    }
    mapped->address = params->address ? (uint64_t)(uintptr_t)params->address
                                      : (uint64_t)(uintptr_t)found.address;
    mapped->bytes = params->length;
    mapped->type = params->memory_type;
    insert_segment(engine, mapped);
    return UCS_OK;
}

static kvferry_status add_segment(ucx_engine *engine, const ucp_mem_map_params_t *params,
                                  ucx_segment **segment, kvferry_report *report)
{
    if (!base_grow((void **)&engine->segments, &engine->segment_capacity, engine->segment_count + 1,
                   sizeof(ucx_segment *)))
        return KVFERRY_NO_MEMORY;
    ucx_segment *mapped = base_alloc(1, sizeof(*mapped));
    if (!mapped)
        return KVFERRY_NO_MEMORY;
    ucx_words_begin();
    ucs_status_t status = map(engine, params, mapped);
    if (status != UCS_OK)
        ucx_report(report, "memory cannot be registered", status);
    ucx_words_end();
    if (status == UCS_OK)
        *segment = mapped;
    else
        free(mapped);
    return ucx_status(status);
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
    ucx_segment *added;
    kvferry_status status = add_segment(self, &params, &added, report);
    if (status == KVFERRY_OK)
        *segment = added;
    return status;
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
    ucp_mem_unmap(engine->context, gone->memory);
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
    ucx_segment *added;
    kvferry_status status = add_segment(self, &params, &added, report);
    if (status != KVFERRY_OK)
        return status;
    *address = (void *)(uintptr_t)added->address;
    *segment = added;
    return KVFERRY_OK;
}

/* --- binding --------------------------------------------------------------------------------- */

/* A byte in front, then what UCX knows, and what TCP does. */
static kvferry_status put(uint8_t head, const void *first, size_t first_bytes, const void *second,
                          size_t second_bytes, void *data, size_t *size)
{
    size_t capacity = *size;
    unsigned char *to = data;
    *size = 1 + first_bytes + second_bytes;
    if (capacity < *size)
        return KVFERRY_NO_SPACE;
    *to = head;
    memcpy(to + 1, first, first_bytes);
    if (second_bytes)
        memcpy(to + 1 + first_bytes, second, second_bytes);
    return KVFERRY_OK;
}

/* The byte: whether there is TCP; its part comes first. */
static kvferry_status ucx_address_export(void *self, void *data, size_t *size)
{
    const ucx_engine *engine = self;
    size_t tcp_size = 0;
    const void *tcp = engine->tcp ? ucx_tcp_export(engine, &tcp_size) : "";
    return put(engine->tcp != NULL, tcp, tcp_size, engine->address, engine->address_size, data, size);
}

/* The byte: whether it is memory of a device. */
static kvferry_status ucx_segment_export(void *self, void *segment, void *data, size_t *size)
{
    void *key;
    size_t bytes;
    const ucx_segment *exported = segment;
    ucs_status_t packed =
        ucp_rkey_pack(((const ucx_engine *)self)->context, exported->memory, &key, &bytes);
    if (packed != UCS_OK)
        return ucx_status(packed);
    kvferry_status status =
        put(exported->type != UCS_MEMORY_TYPE_HOST, key, bytes, NULL, 0, data, size);
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
