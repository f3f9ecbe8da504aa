/* SPDX-License-Identifier: Apache-2.0 */
/* The run: messages, memory, files, and what goes to stdout. */
#include "tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A document of a worker with a hundred thousand streams has about 60 MiB. */
#define FILE_LIMIT ((size_t)512 << 20)

#define NO_MEMORY "no_memory" /* a reason's code */

static struct {
    const char *verb;
    bool json;
    bool stdin_read;
} run = {.verb = ""};

void tool_set_verb(const char *verb) { run.verb = verb; }

const char *tool_verb(void) { return run.verb; }

bool tool_json(void) { return run.json; }

void tool_set_json(bool json) { run.json = json; }

/* --- messages ------------------------------------------------------------------------------ */

void tool_put(const char *text, FILE *file)
{
    for (; *text; text++)
        fputc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text, file);
}

void tool_log(const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        tool_no_memory();
    flockfile(stderr); /* threads of nodes log too: lines stay whole */
    fprintf(stderr, "kvferry%s%s: ", *run.verb ? " " : "", run.verb);
    tool_put(text, stderr);
    fputc('\n', stderr);
    funlockfile(stderr);
    free(text);
}

/* With --json a script finds the cause on stdout too, in the shape of a refusal. */
static void print_cause(const char *code, const char *place, const char *expected,
                        const char *found, const char *message)
{
    if (!run.json)
        return;
    const kvferry_reason reason = {code, "", "", "", "", place, expected, found, message};
    tool_print_json(json_pack("{s:b, s:[o]}", "ok", 0, "reasons", tool_reason_json(&reason, NULL)));
}

int tool_misuse(const char *what, const char *expected, const char *found)
{
    tool_fail("usage", what, expected, found);
    fprintf(stderr, "try 'kvferry%s%s --help'\n", *run.verb ? " " : "", run.verb);
    return TOOL_WRONG_USE;
}

int tool_fail(const char *code, const char *place, const char *expected, const char *found)
{
    char *message = tool_text("%s: expected %s, found %s", place, expected, found);
    tool_log("%s", message);
    print_cause(code, place, expected, found, message);
    free(message);
    return TOOL_FAILED;
}

int tool_unexpected(const char *format, ...)
{
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    tool_log("%s", message);
    print_cause("unexpected", "", "", "", message);
    return TOOL_UNEXPECTED;
}

/* --- memory -------------------------------------------------------------------------------- */

void tool_no_memory(void)
{
    /* Nothing that allocates: the JSON is written by hand. */
    fputs("kvferry: out of memory\n", stderr);
    if (run.json)
        fputs("{\"ok\": false, \"reasons\": [{\"code\": \"" NO_MEMORY "\", \"worker\": \"\", \"layer\": \"\", "
              "\"stream\": \"\", \"axis\": \"\", \"place\": \"\", \"expected\": \"\", \"found\": \"\", "
              "\"message\": \"out of memory\"}]}\n",
              stdout);
    exit(TOOL_UNEXPECTED);
}

void *tool_alloc(size_t count, size_t size)
{
    void *data = calloc(count ? count : 1, size);
    if (!data)
        tool_no_memory();
    return data;
}

void *tool_grow(void *data, size_t count, size_t size)
{
    void *grown = reallocarray(data, count ? count : 1, size);
    if (!grown)
        tool_no_memory();
    return grown;
}

char *tool_text(const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        tool_no_memory();
    return text;
}

void tool_list_add(tool_list *list, const char *item)
{
    list->items = tool_grow(list->items, list->count + 1, sizeof(*list->items));
    list->items[list->count++] = item;
}

void tool_list_free(tool_list *list)
{
    free(list->items);
    *list = (tool_list){0};
}

/* --- files --------------------------------------------------------------------------------- */

static int cannot_read(const char *path, const char *why)
{
    return tool_misuse(path, "a file that can be read", why);
}

int tool_check_file(const char *option, const char *expected, const char *path)
{
    struct stat about;
    if (!path)
        return TOOL_GO_ON;
    errno = 0;
    if (access(path, R_OK) == 0 && stat(path, &about) == 0) {
        if (!S_ISDIR(about.st_mode))
            return TOOL_GO_ON;
        errno = EISDIR;
    }
    char *found = tool_text("%s (%s)", path, strerror(errno));
    int status = tool_misuse(option, expected, found);
    free(found);
    return status;
}

/* Not by the file's size: pipes have none, and a file may grow meanwhile. */
static int read_stream(FILE *file, const char *path, char **data, size_t *size)
{
    char *text = NULL;
    size_t used = 0, capacity = 0, got;
    do {
        if (used + 1 >= capacity) {
            capacity = capacity ? capacity * 2 : 65536;
            text = tool_grow(text, capacity, 1);
        }
        errno = 0;
        got = fread(text + used, 1, capacity - used - 1, file);
        used += got;
    } while (got && used <= FILE_LIMIT);
    const char *why = NULL;
    if (ferror(file))
        why = strerror(errno ? errno : EIO);
    else if (used > FILE_LIMIT)
        why = "more than 512 MiB";
    if (why) {
        free(text);
        return cannot_read(path, why);
    }
    text[used] = 0;
    *data = text;
    *size = used;
    return TOOL_GO_ON;
}

int tool_read(const char *path, char **data, size_t *size)
{
    if (strcmp(path, "-") == 0) {
        if (run.stdin_read)
            return tool_misuse("-", "stdin to be named once", "it named twice");
        run.stdin_read = true;
        return read_stream(stdin, "-", data, size);
    }
    FILE *file = fopen(path, "rb");
    if (!file)
        return cannot_read(path, strerror(errno));
    int status = read_stream(file, path, data, size);
    fclose(file);
    return status;
}

/* --- stdout -------------------------------------------------------------------------------- */

json_t *tool_json_text(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char *clean = tool_text("%s", text);
    for (char *c = clean; *c; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    value = json_string(clean);
    free(clean);
    if (!value)
        tool_no_memory();
    return value;
}

void tool_print_json(json_t *value)
{
    if (!value)
        tool_no_memory();
    /* A failed write shows in ferror; what is left is memory. */
    if (json_dumpf(value, stdout, JSON_ENCODE_ANY) != 0 && !ferror(stdout))
        tool_no_memory();
    fputc('\n', stdout);
    json_decref(value);
}

int tool_close_output(int status)
{
    errno = 0;
    bool failed = ferror(stdout) != 0;
    int cause = 0;
    if (fclose(stdout) != 0) {
        failed = true;
        cause = errno;
    }
    /* A reader that has seen enough is no failure. */
    if (!failed || cause == EPIPE)
        return status;
    tool_log("stdout could not be written in full%s%s", cause ? ": " : "",
             cause ? strerror(cause) : "");
    return TOOL_UNEXPECTED;
}
