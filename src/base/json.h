/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading values out of a JSON document of anybody's making, with a finding for everything that is
 * not as it should be: what was expected, what was found, and where ("streams[3].axes[1].extent").
 *
 *     base_json_document document;
 *     kvferry_status status = base_json_parse(text, size, 0, report, &document);
 *     if (status != KVFERRY_OK)
 *         return status;
 *     base_json root = base_json_root(&document);
 *     base_json worker = base_json_object(base_json_get(&root, "worker"));
 *     uint64_t rank = 0, size = 0;
 *     base_json_uint(base_json_get(&worker, "tp_rank"), 0, UINT32_MAX, &rank);
 *     base_json_uint_or(base_json_get(&worker, "tp_size"), 1, UINT32_MAX, 1, &size);
 *     status = base_json_verdict(&document);
 *     base_json_end(&document);
 *
 * Read on after a finding, and ask for the verdict at the end: so all findings come at once. Keys
 * that nobody asks for are ignored. A value with a finding, and all that lies under it, is silent
 * from then on: it makes no second finding.
 */
#ifndef KVFERRY_BASE_JSON_H
#define KVFERRY_BASE_JSON_H

#include <jansson.h>

#include "base/base.h"

/* What a document may have at most. Beyond it, it is refused before memory is spent on it. */
#define BASE_JSON_MAX_BYTES ((size_t)64 << 20)
#define BASE_JSON_MAX_DEPTH 32       /* objects and arrays inside one another */
#define BASE_JSON_MAX_VALUES 4000000 /* members and elements in all */
#define BASE_JSON_MAX_NESTS 600000   /* objects and arrays in all */

/* Numbers are integers of 64 bits with a sign. */
#define BASE_JSON_MAX_NUMBER ((uint64_t)INT64_MAX)

/* Flags of base_json_parse. */
#define BASE_JSON_NULL_IS_ABSENT 1u /* `"key": null` is as good as no key, as in a config.json */
#define BASE_JSON_CHECK_TEXT 2u     /* strings may be no UTF-8: the tree was made by code */

typedef struct base_json_document {
    json_t *root;
    kvferry_report *report;
    size_t findings;
    unsigned flags;
} base_json_document;

/*
 * A value at its place. It refers to the value it is in, which must stay where it is for as long.
 * `value` is NULL where there is nothing.
 */
typedef struct base_json {
    base_json_document *document;
    const struct base_json *parent; /* NULL: the root */
    const char *key;                /* of a member; NULL: an element of an array */
    size_t index;                   /* of an element */
    json_t *value;
    bool silent; /* there is a finding about it or about what it is in */
} base_json;

/* --- documents ----------------------------------------------------------------------------- */

/*
 * Reads a JSON text whose root is an object. KVFERRY_OK: end it with base_json_end.
 * KVFERRY_MALFORMED, with a finding: syntax errors (line and column), invalid UTF-8 and NUL, keys
 * that come twice, integers outside 64 bits, more than the limits above. KVFERRY_NO_MEMORY.
 */
kvferry_status base_json_parse(const char *text, size_t size, unsigned flags,
                               kvferry_report *report, base_json_document *document);

void base_json_end(base_json_document *document);

/* KVFERRY_MALFORMED if there was any finding. */
kvferry_status base_json_verdict(const base_json_document *document);

/* --- going around -------------------------------------------------------------------------- */

base_json base_json_root(base_json_document *document);

/* The member `key`; its value is NULL if there is none. Of what is not there: nothing. Of what is
 * there and no object: a finding. */
base_json base_json_get(const base_json *object, const char *key);

/* The element at `index` of an array; base_json_count elements there are (0: of anything else). */
base_json base_json_at(const base_json *array, size_t index);
size_t base_json_count(const base_json *array);

/* Sets *member to the next member in document order, its name is member->key. *iterator is NULL at
 * first. false: no more. */
bool base_json_next(const base_json *object, void **iterator, base_json *member);

/* Whether there is a value and no finding about it. */
bool base_json_present(base_json node);

/* The same value if it is an object, or an array of at most `maximum` elements; otherwise, or if it is
 * not there, a finding and a silent value. With _or it may be absent: then so is the answer. */
base_json base_json_object(base_json node);
base_json base_json_object_or(base_json node);
base_json base_json_array(base_json node, size_t maximum);
base_json base_json_array_or(base_json node, size_t maximum);

/* --- values -------------------------------------------------------------------------------- */

/*
 * Each reads one value, sets *value and answers true; or adds a finding, leaves *value as it is and
 * answers false. With _or the value may be absent: then *value is the fallback. Integers written as
 * reals (3.0) are refused. Ranges are inclusive; `maximum` is at most BASE_JSON_MAX_NUMBER.
 * Strings belong to the document; `maximum` is in bytes.
 */
bool base_json_uint(base_json node, uint64_t minimum, uint64_t maximum, uint64_t *value);
bool base_json_uint_or(base_json node, uint64_t minimum, uint64_t maximum, uint64_t fallback,
                       uint64_t *value);
bool base_json_int(base_json node, int64_t minimum, int64_t maximum, int64_t *value);
bool base_json_int_or(base_json node, int64_t minimum, int64_t maximum, int64_t fallback,
                      int64_t *value);
bool base_json_real(base_json node, double *value); /* integers too */
bool base_json_real_or(base_json node, double fallback, double *value);
bool base_json_bool(base_json node, bool *value);
bool base_json_bool_or(base_json node, bool fallback, bool *value);
bool base_json_string(base_json node, size_t maximum, const char **value);
bool base_json_string_or(base_json node, size_t maximum, const char *fallback, const char **value);

/* One of `count` names; *value is its index. */
bool base_json_choice(base_json node, const char *const *names, size_t count, size_t *value);
bool base_json_choice_or(base_json node, const char *const *names, size_t count, size_t fallback,
                         size_t *value);

/* --- findings ------------------------------------------------------------------------------ */

/* Adds a finding at the value's place, for rules of the caller's own. */
void base_json_finding(base_json node, const char *code, const char *expected, const char *found,
                       const char *message);

/* Writes the value's place to `place`: "streams[3].layer"; "" for the root. */
void base_json_place(base_json node, base_text *place);

/* The value in a few words, for `found`: `"abc"`, `3.0`, `an object`. In a buffer of base_format. */
const char *base_json_words(base_json node);

/* --- writing ------------------------------------------------------------------------------- */

/*
 * Appends the value as JSON; `flags` are jansson's. Instead of json_dumps, which may lose a key without a word when
 * memory runs out: a text that has failed stays so.
 */
void base_json_dump(const json_t *value, size_t flags, base_text *text);

/* The same as a text of its own (free), of a value that is given up; NULL: memory ran out, or the value is NULL. */
char *base_json_text(json_t *value, size_t flags);

#endif
