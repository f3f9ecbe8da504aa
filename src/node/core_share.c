/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefill side: what is kept for those who ask too early is bounded, and where it is too much, who has most of it loses
 * of its own: a peer that floods this node takes nothing from others.
 */
#include "node/core_internal.h"

/* How much of tables of asks is kept, in messages of the greatest size. */
enum { PARKED_MESSAGES = 16 };

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
