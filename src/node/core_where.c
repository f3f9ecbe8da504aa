/* SPDX-License-Identifier: Apache-2.0 */
/* Decode side: where an engine is looked for. */
#include "node/core_internal.h"

bool core_where_is_direct(const char *where)
{
    return strncmp(where, "http://", 7) != 0 && strncmp(where, "file:", 5) != 0;
}

void core_engine_forget_addresses(core_engine *engine)
{
    for (size_t i = 0; i < engine->address_count; i++)
        free(engine->addresses[i]);
    free(engine->addresses);
    engine->addresses = NULL;
    engine->address_count = engine->address_at = 0;
}

bool core_engine_set_addresses(core_engine *engine, const char *const *addresses, size_t count)
{
    core_engine_forget_addresses(engine);
    engine->addresses = base_alloc(count, sizeof(*engine->addresses));
    if (!engine->addresses)
        return false;
    for (size_t i = 0; i < count; i++) {
        engine->addresses[i] = strdup(addresses[i]);
        if (!engine->addresses[i])
            return false;
        engine->address_count++;
    }
    return true;
}

void core_engine_keep_trouble(core_engine *engine, const kvferry_report *report)
{
    kvferry_report_free(engine->trouble);
    engine->trouble = NULL;
    if (kvferry_report_count(report) && kvferry_report_create(&engine->trouble) == KVFERRY_OK)
        core_reasons_copy(engine->trouble, report, WIRE_MAX_REASONS);
}
