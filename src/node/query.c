/* SPDX-License-Identifier: Apache-2.0 */
/* The status of a node elsewhere, and the operator's word to it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "node/file.h"
#include "node/node_internal.h"

enum { QUERY_MESSAGE_MAX = 256 << 20 };

typedef struct query_job query_job;
struct query_job {
    node_address address, host; /* as it was given, and numeric */
    const char *text;           /* of the address */
    uint64_t end;               /* of waiting */
    node_key_pair keys;
    bool with_keys;
    void *context, *socket, *monitor;
    const char *trouble; /* what the connection is known to suffer from */
    kvferry_report *report;
    wire_message question;
    wire_type answer;
    const char *wanted; /* in words */
    kvferry_status (*take)(query_job *job, const wire_message *message);
    kvferry_status (*refused)(query_job *job, const kvferry_report *reasons);
    char *status;              /* what was taken */
    kvferry_declared declared;
};

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

static bool open_socket(query_job *job)
{
    const int64_t most = QUERY_MESSAGE_MAX;
    char text[NODE_ADDRESS_TEXT];
    node_address plain = job->host;
    plain.has_key = false;
    node_address_format(&plain, NODE_ADDRESS_TCP, text);
    job->context = zmq_ctx_new();
    job->socket = job->context ? zmq_socket(job->context, ZMQ_DEALER) : NULL;
    if (!job->socket || !set_int(job->socket, ZMQ_LINGER, 0) ||
        !set_int(job->socket, ZMQ_IPV6, strchr(text, '[') != NULL) ||
        zmq_setsockopt(job->socket, ZMQ_MAXMSGSIZE, &most, sizeof(most)) != 0)
        return false;
    if (job->with_keys &&
        (zmq_setsockopt(job->socket, ZMQ_CURVE_SERVERKEY, job->address.key, NODE_KEY_BYTES) != 0 ||
         zmq_setsockopt(job->socket, ZMQ_CURVE_PUBLICKEY, job->keys.public_key, NODE_KEY_BYTES) !=
             0 ||
         zmq_setsockopt(job->socket, ZMQ_CURVE_SECRETKEY, job->keys.secret, NODE_KEY_BYTES) != 0))
        return false;
    if (zmq_socket_monitor(job->socket, "inproc://monitor",
                           ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) != 0)
        return false;
    job->monitor = zmq_socket(job->context, ZMQ_PAIR);
    return job->monitor && zmq_connect(job->monitor, "inproc://monitor") == 0 &&
           zmq_connect(job->socket, text) == 0;
}

static void close_socket(query_job *job)
{
    if (job->monitor) {
        zmq_socket_monitor(job->socket, NULL, 0);
        zmq_close(job->monitor);
    }
    if (job->socket)
        zmq_close(job->socket);
    if (job->context)
        zmq_ctx_term(job->context);
}

static uint64_t left_ms(const query_job *job)
{
    uint64_t now = node_now();
    return now < job->end ? base_ceil_div(job->end - now, 1000000) : 0;
}

/* False: there is nobody to wait for. */
static bool look_at_monitor(query_job *job)
{
    uint16_t event;
    unsigned char head[8];
    char address[8];
    while (zmq_recv(job->monitor, head, sizeof(head), ZMQ_DONTWAIT) >= (int)sizeof(event)) {
        memcpy(&event, head, sizeof(event));
        zmq_recv(job->monitor, address, sizeof(address), ZMQ_DONTWAIT);
        if (event == ZMQ_EVENT_DISCONNECTED) {
            job->trouble = "a connection that was closed: perhaps its keys and yours do not fit";
        } else if (event != ZMQ_EVENT_CLOSED) {
            job->trouble = "a connection that was refused: its keys and yours do not fit";
        } else if (node_address_probe(&job->host, left_ms(job)) == ECONNREFUSED) { /* which ZeroMQ does not say */
            job->trouble = "connection refused: nobody listens there";
            return false;
        } else {
            job->trouble = "no connection";
        }
    }
    return true;
}

static kvferry_status send_question(query_job *job)
{
    void *data;
    size_t size;
    kvferry_status status = wire_encode(&job->question, &data, &size);
    if (status != KVFERRY_OK)
        return status;
    if (zmq_send(job->socket, data, size, ZMQ_DONTWAIT) < 0)
        status = KVFERRY_IO;
    free(data);
    return status;
}

/* KVFERRY_BUSY: it is no answer. */
static kvferry_status read_answer(query_job *job, zmq_msg_t *data)
{
    wire_message message;
    kvferry_status status =
        wire_decode(zmq_msg_data(data), zmq_msg_size(data), &message, job->report);
    if (status == KVFERRY_OK && message.type == WIRE_ERROR)
        status = job->refused(job, message.reasons);
    else if (status == KVFERRY_OK)
        status = message.type == job->answer ? job->take(job, &message) : KVFERRY_BUSY;
    wire_message_end(&message);
    return status;
}

static kvferry_status await(query_job *job)
{
    kvferry_status status = KVFERRY_BUSY;
    while (status == KVFERRY_BUSY) {
        uint64_t left = left_ms(job);
        zmq_pollitem_t items[] = {{job->socket, 0, ZMQ_POLLIN, 0},
                                  {job->monitor, 0, ZMQ_POLLIN, 0}};
        if (!left)
            return KVFERRY_TIMEOUT;
        if (zmq_poll(items, 2, (long)base_min(left, 1000)) == 0)
            send_question(job); /* a node with much to do may have let it pass; if it cannot be sent, later */
        if (!look_at_monitor(job))
            return KVFERRY_IO;
        zmq_msg_t data;
        zmq_msg_init(&data);
        if (zmq_msg_recv(&data, job->socket, ZMQ_DONTWAIT) >= 0)
            status = read_answer(job, &data);
        zmq_msg_close(&data);
    }
    return status;
}

static bool read_address(const char *text, node_address *address, kvferry_report *report)
{
    return node_address_parse(text, NODE_ADDRESS_TCP, address, "address", report);
}

kvferry_status kvferry_node_check_address(const char *address, kvferry_report *report)
{
    node_address parsed;
    return address && read_address(address, &parsed, report) ? KVFERRY_OK : KVFERRY_INVALID;
}

static kvferry_status read_query(query_job *job, const char *key_file)
{
    bool open_to_others;
    if (!read_address(job->text, &job->address, job->report))
        return KVFERRY_INVALID;
    job->with_keys = key_file && *key_file;
    if (job->with_keys != job->address.has_key) {
        base_report_add(job->report, "address_key", &(base_where){.place = "address"},
                        job->with_keys ? "an address with a key behind it"
                                       : "a key file, as the address has a key",
                        base_format("\"%.200s\"", job->text), "the two sides cannot talk");
        return KVFERRY_INVALID;
    }
    return job->with_keys ? node_key_pair_read(key_file, &job->keys, &open_to_others, job->report)
                          : KVFERRY_OK;
}

/* ZeroMQ looks a name up again and again, and says nothing. */
static kvferry_status find_host(query_job *job)
{
    const char *why = "";
    job->host = job->address;
    if (node_address_reach(&job->host, left_ms(job), &why))
        return KVFERRY_OK;
    base_report_add(job->report, "no_answer", &(base_where){.place = job->text}, "a host that can be looked up", why,
                    "the node was not asked");
    return KVFERRY_IO;
}

/* Until there is an answer. */
static kvferry_status ask(query_job *job, const char *key_file)
{
    job->trouble = "no answer";
    job->question.major = WIRE_MAJOR;
    job->question.minor = WIRE_MINOR;
    job->question.engine_id = job->question.transfer_id = "";
    kvferry_status status = read_query(job, key_file);
    if (status == KVFERRY_OK)
        status = find_host(job);
    if (status == KVFERRY_OK && !node_file_descriptors(NODE_ZMQ_DESCRIPTORS, job->report))
        status = KVFERRY_IO;
    if (status != KVFERRY_OK)
        return status;
    if (open_socket(job)) {
        status = send_question(job);
        if (status == KVFERRY_OK)
            status = await(job);
    } else {
        status = KVFERRY_IO;
        job->trouble = zmq_strerror(zmq_errno());
    }
    if (status == KVFERRY_TIMEOUT || status == KVFERRY_IO)
        base_report_add(job->report, "no_answer", &(base_where){.place = job->text}, job->wanted,
                        job->trouble, "the node did not answer");
    close_socket(job);
    return status;
}

static kvferry_status query(query_job *job, const char *key_file, uint64_t timeout_ms)
{
    if (!base_add(node_now(), node_ns(timeout_ms), &job->end))
        job->end = UINT64_MAX;
    kvferry_status status = ask(job, key_file);
    sodium_memzero(&job->keys, sizeof(job->keys));
    return status;
}

/* --- the status ------------------------------------------------------------------------------- */

static kvferry_status take_text(query_job *job, const wire_message *message)
{
    job->status = strdup(message->body.text);
    return job->status ? KVFERRY_OK : KVFERRY_NO_MEMORY;
}

static kvferry_status no_status(query_job *job, const kvferry_report *reasons)
{
    for (size_t i = 0; i < kvferry_report_count(reasons); i++) {
        const kvferry_reason *reason = kvferry_report_get(reasons, i);
        base_report_add(job->report, "status_refused", NULL, reason->expected, reason->found, "%s: %s",
                        reason->code, reason->message);
    }
    return KVFERRY_REFUSED;
}

kvferry_status kvferry_node_query(const char *address, const char *key_file, uint64_t timeout_ms,
                                  char **text, size_t *size, kvferry_report *report)
{
    query_job job = {.text = address,
                     .report = report,
                     .question = {.type = WIRE_STATUS},
                     .answer = WIRE_STATUS_TEXT,
                     .take = take_text,
                     .refused = no_status,
                     .wanted = "a node's status"};
    if (!address || !text || !size)
        return KVFERRY_INVALID;
    kvferry_status status = query(&job, key_file, timeout_ms);
    if (status == KVFERRY_OK) {
        *size = strlen(job.status);
        *text = job.status;
    }
    return status;
}

/* --- the operator's word ---------------------------------------------------------------------- */

static kvferry_status take_death(query_job *job, const wire_message *message)
{
    const wire_death *death = &message->body.death;
    job->declared = (kvferry_declared){death->transfers, death->blocks, death->waiting};
    return KVFERRY_OK;
}

static kvferry_status not_taken(query_job *job, const kvferry_report *reasons)
{
    const kvferry_reason *first = kvferry_report_get(reasons, 0), *reason;
    for (size_t i = 0; (reason = kvferry_report_get(reasons, i)) != NULL; i++)
        base_report_copy(job->report, reason);
    return first && strcmp(first->code, "peer_unknown") == 0 ? KVFERRY_NOT_FOUND : KVFERRY_REFUSED;
}

static bool is_incarnation(const char *text)
{
    return strlen(text) == WIRE_INCARNATION_TEXT - 1 &&
           strspn(text, "0123456789abcdef") == WIRE_INCARNATION_TEXT - 1;
}

kvferry_status kvferry_node_declare_dead_at(const char *address, const char *key_file,
                                            const char *incarnation, uint64_t timeout_ms,
                                            kvferry_declared *declared, kvferry_report *report)
{
    query_job job = {.text = address,
                     .report = report,
                     .question = {.type = WIRE_DECLARE_DEAD},
                     .answer = WIRE_DECLARED_DEAD,
                     .take = take_death,
                     .refused = not_taken,
                     .wanted = "a node's word that it heard it"};
    if (!address || !incarnation || !declared)
        return KVFERRY_INVALID;
    if (!is_incarnation(incarnation)) {
        base_report_add(report, "incarnation_malformed", &(base_where){.place = "incarnation"},
                        "16 lower-case hexadecimal digits", base_format("\"%.100s\"", incarnation),
                        "the name of a worker could not be read");
        return KVFERRY_INVALID;
    }
    memcpy(job.question.body.death.incarnation, incarnation, WIRE_INCARNATION_TEXT);
    kvferry_status status = query(&job, key_file, timeout_ms);
    if (status == KVFERRY_OK)
        *declared = job.declared;
    return status;
}
