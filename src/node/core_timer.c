/* SPDX-License-Identifier: Apache-2.0 */
/* A heap of timers: what is due next is found without looking at all. */
#include "node/core_internal.h"

uint64_t core_after(const node_core *core, uint64_t after)
{
    uint64_t due;
    return base_add(core->now, after, &due) ? due : UINT64_MAX;
}

static void put(node_core *core, size_t place, core_timer *timer)
{
    core->heap[place - 1] = timer;
    timer->place = place;
}

static void rise(node_core *core, size_t place)
{
    core_timer *timer = core->heap[place - 1];
    while (place > 1 && core->heap[place / 2 - 1]->due > timer->due) {
        put(core, place, core->heap[place / 2 - 1]);
        place /= 2;
    }
    put(core, place, timer);
}

static void sink(node_core *core, size_t place)
{
    core_timer *timer = core->heap[place - 1];
    while (2 * place <= core->heap_count) {
        size_t child = 2 * place;
        if (child < core->heap_count && core->heap[child]->due < core->heap[child - 1]->due)
            child++;
        if (core->heap[child - 1]->due >= timer->due)
            break;
        put(core, place, core->heap[child - 1]);
        place = child;
    }
    put(core, place, timer);
}

bool core_timer_begin(node_core *core, core_timer *timer, void (*fire)(node_core *, void *), void *owner)
{
    if (!base_grow((void **)&core->heap, &core->heap_capacity, core->timer_count + 1,
                   sizeof(core_timer *)))
        return false;
    core->timer_count++;
    *timer = (core_timer){.fire = fire, .owner = owner, .begun = true};
    return true;
}

void core_timer_stop(node_core *core, core_timer *timer)
{
    size_t place = timer->place;
    if (!place)
        return;
    timer->place = 0;
    core_timer *last = core->heap[--core->heap_count];
    if (last == timer)
        return;
    put(core, place, last);
    rise(core, place);
    sink(core, last->place);
}

void core_timer_end(node_core *core, core_timer *timer)
{
    if (!timer->begun)
        return;
    core_timer_stop(core, timer);
    timer->begun = false;
    core->timer_count--;
}

void core_timer_set(node_core *core, core_timer *timer, uint64_t due)
{
    if (due == UINT64_MAX) {
        core_timer_stop(core, timer);
        return;
    }
    timer->due = due;
    if (!timer->place)
        put(core, ++core->heap_count, timer);
    rise(core, timer->place);
    sink(core, timer->place);
}

uint64_t core_next_time(const node_core *core)
{
    if (core->jobs)
        return core->now;
    return core->heap_count ? core->heap[0]->due : UINT64_MAX;
}

/* --- lingering ----------------------------------------------------------------------------------- */

#define LINGER_PIECES 16

void core_linger_begin(const node_core *core, core_linger *linger)
{
    *linger = (core_linger){.from = core->now};
}

bool core_linger_on(node_core *core, core_linger *linger, core_timer *timer)
{
    uint64_t all = core->options.linger_ns, piece = all / LINGER_PIECES + 1;
    linger->waited += base_min(core->now - linger->from, piece);
    if (linger->waited >= all)
        return false;
    linger->from = core->now;
    core_timer_set(core, timer, core_after(core, base_min(piece, all - linger->waited)));
    return true;
}
