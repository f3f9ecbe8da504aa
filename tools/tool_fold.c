/* SPDX-License-Identifier: Apache-2.0 */
/* Many names in few words: "model.layers.{3,7..39}.self_attn.attn". */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

#define NUMBERS_LIMIT 8 /* more numbers in a name stay text */

typedef struct name {
    char *pattern; /* the name with each number replaced by '\001' */
    uint32_t numbers[NUMBERS_LIMIT];
    size_t count;
} name;

static bool digit(char c) { return c >= '0' && c <= '9'; }

static name parse_name(const char *text)
{
    name parsed = {.pattern = tool_alloc(strlen(text) + 1, 1)};
    char *to = parsed.pattern;
    while (*text) {
        size_t length = 0;
        while (digit(text[length]))
            length++;
        bool number = length && length <= 9 && !(*text == '0' && length > 1) &&
                      parsed.count < NUMBERS_LIMIT;
        if (number) {
            parsed.numbers[parsed.count++] = (uint32_t)strtoul(text, NULL, 10);
            *to++ = '\001';
        } else {
            memcpy(to, text, length ? length : 1);
            to += length ? length : 1;
        }
        text += length ? length : 1;
    }
    return parsed;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The distinct numbers at a position, sorted. Returns how many. */
static size_t distinct(const name *names, const size_t *members, size_t count, size_t position,
                       uint32_t *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = names[members[i]].numbers[position];
    qsort(values, count, sizeof(*values), compare);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (!kept || values[kept - 1] != values[i])
            values[kept++] = values[i];
    return kept;
}

static bool even_steps(const uint32_t *values, size_t count)
{
    for (size_t i = 2; i < count; i++)
        if (values[i] - values[i - 1] != values[1] - values[0])
            return false;
    return count > 3 && values[1] - values[0] > 1;
}

/* "0..2,4..6,9"; a run of two is two numbers. */
static size_t print_runs(FILE *out, const uint32_t *values, size_t count)
{
    size_t runs = 0;
    for (size_t i = 0; i < count; runs++) {
        size_t end = i;
        while (end + 1 < count && values[end + 1] == values[end] + 1)
            end++;
        end = end > i + 1 ? end : i;
        if (out)
            fprintf(out, end > i ? "%s%u..%u" : "%s%u", i ? "," : "", values[i], values[end]);
        i = end + 1;
    }
    return runs;
}

/* The numbers between the first and the last that are not there. Returns how many. */
static size_t missing(const uint32_t *values, size_t count, uint32_t *gaps)
{
    size_t found = 0;
    for (size_t i = 1; i < count; i++)
        for (uint32_t v = values[i - 1] + 1; v < values[i] && found < count; v++)
            gaps[found++] = v;
    return found;
}

/* "3,7..39" for equal steps, "0..38 but 3,7..35" where that is shorter, else runs. */
static void print_set(FILE *out, const uint32_t *values, size_t count)
{
    if (even_steps(values, count)) {
        fprintf(out, "%u,%u..%u", values[0], values[1], values[count - 1]);
        return;
    }
    uint32_t *gaps = tool_alloc(count, sizeof(*gaps));
    size_t gap_count = missing(values, count, gaps);
    if (print_runs(NULL, values, count) > 3 && even_steps(gaps, gap_count))
        fprintf(out, "%u..%u but %u,%u..%u", values[0], values[count - 1], gaps[0], gaps[1],
                gaps[gap_count - 1]);
    else
        print_runs(out, values, count);
    free(gaps);
}

static void print_class(FILE *out, const name *names, const size_t *members, size_t count);

/* No full grid of numbers: one part for each number at the last place where they differ. */
static void print_parts(FILE *out, const name *names, const size_t *members, size_t count,
                        size_t position, const uint32_t *values, size_t value_count)
{
    size_t *part = tool_alloc(count, sizeof(*part));
    for (size_t v = 0; v < value_count; v++) {
        size_t size = 0;
        for (size_t i = 0; i < count; i++)
            if (names[members[i]].numbers[position] == values[v])
                part[size++] = members[i];
        fputs(v ? ", " : "", out);
        print_class(out, names, part, size);
    }
    free(part);
}

/* Names of one pattern, all different. */
static void print_class(FILE *out, const name *names, const size_t *members, size_t count)
{
    const name *first = &names[members[0]];
    uint32_t *values[NUMBERS_LIMIT];
    size_t counts[NUMBERS_LIMIT], product = 1, last = 0;
    for (size_t p = 0; p < first->count; p++) {
        values[p] = tool_alloc(count, sizeof(**values));
        counts[p] = distinct(names, members, count, p, values[p]);
        product = product > count ? product : product * counts[p];
        last = counts[p] > 1 ? p : last;
    }
    if (product != count) {
        print_parts(out, names, members, count, last, values[last], counts[last]);
    } else {
        size_t p = 0;
        for (const char *c = first->pattern; *c; c++) {
            if (*c != '\001') {
                fputc(*c, out);
                continue;
            }
            fputs(counts[p] > 1 ? "{" : "", out);
            print_set(out, values[p], counts[p]);
            fputs(counts[p] > 1 ? "}" : "", out);
            p++;
        }
    }
    for (size_t p = 0; p < first->count; p++)
        free(values[p]);
}

static bool equal(const name *a, const name *b)
{
    return strcmp(a->pattern, b->pattern) == 0 &&
           memcmp(a->numbers, b->numbers, sizeof(a->numbers)) == 0;
}

static void print_names(FILE *out, const name *names, size_t count)
{
    size_t *members = tool_alloc(count, sizeof(*members));
    bool *done = tool_alloc(count, sizeof(*done));
    for (size_t i = 0; i < count; i++) {
        size_t size = 0;
        for (size_t j = i; j < count && !done[i]; j++) {
            if (strcmp(names[j].pattern, names[i].pattern) != 0)
                continue;
            bool known = false;
            for (size_t k = 0; k < size && !known; k++)
                known = equal(&names[members[k]], &names[j]);
            if (!known)
                members[size++] = j;
        }
        for (size_t j = i; j < count && size; j++)
            done[j] = done[j] || strcmp(names[j].pattern, names[i].pattern) == 0;
        fputs(i && size ? ", " : "", out);
        if (size)
            print_class(out, names, members, size);
    }
    free(done);
    free(members);
}

char *tool_fold(const char *const *names, size_t count)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        tool_no_memory();
    name *parsed = tool_alloc(count, sizeof(*parsed));
    for (size_t i = 0; i < count; i++)
        parsed[i] = parse_name(names[i]);
    print_names(out, parsed, count);
    for (size_t i = 0; i < count; i++)
        free(parsed[i].pattern);
    free(parsed);
    if (fclose(out) != 0 || !text)
        tool_no_memory();
    return text;
}
