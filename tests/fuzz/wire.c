/* SPDX-License-Identifier: Apache-2.0 */
/* A control message: refused with a reason, or read; and then what is written of it is read as the same bytes. */
#include "fuzz.h"

#include "wire/wire.h"

/* Writes what was read, and reads and writes that again. */
static void write_and_read(const wire_message *message)
{
    void *first, *second;
    size_t first_size, second_size;
    wire_message again;
    MUST(wire_encode(message, &first, &first_size) == KVFERRY_OK);
    MUST(wire_decode(first, first_size, &again, NULL) == KVFERRY_OK);
    MUST(wire_encode(&again, &second, &second_size) == KVFERRY_OK);
    MUST(first_size == second_size && memcmp(first, second, first_size) == 0);
    wire_message_end(&again);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvferry_report *report = fuzz_report();
    wire_message message;
    kvferry_status status = wire_decode(data, size, &message, report);
    MUST(status == KVFERRY_OK || status == KVFERRY_MALFORMED || status == KVFERRY_UNSUPPORTED);
    MUST((status == KVFERRY_OK) == (kvferry_report_count(report) == 0));
    MUST(message.engine_id && message.transfer_id && message.type <= WIRE_TYPES);
    MUST(strlen(message.engine_id) <= WIRE_MAX_ID && strlen(message.transfer_id) <= WIRE_MAX_ID);
    if (status == KVFERRY_OK)
        write_and_read(&message);
    wire_message_end(&message);
    kvferry_report_free(report);
    return 0;
}
