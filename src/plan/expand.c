/* SPDX-License-Identifier: Apache-2.0 */
/* A request's copies: the per-request path. Allocates nothing, takes no lock, makes no system call. */
#include "plan/expand.h"

/* Where copies go. The caller's buffer has room for the bound, so nothing is checked here. */
typedef struct expand_out {
    kvferry_copy *next;
} expand_out;

static inline void put(expand_out *out, const plan_nest *nest, uint64_t source, uint64_t target,
                       uint64_t bytes)
{
    *out->next++ = (kvferry_copy){.source_offset = source,
                                  .target_offset = target,
                                  .bytes = bytes,
                                  .source_segment = nest->source_segment,
                                  .target_segment = nest->target_segment};
}

/* `bytes` bytes at each point of the nest's dims from `dim` on. */
static void put_dims(expand_out *out, const plan_nest *nest, uint32_t dim, uint64_t source,
                     uint64_t target, uint64_t bytes)
{
    if (dim == nest->dim_count) {
        put(out, nest, source, target, bytes);
        return;
    }
    const plan_dim *loop = &nest->dims[dim];
    bool last = dim + 1 == nest->dim_count;
    for (uint64_t i = 0; i < loop->count; i++) {
        if (last)
            put(out, nest, source, target, bytes);
        else
            put_dims(out, nest, dim + 1, source, target, bytes);
        source += loop->source_stride;
        target += loop->target_stride;
    }
}

static bool dense(const plan_nest *nest)
{
    return nest->source_state == nest->bytes && nest->target_state == nest->bytes;
}

/* `count` states of one nest from the given places on. */
static void put_states(expand_out *out, const plan_nest *nest, uint64_t source, uint64_t target,
                       uint64_t count)
{
    if (dense(nest)) {
        put_dims(out, nest, 0, source, target, nest->bytes * count);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        put_dims(out, nest, 0, source, target, nest->bytes);
        source += nest->source_state;
        target += nest->target_state;
    }
}

/* --- equal pages ----------------------------------------------------------------------------------- */

static inline void put_run(expand_out *out, const plan_run *run, uint64_t source, uint64_t target,
                           uint64_t skip, uint64_t bytes)
{
    *out->next++ = (kvferry_copy){.source_offset = run->source_offset + source * run->source_page + skip,
                                  .target_offset = run->target_offset + target * run->target_page + skip,
                                  .bytes = bytes,
                                  .source_segment = run->source_segment,
                                  .target_segment = run->target_segment};
}

/* One whole page where all runs have the same page strides: the case that most copies come from. */
static void put_even_page(expand_out *out, const plan_walk *walk, uint64_t source, uint64_t target)
{
    const uint64_t there = source * walk->runs[0].source_page;
    const uint64_t here = target * walk->runs[0].target_page;
    kvferry_copy *next = out->next;
    for (uint32_t i = 0; i < walk->run_count; i++, next++) {
        const plan_run *run = &walk->runs[i];
        next->source_offset = run->source_offset + there;
        next->target_offset = run->target_offset + here;
        next->bytes = run->bytes;
        next->source_segment = run->source_segment;
        next->target_segment = run->target_segment;
    }
    out->next = next;
}

/* `count` consecutive whole pages. */
static void put_pages(expand_out *out, const plan_walk *walk, uint64_t source, uint64_t target,
                      uint64_t count)
{
    bool even = count == 1 && walk->even;
    if (even)
        put_even_page(out, walk, source, target);
    for (uint32_t i = 0; !even && i < walk->run_count; i++) {
        const plan_run *run = &walk->runs[i];
        if (run->joins)
            put_run(out, run, source, target, 0, run->bytes + (count - 1) * run->target_page);
        else
            for (uint64_t k = 0; k < count; k++)
                put_run(out, run, source + k, target + k, 0, run->bytes);
    }
    for (uint32_t i = 0; i < walk->nest_count; i++) {
        const plan_nest *nest = &walk->nests[i];
        /* Pages without a seam, as where the heads lie outside of them. */
        bool joins = nest->source_page == nest->bytes && nest->target_page == nest->bytes;
        uint64_t times = joins ? 1 : count, bytes = joins ? nest->bytes * count : nest->bytes;
        for (uint64_t k = 0; k < times; k++)
            put_dims(out, nest, 0, nest->source_offset + (source + k) * nest->source_page,
                     nest->target_offset + (target + k) * nest->target_page, bytes);
    }
}

static void put_cut_states(expand_out *out, const plan_walk *walk, uint32_t first, uint32_t count,
                           uint64_t source, uint64_t target, uint64_t token)
{
    for (uint32_t i = first; i < first + count; i++) {
        const plan_nest *nest = &walk->states[i];
        uint64_t state = token / nest->tokens_per_state;
        put_states(out, nest,
                   nest->source_offset + source * nest->source_page + state * nest->source_state,
                   nest->target_offset + target * nest->target_page + state * nest->target_state,
                   walk->target_page_tokens / nest->tokens_per_state - state);
    }
}

/* A page of which only the states from `token` on are wanted. */
static void put_cut_page(expand_out *out, const plan_walk *walk, uint64_t source, uint64_t target,
                         uint64_t token)
{
    for (uint32_t i = 0; i < walk->run_count; i++) {
        const plan_run *run = &walk->runs[i];
        const plan_nest *first = &walk->states[run->first_state];
        uint64_t skip = token / first->tokens_per_state * first->target_state;
        if (run->cuts)
            put_run(out, run, source, target, skip, run->bytes - skip);
        else
            put_cut_states(out, walk, run->first_state, run->state_count, source, target, token);
    }
    put_cut_states(out, walk, walk->nest_first_state, walk->state_count - walk->nest_first_state,
                   source, target, token);
}

/* A stretch of pages that lie beside one another on both sides, in whichever order they are met: engines give
 * blocks back last one first, so that new tables often run downwards. */
typedef struct expand_stretch {
    uint64_t source, target, count;
} expand_stretch;

static inline void extend(expand_out *out, const plan_walk *walk, expand_stretch *stretch,
                          uint64_t source, uint64_t target, uint64_t count)
{
    uint64_t distance = source - stretch->source;
    if (distance == target - stretch->target && stretch->count) {
        bool before = distance + count == 0;
        if (before) {
            stretch->source = source;
            stretch->target = target;
        }
        if (before || distance == stretch->count) {
            stretch->count += count;
            return;
        }
    }
    if (stretch->count)
        put_pages(out, walk, stretch->source, stretch->target, stretch->count);
    *stretch = (expand_stretch){source, target, count};
}

/* A place in a block table, in pages. Before the table's first block the index is negative: only
 * under null target blocks, so it is never looked at there. */
typedef struct expand_cursor {
    const uint32_t *blocks;
    int64_t index;
    uint64_t page, ratio; /* the page inside the block; pages a block */
} expand_cursor;

static expand_cursor page_cursor(const kvferry_block_table *table, uint64_t page_tokens,
                                 uint64_t ratio, uint64_t page)
{
    uint64_t first = table->first_token / page_tokens;
    if (page >= first)
        return (expand_cursor){table->blocks, (int64_t)((page - first) / ratio),
                               (page - first) % ratio, ratio};
    uint64_t blocks = base_ceil_div(first - page, ratio);
    return (expand_cursor){table->blocks, -(int64_t)blocks, blocks * ratio - (first - page), ratio};
}

static inline uint64_t page_at(const expand_cursor *cursor)
{
    return cursor->blocks[cursor->index] * cursor->ratio + cursor->page;
}

static inline void advance(expand_cursor *cursor, uint64_t pages)
{
    cursor->page += pages;
    if (cursor->page == cursor->ratio) {
        cursor->page = 0;
        cursor->index++;
    }
}

static void expand_equal(expand_out *out, const expand_job *job, const plan_walk *walk,
                         const kvferry_block_table *from, const kvferry_block_table *to,
                         uint64_t start, uint64_t end)
{
    const int64_t null = job->plan->groups[walk->target_group].null_block;
    const uint64_t tokens = walk->target_page_tokens;
    uint64_t page = start / tokens, last = (end - 1) / tokens, cut = start % tokens;
    expand_cursor source = page_cursor(from, tokens, walk->source_ratio, page);
    expand_cursor target = page_cursor(to, tokens, walk->target_ratio, page);
    expand_stretch stretch = {0};
    while (page <= last) {
        uint64_t count = base_min(last - page + 1, base_min(source.ratio - source.page,
                                                            target.ratio - target.page));
        if (target.blocks[target.index] != null) {
            uint64_t there = page_at(&source), here = page_at(&target);
            if (cut) {
                count = 1;
                put_cut_page(out, walk, there, here, cut);
            } else {
                extend(out, walk, &stretch, there, here, count);
            }
        }
        cut = 0;
        page += count;
        advance(&source, count);
        advance(&target, count);
    }
    if (stretch.count)
        put_pages(out, walk, stretch.source, stretch.target, stretch.count);
}

/* --- unequal pages ----------------------------------------------------------------------------------- */

/* One side while tokens are walked: the page and the token inside it at the current token, and how
 * far the states go on without a seam. */
typedef struct expand_side {
    const kvferry_block_table *table;
    uint64_t block_tokens, page_tokens, ratio;
    int64_t null_block;
    bool seamless;
    uint64_t end; /* the first token past the stretch that was looked at last */
    uint64_t first, page;   /* the stretch's first token and page */
} expand_side;

/* Puts the side on the stretch that holds `token`; false if that is the null block. */
static bool stand(expand_side *side, uint64_t token, uint64_t limit)
{
    if (token < side->end)
        return true;
    uint64_t skipped = token - side->table->first_token;
    uint64_t index = skipped / side->block_tokens;
    uint64_t inside = skipped % side->block_tokens;
    uint64_t block_first = token - inside;
    if (side->table->blocks[index] == side->null_block) {
        side->end = 0;
        return false;
    }
    side->page = side->table->blocks[index] * side->ratio;
    side->first = block_first;
    if (side->seamless) {
        side->end = block_first + side->block_tokens;
        for (const uint32_t *ids = side->table->blocks;
             side->end < limit && index + 1 < side->table->block_count &&
             ids[index + 1] == ids[index] + 1 && ids[index + 1] != side->null_block;
             index++)
            side->end += side->block_tokens;
    } else {
        side->page += inside / side->page_tokens;
        side->first += inside / side->page_tokens * side->page_tokens;
        side->end = side->first + side->page_tokens;
    }
    return true;
}

static void expand_unequal(expand_out *out, const expand_job *job, const plan_walk *walk,
                           const kvferry_block_table *from, const kvferry_block_table *to,
                           uint64_t start, uint64_t end)
{
    const plan_group *source_group = &job->source->groups[walk->source_group];
    const plan_group *target_group = &job->plan->groups[walk->target_group];
    expand_side source = {.table = from,
                          .block_tokens = source_group->block_tokens,
                          .page_tokens = walk->source_page_tokens,
                          .ratio = walk->source_ratio,
                          .null_block = source_group->null_block,
                          .seamless = walk->source_seamless};
    expand_side target = {.table = to,
                          .block_tokens = target_group->block_tokens,
                          .page_tokens = walk->target_page_tokens,
                          .ratio = walk->target_ratio,
                          .null_block = target_group->null_block,
                          .seamless = walk->target_seamless};
    for (uint64_t token = start; token < end;) {
        if (!stand(&target, token, end)) {
            uint64_t inside = (token - to->first_token) % target.block_tokens;
            token += target.block_tokens - inside;
            continue;
        }
        stand(&source, token, end); /* never null: the request was checked */
        uint64_t stop = base_min(end, base_min(source.end, target.end));
        for (uint32_t i = 0; i < walk->state_count; i++) {
            const plan_nest *nest = &walk->states[i];
            uint64_t per = nest->tokens_per_state;
            uint64_t there = (token - source.first) / per, here = (token - target.first) / per;
            put_states(out, nest,
                       nest->source_offset + source.page * nest->source_page +
                           there * nest->source_state,
                       nest->target_offset + target.page * nest->target_page +
                           here * nest->target_state,
                       base_ceil_div(stop - target.first, per) - here);
        }
        token = stop;
    }
}

/* --- the whole request --------------------------------------------------------------------------------- */

static void expand_walk(expand_out *out, const expand_job *job, const plan_walk *walk)
{
    const kvferry_request *request = job->request;
    const kvferry_block_table *to =
        expand_table(request->target, request->target_count, walk->target_name);
    if (!to)
        return;
    const kvferry_block_table *from =
        expand_table(request->source, request->source_count, walk->source_name);
    const plan_group *target = &job->plan->groups[walk->target_group];
    if (walk->kind != KVFERRY_GROUP_PAGED) {
        put_pages(out, walk, expand_live_block(&job->source->groups[walk->source_group], from),
                  expand_live_block(target, to), 1);
        return;
    }
    uint64_t start, end;
    if (!expand_wanted(job, target, to, &start, &end))
        return;
    if (walk->equal)
        expand_equal(out, job, walk, from, to, start, end);
    else
        expand_unequal(out, job, walk, from, to, start, end);
}

static bool valid_tables(const kvferry_block_table *tables, size_t count)
{
    if (count && !tables)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!tables[i].group || (tables[i].block_count && !tables[i].blocks))
            return false;
    return true;
}

static bool valid_request(const kvferry_plan *plan, size_t source, const kvferry_request *request)
{
    return plan && request && source < plan->source_count &&
           valid_tables(request->source, request->source_count) &&
           valid_tables(request->target, request->target_count);
}

kvferry_status kvferry_plan_expand(const kvferry_plan *plan, size_t source,
                                   const kvferry_request *request, kvferry_copy *copies,
                                   size_t capacity, size_t *count, kvferry_report *report)
{
    if (!valid_request(plan, source, request) || !copies || !count)
        return KVFERRY_INVALID;
    if (capacity < kvferry_plan_expand_bound(plan, source, request))
        return KVFERRY_NO_SPACE;
    const expand_job job = {plan, &plan->sources[source], request, report};
    if (!expand_check(&job, (uint64_t *)copies))
        return KVFERRY_REFUSED;
    expand_out out = {copies};
    for (uint32_t i = 0; i < job.source->walk_count; i++)
        expand_walk(&out, &job, &job.source->walks[i]);
    *count = (size_t)(out.next - copies);
    return KVFERRY_OK;
}

/* --- the bound ------------------------------------------------------------------------------------------- */

static uint64_t add_up(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return base_add(a, b, &sum) ? sum : UINT64_MAX;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    uint64_t product;
    return base_mul(a, b, &product) ? product : UINT64_MAX;
}

/* Copies of the walk's states over `states_tokens` tokens that are met in `stretches` pieces. */
static uint64_t bound_states(const plan_walk *walk, uint64_t tokens, uint64_t stretches)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < walk->state_count; i++) {
        const plan_nest *nest = &walk->states[i];
        uint64_t times = dense(nest) ? stretches
                                     : add_up(base_ceil_div(tokens, nest->tokens_per_state), stretches);
        for (uint32_t k = 0; k < nest->dim_count; k++)
            times = multiply(times, nest->dims[k].count);
        total = add_up(total, times);
    }
    return total;
}

static uint64_t bound_walk(const expand_job *job, const plan_walk *walk,
                           const kvferry_block_table *table)
{
    if (walk->kind != KVFERRY_GROUP_PAGED)
        return walk->page_copies;
    uint64_t start, end;
    const plan_group *target = &job->plan->groups[walk->target_group];
    if (!expand_wanted(job, target, table, &start, &end))
        return 0;
    uint64_t tokens = end - start, page = walk->target_page_tokens;
    if (walk->equal) {
        uint64_t pages = (end - 1) / page - start / page + 1;
        uint64_t cut = start % page ? bound_states(walk, page, 1) + walk->run_count : 0;
        return add_up(multiply(pages, walk->page_copies), cut);
    }
    uint64_t stretches = tokens / page + tokens / walk->source_page_tokens + 4;
    return bound_states(walk, tokens, stretches);
}

uint64_t expand_copies(const expand_job *job)
{
    const kvferry_request *request = job->request;
    uint64_t total = 0;
    for (uint32_t i = 0; i < job->source->walk_count; i++) {
        const plan_walk *walk = &job->source->walks[i];
        const kvferry_block_table *table =
            expand_table(request->target, request->target_count, walk->target_name);
        if (table)
            total = add_up(total, bound_walk(job, walk, table));
    }
    return total;
}

/* The buffer is also the scratch space of the check. */
uint64_t expand_scratch(const kvferry_plan *plan)
{
    return base_max(base_ceil_div(plan->scratch_bits / 8, sizeof(kvferry_copy)), 1);
}

size_t kvferry_plan_expand_bound(const kvferry_plan *plan, size_t source,
                                 const kvferry_request *request)
{
    if (!valid_request(plan, source, request))
        return 0;
    const expand_job job = {plan, &plan->sources[source], request, NULL};
    return (size_t)base_max(expand_copies(&job), expand_scratch(plan));
}
