/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: tokens, prefix hits, windows, nulls, and which blocks hold what. */
#include <string.h>

#include "random.h"

typedef uint8_t used_ids[2][MAX_GROUPS][MAX_IDS];

static uint64_t token_bits(uint32_t from, uint32_t end)
{
    end = end > MAX_TOKENS ? MAX_TOKENS : end;
    return from >= end ? 0 : ((UINT64_C(1) << (end - from)) - 1) << from;
}

uint64_t spec_live_tokens(const random_spec *spec, const request_spec *request, int side, int group)
{
    const table_spec *table = &request->tables[side][group];
    uint32_t block = spec->sides[side].groups[group].block_tokens;
    uint64_t live = 0;
    for (uint32_t i = 0; table->listed && i < table->count; i++) {
        uint32_t at = table->first_token + i * block;
        if (table->ids[i] != NULL_ID)
            live |= token_bits(at, at + block);
    }
    return live;
}

uint64_t spec_wanted_tokens(const random_spec *spec, const request_spec *request, int group)
{
    const side_group *side = &spec->sides[TARGET].groups[group];
    uint32_t window = spec->window[side->window_class], tokens = request->target_tokens;
    uint32_t first = window && tokens > window ? tokens - window : 0;
    if (request->whole_blocks)
        first = first / side->block_tokens * side->block_tokens;
    return spec_live_tokens(spec, request, TARGET, group) & token_bits(first, tokens);
}

/* --- ids ------------------------------------------------------------------------------------ */

typedef struct id_giver {
    uint8_t *used;
    uint32_t span, at,
        style; /* style 0: one after another; 1: anywhere; 2: now and then elsewhere; 3: as 2, downwards */
    random_dice *dice;
} id_giver;

static id_giver giver_make(random_spec *spec, random_dice *dice, int side, int group, used_ids used)
{
    id_giver giver = {.used = used[side][spec->sides[side].groups[group].pool], .dice = dice};
    for (int g = 0; g < spec->group_count[side]; g++) {
        const side_group *other = &spec->sides[side].groups[g];
        if (other->pool == spec->sides[side].groups[group].pool && other->null_block >= 0)
            giver.used[other->null_block] = 1;
    }
    uint32_t taken = 0;
    for (uint32_t i = 0; i < MAX_IDS; i++)
        taken += giver.used[i];
    giver.span = taken + 18 > MAX_IDS ? MAX_IDS : taken + 18;
    giver.style = dice_below(dice, 4);
    giver.at = giver.style == 0 ? dice_below(dice, 4) : dice_below(dice, giver.span);
    return giver;
}

static int16_t give_id(id_giver *giver)
{
    if (giver->style == 1 || (giver->style >= 2 && dice_one_in(giver->dice, 3)))
        giver->at = dice_below(giver->dice, giver->span);
    uint32_t step = giver->style == 3 ? MAX_IDS - 1 : 1;
    for (uint32_t i = 0; i < MAX_IDS; i++) {
        uint32_t id = (giver->at + i * step) % MAX_IDS;
        if (giver->used[id])
            continue;
        giver->used[id] = 1;
        giver->at = (id + step) % MAX_IDS;
        return (int16_t)id;
    }
    return NULL_ID;
}

/* --- tables --------------------------------------------------------------------------------- */

/* One live block, nulls before and after it where there is a null. */
static bool one_block(table_spec *table, random_dice *dice, id_giver *giver, bool nulls)
{
    table->first_token = dice_one_in(dice, 16) ? 3 : 0;
    uint32_t before = nulls ? dice_below(dice, 6) : 0, after = nulls ? dice_below(dice, 6) : 0;
    before = before > 2 ? 0 : before;
    after = after > 2 ? 0 : after;
    for (uint32_t i = 0; i < before + 1 + after; i++)
        table->ids[table->count++] = i == before ? give_id(giver) : (int16_t)NULL_ID;
    return table->ids[before] != NULL_ID;
}

static bool target_table(random_spec *spec, request_spec *request, random_dice *dice, int group,
                         used_ids used)
{
    const side_group *side = &spec->sides[TARGET].groups[group];
    table_spec *table = &request->tables[TARGET][group];
    id_giver giver = giver_make(spec, dice, TARGET, group, used);
    table->listed = true;
    if (side->kind != KVFERRY_GROUP_PAGED)
        return one_block(table, dice, &giver, side->null_block >= 0);
    uint32_t block = side->block_tokens, tokens = request->target_tokens;
    if (dice_one_in(dice, 3))
        table->first_token = (uint16_t)(block * dice_below(dice, tokens / block + 2));
    uint32_t count =
        tokens > table->first_token ? (tokens - table->first_token + block - 1) / block : 0;
    count += dice_one_in(dice, 4) ? dice_range(dice, 1, 2) : 0;
    if (dice_one_in(dice, 20)) /* tokens without a block want nothing */
        count = dice_below(dice, count + 1);
    uint32_t window = spec->window[side->window_class];
    for (uint32_t i = 0; i < count && i < MAX_BLOCKS; i++) {
        uint32_t end = table->first_token + (i + 1) * block;
        bool dropped = window && end + window <= tokens;
        bool null =
            side->null_block >= 0 && (dropped ? !dice_one_in(dice, 4) : dice_one_in(dice, 16));
        table->ids[table->count] = null ? (int16_t)NULL_ID : give_id(&giver);
        if (!null && table->ids[table->count] == NULL_ID)
            return false;
        table->count++;
    }
    return true;
}

bool spec_needed_tokens(const random_spec *spec, const request_spec *request, int group,
                        uint64_t *tokens)
{
    bool listed = false;
    *tokens = 0;
    for (int i = 0; i < spec->stream_count; i++) {
        int target = spec->sides[TARGET].streams[i].group;
        if (!spec_is_moved(spec, i) || spec->sides[SOURCE].streams[i].group != group ||
            !request->tables[TARGET][target].listed)
            continue;
        listed = true;
        if (spec->streams[i].kind == KVFERRY_GROUP_PAGED)
            *tokens |= spec_wanted_tokens(spec, request, target);
    }
    return listed;
}

static bool source_table(random_spec *spec, request_spec *request, random_dice *dice, int group,
                         used_ids used)
{
    const side_group *side = &spec->sides[SOURCE].groups[group];
    table_spec *table = &request->tables[SOURCE][group];
    uint64_t needs;
    if (!spec_needed_tokens(spec, request, group, &needs) && dice_one_in(dice, 2))
        return true;
    id_giver giver = giver_make(spec, dice, SOURCE, group, used);
    table->listed = true;
    if (side->kind != KVFERRY_GROUP_PAGED)
        return one_block(table, dice, &giver, side->null_block >= 0);
    uint32_t block = side->block_tokens;
    uint32_t lowest = needs ? (uint32_t)__builtin_ctzll(needs) : request->source_tokens;
    if (dice_one_in(dice, 3))
        table->first_token = (uint16_t)(block * dice_below(dice, lowest / block + 1));
    bool short_list = dice_one_in(dice, 4), sparse = dice_one_in(dice, 2);
    for (uint32_t at = table->first_token; at < request->source_tokens; at += block) {
        if (table->count == MAX_BLOCKS)
            return false;
        uint64_t here = needs & token_bits(at, at + block);
        if (short_list && !(needs & token_bits(at, MAX_TOKENS)))
            break;
        bool null = !here && sparse && side->null_block >= 0;
        table->ids[table->count] = null ? (int16_t)NULL_ID : give_id(&giver);
        if (!null && table->ids[table->count] == NULL_ID)
            return false;
        table->count++;
    }
    return true;
}

static void generate_tokens(const random_spec *spec, request_spec *request, random_dice *dice)
{
    uint32_t limit = MAX_TOKENS, most = dice_one_in(dice, 3) ? MAX_TOKENS : 20;
    bool states = false;
    for (int s = 0; s < 2; s++)
        for (int g = 0; g < spec->group_count[s]; g++) {
            const side_group *group = &spec->sides[s].groups[g];
            states = states || group->kind != KVFERRY_GROUP_PAGED;
            if (group->kind == KVFERRY_GROUP_PAGED && group->block_tokens * 14u < limit)
                limit = group->block_tokens * 14u;
        }
    limit = limit < most ? limit : most;
    request->target_tokens = (uint16_t)dice_range(dice, states || !dice_one_in(dice, 20), limit);
    request->source_tokens = request->target_tokens;
    if (!states && dice_one_in(dice, 3))
        request->source_tokens = (uint16_t)dice_range(dice, request->target_tokens, limit);
}

/* Ids that are in use are below a group's number of blocks. */
static void count_blocks(random_spec *spec, random_dice *dice, used_ids used)
{
    for (int s = 0; s < 2; s++)
        for (int g = 0; g < spec->group_count[s]; g++) {
            side_group *group = &spec->sides[s].groups[g];
            uint32_t blocks = group->null_block < 0 ? 1 : (uint32_t)group->null_block + 1;
            for (uint32_t i = 0; i < MAX_IDS; i++)
                if (used[s][group->pool][i] && i >= blocks)
                    blocks = i + 1;
            if (blocks > group->blocks)
                group->blocks =
                    (uint8_t)(blocks + (dice_one_in(dice, 2) ? dice_below(dice, 3) : 0));
        }
}

void spec_generate_request(random_spec *spec, random_dice *dice, int index, used_ids used)
{
    request_spec *request = &spec->requests[index];
    generate_tokens(spec, request, dice);
    random_dice own = {spec->seed * MAX_REQUESTS + (uint64_t)index};
    request->whole_blocks = dice_one_in(&own, 2); /* moves no other throw */
    bool fine = true;
    for (int g = 0; fine && g < spec->group_count[TARGET]; g++)
        if (!dice_one_in(dice, 10))
            fine = target_table(spec, request, dice, g, used);
    for (int g = 0; fine && g < spec->group_count[SOURCE]; g++)
        fine = source_table(spec, request, dice, g, used);
    request->dropped = !fine; /* the pools are full */
    count_blocks(spec, dice, used);
}
