/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in's files share, and the faults that tests set. */
#ifndef KVFERRY_TESTS_NIXL_STAND_IN_H
#define KVFERRY_TESTS_NIXL_STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exported by the library as `stand_in`: each is counted down or held, until a test sets it to 0. */
typedef struct stand_in_faults {
    int refused_agents;     /* creations that fail */
    int refused_plugins;    /* looks for the UCX plugin that find none */
    int refused_backends;   /* creations that fail */
    int refused_adds;       /* counts down with each registration; the one that makes it 0 fails */
    int refused_requests;   /* requests whose creation fails */
    int failed_posts;       /* requests that fail as they are posted, with their first half under way */
    int failed_polls;       /* requests that are said to have failed, though they go on */
    int instant_posts;      /* requests that are complete as they are posted */
    int stuck;              /* while set no bytes leave */
    /* What happened. */
    int agents, backends, options, lists, requests, news, given; /* that are there */
    int loads;              /* of peers' metadata */
    char settings[256];     /* of the last backend */
} stand_in_faults;

enum { IN_PROGRESS = 1, SUCCESS = 0, INVALID = -1, BACKEND = -2, INVALID_STATE = -3, NOT_FOUND = -6 };
enum { RANGES = 512, NAME_BYTES = 64 };

typedef struct stand_in_range {
    uint64_t address, bytes;
} stand_in_range;

/* Of ranges to register, and of either side of a request. */
typedef struct stand_in_list {
    stand_in_range *ranges;
    size_t count, capacity;
} stand_in_list;

/* On the wire: of writes the bytes follow; the answer is one byte, of reads with the bytes behind it. */
typedef struct stand_in_header {
    uint64_t write, address, bytes;
} stand_in_header;

typedef struct stand_in_request {
    struct stand_in_request *next; /* in its agent's queue */
    struct stand_in_agent *agent;
    bool write, posted, failed, fails, released;
    stand_in_range *local, *remote;
    size_t count, limit;      /* pieces; those that are moved */
    size_t sent, answered;    /* whole pieces */
    uint64_t sent_bytes;      /* of the next one, with its header */
    uint64_t answered_bytes;  /* the same, with the answer's byte */
} stand_in_request;

/* A connection that another agent made to this one. */
typedef struct stand_in_served {
    struct stand_in_served *next;
    int socket;
    stand_in_header header;
    uint64_t got, done; /* bytes of the header; of the bytes, with a read's answer */
} stand_in_served;

/* Moves nothing but when it, or any agent of the process, is asked for news or a state. */
typedef struct stand_in_agent {
    struct stand_in_agent *next;
    char name[NAME_BYTES];
    int listener;
    uint16_t port;
    stand_in_range ranges[RANGES];
    size_t range_count;
    stand_in_served *served;
    int socket; /* to the one peer; -1: none */
    char peer[NAME_BYTES];
    stand_in_range peer_ranges[RANGES];
    size_t peer_range_count;
    stand_in_request *first, **last; /* what was posted, oldest first */
} stand_in_agent;

typedef struct stand_in_metadata {
    char name[NAME_BYTES];
    uint64_t port, count;
    stand_in_range ranges[RANGES];
} stand_in_metadata;

extern __attribute__((visibility("default"))) stand_in_faults stand_in;

/* stand_in_wire.c */
bool stand_in_listen(stand_in_agent *agent); /* false: no port */
bool stand_in_connect(stand_in_agent *agent, uint64_t port);
void stand_in_serve(stand_in_agent *agent); /* what peers want of it */
void stand_in_move(stand_in_agent *agent);  /* what it wants of its peer */
void stand_in_close(stand_in_agent *agent);
bool stand_in_covers(const stand_in_range *ranges, size_t count, const stand_in_range *part);

#endif
