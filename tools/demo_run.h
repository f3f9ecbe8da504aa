/* SPDX-License-Identifier: Apache-2.0 */
/* One run of the demo, as the parent knows it. */
#ifndef KVFERRY_DEMO_RUN_H
#define KVFERRY_DEMO_RUN_H

#include "demo.h"

typedef struct demo_run {
    demo_config config;
    tool_side sides[DEMO_ROLES];
    demo_schedule schedule;
    demo_fleet fleet;
    json_t *documents[DEMO_ROLES], *addresses[DEMO_ROLES]; /* arrays in the order of ranks */

    uint32_t wave;     /* that is under way; schedule.waves: behind the last one */
    json_t *findings;  /* what the decode workers found, with "worker" and "round" */
    json_t *checks;    /* what each said in this round, in the order of ranks */
    uint64_t more;     /* findings that they did not describe */
    uint64_t checked, wrong, stray; /* bytes */
    uint64_t planted;  /* copies with a fault */
    uint64_t begin_ns, end_ns;
    char *failure;     /* why the run did not come to its end; or NULL */
} demo_run;

/* Runs it all with what config, sides and schedule say. */
void demo_run_go(demo_run *run);
void demo_run_free(demo_run *run);

/* Whether all was moved and every byte is right. */
bool demo_run_right(const demo_run *run);
uint64_t demo_run_bytes(const demo_run *run);
uint64_t demo_run_copies(const demo_run *run);

/* What became of a request: "right", "WRONG", "stray" (its cells are right, but in its round a byte changed
 * that nobody may change), "failed", "not checked". */
const char *demo_run_verdict(const demo_run *run, const demo_request *request);
double demo_request_seconds(const demo_request *request);

/* --- for people (demo_table.c) ------------------------------------------------------------------ */

/* A line on stderr that is drawn over again, if stderr is a terminal. */
void demo_bar_draw(const demo_run *run, const char *step, double done);
void demo_bar_clear(void);

/* What is run; the table of requests, what is wrong, and the last line. */
void demo_print_head(const demo_run *run);
void demo_print_run(const demo_run *run);

/* --- for programs (demo_json.c) ------------------------------------------------------------------ */

json_t *demo_run_json(const demo_run *run);

#endif
