/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers of this host map: files without a name. And the pages that memory is made of. */
#include "engine/ucx_local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

/* The kernel copies a caller's memory of huge pages three times as fast as of those of 4 KiB. It may decline. */
void ucx_memory_make_huge(uint64_t address, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = (address + page - 1) / page * page,
             end = (address + bytes) / page * page;
    if (end <= first)
        return;
    madvise((void *)(uintptr_t)first, (size_t)(end - first), MADV_HUGEPAGE); /* what comes */
    madvise((void *)(uintptr_t)first, (size_t)(end - first), MADV_COLLAPSE); /* what is there */
}

static void *map_file(int fd, uint64_t bytes)
{
    return mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/* All of it is there from the beginning: later there is nobody to tell that memory has run out. */
static int fill_file(int fd, uint64_t bytes)
{
    enum { PART = 64 * 1024 * 1024 }; /* a signal undoes no more */
    for (uint64_t at = 0; at < bytes;) {
        off_t part = (off_t)base_min(bytes - at, PART);
        if (fallocate(fd, 0, (off_t)at, part) == 0)
            at += (uint64_t)part;
        else if (errno != EINTR)
            return errno;
    }
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 ? 0 : errno;
}

kvferry_status ucx_memory_allocate(uint64_t bytes, int *fd, void **address, kvferry_report *report)
{
    if (bytes > INT64_MAX)
        return KVFERRY_NO_MEMORY;
    int file = memfd_create("kvferry", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *mapped = MAP_FAILED;
    int error = file < 0 ? errno : fill_file(file, bytes);
    if (!error) {
        mapped = map_file(file, bytes);
        error = mapped == MAP_FAILED ? errno : 0;
    }
    if (!error) {
        *fd = file;
        *address = mapped;
        return KVFERRY_OK;
    }
    if (file >= 0)
        close(file);
    base_report_add(report, "engine_failed", NULL,
                    base_format("%llu bytes", (unsigned long long)bytes), strerror(error),
                    "ucx: memory cannot be allocated");
    return error == ENOMEM || error == ENOSPC || error == EFBIG ? KVFERRY_NO_MEMORY
                                                                : KVFERRY_UNSUPPORTED;
}

static bool is_file_of(int fd, const ucx_key *key)
{
    struct stat found;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &found) == 0 &&
           (uint64_t)found.st_dev == key->device && (uint64_t)found.st_ino == key->inode &&
           (uint64_t)found.st_size == key->bytes;
}

/* Maps the file of the segment; it stays good when the peer is gone. What cannot be mapped, since /proc does
 * not show it or there is no room, is reached like a caller's own memory. */
void ucx_memory_import(const ucx_peer *peer, ucx_remote *remote)
{
    const ucx_key *key = &remote->key;
    char path[64];
    if (!peer->local || key->fd < 0)
        return;
    snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)peer->local->pid, key->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return;
    void *map = is_file_of(fd, key) ? map_file(fd, key->bytes) : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED)
        return;
    madvise(map, (size_t)key->bytes, MADV_DONTFORK); /* a child would keep it from being freed */
    remote->map = map;
}

void ucx_memory_drop(ucx_remote *remote)
{
    if (remote->map)
        munmap(remote->map, (size_t)remote->key.bytes);
    remote->map = NULL;
}
