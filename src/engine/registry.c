/* SPDX-License-Identifier: Apache-2.0 */
/* Which engines there are. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const kvferry_engine_ops *const built_in[] = {&engine_memory_ops, &engine_ucx_ops,
                                                    &engine_mooncake_ops, &engine_nixl_ops};
enum { BUILT_IN = sizeof(built_in) / sizeof(built_in[0]) };

/* Tables stay valid for the process, so one that was found may be used without the lock. */
static struct {
    pthread_mutex_t lock;
    const kvferry_engine_ops *tables[32];
    size_t count;
} added = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const kvferry_engine_ops *find_locked(const char *name)
{
    for (size_t i = 0; i < BUILT_IN; i++)
        if (strcmp(built_in[i]->name, name) == 0)
            return built_in[i];
    for (size_t i = 0; i < added.count; i++)
        if (strcmp(added.tables[i]->name, name) == 0)
            return added.tables[i];
    return NULL;
}

const kvferry_engine_ops *engine_find(const char *name)
{
    pthread_mutex_lock(&added.lock);
    const kvferry_engine_ops *ops = find_locked(name);
    pthread_mutex_unlock(&added.lock);
    return ops;
}

void engine_report_unknown(kvferry_report *report, const char *name)
{
    base_text known = {0};
    pthread_mutex_lock(&added.lock);
    for (size_t i = 0; i < BUILT_IN; i++)
        base_text_append(&known, "%s%s", i ? ", " : "", built_in[i]->name);
    for (size_t i = 0; i < added.count; i++)
        base_text_append(&known, ", %s", added.tables[i]->name);
    pthread_mutex_unlock(&added.lock);
    base_report_add(report, "engine_unknown", NULL, known.failed ? NULL : known.data, name,
                    "no such engine");
    free(known.data);
}

/* Names each function that is missing; false if any is. */
static bool check_table(const kvferry_engine_ops *ops, kvferry_report *report)
{
    const struct {
        const char *name;
        bool there;
    } needed[] = {{"name", ops->name && *ops->name && strlen(ops->name) < ENGINE_NAME_BYTES},
                  {"open", ops->open},
                  {"close", ops->close},
                  {"capabilities", ops->capabilities},
                  {"progress", ops->progress},
                  {"segment_register", ops->segment_register},
                  {"segment_unregister", ops->segment_unregister},
                  {"address_export", ops->address_export},
                  {"segment_export", ops->segment_export},
                  {"peer_connect", ops->peer_connect},
                  {"segment_import", ops->segment_import},
                  {"peer_lost", ops->peer_lost},
                  {"peer_close", ops->peer_close},
                  {"submit", ops->submit}};
    bool complete = true;
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (needed[i].there)
            continue;
        complete = false;
        base_report_add(report, "engine_table", &(base_where){.place = needed[i].name}, "set",
                        "missing", "engine table");
    }
    if (!ops->fd != !ops->arm) {
        complete = false;
        base_report_add(report, "engine_table", &(base_where){.place = ops->fd ? "arm" : "fd"},
                        "fd and arm both or neither", "one of them", "engine table");
    }
    return complete;
}

kvferry_status kvferry_engine_add(const kvferry_engine_ops *ops, kvferry_report *report)
{
    if (!ops)
        return KVFERRY_INVALID;
    if (ops->size < sizeof(*ops)) {
        base_report_add(report, "engine_table", &(base_where){.place = "size"},
                        base_format("%zu", sizeof(*ops)), base_format("%zu", ops->size),
                        "engine table");
        return KVFERRY_INVALID;
    }
    if (!check_table(ops, report))
        return KVFERRY_INVALID;
    kvferry_status status = KVFERRY_OK;
    pthread_mutex_lock(&added.lock);
    if (find_locked(ops->name))
        status = KVFERRY_INVALID;
    else if (added.count == sizeof(added.tables) / sizeof(added.tables[0]))
        status = KVFERRY_NO_SPACE;
    else
        added.tables[added.count++] = ops;
    pthread_mutex_unlock(&added.lock);
    if (status == KVFERRY_INVALID)
        base_report_add(report, "engine_name_taken", NULL, "a name of its own", ops->name,
                        "engine table");
    if (status == KVFERRY_NO_SPACE)
        base_report_add(report, "engine_table", NULL,
                        base_format("at most %zu tables", sizeof(added.tables) / sizeof(added.tables[0])),
                        "one more", "engine table");
    return status;
}
