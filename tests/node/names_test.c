/* SPDX-License-Identifier: Apache-2.0 */
/* Names that have several addresses. */
#include <dlfcn.h>
#include <netdb.h>

#include "nodes.h"

static const rig_shape prefill_shape = {.engine_id = "p", .tps = 1, .pps = 1};
static const rig_shape decode_shape = {.engine_id = "d", .tps = 1, .pps = 1};

/* Instead of the C library's own: a name for both loopback addresses, IPv6 first. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    typedef int function(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    static function *real;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, "both.example") != 0)
        return real(name, service, hints, found);
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    int failure = real("::1", service, &numeric, found);
    return failure ? failure : real("127.0.0.1", service, &numeric, &(*found)->ai_next);
}

/* It listens at the second address of its name only. */
static void test_the_addresses_of_a_name_are_tried_in_turn(void **state)
{
    (void)state;
    worker prefill;
    char address[64], *text;
    size_t size;
    kvferry_node_options options = nodes_options("p");
    worker_open(&prefill, &prefill_shape, &options);
    snprintf(address, sizeof(address), "tcp://both.example%s", strrchr(kvferry_node_address(prefill.node), ':'));
    MUST(kvferry_node_query(address, NULL, NODES_PATIENCE_MS, &text, &size, report));
    kvferry_free(text);
    worker_close(&prefill);
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(kvferry_node_query(address, NULL, UINT64_MAX, &text, &size, report), KVFERRY_IO); /* at once */
    assert_string_equal(kvferry_report_get(report, 0)->code, "no_answer");
    assert_non_null(strstr(kvferry_report_get(report, 0)->found, "refused"));
    kvferry_report_free(report);
}

/* So does a decode worker: that the first address refuses is no proof that the process is dead. */
static void test_a_worker_is_found_at_the_second_address_of_its_name(void **state)
{
    (void)state;
    worker prefill, decode;
    char address[64];
    kvferry_node_options options = nodes_options("p");
    worker_open(&prefill, &prefill_shape, &options);
    options = nodes_options("d");
    options.insecure = true; /* names are no loopback addresses */
    worker_open(&decode, &decode_shape, &options);
    snprintf(address, sizeof(address), "tcp://both.example%s", strrchr(kvferry_node_address(prefill.node), ':'));
    MUST(kvferry_node_connect(decode.node, "p", address, report));
    kvferry_event *event = await_event(&decode, KVFERRY_EVENT_CONNECTED, "");
    assert_non_null(event);
    kvferry_event_free(event);
    worker_close(&decode);
    worker_close(&prefill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_addresses_of_a_name_are_tried_in_turn),
        cmocka_unit_test(test_a_worker_is_found_at_the_second_address_of_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
