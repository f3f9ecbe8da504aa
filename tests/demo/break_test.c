/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry demo --break: each fault is found and named, and one that cannot show is refused. */
#include "test.h"

#include <string.h>

#include "command.h"

#define HYBRID "--memory 700M --requests 3 "

static const char *text(const json_t *object, const char *name)
{
    const char *value = json_string_value(json_object_get(object, name));
    assert_non_null(value);
    return value;
}

/* Whether a finding is of this kind ("": any), names its layer, and its stream's name starts so. */
static bool matches(const json_t *finding, const char *kind, const char *stream)
{
    return (!*kind || strcmp(text(finding, "kind"), kind) == 0) && *text(finding, "layer") &&
           *text(finding, "stream") &&
           strncmp(text(finding, "stream"), stream, strlen(stream)) == 0;
}

/* Runs it broken; it must name worker, layer and stream of a fault of `kind` in a stream like `stream`. */
static json_t *run_broken(const char *arguments, const char *kind, const char *stream)
{
    json_t *run = command_json(arguments, 1);
    assert_true(json_is_false(json_object_get(run, "ok")));
    assert_null(json_object_get(run, "failure"));
    size_t i, found = 0;
    json_t *finding;
    json_array_foreach(json_object_get(run, "findings"), i, finding)
    {
        if (!matches(finding, kind, stream))
            continue;
        found++;
        assert_int_equal(strncmp(text(finding, "worker"), "decode ", 7), 0);
        assert_non_null(strstr(text(finding, "worker"), "tp"));
        assert_non_null(strstr(text(finding, "message"), text(finding, "layer")));
    }
    if (found == 0) {
        char *all = json_dumps(json_object_get(run, "findings"), JSON_INDENT(1));
        fail_msg("%s: no %s finding in a stream %s: %s", arguments, kind, stream, all);
    }
    return run;
}

static void conv_whole(void **state)
{
    (void)state;
    json_decref(run_broken(HYBRID "--break conv-whole", "wrong", "conv."));
}

static void padded_length(void **state)
{
    (void)state;
    json_decref(run_broken(HYBRID "--break padded-length", "", "")); /* whosever the next page is */
}

static void half_heads(void **state)
{
    (void)state;
    json_t *run = run_broken(HYBRID "--break half-heads", "wrong", "k");
    json_decref(run);
}

static void row_stride(void **state)
{
    (void)state;
    json_decref(run_broken(HYBRID "--break row-stride", "wrong", ""));
}

static void kernel_block(void **state)
{
    (void)state;
    json_decref(run_broken(HYBRID "--break kernel-block", "wrong", "k"));
}

/* Missing when the transfer was said to be done, and a stray write in a later round. */
static void late_write(void **state)
{
    (void)state;
    json_t *run = run_broken(HYBRID "--break late-write", "wrong", "");
    size_t i, missing = 0, late = 0;
    json_t *finding;
    json_array_foreach(json_object_get(run, "findings"), i, finding)
    {
        bool first = json_integer_value(json_object_get(finding, "round")) == 1;
        missing += first && matches(finding, "wrong", "");
        late += !first;
    }
    assert_true(missing > 0);
    assert_true(late > 0);
    json_decref(run);
}

static void lost_write(void **state)
{
    (void)state;
    json_t *run = run_broken(HYBRID "--transport tcp --break lost-write", "wrong", "");
    /* One copy of one request to one worker. */
    const char *worker = text(json_array_get(json_object_get(run, "findings"), 0), "worker");
    size_t i;
    json_t *finding;
    json_array_foreach(json_object_get(run, "findings"), i, finding)
    {
        assert_string_equal(text(finding, "worker"), worker);
        assert_string_equal(text(finding, "request"), "1");
    }
    json_decref(run);
}

/* Between other models and topologies too. */
static void other_models(void **state)
{
    (void)state;
    json_decref(run_broken("--model Llama-3.1-8B --prefill tp2 --decode tp2 --memory 100M --requests 2 "
                           "--break row-stride", "wrong", ""));
    json_decref(run_broken("--model DeepSeek-V4-Flash --prefill tp2 --decode tp2 --memory 700M "
                           "--requests 2 --break padded-length", "", ""));
}

static void refused(const char *arguments, const char *words)
{
    command_run command;
    command_start(&command, arguments);
    command_finish(&command);
    assert_int_equal(command.status, 2);
    if (!strstr(command.stderr_text, words))
        fail_msg("demo %s says: %s", arguments, command.stderr_text);
    command_free(&command);
}

/* What cannot show is refused before a process is started. */
static void senseless(void **state)
{
    (void)state;
    refused("--break conv-whole --model Llama-3.1-8B", "convolution states");
    refused("--break conv-whole --prefill tp4 --decode tp4", "another TP size");
    refused("--break half-heads --decode tp2", "replicated");
    refused("--break half-heads --model DeepSeek-V4-Flash", "replicated");
    refused("--break row-stride --model DeepSeek-V4-Flash", "closer together");
    refused("--break padded-length --model Llama-3.1-8B", "padded");
    refused("--break no-such-fault", "late-write");
    refused("--prefill 4", "--prefill");
    refused("--memory 1M", "--memory: expected at least 660M, half for each side (16 blocks a worker), found 1.00 MiB");
    refused("surplus", "surplus");
}

/* Each side's reasons, and of which side they are. */
static void neither_side_can_be_laid_out(void **state)
{
    (void)state;
    json_t *value = command_json("--prefill tp3 --decode tp5", 1);
    bool found[2] = {false, false};
    size_t i;
    json_t *reason;
    json_array_foreach(json_object_get(value, "reasons"), i, reason) {
        const char *place = json_string_value(json_object_get(reason, "place"));
        const char *given = json_string_value(json_object_get(reason, "found"));
        assert_string_equal(json_string_value(json_object_get(reason, "code")), "tp_unfit");
        found[0] |= strcmp(place, "prefill: tp_size") == 0 && strcmp(given, "3") == 0;
        found[1] |= strcmp(place, "decode: tp_size") == 0 && strcmp(given, "5") == 0;
    }
    assert_true(found[0] && found[1]);
    json_decref(value);
}

/* The least that is named is enough. */
static void least_memory(void **state)
{
    (void)state;
    command_run command;
    refused("--requests 1 --memory 659M", "at least 660M");
    command_start(&command, "--requests 1 --memory 660M");
    command_finish(&command);
    assert_int_equal(command.status, 0);
    command_free(&command);
}

/* The last line says it too. */
static void last_line(void **state)
{
    (void)state;
    command_run command;
    command_start(&command, HYBRID "--break lost-write");
    command_finish(&command);
    assert_int_equal(command.status, 1);
    const char *last = strstr(command.stdout_text, "\nkvferry demo: ");
    assert_non_null(last);
    assert_non_null(strstr(last, "WRONG"));
    assert_non_null(strstr(last, "decode tp"));
    assert_non_null(strstr(last, "layers."));
    assert_string_equal(strchr(last + 1, '\n'), "\n");
    command_free(&command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_whole),   cmocka_unit_test(padded_length),
        cmocka_unit_test(half_heads),   cmocka_unit_test(row_stride),
        cmocka_unit_test(kernel_block), cmocka_unit_test(late_write),
        cmocka_unit_test(lost_write),   cmocka_unit_test(other_models),
        cmocka_unit_test(senseless),
        cmocka_unit_test(neither_side_can_be_laid_out),
        cmocka_unit_test(least_memory),    cmocka_unit_test(last_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
