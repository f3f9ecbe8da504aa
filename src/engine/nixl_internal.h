/* SPDX-License-Identifier: Apache-2.0 */
/* What the nixl engine's files share. */
#ifndef KVFERRY_SRC_ENGINE_NIXL_INTERNAL_H
#define KVFERRY_SRC_ENGINE_NIXL_INTERNAL_H

#include "base/base.h"
#include "engine/engine.h"

/* --- the library's C interface, as far as it is used: every function answers a code ------------------- */

typedef struct nixl_config {
    bool progress_thread, listen_thread;
    uint16_t listen_port;
    int synchronisation; /* 0: the caller sees to it that one thread at a time calls */
    unsigned workers;    /* not read */
    uint64_t progress_delay_us, listen_delay_us;
    bool telemetry;
} nixl_config;
_Static_assert(sizeof(nixl_config) == 40, "the library's struct of an agent's configuration");

enum { NIXL_READ = 0, NIXL_WRITE = 1 };
enum { NIXL_HOST_MEMORY = 0 };
enum nixl_code {
    NIXL_IN_PROGRESS = 1,
    NIXL_DONE = 0,
    NIXL_INVALID_ARGUMENT = -1,
    NIXL_BACKEND_ERROR = -2
};

typedef struct nixl_api {
    int (*agent_create)(const char *name, const nixl_config *config, void **agent);
    int (*agent_destroy)(void *agent);
    int (*metadata)(void *agent, void **data, size_t *size);
    int (*load)(void *agent, const void *data, size_t size, char **name);
    int (*defaults)(void *agent, const char *plugin, void **memories, void **parameters);
    int (*memories_destroy)(void *memories);
    int (*parameter_add)(void *parameters, const char *key, const char *value);
    int (*parameters_destroy)(void *parameters);
    int (*backend_create)(void *agent, const char *plugin, void *parameters, void **backend);
    int (*backend_destroy)(void *backend);
    int (*options_create)(void **options);
    int (*options_add)(void *options, void *backend);
    int (*options_destroy)(void *options);
    int (*ranges_create)(int memory, void **ranges);
    int (*ranges_add)(void *ranges, uintptr_t address, size_t bytes, uint64_t device, const void *note,
                      size_t note_bytes);
    int (*ranges_destroy)(void *ranges);
    int (*add)(void *agent, void *ranges, void *options);
    int (*remove)(void *agent, void *ranges, void *options);
    int (*list_create)(int memory, void **list);
    int (*list_add)(void *list, uintptr_t address, size_t bytes, uint64_t device);
    int (*list_clear)(void *list);
    int (*list_destroy)(void *list);
    int (*request_create)(void *agent, int operation, void *local, void *remote, const char *name,
                          void **request, void *options);
    int (*request_post)(void *agent, void *request, void *options);
    int (*request_poll)(void *agent, void *request);
    int (*request_release)(void *agent, void *request);
    int (*request_destroy)(void *request);
    int (*news_create)(void **news);
    int (*news_destroy)(void *news);
    int (*news_take)(void *agent, void *news, void *options); /* and with it the agent moves on */
    void (*free)(void *data); /* of what the library gave away */
} nixl_api;

/* --- the engine ------------------------------------------------------------------------------ */

enum { NIXL_NAME_BYTES = 64, NIXL_WORD_BYTES = 64, NIXL_BATCH_COPIES = 1024 };

typedef struct nixl_engine nixl_engine;
typedef struct nixl_peer nixl_peer;

typedef struct nixl_segment {
    struct nixl_segment *next, *previous;
    void *ranges; /* the one that it is */
} nixl_segment;

/* An agent of the library, with its one backend. All NULL: there is none. */
typedef struct nixl_agent {
    void *agent, *backend, *options;
} nixl_agent;

typedef struct nixl_batch {
    struct nixl_batch *next;
    kvferry_engine_batch_end end;
    void *handle;
    void *request;
    int posted; /* what the library answered when it was begun */
} nixl_batch;

/*
 * What was begun cannot be stopped, but by destroying the agent that began it. So each connection has
 * an agent of its own: its end is the end of all that was under way to the peer, and of nothing else.
 */
struct nixl_peer {
    nixl_peer *next, *previous;
    nixl_agent agent;
    nixl_batch *first, **last; /* what the library has, oldest first */
    bool failed; /* and will be lost by the next progress */
    bool lost;
    char name[NIXL_NAME_BYTES]; /* the peer's agent's */
};

struct nixl_engine {
    const nixl_api *api;
    nixl_agent target; /* what peers reach */
    nixl_segment *segments;
    nixl_peer *peers;
    nixl_batch *spare;
    void *local, *remote; /* lists that are filled for each batch */
    void *news;           /* stays empty: nobody sends any */
    char transport[NIXL_WORD_BYTES], device[NIXL_WORD_BYTES];
};

/* nixl_api.c: NULL if there is none that serves. */
const nixl_api *nixl_load(kvferry_report *report);
const char *nixl_code_name(int code);
void nixl_report(kvferry_report *report, const char *what, int code);

/* nixl_ucx.c: sees to it that the library's UCX backend finds the UCX that it came with. */
bool nixl_backend_load(void *library, kvferry_report *report);

/* nixl_agent.c: with all segments that there are. */
kvferry_status nixl_agent_open(const nixl_engine *engine, nixl_agent *agent, kvferry_report *report);
void nixl_agent_close(const nixl_engine *engine, nixl_agent *agent); /* nothing leaves it any more */
kvferry_status nixl_segment_register(void *self, void *address, uint64_t bytes, kvferry_memory memory,
                                     void **segment, kvferry_report *report);
void nixl_segment_unregister(void *self, void *segment);

/* nixl_peer.c */
kvferry_status nixl_peer_connect(void *self, const void *address, size_t size, void **peer,
                                 kvferry_report *report);
kvferry_status nixl_segment_import(void *self, void *peer, const void *data, size_t size,
                                   void **remote_segment, kvferry_report *report);
bool nixl_peer_lost(void *self, void *peer);
bool nixl_peer_busy(void *self, void *peer);
void nixl_peer_close(void *self, void *peer);

/* nixl_batch.c */
kvferry_status nixl_submit(void *self, void *peer, kvferry_direction direction,
                           const kvferry_engine_copy *copies, size_t count, kvferry_engine_batch_end end,
                           void *handle, kvferry_report *report);
bool nixl_progress(void *self);
/* Destroys the connection's agent, and ends all that it had. */
void nixl_tear_down(nixl_engine *engine, nixl_peer *peer, const char *words);

#endif
