/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo over a library that is found while running: sound, broken, and without it.
 * demo_library_test ENGINE VARIABLE: the one that names the library. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

static const char *engine, *variable;

/* Good until the next call. */
static const char *arguments_with(const char *more)
{
    static char text[128];
    snprintf(text, sizeof(text), "--engine %s --memory 700M --requests 5 --seed 7%s", engine, more);
    return text;
}

static json_int_t number(const json_t *run, const char *name)
{
    json_t *value = json_object_get(run, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void sound(void **state)
{
    (void)state;
    json_t *run = command_json(arguments_with(""), 0), *request;
    size_t i;
    assert_string_equal(json_string_value(json_object_get(run, "engine")), engine);
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
    json_t *run = command_json(arguments_with(" --break lost-write"), 1);
    assert_true(json_is_false(json_object_get(run, "ok")));
    assert_true(number(run, "wrong_bytes") > 0);
    json_decref(run);
}

static void expect_failure(const char *more, int status, const char *words)
{
    command_run command;
    command_start(&command, arguments_with(more));
    command_finish(&command);
    assert_int_equal(command.status, status);
    if (!strstr(command.stderr_text, words))
        fail_msg("\"%s\" is not in: %s", words, command.stderr_text);
    command_free(&command);
}

static void shared_memory(void **state)
{
    (void)state;
    expect_failure(" --transport shm", 2, "--transport: expected tcp");
}

static void no_library(void **state)
{
    (void)state;
    assert_int_equal(setenv(variable, "/nowhere/lib.so", 1), 0);
    expect_failure("", 1, "/nowhere/lib.so");
}

int main(int argc, char **argv)
{
    assert_int_equal(argc, 3);
    engine = argv[1];
    variable = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound),
        cmocka_unit_test(broken),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(no_library), /* last: it changes the environment */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
