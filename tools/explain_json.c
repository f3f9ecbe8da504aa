/* SPDX-License-Identifier: Apache-2.0 */
/* The same findings as one JSON value; docs/command.md lists the members. */
#include "explain.h"

static void append(json_t *list, json_t *item)
{
    if (!item || json_array_append_new(list, item) != 0)
        tool_no_memory();
}

static json_t *strings(const tool_list *list)
{
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        append(array, tool_json_text(list->items[i]));
    return array;
}

static json_int_t whole(uint64_t number) { return (json_int_t)number; }

static json_t *worker_json(const tool_side *side, size_t index)
{
    const kvferry_worker *worker = kvferry_layout_worker(side->layouts[index]);
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "name",
                     tool_json_text(side->names[index]), "engine_id",
                     tool_json_text(kvferry_layout_engine_id(side->layouts[index])), "tp_rank",
                     whole(worker->tp_rank), "tp_size", whole(worker->tp_size), "pp_rank",
                     whole(worker->pp_rank), "pp_size", whole(worker->pp_size), "dp_rank",
                     whole(worker->dp_rank), "dp_size", whole(worker->dp_size));
}

static json_t *row_json(const explain_row *row)
{
    uint64_t pages = row->page_tokens ? row->block_tokens / row->page_tokens : 1;
    return json_pack("{s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
                     "group", row->group, "kind", explain_kind(row->kind), "layers",
                     strings(&row->layers), "streams", strings(&row->streams), "block_tokens",
                     whole(row->block_tokens), "window", whole(row->window), "page_tokens",
                     whole(row->page_tokens), "pages_per_block", whole(pages), "row_bytes",
                     whole(row->row_bytes), "row_layers", whole(row->row_layers), "payload_bytes",
                     whole(row->payload), "padding_bytes", whole(row->row_bytes - row->payload),
                     "blocks", whole(row->blocks), "workers", strings(&row->workers));
}

static json_t *side_json(const explain_side *side)
{
    json_t *workers = json_array(), *rows = json_array();
    for (size_t w = 0; w < side->workers.count; w++)
        append(workers, worker_json(&side->workers, w));
    for (size_t r = 0; r < side->row_count; r++)
        append(rows, row_json(&side->rows[r]));
    return json_pack("{s:o, s:o, s:o}", "model",
                     tool_json_text(kvferry_layout_identity(side->workers.layouts[0])->model),
                     "workers", workers, "groups", rows);
}

static json_t *cut_side_json(const explain_cut *cut, int side)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "block_tokens", whole(cut->block_tokens[side]),
                     "page_tokens", whole(cut->page_tokens[side]), "least", whole(cut->least[side]),
                     "most", whole(cut->most[side]), "holders", whole(cut->holders[side]));
}

static json_t *cut_json(const explain_cut *cut)
{
    return json_pack("{s:o, s:o, s:s, s:I, s:I, s:s, s:I, s:o, s:o}", "streams",
                     strings(&cut->streams), "layers", strings(&cut->layers), "kind",
                     explain_kind(cut->kind), "tokens_per_state", whole(cut->tokens_per_state),
                     "window", whole(cut->window), "axis", cut->axis ? cut->axis : "", "global",
                     whole(cut->global), "source", cut_side_json(cut, 0), "target",
                     cut_side_json(cut, 1));
}

static json_t *piece_json(const explain *all, const explain_piece *piece)
{
    json_t *ranges = json_array();
    for (uint32_t i = 0; i < piece->stream->axis_count; i++) {
        const kvferry_axis *axis = &piece->stream->axes[i];
        if (!explain_is_token(axis))
            append(ranges, json_pack("{s:s, s:I, s:I, s:I}", "axis", axis->name, "start",
                                     whole(piece->ranges[i].start), "extent",
                                     whole(piece->ranges[i].extent), "global", whole(axis->global)));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:s, s:I, s:I}", "source",
                     tool_json_text(all->source.workers.names[piece->source]), "target",
                     tool_json_text(all->target.workers.names[piece->target]), "layers",
                     strings(&piece->layers), "streams", strings(&piece->streams), "ranges", ranges,
                     "kind", explain_kind(piece->kind), "state_bytes", whole(piece->state_bytes),
                     "tokens_per_state",
                     whole(piece->kind == KVFERRY_GROUP_PAGED ? piece->tokens_per_state : 0));
}

static json_t *count_json(const explain_count *count)
{
    return json_pack("{s:I, s:I}", "copies", whole(count->copies), "bytes", whole(count->bytes));
}

static json_t *request_json(const explain *all)
{
    json_t *pairs = json_array();
    size_t sources = all->source.workers.count;
    for (size_t i = 0; i < sources * all->target.workers.count; i++)
        append(pairs, json_pack("{s:o, s:o, s:o, s:o}", "source",
                                tool_json_text(all->source.workers.names[i % sources]), "target",
                                tool_json_text(all->target.workers.names[i / sources]),
                                "consecutive", count_json(&all->counts[EXPLAIN_CONSECUTIVE][i]),
                                "shuffled", count_json(&all->counts[EXPLAIN_SHUFFLED][i])));
    return json_pack("{s:I, s:b, s:I, s:o, s:o, s:o}", "tokens", whole(all->tokens), "whole_blocks",
                     (int)all->whole_blocks, "wanted_bytes", whole(all->wanted), "consecutive",
                     count_json(&all->total[EXPLAIN_CONSECUTIVE]), "shuffled",
                     count_json(&all->total[EXPLAIN_SHUFFLED]), "pairs", pairs);
}

void explain_print_json(const explain *all)
{
    json_t *cuts = json_array(), *pieces = json_array();
    for (size_t c = 0; c < all->cut_count; c++)
        append(cuts, cut_json(&all->cuts[c]));
    for (size_t p = 0; p < all->piece_count; p++)
        append(pieces, piece_json(all, &all->pieces[p]));
    tool_print_json(json_pack("{s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "ok", 1, "source",
                              side_json(&all->source), "target", side_json(&all->target), "cuts",
                              cuts, "pieces", pieces, "unsent_layers", strings(&all->unsent),
                              "unused_layers", strings(&all->unused), "request", request_json(all)));
}
