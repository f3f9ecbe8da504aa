/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons of nodes in the command's words: a node's options are fields of the library, which the command fills from
 * options of its own. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

typedef struct word {
    const char *field, *option;
} word;

/* In sentences. */
static const word words[] = {
    {"key_file", "--key"},
    {"allowed_keys", "--allow"},
    {"the option insecure", "--insecure"},
    {"a key file,", "--key FILE,"},
    {"connect_ms", "--timeout"},
    /* These the command leaves as they are. */
    {"silence_ms", "the time after which a node counts as lost"},
    {"max_peer_copies", "the most that a node has under way to one other"},
    {"net_devices", "the environment variable UCX_NET_DEVICES"},
};

/* As a place. */
static const word places[] = {
    {"key_file", "--key"},     {"allowed_keys", "--allow"}, {"transport", "--transport"},
    {"listen", "--listen"},    {"advertise", "--listen"},   {"address", "ADDRESS"},
    {"where", "the sender's address"},
};

/* `text` with each `from` replaced; gives it up. */
static char *replaced(char *text, const char *from, const char *to)
{
    char *at = text, *found;
    while ((found = strstr(at, from)) != NULL) {
        char *longer = tool_text("%.*s%s%s", (int)(found - text), text, to, found + strlen(from));
        at = longer + (found - text) + strlen(to);
        free(text);
        text = longer;
    }
    return text;
}

char *tool_name_options(const char *text)
{
    char *named = tool_text("%s", text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        named = replaced(named, words[i].field, words[i].option);
    return named;
}

static const char *member(const json_t *reason, const char *key)
{
    const char *text = json_string_value(json_object_get(reason, key));
    return text ? text : "";
}

/* Of "ADDRESS: field" too. NULL: it is no option, or a file's name. */
static char *named_place(const json_t *reason)
{
    const char *code = member(reason, "code"), *place = member(reason, "place");
    if (strcmp(code, "file_failed") == 0 || strcmp(code, "key_malformed") == 0)
        return NULL;
    const char *last = strrchr(place, ' ');
    const char *field = last ? last + 1 : place;
    bool own = strcmp(field, "listen") == 0 && strcmp(tool_verb(), "serve") != 0; /* where that is no option */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strcmp(places[i].field, field) == 0)
            return tool_text("%.*s%s", (int)(field - place), place, own ? "own address" : places[i].option);
    return NULL;
}

static void set(json_t *reason, const char *key, char *text)
{
    json_object_set_new(reason, key, tool_json_text(text));
    free(text);
}

/* The place, if it is no option, and what was found stay as they are: they may be names of files. */
static char *named_message(const json_t *reason, const char *place)
{
    const char *message = member(reason, "message"), *found = member(reason, "found"), *old = member(reason, "place");
    size_t size = strlen(message), tail = strlen(found);
    bool ends = tail && tail <= size && strcmp(message + size - tail, found) == 0;
    char *front = tool_text("%.*s", (int)(ends ? size - tail : size), message);
    const char *at = *old ? strstr(front, old) : NULL;
    char *named = tool_name_options(at ? at + strlen(old) : front);
    char *whole = tool_text("%.*s%s%s%s", at ? (int)(at - front) : 0, front, !at ? "" : place ? place : old, named,
                            ends ? found : "");
    free(named);
    free(front);
    return whole;
}

void tool_reasons_name_options(tool_reasons *reasons)
{
    size_t i;
    json_t *reason;
    json_array_foreach(reasons->list, i, reason)
    {
        char *place = named_place(reason);
        set(reason, "message", named_message(reason, place));
        set(reason, "expected", tool_name_options(member(reason, "expected")));
        if (place)
            set(reason, "place", place);
    }
}
