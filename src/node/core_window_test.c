/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: what is moved of their first block, and who is too old to be asked for all of it. */
#include "node/rig_test.h"

/* Of 11 tokens the last two: the window begins at token 9, its block at token 8. */
enum { TOKENS = 11, WINDOW = 2, LAST_BLOCK = TOKENS / RIG_TOKENS, SALT = 3 };

static const unsigned char old_minor[] = {1, 1};

typedef struct windows {
    rig *r;
    size_t p, d;
} windows;

static windows begin(bool verify)
{
    rig *r = rig_create();
    if (verify) {
        r->options.verify = true;
        r->options.checksums = &rig_checksums;
    }
    size_t p = rig_engine_of(r, &(rig_shape){.engine_id = "prefill", .tps = 2, .pps = 1, .window = WINDOW});
    size_t d = rig_engine_of(r, &(rig_shape){.engine_id = "decode", .tps = 1, .pps = 1, .window = WINDOW});
    return (windows){r, p, d};
}

static void offer(const windows *w, const char *id)
{
    for (size_t i = w->p; i < w->p + 2; i++) {
        rig_cells(w->r, i, SALT, 5, TOKENS, false);
        assert_int_equal(rig_offer(w->r, i, id, 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    }
}

/* Into blocks 9, 10 and 11, or `none`. */
static void ask(const windows *w, const char *id, bool whole, bool none)
{
    rig_tables tables;
    rig_fill_tables(&tables, 9, TOKENS, false);
    const kvferry_ask ask = {.size = sizeof(ask), .transfer_id = id, .engine_id = "prefill",
                             .where = w->r->nodes[w->p].address, .tokens = TOKENS, .tables = tables.tables,
                             .table_count = none ? 0 : tables.count, .whole_blocks = whole};
    assert_int_equal(core_ask(w->r->nodes[w->d].core, &ask, w->r->now, w->r->report), KVFERRY_OK);
    rig_run(w->r);
    rig_wait(w->r, 10);
}

static void assert_token(const windows *w, uint32_t token, bool there)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        for (uint32_t head = 0; head < RIG_HEADS; head++) {
            uint8_t found = *rig_cell(w->r, w->d, layer, 9 + token / RIG_TOKENS, token % RIG_TOKENS, head);
            assert_int_equal(found, there ? rig_value(SALT, layer, token, head) : 0);
        }
}

static void moves(bool whole, bool verify)
{
    windows w = begin(verify);
    offer(&w, "t");
    ask(&w, "t", whole, false);
    rig_expect_done(w.r, w.d, "t");
    for (uint32_t token = 0; token < TOKENS; token++)
        assert_token(&w, token, token >= TOKENS - WINDOW || (whole && token / RIG_TOKENS == LAST_BLOCK));
    rig_free(w.r);
}

static void the_window_alone_is_moved(void **state) { (void)state; moves(false, false); }
static void its_first_block_is_moved_whole(void **state) { (void)state; moves(true, false); }
static void verify_compares_whole_blocks(void **state) { (void)state; moves(true, true); }

/* It would read over the field, and leave the block in part. */
static void an_old_worker_is_not_asked_for_whole_blocks(void **state)
{
    (void)state;
    windows w = begin(false);
    w.r->nodes[w.p + 1].version = old_minor;
    offer(&w, "t");
    ask(&w, "t", true, false);
    const kvferry_event *event = w.r->nodes[w.d].events[w.r->nodes[w.d].event_count - 1];
    const kvferry_reason *reason = kvferry_report_get(event->report, 0);
    assert_non_null(strstr(reason->message, "1.2"));
    assert_non_null(strstr(reason->message, "1.1"));
    assert_non_null(strstr(reason->message, w.r->nodes[w.p + 1].address));
    rig_expect_end(w.r, w.d, "t", KVFERRY_OUTCOME_FAILED, "message_version");
    rig_expect_released(w.r, w.d, "t", KVFERRY_OUTCOME_FAILED, "message_version");
    for (uint32_t token = 0; token < TOKENS; token++)
        assert_token(&w, token, false);
    for (size_t i = w.p; i < w.p + 2; i++) /* they hear of it: no lease is waited out */
        rig_expect_end(w.r, i, "t", KVFERRY_OUTCOME_FAILED, "message_version");
    rig_free(w.r);
}

static void an_old_worker_is_asked_for_what_it_knows(void **state)
{
    (void)state;
    windows w = begin(false);
    w.r->nodes[w.p + 1].version = old_minor;
    offer(&w, "t");
    ask(&w, "t", false, false);
    rig_expect_done(w.r, w.d, "t");
    offer(&w, "hit");
    ask(&w, "hit", true, true); /* a full hit: only to release the other side's blocks */
    rig_expect_done(w.r, w.d, "hit");
    rig_free(w.r);
}

/* Members were added at the end: what was built against an older header has none there. */
static void a_caller_of_an_older_header_is_told_so(void **state)
{
    (void)state;
    windows w = begin(false);
    const size_t older = offsetof(kvferry_ask, whole_blocks);
    const kvferry_ask ask = {.size = older, .transfer_id = "t", .engine_id = "prefill", .where = ""};
    const kvferry_offer offer = {.size = sizeof(offer) - 1, .transfer_id = "t"};
    assert_int_equal(core_ask(w.r->nodes[w.d].core, &ask, w.r->now, w.r->report), KVFERRY_INVALID);
    const kvferry_reason *reason = kvferry_report_get(w.r->report, 0);
    assert_string_equal(reason->code, "transfer_invalid");
    assert_int_equal(strtoul(reason->found, NULL, 10), older);
    kvferry_report_clear(w.r->report);
    assert_int_equal(core_offer(w.r->nodes[w.p].core, &offer, w.r->now, w.r->report), KVFERRY_INVALID);
    assert_non_null(strstr(kvferry_report_get(w.r->report, 0)->message, "header"));
    rig_free(w.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_window_alone_is_moved),
        cmocka_unit_test(its_first_block_is_moved_whole),
        cmocka_unit_test(verify_compares_whole_blocks),
        cmocka_unit_test(an_old_worker_is_not_asked_for_whole_blocks),
        cmocka_unit_test(an_old_worker_is_asked_for_what_it_knows),
        cmocka_unit_test(a_caller_of_an_older_header_is_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
