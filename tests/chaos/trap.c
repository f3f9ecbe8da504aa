/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills or stops this process at a message. The linker (--wrap) lets the node's calls of the two functions that make and
 * read messages come by here; the library knows nothing of it.
 */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "wire/wire.h"

#include "orders.h"

kvferry_status __real_wire_decode(const void *data, size_t size, wire_message *message, kvferry_report *report);
kvferry_status __wrap_wire_decode(const void *data, size_t size, wire_message *message, kvferry_report *report);
kvferry_status __real_wire_encode(const wire_message *message, void **data, size_t *size);
kvferry_status __wrap_wire_encode(const wire_message *message, void **data, size_t *size);

static trap set[TRAPS];
static unsigned now;     /* the one that is next */
static atomic_uint left; /* messages until it acts; 0: it does not */

void trap_set(const trap traps[TRAPS])
{
    atomic_store(&left, 0);
    memcpy(set, traps, sizeof(set));
    now = 0;
    atomic_store(&left, set[now].nth);
}

/* A node makes and reads its messages under its lock: one at a time. */
static void pass(bool receives, wire_type type)
{
    if (!atomic_load(&left) || set[now].receives != receives || set[now].type != (uint32_t)type ||
        atomic_fetch_sub(&left, 1) != 1)
        return;
    int signal = set[now++].signal;
    if (now < TRAPS)
        atomic_store(&left, set[now].nth);
    raise(signal); /* does not come back before it is done */
}

kvferry_status __wrap_wire_decode(const void *data, size_t size, wire_message *message, kvferry_report *report)
{
    kvferry_status status = __real_wire_decode(data, size, message, report);
    if (status == KVFERRY_OK)
        pass(true, message->type);
    return status;
}

kvferry_status __wrap_wire_encode(const wire_message *message, void **data, size_t *size)
{
    pass(false, message->type);
    return __real_wire_encode(message, data, size);
}
