/* SPDX-License-Identifier: Apache-2.0 */
/* Links, and what is sent over them. */
#include "node/core_internal.h"

#include <stdio.h>

core_line *core_line_find(node_core *core, core_link link)
{
    core_line *line;
    HASH_FIND(hh, core->lines, &link, sizeof(link), line);
    return line;
}

static core_line *add_line(node_core *core, core_link link, const char *address)
{
    core_line *line = base_alloc(1, sizeof(*line));
    if (!line)
        return NULL;
    line->id = link;
    line->opened = core->now;
    line->address = strdup(address);
    if (line->address)
        HASH_ADD(hh, core->lines, id, sizeof(line->id), line);
    if (!line->address || !line->hh.tbl) {
        free(line->address);
        free(line);
        return NULL;
    }
    return line;
}

core_line *core_line_open(node_core *core, const char *address, core_use use, void *user)
{
    core_line *line = add_line(core, core->next_line, address);
    if (!line)
        return NULL;
    core->next_line += 2;
    line->outgoing = true;
    snprintf(line->key, sizeof(line->key), "%s", core_address_key(address));
    line->use = use;
    line->user = user;
    line->open_action.effect =
        (core_effect){.kind = CORE_OPEN_LINK, .link = line->id, .address = line->address};
    core_action_queue(core, &line->open_action);
    return line;
}

core_line *core_line_accept(node_core *core, core_link link, const char *key)
{
    core_line *line = core_line_find(core, link);
    if (line)
        return line;
    line = add_line(core, link, core->place);
    if (line)
        snprintf(line->key, sizeof(line->key), "%s", key);
    return line;
}

void core_line_close(node_core *core, core_line *line)
{
    HASH_DEL(core->lines, line);
    line->close_action.effect = (core_effect){.kind = CORE_CLOSE_LINK, .link = line->id};
    core_action_queue(core, &line->close_action);
    core_action_free(&line->close_action, line->address, line);
}

void core_line_shut(core_line *line)
{
    line->use = CORE_USE_SHUT;
    line->user = NULL;
}

bool core_line_unused(const core_line *line)
{
    return !line || line->use == CORE_USE_NONE || line->use == CORE_USE_SHUT;
}

void core_line_drop(node_core *core, core_line *line)
{
    HASH_DEL(core->lines, line);
    line->open_action.skip = true;
    core_action_free(&line->open_action, line->address, line);
}

void core_link_at(node_core *core, core_link link, const char *address)
{
    core_line *line = core_line_find(core, link);
    if (line)
        snprintf(line->at, sizeof(line->at), "%s", address);
}

void core_line_again(node_core *core, core_line *line)
{
    if (line->use == CORE_USE_SOURCE)
        core_source_again(core, line->user);
    else if (line->use == CORE_USE_GREETER)
        core_engine_again(core, line->user);
    else if (line->use == CORE_USE_LEADER)
        core_own_again(core);
}

typedef struct sent {
    core_action action;
    void *data;
} sent;

void core_send_to(node_core *core, core_link link, const char *to, wire_message *message)
{
    message->major = WIRE_MAJOR;
    message->minor = WIRE_MINOR;
    message->engine_id = core->engine_id;
    memcpy(message->sender, core->incarnation, sizeof(message->sender));
    memcpy(message->receiver, to, strlen(to) + 1);
    if (!message->transfer_id)
        message->transfer_id = "";
    sent *out = base_alloc(1, sizeof(*out));
    size_t size = 0;
    if (!out || wire_encode(message, &out->data, &size) != KVFERRY_OK) {
        free(out);
        return;
    }
    out->action.effect =
        (core_effect){.kind = CORE_SEND, .link = link, .data = out->data, .size = size};
    core_action_queue(core, &out->action);
    core_action_free(&out->action, out->data, out);
    core->statistics.messages_out++;
    core->statistics.message_bytes_out += size;
    core->queued_bytes += size;
}

bool core_much_queued(node_core *core)
{
    bool much = core->queued_bytes >= core->options.max_message_bytes;
    core->statistics.ignored += much;
    return much;
}

void core_send(node_core *core, core_line *line, wire_message *message)
{
    if (line)
        core_send_to(core, line->id, line->peer, message);
}

void core_send_reasons(node_core *core, core_link link, const wire_message *about,
                       const kvferry_report *reasons)
{
    wire_message message = {.type = WIRE_ERROR, .transfer_id = about->transfer_id, .reasons = reasons};
    core_send_to(core, link, about->sender, &message);
}

void core_send_error(node_core *core, core_link link, const wire_message *about, const char *code,
                     const char *expected, const char *found, const char *text)
{
    kvferry_report *reasons = core_reason(code, expected, found, text);
    if (reasons)
        core_send_reasons(core, link, about, reasons);
    kvferry_report_free(reasons);
}

void core_send_hello_missing(node_core *core, core_link link, const wire_message *about)
{
    core_send_error(core, link, about, "hello_missing", "a handshake before it", "none",
                    base_format("%s of a worker that is not known", wire_type_name(about->type)));
}

static void fill_hello(node_core *core, wire_message *message, wire_member *self)
{
    wire_hello *hello = &message->body.hello;
    self->worker = core->worker;
    self->address = core->options.address;
    memcpy(self->incarnation, core->incarnation, sizeof(self->incarnation));
    memcpy(self->digest, core->document->digest, sizeof(self->digest));
    hello->worker = core->worker;
    memcpy(hello->incarnation, core->incarnation, sizeof(hello->incarnation));
    hello->expects = "";
    hello->engine = core->options.engine;
    hello->binding = core->options.binding;
    hello->binding_size = core->options.binding_size;
    hello->lease_ms = core->options.lease_ns / 1000000;
}

void core_send_hello(node_core *core, core_link link, const char *to, wire_type type, bool sibling,
                     const kvferry_report *reasons)
{
    wire_message message = {.type = type, .reasons = reasons};
    wire_hello *hello = &message.body.hello;
    wire_member self = {0};
    bool asks = type == WIRE_HELLO;
    fill_hello(core, &message, &self);
    hello->sibling = sibling;
    if (asks)
        hello->expects = to;
    if (core->own && !reasons)
        hello->roster = core->own->wire;
    else
        hello->roster = (wire_roster){.engine_id = core->engine_id, .members = &self, .count = 1};
    core_send_to(core, link, asks ? "" : to, &message);
}

void core_send_brief_welcome(node_core *core, core_link link, const char *to)
{
    wire_message message = {.type = WIRE_WELCOME};
    wire_member self = {0};
    fill_hello(core, &message, &self);
    message.body.hello.roster = core->own->wire;
    message.body.hello.roster.members = NULL;
    message.body.hello.roster.count = 0;
    core_send_to(core, link, to, &message);
}
