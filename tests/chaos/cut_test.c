/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link that is cut: cut_test [CUTS]; from the third on amid a transfer. Prefill and decode
 * workers in two network namespaces. A cut is no death: what was asked ends by silence_ms, its
 * blocks stay in quarantine until the link is back.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

#include "fleet.h"

static fleet all;
static char spaces[2][32];
static bool made;
static size_t cuts = 2;

/* Runs `ip` with these words; true if it did it. */
static bool ip(const char *format, ...)
{
    char command[256] = "ip ";
    va_list words;
    va_start(words, format);
    vsnprintf(command + 3, sizeof(command) - 3, format, words);
    va_end(words);
    return system(command) == 0;
}

static bool make_spaces(void)
{
    for (int i = 0; i < 2; i++) {
        snprintf(spaces[i], sizeof(spaces[i]), "kvferry-chaos-%d-%d", (int)getpid(), i);
        if (!ip("netns add %s 2>/dev/null", spaces[i]))
            return false;
        made = true;
        if (!ip("-n %s link set lo up", spaces[i]))
            return false;
    }
    if (!ip("-n %s link add link0 type veth peer name link0 netns %s", spaces[0], spaces[1]))
        return false;
    for (int i = 0; i < 2; i++)
        if (!ip("-n %s address add 10.77.0.%d/24 dev link0", spaces[i], i + 1) ||
            !ip("-n %s link set link0 up", spaces[i]))
            return false;
    return true;
}

static void set_link(size_t side, const char *state)
{
    assert_true(ip("-n %s link set link0 %s", spaces[side], state));
}

/* At whichever side: its end of the link is down, the other has no carrier. */
static void cut(size_t number)
{
    static char what[64];
    size_t side = number % 2;
    uint32_t request = fleet_request(&all);
    snprintf(what, sizeof(what), "cut %zu, at side %zu", number, side);
    all.what = what;
    fleet_order(&all, request, 0, 0, all.prefills);
    if (number < 2) /* nothing of it has been sent: it cannot but fail */
        set_link(side, "down");
    fleet_order(&all, request, 0, all.prefills, all.count);
    if (number >= 2) {
        usleep((unsigned)(number - 2) * 700);
        set_link(side, "down");
    }
    for (size_t i = all.prefills; i < all.count; i++) {
        const entry *at = &all.members[i].entries[request];
        fleet_await(&all, request, i, i + 1, false);
        fleet_pump(&all, 2000); /* more than silence_ms and linger_ms: no time ends it */
        printf("%s: %s\n", what, at->outcome ? at->code : "done");
        if (number < 2)
            assert_true(at->outcome);
        if (fleet_was_asked(at) && at->released)
            fail_msg("%s: request %u is released behind a cut link", what, request);
    }
    set_link(side, "up");
    fleet_await(&all, request, 0, all.count, true);
    fleet_check_fresh(&all, 1);
    fleet_check(&all);
}

static void run(bool tp2_first, const char *device)
{
    const char *const inside[] = {spaces[0], spaces[1]};
    static const char *const hosts[] = {"10.77.0.1", "10.77.0.2"};
    fleet_open(&all, "tcp", tp2_first, inside, hosts, device);
    fleet_check_fresh(&all, 2);
    for (size_t i = 0; i < cuts; i++)
        cut(i);
    fleet_close(&all);
}

static void test_a_cut_link(void **state)
{
    (void)state;
    if (geteuid() != 0 || !make_spaces()) {
        printf("test_a_cut_link: skipped, since network namespaces need root and ip\n");
        skip();
    }
    run(true, "link0");
    run(false, ""); /* the interface of the address that a worker listens at */
}

static int teardown(void **state)
{
    (void)state;
    fleet_kill(&all);
    for (int i = 0; i < 2 && made; i++)
        ip("netns delete %s 2>/dev/null", spaces[i]);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_a_cut_link, teardown)};
    if (argc == 2 && strcmp(argv[1], "member") == 0)
        return member_main();
    if (argc == 2)
        cuts = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
