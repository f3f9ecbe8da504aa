/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry status: what a running node is doing. */
#include <kvferry/node.h>

#include <stdlib.h>
#include <string.h>

#include "tool.h"

typedef struct arguments {
    const char *address, *key;
    uint64_t timeout;
} arguments;

static int parse(int argc, char **argv, arguments *given)
{
    const tool_option options[] = {
        {"key", 'k', TOOL_STRING, &given->key, "FILE", "a key pair that the node allows, or its own", 0, 0},
        {"timeout", 0, TOOL_NUMBER, &given->timeout, "SECONDS", "how long to wait (default 5)", 1, 86400},
    };
    const tool_usage usage = {
        .synopsis = "ADDRESS [options]",
        .about = "Asks the node at ADDRESS (\"tcp://HOST:PORT\", with \"/\" and its public key behind it where it\n"
                 "has one) for its peers, transfers, quarantine and counters.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand + 1 != argc)
        return tool_misuse("ADDRESS", "one address", operand < argc ? argv[operand + 1] : "none");
    given->address = argv[operand];
    status = tool_check_address(given->address);
    if (status != TOOL_GO_ON)
        return status;
    return tool_check_file("--key", "a file that can be read", given->key);
}

static int refuse(kvferry_status status, kvferry_report *report)
{
    tool_reasons reasons = {0};
    if (status == KVFERRY_NO_MEMORY)
        tool_no_memory();
    tool_reasons_take(&reasons, report, NULL);
    tool_reasons_name_options(&reasons);
    if (tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "no status", stderr);
    return tool_unexpected("%s", kvferry_status_describe(status));
}

/* --- for a person ---------------------------------------------------------------------------- */

static void put_value(const json_t *value)
{
    char *text = json_is_string(value) ? tool_text("%s", json_string_value(value))
                 : json_is_integer(value)
                     ? tool_text("%s", tool_number((uint64_t)json_integer_value(value)))
                     : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        tool_no_memory();
    tool_put(text, stdout);
    free(text);
}

static void put_key(const char *key, int depth)
{
    printf("%*s", 2 * depth, "");
    tool_put(key, stdout);
}

/* Objects as lines of `key value`, lists as one block an element; whatever a newer node adds is shown too. */
static void put_tree(const json_t *tree, int depth)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)tree, key, value) {
        put_key(key, depth);
        if ((json_is_object(value) || json_is_array(value)) && !json_object_size(value) && !json_array_size(value)) {
            printf("  none\n");
        } else if (json_is_object(value)) {
            printf("\n");
            put_tree(value, depth + 1);
        } else if (json_is_array(value) && json_is_object(json_array_get(value, 0))) {
            printf(" (%zu)\n", json_array_size(value));
            for (size_t i = 0; i < json_array_size(value); i++) {
                printf("%*s-\n", 2 * (depth + 1), "");
                put_tree(json_array_get(value, i), depth + 2);
            }
        } else {
            printf("  ");
            put_value(value);
            printf("\n");
        }
    }
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Who holds blocks in quarantine, and how that can be ended. */
static void put_hints(const json_t *tree)
{
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(tree, "quarantine"), i, item) {
        const char *state = json_string_value(json_object_get(item, "state"));
        if (state && strcmp(state, "dead") == 0)
            continue;
        uint64_t blocks = (uint64_t)json_integer_value(json_object_get(item, "blocks"));
        printf("\n%s %s held by ", tool_count(blocks, "block"), blocks == 1 ? "is" : "are");
        tool_put(text_of(item, "incarnation"), stdout);
        printf(" of ");
        tool_put(text_of(item, "engine_id"), stdout);
        printf(", at ");
        tool_put(text_of(item, "address"), stdout);
        printf(", until it confirms that it writes nothing. If it is surely dead:\n  kvferry declare-dead ");
        tool_put(text_of(tree, "address"), stdout);
        printf(" --incarnation ");
        tool_put(text_of(item, "incarnation"), stdout);
        printf("\n");
    }
}

int tool_status(int argc, char **argv)
{
    arguments given = {.timeout = 5};
    int result = parse(argc, argv, &given);
    if (result != TOOL_GO_ON)
        return result;
    char *text = NULL;
    size_t size = 0;
    kvferry_report *report = tool_report();
    kvferry_status status = kvferry_node_query(given.address, given.key, 1000 * given.timeout, &text, &size,
                                               report);
    result = status == KVFERRY_OK ? TOOL_FINE : refuse(status, report);
    kvferry_report_free(report);
    if (result != TOOL_FINE)
        return result;
    json_t *tree = json_loadb(text, size, 0, NULL);
    kvferry_free(text);
    if (!json_is_object(tree)) {
        json_decref(tree);
        return tool_unexpected("the node's answer is no JSON object");
    }
    if (tool_json()) {
        tool_print_json(tree);
        return TOOL_FINE;
    }
    put_tree(tree, 0);
    put_hints(tree);
    json_decref(tree);
    return TOOL_FINE;
}
