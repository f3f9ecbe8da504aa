/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes to a tree of jansson's, within limits. */
#include "base/json.h"

#include <string.h>

/* What is known of a text before it is parsed. */
typedef struct text_scan {
    const char *text;
    size_t size;
    size_t brace;   /* position of the root object's '{' */
    size_t longest; /* bytes of the longest token */
    size_t depth, values, nests;
} text_scan;

static void add_finding(base_json_document *document, const char *code, size_t line, size_t column,
                        const char *expected, const char *found, const char *message)
{
    base_where where = {.place = base_format("line %zu, column %zu", line, column)};
    base_report_add(document->report, code, &where, expected, found, "%s", message);
    document->findings++;
}

/* The line of a position and its column in bytes, both from 1. */
static void locate(const text_scan *scan, size_t position, size_t *line, size_t *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < position; i++) {
        *column = scan->text[i] == '\n' ? 1 : *column + 1;
        *line += scan->text[i] == '\n';
    }
}

static bool refuse_at(base_json_document *document, const text_scan *scan, size_t position,
                      const char *code, const char *expected, const char *found,
                      const char *message)
{
    size_t line, column;
    locate(scan, position, &line, &column);
    add_finding(document, code, line, column, expected, found, message);
    return false;
}

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

/* Finds the root object. */
static bool scan_root(base_json_document *document, text_scan *scan)
{
    if (scan->size > BASE_JSON_MAX_BYTES)
        return refuse_at(document, scan, 0, "document_size",
                         base_format("at most %zu bytes", BASE_JSON_MAX_BYTES),
                         base_format("%zu bytes", scan->size), "the document is too large");
    while (scan->brace < scan->size && is_space(scan->text[scan->brace]))
        scan->brace++;
    if (scan->brace == scan->size)
        return refuse_at(document, scan, scan->brace, "syntax", "'{'", "the end",
                         "the document is empty");
    if (scan->text[scan->brace] != '{')
        return refuse_at(document, scan, scan->brace, "syntax", "'{'",
                         base_format("byte 0x%02x", (unsigned char)scan->text[scan->brace]),
                         "the document is not a JSON object");
    return true;
}

/* Counts the structural byte at `position`, outside of strings; false if it is beyond a limit. */
static bool scan_structure(base_json_document *document, text_scan *scan, size_t position)
{
    char byte = scan->text[position];
    if (byte == '{' || byte == '[') {
        scan->depth++;
        scan->nests++;
    } else if ((byte == '}' || byte == ']') && scan->depth) {
        scan->depth--;
    } else if (byte == ',') {
        scan->values++;
    }
    if (scan->depth > BASE_JSON_MAX_DEPTH)
        return refuse_at(document, scan, position, "nesting_depth",
                         base_format("at most %d levels", BASE_JSON_MAX_DEPTH), "more",
                         "objects and arrays lie too deep inside one another");
    if (scan->values > BASE_JSON_MAX_VALUES || scan->nests > BASE_JSON_MAX_NESTS)
        return refuse_at(document, scan, position, "document_size",
                         base_format("at most %d values, %d of them objects and arrays",
                                     BASE_JSON_MAX_VALUES, BASE_JSON_MAX_NESTS),
                         "more", "the document has too many values");
    return true;
}

/* The end of the string that begins at `position`. */
static size_t scan_string(const text_scan *scan, size_t position)
{
    for (size_t i = position + 1; i < scan->size; i++) {
        if (scan->text[i] == '"')
            return i + 1;
        i += scan->text[i] == '\\';
    }
    return scan->size;
}

/* Walks once over the text, which need not be well formed: as far as the parser will get, this sees
 * the same strings and brackets. */
static bool scan_text(base_json_document *document, text_scan *scan)
{
    const char *zero = memchr(scan->text, '\0', scan->size);
    if (zero)
        return refuse_at(document, scan, (size_t)(zero - scan->text), "text_encoding", "UTF-8 text",
                         "a zero byte", "the document holds a zero byte");
    for (size_t i = scan->brace; i < scan->size;) {
        size_t begin = i;
        if (scan->text[i] == '"') {
            i = scan_string(scan, i);
        } else if (strchr(",:{}[]", scan->text[i]) || is_space(scan->text[i])) {
            if (!scan_structure(document, scan, i++))
                return false;
        } else {
            while (i < scan->size && !strchr("\",:{}[]", scan->text[i]) && !is_space(scan->text[i]))
                i++;
        }
        scan->longest = i - begin > scan->longest ? i - begin : scan->longest;
    }
    return true;
}

/*
 * jansson's lexer does not look whether its token buffer could grow: out of memory it loses
 * characters without a word. So the parser is first given a member whose name is longer than any
 * token of the document ("{" + padding + the rest): if that name arrives whole, the buffer has
 * grown for good.
 */
typedef struct text_source {
    const char *pieces[4];
    size_t sizes[4];
    size_t piece, offset;
} text_source;

static size_t read_source(void *buffer, size_t capacity, void *data)
{
    text_source *source = data;
    while (source->piece < 4 && source->offset == source->sizes[source->piece]) {
        source->piece++;
        source->offset = 0;
    }
    if (source->piece == 4)
        return 0;
    size_t count = (size_t)base_min(capacity, source->sizes[source->piece] - source->offset);
    memcpy(buffer, source->pieces[source->piece] + source->offset, count);
    source->offset += count;
    return count;
}

/* The end of the padding: a comma only before a member. */
static const char *padding_tail(const char *rest, size_t size)
{
    size_t i = 0;
    while (i < size && is_space(rest[i]))
        i++;
    return i < size && rest[i] == '}' ? "\":0\n" : "\":0,\n";
}

static json_t *load(const text_scan *scan, json_error_t *error)
{
    /* Never one less than a power of two: there the closing quote would be what is lost. */
    size_t length = 64;
    while (length <= scan->longest)
        length *= 2;
    error->text[0] = '\0';
    base_text padding = {0};
    base_text_append(&padding, "\"%0*d", (int)length, 0);
    if (padding.failed) {
        free(padding.data);
        return NULL;
    }
    const char *rest = scan->text + scan->brace + 1;
    size_t rest_size = scan->size - scan->brace - 1;
    const char *tail = padding_tail(rest, rest_size);
    text_source source = {.pieces = {scan->text, padding.data, tail, rest},
                          .sizes = {scan->brace + 1, padding.size, strlen(tail), rest_size}};
    json_t *root = json_load_callback(read_source, &source, JSON_REJECT_DUPLICATES, error);
    const char *name = root ? json_object_iter_key(json_object_iter(root)) : NULL;
    if (root && (!name || strlen(name) != length || json_object_del(root, name))) {
        json_decref(root);
        root = NULL;
        error->text[0] = '\0';
    }
    free(padding.data);
    return root;
}

static const char *error_code(const json_error_t *error)
{
    switch (json_error_code(error)) {
    case json_error_invalid_utf8:
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "text_encoding";
    case json_error_duplicate_key:
        return "key_duplicate";
    case json_error_numeric_overflow:
        return "value_range";
    default:
        return "syntax";
    }
}

/* At jansson's line and column, less the padding. */
static void add_error(base_json_document *document, const text_scan *scan,
                      const json_error_t *error)
{
    size_t line = error->line > 0 ? (size_t)error->line : 1;
    size_t column = error->column > 0 ? (size_t)error->column : 1;
    size_t brace_line, brace_column;
    locate(scan, scan->brace, &brace_line, &brace_column);
    if (line > brace_line && --line == brace_line)
        column += brace_column;
    add_finding(document, error_code(error), line, column, "", "", error->text);
}

kvferry_status base_json_parse(const char *text, size_t size, unsigned flags,
                               kvferry_report *report, base_json_document *document)
{
    *document = (base_json_document){.report = report, .flags = flags};
    text_scan scan = {.text = text, .size = size};
    if (!scan_root(document, &scan) || !scan_text(document, &scan))
        return KVFERRY_MALFORMED;
    /* Out of memory can look like a syntax error to jansson; a real one is the same once more. */
    json_error_t error, again;
    document->root = load(&scan, &error);
    if (!document->root)
        document->root = load(&scan, &again);
    if (document->root)
        return KVFERRY_OK;
    if (!error.text[0] || !again.text[0] || error.position != again.position)
        return KVFERRY_NO_MEMORY;
    add_error(document, &scan, &again);
    return KVFERRY_MALFORMED;
}

void base_json_end(base_json_document *document)
{
    json_decref(document->root);
    document->root = NULL;
}

kvferry_status base_json_verdict(const base_json_document *document)
{
    return document->findings ? KVFERRY_MALFORMED : KVFERRY_OK;
}
