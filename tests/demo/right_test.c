/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo, sound: every kind of request, several models, topologies and transports. */
#include "test.h"

#include <string.h>

#include "command.h"

static uint64_t number(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static bool is_kind(const json_t *request, const char *kind)
{
    return strcmp(json_string_value(json_object_get(request, "kind")), kind) == 0;
}

/* What holds of any sound run of `count` requests. */
static json_t *run_right(const char *arguments, size_t count)
{
    json_t *run = command_json(arguments, 0);
    assert_true(json_is_true(json_object_get(run, "ok")));
    assert_int_equal(json_array_size(json_object_get(run, "findings")), 0);
    assert_int_equal(number(run, "wrong_bytes"), 0);
    assert_int_equal(number(run, "stray_bytes"), 0);
    assert_true(number(run, "checked_bytes") > 0);
    json_t *requests = json_object_get(run, "requests");
    assert_int_equal(json_array_size(requests), count);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        json_t *request = json_array_get(requests, i);
        assert_string_equal(json_string_value(json_object_get(request, "verdict")), "right");
        assert_int_equal(is_kind(request, "full hit"), number(request, "copies") == 0);
        assert_int_equal(is_kind(request, "full hit"), number(request, "bytes") == 0);
        if (is_kind(request, "prefix hit"))
            assert_true(number(request, "hit") > 0 &&
                        number(request, "hit") < number(request, "tokens"));
        bytes += number(request, "bytes");
    }
    assert_int_equal(bytes, number(run, "bytes"));
    return run;
}

static size_t count_kind(const json_t *run, const char *kind)
{
    size_t count = 0, i;
    json_t *request;
    json_array_foreach(json_object_get(run, "requests"), i, request)
        count += is_kind(request, kind);
    return count;
}

/* The default set-up, smaller: all kinds of requests. */
static void hybrid(void **state)
{
    (void)state;
    json_t *run = run_right("--memory 1000M --requests 10", 10);
    static const char *const kinds[] = {"cold",       "long",       "one block",
                                        "one token", "prefix hit", "full hit"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (count_kind(run, kinds[i]) == 0)
            fail_msg("no request of kind %s", kinds[i]);
    /* State is carried up to the token before the prompt's last one. */
    json_t *first = json_array_get(json_object_get(run, "requests"), 0);
    assert_int_equal(number(first, "prompt"), number(first, "tokens") + 1);
    json_decref(run);
}

static void hybrid_over_tcp(void **state)
{
    (void)state;
    json_decref(run_right("--memory 700M --requests 5 --transport tcp --seed 7", 5));
}

static void attention_only(void **state)
{
    (void)state;
    json_t *run = run_right("--model Llama-3.1-8B --memory 300M --requests 10 --transport tcp", 10);
    json_t *first = json_array_get(json_object_get(run, "requests"), 0);
    assert_int_equal(number(first, "prompt"), number(first, "tokens"));
    json_decref(run);
}

static void windows(void **state)
{
    (void)state;
    json_decref(run_right("--model DeepSeek-V4-Flash --prefill tp4 --decode tp4 --memory 1500M "
                          "--requests 5", 5));
}

static void rings(void **state)
{
    (void)state;
    json_decref(run_right("--model GLM-5.3-Flash --prefill tp2 --decode tp4 --memory 1800M "
                          "--requests 5", 5));
}

/* Replicated on every rank: the sending is spread over the holders. */
static void latents(void **state)
{
    (void)state;
    json_decref(run_right("--model DeepSeek-V3 --prefill tp4 --decode tp2 --memory 400M "
                          "--requests 4", 4));
}

/* The same seed is the same run, but for the times. */
static void repeats(void **state)
{
    (void)state;
    static const char arguments[] = "--model Llama-3.1-8B --prefill tp2 --decode tp1 --memory 100M "
                                    "--requests 3 --seed 99";
    json_t *runs[2];
    for (int i = 0; i < 2; i++) {
        runs[i] = run_right(arguments, 3);
        size_t index;
        json_t *request;
        json_array_foreach(json_object_get(runs[i], "requests"), index, request)
            json_object_del(request, "seconds");
        json_object_del(runs[i], "seconds");
    }
    assert_true(json_equal(runs[0], runs[1]));
    json_decref(runs[0]);
    json_decref(runs[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hybrid),  cmocka_unit_test(hybrid_over_tcp),
        cmocka_unit_test(windows), cmocka_unit_test(attention_only),
        cmocka_unit_test(rings),   cmocka_unit_test(latents),
        cmocka_unit_test(repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
