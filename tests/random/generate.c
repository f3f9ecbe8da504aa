/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "random.h"

uint64_t dice_next(random_dice *dice)
{
    uint64_t x = dice->state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint32_t dice_below(random_dice *dice, uint32_t count)
{
    return (uint32_t)((dice_next(dice) >> 32) * count >> 32);
}

uint32_t dice_range(random_dice *dice, uint32_t low, uint32_t high)
{
    return low + dice_below(dice, high - low + 1);
}

bool dice_one_in(random_dice *dice, uint32_t count)
{
    return dice_below(dice, count) == 0;
}

/* --- streams: the kinds of caches that models have ------------------------------------------ */

typedef struct stream_maker {
    random_spec *spec;
    random_dice *dice;
    uint8_t layer, bundle;
} stream_maker;

static stream_spec *add(stream_maker *maker, const char *name, kvferry_group_kind kind)
{
    random_spec *spec = maker->spec;
    if (spec->stream_count == MAX_STREAMS)
        return NULL;
    stream_spec *stream = &spec->streams[spec->stream_count++];
    *stream = (stream_spec){.layer = maker->layer,
                            .name = name,
                            .kind = kind,
                            .tokens_per_state = 1,
                            .cell_bytes = (uint8_t)dice_range(maker->dice, 1, 12),
                            .dtype = "bfloat16",
                            .format = "",
                            .bundle = maker->bundle};
    if (dice_one_in(maker->dice, 3))
        stream->cell_bytes = (uint8_t)(8 * dice_range(maker->dice, 1, 3));
    return stream;
}

static void axis(stream_spec *stream, const char *name, uint32_t global)
{
    if (stream)
        stream->axes[stream->axis_count++] = (axis_spec){name, (uint16_t)global};
}

static void add_attention(stream_maker *maker)
{
    uint32_t heads = dice_range(maker->dice, 1, 6);
    uint32_t dims = dice_one_in(maker->dice, 5) ? dice_range(maker->dice, 2, 4) : 0;
    uint8_t window = dice_one_in(maker->dice, 3);
    stream_spec *first = NULL;
    for (int i = 0; i < 2; i++) {
        stream_spec *stream = add(maker, i ? "v" : "k", KVFERRY_GROUP_PAGED);
        if (!stream)
            return;
        stream->window_class = window;
        axis(stream, "kv_head", heads);
        if (dims)
            axis(stream, "dim", dims);
        if (first && !dice_one_in(maker->dice, 4))
            stream->cell_bytes = first->cell_bytes;
        first = stream;
    }
}

static void add_packed_attention(stream_maker *maker)
{
    stream_spec *stream = add(maker, "kv", KVFERRY_GROUP_PAGED);
    axis(stream, "kv_head", dice_range(maker->dice, 1, 5));
    if (stream)
        stream->format = "nvfp4";
}

static uint8_t power(random_dice *dice, uint32_t most)
{
    return (uint8_t)(1u << dice_below(dice, most + 1));
}

/* One axis, the token's; sometimes the scales apart. */
static void add_latent(stream_maker *maker)
{
    bool index = dice_one_in(maker->dice, 2), scales = dice_one_in(maker->dice, 2);
    uint8_t per = dice_one_in(maker->dice, 2) ? power(maker->dice, 2) : 1;
    uint8_t window = dice_one_in(maker->dice, 3);
    for (int i = 0; i < 1 + scales; i++) {
        const char *names[2][2] = {{"latent", "latent.scale"}, {"index", "index.scale"}};
        stream_spec *stream = add(maker, names[index][i], KVFERRY_GROUP_PAGED);
        if (!stream)
            return;
        stream->tokens_per_state = per;
        stream->window_class = window;
        stream->format = scales ? "fp8_ds_mla" : "";
        stream->dtype = scales ? "uint8" : "bfloat16";
    }
}

static void add_compressor(stream_maker *maker)
{
    bool ring = dice_one_in(maker->dice, 2);
    stream_spec *stream = add(maker, "compressor", ring ? KVFERRY_GROUP_RING : KVFERRY_GROUP_PAGED);
    if (!stream)
        return;
    stream->dtype = "float32";
    if (ring)
        axis(stream, "slot", dice_range(maker->dice, 1, 6));
    else
        stream->window_class = 1;
}

static void add_recurrent(stream_maker *maker)
{
    static const char *const names[2][3] = {{"conv.q", "conv.k", "conv.v"},
                                            {"conv.x", "conv.b", "conv.c"}};
    const char *const *conv = names[dice_below(maker->dice, 2)];
    uint32_t channels = dice_range(maker->dice, 1, 8), rows = dice_range(maker->dice, 1, 3);
    for (int i = 0; i < 3; i++) {
        stream_spec *stream = add(maker, conv[i], KVFERRY_GROUP_STATE);
        if (!stream)
            return;
        stream->cell_bytes = 2;
        axis(stream, "channel", i == 2 ? channels + dice_below(maker->dice, 4) : channels);
        axis(stream, "row", rows);
    }
    maker->bundle++;
    stream_spec *stream = add(maker, "ssm", KVFERRY_GROUP_STATE);
    if (stream) {
        stream->dtype = "float32";
        if (!dice_one_in(maker->dice, 8))
            axis(stream, "head", dice_range(maker->dice, 1, 6));
    }
}

static void add_tail(stream_maker *maker)
{
    stream_spec *stream = add(maker, "tail", KVFERRY_GROUP_RING);
    axis(stream, "part", 2);
    axis(stream, "slot", dice_range(maker->dice, 1, 4));
}

static void add_tile(stream_maker *maker)
{
    stream_spec *stream = add(maker, "tile", KVFERRY_GROUP_PAGED);
    if (!stream)
        return;
    stream->tokens_per_state = power(maker->dice, 2);
    stream->format = "tile";
}

static void generate_streams(random_spec *spec, random_dice *dice)
{
    static void (*const families[])(stream_maker *) = {
        add_attention,  add_attention, add_packed_attention, add_latent, add_latent,
        add_compressor, add_recurrent, add_recurrent,        add_tail,   add_tile};
    uint32_t layers = dice_range(dice, 1, 4);
    stream_maker maker = {.spec = spec, .dice = dice};
    uint32_t family = 0;
    for (uint32_t i = 0; i < layers; i++) {
        /* Models repeat their layers. */
        if (i == 0 || dice_one_in(dice, 2))
            family = dice_below(dice, (uint32_t)(sizeof families / sizeof *families));
        maker.layer = (uint8_t)i;
        families[family](&maker);
        maker.bundle++;
    }
}

/* --- the whole ------------------------------------------------------------------------------ */

bool spec_is_moved(const random_spec *spec, int stream)
{
    const side_stream *source = &spec->sides[SOURCE].streams[stream];
    const side_stream *target = &spec->sides[TARGET].streams[stream];
    return !spec->streams[stream].dropped && !source->absent && !target->absent &&
           source->policy != KVFERRY_POLICY_LOCAL && target->policy != KVFERRY_POLICY_LOCAL &&
           source->lie == LIE_NONE;
}

/* Policies, and streams that only one side has. */
static void generate_policies(random_spec *spec, random_dice *dice)
{
    for (int i = 0; i < spec->stream_count; i++) {
        side_stream *source = &spec->sides[SOURCE].streams[i];
        side_stream *target = &spec->sides[TARGET].streams[i];
        switch (dice_below(dice, 24)) {
        case 0: target->policy = KVFERRY_POLICY_LOCAL; break;
        case 1: target->policy = source->policy = KVFERRY_POLICY_LOCAL; break;
        case 2: target->policy = source->policy = KVFERRY_POLICY_OPTIONAL; break;
        case 3:
            target->policy = KVFERRY_POLICY_OPTIONAL;
            source->absent = true;
            break;
        case 4:
            target->policy = KVFERRY_POLICY_OPTIONAL;
            source->policy = KVFERRY_POLICY_LOCAL;
            break;
        case 5: target->absent = true; break;
        case 6: source->policy = KVFERRY_POLICY_OPTIONAL; break;
        case 7:
            target->policy = source->policy = KVFERRY_POLICY_OPTIONAL;
            source->lie = LIE_DTYPE;
            break;
        default: break;
        }
        /* Bytes that one side knows by another name. */
        if (dice_one_in(dice, 10)) {
            side_stream *other = dice_one_in(dice, 2) ? source : target;
            side_stream *own = other == source ? target : source;
            other->naming = dice_one_in(dice, 2) ? NAME_OTHER_WITH_ALIAS : NAME_OTHER;
            own->names_other = other->naming == NAME_OTHER || dice_one_in(dice, 2);
        }
    }
}

void spec_generate(random_spec *spec, uint64_t seed)
{
    memset(spec, 0, sizeof *spec);
    random_dice dice = {seed * 0x2545f4914f6cdd1du + 1};
    spec->seed = seed;
    spec->window[1] = (uint16_t)dice_range(&dice, 1, 20);
    spec->source_window = dice_one_in(&dice, 5) ? (uint16_t)dice_below(&dice, 20) : spec->window[1];
    generate_streams(spec, &dice);
    spec_generate_side(spec, &dice, SOURCE);
    spec_generate_side(spec, &dice, TARGET);
    generate_policies(spec, &dice);
    spec->order = dice_next(&dice);
    spec->round_trip = (uint8_t)dice_below(&dice, 12);
    spec->request_count = (uint8_t)dice_range(&dice, 1, dice_one_in(&dice, 3) ? MAX_REQUESTS : 1);
    uint8_t used[2][MAX_GROUPS][MAX_IDS] = {{{0}}};
    for (int i = 0; i < spec->request_count; i++)
        spec_generate_request(spec, &dice, i, used);
    bool broken = false;
    if (dice_one_in(&dice, 5))
        for (int tries = 0; tries < 6 && !broken; tries++)
            broken = spec_break(spec, &dice, (fault_kind)dice_range(&dice, 1, FAULT_KINDS - 1));
    /* Few specs fit this fault, so those that do have it more often. */
    if (spec->requests[0].whole_blocks && dice_one_in(&dice, 2))
        for (int tries = 0; tries < 6 && !broken; tries++)
            broken = spec_break(spec, &dice, FAULT_SOURCE_WHOLE);
}
