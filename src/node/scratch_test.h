/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for a test's files, which goes with it. */
#ifndef KVFERRY_NODE_SCRATCH_TEST_H
#define KVFERRY_NODE_SCRATCH_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

static char scratch_folder[64];

static inline const char *scratch(const char *name)
{
    static char paths[8][128];
    static int next;
    if (!*scratch_folder) {
        strcpy(scratch_folder, "/tmp/kvferry-test-XXXXXX");
        assert_non_null(mkdtemp(scratch_folder));
    }
    next = (next + 1) % 8;
    snprintf(paths[next], sizeof(paths[next]), "%s/%s", scratch_folder, name);
    return paths[next];
}

static inline void scratch_write(const char *name, const char *text)
{
    char other[128];
    snprintf(other, sizeof(other), "%s", scratch("new"));
    FILE *file = fopen(other, "w");
    assert_non_null(file);
    assert_int_not_equal(fputs(text, file), EOF);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(other, scratch(name)), 0);
}

static inline void scratch_end(void)
{
    char command[128];
    if (!*scratch_folder)
        return;
    snprintf(command, sizeof(command), "rm -rf %s", scratch_folder);
    assert_int_equal(system(command), 0);
}

#endif
