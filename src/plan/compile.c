/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of one source, turned into runs of bytes that expanding only has to address. */
#include "layout/tree.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* A nest in the making. */
typedef struct compile_nest {
    plan_nest nest; /* dims points to the array below only where it is stored for good */
    plan_dim dims[LAYOUT_MAX_AXES + 1];
    uint32_t source_stream, target_stream;
    /* The states it is made of, as a list through compile_walk.next. */
    uint32_t first_state, last_state, state_count;
    bool cuts; /* all of them are dense along the states, without dims */
} compile_nest;

/* What makes streams walk together. */
typedef struct compile_key {
    uint32_t source_group, target_group;
    uint64_t source_page_tokens, target_page_tokens;
    bool source_seamless, target_seamless;
} compile_key;

typedef struct compile_job {
    kvferry_plan *plan;
    plan_source *mine;
    const kvferry_layout *source, *target;
    plan_rows source_rows;
    const plan_rows *target_rows;
    plan_obstacles *obstacles;
} compile_job;

/* The nests of one walk while they are merged. */
typedef struct compile_walk {
    compile_key key;
    compile_nest *states, *pages;
    compile_nest **sorted;
    uint32_t state_count, page_count;
    uint32_t *next; /* of a state's list */
} compile_walk;

/* --- one nest ---------------------------------------------------------------------------------- */

/* Drops dims of one, sorts the rest outermost first, and swallows what lies together. */
static void normalise(compile_nest *work)
{
    plan_nest *nest = &work->nest;
    uint32_t count = 0;
    for (uint32_t i = 0; i < nest->dim_count; i++) {
        plan_dim dim = work->dims[i];
        if (dim.count == 1)
            continue;
        uint32_t place = count++;
        for (; place && work->dims[place - 1].target_stride < dim.target_stride; place--)
            work->dims[place] = work->dims[place - 1];
        work->dims[place] = dim;
    }
    while (count && work->dims[count - 1].source_stride == nest->bytes &&
           work->dims[count - 1].target_stride == nest->bytes)
        nest->bytes *= work->dims[--count].count;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        plan_dim *outer = kept ? &work->dims[kept - 1] : NULL, inner = work->dims[i];
        if (outer && outer->source_stride == inner.source_stride * inner.count &&
            outer->target_stride == inner.target_stride * inner.count) {
            inner.count *= outer->count;
            *outer = inner;
        } else {
            work->dims[kept++] = inner;
        }
    }
    nest->dim_count = kept;
}

static uint64_t state_stride(const kvferry_stream *stream)
{
    const kvferry_axis *axis = layout_find_axis(stream, "token");
    return axis->extent == 1 ? stream->page_stride : axis->stride;
}

/* The nest of one state (paged) or of one whole block. */
static void start_nest(const compile_job *job, const kvferry_piece *piece, bool paged,
                       compile_nest *work)
{
    const kvferry_stream *from = kvferry_layout_stream(job->source, piece->source_stream);
    const kvferry_stream *to = kvferry_layout_stream(job->target, piece->target_stream);
    plan_nest *nest = &work->nest;
    *nest = (plan_nest){.source_offset = from->offset,
                        .target_offset = to->offset,
                        .source_page = from->page_stride,
                        .target_page = to->page_stride,
                        .bytes = to->cell_bytes,
                        .source_segment = from->segment,
                        .target_segment = to->segment,
                        .tokens_per_state = to->tokens_per_state};
    work->source_stream = piece->source_stream;
    work->target_stream = piece->target_stream;
    for (uint32_t i = 0; i < to->axis_count; i++) {
        const kvferry_axis *mine = &to->axes[i];
        if (paged && layout_is_token_axis(mine)) {
            nest->source_state = state_stride(from);
            nest->target_state = state_stride(to);
            continue;
        }
        const kvferry_axis *theirs = layout_find_axis(from, mine->name);
        const kvferry_range *range = &piece->ranges[i];
        nest->source_offset += (range->start - theirs->start) * theirs->stride;
        nest->target_offset += (range->start - mine->start) * mine->stride;
        work->dims[nest->dim_count++] =
            (plan_dim){range->extent, theirs->stride, mine->stride};
    }
    normalise(work);
}

/* --- merging ------------------------------------------------------------------------------------ */

#define COMPARE(a, b)                                                                              \
    if ((a) != (b))                                                                                \
    return (a) < (b) ? -1 : 1

/* Everything but the offsets: nests that are alike differ in nothing else. */
static int compare_shapes(const compile_nest *left, const compile_nest *right)
{
    const plan_nest *a = &left->nest, *b = &right->nest;
    COMPARE(a->dim_count, b->dim_count);
    COMPARE(a->target_segment, b->target_segment);
    COMPARE(a->source_segment, b->source_segment);
    COMPARE(a->target_page, b->target_page);
    COMPARE(a->source_page, b->source_page);
    for (uint32_t i = 0; i < a->dim_count; i++) {
        COMPARE(left->dims[i].count, right->dims[i].count);
        COMPARE(left->dims[i].target_stride, right->dims[i].target_stride);
        COMPARE(left->dims[i].source_stride, right->dims[i].source_stride);
    }
    return 0;
}

static int compare_states(const compile_nest *left, const compile_nest *right)
{
    COMPARE(left->nest.tokens_per_state, right->nest.tokens_per_state);
    COMPARE(left->nest.target_state, right->nest.target_state);
    COMPARE(left->nest.source_state, right->nest.source_state);
    return compare_shapes(left, right);
}

static int compare_offsets(const compile_nest *left, const compile_nest *right)
{
    COMPARE(left->nest.target_offset, right->nest.target_offset);
    return 0;
}

static int order_pages(const void *a, const void *b)
{
    const compile_nest *left = *(compile_nest *const *)a, *right = *(compile_nest *const *)b;
    int order = compare_shapes(left, right);
    return order ? order : compare_offsets(left, right);
}

static int order_states(const void *a, const void *b)
{
    const compile_nest *left = *(compile_nest *const *)a, *right = *(compile_nest *const *)b;
    int order = compare_states(left, right);
    return order ? order : compare_offsets(left, right);
}

/* Bytes on the target from the end of `left` to `right` if they are the same on the source. */
static bool gap_between(const compile_nest *left, const compile_nest *right, uint64_t *gap)
{
    uint64_t end = left->nest.target_offset + left->nest.bytes;
    if (right->nest.target_offset < end)
        return false;
    *gap = right->nest.target_offset - end;
    return right->nest.source_offset == left->nest.source_offset + left->nest.bytes + *gap;
}

/*
 * Joins neighbours that lie together on both sides, until nothing changes. `nests` are the pointers
 * to sort; those that are joined into another one are dropped. The states of a page's nest are kept.
 */
static uint32_t merge(compile_nest **nests, uint32_t count, uint32_t *next,
                      int (*order)(const void *, const void *),
                      int (*compare)(const compile_nest *, const compile_nest *))
{
    for (bool changed = true; changed && count > 1;) {
        changed = false;
        qsort(nests, count, sizeof(*nests), order);
        uint32_t kept = 1;
        for (uint32_t i = 1; i < count; i++) {
            compile_nest *last = nests[kept - 1], *more = nests[i];
            uint64_t gap;
            if (compare(last, more) != 0 || !gap_between(last, more, &gap) || gap) {
                nests[kept++] = more;
                continue;
            }
            last->nest.bytes += more->nest.bytes;
            last->cuts = last->cuts && more->cuts;
            if (next) {
                next[last->last_state] = more->first_state;
                last->last_state = more->last_state;
                last->state_count += more->state_count;
            }
            changed = true;
        }
        count = kept;
        for (uint32_t i = 0; changed && i < count; i++)
            normalise(nests[i]);
    }
    return count;
}

/* Joins runs of one row over what lies between them, where that may be carried along. */
static kvferry_status carry(const compile_job *job, compile_walk *walk)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < walk->page_count; i++) {
        compile_nest *last = kept ? walk->sorted[kept - 1] : NULL, *more = walk->sorted[i];
        uint64_t gap;
        if (last && last->nest.dim_count == 0 && compare_shapes(last, more) == 0 &&
            job->target_rows->low[last->target_stream] == job->target_rows->low[more->target_stream] &&
            job->source_rows.low[last->source_stream] == job->source_rows.low[more->source_stream] &&
            gap_between(last, more, &gap)) {
            kvferry_status status = plan_obstacles_find(job->target_rows, last->target_stream,
                                                        walk->key.target_group, job->obstacles);
            if (status != KVFERRY_OK)
                return status;
            if (plan_obstacles_free(job->obstacles, last->nest.target_offset + last->nest.bytes,
                                    gap)) {
                last->nest.bytes += gap + more->nest.bytes;
                last->cuts = last->cuts && more->cuts;
                walk->next[last->last_state] = more->first_state;
                last->last_state = more->last_state;
                last->state_count += more->state_count;
                continue;
            }
        }
        walk->sorted[kept++] = more;
    }
    walk->page_count = kept;
    return KVFERRY_OK;
}

/* --- a walk --------------------------------------------------------------------------------------- */

static bool page_is_page(const compile_job *job, const compile_key *key)
{
    return kvferry_layout_group(job->target, key->target_group)->kind != KVFERRY_GROUP_PAGED ||
           key->source_page_tokens == key->target_page_tokens;
}

/* Makes the nests of a whole page from those of one state, and merges them. */
static kvferry_status make_pages(const compile_job *job, compile_walk *walk)
{
    for (uint32_t i = 0; i < walk->state_count; i++) {
        compile_nest *page = &walk->pages[i];
        *page = walk->states[i];
        page->first_state = page->last_state = i;
        page->state_count = 1;
        uint64_t states = page->nest.tokens_per_state
                              ? walk->key.target_page_tokens / page->nest.tokens_per_state
                              : 1;
        if (walk->key.target_page_tokens == 0)
            states = 1;
        page->cuts = page->nest.dim_count == 0 &&
                     (states == 1 || (page->nest.source_state == page->nest.bytes &&
                                      page->nest.target_state == page->nest.bytes));
        page->dims[page->nest.dim_count++] =
            (plan_dim){states, page->nest.source_state, page->nest.target_state};
        normalise(page);
        walk->sorted[i] = page;
        walk->next[i] = UINT32_MAX;
    }
    walk->page_count = merge(walk->sorted, walk->state_count, walk->next, order_pages, compare_shapes);
    return carry(job, walk);
}

static bool store_nest(base_arena *arena, const compile_nest *work, plan_nest *nest)
{
    *nest = work->nest;
    nest->dims = NULL;
    if (nest->dim_count == 0)
        return true;
    nest->dims = base_arena_alloc(arena, nest->dim_count, sizeof(*nest->dims));
    if (!nest->dims)
        return false;
    memcpy(nest->dims, work->dims, nest->dim_count * sizeof(*nest->dims));
    return true;
}

/* Whether a page's run lies in its target row: only there may unwanted cells be carried. */
static bool in_row(const compile_job *job, const compile_nest *work)
{
    return work->nest.target_offset + work->nest.bytes <=
           job->target_rows->low[work->target_stream] + work->nest.target_page;
}

static kvferry_status store_run(const compile_job *job, const compile_walk *walk,
                                const compile_nest *work, plan_run *run)
{
    const plan_nest *nest = &work->nest;
    *run = (plan_run){.source_offset = nest->source_offset,
                      .target_offset = nest->target_offset,
                      .source_page = nest->source_page,
                      .target_page = nest->target_page,
                      .bytes = nest->bytes,
                      .source_segment = nest->source_segment,
                      .target_segment = nest->target_segment,
                      .cuts = work->cuts && (work->state_count == 1 || in_row(job, work))};
    run->joins = run->source_page == run->target_page && run->bytes == run->target_page;
    if (run->joins || run->source_page != run->target_page || run->bytes > run->target_page)
        return KVFERRY_OK;
    kvferry_status status = plan_obstacles_find(job->target_rows, work->target_stream,
                                                walk->key.target_group, job->obstacles);
    if (status == KVFERRY_OK)
        run->joins = plan_obstacles_free(job->obstacles, run->target_offset + run->bytes,
                                         run->target_page - run->bytes);
    return status;
}

/* Stores the states of a page's nest behind those that are stored already. */
static bool store_states(const compile_job *job, const compile_walk *walk, const compile_nest *work,
                         plan_walk *stored)
{
    uint32_t state = work->first_state;
    for (uint32_t i = 0; i < work->state_count; i++, state = walk->next[state])
        if (!store_nest(&job->plan->arena, &walk->states[state],
                        &stored->states[stored->state_count++]))
            return false;
    return true;
}

static uint64_t nest_copies(const plan_nest *nest)
{
    uint64_t copies = 1;
    for (uint32_t i = 0; i < nest->dim_count; i++)
        copies *= nest->dims[i].count;
    return copies;
}

/* Equal pages: runs first, then nests; the states of both if pages may be cut by a window. */
static kvferry_status store_pages(const compile_job *job, const compile_walk *walk, plan_walk *stored)
{
    base_arena *arena = &job->plan->arena;
    bool windowed = kvferry_layout_group(job->target, walk->key.target_group)->window > 0;
    stored->runs = base_arena_alloc(arena, walk->page_count, sizeof(*stored->runs));
    stored->nests = base_arena_alloc(arena, walk->page_count, sizeof(*stored->nests));
    stored->states = windowed ? base_arena_alloc(arena, walk->state_count, sizeof(*stored->states))
                              : NULL;
    if (!stored->runs || !stored->nests || (windowed && !stored->states))
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < walk->page_count; i++) {
        const compile_nest *work = walk->sorted[i];
        if (work->nest.dim_count)
            continue;
        plan_run *run = &stored->runs[stored->run_count++];
        kvferry_status status = store_run(job, walk, work, run);
        if (status != KVFERRY_OK)
            return status;
        run->first_state = stored->state_count;
        run->state_count = work->state_count;
        if (windowed && !store_states(job, walk, work, stored))
            return KVFERRY_NO_MEMORY;
    }
    stored->page_copies = stored->run_count;
    stored->even = stored->run_count > 0;
    for (uint32_t i = 1; i < stored->run_count; i++)
        stored->even = stored->even && stored->runs[i].source_page == stored->runs[0].source_page &&
                       stored->runs[i].target_page == stored->runs[0].target_page;
    stored->nest_first_state = stored->state_count;
    for (uint32_t i = 0; i < walk->page_count; i++) {
        const compile_nest *work = walk->sorted[i];
        if (!work->nest.dim_count)
            continue;
        plan_nest *nest = &stored->nests[stored->nest_count++];
        if (!store_nest(arena, work, nest) ||
            (windowed && !store_states(job, walk, work, stored)))
            return KVFERRY_NO_MEMORY;
        stored->page_copies += nest_copies(nest);
    }
    return KVFERRY_OK;
}

static kvferry_status store_seams(const compile_job *job, const compile_walk *walk, plan_walk *stored)
{
    stored->states =
        base_arena_alloc(&job->plan->arena, walk->state_count, sizeof(*stored->states));
    if (!stored->states)
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < walk->state_count; i++)
        if (!store_nest(&job->plan->arena, walk->sorted[i], &stored->states[stored->state_count++]))
            return KVFERRY_NO_MEMORY;
    return KVFERRY_OK;
}

static kvferry_status finish_walk(const compile_job *job, compile_walk *walk, plan_walk *stored)
{
    const plan_group *from = &job->mine->groups[walk->key.source_group];
    const plan_group *to = &job->plan->groups[walk->key.target_group];
    *stored = (plan_walk){.source_group = walk->key.source_group,
                          .target_group = walk->key.target_group,
                          .source_name = from->name,
                          .target_name = to->name,
                          .kind = to->kind,
                          .source_page_tokens = walk->key.source_page_tokens,
                          .target_page_tokens = walk->key.target_page_tokens,
                          .source_ratio = 1,
                          .target_ratio = 1,
                          .equal = page_is_page(job, &walk->key),
                          .source_seamless = walk->key.source_seamless,
                          .target_seamless = walk->key.target_seamless};
    if (stored->kind == KVFERRY_GROUP_PAGED) {
        stored->source_ratio = from->block_tokens / stored->source_page_tokens;
        stored->target_ratio = to->block_tokens / stored->target_page_tokens;
    }
    for (uint32_t i = 0; i < walk->state_count; i++)
        walk->sorted[i] = &walk->states[i];
    walk->state_count =
        merge(walk->sorted, walk->state_count, NULL, order_states, compare_states);
    if (!stored->equal)
        return store_seams(job, walk, stored);
    /* The pages are made from the merged states: put these side by side. */
    compile_nest *merged = base_alloc(walk->state_count, sizeof(*merged));
    if (!merged)
        return KVFERRY_NO_MEMORY;
    for (uint32_t i = 0; i < walk->state_count; i++)
        merged[i] = *walk->sorted[i];
    memcpy(walk->states, merged, walk->state_count * sizeof(*merged));
    free(merged);
    kvferry_status status = make_pages(job, walk);
    return status == KVFERRY_OK ? store_pages(job, walk, stored) : status;
}

static kvferry_status compile_one(const compile_job *job, const compile_key *key,
                                  const compile_nest *nests, const uint32_t *members, uint32_t count,
                                  plan_walk *stored)
{
    compile_walk walk = {.key = *key, .state_count = count};
    kvferry_status status = KVFERRY_NO_MEMORY;
    walk.states = base_alloc(count, sizeof(*walk.states));
    walk.pages = base_alloc(count, sizeof(*walk.pages));
    walk.sorted = base_alloc(count, sizeof(*walk.sorted));
    walk.next = base_alloc(count, sizeof(*walk.next));
    if (walk.states && walk.pages && walk.sorted && walk.next) {
        for (uint32_t i = 0; i < count; i++)
            walk.states[i] = nests[members[i]];
        status = finish_walk(job, &walk, stored);
    }
    free(walk.states);
    free(walk.pages);
    free(walk.sorted);
    free(walk.next);
    return status;
}

/* --- all ------------------------------------------------------------------------------------------- */

static bool seamless(const kvferry_stream *stream)
{
    uint64_t states = stream->page_tokens / stream->tokens_per_state;
    return stream->page_stride == states * state_stride(stream);
}

static compile_key key_of(const compile_job *job, const kvferry_piece *piece)
{
    const kvferry_stream *from = kvferry_layout_stream(job->source, piece->source_stream);
    const kvferry_stream *to = kvferry_layout_stream(job->target, piece->target_stream);
    compile_key key;
    memset(&key, 0, sizeof(key)); /* compared as bytes */
    key.source_group = from->group;
    key.target_group = to->group;
    if (kvferry_layout_group(job->target, to->group)->kind != KVFERRY_GROUP_PAGED)
        return key;
    key.source_page_tokens = from->page_tokens;
    key.target_page_tokens = to->page_tokens;
    if (from->page_tokens != to->page_tokens) {
        key.source_seamless = seamless(from);
        key.target_seamless = seamless(to);
    }
    return key;
}

static int compare_keys(const void *a, const void *b, void *context)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    const compile_key *keys = context, *one = &keys[left], *two = &keys[right];
    COMPARE(one->source_group, two->source_group);
    COMPARE(one->target_group, two->target_group);
    COMPARE(one->source_page_tokens, two->source_page_tokens);
    COMPARE(one->target_page_tokens, two->target_page_tokens);
    COMPARE(one->source_seamless, two->source_seamless);
    COMPARE(one->target_seamless, two->target_seamless);
    COMPARE(left, right);
    return 0;
}

static bool same_key(const compile_key *a, const compile_key *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* Compiles each run of pieces with one key; `members` are the pieces' indexes, sorted by key. */
static kvferry_status compile_walks(compile_job *job, const compile_key *keys,
                                    const compile_nest *nests, const uint32_t *members, size_t count)
{
    uint32_t walks = 0;
    for (size_t i = 0; i < count; i++)
        walks += i == 0 || !same_key(&keys[members[i - 1]], &keys[members[i]]);
    job->mine->walks = base_arena_alloc(&job->plan->arena, walks, sizeof(*job->mine->walks));
    kvferry_status status = job->mine->walks ? KVFERRY_OK : KVFERRY_NO_MEMORY;
    for (size_t first = 0, next; first < count && status == KVFERRY_OK; first = next) {
        for (next = first + 1; next < count; next++)
            if (!same_key(&keys[members[first]], &keys[members[next]]))
                break;
        status = compile_one(job, &keys[members[first]], nests, &members[first],
                             (uint32_t)(next - first), &job->mine->walks[job->mine->walk_count++]);
    }
    return status;
}

kvferry_status plan_compile(kvferry_plan *plan, size_t source_index, const kvferry_layout *source,
                            const plan_rows *target_rows, plan_obstacles *obstacles)
{
    plan_source *mine = &plan->sources[source_index];
    size_t count = mine->piece_count;
    if (count == 0)
        return KVFERRY_OK;
    compile_job job = {.plan = plan,
                       .mine = mine,
                       .source = source,
                       .target = target_rows->layout,
                       .target_rows = target_rows,
                       .obstacles = obstacles};
    base_arena scratch = {0};
    kvferry_status status = plan_rows_create(source, &scratch, &job.source_rows);
    compile_key *keys = base_arena_alloc(&scratch, count, sizeof(*keys));
    compile_nest *nests = base_arena_alloc(&scratch, count, sizeof(*nests));
    uint32_t *members = base_arena_alloc(&scratch, count, sizeof(*members));
    if (!keys || !nests || !members)
        status = KVFERRY_NO_MEMORY;
    for (size_t i = 0; i < count && status == KVFERRY_OK; i++) {
        keys[i] = key_of(&job, &mine->pieces[i]);
        start_nest(&job, &mine->pieces[i], keys[i].target_page_tokens != 0, &nests[i]);
        members[i] = (uint32_t)i;
    }
    if (status == KVFERRY_OK) {
        qsort_r(members, count, sizeof(*members), compare_keys, keys);
        status = compile_walks(&job, keys, nests, members, count);
    }
    base_arena_free(&scratch);
    return status;
}
