/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry: finds the verb, runs it, and closes the output. */
#include "tool.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

typedef struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} verb;

static const verb verbs[] = {
    {"layout", tool_layout, "print a worker's layout document"},
    {"explain", tool_explain, "who sends what to whom, and why; or every reason why not"},
    {"plan", tool_plan, "the copies of one request"},
    {"check", tool_check, "every difference that matters between documents"},
    {"serve", tool_serve, "a decode engine that waits for 'send' in another shell"},
    {"send", tool_send, "a prefill engine: moves requests to a 'serve', and has the bytes checked"},
    {"status", tool_status, "what a running node is doing"},
    {"declare-dead", tool_declare_dead, "the word that a worker is dead, to nodes that wait for its own"},
    {"keygen", tool_keygen, "a new key pair for a node"},
    {"demo", tool_demo, "real workers, real transfers, every byte checked"},
    {"bench", tool_bench, "speed, against the machine's own limits"},
};

static void help(void)
{
    printf("usage: kvferry <verb> [options]\n\n"
           "Carries the cache state of LLM requests from prefill workers to decode workers.\n\n");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        printf("  %-12s %s\n", verbs[i].name, verbs[i].about);
    printf("\n"
           "  --help     this text; 'kvferry <verb> --help' or 'kvferry help <verb>' for a verb\n"
           "  --version  the version\n\n"
           "Every verb takes --json: one JSON value on stdout and nothing else there.\n"
           "Exit status: 0 fine, 1 refused or differs or failed, 2 used wrongly, 3 unexpected.\n");
}

static int version(void)
{
    if (tool_json())
        tool_print_json(json_pack("{s:s}", "version", kvferry_version()));
    else
        printf("kvferry %s\n", kvferry_version());
    return TOOL_FINE;
}

static char *verb_names(void)
{
    char *names = tool_text("%s", verbs[0].name);
    for (size_t i = 1; i < sizeof verbs / sizeof *verbs; i++) {
        char *longer = tool_text("%s, %s", names, verbs[i].name);
        free(names);
        names = longer;
    }
    return names;
}

static int run(int argc, char **argv);

/* "help layout" is "layout --help". */
static int help_of(int argc, char **argv)
{
    char option[] = "--help", **words = tool_alloc((size_t)argc + 3, sizeof *words);
    for (int i = 0; i < argc; i++)
        words[i + 1] = argv[i];
    words[argc + 1] = option;
    int status = run(argc + 2, words);
    free(words);
    return status;
}

static int run(int argc, char **argv)
{
    int first = 1;
    while (first < argc && strcmp(argv[first], "--json") == 0) first++;
    const char *word = first < argc ? argv[first] : NULL;
    int about = first + 1;
    while (about < argc && strcmp(argv[about], "--json") == 0) about++;
    if (word && strcmp(word, "help") == 0 && about < argc && argv[about][0] != '-')
        return help_of(argc - about, argv + about);
    if (word && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0)) {
        help();
        return TOOL_FINE;
    }
    if (word && (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)) return version();
    for (size_t i = 0; word && i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(verbs[i].name, word) != 0) continue;
        tool_set_verb(word);
        return verbs[i].run(argc - first, argv + first);
    }
    char *names = verb_names();
    char *expected = tool_text("one of %s", names);
    int status = tool_misuse("verb", expected, word ? word : "none");
    free(expected);
    free(names);
    return status;
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, ""); /* tables measure text by it; numbers stay in the C locale */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0) tool_set_json(true);
    return tool_close_output(run(argc, argv));
}
