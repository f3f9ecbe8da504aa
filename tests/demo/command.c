/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS = 40, PATIENCE_MS = 10000, STEP_MS = 20, SHARED_FILES = 1024 };

static void become_command(const char *arguments, int out, int err)
{
    char *words = strdup(arguments), *argv[ARGUMENTS + 3] = {KVFERRY_COMMAND, "demo"}, *rest = words;
    for (size_t i = 2; i < ARGUMENTS && (argv[i] = strsep(&rest, " ")); i++)
        ;
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(KVFERRY_COMMAND, argv);
    _exit(127);
}

void command_start(command_run *command, const char *arguments)
{
    int out[2], err[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    fflush(NULL);
    *command = (command_run){.pid = fork(), .out = out[0], .err = err[0]};
    assert_true(command->pid >= 0);
    if (command->pid == 0)
        become_command(arguments, out[1], err[1]);
    close(out[1]);
    close(err[1]);
}

/* One read; false at the end. */
static bool take(int fd, char **text, size_t *size)
{
    char part[65536];
    ssize_t got = read(fd, part, sizeof part);
    if (got <= 0)
        return got < 0 && errno == EINTR;
    *text = realloc(*text, *size + (size_t)got + 1);
    assert_non_null(*text);
    memcpy(*text + *size, part, (size_t)got);
    *size += (size_t)got;
    (*text)[*size] = 0;
    return true;
}

void command_finish(command_run *command)
{
    size_t out_size = 0, err_size = 0;
    command->stdout_text = calloc(1, 1);
    command->stderr_text = calloc(1, 1);
    struct pollfd polls[] = {{.fd = command->out, .events = POLLIN},
                             {.fd = command->err, .events = POLLIN}};
    while (polls[0].fd >= 0 || polls[1].fd >= 0) {
        assert_true(poll(polls, 2, -1) > 0 || errno == EINTR);
        if (polls[0].revents && !take(command->out, &command->stdout_text, &out_size))
            polls[0].fd = -1;
        if (polls[1].revents && !take(command->err, &command->stderr_text, &err_size))
            polls[1].fd = -1;
    }
    int end;
    assert_int_equal(waitpid(command->pid, &end, 0), command->pid);
    command->status = WIFEXITED(end) ? WEXITSTATUS(end) : 128 + WTERMSIG(end);
    close(command->out);
    close(command->err);
}

void command_free(command_run *command)
{
    free(command->stdout_text);
    free(command->stderr_text);
}

json_t *command_json(const char *arguments, int status)
{
    char all[512];
    snprintf(all, sizeof all, "--json %s", arguments);
    command_run command;
    command_start(&command, all);
    command_finish(&command);
    if (command.status != status)
        fail_msg("demo %s: status %d\n%s\n%s", all, command.status, command.stdout_text,
                 command.stderr_text);
    json_error_t error;
    json_t *value = json_loads(command.stdout_text, 0, &error);
    if (!value)
        fail_msg("demo %s: %s: %s", all, error.text, command.stdout_text);
    command_free(&command);
    return value;
}

/* The parent of a process, -1 if it is gone. Its name, in brackets, may hold anything. */
static pid_t parent_of(const char *pid)
{
    char path[300], line[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *file = fopen(path, "r");
    char *at = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    if (file)
        fclose(file);
    int parent;
    return at && sscanf(at, ") %*c %d", &parent) == 1 ? parent : -1;
}

static int compare_pids(const void *a, const void *b)
{
    return (*(const pid_t *)a > *(const pid_t *)b) - (*(const pid_t *)a < *(const pid_t *)b);
}

size_t command_children(pid_t pid, pid_t *children, size_t limit)
{
    size_t count = 0;
    DIR *folder = opendir("/proc");
    assert_non_null(folder);
    for (struct dirent *entry; count < limit && (entry = readdir(folder));)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && parent_of(entry->d_name) == pid)
            children[count++] = (pid_t)strtol(entry->d_name, NULL, 10);
    closedir(folder);
    qsort(children, count, sizeof *children, compare_pids);
    return count;
}

bool command_gone(pid_t pid)
{
    for (int waited = 0; waited < PATIENCE_MS; waited += STEP_MS) {
        if (kill(pid, 0) != 0)
            return errno == ESRCH;
        usleep(STEP_MS * 1000);
    }
    return false;
}

/* Files of /dev/shm, and which of them some process has mapped. */
typedef struct shared_files {
    char paths[SHARED_FILES][300];
    bool mapped[SHARED_FILES];
    size_t count;
} shared_files;

/* What Python's multiprocessing and vLLM leave when they are killed beside this test: never ours. */
static bool is_others(const char *name)
{
    static const char *const begins[] = {"psm_", "sem.mp-", "vllm"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

static void list_shared(shared_files *files)
{
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.' || is_others(entry->d_name))
            continue;
        assert_in_range(files->count, 0, SHARED_FILES - 1);
        snprintf(files->paths[files->count++], sizeof files->paths[0], "/dev/shm/%s", entry->d_name);
    }
    if (folder)
        closedir(folder);
}

static void find_mapped(shared_files *files, const char *maps)
{
    FILE *file = fopen(maps, "r");
    char line[4096];
    while (file && fgets(line, sizeof line, file))
        for (size_t i = 0; i < files->count && strstr(line, "/dev/shm/"); i++)
            files->mapped[i] |= strstr(line, files->paths[i]) != NULL;
    if (file)
        fclose(file);
}

static size_t posix_leftovers(void)
{
    static shared_files files;
    size_t count = 0;
    memset(&files, 0, sizeof files);
    list_shared(&files);
    DIR *folder = opendir("/proc");
    assert_non_null(folder);
    for (struct dirent *entry; files.count && (entry = readdir(folder));) {
        char maps[300];
        snprintf(maps, sizeof maps, "/proc/%s/maps", entry->d_name);
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            find_mapped(&files, maps);
    }
    closedir(folder);
    for (size_t i = 0; i < files.count; i++)
        count += !files.mapped[i];
    return count;
}

static size_t sysv_leftovers(void)
{
    size_t count = 0;
    FILE *file = fopen("/proc/sysvipc/shm", "r");
    char line[1024];
    unsigned long attached;
    while (file && fgets(line, sizeof line, file))
        count += sscanf(line, " %*d %*d %*o %*u %*d %*d %lu", &attached) == 1 && attached == 0;
    if (file)
        fclose(file);
    return count;
}

size_t command_leftovers(void)
{
    return posix_leftovers() + sysv_leftovers();
}
