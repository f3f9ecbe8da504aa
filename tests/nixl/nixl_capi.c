/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's C interface: that of NIXL, as far as the engine calls it. */
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function of the interface: declared, since strict compilers ask for it, and defined. */
#define PUBLIC(type, name, ...)                                                                        \
    __attribute__((visibility("default"))) type nixl_capi_##name(__VA_ARGS__);                         \
    type nixl_capi_##name(__VA_ARGS__)

__attribute__((visibility("default"))) stand_in_faults stand_in;

static stand_in_agent *agents; /* of the process */

static bool take(int *countdown)
{
    if (*countdown <= 0)
        return false;
    return (*countdown)--, true;
}

/* The real one would use what is gone. */
static void insist(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "stand-in: %s\n", what);
    abort();
}

static stand_in_agent *known(void *self)
{
    stand_in_agent *agent = agents;
    while (agent && agent != self)
        agent = agent->next;
    insist(agent, "an agent was used that is gone");
    return agent;
}

/* --- what the library is: told by the environment, since it is asked once --------------------------- */

PUBLIC(bool, is_stub, void) { return getenv("STAND_IN_STUB") != NULL; }

PUBLIC(void, get_version, int *major, int *minor, int *patch)
{
    const char *version = getenv("STAND_IN_VERSION");
    *major = *patch = 0;
    *minor = version ? atoi(version) : 1;
}

#ifdef STAND_IN_OLD
PUBLIC(int, reg_dlist_is_sorted, void *list, bool *sorted)
{
    (void)list;
    *sorted = false;
    return SUCCESS;
}
#endif

PUBLIC(void, mem_free, void *data)
{
    stand_in.given -= data != NULL;
    free(data);
}

/* --- agents ------------------------------------------------------------------------------------- */

typedef struct config {
    bool thread, listens;
} config;

PUBLIC(int, create_configured_agent, const char *name, const config *how, void **agent)
{
    if (how->thread || how->listens || take(&stand_in.refused_agents))
        return BACKEND;
    stand_in_agent *made = calloc(1, sizeof(*made));
    if (!made)
        return BACKEND;
    snprintf(made->name, sizeof(made->name), "%s", name);
    made->socket = -1;
    made->last = &made->first;
    if (!stand_in_listen(made)) {
        stand_in_close(made);
        free(made);
        return BACKEND;
    }
    made->next = agents;
    agents = made;
    stand_in.agents++;
    *agent = made;
    return SUCCESS;
}

static void free_request(stand_in_request *request)
{
    free(request->local);
    free(request->remote);
    free(request);
}

PUBLIC(int, destroy_agent, void *self)
{
    stand_in_agent *gone = known(self), **place = &agents;
    while (*place != gone)
        place = &(*place)->next;
    *place = gone->next;
    while (gone->first) {
        stand_in_request *request = gone->first;
        insist(request->released, "an agent went before its requests");
        gone->first = request->next;
        free_request(request);
    }
    stand_in_close(gone);
    free(gone);
    stand_in.agents--;
    return SUCCESS;
}

PUBLIC(int, get_local_md, void *self, void **data, size_t *size)
{
    const stand_in_agent *agent = known(self);
    stand_in_metadata *made = calloc(1, sizeof(*made));
    if (!made)
        return BACKEND;
    memcpy(made->name, agent->name, sizeof(made->name));
    memcpy(made->ranges, agent->ranges, sizeof(made->ranges));
    made->port = agent->port;
    made->count = agent->range_count;
    stand_in.given++;
    *data = made;
    *size = sizeof(*made);
    return SUCCESS;
}

PUBLIC(int, load_remote_md, void *self, const void *data, size_t size, char **name)
{
    stand_in_agent *agent = known(self);
    stand_in_metadata from;
    stand_in.loads++;
    if (size != sizeof(from))
        return BACKEND;
    memcpy(&from, data, sizeof(from));
    if (from.count > RANGES || agent->socket >= 0 || !stand_in_connect(agent, from.port))
        return BACKEND;
    memcpy(agent->peer, from.name, sizeof(agent->peer));
    memcpy(agent->peer_ranges, from.ranges, sizeof(agent->peer_ranges));
    agent->peer_range_count = (size_t)from.count;
    *name = strdup(from.name);
    stand_in.given += *name != NULL;
    return *name ? SUCCESS : BACKEND;
}

/* What was begun goes on by itself, as long as its agent lives. */
PUBLIC(int, get_notifs, void *self, void *news, void *options)
{
    (void)options;
    insist(news, "news have no place");
    stand_in_serve(known(self));
    for (stand_in_agent *agent = agents; agent; agent = agent->next)
        stand_in_move(agent);
    return SUCCESS;
}

/* --- backends ----------------------------------------------------------------------------------- */

PUBLIC(int, get_plugin_params, void *self, const char *plugin, void **memories, void **parameters)
{
    known(self);
    if (strcmp(plugin, "UCX") != 0 || take(&stand_in.refused_plugins))
        return NOT_FOUND;
    *memories = malloc(1);
    *parameters = calloc(1, sizeof(stand_in.settings));
    return *memories && *parameters ? SUCCESS : BACKEND;
}

PUBLIC(int, destroy_mem_list, void *memories)
{
    free(memories);
    return SUCCESS;
}

PUBLIC(int, params_add, void *parameters, const char *key, const char *value)
{
    if (strcmp(key, "engine_config") != 0)
        return INVALID;
    snprintf(parameters, sizeof(stand_in.settings), "%s", value);
    return SUCCESS;
}

PUBLIC(int, destroy_params, void *parameters)
{
    free(parameters);
    return SUCCESS;
}

PUBLIC(int, create_backend, void *self, const char *plugin, void *parameters, void **backend)
{
    (void)plugin;
    known(self);
    memcpy(stand_in.settings, parameters, sizeof(stand_in.settings));
    *backend = take(&stand_in.refused_backends) ? NULL : malloc(1);
    stand_in.backends += *backend != NULL;
    return *backend ? SUCCESS : BACKEND;
}

PUBLIC(int, destroy_backend, void *backend)
{
    free(backend);
    stand_in.backends--;
    return SUCCESS;
}

PUBLIC(int, create_opt_args, void **options)
{
    *options = malloc(1);
    stand_in.options += *options != NULL;
    return *options ? SUCCESS : BACKEND;
}

PUBLIC(int, opt_args_add_backend, void *options, void *backend)
{
    return options && backend ? SUCCESS : INVALID;
}

PUBLIC(int, destroy_opt_args, void *options)
{
    free(options);
    stand_in.options--;
    return SUCCESS;
}

/* --- lists -------------------------------------------------------------------------------------- */

static int make_list(int memory, void **list)
{
    *list = memory == 0 ? calloc(1, sizeof(stand_in_list)) : NULL;
    stand_in.lists += *list != NULL;
    return *list ? SUCCESS : BACKEND;
}

static int add_to_list(stand_in_list *list, uint64_t address, size_t bytes, uint64_t device)
{
    if (device)
        return INVALID;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 16;
        stand_in_range *more = realloc(list->ranges, capacity * sizeof(*more));
        if (!more)
            return BACKEND;
        list->ranges = more;
        list->capacity = capacity;
    }
    list->ranges[list->count++] = (stand_in_range){address, bytes};
    return SUCCESS;
}

static int end_list(stand_in_list *list)
{
    free(list->ranges);
    free(list);
    stand_in.lists--;
    return SUCCESS;
}

PUBLIC(int, create_reg_dlist, int memory, void **list) { return make_list(memory, list); }
PUBLIC(int, create_xfer_dlist, int memory, void **list) { return make_list(memory, list); }
PUBLIC(int, destroy_reg_dlist, void *list) { return end_list(list); }
PUBLIC(int, destroy_xfer_dlist, void *list) { return end_list(list); }

PUBLIC(int, reg_dlist_add_desc, void *list, uintptr_t address, size_t bytes, uint64_t device,
       const void *note, size_t note_bytes)
{
    return note || note_bytes ? INVALID : add_to_list(list, address, bytes, device);
}

PUBLIC(int, xfer_dlist_add_desc, void *list, uintptr_t address, size_t bytes, uint64_t device)
{
    return add_to_list(list, address, bytes, device);
}

PUBLIC(int, xfer_dlist_clear, void *list)
{
    ((stand_in_list *)list)->count = 0;
    return SUCCESS;
}

/* --- memory ------------------------------------------------------------------------------------- */

PUBLIC(int, register_mem, void *self, void *list, void *options)
{
    stand_in_agent *agent = known(self);
    const stand_in_list *more = list;
    if (!options || agent->range_count + more->count > RANGES ||
        (take(&stand_in.refused_adds) && stand_in.refused_adds == 0))
        return BACKEND;
    for (size_t i = 0; i < more->count; i++)
        agent->ranges[agent->range_count++] = more->ranges[i];
    return SUCCESS;
}

PUBLIC(int, deregister_mem, void *self, void *list, void *options)
{
    stand_in_agent *agent = known(self);
    const stand_in_list *gone = list;
    insist(options && gone->count == 1, "one range is taken out at a time");
    for (size_t i = 0; i < agent->range_count; i++)
        if (agent->ranges[i].address == gone->ranges[0].address) {
            agent->ranges[i] = agent->ranges[--agent->range_count];
            return SUCCESS;
        }
    insist(false, "a range was taken out that is not there");
    return INVALID;
}

/* --- requests ----------------------------------------------------------------------------------- */

static bool all_known(const stand_in_agent *agent, const stand_in_list *local, const stand_in_list *remote)
{
    for (size_t i = 0; i < local->count; i++)
        if (local->ranges[i].bytes != remote->ranges[i].bytes ||
            !stand_in_covers(agent->ranges, agent->range_count, &local->ranges[i]) ||
            !stand_in_covers(agent->peer_ranges, agent->peer_range_count, &remote->ranges[i]))
            return false;
    return true;
}

static stand_in_range *copy_ranges(const stand_in_list *list)
{
    stand_in_range *made = malloc(list->count * sizeof(*made));
    if (made)
        memcpy(made, list->ranges, list->count * sizeof(*made));
    return made;
}

PUBLIC(int, create_xfer_req, void *self, int operation, void *local, void *remote, const char *name,
       void **request, void *options)
{
    stand_in_agent *agent = known(self);
    const stand_in_list *from = local, *to = remote;
    if (!options || from->count != to->count || !from->count || take(&stand_in.refused_requests) ||
        strcmp(name, agent->peer) != 0 || !all_known(agent, from, to))
        return NOT_FOUND;
    stand_in_request *made = calloc(1, sizeof(*made));
    if (!made)
        return BACKEND;
    *made = (stand_in_request){.agent = agent, .write = operation == 1, .count = from->count,
                               .limit = from->count, .local = copy_ranges(from), .remote = copy_ranges(to)};
    if (!made->local || !made->remote) {
        free_request(made);
        return BACKEND;
    }
    stand_in.requests++;
    *request = made;
    return SUCCESS;
}

static int state_of(const stand_in_request *request)
{
    return request->failed ? BACKEND : request->answered == request->limit ? SUCCESS : IN_PROGRESS;
}

PUBLIC(int, post_xfer_req, void *self, void *posted, void *options)
{
    stand_in_agent *agent = known(self);
    stand_in_request *request = posted;
    insist(options && request->agent == agent && !request->posted, "a request is posted once, by its agent");
    request->posted = true;
    *agent->last = request;
    agent->last = &request->next;
    if (take(&stand_in.failed_posts)) {
        request->limit = request->count / 2;
        return BACKEND;
    }
    request->fails = take(&stand_in.failed_polls);
    if (take(&stand_in.instant_posts))
        while (state_of(request) == IN_PROGRESS)
            for (stand_in_agent *each = agents; each; each = each->next) {
                stand_in_move(each);
                stand_in_serve(each);
            }
    return state_of(request);
}

PUBLIC(int, get_xfer_status, void *self, void *asked)
{
    stand_in_agent *agent = known(self);
    const stand_in_request *request = asked;
    insist(request->agent == agent && request->posted && !request->released, "a request is asked while it lives");
    stand_in_move(agent);
    return request->fails ? BACKEND : state_of(request);
}

/* One that is let go on its way is forgotten by the library, but not by what moves its bytes. */
PUBLIC(int, release_xfer_req, void *self, void *gone)
{
    stand_in_agent *agent = known(self);
    stand_in_request *request = gone;
    insist(request->agent == agent && !request->released, "a request is let go once, by its agent");
    request->released = true;
    if (request->posted && state_of(request) == IN_PROGRESS)
        return SUCCESS;
    for (stand_in_request **place = &agent->first; *place; place = &(*place)->next)
        if (*place == request) {
            *place = request->next;
            if (!*place)
                agent->last = place;
            request->posted = false;
            break;
        }
    return SUCCESS;
}

PUBLIC(int, destroy_xfer_req, void *gone)
{
    stand_in_request *request = gone;
    if (!request->released)
        return INVALID_STATE;
    if (!request->posted)
        free_request(request);
    stand_in.requests--;
    return SUCCESS;
}

/* --- news --------------------------------------------------------------------------------------- */

PUBLIC(int, create_notif_map, void **news)
{
    *news = malloc(1);
    stand_in.news += *news != NULL;
    return *news ? SUCCESS : BACKEND;
}

PUBLIC(int, destroy_notif_map, void *news)
{
    free(news);
    stand_in.news--;
    return SUCCESS;
}
