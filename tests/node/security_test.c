/* SPDX-License-Identifier: Apache-2.0 */
/* Who may talk to a node, and where it may be talked to. */
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "nodes.h"

#include <stdatomic.h>

#include "base/host.h"
#include "node/scratch_test.h"

static const uint32_t from[] = {3, 9, 4}, to[] = {8, 2, 30};
static const rig_shape prefill_shape = {.engine_id = "p", .tps = 1, .pps = 1};
static const rig_shape decode_shape = {.engine_id = "d", .tps = 1, .pps = 1};

/* --- keys ------------------------------------------------------------------------------------- */

/* A list with the public key of one pair. */
static void allow(const char *list, const char *key)
{
    char line[80] = "";
    FILE *file = fopen(scratch(key), "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    scratch_write(list, line);
}

static int make_keys(void **state)
{
    (void)state;
    static const char *const names[] = {"p", "d", "stranger"};
    for (size_t i = 0; i < 3; i++)
        MUST(kvferry_keys_generate(scratch(names[i]), report));
    allow("p.allowed", "d.pub");
    allow("d.allowed", "p.pub");
    return 0;
}

static void open_with_keys(worker *w, const rig_shape *shape, const char *key, const char *allowed)
{
    char key_path[128], allowed_path[128];
    snprintf(key_path, sizeof(key_path), "%s", scratch(key));
    snprintf(allowed_path, sizeof(allowed_path), "%s", scratch(allowed));
    kvferry_node_options options = nodes_options(shape->engine_id);
    options.key_file = key_path;
    options.allowed_keys = allowed_path;
    options.silence_ms = 3000; /* connections that prove no key are tried for so long */
    worker_open(w, shape, &options);
}

static void test_keys_that_fit(void **state)
{
    (void)state;
    worker prefill, decode;
    char *text;
    size_t size;
    open_with_keys(&prefill, &prefill_shape, "p", "p.allowed");
    open_with_keys(&decode, &decode_shape, "d", "d.allowed");
    const char *address = kvferry_node_address(prefill.node);
    assert_int_equal(strlen(strrchr(address, '/')), 65);
    walk_cells(&prefill, from, 10, 1, true);
    MUST(worker_offer(&prefill, "r", from, 10, KVFERRY_READY, report));
    MUST(worker_ask(&decode, "r", "p", address, to, 10, report));
    expect_done(&decode, "r");
    assert_true(walk_cells(&decode, to, 10, 1, false));
    MUST(kvferry_node_query(address, scratch("d"), NODES_PATIENCE_MS, &text, &size, report));
    kvferry_free(text);
    assert_int_equal(statistics_of(&prefill).refused_keys, 0);
    worker_close(&decode);
    worker_close(&prefill);
}

static void expect_end(worker *w, const char *where, const char *code, const char *expected)
{
    MUST(kvferry_node_connect(w->node, "p", where, report));
    kvferry_event *event = await_event(w, KVFERRY_EVENT_DISCONNECTED, "");
    assert_non_null(event);
    assert_string_equal(event->code, code);
    assert_non_null(strstr(kvferry_report_get(event->report, 0)->expected, expected));
    kvferry_event_free(event);
}

static void test_keys_that_are_not_allowed(void **state)
{
    (void)state;
    worker prefill, stranger;
    char *text;
    size_t size;
    open_with_keys(&prefill, &prefill_shape, "p", "p.allowed");
    open_with_keys(&stranger, &decode_shape, "stranger", "d.allowed");
    expect_end(&stranger, kvferry_node_address(prefill.node), "key_refused",
               "the decode side's key in the prefill side's allowed_keys");
    kvferry_node_statistics now = statistics_of(&prefill);
    assert_in_range(now.refused_keys, 1, 1000);
    assert_int_equal(now.messages_in, 0);
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_node_query(kvferry_node_address(prefill.node), scratch("stranger"),
                                        500, &text, &size, report),
                     KVFERRY_TIMEOUT);
    assert_string_equal(kvferry_report_get(report, 0)->code, "no_answer");
    assert_non_null(strstr(kvferry_report_get(report, 0)->found, "keys"));
    kvferry_report_free(report);
    /* A server whose key is not in the own list is not spoken to either. */
    worker other;
    open_with_keys(&other, &prefill_shape, "stranger", "p.allowed");
    worker decode;
    open_with_keys(&decode, &decode_shape, "d", "d.allowed");
    expect_end(&decode, kvferry_node_address(other.node), "key_refused",
               "the prefill side's key in the decode side's allowed_keys");
    assert_in_range(statistics_of(&decode).refused_keys, 1, 1000);
    worker_close(&decode);
    worker_close(&other);
    worker_close(&stranger);
    worker_close(&prefill);
}

/* A list of keys that cannot be looked at for a while, as on a file system that does not answer. */
static struct {
    atomic_bool on, reached, open, done, freed;
} stuck;

/* Instead of the C library's own. */
int stat(const char *restrict path, struct stat *restrict about)
{
    if (atomic_load(&stuck.on) && strstr(path, "stuck.allowed")) {
        atomic_store(&stuck.reached, true);
        while (!atomic_load(&stuck.open))
            usleep(1000);
    }
    return fstatat(AT_FDCWD, path, about, 0);
}

/* Calls that wait for the list are freed after a while. */
static void *free_calls(void *context)
{
    for (int i = 0; i < 100 && !atomic_load(&stuck.done); i++)
        usleep(100000);
    atomic_store(&stuck.freed, !atomic_load(&stuck.done));
    atomic_store(&stuck.open, true);
    return context;
}

static void test_calls_do_not_wait_for_the_list_of_keys(void **state)
{
    (void)state;
    worker prefill, decode;
    pthread_t thread;
    char *text;
    size_t size;
    allow("stuck.allowed", "p.pub");
    open_with_keys(&prefill, &prefill_shape, "p", "p.allowed");
    open_with_keys(&decode, &decode_shape, "d", "stuck.allowed");
    atomic_store(&stuck.on, true);
    MUST(kvferry_node_connect(decode.node, "p", kvferry_node_address(prefill.node), report));
    while (!atomic_load(&stuck.reached))
        usleep(1000);
    assert_int_equal(pthread_create(&thread, NULL, free_calls, NULL), 0);
    MUST(kvferry_node_status(decode.node, &text, &size));
    kvferry_free(text);
    atomic_store(&stuck.done, true);
    pthread_join(thread, NULL);
    assert_false(atomic_load(&stuck.freed));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
    assert_non_null(event);
    kvferry_event_free(event);
    worker_close(&decode);
    worker_close(&prefill);
}

/* It is allowed, and in the address, but who listens there has another. */
static void test_a_key_that_is_not_the_servers(void **state)
{
    (void)state;
    worker prefill, decode;
    char where[200], *key;
    allow("stranger.allowed", "stranger.pub");
    open_with_keys(&prefill, &prefill_shape, "p", "p.allowed");
    open_with_keys(&decode, &decode_shape, "d", "stranger.allowed");
    snprintf(where, sizeof(where), "%s", kvferry_node_address(prefill.node));
    key = strrchr(where, '/') + 1;
    FILE *file = fopen(scratch("stranger.pub"), "r");
    assert_non_null(file);
    assert_int_equal(fread(key, 1, 64, file), 64);
    fclose(file);
    expect_end(&decode, where, "key_unproved", key);
    worker_close(&decode);
    worker_close(&prefill);
}

static void test_keys_on_one_side_only(void **state)
{
    (void)state;
    worker prefill, bare;
    char *text;
    size_t size;
    open_with_keys(&prefill, &prefill_shape, "p", "p.allowed");
    worker_open_alone(&bare, "d");
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(
        kvferry_node_connect(bare.node, "p", kvferry_node_address(prefill.node), report),
        KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "address_key");
    kvferry_report_clear(report);
    assert_int_equal(
        kvferry_node_connect(prefill.node, "d", kvferry_node_address(bare.node), report),
        KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(report, 0)->code, "address_key");
    kvferry_report_clear(report);
    assert_int_equal(
        kvferry_node_query(kvferry_node_address(prefill.node), NULL, 100, &text, &size, report),
        KVFERRY_INVALID);
    assert_string_equal(kvferry_report_get(report, 0)->code, "address_key");
    kvferry_report_free(report);
    worker_close(&bare);
    worker_close(&prefill);
}

/* --- the operator's word ------------------------------------------------------------------------ */

static kvferry_status say_dead(const worker *at, const char *key, const char *incarnation, char code[64])
{
    kvferry_declared declared;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status =
        kvferry_node_declare_dead_at(kvferry_node_address(at->node), *key ? scratch(key) : "", incarnation,
                                     NODES_PATIENCE_MS, &declared, report);
    snprintf(code, 64, "%s", kvferry_report_count(report) ? kvferry_report_get(report, 0)->code : "");
    kvferry_report_free(report);
    return status;
}

static void expect_taken(worker *decode, const char *key, const char *incarnation)
{
    char code[64];
    assert_int_equal(say_dead(decode, key, incarnation, code), KVFERRY_OK);
    kvferry_event *event = await_event(decode, KVFERRY_EVENT_DISCONNECTED, "");
    assert_non_null(event);
    assert_string_equal(event->code, "peer_lost");
    kvferry_event_free(event);
}

/* What was counted may be read a moment after the answer. */
static void expect_refused(const worker *at, uint64_t count)
{
    for (int i = 0; i < NODES_PATIENCE_MS && statistics_of(at).refused < count; i++)
        usleep(1000);
    assert_int_equal(statistics_of(at).refused, count);
}

/* The prefill worker's key is allowed, and does not do, even for a word about itself; the node's own is in no list. */
static void test_only_the_own_key_is_the_operators(void **state)
{
    (void)state;
    worker prefill, decode;
    char code[64];
    open_with_keys(&prefill, &prefill_shape, "p", "p.allowed");
    open_with_keys(&decode, &decode_shape, "d", "d.allowed");
    const char *name = kvferry_node_incarnation(prefill.node);
    MUST(kvferry_node_connect(decode.node, "p", kvferry_node_address(prefill.node), report));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
    assert_non_null(event);
    kvferry_event_free(event);
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(say_dead(&decode, "p", name, code), KVFERRY_REFUSED);
        assert_string_equal(code, "not_operator");
        expect_refused(&decode, i);
    }
    assert_int_equal(say_dead(&decode, "", name, code), KVFERRY_INVALID);
    assert_string_equal(code, "address_key");
    assert_int_equal(say_dead(&decode, "d", "0123456789abcdef", code), KVFERRY_NOT_FOUND);
    assert_string_equal(code, "peer_unknown");
    assert_int_equal(say_dead(&decode, "d", "nobody", code), KVFERRY_INVALID);
    assert_string_equal(code, "incarnation_malformed");
    assert_int_equal(statistics_of(&decode).peers, 1); /* it lives on */
    expect_taken(&decode, "d", name);
    worker_close(&decode);
    worker_close(&prefill);
}

static char own_host[BASE_HOST_TEXT] = "127.0.0.1";

static bool take_own_host(void *context, const base_interface *one)
{
    (void)context;
    bool known = base_host_is_ipv4(&one->host) && !one->loopback;
    if (known)
        base_host_format(&one->host, own_host);
    return known;
}

/* A name for that. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    typedef int function(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    static function *real;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(name && strcmp(name, "own.example") == 0 ? own_host : name, service, hints, found);
}

/* Without keys, of any process on this host, also over the address that others know; tests/chaos/cut_test.c has others. */
static void test_without_keys_the_own_host_is_the_operators(void **state)
{
    (void)state;
    static const char here[] = "tcp://127.0.0.1:0";
    static const kvferry_engine_options elsewhere = {.size = sizeof(elsewhere), .host = "127.0.0.1"};
    char own[80];
    const struct {
        const char *listen, *advertise;
        const kvferry_engine_options *engine;
    } places[] = {{here, NULL, NULL},
                  {"tcp://[::1]:0", NULL, NULL},
                  {"tcp://*:0", here, NULL},
                  {"tcp://[::]:0", here, NULL},
                  {"tcp://*:0", own, NULL},
                  {"tcp://*:0", "tcp://own.example:0", NULL},
                  {"tcp://*:0", "tcp://own.example:0", &elsewhere}};
    if (!base_interfaces_find(take_own_host, NULL))
        printf("%s: this host has no address but loopback\n", __func__);
    snprintf(own, sizeof(own), "tcp://%s:0", own_host);
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        worker prefill, decode;
        kvferry_node_options options = nodes_options("p");
        options.insecure = true; /* the other may be at an address of the network */
        worker_open(&prefill, &prefill_shape, &options);
        options = nodes_options("d");
        options.listen = places[i].listen;
        options.advertise = places[i].advertise;
        options.engine_options = places[i].engine;
        options.insecure = places[i].advertise != NULL;
        worker_open(&decode, &decode_shape, &options);
        MUST(kvferry_node_connect(decode.node, "p", kvferry_node_address(prefill.node), report));
        kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
        assert_non_null(event);
        kvferry_event_free(event);
        expect_taken(&decode, "", kvferry_node_incarnation(prefill.node));
        worker_close(&decode);
        worker_close(&prefill);
    }
}

/* --- options that are refused ----------------------------------------------------------------- */

static void expect_refusal(const kvferry_node_options *options, kvferry_status status,
                           const char *code, const char *place)
{
    const kvferry_node_segment segment = {NULL, KVFERRY_MEMORY_HOST};
    kvferry_layout *layout = rig_layout(&prefill_shape);
    kvferry_node *node = NULL;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_node_create(options, layout, &segment, 1, &node, report), status);
    assert_null(node);
    assert_string_equal(kvferry_report_get(report, 0)->code, code);
    assert_string_equal(kvferry_report_get(report, 0)->place, place);
    kvferry_report_free(report);
    kvferry_layout_free(layout);
}

#define REFUSED(status, code, place, ...)                                                          \
    do {                                                                                           \
        kvferry_node_options options = {.size = sizeof(options), __VA_ARGS__};                     \
        options.engine = options.engine ? options.engine : "memory";                               \
        expect_refusal(&options, status, code, place);                                             \
    } while (0)

static void test_addresses_that_anybody_could_reach(void **state)
{
    (void)state;
    REFUSED(KVFERRY_REFUSED, "address_insecure", "listen", .listen = "tcp://0.0.0.0:0");
    REFUSED(KVFERRY_REFUSED, "address_insecure", "listen", .listen = "tcp://[::]:0");
    REFUSED(KVFERRY_REFUSED, "address_insecure", "listen", .listen = "tcp://192.0.2.7:0");
    REFUSED(KVFERRY_REFUSED, "address_insecure", "bootstrap_listen",
            .bootstrap_listen = "0.0.0.0:0");
    REFUSED(KVFERRY_REFUSED, "address_insecure", "metrics_listen", .metrics_listen = "*:0");
    REFUSED(KVFERRY_INVALID, "advertise_missing", "advertise", .listen = "tcp://*:0",
            .insecure = true);
    REFUSED(KVFERRY_INVALID, "advertise_missing", "advertise", .listen = "tcp://*:0",
            .insecure = true, .advertise = "tcp://*:7");
    REFUSED(KVFERRY_REFUSED, "address_insecure", "leader", .leader = "tcp://192.0.2.7:7");
    REFUSED(KVFERRY_INVALID, "address_malformed", "leader", .leader = "192.0.2.7:7");
    worker open;
    kvferry_node_options options = nodes_options("p");
    options.listen = "tcp://*:0";
    options.insecure = true;
    options.advertise = "tcp://127.0.0.1:0";
    worker_open(&open, &prefill_shape, &options);
    worker decode;
    worker_open_alone(&decode, "d");
    kvferry_report *refusal;
    assert_int_equal(kvferry_report_create(&refusal), KVFERRY_OK);
    assert_int_equal(kvferry_node_connect(decode.node, "p", "tcp://192.0.2.7:7", refusal),
                     KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(refusal, 0)->code, "address_insecure");
    kvferry_report_clear(refusal);
    assert_int_equal(kvferry_node_set_leader(decode.node, "tcp://192.0.2.7:7", refusal),
                     KVFERRY_REFUSED);
    assert_string_equal(kvferry_report_get(refusal, 0)->code, "address_insecure");
    kvferry_report_free(refusal);
    MUST(kvferry_node_connect(decode.node, "p", kvferry_node_address(open.node), report));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
    assert_non_null(event);
    kvferry_event_free(event);
    worker_close(&decode);
    worker_close(&open);
}

static void count_unknown_hosts(void *context, kvferry_log_level level, const char *line)
{
    atomic_uint *count = context;
    if (level == KVFERRY_LOG_WARNING && strstr(line, "pod-0.not-ready-yet.invalid, cannot be looked up"))
        atomic_fetch_add(count, 1);
}

/* The name of a pod, which others will look up once it is ready. */
static void test_a_name_that_is_not_known_yet(void **state)
{
    (void)state;
    const kvferry_engine_options named = {.size = sizeof(named), .host = "127.0.0.1"};
    for (int i = 0; i < 2; i++) {
        atomic_uint count = 0;
        worker one;
        kvferry_node_options options = nodes_options("p");
        options.listen = "tcp://*:0";
        options.insecure = true;
        options.advertise = "tcp://pod-0.not-ready-yet.invalid:0";
        options.log = count_unknown_hosts;
        options.log_context = &count;
        options.engine_options = i ? &named : options.engine_options;
        worker_open(&one, &prefill_shape, &options);
        assert_int_equal(strncmp(kvferry_node_address(one.node), "tcp://pod-0.", 12), 0);
        worker_close(&one);
        assert_int_equal(atomic_load(&count), i ? 0 : 1);
    }
}

static void count_strange_hosts(void *context, kvferry_log_level level, const char *line)
{
    atomic_uint *count = context;
    if (level == KVFERRY_LOG_WARNING && strstr(line, "is at no interface of this host. The transfer engine is told no host"))
        atomic_fetch_add(count, 1);
}

/* Behind a translator of addresses; RDMA and shared memory may carry all that there is. */
static void test_an_advertised_address_of_no_interface(void **state)
{
    (void)state;
    static const char *const places[][2] = {{"tcp://*:0", "tcp://192.0.2.7:0"}, {"tcp://[::]:0", "tcp://[2001:db8::7]:0"}};
    unsetenv("UCX_NET_DEVICES");
    for (size_t i = 0; i < 2; i++) {
        atomic_uint count = 0;
        worker one;
        kvferry_node_options options = nodes_options("p");
        options.engine = "ucx";
        options.listen = places[i][0];
        options.advertise = places[i][1];
        options.insecure = true;
        options.log = count_strange_hosts;
        options.log_context = &count;
        worker_open(&one, &prefill_shape, &options);
        worker_close(&one);
        assert_int_equal(atomic_load(&count), 1);
    }
}

/* What the caller says is meant: bytes would not get there over TCP. */
static void test_an_address_of_no_interface(void **state)
{
    (void)state;
    unsetenv("UCX_NET_DEVICES");
    const kvferry_engine_options loopback = {.size = sizeof(loopback), .net_devices = "lo"};
    const kvferry_engine_options elsewhere = {.size = sizeof(elsewhere), .host = "192.0.2.7"};
    REFUSED(KVFERRY_INVALID, "engine_option", "host", .engine = "ucx", .insecure = true,
            .listen = "tcp://192.0.2.7:0");
    REFUSED(KVFERRY_INVALID, "engine_option", "host", .engine = "ucx", .insecure = true, .listen = "tcp://*:0",
            .advertise = "tcp://127.0.0.1:0", .engine_options = &elsewhere);
    REFUSED(KVFERRY_IO, "listen_failed", "tcp://192.0.2.7:0", .engine = "ucx", .insecure = true,
            .listen = "tcp://192.0.2.7:0", .engine_options = &loopback);
}

static void test_options_that_do_not_fit(void **state)
{
    (void)state;
    char key[128], no_key[128], list[128];
    snprintf(key, sizeof(key), "%s", scratch("p"));
    snprintf(no_key, sizeof(no_key), "%s", scratch("nothing"));
    snprintf(list, sizeof(list), "%s", scratch("p.allowed"));
    REFUSED(KVFERRY_INVALID, "keys_incomplete", "allowed_keys", .key_file = key);
    REFUSED(KVFERRY_INVALID, "keys_incomplete", "key_file", .allowed_keys = list);
    REFUSED(KVFERRY_IO, "file_failed", no_key, .key_file = no_key, .allowed_keys = list);
    REFUSED(KVFERRY_IO, "file_failed", no_key, .key_file = key, .allowed_keys = no_key);
    REFUSED(KVFERRY_MALFORMED, "key_malformed", list, .key_file = list, .allowed_keys = list);
    REFUSED(KVFERRY_INVALID, "address_malformed", "listen", .listen = "127.0.0.1:0");
    REFUSED(KVFERRY_INVALID, "address_malformed", "bootstrap", .bootstrap = "127.0.0.1:0");
    REFUSED(KVFERRY_NOT_FOUND, "engine_unknown", "", .engine = "none");
    worker first;
    worker_open_alone(&first, "p");
    const char *taken = kvferry_node_address(first.node);
    REFUSED(KVFERRY_IO, "listen_failed", taken, .listen = taken);
    worker_close(&first);
}

static void test_segments_that_do_not_fit(void **state)
{
    (void)state;
    const kvferry_node_options options = {.size = sizeof(options), .engine = "memory"};
    const kvferry_node_segment device[] = {{NULL, KVFERRY_MEMORY_CUDA},
                                           {NULL, KVFERRY_MEMORY_HOST}};
    static char memory[16];
    const kvferry_node_segment mapped = {memory, KVFERRY_MEMORY_CUDA};
    kvferry_node_options verify = options;
    verify.verify = true;
    const struct {
        const kvferry_node_options *options;
        const kvferry_node_segment *segments;
        size_t count;
        kvferry_status status;
        const char *code;
    } cases[] = {
        {&options, device, 2, KVFERRY_INVALID, "segment_count"},
        {&options, NULL, 0, KVFERRY_INVALID, "segment_count"},
        {&options, device, 1, KVFERRY_INVALID, "segment_memory"},
        {&verify, &mapped, 1, KVFERRY_REFUSED, "verify_device_memory"},
    };
    kvferry_layout *layout = rig_layout(&prefill_shape);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        kvferry_node *node = NULL;
        kvferry_report *report;
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
        assert_int_equal(kvferry_node_create(cases[i].options, layout, cases[i].segments,
                                             cases[i].count, &node, report),
                         cases[i].status);
        assert_string_equal(kvferry_report_get(report, 0)->code, cases[i].code);
        kvferry_report_free(report);
    }
    kvferry_layout_free(layout);
}

static void test_ipv6(void **state)
{
    (void)state;
    worker prefill, decode;
    kvferry_node_options options = nodes_options("v6");
    options.listen = "tcp://[::1]:0";
    worker_open(&prefill, &prefill_shape, &options);
    worker_open(&decode, &decode_shape, &options);
    assert_memory_equal(kvferry_node_address(prefill.node), "tcp://[::1]:", 12);
    walk_cells(&prefill, from, 10, 3, true);
    MUST(worker_offer(&prefill, "r", from, 10, KVFERRY_READY, report));
    MUST(worker_ask(&decode, "r", "p", kvferry_node_address(prefill.node), to, 10, report));
    expect_done(&decode, "r");
    assert_true(walk_cells(&decode, to, 10, 3, false));
    worker_close(&decode);
    worker_close(&prefill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_that_fit),
        cmocka_unit_test(test_keys_that_are_not_allowed),
        cmocka_unit_test(test_calls_do_not_wait_for_the_list_of_keys),
        cmocka_unit_test(test_a_key_that_is_not_the_servers),
        cmocka_unit_test(test_keys_on_one_side_only),
        cmocka_unit_test(test_only_the_own_key_is_the_operators),
        cmocka_unit_test(test_without_keys_the_own_host_is_the_operators),
        cmocka_unit_test(test_addresses_that_anybody_could_reach),
        cmocka_unit_test(test_a_name_that_is_not_known_yet),
        cmocka_unit_test(test_an_advertised_address_of_no_interface),
        cmocka_unit_test(test_an_address_of_no_interface),
        cmocka_unit_test(test_options_that_do_not_fit),
        cmocka_unit_test(test_segments_that_do_not_fit),
        cmocka_unit_test(test_ipv6),
    };
    int failed = cmocka_run_group_tests(tests, make_keys, NULL);
    scratch_end();
    return failed;
}
