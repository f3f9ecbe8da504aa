/* SPDX-License-Identifier: Apache-2.0 */
/* Finds NIXL's library while running, and its words. Nothing of it is linked. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/nixl_internal.h"

static const char variable[] = "KVFERRY_NIXL_LIBRARY";
static const char standard[] = "libnixl_capi.so";

static struct {
    pthread_mutex_t lock;
    bool loaded;
    nixl_api api;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct {
    const char *name;
    size_t place;
} functions[] = {
    {"create_configured_agent", offsetof(nixl_api, agent_create)},
    {"destroy_agent", offsetof(nixl_api, agent_destroy)},
    {"get_local_md", offsetof(nixl_api, metadata)},
    {"load_remote_md", offsetof(nixl_api, load)},
    {"get_plugin_params", offsetof(nixl_api, defaults)},
    {"destroy_mem_list", offsetof(nixl_api, memories_destroy)},
    {"params_add", offsetof(nixl_api, parameter_add)},
    {"destroy_params", offsetof(nixl_api, parameters_destroy)},
    {"create_backend", offsetof(nixl_api, backend_create)},
    {"destroy_backend", offsetof(nixl_api, backend_destroy)},
    {"create_opt_args", offsetof(nixl_api, options_create)},
    {"opt_args_add_backend", offsetof(nixl_api, options_add)},
    {"destroy_opt_args", offsetof(nixl_api, options_destroy)},
    {"create_reg_dlist", offsetof(nixl_api, ranges_create)},
    {"reg_dlist_add_desc", offsetof(nixl_api, ranges_add)},
    {"destroy_reg_dlist", offsetof(nixl_api, ranges_destroy)},
    {"register_mem", offsetof(nixl_api, add)},
    {"deregister_mem", offsetof(nixl_api, remove)},
    {"create_xfer_dlist", offsetof(nixl_api, list_create)},
    {"xfer_dlist_add_desc", offsetof(nixl_api, list_add)},
    {"xfer_dlist_clear", offsetof(nixl_api, list_clear)},
    {"destroy_xfer_dlist", offsetof(nixl_api, list_destroy)},
    {"create_xfer_req", offsetof(nixl_api, request_create)},
    {"post_xfer_req", offsetof(nixl_api, request_post)},
    {"get_xfer_status", offsetof(nixl_api, request_poll)},
    {"release_xfer_req", offsetof(nixl_api, request_release)},
    {"destroy_xfer_req", offsetof(nixl_api, request_destroy)},
    {"create_notif_map", offsetof(nixl_api, news_create)},
    {"destroy_notif_map", offsetof(nixl_api, news_destroy)},
    {"get_notifs", offsetof(nixl_api, news_take)},
};

static void *find(void *library, const char *name)
{
    return dlsym(library, base_format("nixl_capi_%s", name));
}

/* --- whether it serves ---------------------------------------------------------------------------- */

static bool find_functions(void *library, const char *path, nixl_api *api, kvferry_report *report)
{
    bool complete = true;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *found = find(library, functions[i].name);
        memcpy((char *)api + functions[i].place, &found, sizeof(found));
        if (found)
            continue;
        complete = false;
        base_report_add(report, "engine_library",
                        &(base_where){.place = base_format("nixl_capi_%s", functions[i].name)},
                        "a function of NIXL's C interface", "none in the library",
                        "engine nixl cannot use %s", path);
    }
    return complete;
}

static bool unfit(const char *place, const char *expected, const char *found, kvferry_report *report)
{
    base_report_add(report, "engine_library", &(base_where){.place = place}, expected, found,
                    "engine nixl cannot use this library");
    return false;
}

/* The interface is not stable: lists once took one argument more; a version came later, and is 0.1. */
static bool check_version(void *library, kvferry_report *report)
{
    bool (*is_stub)(void);
    void (*get_version)(int *, int *, int *);
    void *found = find(library, "is_stub");
    memcpy(&is_stub, &found, sizeof(is_stub));
    if (found && is_stub())
        return unfit("nixl_capi_is_stub", "NIXL itself", "a stub of its C interface", report);
    if (find(library, "reg_dlist_is_sorted"))
        return unfit("nixl_capi_reg_dlist_is_sorted", "NIXL 1.0 or later", "an older one", report);
    found = find(library, "get_version");
    memcpy(&get_version, &found, sizeof(get_version));
    int major = 0, minor = 1, patch = 0;
    if (found)
        get_version(&major, &minor, &patch);
    if (major == 0 && minor == 1)
        return true;
    return unfit("nixl_capi_get_version", "0.1", base_format("%d.%d", major, minor), report);
}

static void find_free(void *library, nixl_api *api)
{
    void *found = find(library, "mem_free");
    api->free = free;
    if (found)
        memcpy(&api->free, &found, sizeof(found));
}

static bool load(kvferry_report *report)
{
    const char *path = getenv(variable);
    path = path && *path ? path : standard;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *said = dlerror();
        base_report_add(report, "engine_library", &(base_where){.place = path},
                        base_format("NIXL's C interface, as its wheel has it, on the loader's path or named "
                                    "by %s",
                                    variable),
                        base_format("%.200s", said ? said : "no such library"),
                        "engine nixl has no library");
        return false;
    }
    if (find_functions(library, path, &process.api, report) && check_version(library, report) &&
        nixl_backend_load(library, report)) {
        find_free(library, &process.api);
        return true;
    }
    dlclose(library);
    return false;
}

/* A failed load is tried again by the next open: it may have another path by then. One that serves stays. */
const nixl_api *nixl_load(kvferry_report *report)
{
    pthread_mutex_lock(&process.lock);
    process.loaded = process.loaded || load(report);
    bool serves = process.loaded;
    pthread_mutex_unlock(&process.lock);
    return serves ? &process.api : NULL;
}

/* --- its words ------------------------------------------------------------------------------------ */

const char *nixl_code_name(int code)
{
    static const char *const names[] = {"success", "invalid argument", "backend error", "invalid state",
                                        "exception", "no telemetry", "not found", "not posted", "mismatch",
                                        "not allowed", "still active", "unknown error", "not supported",
                                        "remote disconnected", "canceled"};
    if (code <= 0 && -code < (int)(sizeof(names) / sizeof(names[0])))
        return names[-code];
    return base_format("code %d", code);
}

void nixl_report(kvferry_report *report, const char *what, int code)
{
    base_report_add(report, "engine_failed", NULL, NULL, nixl_code_name(code), "nixl: %s", what);
}
