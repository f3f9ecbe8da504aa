/* SPDX-License-Identifier: Apache-2.0 */
/* ucx_perftest beside us: UCX at its best, over a caller's own memory. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_pair.h"

/* What makes UCX fast where it notices lost peers, and memory that is not UCX's shared memory. */
static const char *const settings[][2] = {
    {"UCX_NET_DEVICES", "lo"},        {"UCX_MM_ERROR_HANDLING", "y"},
    {"UCX_MM_SEG_SIZE", "16k"},       {"UCX_KEEPALIVE_INTERVAL", "1s"},
    {"UCX_TCP_TX_SEG_SIZE", "256k"},  {"UCX_TCP_RX_SEG_SIZE", "256k"},
    {"UCX_TCP_SNDBUF", "4m"},         {"UCX_TCP_RCVBUF", "4m"},
    {"UCX_ALLOC_PRIO", "mmap"},       {"UCX_WARN_UNUSED_ENV_VARS", "n"},
};

bool bench_perftest_found(void)
{
    const char *path = getenv("PATH");
    char *copy = path ? strdup(path) : NULL, *rest = copy;
    bool found = false;
    for (char *folder; !found && copy && (folder = strsep(&rest, ":"));) {
        char file[4096];
        snprintf(file, sizeof(file), "%s/ucx_perftest", folder);
        found = access(file, X_OK) == 0;
    }
    free(copy);
    return found;
}

/* A port that was free a moment ago. */
static unsigned free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = listener >= 0 && bind(listener, (struct sockaddr *)&address, size) == 0 &&
                 getsockname(listener, (struct sockaddr *)&address, &size) == 0;
    if (listener >= 0)
        close(listener);
    return bound ? ntohs(address.sin_port) : 0;
}

/* Standard output goes to `output`, everything else nowhere. */
static pid_t start(const char *transport, const char *const *arguments, int output)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    int nowhere = open("/dev/null", O_RDWR);
    bench_pin(output < 0);
    dup2(nowhere, 0);
    dup2(output >= 0 ? output : nowhere, 1);
    dup2(nowhere, 2);
    setenv("UCX_TLS", strcmp(transport, "shm") == 0 ? "self,posix,sysv" : "self,tcp", 1);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        setenv(settings[i][0], settings[i][1], 1);
    execvp("ucx_perftest", (char *const *)(uintptr_t)arguments);
    _exit(127);
}

/* The last line: iterations, then microseconds of one: typical, average, overall. */
static bool parse(char *text, double *seconds)
{
    bool found = false;
    for (char *line; (line = strsep(&text, "\n"));) {
        double iterations, typical, average, overall, bandwidth;
        if (sscanf(line, "%lf %lf %lf %lf %lf", &iterations, &typical, &average, &overall,
                   &bandwidth) == 5 &&
            overall > 0) {
            *seconds = iterations * overall * 1e-6;
            found = true;
        }
    }
    return found;
}

static bool run_client(const char *transport, const char *const *arguments, double *seconds)
{
    static char text[65536];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid_t client = start(transport, arguments, ends[1]);
    close(ends[1]);
    size_t size = 0;
    for (ssize_t got; (got = read(ends[0], text + size, sizeof(text) - 1 - size)) > 0;)
        size += (size_t)got;
    text[size] = '\0';
    close(ends[0]);
    int status = -1;
    if (client > 0)
        waitpid(client, &status, 0);
    return client > 0 && status == 0 && parse(text, seconds);
}

bool bench_perftest_run(const char *transport, uint64_t block_bytes, uint64_t copies,
                        double *seconds, const char **why)
{
    char port[16], size[24], count[24];
    snprintf(port, sizeof(port), "%u", free_port());
    snprintf(size, sizeof(size), "%llu", (unsigned long long)block_bytes);
    snprintf(count, sizeof(count), "%llu", (unsigned long long)copies);
    const char *const serve[] = {"ucx_perftest", "-p", port, NULL};
    const char *const measure[] = {"ucx_perftest", "127.0.0.1", "-p", port,  "-t", "ucp_put_bw", "-s",
                                   size,           "-n",        count, "-w", "20", "-f",         NULL};
    pid_t server = start(transport, serve, -1);
    bool well = false;
    /* The server takes a moment to listen. */
    for (unsigned attempt = 0; !well && server > 0 && attempt < 40; attempt++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        if (waitpid(server, NULL, WNOHANG) != 0) {
            server = -1;
            break;
        }
        well = run_client(transport, measure, seconds);
    }
    if (server > 0) {
        if (!well)
            kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    *why = well ? "" : "ucx_perftest gave no result";
    return well;
}
