/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of kvferry explain. */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_SHOWN 64 /* rows of "who sends what" without -v */

static char *comma(const tool_list *list)
{
    char *text = tool_text("%s", "");
    for (size_t i = 0; i < list->count; i++) {
        char *longer = tool_text("%s%s%s", text, i ? ", " : "", list->items[i]);
        free(text);
        text = longer;
    }
    return text;
}

static char *fold(const tool_list *list) { return tool_fold(list->items, list->count); }

static const char *number_or_dash(uint64_t number) { return number ? tool_number(number) : "-"; }

/* --- groups -------------------------------------------------------------------------------- */

static void add_group_row(tool_table *table, const explain_row *row)
{
    char *layers = fold(&row->layers), *streams = comma(&row->streams), *workers = fold(&row->workers);
    bool paged = row->kind == KVFERRY_GROUP_PAGED;
    const char *const cells[] = {row->group,
                                 explain_kind(row->kind),
                                 tool_number(row->layers.count),
                                 streams,
                                 paged ? tool_number(row->block_tokens) : "-",
                                 number_or_dash(row->window),
                                 paged ? tool_number(row->block_tokens / row->page_tokens) : "1",
                                 tool_number(row->row_bytes),
                                 tool_number(row->row_layers),
                                 tool_number(row->payload),
                                 tool_number(row->row_bytes - row->payload),
                                 tool_number(row->blocks),
                                 workers,
                                 layers};
    tool_table_row(table, cells);
    free(workers);
    free(streams);
    free(layers);
}

static void print_groups(const explain_side *side)
{
    static const char *const columns[] = {
        "group",        "kind",   ">layers",   "streams",       ">block tokens", ">window",
        ">pages/block", ">row",    ">layers/row", ">payload",    ">padding",      ">blocks",
        "workers",      "layer names"};
    printf("\nGroups of %s (bytes; a row is one page of every layer that lies in it)\n\n", side->title);
    tool_table *table = tool_table_create(columns, sizeof(columns) / sizeof(*columns));
    for (size_t r = 0; r < side->row_count; r++)
        add_group_row(table, &side->rows[r]);
    tool_table_print(table);
}

/* --- cuts ---------------------------------------------------------------------------------- */

static char *holding(const explain_cut *cut, int side)
{
    if (!cut->axis)
        return tool_text("whole");
    if (cut->least[side] == cut->most[side])
        return tool_text("%s", tool_number(cut->least[side]));
    return tool_text("%s..%s", tool_number(cut->least[side]), tool_number(cut->most[side]));
}

static void print_cuts(const explain *all)
{
    char *columns[] = {tool_text("streams"),
                       tool_text("axis"),
                       tool_text(">in all"),
                       tool_text(">a %s worker has", all->source.title),
                       tool_text(">held by"),
                       tool_text(">a %s worker has", all->target.title),
                       tool_text(">held by"),
                       tool_text("layers")};
    printf("\nHow streams are cut among workers (held by: workers that have the same part)\n\n");
    tool_table *table = tool_table_create((const char *const *)columns, 8);
    for (size_t c = 0; c < all->cut_count; c++) {
        const explain_cut *cut = &all->cuts[c];
        char *streams = comma(&cut->streams), *source = holding(cut, 0), *target = holding(cut, 1);
        char *layers = fold(&cut->layers);
        const char *const cells[] = {streams,
                                     cut->axis ? cut->axis : "-",
                                     number_or_dash(cut->global),
                                     source,
                                     tool_number(cut->holders[0]),
                                     target,
                                     tool_number(cut->holders[1]),
                                     layers};
        tool_table_row(table, cells);
        free(layers);
        free(target);
        free(source);
        free(streams);
    }
    tool_table_print(table);
    for (size_t i = 0; i < 8; i++)
        free(columns[i]);
}

/* --- who sends what ------------------------------------------------------------------------ */

static const char *unit(const explain_piece *piece)
{
    static char text[48];
    if (piece->kind != KVFERRY_GROUP_PAGED)
        return "block";
    if (piece->tokens_per_state == 1)
        return "token";
    snprintf(text, sizeof(text), "%s tokens", tool_number(piece->tokens_per_state));
    return text;
}

static void add_piece_row(const explain *all, tool_table *table, const explain_piece *piece,
                          const char *layers)
{
    char *streams = comma(&piece->streams), *part = explain_range_text(piece);
    const char *const cells[] = {all->target.workers.names[piece->target],
                                 all->source.workers.names[piece->source],
                                 streams,
                                 part,
                                 tool_number(piece->state_bytes),
                                 unit(piece),
                                 layers};
    tool_table_row(table, cells);
    free(part);
    free(streams);
}

static void print_pieces(const explain *all)
{
    char *columns[] = {tool_text("%s worker", all->target.title),
                       tool_text("gets from %s", all->source.title),
                       tool_text("streams"),
                       tool_text("part"),
                       tool_text(">bytes"),
                       tool_text("per"),
                       tool_text("layers")};
    printf("\nWho sends what (bytes: of one layer and one stream)\n\n");
    tool_table *table = tool_table_create((const char *const *)columns, 7);
    size_t left_out = 0;
    for (size_t p = 0; p < all->piece_count; p++) {
        const explain_piece *piece = &all->pieces[p];
        if (all->verbose) {
            for (size_t i = 0; i < piece->layers.count; i++)
                add_piece_row(all, table, piece, piece->layers.items[i]);
        } else if (p < PIECES_SHOWN) {
            char *layers = fold(&piece->layers);
            add_piece_row(all, table, piece, layers);
            free(layers);
        } else {
            left_out++;
        }
    }
    tool_table_print(table);
    if (left_out)
        printf("... and %s rows more of the same kind (-v lists all, by layer)\n",
               tool_number(left_out));
    for (size_t i = 0; i < 7; i++)
        free(columns[i]);
}

/* --- the request --------------------------------------------------------------------------- */

static void add_count_row(tool_table *table, const char *const names[2],
                          const explain_count *consecutive, const explain_count *shuffled)
{
    const char *const cells[] = {names[0],
                                 names[1],
                                 tool_number(consecutive->copies),
                                 tool_number(consecutive->bytes),
                                 tool_number(shuffled->copies),
                                 tool_number(shuffled->bytes)};
    tool_table_row(table, cells);
}

static void print_counts(const explain *all)
{
    static const char *const columns[] = {"from",    "to",       ">copies (consecutive ids)",
                                          ">bytes",  ">copies (shuffled ids)", ">bytes"};
    printf("\nA request of %s\n\n", tool_count(all->tokens, "token"));
    tool_table *table = tool_table_create(columns, 6);
    size_t sources = all->source.workers.count;
    for (size_t i = 0; i < sources * all->target.workers.count; i++) {
        const explain_count *consecutive = &all->counts[EXPLAIN_CONSECUTIVE][i];
        const explain_count *shuffled = &all->counts[EXPLAIN_SHUFFLED][i];
        if (!consecutive->copies && !shuffled->copies)
            continue;
        const char *const names[] = {all->source.workers.names[i % sources],
                                     all->target.workers.names[i / sources]};
        add_count_row(table, names, consecutive, shuffled);
    }
    add_count_row(table, (const char *const[2]){"all", "all"}, &all->total[EXPLAIN_CONSECUTIVE],
                  &all->total[EXPLAIN_SHUFFLED]);
    tool_table_print(table);
}

void explain_print_text(const explain *all)
{
    explain_print_words(all);
    print_groups(&all->source);
    print_groups(&all->target);
    print_cuts(all);
    print_pieces(all);
    print_counts(all);
}
