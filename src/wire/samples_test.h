/* SPDX-License-Identifier: Apache-2.0 */
/* One message of each type, with every field. tests/fuzz/make-corpus has the same ones, written by another hand. */
#ifndef KVFERRY_WIRE_SAMPLES_TEST_H
#define KVFERRY_WIRE_SAMPLES_TEST_H

#include <stdio.h>
#include <string.h>

#include "test.h"
#include "wire/wire.h"

#define SAMPLE_SENDER "00000000000000aa"
#define SAMPLE_RECEIVER "00000000000000bb"
#define SAMPLE_ATTEMPT "0123456789abcdef"

static wire_member sample_members[2];
static const uint32_t sample_blocks[] = {0, 127, 128, 255, 256, 65535, 65536, UINT32_MAX};
static kvferry_block_table sample_tables[] = {{"attn", 1632, sample_blocks, 8},
                                              {"state", 0, sample_blocks + 3, 1}};
static wire_checksum sample_checksums[] = {{0, 7}, {300, UINT64_MAX}};
static const char *sample_digests[2];
static const void *sample_documents[] = {"\x80", "\x81\xa1\x61\x01"};
static size_t sample_sizes[] = {1, 4};
static kvferry_report *sample_report;

static inline void sample_setup(void)
{
    static char digests[2][WIRE_DIGEST_TEXT];
    for (uint32_t i = 0; i < 2; i++) {
        wire_digest(sample_documents[i], sample_sizes[i], digests[i]);
        sample_digests[i] = digests[i];
        sample_members[i] = (wire_member){
            .worker = {.tp_rank = i, .tp_size = 2, .pp_size = 1, .dp_size = 1},
            .address = i ? "tcp://[::1]:6001" : "tcp://10.0.0.1:6000"};
        snprintf(sample_members[i].incarnation, WIRE_INCARNATION_TEXT, "%016x", 0xaa + i);
        memcpy(sample_members[i].digest, digests[i], WIRE_DIGEST_TEXT);
    }
    assert_int_equal(kvferry_report_create(&sample_report), KVFERRY_OK);
    base_report_add(sample_report, "dtype_differs",
                    &(base_where){.worker = "decode-0 tp1/4", .layer = "layers.3", .stream = "k"},
                    "bfloat16", "float16", "the streams hold other elements");
    base_report_add(sample_report, "peer_lost", NULL, NULL, NULL, "gone");
}

static inline void sample_teardown(void)
{
    kvferry_report_free(sample_report);
    sample_report = NULL;
}

static inline wire_roster sample_roster(void)
{
    wire_roster roster = {.engine_id = "prefill-0", .members = sample_members, .count = 2};
    wire_roster_digest(&roster, roster.digest);
    return roster;
}

static inline wire_hello sample_hello(wire_type type)
{
    return (wire_hello){.worker = sample_members[1].worker,
                        .incarnation = SAMPLE_SENDER,
                        .expects = type == WIRE_HELLO ? SAMPLE_RECEIVER : "",
                        .sibling = type == WIRE_HELLO,
                        .roster = sample_roster(),
                        .engine = "ucx",
                        .binding = "KVFB\0\xff",
                        .binding_size = 6,
                        .lease_ms = 480000};
}

static inline wire_ask sample_ask(void)
{
    wire_ask ask = {.attempt = SAMPLE_ATTEMPT,
                    .tokens = 100000,
                    .timeout_ms = 120000,
                    .verify = true,
                    .whole_blocks = true,
                    .part = true,
                    .tables = sample_tables,
                    .table_count = 2};
    memcpy(ask.source_roster, sample_digests[0], WIRE_DIGEST_TEXT);
    memcpy(ask.target_roster, sample_digests[1], WIRE_DIGEST_TEXT);
    return ask;
}

static inline wire_message sample(wire_type type)
{
    wire_message message = {.type = type,
                            .major = 1,
                            .minor = 3,
                            .engine_id = "prefill-0",
                            .sender = SAMPLE_SENDER,
                            .receiver = SAMPLE_RECEIVER,
                            .transfer_id = ""};
    if ((type >= WIRE_ASK && type <= WIRE_RENEW) || type == WIRE_ERROR)
        message.transfer_id = "xfer-\xc3\xa9";
    if (type == WIRE_VERDICT || type == WIRE_WELCOME || type == WIRE_ERROR)
        message.reasons = sample_report;
    if (type == WIRE_STATUS || type == WIRE_DECLARE_DEAD) {
        message.engine_id = "";
        message.sender[0] = '\0';
    }
    if (type == WIRE_HELLO || type == WIRE_WELCOME)
        message.body.hello = sample_hello(type);
    else if (type == WIRE_ROSTER)
        message.body.roster = sample_roster();
    else if (type == WIRE_GET || type == WIRE_DOCUMENTS)
        message.body.documents =
            (wire_documents){sample_digests, type == WIRE_GET ? NULL : sample_documents,
                             type == WIRE_GET ? NULL : sample_sizes, 2};
    else if (type == WIRE_ASK)
        message.body.ask = sample_ask();
    else if (type >= WIRE_VERDICT && type <= WIRE_SETTLED)
        message.body.verdict = (wire_verdict){.attempt = SAMPLE_ATTEMPT,
                                              .outcome = type == WIRE_SETTLE    ? WIRE_ABORTED
                                                         : type == WIRE_SETTLED ? WIRE_EXPIRED
                                                                                : WIRE_FAILED};
    if (type == WIRE_VERDICT) {
        message.body.verdict.copies = 640;
        message.body.verdict.bytes = UINT64_C(1) << 40;
        message.body.verdict.checksums = sample_checksums;
        message.body.verdict.checksum_count = 2;
        message.body.verdict.part = true;
    }
    if (type == WIRE_STATUS_TEXT)
        message.body.text = "{\"peers\": []}";
    if (type == WIRE_DECLARE_DEAD || type == WIRE_DECLARED_DEAD)
        memcpy(message.body.death.incarnation, SAMPLE_ATTEMPT, WIRE_INCARNATION_TEXT);
    if (type == WIRE_DECLARED_DEAD) {
        message.body.death.transfers = 3;
        message.body.death.blocks = 70000;
        message.body.death.waiting = 1;
    }
    return message;
}

/* The bytes of a message; to be freed. */
static inline unsigned char *sample_encode(const wire_message *message, size_t *size)
{
    void *data;
    assert_int_equal(wire_encode(message, &data, size), KVFERRY_OK);
    return data;
}

#endif
