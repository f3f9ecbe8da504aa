/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link that is cut: cut_test [CUTS]; from the third on amid a transfer. Prefill and decode
 * workers in two network namespaces. A cut is no death: what was asked ends by silence_ms, its
 * blocks stay in quarantine until the link is back. Where the prefill host never comes back, they stay until the
 * operator says so, with the command that KVFERRY names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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

/* --- a host that vanishes ---------------------------------------------------------------------------------- */

/* Runs the command on the host of that side. *out is what it printed; its exit status. */
static int run_command(size_t side, char *out, size_t size, const char *words)
{
    char line[512];
    snprintf(line, sizeof(line), "ip netns exec %s %s %s 2>&1", spaces[side], getenv("KVFERRY"), words);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t got = fread(out, 1, size - 1, pipe);
    out[got] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What `status` advises: everything behind "kvferry ", of the nth hint. */
static bool read_hint(const char *text, size_t nth, char *hint, size_t size)
{
    static const char before[] = "  kvferry declare-dead ";
    const char *at = text - 1;
    for (size_t i = 0; i <= nth; i++)
        if (!(at = strstr(at + 1, before)))
            return false;
    snprintf(hint, size, "%.*s", (int)strcspn(at + 10, "\n"), at + 10);
    return true;
}

static void expect_held(uint32_t request, size_t decode, const char *when)
{
    fleet_pump(&all, 2000);
    if (all.members[decode].entries[request].released)
        fail_msg("%s: request %u is released", when, request);
}

/* Without a bye, a reset or a refusal: the link is down before the processes end. */
static void vanish(uint32_t request, size_t decode)
{
    fleet_park(&all, request, 0);
    fleet_order(&all, request, 0, decode, decode + 1);
    fleet_pump(&all, 500); /* the asks arrive */
    set_link(0, "down");
    for (size_t i = 0; i < all.prefills; i++)
        fleet_end(&all, i);
    fleet_await(&all, request, decode, decode + 1, false);
    assert_true(fleet_was_asked(&all.members[decode].entries[request]));
}

/* Another host has no say, whatever it says. */
static void expect_no_say(size_t decode)
{
    char words[256], said[1024];
    snprintf(words, sizeof(words), "declare-dead %s --incarnation 0123456789abcdef",
             all.members[decode].setup.address);
    assert_int_equal(run_command(0, said, sizeof(said), words), 1);
    assert_non_null(strstr(said, "only its operator"));
    assert_int_equal(run_command(1, said, sizeof(said), words), 1);
    assert_non_null(strstr(said, "found 0123456789abcdef"));
}

static void test_a_host_that_vanishes(void **state)
{
    (void)state;
    static char status[16384], hint[256], said[1024];
    static const char *const hosts[] = {"10.77.0.1", "10.77.0.2"};
    const char *const inside[] = {spaces[0], spaces[1]};
    if (!made || !getenv("KVFERRY")) {
        printf("test_a_host_that_vanishes: skipped, since it needs network namespaces, and the command in KVFERRY\n");
        skip();
    }
    fleet_open(&all, "tcp", true, inside, hosts, "link0");
    fleet_check_fresh(&all, 2);
    all.what = "the prefill host vanishes";
    size_t decode = all.prefills;
    uint32_t request = fleet_request(&all);
    expect_no_say(decode);
    vanish(request, decode);
    expect_held(request, decode, "before any word");
    snprintf(hint, sizeof(hint), "status %s", all.members[decode].setup.address);
    assert_int_equal(run_command(1, status, sizeof(status), hint), 0);
    for (size_t i = 0; i < all.prefills; i++) {
        expect_held(request, decode, "before the last word");
        if (!read_hint(status, i, hint, sizeof(hint)))
            fail_msg("expected a hint for each of %zu workers, found:\n%s", all.prefills, status);
        assert_int_equal(run_command(1, said, sizeof(said), hint), 0);
        printf("%s", said);
    }
    assert_non_null(strstr(said, ": 7 blocks of 1 transfer are released"));
    fleet_await(&all, request, decode, decode + 1, true);
    set_link(0, "up");
    for (size_t i = 0; i < all.prefills; i++)
        fleet_start(&all, i);
    fleet_check_fresh(&all, 1);
    fleet_check(&all);
    fleet_close(&all);
}

static int teardown(void **state)
{
    (void)state;
    fleet_kill(&all);
    return 0;
}

static int end_spaces(void **state)
{
    (void)state;
    for (int i = 0; i < 2 && made; i++)
        ip("netns delete %s 2>/dev/null", spaces[i]);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_a_cut_link, teardown),
                                       cmocka_unit_test_teardown(test_a_host_that_vanishes, teardown)};
    if (argc == 2 && strcmp(argv[1], "member") == 0)
        return member_main();
    if (argc == 2)
        cuts = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, end_spaces);
}
