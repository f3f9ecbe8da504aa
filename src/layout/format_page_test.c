/* SPDX-License-Identifier: Apache-2.0 */
/* docs/layout-format.md is true: its example is a good document, with the digests that it states,
 * and the keys that documents have are all on it. */
#include "layout/documents.h"

#include <sodium.h>

#include "base/base.h"
#include "layout/tree.h"

static char *page;

static int read_page(void **state)
{
    (void)state;
    FILE *file = fopen(KVFERRY_SOURCE_DIR "/docs/layout-format.md", "rb");
    assert_non_null(file);
    page = calloc(1, 100000);
    assert_non_null(page);
    assert_true(fread(page, 1, 99999, file) > 1000);
    fclose(file);
    return 0;
}

static int free_page(void **state)
{
    (void)state;
    free(page);
    return 0;
}

/* The text of the first block of this language. */
static char *block(const char *language)
{
    char fence[32];
    snprintf(fence, sizeof(fence), "```%s\n", language);
    const char *begin = strstr(page, fence);
    assert_non_null(begin);
    begin += strlen(fence);
    const char *end = strstr(begin, "```");
    assert_non_null(end);
    return strndup(begin, (size_t)(end - begin));
}

static kvferry_layout *read_example(void)
{
    char *text = block("json");
    kvferry_layout *layout = NULL;
    assert_int_equal(kvferry_layout_read_json(text, strlen(text), &layout, NULL), KVFERRY_OK);
    free(text);
    return layout;
}

static void assert_on_page(const char *text)
{
    if (!strstr(page, text))
        fail_msg("the page does not have: %s", text);
}

static void test_example(void **state)
{
    (void)state;
    kvferry_layout *layout = read_example();
    assert_int_equal(kvferry_layout_stream_count(layout), 5);
    assert_int_equal(kvferry_layout_group_blocks(layout, 0), 200);
    assert_int_equal(kvferry_layout_group_blocks(layout, 1), 200);
    assert_true(kvferry_layout_groups_share(layout, 0, 1));
    assert_false(kvferry_layout_groups_share(layout, 1, 2));
    kvferry_layout_free(layout);
}

static void test_digests(void **state)
{
    (void)state;
    kvferry_layout *layout = read_example();
    const kvferry_digest *own = kvferry_layout_digest(layout, 0);
    assert_string_equal(own->layer, "");
    assert_on_page(base_format("| the document | `%s` |", own->text));
    for (uint32_t i = 0; i < kvferry_layout_stream_count(layout); i++) {
        const kvferry_digest *digest = kvferry_layout_digest(layout, i + 1);
        assert_string_equal(digest->layer, kvferry_layout_stream(layout, i)->layer);
        assert_int_equal(digest->policy, kvferry_layout_stream(layout, i)->policy);
        assert_on_page(
            base_format("| `%s`, `%s` | `%s` |", digest->layer, digest->stream, digest->text));
    }
    assert_null(kvferry_layout_digest(layout, 6));
    kvferry_layout_free(layout);
}

/* The bytes that the page spells out have the digest of ssm. */
static void test_spelled_out_bytes(void **state)
{
    (void)state;
    char *text = block("text");
    unsigned char bytes[1000], hash[16];
    size_t count = 0;
    for (char *word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
        assert_true(count < sizeof(bytes));
        bytes[count++] = (unsigned char)strtoul(word, NULL, 16);
    }
    assert_int_equal(crypto_generichash(hash, sizeof(hash), bytes, count, NULL, 0), 0);
    char digits[33];
    sodium_bin2hex(digits, sizeof(digits), hash, sizeof(hash));
    kvferry_layout *layout = read_example();
    assert_string_equal(kvferry_layout_digest(layout, 2)->stream, "ssm");
    assert_string_equal(kvferry_layout_digest(layout, 2)->text, digits);
    kvferry_layout_free(layout);
    free(text);
}

/* What must agree is in the digests, and nothing else is. */
static void test_what_digests_cover(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
        uint32_t changed; /* the digest that changes; 99: none */
    } changes[] = {
        {"identity.model", "\"x\"", 0},
        {"identity.revision", "\"x\"", 0},
        {"identity.draft", "\"x\"", 99},
        {"engine_id", "\"x\"", 99},
        {"worker.tp_rank", "0", 99},
        {"groups[1].kind", "\"ring\"", 4},
        {"groups[0].window", "0", 99},
        {"streams[3].layer", "\"x\"", 4},
        {"streams[3].name", "\"x\"", 4},
        {"streams[3].dtype", "\"x\"", 4},
        {"streams[3].format", "\"x\"", 4},
        {"streams[3].cell_bytes", "64", 4},
        {"streams[3].axes[0].name", "\"x\"", 4},
        {"streams[3].axes[0].global", "9", 4},
        {"streams[3].axes[0].start", "1", 99},
        {"streams[3].axes[0].extent", "3", 99},
        {"streams[3].axes[0].stride", "256", 99},
        {"streams[3].offset", "16", 99},
        {"streams[3].pages", "3", 99},
        {"streams[3].page_stride", "600", 99},
        {"streams[3].policy", "\"optional\"", 99},
        {"streams[3].aliases", "[\"x\"]", 99},
        {"streams[3].tokens_per_state", "2", 4},
        {"streams[3].axes", "[]", 4},
        {"streams[4].axes",
         "[{\"name\": \"slot\", \"extent\": 4, \"stride\": 32}, {\"name\": \"part\", \"extent\": 2, \"stride\": 128}]",
         99},
    };
    kvferry_layout *before = read_good(parse_small());
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        json_t *root = parse_small();
        change(root, "segments[1].bytes", "100000");
        change(root, "streams[3].page_stride", "1024"); /* room for a wider stride */
        change(root, "streams[4].offset", "8192");
        change(root, changes[i].path, changes[i].value);
        kvferry_layout *after = read_good(root);
        for (uint32_t k = 0; k <= kvferry_layout_stream_count(before); k++)
            assert_int_equal(strcmp(kvferry_layout_digest(before, k)->text,
                                    kvferry_layout_digest(after, k)->text) != 0,
                             k == changes[i].changed);
        kvferry_layout_free(after);
    }
    /* pages of half the tokens: the token axis's length is in no digest */
    json_t *root = parse_small();
    change(root, "streams[2].page_tokens", "16");
    change(root, "streams[2].axes[0].extent", "4");
    kvferry_layout *after = read_good(root);
    assert_string_equal(kvferry_layout_digest(before, 3)->text,
                        kvferry_layout_digest(after, 3)->text);
    kvferry_layout_free(after);
    kvferry_layout_free(before);
}

static void assert_keys_on_page(json_t *value)
{
    const char *key;
    json_t *member;
    size_t index;
    json_object_foreach(value, key, member) {
        assert_on_page(base_format("`%s`", key));
        assert_keys_on_page(member);
    }
    json_array_foreach(value, index, member)
        assert_keys_on_page(member);
}

static void test_page_is_complete(void **state)
{
    (void)state;
    json_t *root = parse_small();
    assert_keys_on_page(root);
    json_decref(root);
    for (int i = 0; i < LAYOUT_KINDS; i++)
        assert_on_page(base_format("`%s`:", layout_kind_names[i]));
    for (int i = 0; i < LAYOUT_POLICIES; i++)
        assert_on_page(base_format("`%s`:", layout_policy_names[i]));
    assert_on_page("`" LAYOUT_FORMAT "`");
    static const struct {
        const char *what;
        size_t limit;
    } limits[] = {
        {"bytes of a document", BASE_JSON_MAX_BYTES},
        {"levels of objects and arrays inside one another", BASE_JSON_MAX_DEPTH},
        {"members and elements in all", BASE_JSON_MAX_VALUES},
        {"objects and arrays in all", BASE_JSON_MAX_NESTS},
        {"segments", LAYOUT_MAX_SEGMENTS},
        {"groups", LAYOUT_MAX_GROUPS},
        {"streams", LAYOUT_MAX_STREAMS},
        {"axes of a stream", LAYOUT_MAX_AXES},
        {"aliases of a stream", LAYOUT_MAX_ALIASES},
    };
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        assert_on_page(base_format("| %s | %zu |", limits[i].what, limits[i].limit));
    assert_on_page("at most 1,024 bytes long");
    assert_int_equal(LAYOUT_MAX_NAME, 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),
        cmocka_unit_test(test_digests),
        cmocka_unit_test(test_spelled_out_bytes),
        cmocka_unit_test(test_what_digests_cover),
        cmocka_unit_test(test_page_is_complete),
    };
    return cmocka_run_group_tests(tests, read_page, free_page);
}
