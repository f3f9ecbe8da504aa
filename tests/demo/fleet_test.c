/* SPDX-License-Identifier: Apache-2.0 */
/* Worker processes as the parent sees them: it never waits for ever, names who failed, and leaves none
 * behind. The worker here stands in for the real one: the run's seed says how it behaves. */
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../tools/demo.h"

enum behaviour { ANSWER, DIE, EXIT, SILENT, GARBAGE, TRUNCATED, SAY_FAILURE, BLAME, DEAF, STUBBORN };
enum { BIG = 4 << 20 };

static void send_big(int fd)
{
    char *text = tool_alloc(BIG + 1, 1);
    memset(text, 'x', BIG);
    demo_channel_write(fd, json_pack("{s:s, s:s}", "did", "news", "text", text));
    free(text);
}

/* Says nothing more, but goes when the parent does. */
_Noreturn static void fall_silent(int fd)
{
    json_t *message;
    while ((message = demo_channel_read(fd)))
        json_decref(message);
    exit(TOOL_FAILED);
}

static void misbehave(enum behaviour behaviour, int fd)
{
    static const char truncated[] = {100, 0, 0, 0, '{'}, garbage[] = {2, 0, 0, 0, '}', '{'};
    switch (behaviour) {
    case DIE:
        raise(SIGKILL);
        break;
    case EXIT:
        exit(5);
    case SILENT:
        fall_silent(fd);
    case STUBBORN: /* does not even notice that the parent is gone */
        for (;;)
            pause();
    case GARBAGE:
        assert_int_equal(write(fd, garbage, sizeof garbage), sizeof garbage);
        fall_silent(fd);
    case TRUNCATED:
        assert_int_equal(write(fd, truncated, sizeof truncated), sizeof truncated);
        exit(0);
    case SAY_FAILURE:
        demo_channel_write(fd, json_pack("{s:s, s:s, s:[{s:s}]}", "did", "failed", "what",
                                         "no engine", "reasons", "message", "no such device"));
        exit(1);
    case BLAME: /* another one complains first */
        usleep(100000);
        raise(SIGKILL);
        break;
    case DEAF: /* writes much before it reads anything */
        send_big(fd);
        break;
    case ANSWER:
        break;
    }
}

int demo_worker_main(const demo_config *config, demo_role role, size_t rank, int fd)
{
    json_t *message;
    while ((message = demo_channel_read(fd))) {
        char step[32];
        snprintf(step, sizeof step, "%s", demo_text(message, "do"));
        json_decref(message);
        if (strcmp(step, "quit") == 0)
            return 0;
        if (role == DEMO_DECODE && rank == 1)
            misbehave((enum behaviour)config->seed, fd);
        else if (config->seed == BLAME)
            misbehave(SAY_FAILURE, fd);
        demo_channel_write(fd, json_pack("{s:s}", "did", step));
    }
    return TOOL_FAILED;
}

/* Two workers on each side. */
static void start(demo_fleet *fleet, enum behaviour behaviour)
{
    static char *names[] = {"tp0", "tp1"};
    tool_side sides[DEMO_ROLES] = {{.names = names, .count = 2}, {.names = names, .count = 2}};
    demo_config config = {.seed = behaviour, .timeout_ns = 1500000000};
    assert_int_equal(demo_fleet_start(fleet, &config, sides), TOOL_GO_ON);
    assert_int_equal(fleet->count, 4);
}

static void tell(demo_fleet *fleet, const char *step)
{
    for (int role = 0; role < DEMO_ROLES; role++)
        demo_fleet_tell(fleet, (demo_role)role, json_pack("{s:s}", "do", step));
}

static int ask(demo_fleet *fleet, const char *step)
{
    tell(fleet, step);
    return demo_fleet_wait(fleet, 1 << DEMO_PREFILL | 1 << DEMO_DECODE, step, NULL, NULL);
}

static void end(demo_fleet *fleet)
{
    demo_fleet_end(fleet);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* The step fails for the reason that `words` are a part of. */
static void expect_failure(enum behaviour behaviour, const char *words)
{
    demo_fleet fleet;
    start(&fleet, behaviour);
    assert_int_equal(ask(&fleet, "work"), TOOL_FAILED);
    assert_non_null(strstr(fleet.failure, "decode tp1"));
    if (!strstr(fleet.failure, words))
        fail_msg("\"%s\" says nothing of \"%s\"", fleet.failure, words);
    end(&fleet);
}

static void all_answer(void **state)
{
    (void)state;
    demo_fleet fleet;
    start(&fleet, ANSWER);
    assert_int_equal(ask(&fleet, "work"), TOOL_GO_ON);
    assert_int_equal(ask(&fleet, "more"), TOOL_GO_ON);
    assert_int_equal(ask(&fleet, "quit"), TOOL_GO_ON);
    for (size_t i = 0; i < fleet.count; i++)
        assert_true(fleet.processes[i].finished);
    end(&fleet);
}

/* One side may end before the other is asked again. */
static void sides_end_apart(void **state)
{
    (void)state;
    demo_fleet fleet;
    start(&fleet, ANSWER);
    demo_fleet_tell(&fleet, DEMO_PREFILL, json_pack("{s:s}", "do", "quit"));
    assert_int_equal(demo_fleet_wait(&fleet, 1 << DEMO_PREFILL, "quit", NULL, NULL), TOOL_GO_ON);
    demo_fleet_tell(&fleet, DEMO_DECODE, json_pack("{s:s}", "do", "work"));
    assert_int_equal(demo_fleet_wait(&fleet, 1 << DEMO_DECODE, "work", NULL, NULL), TOOL_GO_ON);
    end(&fleet);
}

static void failures(void **state)
{
    (void)state;
    expect_failure(DIE, "killed by signal 9");
    expect_failure(EXIT, "status 5 in step \"work\"");
    expect_failure(SILENT, "said nothing for 1 s in step \"work\"");
    expect_failure(GARBAGE, "no message");
    expect_failure(TRUNCATED, "status 0");
    expect_failure(SAY_FAILURE, "no engine: no such device");
    expect_failure(BLAME, "killed by signal 9");
    expect_failure(STUBBORN, "said nothing");
}

static void count_news(void *context, const demo_process *process, json_t *message)
{
    (void)process;
    if (strcmp(demo_text(message, "did"), "news") == 0)
        *(size_t *)context += strlen(demo_text(message, "text"));
}

/* More than a socket holds, both ways at once. */
static void floods(void **state)
{
    (void)state;
    demo_fleet fleet;
    start(&fleet, DEAF);
    char *text = tool_alloc(BIG + 1, 1);
    memset(text, 'y', BIG);
    for (int role = 0; role < DEMO_ROLES; role++)
        for (int i = 0; i < 2; i++)
            demo_fleet_tell(&fleet, (demo_role)role,
                            json_pack("{s:s, s:s}", "do", i ? "last" : "first", "text", text));
    free(text);
    size_t heard = 0;
    assert_int_equal(demo_fleet_wait(&fleet, 1 << DEMO_PREFILL | 1 << DEMO_DECODE, "last",
                                     count_news, &heard), TOOL_GO_ON);
    assert_int_equal(heard, 2 * BIG);
    end(&fleet);
}

/* Workers that sit in the middle of something go with the parent's ^C. */
static void interrupt(void **state)
{
    (void)state;
    demo_fleet fleet;
    start(&fleet, SILENT);
    kill(getpid(), SIGINT); /* blocked: the fleet reads it */
    assert_int_equal(ask(&fleet, "work"), TOOL_FAILED);
    assert_non_null(strstr(fleet.failure, "interrupted (Interrupt)"));
    end(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_answer), cmocka_unit_test(sides_end_apart), cmocka_unit_test(failures),
        cmocka_unit_test(floods), cmocka_unit_test(interrupt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
