/* SPDX-License-Identifier: Apache-2.0 */
/* Workers of several threads that write to each other, while engines open and close around them. */
#include "engine/memory_rig_test.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200, PART = RIG_BYTES / THREADS };

/* Each thread writes its own part of the shared target, so that no two writes meet. */
static struct {
    kvferry_engine *target;
    void *binding;
    size_t size;
    unsigned char memory[RIG_BYTES];
    unsigned failures[THREADS];
} shared;

static bool write_part(unsigned index, unsigned round)
{
    unsigned char source[PART];
    kvferry_engine *engine;
    kvferry_peer *peer;
    kvferry_transfer *transfer;
    uint32_t segment;
    memset(source, (int)(round + index + 1) & 0xff, PART);
    const kvferry_copy copy = {.target_offset = (uint64_t)index * PART, .bytes = PART};
    if (kvferry_engine_open("memory", NULL, &engine, NULL) != KVFERRY_OK)
        return false;
    bool well = kvferry_engine_register(engine, source, PART, KVFERRY_MEMORY_HOST, &segment, NULL) ==
                    KVFERRY_OK &&
                kvferry_engine_connect(engine, shared.binding, shared.size, &peer, NULL) ==
                    KVFERRY_OK &&
                kvferry_transfer_begin(engine, peer, KVFERRY_WRITE, &copy, 1, 0, &transfer, NULL) ==
                    KVFERRY_OK;
    if (well) {
        while (!kvferry_transfer_get(transfer)->over)
            kvferry_engine_progress(engine, NULL);
        well = kvferry_transfer_get(transfer)->status == KVFERRY_OK &&
               memcmp(shared.memory + copy.target_offset, source, PART) == 0;
        kvferry_transfer_free(transfer);
    }
    kvferry_engine_close(engine);
    return well;
}

static void *run(void *argument)
{
    unsigned index = (unsigned)(uintptr_t)argument;
    for (unsigned round = 0; round < ROUNDS; round++)
        shared.failures[index] += !write_part(index, round);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    shared.target = rig_open("target", shared.memory, NULL);
    assert_int_equal(kvferry_engine_export(shared.target, &shared.binding, &shared.size, NULL),
                     KVFERRY_OK);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, (void *)i), 0);
    for (unsigned i = 0; i < 1000; i++)
        kvferry_engine_progress(shared.target, NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(shared.failures[i], 0);
        assert_int_equal(shared.memory[i * PART], (ROUNDS + i) & 0xff);
    }
    kvferry_engine_close(shared.target);
    kvferry_free(shared.binding);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
