/* SPDX-License-Identifier: Apache-2.0 */
#include "node/directory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "node/address.h"

enum { ENGINE_ID_MAX = 255 };

static void end_entry(node_entry *entry)
{
    free(entry->engine_id);
    free(entry->address);
}

void node_directory_free(node_directory *directory)
{
    for (size_t i = 0; i < directory->count; i++)
        end_entry(&directory->entries[i]);
    free(directory->entries);
    *directory = (node_directory){0};
}

static int compare(const node_entry *a, const node_entry *b)
{
    if (a->dp != b->dp)
        return a->dp < b->dp ? -1 : 1;
    if (a->pp != b->pp)
        return a->pp < b->pp ? -1 : 1;
    return a->tp < b->tp ? -1 : a->tp > b->tp;
}

/* Forgets what another engine had under this rank. */
static bool forget_others(node_directory *directory, const node_entry *entry)
{
    size_t kept = 0;
    for (size_t i = 0; i < directory->count; i++) {
        node_entry *old = &directory->entries[i];
        if (old->dp == entry->dp && strcmp(old->engine_id, entry->engine_id) != 0)
            end_entry(old);
        else
            directory->entries[kept++] = *old;
    }
    bool any = kept != directory->count;
    directory->count = kept;
    return any;
}

kvferry_status node_directory_put(node_directory *directory, const node_entry *entry,
                                  bool *replaced)
{
    node_entry copy = *entry;
    copy.engine_id = strdup(entry->engine_id);
    copy.address = strdup(entry->address);
    kvferry_status status = KVFERRY_OK;
    if (!copy.engine_id || !copy.address ||
        !base_grow((void **)&directory->entries, &directory->capacity, directory->count + 1,
                   sizeof(copy)))
        status = KVFERRY_NO_MEMORY;
    size_t place = 0;
    if (status == KVFERRY_OK) {
        *replaced = forget_others(directory, entry);
        while (place < directory->count && compare(&directory->entries[place], &copy) < 0)
            place++;
        bool same = place < directory->count && compare(&directory->entries[place], &copy) == 0;
        copy.own |= same && directory->entries[place].own;
        if (same)
            end_entry(&directory->entries[place]);
        else if (directory->count == NODE_DIRECTORY_MAX)
            status = KVFERRY_REFUSED;
        else
            memmove(&directory->entries[place + 1], &directory->entries[place],
                    (directory->count++ - place) * sizeof(copy));
    }
    if (status == KVFERRY_OK)
        directory->entries[place] = copy;
    else
        end_entry(&copy);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------- */

static bool read_address(base_json node, const char **address, kvferry_report *report)
{
    node_address parsed;
    base_text place = {0};
    bool good = base_json_string(node, NODE_ADDRESS_TEXT, address);
    if (good) {
        base_json_place(node, &place);
        good = node_address_parse(*address, NODE_ADDRESS_TCP, &parsed, place.data ? place.data : "",
                                  report);
    }
    free(place.data);
    return good;
}

static bool read_rank(base_json node, uint32_t *rank)
{
    char *end = NULL;
    unsigned long value =
        node.key && *node.key >= '0' && *node.key <= '9' ? strtoul(node.key, &end, 10) : ULONG_MAX;
    if (!end || *end || value > NODE_DIRECTORY_RANK_MAX) {
        base_json_finding(node, "value_range", "a rank as the key",
                          base_format("\"%.40s\"", node.key ? node.key : ""), "a key is no rank");
        return false;
    }
    *rank = (uint32_t)value;
    return true;
}

/* A directory that is being read. */
typedef struct read_job {
    node_directory *directory;
    kvferry_report *report;
    kvferry_status status;
    bool malformed; /* beyond the document's own findings */
} read_job;

static void read_stages(read_job *job, base_json stages, node_entry *entry)
{
    base_json member;
    void *iterator = NULL;
    stages = base_json_object(stages);
    while (job->status == KVFERRY_OK && base_json_next(&stages, &iterator, &member)) {
        const char *address = NULL;
        bool replaced;
        if (!read_rank(member, &entry->pp))
            continue;
        if (!read_address(member, &address, job->report)) {
            job->malformed = true;
            continue;
        }
        entry->address = (char *)(uintptr_t)address; /* copied */
        job->status = node_directory_put(job->directory, entry, &replaced);
    }
}

static void read_engine(read_job *job, base_json node)
{
    node_entry entry = {0};
    const char *engine_id = NULL;
    node = base_json_object(node);
    bool named = read_rank(node, &entry.dp);
    named = base_json_string(base_json_get(&node, "engine_id"), ENGINE_ID_MAX, &engine_id) && named;
    base_json workers = base_json_object(base_json_get(&node, "worker_addr")), member;
    void *iterator = NULL;
    entry.engine_id = (char *)(uintptr_t)engine_id;
    while (named && job->status == KVFERRY_OK && base_json_next(&workers, &iterator, &member))
        if (read_rank(member, &entry.tp))
            read_stages(job, member, &entry);
}

kvferry_status node_directory_read(const char *text, size_t size, node_directory *directory,
                                   kvferry_report *report)
{
    base_json_document document;
    kvferry_status status = base_json_parse(text, size, 0, report, &document);
    if (status != KVFERRY_OK)
        return status;
    read_job job = {.directory = directory, .report = report};
    base_json root = base_json_root(&document), member;
    void *iterator = NULL;
    while (job.status == KVFERRY_OK && base_json_next(&root, &iterator, &member))
        read_engine(&job, member);
    if (job.status == KVFERRY_OK)
        job.status = job.malformed ? KVFERRY_MALFORMED : base_json_verdict(&document);
    base_json_end(&document);
    if (job.status != KVFERRY_OK)
        node_directory_free(directory);
    return job.status;
}

/* An own entry has its rank, and its engine has the dp_rank. */
static bool check_own(const node_directory *directory, const node_entry *entry, kvferry_report *report)
{
    for (size_t i = 0; i < directory->count; i++) {
        const node_entry *own = &directory->entries[i];
        if (!own->own || own->dp != entry->dp)
            continue;
        bool engine = strcmp(own->engine_id, entry->engine_id) == 0;
        if (engine && (compare(own, entry) != 0 || strcmp(own->address, entry->address) == 0))
            continue;
        base_report_add(report, "rank_taken", NULL,
                        base_format("engine \"%.60s\", of this server: %.150s", own->engine_id, own->address),
                        base_format("engine \"%.60s\": %.150s", entry->engine_id, entry->address),
                        "dp_rank %u, tp_rank %u, pp_rank %u", entry->dp, entry->tp, entry->pp);
        return false;
    }
    return true;
}

kvferry_status node_directory_read_entry(const char *text, size_t size, node_directory *directory,
                                         bool *replaced, kvferry_report *report)
{
    base_json_document document;
    kvferry_status status = base_json_parse(text, size, 0, report, &document);
    if (status != KVFERRY_OK)
        return status;
    base_json root = base_json_root(&document);
    const char *engine_id = NULL, *address = NULL;
    uint64_t dp = 0, tp = 0, pp = 0;
    base_json_string(base_json_get(&root, "engine_id"), ENGINE_ID_MAX, &engine_id);
    base_json_uint(base_json_get(&root, "dp_rank"), 0, NODE_DIRECTORY_RANK_MAX, &dp);
    base_json_uint(base_json_get(&root, "tp_rank"), 0, NODE_DIRECTORY_RANK_MAX, &tp);
    base_json_uint(base_json_get(&root, "pp_rank"), 0, NODE_DIRECTORY_RANK_MAX, &pp);
    bool good = read_address(base_json_get(&root, "addr"), &address, report);
    status = base_json_verdict(&document);
    if (status == KVFERRY_OK && !good)
        status = KVFERRY_MALFORMED;
    if (status == KVFERRY_OK) {
        const node_entry entry = {(uint32_t)dp, (uint32_t)tp, (uint32_t)pp,
                                  (char *)(uintptr_t)engine_id, (char *)(uintptr_t)address, false};
        *replaced = false;
        status = check_own(directory, &entry, report) ? node_directory_put(directory, &entry, replaced)
                                                      : KVFERRY_REFUSED;
    }
    base_json_end(&document);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

static kvferry_status dump(json_t *root, bool good, char **text)
{
    char *made = NULL;
    if (good)
        made = base_json_text(root, JSON_COMPACT);
    else
        json_decref(root);
    if (!made)
        return KVFERRY_NO_MEMORY;
    *text = made;
    return KVFERRY_OK;
}

kvferry_status node_directory_write_entry(const node_entry *entry, char **text)
{
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:s}", "engine_id", entry->engine_id, "dp_rank",
                             (json_int_t)entry->dp, "tp_rank", (json_int_t)entry->tp, "pp_rank",
                             (json_int_t)entry->pp, "addr", entry->address);
    return dump(root, root != NULL, text);
}

/* The object's member of that rank, made if it is not there. NULL: no memory. */
static json_t *member_of(json_t *object, uint32_t rank)
{
    char key[16];
    snprintf(key, sizeof(key), "%u", rank);
    json_t *member = json_object_get(object, key);
    if (!member && json_object_set_new(object, key, json_object()) == 0)
        member = json_object_get(object, key);
    return member;
}

static bool add_entry(json_t *root, const node_entry *entry)
{
    char key[16];
    json_t *engine = member_of(root, entry->dp);
    if (!engine)
        return false;
    json_t *workers = json_object_get(engine, "worker_addr");
    if (!workers) {
        if (json_object_set_new(engine, "engine_id", json_string(entry->engine_id)) != 0 ||
            json_object_set_new(engine, "worker_addr", json_object()) != 0)
            return false;
        workers = json_object_get(engine, "worker_addr");
    }
    json_t *stages = member_of(workers, entry->tp);
    snprintf(key, sizeof(key), "%u", entry->pp);
    return stages && json_object_set_new(stages, key, json_string(entry->address)) == 0;
}

kvferry_status node_directory_write(const node_directory *directory, char **text)
{
    json_t *root = json_object();
    bool good = root != NULL;
    for (size_t i = 0; i < directory->count && good; i++)
        good = add_entry(root, &directory->entries[i]);
    return dump(root, good, text);
}

/* --- looking ---------------------------------------------------------------------------------- */

/* Up to a few of the engine ids, for a person. */
static const char *names(const node_directory *directory)
{
    char text[200] = "";
    const char *last = NULL;
    size_t size = 0;
    for (size_t i = 0; i < directory->count && size < sizeof(text) - 60; i++) {
        const char *name = directory->entries[i].engine_id;
        if (last && strcmp(last, name) == 0)
            continue;
        size +=
            (size_t)snprintf(text + size, sizeof(text) - size, "%s%.40s", last ? ", " : "", name);
        last = name;
    }
    return directory->count ? base_format("%s", text) : "no engine";
}

kvferry_status node_directory_engine(const node_directory *directory, const char *engine_id,
                                     const char **found, kvferry_report *report)
{
    const char *one = NULL;
    bool several = false;
    for (size_t i = 0; i < directory->count; i++) {
        const char *name = directory->entries[i].engine_id;
        if (*engine_id && strcmp(name, engine_id) != 0)
            continue;
        several |= one && strcmp(one, name) != 0;
        one = name;
    }
    if (one && !several) {
        *found = one;
        return KVFERRY_OK;
    }
    if (several)
        base_report_add(report, "engine_ambiguous", NULL,
                        "an engine id, or a directory of one engine", names(directory),
                        "no engine was named and there are several");
    else
        base_report_add(report, "engine_absent", NULL,
                        *engine_id ? base_format("the engine \"%.200s\"", engine_id) : "an engine",
                        names(directory), "the engine is not in the directory");
    return KVFERRY_REFUSED;
}
