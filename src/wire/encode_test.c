/* SPDX-License-Identifier: Apache-2.0 */
/* Golden bytes of every message, and reading back what was written. */
#include "wire/samples_test.h"

/* The file of the corpus: made by tests/fuzz/make-corpus, which knows nothing of this code. */
static unsigned char *golden(wire_type type, size_t *size)
{
    char path[512];
    snprintf(path, sizeof(path), KVFERRY_SOURCE_DIR "/tests/fuzz/corpus/wire/%s",
             wire_type_name(type));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *data = malloc(65536);
    assert_non_null(data);
    *size = fread(data, 1, 65536, file);
    assert_int_equal(fclose(file), 0);
    return data;
}

static void test_golden(void **state)
{
    (void)state;
    sample_setup();
    for (int type = 0; type < WIRE_TYPES; type++) {
        wire_message message = sample((wire_type)type);
        size_t size, golden_size;
        unsigned char *data = sample_encode(&message, &size);
        unsigned char *expected = golden((wire_type)type, &golden_size);
        assert_int_equal(size, golden_size);
        assert_memory_equal(data, expected, size);
        free(expected);
        free(data);
    }
    sample_teardown();
}

static void same_worker(const kvferry_worker *a, const kvferry_worker *b)
{
    assert_memory_equal(a, b, sizeof(*a));
}

static void same_roster(const wire_roster *a, const wire_roster *b)
{
    assert_string_equal(a->engine_id, b->engine_id);
    assert_string_equal(a->digest, b->digest);
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        same_worker(&a->members[i].worker, &b->members[i].worker);
        assert_string_equal(a->members[i].address, b->members[i].address);
        assert_string_equal(a->members[i].incarnation, b->members[i].incarnation);
        assert_string_equal(a->members[i].digest, b->members[i].digest);
    }
}

static void same_hello(const wire_hello *a, const wire_hello *b)
{
    same_worker(&a->worker, &b->worker);
    assert_string_equal(a->incarnation, b->incarnation);
    assert_string_equal(a->expects, b->expects);
    assert_int_equal(a->sibling, b->sibling);
    same_roster(&a->roster, &b->roster);
    assert_string_equal(a->engine, b->engine);
    assert_int_equal(a->binding_size, b->binding_size);
    assert_memory_equal(a->binding, b->binding, a->binding_size);
    assert_int_equal(a->lease_ms, b->lease_ms);
}

static void same_documents(const wire_documents *a, const wire_documents *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        assert_string_equal(a->digests[i], b->digests[i]);
        if (!a->documents)
            continue;
        assert_int_equal(a->sizes[i], b->sizes[i]);
        assert_memory_equal(a->documents[i], b->documents[i], a->sizes[i]);
    }
}

static void same_ask(const wire_ask *a, const wire_ask *b)
{
    assert_string_equal(a->attempt, b->attempt);
    assert_string_equal(a->source_roster, b->source_roster);
    assert_string_equal(a->target_roster, b->target_roster);
    assert_int_equal(a->tokens, b->tokens);
    assert_int_equal(a->timeout_ms, b->timeout_ms);
    assert_int_equal(a->verify, b->verify);
    assert_int_equal(a->whole_blocks, b->whole_blocks);
    assert_int_equal(a->part, b->part);
    assert_int_equal(a->table_count, b->table_count);
    for (size_t i = 0; i < a->table_count; i++) {
        assert_string_equal(a->tables[i].group, b->tables[i].group);
        assert_int_equal(a->tables[i].first_token, b->tables[i].first_token);
        assert_int_equal(a->tables[i].block_count, b->tables[i].block_count);
        assert_memory_equal(a->tables[i].blocks, b->tables[i].blocks,
                            a->tables[i].block_count * sizeof(uint32_t));
    }
}

static void same_verdict(const wire_verdict *a, const wire_verdict *b)
{
    assert_string_equal(a->attempt, b->attempt);
    assert_int_equal(a->outcome, b->outcome);
    assert_int_equal(a->part, b->part);
    assert_int_equal(a->copies, b->copies);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->checksum_count, b->checksum_count);
    for (size_t i = 0; i < a->checksum_count; i++) {
        assert_int_equal(a->checksums[i].piece, b->checksums[i].piece);
        assert_int_equal(a->checksums[i].value, b->checksums[i].value);
    }
}

static void same_reasons(const kvferry_report *a, const kvferry_report *b)
{
    assert_int_equal(kvferry_report_count(a), kvferry_report_count(b));
    for (size_t i = 0; i < kvferry_report_count(a); i++) {
        const kvferry_reason *x = kvferry_report_get(a, i), *y = kvferry_report_get(b, i);
        assert_string_equal(x->code, y->code);
        assert_string_equal(x->worker, y->worker);
        assert_string_equal(x->layer, y->layer);
        assert_string_equal(x->stream, y->stream);
        assert_string_equal(x->axis, y->axis);
        assert_string_equal(x->place, y->place);
        assert_string_equal(x->expected, y->expected);
        assert_string_equal(x->found, y->found);
        assert_string_equal(x->message, y->message);
    }
}

static void same_body(const wire_message *a, const wire_message *b)
{
    if (a->type == WIRE_HELLO || a->type == WIRE_WELCOME)
        same_hello(&a->body.hello, &b->body.hello);
    else if (a->type == WIRE_ROSTER)
        same_roster(&a->body.roster, &b->body.roster);
    else if (a->type == WIRE_GET || a->type == WIRE_DOCUMENTS)
        same_documents(&a->body.documents, &b->body.documents);
    else if (a->type == WIRE_ASK)
        same_ask(&a->body.ask, &b->body.ask);
    else if (a->type >= WIRE_VERDICT && a->type <= WIRE_SETTLED)
        same_verdict(&a->body.verdict, &b->body.verdict);
    else if (a->type == WIRE_STATUS_TEXT)
        assert_string_equal(a->body.text, b->body.text);
}

static void assert_roundtrip(const wire_message *message)
{
    wire_message read;
    size_t size;
    unsigned char *data = sample_encode(message, &size);
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    kvferry_status status = wire_decode(data, size, &read, report);
    if (status != KVFERRY_OK)
        print_error("%s: %s\n", wire_type_name(message->type),
                    kvferry_report_get(report, 0)->message);
    assert_int_equal(status, KVFERRY_OK);
    memset(data, 0xc1, size); /* what was read is not the bytes it was read from */
    assert_int_equal(read.type, message->type);
    assert_int_equal(read.major, message->major);
    assert_int_equal(read.minor, message->minor);
    assert_string_equal(read.engine_id, message->engine_id);
    assert_string_equal(read.sender, message->sender);
    assert_string_equal(read.receiver, message->receiver);
    assert_string_equal(read.transfer_id, message->transfer_id);
    same_body(message, &read);
    same_reasons(message->reasons, read.reasons);
    wire_message_end(&read);
    kvferry_report_free(report);
    free(data);
}

static void test_roundtrip(void **state)
{
    (void)state;
    sample_setup();
    for (int type = 0; type < WIRE_TYPES; type++) {
        wire_message message = sample((wire_type)type);
        assert_roundtrip(&message);
        message.receiver[0] = '\0';
        if (type != WIRE_ERROR)
            message.reasons = NULL;
        assert_roundtrip(&message);
    }
    sample_teardown();
}

/* What may be empty is, in every message. */
static void test_least(void **state)
{
    (void)state;
    sample_setup();
    wire_message message = sample(WIRE_HELLO);
    message.body.hello.expects = "";
    message.body.hello.sibling = false;
    message.body.hello.binding_size = 0;
    message.body.hello.roster.count = 0; /* a roster that is known by its digest */
    assert_roundtrip(&message);
    message.body.hello.roster = sample_roster();
    message.body.hello.roster.count = 1; /* not complete: so without a digest */
    message.body.hello.roster.digest[0] = '\0';
    assert_roundtrip(&message);
    message = sample(WIRE_DOCUMENTS);
    message.body.documents.count = 0;
    assert_roundtrip(&message);
    message = sample(WIRE_ASK);
    message.body.ask.table_count = 0;
    message.body.ask.verify = message.body.ask.whole_blocks = message.body.ask.part = false;
    message.body.ask.tokens = message.body.ask.timeout_ms = 0;
    assert_roundtrip(&message);
    message = sample(WIRE_SETTLE);
    message.body.verdict.attempt[0] = '\0';
    assert_roundtrip(&message);
    message = sample(WIRE_VERDICT);
    message.body.verdict.outcome = WIRE_WAITING;
    message.body.verdict.part = false;
    assert_roundtrip(&message);
    sample_teardown();
}

/* Times, reasons and their words beyond what is read are cut by the writer. */
static void test_cut(void **state)
{
    (void)state;
    sample_setup();
    char words[WIRE_MAX_REASON_TEXT + 3];
    memset(words, 'x', sizeof(words));
    memcpy(words + WIRE_MAX_REASON_TEXT - 1, "\xc3\xa9y", 4); /* a character across the end */
    kvferry_report_clear(sample_report);
    for (size_t i = 0; i < WIRE_MAX_REASONS + 1; i++)
        base_report_copy(sample_report,
                         &(kvferry_reason){.code = "peer_lost", .message = i ? "gone" : words});
    wire_message message = sample(WIRE_WELCOME), read;
    message.body.hello.lease_ms = UINT64_MAX;
    size_t size;
    unsigned char *data = sample_encode(&message, &size);
    assert_int_equal(wire_decode(data, size, &read, NULL), KVFERRY_OK);
    assert_int_equal(read.body.hello.lease_ms, WIRE_MAX_MILLISECONDS);
    assert_int_equal(kvferry_report_count(read.reasons), WIRE_MAX_REASONS);
    assert_int_equal(strlen(kvferry_report_get(read.reasons, 0)->message),
                     WIRE_MAX_REASON_TEXT - 1);
    wire_message_end(&read);
    free(data);
    sample_teardown();
}

/* 100,000 ids: at most five bytes each, and four in memory. */
static void test_many_blocks(void **state)
{
    (void)state;
    sample_setup();
    enum { COUNT = 100000 };
    uint32_t *blocks = malloc(COUNT * sizeof(*blocks));
    assert_non_null(blocks);
    for (uint32_t i = 0; i < COUNT; i++)
        blocks[i] = i * 42949u;
    kvferry_block_table table = {"attn", 0, blocks, COUNT};
    wire_message message = sample(WIRE_ASK);
    message.body.ask.tables = &table;
    message.body.ask.table_count = 1;
    size_t size;
    unsigned char *data = sample_encode(&message, &size);
    assert_in_range(size, COUNT, 5 * COUNT + 1000);
    free(data);
    assert_roundtrip(&message);
    free(blocks);
    sample_teardown();
}

static void test_roster_digest(void **state)
{
    (void)state;
    sample_setup();
    wire_roster roster = sample_roster();
    char digest[WIRE_DIGEST_TEXT];
    sample_members[0].address = "tcp://[::1]:1"; /* where a worker is reached is not who it is */
    wire_roster_digest(&roster, digest);
    assert_string_equal(digest, roster.digest);
    sample_members[0].incarnation[0] = '1';
    wire_roster_digest(&roster, digest);
    assert_string_not_equal(digest, roster.digest);
    sample_members[0].incarnation[0] = '0';
    sample_members[1].worker.dp_rank = 1;
    wire_roster_digest(&roster, digest);
    assert_string_not_equal(digest, roster.digest);
    sample_members[1].worker.dp_rank = 0;
    roster.engine_id = "prefill-1";
    wire_roster_digest(&roster, digest);
    assert_string_not_equal(digest, roster.digest);
    sample_teardown();
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(wire_type_name(WIRE_STATUS_TEXT), "status_text");
    assert_string_equal(wire_type_name(WIRE_TYPES), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_roundtrip),
        cmocka_unit_test(test_least),       cmocka_unit_test(test_cut),
        cmocka_unit_test(test_many_blocks), cmocka_unit_test(test_roster_digest),
        cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
