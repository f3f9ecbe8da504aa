/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker is killed (-9) or stopped exactly when it has received, or is about to send, a message: message_test
 * TRANSPORT [all | KIND]. The dead start anew on their address, the stopped go on. Both sides' ends, all bytes, and what
 * is held while a writer is stopped are checked, and that a fresh transfer goes through. Of a KIND, as `hello`, all cases;
 * of nothing named, one case of each message of a transfer, and of most that workers say beside it.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

#include "moments.h"

/* The first prefill worker, which leads its engine, its second one; the same of decode. */
typedef enum role { P, P2, D, D2 } role;

typedef enum direction { SENDS, RECEIVES } direction;

/* Which fleets it comes to be in. */
typedef enum fleets { BOTH, TP2_TP1, TP1_TP2 } fleets;

typedef struct place {
    const char *name;
    wire_type type;
    role who;
    direction way;
    uint32_t nth;
    moment comes;
    fleets where;
    int quick; /* the signal that `make test` tries; 0: none */
} place;

static const place places[] = {
    {"hello", WIRE_HELLO, D, SENDS, 1, moment_transfer, BOTH, 0},
    {"hello", WIRE_HELLO, P, RECEIVES, 1, moment_transfer, BOTH, SIGKILL},
    {"get of D's documents", WIRE_GET, P, SENDS, 1, moment_transfer, BOTH, 0},
    /* Of two decode workers, only the first that shakes hands comes there. */
    {"get of D's documents", WIRE_GET, D, RECEIVES, 1, moment_transfer, TP2_TP1, 0},
    {"D's documents", WIRE_DOCUMENTS, D, SENDS, 1, moment_transfer, TP2_TP1, SIGKILL},
    {"D's documents", WIRE_DOCUMENTS, P, RECEIVES, 1, moment_transfer, BOTH, 0},
    {"welcome", WIRE_WELCOME, P, SENDS, 1, moment_transfer, BOTH, 0},
    {"welcome", WIRE_WELCOME, D, RECEIVES, 1, moment_transfer, BOTH, SIGSTOP},
    {"get of P's documents", WIRE_GET, D, SENDS, 1, moment_transfer, BOTH, SIGKILL},
    {"get of P's documents", WIRE_GET, P, RECEIVES, 1, moment_transfer, BOTH, 0},
    {"P's documents", WIRE_DOCUMENTS, P, SENDS, 1, moment_transfer, BOTH, SIGSTOP},
    {"P's documents", WIRE_DOCUMENTS, D, RECEIVES, 1, moment_transfer, BOTH, 0},
    {"ask", WIRE_ASK, D, SENDS, 1, moment_transfer, BOTH, 0},
    {"ask", WIRE_ASK, P, RECEIVES, 1, moment_transfer, BOTH, SIGKILL},
    {"verdict", WIRE_VERDICT, P, SENDS, 1, moment_transfer, BOTH, SIGSTOP},
    {"verdict", WIRE_VERDICT, P, SENDS, 2, moment_transfer, BOTH, 0},
    {"verdict", WIRE_VERDICT, D, RECEIVES, 1, moment_transfer, BOTH, 0},
    {"verdict", WIRE_VERDICT, D, RECEIVES, 2, moment_transfer, BOTH, SIGKILL},
    {"settle", WIRE_SETTLE, D, SENDS, 1, moment_transfer, BOTH, 0},
    {"settle", WIRE_SETTLE, P, RECEIVES, 1, moment_transfer, BOTH, SIGSTOP},
    {"settled", WIRE_SETTLED, P, SENDS, 1, moment_transfer, BOTH, SIGKILL},
    {"settled", WIRE_SETTLED, D, RECEIVES, 1, moment_transfer, BOTH, 0},
    /* Inside an engine: the leader comes anew, or another one does. */
    {"hello to its leader", WIRE_HELLO, P2, SENDS, 1, moment_restart, TP2_TP1, 0},
    {"hello to its leader", WIRE_HELLO, D2, SENDS, 1, moment_restart, TP1_TP2, 0},
    {"hello as a leader", WIRE_HELLO, P, RECEIVES, 1, moment_restart, TP2_TP1, 0},
    {"hello as a leader", WIRE_HELLO, D, RECEIVES, 1, moment_restart, TP1_TP2, 0},
    {"welcome as a leader", WIRE_WELCOME, D, SENDS, 1, moment_restart, TP1_TP2, 0},
    {"welcome of its leader", WIRE_WELCOME, P2, RECEIVES, 1, moment_restart, TP2_TP1, 0},
    {"get of its leader", WIRE_GET, P2, RECEIVES, 1, moment_restart, TP2_TP1, 0},
    {"get of its leader", WIRE_GET, D2, RECEIVES, 1, moment_restart, TP1_TP2, 0},
    {"documents for its leader", WIRE_DOCUMENTS, P2, SENDS, 1, moment_restart, TP2_TP1, 0},
    {"documents for its leader", WIRE_DOCUMENTS, D2, SENDS, 1, moment_restart, TP1_TP2, 0},
    {"roster", WIRE_ROSTER, P, SENDS, 1, moment_restart, TP2_TP1, 0},
    {"roster", WIRE_ROSTER, P2, RECEIVES, 1, moment_restart, TP2_TP1, SIGSTOP},
    {"roster", WIRE_ROSTER, D, SENDS, 1, moment_restart, TP1_TP2, 0},
    {"roster", WIRE_ROSTER, D2, RECEIVES, 1, moment_restart, TP1_TP2, 0},
    {"renew", WIRE_RENEW, D, SENDS, 1, moment_renewal, BOTH, 0},
    {"renew", WIRE_RENEW, P, RECEIVES, 1, moment_renewal, BOTH, SIGSTOP},
    /* Who sends it must be the only one whom the silent one hears. */
    {"ping", WIRE_PING, P, SENDS, 1, moment_prefill_asks, TP2_TP1, SIGKILL},
    {"ping", WIRE_PING, D, RECEIVES, 1, moment_prefill_asks, TP2_TP1, 0},
    {"ping", WIRE_PING, D, SENDS, 1, moment_decode_asks, TP1_TP2, 0},
    {"ping", WIRE_PING, P, RECEIVES, 1, moment_decode_asks, TP1_TP2, 0},
    {"pong", WIRE_PONG, P, RECEIVES, 1, moment_prefill_asks, TP2_TP1, 0},
    {"pong", WIRE_PONG, D, SENDS, 1, moment_prefill_asks, TP2_TP1, SIGKILL},
    {"pong", WIRE_PONG, D, RECEIVES, 1, moment_decode_asks, TP1_TP2, 0},
    {"pong", WIRE_PONG, P, SENDS, 1, moment_decode_asks, TP1_TP2, 0},
    {"bye", WIRE_BYE, P, SENDS, 1, moment_leave, BOTH, 0},
    {"bye", WIRE_BYE, P, RECEIVES, 1, moment_leave, BOTH, 0},
    {"bye", WIRE_BYE, D, SENDS, 1, moment_leave, BOTH, 0},
    {"bye", WIRE_BYE, D, RECEIVES, 1, moment_leave, BOTH, SIGSTOP},
    {"status", WIRE_STATUS, P, RECEIVES, 1, moment_question, BOTH, 0},
    {"status", WIRE_STATUS, D, RECEIVES, 1, moment_question, BOTH, 0},
    {"status_text", WIRE_STATUS_TEXT, P, SENDS, 1, moment_question, BOTH, 0},
    {"status_text", WIRE_STATUS_TEXT, D, SENDS, 1, moment_question, BOTH, 0},
    {"the operator's word", WIRE_DECLARE_DEAD, P, RECEIVES, 1, moment_word, BOTH, 0},
    {"the operator's word", WIRE_DECLARE_DEAD, D, RECEIVES, 1, moment_word, BOTH, SIGKILL},
    {"that it has heard it", WIRE_DECLARED_DEAD, P, SENDS, 1, moment_word, BOTH, 0},
    {"that it has heard it", WIRE_DECLARED_DEAD, D, SENDS, 1, moment_word, BOTH, SIGSTOP},
    /* The only source of who asks again. */
    {"error", WIRE_ERROR, P, SENDS, 1, moment_forgotten, TP1_TP2, 0},
    {"error", WIRE_ERROR, D, RECEIVES, 1, moment_forgotten, TP1_TP2, SIGKILL},
    {"error", WIRE_ERROR, P, RECEIVES, 1, moment_stranger, BOTH, 0},
    {"error", WIRE_ERROR, D, SENDS, 1, moment_stranger, BOTH, 0},
};

/* What no node does in this role. */
static const struct {
    wire_type type;
    bool at_prefill;
    direction way;
} nowhere[] = {
    /* Only D asks, and wants nothing more. */
    {WIRE_ASK, true, SENDS},
    {WIRE_ASK, false, RECEIVES},
    {WIRE_SETTLE, true, SENDS},
    {WIRE_SETTLE, false, RECEIVES},
    {WIRE_RENEW, true, SENDS},
    {WIRE_RENEW, false, RECEIVES},
    /* Only P answers that. */
    {WIRE_VERDICT, true, RECEIVES},
    {WIRE_VERDICT, false, SENDS},
    {WIRE_SETTLED, true, RECEIVES},
    {WIRE_SETTLED, false, SENDS},
    /* Who asks for a status is no node: kvferry_node_query has a link of its own, and needs no node. */
    {WIRE_STATUS, true, SENDS},
    {WIRE_STATUS, false, SENDS},
    {WIRE_STATUS_TEXT, true, RECEIVES},
    {WIRE_STATUS_TEXT, false, RECEIVES},
    /* Nor is the operator: kvferry_node_declare_dead_at. */
    {WIRE_DECLARE_DEAD, true, SENDS},
    {WIRE_DECLARE_DEAD, false, SENDS},
    {WIRE_DECLARED_DEAD, true, RECEIVES},
    {WIRE_DECLARED_DEAD, false, RECEIVES},
};

#define COUNT(list) (sizeof(list) / sizeof(*(list)))

static const char *transport = "tcp";
static const char *wanted = ""; /* "all", or a kind of message; "": what is quick */
static fleet all;
static size_t cases, good, bad, held;

static bool is_at_prefill(const place *at) { return at->who == P || at->who == P2; }

static size_t index_of(role who)
{
    return (who == P || who == P2 ? 0 : all.prefills) + (who == P2 || who == D2);
}

/* --- all kinds ------------------------------------------------------------------------------------- */

static size_t count_places(wire_type type, bool at_prefill, direction way)
{
    size_t found = 0;
    for (size_t i = 0; i < COUNT(places); i++)
        found += places[i].type == type && is_at_prefill(&places[i]) == at_prefill && places[i].way == way;
    return found;
}

static size_t count_nowhere(wire_type type, bool at_prefill, direction way)
{
    size_t found = 0;
    for (size_t i = 0; i < COUNT(nowhere); i++)
        found += nowhere[i].type == type && nowhere[i].at_prefill == at_prefill && nowhere[i].way == way;
    return found;
}

/* Each kind of message, in each role, has a place where a worker falls by it, or a reason why it has none. */
static void test_all_kinds(void **state)
{
    (void)state;
    for (wire_type type = 0; type < WIRE_TYPES; type++)
        for (int side = 0; side < 2; side++)
            for (direction way = SENDS; way <= RECEIVES; way++) {
                size_t reasons = count_nowhere(type, side == 0, way);
                if ((count_places(type, side == 0, way) > 0) != (reasons == 0) || reasons > 1)
                    fail_msg("a %s worker that %s %s: expected a place to fall, or one reason why it has none",
                             side == 0 ? "prefill" : "decode", way == SENDS ? "sends" : "receives",
                             wire_type_name(type));
            }
}

/* --- one place ------------------------------------------------------------------------------------- */

static void start_anew(size_t member)
{
    fleet_end(&all, member);
    fleet_start(&all, member);
}

/* While the victim is stopped, what was asked for ends, and its blocks stay in quarantine if it may write. */
static void look_at_quarantine(const fall *now)
{
    fleet_await(&all, now->request, 0, all.count, false);
    fleet_pump(&all, 300);
    for (size_t d = all.prefills; d < all.count; d++) {
        const entry *at = &all.members[d].entries[now->request];
        if (now->may_write && fleet_was_asked(at) && at->released)
            fail_msg("%s: released with %s while its writer is stopped", all.what, at->code);
        held += at->ended && !at->released;
    }
}

static void come_back(const fall *now)
{
    if (now->trap.signal == SIGSTOP) {
        look_at_quarantine(now);
        fleet_continue(&all, now->victim);
        if (!now->closes)
            return;
        fleet_await_end(&all, now->victim);
    }
    fleet_start(&all, now->victim);
}

static void run_place(const place *at, int signal)
{
    static char text[128];
    fall now = {.all = &all,
                .victim = index_of(at->who),
                .trap = {.type = (uint32_t)at->type,
                         .receives = at->way == RECEIVES,
                         .nth = at->nth,
                         .signal = signal}};
    snprintf(text, sizeof(text), "%s %s when it %s %s %u", is_at_prefill(at) ? "prefill" : "decode",
             signal == SIGKILL ? "is killed" : "is stopped", now.trap.receives ? "has received" : "is to send",
             at->name, at->nth);
    all.what = text;
    all.left = false;
    for (size_t i = 0; i < all.count; i++) /* nobody knows another's documents */
        start_anew(i);
    fleet_pump(&all, 300);
    at->comes(&now);
    moment_go_on(&now);
    come_back(&now);
    moment_go_on(&now);
    fleet_await(&all, now.request, 0, all.count, true);
    for (size_t i = 0; i < all.count; i++) {
        const entry *end = &all.members[i].entries[now.request];
        good += end->ended && !end->outcome;
        bad += end->ended && end->outcome;
    }
    fleet_check_fresh(&all, 2);
    fleet_check(&all);
    cases++;
}

/* --- all places ------------------------------------------------------------------------------------ */

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
    for (size_t i = 0; i < COUNT(places); i++) {
        const place *at = &places[i];
        if (at->where == (tp2_first ? TP1_TP2 : TP2_TP1))
            continue;
        bool every = strcmp(wanted, "all") == 0 || strcmp(wanted, wire_type_name(at->type)) == 0;
        bool quick = !*wanted && (tp2_first || at->where == TP1_TP2);
        if (every || (quick && at->quick == SIGKILL))
            run_place(at, SIGKILL);
        if (every || (quick && at->quick == SIGSTOP))
            run_place(at, SIGSTOP);
    }
    fleet_close(&all);
}

static void test_places(void **state)
{
    (void)state;
    run_places(true);
    run_places(false);
    bool one_kind = *wanted && strcmp(wanted, "all") != 0; /* perhaps one that none outlives */
    assert_true(cases > 0 && bad > 0 && (good > 0 || one_kind));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_kinds),
                                       cmocka_unit_test_teardown(test_places, teardown)};
    if (argc == 2 && strcmp(argv[1], "member") == 0)
        return member_main();
    if (argc > 1)
        transport = argv[1];
    if (argc > 2)
        wanted = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
