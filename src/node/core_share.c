/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is kept of others is bounded, and where it is too much, who has most of it loses of its own: who floods a node
 * shuts nobody out, and who is alone may have all of it. Of what is asked for too early "who" is a target; of places of
 * targets, rosters, documents and tombstones it is a key, or, without keys, the host that it speaks from.
 */
#include "node/core_internal.h"

#include <ctype.h>
#include <stdio.h>

/* What is kept: tables of asks and documents, in messages of the greatest size; members of rosters. */
enum { PARKED_MESSAGES = 16, KEPT_MESSAGES = 64, KEPT_MEMBERS = 16 * WIRE_MAX_WORKERS };

/* --- offers that were not offered ------------------------------------------------------------------------ */

void core_share_enter(node_core *core, core_target *target, core_supply *offer)
{
    offer->share = target ? &target->share : &core->strangers;
    DL_APPEND2(offer->share->early, offer, share_prev, share_next);
    offer->share->early_count++;
}

void core_share_leave(core_supply *offer)
{
    if (!offer->share)
        return;
    DL_DELETE2(offer->share->early, offer, share_prev, share_next);
    offer->share->early_count--;
    offer->share = NULL;
}

core_supply *core_share_oldest(const node_core *core)
{
    const core_share *most = &core->strangers;
    for (const core_target *target = core->targets; target; target = target->hh.next)
        if (target->share.early_count > most->early_count)
            most = &target->share;
    return most->early;
}

/* --- tables of asks ---------------------------------------------------------------------------------------- */

void core_share_park(core_target *target, core_member *member)
{
    member->share = &target->share;
    DL_APPEND2(target->share.parked, member, share_prev, share_next);
    target->share.parked_bytes += member->table_bytes;
}

void core_share_unpark(core_member *member)
{
    if (!member->share)
        return;
    DL_DELETE2(member->share->parked, member, share_prev, share_next);
    member->share->parked_bytes -= member->table_bytes;
    member->share = NULL;
}

/* The one that asked first of those that wait; NULL: all are being written. */
static core_member *first_waiting(const core_share *share)
{
    core_member *member = share->parked;
    while (member && member->state != CORE_MEMBER_WAITS)
        member = member->share_next;
    return member;
}

bool core_share_room(node_core *core, core_target *target, uint64_t bytes)
{
    while (core->early_bytes + bytes > PARKED_MESSAGES * core->options.max_message_bytes) {
        uint64_t most = target->share.parked_bytes + bytes;
        core_member *loses = NULL;
        for (core_target *other = core->targets; other; other = other->hh.next) {
            core_member *first = other->share.parked_bytes > most ? first_waiting(&other->share) : NULL;
            if (!first)
                continue;
            most = other->share.parked_bytes;
            loses = first;
        }
        if (!loses)
            return false;
        core_member_forget_ask(core, loses);
    }
    return true;
}

void core_share_end(node_core *core, core_share *share)
{
    while (share->parked)
        core_share_unpark(share->parked);
    while (share->early) {
        core_supply *offer = share->early;
        core_share_leave(offer);
        core_share_enter(core, NULL, offer);
    }
}

/* --- holders ------------------------------------------------------------------------------------------------ */

const char *core_share_who(const node_core *core, const char *key) { return core->keyed ? key : core->place; }

const char *core_share_who_at(const node_core *core, const char *address)
{
    return core->keyed ? core_address_key(address) : address;
}

/* In small letters; of an address, its host. */
static void set_name(const char *who, char name[CORE_HOLDER])
{
    const char *host = strstr(who, "://"), *end = NULL;
    if (host) {
        who = host + 3 + (host[3] == '[');
        end = host[3] == '[' ? strchr(who, ']') : strrchr(who, ':');
    }
    size_t length = end ? (size_t)(end - who) : strlen(who);
    length = base_min(length, CORE_HOLDER - 1);
    for (size_t i = 0; i < length; i++)
        name[i] = (char)tolower((unsigned char)who[i]);
    name[length] = '\0';
}

static core_holder *find_holder(node_core *core, const char *who)
{
    char name[CORE_HOLDER];
    set_name(who, name);
    core_holder *holder;
    HASH_FIND_STR(core->holders, name, holder);
    return holder;
}

core_holder *core_holder_get(node_core *core, const char *who)
{
    core_holder *holder = find_holder(core, who);
    if (!holder) {
        holder = base_alloc(1, sizeof(*holder));
        if (!holder)
            return NULL;
        set_name(who, holder->name);
        HASH_ADD_STR(core->holders, name, holder);
        if (!holder->hh.tbl) {
            free(holder);
            return NULL;
        }
    }
    holder->uses++;
    return holder;
}

void core_holder_release(node_core *core, core_holder *holder)
{
    if (!holder || --holder->uses)
        return;
    HASH_DEL(core->holders, holder);
    free(holder);
}

/* --- places, rosters, documents ----------------------------------------------------------------------------- */

uint64_t core_share_limit(const node_core *core, core_kept what)
{
    switch (what) {
    case CORE_KEPT_PEERS:
        return core->options.max_peers;
    case CORE_KEPT_MEMBERS:
        return KEPT_MEMBERS;
    case CORE_KEPT_BYTES:
        break;
    }
    return KEPT_MESSAGES * core->options.max_message_bytes;
}

static uint64_t kept(const node_core *core, core_kept what)
{
    switch (what) {
    case CORE_KEPT_PEERS:
        return HASH_COUNT(core->targets) + HASH_COUNT(core->sources);
    case CORE_KEPT_MEMBERS:
        return core->roster_members;
    case CORE_KEPT_BYTES:
        break;
    }
    return core->document_bytes;
}

static bool is_over(const node_core *core, core_kept what, uint64_t more)
{
    return kept(core, what) + more > core_share_limit(core, what);
}

static uint64_t size_of(const core_roster *roster, core_kept what)
{
    return what == CORE_KEPT_MEMBERS ? roster->wire.count : roster->bytes;
}

/* Whether nothing has it but targets, and asks of them for what was not offered yet: the loss of these frees it. */
static bool can_go(const core_roster *roster) { return roster->found == roster->uses; }

/* Looks which uses of each roster would go with its targets, and how much these are doing. */
static void look_through_rosters(node_core *core)
{
    core_roster *roster, *next_roster;
    core_pairing *pairing, *next_pairing;
    HASH_ITER(hh, core->rosters, roster, next_roster) {
        roster->found = roster->busy = 0;
        roster->heard = 0;
    }
    HASH_ITER(hh, core->pairings, pairing, next_pairing)
        pairing->found = 0;
    for (const core_target *target = core->targets; target; target = target->hh.next) {
        if (target->pairing)
            target->pairing->found++;
        if (!target->roster)
            continue;
        target->roster->found++;
        target->roster->busy += target->busy;
        target->roster->heard = base_max(target->roster->heard, target->heard);
    }
    for (const core_supply *offer = core->offers; offer; offer = offer->hh.next)
        if (offer->pairing && core_supply_is_loose(offer))
            offer->pairing->found++;
    HASH_ITER(hh, core->pairings, pairing, next_pairing)
        if (pairing->side == KVFERRY_SIDE_PREFILL && pairing->found == pairing->uses)
            pairing->target->found++;
}

/* Looks what each holds, and how much of it can go. */
static void look(node_core *core, core_kept what)
{
    core_holder *holder, *next;
    core_roster *roster, *next_roster;
    HASH_ITER(hh, core->holders, holder, next)
        holder->holds = holder->can_go = 0;
    if (what == CORE_KEPT_PEERS) {
        for (const core_target *target = core->targets; target; target = target->hh.next) {
            target->holder->holds++;
            target->holder->can_go++;
        }
        return;
    }
    look_through_rosters(core);
    HASH_ITER(hh, core->rosters, roster, next_roster) {
        uint64_t size = size_of(roster, what);
        roster->holder->holds += size;
        roster->holder->can_go += can_go(roster) ? size : 0;
    }
}

bool core_share_has_room(node_core *core, core_kept what, const char *who, uint64_t more)
{
    if (!is_over(core, what, more))
        return true;
    look(core, what);
    uint64_t given = 0, lacks = kept(core, what) + more - core_share_limit(core, what);
    const core_holder *own = find_holder(core, who);
    uint64_t least = (own ? own->holds : 0) + more;
    core_holder *holder, *next;
    HASH_ITER(hh, core->holders, holder, next)
        given += holder->holds > least ? base_min(holder->can_go, holder->holds - least) : 0;
    return given >= lacks;
}

/* The one that holds most of those that hold more than `who` and can lose something. NULL: nobody. */
static core_holder *greatest(node_core *core, const char *who)
{
    const core_holder *own = find_holder(core, who);
    uint64_t least = own ? own->holds : 0;
    core_holder *holder, *next, *most = NULL;
    HASH_ITER(hh, core->holders, holder, next) {
        if (holder->holds <= least || !holder->can_go)
            continue;
        least = holder->holds;
        most = holder;
    }
    return most;
}

/* Of one holder's targets: whether this goes rather than the other. */
static bool goes_first(const core_target *target, const core_target *other)
{
    if (!target->busy != !other->busy)
        return !target->busy;
    if (target->welcomed != other->welcomed)
        return other->welcomed;
    return target->heard < other->heard;
}

static core_target *first_target(node_core *core, const core_holder *holder)
{
    core_target *first = NULL;
    for (core_target *target = core->targets; target; target = target->hh.next)
        if (target->holder == holder && (!first || goes_first(target, first)))
            first = target;
    return first;
}

/* Of one holder's rosters: whether this goes rather than the other. */
static bool roster_goes_first(const core_roster *roster, const core_roster *other, core_kept what)
{
    if (!roster->busy != !other->busy)
        return !roster->busy;
    if (size_of(roster, what) != size_of(other, what))
        return size_of(roster, what) > size_of(other, what);
    return roster->heard < other->heard;
}

static core_roster *first_roster(node_core *core, const core_holder *holder, core_kept what)
{
    core_roster *roster, *next, *first = NULL;
    HASH_ITER(hh, core->rosters, roster, next) {
        if (roster->holder != holder || !can_go(roster) || !size_of(roster, what))
            continue;
        if (!first || roster_goes_first(roster, first, what))
            first = roster;
    }
    return first;
}

static const char displaced[] = "others come, and no key has more than its own";

/* All that has the roster loses it. */
static void displace(node_core *core, core_roster *roster, core_kept what)
{
    core_target *target, *next;
    roster->uses++;
    HASH_ITER(hh, core->targets, target, next) {
        if (target->roster == roster || (target->pairing && target->pairing->target == roster))
            core_target_displaced(core, target, what, displaced);
    }
    core_supplies_forget(core, roster, core_share_code(what), displaced);
    core_roster_release(core, roster);
}

bool core_share_settle(node_core *core, core_kept what, const char *who)
{
    while (is_over(core, what, 0)) {
        look(core, what);
        const core_holder *most = greatest(core, who);
        if (!most)
            return false;
        if (what == CORE_KEPT_PEERS)
            core_target_displaced(core, first_target(core, most), what, displaced);
        else
            displace(core, first_roster(core, most, what), what);
    }
    return true;
}

static const struct {
    const char *code, *text;
} of_kept[] = {
    [CORE_KEPT_PEERS] = {"too_many_peers", "workers of other engines"},
    [CORE_KEPT_MEMBERS] = {"too_many_workers", "the workers of all engines that are known"},
    [CORE_KEPT_BYTES] = {"too_many_documents", "bytes of layout documents of other engines"},
};

const char *core_share_code(core_kept what) { return of_kept[what].code; }

void core_share_report(const node_core *core, core_kept what, kvferry_report *report)
{
    base_report_add(report, of_kept[what].code, NULL,
                    base_format("at most %llu", (unsigned long long)core_share_limit(core, what)),
                    "more, and no key has more of them than this one", "%s", of_kept[what].text);
}

/* --- tombstones --------------------------------------------------------------------------------------------- */

core_tombstone *core_share_stone(const node_core *core)
{
    core_tombstone *stone = core->tombstone_list, *each;
    DL_FOREACH(core->tombstone_list, each) {
        if (each->holder->stones > stone->holder->stones)
            stone = each;
    }
    return stone;
}
