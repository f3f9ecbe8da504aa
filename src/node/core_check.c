/* SPDX-License-Identifier: Apache-2.0 */
/* Block tables against the own layout, and which target blocks are somebody's. */
#include "node/core_internal.h"

bool core_tables_copy(base_arena *arena, const kvferry_block_table *tables, size_t count,
                      kvferry_block_table **copy)
{
    kvferry_block_table *made = base_arena_alloc(arena, count, sizeof(*made));
    if (!made)
        return count == 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t *blocks = base_arena_alloc(arena, tables[i].block_count, sizeof(*blocks));
        made[i] = tables[i];
        made[i].group = base_arena_strdup(arena, tables[i].group);
        made[i].blocks = blocks;
        if (!made[i].group || (!blocks && tables[i].block_count))
            return false;
        if (tables[i].block_count)
            memcpy(blocks, tables[i].blocks, tables[i].block_count * sizeof(*blocks));
    }
    *copy = made;
    return true;
}

uint64_t core_tables_size(const kvferry_block_table *tables, size_t count)
{
    uint64_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += sizeof(*tables) + tables[i].block_count * sizeof(uint32_t);
    return size;
}

/* SIZE_MAX: the layout has no such group. */
static size_t find_group(const kvferry_layout *layout, const char *name)
{
    for (uint32_t i = 0; i < kvferry_layout_group_count(layout); i++)
        if (strcmp(kvferry_layout_group(layout, i)->name, name) == 0)
            return i;
    return SIZE_MAX;
}

typedef struct checking {
    node_core *core;
    const kvferry_block_table *table;
    kvferry_report *report;
    const char *first; /* the code of what was found first; NULL: nothing */
} checking;

static void note(checking *check, const char *code)
{
    if (!check->first)
        check->first = code;
}

static void found(checking *check, const char *code, const char *expected, const char *what,
                  const char *text)
{
    note(check, code);
    base_report_add(check->report, code, NULL, expected, what, "group %.80s: %s", check->table->group, text);
}

/* What both sides' tables must be. The group's index; SIZE_MAX: it is not this worker's. */
static size_t check_table(checking *check, const kvferry_block_table *tables, size_t index)
{
    const kvferry_layout *layout = check->core->layout;
    const kvferry_block_table *table = check->table;
    for (size_t i = 0; i < index; i++) {
        if (strcmp(tables[i].group, table->group) == 0) {
            found(check, "group_twice", "each group once", "it is listed again", "a table");
            break;
        }
    }
    size_t group = find_group(layout, table->group);
    if (group == SIZE_MAX)
        return group;
    const kvferry_group *its = kvferry_layout_group(layout, (uint32_t)group);
    if (its->block_tokens && table->first_token % its->block_tokens)
        found(check, "first_token_misaligned",
              base_format("a multiple of %llu", (unsigned long long)its->block_tokens),
              base_format("%llu", (unsigned long long)table->first_token), "first_token");
    uint64_t blocks = kvferry_layout_group_blocks(layout, (uint32_t)group);
    for (size_t i = 0; i < table->block_count; i++) {
        if (table->blocks[i] < blocks || (int64_t)table->blocks[i] == its->null_block)
            continue;
        found(check, "block_range", base_format("below %llu", (unsigned long long)blocks),
              base_format("%u", table->blocks[i]), base_format("block %zu of the table", i));
        return SIZE_MAX;
    }
    return group;
}

/* Whether any worker of the own engine has the group. */
static bool engine_has(const node_core *core, const char *group)
{
    if (!core->own)
        return true;
    for (size_t i = 0; i < core->own->wire.count; i++)
        if (find_group(core->own->documents[i]->layout, group) != SIZE_MAX)
            return true;
    return false;
}

/* Tables that are tables at all. */
static bool check_form(checking *check, const kvferry_block_table *tables, size_t index)
{
    check->table = &tables[index];
    if (check->table->group && (check->table->blocks || !check->table->block_count))
        return true;
    note(check, "transfer_invalid");
    base_report_add(check->report, "transfer_invalid", NULL, "a group and its blocks", "NULL", "table %zu",
                    index);
    return false;
}

const char *core_check_offer(node_core *core, const kvferry_offer *offer, kvferry_report *report)
{
    checking check = {.core = core, .report = report};
    for (size_t i = 0; i < offer->table_count; i++)
        if (!check_form(&check, offer->tables, i))
            return check.first;
    for (size_t i = 0; i < offer->table_count; i++) {
        check.table = &offer->tables[i];
        if (!engine_has(core, check.table->group))
            found(&check, "group_unknown", "a group of the engine", "none of its workers has it", "a table");
        else
            check_table(&check, offer->tables, i);
    }
    return check.first;
}

/* --- who owns blocks --------------------------------------------------------------------------------------- */

kvferry_status core_owners_create(node_core *core)
{
    uint32_t groups = kvferry_layout_group_count(core->layout);
    core->owners = base_alloc(groups + 1u, sizeof(*core->owners));
    if (!core->owners)
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < groups; i++) {
        uint64_t words = kvferry_layout_group_blocks(core->layout, i) / 64 + 1;
        core->owners[i] = base_alloc(words, sizeof(uint64_t));
        if (!core->owners[i])
            return KVFERRY_NO_MEMORY;
    }
    return KVFERRY_OK;
}

void core_owners_free(node_core *core)
{
    for (uint32_t i = 0; core->owners && i < kvferry_layout_group_count(core->layout); i++)
        free(core->owners[i]);
    free(core->owners);
}

static bool is_null(const kvferry_group *group, uint32_t block)
{
    return (int64_t)block == group->null_block;
}

static bool get_bit(const uint64_t *bits, uint32_t block) { return bits[block / 64] >> block % 64 & 1; }

/* Whether the block's bytes, seen as this group or as one that shares them, are somebody's. */
static bool owned(const node_core *core, uint32_t group, uint32_t block)
{
    for (uint32_t i = 0; i < kvferry_layout_group_count(core->layout); i++)
        if (kvferry_layout_groups_share(core->layout, group, i) &&
            block < kvferry_layout_group_blocks(core->layout, i) && get_bit(core->owners[i], block))
            return true;
    return false;
}

uint64_t core_owners_set(node_core *core, const kvferry_block_table *tables, size_t count, bool owned_now)
{
    uint64_t blocks = 0;
    for (size_t i = 0; i < count; i++) {
        size_t group = find_group(core->layout, tables[i].group);
        for (size_t k = 0; group != SIZE_MAX && k < tables[i].block_count; k++) {
            uint32_t block = tables[i].blocks[k];
            if (is_null(kvferry_layout_group(core->layout, (uint32_t)group), block))
                continue;
            uint64_t bit = (uint64_t)1 << block % 64;
            if (owned_now)
                core->owners[group][block / 64] |= bit;
            else
                core->owners[group][block / 64] &= ~bit;
            blocks++;
        }
    }
    return blocks;
}

/* Blocks of this ask, taken one by one, so that a block named twice is found. */
static void take_blocks(checking *check, size_t group)
{
    const kvferry_group *its = kvferry_layout_group(check->core->layout, (uint32_t)group);
    for (size_t i = 0; i < check->table->block_count; i++) {
        uint32_t block = check->table->blocks[i];
        if (is_null(its, block))
            continue;
        if (owned(check->core, (uint32_t)group, block)) {
            found(check, "block_owned", "a block that no other ask owns", base_format("%u", block),
                  base_format("block %zu of the table", i));
            return;
        }
    }
}

static void check_live_block(checking *check, size_t group)
{
    const kvferry_group *its = kvferry_layout_group(check->core->layout, (uint32_t)group);
    size_t live = 0;
    if (its->kind == KVFERRY_GROUP_PAGED)
        return;
    for (size_t i = 0; i < check->table->block_count; i++)
        live += !is_null(its, check->table->blocks[i]);
    if (live == 0)
        found(check, "block_null", "one block that is not null",
              base_format("%zu null blocks", check->table->block_count), "the target of a state");
    else if (live > 1)
        found(check, "state_blocks", "one block that is not null", base_format("%zu", live),
              "the target of a state");
}

/* Whether a block is named twice in groups that share bytes: marks the blocks, and unmarks them. */
static void check_twice(checking *check, const kvferry_ask *ask)
{
    size_t marked = 0;
    for (; marked < ask->table_count && !check->first; marked++) {
        const kvferry_block_table *table = &ask->tables[marked];
        check->table = table;
        size_t group = find_group(check->core->layout, table->group);
        for (size_t i = 0; i < table->block_count; i++) {
            kvferry_block_table one = *table;
            one.blocks = &table->blocks[i];
            one.block_count = 1;
            if (!is_null(kvferry_layout_group(check->core->layout, (uint32_t)group), table->blocks[i]) &&
                owned(check->core, (uint32_t)group, table->blocks[i])) {
                found(check, "target_block_twice", "each block once", base_format("%u", table->blocks[i]),
                      base_format("block %zu of the table", i));
                break;
            }
            core_owners_set(check->core, &one, 1, true);
        }
    }
    core_owners_set(check->core, ask->tables, marked, false);
}

const char *core_check_ask(node_core *core, const kvferry_ask *ask, kvferry_report *report)
{
    checking check = {.core = core, .report = report};
    for (size_t i = 0; i < ask->table_count; i++)
        if (!check_form(&check, ask->tables, i))
            return check.first;
    for (size_t i = 0; i < ask->table_count; i++) {
        check.table = &ask->tables[i];
        if (find_group(core->layout, check.table->group) == SIZE_MAX) {
            found(&check, "group_unknown", "a group of this worker", "it has none of this name", "a table");
            continue;
        }
        size_t group = check_table(&check, ask->tables, i);
        if (group == SIZE_MAX)
            continue;
        check_live_block(&check, group);
        take_blocks(&check, group);
    }
    if (!check.first) /* all blocks are free: marking and unmarking them changes nothing */
        check_twice(&check, ask);
    return check.first;
}

bool core_check_size(node_core *core, const char *what, size_t found, size_t expected, kvferry_report *report)
{
    if (found >= expected)
        return true;
    base_report_add(report, "transfer_invalid", NULL, base_format("a size of %zu", expected),
                    base_format("%zu", found), "%s is not of this library's header", what);
    core_count_refused(core, "transfer_invalid");
    return false;
}
