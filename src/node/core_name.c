/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose key is whose. With keys a link proves by which key its other end speaks, and a worker's address in its
 * roster has that key. An incarnation is a random number that nobody has twice: the key by which it was heard
 * first holds for as long as it is remembered, and whoever names it by another key is refused.
 */
#include "node/core_internal.h"

#include <stdio.h>
#include <strings.h>

enum { NAMES_FACTOR = 4 }; /* of each key, times max_peers */

typedef struct core_name {
    char incarnation[WIRE_INCARNATION_TEXT];
    char key[CORE_KEY_TEXT];
    struct core_name *prev, *next; /* the oldest first */
    UT_hash_handle hh;
} core_name;

const char *core_address_key(const char *address)
{
    const char *host = strstr(address, "://");
    const char *slash = host ? strchr(host + 3, '/') : NULL;
    return slash && strlen(slash + 1) == CORE_KEY_TEXT - 1 ? slash + 1 : "";
}

bool core_same_key(const char *a, const char *b) { return strcasecmp(a, b) == 0; }

/* With keys, whether the address is that of who speaks by the key. */
bool core_key_fits(const node_core *core, const char *address, const char *key)
{
    return !core->keyed || core_same_key(core_address_key(address), key);
}

static core_name *find(node_core *core, const char *incarnation)
{
    core_name *name;
    HASH_FIND_STR(core->names, incarnation, name);
    return name;
}

static void drop(node_core *core, core_name *name)
{
    DL_DELETE(core->name_list, name);
    HASH_DEL(core->names, name);
    free(name);
}

void core_names_free(node_core *core)
{
    while (core->name_list)
        drop(core, core->name_list);
}

const char *core_name_key(node_core *core, const char *incarnation)
{
    core_name *name = find(core, incarnation);
    return name ? name->key : NULL;
}

/* The oldest name of a key goes where it has too many: one key cannot make others' be forgotten. */
static void make_room(node_core *core, const char *key)
{
    core_name *name, *oldest = NULL;
    size_t count = 0;
    DL_FOREACH(core->name_list, name) {
        if (!core_same_key(name->key, key))
            continue;
        oldest = oldest ? oldest : name;
        count++;
    }
    if (count >= NAMES_FACTOR * (size_t)core->options.max_peers + 1)
        drop(core, oldest);
}

bool core_name_keep(node_core *core, const char *incarnation, const char *key)
{
    core_name *name = find(core, incarnation);
    if (name) {
        DL_DELETE(core->name_list, name);
        DL_APPEND(core->name_list, name);
        return true;
    }
    make_room(core, key);
    name = base_alloc(1, sizeof(*name));
    if (!name)
        return false;
    snprintf(name->incarnation, sizeof(name->incarnation), "%s", incarnation);
    snprintf(name->key, sizeof(name->key), "%s", key);
    HASH_ADD_STR(core->names, incarnation, name);
    if (!name->hh.tbl) {
        free(name);
        return false;
    }
    DL_APPEND(core->name_list, name);
    return true;
}

void core_report_key(kvferry_report *report, const char *expected, const char *found, const char *incarnation)
{
    base_report_add(report, "key_of_another", NULL, *expected ? expected : "a key", *found ? found : "none",
                    "the key of worker %s", incarnation);
}

void core_report_worker(kvferry_report *report, const char *expected, const char *found,
                        const char *incarnation)
{
    base_report_add(report, "worker_of_another", NULL, expected, found, "worker %s", incarnation);
}

bool core_name_speaks(node_core *core, const char *incarnation, const char *key, kvferry_report *report)
{
    const char *known = core->keyed ? core_name_key(core, incarnation) : NULL;
    if (!known || core_same_key(known, key))
        return true;
    core_report_key(report, known, key, incarnation);
    return false;
}

/* --- what rosters say of workers -------------------------------------------------------------------------- */

bool core_same_worker(const char *engine_id, const kvferry_worker *worker, const char *its_engine_id,
                      const kvferry_worker *its)
{
    return strcmp(engine_id, its_engine_id) == 0 && memcmp(worker, its, sizeof(*worker)) == 0;
}

bool core_worker_speaks(node_core *core, const char *engine_id, const kvferry_worker *worker,
                        const char *incarnation, kvferry_report *report)
{
    const core_target *target = core_target_find(core, incarnation);
    const core_source *source = core_source_find(core, incarnation);
    const char *its_engine = NULL;
    const kvferry_worker *its = NULL;
    if (strcmp(incarnation, core->incarnation) == 0) {
        its_engine = core->engine_id;
        its = &core->worker;
    } else if (target && !core_same_worker(engine_id, worker, target->engine_id, &target->member.worker)) {
        its_engine = target->engine_id;
        its = &target->member.worker;
    } else if (source) {
        its_engine = source->engine_id;
        its = &source->worker;
    }
    if (!its || core_same_worker(engine_id, worker, its_engine, its))
        return true;
    char expected[512];
    snprintf(expected, sizeof(expected), "%s", core_worker_words(its_engine, its, incarnation));
    core_report_worker(report, expected, core_worker_words(engine_id, worker, incarnation), incarnation);
    return false;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* An incarnation that is in it twice; NULL: none. */
static kvferry_status find_double(const wire_roster *wire, const char **twice)
{
    const char **names = base_alloc(wire->count, sizeof(*names));
    if (!names)
        return KVFERRY_NO_MEMORY;
    for (size_t i = 0; i < wire->count; i++)
        names[i] = wire->members[i].incarnation;
    qsort(names, wire->count, sizeof(*names), compare);
    *twice = NULL;
    for (size_t i = 1; i < wire->count && !*twice; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            *twice = names[i];
    free(names);
    return KVFERRY_OK;
}

kvferry_status core_roster_names(node_core *core, const wire_roster *wire, kvferry_report *report)
{
    const char *twice;
    kvferry_status status = find_double(wire, &twice);
    if (status != KVFERRY_OK)
        return status;
    if (twice) {
        core_report_worker(report, "each incarnation once in a roster", "it has two ranks", twice);
        return KVFERRY_REFUSED;
    }
    for (size_t i = 0; i < wire->count; i++) {
        const wire_member *member = &wire->members[i];
        if (!core_worker_speaks(core, wire->engine_id, &member->worker, member->incarnation, report) ||
            !core_name_speaks(core, member->incarnation, core_address_key(member->address), report))
            return KVFERRY_REFUSED;
    }
    return KVFERRY_OK;
}

bool core_rosters_agree(node_core *core, const char *incarnation, const char *key, kvferry_report *report)
{
    core_roster *roster, *next;
    HASH_ITER(hh, core->rosters, roster, next) {
        for (size_t i = 0; i < roster->wire.count; i++) {
            const wire_member *member = &roster->wire.members[i];
            if (strcmp(member->incarnation, incarnation) != 0 || core_key_fits(core, member->address, key))
                continue;
            core_report_key(report, core_address_key(member->address), key, incarnation);
            return false;
        }
    }
    return true;
}
