/* SPDX-License-Identifier: Apache-2.0 */
/* The kvferry command as a user runs it. */
#ifndef KVFERRY_TEST_DEMO_COMMAND_H
#define KVFERRY_TEST_DEMO_COMMAND_H

#include <stdbool.h>
#include <sys/types.h>

#include <jansson.h>

typedef struct command_run {
    pid_t pid;
    int out, err; /* pipes */
    char *stdout_text, *stderr_text;
    int status; /* as a shell has it: 128 + the signal if it was killed */
} command_run;

/* Starts "kvferry demo" with the arguments, words apart by one space. */
void command_start(command_run *command, const char *arguments);

/* Reads both streams until they end, and the status. */
void command_finish(command_run *command);
void command_free(command_run *command);

/* Runs it, with --json; the one value on stdout, or a failed test. */
json_t *command_json(const char *arguments, int status);

/* Processes whose parent is `pid`, oldest first: at most `limit`, returns how many. */
size_t command_children(pid_t pid, pid_t *children, size_t limit);

/* Waits until a process is gone, at most some seconds. */
bool command_gone(pid_t pid);

/* How many pieces of shared memory there are that no process uses: others may be at work meanwhile. */
size_t command_leftovers(void);

#endif
