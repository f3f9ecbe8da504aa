/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that is let in and sends messages in its own and others' names, with the live node's own incarnation,
 * rosters, documents and transfers, true and changed: to a prefill node, and as a prefill node to a decode one, with keys
 * and without: liar_test [COUNT]. The node goes on serving a good peer, and its memory is flat.
 */
#include <zmq.h>

#include "nodes.h"

#include "node/keys.h"
#include "node/scratch_test.h"
#include "wire/wire.h"

/* Memory may grow by FLAT_KIB after the warm-up, however many messages follow. */
enum { FLAT_KIB = 24 * 1024, WARM = 500, TURN = 250, KINDS = 18, HELLO_MS = 200 };

static unsigned long count = 2000;
static const uint32_t from[] = {3, 9, 4}, to[] = {8, 2, 30};

typedef struct liar {
    bool keyed;
    void *context, *socket; /* DEALER, or ROUTER as a prefill node */
    unsigned char identity[256];
    size_t identity_size; /* of the one to answer; 0: it is a DEALER */
    kvferry_engine *engine; /* memory of its own, so that what it asks for is written */
    void *segment, *binding, *document;
    size_t binding_size, document_size;
    kvferry_layout *layout;
    char name[WIRE_INCARNATION_TEXT], address[NODE_ADDRESS_TEXT];
    char node_name[WIRE_INCARNATION_TEXT], node_roster[WIRE_DIGEST_TEXT], attempt[WIRE_INCARNATION_TEXT];
    char transfer[WIRE_MAX_ID + 1];
    wire_member member;
    wire_roster roster;
    unsigned long sent, answered[WIRE_TYPES], of_another; /* answers that a key is not the name's */
} liar;

/* --- keys ------------------------------------------------------------------------------------- */

static const char *const owners[] = {"p", "d", "liar"};

static int make_keys(void **state)
{
    (void)state;
    char all[3 * 80] = "";
    for (size_t i = 0; i < 3; i++) {
        char pub[16], line[80] = "";
        snprintf(pub, sizeof(pub), "%s.pub", owners[i]);
        MUST(kvferry_keys_generate(scratch(owners[i]), report));
        FILE *file = fopen(scratch(pub), "r");
        assert_non_null(file);
        assert_non_null(fgets(line, sizeof(line), file));
        fclose(file);
        strcat(all, line);
    }
    scratch_write("allowed", all);
    return 0;
}

static void open_node(worker *w, const char *engine_id, bool keyed)
{
    char key[128], allowed[128];
    kvferry_node_options options = nodes_options(engine_id);
    snprintf(key, sizeof(key), "%s", scratch(engine_id));
    snprintf(allowed, sizeof(allowed), "%s", scratch("allowed"));
    options.key_file = keyed ? key : NULL;
    options.allowed_keys = keyed ? allowed : NULL;
    options.log_level = KVFERRY_LOG_ERROR;
    worker_open(w, &(rig_shape){.engine_id = engine_id, .tps = 1, .pps = 1}, &options);
}

/* --- the liar --------------------------------------------------------------------------------- */

static void set_keys(liar *l, const char *server)
{
    node_key_pair pair;
    node_address address;
    const int one = 1;
    bool open;
    if (!l->keyed)
        return;
    MUST(node_key_pair_read(scratch("liar"), &pair, &open, report));
    assert_int_equal(zmq_setsockopt(l->socket, ZMQ_CURVE_SECRETKEY, pair.secret, NODE_KEY_BYTES), 0);
    if (server) {
        assert_true(node_address_parse(server, NODE_ADDRESS_TCP, &address, "", NULL));
        assert_int_equal(zmq_setsockopt(l->socket, ZMQ_CURVE_SERVERKEY, address.key, NODE_KEY_BYTES), 0);
        assert_int_equal(zmq_setsockopt(l->socket, ZMQ_CURVE_PUBLICKEY, pair.public_key, NODE_KEY_BYTES), 0);
    } else {
        assert_int_equal(zmq_setsockopt(l->socket, ZMQ_CURVE_SERVER, &one, sizeof(one)), 0);
    }
    strcat(l->address, "/");
    node_key_format(pair.public_key, l->address + strlen(l->address));
}

/* Each time another incarnation, which takes the place of the one before. */
static void set_name(liar *l)
{
    snprintf(l->name, sizeof(l->name), "%08x%08x", (unsigned)rand(), (unsigned)rand());
    l->member = (wire_member){.worker = *kvferry_layout_worker(l->layout), .address = l->address};
    memcpy(l->member.incarnation, l->name, sizeof(l->name));
    wire_digest(l->document, l->document_size, l->member.digest);
    l->roster = (wire_roster){.engine_id = "liar", .members = &l->member, .count = 1};
    wire_roster_digest(&l->roster, l->roster.digest);
}

static void make(liar *l, bool keyed)
{
    uint32_t segment;
    *l = (liar){.keyed = keyed, .context = zmq_ctx_new()};
    l->layout = rig_layout(&(rig_shape){.engine_id = "liar", .tps = 1, .pps = 1});
    MUST(kvferry_layout_write_msgpack(l->layout, &l->document, &l->document_size));
    MUST(kvferry_engine_open("memory", NULL, &l->engine, report));
    uint64_t bytes = kvferry_layout_segment(l->layout, 0)->bytes;
    l->segment = calloc(1, bytes);
    assert_non_null(l->segment);
    MUST(kvferry_engine_register(l->engine, l->segment, bytes, KVFERRY_MEMORY_HOST, &segment, report));
    MUST(kvferry_engine_export(l->engine, &l->binding, &l->binding_size, report));
}

static void end(liar *l)
{
    const int none = 0;
    zmq_setsockopt(l->socket, ZMQ_LINGER, &none, sizeof(none));
    zmq_close(l->socket);
    zmq_ctx_term(l->context);
    kvferry_engine_close(l->engine);
    kvferry_layout_free(l->layout);
    kvferry_free(l->binding);
    kvferry_free(l->document);
    free(l->segment);
}

static void fill_hello(const liar *l, wire_hello *hello)
{
    *hello = (wire_hello){.worker = l->member.worker, .expects = "", .roster = l->roster, .engine = "memory",
                          .binding = l->binding, .binding_size = l->binding_size, .lease_ms = 1000};
}

/* Sends a message of the type about the transfer, true but for `changes` bytes. */
static void say(liar *l, wire_type type, const char *sender, int changes)
{
    static const wire_outcome outcomes[] = {WIRE_DONE, WIRE_FAILED, WIRE_ABORTED, WIRE_WAITING};
    const char *digests[] = {l->member.digest};
    const void *documents[] = {l->document};
    uint32_t blocks[3] = {(uint32_t)rand() % 40, (uint32_t)rand() % 40, (uint32_t)rand() % 40};
    kvferry_block_table table = {"attn", 0, blocks, 3};
    wire_message message = {.major = WIRE_MAJOR, .type = type, .engine_id = "liar", .transfer_id = l->transfer};
    void *data;
    size_t size;
    memcpy(message.sender, sender, sizeof(message.sender));
    memcpy(message.receiver, l->node_name, sizeof(message.receiver));
    if (type == WIRE_HELLO || type == WIRE_WELCOME) {
        fill_hello(l, &message.body.hello);
    } else if (type == WIRE_ROSTER) {
        message.body.roster = l->roster;
    } else if (type == WIRE_GET || type == WIRE_DOCUMENTS) {
        message.body.documents = (wire_documents){digests, documents, &l->document_size, 1};
    } else if (type == WIRE_ASK) {
        wire_ask *ask = &message.body.ask;
        *ask = (wire_ask){.tokens = 10, .timeout_ms = 1000, .whole_blocks = l->sent % 2, .part = l->sent % 3,
                          .tables = &table, .table_count = 1};
        memcpy(ask->attempt, l->name, sizeof(ask->attempt));
        memcpy(ask->source_roster, l->node_roster, sizeof(ask->source_roster));
        memcpy(ask->target_roster, l->roster.digest, sizeof(ask->target_roster));
    } else if (type == WIRE_VERDICT || type == WIRE_SETTLE || type == WIRE_SETTLED) {
        memcpy(message.body.verdict.attempt, l->attempt, sizeof(l->attempt));
        message.body.verdict.outcome = outcomes[rand() % (type == WIRE_VERDICT ? 4 : 3)];
        message.body.verdict.part = l->sent % 2;
    } else if (type == WIRE_STATUS_TEXT) {
        message.body.text = "{}";
    }
    assert_int_equal(wire_encode(&message, &data, &size), KVFERRY_OK);
    for (; changes > 0; changes--)
        ((unsigned char *)data)[(size_t)rand() % size] = (unsigned char)rand();
    if (l->identity_size)
        zmq_send(l->socket, l->identity, l->identity_size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(l->socket, data, size, l->identity_size ? ZMQ_DONTWAIT : 0);
    free(data);
    l->sent++;
}

/* What the node says teaches its names. False: nothing came within the time. */
static bool hear(liar *l, int timeout_ms, wire_type *type)
{
    zmq_pollitem_t item = {.socket = l->socket, .events = ZMQ_POLLIN};
    wire_message message;
    zmq_msg_t data;
    if (zmq_poll(&item, 1, timeout_ms) <= 0)
        return false;
    int router = 0;
    size_t option = sizeof(router);
    zmq_getsockopt(l->socket, ZMQ_TYPE, &router, &option);
    if (router == ZMQ_ROUTER)
        l->identity_size = (size_t)zmq_recv(l->socket, l->identity, sizeof(l->identity), 0);
    zmq_msg_init(&data);
    assert_true(zmq_msg_recv(&data, l->socket, 0) >= 0);
    if (wire_decode(zmq_msg_data(&data), zmq_msg_size(&data), &message, NULL) == KVFERRY_OK) {
        *type = message.type;
        l->answered[message.type]++;
        l->of_another += kvferry_report_count(message.reasons) &&
                         strcmp(kvferry_report_get(message.reasons, 0)->code, "key_of_another") == 0;
        memcpy(l->node_name, message.sender, sizeof(l->node_name));
        if (message.type == WIRE_WELCOME && *message.body.hello.roster.digest)
            memcpy(l->node_roster, message.body.hello.roster.digest, sizeof(l->node_roster));
        if (message.type == WIRE_ASK || message.type == WIRE_SETTLE) {
            const char *attempt = message.type == WIRE_ASK ? message.body.ask.attempt : message.body.verdict.attempt;
            memcpy(l->attempt, attempt, sizeof(l->attempt));
            snprintf(l->transfer, sizeof(l->transfer), "%s", message.transfer_id);
        }
    }
    wire_message_end(&message);
    zmq_msg_close(&data);
    return true;
}

/* --- what holds ------------------------------------------------------------------------------- */

static void move(worker *prefill, worker *decode, uint32_t seed)
{
    char id[32];
    snprintf(id, sizeof(id), "good-%u", seed);
    expect_moved(prefill, decode, id, from, to, seed);
}

static void drop_events(worker *w)
{
    kvferry_event *event;
    while ((event = kvferry_node_next_event(w->node)) != NULL)
        kvferry_event_free(event);
}

static unsigned long warmth(unsigned long all) { return all / 4 > WARM ? all / 4 : WARM; }

/* --- to a prefill node ------------------------------------------------------------------------- */

/* Another connection, incarnation and transfer, which it asks for as it should. */
static void come_again(liar *l, worker *prefill)
{
    const int none = 0;
    node_address address;
    char text[NODE_ADDRESS_TEXT];
    wire_type type = WIRE_TYPES;
    if (l->socket) {
        zmq_setsockopt(l->socket, ZMQ_LINGER, &none, sizeof(none));
        zmq_close(l->socket);
    }
    l->socket = zmq_socket(l->context, ZMQ_DEALER);
    strcpy(l->address, "tcp://127.0.0.1:9");
    set_keys(l, kvferry_node_address(prefill->node));
    assert_true(node_address_parse(kvferry_node_address(prefill->node), NODE_ADDRESS_TCP, &address, "", NULL));
    address.has_key = false;
    node_address_format(&address, NODE_ADDRESS_TCP, text);
    assert_int_equal(zmq_connect(l->socket, text), 0);
    set_name(l);
    snprintf(l->transfer, sizeof(l->transfer), "bad-%lu", l->sent);
    MUST(worker_offer(prefill, l->transfer, from, 10, KVFERRY_READY, report));
    l->node_name[0] = '\0';
    /*
     * A hello is said again until it is answered, as by every worker: the last one of the incarnation before, over the
     * connection before, may be read after this one's, and whoever greets last has the rank.
     */
    for (int left = NODES_PATIENCE_MS / HELLO_MS; type != WIRE_WELCOME; left--) {
        assert_true(left > 0);
        say(l, WIRE_HELLO, l->name, 0);
        while (type != WIRE_WELCOME && hear(l, HELLO_MS, &type)) {
            if (type == WIRE_GET)
                say(l, WIRE_DOCUMENTS, l->name, 0);
        }
    }
    memcpy(l->attempt, l->name, sizeof(l->attempt));
}

static void lie_to_prefill(bool keyed)
{
    static const wire_type types[KINDS] = {
        WIRE_HELLO, WIRE_HELLO, WIRE_ROSTER, WIRE_GET, WIRE_DOCUMENTS, WIRE_ASK, WIRE_ASK, WIRE_ASK, WIRE_ASK,
        WIRE_SETTLE, WIRE_SETTLE, WIRE_RENEW, WIRE_PING, WIRE_STATUS, WIRE_ERROR, WIRE_VERDICT, WIRE_WELCOME, WIRE_BYE};
    worker prefill, decode;
    liar l;
    wire_type type;
    long flat = 0;
    open_node(&prefill, "p", keyed);
    open_node(&decode, "d", keyed);
    move(&prefill, &decode, 1);
    make(&l, keyed);
    srand(7);
    unsigned long begun = 0;
    for (unsigned long i = 0; i < count; i++) {
        if (i % TURN == 0) {
            drop_events(&prefill);
            come_again(&l, &prefill);
            begun++;
        }
        bool others = rand() % 8 == 0;
        say(&l, types[rand() % (rand() % 64 ? KINDS - 1 : KINDS)],
            others ? kvferry_node_incarnation(rand() % 2 ? decode.node : prefill.node) : l.name,
            rand() % 2 ? 0 : rand() % 5);
        while (hear(&l, i % TURN == TURN - 1 ? 50 : 0, &type))
            ;
        if (i == warmth(count))
            flat = memory_kib();
    }
    drop_events(&prefill);
    move(&prefill, &decode, 2);
    kvferry_node_statistics after = statistics_of(&prefill);
    assert_true(l.answered[WIRE_VERDICT] >= begun / 2 && l.answered[WIRE_WELCOME] >= begun); /* handlers ran */
    assert_in_range(after.malformed, count / 20, count);
    assert_int_equal(l.of_another > count / 100, keyed);
    expect_flat(flat, FLAT_KIB);
    worker_close(&decode);
    worker_close(&prefill);
    end(&l);
}

/* --- as a prefill node -------------------------------------------------------------------------- */

static void listen_as_prefill(liar *l)
{
    char bound[NODE_ADDRESS_TEXT];
    size_t size = sizeof(bound);
    l->socket = zmq_socket(l->context, ZMQ_ROUTER);
    set_keys(l, NULL);
    assert_int_equal(zmq_bind(l->socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(l->socket, ZMQ_LAST_ENDPOINT, bound, &size), 0);
    char key[NODE_ADDRESS_TEXT];
    snprintf(key, sizeof(key), "%s", l->address);
    snprintf(l->address, sizeof(l->address), "%.64s%.80s", bound, key);
    set_name(l);
}

/* The answer that is true, and some that are not. */
static void answer(liar *l, wire_type asked, bool honest)
{
    static const wire_type right[WIRE_TYPES] = {[WIRE_HELLO] = WIRE_WELCOME, [WIRE_GET] = WIRE_DOCUMENTS,
                                                [WIRE_ASK] = WIRE_VERDICT, [WIRE_SETTLE] = WIRE_SETTLED,
                                                [WIRE_PING] = WIRE_PONG};
    static const wire_type types[] = {WIRE_WELCOME, WIRE_DOCUMENTS, WIRE_VERDICT, WIRE_SETTLED, WIRE_ERROR,
                                      WIRE_ROSTER, WIRE_GET, WIRE_STATUS_TEXT, WIRE_ASK, WIRE_HELLO};
    bool known = asked == WIRE_HELLO || right[asked] != WIRE_HELLO;
    for (int i = rand() % 30; !honest && i > 0; i--)
        say(l, types[(size_t)rand() % 10], rand() % 8 ? l->name : "0123456789abcdef", rand() % 2 ? 0 : rand() % 5);
    if (known)
        say(l, right[asked], l->name, 0);
}

static void lie_to_decode(bool keyed)
{
    worker prefill, decode;
    liar l;
    wire_type type = WIRE_TYPES;
    long flat = 0;
    unsigned long asks = 0, rounds = 0;
    open_node(&prefill, "p", keyed);
    open_node(&decode, "d", keyed);
    move(&prefill, &decode, 1);
    make(&l, keyed);
    listen_as_prefill(&l);
    srand(8);
    const unsigned long all = 1000 + count / 20; /* each connection takes its time */
    while (l.sent < all) {
        char id[32];
        kvferry_report *report;
        assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
        snprintf(id, sizeof(id), "bad-%lu", rounds);
        /* Blocks stay in quarantine until the liar confirms: then they are not asked for. */
        const uint32_t first = 11 + 3 * (uint32_t)(rounds++ % 6), blocks[] = {first, first + 1, first + 2};
        if (worker_ask(&decode, id, "liar", l.address, blocks, 10, report) == KVFERRY_OK)
            asks++;
        kvferry_report_free(report);
        bool lies = rounds % 4 == 0; /* else when it was asked */
        for (int i = 0; i < 40 && hear(&l, i ? 10 : 100, &type); i++) {
            lies |= type == WIRE_ASK;
            if (type < WIRE_TYPES)
                answer(&l, type, !lies);
        }
        drop_events(&decode);
        if (!flat && l.sent > warmth(all))
            flat = memory_kib();
    }
    assert_true(asks >= 2 && l.answered[WIRE_HELLO] >= 2 && l.answered[WIRE_ASK]); /* handlers ran */
    drop_events(&decode);
    move(&prefill, &decode, 2);
    expect_flat(flat, FLAT_KIB);
    worker_close(&decode);
    worker_close(&prefill);
    end(&l);
}

static void test_to_prefill(void **state)
{
    (void)state;
    lie_to_prefill(false);
}

static void test_to_prefill_with_keys(void **state)
{
    (void)state;
    lie_to_prefill(true);
}

static void test_to_decode(void **state)
{
    (void)state;
    lie_to_decode(false);
}

static void test_to_decode_with_keys(void **state)
{
    (void)state;
    lie_to_decode(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_prefill),
        cmocka_unit_test(test_to_prefill_with_keys),
        cmocka_unit_test(test_to_decode),
        cmocka_unit_test(test_to_decode_with_keys),
    };
    count = argc > 1 ? strtoul(argv[1], NULL, 10) : count;
    int failed = cmocka_run_group_tests(tests, make_keys, NULL);
    scratch_end();
    return failed;
}
