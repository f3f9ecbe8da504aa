/* SPDX-License-Identifier: Apache-2.0 */
/* The node's thread: it waits, looks at sockets and engine, tells the core, and does what that asks
 * for. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/node_internal.h"

enum {
    THREAD_MESSAGES = 64, /* at a time, so that the engine has its turn, too */
    THREAD_MESSAGE_BYTES = 64 * 1024, /* with the lock held; one may have more */
    THREAD_EVENTS = 64,
    THREAD_YIELDS = 100, /* for callers to go first */
    THREAD_BYE_MS = 700  /* for writes to end and farewells to go out */
};

typedef struct thread_message {
    core_link link;
    zmq_msg_t data;
} thread_message;

/* One turn of the loop. */
typedef struct thread_turn {
    kvferry_node *node;
    thread_message messages[THREAD_MESSAGES];
    size_t message_count;
    uint64_t next; /* when the core or anything else is due */
    bool busy;     /* there is more to do at once */
    bool said_bye;
    uint64_t bye_end;
    kvferry_report *report;
} thread_turn;

/* Callers go first: the thread comes back soon enough. */
static void enter(kvferry_node *node)
{
    for (int i = 0; i < THREAD_YIELDS && atomic_load(&node->callers); i++)
        sched_yield();
    pthread_mutex_lock(&node->lock);
}

/* --- what happened ---------------------------------------------------------------------------- */

static void receive(thread_turn *turn)
{
    kvferry_node *node = turn->node;
    turn->message_count = 0;
    while (turn->message_count < THREAD_MESSAGES &&
           node_links_receive(node->links, &turn->messages[turn->message_count].link,
                              &turn->messages[turn->message_count].data))
        turn->message_count++;
    atomic_store(&node->malformed, node_links_malformed(node->links));
    atomic_store(&node->refused_keys, node_links_refused_keys(node->links));
    atomic_store(&node->refused_connections, node_links_refused_connections(node->links));
}

/* Calls of the program come in between large ones. */
static void take_messages(thread_turn *turn, uint64_t now)
{
    size_t bytes = 0;
    for (size_t i = 0; i < turn->message_count; i++) {
        zmq_msg_t *data = &turn->messages[i].data;
        bytes += zmq_msg_size(data);
        if (i && bytes > THREAD_MESSAGE_BYTES) {
            node_leave(turn->node);
            enter(turn->node);
            bytes = zmq_msg_size(data);
        }
        core_received(turn->node->core, turn->messages[i].link, node_links_key(data),
                      node_links_place(data), zmq_msg_data(data), zmq_msg_size(data), now);
        zmq_msg_close(data);
    }
}

static void take_ends(kvferry_node *node, uint64_t now)
{
    core_link link;
    core_link_end how;
    node_write_end end;
    uint64_t peer;
    while (node_links_next_end(node->links, &link, &how))
        core_link_ended(node->core, link, how, now);
    while (node_writes_next_end(node->writes, &end))
        core_write_ended(node->core, end.write, end.status, end.detail, now);
    while (node_writes_next_lost(node->writes, &peer))
        core_peer_lost(node->core, peer, "the engine lost the connection", now);
}

static void tell_place(kvferry_node *node, const node_answer *answer)
{
    char text[NODE_ADDRESS_TEXT];
    if (answer->status != KVFERRY_OK)
        return;
    node_address_format(&answer->address, NODE_ADDRESS_TCP, text);
    core_link_at(node->core, answer->id, text);
}

static void take_answer(kvferry_node *node, node_answer *answer, uint64_t now)
{
    switch (answer->kind) {
    case NODE_ANSWER_QUERY:
        if (answer->status == KVFERRY_OK && answer->count)
            answer->status =
                node_check_address(node, answer->addresses[0], answer->engine_id, answer->report);
        core_resolved(node->core, answer->id, answer->status, answer->engine_id, answer->addresses,
                      answer->count, answer->report, now);
        break;
    case NODE_ANSWER_NAME:
        tell_place(node, answer);
        node_leave(node); /* the list of allowed keys may be read */
        node_links_named(node->links, answer->id,
                         answer->status == KVFERRY_OK ? &answer->address : NULL, answer->detail);
        enter(node);
        break;
    case NODE_ANSWER_LEADER:
        if (answer->leader)
            core_set_leader(node->core, answer->leader, now, NULL);
        break;
    case NODE_ANSWER_TROUBLE:
        node_log_add(&node->log, KVFERRY_LOG_WARNING, answer->detail);
        break;
    }
    node_answer_free(answer);
}

static void take_answers(kvferry_node *node, uint64_t now)
{
    node_answer *answer;
    while (node->resolver && (answer = node_resolver_next(node->resolver)))
        take_answer(node, answer, now);
}

/* --- effects ---------------------------------------------------------------------------------- */

static const char *first_reason(const kvferry_report *report, kvferry_status status)
{
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    return reason ? reason->message : kvferry_status_describe(status);
}

static void open_link(kvferry_node *node, const core_effect *effect)
{
    const core_link link = effect->link;
    char text[WIRE_MAX_ADDRESS + 1]; /* the core's own may move while the lock is not held */
    node_address address;
    snprintf(text, sizeof(text), "%s", effect->address);
    node_leave(node); /* the list of allowed keys may be read */
    node_links_opening opening = node_links_open(node->links, link, text, &address);
    enter(node);
    if (opening != NODE_LINKS_NEEDS_NAME)
        return;
    if (!node->resolver || node_resolver_name(node->resolver, link, &address) != KVFERRY_OK)
        node_links_named(node->links, link, NULL, "no memory to look the name up");
}

static void resolve(kvferry_node *node, const core_effect *effect)
{
    kvferry_status status = KVFERRY_CANCELED;
    if (node->resolver)
        status =
            node_resolver_query(node->resolver, effect->query, effect->address, effect->engine_id);
    if (status != KVFERRY_OK)
        core_resolved(node->core, effect->query, status, "", NULL, 0, NULL, node_now());
}

static void connect_peer(thread_turn *turn, const core_effect *effect)
{
    kvferry_node *node = turn->node;
    const uint64_t peer = effect->peer;
    const size_t size = effect->size;
    void *binding =
        malloc(size ? size : 1); /* the core's own may move while the lock is not held */
    kvferry_status status = KVFERRY_NO_MEMORY;
    if (binding) {
        if (size)
            memcpy(binding, effect->data, size);
        node_leave(node);
        status = node_writes_connect(node->writes, peer, binding, size, turn->report);
        enter(node);
    }
    free(binding);
    if (status != KVFERRY_OK)
        core_peer_refused(node->core, peer, status, turn->report, node_now());
}

static void begin_write(thread_turn *turn, const core_effect *effect)
{
    kvferry_node *node = turn->node;
    const core_effect write = *effect; /* its copies stay */
    node_leave(node);
    kvferry_status status = node_writes_begin(node->writes, write.write, write.peer, write.copies,
                                              write.count, write.deadline_ns, turn->report);
    enter(node);
    if (status != KVFERRY_OK)
        core_write_ended(node->core, write.write, status, first_reason(turn->report, status),
                         node_now());
}

/* What the engine does is done without the lock, since it may take time. */
static void perform(thread_turn *turn, const core_effect *effect)
{
    kvferry_node *node = turn->node;
    const uint64_t peer = effect->peer, write = effect->write;
    switch (effect->kind) {
    case CORE_OPEN_LINK:
        open_link(node, effect);
        break;
    case CORE_CLOSE_LINK:
        node_links_close_one(node->links, effect->link);
        if (node->resolver)
            node_resolver_forget(node->resolver, effect->link);
        break;
    case CORE_SEND:
        node_links_send(node->links, effect->link, effect->data, effect->size);
        break;
    case CORE_RESOLVE:
        resolve(node, effect);
        break;
    case CORE_CONNECT_PEER:
        connect_peer(turn, effect);
        break;
    case CORE_CLOSE_PEER:
        node_leave(node);
        node_writes_close_peer(node->writes, peer);
        enter(node);
        break;
    case CORE_WRITE:
        begin_write(turn, effect);
        break;
    case CORE_CANCEL_WRITE:
        node_leave(node);
        node_writes_cancel(node->writes, write);
        enter(node);
        break;
    }
    kvferry_report_clear(turn->report);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* False: all is over. */
static bool take_turn(thread_turn *turn)
{
    kvferry_node *node = turn->node;
    core_effect effect;
    uint64_t now = node_now();
    node_links_turn(node->links, now);
    node_writes_turn(node->writes, now);
    receive(turn);
    enter(node);
    take_messages(turn, now);
    take_ends(node, now);
    take_answers(node, now);
    core_tick(node->core, now);
    if (node->closing && !turn->said_bye) {
        turn->said_bye = true;
        turn->bye_end = now + node_ns(THREAD_BYE_MS);
        core_bye(node->core, now);
    }
    while (core_next_effect(node->core, &effect))
        perform(turn, &effect);
    turn->next = core_next_time(node->core);
    bool closing = turn->said_bye;
    node_leave(node);
    turn->busy = node_links_busy(node->links) || node_writes_busy(node->writes);
    bool rest = node_writes_count(node->writes) || node_links_pending(node->links);
    return !closing || (rest && now < turn->bye_end);
}

static int milliseconds_until(uint64_t time)
{
    uint64_t now = node_now();
    if (time <= now)
        return 0;
    if (time == UINT64_MAX)
        return -1;
    return (int)base_min(base_ceil_div(time - now, 1000000), 3600000);
}

static void wait_for_something(thread_turn *turn)
{
    kvferry_node *node = turn->node;
    struct epoll_event events[THREAD_EVENTS];
    uint64_t next = base_min(turn->next, node_links_next_time(node->links));
    next = base_min(next, node_writes_next_time(node->writes, node_now()));
    if (turn->said_bye)
        next = base_min(next, turn->bye_end);
    /* Who wakes the thread after this is seen by the descriptor. */
    bool called = atomic_exchange(&node->awake, false);
    int timeout = turn->busy || called ? 0 : milliseconds_until(next);
    int count = epoll_wait(node->epoll, events, THREAD_EVENTS, timeout);
    for (int i = 0; i < count; i++) {
        node_watch *watch = events[i].data.ptr;
        watch->ready(watch);
    }
    if (turn->busy)
        sched_yield(); /* an engine that spins lets its peer on this core go on */
}

void *node_run(void *context)
{
    kvferry_node *node = context;
    thread_turn *turn = base_alloc(1, sizeof(*turn));
    while (!turn || (!turn->report && kvferry_report_create(&turn->report) != KVFERRY_OK)) {
        usleep(1000);
        turn = turn ? turn : base_alloc(1, sizeof(*turn));
    }
    turn->node = node;
    while (take_turn(turn)) {
        node_log_flush(&node->log);
        wait_for_something(turn);
    }
    node_log_flush(&node->log);
    kvferry_report_free(turn->report);
    free(turn);
    return NULL;
}

/* --- the lock --------------------------------------------------------------------------------- */

void node_enter(kvferry_node *node)
{
    atomic_fetch_add(&node->callers, 1);
    pthread_mutex_lock(&node->lock);
    atomic_fetch_sub(&node->callers, 1);
}

static bool room_for_event(node_events *events)
{
    if (events->first == events->end)
        events->first = events->end = 0;
    if (events->first && events->end == events->capacity) {
        memmove(events->items, events->items + events->first,
                (events->end - events->first) * sizeof(kvferry_event *));
        events->end -= events->first;
        events->first = 0;
    }
    return base_grow((void **)&events->items, &events->capacity, events->end + 1,
                     sizeof(kvferry_event *));
}

static void take_over_events(kvferry_node *node)
{
    node_events *events = &node->events;
    while (core_events_waiting(node->core) && room_for_event(events)) {
        kvferry_event *event = core_next_event(node->core);
        node_metrics_count(&node->metrics, event);
        events->items[events->end++] = event;
    }
}

/* After all is published that who is woken may look at. */
static void signal_events(kvferry_node *node)
{
    node_events *events = &node->events;
    bool any = events->end > events->first || core_events_waiting(node->core);
    uint64_t count = 1;
    if (any != events->signaled &&
        (any ? write(node->events_fd, &count, sizeof(count))
             : read(node->events_fd, &count, sizeof(count))) == sizeof(count))
        events->signaled = any;
}

void node_leave(kvferry_node *node)
{
    kvferry_node_statistics now;
    take_over_events(node);
    core_driver_counts(node->core, atomic_load(&node->malformed), atomic_load(&node->refused_keys),
                       atomic_load(&node->refused_connections), node->events.end - node->events.first);
    core_get_statistics(node->core, &now);
    if (now.refused != node->refused) {
        node->refused = now.refused;
        node_metrics_refused(&node->metrics, core_refusals(node->core));
    }
    node_metrics_publish(&node->metrics, &now);
    signal_events(node);
    if (core_idle(node->core))
        pthread_cond_broadcast(&node->idle);
    pthread_mutex_unlock(&node->lock);
}

void node_wake(kvferry_node *node)
{
    const uint64_t one = 1;
    if (!atomic_exchange(&node->awake, true))
        while (write(node->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
            ;
}

void node_leave_and_wake(kvferry_node *node)
{
    node_leave(node);
    node_wake(node);
}
