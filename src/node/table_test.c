/* SPDX-License-Identifier: Apache-2.0 */
/* Tables whose keys are chosen so that they would meet in one place. */
#include "node/core_internal.h"

#include <stdio.h>

#include "node/rig_test.h"

enum { CHOSEN = 64, BITS = 12, FEW = 32 };

/* Digests that are alike in the last bits of uthash's own hash: some thousands of tries for each. */
static void choose(char digests[CHOSEN][WIRE_DIGEST_TEXT])
{
    size_t count = 0;
    for (uint64_t i = 0; count < CHOSEN; i++) {
        unsigned hash;
        snprintf(digests[count], WIRE_DIGEST_TEXT, "%032llx", (unsigned long long)i);
        HASH_JEN(digests[count], WIRE_DIGEST_TEXT - 1, hash);
        count += (hash & ((1u << BITS) - 1)) == 0;
    }
}

static void digests_that_a_peer_chose_are_spread(void **state)
{
    (void)state;
    static char digests[CHOSEN][WIRE_DIGEST_TEXT];
    static core_waiter waiters[CHOSEN];
    rig *r = rig_create();
    node_core *core = r->nodes[rig_engine(r, "prefill", 1, 1)].core;
    choose(digests);
    for (size_t i = 0; i < CHOSEN; i++)
        assert_true(core_waiter_begin(core, &waiters[i], digests[i]));
    const UT_hash_table *table = core->wants->hh.tbl;
    unsigned most = 0;
    for (unsigned i = 0; i < table->num_buckets; i++)
        most = table->buckets[i].count > most ? table->buckets[i].count : most;
    assert_in_range(most, 1, FEW);
    for (size_t i = 0; i < CHOSEN; i++)
        core_waiter_end(core, &waiters[i]);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(digests_that_a_peer_chose_are_spread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
