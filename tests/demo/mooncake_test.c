/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo over Mooncake: sound, broken, and without the library. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "command.h"

#define MOONCAKE "--engine mooncake --memory 700M --requests 5 --seed 7"

static json_int_t number(const json_t *run, const char *name)
{
    json_t *value = json_object_get(run, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void sound(void **state)
{
    (void)state;
    json_t *run = command_json(MOONCAKE, 0), *request;
    size_t i;
    assert_string_equal(json_string_value(json_object_get(run, "engine")), "mooncake");
    assert_string_equal(json_string_value(json_object_get(run, "transport")), "tcp");
    assert_true(json_is_true(json_object_get(run, "ok")));
    assert_int_equal(number(run, "wrong_bytes"), 0);
    assert_int_equal(number(run, "stray_bytes"), 0);
    assert_true(number(run, "checked_bytes") > 0);
    assert_int_equal(json_array_size(json_object_get(run, "requests")), 5);
    json_array_foreach(json_object_get(run, "requests"), i, request)
        assert_string_equal(json_string_value(json_object_get(request, "verdict")), "right");
    json_decref(run);
}

/* The check looks at the bytes, whatever moved them. */
static void broken(void **state)
{
    (void)state;
    json_t *run = command_json(MOONCAKE " --break lost-write", 1);
    assert_true(json_is_false(json_object_get(run, "ok")));
    assert_true(number(run, "wrong_bytes") > 0);
    json_decref(run);
}

static void expect_failure(const char *arguments, int status, const char *words)
{
    command_run command;
    command_start(&command, arguments);
    command_finish(&command);
    assert_int_equal(command.status, status);
    if (!strstr(command.stderr_text, words))
        fail_msg("\"%s\" is not in: %s", words, command.stderr_text);
    command_free(&command);
}

static void shared_memory(void **state)
{
    (void)state;
    expect_failure(MOONCAKE " --transport shm", 2, "--transport: expected tcp");
}

static void no_library(void **state)
{
    (void)state;
    assert_int_equal(setenv("KVFERRY_MOONCAKE_LIBRARY", "/nowhere/libtransfer_engine.so", 1), 0);
    expect_failure(MOONCAKE, 1, "/nowhere/libtransfer_engine.so");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound),
        cmocka_unit_test(broken),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(no_library), /* last: it changes the environment */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
