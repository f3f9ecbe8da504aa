/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of a node for any thread to read: the core's statistics, and what is told of ended
 * transfers. */
#ifndef KVFERRY_NODE_METRICS_H
#define KVFERRY_NODE_METRICS_H

#include <pthread.h>
#include <stdatomic.h>

#include <kvferry/node.h>

#include "base/base.h"
#include "node/codes.h"

enum {
    NODE_METRICS_WORDS = sizeof(kvferry_node_statistics) / sizeof(uint64_t),
    NODE_METRICS_BUCKETS = 15
};

typedef struct node_metrics {
    /* The statistics, word by word, of one moment: `turn` is odd while they are being written. */
    atomic_uint_fast64_t turn;
    _Atomic uint64_t words[NODE_METRICS_WORDS];

    pthread_mutex_t lock; /* of what follows; held for moments */
    struct {
        uint64_t buckets[NODE_METRICS_BUCKETS + 1], sum_ns, count;
    } seconds[2]; /* by side */
    node_codes ended;   /* columns: by side, and of handshakes */
    node_codes refused; /* the core's, as of its last change */
} node_metrics;

void node_metrics_begin(node_metrics *metrics);
void node_metrics_end(node_metrics *metrics);

/* One thread at a time. */
void node_metrics_publish(node_metrics *metrics, const kvferry_node_statistics *statistics);
void node_metrics_count(node_metrics *metrics, const kvferry_event *event);
void node_metrics_refused(node_metrics *metrics, const node_codes *refused);

/* Any thread, without waiting. */
void node_metrics_read(const node_metrics *metrics, kvferry_node_statistics *statistics);

/* The text format of Prometheus, version 0.0.4. `labels`: of kvferry_node_info,
 * "name=\"value\",...". */
void node_metrics_write(node_metrics *metrics, const char *labels, base_text *text);

/* Appends name="value", with the value escaped as the format asks. */
void node_metrics_label(base_text *text, const char *name, const char *value);

#endif
