/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending. A peer that asks and does not read must not make a node hold what it asked for without
 * a bound, and ZeroMQ counts messages only, so their bytes are counted here: from node_links_send
 * until ZeroMQ has given them to the kernel, or up.
 */
#include "node/links_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    LINK_MESSAGES = 2, /* of the greatest size, that one link may hold */
    ALL_MESSAGES = 8,  /* and all together */
    PARCEL_COST = 256  /* of a message, beside its bytes */
};

typedef struct parcel { /* what a message of ZeroMQ points to */
    _Atomic(links_debt *) debt; /* set last, read first: orders the threads for tools that do not see into ZeroMQ */
    size_t size;
    unsigned char data[];
} parcel;

/* --- what is held ----------------------------------------------------------------------------- */

links_debt *links_debt_create(node_links *links)
{
    links_debt *debt = base_alloc(1, sizeof(*debt));
    if (!debt)
        return NULL;
    atomic_init(&debt->bytes, 0);
    atomic_init(&debt->users, 1);
    debt->links = links;
    return debt;
}

void links_debt_release(links_debt *debt)
{
    if (debt && atomic_fetch_sub(&debt->users, 1) == 1)
        free(debt);
}

/*
 * A link may hold as much as is left for others: few that do not read leave room to all, and the
 * more there are, the less each of them has.
 */
static bool has_room(const links_link *link, size_t size)
{
    const node_links *links = link->links;
    uint64_t longest = base_min(links->options.max_message_bytes, INT64_MAX / ALL_MESSAGES);
    uint64_t held = atomic_load(&link->debt->bytes) + size + PARCEL_COST;
    uint64_t all = node_links_held(links);
    uint64_t most = ALL_MESSAGES * longest;
    return held <= LINK_MESSAGES * longest && all < most && held <= most - all;
}

uint64_t node_links_held(const node_links *links)
{
    return atomic_load(&links->debt);
}

/* In any thread. */
static void free_parcel(void *data, void *hint)
{
    (void)data;
    parcel *made = hint;
    links_debt *debt = atomic_load(&made->debt);
    atomic_fetch_sub(&debt->bytes, made->size + PARCEL_COST);
    atomic_fetch_sub(&debt->links->debt, made->size + PARCEL_COST);
    links_debt_release(debt);
    free(made);
}

static bool make_message(links_link *link, const void *data, size_t size, zmq_msg_t *message)
{
    parcel *made = malloc(sizeof(*made) + size);
    if (!made)
        return false;
    made->size = size;
    if (size)
        memcpy(made->data, data, size);
    atomic_fetch_add(&link->debt->bytes, size + PARCEL_COST);
    atomic_fetch_add(&link->links->debt, size + PARCEL_COST);
    atomic_fetch_add(&link->debt->users, 1);
    atomic_init(&made->debt, NULL);
    atomic_store(&made->debt, link->debt);
    if (zmq_msg_init_data(message, made->data, size, free_parcel, made) == 0)
        return true;
    free_parcel(NULL, made);
    return false;
}

/* --- sending ---------------------------------------------------------------------------------- */

static int try_send(links_link *link, zmq_msg_t *message)
{
    return link->incoming ? links_in_send(link, message) : links_out_send(link, message);
}

static void log_dropped(const links_link *link, size_t size)
{
    link->links->options.log(link->links->options.log_context, KVFERRY_LOG_DEBUG,
                             "a message to a slow peer was dropped: link %llu, %zu bytes",
                             (unsigned long long)link->id, size);
}

static void wait_to_send(links_link *link, zmq_msg_t *message)
{
    links_message *kept = malloc(sizeof(*kept));
    if (!kept) {
        log_dropped(link, zmq_msg_size(message));
        return;
    }
    zmq_msg_init(&kept->message);
    zmq_msg_move(&kept->message, message);
    DL_APPEND(link->waiting, kept);
    if (!link->waits)
        DL_APPEND2(link->links->waits, link, wait_prev, wait_next);
    link->waits = true;
}

void node_links_send(node_links *links, core_link id, const void *data, size_t size)
{
    links_link *link = links_find(links, id);
    zmq_msg_t message;
    if (!link || link->ended)
        return;
    if (!has_room(link, size) || !make_message(link, data, size, &message)) {
        log_dropped(link, size);
        return;
    }
    if (link->waits || try_send(link, &message) == 0)
        wait_to_send(link, &message);
    zmq_msg_close(&message);
}

void links_drop_waiting(links_link *link)
{
    links_message *message, *next;
    DL_FOREACH_SAFE(link->waiting, message, next)
    {
        zmq_msg_close(&message->message);
        free(message);
    }
    link->waiting = NULL;
    if (link->waits)
        DL_DELETE2(link->links->waits, link, wait_prev, wait_next);
    link->waits = false;
}

void links_send_waiting(links_link *link)
{
    while (link->waiting && !link->ended) {
        links_message *first = link->waiting;
        if (try_send(link, &first->message) == 0)
            return;
        DL_DELETE(link->waiting, first);
        zmq_msg_close(&first->message);
        free(first);
    }
    links_drop_waiting(link);
}
