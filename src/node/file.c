/* SPDX-License-Identifier: Apache-2.0 */
#include "node/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kvferry_status unreadable(const char *path, const char *expected, const char *found,
                                 kvferry_report *report)
{
    base_report_add(report, "file_failed", &(base_where){.place = path}, expected, found,
                    "a file could not be read");
    return KVFERRY_IO;
}

static kvferry_status read_open(int fd, const char *path, size_t maximum, char **text, size_t *size,
                                struct stat *about, kvferry_report *report)
{
    if (fstat(fd, about) != 0)
        return unreadable(path, "a readable file", strerror(errno), report);
    if (!S_ISREG(about->st_mode))
        return unreadable(path, "a regular file", "something else", report);
    if (about->st_size < 0 || (uint64_t)about->st_size > maximum)
        return unreadable(path, base_format("at most %zu bytes", maximum),
                          base_format("%lld", (long long)about->st_size), report);
    size_t length = (size_t)about->st_size, got = 0;
    char *data = malloc(length + 1);
    if (!data)
        return KVFERRY_NO_MEMORY;
    while (got < length) {
        ssize_t more = read(fd, data + got, length - got);
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0) {
            free(data);
            return unreadable(path, "a readable file", strerror(errno), report);
        }
        if (more == 0)
            break; /* it was cut meanwhile */
        got += (size_t)more;
    }
    data[got] = '\0';
    *text = data;
    *size = got;
    return KVFERRY_OK;
}

kvferry_status node_file_read(const char *path, size_t maximum, char **text, size_t *size,
                              struct stat *about, kvferry_report *report)
{
    /* A pipe that nobody writes to must not hold the caller up. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return unreadable(path, "a readable file", strerror(errno), report);
    kvferry_status status = read_open(fd, path, maximum, text, size, about, report);
    close(fd);
    return status;
}

bool node_file_descriptors(int count, kvferry_report *report)
{
    int taken[64], got = 0, failure = 0;
    while (got < count && got < 64 && !failure) {
        taken[got] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        failure = taken[got] < 0 ? errno : 0;
        got += !failure;
    }
    for (int i = 0; i < got; i++)
        close(taken[i]);
    if (failure)
        base_report_add(report, "descriptors", NULL, base_format("%d descriptors", count),
                        base_format("%d: %s", got, strerror(failure)), "a node needs some for itself");
    return !failure;
}
