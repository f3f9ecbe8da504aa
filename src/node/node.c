/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions: arguments checked, the core called under the lock, the thread woken. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/node_internal.h"

uint64_t node_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t node_ns(uint64_t milliseconds)
{
    uint64_t nanoseconds;
    return base_mul(milliseconds, 1000000, &nanoseconds) ? nanoseconds : UINT64_MAX;
}

/* --- life ------------------------------------------------------------------------------------- */

kvferry_status kvferry_node_drain(kvferry_node *node, uint64_t timeout_ms)
{
    uint64_t end;
    if (!node)
        return KVFERRY_INVALID;
    if (!base_add(node_now(), node_ns(timeout_ms), &end))
        end = UINT64_MAX;
    const struct timespec until = {.tv_sec = (time_t)(end / 1000000000u),
                                   .tv_nsec = (long)(end % 1000000000u)};
    node_enter(node);
    core_drain(node->core);
    int waited = 0;
    while (!core_idle(node->core) && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&node->idle, &node->lock, &until);
    bool idle = core_idle(node->core);
    node_leave_and_wake(node);
    return idle ? KVFERRY_OK : KVFERRY_TIMEOUT;
}

void *kvferry_node_segment_address(const kvferry_node *node, uint32_t segment)
{
    return node && segment < node->segment_count ? node->segments[segment] : NULL;
}

const char *kvferry_node_address(const kvferry_node *node)
{
    return node ? node->address : "";
}
const char *kvferry_node_bootstrap(const kvferry_node *node)
{
    return node ? node->bootstrap : "";
}
const char *kvferry_node_metrics(const kvferry_node *node)
{
    return node ? node->metrics_address : "";
}
const char *kvferry_node_incarnation(const kvferry_node *node)
{
    return node ? node->incarnation : "";
}

kvferry_status kvferry_node_set_leader(kvferry_node *node, const char *address,
                                       kvferry_report *report)
{
    if (!node || !address)
        return KVFERRY_INVALID;
    kvferry_status status = node_check_address(node, address, "leader", report);
    if (status != KVFERRY_OK)
        return status;
    node_enter(node);
    status = core_set_leader(node->core, address, node_now(), report);
    node_leave_and_wake(node);
    return status;
}

/* --- peers ------------------------------------------------------------------------------------ */

kvferry_status node_check_address(const kvferry_node *node, const char *text, const char *place,
                                  kvferry_report *report)
{
    node_address address;
    if (!node_address_parse(text, NODE_ADDRESS_TCP, &address, place, report))
        return KVFERRY_INVALID;
    if (address.has_key != (node->allowed != NULL)) {
        base_report_add(report, "address_key", &(base_where){.place = place},
                        node->allowed ? "an address with a key behind it, as this node has keys"
                                      : "an address without a key, as this node has none",
                        base_format("\"%.200s\"", text), "the two sides cannot talk");
        return KVFERRY_REFUSED;
    }
    if (!node->allowed && !node->insecure && !node_address_is_loopback(&address)) {
        base_report_add(report, "address_insecure", &(base_where){.place = place},
                        "keys (key_file), a loopback address, or the option insecure",
                        base_format("\"%.200s\"", text), "this node does not know whom it would talk to");
        return KVFERRY_REFUSED;
    }
    return KVFERRY_OK;
}

static kvferry_status check_where(const kvferry_node *node, const char *where,
                                  kvferry_report *report)
{
    static const char file[] = "file:", http[] = "http:";
    node_address address;
    if (!*where)
        return KVFERRY_OK;
    if (strncmp(where, file, sizeof(file) - 1) == 0 && where[sizeof(file) - 1])
        return KVFERRY_OK;
    if (strncmp(where, http, sizeof(http) - 1) == 0)
        return node_address_parse(where, NODE_ADDRESS_HTTP, &address, "where", report)
                   ? KVFERRY_OK
                   : KVFERRY_INVALID;
    return node_check_address(node, where, "where", report);
}

kvferry_status kvferry_node_connect(kvferry_node *node, const char *engine_id, const char *where,
                                    kvferry_report *report)
{
    if (!node || !engine_id || !where)
        return KVFERRY_INVALID;
    kvferry_status status = check_where(node, where, report);
    if (status != KVFERRY_OK)
        return status;
    node_enter(node);
    status = core_connect(node->core, engine_id, where, node_now(), report);
    node_leave_and_wake(node);
    return status;
}

kvferry_status kvferry_node_declare_dead(kvferry_node *node, const char *incarnation,
                                         kvferry_report *report)
{
    if (!node || !incarnation)
        return KVFERRY_INVALID;
    node_enter(node);
    kvferry_status status = core_declare_dead(node->core, incarnation, node_now(), report);
    node_leave_and_wake(node);
    return status;
}

/* --- transfers -------------------------------------------------------------------------------- */

static bool valid_tables(const kvferry_block_table *tables, size_t count)
{
    if (!tables && count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!tables[i].group || (!tables[i].blocks && tables[i].block_count))
            return false;
    return true;
}

kvferry_status kvferry_node_expect(kvferry_node *node, const char *transfer_id,
                                   kvferry_report *report)
{
    if (!node || !transfer_id)
        return KVFERRY_INVALID;
    node_enter(node);
    kvferry_status status = core_expect(node->core, transfer_id, node_now(), report);
    node_leave_and_wake(node);
    return status;
}

kvferry_status kvferry_node_offer(kvferry_node *node, const kvferry_offer *offer,
                                  kvferry_report *report)
{
    kvferry_offer known = {0};
    if (!node || !offer || offer->size < offsetof(kvferry_offer, context))
        return KVFERRY_INVALID;
    memcpy(&known, offer, base_min(offer->size, sizeof(known)));
    known.size = sizeof(known);
    if (!known.transfer_id || !valid_tables(known.tables, known.table_count) ||
        (known.readiness != KVFERRY_READY && known.readiness != KVFERRY_NOT_READY))
        return KVFERRY_INVALID;
    node_enter(node);
    kvferry_status status = core_offer(node->core, &known, node_now(), report);
    node_leave_and_wake(node);
    return status;
}

kvferry_status kvferry_node_ready(kvferry_node *node, const char *transfer_id)
{
    if (!node || !transfer_id)
        return KVFERRY_INVALID;
    node_enter(node);
    kvferry_status status = core_ready(node->core, transfer_id, node_now());
    node_leave_and_wake(node);
    return status;
}

kvferry_status kvferry_node_ask(kvferry_node *node, const kvferry_ask *ask, kvferry_report *report)
{
    kvferry_ask known = {0};
    if (!node || !ask || ask->size < offsetof(kvferry_ask, timeout_ms))
        return KVFERRY_INVALID;
    memcpy(&known, ask, base_min(ask->size, sizeof(known)));
    known.size = sizeof(known);
    known.engine_id = known.engine_id ? known.engine_id : "";
    known.where = known.where ? known.where : "";
    if (!known.transfer_id || !valid_tables(known.tables, known.table_count))
        return KVFERRY_INVALID;
    kvferry_status status = check_where(node, known.where, report);
    if (status != KVFERRY_OK)
        return status;
    node_enter(node);
    status = core_ask(node->core, &known, node_now(), report);
    node_leave_and_wake(node);
    return status;
}

kvferry_status kvferry_node_renew(kvferry_node *node, const char *engine_id,
                                  const char *transfer_id, kvferry_report *report)
{
    if (!node || !engine_id || !transfer_id)
        return KVFERRY_INVALID;
    node_enter(node);
    kvferry_status status = core_renew(node->core, engine_id, transfer_id, node_now(), report);
    node_leave_and_wake(node);
    return status;
}

kvferry_status kvferry_node_abort(kvferry_node *node, kvferry_side side, const char *transfer_id)
{
    if (!node || !transfer_id || (side != KVFERRY_SIDE_PREFILL && side != KVFERRY_SIDE_DECODE))
        return KVFERRY_INVALID;
    node_enter(node);
    kvferry_status status = core_abort(node->core, side, transfer_id, node_now());
    node_leave_and_wake(node);
    return status;
}

/* --- events ----------------------------------------------------------------------------------- */

kvferry_event *kvferry_node_next_event(kvferry_node *node)
{
    if (!node)
        return NULL;
    node_enter(node);
    node_events *events = &node->events;
    kvferry_event *event = NULL;
    if (events->first < events->end)
        event = events->items[events->first++];
    node_leave(node);
    return event;
}

int kvferry_node_fd(const kvferry_node *node)
{
    return node ? node->events_fd : -1;
}

kvferry_status kvferry_node_wait(kvferry_node *node, uint64_t timeout_ms)
{
    uint64_t end;
    if (!node)
        return KVFERRY_INVALID;
    if (!base_add(node_now(), node_ns(timeout_ms), &end))
        end = UINT64_MAX;
    for (;;) {
        struct pollfd wait = {.fd = node->events_fd, .events = POLLIN};
        uint64_t now = node_now();
        uint64_t left = now < end ? base_ceil_div(end - now, 1000000) : 0;
        if (poll(&wait, 1, (int)base_min(left, INT_MAX)) > 0)
            return KVFERRY_OK;
        if (node_now() >= end)
            return KVFERRY_TIMEOUT;
    }
}

/* --- looking ---------------------------------------------------------------------------------- */

void kvferry_node_get_statistics(const kvferry_node *node, kvferry_node_statistics *statistics)
{
    if (!statistics)
        return;
    if (node)
        node_metrics_read(&node->metrics, statistics);
    else
        *statistics = (kvferry_node_statistics){0};
}

kvferry_status kvferry_node_status(const kvferry_node *node, char **text, size_t *size)
{
    base_text json = {0};
    if (!node || !text || !size)
        return KVFERRY_INVALID;
    kvferry_node *mine = (kvferry_node *)(uintptr_t)node;
    node_enter(mine);
    kvferry_status status = core_status(mine->core, node_now(), &json);
    node_leave(mine);
    if (status == KVFERRY_OK && json.failed)
        status = KVFERRY_NO_MEMORY;
    if (status != KVFERRY_OK) {
        free(json.data);
        return status;
    }
    *text = json.data;
    *size = json.size;
    return KVFERRY_OK;
}
