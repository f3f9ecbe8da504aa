/* SPDX-License-Identifier: Apache-2.0 */
#include "guard.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* glibc's own allocator, below the names that this file takes. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *data, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *data);

#define CALLER __builtin_return_address(0)

static __thread bool armed;
static size_t allocations, locks, fail_at;
static bool fail_on, failed;

void guard_fail_at(size_t n, bool on)
{
    fail_at = n;
    fail_on = on;
    allocations = locks = 0;
    failed = false;
}

void guard_begin(void) { armed = true; }
void guard_end(void) { armed = false; }
size_t guard_allocations(void) { return allocations; }
size_t guard_locks(void) { return locks; }
bool guard_failed(void) { return failed; }

/* --- what is allocated: an open hash set of addresses, for all threads ----------------------- */

enum { SLOTS = 1 << 16 };
#define GONE ((uintptr_t)1)
static uintptr_t slots[SLOTS];
static size_t live;
static atomic_flag busy = ATOMIC_FLAG_INIT;

size_t guard_live(void) { return live; }

static size_t slot_of(uintptr_t address) { return (size_t)((address >> 4) * 0x9E3779B1u) % SLOTS; }

static void remember(const void *data)
{
    uintptr_t address = (uintptr_t)data;
    while (atomic_flag_test_and_set(&busy))
        ;
    size_t slot = slot_of(address);
    while (slots[slot] > GONE)
        slot = (slot + 1) % SLOTS;
    slots[slot] = address;
    if (++live > SLOTS / 2)
        abort(); /* the set is too small for this test */
    atomic_flag_clear(&busy);
}

static bool forget(const void *data)
{
    uintptr_t address = (uintptr_t)data;
    bool found = false;
    while (atomic_flag_test_and_set(&busy))
        ;
    if (live) {
        size_t slot = slot_of(address);
        for (size_t i = 0; i < SLOTS && slots[slot] && !found; i++, slot = (slot + 1) % SLOTS) {
            if (slots[slot] != address)
                continue;
            slots[slot] = GONE;
            live--;
            found = true;
        }
        if (!live)
            memset(slots, 0, sizeof(slots));
    }
    atomic_flag_clear(&busy);
    return found;
}

/* --- who asks ------------------------------------------------------------------------------ */

static bool counted_module(const void *caller)
{
    struct dl_find_object object;
    if (_dl_find_object((void *)(uintptr_t)caller, &object))
        return false;
    const char *name = object.dlfo_link_map->l_name;
    return !*name || strstr(name, "libjansson") || strstr(name, "libmsgpack") ||
           strstr(name, "libsodium");
}

/* Whether this allocation is one of those that count; *fail: and is to fail. */
static bool count(const void *caller, bool *fail)
{
    *fail = false;
    if (!armed || !counted_module(caller))
        return false;
    allocations++;
    *fail = fail_at && (allocations == fail_at || (fail_on && allocations > fail_at));
    failed |= *fail;
    if (*fail)
        errno = ENOMEM;
    return true;
}

static void *counted(void *data)
{
    if (data)
        remember(data);
    return data;
}

/* --- the allocator's names ------------------------------------------------------------------- */

void *malloc(size_t size)
{
    bool fail;
    if (!count(CALLER, &fail))
        return __libc_malloc(size);
    return fail ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t number, size_t size)
{
    bool fail;
    if (!count(CALLER, &fail))
        return __libc_calloc(number, size);
    return fail ? NULL : counted(__libc_calloc(number, size));
}

void *realloc(void *data, size_t size)
{
    bool fail, counts = count(CALLER, &fail);
    if (fail)
        return NULL;
    bool known = data && forget(data);
    void *moved = __libc_realloc(data, size);
    if (!moved && size && known)
        remember(data);
    if (moved && (counts || known))
        remember(moved);
    return moved;
}

void *reallocarray(void *data, size_t number, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(number, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(data, bytes);
}

void *memalign(size_t alignment, size_t size)
{
    bool fail;
    if (!count(CALLER, &fail))
        return __libc_memalign(alignment, size);
    return fail ? NULL : counted(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    bool fail;
    if (!count(CALLER, &fail))
        return __libc_memalign(alignment, size);
    return fail ? NULL : counted(__libc_memalign(alignment, size));
}

int posix_memalign(void **data, size_t alignment, size_t size)
{
    bool fail, counts = count(CALLER, &fail);
    void *got = fail ? NULL : __libc_memalign(alignment, size);
    if (!got)
        return ENOMEM;
    *data = counts ? counted(got) : got;
    return 0;
}

char *strndup(const char *text, size_t length)
{
    bool fail, counts = count(CALLER, &fail);
    size_t size = strnlen(text, length);
    char *copy = fail ? NULL : __libc_malloc(size + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, size);
    copy[size] = 0;
    return counts ? counted(copy) : copy;
}

char *strdup(const char *text)
{
    bool fail, counts = count(CALLER, &fail);
    size_t size = strlen(text) + 1;
    char *copy = fail ? NULL : __libc_malloc(size);
    if (!copy)
        return NULL;
    memcpy(copy, text, size);
    return counts ? counted(copy) : copy;
}

void free(void *data)
{
    if (data)
        forget(data);
    __libc_free(data);
}

/* --- locks ----------------------------------------------------------------------------------- */

#define LOCK(name, type)                                                                            \
    int name(type *lock)                                                                            \
    {                                                                                               \
        static int (*real)(type *);                                                                 \
        if (!real)                                                                                  \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                              \
        locks += armed;                                                                             \
        return real(lock);                                                                          \
    }
LOCK(pthread_mutex_lock, pthread_mutex_t)
LOCK(pthread_mutex_trylock, pthread_mutex_t)
LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
LOCK(pthread_spin_lock, pthread_spinlock_t)
