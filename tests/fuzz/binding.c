/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A binding, from bytes. The digest would keep a fuzzer out of all that lies behind it, so an input
 * that begins with a zero byte is a binding's body, which gets its header here.
 */
#include "fuzz.h"

#include <sodium.h>

enum { DIGEST = 16, HEADER = 8 + DIGEST };

static void connect_to(kvferry_engine *engine, const void *binding, size_t size)
{
    kvferry_report *report = fuzz_report();
    kvferry_peer *peer = NULL;
    kvferry_status status = kvferry_engine_connect(engine, binding, size, &peer, report);
    MUST((status == KVFERRY_OK) == (peer != NULL));
    MUST(status == KVFERRY_OK || kvferry_report_count(report) > 0);
    if (peer)
        kvferry_peer_close(peer);
    kvferry_report_free(report);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvferry_engine *engine;
    if (kvferry_engine_open("memory", NULL, &engine, NULL) != KVFERRY_OK)
        abort();
    if (size && data[0] == 0) {
        unsigned char *binding = malloc(HEADER + size);
        memcpy(binding, "KVFB\1\0\0\0", 8);
        memcpy(binding + HEADER, data + 1, size - 1);
        crypto_generichash(binding + 8, DIGEST, data + 1, size - 1, NULL, 0);
        connect_to(engine, binding, HEADER + size - 1);
        free(binding);
    } else {
        connect_to(engine, data, size);
    }
    kvferry_engine_close(engine);
    return 0;
}
