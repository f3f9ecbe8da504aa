/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages in good form that are not true, by one that is let in. Each gets a named answer or is counted, and
 * nothing is written, ended or released that is not its own.
 */
#include "node/liar_test.h"

/* --- by one that is let in ---------------------------------------------------------------------------------- */

static void no_incarnation_is_two_workers(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    shake_hands(&t.l);
    /* another rank of the engine, of other sizes */
    set_roster(&t.l, kvferry_layout_worker(t.l.layout));
    wire_member two[2] = {t.l.member, t.l.member};
    two[0].worker.tp_size = two[1].worker.tp_size = 2;
    two[1].worker.tp_rank = 1;
    wire_roster roster = {.engine_id = "evil", .members = two, .count = 2};
    memcpy(two[0].incarnation, "dddddddddddddddd", WIRE_INCARNATION_TEXT);
    wire_roster_digest(&roster, roster.digest);
    wire_message hello = hello_of(WIRE_HELLO, &roster);
    hello.body.hello.worker = two[1].worker;
    tell(&t.l, hello);
    expect_answer(&t.l, WIRE_WELCOME, "worker_of_another");
    /* the same one in two ranks */
    memcpy(two[0].incarnation, EVIL_NAME, WIRE_INCARNATION_TEXT);
    wire_roster_digest(&roster, roster.digest);
    t.l.link += 2;
    tell(&t.l, hello_of(WIRE_HELLO, &roster));
    expect_answer(&t.l, WIRE_WELCOME, "worker_of_another");
    /* another engine */
    t.l.engine_id = "evil-too";
    set_roster(&t.l, kvferry_layout_worker(t.l.layout));
    tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
    expect_answer(&t.l, WIRE_WELCOME, "worker_of_another");
    /* a worker of another engine, and this node itself, as its own */
    const char *const others[] = {t.r->nodes[t.d].incarnation, t.r->nodes[t.p].incarnation};
    for (size_t i = 0; i < 2; i++) {
        t.l.name = others[i];
        set_roster(&t.l, kvferry_layout_worker(t.l.layout));
        tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
        expect_answer(&t.l, WIRE_WELCOME, "worker_of_another");
    }
    assert_int_equal(refused_at(t.r, t.p, "worker_of_another"), 5);
    end(&t);
}

static void asks_name_blocks_that_the_own_document_has(void **state)
{
    (void)state;
    static const uint32_t good[] = {1, 2, 3}, far[] = {1, RIG_BLOCKS}, farther[] = {UINT32_MAX, 1}, twice[] = {2, 2};
    static const struct {
        const char *id;
        kvferry_block_table table;
        uint64_t tokens;
        const char *code;
    } lies[] = {
        {"far", {"attn", 0, far, 2}, TOKENS, "block_range"},
        {"farther", {"attn", 0, farther, 2}, TOKENS, "block_range"},
        {"twice", {"attn", 0, twice, 2}, TOKENS, "target_block_twice"},
        {"group", {"no such group", 0, good, 2}, TOKENS, "group_unknown"},
        {"uneven", {"attn", 1, good, 2}, TOKENS, "first_token_misaligned"},
        {"more", {"attn", 0, good, 3}, TOKENS + 1, "source_null"},
        {"most", {"attn", 0, good, 3}, INT64_MAX, "source_null"},
    };
    pair t = begin(false, "evil");
    shake_hands(&t.l);
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        assert_int_equal(rig_offer(t.r, t.p, lies[i].id, 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
        wire_message ask = ask_of(&t.l, lies[i].id, &lies[i].table, 1);
        ask.body.ask.tokens = lies[i].tokens;
        tell(&t.l, ask);
        expect_answer(&t.l, WIRE_VERDICT, lies[i].code);
        assert_int_equal(t.l.outcome, WIRE_FAILED);
        rig_expect(t.r, t.p, KVFERRY_EVENT_ENDED, lies[i].id, KVFERRY_OUTCOME_FAILED, lies[i].code);
    }
    assert_int_equal(t.r->nodes[t.p].write_count, 0);
    assert_int_equal(rig_offer(t.r, t.p, "stale", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    wire_message stale = ask_of(&t.l, "stale", &(kvferry_block_table){"attn", 0, good, 2}, 1);
    memset(stale.body.ask.target_roster, 'a', WIRE_DIGEST_TEXT - 1);
    tell(&t.l, stale);
    expect_answer(&t.l, WIRE_VERDICT, "roster_changed");
    assert_int_equal(rig_ask(t.r, t.d, "stale", t.p, 1, TOKENS), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "stale");
    rig_expect_done(t.r, t.p, "stale");
    end(&t);
}

static void what_another_engine_has_asked_for_is_not_given(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    shake_hands(&t.l);
    t.r->nodes[t.p].hold = true;
    assert_int_equal(rig_offer(t.r, t.p, "a", 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "a", t.p, 1, TOKENS), KVFERRY_OK);
    const kvferry_block_table table = {"attn", 0, (const uint32_t[]){1, 2}, 2};
    tell(&t.l, ask_of(&t.l, "a", &table, 1));
    expect_answer(&t.l, WIRE_VERDICT, "transfer_taken");
    tell(&t.l, settle_of(WIRE_SETTLE, "a")); /* it settles for itself, which nobody waits for */
    expect_answer(&t.l, WIRE_SETTLED, "");
    rig_quiet(t.r, t.p);
    assert_int_equal(t.r->nodes[t.p].write_count, 1);
    t.r->nodes[t.p].hold = false;
    rig_finish(t.r, t.p, KVFERRY_OK);
    rig_expect_done(t.r, t.d, "a");
    rig_expect_done(t.r, t.p, "a");
    end(&t);
}

/* What came too early is in a list of who asked for it, which outlives it when a node ends. */
static void a_node_ends_while_asks_are_early(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    shake_hands(&t.l);
    tell(&t.l, ask_of(&t.l, "early", NULL, 0));
    tell(&t.l, ask_of(&t.l, "earlier", NULL, 0));
    assert_int_equal(t.r->nodes[t.p].core->early_count, 2);
    end(&t);
}

/* The link is another's; nobody comes to be known without an engine. */
static void a_hello_over_a_link_of_the_own_engine_is_ignored(void **state)
{
    (void)state;
    rig *r = rig_create();
    size_t p = rig_engine(r, "prefill", 2, 1), d = rig_engine(r, "decode", 1, 1);
    liar l = make_liar(r, p, "evil");
    for (size_t i = 0; i < r->link_count; i++)
        if (r->links[i].from == p + 1 && r->links[i].to == p)
            l.link = r->links[i].in;
    assert_int_not_equal(l.link, STRANGER);
    set_roster(&l, kvferry_layout_worker(l.layout));
    uint64_t before = ignored_at(r, p);
    tell(&l, hello_of(WIRE_HELLO, &l.roster));
    expect_answer(&l, WIRE_TYPES, "");
    assert_int_equal(ignored_at(r, p), before + 1);
    assert_null(core_target_find(r->nodes[p].core, l.name));
    connect_to(r, d, p); /* its documents come */
    expect_connected(r, d);
    end_liar(&l);
    rig_free(r);
}

/* --- rosters and documents ----------------------------------------------------------------------------------- */

static void forged_rosters_are_malformed(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    const kvferry_worker one = *kvferry_layout_worker(t.l.layout);
    for (size_t i = 0; i < 5; i++) {
        set_roster(&t.l, &one);
        wire_member two[2] = {t.l.member, t.l.member};
        wire_roster roster = {.engine_id = "evil", .members = two, .count = 2};
        two[0].worker.tp_size = two[1].worker.tp_size = 2;
        two[1].worker.tp_rank = i != 1;            /* 1: the same worker twice */
        two[0].worker.tp_rank = i == 2 ? 7 : 0;    /* 2: outside */
        two[1].worker.pp_size = i == 3 ? 2 : 1;    /* 3: unequal sizes */
        roster.count = i == 4 ? 1 : 2;             /* 4: too few */
        wire_roster_digest(&roster, roster.digest);
        roster.digest[0] ^= i == 0;                /* 0: another digest */
        uint64_t before = malformed_at(t.r, t.p);
        wire_message hello = hello_of(WIRE_HELLO, &roster);
        hello.body.hello.worker = one;
        tell(&t.l, hello);
        assert_int_equal(malformed_at(t.r, t.p), before + 1);
        expect_answer(&t.l, WIRE_ERROR, i == 0 ? "digest_differs" : i == 2 ? "rank_range" : "roster_invalid");
    }
    end(&t);
}

/* Replaces the number behind a key by one that is as long. */
static void patch(unsigned char *document, size_t size, const char *key, const char *from, const char *to)
{
    for (size_t i = 0; i + strlen(key) + strlen(from) <= size; i++) {
        unsigned char *value = document + i + strlen(key);
        if (memcmp(document + i, key, strlen(key)) == 0 && memcmp(value, from, strlen(from)) == 0) {
            memcpy(value, to, strlen(from));
            return;
        }
    }
    fail_msg("no %s in the document", key);
}

static void forged_documents_are_refused_with_their_findings(void **state)
{
    (void)state;
    static const struct {
        const char *key, *from, *to, *code;
    } lies[] = {
        {"page_stride", "\xcc\x80", "\xcc\x40", "cells_overlap"}, /* 128 bytes */
        {"pages", "\x20", "\x7f", "streams_overlap"},
        {"bytes", "\xcd\x40", "\xcd\x01", "page_bounds"}, /* 16 KiB */
        {"tp_size", "\x01", "\x02", "document_differs"}, /* not the worker that the roster names */
        {"engine_id", "\xa4" "evil", "\xa4" "good", "document_differs"},
    };
    pair t = begin(false, "evil");
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        liar l = make_liar(t.r, t.p, "evil");
        l.link = STRANGER + 2 * i;
        patch(l.document, l.document_size, lies[i].key, lies[i].from, lies[i].to);
        set_roster(&l, kvferry_layout_worker(l.layout));
        tell(&l, hello_of(WIRE_HELLO, &l.roster));
        expect_answer(&l, WIRE_GET, "");
        say_documents(&l, l.document, l.document_size);
        expect_answer(&l, WIRE_WELCOME, lies[i].code);
        assert_int_equal(refused_at(t.r, t.p, lies[i].code), i == 4 ? 2 : 1);
        tell(&l, ask_of(&l, "a", NULL, 0));
        expect_answer(&l, WIRE_ERROR, "hello_missing");
        end_liar(&l);
    }
    end(&t);
}

static void a_roster_has_no_documents_of_others(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    set_roster(&t.l, kvferry_layout_worker(t.l.layout));
    memcpy(t.l.member.digest, t.r->nodes[t.d].core->document->digest, WIRE_DIGEST_TEXT);
    wire_roster_digest(&t.l.roster, t.l.roster.digest);
    tell(&t.l, hello_of(WIRE_HELLO, &t.l.roster));
    expect_answer(&t.l, WIRE_WELCOME, "document_differs");
    end(&t);
}

static char refusal[1024]; /* the last line about one */

static void keep_refusal(void *context, kvferry_log_level level, const char *line)
{
    (void)context, (void)level;
    if (strstr(line, ": refused, "))
        snprintf(refusal, sizeof(refusal), "%s", line);
}

/* A refused hello, and a refusal that comes after its documents. */
/* Anybody may claim a document that is not here yet. Who it is of, and sends it, is in the right all the same. */
static void a_false_claim_is_held_against_who_made_it(void **state)
{
    (void)state;
    for (size_t side = 0; side < 2; side++) {
        rig *r = rig_create();
        size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
        const size_t at = side ? d : p;
        const core_document *honest = r->nodes[side ? p : d].core->document;
        liar l = make_liar(r, at, "evil");
        set_roster(&l, kvferry_layout_worker(l.layout));
        memcpy(l.member.digest, honest->digest, sizeof(l.member.digest));
        wire_roster_digest(&l.roster, l.roster.digest);
        tell(&l, hello_of(WIRE_HELLO, &l.roster));
        expect_answer(&l, WIRE_GET, "");
        r->doubles = true; /* the second copy is lacked by the liar only */
        connect_to(r, d, p);
        expect_connected(r, d);
        r->doubles = false;
        assert_int_equal(refused_at(r, at, "document_differs"), 0);
        say_documents(&l, honest->data, honest->size);
        expect_answer(&l, WIRE_WELCOME, "document_differs");
        assert_int_equal(refused_at(r, at, "document_differs"), 1);
        move(r, p, d, "good");
        end_liar(&l);
        rig_free(r);
    }
}

static void the_log_says_where_a_liar_is(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.log = keep_refusal;
    size_t p = rig_engine(r, "prefill", 1, 1);
    liar l = make_liar(r, p, "evil");
    set_roster(&l, kvferry_layout_worker(l.layout));
    l.place = "192.0.2.1";
    wire_message hello = hello_of(WIRE_HELLO, &l.roster);
    hello.body.hello.engine = "another";
    tell(&l, hello);
    expect_answer(&l, WIRE_WELCOME, "transfer_engine_differs");
    assert_non_null(strstr(refusal, EVIL_NAME " at 192.0.2.1: refused, transfer_engine_differs"));
    r->nodes[p].reaches_nobody = true;
    tell(&l, hello_of(WIRE_HELLO, &l.roster));
    expect_answer(&l, WIRE_GET, "");
    l.place = NULL;
    say_documents(&l, l.document, l.document_size);
    assert_non_null(strstr(refusal, EVIL_NAME " at 192.0.2.1: refused, peer_lost"));
    end_liar(&l);
    rig_free(r);
}

static void documents_that_nobody_asked_for_are_not_kept(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    uint64_t before = ignored_at(t.r, t.p), bytes = t.r->nodes[t.p].core->document_bytes;
    say_documents(&t.l, t.l.document, t.l.document_size);
    assert_int_equal(ignored_at(t.r, t.p), before + 1);
    assert_int_equal(t.r->nodes[t.p].core->document_bytes, bytes);
    shake_hands(&t.l);
    bytes = t.r->nodes[t.p].core->document_bytes;
    liar other = make_liar(t.r, t.p, "evil-too");
    other.name = EVIL_NAME;
    say_documents(&other, other.document, other.document_size);
    assert_int_equal(t.r->nodes[t.p].core->document_bytes, bytes);
    end_liar(&other);
    end(&t);
}

enum { MANY = 2000 };

/* The own document of the node that is lied to, again and again. */
static wire_message get_of(const pair *t, const char *digests[MANY])
{
    wire_message message = {.type = WIRE_GET, .body.documents = {.digests = digests, .count = MANY}};
    for (size_t i = 0; i < MANY; i++)
        digests[i] = t->r->nodes[t->p].core->document->digest;
    return message;
}

static void documents_are_for_those_that_shook_hands_and_each_once(void **state)
{
    (void)state;
    const char *digests[MANY];
    pair t = begin(false, "evil");
    uint64_t before = ignored_at(t.r, t.p);
    tell(&t.l, get_of(&t, digests));
    expect_answer(&t.l, WIRE_ERROR, "hello_missing");
    assert_int_equal(ignored_at(t.r, t.p), before + 1);
    shake_hands(&t.l);
    tell(&t.l, get_of(&t, digests));
    expect_answer(&t.l, WIRE_DOCUMENTS, "");
    assert_int_equal(t.l.documents, 1);
    end(&t);
}

/* The same question again and again, before anything is sent: as much as in one message, and one more, is kept. */
static void ask_often(const pair *t, wire_message message)
{
    enum { TIMES = 1000 };
    node_core *core = t->r->nodes[t->p].core;
    uint64_t most = core->options.max_message_bytes, before = ignored_at(t->r, t->p);
    core_effect effect;
    void *data;
    size_t size;
    message.major = WIRE_MAJOR;
    message.engine_id = t->l.engine_id;
    message.transfer_id = "";
    memcpy(message.sender, EVIL_NAME, sizeof(EVIL_NAME));
    assert_int_equal(wire_encode(&message, &data, &size), KVFERRY_OK);
    for (int i = 0; i < TIMES; i++)
        core_received(core, t->l.link, t->l.key, NULL, data, size, t->r->now);
    free(data);
    assert_in_range(core->queued_bytes, most, most + most / 4);
    assert_in_range(ignored_at(t->r, t->p), before + TIMES / 2, before + TIMES);
    while (core_next_effect(core, &effect)) {
    }
    assert_int_equal(core->queued_bytes, 0);
}

static void answers_that_were_not_sent_yet_are_bounded(void **state)
{
    (void)state;
    const char *digests[MANY];
    pair t = begin(false, "evil");
    shake_hands(&t.l);
    node_core *core = t.r->nodes[t.p].core;
    core->options.max_message_bytes = 10 * core->document->size;
    ask_often(&t, get_of(&t, digests));
    ask_often(&t, (wire_message){.type = WIRE_STATUS});
    tell(&t.l, get_of(&t, digests));
    expect_answer(&t.l, WIRE_DOCUMENTS, "");
    end(&t);
}

/* --- to a decode worker --------------------------------------------------------------------------------------- */

static bool is_verdict(rig *r, size_t from, size_t to, wire_type type)
{
    (void)r, (void)from, (void)to;
    return type == WIRE_VERDICT;
}

enum { CROWD = WIRE_MAX_WORKERS, FLOODS = 16 };

/* Who looked through all members for each document would take minutes for this. */
static void a_flood_of_documents_for_a_great_roster_is_read_once(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    wire_member *members = calloc(CROWD, sizeof(*members));
    char (*texts)[WIRE_DIGEST_TEXT] = calloc(CROWD, sizeof(*texts));
    const char **digests = calloc(CROWD, sizeof(*digests));
    const void **documents = calloc(CROWD, sizeof(*documents));
    uint32_t *words = calloc(CROWD, sizeof(*words));
    size_t *sizes = calloc(CROWD, sizeof(*sizes));
    assert_true(members && texts && digests && documents && words && sizes);
    for (uint32_t i = 0; i < CROWD; i++) {
        members[i] = (wire_member){.worker = {0, 1, 0, 1, i, CROWD}, .address = EVIL_ADDRESS};
        snprintf(members[i].incarnation, sizeof(members[i].incarnation), "eeee%012x", i);
        snprintf(members[i].digest, sizeof(members[i].digest), "%032x", i);
        words[i] = i;
        documents[i] = &words[i];
        sizes[i] = sizeof(words[i]);
        wire_digest(documents[i], sizes[i], texts[i]);
        digests[i] = texts[i];
    }
    wire_roster roster = {.engine_id = "evil", .members = members, .count = CROWD};
    wire_roster_digest(&roster, roster.digest);
    t.l.name = members[0].incarnation;
    tell(&t.l, hello_of(WIRE_HELLO, &roster));
    expect_answer(&t.l, WIRE_GET, "");
    wire_message flood = {.type = WIRE_DOCUMENTS};
    flood.body.documents = (wire_documents){digests, documents, sizes, CROWD};
    uint64_t before = ignored_at(t.r, t.p);
    for (size_t i = 1; i <= FLOODS; i++) {
        tell(&t.l, flood);
        expect_answer(&t.l, WIRE_TYPES, "");
        assert_int_equal(ignored_at(t.r, t.p), before + i * CROWD);
    }
    free(members);
    free(texts);
    free(digests);
    free(documents);
    free(words);
    free(sizes);
    end(&t);
}

static void only_a_document_that_was_lacking_draws_the_next_get(void **state)
{
    (void)state;
    pair t = begin(false, "evil");
    wire_member members[2];
    void *documents[2];
    size_t sizes[2];
    for (uint32_t i = 0; i < 2; i++) {
        kvferry_layout *layout = rig_layout(&(rig_shape){.engine_id = "evil", .tps = 2, .tp = i, .pps = 1});
        assert_int_equal(kvferry_layout_write_msgpack(layout, &documents[i], &sizes[i]), KVFERRY_OK);
        members[i] = (wire_member){.worker = *kvferry_layout_worker(layout), .address = EVIL_ADDRESS};
        snprintf(members[i].incarnation, sizeof(members[i].incarnation), "%015u%u", 0, i + 1);
        wire_digest(documents[i], sizes[i], members[i].digest);
        kvferry_layout_free(layout);
    }
    wire_roster roster = {.engine_id = "evil", .members = members, .count = 2};
    wire_roster_digest(&roster, roster.digest);
    t.l.name = members[0].incarnation;
    tell(&t.l, hello_of(WIRE_HELLO, &roster));
    expect_answer(&t.l, WIRE_GET, "");
    say_documents(&t.l, "zz", 2);
    expect_answer(&t.l, WIRE_TYPES, "");
    say_documents(&t.l, documents[0], sizes[0]);
    expect_answer(&t.l, WIRE_GET, "");
    say_documents(&t.l, documents[0], sizes[0]);
    expect_answer(&t.l, WIRE_TYPES, "");
    say_documents(&t.l, documents[1], sizes[1]);
    expect_answer(&t.l, WIRE_WELCOME, "");
    kvferry_free(documents[0]);
    kvferry_free(documents[1]);
    end(&t);
}

static void verdicts_and_settled_are_of_who_was_asked_and_of_what(void **state)
{
    (void)state;
    pair t = begin(false, "prefill");
    assert_int_equal(rig_offer(t.r, t.p, "a", 5, TOKENS, KVFERRY_NOT_READY), KVFERRY_OK);
    assert_int_equal(rig_ask(t.r, t.d, "a", t.p, 1, TOKENS), KVFERRY_OK);
    t.l.at = t.d;
    wire_message done = {.type = WIRE_VERDICT, .transfer_id = "a"};
    memcpy(done.body.verdict.attempt, "1234567812345678", WIRE_INCARNATION_TEXT);
    for (size_t i = 0; i < 4; i++) { /* another attempt, by the worker and by a stranger; over its link and another */
        t.l.name = i % 2 ? t.r->nodes[t.p].incarnation : EVIL_NAME;
        t.l.link = i / 2 ? link_between(t.r, t.d, t.p) : STRANGER;
        uint64_t before = ignored_at(t.r, t.d);
        tell(&t.l, done);
        tell(&t.l, settle_of(WIRE_SETTLED, "a"));
        assert_true(t.l.link == STRANGER || ignored_at(t.r, t.d) > before);
        rig_quiet(t.r, t.d);
        rig_wait(t.r, RIG_RETRY_MS);
    }
    /* The right attempt by a stranger, and what was cut off is not released by it. */
    const core_request *request = t.r->nodes[t.d].core->requests;
    memcpy(done.body.verdict.attempt, request->parts[0].attempt, WIRE_INCARNATION_TEXT);
    t.l.name = EVIL_NAME;
    t.l.link = link_between(t.r, t.d, t.p);
    tell(&t.l, done);
    rig_quiet(t.r, t.d);
    rig_wait(t.r, RIG_RETRY_MS);
    assert_int_equal(core_ready(t.r->nodes[t.p].core, "a", t.r->now), KVFERRY_OK);
    rig_expect_done(t.r, t.d, "a");
    rig_expect_done(t.r, t.p, "a");
    end(&t);
}

static void checksums_are_of_pieces_that_the_plan_has(void **state)
{
    (void)state;
    rig *r = rig_create();
    r->options.verify = true;
    r->options.checksums = &rig_checksums;
    size_t p = rig_engine(r, "prefill", 1, 1), d = rig_engine(r, "decode", 1, 1);
    connect_to(r, d, p);
    r->loses = is_verdict;
    const wire_checksum first[] = {{0, 1}}, far[] = {{UINT32_MAX, 8}, {7, 8}, {1, 2}, {1, 2}};
    for (size_t i = 0; i < 3; i++) {
        char id[2] = {(char)('a' + i)};
        assert_int_equal(rig_offer(r, p, id, 5, TOKENS, KVFERRY_READY), KVFERRY_OK);
        assert_int_equal(rig_ask(r, d, id, p, 1, TOKENS), KVFERRY_OK);
        liar l = make_liar(r, d, "prefill");
        l.name = r->nodes[p].incarnation;
        l.link = link_between(r, d, p);
        core_request *request;
        HASH_FIND_STR(r->nodes[d].core->requests, id, request);
        wire_message done = {.type = WIRE_VERDICT, .transfer_id = id};
        memcpy(done.body.verdict.attempt, request->parts[0].attempt, WIRE_INCARNATION_TEXT);
        done.body.verdict.checksums = (wire_checksum *)(uintptr_t)(i == 1 ? first : far);
        done.body.verdict.checksum_count = i == 0 ? 0 : i == 1 ? 1 : 4;
        tell(&l, done);
        rig_expect_end(r, d, id, KVFERRY_OUTCOME_FAILED, "checksum_differs");
        rig_expect_released(r, d, id, KVFERRY_OUTCOME_FAILED, "checksum_differs");
        end_liar(&l);
    }
    r->loses = NULL;
    rig_free(r);
}

/* As after a link that broke on the other side only: what it had sent over that is read last. */
static void settle_late(bool recorded)
{
    rig *r = rig_create();
    r->options.max_transfers = 2;
    size_t p = rig_engine(r, "prefill", 1, 1);
    liar l = make_liar(r, p, "evil");
    rig_tables t, own;
    rig_fill_tables(&t, 1, TOKENS, false);
    rig_fill_tables(&own, 5, TOKENS, false);
    shake_hands(&l);
    const core_link old = l.link;
    l.link += 2;
    tell(&l, hello_of(WIRE_HELLO, &l.roster));
    expect_answer(&l, WIRE_WELCOME, "");
    for (int i = 0; i < 2; i++) { /* there is a record of the settle, which then makes room, or there is no room for it */
        if (recorded == (i == 0)) {
            tell(&l, settle_of(WIRE_SETTLE, "late"));
            assert_int_equal(l.answer, WIRE_SETTLED);
        } else {
            tell(&l, ask_of(&l, "early1", t.tables, t.count)); /* so many are remembered, and no more */
            tell(&l, ask_of(&l, "early2", t.tables, t.count));
        }
    }
    l.link = old;
    tell(&l, hello_of(WIRE_HELLO, &l.roster));
    expect_answer(&l, WIRE_ERROR, "link_closed");
    tell(&l, ask_of(&l, "late", t.tables, t.count));
    expect_answer(&l, WIRE_ERROR, "hello_missing");
    const kvferry_offer offer = {sizeof(offer), "late", TOKENS, own.tables, own.count, KVFERRY_READY, r};
    assert_int_equal(core_offer(r->nodes[p].core, &offer, r->now, r->report), KVFERRY_OK);
    core_effect effect;
    while (core_next_effect(r->nodes[p].core, &effect))
        assert_int_not_equal(effect.kind, CORE_WRITE);
    end_liar(&l);
    rig_free(r);
}

static void an_ask_that_is_read_behind_its_settle_is_not_served(void **state)
{
    (void)state;
    settle_late(false);
    settle_late(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_incarnation_is_two_workers),
        cmocka_unit_test(an_ask_that_is_read_behind_its_settle_is_not_served),
        cmocka_unit_test(asks_name_blocks_that_the_own_document_has),
        cmocka_unit_test(what_another_engine_has_asked_for_is_not_given),
        cmocka_unit_test(a_node_ends_while_asks_are_early),
        cmocka_unit_test(a_hello_over_a_link_of_the_own_engine_is_ignored),
        cmocka_unit_test(forged_rosters_are_malformed),
        cmocka_unit_test(forged_documents_are_refused_with_their_findings),
        cmocka_unit_test(a_roster_has_no_documents_of_others),
        cmocka_unit_test(a_false_claim_is_held_against_who_made_it),
        cmocka_unit_test(the_log_says_where_a_liar_is),
        cmocka_unit_test(documents_that_nobody_asked_for_are_not_kept),
        cmocka_unit_test(documents_are_for_those_that_shook_hands_and_each_once),
        cmocka_unit_test(answers_that_were_not_sent_yet_are_bounded),
        cmocka_unit_test(a_flood_of_documents_for_a_great_roster_is_read_once),
        cmocka_unit_test(only_a_document_that_was_lacking_draws_the_next_get),
        cmocka_unit_test(verdicts_and_settled_are_of_who_was_asked_and_of_what),
        cmocka_unit_test(checksums_are_of_pieces_that_the_plan_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
