/* SPDX-License-Identifier: Apache-2.0 */
#include "moments.h"

#include <signal.h>
#include <string.h>

#include <kvferry/node.h>
#include <zmq.h>

#include "test.h"

enum { SLOT = 0, SLOT_BEFORE = 1 };

static void set_trap(fall *now) { fleet_trap(now->all, now->victim, &now->trap, 1); }

/* Stops the worker at a message on the way to the fall; if it is the victim, its trap is set from then on. */
static void set_stop(fall *now, size_t member, wire_type type, bool receives)
{
    const trap stop = {.type = type, .receives = receives, .nth = 1, .signal = SIGSTOP};
    const trap both[] = {stop, now->trap};
    fleet_trap(now->all, member, both, member == now->victim ? 2 : 1);
}

static bool is_prefill(const fall *now) { return now->victim < now->all->prefills; }

/* The first worker of the other side. */
static size_t opposite(const fall *now) { return is_prefill(now) ? now->all->prefills : 0; }

/* All have shaken hands. */
static void begin(fall *now)
{
    fleet_check_fresh(now->all, SLOT_BEFORE);
    now->request = fleet_request(now->all);
}

/* A transfer that was offered, and is not asked for yet. */
static void offer(fall *now)
{
    begin(now);
    now->unasked = true;
    fleet_order(now->all, now->request, SLOT, 0, now->all->prefills);
}

/* A transfer that was asked for, and whose blocks are not ready. */
static void park(fall *now)
{
    begin(now);
    fleet_park(now->all, now->request, SLOT);
    fleet_order(now->all, now->request, SLOT, now->all->prefills, now->all->count);
}

void moment_go_on(fall *now)
{
    fleet *all = now->all;
    for (size_t i = 0; i < all->count; i++) {
        if (!fleet_is_living(all, i))
            continue;
        if (i < all->prefills && all->members[i].entries[now->request].ordered)
            fleet_tell_of(all, i, ORDER_READY, now->request);
        else if (i >= all->prefills && now->unasked && !all->members[i].entries[now->request].ordered)
            fleet_order(all, now->request, SLOT, i, i + 1);
    }
}

void moment_transfer(fall *now)
{
    fleet *all = now->all;
    now->request = fleet_request(all);
    fleet_order(all, now->request, SLOT, 0, all->prefills);
    set_trap(now);
    fleet_order(all, now->request, SLOT, all->prefills, all->count);
    fleet_await_trap(all, now->victim);
    /* Of two readers one may not have asked. */
    now->may_write = is_prefill(now) && now->trap.type >= WIRE_ASK && all->prefills == 2;
}

void moment_restart(fall *now)
{
    size_t first = is_prefill(now) ? 0 : now->all->prefills;
    size_t other = now->victim == first ? first + 1 : first;
    park(now);
    set_trap(now);
    fleet_end(now->all, other);
    fleet_start(now->all, other);
    fleet_await_trap(now->all, now->victim);
}

void moment_renewal(fall *now)
{
    fleet *all = now->all;
    offer(now);
    set_trap(now);
    fleet_tell_of(all, all->prefills, ORDER_RENEW, now->request);
    fleet_await_trap(all, now->victim);
    now->may_write = is_prefill(now);
}

/* One sends PING, since the other was stopped by a message and is silent, and gets PONG when that goes on. */
static void ping(fall *now, size_t asks, size_t silent)
{
    fleet *all = now->all;
    bool at_once = now->victim == asks && now->trap.type == WIRE_PING;
    fleet_await_trap(all, silent);
    if (at_once)
        set_trap(now);
    else
        set_stop(now, asks, WIRE_PING, false);
    fleet_await_trap(all, asks);
    if (!at_once)
        fleet_continue(all, asks);
    fleet_continue(all, silent);
    if (!at_once)
        fleet_await_trap(all, now->victim);
    now->may_write = is_prefill(now);
}

void moment_prefill_asks(fall *now)
{
    park(now);
    set_stop(now, now->all->prefills, WIRE_VERDICT, true); /* it waits: each ask is answered */
    ping(now, 0, now->all->prefills);
}

/* Who waits for what it asked repeats that instead of a ping, so nothing is asked for yet. */
void moment_decode_asks(fall *now)
{
    offer(now);
    set_stop(now, 0, WIRE_RENEW, true);
    fleet_tell_of(now->all, now->all->prefills, ORDER_RENEW, now->request);
    ping(now, now->all->prefills, 0);
}

void moment_leave(fall *now)
{
    fleet *all = now->all;
    park(now);
    set_trap(now);
    now->closes = !now->trap.receives;
    now->may_write = is_prefill(now) && now->closes;
    size_t goes = now->closes ? now->victim : opposite(now);
    fleet_leave(all, goes);
    fleet_await_trap(all, now->victim);
    if (goes == now->victim)
        return;
    fleet_await_end(all, goes);
    fleet_start(all, goes);
}

/*
 * The decode worker stops when the last word that it waits for has come: it does not find, when it goes on, that it was
 * waiting for long. So it repeats what it asked.
 */
void moment_forgotten(fall *now)
{
    fleet *all = now->all;
    size_t decode = all->prefills;
    park(now);
    set_stop(now, decode, WIRE_VERDICT, true);
    fleet_await_trap(all, decode);
    for (size_t i = decode + 1; i < all->count; i++)
        fleet_stop(all, i);
    fleet_await(all, now->request, 0, all->prefills, true);
    if (is_prefill(now))
        set_trap(now);
    for (size_t i = decode; i < all->count; i++)
        fleet_continue(all, i);
    fleet_await_trap(all, now->victim);
    now->may_write = is_prefill(now);
}

/* --- somebody who is no worker --------------------------------------------------------------------- */

/* Tells it to the victim, which falls by it. */
static void say_now(fall *now, wire_message *message)
{
    const int none = 0;
    void *data, *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    size_t size;
    set_trap(now);
    message->major = message->major ? message->major : WIRE_MAJOR;
    message->engine_id = message->engine_id ? message->engine_id : "";
    message->transfer_id = "";
    assert_int_equal(wire_encode(message, &data, &size), KVFERRY_OK);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none)), 0);
    assert_int_equal(zmq_connect(socket, now->all->members[now->victim].setup.address), 0);
    assert_int_equal(zmq_send(socket, data, size, 0), (int)size);
    fleet_await_trap(now->all, now->victim);
    zmq_close(socket);
    zmq_ctx_term(context);
    free(data);
    now->may_write = is_prefill(now);
}

static void say(fall *now, wire_message *message)
{
    park(now);
    say_now(now, message);
}

void moment_question(fall *now)
{
    say(now, &(wire_message){.type = WIRE_STATUS});
}

static void read_incarnation(const char *address, char incarnation[WIRE_INCARNATION_TEXT])
{
    static const char before[] = "\"incarnation\":\"";
    char *text;
    size_t size;
    assert_int_equal(kvferry_node_query(address, "", PATIENCE_MS, &text, &size, NULL), KVFERRY_OK);
    const char *at = strstr(text, before); /* the first is its own */
    assert_non_null(at);
    memcpy(incarnation, at + strlen(before), WIRE_INCARNATION_TEXT - 1);
    kvferry_free(text);
}

void moment_word(fall *now)
{
    fleet *all = now->all;
    size_t other = opposite(now);
    wire_message message = {.type = WIRE_DECLARE_DEAD};
    park(now);
    read_incarnation(all->members[other].setup.address, message.body.death.incarnation);
    fleet_stop(all, other); /* a dead one would soon be forgotten by itself */
    say_now(now, &message);
    fleet_end(all, other);
    fleet_start(all, other);
}

void moment_stranger(fall *now)
{
    wire_message message = {.type = WIRE_PING, .major = WIRE_MAJOR + 1, .engine_id = "stranger",
                            .sender = "0123456789abcdef"};
    kvferry_report *reasons = NULL;
    assert_int_equal(kvferry_report_create(&reasons), KVFERRY_OK);
    if (now->trap.receives) {
        base_report_add(reasons, "message_type", NULL, "a worker of another version", "this one", "the stranger");
        message.type = WIRE_ERROR;
        message.major = WIRE_MAJOR;
        message.reasons = reasons;
    }
    say(now, &message);
    kvferry_report_free(reasons);
}
