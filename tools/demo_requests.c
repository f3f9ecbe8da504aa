/* SPDX-License-Identifier: Apache-2.0 */
/* Which requests a run has, how long they are, and which are in flight together. */
#include "demo.h"

#include <stdlib.h>

#define TOKENS_MOST (UINT64_C(1) << 22)

/* Each row is in flight together; the rows repeat. */
static const struct {
    size_t count;
    demo_kind kinds[4];
} pattern[] = {
    {1, {DEMO_COLD}},
    {1, {DEMO_LONG}},
    {3, {DEMO_ONE_BLOCK, DEMO_PREFIX_HIT, DEMO_FULL_HIT}},
    {4, {DEMO_COLD, DEMO_PREFIX_HIT, DEMO_ONE_TOKEN, DEMO_COLD}},
    {1, {DEMO_PREFIX_HIT}},
};

typedef struct request_maker {
    demo_pools pools[DEMO_ROLES];
    demo_random random;
    bool state;          /* there are state groups: the last token of a prompt is not transferred */
    uint64_t hit_step;   /* prefix hits are multiples of it */
    uint64_t one_block;  /* tokens of one block of the group with the longest, on both sides */
    uint64_t seed;
} request_maker;

const char *demo_kind_name(demo_kind kind)
{
    static const char *const names[] = {"cold",      "long",       "one block",
                                        "one token", "prefix hit", "full hit"};
    return names[kind];
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

/* What the groups of the two sides allow. */
static void study(request_maker *maker)
{
    uint64_t longest[DEMO_ROLES] = {1, 1};
    maker->hit_step = 1;
    for (int role = 0; role < DEMO_ROLES; role++)
        for (size_t i = 0; i < maker->pools[role].group_count; i++) {
            const demo_group *group = &maker->pools[role].groups[i];
            maker->state |= group->kind == KVFERRY_GROUP_STATE;
            if (group->kind != KVFERRY_GROUP_PAGED)
                continue;
            if (group->block_tokens > longest[role])
                longest[role] = group->block_tokens;
            if (role == DEMO_DECODE && group->window && group->block_tokens > maker->pools[DEMO_PREFILL].before)
                maker->pools[DEMO_PREFILL].before = group->block_tokens;
            if (role == DEMO_DECODE)
                maker->hit_step *= group->block_tokens / gcd(maker->hit_step, group->block_tokens);
        }
    maker->one_block = longest[0] < longest[1] ? longest[0] : longest[1];
}

/* The most tokens of one of `share` requests in flight together. */
static uint64_t most_tokens(const request_maker *maker, uint64_t share)
{
    uint64_t most = demo_pools_most(&maker->pools[DEMO_PREFILL], share, TOKENS_MOST);
    return most ? demo_pools_most(&maker->pools[DEMO_DECODE], share, most) : 0;
}

static uint64_t between(request_maker *maker, uint64_t low, uint64_t high)
{
    return low >= high ? high : low + demo_random_below(&maker->random, high - low + 1);
}

/* How many tokens are transferred, and how many of them the decode side has already. */
static void choose_tokens(request_maker *maker, demo_request *request, uint64_t most)
{
    uint64_t step = maker->hit_step;
    if (request->kind == DEMO_PREFIX_HIT && most <= step)
        request->kind = DEMO_COLD; /* the pools are too small for a whole block and more */
    switch (request->kind) {
    case DEMO_LONG:
        request->tokens = between(maker, most - most / 8, most);
        break;
    case DEMO_ONE_BLOCK:
        request->tokens = between(maker, maker->one_block / 2 + 1, maker->one_block);
        break;
    case DEMO_ONE_TOKEN:
        request->tokens = 1;
        break;
    case DEMO_PREFIX_HIT:
        request->tokens = between(maker, most / 2 > step ? most / 2 : step + 1, most);
        request->hit = step * between(maker, 1, (request->tokens - 1) / step);
        break;
    default:
        request->tokens = between(maker, most / 4 + 1, most / 2 + 1);
    }
    if (request->tokens > most)
        request->tokens = most;
    if (request->kind == DEMO_FULL_HIT)
        request->hit = request->tokens;
}

static void make_request(request_maker *maker, demo_request *request, uint64_t most)
{
    choose_tokens(maker, request, most);
    /* A prompt of one element is prefilled whole, state or not. */
    request->prompt = request->tokens + (maker->state && request->kind != DEMO_ONE_TOKEN ? 1 : 0);
    demo_random own = {maker->seed + request->number}; /* moves no other throw */
    request->whole_blocks = demo_random_below(&own, 2);
    uint64_t before = request->whole_blocks ? maker->pools[DEMO_PREFILL].before : 0;
    demo_tables_take(&maker->pools[DEMO_PREFILL], (demo_extent){.tokens = request->tokens, .before = before},
                     &maker->random, &request->tables[DEMO_PREFILL]);
    demo_tables_take(&maker->pools[DEMO_DECODE], (demo_extent){.tokens = request->tokens, .first = request->hit},
                     &maker->random, &request->tables[DEMO_DECODE]);
}

/* The requests [first, first + count) as one wave; fewer if the pools hold no more at a time. Returns
 * how many, 0 if not even one fits. */
static size_t make_wave(request_maker *maker, demo_schedule *schedule, size_t first, size_t count,
                        const demo_kind *kinds)
{
    while (count > 0 && most_tokens(maker, count) == 0)
        count--;
    uint64_t most = count ? most_tokens(maker, count) : 0;
    for (size_t i = 0; i < count; i++) {
        demo_request *request = &schedule->requests[first + i];
        *request = (demo_request){.number = (uint32_t)(first + i + 1),
                                  .kind = kinds[i],
                                  .wave = schedule->waves};
        make_request(maker, request, most);
    }
    for (size_t i = 0; i < count; i++)
        for (int role = 0; role < DEMO_ROLES; role++)
            demo_tables_give_back(&maker->pools[role], &schedule->requests[first + i].tables[role]);
    schedule->waves++;
    return count;
}

static int make_waves(request_maker *maker, demo_schedule *schedule, size_t wanted)
{
    size_t row = 0, used = 0;
    while (schedule->count < wanted) {
        size_t count = pattern[row].count - used;
        if (count > wanted - schedule->count)
            count = wanted - schedule->count;
        size_t made = make_wave(maker, schedule, schedule->count, count, pattern[row].kinds + used);
        if (made == 0) {
            tool_log("the pools are too small for a single token: more --memory is needed");
            return TOOL_FAILED;
        }
        schedule->count += made;
        used += made;
        if (used == pattern[row].count) {
            row = (row + 1) % (sizeof pattern / sizeof *pattern);
            used = 0;
        }
    }
    return TOOL_GO_ON;
}

int demo_schedule_make(const demo_config *config, const tool_side sides[DEMO_ROLES],
                       demo_schedule *schedule)
{
    request_maker maker = {.random = {config->seed}, .seed = config->seed};
    for (int role = 0; role < DEMO_ROLES; role++)
        demo_pools_create(&sides[role], &maker.random, &maker.pools[role]);
    study(&maker);
    *schedule = (demo_schedule){
        .requests = tool_alloc((size_t)config->requests, sizeof *schedule->requests)};
    int status = make_waves(&maker, schedule, (size_t)config->requests);
    for (int role = 0; role < DEMO_ROLES; role++)
        demo_pools_free(&maker.pools[role]);
    return status;
}

void demo_schedule_free(demo_schedule *schedule)
{
    for (size_t i = 0; i < schedule->count; i++) {
        for (int role = 0; role < DEMO_ROLES; role++)
            demo_tables_free(&schedule->requests[i].tables[role]);
        free(schedule->requests[i].failure);
    }
    free(schedule->requests);
    *schedule = (demo_schedule){0};
}

/* --- the request document -------------------------------------------------------------------- */

static json_t *tables_json(const demo_tables *tables)
{
    json_t *object = json_object();
    for (size_t i = 0; i < tables->count; i++) {
        const demo_table *table = &tables->items[i];
        json_t *blocks = json_array();
        for (size_t b = 0; b < table->count; b++)
            json_array_append_new(blocks, json_integer(table->blocks[b]));
        json_object_set_new(object, table->group,
                            json_pack("{s:I, s:o}", "first_token", (json_int_t)table->first_token,
                                      "blocks", blocks));
    }
    return object;
}

json_t *demo_request_json(const demo_request *request)
{
    char id[16];
    snprintf(id, sizeof id, "%u", request->number);
    json_t *document = json_pack("{s:s, s:I, s:o, s:o}", "transfer_id", id, "tokens",
                                 (json_int_t)request->tokens, "source",
                                 tables_json(&request->tables[DEMO_PREFILL]), "target",
                                 tables_json(&request->tables[DEMO_DECODE]));
    if (request->whole_blocks)
        json_object_set_new(document, "whole_blocks", json_true());
    return document;
}
