/* SPDX-License-Identifier: Apache-2.0 */
/* What UCX says: its log lines, its status codes. It would print the lines on standard output. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>

#include "engine/ucx_internal.h"

#include <ucs/debug/log_def.h>

static _Thread_local struct {
    unsigned depth;
    char last[160];
} words;

static __attribute__((format(printf, 6, 0))) ucs_log_func_rc_t
keep_line(const char *file, unsigned line, const char *function, ucs_log_level_t level,
          const ucs_log_component_config_t *component, const char *format, va_list arguments)
{
    (void)file, (void)line, (void)function, (void)component;
    if (!words.depth || level == UCS_LOG_LEVEL_FATAL)
        return UCS_LOG_FUNC_RC_CONTINUE;
    if (level <= UCS_LOG_LEVEL_DIAG)
        vsnprintf(words.last, sizeof(words.last), format, arguments);
    return UCS_LOG_FUNC_RC_STOP;
}

/* Not part of UCX's stable interface, so they are looked for, and done without. Whoever set UCX's own
 * variables wants its log or its handlers, and keeps them. */
static void install_once(void)
{
    void (*disable_signals)(void);
    void (*push_handler)(ucs_log_func_t);
    *(void **)&disable_signals = dlsym(RTLD_DEFAULT, "ucs_debug_disable_signals");
    *(void **)&push_handler = dlsym(RTLD_DEFAULT, "ucs_log_push_handler");
    if (disable_signals && !getenv("UCX_HANDLE_ERRORS"))
        disable_signals();
    if (push_handler && !getenv("UCX_LOG_LEVEL") && !getenv("UCX_LOG_FILE"))
        push_handler(keep_line);
}

void ucx_words_install(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_once);
}

void ucx_words_begin(void)
{
    if (words.depth++ == 0)
        words.last[0] = '\0';
}

void ucx_words_end(void) { words.depth--; }

const char *ucx_words_get(void) { return words.last; }

kvferry_status ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return KVFERRY_OK;
    case UCS_ERR_NO_MEMORY:
        return KVFERRY_NO_MEMORY;
    case UCS_ERR_CANCELED:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_SHMEM_SEGMENT: /* its shared memory went with it */
        return KVFERRY_PEER_LOST;
    default:
        return UCS_IS_LINK_ERROR(status) || UCS_IS_ENDPOINT_ERROR(status) ? KVFERRY_PEER_LOST
                                                                           : KVFERRY_ENGINE;
    }
}

void ucx_report(kvferry_report *report, const char *what, ucs_status_t status)
{
    ucx_report_at(report, "", NULL, what, status);
}

void ucx_report_at(kvferry_report *report, const char *place, const char *expected, const char *what,
                   ucs_status_t status)
{
    const char *said = ucx_words_get();
    base_report_add(report, "engine_failed", &(base_where){.place = place}, expected,
                    base_format("%s%s%s", ucs_status_string(status), *said ? ": " : "", said),
                    "ucx: %s", what);
}
