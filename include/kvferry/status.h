/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_STATUS_H
#define KVFERRY_STATUS_H

#include <kvferry/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What a call came to. One table: code, number, name, sentence. Numbers never change once released.
 * A status says what kind of thing went wrong; a kvferry_report says what exactly, and where.
 */
#define KVFERRY_STATUS_TABLE(X)                                                                    \
    X(KVFERRY_OK, 0, "ok", "done")                                                                 \
    X(KVFERRY_REFUSED, 1, "refused", "the input is well formed but cannot be served; see the report") \
    X(KVFERRY_INVALID, 2, "invalid", "an argument is not of the form that the call takes")         \
    X(KVFERRY_MALFORMED, 3, "malformed", "a document could not be read; see the report")           \
    X(KVFERRY_NO_MEMORY, 4, "no_memory", "memory could not be allocated")                          \
    X(KVFERRY_NO_SPACE, 5, "no_space", "the caller's buffer is too small")                         \
    X(KVFERRY_NOT_FOUND, 6, "not_found", "no such object")                                         \
    X(KVFERRY_UNSUPPORTED, 7, "unsupported", "this build or this machine cannot do it")            \
    X(KVFERRY_BUSY, 8, "busy", "not now: in use, or not finished yet; try again")                  \
    X(KVFERRY_TIMEOUT, 9, "timeout", "the deadline passed")                                        \
    X(KVFERRY_CANCELED, 10, "canceled", "the caller canceled it")                                  \
    X(KVFERRY_PEER_LOST, 11, "peer_lost", "the peer died or its connection was torn down")         \
    X(KVFERRY_OUT_OF_RANGE, 12, "out_of_range", "an offset lies outside its registered segment")   \
    X(KVFERRY_ENGINE, 13, "engine", "the transfer engine reported an error")                       \
    X(KVFERRY_IO, 14, "io", "a system call failed")                                                \
    X(KVFERRY_INTERNAL, 15, "internal", "a fault in kvferry itself")

typedef enum kvferry_status {
#define KVFERRY_STATUS_ENUM(code, number, name, sentence) code = number,
    KVFERRY_STATUS_TABLE(KVFERRY_STATUS_ENUM)
#undef KVFERRY_STATUS_ENUM
} kvferry_status;

/* The status's short name ("refused"), never NULL; "unknown" for a number outside the table.
 * Static storage; any thread. */
KVFERRY_API const char *kvferry_status_name(kvferry_status status);

/* One sentence about the status, never NULL. Static storage; any thread. */
KVFERRY_API const char *kvferry_status_describe(kvferry_status status);

#ifdef __cplusplus
}
#endif
#endif
