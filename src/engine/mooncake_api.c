/* SPDX-License-Identifier: Apache-2.0 */
/* Finds Mooncake's library while running, and its words. Nothing of it is linked. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/mooncake_internal.h"

static const char variable[] = "KVFERRY_MOONCAKE_LIBRARY";
static const char standard[] = "libtransfer_engine.so";

static struct {
    pthread_mutex_t lock;
    bool loaded;
    mooncake_api api;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A failed load is tried again by the next open: it may have another path by then. */
static const struct {
    const char *name;
    size_t place;
    bool optional;
} functions[] = {
    {"createTransferEngine", offsetof(mooncake_api, create), false},
    {"destroyTransferEngine", offsetof(mooncake_api, destroy), false},
    {"getLocalIpAndPort", offsetof(mooncake_api, get_name), false},
    {"installTransport", offsetof(mooncake_api, install), false},
    {"openSegment", offsetof(mooncake_api, open), false},
    {"openSegmentNoCache", offsetof(mooncake_api, open_fresh), true},
    {"closeSegment", offsetof(mooncake_api, close), false},
    {"registerLocalMemory", offsetof(mooncake_api, add), false},
    {"unregisterLocalMemory", offsetof(mooncake_api, remove), false},
    {"allocateBatchID", offsetof(mooncake_api, batch), false},
    {"submitTransfer", offsetof(mooncake_api, submit), false},
    {"getTransferStatus", offsetof(mooncake_api, poll), false},
    {"freeBatchID", offsetof(mooncake_api, free), false},
};

static bool find_functions(void *library, const char *path, mooncake_api *api, kvferry_report *report)
{
    bool complete = true;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *found = dlsym(library, functions[i].name);
        memcpy((char *)api + functions[i].place, &found, sizeof(found));
        if (found || functions[i].optional)
            continue;
        complete = false;
        base_report_add(report, "engine_library", &(base_where){.place = functions[i].name},
                        "a function of Mooncake's C interface, 0.3.6 or later", "none in the library",
                        "engine mooncake cannot use %s", path);
    }
    api->acknowledges = dlsym(library, "enableGracefulShutdown") != NULL;
    return complete;
}

/* What Mooncake reads once: a connection for each copy would be the default. What is set stays. */
static void set_environment(void)
{
    setenv("MC_TCP_ENABLE_CONNECTION_POOL", "1", 0);
    setenv("MC_LOG_LEVEL", "WARNING", 0);
}

static bool load(kvferry_report *report)
{
    const char *path = getenv(variable);
    path = path && *path ? path : standard;
    set_environment();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *said = dlerror();
        base_report_add(report, "engine_library", &(base_where){.place = path},
                        base_format("Mooncake Transfer Engine, built with -DBUILD_SHARED_LIBS=ON, on the "
                                    "loader's path or named by %s",
                                    variable),
                        base_format("%.200s", said ? said : "no such library"),
                        "engine mooncake has no library");
        return false;
    }
    if (find_functions(library, path, &process.api, report))
        return true;
    dlclose(library);
    return false;
}

const mooncake_api *mooncake_load(const char *transport, kvferry_report *report)
{
    pthread_mutex_lock(&process.lock);
    process.loaded = process.loaded || load(report);
    bool loaded = process.loaded;
    pthread_mutex_unlock(&process.lock);
    if (!loaded)
        return NULL;
    if (process.api.acknowledges || (*transport && strcmp(transport, "tcp") != 0))
        return &process.api;
    base_report_add(report, "engine_library", &(base_where){.place = "enableGracefulShutdown"},
                    "Mooncake 0.3.12 or later, or a transport by name other than tcp", "an older one",
                    "engine mooncake: it calls writes over TCP complete before they have arrived");
    return NULL;
}

const char *mooncake_error_name(int code)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {{MOONCAKE_INVALID_ARGUMENT, "invalid argument"},
                 {MOONCAKE_TOO_MANY_REQUESTS, "too many requests"},
                 {MOONCAKE_NOT_REGISTERED, "address not registered"},
                 {MOONCAKE_BATCH_BUSY, "batch busy"},
                 {6, "device not found"},
                 {MOONCAKE_OVERLAPPED, "address overlapped"},
                 {101, "name not resolved"},
                 {102, "socket error"},
                 {103, "malformed metadata"},
                 {104, "handshake rejected"},
                 {200, "metadata error"},
                 {201, "endpoint error"},
                 {202, "context error"},
                 {MOONCAKE_NO_MEMORY, "out of memory"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (code == names[i].code || code == -names[i].code)
            return names[i].name;
    return base_format("code %d", code);
}

kvferry_status mooncake_status(int code)
{
    switch (code < 0 ? -code : code) {
    case 0:
        return KVFERRY_OK;
    case MOONCAKE_INVALID_ARGUMENT:
    case MOONCAKE_OVERLAPPED:
        return KVFERRY_INVALID;
    case MOONCAKE_NO_MEMORY:
        return KVFERRY_NO_MEMORY;
    default:
        return KVFERRY_ENGINE;
    }
}

void mooncake_report(kvferry_report *report, const char *what, const char *words)
{
    base_report_add(report, "engine_failed", NULL, NULL, words, "mooncake: %s", what);
}
