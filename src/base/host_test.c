/* SPDX-License-Identifier: Apache-2.0 */
#include "base/host.h"

#include <string.h>

#include "test.h"

static void test_hosts_are_read_and_written(void **state)
{
    (void)state;
    static const struct {
        const char *text, *written; /* NULL: it is none */
        bool ipv4, loopback, wildcard, link;
    } hosts[] = {
        {"10.0.0.1", "10.0.0.1", true, false, false, false},
        {"::ffff:10.0.0.1", "10.0.0.1", true, false, false, false},
        {"127.3.2.1", "127.3.2.1", true, true, false, false},
        {"0.0.0.0", "0.0.0.0", true, false, true, false},
        {"::", "::", false, false, true, false},
        {"::1", "::1", false, true, false, false},
        {"2001:DB8::7", "2001:db8::7", false, false, false, false},
        {"fe80::1", "fe80::1", false, false, false, true},
        {"fe80::1%lo", "fe80::1%lo", false, false, false, true},
        {"fe80::1%of-no-interface", NULL, false, false, false, false},
        {"localhost", NULL, false, false, false, false},
        {"127.1", NULL, false, false, false, false},
        {"", NULL, false, false, false, false},
    };
    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++) {
        base_host host;
        char text[BASE_HOST_TEXT];
        if (base_host_parse(hosts[i].text, &host) != (hosts[i].written != NULL))
            fail_msg("%s: whether it is a host", hosts[i].text);
        if (!hosts[i].written)
            continue;
        base_host_format(&host, text);
        assert_string_equal(text, hosts[i].written);
        assert_int_equal(base_host_is_ipv4(&host), hosts[i].ipv4);
        assert_int_equal(base_host_is_loopback(&host), hosts[i].loopback);
        assert_int_equal(base_host_is_wildcard(&host), hosts[i].wildcard);
        assert_int_equal(base_host_is_link_local(&host), hosts[i].link);
    }
}

static void test_hosts_are_the_same_on_the_same_link_only(void **state)
{
    (void)state;
    base_host a, b;
    assert_true(base_host_parse("fe80::1%lo", &a) && base_host_parse("fe80::1%1", &b));
    assert_true(base_host_same(&a, &b));
    assert_true(base_host_parse("fe80::1%2", &b));
    assert_false(base_host_same(&a, &b));
    assert_true(base_host_parse("::ffff:10.0.0.1", &a) && base_host_parse("10.0.0.1", &b));
    assert_true(base_host_same(&a, &b));
}

static bool count_one(void *context, const base_interface *one)
{
    base_host again;
    char text[BASE_HOST_TEXT];
    base_host_format(&one->host, text);
    assert_true(base_host_parse(text, &again));
    assert_true(base_host_same(&again, &one->host));
    *(int *)context += one->loopback && strcmp(text, "127.0.0.1") == 0;
    return false;
}

static void test_interfaces_have_the_hosts_that_they_are_shown_with(void **state)
{
    (void)state;
    int loopbacks = 0;
    assert_false(base_interfaces_find(count_one, &loopbacks));
    assert_int_equal(loopbacks, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_are_read_and_written),
        cmocka_unit_test(test_hosts_are_the_same_on_the_same_link_only),
        cmocka_unit_test(test_interfaces_have_the_hosts_that_they_are_shown_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
