/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker is killed (-9) or stopped exactly when it has received, or is about to send, a message: message_test
 * TRANSPORT [all]. The dead start anew on their address, the stopped go on. Both sides' ends, all bytes, and what is held
 * while a writer is stopped are checked, and that a fresh transfer goes through. Without `all` one case of each message.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test.h"
#include "wire/wire.h"

#include "fleet.h"

/* What a transfer with verify says; the worker at one end of it falls. */
typedef struct place {
    const char *name;
    wire_type type;
    bool at_prefill, receives;
    uint32_t nth;
    bool quick; /* one of `make test` */
    bool any;   /* of two decode workers, only the first that shakes hands comes there */
} place;

static const place places[] = {
    {"hello", WIRE_HELLO, false, false, 1, false, false},
    {"hello", WIRE_HELLO, true, true, 1, true, false},
    {"get of D's documents", WIRE_GET, true, false, 1, false, false},
    {"get of D's documents", WIRE_GET, false, true, 1, false, true},
    {"D's documents", WIRE_DOCUMENTS, false, false, 1, true, true},
    {"D's documents", WIRE_DOCUMENTS, true, true, 1, false, false},
    {"welcome", WIRE_WELCOME, true, false, 1, false, false},
    {"welcome", WIRE_WELCOME, false, true, 1, true, false},
    {"get of P's documents", WIRE_GET, false, false, 1, true, false},
    {"get of P's documents", WIRE_GET, true, true, 1, false, false},
    {"P's documents", WIRE_DOCUMENTS, true, false, 1, true, false},
    {"P's documents", WIRE_DOCUMENTS, false, true, 1, false, false},
    {"ask", WIRE_ASK, false, false, 1, false, false},
    {"ask", WIRE_ASK, true, true, 1, true, false},
    {"verdict", WIRE_VERDICT, true, false, 1, true, false},
    {"verdict", WIRE_VERDICT, true, false, 2, false, false},
    {"verdict", WIRE_VERDICT, false, true, 1, false, false},
    {"verdict", WIRE_VERDICT, false, true, 2, true, false},
    {"settle", WIRE_SETTLE, false, false, 1, false, false},
    {"settle", WIRE_SETTLE, true, true, 1, true, false},
    {"settled", WIRE_SETTLED, true, false, 1, true, false},
    {"settled", WIRE_SETTLED, false, true, 1, false, false},
};

static const char *transport = "tcp";
static bool every;
static fleet all;
static size_t cases, good, bad, held;

static void start_anew(size_t member)
{
    fleet_end(&all, member);
    fleet_start(&all, member);
}

/* While a writer is stopped, what it was asked for ends, and its blocks stay in quarantine. */
static void look_at_quarantine(uint32_t request, bool may_write)
{
    fleet_await(&all, request, 0, all.count, false);
    fleet_pump(&all, 300);
    for (size_t d = all.prefills; d < all.count; d++) {
        const entry *at = &all.members[d].entries[request];
        if (may_write && at->outcome && at->released)
            fail_msg("%s: released with %s while its writer is stopped", all.what, at->code);
        held += at->ended && !at->released;
    }
}

static void run_place(const place *now, int signal)
{
    static char text[128];
    size_t victim = now->at_prefill ? 0 : all.prefills;
    snprintf(text, sizeof(text), "%s %s when it %s %s %u", now->at_prefill ? "prefill" : "decode",
             signal == SIGKILL ? "is killed" : "is stopped", now->receives ? "has received" : "is to send",
             now->name, now->nth);
    all.what = text;
    for (size_t i = 0; i < all.count; i++) /* nobody knows another's documents */
        start_anew(i);
    fleet_pump(&all, 300);
    uint32_t request = fleet_request(&all);
    fleet_order(&all, request, 0, 0, all.prefills);
    fleet_trap(&all, victim, &(trap){.type = (uint32_t)now->type, .receives = now->receives, .nth = now->nth,
                                     .signal = signal});
    fleet_order(&all, request, 0, all.prefills, all.count);
    fleet_await_trap(&all, victim);
    if (signal == SIGKILL) {
        fleet_start(&all, victim);
    } else {
        bool asked = now->type != WIRE_HELLO && now->type != WIRE_WELCOME && now->type != WIRE_GET &&
                     now->type != WIRE_DOCUMENTS;
        look_at_quarantine(request, now->at_prefill && asked && all.prefills == 2); /* of two readers one may not have asked */
        fleet_continue(&all, victim);
    }
    fleet_await(&all, request, 0, all.count, true);
    for (size_t i = 0; i < all.count; i++) {
        const entry *at = &all.members[i].entries[request];
        good += at->ended && !at->outcome;
        bad += at->ended && at->outcome;
    }
    fleet_check_fresh(&all, 2);
    fleet_check(&all);
    cases++;
}

static void run_places(bool tp2_first)
{
    static const char *const spaces[] = {"", ""}, *hosts[2];
    char host[32];
    /* An address of its own: nobody else takes the port of one that is dead. */
    snprintf(host, sizeof(host), "127.%d.%d.1", 1 + (getpid() >> 8) % 250, getpid() & 255);
    hosts[0] = hosts[1] = host;
    fleet_open(&all, transport, tp2_first, spaces, hosts, "");
    for (size_t i = 0; i < all.count; i++)
        all.members[i].setup.verify = true;
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        if ((every || places[i].quick) && (tp2_first || !places[i].any)) {
            if (every || i % 4 < 2)
                run_place(&places[i], SIGKILL);
            if (every || i % 4 >= 2)
                run_place(&places[i], SIGSTOP);
        }
    }
    fleet_close(&all);
}

static void test_places(void **state)
{
    (void)state;
    run_places(true);
    if (every)
        run_places(false);
    assert_true(good > 0 && bad > 0);
    printf("%zu cases: %zu ends were good, %zu failed, %zu were held in quarantine\n", cases, good, bad, held);
}

static int teardown(void **state)
{
    (void)state;
    fleet_kill(&all);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_places, teardown)};
    if (argc == 2 && strcmp(argv[1], "member") == 0)
        return member_main();
    if (argc > 1)
        transport = argv[1];
    every = argc > 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
