/* SPDX-License-Identifier: Apache-2.0 */
/* Options: one table per verb is both the parser and its help. */
#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

/* What getopt_long answers, beyond any letter: the common options, then index i of the table. */
enum { ANSWER_JSON = 256, ANSWER_HELP, ANSWER_FIRST };

/* --- help ---------------------------------------------------------------------------------- */

static void print_synopsis(const char *verb, const char *synopsis)
{
    const char *lead = "usage:";
    for (const char *line = synopsis; *line;) {
        size_t length = strcspn(line, "\n");
        printf("%s kvferry %s %.*s\n", lead, verb, (int)length, line);
        lead = "      ";
        line += length + (line[length] == '\n');
    }
}

/* Help texts break where the table has a newline. */
static void print_option(const char *left, const char *help)
{
    int width = 30;
    printf("  %-*s", width, left);
    if (strlen(left) >= (size_t)width)
        printf("\n  %*s", width, "");
    for (const char *line = help; *line;) {
        size_t length = strcspn(line, "\n");
        printf(" %.*s\n", (int)length, line);
        line += length;
        if (*line++ != '\n')
            break;
        printf("  %*s", width, "");
    }
}

static void print_help(const tool_usage *usage)
{
    print_synopsis(tool_verb(), usage->synopsis);
    printf("\n%s\n\n", usage->about);
    for (size_t i = 0; i < usage->option_count; i++) {
        const tool_option *option = &usage->options[i];
        if (!option->help)
            continue;
        char letter[] = {'-', option->letter, ',', ' ', 0};
        char *left = tool_text("%s--%s%s%s", option->letter ? letter : "", option->name,
                               option->argument ? " " : "", option->argument ? option->argument : "");
        print_option(left, option->help);
        free(left);
    }
    print_option("--json", "print one JSON value on stdout and nothing else there");
    print_option("-h, --help", "this text");
    if (usage->notes)
        printf("\n%s\n", usage->notes);
}

/* --- values -------------------------------------------------------------------------------- */

static int bad_value(const char *name, const char *expected, const char *found)
{
    char *what = tool_text("--%s", name);
    char *quoted = tool_text("'%s'", found);
    int status = tool_misuse(what, expected, quoted);
    free(quoted);
    free(what);
    return status;
}

/* Decimal digits, then at most one of k, M, G. */
static bool parse_number(const char *text, uint64_t *number)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno)
        return false;
    static const char letters[] = "kMG";
    const char *letter = *end ? strchr(letters, *end) : NULL;
    uint64_t factor = letter ? (uint64_t)1024 << (10 * (letter - letters)) : 1;
    if (end[letter ? 1 : 0] || (*end && !letter))
        return false;
    return !__builtin_mul_overflow(value, factor, number);
}

int tool_number_parse(const char *name, const char *text, uint64_t least, uint64_t most,
                      uint64_t *number)
{
    uint64_t value;
    if (parse_number(text, &value) && value >= least && value <= (most ? most : UINT64_MAX)) {
        *number = value;
        return TOOL_GO_ON;
    }
    char *expected = most ? tool_text("a number from %llu to %llu", (unsigned long long)least,
                                      (unsigned long long)most)
                          : tool_text("a number, at least %llu", (unsigned long long)least);
    int status = bad_value(name, expected, text);
    free(expected);
    return status;
}

static int take_choice(const tool_option *option, const char *text)
{
    for (const char *choice = option->argument; *choice;) {
        size_t length = strcspn(choice, "|");
        if (strlen(text) == length && strncmp(choice, text, length) == 0) {
            *(const char **)option->value = text;
            return TOOL_GO_ON;
        }
        choice += length + (choice[length] == '|');
    }
    char *expected = tool_text("one of %s", option->argument);
    int status = bad_value(option->name, expected, text);
    free(expected);
    return status;
}

static int take(const tool_option *option, const char *text)
{
    switch (option->take) {
    case TOOL_FLAG:
        *(bool *)option->value = true;
        return TOOL_GO_ON;
    case TOOL_STRING:
        *(const char **)option->value = text;
        return TOOL_GO_ON;
    case TOOL_STRINGS:
        tool_list_add(option->value, text);
        return TOOL_GO_ON;
    case TOOL_NUMBER:
        return tool_number_parse(option->name, text, option->least, option->most, option->value);
    case TOOL_CHOICE:
        return take_choice(option, text);
    }
    return tool_unexpected("option --%s is of no known kind", option->name);
}

/* --- parsing ------------------------------------------------------------------------------- */

static void fill_tables(const tool_usage *usage, struct option *rows, char *letters)
{
    *letters++ = ':'; /* getopt tells a missing value from an unknown option, and prints nothing */
    *letters++ = 'h';
    for (size_t i = 0; i < usage->option_count; i++) {
        const tool_option *option = &usage->options[i];
        bool value = option->take != TOOL_FLAG;
        rows[i] = (struct option){option->name, value ? required_argument : no_argument, NULL,
                                  ANSWER_FIRST + (int)i};
        if (option->letter)
            *letters++ = option->letter;
        if (option->letter && value)
            *letters++ = ':';
    }
    rows[usage->option_count] = (struct option){"json", no_argument, NULL, ANSWER_JSON};
    rows[usage->option_count + 1] = (struct option){"help", no_argument, NULL, ANSWER_HELP};
}

static const tool_option *find(const tool_usage *usage, int answer)
{
    if (answer >= ANSWER_FIRST)
        return &usage->options[answer - ANSWER_FIRST];
    for (size_t i = 0; i < usage->option_count; i++)
        if (usage->options[i].letter == answer)
            return &usage->options[i];
    return NULL;
}

/* What getopt could not take: an unknown or ambiguous option, or one with a value too many. */
static int unknown(const struct option *rows, const char *word)
{
    if (optopt > 0 && optopt < ANSWER_JSON) {
        char letter[] = {'-', (char)optopt, 0};
        return tool_misuse(letter, "an option of this verb", "an unknown one");
    }
    size_t length = strcspn(word + 2, "="), fits = 0;
    for (const struct option *row = rows; row->name; row++)
        fits += strncmp(row->name, word + 2, length) == 0;
    if (optopt)
        return tool_misuse(word, "an option without a value", "one with a value");
    return tool_misuse(word, "an option of this verb",
                       fits ? "the beginning of several" : "an unknown one");
}

static int parse(const tool_usage *usage, const struct option *rows, const char *letters, int argc,
                 char **argv)
{
    opterr = 0;
    optind = 1;
    for (;;) {
        int answer = getopt_long(argc, argv, letters, rows, NULL);
        if (answer < 0)
            return TOOL_GO_ON;
        if (answer == ANSWER_JSON)
            continue; /* main has seen it */
        if (answer == ANSWER_HELP || answer == 'h') {
            print_help(usage);
            return TOOL_FINE;
        }
        if (answer == ':')
            return tool_misuse(argv[optind - 1], "a value behind it", "none");
        if (answer == '?')
            return unknown(rows, argv[optind - 1]);
        int status = take(find(usage, answer), optarg);
        if (status != TOOL_GO_ON)
            return status;
    }
}

int tool_parse(const tool_usage *usage, int argc, char **argv, int *operand)
{
    struct option *rows = tool_alloc(usage->option_count + 3, sizeof(*rows));
    char *letters = tool_alloc(2 * usage->option_count + 3, 1);
    fill_tables(usage, rows, letters);
    int status = parse(usage, rows, letters, argc, argv);
    if (status == TOOL_GO_ON)
        *operand = optind;
    free(letters);
    free(rows);
    return status;
}
