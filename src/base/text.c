/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

void base_text_append_bytes(base_text *text, const void *data, size_t size)
{
    if (text->failed)
        return;
    if (size > SIZE_MAX - text->size - 1 ||
        !base_grow((void **)&text->data, &text->capacity, text->size + size + 1, 1)) {
        text->failed = true;
        return;
    }
    if (size)
        memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = '\0';
}

void base_text_append(base_text *text, const char *format, ...)
{
    char small[512];
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(small, sizeof(small), format, arguments);
    va_end(arguments);
    if (length < 0) {
        text->failed = true;
    } else if ((size_t)length < sizeof(small)) {
        base_text_append_bytes(text, small, (size_t)length);
    } else if (!text->failed) {
        size_t needed = text->size + (size_t)length + 1;
        if (base_grow((void **)&text->data, &text->capacity, needed, 1)) {
            vsnprintf(text->data + text->size, (size_t)length + 1, format, again);
            text->size += (size_t)length;
        } else {
            text->failed = true;
        }
    }
    va_end(again);
}

size_t base_text_character(const char *text, size_t size)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char head = (unsigned char)*text;
    size_t bytes = head < 0x80 ? 1 : head < 0xc0 ? 0 : head < 0xe0 ? 2 : head < 0xf0 ? 3 : head < 0xf8 ? 4 : 0;
    if (!bytes || bytes > size)
        return 0;
    uint32_t character = bytes == 1 ? head : head & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        character = character << 6 | (text[i] & 0x3f);
    }
    bool surrogate = character >= 0xd800 && character <= 0xdfff;
    return character && character >= least[bytes] && character <= 0x10ffff && !surrogate ? bytes : 0;
}

/* Eight characters of ASCII without a zero byte, as most text is. */
static bool is_plain(const char *text)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = UINT64_C(0x8080808080808080);
    uint64_t word;
    memcpy(&word, text, sizeof(word));
    return !((word | ((word - ones) & ~word)) & tops);
}

bool base_text_is_utf8(const char *text, size_t size)
{
    size_t bytes;
    for (size_t i = 0; i < size; i += bytes) {
        if (size - i >= 8 && is_plain(text + i)) {
            bytes = 8;
            continue;
        }
        bytes = base_text_character(text + i, size - i);
        if (!bytes)
            return false;
    }
    return true;
}

const char *base_format(const char *format, ...)
{
    static _Thread_local char buffers[8][256];
    static _Thread_local unsigned next;
    char *buffer = buffers[next++ % 8];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, sizeof(buffers[0]), format, arguments);
    va_end(arguments);
    return buffer;
}
