/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Malformed bytes and messages to a live node, on both of its ports, and peers that do not read: abuse_test
 * [COUNT]. It goes on serving a good peer, and its memory is flat.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <zmq.h>

#include "nodes.h"
#include "wire/wire.h"

enum { SAMPLES_MAX = 64, SAMPLE_BYTES = 4096, FLAT_KIB = 32 * 1024 };

static unsigned long count = 1000;
static const uint32_t from[] = {3, 9, 4}, to[] = {8, 2, 30};

typedef struct sample {
    unsigned char data[SAMPLE_BYTES];
    size_t size;
} sample;

static sample samples[SAMPLES_MAX];
static size_t sample_count;

/* Each kind of message, as the fuzzer begins with. */
static int read_samples(void **state)
{
    (void)state;
    static const char folder[] = KVFERRY_SOURCE_DIR "/tests/fuzz/corpus/wire";
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) && sample_count < SAMPLES_MAX;) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        FILE *file = *entry->d_name == '.' ? NULL : fopen(path, "r");
        if (!file)
            continue;
        samples[sample_count].size = fread(samples[sample_count].data, 1, SAMPLE_BYTES, file);
        sample_count++;
        fclose(file);
    }
    closedir(directory);
    assert_in_range(sample_count, 10, SAMPLES_MAX);
    return 0;
}

static size_t mutate(unsigned char *bytes)
{
    const sample *from_sample = &samples[(size_t)rand() % sample_count];
    size_t size = from_sample->size;
    memcpy(bytes, from_sample->data, size);
    for (int changes = rand() % 5; changes > 0 && size; changes--)
        bytes[(size_t)rand() % size] = (unsigned char)rand();
    if (rand() % 4 == 0)
        size = (size_t)rand() % (size + 1);
    return size;
}

/* Waits until the node has seen all that was sent. */
static void catch_up(worker *w, uint64_t messages)
{
    for (int i = 0; i < 60000 && statistics_of(w).messages_in < messages; i++)
        usleep(1000);
}

static void test_messages(void **state)
{
    (void)state;
    worker prefill, decode;
    unsigned char bytes[SAMPLE_BYTES];
    worker_open_alone(&prefill, "p");
    worker_open_alone(&decode, "d");
    expect_moved(&prefill, &decode, "before", from, to, 1);
    kvferry_node_statistics before = statistics_of(&prefill);
    void *context = zmq_ctx_new(), *dealer = NULL;
    long flat = 0;
    const int none = 0;
    srand(5);
    for (unsigned long i = 0; i < count; i++) {
        if (i % 1000 == 0) { /* each time another peer */
            if (dealer)
                zmq_close(dealer);
            dealer = zmq_socket(context, ZMQ_DEALER);
            assert_int_equal(zmq_connect(dealer, kvferry_node_address(prefill.node)), 0);
        }
        size_t size = mutate(bytes);
        assert_int_equal(zmq_send(dealer, bytes, size, 0), (int)size);
        zmq_msg_t answer;
        zmq_msg_init(&answer);
        while (zmq_msg_recv(&answer, dealer, ZMQ_DONTWAIT) >= 0)
            ;
        zmq_msg_close(&answer);
        if (i % 1000 == 999)
            catch_up(&prefill, before.messages_in + i + 1); /* a close takes what is under way */
        if (i == count / 10)
            flat = memory_kib();
    }
    catch_up(&prefill, before.messages_in + count);
    expect_moved(&prefill, &decode, "after", from, to, 2);
    kvferry_node_statistics after = statistics_of(&prefill);
    assert_in_range(after.messages_in - before.messages_in, count, 2 * count);
    assert_in_range(after.malformed, count / 10, 2 * count);
    expect_flat(flat, FLAT_KIB);
    zmq_setsockopt(dealer, ZMQ_LINGER, &none, sizeof(none));
    zmq_close(dealer);
    zmq_ctx_term(context);
    worker_close(&decode);
    worker_close(&prefill);
}

static int dial(unsigned port)
{
    const struct sockaddr_in where = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&where, sizeof(where)), 0);
    return fd;
}

/* Bytes to the ports, some of which begin as they should. */
static void test_bytes(void **state)
{
    (void)state;
    static const char greeting[] =
        "\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    static const char head[] =
        "POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{\"engine_id\": ";
    worker prefill, decode;
    unsigned char bytes[512];
    kvferry_node_options options = nodes_options("p");
    options.bootstrap_listen = options.metrics_listen = "127.0.0.1:0";
    worker_open(&prefill, &(rig_shape){.engine_id = "p", .tps = 1, .pps = 1}, &options);
    worker_open_alone(&decode, "d");
    unsigned ports[3];
    const char *const addresses[] = {kvferry_node_address(prefill.node),
                                     kvferry_node_bootstrap(prefill.node),
                                     kvferry_node_metrics(prefill.node)};
    for (int i = 0; i < 3; i++)
        assert_int_equal(sscanf(strrchr(addresses[i], ':'), ":%u", &ports[i]), 1);
    srand(6);
    /* A port of this host is not free again for a minute: tens of thousands of connections are
     * enough. */
    for (unsigned long i = 0; i < (count < 20000 ? count : 20000); i++) {
        size_t size = (size_t)rand() % sizeof(bytes);
        for (size_t k = 0; k < size; k++)
            bytes[k] = (unsigned char)rand();
        if (i % 3 == 0 && i % 2)
            memcpy(bytes, greeting, sizeof(greeting) - 1);
        else if (i % 2)
            memcpy(bytes, head, sizeof(head) - 1);
        int fd = dial(ports[i % 3]);
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        assert_in_range(sent, 0, sizeof(bytes));
        close(fd);
    }
    expect_moved(&prefill, &decode, "after", from, to, 3);
    worker_close(&decode);
    worker_close(&prefill);
}

enum { DEAF = 24, GETS = 40, SAME = 2000, STATUSES = 4000 };

static void send_as(void *dealer, wire_message *message)
{
    void *data;
    size_t size;
    message->major = WIRE_MAJOR;
    message->engine_id = "deaf";
    message->transfer_id = "";
    strcpy(message->sender, "00000000000000aa");
    assert_int_equal(wire_encode(message, &data, &size), KVFERRY_OK);
    assert_int_equal(zmq_send(dealer, data, size, 0), (int)size);
    free(data);
}

/* A peer that takes in next to nothing of what it asks for. */
static void *open_deaf(void *context, const char *address)
{
    const int one = 1, little = 4096, none = 0;
    void *dealer = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(dealer, ZMQ_RCVHWM, &one, sizeof(one));
    zmq_setsockopt(dealer, ZMQ_RCVBUF, &little, sizeof(little));
    zmq_setsockopt(dealer, ZMQ_LINGER, &none, sizeof(none));
    assert_int_equal(zmq_connect(dealer, address), 0);
    return dealer;
}

/* They ask for much, and do not read it: the node holds a bounded part, and serves others. */
static void test_peers_that_do_not_read(void **state)
{
    (void)state;
    worker prefill, decode;
    kvferry_node_options options = nodes_options("p");
    options.max_message_bytes = 1 << 20;
    worker_open(&prefill, &(rig_shape){.engine_id = "p", .tps = 1, .pps = 1}, &options);
    worker_open_alone(&decode, "d");
    expect_moved(&prefill, &decode, "before", from, to, 4);
    char digest[WIRE_DIGEST_TEXT];
    const char *digests[SAME];
    void *document, *dealers[DEAF], *context = zmq_ctx_new();
    size_t size;
    assert_int_equal(kvferry_layout_write_msgpack(prefill.layout, &document, &size), KVFERRY_OK);
    wire_digest(document, size, digest);
    kvferry_free(document);
    for (int i = 0; i < SAME; i++)
        digests[i] = digest;
    uint64_t seen = statistics_of(&prefill).messages_in;
    long flat = memory_kib();
    for (int i = 0; i < DEAF; i++) {
        dealers[i] = open_deaf(context, kvferry_node_address(prefill.node));
        for (int k = 0; k < GETS; k++)
            send_as(dealers[i], &(wire_message){.type = WIRE_GET,
                                                .body.documents = {.digests = digests, .count = SAME}});
        for (int k = 0; k < STATUSES; k++)
            send_as(dealers[i], &(wire_message){.type = WIRE_STATUS});
        seen += GETS + STATUSES;
        catch_up(&prefill, seen);
    }
    assert_in_range(statistics_of(&prefill).message_bytes_out, 2 * FLAT_KIB * 1024ull, UINT64_MAX);
    expect_flat(flat, FLAT_KIB);
    expect_moved(&prefill, &decode, "after", from, to, 5);
    for (int i = 0; i < DEAF; i++)
        zmq_close(dealers[i]);
    zmq_ctx_term(context);
    worker_close(&decode);
    worker_close(&prefill);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_peers_that_do_not_read),
    };
    count = argc > 1 ? strtoul(argv[1], NULL, 10) : count;
    return cmocka_run_group_tests(tests, read_samples, NULL);
}
