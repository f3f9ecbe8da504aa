/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator.h"

uint64_t sim_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

uint64_t sim_roll(sim_dice *dice)
{
    dice->state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(dice->state);
}

uint64_t sim_below(sim_dice *dice, uint64_t count)
{
    return count == 0 ? 0 : sim_roll(dice) % count;
}

uint64_t sim_between(sim_dice *dice, uint64_t low, uint64_t high)
{
    return low + sim_below(dice, high - low + 1);
}

bool sim_one_in(sim_dice *dice, uint64_t count)
{
    return sim_below(dice, count) == 0;
}

bool sim_percent(sim_dice *dice, uint32_t percent)
{
    return sim_below(dice, 100) < percent;
}
