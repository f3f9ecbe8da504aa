/* SPDX-License-Identifier: Apache-2.0 */
/* Topologies, and models by file or by name. */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOPOLOGY_LIMIT 4096 /* workers */

bool tool_topology_parse(const char *text, tool_topology *topology)
{
    uint32_t tp = 0, pp = 0;
    do {
        uint32_t *size = strncmp(text, "tp", 2) == 0 ? &tp : strncmp(text, "pp", 2) == 0 ? &pp : NULL;
        if (!size || *size || text[2] < '1' || text[2] > '9')
            return false;
        char *end;
        errno = 0;
        unsigned long value = strtoul(text + 2, &end, 10);
        if (errno || value > TOPOLOGY_LIMIT)
            return false;
        *size = (uint32_t)value;
        text = end;
    } while (*text);
    tp = tp ? tp : 1;
    pp = pp ? pp : 1;
    if (tp * pp > TOPOLOGY_LIMIT)
        return false;
    *topology = (tool_topology){tp, pp};
    return true;
}

/* --- the folder of models ------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool is_file(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && !S_ISDIR(status.st_mode);
}

/* A folder beside this program's own: a build folder has "models", an installed tree's bin
 * "../share/kvferry/models". NULL if it is not there. */
static char *folder_beside_program(const char *relative)
{
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (length <= 0)
        return NULL;
    program[length] = 0;
    char *slash = strrchr(program, '/');
    if (!slash)
        return NULL;
    char *path = tool_text("%.*s/%s", (int)(slash - program), program, relative);
    if (is_folder(path))
        return path;
    free(path);
    return NULL;
}

static char *models_folder(void)
{
    const char *named = getenv("KVFERRY_MODELS");
    if (named && *named)
        return tool_text("%s", named);
    char *path = folder_beside_program("models");
    if (!path)
        path = folder_beside_program("../share/kvferry/models");
    return path ? path : tool_text("%s", KVFERRY_MODELS_FOLDER);
}

static int is_model(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    return end && end != entry->d_name && strcmp(end, ".json") == 0;
}

/* "A, B, C": the models that there are. */
static char *model_names(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_model, alphasort);
    if (count < 0)
        return tool_text("none (%s: %s)", folder, strerror(errno));
    char *names = tool_text("%s", "");
    for (int i = 0; i < count; i++) {
        int length = (int)strlen(entries[i]->d_name) - (int)strlen(".json");
        char *longer = tool_text("%s%s%.*s", names, i ? ", " : "", length, entries[i]->d_name);
        free(names);
        names = longer;
        free(entries[i]);
    }
    free(entries);
    if (count)
        return names;
    free(names);
    return tool_text("none in %s", folder);
}

/* A path, unlike a name, has something to say of itself. */
static int unknown_model(const char *option, const char *model, const char *folder)
{
    struct stat about;
    const char *why = strchr(model, '/') && stat(model, &about) != 0 ? strerror(errno) : NULL;
    char *names = model_names(folder);
    char *expected = tool_text("a config.json, a folder that has one, or one of the models: %s", names);
    char *found = why ? tool_text("'%s' (%s)", model, why) : tool_text("'%s'", model);
    int status = tool_misuse(option, expected, found);
    free(found);
    free(expected);
    free(names);
    return status;
}

/* The file that `model` means, or NULL. A hub's "owner/Name" finds "Name". */
static char *find_model(const char *model, const char *folder)
{
    const char *slash = strrchr(model, '/');
    char *path = tool_text("%s/%s.json", folder, slash ? slash + 1 : model);
    bool known = is_file(path);
    if (known && !slash)
        return path;
    if (is_folder(model)) {
        free(path);
        return tool_text("%s/config.json", model);
    }
    if (strcmp(model, "-") == 0 || is_file(model)) {
        free(path);
        return tool_text("%s", model);
    }
    if (known)
        return path;
    free(path);
    return NULL;
}

/* That it can be read, before it is. */
static int check_model(const char *option, const char *model, const char *path)
{
    if (strcmp(path, "-") == 0)
        return TOOL_GO_ON;
    return tool_check_file(option, is_folder(model) ? "a folder with a config.json that can be read"
                                                     : "a config.json that can be read", path);
}

int tool_model_read(const char *option, const char *model, tool_model *result)
{
    char *folder = models_folder();
    char *path = find_model(model, folder);
    if (!path) {
        int status = unknown_model(option, model, folder);
        free(folder);
        return status;
    }
    tool_model read = {.name = tool_text("%s", model)};
    int status = check_model(option, model, path);
    if (status == TOOL_GO_ON)
        status = tool_read(path, &read.config, &read.size);
    if (status == TOOL_GO_ON)
        *result = read;
    else
        free(read.name);
    free(path);
    free(folder);
    return status;
}

const char *tool_model_blamed(const tool_model *model, const kvferry_report *report)
{
    static const char *const codes[] = {"syntax", "text_encoding", "key_duplicate", "nesting_depth", "document_size"};
    const kvferry_reason *first = kvferry_report_get(report, 0);
    if (!first)
        return NULL;
    bool blamed = strncmp(first->code, "value_", strlen("value_")) == 0;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        blamed |= strcmp(first->code, codes[i]) == 0;
    return blamed ? model->name : NULL;
}

void tool_model_free(tool_model *model)
{
    free(model->name);
    free(model->config);
    *model = (tool_model){0};
}
