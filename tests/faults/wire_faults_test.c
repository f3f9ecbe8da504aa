/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages while memory runs out: each allocation of reading and writing each of them fails. */
#include "guard.h"
#include "test.h"
#include "wire/samples_test.h"

static kvferry_status read_sample(const void *data, size_t size)
{
    wire_message message;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    guard_begin();
    kvferry_status status = wire_decode(data, size, &message, report);
    guard_end();
    wire_message_end(&message);
    kvferry_report_free(report);
    return status;
}

static kvferry_status write_sample(const wire_message *message)
{
    static char untouched;
    void *data = &untouched;
    size_t size = 77;
    guard_begin();
    kvferry_status status = wire_encode(message, &data, &size);
    guard_end();
    if (status == KVFERRY_OK) {
        free(data);
    } else {
        assert_ptr_equal(data, &untouched);
        assert_int_equal(size, 77);
    }
    return status;
}

/* Until no allocation is left to fail. Answers how many there are. */
static size_t fail_each(const wire_message *message, const void *data, size_t size, bool on)
{
    for (size_t n = 1;; n++) {
        size_t live = guard_live();
        guard_fail_at(n, on);
        kvferry_status status = message ? write_sample(message) : read_sample(data, size);
        bool failed = guard_failed();
        guard_fail_at(0, false);
        assert_int_equal(guard_live(), live);
        assert_int_equal(status, failed ? KVFERRY_NO_MEMORY : KVFERRY_OK);
        if (!failed)
            return n - 1;
    }
}

static void test_every_message(void **state)
{
    (void)state;
    sample_setup();
    for (int type = 0; type < WIRE_TYPES; type++) {
        wire_message message = sample((wire_type)type);
        size_t size;
        unsigned char *data = sample_encode(&message, &size);
        for (int on = 0; on < 2; on++) {
            assert_in_range(fail_each(&message, NULL, 0, on), 1, 100);
            assert_in_range(fail_each(NULL, data, size, on), 1, 100);
        }
        free(data);
    }
    sample_teardown();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_message)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
