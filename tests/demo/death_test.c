/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo when a process dies in the middle: it says who, ends with status 1, and leaves neither
 * processes nor shared memory behind. */
#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "command.h"

enum { WORKERS = 8, PATIENCE_MS = 20000, STEP_MS = 10, PAST_HANDSHAKES_MS = 400 };

/* Runs for minutes if it is let. */
#define ENDLESS "--memory 700M --requests 10000"

/* Starts it and waits until all workers run. */
static void start(command_run *command, const char *arguments, pid_t workers[WORKERS])
{
    command_start(command, arguments);
    size_t count = 0;
    for (int waited = 0; count < WORKERS && waited < PATIENCE_MS; waited += STEP_MS) {
        count = command_children(command->pid, workers, WORKERS);
        usleep(STEP_MS * 1000);
    }
    if (count == WORKERS)
        return;
    kill(command->pid, SIGKILL);
    command_finish(command);
    fail_msg("%zu workers: %s", count, command->stderr_text);
}

static void expect_clean(const pid_t workers[WORKERS], size_t leftovers)
{
    for (size_t i = 0; i < WORKERS; i++)
        if (!command_gone(workers[i]))
            fail_msg("worker %d is still there", (int)workers[i]);
    /* Others may be about to use some. */
    for (int waited = 0; command_leftovers() > leftovers && waited < 3000; waited += STEP_MS)
        usleep(STEP_MS * 1000);
    assert_true(command_leftovers() <= leftovers);
}

/* Sends the signal, and looks at how the command ends. */
static void hit(command_run *command, const pid_t workers[WORKERS], pid_t victim, int signal, int status,
                const char *words, size_t leftovers)
{
    assert_int_equal(kill(victim, signal), 0);
    command_finish(command);
    if (command->status != status)
        fail_msg("status %d: %s", command->status, command->stderr_text);
    if (words && !strstr(command->stderr_text, words))
        fail_msg("nothing of \"%s\": %s", words, command->stderr_text);
    expect_clean(workers, leftovers);
    command_free(command);
}

/* Sends a signal to worker `victim` (or the command itself) after a while. */
static void disturb(const char *arguments, int victim, int signal, unsigned after_ms, int status,
                    const char *words)
{
    size_t leftovers = command_leftovers();
    command_run command;
    pid_t workers[WORKERS];
    start(&command, arguments, workers);
    usleep(after_ms * 1000);
    hit(&command, workers, victim < 0 ? command.pid : workers[victim], signal, status, words, leftovers);
}

/* What the process has computed, which tells how far it is on a busy machine too. 0: it is gone. */
static unsigned long computed_ms(pid_t pid)
{
    char path[64];
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    int found = fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel);
    fclose(file);
    return found == 2 ? (user + kernel) * 1000 / (unsigned long)sysconf(_SC_CLK_TCK) : 0;
}

static void killed_workers(void **state)
{
    (void)state;
    disturb(ENDLESS, 0, SIGKILL, 0, 1, "prefill pp0 tp0 (pid ");
    disturb(ENDLESS, 1, SIGKILL, 800, 1, "killed by signal 9");
    disturb(ENDLESS, 6, SIGKILL, 1500, 1, "decode tp2");
    disturb(ENDLESS " --transport tcp", 7, SIGKILL, 1700, 1, "decode tp3");
    disturb(ENDLESS, 4, SIGABRT, 1200, 1, "killed by signal 6");
}

static void stopped_worker(void **state)
{
    (void)state;
    size_t leftovers = command_leftovers();
    command_run command;
    pid_t workers[WORKERS];
    start(&command, ENDLESS " --timeout 6", workers); /* nobody is so late on a busy machine */
    for (int waited = 0; computed_ms(workers[5]) < PAST_HANDSHAKES_MS && waited < 3 * PATIENCE_MS; waited += STEP_MS)
        usleep(STEP_MS * 1000);
    hit(&command, workers, workers[5], SIGSTOP, 1, "said nothing for 6 s", leftovers);
}

static void interrupted(void **state)
{
    (void)state;
    disturb(ENDLESS, -1, SIGINT, 1000, 1, "interrupted");
    disturb(ENDLESS, -1, SIGTERM, 100, 1, "interrupted");
}

/* Even a parent that cannot say anything any more takes its workers along. */
static void killed_parent(void **state)
{
    (void)state;
    disturb(ENDLESS, -1, SIGKILL, 1000, 128 + SIGKILL, NULL);
}

/* --json says it in one value. */
static void json_failure(void **state)
{
    (void)state;
    command_run command;
    pid_t workers[WORKERS];
    start(&command, "--json " ENDLESS, workers);
    usleep(1000000);
    kill(workers[3], SIGKILL);
    command_finish(&command);
    assert_int_equal(command.status, 1);
    json_t *value = json_loads(command.stdout_text, 0, NULL);
    assert_non_null(value);
    assert_true(json_is_false(json_object_get(value, "ok")));
    const char *failure = json_string_value(json_object_get(value, "failure"));
    assert_non_null(failure);
    assert_non_null(strstr(failure, "prefill pp1 tp1"));
    json_decref(value);
    command_free(&command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_workers), cmocka_unit_test(stopped_worker),
        cmocka_unit_test(interrupted),    cmocka_unit_test(killed_parent),
        cmocka_unit_test(json_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
