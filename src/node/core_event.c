/* SPDX-License-Identifier: Apache-2.0 */
/* Events: made when a transfer begins, so that its end can be told when there is no memory. */
#include "node/core_internal.h"

#include <stdio.h>

struct core_event {
    kvferry_event public; /* first: the caller has its address */
    core_event *next;
    kvferry_report *report;
    char code[CORE_CODE];
    char engine_id[CORE_ID], transfer_id[];
};

const char *kvferry_outcome_name(kvferry_outcome outcome)
{
    static const char *const names[] = {"done", "failed", "aborted", "expired"};
    return (unsigned)outcome < sizeof(names) / sizeof(names[0]) ? names[outcome] : "unknown";
}

void core_event_discard(core_event *event)
{
    if (!event)
        return;
    kvferry_report_free(event->report);
    free(event);
}

void kvferry_event_free(kvferry_event *event) { core_event_discard((core_event *)event); }

core_event *core_event_create(kvferry_event_kind kind, kvferry_side side, const char *engine_id,
                              const char *transfer_id, void *context)
{
    size_t length = strlen(transfer_id);
    core_event *event = base_alloc(1, sizeof(*event) + length + 1);
    if (!event || kvferry_report_create(&event->report) != KVFERRY_OK) {
        free(event);
        return NULL;
    }
    memcpy(event->transfer_id, transfer_id, length);
    core_event_set_engine(event, engine_id);
    event->public = (kvferry_event){.kind = kind,
                                    .side = side,
                                    .engine_id = event->engine_id,
                                    .transfer_id = event->transfer_id,
                                    .code = event->code,
                                    .report = event->report,
                                    .context = context};
    return event;
}

void core_event_set_engine(core_event *event, const char *engine_id)
{
    snprintf(event->engine_id, sizeof(event->engine_id), "%s", engine_id);
}

const char *core_event_engine(const core_event *event) { return event ? event->engine_id : ""; }

void core_event_set_kind(core_event *event, kvferry_event_kind kind) { event->public.kind = kind; }

void core_event_set_outcome(core_event *event, kvferry_outcome outcome, const char *code,
                            const char *message, const kvferry_report *reasons)
{
    event->public.outcome = outcome;
    if (outcome == KVFERRY_OUTCOME_DONE)
        return;
    core_code_set(event->code, code);
    if (kvferry_report_count(reasons))
        core_reasons_copy(event->report, reasons, KVFERRY_REPORT_LIMIT);
    else
        base_report_copy(event->report, &(kvferry_reason){.code = code, .message = message});
}

void core_event_copy_outcome(core_event *to, const core_event *from)
{
    core_event_set_outcome(to, from->public.outcome, from->code, from->code, from->report);
}

void core_event_set_work(core_event *event, uint64_t bytes, uint64_t copies, uint64_t elapsed_ns)
{
    event->public.bytes = bytes;
    event->public.copies = copies;
    event->public.elapsed_ns = elapsed_ns;
}

void core_event_set_part(core_event *event, bool part) { event->public.part = part; }

void core_event_queue(node_core *core, core_event *event)
{
    event->next = NULL;
    if (core->last_event)
        core->last_event->next = event;
    else
        core->first_event = event;
    core->last_event = event;
    core->statistics.events_waiting++;
}

kvferry_event *core_next_event(node_core *core)
{
    core_event *event = core->first_event;
    if (!event)
        return NULL;
    core->first_event = event->next;
    if (!core->first_event)
        core->last_event = NULL;
    core->statistics.events_waiting--;
    return &event->public;
}

size_t core_events_waiting(const node_core *core) { return (size_t)core->statistics.events_waiting; }

void core_events_free(node_core *core)
{
    kvferry_event *event;
    while ((event = core_next_event(core)) != NULL)
        kvferry_event_free(event);
}
