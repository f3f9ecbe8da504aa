/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that are killed, stopped and restarted while transfers run: death_test TRANSPORT [FIRST
 * COUNT]. A seed chooses who, how and when. sglang#24527: a late write into blocks of a new owner;
 * smg#2492, nixl#795, vllm#50047: a restarted worker that is taken for the old one; vllm#35943: a
 * request without an end; vllm#46283: blocks that are not given back when the writer dies.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

#include "fleet.h"

enum { SEEDS_OF_A_FLEET = 10, OPENED_LATER = 24 };

static const char *transport = "tcp";
static uint64_t first = 1, count = 30;
static fleet all;
/* How many requests lived through the act, failed by it, and were held in quarantine of a stopped
 * writer. */
static size_t lived, failed, held;

typedef enum act { ACT_KILL, ACT_STOP, ACT_STOP_KILL, ACTS } act;

typedef struct plan {
    act act;
    size_t victim;
    bool before;       /* the asks */
    unsigned wait_us;  /* from the asks to the act */
    unsigned pause_ms; /* until the dead is restarted */
    char text[128];
} plan;

static uint64_t next(uint64_t *seed) /* splitmix64 */
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static plan plan_of(uint64_t seed)
{
    static const char *const acts[] = {"killed", "stopped", "stopped and killed"};
    plan made = {0};
    uint64_t state = seed, part;
    made.act = (act)(next(&state) % ACTS);
    made.victim = next(&state) % MEMBERS_MAX;
    made.before = made.act == ACT_KILL && next(&state) % 4 == 0;
    part = next(&state) % 1000; /* most of them early */
    made.wait_us =
        (unsigned)(part * part * (strcmp(transport, "shm") == 0 ? 4000 : 30000) / 1000000);
    made.pause_ms = next(&state) % 2 ? 0 : 300;
    snprintf(made.text, sizeof(made.text), "seed %llu (worker %zu is %s %s%u us, %u ms down)",
             (unsigned long long)seed, made.victim, acts[made.act],
             made.before ? "before asks, " : "", made.wait_us, made.pause_ms);
    return made;
}

static void restart(const plan *now)
{
    fleet_end(&all, now->victim);
    fleet_pump(&all, (int)now->pause_ms);
    fleet_start(&all, now->victim);
}

/* What waits for a stopped writer ends, and stays in quarantine. */
static void check_quarantine(const plan *now, const uint32_t requests[2])
{
    for (size_t i = 0; i < 2; i++)
        fleet_await(&all, requests[i], 0, all.count, false);
    fleet_pump(&all, 200);
    for (size_t i = 0; i < 2; i++)
        for (size_t d = all.prefills; d < all.count && now->victim < all.prefills; d++) {
            const entry *at = &all.members[d].entries[requests[i]];
            if (fleet_was_asked(at) && at->released)
                fail_msg("%s: request %u of decode tp%zu is released while its writer is stopped",
                         now->text, requests[i], d - all.prefills);
            held += at->ended && !at->released;
        }
}

static void count_outcome(uint32_t request)
{
    for (size_t i = 0; i < all.count; i++) {
        const entry *at = &all.members[i].entries[request];
        lived += at->ended && !at->outcome;
        failed += at->ended && at->outcome;
    }
}

static void run_seed(uint64_t seed)
{
    const plan now = plan_of(seed);
    uint32_t requests[2];
    all.what = now.text;
    for (uint32_t i = 0; i < 2; i++) {
        requests[i] = fleet_request(&all);
        fleet_order(&all, requests[i], i, 0, all.prefills);
    }
    if (now.before)
        restart(&now);
    for (uint32_t i = 0; i < 2; i++)
        fleet_order(&all, requests[i], i, all.prefills, all.count);
    usleep(now.wait_us);
    if (now.act == ACT_KILL && !now.before)
        restart(&now);
    if (now.act != ACT_KILL) {
        fleet_stop(&all, now.victim);
        check_quarantine(&now, requests);
        if (now.act == ACT_STOP_KILL)
            restart(&now);
        else
            fleet_continue(&all, now.victim);
    }
    for (size_t i = 0; i < 2; i++) {
        fleet_await(&all, requests[i], 0, all.count, true);
        count_outcome(requests[i]);
    }
    fleet_check_fresh(&all, 2);
    fleet_check(&all);
}

/* Ten seeds with the same workers, which live on but for those that die. */
static void run_fleet(uint64_t seed, uint64_t last, bool tp2_first)
{
    static const char *const spaces[] = {"", ""}, *hosts[2];
    char host[32];
    uint64_t before[MEMBERS_MAX];
    /* An address of its own: nobody else takes the port of one that is dead. */
    snprintf(host, sizeof(host), "127.%d.%d.1", 1 + (getpid() >> 8) % 250, getpid() & 255);
    hosts[0] = hosts[1] = host;
    fleet_open(&all, transport, tp2_first, spaces, hosts, "");
    fleet_check_fresh(&all, 3);
    fleet_check(&all);
    for (size_t i = 0; i < all.count; i++)
        before[i] = all.members[i].descriptors;
    for (; seed < last; seed++)
        run_seed(seed);
    for (size_t i = 0; i < all.count; i++)
        if (all.members[i].descriptors > before[i] + OPENED_LATER)
            fail_msg("%s: %llu descriptors are open, %llu were", all.what,
                     (unsigned long long)all.members[i].descriptors, (unsigned long long)before[i]);
    fleet_close(&all);
}

static void test_seeds(void **state)
{
    (void)state;
    for (uint64_t seed = first; seed < first + count;) {
        uint64_t last = (seed / SEEDS_OF_A_FLEET + 1) * SEEDS_OF_A_FLEET;
        if (last > first + count)
            last = first + count;
        run_fleet(seed, last, seed / SEEDS_OF_A_FLEET % 2);
        seed = last;
    }
    if (count >= 30) /* some died before they were asked */
        assert_true(lived > 0 && failed > 0);
    printf("%zu ends were good, %zu failed, %zu were held in quarantine\n", lived, failed, held);
}

static int teardown(void **state)
{
    (void)state;
    fleet_kill(&all);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_seeds, teardown)};
    if (argc == 2 && strcmp(argv[1], "member") == 0)
        return member_main();
    if (argc > 1)
        transport = argv[1];
    if (argc > 3) {
        first = strtoull(argv[2], NULL, 10);
        count = strtoull(argv[3], NULL, 10);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
