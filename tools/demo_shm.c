/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory: how much there is, and that none of it stays behind. */
#include "demo.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SHM "/dev/shm"
#define UCX_FOLDER "UCX_POSIX_DIR"

static bool uses_shm(const demo_config *config) { return strcmp(config->transport, "shm") == 0; }

/* Containers often have little. A part stays free for the engine's own queues. */
void demo_shm_mind(demo_config *config)
{
    struct statvfs shm;
    if (!uses_shm(config) || statvfs(SHM, &shm) != 0)
        return;
    uint64_t room = (uint64_t)shm.f_bavail * shm.f_frsize / 8 * 7;
    if (room >= config->memory)
        return;
    tool_log(SHM " has room for segments of %s only: taking that instead of %s (see --memory)",
             tool_size(room), tool_size(config->memory));
    config->memory = room;
}

/* UCX fills a new file before it takes its name away: a worker that is killed meanwhile leaves it. So all
 * files of a run lie in a folder of its own. */
void demo_shm_open(demo_config *config)
{
    char folder[] = SHM "/kvferry-demo-XXXXXX";
    if (!uses_shm(config) || getenv(UCX_FOLDER) || !mkdtemp(folder))
        return;
    config->shm_folder = tool_text("%s", folder);
    setenv(UCX_FOLDER, folder, 1);
}

void demo_shm_leave(const demo_config *config)
{
    if (config->shm_folder)
        rmdir(config->shm_folder);
}

void demo_shm_close(demo_config *config)
{
    DIR *folder = config->shm_folder ? opendir(config->shm_folder) : NULL;
    if (folder) {
        for (struct dirent *entry; (entry = readdir(folder));)
            if (entry->d_name[0] != '.')
                unlinkat(dirfd(folder), entry->d_name, 0);
        closedir(folder);
        rmdir(config->shm_folder);
        unsetenv(UCX_FOLDER);
    }
    free(config->shm_folder);
    config->shm_folder = NULL;
}
