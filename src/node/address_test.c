/* SPDX-License-Identifier: Apache-2.0 */
#include "node/address.h"

#include <string.h>

#include <kvferry/node.h>

#include "base/host.h"
#include "test.h"

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void round_trip(node_address_form form, const char *text, const char *host, unsigned port,
                       const char *again)
{
    node_address address;
    char written[NODE_ADDRESS_TEXT];
    assert_true(node_address_parse(text, form, &address, "here", NULL));
    assert_string_equal(address.host, host);
    assert_int_equal(address.port, port);
    node_address_format(&address, form, written);
    assert_string_equal(written, again);
    assert_true(node_address_parse(written, form, &address, "here", NULL));
}

/* sglang#7858, smg#1664, llm-d-router#2658, Mooncake#470: IPv6 literals break host:port. */
static void test_addresses_are_read_and_written(void **state)
{
    (void)state;
    round_trip(NODE_ADDRESS_TCP, "tcp://10.1.2.3:8998", "10.1.2.3", 8998, "tcp://10.1.2.3:8998");
    round_trip(NODE_ADDRESS_TCP, "tcp://[fe80::1]:0", "fe80::1", 0, "tcp://[fe80::1]:0");
    round_trip(NODE_ADDRESS_TCP, "tcp://[::1]:65535/" KEY, "::1", 65535, "tcp://[::1]:65535/" KEY);
    round_trip(NODE_ADDRESS_TCP, "tcp://*:1", "0.0.0.0", 1, "tcp://0.0.0.0:1");
    round_trip(NODE_ADDRESS_TCP, "tcp://localhost:1", "127.0.0.1", 1, "tcp://127.0.0.1:1");
    round_trip(NODE_ADDRESS_TCP, "tcp://prefill-0.pods_x.svc:99", "prefill-0.pods_x.svc", 99,
               "tcp://prefill-0.pods_x.svc:99");
    round_trip(NODE_ADDRESS_HTTP, "http://[::1]:80/", "::1", 80, "http://[::1]:80");
    round_trip(NODE_ADDRESS_PLAIN, "[::]:80", "::", 80, "[::]:80");
    node_address address;
    assert_true(node_address_parse("tcp://h:1/" KEY, NODE_ADDRESS_TCP, &address, "", NULL));
    assert_true(address.has_key);
    assert_int_equal(address.key[1], 0x11);
}

static void test_what_is_none_is_refused(void **state)
{
    (void)state;
    static const struct {
        node_address_form form;
        const char *text;
    } bad[] = {
        {NODE_ADDRESS_TCP, ""},
        {NODE_ADDRESS_TCP, "10.1.2.3:1"},
        {NODE_ADDRESS_TCP, "http://10.1.2.3:1"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3"},
        {NODE_ADDRESS_TCP, "tcp://:1"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:65536"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:-1"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:1x"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:1/"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:1/abc"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:1/" KEY "0"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2.3:000001"},
        {NODE_ADDRESS_TCP, "tcp://::1:1"},
        {NODE_ADDRESS_TCP, "tcp://[::1]"},
        {NODE_ADDRESS_TCP, "tcp://[::1:1"},
        {NODE_ADDRESS_TCP, "tcp://[10.1.2.3]:1"},
        {NODE_ADDRESS_TCP, "tcp://[::g]:1"},
        {NODE_ADDRESS_TCP, "tcp://[::1::2]:1"},
        {NODE_ADDRESS_TCP, "tcp://10.1.2:1"},
        {NODE_ADDRESS_TCP, "tcp://256.1.2.3:1"},
        {NODE_ADDRESS_TCP, "tcp://a b:1"},
        {NODE_ADDRESS_TCP, "tcp://a\n:1"},
        {NODE_ADDRESS_HTTP, "http://10.1.2.3:1/path"},
        {NODE_ADDRESS_HTTP, "https://10.1.2.3:1"},
        {NODE_ADDRESS_PLAIN, "10.1.2.3:1/"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        kvferry_report *report;
        node_address address = {.host = "as it was"};
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
        if (node_address_parse(bad[i].text, bad[i].form, &address, "option", report))
            fail_msg("\"%s\" was taken", bad[i].text);
        assert_string_equal(kvferry_report_get(report, 0)->code, "address_malformed");
        assert_string_equal(kvferry_report_get(report, 0)->place, "option");
        assert_string_equal(address.host, "as it was");
        kvferry_report_clear(report);
        if (bad[i].form == NODE_ADDRESS_TCP) {
            assert_int_equal(kvferry_node_check_address(bad[i].text, report), KVFERRY_INVALID);
            assert_string_equal(kvferry_report_get(report, 0)->code, "address_malformed");
        }
        kvferry_report_free(report);
    }
    char longest[300] = "tcp://";
    memset(longest + 6, 'a', 254);
    strcpy(longest + 260, ":1");
    node_address address;
    assert_int_equal(kvferry_node_check_address("tcp://[::1]:1", NULL), KVFERRY_OK);
    assert_int_equal(kvferry_node_check_address(NULL, NULL), KVFERRY_INVALID);
    assert_false(node_address_parse(longest, NODE_ADDRESS_TCP, &address, "", NULL));
    assert_true(
        node_address_parse(strcpy(longest + 1, "tcp://x:1"), NODE_ADDRESS_TCP, &address, "", NULL));
}

static void test_kinds_of_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool loopback, wildcard, numeric;
    } hosts[] = {
        {"127.0.0.1:1", true, false, true},
        {"127.9.9.9:1", true, false, true},
        {"[::1]:1", true, false, true},
        {"[::ffff:127.0.0.1]:1", true, false, true},
        {"128.0.0.1:1", false, false, true},
        {"[::ffff:10.0.0.1]:1", false, false, true},
        {"*:1", false, true, true},
        {"[::]:1", false, true, true},
        {"[::ffff:0.0.0.0]:1", false, true, true},
        {"localhost:1", true, false, true},
        {"localhost.evil.example:1", false, false, false},
        {"127.example:1", false, false, false},
    };
    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++) {
        node_address address;
        if (!node_address_parse(hosts[i].text, NODE_ADDRESS_PLAIN, &address, "", NULL))
            fail_msg("%s was refused", hosts[i].text);
        if (node_address_is_loopback(&address) != hosts[i].loopback ||
            node_address_is_wildcard(&address) != hosts[i].wildcard ||
            node_address_is_numeric(&address) != hosts[i].numeric)
            fail_msg("%s was taken for another kind of host", hosts[i].text);
    }
}

static void test_hosts_that_an_interface_has(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        bool here;
    } hosts[] = {{"127.0.0.1", true},    {"::ffff:127.0.0.1", true}, {"203.0.113.7", false},
                 {"2001:db8::7", false}, {"0.0.0.0", false},         {"localhost.example", false}};
    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++) {
        node_address address = {.port = 1};
        strcpy(address.host, hosts[i].host);
        if (node_address_is_here(&address) != hosts[i].here)
            fail_msg("%s: whether it is here", hosts[i].host);
    }
}

static bool is_here(void *context, const base_interface *one)
{
    node_address address = {.port = 1};
    base_host_format(&one->host, address.host);
    if (!node_address_is_here(&address))
        fail_msg("%s: it is here", address.host);
    *(int *)context += 1;
    return false;
}

/* Those of one link, too. */
static void test_all_hosts_of_interfaces_are_here(void **state)
{
    (void)state;
    int count = 0;
    assert_false(base_interfaces_find(is_here, &count));
    assert_true(count > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses_are_read_and_written),
        cmocka_unit_test(test_what_is_none_is_refused),
        cmocka_unit_test(test_kinds_of_hosts),
        cmocka_unit_test(test_hosts_that_an_interface_has),
        cmocka_unit_test(test_all_hosts_of_interfaces_are_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
