/* SPDX-License-Identifier: Apache-2.0 */
/* A node from its options, piece by piece; and all of it down again. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <sodium.h>

#include "node/node_internal.h"

typedef struct create_job {
    kvferry_node_options options; /* with the defaults filled in */
    const kvferry_layout *layout;
    const kvferry_node_segment *segments;
    kvferry_node *node;
    kvferry_engine *engine; /* until the node has it */
    void *binding;
    size_t binding_size;
    node_address listen, advertise, bootstrap_listen, metrics_listen;
    node_address host; /* where peers reach the node, numeric; "": not known, or the engine has its own */
    kvferry_report *report;
} create_job;

/* --- options ---------------------------------------------------------------------------------- */

#define DEFAULT(field, value) options->field = options->field ? options->field : (value)

static bool read_options(const kvferry_node_options *given, kvferry_node_options *options)
{
    *options = (kvferry_node_options){0};
    if (!given || given->size < offsetof(kvferry_node_options, listen))
        return false;
    memcpy(options, given, base_min(given->size, sizeof(*options)));
    DEFAULT(listen, "tcp://127.0.0.1:0");
    DEFAULT(advertise, "");
    DEFAULT(leader, "");
    DEFAULT(bootstrap_listen, "");
    DEFAULT(bootstrap, "");
    DEFAULT(metrics_listen, "");
    DEFAULT(engine, "ucx");
    DEFAULT(key_file, "");
    DEFAULT(allowed_keys, "");
    DEFAULT(lease_ms, 480000);
    DEFAULT(transfer_ms, 120000);
    DEFAULT(connect_ms, 30000);
    DEFAULT(early_ms, 5000);
    DEFAULT(retry_ms, 1000);
    DEFAULT(silence_ms, 30000);
    DEFAULT(linger_ms, 1000);
    DEFAULT(remember_ms, 600000);
    DEFAULT(max_transfers, 65536);
    DEFAULT(max_peers, 4096);
    DEFAULT(max_peer_copies, 1048576);
    DEFAULT(max_message_bytes, (uint64_t)16 << 20);
    return true;
}

static kvferry_status deny(const create_job *job, kvferry_status status, const char *code,
                           const char *place, const char *expected, const char *found,
                           const char *message)
{
    base_report_add(job->report, code, &(base_where){.place = place}, expected, found, "%s",
                    message);
    return status;
}

/* --- addresses and keys ----------------------------------------------------------------------- */

/* An address to serve; without keys only this host's own. */
static kvferry_status read_listen(const create_job *job, const char *option, const char *text,
                                  node_address_form form, node_address *address)
{
    const char *why = "";
    if (!node_address_parse(text, form, address, option, job->report))
        return KVFERRY_INVALID;
    if (address->has_key)
        return deny(job, KVFERRY_INVALID, "address_malformed", option, "an address without a key",
                    "one with a key", "the node's own key comes from key_file");
    if (!node_address_resolve(address, &why))
        return deny(job, KVFERRY_IO, "listen_failed", option, "a host that can be looked up", why,
                    base_format("%.200s", text));
    if (!job->options.insecure && !*job->options.key_file && !node_address_is_loopback(address))
        return deny(job, KVFERRY_REFUSED, "address_insecure", option,
                    "keys (key_file), a loopback address, or the option insecure",
                    base_format("%.200s", text),
                    "anybody who reaches the address could talk to this node");
    return KVFERRY_OK;
}

static kvferry_status read_keys(create_job *job)
{
    kvferry_node *node = job->node;
    const kvferry_node_options *options = &job->options;
    bool open_to_others = false;
    if (!*options->key_file && !*options->allowed_keys)
        return KVFERRY_OK;
    if (!*options->key_file || !*options->allowed_keys)
        return deny(job, KVFERRY_INVALID, "keys_incomplete",
                    *options->key_file ? "allowed_keys" : "key_file", "both, or none",
                    "one of them",
                    "keys need a file of the own pair and a list of those that are allowed");
    kvferry_status status =
        node_key_pair_read(options->key_file, &node->keys, &open_to_others, job->report);
    if (status == KVFERRY_OK)
        status = node_allowed_open(options->allowed_keys, &node->allowed, job->report);
    if (status == KVFERRY_OK && open_to_others)
        node_log_format(&node->log, KVFERRY_LOG_WARNING,
                        "%s: others than its owner may read this secret key", options->key_file);
    return status;
}

/* What is no address of a single host, or has another key, cannot be told to peers. */
static kvferry_status read_advertise(create_job *job)
{
    const char *text = job->options.advertise;
    if (!*text && node_address_is_wildcard(&job->listen))
        return deny(job, KVFERRY_INVALID, "advertise_missing", "advertise",
                    "an address that peers can reach this node by", job->options.listen,
                    "the node listens on all addresses of the host");
    if (!*text)
        return KVFERRY_OK;
    if (!node_address_parse(text, NODE_ADDRESS_TCP, &job->advertise, "advertise", job->report))
        return KVFERRY_INVALID;
    if (node_address_is_wildcard(&job->advertise))
        return deny(job, KVFERRY_INVALID, "advertise_missing", "advertise",
                    "an address of one host", text, "peers cannot connect to all addresses");
    if (job->advertise.has_key &&
        (!job->node->allowed ||
         memcmp(job->advertise.key, job->node->keys.public_key, NODE_KEY_BYTES) != 0))
        return deny(job, KVFERRY_INVALID, "address_malformed", "advertise",
                    "this node's public key, or none", "another key",
                    "the advertised key is not this node's");
    return KVFERRY_OK;
}

static kvferry_status read_addresses(create_job *job)
{
    const kvferry_node_options *options = &job->options;
    node_address unused;
    kvferry_status status =
        read_listen(job, "listen", options->listen, NODE_ADDRESS_TCP, &job->listen);
    if (status == KVFERRY_OK)
        status = read_keys(job);
    if (status == KVFERRY_OK)
        status = read_advertise(job);
    if (status == KVFERRY_OK && *options->bootstrap_listen)
        status = read_listen(job, "bootstrap_listen", options->bootstrap_listen, NODE_ADDRESS_PLAIN,
                             &job->bootstrap_listen);
    if (status == KVFERRY_OK && *options->metrics_listen)
        status = read_listen(job, "metrics_listen", options->metrics_listen, NODE_ADDRESS_PLAIN,
                             &job->metrics_listen);
    if (status == KVFERRY_OK && *options->bootstrap &&
        !node_address_parse(options->bootstrap, NODE_ADDRESS_HTTP, &unused, "bootstrap",
                            job->report))
        status = KVFERRY_INVALID;
    return status;
}

/* --- engine and segments ---------------------------------------------------------------------- */

static kvferry_status add_segment(create_job *job, uint32_t index)
{
    kvferry_node *node = job->node;
    const kvferry_node_segment *segment = &job->segments[index];
    const kvferry_segment *laid = kvferry_layout_segment(node->layout, index);
    uint32_t number = 0;
    kvferry_status status;
    if (!segment->address && segment->memory != KVFERRY_MEMORY_HOST)
        return deny(job, KVFERRY_INVALID, "segment_memory", laid->name,
                    "the address of device memory", "none",
                    "the engine allocates host memory only");
    node->device[index] = segment->memory != KVFERRY_MEMORY_HOST;
    if (node->device[index] && job->options.verify)
        return deny(job, KVFERRY_REFUSED, "verify_device_memory", laid->name, "host memory",
                    "device memory", "checksums are made by the CPU");
    if (segment->address) {
        node->segments[index] = segment->address;
        status = kvferry_engine_register(job->engine, segment->address, laid->bytes,
                                         segment->memory, &number, job->report);
    } else {
        status = kvferry_engine_allocate(job->engine, laid->bytes, &node->segments[index], &number,
                                         job->report);
    }
    return status == KVFERRY_OK && number != index ? KVFERRY_INTERNAL : status;
}

/*
 * What peers on other hosts cannot reach, or an engine that listens there itself cannot listen at, does not do: *why. A
 * number is as it was meant.
 */
static bool resolve_advertised(node_address *host, bool listens, const char **why)
{
    bool named = !node_address_is_numeric(host);
    const char *failure = "";
    if (!node_address_resolve(host, &failure))
        *why = base_format("cannot be looked up: %.200s", failure);
    else if (named && node_address_is_loopback(host))
        *why = base_format("is %.64s, a loopback address", host->host);
    else if (listens && !node_address_is_loopback(host) && !node_address_is_here(host))
        *why = "is at no interface of this host";
    else
        return true;
    return false;
}

/* Where peers reach the node; "": the engine can do nothing with it. So it is with the name of a pod before it is
 * ready, and behind a translator of addresses. */
static void find_host(create_job *job, bool for_engine)
{
    const char *why = "";
    bool everywhere = node_address_is_wildcard(&job->listen);
    bool listens = for_engine && strcmp(job->options.engine, "ucx") == 0;
    job->host = everywhere ? job->advertise : job->listen;
    if (!everywhere || resolve_advertised(&job->host, listens, &why))
        return;
    if (for_engine)
        node_log_format(&job->node->log, KVFERRY_LOG_WARNING,
                    "the host of advertise, %.200s, %.250s. The transfer engine is told no host: over TCP "
                    "peers on other hosts reach it only by devices that net_devices, or the host of its options, names",
                    job->advertise.host, why);
    job->host.host[0] = '\0';
}

/* Peers reach the engine where they reach the node, unless the caller says otherwise. */
static kvferry_status open_at_host(create_job *job)
{
    const kvferry_engine_options *given = job->options.engine_options;
    kvferry_engine_options options = {0};
    if (given)
        memcpy(&options, given, base_min(given->size, sizeof(options)));
    if (!given || given->size >= offsetof(kvferry_engine_options, name)) /* else the engine refuses it */
        options.size = sizeof(options);
    bool told = options.host && *options.host;
    find_host(job, !told);
    if (!told)
        options.host = job->host.host;
    return kvferry_engine_open(job->options.engine, &options, &job->engine, job->report);
}

static kvferry_status open_engine(create_job *job)
{
    kvferry_node *node = job->node;
    kvferry_status status = open_at_host(job);
    for (uint32_t i = 0; i < node->segment_count && status == KVFERRY_OK; i++)
        status = add_segment(job, i);
    if (status == KVFERRY_OK)
        status = kvferry_engine_export(job->engine, &job->binding, &job->binding_size, job->report);
    if (status == KVFERRY_OK)
        status = node_writes_create(job->engine, node->epoll, &node->writes);
    if (status == KVFERRY_OK)
        job->engine = NULL;
    return status;
}

/* --- what is served --------------------------------------------------------------------------- */

/* Who speaks from it is on this host: not so an advertised address of a translator, which speaks for others too. */
static const node_address *own_host(const create_job *job, const node_address *bound)
{
    const node_address *advertised = *job->host.host ? &job->host : &job->advertise;
    return node_address_is_wildcard(bound) && node_address_is_here(advertised) ? advertised : bound;
}

static kvferry_status open_links(create_job *job)
{
    kvferry_node *node = job->node;
    node_address bound;
    const node_links_options options = {.epoll = node->epoll,
                                        .keys = node->allowed ? &node->keys : NULL,
                                        .allowed = node->allowed,
                                        .insecure = job->options.insecure,
                                        .max_message_bytes = job->options.max_message_bytes,
                                        .silence_ms = job->options.silence_ms,
                                        .max_peers = job->options.max_peers,
                                        .log = node_log_format,
                                        .log_context = &node->log};
    kvferry_status status =
        node_links_create(&options, &job->listen, &bound, &node->links, job->report);
    if (status != KVFERRY_OK)
        return status;
    memcpy(node->host, own_host(job, &bound)->host, sizeof(node->host));
    if (*job->options.advertise) {
        job->advertise.port = job->advertise.port ? job->advertise.port : bound.port;
        bound = job->advertise;
    }
    bound.has_key = node->allowed != NULL;
    memcpy(bound.key, node->keys.public_key, NODE_KEY_BYTES);
    node_address_format(&bound, NODE_ADDRESS_TCP, node->address);
    return KVFERRY_OK;
}

static void write_metrics(void *context, base_text *text)
{
    kvferry_node *node = context;
    node_metrics_write(&node->metrics, node->labels.data, text);
}

static void write_log(void *context, const char *line)
{
    kvferry_node *node = context;
    node_log_add(&node->log, KVFERRY_LOG_WARNING, line);
    node_wake(node);
}

static kvferry_status open_http(create_job *job, bool bootstrap, const node_address *listen,
                                node_http **server, char address[NODE_ADDRESS_TEXT])
{
    node_address bound;
    const node_http_options options = {
        .bootstrap = bootstrap, .metrics = write_metrics, .log = write_log, .context = job->node};
    kvferry_status status = node_http_create(&options, listen, &bound, server, job->report);
    if (status == KVFERRY_OK)
        node_address_format(&bound, NODE_ADDRESS_HTTP, address);
    return status;
}

static node_entry own_entry(const create_job *job)
{
    const kvferry_worker *worker = kvferry_layout_worker(job->node->layout);
    return (node_entry){
        .dp = worker->dp_size == 1 ? job->options.bootstrap_rank : worker->dp_rank,
        .tp = worker->tp_rank,
        .pp = worker->pp_rank,
        .engine_id = (char *)(uintptr_t)kvferry_layout_engine_id(job->node->layout),
        .address = job->node->address,
        .own = true,
    };
}

static kvferry_status open_servers(create_job *job)
{
    kvferry_node *node = job->node;
    const node_entry own = own_entry(job);
    kvferry_status status = KVFERRY_OK;
    if (own.dp > NODE_DIRECTORY_RANK_MAX || own.tp > NODE_DIRECTORY_RANK_MAX ||
        own.pp > NODE_DIRECTORY_RANK_MAX)
        return deny(job, KVFERRY_INVALID, "option_range", "bootstrap_rank",
                    base_format("ranks up to %d", NODE_DIRECTORY_RANK_MAX), "a greater one",
                    "a rank is too great for a bootstrap server");
    if (*job->options.bootstrap_listen)
        status =
            open_http(job, true, &job->bootstrap_listen, &node->bootstrap_server, node->bootstrap);
    if (status == KVFERRY_OK && node->bootstrap_server)
        status = node_http_register(node->bootstrap_server, &own);
    if (status == KVFERRY_OK && *job->options.metrics_listen)
        status = open_http(job, false, &job->metrics_listen, &node->metrics_server,
                           node->metrics_address);
    return status;
}

static kvferry_status open_resolver(create_job *job)
{
    kvferry_node *node = job->node;
    const kvferry_worker *worker = kvferry_layout_worker(node->layout);
    bool first = worker->tp_rank == 0 && worker->pp_rank == 0 && worker->dp_rank == 0;
    const node_resolver_options options = {
        .wake = node->wake_fd,
        .bootstrap = *job->options.bootstrap ? job->options.bootstrap : NULL,
        .own = own_entry(job),
        .seek_leader = !first && !*job->options.leader,
        .leader_dp = worker->dp_size == 1 ? job->options.bootstrap_rank : 0,
        .retry_ms = job->options.retry_ms,
    };
    return node_resolver_create(&options, &node->resolver);
}

/* --- core and thread -------------------------------------------------------------------------- */

static void core_line(void *context, kvferry_log_level level, const char *line)
{
    node_log_add(context, level, line);
}

static kvferry_status open_core(create_job *job)
{
    kvferry_node *node = job->node;
    const kvferry_node_options *given = &job->options;
    core_options options = {.lease_ns = node_ns(given->lease_ms),
                            .transfer_ns = node_ns(given->transfer_ms),
                            .connect_ns = node_ns(given->connect_ms),
                            .early_ns = node_ns(given->early_ms),
                            .retry_ns = node_ns(given->retry_ms),
                            .silence_ns = node_ns(given->silence_ms),
                            .linger_ns = node_ns(given->linger_ms),
                            .remember_ns = node_ns(given->remember_ms),
                            .max_transfers = given->max_transfers,
                            .max_peers = given->max_peers,
                            .max_peer_copies = given->max_peer_copies,
                            .max_message_bytes = given->max_message_bytes,
                            .verify = given->verify,
                            .address = node->address,
                            .host = node->host,
                            .incarnation = node->incarnation,
                            .engine = given->engine,
                            .binding = job->binding,
                            .binding_size = job->binding_size,
                            .log = core_line,
                            .log_context = &node->log,
                            .log_level = given->log ? given->log_level : KVFERRY_LOG_ERROR,
                            .checksums = &node_checksums,
                            .checksums_context = node};
    randombytes_buf(&options.seed, sizeof(options.seed));
    kvferry_status status = KVFERRY_OK;
    if (*given->leader)
        status = node_check_address(node, given->leader, "leader", job->report);
    if (status == KVFERRY_OK)
        status = core_create(&options, node->layout, node_now(), &node->core, job->report);
    if (status == KVFERRY_OK && *given->leader)
        status = core_set_leader(node->core, given->leader, node_now(), job->report);
    return status;
}

/* Signals are the program's: none of the threads here takes one. */
static kvferry_status start_thread(kvferry_node *node)
{
    if (pthread_create(&node->thread, NULL, node_run, node) != 0)
        return KVFERRY_IO;
    node->started = true;
    pthread_setname_np(node->thread, "kvferry-node");
    return KVFERRY_OK;
}

/* --- life ------------------------------------------------------------------------------------- */

static void wake_ready(node_watch *watch)
{
    uint64_t count;
    while (read(watch->fd, &count, sizeof(count)) < 0 && errno == EINTR)
        ;
}

static kvferry_status copy_layout(const create_job *job)
{
    void *data;
    size_t size;
    kvferry_node *node = job->node;
    kvferry_status status = kvferry_layout_write_msgpack(job->layout, &data, &size);
    if (status != KVFERRY_OK)
        return status;
    status = kvferry_layout_read_msgpack(data, size, &node->layout, job->report);
    kvferry_free(data);
    if (status != KVFERRY_OK)
        return status;
    node->segment_count = kvferry_layout_segment_count(node->layout);
    node->segments = base_alloc((size_t)node->segment_count + 1, sizeof(*node->segments));
    node->device = base_alloc((size_t)node->segment_count + 1, sizeof(*node->device));
    return node->segments && node->device ? KVFERRY_OK : KVFERRY_NO_MEMORY;
}

static kvferry_status write_labels(kvferry_node *node)
{
    const kvferry_worker *worker = kvferry_layout_worker(node->layout);
    node_metrics_label(&node->labels, "version", kvferry_version());
    base_text_append(&node->labels, ",");
    node_metrics_label(&node->labels, "incarnation", node->incarnation);
    base_text_append(&node->labels, ",");
    node_metrics_label(&node->labels, "engine_id", kvferry_layout_engine_id(node->layout));
    base_text_append(&node->labels, ",dp_rank=\"%u\",pp_rank=\"%u\",tp_rank=\"%u\"",
                     worker->dp_rank, worker->pp_rank, worker->tp_rank);
    return node->labels.failed ? KVFERRY_NO_MEMORY : KVFERRY_OK;
}

/* Makes what can be torn down from then on. */
static kvferry_node *new_node(const create_job *job)
{
    kvferry_node *node = base_alloc(1, sizeof(*node));
    if (!node)
        return NULL;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&node->lock, NULL);
    pthread_cond_init(&node->idle, &attributes);
    pthread_condattr_destroy(&attributes);
    node_log_begin(&node->log, job->options.log, job->options.log_context, job->options.log_level);
    node_metrics_begin(&node->metrics);
    node->epoll = epoll_create1(EPOLL_CLOEXEC);
    node->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    node->events_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return node;
}

static void tear_down(kvferry_node *node)
{
    node_http_close(node->bootstrap_server);
    node_http_close(node->metrics_server);
    /* Whose address nobody listens at is dead to its peers: not before the last write that may land. */
    node_writes_close(node->writes);
    node_links_close(node->links);
    core_free(node->core);
    kvferry_event *event;
    while (node->events.first < node->events.end) {
        event = node->events.items[node->events.first++];
        kvferry_event_free(event);
    }
    free(node->events.items);
    node_allowed_close(node->allowed);
    sodium_memzero(&node->keys, sizeof(node->keys));
    const int descriptors[] = {node->epoll, node->wake_fd, node->events_fd};
    for (size_t i = 0; i < 3; i++)
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    kvferry_layout_free(node->layout);
    free(node->segments);
    free(node->device);
    free(node->labels.data);
    node_metrics_end(&node->metrics);
    node_log_end(&node->log);
    pthread_cond_destroy(&node->idle);
    pthread_mutex_destroy(&node->lock);
    free(node);
}

static kvferry_status build(create_job *job)
{
    kvferry_node *node = job->node;
    unsigned char random[(NODE_INCARNATION_TEXT - 1) / 2];
    if (node->epoll < 0 || node->wake_fd < 0 || node->events_fd < 0 ||
        !node_watch_add(node->epoll, &node->wake_watch, node->wake_fd, EPOLLIN, wake_ready))
        return deny(job, KVFERRY_IO, "descriptors", "", "descriptors", strerror(errno),
                    "a node needs some for itself");
    if (sodium_init() < 0)
        return KVFERRY_INTERNAL;
    node->insecure = job->options.insecure;
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(node->incarnation, sizeof(node->incarnation), random, sizeof(random));
    kvferry_status (*const steps[])(create_job *) = {read_addresses, open_engine,  open_links,
                                                     open_core,      open_servers, open_resolver};
    kvferry_status status = write_labels(node);
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps) && status == KVFERRY_OK; i++)
        status = steps[i](job);
    return status;
}

kvferry_status kvferry_node_create(const kvferry_node_options *options,
                                   const kvferry_layout *layout,
                                   const kvferry_node_segment *segments, size_t segment_count,
                                   kvferry_node **node, kvferry_report *report)
{
    create_job job = {.layout = layout, .segments = segments, .report = report};
    if (!layout || !node || (!segments && segment_count) || !read_options(options, &job.options))
        return KVFERRY_INVALID;
    if (segment_count != kvferry_layout_segment_count(layout))
        return deny(
            &job, KVFERRY_INVALID, "segment_count", "",
            base_format("%u segments, as the layout has", kvferry_layout_segment_count(layout)),
            base_format("%zu", segment_count), "memory and layout do not belong together");
    job.node = new_node(&job);
    if (!job.node)
        return KVFERRY_NO_MEMORY;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    kvferry_status status = copy_layout(&job);
    if (status == KVFERRY_OK)
        status = build(&job);
    if (status == KVFERRY_OK)
        status = start_thread(job.node);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    kvferry_free(job.binding);
    if (job.engine)
        kvferry_engine_close(job.engine);
    if (status != KVFERRY_OK) {
        node_resolver_close(job.node->resolver);
        tear_down(job.node);
        return status;
    }
    *node = job.node;
    return KVFERRY_OK;
}

void kvferry_node_close(kvferry_node *node)
{
    if (!node)
        return;
    node_enter(node);
    node_resolver *resolver = node->resolver;
    node->resolver = NULL;
    node->closing = true;
    node_leave_and_wake(node);
    node_resolver_close(resolver);
    pthread_join(node->thread, NULL);
    tear_down(node);
}
