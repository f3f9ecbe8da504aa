/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the parent and a worker: four bytes of length (little-endian), then JSON. */
#include "demo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEADER = 4 };
#define MESSAGE_LIMIT ((size_t)64 << 20)

static void header_write(unsigned char *header, size_t size)
{
    for (int i = 0; i < HEADER; i++)
        header[i] = (unsigned char)(size >> (8 * i) & 0xff);
}

static size_t header_read(const unsigned char *header)
{
    size_t size = 0;
    for (int i = 0; i < HEADER; i++)
        size |= (size_t)header[i] << (8 * i);
    return size;
}

/* The message as text, its length in *size; gives the message up. */
static char *message_text(json_t *message, size_t *size)
{
    char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
    if (!text)
        tool_no_memory();
    json_decref(message);
    *size = strlen(text);
    return text;
}

/* --- a worker's end -------------------------------------------------------------------------- */

static bool read_all(int fd, void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = read(fd, (char *)data + done, size - done);
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0) {
            errno = ECONNRESET;
            return false;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t put = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL);
        if (put > 0)
            done += (size_t)put;
        else if (put == 0 || errno != EINTR)
            return false;
    }
    return true;
}

json_t *demo_channel_read(int fd)
{
    unsigned char header[HEADER];
    if (!read_all(fd, header, HEADER))
        return NULL;
    size_t size = header_read(header);
    errno = EPROTO;
    if (size == 0 || size > MESSAGE_LIMIT)
        return NULL;
    char *text = tool_alloc(size, 1);
    json_t *message = NULL;
    if (read_all(fd, text, size)) {
        message = json_loadb(text, size, 0, NULL);
        errno = EPROTO;
    }
    int why = errno;
    free(text);
    errno = why;
    return message;
}

bool demo_channel_write(int fd, json_t *message)
{
    size_t size;
    char *text = message_text(message, &size);
    unsigned char header[HEADER];
    header_write(header, size);
    bool ok = write_all(fd, header, HEADER) && write_all(fd, text, size);
    free(text);
    return ok;
}

/* --- the parent's end ------------------------------------------------------------------------ */

void demo_buffer_free(demo_buffer *buffer)
{
    free(buffer->data);
    *buffer = (demo_buffer){0};
}

/* Room for `size` more bytes; what is done makes room first. */
static void buffer_reserve(demo_buffer *buffer, size_t size)
{
    if (buffer->done > 0) {
        memmove(buffer->data, buffer->data + buffer->done, buffer->size - buffer->done);
        buffer->size -= buffer->done;
        buffer->done = 0;
    }
    if (buffer->capacity - buffer->size < size) {
        buffer->capacity = buffer->size + size + buffer->capacity / 2;
        buffer->data = tool_grow(buffer->data, buffer->capacity, 1);
    }
}

void demo_outbox_add(demo_buffer *outbox, json_t *message)
{
    size_t size;
    char *text = message_text(message, &size);
    unsigned char header[HEADER];
    header_write(header, size);
    buffer_reserve(outbox, HEADER + size);
    memcpy(outbox->data + outbox->size, header, HEADER);
    memcpy(outbox->data + outbox->size + HEADER, text, size);
    outbox->size += HEADER + size;
    free(text);
}

bool demo_outbox_flush(demo_buffer *outbox, int fd)
{
    while (outbox->done < outbox->size) {
        ssize_t put = send(fd, outbox->data + outbox->done, outbox->size - outbox->done,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put > 0)
            outbox->done += (size_t)put;
        else if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        else if (put == 0 || errno != EINTR)
            return false;
    }
    return true;
}

bool demo_inbox_fill(demo_buffer *inbox, int fd)
{
    for (;;) {
        buffer_reserve(inbox, 1 << 16);
        ssize_t got = recv(fd, inbox->data + inbox->size, inbox->capacity - inbox->size,
                           MSG_DONTWAIT);
        if (got > 0)
            inbox->size += (size_t)got;
        else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        else if (got == 0 || errno != EINTR)
            return false;
    }
}

json_t *demo_inbox_next(demo_buffer *inbox, bool *malformed)
{
    *malformed = false;
    size_t left = inbox->size - inbox->done;
    if (left < HEADER)
        return NULL;
    const char *start = inbox->data + inbox->done;
    size_t size = header_read((const unsigned char *)start);
    *malformed = size == 0 || size > MESSAGE_LIMIT;
    if (*malformed || left - HEADER < size)
        return NULL;
    json_t *message = json_loadb(start + HEADER, size, 0, NULL);
    *malformed = !message;
    inbox->done += HEADER + size;
    return message;
}

const char *demo_text(const json_t *message, const char *name)
{
    const char *text = json_string_value(json_object_get(message, name));
    return text ? text : "";
}

uint64_t demo_number(const json_t *message, const char *name)
{
    json_int_t number = json_integer_value(json_object_get(message, name));
    return number > 0 ? (uint64_t)number : 0;
}

/* --- time ------------------------------------------------------------------------------------ */

uint64_t demo_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
