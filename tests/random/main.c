/* SPDX-License-Identifier: Apache-2.0 */
/* random_plans: random set-ups against the oracle. docs/proof.md. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "random.h"

static int usage(FILE *out, int status)
{
    fprintf(out,
            "usage: random_plans [--seed N] [--runs N] [--naive] [--keep-going] [--no-shrink]\n"
            "  --seed N      the first seed (default 1)\n"
            "  --runs N      how many seeds, one after another (default 1000)\n"
            "  --naive       move with the reference planner instead of the library's\n"
            "  --keep-going  do not stop at the first finding\n"
            "  --no-shrink   print the set-up as it is, not made small\n");
    return status;
}

static bool read_number(const char *text, uint64_t *number)
{
    char *end;
    *number = text ? strtoull(text, &end, 10) : 0;
    return text && *text >= '0' && *text <= '9' && *end == 0;
}

static void print_totals(const random_totals *totals, uint64_t findings, double seconds)
{
    printf("%" PRIu64 " set-ups (%" PRIu64 " of them to be refused), %" PRIu64
           " target workers, %" PRIu64 " requests, %" PRIu64 " copies\n",
           totals->runs, totals->refusals, totals->workers, totals->requests, totals->copies);
    printf("%" PRIu64 " bytes wanted, %" PRIu64 " moved, %" PRIu64
           " more allowed to change, %" PRIu64 " checked\n",
           totals->wanted_bytes, totals->moved_bytes, totals->allowed_bytes, totals->checked_bytes);
    printf("%" PRIu64 " requests want more because of whole_blocks\n", totals->whole);
    printf("%" PRIu64 " copies could have been one with the copy before\n", totals->continued);
    for (int i = 1; i < FAULT_KINDS && totals->refusals; i++)
        printf("  %8" PRIu64 " %s\n", totals->faults[i], spec_fault_name((fault_kind)i));
    printf("%" PRIu64 " findings, %.1f s, %.0f set-ups a second\n", findings, seconds,
           seconds > 0 ? (double)totals->runs / seconds : 0);
}

/* What a run did not reach it proves nothing about: this is the rarest. */
static bool reached_whole(const random_totals *totals, bool naive)
{
    return totals->whole > 0 && (naive || totals->faults[FAULT_SOURCE_WHOLE] > 0);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, runs = 1000, findings = 0;
    bool naive = false, keep_going = false, shrink = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return usage(stdout, 0);
        if (strcmp(argv[i], "--naive") == 0)
            naive = true;
        else if (strcmp(argv[i], "--keep-going") == 0)
            keep_going = true;
        else if (strcmp(argv[i], "--no-shrink") == 0)
            shrink = false;
        else if (strcmp(argv[i], "--seed") == 0 && read_number(argv[i + 1], &seed))
            i++;
        else if (strcmp(argv[i], "--runs") == 0 && read_number(argv[i + 1], &runs))
            i++;
        else
            return usage(stderr, 2);
    }
    random_totals totals = {0};
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint64_t n = 0; n < runs && (keep_going || !findings); n++) {
        random_spec spec;
        random_finding finding;
        spec_generate(&spec, seed + n);
        run_spec(&spec, naive, &finding, &totals);
        if (!finding.what[0])
            continue;
        findings++;
        printf("seed %" PRIu64 ": %s: %s\n", seed + n, finding.what, finding.text);
        if (keep_going)
            continue;
        if (shrink) {
            spec_shrink(&spec, naive, &finding);
            printf("made small:\n");
        }
        spec_print(&spec, &finding, stdout);
        printf("again: random_plans --seed %" PRIu64 " --runs 1%s\n", seed + n,
               naive ? " --naive" : "");
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    print_totals(&totals, findings,
                 (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9);
    if (totals.continued > totals.copies / 200 + 5) {
        printf("too many copies are not merged\n");
        findings++;
    }
    if (runs >= 2500 && !findings && !reached_whole(&totals, naive)) {
        printf("whole blocks were not wanted, or never refused\n");
        findings++;
    }
    return findings ? 1 : 0;
}
