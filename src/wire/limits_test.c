/* SPDX-License-Identifier: Apache-2.0 */
/* Values at their limits and beyond; rosters and documents that are not what they say; memory. */
#include "wire/samples_test.h"

#include <malloc.h>

static kvferry_report *report;

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

static void assert_verdict(const wire_message *message, const char *code, const char *place)
{
    wire_message read;
    size_t size;
    unsigned char *data = sample_encode(message, &size);
    kvferry_report_clear(report);
    kvferry_status status = wire_decode(data, size, &read, report);
    if (!code) {
        assert_int_equal(status, KVFERRY_OK);
    } else {
        assert_int_equal(status, KVFERRY_MALFORMED);
        assert_int_equal(kvferry_report_count(report), 1);
        const kvferry_reason *reason = kvferry_report_get(report, 0);
        assert_string_equal(reason->code, code);
        assert_memory_equal(reason->place, place, strlen(place));
    }
    wire_message_end(&read);
    free(data);
}

static void assert_read(const wire_message *message) { assert_verdict(message, NULL, ""); }

static char *text_of(size_t length)
{
    char *text = calloc(1, length + 1);
    assert_non_null(text);
    return memset(text, 'x', length);
}

static void test_texts(void **state)
{
    (void)state;
    const struct {
        wire_type type;
        size_t maximum;
        const char *place;
    } cases[] = {{WIRE_PING, WIRE_MAX_ID, "engine_id at byte "},
                 {WIRE_RENEW, WIRE_MAX_ID, "transfer_id at byte "},
                 {WIRE_HELLO, WIRE_MAX_ID, "engine at byte "},
                 {WIRE_ROSTER, WIRE_MAX_ID, "engine_id at byte "},
                 {WIRE_WELCOME, WIRE_MAX_ADDRESS, "addr at byte "},
                 {WIRE_ASK, WIRE_MAX_NAME, "group at byte "}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t length = 0; length <= cases[i].maximum + 1; length += length ? cases[i].maximum : 1) {
            char *text = text_of(length);
            wire_message message = sample(cases[i].type);
            const char *kept_address = sample_members[0].address, *kept_group = sample_tables[0].group;
            if (cases[i].type == WIRE_PING)
                message.engine_id = text;
            else if (cases[i].type == WIRE_RENEW)
                message.transfer_id = text;
            else if (cases[i].type == WIRE_HELLO)
                message.body.hello.engine = text;
            else if (cases[i].type == WIRE_ROSTER)
                message.body.roster.engine_id = text;
            else if (cases[i].type == WIRE_WELCOME)
                sample_members[0].address = text;
            else
                sample_tables[0].group = text;
            if (cases[i].type == WIRE_ROSTER)
                wire_roster_digest(&message.body.roster, message.body.roster.digest);
            if (length >= 1 && length <= cases[i].maximum)
                assert_read(&message);
            else if (!length && (cases[i].type == WIRE_PING || cases[i].type == WIRE_RENEW))
                assert_verdict(&message, "value_missing", cases[i].place); /* "" is not written */
            else
                assert_verdict(&message, "value_range", cases[i].place);
            sample_members[0].address = kept_address;
            sample_tables[0].group = kept_group;
            free(text);
        }
}

static void test_numbers(void **state)
{
    (void)state;
    wire_message message = sample(WIRE_ASK);
    message.body.ask.tokens = INT64_MAX;
    assert_read(&message);
    message.body.ask.tokens++;
    assert_verdict(&message, "value_range", "tokens at byte ");
    sample_tables[0].first_token = UINT64_MAX;
    message = sample(WIRE_ASK);
    assert_verdict(&message, "value_range", "first_token at byte ");
    sample_tables[0].first_token = 1632;
    message = sample(WIRE_PING);
    message.sender[15] = 'A'; /* digits are lower case */
    assert_verdict(&message, "value_range", "sender at byte ");
    message.sender[15] = '\0'; /* and sixteen */
    assert_verdict(&message, "value_range", "sender at byte ");
    message = sample(WIRE_ASK);
    message.body.ask.source_roster[0] = '\0';
    assert_verdict(&message, "value_range", "source_roster at byte ");
    message = sample(WIRE_ASK);
    message.body.ask.attempt[0] = '\0';
    assert_verdict(&message, "value_range", "attempt at byte ");
    message = sample(WIRE_SETTLE);
    message.body.verdict.outcome = WIRE_WAITING;
    assert_verdict(&message, "value_unknown", "outcome at byte ");
}

static void test_workers(void **state)
{
    (void)state;
    wire_message message = sample(WIRE_HELLO);
    kvferry_worker *worker = &message.body.hello.worker;
    *worker = (kvferry_worker){65535, 65536, 0, 1, 0, 1};
    assert_read(&message);
    *worker = (kvferry_worker){0, 32768, 0, 2, 1, 2};
    assert_verdict(&message, "value_range", "dp_size, tp_size, pp_size at byte ");
    *worker = (kvferry_worker){0, 65537, 0, 1, 0, 1};
    assert_verdict(&message, "value_range", "tp_size at byte ");
    *worker = (kvferry_worker){0, 1, 0, 0, 0, 1};
    assert_verdict(&message, "value_range", "pp_size at byte ");
    *worker = (kvferry_worker){1, 2, 3, 3, 0, 1};
    assert_verdict(&message, "rank_range", "pp_rank at byte ");
}

static void test_rosters(void **state)
{
    (void)state;
    wire_message message = sample(WIRE_ROSTER);
    wire_roster *roster = &message.body.roster;
    roster->digest[0] = roster->digest[0] == '0' ? '1' : '0';
    assert_verdict(&message, "digest_differs", "roster at byte ");
    *roster = sample_roster();
    roster->count = 1;
    wire_roster_digest(roster, roster->digest);
    assert_verdict(&message, "roster_invalid", "roster at byte ");
    roster->digest[0] = '\0';
    assert_read(&message);
    *roster = sample_roster();
    sample_members[1].worker.tp_rank = 0; /* twice */
    assert_verdict(&message, "roster_invalid", "members at byte ");
    sample_members[0].worker.tp_rank = 1; /* out of order */
    assert_verdict(&message, "roster_invalid", "members at byte ");
    sample_members[0].worker.tp_rank = 0;
    sample_members[1].worker.tp_rank = 1;
    sample_members[1].worker.dp_size = 3;
    assert_verdict(&message, "roster_invalid", "members at byte ");
    sample_members[1].worker.dp_size = 1;
    char kept = sample_members[1].incarnation[0];
    sample_members[1].incarnation[0] = '\0';
    assert_verdict(&message, "value_range", "incarnation at byte ");
    sample_members[1].incarnation[0] = kept;
    assert_read(&message);
}

/* Order is by dp, then pp, then tp. */
static void test_roster_order(void **state)
{
    (void)state;
    wire_member members[8];
    wire_message message = sample(WIRE_ROSTER);
    for (uint32_t i = 0; i < 8; i++) {
        members[i] = sample_members[0];
        members[i].worker = (kvferry_worker){i % 2, 2, i / 2 % 2, 2, i / 4, 2};
    }
    message.body.roster.members = members;
    message.body.roster.count = 8;
    wire_roster_digest(&message.body.roster, message.body.roster.digest);
    assert_read(&message);
    wire_member kept = members[1];
    members[1] = members[2];
    members[2] = kept;
    wire_roster_digest(&message.body.roster, message.body.roster.digest);
    assert_verdict(&message, "roster_invalid", "members at byte ");
}

static void test_documents(void **state)
{
    (void)state;
    wire_message message = sample(WIRE_DOCUMENTS);
    sample_sizes[1] = 3;
    assert_verdict(&message, "digest_differs", "document at byte ");
    sample_sizes[1] = 4;
    assert_read(&message);
}

static void test_too_many_reasons(void **state)
{
    (void)state;
    static char data[8192] = "\x84\xa7kvferry\x92\x01\x00\xa4type\xa5" "error\xa6sender\xa0\xa7reasons\xdc";
    size_t head = 0;
    while (data[head] != (char)0xdc)
        head++;
    for (size_t count = WIRE_MAX_REASONS; count <= WIRE_MAX_REASONS + 1; count++) {
        size_t at = head + 1;
        data[at++] = 0;
        data[at++] = (char)count;
        for (size_t i = 0; i < count; i++) {
            memcpy(data + at, "\x82\xa4" "code\xa1x\xa7message\xa1y", 18);
            at += 18;
        }
        wire_message read;
        kvferry_report_clear(report);
        kvferry_status status = wire_decode(data, at, &read, report);
        assert_int_equal(status, count > WIRE_MAX_REASONS ? KVFERRY_MALFORMED : KVFERRY_OK);
        if (status != KVFERRY_OK)
            assert_string_equal(kvferry_report_get(report, 0)->code, "list_length");
        wire_message_end(&read);
    }
}

/* --- memory --------------------------------------------------------------------------------- */

static size_t in_use(void) { return mallinfo2().uordblks + mallinfo2().hblkhd; }

/* A message of `type` whose field `name` is an array of as many `element`s as fit into a megabyte. */
static unsigned char *flood(const char *type, const char *name, const char *element, size_t element_size,
                            size_t *size)
{
    static const char rest[] =
        "\xa9" "engine_id\xa1" "e\xa6sender\xb0" SAMPLE_SENDER "\xab" "transfer_id\xa1t\xa7" "attempt\xb0" SAMPLE_ATTEMPT
        "\xad" "source_roster\xd9\x20" "00000000000000000000000000000000"
        "\xad" "target_roster\xd9\x20" "00000000000000000000000000000000"
        "\xa6tokens\x00\xaatimeout_ms\x00\xa7outcome\xa4" "done";
    enum { BYTES = 1 << 20 };
    unsigned char *data = malloc(BYTES);
    assert_non_null(data);
    int head = snprintf((char *)data, 64, "\x8c\xa7kvferry\x92\x01%c\xa4type%c%s", 2,
                        0xa0 + (int)strlen(type), type);
    size_t at = (size_t)head;
    memcpy(data + at, rest, sizeof(rest) - 1);
    at += sizeof(rest) - 1;
    data[at++] = (unsigned char)(0xa0 | strlen(name));
    memcpy(data + at, name, strlen(name));
    at += strlen(name);
    uint32_t count = (uint32_t)((BYTES - at - 5) / element_size);
    data[at++] = 0xdd;
    for (int shift = 24; shift >= 0; shift -= 8)
        data[at++] = (unsigned char)(count >> shift);
    for (uint32_t i = 0; i < count; i++, at += element_size)
        memcpy(data + at, element, element_size);
    *size = at;
    return data;
}

/* What makes the most of the fewest bytes, in each list: at most eight times as much. */
static void test_memory(void **state)
{
    (void)state;
    const struct {
        const char *type, *name, *element;
        size_t size;
        bool taken;
    } cases[] = {
        {"ask", "tables", "\x82\xa5group\xa1g\xa9" "block_ids\x90", 20, true},
        {"ask", "tables", "\x01", 1, false},
        {"verdict", "checksums", "\x92\x01\x02", 3, true},
        {"verdict", "checksums", "\x90", 1, false},
        {"get", "digests", "\xa0", 1, false},
        {"documents", "documents", "\x80", 1, false},
        {"error", "reasons", "\x80", 1, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t size;
        unsigned char *data = flood(cases[i].type, cases[i].name, cases[i].element, cases[i].size, &size);
        wire_message read;
        size_t before = in_use();
        kvferry_status status = wire_decode(data, size, &read, NULL);
        size_t used = in_use() - before;
        assert_int_equal(status, cases[i].taken ? KVFERRY_OK : KVFERRY_MALFORMED);
        assert_in_range(used, 0, (cases[i].taken ? 8 : 2) * size);
        wire_message_end(&read);
        assert_in_range(in_use(), 0, before + 1024);
        free(data);
    }
}

/* A small message is a small thing. */
static void test_small(void **state)
{
    (void)state;
    wire_message message = sample(WIRE_RENEW), read;
    size_t size;
    unsigned char *data = sample_encode(&message, &size);
    size_t before = in_use();
    assert_int_equal(wire_decode(data, size, &read, NULL), KVFERRY_OK);
    assert_in_range(in_use(), 0, before + 1024);
    wire_message_end(&read);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_workers),   cmocka_unit_test(test_rosters),
        cmocka_unit_test(test_roster_order), cmocka_unit_test(test_documents),
        cmocka_unit_test(test_too_many_reasons), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_small)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
