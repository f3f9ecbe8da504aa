/* SPDX-License-Identifier: Apache-2.0 */
/* What happens, in words: from the same findings as the tables. */
#include "explain.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LINE 96

/* One point of a list, wrapped at spaces. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        tool_no_memory();
    size_t column = 3;
    printf("  *");
    for (char *word = text; *word;) {
        size_t size = strcspn(word, " ");
        if (column + 1 + size > LINE && column > 3) {
            printf("\n   ");
            column = 3;
        }
        putchar(' ');
        for (size_t i = 0; i < size; i++)
            tool_put((const char[]){word[i], 0}, stdout);
        column += 1 + size;
        word += size + (word[size] == ' ');
    }
    putchar('\n');
    free(text);
}

static const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

static char *join(const tool_list *list)
{
    char *text = tool_text("%s", "");
    for (size_t i = 0; i < list->count; i++) {
        const char *between = i == 0 ? "" : i + 1 == list->count ? " and " : ", ";
        char *longer = tool_text("%s%s%s", text, between, list->items[i]);
        free(text);
        text = longer;
    }
    return text;
}

/* "blocks of 1,056 tokens at prefill, of 528 at decode; one prefill block has ...". */
static char *block_sizes(const explain *all, const explain_cut *cut)
{
    uint64_t source = cut->block_tokens[0], target = cut->block_tokens[1];
    if (source == target)
        return tool_text("blocks of %s tokens on both sides, which pair one to one",
                         tool_number(source));
    bool more = source > target;
    uint64_t large = more ? source : target, small = more ? target : source;
    char *relation =
        large % small == 0
            ? tool_text("one %s block has the tokens of %s %s blocks",
                        more ? all->source.title : all->target.title, tool_number(large / small),
                        more ? all->target.title : all->source.title)
            : tool_text("neither divides the other, so what moves is cut where either side's block ends");
    char *text = tool_text("blocks of %s tokens at %s, of %s at %s; %s", tool_number(source),
                           all->source.title, tool_number(target), all->target.title, relation);
    free(relation);
    return text;
}

static void say_pages(const explain *all, const explain_cut *cut)
{
    for (int side = 0; side < 2; side++) {
        uint64_t block = cut->block_tokens[side], page = cut->page_tokens[side];
        if (!page || page == block)
            continue;
        say("The %s side's attention kernel works on pages of %s tokens: block b is its pages "
            "%s*b .. %s*b+%s in memory.",
            side ? all->target.title : all->source.title, tool_number(page),
            tool_number(block / page), tool_number(block / page), tool_number(block / page - 1));
    }
}

static void say_paged(const explain *all, const explain_cut *cut, const char *streams,
                      const char *layers)
{
    char *sizes = block_sizes(all, cut);
    char *state = cut->tokens_per_state > 1
                      ? tool_text(" One state covers %s tokens.", tool_number(cut->tokens_per_state))
                      : tool_text("%s", "");
    char *window = cut->window ? tool_text(" Only the last %s tokens are wanted%s.",
                                           tool_number(cut->window),
                                           all->whole_blocks ? ", the block that they begin in whole" : "")
                               : tool_text("%s", "");
    say("%s of %zu layer%s (%s): %s.%s%s", streams, cut->layers.count, plural(cut->layers.count), layers,
        sizes, state, window);
    free(window);
    free(state);
    free(sizes);
    say_pages(all, cut);
}

static void say_one_block(const explain_cut *cut, const char *streams, const char *layers)
{
    const char *what = cut->kind == KVFERRY_GROUP_STATE
                           ? "recurrent state, one block a request. It is valid at one position only, so "
                             "both sides must mean the same number of tokens (a prompt of N is "
                             "prefilled to N-1; decode computes the last token itself)."
                           : "a ring, one block a request for its whole life. Both sides must stand "
                             "at the same number of tokens.";
    say("%s of %zu layer%s (%s): %s", streams, cut->layers.count, plural(cut->layers.count), layers,
        what);
}

/* Streams of the same blocks and layers in one point, however their axes are cut. */
static bool same_blocks(const explain_cut *a, const explain_cut *b)
{
    return a->kind == b->kind && a->tokens_per_state == b->tokens_per_state && a->window == b->window &&
           memcmp(a->block_tokens, b->block_tokens, sizeof(a->block_tokens)) == 0 &&
           memcmp(a->page_tokens, b->page_tokens, sizeof(a->page_tokens)) == 0 &&
           explain_list_equal(&a->layers, &b->layers);
}

static void say_blocks(const explain *all)
{
    bool paged = false;
    for (size_t c = 0; c < all->cut_count; c++)
        paged = paged || all->cuts[c].kind == KVFERRY_GROUP_PAGED;
    if (paged)
        say("Blocks of the two sides are paired by the tokens in them, not by their place in a list.");
    bool *said = tool_alloc(all->cut_count, sizeof(*said));
    for (size_t c = 0; c < all->cut_count; c++) {
        if (said[c])
            continue;
        const explain_cut *cut = &all->cuts[c];
        tool_list streams = {0};
        for (size_t d = c; d < all->cut_count; d++) {
            if (!same_blocks(cut, &all->cuts[d]))
                continue;
            said[d] = true;
            for (size_t i = 0; i < all->cuts[d].streams.count; i++)
                tool_list_add(&streams, all->cuts[d].streams.items[i]);
        }
        char *names = join(&streams), *layers = tool_fold(cut->layers.items, cut->layers.count);
        if (cut->kind == KVFERRY_GROUP_PAGED)
            say_paged(all, cut, names, layers);
        else
            say_one_block(cut, names, layers);
        free(names);
        free(layers);
        tool_list_free(&streams);
    }
    free(said);
}

static char *share(const explain_cut *cut, int side)
{
    if (cut->least[side] == cut->global)
        return tool_text("all of them");
    if (cut->least[side] == cut->most[side])
        return tool_text("%s", tool_number(cut->least[side]));
    return tool_text("%s to %s", tool_number(cut->least[side]), tool_number(cut->most[side]));
}

/* What is held more than once, and who then sends. */
static char *replication(const explain *all, const explain_cut *cut)
{
    uint64_t senders = cut->holders[0], takers = cut->holders[1];
    uint32_t targets = kvferry_layout_worker(all->target.workers.layouts[0])->tp_size;
    char *from = tool_text("%s", ""), *to = tool_text("%s", "");
    if (senders > 1) {
        free(from);
        from = tool_text(" Each part is held by %s %s workers; %s", tool_number(senders),
                         all->source.title,
                         targets >= senders
                             ? "they take turns: each target worker gets it from one of them."
                             : "each target worker gets some layers from each of several of them, so "
                               "that all of them share the sending.");
    }
    if (takers > 1) {
        free(to);
        to = tool_text(" Each part is wanted by %s %s workers and sent to each of them.",
                       tool_number(takers), all->target.title);
    }
    char *text = tool_text("%s%s", from, to);
    free(from);
    free(to);
    return text;
}

static bool cut_alike(const explain_cut *a, const explain_cut *b)
{
    return !a->axis == !b->axis && (!a->axis || strcmp(a->axis, b->axis) == 0) &&
           a->global == b->global && memcmp(a->least, b->least, sizeof(a->least)) == 0 &&
           memcmp(a->most, b->most, sizeof(a->most)) == 0 &&
           memcmp(a->holders, b->holders, sizeof(a->holders)) == 0;
}

static void say_cut(const explain *all, const explain_cut *cut, const tool_list *names)
{
    char *streams = join(names), *held = replication(all, cut);
    if (cut->axis) {
        char *source = share(cut, 0), *target = share(cut, 1);
        say("%s %s cut by %s, %s in all: a %s worker holds %s, a %s worker %s.%s", streams,
            names->count == 1 ? "is" : "are each", cut->axis, tool_number(cut->global),
            all->source.title, source, all->target.title, target, held);
        free(source);
        free(target);
    } else {
        say("%s %s not cut: every worker that has the layer holds all of it.%s", streams,
            names->count == 1 ? "is" : "are", held);
    }
    free(held);
    free(streams);
}

static void say_cuts(const explain *all)
{
    say("Of each stream, what a %s worker and a %s worker both have moves between them; each by its own "
        "axis, so sizes need not divide each other.",
        all->source.title, all->target.title);
    bool *said = tool_alloc(all->cut_count, sizeof(*said));
    for (size_t c = 0; c < all->cut_count; c++) {
        tool_list names = {0};
        for (size_t d = c; d < all->cut_count && !said[c]; d++) {
            if (said[d] || !cut_alike(&all->cuts[c], &all->cuts[d]))
                continue;
            said[d] = d > c;
            for (size_t i = 0; i < all->cuts[d].streams.count; i++)
                explain_list_add_once(&names, all->cuts[d].streams.items[i]);
        }
        if (names.count)
            say_cut(all, &all->cuts[c], &names);
        tool_list_free(&names);
    }
    free(said);
}

static void say_stages(const explain *all)
{
    uint32_t source = kvferry_layout_worker(all->source.workers.layouts[0])->pp_size;
    uint32_t target = kvferry_layout_worker(all->target.workers.layouts[0])->pp_size;
    if (source > 1 || target > 1)
        say("Pipeline stages: %u at %s, %u at %s. Layers are matched by name, so a %s worker gets each "
            "of its layers from the stage that has it.",
            source, all->source.title, target, all->target.title, all->target.title);
    if (all->unused.count) {
        char *layers = tool_fold(all->unused.items, all->unused.count);
        say("Not sent, since no %s worker has them: %s.", all->target.title, layers);
        free(layers);
    }
    if (all->unsent.count) {
        char *layers = tool_fold(all->unsent.items, all->unsent.count);
        say("Not filled, in part or whole, being optional or local to the %s worker: %s.",
            all->target.title, layers);
        free(layers);
    }
}

static const explain_row *find_row(const explain_side *side, size_t space, bool paged)
{
    for (size_t r = 0; r < side->row_count; r++) {
        const explain_row *row = &side->rows[r];
        if (side->groups[explain_group_find(side, row->group)].id_space == space &&
            (row->kind == KVFERRY_GROUP_PAGED) == paged)
            return row;
    }
    return NULL;
}

/* Where a block of tokens is made as large as a padded state, so that one pool serves both. */
static char *block_size_reason(const explain_side *side, size_t space)
{
    const explain_row *paged = find_row(side, space, true), *state = find_row(side, space, false);
    if (!paged || !state || paged->row_layers != 1 || state->row_layers != 1 ||
        paged->block_tokens / paged->page_tokens * paged->row_bytes != state->row_bytes)
        return tool_text("%s", "");
    return tool_text(" A block is %s bytes a layer, for %s tokens or for one padded state: the size of a "
                     "state decides how many tokens a block has, and TP decides the size of a state.",
                     tool_number(state->row_bytes), tool_number(paged->block_tokens));
}

/* Groups that lie in the same memory. */
static void say_sharing(const explain_side *side)
{
    for (size_t space = 0; space < side->group_count; space++) {
        tool_list names = {0};
        for (size_t g = space; g < side->group_count; g++)
            if (side->groups[g].id_space == space)
                tool_list_add(&names, side->groups[g].name);
        if (names.count > 1) {
            char *text = tool_fold(names.items, names.count), *reason = block_size_reason(side, space);
            say("Groups %s at %s lie in the same memory: a block id belongs to one of them at a time.%s",
                text, side->title, reason);
            free(reason);
            free(text);
        }
        tool_list_free(&names);
    }
}

/* Of the rows that are not full, the one with the most cells. */
static void say_padding(const explain_side *side)
{
    const explain_row *widest = NULL;
    for (size_t r = 0; r < side->row_count; r++) {
        const explain_row *row = &side->rows[r];
        if (row->payload < row->row_bytes && (!widest || row->payload > widest->payload))
            widest = row;
    }
    if (!widest)
        return;
    char *layers = widest->row_layers == 1
                       ? tool_text("one layer's page")
                       : tool_text("the pages of %s layers side by side", tool_number(widest->row_layers));
    say("Padding at %s: in group %s a row, %s, is %s bytes, of which %s are cells. The other %s belong to "
        "no stream of the group and are carried only where that makes fewer copies.",
        side->title, widest->group, layers, tool_number(widest->row_bytes),
        tool_number(widest->payload), tool_number(widest->row_bytes - widest->payload));
    free(layers);
}

static void say_request(const explain *all)
{
    const explain_count *total = all->total;
    uint64_t bytes = total[EXPLAIN_CONSECUTIVE].bytes;
    say("A request of %s needs %s bytes (%s) of cells, over all %s workers. With consecutive "
        "block ids that is %s of %s bytes, with shuffled ids %s of %s bytes%s.",
        tool_count(all->tokens, "token"), tool_number(all->wanted), tool_size(all->wanted), all->target.title,
        tool_count(total[EXPLAIN_CONSECUTIVE].copies, "copy"), tool_number(bytes),
        tool_number(total[EXPLAIN_SHUFFLED].copies), tool_number(total[EXPLAIN_SHUFFLED].bytes),
        bytes > all->wanted || total[EXPLAIN_SHUFFLED].bytes > all->wanted
            ? "; what is beyond the cells is padding and the unused rest of last blocks, carried along"
            : "");
}

void explain_print_words(const explain *all)
{
    const explain_side *sides[] = {&all->source, &all->target};
    for (int s = 0; s < 2; s++) {
        printf("%s: ", sides[s]->title);
        tool_put(sides[s]->summary, stdout);
        putchar('\n');
    }
    putchar('\n');
    printf("These two can work together. What happens to a request:\n\n");
    say_blocks(all);
    say_cuts(all);
    say_stages(all);
    say_sharing(&all->source);
    say_sharing(&all->target);
    say_padding(&all->source);
    say_padding(&all->target);
    say_request(all);
}
