/* SPDX-License-Identifier: Apache-2.0 */
#include "node/resolve.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <utlist.h>

#include "node/fetch.h"
#include "node/file.h"

/* Once registered, how many times rarer than the tries before; a bootstrap server that restarts
 * knows nobody. */
enum { RESOLVE_CALM = 5, RESOLVE_CLOSE_SECONDS = 1 };

/* Of each kind so many at a time, each in a thread; and one at a time at one place: a server or a name that does not
 * answer keeps others waiting only if there are so many of them. */
enum { RESOLVE_AT_ONCE = 8, RESOLVE_THREADS = 2 * RESOLVE_AT_ONCE };

typedef struct resolve_job {
    node_answer_kind kind;
    uint64_t id;
    char *where, *engine_id;
    node_address address;
    struct resolve_job *next;
} resolve_job;

/* Belongs to the node and to its threads: a look-up that hangs must not keep the node from closing. */
struct node_resolver {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    unsigned owners;        /* the node, and each thread */
    unsigned workers, idle; /* threads that serve jobs; those that wait for one */
    resolve_job *jobs, *running;
    node_answer *answers;
    int wake;
    /* of the thread that attends to the bootstrap server alone: */
    node_resolver_options options;
    char *bootstrap, *engine_id, *leader, *body;
    char trouble[NODE_ANSWER_DETAIL]; /* told last */
};

static void free_job(resolve_job *job)
{
    if (!job)
        return;
    free(job->where);
    free(job->engine_id);
    free(job);
}

void node_answer_free(node_answer *answer)
{
    if (!answer)
        return;
    kvferry_report_free(answer->report);
    node_directory_free(&answer->directory);
    free(answer->addresses);
    free(answer->leader);
    free(answer);
}

/* One owner less; the last one frees. Called with the lock, which is gone then. */
static void release(node_resolver *resolver)
{
    bool last = --resolver->owners == 0;
    pthread_mutex_unlock(&resolver->lock);
    if (!last)
        return;
    for (resolve_job *job = resolver->jobs, *next; job; job = next) {
        next = job->next;
        free_job(job);
    }
    for (node_answer *answer = resolver->answers, *next; answer; answer = next) {
        next = answer->next;
        node_answer_free(answer);
    }
    if (resolver->wake >= 0)
        close(resolver->wake);
    pthread_cond_destroy(&resolver->changed);
    pthread_mutex_destroy(&resolver->lock);
    free(resolver->bootstrap);
    free(resolver->engine_id);
    free(resolver->leader);
    free(resolver->body);
    free(resolver);
}

/* --- answers ---------------------------------------------------------------------------------- */

static bool stopped(void *context)
{
    node_resolver *resolver = context;
    pthread_mutex_lock(&resolver->lock);
    bool stop = resolver->stop;
    pthread_mutex_unlock(&resolver->lock);
    return stop;
}

static node_answer *new_answer(node_answer_kind kind, uint64_t id)
{
    node_answer *answer;
    const struct timespec pause = {.tv_nsec = 10000000};
    /* An answer cannot fail to come. */
    while (!(answer = base_alloc(1, sizeof(*answer))))
        nanosleep(&pause, NULL);
    answer->kind = kind;
    answer->id = id;
    return answer;
}

static void give(node_resolver *resolver, node_answer *answer)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&resolver->lock);
    LL_APPEND(resolver->answers, answer);
    if (write(resolver->wake, &one, sizeof(one)) < 0)
        resolver->stop |= errno == EBADF;
    pthread_mutex_unlock(&resolver->lock);
}

/* For the log, when it is another trouble than before; "": none any more. */
static void tell_trouble(node_resolver *resolver, const kvferry_report *report)
{
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    const char *text = reason ? reason->message : "";
    if (strncmp(resolver->trouble, text, sizeof(resolver->trouble) - 1) == 0)
        return;
    snprintf(resolver->trouble, sizeof(resolver->trouble), "%s", text);
    if (!*text)
        return;
    node_answer *answer = new_answer(NODE_ANSWER_TROUBLE, 0);
    snprintf(answer->detail, sizeof(answer->detail), "%s", text);
    give(resolver, answer);
}

/* --- directories ------------------------------------------------------------------------------ */

static kvferry_status read_where(node_resolver *resolver, const char *where,
                                 node_directory *directory, kvferry_report *report)
{
    static const char scheme[] = "file:";
    char *text = NULL;
    size_t size;
    struct stat about;
    kvferry_status status;
    if (strncmp(where, scheme, sizeof(scheme) - 1) == 0) {
        const char *path = where + sizeof(scheme) - 1;
        status = node_file_read(strncmp(path, "//", 2) == 0 ? path + 2 : path,
                                NODE_DIRECTORY_BYTES_MAX, &text, &size, &about, report);
    } else {
        status = node_fetch(where, "/query", NULL, NODE_DIRECTORY_BYTES_MAX, stopped, resolver,
                            &text, &size, report);
    }
    if (status == KVFERRY_OK)
        status = node_directory_read(text, size, directory, report);
    free(text);
    return status;
}

static kvferry_status list_addresses(node_answer *answer)
{
    answer->addresses = base_alloc(answer->directory.count, sizeof(*answer->addresses));
    if (!answer->addresses)
        return KVFERRY_NO_MEMORY;
    for (size_t i = 0; i < answer->directory.count; i++)
        if (strcmp(answer->directory.entries[i].engine_id, answer->engine_id) == 0)
            answer->addresses[answer->count++] = answer->directory.entries[i].address;
    return KVFERRY_OK;
}

static void answer_query(node_resolver *resolver, const resolve_job *job, node_answer *answer)
{
    answer->engine_id = "";
    answer->status = kvferry_report_create(&answer->report);
    if (answer->status == KVFERRY_OK)
        answer->status = read_where(resolver, job->where, &answer->directory, answer->report);
    if (answer->status == KVFERRY_OK)
        answer->status = node_directory_engine(&answer->directory, job->engine_id,
                                               &answer->engine_id, answer->report);
    if (answer->status == KVFERRY_OK)
        answer->status = list_addresses(answer);
}

static void answer_name(const resolve_job *job, node_answer *answer)
{
    const char *why = "";
    answer->address = job->address;
    answer->status = node_address_reach(&answer->address, UINT64_MAX, &why) ? KVFERRY_OK : KVFERRY_NOT_FOUND;
    snprintf(answer->detail, sizeof(answer->detail), "the host's name cannot be looked up: %s",
             why);
}

/* --- the own engine --------------------------------------------------------------------------- */

static kvferry_status seek_leader(node_resolver *resolver, bool *found, kvferry_report *report)
{
    node_directory directory = {0};
    kvferry_status status = read_where(resolver, resolver->bootstrap, &directory, report);
    const node_entry *first = NULL;
    for (size_t i = 0; i < directory.count && !first; i++) {
        const node_entry *entry = &directory.entries[i];
        if (entry->dp == resolver->options.leader_dp && entry->pp == 0 && entry->tp == 0 &&
            strcmp(entry->engine_id, resolver->engine_id) == 0)
            first = entry;
    }
    *found = first != NULL;
    if (first && (!resolver->leader || strcmp(resolver->leader, first->address) != 0)) {
        node_answer *answer = new_answer(NODE_ANSWER_LEADER, 0);
        free(resolver->leader);
        resolver->leader = strdup(first->address);
        answer->leader = strdup(first->address);
        give(resolver, answer);
    }
    node_directory_free(&directory);
    return status;
}

/* True: all is known that is to be known for now. */
static bool attend_bootstrap(node_resolver *resolver)
{
    kvferry_report *report;
    char *answer = NULL;
    size_t size;
    bool found = true;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        return false;
    kvferry_status status =
        node_fetch(resolver->bootstrap, "/register", resolver->body, NODE_DIRECTORY_BYTES_MAX,
                   stopped, resolver, &answer, &size, report);
    free(answer);
    if (status == KVFERRY_OK && resolver->options.seek_leader)
        status = seek_leader(resolver, &found, report);
    if (!stopped(resolver))
        tell_trouble(resolver, report);
    kvferry_report_free(report);
    return status == KVFERRY_OK && found;
}

/* --- the threads ------------------------------------------------------------------------------ */

static void serve(node_resolver *resolver, const resolve_job *job)
{
    node_answer *answer = new_answer(job->kind, job->id);
    if (job->kind == NODE_ANSWER_QUERY)
        answer_query(resolver, job, answer);
    else
        answer_name(job, answer);
    give(resolver, answer);
}

static struct timespec later(uint64_t milliseconds)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += (time_t)(milliseconds / 1000);
    time.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    return time;
}

static bool passed(const struct timespec *time)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > time->tv_sec ||
           (now.tv_sec == time->tv_sec && now.tv_nsec >= time->tv_nsec);
}

static void end_thread(node_resolver *resolver)
{
    pthread_cond_broadcast(&resolver->changed); /* with the lock: who waits sees one owner less */
    release(resolver);
}

/* Registers, and looks for the leader, again and again. */
static void *attend(void *context)
{
    node_resolver *resolver = context;
    struct timespec next = later(0);
    pthread_mutex_lock(&resolver->lock);
    while (!resolver->stop) {
        if (!passed(&next)) {
            pthread_cond_timedwait(&resolver->changed, &resolver->lock, &next);
            continue;
        }
        pthread_mutex_unlock(&resolver->lock);
        uint64_t pause = resolver->options.retry_ms;
        next = later(attend_bootstrap(resolver) ? RESOLVE_CALM * pause : pause);
        pthread_mutex_lock(&resolver->lock);
    }
    end_thread(resolver);
    return NULL;
}

static bool may_run(const node_resolver *resolver, const resolve_job *job)
{
    unsigned alike = 0;
    for (const resolve_job *other = resolver->running; other; other = other->next) {
        alike += other->kind == job->kind;
        bool same = job->where ? other->where && strcmp(job->where, other->where) == 0
                               : !other->where && strcmp(job->address.host, other->address.host) == 0;
        if (same)
            return false;
    }
    return alike < RESOLVE_AT_ONCE;
}

/* The first that may run; NULL: none. */
static resolve_job *take_job(node_resolver *resolver)
{
    for (resolve_job *job = resolver->jobs; job; job = job->next)
        if (may_run(resolver, job)) {
            LL_DELETE(resolver->jobs, job);
            LL_PREPEND(resolver->running, job);
            return job;
        }
    return NULL;
}

static void *run(void *context)
{
    node_resolver *resolver = context;
    pthread_mutex_lock(&resolver->lock);
    while (!resolver->stop) {
        resolve_job *job = take_job(resolver);
        if (!job) {
            resolver->idle++;
            pthread_cond_wait(&resolver->changed, &resolver->lock);
            resolver->idle--;
            continue;
        }
        pthread_mutex_unlock(&resolver->lock);
        serve(resolver, job);
        pthread_mutex_lock(&resolver->lock);
        LL_DELETE(resolver->running, job);
        free_job(job);
        pthread_cond_broadcast(&resolver->changed); /* one that waited for its place may run now */
    }
    end_thread(resolver);
    return NULL;
}

static kvferry_status prepare(node_resolver *resolver, const node_resolver_options *options)
{
    resolver->options = *options;
    resolver->wake = dup(options->wake);
    if (resolver->wake < 0)
        return KVFERRY_IO;
    if (!options->bootstrap)
        return KVFERRY_OK;
    resolver->bootstrap = strdup(options->bootstrap);
    resolver->engine_id = strdup(options->own.engine_id);
    if (!resolver->bootstrap || !resolver->engine_id)
        return KVFERRY_NO_MEMORY;
    return node_directory_write_entry(&options->own, &resolver->body);
}

/* With the lock. */
static bool start(node_resolver *resolver, void *(*body)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &attributes, body, resolver) == 0;
    pthread_attr_destroy(&attributes);
    resolver->owners += started;
    resolver->workers += started && body == run;
    return started;
}

kvferry_status node_resolver_create(const node_resolver_options *options, node_resolver **resolver)
{
    node_resolver *made = base_alloc(1, sizeof(*made));
    if (!made)
        return KVFERRY_NO_MEMORY;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    made->owners = 1;
    made->wake = -1;
    kvferry_status status = node_fetch_begin() ? prepare(made, options) : KVFERRY_NO_MEMORY;
    pthread_mutex_lock(&made->lock);
    if (status == KVFERRY_OK && (!start(made, run) || (made->bootstrap && !start(made, attend))))
        status = KVFERRY_IO;
    if (status == KVFERRY_OK) {
        *resolver = made;
        pthread_mutex_unlock(&made->lock);
    } else {
        made->stop = true;
        pthread_cond_broadcast(&made->changed);
        release(made);
    }
    return status;
}

void node_resolver_close(node_resolver *resolver)
{
    if (!resolver)
        return;
    struct timespec end = later(RESOLVE_CLOSE_SECONDS * 1000);
    pthread_mutex_lock(&resolver->lock);
    resolver->stop = true;
    pthread_cond_broadcast(&resolver->changed);
    while (resolver->owners > 1 &&
           pthread_cond_timedwait(&resolver->changed, &resolver->lock, &end) == 0)
        ;
    release(resolver);
}

/* --- asking ----------------------------------------------------------------------------------- */

/* Whether who asked the first has given it up, as far as the second tells. */
static bool is_given_up(const resolve_job *job, const resolve_job *by)
{
    if (job->kind != by->kind)
        return false;
    return job->kind == NODE_ANSWER_QUERY
               ? strcmp(job->where, by->where) == 0 && strcmp(job->engine_id, by->engine_id) == 0
               : job->id == by->id;
}

/* With the lock: of those that wait. */
static void drop_jobs(node_resolver *resolver, const resolve_job *by)
{
    resolve_job *job, *next;
    LL_FOREACH_SAFE(resolver->jobs, job, next) {
        if (!is_given_up(job, by))
            continue;
        LL_DELETE(resolver->jobs, job);
        free_job(job);
    }
}

void node_resolver_forget(node_resolver *resolver, uint64_t link)
{
    const resolve_job by = {.kind = NODE_ANSWER_NAME, .id = link};
    pthread_mutex_lock(&resolver->lock);
    drop_jobs(resolver, &by);
    pthread_mutex_unlock(&resolver->lock);
}

static kvferry_status add_job(node_resolver *resolver, resolve_job *job)
{
    if (!job)
        return KVFERRY_NO_MEMORY;
    pthread_mutex_lock(&resolver->lock);
    drop_jobs(resolver, job);
    LL_APPEND(resolver->jobs, job);
    unsigned waiting = 0;
    for (const resolve_job *other = resolver->jobs; other; other = other->next)
        waiting++;
    if (waiting > resolver->idle && resolver->workers < RESOLVE_THREADS)
        start(resolver, run); /* if it cannot, those that there are do it later */
    pthread_cond_broadcast(&resolver->changed);
    pthread_mutex_unlock(&resolver->lock);
    return KVFERRY_OK;
}

kvferry_status node_resolver_query(node_resolver *resolver, uint64_t query, const char *where,
                                   const char *engine_id)
{
    resolve_job *job = base_alloc(1, sizeof(*job));
    if (job) {
        job->kind = NODE_ANSWER_QUERY;
        job->id = query;
        job->where = strdup(where);
        job->engine_id = strdup(engine_id);
        if (!job->where || !job->engine_id) {
            free_job(job);
            job = NULL;
        }
    }
    return add_job(resolver, job);
}

kvferry_status node_resolver_name(node_resolver *resolver, uint64_t link,
                                  const node_address *address)
{
    resolve_job *job = base_alloc(1, sizeof(*job));
    if (job) {
        job->kind = NODE_ANSWER_NAME;
        job->id = link;
        job->address = *address;
    }
    return add_job(resolver, job);
}

node_answer *node_resolver_next(node_resolver *resolver)
{
    pthread_mutex_lock(&resolver->lock);
    node_answer *answer = resolver->answers;
    if (answer)
        LL_DELETE(resolver->answers, answer);
    pthread_mutex_unlock(&resolver->lock);
    return answer;
}
