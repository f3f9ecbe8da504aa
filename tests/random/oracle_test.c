/* SPDX-License-Identifier: Apache-2.0 */
/* The proof can fail: right copies that are made wrong are found out, and so is every single byte
 * that may not change. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "classify.h"
#include "oracle_value.h"

/* --- a set-up that is moved by the reference planner ----------------------------------------- */

typedef struct test_scene {
    random_spec spec;
    built_side sides[2];
    const kvferry_layout *source_layouts[MAX_WORKERS];
    random_memory sources[MAX_WORKERS];
    oracle_worker source_workers[MAX_WORKERS];
    const kvferry_layout *layout;
    random_memory target;
    built_request request, whole;
    oracle_transfer transfer;
    naive_copy *copies;
    size_t count;
} test_scene;

static void scene_end(test_scene *scene)
{
    for (size_t s = 0; s < scene->sides[SOURCE].count; s++)
        memory_free(&scene->sources[s]);
    memory_free(&scene->target);
    built_side_free(&scene->sides[SOURCE]);
    built_side_free(&scene->sides[TARGET]);
    free(scene->copies);
    memset(scene, 0, sizeof *scene);
}

/* The first target worker and request of a seed; false: this seed has nothing to move, or too much.
 */
static bool scene_begin(test_scene *scene, uint64_t seed, uint64_t most_bytes)
{
    memset(scene, 0, sizeof *scene);
    random_spec *spec = &scene->spec;
    spec_generate(spec, seed);
    if (spec->fault.kind != FAULT_NONE || spec->requests[0].dropped)
        return false;
    assert_true(build_side(spec, SOURCE, &scene->sides[SOURCE], NULL));
    assert_true(build_side(spec, TARGET, &scene->sides[TARGET], NULL));
    scene->layout = scene->sides[TARGET].layouts[seed % scene->sides[TARGET].count];
    build_request(spec, 0, scene->layout, &scene->request);
    build_request(spec, 0, NULL, &scene->whole);
    scene->transfer = (oracle_transfer){&scene->whole.request, seed};
    for (size_t s = 0; s < scene->sides[SOURCE].count; s++) {
        scene->source_layouts[s] = scene->sides[SOURCE].layouts[s];
        assert_true(memory_make(&scene->sources[s], scene->source_layouts[s], 1000 * seed + s));
        assert_true(oracle_fill(&scene->sources[s].worker, &scene->transfer));
        scene->source_workers[s] = scene->sources[s].worker;
        scene->source_workers[s].segments = NULL;
    }
    assert_true(memory_make(&scene->target, scene->layout, ~seed));
    assert_true(naive_plan(scene->source_layouts, scene->sides[SOURCE].count, scene->layout,
                           &scene->request.request, &scene->copies, &scene->count));
    if (scene->count > 0 && scene->target.bytes <= most_bytes)
        return true;
    scene_end(scene);
    return false;
}

static void apply(test_scene *scene, const naive_copy *copy)
{
    const kvferry_copy *c = &copy->copy;
    memcpy(scene->target.segments[c->target_segment] + c->target_offset,
           scene->sources[copy->source].segments[c->source_segment] + c->source_offset,
           (size_t)c->bytes);
}

static void apply_all(test_scene *scene)
{
    for (size_t i = 0; i < scene->count; i++)
        apply(scene, &scene->copies[i]);
}

/* The memory is noise again afterwards. */
static oracle_result *check(test_scene *scene)
{
    static oracle_result result;
    assert_true(oracle_check(&scene->target.worker, scene->source_workers,
                             scene->sides[SOURCE].count, &scene->transfer, 1, &result));
    return &result;
}

/* --- values --------------------------------------------------------------------------------- */

static void a_word_leads_back_to_its_place(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 1000; n++) {
        uint64_t key = oracle_stream_key(n, "layers.0", "k");
        assert_int_equal(oracle_unmix(oracle_mix(n * 77777)), n * 77777);
        assert_int_equal(oracle_word_place(key, oracle_word(key, n << 20)), n << 20);
    }
    assert_int_not_equal(oracle_stream_key(1, "a", "bc"), oracle_stream_key(1, "ab", "c"));
    assert_int_not_equal(oracle_stream_key(1, "a", "b"), oracle_stream_key(2, "a", "b"));
}

static void noise_is_the_same_from_any_place(void **state)
{
    (void)state;
    unsigned char whole[64], parts[64];
    oracle_noise_write(whole, 0, sizeof whole, 5);
    for (uint64_t at = 0; at < sizeof parts; at += 3)
        oracle_noise_write(parts, at, at + 3 > sizeof parts ? sizeof parts - at : 3, 5);
    assert_memory_equal(whole, parts, sizeof whole);
}

/* --- right copies made wrong ----------------------------------------------------------------- */

static void right_copies_pass(void **state)
{
    (void)state;
    size_t passed = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        test_scene scene;
        if (!scene_begin(&scene, seed, UINT64_MAX))
            continue;
        apply_all(&scene);
        const oracle_result *result = check(&scene);
        assert_int_equal(result->finding_count, 0);
        assert_int_equal(result->checked_bytes, scene.target.bytes);
        uint64_t bytes = 0;
        for (size_t i = 0; i < scene.count; i++)
            bytes += scene.copies[i].copy.bytes;
        assert_int_equal(result->wanted_bytes, bytes);
        passed++;
        scene_end(&scene);
    }
    assert_true(passed > 100);
}

enum { DROP, FROM_NEXT, TO_NEXT, SHORT, SWAP, MUTATIONS };

/* False: the mutation does not fit. */
static bool mutate(test_scene *scene, int mutation, random_dice *dice)
{
    size_t n = dice_below(dice, (uint32_t)scene->count);
    naive_copy *copy = &scene->copies[n];
    uint64_t source_bytes =
        kvferry_layout_segment(scene->source_layouts[copy->source], copy->copy.source_segment)
            ->bytes;
    uint64_t target_bytes = kvferry_layout_segment(scene->layout, copy->copy.target_segment)->bytes;
    switch (mutation) {
    case DROP: *copy = scene->copies[--scene->count]; return true;
    case FROM_NEXT: return ++copy->copy.source_offset + copy->copy.bytes <= source_bytes;
    case TO_NEXT: return ++copy->copy.target_offset + copy->copy.bytes <= target_bytes;
    case SHORT: copy->copy.bytes--; return true;
    default: { /* SWAP */
        naive_copy *other = &scene->copies[dice_below(dice, (uint32_t)scene->count)];
        uint64_t kept = copy->copy.target_offset;
        if (other->copy.target_offset == kept || other->copy.bytes != copy->copy.bytes ||
            other->copy.target_segment != copy->copy.target_segment)
            return false;
        copy->copy.target_offset = other->copy.target_offset;
        other->copy.target_offset = kept;
        return true;
    }
    }
}

/* A wrong byte can be the right one by chance, one time in 256. */
static void wrong_copies_are_found(void **state)
{
    (void)state;
    size_t tried[MUTATIONS] = {0}, found[MUTATIONS] = {0};
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        test_scene scene;
        random_dice dice = {seed};
        int mutation = (int)(seed % MUTATIONS);
        if (!scene_begin(&scene, seed, UINT64_MAX))
            continue;
        if (mutate(&scene, mutation, &dice)) {
            apply_all(&scene);
            const oracle_result *result = check(&scene);
            tried[mutation]++;
            found[mutation] +=
                result->finding_count > 0 && result->wrong_bytes + result->stray_bytes > 0;
        }
        scene_end(&scene);
    }
    for (int i = 0; i < MUTATIONS; i++) {
        assert_true(tried[i] > 100);
        assert_true(found[i] * 50 >= tried[i] * 49);
    }
}

/* --- every byte ----------------------------------------------------------------------------- */

/* Turns over each byte in turn: the oracle must see it exactly if the contract does not allow it.
 */
static void every_byte_is_judged_rightly(void **state)
{
    (void)state;
    size_t scenes = 0, bytes[3] = {0};
    for (uint64_t seed = 1; seed <= 700; seed++) {
        test_scene scene;
        unsigned char *classes[MAX_STREAMS + 1];
        if (!scene_begin(&scene, seed, 900))
            continue;
        byte_judge *classifier =
            classifier_make(scene.source_layouts, scene.sides[SOURCE].count, scene.layout);
        unsigned char *all = calloc(1, (size_t)scene.target.bytes);
        assert_non_null(all);
        assert_non_null(classifier);
        uint32_t segments = kvferry_layout_segment_count(scene.layout);
        for (uint32_t s = 0, at = 0; s < segments; s++) {
            classes[s] = all + at;
            at += (uint32_t)kvferry_layout_segment(scene.layout, s)->bytes;
        }
        classifier_request(classifier, &scene.request.request, classes);
        for (uint32_t s = 0; s < segments; s++)
            for (uint64_t x = 0; x < kvferry_layout_segment(scene.layout, s)->bytes; x++) {
                apply_all(&scene);
                scene.target.segments[s][x] ^= 0x41;
                const oracle_result *result = check(&scene);
                byte_class class = (byte_class)classes[s][x];
                bytes[class]++;
                if (result->wrong_bytes != (class == BYTE_WANTED) ||
                    result->stray_bytes != (class == BYTE_KEEPS))
                    fail_msg("seed %llu, segment %u + %llu: class %d, wrong %llu, stray %llu",
                             (unsigned long long)seed, s, (unsigned long long)x, class,
                             (unsigned long long)result->wrong_bytes,
                             (unsigned long long)result->stray_bytes);
            }
        scenes++;
        free(all);
        classifier_free(classifier);
        scene_end(&scene);
    }
    assert_true(scenes > 50);
    assert_true(bytes[BYTE_KEEPS] > 5000 && bytes[BYTE_FREE] > 1000 && bytes[BYTE_WANTED] > 5000);
}

/* The library's word on which groups share bytes, against the bytes themselves. */
static void groups_share_as_their_bytes_do(void **state)
{
    (void)state;
    size_t sharing = 0, apart = 0;
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        test_scene scene;
        if (!scene_begin(&scene, seed, 3000))
            continue;
        byte_judge *judge =
            classifier_make(scene.source_layouts, scene.sides[SOURCE].count, scene.layout);
        assert_non_null(judge);
        uint32_t groups = kvferry_layout_group_count(scene.layout);
        for (uint32_t a = 0; a < groups; a++)
            for (uint32_t b = 0; b < a; b++) {
                bool share = classifier_share(judge, a, b);
                assert_int_equal(kvferry_layout_groups_share(scene.layout, a, b), share);
                assert_int_equal(kvferry_layout_groups_share(scene.layout, b, a), share);
                sharing += share;
                apart += !share;
            }
        classifier_free(judge);
        scene_end(&scene);
    }
    assert_true(sharing > 20 && apart > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_leads_back_to_its_place),
        cmocka_unit_test(noise_is_the_same_from_any_place),
        cmocka_unit_test(right_copies_pass),
        cmocka_unit_test(wrong_copies_are_found),
        cmocka_unit_test(every_byte_is_judged_rightly),
        cmocka_unit_test(groups_share_as_their_bytes_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
