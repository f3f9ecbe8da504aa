/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <stdio.h>

#include "layout/layout.h"

enum { PAIRS = 5000 };

static void test_finds_what_was_added(void **state)
{
    (void)state;
    static char texts[PAIRS][32];
    layout_names names = {.items = base_alloc(PAIRS, sizeof(layout_name))};
    assert_non_null(names.items);
    for (uint32_t i = 0; i < PAIRS; i++) {
        snprintf(texts[i], sizeof(texts[i]), "model.layers.%u", i / 2);
        layout_names_add(&names, texts[i], i % 2 ? "k" : "v", i);
    }
    layout_names_sort(&names);
    uint32_t value;
    for (uint32_t i = 0; i < PAIRS; i++) {
        assert_true(layout_names_find(&names, texts[i], i % 2 ? "k" : "v", &value));
        assert_int_equal(value, i);
        assert_false(layout_names_find(&names, texts[i], "", &value));
    }
    assert_false(layout_names_find(&names, "model.layers.2500", "k", &value));
    free(names.items);
}

static void test_pairs_are_pairs(void **state)
{
    (void)state;
    layout_name items[5];
    layout_names names = {.items = items};
    uint32_t value;
    assert_false(layout_names_find(&names, "", "", &value));
    layout_names_add(&names, "ab", "c", 4);
    layout_names_add(&names, "a", "bc", 3);
    layout_names_add(&names, "ab", "c", 1);
    layout_names_add(&names, "abc", "", 2);
    layout_names_add(&names, "ab", "c", 7);
    layout_names_sort(&names);
    assert_true(layout_names_find(&names, "a", "bc", &value) && value == 3);
    assert_true(layout_names_find(&names, "abc", "", &value) && value == 2);
    assert_true(layout_names_find(&names, "ab", "c", &value) && value == 1); /* the lowest */
    assert_false(layout_names_find(&names, "", "abc", &value));
    int equal = 0;
    for (int i = 1; i < 5; i++)
        equal += layout_name_equal(&items[i - 1], &items[i]);
    assert_int_equal(equal, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_what_was_added),
        cmocka_unit_test(test_pairs_are_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
