/* SPDX-License-Identifier: Apache-2.0 */
/* Whole nodes for tests: memory with known bytes, and events that are waited for. */
#ifndef KVFERRY_TESTS_NODE_NODES_H
#define KVFERRY_TESTS_NODE_NODES_H

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <kvferry/node.h>

#include "node/rig_layout_test.h"

enum { NODES_PATIENCE_MS = 30000 };

static const char *nodes_engine = "memory", *nodes_transport = "";

typedef struct worker {
    rig_shape shape;
    kvferry_layout *layout;
    kvferry_node *node;
    unsigned char *memory;
} worker;

static inline void print_reasons(const kvferry_report *report)
{
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        fprintf(stderr, "  %s: %s\n", kvferry_report_get(report, i)->code,
                kvferry_report_get(report, i)->message);
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        kvferry_report *report = NULL;                                                             \
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);                              \
        kvferry_status status_ = (call);                                                           \
        if (status_ != KVFERRY_OK)                                                                 \
            print_reasons(report);                                                                 \
        assert_int_equal(status_, KVFERRY_OK);                                                     \
        kvferry_report_free(report);                                                               \
    } while (0)

/* Lines of the log go to stderr, which ctest shows of tests that fail. */
static inline void nodes_log(void *context, kvferry_log_level level, const char *line)
{
    static const char *const levels[] = {"error", "warning", "info", "debug"};
    fprintf(stderr, "%s: %s: %s\n", (const char *)context, levels[level], line);
}

static inline kvferry_node_options nodes_options(const char *name)
{
    static kvferry_engine_options engine;
    engine = (kvferry_engine_options){.size = sizeof(engine), .transport = nodes_transport};
    return (kvferry_node_options){.size = sizeof(kvferry_node_options),
                                  .engine = nodes_engine,
                                  .engine_options = &engine,
                                  .retry_ms = 200,
                                  .log = nodes_log,
                                  .log_context = (void *)(uintptr_t)name,
                                  .log_level = KVFERRY_LOG_INFO};
}

static inline void worker_open(worker *w, const rig_shape *shape,
                               const kvferry_node_options *options)
{
    const kvferry_node_segment segment = {NULL, KVFERRY_MEMORY_HOST};
    w->shape = *shape;
    w->layout = rig_layout(shape);
    MUST(kvferry_node_create(options, w->layout, &segment, kvferry_layout_segment_count(w->layout),
                             &w->node, report));
    w->memory = kvferry_node_segment_address(w->node, 0);
}

static inline void worker_close(worker *w)
{
    kvferry_node_close(w->node);
    kvferry_layout_free(w->layout);
}

/* An engine of one worker. */
static inline void worker_open_alone(worker *w, const char *engine_id)
{
    const kvferry_node_options options = nodes_options(engine_id);
    worker_open(w, &(rig_shape){.engine_id = engine_id, .tps = 1, .pps = 1}, &options);
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* The place of a token's cell of a global layer and head; NULL: the worker has not got it. */
static inline unsigned char *cell_of(const worker *w, uint32_t layer, uint32_t head,
                                     const uint32_t *blocks, uint32_t token)
{
    uint32_t heads = RIG_HEADS / w->shape.tps, layers = RIG_LAYERS / w->shape.pps;
    if (head / heads != w->shape.tp || layer / layers != w->shape.pp)
        return NULL;
    size_t page = (size_t)heads * RIG_TOKENS * RIG_CELL;
    return w->memory + (layer % layers) * RIG_BLOCKS * page + blocks[token / RIG_TOKENS] * page +
           (head % heads) * RIG_TOKENS * RIG_CELL + (token % RIG_TOKENS) * RIG_CELL;
}

static inline unsigned char value_of(uint32_t seed, uint32_t layer, uint32_t head, uint32_t token,
                                     uint32_t i)
{
    return (unsigned char)((seed * 131 + layer * 31 + head * 17 + token * 7 + i) * 2654435761u >>
                           13);
}

/* Fills the request's cells, or tells whether they are right. */
static inline bool walk_cells(const worker *w, const uint32_t *blocks, uint32_t tokens,
                              uint32_t seed, bool fill)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        for (uint32_t head = 0; head < RIG_HEADS; head++)
            for (uint32_t token = 0; token < tokens; token++) {
                unsigned char *cell = cell_of(w, layer, head, blocks, token);
                for (uint32_t i = 0; cell && i < RIG_CELL; i++) {
                    if (fill)
                        cell[i] = value_of(seed, layer, head, token, i);
                    else if (cell[i] != value_of(seed, layer, head, token, i))
                        return false;
                }
            }
    return true;
}

/* --- requests --------------------------------------------------------------------------------- */

static inline size_t blocks_of(uint32_t tokens)
{
    return (tokens + RIG_TOKENS - 1) / RIG_TOKENS;
}

static inline kvferry_status worker_offer(worker *w, const char *id, const uint32_t *blocks,
                                          uint32_t tokens, kvferry_readiness readiness,
                                          kvferry_report *report)
{
    const kvferry_block_table table = {"attn", 0, blocks, blocks_of(tokens)};
    return kvferry_node_offer(w->node,
                              &(kvferry_offer){.size = sizeof(kvferry_offer),
                                               .transfer_id = id,
                                               .tokens = tokens,
                                               .tables = &table,
                                               .table_count = 1,
                                               .readiness = readiness,
                                               .context = w},
                              report);
}

static inline kvferry_status worker_ask(worker *w, const char *id, const char *engine_id,
                                        const char *where, const uint32_t *blocks, uint32_t tokens,
                                        kvferry_report *report)
{
    const kvferry_block_table table = {"attn", 0, blocks, blocks_of(tokens)};
    return kvferry_node_ask(w->node,
                            &(kvferry_ask){.size = sizeof(kvferry_ask),
                                           .transfer_id = id,
                                           .engine_id = engine_id,
                                           .where = where,
                                           .tokens = tokens,
                                           .tables = &table,
                                           .table_count = blocks ? 1 : 0,
                                           .context = w},
                            report);
}

/* The next event of this kind and id ("" any); others are dropped. NULL: it does not come. */
static inline kvferry_event *await_event(worker *w, kvferry_event_kind kind, const char *id)
{
    while (kvferry_node_wait(w->node, NODES_PATIENCE_MS) == KVFERRY_OK) {
        kvferry_event *event = kvferry_node_next_event(w->node);
        if (event && event->kind == kind && (!*id || strcmp(event->transfer_id, id) == 0))
            return event;
        kvferry_event_free(event);
    }
    return NULL;
}

static inline void expect_ended(worker *w, const char *id, kvferry_outcome outcome,
                                const char *code)
{
    kvferry_event *event = await_event(w, KVFERRY_EVENT_ENDED, id);
    assert_non_null(event);
    if (event->outcome != outcome)
        print_reasons(event->report);
    assert_int_equal(event->outcome, outcome);
    assert_string_equal(event->code, code);
    assert_ptr_equal(event->context, w);
    kvferry_event_free(event);
}

static inline void expect_released(worker *w, const char *id)
{
    kvferry_event *event = await_event(w, KVFERRY_EVENT_RELEASED, id);
    assert_non_null(event);
    kvferry_event_free(event);
}

static inline void expect_done(worker *w, const char *id)
{
    expect_ended(w, id, KVFERRY_OUTCOME_DONE, "");
    expect_released(w, id);
}

/* A transfer of ten tokens, and what has to come of it. */
static inline void expect_moved(worker *prefill, worker *decode, const char *id, const uint32_t *from,
                                const uint32_t *to, uint32_t seed)
{
    walk_cells(prefill, from, 10, seed, true);
    MUST(worker_offer(prefill, id, from, 10, KVFERRY_READY, report));
    MUST(worker_ask(decode, id, "p", kvferry_node_address(prefill->node), to, 10, report));
    expect_done(decode, id);
    assert_true(walk_cells(decode, to, 10, seed, false));
    expect_done(prefill, id);
}

static inline kvferry_node_statistics statistics_of(const worker *w)
{
    kvferry_node_statistics now;
    kvferry_node_get_statistics(w->node, &now);
    return now;
}

/* What the process has in memory. */
static inline long memory_kib(void)
{
    char line[128];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    fclose(file);
    return kib;
}

/* That it has not much more than before; not with sanitizers, which keep what was freed. */
static inline void expect_flat(long before, long more_kib)
{
#ifdef KVFERRY_SANITIZED
    (void)before, (void)more_kib;
#else
    assert_in_range(memory_kib(), 0, before + more_kib);
#endif
}

#endif
