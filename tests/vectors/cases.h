/* SPDX-License-Identifier: Apache-2.0 */
/* Reading recorded cases: a file of the tests' data folder, options as the library takes them. */
#ifndef KVFERRY_TESTS_CASES_H
#define KVFERRY_TESTS_CASES_H

#include <jansson.h>
#include <kvferry/model.h>
#include <stdio.h>
#include <string.h>

#include "test.h"

#define CASES_FOLDER KVFERRY_SOURCE_DIR "/tests/vectors/"

static inline json_t *cases_load(const char *name)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, "%s%s", CASES_FOLDER, name);
    json_t *value = json_load_file(path, 0, &error);
    if (value == NULL)
        fail_msg("%s: %s", path, error.text);
    return value;
}

/* The whole text of a config, to be freed. */
static inline char *cases_config(const char *folder, const char *name, size_t *size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", KVFERRY_SOURCE_DIR, folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("cannot open %s", path);
    char *text = malloc(1 << 20);
    assert_non_null(text);
    *size = fread(text, 1, 1 << 20, file);
    fclose(file);
    return text;
}

static inline uint64_t cases_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("the recorded case has no number %s", key);
    return (uint64_t)json_integer_value(value);
}

static inline uint64_t cases_item(const json_t *array, size_t index)
{
    const json_t *value = json_array_get(array, index);
    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

/* Every option of a case must be one that is known here: none may be passed over. */
static inline kvferry_model_options cases_options(const json_t *given)
{
    kvferry_model_options options = {.size = sizeof options};
    const struct {
        const char *key;
        const char **text;
        uint32_t *small;
        uint64_t *large;
    } known[] = {{"tp_size", NULL, &options.tp_size, NULL},
                 {"pp_size", NULL, &options.pp_size, NULL},
                 {"pp_rank", NULL, &options.pp_rank, NULL},
                 {"platform", &options.platform, NULL, NULL},
                 {"backend", &options.backend, NULL, NULL},
                 {"kv_dtype", &options.kv_dtype, NULL, NULL},
                 {"state_dtype", &options.state_dtype, NULL, NULL},
                 {"indexer_dtype", &options.indexer_dtype, NULL, NULL},
                 {"conv_layout", &options.conv_layout, NULL, NULL},
                 {"memory_order", &options.memory_order, NULL, NULL},
                 {"mamba_mode", &options.mamba_mode, NULL, NULL},
                 {"kpool", &options.kpool, NULL, NULL},
                 {"block_size", NULL, NULL, &options.block_size},
                 {"max_model_len", NULL, NULL, &options.max_model_len},
                 {"mtp_layers", NULL, &options.mtp_layers, NULL},
                 {"speculative_tokens", NULL, &options.speculative_tokens, NULL}};
    size_t read = 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const json_t *value = json_object_get(given, known[i].key);
        if (value == NULL)
            continue;
        read++;
        if (known[i].text != NULL)
            *known[i].text = json_string_value(value);
        else if (known[i].small != NULL)
            *known[i].small = (uint32_t)json_integer_value(value);
        else
            *known[i].large = (uint64_t)json_integer_value(value);
    }
    assert_int_equal(read, json_object_size(given));
    return options;
}

/* Prints what a report holds, for tests that fail. */
static inline void cases_print(const kvferry_report *report)
{
    for (size_t i = 0; i < kvferry_report_count(report); i++)
        print_error("  %s: %s\n", kvferry_report_get(report, i)->code,
                    kvferry_report_get(report, i)->message);
}

#endif
