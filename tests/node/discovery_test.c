/* SPDX-License-Identifier: Apache-2.0 */
/* How nodes find each other: bootstrap servers, files, leaders; and metrics over HTTP. */
#include <math.h>

#include "nodes.h"

#include "node/fetch.h"
#include "node/scratch_test.h"

static const uint32_t from[] = {3, 9, 4}, to[] = {8, 2, 30};

static bool never(void *context)
{
    (void)context;
    return false;
}

static char *fetch(const char *url, const char *path)
{
    char *text;
    size_t size;
    assert_true(node_fetch_begin());
    MUST(node_fetch(url, path, NULL, 1 << 20, never, NULL, &text, &size, report));
    return text;
}

/* Two prefill workers of which the first serves /query and the second finds it there. */
static void open_prefill(worker prefill[2])
{
    for (uint32_t tp = 0; tp < 2; tp++) {
        kvferry_node_options options = nodes_options("p");
        if (tp == 0)
            options.bootstrap_listen = "127.0.0.1:0";
        else
            options.bootstrap = kvferry_node_bootstrap(prefill[0].node);
        worker_open(&prefill[tp], &(rig_shape){.engine_id = "p", .tp = tp, .tps = 2, .pps = 1},
                    &options);
    }
}

static void move(worker prefill[2], worker *decode, const char *id, const char *where,
                 uint32_t seed)
{
    for (int i = 0; i < 2; i++) {
        walk_cells(&prefill[i], from, 10, seed, true);
        MUST(worker_offer(&prefill[i], id, from, 10, KVFERRY_READY, report));
    }
    MUST(worker_ask(decode, id, "p", where, to, 10, report));
    expect_done(decode, id);
    assert_true(walk_cells(decode, to, 10, seed, false));
}

static void test_by_bootstrap_server_and_by_file(void **state)
{
    (void)state;
    worker prefill[2], decode, other;
    char where[200];
    open_prefill(prefill);
    worker_open_alone(&decode, "d");
    const char *bootstrap = kvferry_node_bootstrap(prefill[0].node);
    move(prefill, &decode, "r1", bootstrap, 1);

    char *text = fetch(bootstrap, "/query");
    assert_non_null(strstr(text, kvferry_node_address(prefill[0].node)));
    assert_non_null(strstr(text, kvferry_node_address(prefill[1].node)));
    scratch_write("engines.json", text);
    free(text);
    worker_open_alone(&other, "e");
    snprintf(where, sizeof(where), "file:%s", scratch("engines.json"));
    move(prefill, &other, "r2", where, 2);
    worker_close(&other);
    worker_close(&decode);
    for (int i = 0; i < 2; i++)
        worker_close(&prefill[i]);
}

static void test_what_is_not_found_is_told(void **state)
{
    (void)state;
    worker prefill[2], decode;
    open_prefill(prefill);
    worker_open_alone(&decode, "d");
    char far[200];
    scratch_write("far.json",
                  "{\"0\": {\"engine_id\": \"p\", \"worker_addr\": {\"0\": {\"0\": "
                  "\"tcp://192.0.2.7:7\"}}}}");
    snprintf(far, sizeof(far), "file:%s", scratch("far.json"));
    const struct {
        const char *engine_id, *where, *code;
    } cases[] = {{"q", kvferry_node_bootstrap(prefill[0].node), "engine_absent"},
                 {"p", "http://127.0.0.1:1", "discovery_failed"},
                 {"p", "file:/nowhere/at/all", "file_failed"},
                 {"p", far, "address_insecure"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        MUST(kvferry_node_connect(decode.node, cases[i].engine_id, cases[i].where, report));
        kvferry_event *event = await_event(&decode, KVFERRY_EVENT_DISCONNECTED, "");
        assert_non_null(event);
        assert_string_equal(event->code, cases[i].code);
        kvferry_event_free(event);
    }
    worker_close(&decode);
    for (int i = 0; i < 2; i++)
        worker_close(&prefill[i]);
}

/* Engines of one worker each, as data-parallel ranks of vLLM are, share a bootstrap server. */
static void test_several_engines_at_one_server(void **state)
{
    (void)state;
    worker ranks[2], decode;
    for (uint32_t dp = 0; dp < 2; dp++) {
        kvferry_node_options options = nodes_options(dp ? "p1" : "p0");
        options.bootstrap_rank = dp;
        if (dp == 0)
            options.bootstrap_listen = "127.0.0.1:0";
        else
            options.bootstrap = kvferry_node_bootstrap(ranks[0].node);
        worker_open(&ranks[dp], &(rig_shape){.engine_id = dp ? "p1" : "p0", .tps = 1, .pps = 1},
                    &options);
    }
    worker_open_alone(&decode, "d");
    const char *bootstrap = kvferry_node_bootstrap(ranks[0].node);
    kvferry_event *event = NULL;
    /* The second one registers in its own time. */
    for (int i = 0; i < 100 && !event; i++) {
        MUST(kvferry_node_connect(decode.node, "p1", bootstrap, report));
        assert_int_equal(kvferry_node_wait(decode.node, NODES_PATIENCE_MS), KVFERRY_OK);
        event = kvferry_node_next_event(decode.node);
        if (event && event->kind == KVFERRY_EVENT_DISCONNECTED) {
            assert_string_equal(event->code, "engine_absent");
            kvferry_event_free(event);
            event = NULL;
            usleep(50000);
        }
    }
    assert_non_null(event);
    assert_string_equal(event->engine_id, "p1");
    kvferry_event_free(event);
    worker other;
    worker_open_alone(&other, "e");
    MUST(kvferry_node_connect(other.node, "", bootstrap, report));
    event = await_event(&other, KVFERRY_EVENT_DISCONNECTED, "");
    assert_non_null(event);
    assert_string_equal(event->code, "engine_ambiguous");
    kvferry_event_free(event);
    worker_close(&other);
    worker_close(&decode);
    for (int i = 0; i < 2; i++)
        worker_close(&ranks[i]);
}

/* --- metrics: the text format of Prometheus, read strictly ------------------------------------ */

typedef struct metrics_reader {
    char family[128], type[16];
    char families[4096], series[65536]; /* of which there must be no second one */
    double bucket, count;               /* of the histogram that is being read */
    int samples;
} metrics_reader;

static size_t name_length(const char *text, const char *more)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    char all[128];
    snprintf(all, sizeof(all), "%s0123456789%s", letters, more);
    return strchr(letters, *text) && *text ? strspn(text, all) : 0;
}

static void read_type(metrics_reader *reader, const char *rest)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    char key[140];
    size_t size = name_length(rest, ":");
    assert_int_not_equal(size, 0);
    assert_int_equal(rest[size], ' ');
    snprintf(reader->family, sizeof(reader->family), "%.*s", (int)size, rest);
    snprintf(reader->type, sizeof(reader->type), "%s", rest + size + 1);
    bool known = false;
    for (int i = 0; i < 3; i++)
        known |= strcmp(reader->type, types[i]) == 0;
    assert_true(known);
    if (strcmp(reader->type, "counter") == 0)
        assert_string_equal(rest + size - 6 < rest ? "" : reader->family + size - 6, "_total");
    snprintf(key, sizeof(key), "\n%s\n", reader->family);
    assert_null(strstr(reader->families, key));
    strcat(reader->families, key);
    reader->bucket = reader->count = 0;
}

/* {name="value",...}: what follows it. */
static const char *read_labels(const char *at)
{
    if (*at != '{')
        return at;
    for (at++; *at != '}';) {
        size_t size = name_length(at, "");
        assert_int_not_equal(size, 0);
        at += size;
        assert_memory_equal(at, "=\"", 2);
        for (at += 2; *at != '"'; at++) {
            assert_true(*at);
            if (*at == '\\') {
                at++;
                assert_true(*at == '\\' || *at == '"' || *at == 'n');
            }
        }
        at++;
        assert_true(*at == ',' || *at == '}');
        at += *at == ',';
    }
    return at + 1;
}

static void read_sample(metrics_reader *reader, const char *line)
{
    char key[600], *end;
    size_t size = name_length(line, ":"), family = strlen(reader->family);
    assert_in_range(size, family, 200);
    assert_memory_equal(line, reader->family, family); /* of the family whose type stands above */
    char suffix[64];
    snprintf(suffix, sizeof(suffix), "%.*s", (int)(size - family), line + family);
    bool histogram = strcmp(reader->type, "histogram") == 0;
    if (!histogram)
        assert_string_equal(suffix, "");
    const char *rest = read_labels(line + size);
    assert_int_equal(*rest, ' ');
    snprintf(key, sizeof(key), "\n%.*s\n", (int)(rest - line), line);
    assert_null(strstr(reader->series, key));
    strcat(reader->series, key);
    double value = strtod(rest + 1, &end);
    assert_true(end != rest + 1 && !*end && isfinite(value) && value >= 0);
    if (histogram && strcmp(suffix, "_bucket") == 0) {
        assert_true(strstr(line, "le=\"0.0005\"") || value >= reader->bucket);
        reader->bucket = value;
        reader->count = value; /* the last is +Inf */
        assert_true(strstr(line, ",le=\"") != NULL);
    } else if (histogram && strcmp(suffix, "_count") == 0) {
        assert_true(value == reader->count);
    } else if (histogram) {
        assert_string_equal(suffix, "_sum");
    }
    reader->samples++;
}

static void read_metrics(char *text)
{
    metrics_reader *reader = calloc(1, sizeof(*reader));
    assert_non_null(reader);
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "# HELP ", 7) == 0)
            assert_int_not_equal(name_length(line + 7, ":"), 0);
        else if (strncmp(line, "# TYPE ", 7) == 0)
            read_type(reader, line + 7);
        else
            read_sample(reader, line);
    }
    assert_in_range(reader->samples, 40, 1000);
    free(reader);
}

static void test_metrics(void **state)
{
    (void)state;
    worker prefill, decode;
    kvferry_node_options options = nodes_options("p");
    options.metrics_listen = "127.0.0.1:0";
    worker_open(&prefill, &(rig_shape){.engine_id = "p \"q\" \\ r", .tps = 1, .pps = 1}, &options);
    worker_open_alone(&decode, "d");
    const char *where = kvferry_node_address(prefill.node);
    MUST(worker_offer(&prefill, "r1", from, 10, KVFERRY_READY, report));
    MUST(worker_ask(&decode, "r1", "", where, to, 10, report));
    expect_done(&decode, "r1");
    expect_done(&prefill, "r1");
    MUST(worker_offer(&prefill, "r2", from, 10, KVFERRY_READY, report));
    assert_int_equal(kvferry_node_abort(prefill.node, KVFERRY_SIDE_PREFILL, "r2"), KVFERRY_OK);
    MUST(worker_offer(&prefill, "r3", from, 10, KVFERRY_READY, report));
    assert_int_equal(worker_offer(&prefill, "r3", from, 10, KVFERRY_READY, NULL), KVFERRY_REFUSED);
    assert_int_equal(worker_offer(&prefill, "r1", from, 10, KVFERRY_READY, NULL), KVFERRY_REFUSED);
    char *text = fetch(kvferry_node_metrics(prefill.node), "/metrics");
    static const char *const lines[] = {
        "\nkvferry_transfers_ended_total{side=\"prefill\",outcome=\"done\"} 1\n",
        "\nkvferry_transfers_ended_total{side=\"prefill\",outcome=\"aborted\"} 1\n",
        "\nkvferry_transfers_failed_total{side=\"prefill\",code=\"source_aborted\"} 1\n",
        "\nkvferry_refused_total{code=\"transfer_known\"} 1\n",
        "\nkvferry_refused_total{code=\"transfer_over\"} 1\n",
        "\nkvferry_transfers_live{side=\"prefill\"} 1\n",
        "\nkvferry_transfer_seconds_count{side=\"prefill\"} 2\n",
        "engine_id=\"p \\\"q\\\" \\\\ r\"",
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
        if (!strstr(text, lines[i]))
            fail_msg("not in the metrics: %s\n%s", lines[i], text);
    read_metrics(text);
    free(text);
    worker_close(&decode);
    worker_close(&prefill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_bootstrap_server_and_by_file),
        cmocka_unit_test(test_what_is_not_found_is_told),
        cmocka_unit_test(test_several_engines_at_one_server),
        cmocka_unit_test(test_metrics),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
