/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/node_internal.h"

void node_log_begin(node_log *log, kvferry_log call, void *context, kvferry_log_level level)
{
    log->call = call;
    log->context = context;
    log->level = level;
    pthread_mutex_init(&log->lock, NULL);
}

void node_log_end(node_log *log)
{
    for (size_t i = 0; i < log->count; i++)
        free(log->lines[(log->first + i) % NODE_LOG_LINES].text);
    pthread_mutex_destroy(&log->lock);
}

void node_log_add(node_log *log, kvferry_log_level level, const char *text)
{
    if (!log->call || level > log->level)
        return;
    char *copy = strndup(text, NODE_LINE_MAX);
    for (char *c = copy; c && *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    pthread_mutex_lock(&log->lock);
    if (copy && log->count < NODE_LOG_LINES)
        log->lines[(log->first + log->count++) % NODE_LOG_LINES] = (node_line){level, copy};
    else {
        log->dropped++;
        free(copy);
    }
    pthread_mutex_unlock(&log->lock);
}

void node_log_format(void *log, kvferry_log_level level, const char *format, ...)
{
    char text[NODE_LINE_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    node_log_add(log, level, text);
}

void node_log_flush(node_log *log)
{
    char text[64];
    if (!log->call)
        return;
    pthread_mutex_lock(&log->lock);
    while (log->count) {
        node_line line = log->lines[log->first];
        log->first = (log->first + 1) % NODE_LOG_LINES;
        log->count--;
        pthread_mutex_unlock(&log->lock);
        log->call(log->context, line.level, line.text);
        free(line.text);
        pthread_mutex_lock(&log->lock);
    }
    uint64_t dropped = log->dropped;
    log->dropped = 0;
    pthread_mutex_unlock(&log->lock);
    if (dropped && log->level >= KVFERRY_LOG_WARNING) {
        snprintf(text, sizeof(text), "%llu lines of the log were lost",
                 (unsigned long long)dropped);
        log->call(log->context, KVFERRY_LOG_WARNING, text);
    }
}
