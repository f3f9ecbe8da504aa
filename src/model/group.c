/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers -> groups that share a block table, over the layers of all stages, in vLLM's order:
 * one group if all layers have one spec; packed groups where memory is block-outermost and pages
 * differ; else groups of equal length. docs/models.md, "Groups".
 */
#include "model/model.h"

/* Layers that may be in one group. */
typedef struct bucket {
    uint32_t *layers;
    uint32_t count;
    uint32_t pages[MODEL_SPECS]; /* layers by distinct page size, in first-appearance order */
    uint64_t page[MODEL_SPECS];
    uint32_t page_count, most; /* most: the largest of pages */
    bool balanced;             /* as many layers of each page size */
} bucket;

typedef struct buckets {
    bucket list[MODEL_SPECS];
    uint32_t count;
} buckets;

static const model_spec *spec_of(const model_cache *cache, uint32_t layer)
{
    return &cache->specs[cache->layers[layer].spec];
}

/* The same kind of block: then pages may differ. */
static bool alike(const model_spec *a, const model_spec *b)
{
    return a->class == b->class && a->block == b->block && a->window == b->window;
}

static void count_page(bucket *into, uint64_t page)
{
    uint32_t at = 0;
    while (at < into->page_count && into->page[at] != page)
        at++;
    if (at == into->page_count)
        into->page[into->page_count++] = page;
    into->pages[at]++;
    if (into->pages[at] > into->most)
        into->most = into->pages[at];
}

/* Sorts layers into buckets: of one spec each, or, if `mixed`, of alike ones. */
static bool fill(model_cache *cache, buckets *all, bool mixed)
{
    for (uint32_t layer = 0; layer < cache->layer_count; layer++) {
        const model_spec *spec = spec_of(cache, layer);
        uint32_t at = 0;
        for (; at < all->count; at++) {
            const model_spec *first = spec_of(cache, all->list[at].layers[0]);
            if (mixed ? alike(first, spec) : first == spec)
                break;
        }
        bucket *into = &all->list[at];
        if (at == all->count) {
            into->layers = model_alloc(cache, cache->layer_count, sizeof *into->layers);
            if (into->layers == NULL)
                return false;
            all->count++;
        }
        into->layers[into->count++] = layer;
        count_page(into, spec->page);
    }
    for (uint32_t at = 0; at < all->count; at++) {
        bucket *one = &all->list[at];
        one->balanced = one->pages[0] * one->page_count == one->count && one->most == one->pages[0];
    }
    return true;
}

/* A new group without layers, with room for `count`. */
static model_group *new_group(model_cache *cache, uint32_t count)
{
    if (!base_grow((void **)&cache->groups, &cache->group_capacity, cache->group_count + 1,
                   sizeof *cache->groups)) {
        cache->no_memory = true;
        return NULL;
    }
    uint32_t *layers = model_alloc(cache, count, sizeof *layers);
    if (layers == NULL)
        return NULL;
    model_group *group = &cache->groups[cache->group_count++];
    *group = (model_group){.layers = layers};
    return group;
}

static void join(const model_cache *cache, model_group *group, uint32_t layer)
{
    if (group->count == 0)
        group->spec = cache->layers[layer].spec;
    group->layers[group->count++] = layer;
}

/* Cuts a bucket into `parts` groups, every parts-th layer to one, so that each stage has its share of
 * each group. Where layers of several page sizes repeat, one of each is a layer here. */
static void split(model_cache *cache, const bucket *from, uint32_t parts)
{
    uint32_t step = parts > 1 ? from->page_count : 1;
    for (uint32_t part = 0; part < parts; part++) {
        model_group *group = new_group(cache, from->count);
        if (group == NULL)
            return;
        uint32_t seen[MODEL_SPECS] = {0};
        for (uint32_t i = 0; i < from->count; i++) {
            uint32_t at = 0;
            while (step > 1 && from->page[at] != spec_of(cache, from->layers[i])->page)
                at++;
            if (seen[at]++ % parts == part)
                join(cache, group, from->layers[i]);
        }
    }
}

/* --- packed rows --------------------------------------------------------------------------- */

/* How many repeats a group should have so that buckets waste least when rounded up to it, from
 * `least` on; of equals the largest. */
static uint32_t best_repeats(const buckets *all, uint32_t least)
{
    uint32_t top = least, best = least, best_waste = UINT32_MAX;
    for (uint32_t at = 0; at < all->count; at++)
        if (all->list[at].balanced && all->list[at].most > top)
            top = all->list[at].most;
    for (uint32_t repeats = least; repeats <= top; repeats++) {
        uint32_t waste = 0;
        for (uint32_t at = 0; at < all->count; at++)
            if (all->list[at].balanced)
                waste += (repeats - all->list[at].most % repeats) % repeats;
        if (waste <= best_waste) {
            best_waste = waste;
            best = repeats;
        }
    }
    return best;
}

static uint32_t parts_of(const bucket *one, uint32_t repeats)
{
    return one->balanced && repeats > 0 ? (uint32_t)base_ceil_div(one->most, repeats) : 1;
}

/* One state a group would do for these: they never make a row wider. */
static bool is_state(const model_cache *cache, const bucket *one, uint32_t repeats)
{
    model_class class = spec_of(cache, one->layers[0])->class;
    return class == MODEL_RECURRENT || class == MODEL_CIRCULAR ||
           (class == MODEL_SLIDING && repeats == 0);
}

static uint64_t widest_bytes(const bucket *one, uint32_t parts)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < one->page_count; i++)
        bytes += base_ceil_div(one->pages[i], parts) * one->page[i];
    return bytes;
}

static void group_packed(model_cache *cache, const buckets *all)
{
    uint32_t least = 0;
    for (uint32_t at = 0; at < all->count; at++)
        if (all->list[at].balanced && all->list[at].page_count > 1 && all->list[at].most > least)
            least = all->list[at].most;
    uint32_t repeats = least > 0 ? best_repeats(all, least) : 0;
    uint64_t row = 0;
    for (uint32_t at = 0; at < all->count; at++) {
        const bucket *one = &all->list[at];
        uint32_t parts = is_state(cache, one, repeats) ? one->count : parts_of(one, repeats);
        row = base_max(row, widest_bytes(one, parts));
    }
    for (uint32_t at = 0; at < all->count; at++) {
        const bucket *one = &all->list[at];
        uint64_t parts = parts_of(one, repeats);
        if (is_state(cache, one, repeats)) {
            uint64_t fit = base_max(row / spec_of(cache, one->layers[0])->page, 1);
            parts = base_max(parts, base_ceil_div(one->count, fit));
        }
        split(cache, one, (uint32_t)parts);
    }
}

/* --- groups of equal length ------------------------------------------------------------------ */

static void group_equal(model_cache *cache, const buckets *all)
{
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t at = 0; at < all->count; at++) {
        least = all->list[at].count < least ? all->list[at].count : least;
        most = all->list[at].count > most ? all->list[at].count : most;
    }
    uint32_t length = 2 * most < 3 * least ? most : least;
    for (uint32_t at = 0; at < all->count; at++)
        split(cache, &all->list[at], (uint32_t)base_ceil_div(all->list[at].count, length));
}

/* --- the earlier kpool layout: indexers join the latents' group, tails are a group ---------------- */

static void group_kpool(model_cache *cache, const buckets *all)
{
    buckets main = {0};
    const bucket *tails = NULL;
    uint32_t *members = model_alloc(cache, cache->layer_count, sizeof *members), count = 0;
    if (members == NULL)
        return;
    for (uint32_t at = 0; at < all->count; at++) {
        model_content content = spec_of(cache, all->list[at].layers[0])->content;
        if (content == MODEL_RING)
            tails = &all->list[at];
        else if (content != MODEL_INDEX)
            main.list[main.count++] = all->list[at];
    }
    group_equal(cache, &main);
    for (uint32_t layer = 0; layer < cache->layer_count; layer++)
        if (spec_of(cache, layer)->content == MODEL_LATENT || spec_of(cache, layer)->content == MODEL_INDEX)
            members[count++] = layer;
    uint32_t latent_groups = 0;
    for (uint32_t i = 0; i < cache->group_count; i++) {
        model_group *group = &cache->groups[i];
        if (cache->specs[group->spec].content != MODEL_LATENT)
            continue;
        latent_groups++;
        group->layers = members;
        group->count = count;
    }
    if (latent_groups > 1)
        model_refuse(cache, "option_unfit", "kpool", "at most as many full as linear attention layers",
                     "more", "in the earlier layout all indexers are in one group");
    if (tails != NULL)
        split(cache, tails, 1);
}

/* --- names --------------------------------------------------------------------------------- */

/* States and windows are numbered always, others where there are several. */
static void name_groups(model_cache *cache)
{
    for (uint32_t i = 0; i < cache->group_count && !cache->no_memory; i++) {
        const model_spec *spec = &cache->specs[cache->groups[i].spec];
        uint32_t before = 0, all = 0;
        for (uint32_t j = 0; j < cache->group_count; j++) {
            bool same = cache->specs[cache->groups[j].spec].group == spec->group;
            all += same;
            before += same && j < i;
        }
        bool window = spec->class == MODEL_SLIDING && spec->content != MODEL_COMPRESSOR;
        bool numbered = all > 1 || spec->content == MODEL_STATE || window;
        cache->groups[i].name =
            numbered ? model_text(cache, base_format("%s%u", spec->group, before)) : spec->group;
    }
}

static bool one_spec(const model_cache *cache)
{
    for (uint32_t layer = 1; layer < cache->layer_count; layer++)
        if (cache->layers[layer].spec != cache->layers[0].spec)
            return false;
    return true;
}

static bool pages_differ(const model_cache *cache)
{
    for (uint32_t layer = 1; layer < cache->layer_count; layer++)
        if (spec_of(cache, layer)->page != spec_of(cache, 0)->page)
            return true;
    return false;
}

/* Attention alone: shorter blocks are made longer until all pages are equal, or padded where no number of them
 * makes a page. False: there are others. */
static bool lengthen(model_cache *cache)
{
    uint64_t page = 0;
    for (uint32_t i = 0; i < cache->spec_count; i++) {
        if (cache->specs[i].content != MODEL_KV)
            return false;
        page = base_max(page, cache->specs[i].page);
    }
    for (uint32_t i = 0; i < cache->spec_count; i++) {
        model_spec *spec = &cache->specs[i];
        uint64_t times = page % spec->page == 0 ? page / spec->page : 1;
        spec->block = spec->states = times * spec->block;
        model_spec_size(spec, page);
        model_spec_kernel(cache, spec);
    }
    return true;
}

void model_group_layers(model_cache *cache)
{
    bool differ = !one_spec(cache) && pages_differ(cache), packed = differ && cache->order[0] == 'B';
    if (differ && !packed && !cache->choice.kpool_tail && !lengthen(cache)) {
        model_refuse(cache, "option_unfit", "memory_order", "a block-outermost order, BLHNC", cache->order,
                     "pages of several sizes and groups can only lie side by side in a block");
        return;
    }
    buckets all = {0};
    if (!fill(cache, &all, packed))
        return;
    if (cache->choice.kpool_tail)
        group_kpool(cache, &all);
    else if (packed)
        group_packed(cache, &all);
    else
        group_equal(cache, &all);
    name_groups(cache);
}
