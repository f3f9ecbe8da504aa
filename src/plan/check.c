/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of requests: everything that is wrong with one is found here, before any copy. */
#include <string.h>

#include "plan/expand.h"

const kvferry_block_table *expand_table(const kvferry_block_table *tables, size_t count,
                                        const char *group)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(tables[i].group, group) == 0)
            return &tables[i];
    return NULL;
}

bool expand_wanted(const expand_job *job, const plan_group *target,
                   const kvferry_block_table *table, uint64_t *start, uint64_t *end)
{
    uint64_t tokens = job->request->target_tokens;
    if (table->first_token >= tokens)
        return false;
    uint64_t listed = UINT64_MAX;
    if (base_mul(table->block_count, target->block_tokens, &listed))
        base_add(listed, table->first_token, &listed);
    *start = table->first_token;
    if (target->window && tokens > target->window) {
        uint64_t first = tokens - target->window;
        if (job->request->whole_blocks)
            first -= first % target->block_tokens;
        *start = base_max(*start, first);
    }
    *end = base_min(tokens, listed);
    return *start < *end;
}

uint32_t expand_live_block(const plan_group *group, const kvferry_block_table *table)
{
    for (size_t i = 0; i < table->block_count; i++)
        if (table->blocks[i] != group->null_block)
            return table->blocks[i];
    return UINT32_MAX;
}

/* --- one table ------------------------------------------------------------------------------------ */

typedef struct check_side {
    const expand_job *job;
    const char *name;   /* "source" or "target" */
    const char *worker;
    bool failed;
} check_side;

static void refuse(check_side *side, const char *code, const char *group, const char *expected,
                   const char *found, const char *message)
{
    side->failed = true;
    const char *id = side->job->request->transfer_id;
    base_report_add(side->job->report, code,
                    &(base_where){.worker = side->worker,
                                  .place = base_format("%s.%.100s", side->name, group)},
                    expected, found, "%s%s%s%s", id ? "request " : "", id ? id : "", id ? ": " : "",
                    message);
}

/* A group without streams, as of another stage, has no pool here that an id could be outside of. */
static void check_ids(check_side *side, const plan_group *group, const kvferry_block_table *table)
{
    uint32_t highest = 0;
    for (size_t i = 0; i < table->block_count; i++)
        highest = table->blocks[i] > highest ? table->blocks[i] : highest;
    if (table->block_count == 0 || group->blocks == 0 || highest < group->blocks)
        return;
    for (size_t i = 0; i < table->block_count; i++)
        if (table->blocks[i] >= group->blocks && table->blocks[i] != group->null_block)
            refuse(side, "block_range", table->group,
                   base_format("a block id below %llu", (unsigned long long)group->blocks),
                   base_format("%u at index %zu", table->blocks[i], i),
                   "a block id is outside the pool");
}

static void check_table(check_side *side, const plan_group *group, const kvferry_block_table *table)
{
    check_ids(side, group, table);
    if (group->kind == KVFERRY_GROUP_PAGED) {
        if (table->first_token % group->block_tokens != 0)
            refuse(side, "first_token_misaligned", table->group,
                   base_format("a multiple of %llu", (unsigned long long)group->block_tokens),
                   base_format("%llu", (unsigned long long)table->first_token),
                   "first_token is not a block's first token");
        return;
    }
    size_t live = 0;
    for (size_t i = 0; i < table->block_count; i++)
        live += table->blocks[i] != group->null_block;
    if (live != 1)
        refuse(side, "state_blocks", table->group, "exactly one block that is not null",
               base_format("%zu", live), "a state or ring group has one live block");
}

/* Of the target's groups only: what it does not list is not moved. */
static void check_position(check_side *side, const plan_group *group,
                           const kvferry_block_table *table)
{
    const kvferry_request *request = side->job->request;
    if (group->kind != KVFERRY_GROUP_PAGED && request->source_tokens != request->target_tokens)
        refuse(side, "state_position", table->group,
               base_format("the source's position, %llu tokens",
                           (unsigned long long)request->source_tokens),
               base_format("%llu tokens wanted", (unsigned long long)request->target_tokens),
               "a state is valid at one position only");
}

static void check_twice(check_side *side, const kvferry_block_table *tables, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (strcmp(tables[i].group, tables[index].group) == 0) {
            refuse(side, "group_twice", tables[index].group, "each group once",
                   base_format("entries %zu and %zu", i, index), "a group is listed twice");
            return;
        }
}

static const plan_group *find_group(const plan_group *groups, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(groups[i].name, name) == 0)
            return &groups[i];
    return NULL;
}

/* --- both sides ------------------------------------------------------------------------------------- */

/* Whether any source worker has a group of that name: a table is the whole engine's. */
static bool known_to_sources(const kvferry_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->source_count; i++)
        if (find_group(plan->sources[i].groups, plan->sources[i].group_count, name))
            return true;
    return false;
}

static bool check_source(const expand_job *job)
{
    check_side side = {.job = job, .name = "source", .worker = job->source->worker};
    for (size_t i = 0; i < job->request->source_count; i++) {
        const kvferry_block_table *table = &job->request->source[i];
        check_twice(&side, job->request->source, i);
        const plan_group *group =
            find_group(job->source->groups, job->source->group_count, table->group);
        if (group)
            check_table(&side, group, table);
        else if (!known_to_sources(job->plan, table->group))
            refuse(&side, "group_unknown", table->group, "a group of the source engine", "no such group",
                   "the request names a group that no source worker has");
    }
    return !side.failed;
}

/* Marks the table's ids in its group's bits, and refuses those that are marked already. Neighbours
 * are often in one word, which is then kept at hand. */
static void mark_blocks(check_side *side, const plan_group *group, const kvferry_block_table *table,
                        uint64_t *bits)
{
    uint64_t word = 0, place = UINT64_MAX;
    for (size_t i = 0; i < table->block_count; i++) {
        uint32_t id = table->blocks[i];
        uint64_t bit = UINT64_C(1) << (id % 64);
        if (id == group->null_block || id >= group->blocks)
            continue;
        if (id / 64 != place) {
            if (place != UINT64_MAX)
                bits[place] = word;
            place = id / 64;
            word = bits[place];
        }
        if (word & bit)
            refuse(side, "target_block_twice", table->group, "each target block once",
                   base_format("block %u again at index %zu", id, i),
                   "a target block is named twice");
        word |= bit;
    }
    if (place != UINT64_MAX)
        bits[place] = word;
}

/* A block belongs to one group at a time: refuses ids that the table names twice, or that an earlier
 * table of a group names which shares its bytes. Clears only the bits that it looks at. */
static void check_owners(check_side *side, size_t index, uint64_t *scratch)
{
    const kvferry_plan *plan = side->job->plan;
    const kvferry_block_table *tables = side->job->request->target, *table = &tables[index];
    const plan_group *group = find_group(plan->groups, plan->group_count, table->group);
    if (!group)
        return;
    const bool *share = &plan->share[(size_t)(group - plan->groups) * plan->group_count];
    uint64_t *bits = scratch + group->first_bit / 64;
    for (size_t i = 0; i < table->block_count; i++)
        if (table->blocks[i] < group->blocks)
            bits[table->blocks[i] / 64] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < index; k++) {
            const plan_group *other = find_group(plan->groups, plan->group_count, tables[k].group);
            if (!other || !share[other - plan->groups])
                continue;
            for (size_t i = 0; i < tables[k].block_count; i++) {
                uint32_t id = tables[k].blocks[i];
                if (id >= group->blocks || id == other->null_block || id == group->null_block)
                    continue;
                if (pass == 0)
                    bits[id / 64] = 0;
                else if (bits[id / 64] >> (id % 64) & 1)
                    refuse(side, "target_block_twice", table->group,
                           "a block in only one group of those that share bytes",
                           base_format("block %u also in group %.100s", id, other->name),
                           "a target block is named twice");
            }
        }
        if (pass == 0)
            mark_blocks(side, group, table, bits);
    }
}

static bool check_target(const expand_job *job, uint64_t *scratch)
{
    const kvferry_plan *plan = job->plan;
    check_side side = {.job = job, .name = "target", .worker = plan->worker};
    for (size_t i = 0; i < job->request->target_count; i++) {
        const kvferry_block_table *table = &job->request->target[i];
        check_twice(&side, job->request->target, i);
        const plan_group *group = find_group(plan->groups, plan->group_count, table->group);
        if (!group) {
            refuse(&side, "group_unknown", table->group, "a group of the target worker",
                   "no such group", "the request names a group that the target does not have");
            continue;
        }
        check_table(&side, group, table);
        check_position(&side, group, table);
    }
    for (size_t i = 0; i < job->request->target_count; i++)
        check_owners(&side, i, scratch);
    return !side.failed;
}

/* --- coverage ----------------------------------------------------------------------------------------- */

static void refuse_token(check_side *side, const plan_walk *walk, uint64_t token, const char *found)
{
    refuse(side, "source_null", walk->source_name,
           base_format("a block that holds token %llu for target group %.80s",
                       (unsigned long long)token, walk->target_name),
           found, "the source does not hold a wanted token");
}

/* Walks a source table along rising tokens. */
typedef struct check_cursor {
    const kvferry_block_table *table;
    const plan_group *group;
    size_t index;
    uint64_t end; /* of the block at index */
} check_cursor;

static check_cursor cursor_at(const kvferry_block_table *table, const plan_group *group,
                              uint64_t token)
{
    uint64_t skipped = token < table->first_token ? 0 : token - table->first_token;
    size_t index = (size_t)(skipped / group->block_tokens);
    return (check_cursor){table, group, index,
                          table->first_token + (index + 1) * group->block_tokens};
}

/* Whether the table has a live block at `token`; the cursor then stands on it. */
static bool covers(check_cursor *cursor, uint64_t token)
{
    while (cursor->end <= token) {
        cursor->index++;
        cursor->end += cursor->group->block_tokens;
    }
    return token >= cursor->table->first_token && cursor->index < cursor->table->block_count &&
           cursor->table->blocks[cursor->index] != cursor->group->null_block;
}

/* Every wanted token whose target block is not null must lie in a live source block. */
static void check_coverage(check_side *side, const plan_walk *walk,
                           const kvferry_block_table *source, const kvferry_block_table *target)
{
    const plan_group *from = &side->job->source->groups[walk->source_group];
    const plan_group *to = &side->job->plan->groups[walk->target_group];
    uint64_t start, end;
    if (!expand_wanted(side->job, to, target, &start, &end))
        return;
    check_cursor cursor = cursor_at(source, from, start);
    size_t index = (size_t)((start - target->first_token) / to->block_tokens);
    uint64_t first = target->first_token + index * to->block_tokens;
    for (; first < end; index++, first += to->block_tokens) {
        if (target->blocks[index] == to->null_block)
            continue;
        uint64_t last = base_min(first + to->block_tokens, end);
        for (uint64_t token = base_max(first, start); token < last; token = cursor.end) {
            if (covers(&cursor, token))
                continue;
            bool before = to->window && token + to->window < side->job->request->target_tokens;
            refuse_token(side, walk, token,
                         before ? "no block, or the null block: the window begins later, but whole_blocks are wanted"
                                : "no block, or the null block");
            break;
        }
    }
    if (side->job->request->source_tokens < end)
        refuse_token(side, walk, side->job->request->source_tokens,
                     base_format("%llu tokens on the source",
                                 (unsigned long long)side->job->request->source_tokens));
}

/* Walks of one pair of groups follow one another. */
static bool pair_seen(const plan_source *source, uint32_t index)
{
    return index > 0 &&
           source->walks[index - 1].source_group == source->walks[index].source_group &&
           source->walks[index - 1].target_group == source->walks[index].target_group;
}

static bool check_walks(const expand_job *job)
{
    check_side side = {.job = job, .name = "source", .worker = job->source->worker};
    const kvferry_request *request = job->request;
    for (uint32_t i = 0; i < job->source->walk_count; i++) {
        const plan_walk *walk = &job->source->walks[i];
        const kvferry_block_table *target =
            expand_table(request->target, request->target_count, walk->target_name);
        if (!target || pair_seen(job->source, i))
            continue;
        const kvferry_block_table *source =
            expand_table(request->source, request->source_count, walk->source_name);
        if (!source)
            refuse(&side, "group_missing", walk->source_name,
                   base_format("blocks for target group %.100s", walk->target_name), "not listed",
                   "a target group's source group is not listed");
        else if (walk->kind == KVFERRY_GROUP_PAGED)
            check_coverage(&side, walk, source, target);
    }
    return !side.failed;
}

bool expand_check(const expand_job *job, uint64_t *scratch)
{
    bool fine = check_source(job);
    fine = check_target(job, scratch) && fine;
    return check_walks(job) && fine;
}
