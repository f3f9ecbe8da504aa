/* SPDX-License-Identifier: Apache-2.0 */
#include "node/metrics.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(kvferry_node_statistics) == NODE_METRICS_WORDS * sizeof(uint64_t),
               "the statistics are words of 64 bits");

static const double bounds[NODE_METRICS_BUCKETS] = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60};
static const char *const sides[] = {"prefill", "decode"};
static const char *const directions[] = {"in", "out"};

void node_metrics_begin(node_metrics *metrics)
{
    pthread_mutex_init(&metrics->lock, NULL);
}
void node_metrics_end(node_metrics *metrics)
{
    pthread_mutex_destroy(&metrics->lock);
}

/* --- the statistics --------------------------------------------------------------------------- */

void node_metrics_publish(node_metrics *metrics, const kvferry_node_statistics *statistics)
{
    uint64_t words[NODE_METRICS_WORDS];
    memcpy(words, statistics, sizeof(words));
    atomic_fetch_add_explicit(&metrics->turn, 1, memory_order_acq_rel);
    for (size_t i = 0; i < NODE_METRICS_WORDS; i++)
        atomic_store_explicit(&metrics->words[i], words[i], memory_order_release);
    atomic_fetch_add_explicit(&metrics->turn, 1, memory_order_acq_rel);
}

void node_metrics_read(const node_metrics *metrics, kvferry_node_statistics *statistics)
{
    uint64_t words[NODE_METRICS_WORDS];
    uint_fast64_t before, after;
    do {
        before = atomic_load_explicit(&metrics->turn, memory_order_acquire);
        for (size_t i = 0; i < NODE_METRICS_WORDS; i++)
            words[i] = atomic_load_explicit(&metrics->words[i], memory_order_acquire);
        after = atomic_load_explicit(&metrics->turn, memory_order_acquire);
        if (before != after)
            sched_yield();
    } while (before != after || before & 1);
    memcpy(statistics, words, sizeof(words));
}

void node_metrics_refused(node_metrics *metrics, const node_codes *refused)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->refused = *refused;
    pthread_mutex_unlock(&metrics->lock);
}

/* --- events ----------------------------------------------------------------------------------- */

void node_metrics_count(node_metrics *metrics, const kvferry_event *event)
{
    pthread_mutex_lock(&metrics->lock);
    if (event->kind == KVFERRY_EVENT_ENDED) {
        double seconds = (double)event->elapsed_ns / 1e9;
        size_t bucket = 0;
        while (bucket < NODE_METRICS_BUCKETS && seconds > bounds[bucket])
            bucket++;
        metrics->seconds[event->side].buckets[bucket]++;
        metrics->seconds[event->side].count++;
        metrics->seconds[event->side].sum_ns += event->elapsed_ns;
        if (event->outcome != KVFERRY_OUTCOME_DONE)
            node_codes_count(&metrics->ended, event->code, event->side);
    } else if (event->kind == KVFERRY_EVENT_DISCONNECTED) {
        node_codes_count(&metrics->ended, event->code, 2);
    }
    pthread_mutex_unlock(&metrics->lock);
}

/* --- the text --------------------------------------------------------------------------------- */

void node_metrics_label(base_text *text, const char *name, const char *value)
{
    base_text_append(text, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\n')
            base_text_append(text, "\\n");
        else
            base_text_append(text, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
    }
    base_text_append(text, "\"");
}

static void head(base_text *text, const char *name, const char *type, const char *help)
{
    base_text_append(text, "# HELP kvferry_%s %s\n# TYPE kvferry_%s %s\n", name, help, name, type);
}

static void one(base_text *text, const char *name, const char *type, const char *help,
                uint64_t value)
{
    head(text, name, type, help);
    base_text_append(text, "kvferry_%s %" PRIu64 "\n", name, value);
}

static void two(base_text *text, const char *name, const char *type, const char *help,
                const char *label, const char *const names[2], const uint64_t values[2])
{
    head(text, name, type, help);
    for (int i = 0; i < 2; i++)
        base_text_append(text, "kvferry_%s{%s=\"%s\"} %" PRIu64 "\n", name, label, names[i],
                         values[i]);
}

static void write_transfers(const kvferry_node_statistics *now, base_text *text)
{
    head(text, "transfers_ended_total", "counter", "Transfers that ended, by outcome.");
    for (int side = 0; side < 2; side++)
        for (int outcome = 0; outcome < 4; outcome++)
            base_text_append(
                text, "kvferry_transfers_ended_total{side=\"%s\",outcome=\"%s\"} %" PRIu64 "\n",
                sides[side], kvferry_outcome_name((kvferry_outcome)outcome),
                now->ended[side][outcome]);
    two(text, "transfer_bytes_total", "counter", "Bytes sent (prefill) and received (decode).",
        "side", sides, now->bytes);
    two(text, "transfer_copies_total", "counter", "Copies sent (prefill) and received (decode).",
        "side", sides, now->copies);
    two(text, "transfers_live", "gauge", "Transfers that have not ended; of prefill: leases held.",
        "side", sides, now->live);
    two(text, "transfers_unreleased", "gauge", "Transfers that have ended and are not released.",
        "side", sides, now->unreleased);
    one(text, "quarantined_blocks", "gauge",
        "Target blocks that a writer may still write after the end.", now->quarantined_blocks);
    one(text, "transfers_unsettled", "gauge",
        "Asks that are released, whose sources have not all answered how they ended.", now->unsettled);
    one(text, "queued_copies", "gauge", "Copies that are expanded and not written yet.",
        now->queued_copies);
}

static void write_control(const kvferry_node_statistics *now, base_text *text)
{
    const uint64_t messages[2] = {now->messages_in, now->messages_out};
    const uint64_t bytes[2] = {now->message_bytes_in, now->message_bytes_out};
    one(text, "peers", "gauge", "Workers of other engines that are connected.", now->peers);
    two(text, "messages_total", "counter", "Control messages.", "direction", directions, messages);
    two(text, "message_bytes_total", "counter", "Bytes of control messages.", "direction",
        directions, bytes);
    one(text, "messages_malformed_total", "counter", "Messages that could not be read.",
        now->malformed);
    one(text, "messages_ignored_total", "counter", "Messages that came late, twice or for nobody.",
        now->ignored);
    one(text, "refused_keys_total", "counter", "Connections refused for their keys.",
        now->refused_keys);
    one(text, "events_waiting", "gauge", "Events that the caller has not taken.",
        now->events_waiting);
}

static void write_seconds(const node_metrics *metrics, base_text *text)
{
    head(text, "transfer_seconds", "histogram", "From the offer or the ask to the end.");
    for (int side = 0; side < 2; side++) {
        uint64_t total = 0;
        for (int i = 0; i <= NODE_METRICS_BUCKETS; i++) {
            total += metrics->seconds[side].buckets[i];
            base_text_append(text, "kvferry_transfer_seconds_bucket{side=\"%s\",le=\"",
                             sides[side]);
            if (i < NODE_METRICS_BUCKETS)
                base_text_append(text, "%g", bounds[i]);
            else
                base_text_append(text, "+Inf");
            base_text_append(text, "\"} %" PRIu64 "\n", total);
        }
        base_text_append(text, "kvferry_transfer_seconds_sum{side=\"%s\"} %.9f\n", sides[side],
                         (double)metrics->seconds[side].sum_ns / 1e9);
        base_text_append(text, "kvferry_transfer_seconds_count{side=\"%s\"} %" PRIu64 "\n",
                         sides[side], metrics->seconds[side].count);
    }
}

static void write_column(base_text *text, const char *name, const char *help, const node_codes *codes,
                         size_t column)
{
    head(text, name, "counter", help);
    for (size_t i = 0; i <= NODE_CODES; i++)
        if (codes->of[i].count[column])
            base_text_append(text, "kvferry_%s{code=\"%s\"} %" PRIu64 "\n", name, codes->of[i].code,
                             codes->of[i].count[column]);
}

static void write_codes(const node_metrics *metrics, base_text *text)
{
    head(text, "transfers_failed_total", "counter",
         "Transfers that did not end well, by the reason's code.");
    for (size_t i = 0; i <= NODE_CODES; i++)
        for (int side = 0; side < 2; side++)
            if (metrics->ended.of[i].count[side])
                base_text_append(
                    text, "kvferry_transfers_failed_total{side=\"%s\",code=\"%s\"} %" PRIu64 "\n",
                    sides[side], metrics->ended.of[i].code, metrics->ended.of[i].count[side]);
    write_column(text, "disconnects_total",
                 "Handshakes that failed and engines that were lost, by code.", &metrics->ended, 2);
    write_column(text, "refused_total",
                 "Calls, asks and handshakes that were refused, on either side, by code.",
                 &metrics->refused, 0);
}

void node_metrics_write(node_metrics *metrics, const char *labels, base_text *text)
{
    kvferry_node_statistics now;
    node_metrics_read(metrics, &now);
    head(text, "node_info", "gauge", "What this node is; always 1.");
    base_text_append(text, "kvferry_node_info{%s} 1\n", labels);
    write_transfers(&now, text);
    write_control(&now, text);
    pthread_mutex_lock(&metrics->lock);
    write_seconds(metrics, text);
    write_codes(metrics, text);
    pthread_mutex_unlock(&metrics->lock);
}
