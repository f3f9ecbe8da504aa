/* SPDX-License-Identifier: Apache-2.0 */
/* From a tree of jansson's to values, with findings. */
#include "base/json.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* --- places and words ---------------------------------------------------------------------- */

static bool is_plain_key(const char *key)
{
    for (const char *c = key; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_-/", *c))
            return false;
    return *key != '\0';
}

void base_json_place(base_json node, base_text *place)
{
    if (!node.parent)
        return;
    base_json_place(*node.parent, place);
    if (!node.key)
        base_text_append(place, "[%zu]", node.index);
    else if (is_plain_key(node.key))
        base_text_append(place, "%s%s", place->size ? "." : "", node.key);
    else
        base_text_append(place, "[\"%s\"]", node.key);
}

const char *base_json_words(base_json node)
{
    switch (node.value ? json_typeof(node.value) : JSON_NULL) {
    case JSON_STRING:
        return base_format("\"%.200s\"", json_string_value(node.value));
    case JSON_INTEGER:
        return base_format("%" JSON_INTEGER_FORMAT, json_integer_value(node.value));
    case JSON_REAL: {
        double value = json_real_value(node.value);
        bool whole = value > -1e15 && value < 1e15 && value == (double)(long long)value;
        return base_format(whole ? "%.1f" : "%.17g", value);
    }
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return base_format("an array of %zu", json_array_size(node.value));
    default:
        return node.value ? "null" : "nothing";
    }
}

void base_json_finding(base_json node, const char *code, const char *expected, const char *found,
                       const char *message)
{
    base_json_document *document = node.document;
    document->findings++;
    if (!document->report)
        return;
    base_text place = {0};
    base_json_place(node, &place);
    base_where where = {.place = place.failed ? "" : place.data};
    base_report_add(document->report, code, &where, expected, found, "%s", message);
    free(place.data);
}

static base_json silence(base_json node)
{
    node.value = NULL;
    node.silent = true;
    return node;
}

/* --- going around -------------------------------------------------------------------------- */

base_json base_json_root(base_json_document *document)
{
    return (base_json){.document = document, .value = document->root};
}

base_json base_json_get(const base_json *object, const char *key)
{
    base_json node = {.document = object->document, .parent = object, .key = key,
                      .silent = object->silent};
    if (!object->value)
        return node;
    if (!json_is_object(object->value)) {
        base_json_object(*object);
        return silence(node);
    }
    node.value = json_object_get(object->value, key);
    if (json_is_null(node.value) && (node.document->flags & BASE_JSON_NULL_IS_ABSENT))
        node.value = NULL;
    return node;
}

base_json base_json_at(const base_json *array, size_t index)
{
    return (base_json){.document = array->document,
                       .parent = array,
                       .index = index,
                       .value = json_array_get(array->value, index),
                       .silent = array->silent};
}

size_t base_json_count(const base_json *array) { return json_array_size(array->value); }

bool base_json_next(const base_json *object, void **iterator, base_json *member)
{
    *iterator = *iterator ? json_object_iter_next(object->value, *iterator)
                          : json_object_iter(object->value);
    if (!*iterator)
        return false;
    *member = (base_json){.document = object->document,
                          .parent = object,
                          .key = json_object_iter_key(*iterator),
                          .value = json_object_iter_value(*iterator)};
    return true;
}

bool base_json_present(base_json node) { return node.value && !node.silent; }

/* Adds the finding that there is nothing. */
static void refuse_absence(base_json node, const char *expected)
{
    if (!node.silent)
        base_json_finding(node, "value_missing", expected, "nothing", "a value is missing");
}

static void refuse_type(base_json node, const char *expected)
{
    base_json_finding(node, "value_type", expected, base_json_words(node),
                      "a value has the wrong type");
}

base_json base_json_object_or(base_json node)
{
    if (node.silent || !node.value || json_is_object(node.value))
        return node;
    refuse_type(node, "an object");
    return silence(node);
}

base_json base_json_object(base_json node)
{
    if (node.value)
        return base_json_object_or(node);
    refuse_absence(node, "an object");
    return silence(node);
}

base_json base_json_array_or(base_json node, size_t maximum)
{
    if (node.silent || !node.value)
        return node;
    if (!json_is_array(node.value)) {
        refuse_type(node, "an array");
        return silence(node);
    }
    if (json_array_size(node.value) <= maximum)
        return node;
    base_json_finding(node, "list_length", base_format("at most %zu elements", maximum),
                      base_format("%zu", json_array_size(node.value)), "a list is too long");
    return silence(node);
}

base_json base_json_array(base_json node, size_t maximum)
{
    if (node.value)
        return base_json_array_or(node, maximum);
    refuse_absence(node, "an array");
    return silence(node);
}

/* --- values -------------------------------------------------------------------------------- */

static const char *describe_range(int64_t minimum, int64_t maximum)
{
    return base_format(maximum == INT64_MAX ? "an integer from %lld"
                                            : "an integer from %lld to %lld",
                       (long long)minimum, (long long)maximum);
}

/* An integer in [minimum, maximum]. A real beyond 64 bits (so a larger integer of msgpack is kept) is
 * out of range, not of another type. */
static bool read_integer(base_json node, int64_t minimum, int64_t maximum, int64_t *value)
{
    if (!node.value) {
        refuse_absence(node, describe_range(minimum, maximum));
        return false;
    }
    double real = json_is_real(node.value) ? json_real_value(node.value) : 0;
    bool beyond = real >= 0x1p63 || real < -0x1p63;
    if (!json_is_integer(node.value) && !beyond) {
        refuse_type(node, describe_range(minimum, maximum));
        return false;
    }
    int64_t number = json_integer_value(node.value);
    if (beyond || number < minimum || number > maximum) {
        base_json_finding(node, "value_range", describe_range(minimum, maximum),
                          base_json_words(node), "a number is out of range");
        return false;
    }
    *value = number;
    return true;
}

bool base_json_uint(base_json node, uint64_t minimum, uint64_t maximum, uint64_t *value)
{
    int64_t number;
    if (!read_integer(node, (int64_t)minimum, (int64_t)base_min(maximum, INT64_MAX), &number))
        return false;
    *value = (uint64_t)number;
    return true;
}

bool base_json_int(base_json node, int64_t minimum, int64_t maximum, int64_t *value)
{
    return read_integer(node, minimum, maximum, value);
}

bool base_json_real(base_json node, double *value)
{
    if (json_is_number(node.value)) {
        *value = json_number_value(node.value);
        return true;
    }
    if (node.value)
        refuse_type(node, "a number");
    else
        refuse_absence(node, "a number");
    return false;
}

bool base_json_bool(base_json node, bool *value)
{
    if (json_is_boolean(node.value)) {
        *value = json_is_true(node.value);
        return true;
    }
    if (node.value)
        refuse_type(node, "true or false");
    else
        refuse_absence(node, "true or false");
    return false;
}

bool base_json_string(base_json node, size_t maximum, const char **value)
{
    if (!json_is_string(node.value)) {
        if (node.value)
            refuse_type(node, "a string");
        else
            refuse_absence(node, "a string");
        return false;
    }
    if (json_string_length(node.value) > maximum) {
        base_json_finding(node, "value_range", base_format("at most %zu bytes", maximum),
                          base_format("%zu bytes", json_string_length(node.value)),
                          "a string is too long");
        return false;
    }
    if ((node.document->flags & BASE_JSON_CHECK_TEXT) &&
        !base_text_is_utf8(json_string_value(node.value), json_string_length(node.value))) {
        base_json_finding(node, "text_encoding", "UTF-8 text", "other bytes",
                          "a string is not UTF-8 text");
        return false;
    }
    *value = json_string_value(node.value);
    return true;
}

/* The names as `"a", "b"`, in a buffer of base_format. */
static const char *list_names(const char *const *names, size_t count)
{
    char list[200] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof(list); i++)
        used +=
            (size_t)snprintf(list + used, sizeof(list) - used, "%s\"%s\"", i ? ", " : "", names[i]);
    return base_format("%s%s", count > 1 ? "one of " : "", list);
}

bool base_json_choice(base_json node, const char *const *names, size_t count, size_t *value)
{
    if (!json_is_string(node.value)) {
        if (node.value)
            refuse_type(node, list_names(names, count));
        else
            refuse_absence(node, list_names(names, count));
        return false;
    }
    for (size_t i = 0; i < count; i++)
        if (!strcmp(json_string_value(node.value), names[i])) {
            *value = i;
            return true;
        }
    base_json_finding(node, "value_unknown", list_names(names, count), base_json_words(node),
                      "a value is not one of the known ones");
    return false;
}

/* Each _or: the fallback where there is nothing. */
#define OR(node, fallback, value, read)                                                            \
    if (!(node).value && !(node).silent) {                                                         \
        *(value) = (fallback);                                                                     \
        return true;                                                                               \
    }                                                                                              \
    return read

bool base_json_uint_or(base_json node, uint64_t minimum, uint64_t maximum, uint64_t fallback,
                       uint64_t *value)
{
    OR(node, fallback, value, base_json_uint(node, minimum, maximum, value));
}

bool base_json_int_or(base_json node, int64_t minimum, int64_t maximum, int64_t fallback,
                      int64_t *value)
{
    OR(node, fallback, value, base_json_int(node, minimum, maximum, value));
}

bool base_json_real_or(base_json node, double fallback, double *value)
{
    OR(node, fallback, value, base_json_real(node, value));
}

bool base_json_bool_or(base_json node, bool fallback, bool *value)
{
    OR(node, fallback, value, base_json_bool(node, value));
}

bool base_json_string_or(base_json node, size_t maximum, const char *fallback, const char **value)
{
    OR(node, fallback, value, base_json_string(node, maximum, value));
}

bool base_json_choice_or(base_json node, const char *const *names, size_t count, size_t fallback,
                         size_t *value)
{
    OR(node, fallback, value, base_json_choice(node, names, count, value));
}

/* --- writing ------------------------------------------------------------------------------- */

static int append_part(const char *part, size_t size, void *text)
{
    base_text_append_bytes(text, part, size);
    return ((base_text *)text)->failed ? -1 : 0;
}

void base_json_dump(const json_t *value, size_t flags, base_text *text)
{
    if (json_dump_callback(value, append_part, text, flags) != 0)
        text->failed = true;
}

char *base_json_text(json_t *value, size_t flags)
{
    base_text text = {.failed = !value};
    if (value)
        base_json_dump(value, flags, &text);
    json_decref(value);
    if (!text.failed)
        return text.data;
    free(text.data);
    return NULL;
}
