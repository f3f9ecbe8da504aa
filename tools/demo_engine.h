/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a faulty connector: that of the run, but its copies are changed on the way, behind the node's back. A worker
 * has one. It is used where the fault is in the copies and not in the documents.
 */
#ifndef KVFERRY_DEMO_ENGINE_H
#define KVFERRY_DEMO_ENGINE_H

#include "demo_fault.h"

#define DEMO_ENGINE "demo-broken"

/* Whether this fault needs the engine, on both sides: peers have the same one. */
bool demo_engine_needed(demo_fault fault);

/* Makes it known by its name in this process. `rank` is how the other side's documents are found. */
kvferry_status demo_engine_add(const demo_config *config, size_t rank, kvferry_report *report);

/* What the sender knows: its own document, and those of all decode workers. They must outlive the engine. */
void demo_engine_know(const kvferry_layout *source, kvferry_layout *const *targets);

/* The requests of the round that begins, which must stay until the next one. */
void demo_engine_round(kvferry_request *const *requests, size_t count, uint64_t seed);

/* How many copies were changed or left out since the last call. */
uint64_t demo_engine_planted(void);

/* Sends what an earlier round held back, if anything, and waits until it is there. */
void demo_engine_send_held(void);

#endif
