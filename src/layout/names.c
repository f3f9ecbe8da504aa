/* SPDX-License-Identifier: Apache-2.0 */
/* Sorted tables of names. Looking up costs one hash and a few integer comparisons; names that are made
 * to collide cost string comparisons, but never more than their logarithm. */
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a over both names, with a byte between them that is in no UTF-8 text. */
static uint64_t hash_pair(const char *first, const char *second)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = first; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    hash = (hash ^ 0xff) * 0x100000001b3u;
    for (const char *c = second; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}

static int compare_pairs(const layout_name *a, const layout_name *b)
{
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    int order = strcmp(a->first, b->first);
    return order ? order : strcmp(a->second, b->second);
}

static int compare_names(const void *a, const void *b)
{
    const layout_name *left = a, *right = b;
    int order = compare_pairs(left, right);
    return order ? order : (left->value > right->value) - (left->value < right->value);
}

void layout_names_add(layout_names *names, const char *first, const char *second, uint32_t value)
{
    names->items[names->count++] =
        (layout_name){hash_pair(first, second), first, second, value};
}

void layout_names_sort(layout_names *names)
{
    if (names->count)
        qsort(names->items, names->count, sizeof(layout_name), compare_names);
}

bool layout_name_equal(const layout_name *a, const layout_name *b)
{
    return compare_pairs(a, b) == 0;
}

bool layout_names_find(const layout_names *names, const char *first, const char *second,
                       uint32_t *value)
{
    const layout_name key = {hash_pair(first, second), first, second, 0};
    size_t low = 0, high = names->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_pairs(&names->items[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == names->count || !layout_name_equal(&names->items[low], &key))
        return false;
    *value = names->items[low].value;
    return true;
}
