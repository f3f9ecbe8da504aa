/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a target worker, between its passes: oracle_check.c (the whole, and the third),
 * oracle_cells.c (the first), oracle_rows.c (the second). */
#ifndef KVFERRY_ORACLE_CHECKER_H
#define KVFERRY_ORACLE_CHECKER_H

#include "oracle_view.h"

/* The tokens that a request wants in a table, less what the window drops. */
typedef struct token_range {
    uint64_t first, end;
} token_range;

typedef struct checker {
    const oracle_worker *target;
    explain_context explain;
    view_layout view;
    const kvferry_stream **matches;
    unsigned char **named; /* by group and block: 1 if the transfer that is set back wants it */
    unsigned char *mask;   /* one row: 1 where a byte may change */
    uint64_t mask_size;
    oracle_result *result;
} checker;

token_range checker_wanted_tokens(const kvferry_group *group, const kvferry_block_table *table,
                                  const kvferry_request *request);

/* Whether a table's block at an index is there and holds anything wanted. */
bool checker_block_is_wanted(const view_stream *stream, const kvferry_block_table *table,
                             size_t index, token_range range);

/* A finding to fill, NULL if there are too many already. */
oracle_finding *checker_finding(oracle_result *result);

/* Pass 1 for one transfer: compares its wanted cells and sets them back to noise. */
void checker_check_cells(checker *check, const oracle_transfer *transfer);

/* Pass 2 for one transfer: sets back to noise what else it may change. */
void checker_restore_rows(checker *check, const oracle_transfer *transfer);

#endif
