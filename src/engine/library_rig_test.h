/* SPDX-License-Identifier: Apache-2.0 */
/* What the fault tests share of engines whose library is found while running: libraries by their paths, each
 * in a process of its own, and two engines of this process over a stand-in. */
#ifndef KVFERRY_SRC_ENGINE_LIBRARY_RIG_TEST_H
#define KVFERRY_SRC_ENGINE_LIBRARY_RIG_TEST_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/pair_test.h"

enum { BYTES = MIB, COPIES = 4000, EACH = 128 };

/* Set by main. */
static const char *library_engine, *library_variable;
static kvferry_report *report;

static inline kvferry_status open_at(const char *transport, const char *device, const char *host,
                                     kvferry_engine **engine)
{
    const kvferry_engine_options options = {
        .size = sizeof(options), .transport = transport, .net_devices = device, .host = host};
    kvferry_report_clear(report);
    return kvferry_engine_open(library_engine, &options, engine, report);
}

static inline kvferry_status open_with(const char *transport, const char *device, kvferry_engine **engine)
{
    return open_at(transport, device, "", engine);
}

static inline void expect_reason(size_t index, const char *code, const char *part)
{
    const kvferry_reason *reason = kvferry_report_get(report, index);
    assert_non_null(reason);
    assert_string_equal(reason->code, code);
    if (!strstr(reason->message, part))
        fail_msg("\"%s\" is not in \"%s\"", part, reason->message);
}

/* --- libraries: each in a process of its own, since one that is loaded stays ----------------------- */

static inline void in_child(void (*body)(void))
{
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        PAIR_EQUAL(kvferry_report_create(&report), KVFERRY_OK);
        body();
        exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static inline void use_library(const char *path) { PAIR_EQUAL(setenv(library_variable, path, 1), 0); }

/* The stand-in of this name with "_old" before its ending. */
static inline void use_old_library(void)
{
    char path[4096];
    const char *there = getenv(library_variable);
    PAIR_CHECK(there && strlen(there) > 3);
    snprintf(path, sizeof(path), "%.*s_old.so", (int)strlen(there) - 3, there);
    use_library(path);
}

static inline void check_message(size_t index, const char *part)
{
    const kvferry_reason *reason = kvferry_report_get(report, index);
    PAIR_CHECK(reason && strcmp(reason->code, "engine_library") == 0);
    if (!strstr(reason->message, part))
        fprintf(stderr, "\"%s\" is not in \"%s\"\n", part, reason->message);
    PAIR_CHECK(strstr(reason->message, part));
}

/* No file, one without the functions (first to last), and then the right one. */
static inline void check_libraries(size_t functions, const char *first, const char *last, const char *hint)
{
    const char *there = getenv(library_variable);
    kvferry_engine *engine;
    PAIR_CHECK(there);
    char *path = strdup(there);
    use_library("/nowhere/lib.so");
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    PAIR_EQUAL(kvferry_report_count(report), 1);
    check_message(0, "/nowhere/lib.so");
    check_message(0, library_variable);
    check_message(0, hint);
    use_library("libm.so.6");
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_UNSUPPORTED);
    PAIR_EQUAL(kvferry_report_count(report), functions);
    check_message(0, first);
    check_message(functions - 1, last);
    check_message(0, "libm.so.6");
    use_library(path);
    PAIR_EQUAL(open_with("", "", &engine), KVFERRY_OK);
    kvferry_engine_close(engine);
    free(path);
}

/* The stand-in's own table, by which faults are set. */
static inline void *find_stand_in(void)
{
    void *library = dlopen(getenv(library_variable), RTLD_NOW | RTLD_NOLOAD);
    PAIR_CHECK(library);
    void *found = dlsym(library, "stand_in");
    PAIR_CHECK(found);
    dlclose(library);
    return found;
}

/* --- two engines ------------------------------------------------------------------------------ */

typedef struct rig {
    kvferry_engine *source, *target;
    kvferry_peer *peer;
    unsigned char *from, *to;
    kvferry_copy copies[COPIES];
} rig;

static inline kvferry_engine *open_engine(unsigned char *memory)
{
    kvferry_engine *engine;
    uint32_t segment;
    assert_int_equal(open_with("", "", &engine), KVFERRY_OK);
    assert_int_equal(kvferry_engine_register(engine, memory, BYTES, KVFERRY_MEMORY_HOST, &segment, report),
                     KVFERRY_OK);
    return engine;
}

static inline kvferry_status connect_to(rig *r, kvferry_peer **peer)
{
    void *binding;
    size_t size;
    kvferry_report_clear(report);
    assert_int_equal(kvferry_engine_export(r->target, &binding, &size, report), KVFERRY_OK);
    kvferry_status status = kvferry_engine_connect(r->source, binding, size, peer, report);
    kvferry_free(binding);
    return status;
}

static inline rig *open_rig(void)
{
    rig *r = calloc(1, sizeof(*r));
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_non_null(r);
    r->from = calloc(1, BYTES);
    r->to = calloc(1, BYTES);
    assert_true(r->from && r->to);
    r->source = open_engine(r->from);
    r->target = open_engine(r->to);
    for (uint64_t i = 0; i < COPIES; i++)
        r->copies[i] = (kvferry_copy){
            .source_offset = i * EACH, .target_offset = (COPIES - 1 - i) * EACH, .bytes = EACH};
    pair_fill(r->from, BYTES, 3);
    assert_int_equal(connect_to(r, &r->peer), KVFERRY_OK);
    return r;
}

static inline void close_rig(rig *r)
{
    kvferry_engine_close(r->source);
    kvferry_engine_close(r->target);
    kvferry_report_free(report);
    free(r->from);
    free(r->to);
    free(r);
}

static inline kvferry_transfer *begin(rig *r, kvferry_peer *peer, size_t count, uint64_t deadline_ns)
{
    kvferry_transfer *transfer;
    assert_int_equal(kvferry_transfer_begin(r->source, peer, KVFERRY_WRITE, r->copies, count, deadline_ns,
                                            &transfer, report),
                     KVFERRY_OK);
    return transfer;
}

static inline void progress(rig *r, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        assert_int_equal(kvferry_engine_progress(r->source, NULL), KVFERRY_OK);
        assert_int_equal(kvferry_engine_progress(r->target, NULL), KVFERRY_OK);
    }
}

static inline kvferry_status finish(rig *r, kvferry_transfer *transfer, const char *detail)
{
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    while (!is->over)
        progress(r, 1);
    kvferry_status status = is->status;
    if (*detail && !strstr(is->detail, detail))
        fail_msg("\"%s\" is not in \"%s\"", detail, is->detail);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_OK);
    return status;
}

/* The deadline is told at once, and the transfer is not over, however long. */
static inline void check_timeout(rig *r, kvferry_transfer *transfer)
{
    const kvferry_transfer_state *is = kvferry_transfer_get(transfer);
    while (is->status == KVFERRY_BUSY)
        progress(r, 1);
    assert_int_equal(is->status, KVFERRY_TIMEOUT);
    progress(r, 1000);
    assert_false(is->over);
    assert_int_equal(kvferry_transfer_free(transfer), KVFERRY_BUSY);
}

static inline void check_moved(const rig *r, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_memory_equal(r->to + r->copies[i].target_offset, r->from + r->copies[i].source_offset, EACH);
}

static inline void check_nothing_moved(const rig *r)
{
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(r->to[i], 0);
}

/* The connection serves: all copies, and every byte is there. */
static inline void check_serves(rig *r, kvferry_peer *peer)
{
    memset(r->to, 0, BYTES);
    assert_int_equal(finish(r, begin(r, peer, COPIES, 0), ""), KVFERRY_OK);
    check_moved(r, COPIES);
}

#endif
