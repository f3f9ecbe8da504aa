/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry declare-dead: the operator's word to running nodes that a worker is dead. */
#include <kvferry/node.h>

#include <stdlib.h>
#include <string.h>

#include "tool.h"

typedef struct word {
    const char *address, *incarnation;
    kvferry_status status; /* OK: it was taken */
    kvferry_declared declared;
    kvferry_report *report;
} word;

typedef struct arguments {
    tool_list addresses, incarnations;
    const char *key;
    uint64_t timeout;
} arguments;

static int parse(int argc, char **argv, arguments *given)
{
    const tool_option options[] = {
        {"incarnation", 'i', TOOL_STRINGS, &given->incarnations, "NUMBER",
         "the worker that is dead, as 'kvferry status' and logs name it; may be repeated", 0, 0},
        {"key", 'k', TOOL_STRING, &given->key, "FILE", "the nodes' own key pair", 0, 0},
        {"timeout", 0, TOOL_NUMBER, &given->timeout, "SECONDS", "how long to wait for each answer (default 5)", 1, 86400},
    };
    const tool_usage usage = {
        .synopsis = "ADDRESS... --incarnation NUMBER... [options]",
        .about = "Tells the nodes at each ADDRESS that a worker is dead and writes nothing any more, so that they release\n"
                 "the blocks that are in quarantine since only its word could release them. For a worker whose host has\n"
                 "vanished; all else a node finds out by itself. A false word lets late writes reach blocks that have\n"
                 "new owners: be sure that the process, or its host, is gone.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .notes = "A node takes the word of who has its own key pair; without keys, of processes on its own host.",
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand == argc)
        return tool_misuse("ADDRESS", "the address of a node", "none");
    if (!given->incarnations.count)
        return tool_misuse("--incarnation", "a worker that is dead", "none");
    for (size_t i = 0; i < given->incarnations.count; i++)
        if (strlen(given->incarnations.items[i]) != 16 || strspn(given->incarnations.items[i], "0123456789abcdef") != 16)
            return tool_misuse("--incarnation", "16 lower-case hexadecimal digits", given->incarnations.items[i]);
    for (int i = operand; i < argc && status == TOOL_GO_ON; i++) {
        status = tool_check_address(argv[i]); /* of all, before any is told */
        tool_list_add(&given->addresses, argv[i]);
    }
    if (status != TOOL_GO_ON)
        return status;
    return tool_check_file("--key", "a file that can be read", given->key);
}

static void say(word *w, const arguments *given)
{
    w->report = tool_report();
    w->status = kvferry_node_declare_dead_at(w->address, given->key, w->incarnation, 1000 * given->timeout, &w->declared,
                                             w->report);
    if (w->status == KVFERRY_NO_MEMORY)
        tool_no_memory();
}

/* Whether any of the nodes knew the worker: then that others do not is no failure. */
static bool is_known(const word *words, size_t count, const char *incarnation)
{
    for (size_t i = 0; i < count; i++)
        if (words[i].status == KVFERRY_OK && strcmp(words[i].incarnation, incarnation) == 0)
            return true;
    return false;
}

static bool is_failure(const word *w, const word *words, size_t count)
{
    return w->status != KVFERRY_OK && !(w->status == KVFERRY_NOT_FOUND && is_known(words, count, w->incarnation));
}

static void take_reasons(tool_reasons *reasons, word *w)
{
    if (!kvferry_report_count(w->report)) {
        const kvferry_reason reason = {.code = "unexpected", .worker = "", .layer = "", .stream = "", .axis = "",
                                       .place = w->address, .expected = "", .found = "",
                                       .message = kvferry_status_describe(w->status)};
        tool_reasons_add(reasons, &reason);
    }
    const kvferry_reason *first = kvferry_report_get(w->report, 0);
    bool placed = first && strcmp(first->place, w->address) == 0;
    tool_reasons_take(reasons, w->report, placed ? NULL : w->address);
}

static json_t *describe(const word *w)
{
    json_t *row = json_pack("{s:o, s:o, s:b}", "address", tool_json_text(w->address), "incarnation",
                            tool_json_text(w->incarnation), "known", w->status == KVFERRY_OK);
    if (w->status == KVFERRY_OK) {
        json_object_set_new(row, "transfers", json_integer((json_int_t)w->declared.transfers));
        json_object_set_new(row, "blocks", json_integer((json_int_t)w->declared.blocks));
        json_object_set_new(row, "waiting", json_integer((json_int_t)w->declared.waiting));
    }
    return row;
}

static void print(const word *w)
{
    tool_put(w->address, stdout);
    printf(": ");
    tool_put(w->incarnation, stdout);
    if (w->status == KVFERRY_OK)
        printf(" is dead: %s of %s %s released; %s %s for others too\n", tool_count(w->declared.blocks, "block"),
               tool_count(w->declared.transfers, "transfer"), w->declared.blocks == 1 ? "is" : "are",
               tool_count(w->declared.waiting, "transfer"), w->declared.waiting == 1 ? "waits" : "wait");
    else
        printf(" is not known there\n");
}

static int tell(word *words, size_t count)
{
    json_t *rows = json_array();
    tool_reasons reasons = {0};
    for (size_t i = 0; i < count; i++) {
        if (is_failure(&words[i], words, count)) {
            take_reasons(&reasons, &words[i]);
            continue;
        }
        json_array_append_new(rows, describe(&words[i]));
        if (!tool_json())
            print(&words[i]);
    }
    tool_reasons_name_options(&reasons);
    if (tool_reasons_count(&reasons)) {
        bool none = json_array_size(rows) == 0;
        return tool_refuse_with(&reasons, none ? "no node has taken it" : "not every node has taken it", stderr, "declared",
                                rows);
    }
    if (tool_json())
        tool_print_json(json_pack("{s:b, s:o}", "ok", 1, "declared", rows));
    else
        json_decref(rows);
    return TOOL_FINE;
}

int tool_declare_dead(int argc, char **argv)
{
    arguments given = {.timeout = 5};
    int result = parse(argc, argv, &given);
    if (result == TOOL_GO_ON) {
        size_t count = given.addresses.count * given.incarnations.count;
        word *words = tool_alloc(count, sizeof *words);
        for (size_t i = 0; i < count; i++) {
            words[i].address = given.addresses.items[i / given.incarnations.count];
            words[i].incarnation = given.incarnations.items[i % given.incarnations.count];
            say(&words[i], &given);
        }
        result = tell(words, count);
        for (size_t i = 0; i < count; i++)
            kvferry_report_free(words[i].report);
        free(words);
    }
    tool_list_free(&given.addresses);
    tool_list_free(&given.incarnations);
    return result;
}
