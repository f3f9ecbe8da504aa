/* SPDX-License-Identifier: Apache-2.0 */
#include "node/fetch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

enum { FETCH_CONNECT_MS = 5000, FETCH_MS = 10000 };

typedef struct fetch_job {
    base_text text;
    size_t maximum;
    bool too_long;
    bool (*stop)(void *);
    void *context;
} fetch_job;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode began;

static void begin(void)
{
    began = curl_global_init(CURL_GLOBAL_DEFAULT);
}

bool node_fetch_begin(void)
{
    return pthread_once(&once, begin) == 0 && began == CURLE_OK;
}

static size_t take(char *data, size_t size, size_t count, void *context)
{
    fetch_job *job = context;
    size *= count;
    job->too_long |= size > job->maximum - job->text.size;
    if (!job->too_long)
        base_text_append_bytes(&job->text, data, size);
    return job->too_long || job->text.failed ? 0 : size;
}

static int go_on(void *context, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                 curl_off_t up)
{
    (void)down_total, (void)down, (void)up_total, (void)up;
    const fetch_job *job = context;
    return job->stop(job->context);
}

static CURLcode set_up(CURL *curl, const char *url, const char *body, struct curl_slist *headers,
                       fetch_job *job)
{
    CURLcode code = curl_easy_setopt(curl, CURLOPT_URL, url);
    if (code == CURLE_OK && body)
        code = curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    if (code == CURLE_OK && body)
        code = curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_PROXY,
                     ""); /* workers' addresses are not for a proxy to look up */
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)FETCH_CONNECT_MS);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)FETCH_MS);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, job);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, go_on);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, job);
    return code;
}

static kvferry_status failed(const char *url, const char *expected, const char *found,
                             kvferry_report *report)
{
    base_report_add(report, "discovery_failed", &(base_where){.place = url}, expected, found,
                    "workers could not be asked for");
    return KVFERRY_IO;
}

/* The server has too much to do, or goes: another try may find it well. But where nobody listens, nobody is. */
static bool is_passing(CURLcode code)
{
    return code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
           code == CURLE_PARTIAL_FILE || code == CURLE_OPERATION_TIMEDOUT;
}

static kvferry_status perform(CURL *curl, const char *url, fetch_job *job, kvferry_report *report)
{
    long code = 0;
    CURLcode result = curl_easy_perform(curl);
    if (job->text.failed)
        return KVFERRY_NO_MEMORY;
    if (job->too_long)
        return failed(url, base_format("at most %zu bytes", job->maximum), "more", report);
    if (result == CURLE_OUT_OF_MEMORY)
        return KVFERRY_NO_MEMORY;
    if (result != CURLE_OK) {
        kvferry_status status = failed(url, "an answer", curl_easy_strerror(result), report);
        return is_passing(result) ? KVFERRY_BUSY : status;
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200) {
        char found[640]; /* with the server's own words: what it expected */
        snprintf(found, sizeof(found), "status %ld, %s", code, job->text.data ? job->text.data : "");
        return failed(url, "status 200", found, report);
    }
    base_text_append_bytes(&job->text, "", 0);
    return job->text.failed ? KVFERRY_NO_MEMORY : KVFERRY_OK;
}

kvferry_status node_fetch(const char *base, const char *path, const char *body, size_t maximum,
                          bool (*stop)(void *), void *context, char **text, size_t *size,
                          kvferry_report *report)
{
    fetch_job job = {.maximum = maximum, .stop = stop, .context = context};
    base_text url = {0};
    size_t length = strlen(base);
    base_text_append_bytes(&url, base, length && base[length - 1] == '/' ? length - 1 : length);
    base_text_append(&url, "%s", path);
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    CURL *curl = curl_easy_init();
    kvferry_status status = url.failed || !headers || !curl ? KVFERRY_NO_MEMORY : KVFERRY_OK;
    if (status == KVFERRY_OK && set_up(curl, url.data, body, headers, &job) != CURLE_OK)
        status = KVFERRY_NO_MEMORY;
    if (status == KVFERRY_OK)
        status = perform(curl, url.data, &job, report);
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    free(url.data);
    if (status == KVFERRY_OK) {
        *text = job.text.data;
        *size = job.text.size;
    } else {
        free(job.text.data);
    }
    return status;
}
