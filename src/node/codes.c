/* SPDX-License-Identifier: Apache-2.0 */
#include "node/codes.h"

#include <stdio.h>
#include <string.h>

void node_codes_count(node_codes *codes, const char *code, size_t column)
{
    size_t size = strspn(code, "abcdefghijklmnopqrstuvwxyz0123456789_"), at = 0;
    if (size == 0 || code[size] || size >= NODE_CODES_TEXT)
        code = "other";
    while (at < codes->used && strcmp(codes->of[at].code, code) != 0)
        at++;
    if (at == codes->used && at < NODE_CODES)
        codes->used++;
    if (!*codes->of[at].code)
        snprintf(codes->of[at].code, NODE_CODES_TEXT, "%s", at < NODE_CODES ? code : "more");
    codes->of[at].count[column]++;
}
