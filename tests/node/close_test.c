/* SPDX-License-Identifier: Apache-2.0 */
/* A node that is closed while its engine has writes under way, which cannot be torn down and end when the test says so. */
#include <pthread.h>
#include <stdatomic.h>

#include "nodes.h"

enum { HELD_MS = 3000, LINGER_MS = 100, TOKENS = 10, MINE = 1, THEIRS = 77 };

static const uint32_t from[] = {3, 4, 5}, to[] = {9, 6, 7};

/* --- an engine that waits --------------------------------------------------------------------- */

typedef struct held_batch {
    kvferry_engine_copy *copies;
    size_t count;
    kvferry_engine_batch_end end;
    void *handle;
    struct held_batch *next;
} held_batch;

typedef struct held_engine {
    held_batch *batches;
} held_engine;

static atomic_bool gate_open;
static atomic_uint submitted;

static kvferry_status held_open(const kvferry_engine_options *options, void **self, kvferry_report *report)
{
    (void)options, (void)report;
    *self = calloc(1, sizeof(held_engine));
    return *self ? KVFERRY_OK : KVFERRY_NO_MEMORY;
}

static void held_close(void *self) { free(self); }

static void held_capabilities(void *self, kvferry_engine_capabilities *capabilities)
{
    (void)self;
    capabilities->writes = capabilities->lingers = true;
}

static bool held_progress(void *self)
{
    held_engine *engine = self;
    held_batch *batch = engine->batches;
    if (!batch || !atomic_load(&gate_open))
        return false;
    engine->batches = batch->next;
    for (size_t i = 0; i < batch->count; i++)
        memcpy((void *)(uintptr_t)batch->copies[i].remote, batch->copies[i].local, batch->copies[i].bytes);
    batch->end(batch->handle, KVFERRY_OK, NULL);
    free(batch->copies);
    free(batch);
    return true;
}

static kvferry_status held_register(void *self, void *address, uint64_t bytes, kvferry_memory memory,
                                    void **segment, kvferry_report *report)
{
    (void)self, (void)address, (void)bytes, (void)memory, (void)segment, (void)report;
    return KVFERRY_UNSUPPORTED;
}

static kvferry_status held_allocate(void *self, uint64_t bytes, void **address, void **segment,
                                    kvferry_report *report)
{
    (void)self, (void)report;
    *segment = *address = calloc(1, bytes);
    return *address ? KVFERRY_OK : KVFERRY_NO_MEMORY;
}

static void held_unregister(void *self, void *segment)
{
    (void)self;
    free(segment);
}

static kvferry_status held_export(void *self, void *data, size_t *size)
{
    (void)self;
    bool fits = *size >= 4;
    *size = 4;
    if (fits)
        memcpy(data, "held", 4);
    return fits ? KVFERRY_OK : KVFERRY_NO_SPACE;
}

static kvferry_status held_export_segment(void *self, void *segment, void *data, size_t *size)
{
    (void)segment;
    return held_export(self, data, size);
}

static kvferry_status held_connect(void *self, const void *address, size_t size, void **peer,
                                   kvferry_report *report)
{
    (void)address, (void)size, (void)report;
    *peer = self;
    return KVFERRY_OK;
}

static kvferry_status held_import(void *self, void *peer, const void *data, size_t size, void **segment,
                                  kvferry_report *report)
{
    (void)peer, (void)data, (void)size, (void)report;
    *segment = self;
    return KVFERRY_OK;
}

static bool held_lost(void *self, void *peer)
{
    (void)self, (void)peer;
    return false;
}

static bool held_busy(void *self, void *peer)
{
    (void)peer;
    return ((held_engine *)self)->batches != NULL;
}

static void held_close_peer(void *self, void *peer) { (void)self, (void)peer; }

static kvferry_status held_submit(void *self, void *peer, kvferry_direction direction,
                                  const kvferry_engine_copy *copies, size_t count, kvferry_engine_batch_end end,
                                  void *handle, kvferry_report *report)
{
    (void)peer, (void)direction, (void)report;
    held_engine *engine = self;
    held_batch *batch = calloc(1, sizeof(*batch));
    kvferry_engine_copy *own = malloc(count * sizeof(*own));
    if (!batch || !own) {
        free(batch);
        free(own);
        return KVFERRY_NO_MEMORY;
    }
    memcpy(own, copies, count * sizeof(*own));
    *batch = (held_batch){own, count, end, handle, engine->batches};
    engine->batches = batch;
    atomic_fetch_add(&submitted, 1);
    return KVFERRY_OK;
}

static const kvferry_engine_ops held_ops = {.size = sizeof(held_ops),
                                            .name = "held",
                                            .open = held_open,
                                            .close = held_close,
                                            .capabilities = held_capabilities,
                                            .progress = held_progress,
                                            .segment_register = held_register,
                                            .segment_allocate = held_allocate,
                                            .segment_unregister = held_unregister,
                                            .address_export = held_export,
                                            .segment_export = held_export_segment,
                                            .peer_connect = held_connect,
                                            .segment_import = held_import,
                                            .peer_lost = held_lost,
                                            .peer_busy = held_busy,
                                            .peer_close = held_close_peer,
                                            .submit = held_submit};

/* --- the test --------------------------------------------------------------------------------- */

static void *close_node(void *node)
{
    kvferry_node_close(node);
    return NULL;
}

/* An event of this kind that comes within `ms`; NULL: none. Others are dropped. */
static kvferry_event *event_within(worker *w, kvferry_event_kind kind, uint64_t ms)
{
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (uint64_t passed = 0; passed < ms;) {
        kvferry_event *event =
            kvferry_node_wait(w->node, ms - passed) == KVFERRY_OK ? kvferry_node_next_event(w->node) : NULL;
        if (event && event->kind == kind)
            return event;
        kvferry_event_free(event);
        clock_gettime(CLOCK_MONOTONIC, &now);
        passed = (uint64_t)((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000);
    }
    return NULL;
}

static void blocks_are_not_released_while_a_writer_that_closes_still_writes(void **state)
{
    (void)state;
    worker p, d;
    nodes_engine = "held";
    MUST(kvferry_engine_add(&held_ops, report));
    worker_open_alone(&p, "p");
    kvferry_node_options options = nodes_options("d");
    options.linger_ms = LINGER_MS;
    worker_open(&d, &(rig_shape){.engine_id = "d", .tps = 1, .pps = 1}, &options);
    walk_cells(&p, from, TOKENS, MINE, true);
    MUST(worker_offer(&p, "r", from, TOKENS, KVFERRY_READY, report));
    MUST(worker_ask(&d, "r", "p", kvferry_node_address(p.node), to, TOKENS, report));
    while (!atomic_load(&submitted))
        usleep(1000);
    pthread_t closer;
    assert_int_equal(pthread_create(&closer, NULL, close_node, p.node), 0);
    /* Long enough for the node's thread to end, and for what would be taken for the word of a dead host. */
    kvferry_event *early = event_within(&d, KVFERRY_EVENT_RELEASED, HELD_MS);
    if (early)
        walk_cells(&d, to, TOKENS, THEIRS, true); /* the blocks' new owner writes there */
    atomic_store(&gate_open, true);
    pthread_join(closer, NULL);
    if (early)
        assert_true(walk_cells(&d, to, TOKENS, THEIRS, false));
    assert_null(early);
    expect_released(&d, "r");
    kvferry_layout_free(p.layout);
    worker_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_not_released_while_a_writer_that_closes_still_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
