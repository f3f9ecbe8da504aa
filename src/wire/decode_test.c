/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are cut, damaged, of other versions or made by an enemy. */
#include "wire/samples_test.h"

#include "wire/message.h"

static kvferry_report *report;

/* In a buffer of exactly its size, so that a sanitizer sees a read behind it. */
static kvferry_status decode(const void *data, size_t size, wire_message *message)
{
    unsigned char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    kvferry_report_clear(report);
    kvferry_status status = wire_decode(copy, size, message, report);
    assert_int_equal(status == KVFERRY_OK, kvferry_report_count(report) == 0);
    free(copy);
    return status;
}

static void assert_refused(const void *data, size_t size, kvferry_status expected, const char *code,
                           const char *found)
{
    wire_message message;
    assert_int_equal(decode(data, size, &message), expected);
    assert_int_equal(kvferry_report_count(report), 1);
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    assert_string_equal(reason->code, code);
    if (found)
        assert_string_equal(reason->found, found);
    wire_message_end(&message);
}

static int setup(void **state)
{
    (void)state;
    sample_setup();
    return kvferry_report_create(&report) != KVFERRY_OK;
}

static int teardown(void **state)
{
    (void)state;
    sample_teardown();
    kvferry_report_free(report);
    return 0;
}

/* --- damage -------------------------------------------------------------------------------- */

static void test_cut_anywhere(void **state)
{
    (void)state;
    for (int type = 0; type < WIRE_TYPES; type++) {
        wire_message message = sample((wire_type)type), read;
        size_t size;
        unsigned char *data = sample_encode(&message, &size);
        for (size_t cut = 0; cut < size; cut++) {
            assert_int_equal(decode(data, cut, &read), KVFERRY_MALFORMED);
            assert_int_equal(kvferry_report_count(report), 1);
            wire_message_end(&read);
        }
        unsigned char *longer = calloc(1, size + 1);
        assert_non_null(longer);
        memcpy(longer, data, size);
        assert_refused(longer, size + 1, KVFERRY_MALFORMED, "syntax", "1 more bytes");
        free(longer);
        free(data);
    }
}

/* Every byte to every value: it is read or refused, with a reason; and what is read can be written. */
static void test_damaged(void **state)
{
    (void)state;
    size_t taken = 0, refused = 0;
    for (int type = 0; type < WIRE_TYPES; type++) {
        wire_message message = sample((wire_type)type), read;
        size_t size, written_size;
        unsigned char *data = sample_encode(&message, &size);
        for (size_t at = 0; at < size; at++) {
            unsigned char kept = data[at];
            for (unsigned value = 0; value < 256; value++) {
                data[at] = (unsigned char)value;
                kvferry_status status = decode(data, size, &read);
                assert_true(status == KVFERRY_OK || status == KVFERRY_MALFORMED ||
                            status == KVFERRY_UNSUPPORTED);
                taken += status == KVFERRY_OK;
                refused += status != KVFERRY_OK;
                if (status == KVFERRY_OK)
                    free(sample_encode(&read, &written_size));
                wire_message_end(&read);
            }
            data[at] = kept;
        }
        free(data);
    }
    assert_true(taken > 1000 && refused > 1000);
}

/* --- fields, one by one: a message is taken apart, and put together in another way ------------- */

typedef struct part {
    char name[32];
    unsigned char data[600];
    size_t size;
} part;

/* The value of a map of samples ends where the next key begins: all of theirs are msgpack of ours. */
static size_t value_size(const unsigned char *data, size_t size)
{
    base_arena arena = {0};
    size_t left = 1, at = 0;
    while (left--) {
        assert_true(at < size);
        unsigned head = data[at++];
        size_t length = 0;
        if (head >= 0x80 && head < 0x90)
            left += 2 * (size_t)(head & 0xf);
        else if (head >= 0x90 && head < 0xa0)
            left += head & 0xf;
        else if (head >= 0xa0 && head < 0xc0)
            length = head & 0x1f;
        else if (head == 0xd9 || head == 0xc4)
            length = 1u + data[at];
        else if (head == 0xcc)
            length = 1;
        else if (head == 0xcd)
            length = 2;
        else if (head == 0xce)
            length = 4;
        else if (head == 0xcf)
            length = 8;
        at += length;
    }
    base_arena_free(&arena);
    return at;
}

static size_t take_apart(const unsigned char *data, size_t size, part *parts)
{
    size_t count = (size_t)data[1] << 8 | data[2], at = 3;
    for (size_t i = 0; i < count; i++) {
        size_t length = data[at++] & 0x1f;
        memcpy(parts[i].name, data + at, length);
        parts[i].name[length] = '\0';
        at += length;
        parts[i].size = value_size(data + at, size - at);
        assert_true(parts[i].size <= sizeof(parts[i].data));
        memcpy(parts[i].data, data + at, parts[i].size);
        at += parts[i].size;
    }
    assert_int_equal(at, size);
    return count;
}

/* Without the part at `without` (none: count), from the last to the first if `backwards`. */
static size_t put_together(const part *parts, size_t count, size_t without, bool backwards,
                           unsigned char *data)
{
    size_t members = count - (without < count), at = 3;
    data[0] = 0xde;
    data[1] = (unsigned char)(members >> 8);
    data[2] = (unsigned char)members;
    for (size_t i = 0; i < count; i++) {
        const part *p = &parts[backwards ? count - 1 - i : i];
        if (p == &parts[without])
            continue;
        data[at++] = (unsigned char)(0xa0 | strlen(p->name));
        memcpy(data + at, p->name, strlen(p->name));
        at += strlen(p->name);
        memcpy(data + at, p->data, p->size);
        at += p->size;
    }
    return at;
}

enum { MOST = 4096, PARTS = 40 };

static size_t sample_parts(int type, part *parts)
{
    wire_message message = sample((wire_type)type);
    size_t size;
    unsigned char *data = sample_encode(&message, &size);
    size_t count = take_apart(data, size, parts);
    free(data);
    return count;
}

static bool is_optional(int type, const char *name)
{
    static const char *const anywhere[] = {"receiver", "expects", "sibling", "binding", "verify", "whole_blocks",
                                           "part", "copies", "bytes", "checksums", "transfers", "blocks", "waiting"};
    for (size_t i = 0; i < sizeof(anywhere) / sizeof(anywhere[0]); i++)
        if (strcmp(name, anywhere[i]) == 0)
            return true;
    if (strcmp(name, "reasons") == 0)
        return type != WIRE_ERROR;
    if (strcmp(name, "attempt") == 0)
        return type != WIRE_ASK;
    if (type == WIRE_ERROR || type == WIRE_STATUS_TEXT)
        return strcmp(name, "engine_id") == 0 || strcmp(name, "sender") == 0 ||
               strcmp(name, "transfer_id") == 0;
    return false;
}

static void test_any_order_and_missing_fields(void **state)
{
    (void)state;
    static part parts[PARTS];
    static unsigned char data[MOST];
    wire_message read;
    for (int type = 0; type < WIRE_TYPES; type++) {
        size_t count = sample_parts(type, parts);
        size_t size = put_together(parts, count, count, true, data);
        assert_int_equal(decode(data, size, &read), KVFERRY_OK);
        assert_int_equal(read.type, type);
        wire_message_end(&read);
        for (size_t i = 0; i < count; i++) {
            size = put_together(parts, count, i, false, data);
            if (is_optional(type, parts[i].name)) {
                assert_int_equal(decode(data, size, &read), KVFERRY_OK);
                wire_message_end(&read);
            } else {
                assert_refused(data, size, KVFERRY_MALFORMED, "value_missing", NULL);
            }
        }
    }
}

/* Each field with a value of each type. */
static void test_wrong_types(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        size_t size;
    } values[] = {{"\xc0", 1},     {"\xc3", 1}, {"\xca\0\0\0\0", 5}, {"\xc4\1\0", 3}, {"\xd4\1\0", 3},
                  {"\xa1z", 2},    {"\x90", 1}, {"\x80", 1},         {"\xff", 1},     {"\xd3\xff\0\0\0\0\0\0\0", 9}};
    static part parts[PARTS];
    static unsigned char data[MOST];
    wire_message read;
    for (int type = 0; type < WIRE_TYPES; type++) {
        size_t count = sample_parts(type, parts);
        for (size_t i = 0; i < count; i++) {
            part kept = parts[i];
            size_t refused = 0;
            for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
                memcpy(parts[i].data, values[v].data, values[v].size);
                parts[i].size = values[v].size;
                size_t size = put_together(parts, count, count, false, data);
                kvferry_status status = decode(data, size, &read);
                refused += status != KVFERRY_OK;
                if (status != KVFERRY_OK)
                    assert_non_null(strstr(kvferry_report_get(report, 0)->place, " at byte "));
                wire_message_end(&read);
            }
            parts[i] = kept;
            /* All but the one that may be right: a text of another kind, or an empty list. */
            assert_in_range(refused, sizeof(values) / sizeof(values[0]) - 1,
                            sizeof(values) / sizeof(values[0]));
        }
    }
}

static void test_known_key_twice(void **state)
{
    (void)state;
    static part parts[PARTS];
    static unsigned char data[MOST];
    for (int type = 0; type < WIRE_TYPES; type++) {
        size_t count = sample_parts(type, parts);
        for (size_t i = 0; i < count; i++) {
            parts[count] = parts[i];
            size_t size = put_together(parts, count + 1, count + 1, false, data);
            assert_refused(data, size, KVFERRY_MALFORMED, "key_duplicate", NULL);
        }
    }
}

/* --- versions ------------------------------------------------------------------------------- */

static void set(part *parts, size_t count, const char *name, const char *value, size_t size)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(parts[i].name, name) == 0) {
            memcpy(parts[i].data, value, size);
            parts[i].size = size;
            return;
        }
    fail();
}

static void test_newer_minor(void **state)
{
    (void)state;
    static part parts[PARTS];
    static unsigned char data[MOST];
    wire_message read;
    /* A number, binary, an extension, and a map whose keys are no strings, deep inside. */
    static const char unknown[] = "\x94\x01\xc4\x02\0\0\xd8\x05" "0123456789abcdef" "\x81\x01\xdc\0\1\xc0";
    for (int type = 0; type < WIRE_TYPES; type++) {
        size_t count = sample_parts(type, parts);
        set(parts, count, "kvferry", "\x93\x01\xcd\x03\xe8\xa1z", 7);
        strcpy(parts[count].name, "later");
        memcpy(parts[count].data, unknown, sizeof(unknown) - 1);
        parts[count].size = sizeof(unknown) - 1;
        parts[count + 1] = parts[count]; /* an unknown key may even come twice */
        size_t size = put_together(parts, count + 2, count + 2, true, data);
        assert_int_equal(decode(data, size, &read), KVFERRY_OK);
        assert_int_equal(read.type, type);
        assert_int_equal(read.minor, 1000);
        wire_message_end(&read);
    }
}

/* Unknown fields inside of parts, and more elements behind a checksum. */
static void test_newer_parts(void **state)
{
    (void)state;
    static part parts[PARTS];
    static unsigned char data[MOST];
    wire_message read;
    size_t count = sample_parts(WIRE_ASK, parts);
    static const char tables[] = "\x91\x83\xa1x\x93\x01\x02\xc0\xa9" "block_ids\x91\x07\xa5" "group\xa1g";
    set(parts, count, "tables", tables, sizeof(tables) - 1);
    assert_int_equal(decode(data, put_together(parts, count, count, false, data), &read), KVFERRY_OK);
    assert_int_equal(read.body.ask.tables[0].blocks[0], 7);
    assert_string_equal(read.body.ask.tables[0].group, "g");
    wire_message_end(&read);
    count = sample_parts(WIRE_VERDICT, parts);
    set(parts, count, "checksums", "\x92\x94\x01\x02\x80\xc0\x92\x03\x04", 9);
    assert_int_equal(decode(data, put_together(parts, count, count, false, data), &read), KVFERRY_OK);
    assert_int_equal(read.body.verdict.checksum_count, 2);
    assert_int_equal(read.body.verdict.checksums[1].value, 4);
    wire_message_end(&read);
    set(parts, count, "checksums", "\x91\x91\xcd\x01\x02", 5);
    assert_refused(data, put_together(parts, count, count, false, data), KVFERRY_MALFORMED,
                   "list_length", "1 elements");
}

static void test_other_major(void **state)
{
    (void)state;
    static part parts[PARTS];
    static unsigned char data[MOST];
    wire_message read;
    size_t count = sample_parts(WIRE_ASK, parts);
    set(parts, count, "kvferry", "\x92\x02\x07", 3);
    set(parts, count, "tables", "\xc0", 1); /* whatever it means there */
    set(parts, count, "sender", "\xc0", 1);
    size_t size = put_together(parts, count, count, true, data);
    assert_refused(data, size, KVFERRY_UNSUPPORTED, "message_version", "2.7");
    assert_string_equal(kvferry_report_get(report, 0)->expected, "1.x");
    assert_int_equal(wire_decode(data, size, &read, NULL), KVFERRY_UNSUPPORTED);
    assert_int_equal(read.type, WIRE_ASK);
    assert_string_equal(read.engine_id, "prefill-0");
    assert_string_equal(read.receiver, SAMPLE_RECEIVER);
    assert_string_equal(read.sender, "");
    assert_string_equal(read.transfer_id, "xfer-\xc3\xa9");
    wire_message_end(&read);
    static const char bare[] = "\x81\xa7kvferry\x92\x00\x09";
    assert_refused(bare, sizeof(bare) - 1, KVFERRY_UNSUPPORTED, "message_version", "0.9");
}

static void test_unknown_type(void **state)
{
    (void)state;
    static part parts[PARTS];
    static unsigned char data[MOST];
    wire_message read;
    size_t count = sample_parts(WIRE_PING, parts);
    set(parts, count, "type", "\xa6gossip", 7);
    size_t size = put_together(parts, count, count, false, data);
    assert_refused(data, size, KVFERRY_UNSUPPORTED, "message_type", "\"gossip\"");
    assert_int_equal(wire_decode(data, size, &read, NULL), KVFERRY_UNSUPPORTED);
    assert_int_equal(read.type, WIRE_TYPES);
    assert_int_equal(read.major, WIRE_MAJOR);
    assert_string_equal(read.sender, SAMPLE_SENDER);
    wire_message_end(&read);
    set(parts, count, "sender", "\xa1z", 2); /* malformed besides: that comes first */
    size = put_together(parts, count, count, false, data);
    assert_int_equal(wire_decode(data, size, &read, NULL), KVFERRY_MALFORMED);
    wire_message_end(&read);
}

/* What could be read before the bytes ended is there for the answer. */
static void test_partly_read(void **state)
{
    (void)state;
    wire_message message = sample(WIRE_ASK), read;
    size_t size;
    unsigned char *data = sample_encode(&message, &size);
    assert_int_equal(decode(data, size - 1, &read), KVFERRY_MALFORMED);
    assert_int_equal(read.type, WIRE_ASK);
    assert_string_equal(read.engine_id, "prefill-0");
    assert_string_equal(read.sender, SAMPLE_SENDER);
    assert_string_equal(read.transfer_id, "xfer-\xc3\xa9");
    wire_message_end(&read);
    assert_int_equal(decode(data, 20, &read), KVFERRY_MALFORMED);
    assert_int_equal(read.type, WIRE_TYPES);
    assert_string_equal(read.engine_id, "");
    wire_message_end(&read);
    free(data);
}

static void test_no_message(void **state)
{
    (void)state;
    assert_refused("", 0, KVFERRY_MALFORMED, "syntax", "the end");
    assert_refused("\x80", 1, KVFERRY_MALFORMED, "value_missing", "none");
    assert_refused("\x90", 1, KVFERRY_MALFORMED, "value_type", "an array");
    assert_refused("\xc1", 1, KVFERRY_MALFORMED, "syntax", "byte 0xc1");
    assert_refused("\x81\x01\x02", 3, KVFERRY_MALFORMED, "value_type", "an integer");
    assert_refused("\x81\xa7kvferry\x91\x01", 11, KVFERRY_MALFORMED, "list_length", "1 elements");
    assert_refused("\x81\xa7kvferry\x92\x01\x00", 12, KVFERRY_MALFORMED, "value_missing", "none");
    assert_refused("\x81\xa7kv\0erry\x92\x02\x00", 12, KVFERRY_MALFORMED, "value_missing", "none");
    /* Counts and lengths that are not there. */
    assert_refused("\xdf\xff\xff\xff\xff", 5, KVFERRY_MALFORMED, "syntax", "the end");
    assert_refused("\x81\xdb\xff\xff\xff\xff", 6, KVFERRY_MALFORMED, "syntax", "the end");
    assert_refused("\x81\xa1z\xdd\xff\xff\xff\xff", 8, KVFERRY_MALFORMED, "syntax", "the end");
    assert_refused("\x81\xa1z\xc9\xff\xff\xff\xff\x01", 9, KVFERRY_MALFORMED, "syntax", "the end");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_any_order_and_missing_fields),
        cmocka_unit_test(test_wrong_types),
        cmocka_unit_test(test_known_key_twice),
        cmocka_unit_test(test_newer_minor),
        cmocka_unit_test(test_newer_parts),
        cmocka_unit_test(test_other_major),
        cmocka_unit_test(test_unknown_type),
        cmocka_unit_test(test_partly_read),
        cmocka_unit_test(test_no_message)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
