/* SPDX-License-Identifier: Apache-2.0 */
#include "node/http.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <microhttpd.h>

#include "base/json.h"
#include "node/once.h"

enum {
    HTTP_BODY_MAX = 16384, /* of a registration */
    HTTP_CONNECTIONS = 256,
    HTTP_HOST_CONNECTIONS = 64, /* of one address: others find room, and each needs one, for a moment */
    HTTP_TIMEOUT_SECONDS = 10,
    HTTP_CONNECTION_BYTES = 32768,
    HTTP_BACKLOG = 256
};

struct node_http {
    node_http_options options;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock; /* of what follows */
    node_directory directory;
    node_once once;
};

/* --- answers ---------------------------------------------------------------------------------- */

#define JSON_TYPE "application/json"

/* Takes `text` of malloc; NULL: there was no memory. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type,
                              char *text)
{
    static char nothing[] = "{\"error\": {\"code\": \"no_memory\"}}";
    struct MHD_Response *response =
        text
            ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE)
            : MHD_create_response_from_buffer(sizeof(nothing) - 1, nothing, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, text ? type : JSON_TYPE);
    enum MHD_Result result =
        MHD_queue_response(connection, text ? code : MHD_HTTP_INTERNAL_SERVER_ERROR, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_error(struct MHD_Connection *connection, unsigned code,
                                    const char *name, const char *message)
{
    json_t *root = json_pack("{s:{s:s, s:s}}", "error", "code", name, "message", message);
    return answer(connection, code, JSON_TYPE, base_json_text(root, JSON_COMPACT));
}

static enum MHD_Result answer_refusal(struct MHD_Connection *connection, kvferry_status status,
                                      const kvferry_report *report)
{
    const kvferry_reason *reason = kvferry_report_get(report, 0);
    if (status == KVFERRY_NO_MEMORY)
        return answer(connection, 0, "", NULL);
    return answer_error(connection, MHD_HTTP_BAD_REQUEST,
                        reason ? reason->code : kvferry_status_name(status),
                        reason ? reason->message : kvferry_status_describe(status));
}

/* --- what is served --------------------------------------------------------------------------- */

static enum MHD_Result serve_query(node_http *http, struct MHD_Connection *connection)
{
    char *text = NULL;
    pthread_mutex_lock(&http->lock);
    kvferry_status status = node_directory_write(&http->directory, &text);
    pthread_mutex_unlock(&http->lock);
    return answer(connection, MHD_HTTP_OK, JSON_TYPE, status == KVFERRY_OK ? text : NULL);
}

/* What comes again with each try is told once: `about` is what tries. */
static void tell_once(node_http *http, const char *line, const char *about)
{
    pthread_mutex_lock(&http->lock);
    bool first = node_once_first(&http->once, line, about);
    pthread_mutex_unlock(&http->lock);
    if (first)
        http->options.log(http->options.context, line);
}

static enum MHD_Result serve_register(node_http *http, struct MHD_Connection *connection,
                                      const base_text *body)
{
    kvferry_report *report;
    bool replaced = false;
    if (kvferry_report_create(&report) != KVFERRY_OK)
        return answer(connection, 0, "", NULL);
    pthread_mutex_lock(&http->lock);
    kvferry_status status = node_directory_read_entry(body->data ? body->data : "", body->size,
                                                      &http->directory, &replaced, report);
    pthread_mutex_unlock(&http->lock);
    if (replaced)
        tell_once(http, "a worker of another engine registered under a dp_rank: its former engine is forgotten",
                  body->data);
    if (status == KVFERRY_REFUSED && kvferry_report_count(report)) {
        char line[1024];
        snprintf(line, sizeof(line), "a registration was refused: %s", kvferry_report_get(report, 0)->message);
        tell_once(http, line, "");
    }
    enum MHD_Result result = status == KVFERRY_OK ? answer(connection, MHD_HTTP_OK, JSON_TYPE,
                                                           strdup("{\"status\": \"ok\"}"))
                                                  : answer_refusal(connection, status, report);
    kvferry_report_free(report);
    return result;
}

static enum MHD_Result serve_metrics(node_http *http, struct MHD_Connection *connection)
{
    base_text text = {0};
    http->options.metrics(http->options.context, &text);
    if (text.failed) {
        free(text.data);
        text.data = NULL;
    }
    return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text.data);
}

typedef enum http_path {
    HTTP_HEALTH,
    HTTP_QUERY,
    HTTP_REGISTER,
    HTTP_METRICS,
    HTTP_NOTHING
} http_path;

static http_path path_of(const node_http *http, const char *url)
{
    if (strcmp(url, "/health") == 0)
        return HTTP_HEALTH;
    if (http->options.bootstrap && strcmp(url, "/query") == 0)
        return HTTP_QUERY;
    if (http->options.bootstrap && strcmp(url, "/register") == 0)
        return HTTP_REGISTER;
    return !http->options.bootstrap && strcmp(url, "/metrics") == 0 ? HTTP_METRICS : HTTP_NOTHING;
}

static enum MHD_Result serve(node_http *http, struct MHD_Connection *connection, const char *url,
                             const char *method, const base_text *body)
{
    http_path path = path_of(http, url);
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (path == HTTP_NOTHING)
        return answer_error(connection, MHD_HTTP_NOT_FOUND, "not_found", "nothing is served here");
    if (path == HTTP_REGISTER ? strcmp(method, "POST") != 0 : !get)
        return answer_error(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "method",
                            path == HTTP_REGISTER ? "POST is expected" : "GET is expected");
    switch (path) {
    case HTTP_QUERY:
        return serve_query(http, connection);
    case HTTP_REGISTER:
        return serve_register(http, connection, body);
    case HTTP_METRICS:
        return serve_metrics(http, connection);
    default:
        return answer(connection, MHD_HTTP_OK, JSON_TYPE, strdup("{\"status\": \"ok\"}"));
    }
}

/* --- requests --------------------------------------------------------------------------------- */

typedef struct http_request {
    base_text body;
    bool too_long;
} http_request;

/* Called when the head is there, for each part of the body, and at the end. */
static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **state)
{
    (void)version;
    http_request *request = *state;
    if (!request) {
        *state = base_alloc(1, sizeof(*request));
        return *state ? MHD_YES : MHD_NO;
    }
    if (*size) {
        request->too_long |= *size > HTTP_BODY_MAX - request->body.size;
        if (!request->too_long)
            base_text_append_bytes(&request->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (request->too_long)
        return answer_error(connection, MHD_HTTP_CONTENT_TOO_LARGE, "document_size",
                            "the body has more than 16384 bytes");
    if (request->body.failed)
        return answer(connection, 0, "", NULL);
    return serve(context, connection, url, method, &request->body);
}

static void completed(void *context, struct MHD_Connection *connection, void **state,
                      enum MHD_RequestTerminationCode how)
{
    (void)context, (void)connection, (void)how;
    http_request *request = *state;
    if (request)
        free(request->body.data);
    free(request);
}

/* --- life ------------------------------------------------------------------------------------- */

static int listen_at(const node_address *listen_address, node_address *bound)
{
    const int yes = 1;
    struct sockaddr_storage where;
    socklen_t size;
    if (!node_address_socket(listen_address, &where, &size)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int fd = socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(fd, (struct sockaddr *)&where, size) != 0 || listen(fd, HTTP_BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&where, &size) != 0) {
        int failure = errno;
        close(fd);
        errno = failure;
        return -1;
    }
    *bound = *listen_address;
    bound->port = ntohs(where.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&where)->sin6_port
                                                    : ((struct sockaddr_in *)&where)->sin_port);
    return fd;
}

static kvferry_status cannot_listen(const node_address *listen_address, kvferry_report *report)
{
    const char *why = strerror(errno);
    char text[NODE_ADDRESS_TEXT];
    node_address_format(listen_address, NODE_ADDRESS_HTTP, text);
    base_report_add(report, "listen_failed", &(base_where){.place = text},
                    "an address that can be bound", why, "HTTP cannot be served");
    return KVFERRY_IO;
}

kvferry_status node_http_create(const node_http_options *options,
                                const node_address *listen_address, node_address *bound,
                                node_http **http, kvferry_report *report)
{
    int fd = listen_at(listen_address, bound);
    if (fd < 0)
        return cannot_listen(listen_address, report);
    node_http *made = base_alloc(1, sizeof(*made));
    if (!made) {
        close(fd);
        return KVFERRY_NO_MEMORY;
    }
    made->options = *options;
    pthread_mutex_init(&made->lock, NULL);
    made->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, NULL, NULL, handle, made,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNECTIONS,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)HTTP_HOST_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HTTP_TIMEOUT_SECONDS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_CONNECTION_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, completed, NULL, MHD_OPTION_END);
    if (!made->daemon) {
        close(fd);
        pthread_mutex_destroy(&made->lock);
        free(made);
        errno = ENOMEM;
        return cannot_listen(listen_address, report);
    }
    *http = made;
    return KVFERRY_OK;
}

void node_http_close(node_http *http)
{
    if (!http)
        return;
    MHD_stop_daemon(http->daemon);
    pthread_mutex_destroy(&http->lock);
    node_directory_free(&http->directory);
    free(http);
}

kvferry_status node_http_register(node_http *http, const node_entry *entry)
{
    bool replaced;
    pthread_mutex_lock(&http->lock);
    kvferry_status status = node_directory_put(&http->directory, entry, &replaced);
    pthread_mutex_unlock(&http->lock);
    return status;
}
