/* SPDX-License-Identifier: Apache-2.0 */
#include "node/keys.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <kvferry/node.h>

#include "node/scratch_test.h"

static kvferry_report *report;

static int begin(void **state)
{
    (void)state;
    return kvferry_report_create(&report) != KVFERRY_OK;
}

static int end(void **state)
{
    (void)state;
    kvferry_report_free(report);
    return 0;
}

static void expect_reason(const char *code)
{
    assert_int_not_equal(kvferry_report_count(report), 0);
    assert_string_equal(kvferry_report_get(report, 0)->code, code);
    kvferry_report_clear(report);
}

static void public_line(const char *name, char line[NODE_KEY_TEXT + 1])
{
    FILE *file = fopen(scratch(name), "r");
    assert_non_null(file);
    assert_int_equal(fread(line, 1, NODE_KEY_TEXT, file), NODE_KEY_TEXT);
    line[NODE_KEY_TEXT] = '\0';
    fclose(file);
}

static void test_a_pair_is_written_once_and_read(void **state)
{
    (void)state;
    node_key_pair pair, other;
    bool open_to_others = true;
    struct stat about;
    char line[NODE_KEY_TEXT + 1], hex[NODE_KEY_TEXT];
    assert_int_equal(kvferry_keys_generate(scratch("own"), report), KVFERRY_OK);
    assert_int_equal(stat(scratch("own"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(node_key_pair_read(scratch("own"), &pair, &open_to_others, report),
                     KVFERRY_OK);
    assert_false(open_to_others);
    public_line("own.pub", line);
    node_key_format(pair.public_key, hex);
    assert_memory_equal(line, hex, NODE_KEY_TEXT - 1);

    assert_int_equal(kvferry_keys_generate(scratch("own"), report), KVFERRY_IO);
    expect_reason("file_failed");
    assert_int_equal(node_key_pair_read(scratch("own"), &other, &open_to_others, report),
                     KVFERRY_OK);
    assert_memory_equal(&pair, &other, sizeof(pair));

    assert_int_equal(chmod(scratch("own"), 0640), 0);
    assert_int_equal(node_key_pair_read(scratch("own"), &other, &open_to_others, report),
                     KVFERRY_OK);
    assert_true(open_to_others);
}

static void test_a_pair_is_whole_or_not_there(void **state)
{
    (void)state;
    scratch_write("half.pub", "somebody's");
    assert_int_equal(kvferry_keys_generate(scratch("half"), report), KVFERRY_IO);
    expect_reason("file_failed");
    assert_int_not_equal(access(scratch("half"), F_OK), 0);
    assert_int_equal(kvferry_keys_generate(scratch("none/own"), report), KVFERRY_IO);
    expect_reason("file_failed");
    assert_int_equal(kvferry_keys_generate("", report), KVFERRY_INVALID);
    assert_int_equal(kvferry_keys_generate(NULL, report), KVFERRY_INVALID);
}

static void test_other_files_are_no_pairs(void **state)
{
    (void)state;
    node_key_pair pair;
    bool open_to_others;
    char text[1000] = "", changed[1000];
    FILE *file = fopen(scratch("own"), "r");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    static const char *const others[] = {"", "kvferry-key/1\n", "\n"};
    for (size_t i = 0; i < 3; i++) {
        scratch_write("other", others[i]);
        assert_int_equal(node_key_pair_read(scratch("other"), &pair, &open_to_others, report),
                         KVFERRY_MALFORMED);
        expect_reason("key_malformed");
    }
    /* Any one character changed: no key, or not the pair's other half. */
    for (size_t i = 0; i + 1 < size; i++) {
        strcpy(changed, text);
        changed[i] = changed[i] == '1' ? '2' : '1';
        scratch_write("other", changed);
        if (node_key_pair_read(scratch("other"), &pair, &open_to_others, report) == KVFERRY_OK &&
            i < size - 65) /* X25519 ignores five bits of a secret */
            fail_msg("taken with another character %zu", i);
        kvferry_report_clear(report);
    }
    assert_int_equal(node_key_pair_read(scratch("nothing"), &pair, &open_to_others, report),
                     KVFERRY_IO);
    expect_reason("file_failed");
    assert_int_equal(node_key_pair_read("/", &pair, &open_to_others, report), KVFERRY_IO);
    expect_reason("file_failed");
    assert_int_equal(node_key_pair_read("/dev/zero", &pair, &open_to_others, report), KVFERRY_IO);
    expect_reason("file_failed");
}

#define ONE   "1111111111111111111111111111111111111111111111111111111111111111"
#define TWO   "2222222222222222222222222222222222222222222222222222222222222222"
#define THREE "3333333333333333333333333333333333333333333333333333333333333333"

static void test_the_list_follows_its_file(void **state)
{
    (void)state;
    unsigned char one[NODE_KEY_BYTES], two[NODE_KEY_BYTES], three[NODE_KEY_BYTES];
    memset(one, 0x11, sizeof(one));
    memset(two, 0x22, sizeof(two));
    memset(three, 0x33, sizeof(three));
    node_allowed *allowed;
    scratch_write("allowed", "# prefill\n" TWO " prefill-0\n\n\r\n" ONE "\r\n");
    assert_int_equal(node_allowed_open(scratch("allowed"), &allowed, report), KVFERRY_OK);
    assert_true(node_allowed_has(allowed, one, report) && node_allowed_has(allowed, two, report));
    assert_false(node_allowed_has(allowed, three, report));

    scratch_write("allowed", THREE);
    assert_true(node_allowed_has(allowed, three, report));
    assert_false(node_allowed_has(allowed, one, report));
    assert_int_equal(kvferry_report_count(report), 0);

    /* A list that cannot be read any more stays as it was, and that is told once. */
    scratch_write("allowed", ONE "\nnonsense\n");
    assert_false(node_allowed_has(allowed, one, report));
    assert_true(node_allowed_has(allowed, three, report));
    assert_int_equal(kvferry_report_count(report), 1);
    expect_reason("key_malformed");
    assert_int_equal(unlink(scratch("allowed")), 0);
    assert_true(node_allowed_has(allowed, three, report) &&
                node_allowed_has(allowed, three, report));
    assert_int_equal(kvferry_report_count(report), 1);
    expect_reason("file_failed");

    scratch_write("allowed", "");
    assert_false(node_allowed_has(allowed, three, report));
    assert_int_equal(kvferry_report_count(report), 0);
    node_allowed_close(allowed);
}

static void test_a_bad_list_is_none(void **state)
{
    (void)state;
    node_allowed *allowed = NULL;
    static const char *const bad[] = {"x\n", (ONE "1\n"), (ONE "\n" TWO ",\n"), (" " ONE)};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        scratch_write("allowed", bad[i]);
        assert_int_equal(node_allowed_open(scratch("allowed"), &allowed, report),
                         KVFERRY_MALFORMED);
        expect_reason("key_malformed");
    }
    assert_int_equal(node_allowed_open(scratch("nothing"), &allowed, report), KVFERRY_IO);
    expect_reason("file_failed");
    assert_null(allowed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_pair_is_written_once_and_read, begin, end),
        cmocka_unit_test_setup_teardown(test_a_pair_is_whole_or_not_there, begin, end),
        cmocka_unit_test_setup_teardown(test_other_files_are_no_pairs, begin, end),
        cmocka_unit_test_setup_teardown(test_the_list_follows_its_file, begin, end),
        cmocka_unit_test_setup_teardown(test_a_bad_list_is_none, begin, end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
