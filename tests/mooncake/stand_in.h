/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in's files share, and the faults that tests set. */
#ifndef KVFERRY_TESTS_MOONCAKE_STAND_IN_H
#define KVFERRY_TESTS_MOONCAKE_STAND_IN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exported by the library as `stand_in`: each is counted down or held, until a test sets it to 0. */
typedef struct stand_in_faults {
    atomic_int refused_submits;  /* submissions that the full queue refuses, nothing taken */
    atomic_int halved_submits;   /* submissions that are refused in the middle, the first half taken */
    atomic_int stuck;            /* while set no task begins */
    atomic_int held_arrivals;    /* while set a target takes no write from its socket */
    atomic_int timeouts;         /* polls of a task that answer timeout, though it goes on */
    atomic_int busy_frees;       /* frees of a batch that has ended which answer busy */
    atomic_int task_state;       /* what the next task ends with, instead of being moved */
    atomic_int register_code;    /* what the next registration answers */
    atomic_int refused_instances;/* creations that fail */
    /* What happened. */
    atomic_size_t peak;          /* most tasks with one peer at once */
    atomic_int instances;        /* that are there */
    atomic_int batches;          /* that are not freed */
    atomic_int closes;           /* of segments */
} stand_in_faults;

typedef struct stand_in_request {
    int opcode; /* 0: read, 1: write */
    void *source;
    int32_t target;
    uint32_t file;
    uint64_t offset, length;
} stand_in_request;

typedef struct stand_in_range {
    uint64_t address, bytes;
} stand_in_range;

enum { WAITING = 0, INVALID = 2, COMPLETED = 4, TIMEOUT = 5, FAILED = 6 };
enum { RANGES = 512, SEGMENTS = 64, QUEUE = 2048 };

typedef struct stand_in_task {
    struct stand_in_task *next;
    stand_in_request request;
    atomic_int state;
} stand_in_task;

typedef struct stand_in_batch {
    struct stand_in_batch *next;
    size_t capacity, count;
    stand_in_task tasks[];
} stand_in_batch;

/* A peer as one instance knows it: a snapshot of its ranges, a queue, and a thread that serves it. */
typedef struct stand_in_segment {
    struct stand_in_instance *instance;
    char name[64];
    stand_in_range ranges[RANGES];
    size_t range_count;
    pthread_t thread;
    bool running, hung; /* a queue that overflowed serves nothing any more */
    int socket;
    pthread_cond_t more;
    stand_in_task *first, **last;
    size_t outstanding;
} stand_in_segment;

typedef struct stand_in_instance {
    pthread_mutex_t lock;
    bool installed, ending;
    int listener;
    uint16_t port;
    pthread_t acceptor;
    pthread_t servers[1024];
    int sockets[1024];
    size_t server_count;
    stand_in_range ranges[RANGES];
    size_t range_count;
    stand_in_segment segments[SEGMENTS];
    int32_t segment_count;
    stand_in_batch *batches;
} stand_in_instance;

extern __attribute__((visibility("default"))) stand_in_faults stand_in;

/* One of a countdown. */
bool stand_in_take(atomic_int *countdown);

/* stand_in_server.c */
bool stand_in_serve(stand_in_instance *instance); /* false: no port */
void stand_in_stop(stand_in_instance *instance);
bool stand_in_covers(const stand_in_range *ranges, size_t count, uint64_t address, uint64_t bytes);

/* stand_in_client.c */
bool stand_in_ask_ranges(const char *name, stand_in_range *ranges, size_t *count);
void *stand_in_move(void *segment); /* a segment's thread */

/* The wire: a header, of writes the bytes; the answer is one byte, of reads the bytes if it is 1. */
typedef struct stand_in_header {
    uint64_t opcode; /* 2: the ranges are asked for */
    uint64_t address, bytes;
} stand_in_header;
bool stand_in_send(int socket, const void *data, size_t bytes);
bool stand_in_receive(int socket, void *data, size_t bytes);

#endif
