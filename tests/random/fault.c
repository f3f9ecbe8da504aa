/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one thing wrong in a right spec, and knows by which reason it must be refused. */
#include <string.h>

#include "random.h"

static const struct {
    const char *name, *code;
} faults[FAULT_KINDS] = {
    [FAULT_NONE] = {"none", ""},
    [FAULT_NO_SOURCES] = {"no sources", "no_sources"},
    [FAULT_WORKER_TWICE] = {"a source worker twice", "worker_duplicate"},
    [FAULT_IDENTITY] = {"another model", "identity_differs"},
    [FAULT_STREAM] = {"a stream that differs", ""},
    [FAULT_MISSING] = {"a stream that no source has", "stream_missing"},
    [FAULT_HOLE] = {"a source worker is left out", "coverage_hole"},
    [FAULT_SOURCE_NULL] = {"a wanted source block is null", "source_null"},
    [FAULT_SOURCE_SHORT] = {"a wanted source block is not listed", "source_null"},
    [FAULT_SOURCE_TOKENS] = {"the source covers too few tokens", "source_null"},
    [FAULT_SOURCE_WHOLE] = {"a source block is gone that only whole blocks want", "source_null"},
    [FAULT_BLOCK_RANGE] = {"a block id out of range", "block_range"},
    [FAULT_BLOCK_TWICE] = {"a target block named twice", "target_block_twice"},
    [FAULT_BLOCK_SHARED] = {"a target block in two groups that share", "target_block_twice"},
    [FAULT_GROUP_MISSING] = {"a source group is not listed", "group_missing"},
    [FAULT_GROUP_UNKNOWN] = {"a group that nobody has", "group_unknown"},
    [FAULT_GROUP_TWICE] = {"a group listed twice", "group_twice"},
    [FAULT_MISALIGNED] = {"a first token inside a block", "first_token_misaligned"},
    [FAULT_STATE_POSITION] = {"states of another position", "state_position"},
    [FAULT_STATE_BLOCKS] = {"not one live state block", "state_blocks"},
    [FAULT_HOSTILE] = {"numbers from anywhere", ""},
};

const char *spec_fault_name(fault_kind kind)
{
    return faults[kind].name;
}

const char *spec_fault_code(const random_spec *spec)
{
    static const char *const lies[] = {[LIE_NONE] = "",
                                       [LIE_DTYPE] = "dtype_differs",
                                       [LIE_FORMAT] = "format_differs",
                                       [LIE_CELL] = "cell_bytes_differ",
                                       [LIE_AXIS] = "axes_differ",
                                       [LIE_GLOBAL] = "global_extent_differs",
                                       [LIE_KIND] = "kind_differs"};
    if (spec->fault.kind == FAULT_STREAM)
        return lies[spec->sides[SOURCE].streams[spec->fault.stream].lie];
    return faults[spec->fault.kind].code;
}

/* --- of the documents ----------------------------------------------------------------------- */

static bool lie_about_stream(random_spec *spec, random_dice *dice, int index)
{
    const stream_spec *stream = &spec->streams[index];
    side_stream *side = &spec->sides[SOURCE].streams[index];
    uint8_t lie = (uint8_t)dice_range(dice, LIE_DTYPE, LIE_KIND);
    if (lie == LIE_STATE || (lie == LIE_CELL && stream->cell_bytes < 2) ||
        ((lie == LIE_AXIS || lie == LIE_GLOBAL) && stream->axis_count == 0) ||
        (lie == LIE_KIND && stream->kind == KVFERRY_GROUP_PAGED))
        return false;
    if (lie == LIE_KIND)
        spec->sides[SOURCE].groups[side->group].kind =
            stream->kind == KVFERRY_GROUP_STATE ? KVFERRY_GROUP_RING : KVFERRY_GROUP_STATE;
    side->lie = lie;
    return true;
}

static bool break_documents(random_spec *spec, random_dice *dice)
{
    fault_spec *fault = &spec->fault;
    int stream = (int)dice_below(dice, spec->stream_count);
    bool required = spec_is_moved(spec, stream) &&
                    spec->sides[TARGET].streams[stream].policy == KVFERRY_POLICY_REQUIRED;
    fault->stream = (uint8_t)stream;
    fault->worker = (uint8_t)dice_below(dice, spec->sides[SOURCE].tp * spec->sides[SOURCE].pp);
    switch (fault->kind) {
    case FAULT_STREAM: return required && lie_about_stream(spec, dice, stream);
    case FAULT_MISSING:
        if (!required)
            return false;
        if (dice_one_in(dice, 2))
            spec->sides[SOURCE].streams[stream].policy = KVFERRY_POLICY_LOCAL;
        else
            spec->sides[SOURCE].streams[stream].absent = true;
        return true;
    case FAULT_HOLE: return spec->sides[SOURCE].tp * spec->sides[SOURCE].pp > 1;
    default: return true;
    }
}

/* --- of a request --------------------------------------------------------------------------- */

/* A moved stream whose target group is listed, from a random one on; -1: none. */
static int listed_stream(const random_spec *spec, const request_spec *request, random_dice *dice,
                         bool paged)
{
    int from = (int)dice_below(dice, spec->stream_count);
    for (int n = 0; n < spec->stream_count; n++) {
        int i = (from + n) % spec->stream_count;
        if (spec_is_moved(spec, i) && (spec->streams[i].kind == KVFERRY_GROUP_PAGED) == paged &&
            request->tables[TARGET][spec->sides[TARGET].streams[i].group].listed)
            return i;
    }
    return -1;
}

/* The index of the block of a table that holds a wanted token of the target group. */
static bool wanted_index(const random_spec *spec, const request_spec *request, random_dice *dice,
                         int stream, int side, uint16_t *index)
{
    int group = spec->sides[side].streams[stream].group;
    uint64_t wanted = spec_wanted_tokens(spec, request, spec->sides[TARGET].streams[stream].group);
    const table_spec *table = &request->tables[side][group];
    uint32_t token = dice_below(dice, MAX_TOKENS);
    for (uint32_t n = 0; n < MAX_TOKENS; n++, token = (token + 1) % MAX_TOKENS)
        if (wanted >> token & 1) {
            *index = (uint16_t)((token - table->first_token) /
                                spec->sides[side].groups[group].block_tokens);
            return *index < table->count;
        }
    return false;
}

static bool break_blocks(random_spec *spec, request_spec *request, random_dice *dice, int stream,
                         int side)
{
    fault_spec *fault = &spec->fault;
    table_spec *table = &request->tables[side][fault->group];
    if (!wanted_index(spec, request, dice, stream, side, &fault->index))
        return false;
    switch (fault->kind) {
    case FAULT_SOURCE_NULL:
        table->ids[fault->index] = NULL_ID;
        return spec->sides[SOURCE].groups[fault->group].null_block >= 0;
    case FAULT_SOURCE_SHORT: table->count = (uint8_t)fault->index; return true;
    case FAULT_SOURCE_TOKENS:
        /* The block's first token is not there, whatever the block holds. */
        request->source_tokens =
            (uint16_t)(table->first_token +
                       fault->index * spec->sides[SOURCE].groups[fault->group].block_tokens);
        return true;
    case FAULT_BLOCK_RANGE: table->ids[fault->index] = 250; return true;
    default: /* FAULT_BLOCK_TWICE */
        for (uint16_t i = 0; i < fault->index; i++) {
            uint32_t end = table->first_token +
                           (i + 1u) * spec->sides[TARGET].groups[fault->group].block_tokens;
            if (table->ids[i] == NULL_ID || end > request->target_tokens)
                continue;
            table->ids[fault->index] = table->ids[i];
            return true;
        }
        return false;
    }
}

/* A source block that is wanted only because of whole_blocks becomes null, or the table begins behind
 * it. */
static bool lose_whole_block(random_spec *spec, request_spec *request, random_dice *dice)
{
    const side_group *side = &spec->sides[SOURCE].groups[spec->fault.group];
    table_spec *table = &request->tables[SOURCE][spec->fault.group];
    request_spec plain = *request;
    uint64_t needed, always;
    plain.whole_blocks = false;
    spec_needed_tokens(spec, request, spec->fault.group, &needed);
    spec_needed_tokens(spec, &plain, spec->fault.group, &always);
    bool front = side->null_block < 0 || dice_one_in(dice, 2);
    uint32_t from = table->count ? dice_below(dice, table->count) : 0;
    for (uint32_t n = 0; n < table->count; n++) {
        uint32_t i = (from + n) % table->count;
        request_spec lost = *request;
        table_spec *shorter = &lost.tables[SOURCE][spec->fault.group];
        if (front) {
            shorter->first_token = (uint16_t)(table->first_token + (i + 1) * side->block_tokens);
            shorter->count = (uint8_t)(table->count - i - 1);
            memmove(shorter->ids, table->ids + i + 1, shorter->count * sizeof *shorter->ids);
        } else {
            shorter->ids[i] = NULL_ID;
        }
        uint64_t live = spec_live_tokens(spec, &lost, SOURCE, spec->fault.group);
        if (!(needed & ~live) || (always & ~live))
            continue;
        *request = lost;
        return true;
    }
    return false;
}

/* A block of another group of the pool that lies over this one. */
static bool share_block(random_spec *spec, request_spec *request, random_dice *dice, int stream)
{
    fault_spec *fault = &spec->fault;
    const side_spec *side = &spec->sides[TARGET];
    int other = (int)dice_below(dice, spec->stream_count);
    fault->other_group = side->streams[other].group;
    table_spec *from = &request->tables[TARGET][fault->other_group];
    uint16_t index = 0, from_index = 0;
    bool paged = spec->streams[other].kind == KVFERRY_GROUP_PAGED;
    if (fault->other_group == fault->group || !from->listed || !spec_is_moved(spec, other) ||
        side->groups[fault->other_group].pool != side->groups[fault->group].pool ||
        !wanted_index(spec, request, dice, stream, TARGET, &index) ||
        (paged && !wanted_index(spec, request, dice, other, TARGET, &from_index)))
        return false;
    while (!paged && from_index < from->count && from->ids[from_index] == NULL_ID)
        from_index++;
    request->tables[TARGET][fault->group].ids[index] = from->ids[from_index];
    return from_index < from->count;
}

static bool break_states(random_spec *spec, request_spec *request, random_dice *dice, int side)
{
    fault_spec *fault = &spec->fault;
    table_spec *table = &request->tables[side][fault->group];
    if (fault->kind == FAULT_STATE_POSITION) {
        request->source_tokens++;
        return true;
    }
    if (dice_one_in(dice, 2)) {
        table->count = 0;
        return true;
    }
    /* A second live block: one that no table of the pool names. */
    const side_spec *spec_side = &spec->sides[side];
    for (int16_t id = 0; id < spec_side->groups[fault->group].blocks; id++) {
        bool taken = false;
        for (int g = 0; g < spec->group_count[side]; g++)
            for (int i = 0; i <= request->tables[side][g].count; i++)
                taken =
                    taken || id == spec_side->groups[g].null_block ||
                    (i < request->tables[side][g].count && request->tables[side][g].ids[i] == id);
        if (taken)
            continue;
        table->ids[table->count++] = id;
        return true;
    }
    return false;
}

static bool break_request(random_spec *spec, random_dice *dice)
{
    fault_spec *fault = &spec->fault;
    request_spec *request = &spec->requests[0];
    bool states = fault->kind == FAULT_STATE_POSITION || fault->kind == FAULT_STATE_BLOCKS;
    int side = (int)dice_below(dice, 2);
    if (fault->kind == FAULT_SOURCE_NULL || fault->kind == FAULT_SOURCE_SHORT ||
        fault->kind == FAULT_SOURCE_TOKENS || fault->kind == FAULT_SOURCE_WHOLE ||
        fault->kind == FAULT_GROUP_MISSING)
        side = SOURCE;
    if (fault->kind == FAULT_BLOCK_TWICE || fault->kind == FAULT_BLOCK_SHARED ||
        fault->kind == FAULT_STATE_POSITION)
        side = TARGET;
    bool any = fault->kind == FAULT_HOSTILE || fault->kind == FAULT_GROUP_MISSING ||
               fault->kind == FAULT_GROUP_UNKNOWN || fault->kind == FAULT_GROUP_TWICE;
    int stream = request->dropped
                     ? -1
                     : listed_stream(spec, request, dice, any ? dice_one_in(dice, 2) : !states);
    if (stream < 0)
        return false;
    for (int i = 0; fault->kind == FAULT_SOURCE_TOKENS && i < spec->stream_count; i++)
        if (spec->streams[i].kind != KVFERRY_GROUP_PAGED)
            return false; /* another position of the states, too */
    fault->index = (uint16_t)dice_next(dice);
    fault->side = (uint8_t)side;
    fault->stream = (uint8_t)stream;
    fault->group = spec->sides[side].streams[stream].group;
    table_spec *table = &request->tables[side][fault->group];
    switch (fault->kind) {
    case FAULT_GROUP_MISSING: table->listed = false; return true;
    case FAULT_GROUP_UNKNOWN:
    case FAULT_HOSTILE:
    case FAULT_GROUP_TWICE: return true; /* added when the request is built */
    case FAULT_MISALIGNED:
        table->first_token++;
        return spec->sides[side].groups[fault->group].block_tokens > 1;
    case FAULT_STATE_POSITION:
    case FAULT_STATE_BLOCKS: return break_states(spec, request, dice, side);
    case FAULT_SOURCE_WHOLE: return lose_whole_block(spec, request, dice);
    case FAULT_BLOCK_SHARED: return share_block(spec, request, dice, stream);
    default: return break_blocks(spec, request, dice, stream, side);
    }
}

bool spec_break(random_spec *spec, random_dice *dice, fault_kind kind)
{
    random_spec broken = *spec;
    broken.fault = (fault_spec){.kind = kind};
    broken.fault.second = dice_one_in(dice, 3);
    bool fits =
        broken.stream_count > 0 && (broken.fault.kind <= FAULT_HOLE ? break_documents(&broken, dice)
                                                                    : break_request(&broken, dice));
    if (fits)
        *spec = broken;
    return fits;
}
