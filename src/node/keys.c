/* SPDX-License-Identifier: Apache-2.0 */
#include "node/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include <kvferry/node.h>

#include "node/file.h"

/* What files of keys may have at most. */
enum { KEY_FILE_MAX = 4096, ALLOWED_FILE_MAX = 16 << 20 };

#define KEY_HEAD   "kvferry-key/1\npublic "
#define KEY_MIDDLE "\nsecret "
enum { KEY_FILE_SIZE = sizeof(KEY_HEAD KEY_MIDDLE "\n") - 1 + 2 * (NODE_KEY_TEXT - 1) };

/* --- writing ---------------------------------------------------------------------------------- */

static kvferry_status write_new(const char *path, mode_t mode, const char *text, size_t size,
                                kvferry_report *report)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    bool made = fd >= 0;
    bool good = made && write(fd, text, size) == (ssize_t)size && fsync(fd) == 0;
    int failure = errno;
    if (made && close(fd) != 0 && good) {
        good = false;
        failure = errno;
    }
    if (good)
        return KVFERRY_OK;
    if (made)
        unlink(path);
    base_report_add(report, "file_failed", &(base_where){.place = path}, "a new file",
                    strerror(failure), "a key could not be written");
    return KVFERRY_IO;
}

kvferry_status kvferry_keys_generate(const char *path, kvferry_report *report)
{
    if (!path || !*path)
        return KVFERRY_INVALID;
    base_text public_path = {0}, secret_text = {0};
    node_key_pair pair;
    char public_hex[NODE_KEY_TEXT], secret_hex[NODE_KEY_TEXT];
    kvferry_status status = sodium_init() < 0 ? KVFERRY_INTERNAL : KVFERRY_OK;
    if (status == KVFERRY_OK) {
        crypto_box_keypair(pair.public_key, pair.secret);
        node_key_format(pair.public_key, public_hex);
        node_key_format(pair.secret, secret_hex);
        base_text_append(&public_path, "%s.pub", path);
        base_text_append(&secret_text, KEY_HEAD "%s" KEY_MIDDLE "%s\n", public_hex, secret_hex);
        public_hex[NODE_KEY_TEXT - 1] = '\n'; /* a line of an allow-list */
        status = public_path.failed || secret_text.failed ? KVFERRY_NO_MEMORY : KVFERRY_OK;
    }
    if (status == KVFERRY_OK)
        status = write_new(path, 0600, secret_text.data, secret_text.size, report);
    if (status == KVFERRY_OK) {
        status = write_new(public_path.data, 0644, public_hex, sizeof(public_hex), report);
        if (status != KVFERRY_OK)
            unlink(path);
    }
    if (secret_text.data)
        sodium_memzero(secret_text.data, secret_text.size);
    sodium_memzero(&pair, sizeof(pair));
    sodium_memzero(secret_hex, sizeof(secret_hex));
    free(secret_text.data);
    free(public_path.data);
    return status;
}

/* --- the own pair ----------------------------------------------------------------------------- */

static bool parse_pair(const char *text, size_t size, node_key_pair *pair)
{
    const char *public_hex = text + sizeof(KEY_HEAD) - 1;
    const char *middle = public_hex + NODE_KEY_TEXT - 1;
    const char *secret_hex = middle + sizeof(KEY_MIDDLE) - 1;
    unsigned char derived[NODE_KEY_BYTES];
    return (size == KEY_FILE_SIZE ||
            size == KEY_FILE_SIZE - 1) && /* the last line's end may be lost */
           memcmp(text, KEY_HEAD, sizeof(KEY_HEAD) - 1) == 0 &&
           memcmp(middle, KEY_MIDDLE, sizeof(KEY_MIDDLE) - 1) == 0 &&
           node_key_parse(public_hex, NODE_KEY_TEXT - 1, pair->public_key) &&
           node_key_parse(secret_hex, NODE_KEY_TEXT - 1, pair->secret) &&
           crypto_scalarmult_base(derived, pair->secret) == 0 &&
           sodium_memcmp(derived, pair->public_key, NODE_KEY_BYTES) == 0;
}

kvferry_status node_key_pair_read(const char *path, node_key_pair *pair, bool *open_to_others,
                                  kvferry_report *report)
{
    char *text;
    size_t size;
    struct stat about;
    kvferry_status status = node_file_read(path, KEY_FILE_MAX, &text, &size, &about, report);
    if (status != KVFERRY_OK)
        return status;
    *open_to_others = (about.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    if (!parse_pair(text, size, pair)) {
        base_report_add(report, "key_malformed", &(base_where){.place = path},
                        "a key pair as `kvferry keygen` writes it",
                        base_format("%zu other bytes", size), "a key file could not be read");
        status = KVFERRY_MALFORMED;
    }
    sodium_memzero(text, size);
    free(text);
    return status;
}

/* --- the allow-list --------------------------------------------------------------------------- */

struct node_allowed {
    char *path;
    struct stat seen; /* of the file when it was last looked at */
    bool missing;     /* it was not there then */
    unsigned char (*keys)[NODE_KEY_BYTES];
    size_t count;
};

static int compare_keys(const void *a, const void *b)
{
    return memcmp(a, b, NODE_KEY_BYTES);
}

/* A key at the line's beginning, then nothing or a blank and whatever a person wants to note. */
static bool parse_line(const char *line, size_t size, unsigned char key[NODE_KEY_BYTES])
{
    const size_t digits = NODE_KEY_TEXT - 1;
    return size >= digits && node_key_parse(line, digits, key) &&
           (size == digits || strchr(" \t\r#", line[digits]));
}

static kvferry_status parse_keys(node_allowed *allowed, const char *text, size_t size,
                                 kvferry_report *report)
{
    size_t capacity = size / (NODE_KEY_TEXT - 1) + 1, count = 0, number = 0;
    unsigned char(*keys)[NODE_KEY_BYTES] = base_alloc(capacity, NODE_KEY_BYTES);
    kvferry_status status = keys ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    for (const char *line = text, *end = text + size; line < end && status == KVFERRY_OK;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((stop ? stop : end) - line);
        number++;
        bool empty = length == 0 || *line == '#' || (length == 1 && *line == '\r');
        if (!empty && !parse_line(line, length, keys[count])) {
            base_report_add(
                report, "key_malformed",
                &(base_where){.place = base_format("%.200s line %zu", allowed->path, number)},
                "64 hexadecimal digits",
                base_format("%.80s", base_format("%.*s", (int)(length > 80 ? 80 : length), line)),
                "a line of the list of allowed keys could not be read");
            status = KVFERRY_MALFORMED;
        }
        count += !empty;
        line += length + 1;
    }
    if (status != KVFERRY_OK) {
        free(keys);
        return status;
    }
    qsort(keys, count, NODE_KEY_BYTES, compare_keys);
    free(allowed->keys);
    allowed->keys = keys;
    allowed->count = count;
    return KVFERRY_OK;
}

static kvferry_status load(node_allowed *allowed, kvferry_report *report)
{
    char *text;
    size_t size;
    kvferry_status status =
        node_file_read(allowed->path, ALLOWED_FILE_MAX, &text, &size, &allowed->seen, report);
    if (status != KVFERRY_OK)
        return status;
    status = parse_keys(allowed, text, size, report);
    free(text);
    return status;
}

static bool changed(const node_allowed *allowed, const struct stat *now)
{
    const struct stat *seen = &allowed->seen;
    return now->st_ino != seen->st_ino || now->st_dev != seen->st_dev ||
           now->st_size != seen->st_size || now->st_mtim.tv_sec != seen->st_mtim.tv_sec ||
           now->st_mtim.tv_nsec != seen->st_mtim.tv_nsec ||
           now->st_ctim.tv_sec != seen->st_ctim.tv_sec ||
           now->st_ctim.tv_nsec != seen->st_ctim.tv_nsec;
}

kvferry_status node_allowed_open(const char *path, node_allowed **allowed, kvferry_report *report)
{
    node_allowed *made = base_alloc(1, sizeof(*made));
    if (made)
        made->path = strdup(path);
    kvferry_status status = made && made->path ? load(made, report) : KVFERRY_NO_MEMORY;
    if (status == KVFERRY_OK)
        *allowed = made;
    else
        node_allowed_close(made);
    return status;
}

void node_allowed_close(node_allowed *allowed)
{
    if (!allowed)
        return;
    free(allowed->keys);
    free(allowed->path);
    free(allowed);
}

bool node_allowed_has(node_allowed *allowed, const unsigned char key[NODE_KEY_BYTES],
                      kvferry_report *trouble)
{
    struct stat now;
    bool missing = stat(allowed->path, &now) != 0;
    if (missing && !allowed->missing)
        base_report_add(trouble, "file_failed", &(base_where){.place = allowed->path},
                        "a readable file", strerror(errno),
                        "the list of allowed keys is gone: it stays as it was");
    if (!missing && (allowed->missing || changed(allowed, &now))) {
        load(allowed, trouble);
        allowed->seen = now; /* what cannot be read is told once */
    }
    allowed->missing = missing;
    return allowed->count &&
           bsearch(key, allowed->keys, allowed->count, NODE_KEY_BYTES, compare_keys);
}
