/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIXL's UCX beside that of this process. A wheel of NIXL has a UCX of its own, under other file names but
 * with the same symbols. A program that is linked to kvferry has another one already, and whatever is loaded
 * later would find that first. So the backend, and the modules that its UCX would load by and by, are loaded
 * here once before NIXL does, such that each of them looks at what it came with first.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/nixl_internal.h"

enum { PATH_BYTES = 4096 };

static bool find_backend(void *library, char *path)
{
    char folder[PATH_BYTES];
    return dlinfo(library, RTLD_DI_ORIGIN, folder) == 0 &&
           snprintf(path, PATH_BYTES, "%s/plugins/libplugin_UCX.so", folder) < PATH_BYTES &&
           access(path, R_OK) == 0;
}

/* What every library finds that is loaded from now on: of the program and what it is linked to. */
static void *find_first(const char *symbol)
{
    void *program = dlopen(NULL, RTLD_NOW);
    void *found = program ? dlsym(program, symbol) : NULL;
    if (program)
        dlclose(program);
    return found;
}

/* What looks at its own first would take glibc's allocator, and give others' memory back to it. Who only
 * counts allocations leaves free alone. */
static bool has_own_allocator(void)
{
    Dl_info allocator, c;
    return dladdr(find_first("free"), &allocator) && dladdr(find_first("gnu_get_libc_version"), &c) &&
           allocator.dli_fbase != c.dli_fbase;
}

static bool has_rdma(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    bool found = false;
    for (const struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return found;
}

static void *load_first(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND); }

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Those that cannot be loaded UCX could not load either. */
static void load_modules(void *backend)
{
    Dl_info ucx;
    char folder[PATH_BYTES], path[2 * PATH_BYTES];
    if (!dladdr(dlsym(backend, "ucp_init_version"), &ucx))
        return;
    const char *end = strrchr(ucx.dli_fname, '/');
    if (!end || snprintf(folder, sizeof(folder), "%.*s/ucx", (int)(end - ucx.dli_fname), ucx.dli_fname) >=
                    (int)sizeof(folder))
        return;
    DIR *modules = opendir(folder);
    bool rdma = has_rdma();
    for (const struct dirent *entry; modules && (entry = readdir(modules));) {
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (starts_with(entry->d_name, "libuct_") && strstr(entry->d_name, ".so") &&
            (rdma || !starts_with(entry->d_name, "libuct_ib")))
            load_first(path);
    }
    if (modules)
        closedir(modules);
}

static bool unfit(const char *path, const char *expected, const char *found, kvferry_report *report)
{
    base_report_add(report, "engine_library", &(base_where){.place = path}, expected,
                    base_format("%.200s", found), "engine nixl cannot use the UCX backend of this library");
    return false;
}

/* What is set stays. UCX's RDMA module loads a second set of RDMA libraries, whose ends collide as the
 * process ends: it is left out where there is no device for it. */
static bool set_environment(void)
{
    return setenv("UCX_HANDLE_ERRORS", "none", 0) == 0 &&
           (has_rdma() || setenv("UCX_MODULES", "^ib", 0) == 0);
}

bool nixl_backend_load(void *library, kvferry_report *report)
{
    char path[PATH_BYTES];
    if (!set_environment())
        return false;
    if (!find_first("ucp_init_version"))
        return true; /* it finds its own */
    const char *elsewhere = getenv("NIXL_PLUGIN_DIR");
    if (elsewhere && *elsewhere) /* NIXL would take a backend from there, which finds this process's UCX */
        return unfit("NIXL_PLUGIN_DIR", "no such variable where the program is linked to UCX", elsewhere, report);
    if (!find_backend(library, path))
        return true; /* NIXL says so */
    if (has_own_allocator())
        return unfit(path, "glibc's allocator in a program that is linked to UCX", "another one", report);
    void *backend = load_first(path);
    if (!backend)
        return unfit(path, "a plugin", dlerror(), report);
    load_modules(backend);
    return true;
}
