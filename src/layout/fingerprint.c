/* SPDX-License-Identifier: Apache-2.0 */
/* What must agree, as digests. The encoding is normative: docs/layout-format.md, "Fingerprint". */
#include "layout/fingerprint.h"

#include <sodium.h>
#include <string.h>

enum { DIGEST_BYTES = 16 };
_Static_assert(2 * DIGEST_BYTES + 1 == KVFERRY_DIGEST_TEXT, "two digits a byte and a zero byte");

static void hash_number(crypto_generichash_state *state, uint64_t number)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    crypto_generichash_update(state, bytes, sizeof(bytes));
}

static void hash_text(crypto_generichash_state *state, const char *text)
{
    size_t length = strlen(text);
    hash_number(state, length);
    crypto_generichash_update(state, (const unsigned char *)text, length);
}

static void finish(crypto_generichash_state *state, kvferry_digest *digest)
{
    unsigned char bytes[DIGEST_BYTES];
    crypto_generichash_final(state, bytes, sizeof(bytes));
    sodium_bin2hex(digest->text, sizeof(digest->text), bytes, sizeof(bytes));
}

static void digest_document(const kvferry_layout *layout, kvferry_digest *digest)
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, DIGEST_BYTES);
    hash_text(&state, "kvferry-layout/1 document");
    hash_text(&state, layout->identity.model);
    hash_text(&state, layout->identity.revision);
    *digest = (kvferry_digest){.layer = "", .stream = "", .policy = KVFERRY_POLICY_REQUIRED};
    finish(&state, digest);
}

/* The axis that comes after `last` (NULL: the first) by name. */
static const kvferry_axis *next_axis(const kvferry_stream *stream, const kvferry_axis *last)
{
    const kvferry_axis *next = NULL;
    for (uint32_t i = 0; i < stream->axis_count; i++) {
        const kvferry_axis *axis = &stream->axes[i];
        if ((!last || strcmp(axis->name, last->name) > 0) &&
            (!next || strcmp(axis->name, next->name) < 0))
            next = axis;
    }
    return next;
}

static void digest_stream(const kvferry_layout *layout, const kvferry_stream *stream,
                          kvferry_digest *digest)
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, DIGEST_BYTES);
    hash_text(&state, "kvferry-layout/1 stream");
    hash_text(&state, stream->layer);
    hash_text(&state, stream->name);
    hash_text(&state, layout_kind_names[layout->groups[stream->group].kind]);
    hash_text(&state, stream->dtype);
    hash_text(&state, stream->format);
    hash_number(&state, stream->cell_bytes);
    hash_number(&state, stream->tokens_per_state);
    hash_number(&state, stream->axis_count);
    for (const kvferry_axis *axis = next_axis(stream, NULL); axis; axis = next_axis(stream, axis)) {
        hash_text(&state, axis->name);
        hash_number(&state, layout_is_token_axis(axis) ? 0 : axis->global);
    }
    *digest = (kvferry_digest){
        .layer = stream->layer, .stream = stream->name, .policy = stream->policy};
    finish(&state, digest);
}

kvferry_status layout_make_fingerprint(kvferry_layout *layout)
{
    if (sodium_init() < 0)
        return KVFERRY_INTERNAL;
    layout->digests = base_arena_alloc(&layout->arena, (size_t)layout->stream_count + 1,
                                       sizeof(*layout->digests));
    if (!layout->digests)
        return KVFERRY_NO_MEMORY;
    digest_document(layout, &layout->digests[0]);
    for (uint32_t i = 0; i < layout->stream_count; i++)
        digest_stream(layout, &layout->streams[i], &layout->digests[i + 1]);
    return KVFERRY_OK;
}
