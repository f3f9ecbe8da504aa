/* SPDX-License-Identifier: Apache-2.0 */
/* Bindings that are cut, damaged, foreign, or made by an enemy. */
#include "engine/memory_rig_test.h"

#include <sodium.h>
#include <stdlib.h>

enum { DIGEST_AT = 8, BODY_AT = 24 };

static unsigned char *export_binding(memory_rig *rig, size_t *size)
{
    void *data;
    assert_int_equal(kvferry_engine_export(rig->remote, &data, size, NULL), KVFERRY_OK);
    return data;
}

/* As an enemy would: with a digest that fits. */
static void sign(unsigned char *data, size_t size)
{
    assert_int_equal(crypto_generichash(data + DIGEST_AT, 16, data + BODY_AT, size - BODY_AT, NULL, 0),
                     0);
}

static kvferry_status connect_to(memory_rig *rig, const void *data, size_t size)
{
    kvferry_peer *peer = NULL;
    kvferry_report_clear(rig->report);
    kvferry_status status = kvferry_engine_connect(rig->local, data, size, &peer, rig->report);
    if (status == KVFERRY_OK)
        kvferry_peer_close(peer);
    else
        assert_null(peer);
    return status;
}

/* In a buffer of exactly its size, so that a sanitizer sees a read behind it. */
static kvferry_status connect_exactly(memory_rig *rig, const unsigned char *data, size_t size)
{
    unsigned char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    kvferry_status status = connect_to(rig, copy, size);
    free(copy);
    return status;
}

static void test_cut(void **state)
{
    (void)state;
    memory_rig rig;
    size_t size;
    rig_setup(&rig);
    unsigned char *data = export_binding(&rig, &size);
    assert_int_equal(connect_exactly(&rig, data, size), KVFERRY_OK);
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(connect_exactly(&rig, data, cut), KVFERRY_MALFORMED);
    for (size_t cut = BODY_AT; cut < size; cut++) {
        unsigned char *copy = malloc(size);
        memcpy(copy, data, size);
        sign(copy, cut);
        assert_int_equal(connect_exactly(&rig, copy, cut), KVFERRY_MALFORMED);
        assert_int_equal(kvferry_report_count(rig.report), 1);
        free(copy);
    }
    unsigned char *longer = calloc(1, size + 1);
    memcpy(longer, data, size);
    sign(longer, size + 1);
    assert_int_equal(connect_exactly(&rig, longer, size + 1), KVFERRY_MALFORMED);
    rig_expect_reason(rig.report, 0, "binding_malformed", "end", "nothing more", "1 bytes");
    free(longer);
    kvferry_free(data);
    rig_teardown(&rig);
}

static void test_damaged(void **state)
{
    (void)state;
    memory_rig rig;
    size_t size;
    rig_setup(&rig);
    unsigned char *data = export_binding(&rig, &size);
    for (size_t at = 0; at < size; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            data[at] ^= (unsigned char)(1u << bit);
            assert_int_equal(connect_exactly(&rig, data, size), KVFERRY_MALFORMED);
            data[at] ^= (unsigned char)(1u << bit);
        }
    kvferry_free(data);
    rig_teardown(&rig);
}

/* Any byte to any value, signed: refused or taken, but never read past its end. */
static void test_hostile(void **state)
{
    (void)state;
    memory_rig rig;
    size_t size;
    unsigned taken = 0;
    rig_setup(&rig);
    unsigned char *data = export_binding(&rig, &size);
    for (size_t at = BODY_AT; at < size; at++) {
        unsigned char kept = data[at];
        for (unsigned value = 0; value < 256; value++) {
            data[at] = (unsigned char)value;
            sign(data, size);
            kvferry_status status = connect_exactly(&rig, data, size);
            assert_true(status == KVFERRY_OK || status == KVFERRY_MALFORMED);
            taken += status == KVFERRY_OK;
        }
        data[at] = kept;
    }
    assert_in_range(taken, 1, 256 * (size - BODY_AT));
    kvferry_free(data);
    rig_teardown(&rig);
}

/* Where each field lies for names "memory" (6) and "there" (5), and an address of 16 bytes. */
enum {
    ENGINE_AT = BODY_AT + 2,
    NAME_AT = ENGINE_AT + 6 + 2,
    COUNT_AT = NAME_AT + 5 + 4 + 16,
    SEGMENT_AT = COUNT_AT + 4
};

static void expect_refusal(memory_rig *rig, unsigned char *data, size_t size, const char *code,
                           const char *place)
{
    sign(data, size);
    assert_int_equal(connect_exactly(rig, data, size), KVFERRY_MALFORMED);
    assert_string_equal(kvferry_report_get(rig->report, 0)->code, code);
    assert_string_equal(kvferry_report_get(rig->report, 0)->place, place);
}

static void test_fields(void **state)
{
    (void)state;
    memory_rig rig;
    size_t size;
    rig_setup(&rig);
    unsigned char *data = export_binding(&rig, &size);
    unsigned char *work = malloc(size);
    assert_memory_equal(data + ENGINE_AT, "memory", 6);
    assert_memory_equal(data + NAME_AT, "there", 5);
    assert_int_equal(data[COUNT_AT], 1);
    const struct {
        size_t at, bytes;
        unsigned char value;
        const char *code, *place;
    } cases[] = {
        {4, 1, 3, "binding_version", "version"},
        {ENGINE_AT, 1, 'x', "binding_engine", "engine"},
        {COUNT_AT, 4, 0xff, "binding_malformed", "segments"},
        {COUNT_AT, 1, 2, "binding_malformed", "segments[1]"},
        {COUNT_AT, 1, 0, "binding_malformed", "end"},
        {SEGMENT_AT, 1, 7, "binding_malformed", "segments[0]"},         /* live */
        {SEGMENT_AT + 1, 1, 3, "binding_malformed", "segments[0]"},     /* memory kind */
        {SEGMENT_AT + 2, 8, 0xff, "binding_malformed", "segments[0]"},  /* address: wraps */
        {SEGMENT_AT + 10, 8, 0xff, "binding_malformed", "segments[0]"}, /* bytes: wraps */
        {SEGMENT_AT + 10, 8, 0, "binding_malformed", "segments[0]"},    /* bytes: none */
        {SEGMENT_AT + 18, 4, 0xff, "binding_malformed", "segments[0]"}, /* key: longer than all */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memcpy(work, data, size);
        memset(work + cases[i].at, cases[i].value, cases[i].bytes);
        expect_refusal(&rig, work, size, cases[i].code, cases[i].place);
    }
    free(work);
    kvferry_free(data);
    rig_teardown(&rig);
}

/* A name with bytes that a terminal would obey is shown without them. */
static void test_name(void **state)
{
    (void)state;
    memory_rig rig;
    size_t size;
    kvferry_peer *peer;
    kvferry_transfer *transfer = NULL;
    rig_setup(&rig);
    unsigned char *data = export_binding(&rig, &size);
    memcpy(data + NAME_AT, "a\033[1m", 5);
    sign(data, size);
    assert_int_equal(kvferry_engine_connect(rig.local, data, size, &peer, NULL), KVFERRY_OK);
    const kvferry_copy copy = {.target_offset = RIG_BYTES, .bytes = 1};
    assert_int_equal(kvferry_transfer_begin(rig.local, peer, KVFERRY_WRITE, &copy, 1, 0, &transfer,
                                            rig.report),
                     KVFERRY_OUT_OF_RANGE);
    assert_string_equal(kvferry_report_get(rig.report, 0)->worker, "a?[1m");
    kvferry_free(data);
    rig_teardown(&rig);
}

/* A range that its owner does not have is caught by the owner's side of the memory engine. */
static void test_lie(void **state)
{
    (void)state;
    memory_rig rig;
    size_t size;
    kvferry_peer *peer;
    kvferry_transfer *transfer;
    rig_setup(&rig);
    unsigned char *data = export_binding(&rig, &size);
    data[SEGMENT_AT + 12] = 0xff; /* 16 MiB instead of 4 KiB */
    sign(data, size);
    assert_int_equal(kvferry_engine_connect(rig.local, data, size, &peer, NULL), KVFERRY_OK);
    const kvferry_copy copy = {.target_offset = 100000, .bytes = 1};
    assert_int_equal(kvferry_transfer_begin(rig.local, peer, KVFERRY_WRITE, &copy, 1, 0, &transfer,
                                            rig.report),
                     KVFERRY_OK);
    assert_int_equal(rig_finish(&rig, transfer), KVFERRY_ENGINE);
    kvferry_free(data);
    rig_teardown(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),    cmocka_unit_test(test_damaged), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_fields), cmocka_unit_test(test_name),    cmocka_unit_test(test_lie),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
