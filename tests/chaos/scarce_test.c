/* SPDX-License-Identifier: Apache-2.0 */
/* Without descriptors, with a full disk, and with full shared memory. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvferry/node.h>

#include "node/nodes.h"

#include "fleet.h"

static const char *const spaces[] = {"", ""};
static fleet all;
static char folder[] = "/tmp/kvferry-full-XXXXXX";
static const char *mounted; /* where a file system of this process is */
static int usual_errors = -1; /* where stderr goes else */

static void open_fleet(const char *transport, bool tp2_first)
{
    static const char *const hosts[] = {"127.0.0.1", "127.0.0.1"};
    fleet_open(&all, transport, tp2_first, spaces, hosts, "");
}

/* --- descriptors ------------------------------------------------------------------------------ */

/* Connections that are there go on. One that is not is made as soon as descriptors can be opened.
 */
static void test_no_descriptors(void **state)
{
    (void)state;
    open_fleet("tcp", true);
    fleet_check_fresh(&all, 0);
    for (size_t i = 0; i < all.count; i++)
        fleet_tell(&all, i, ORDER_NO_FILES);
    all.what = "connected, without descriptors";
    fleet_check_fresh(&all, 1);
    for (size_t i = 0; i < all.count; i++)
        fleet_tell(&all, i, ORDER_FILES);

    all.what = "a new decode worker, without descriptors at prefill's";
    fleet_end(&all, all.prefills);
    for (size_t i = 0; i < all.prefills; i++)
        fleet_tell(&all, i, ORDER_NO_FILES);
    fleet_start(&all, all.prefills);
    uint32_t request = fleet_request(&all);
    fleet_order(&all, request, 2, 0, all.count);
    fleet_pump(&all, 1000);
    for (size_t i = 0; i < all.prefills; i++)
        fleet_tell(&all, i, ORDER_FILES);
    fleet_await(&all, request, 0, all.count, true);
    fleet_check_fresh(&all, 3);
    fleet_check(&all);
    fleet_close(&all);
}

/* --- a full disk -------------------------------------------------------------------------------
 */

/* A file system of a few pages that no other process sees, filled. False: it takes root. */
static bool fill_disk(const char *where)
{
    char path[64], page[4096] = {0};
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", where, "tmpfs", 0, "size=64k") != 0)
        return false;
    mounted = where;
    snprintf(path, sizeof(path), "%s/full", where);
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    while (write(file, page, sizeof(page)) > 0) {
    }
    assert_int_equal(errno, ENOSPC);
    close(file);
    return true;
}

static void check_keys(void)
{
    char path[64], half[70];
    struct stat found;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    snprintf(path, sizeof(path), "%s/key", folder);
    snprintf(half, sizeof(half), "%s.pub", path);
    assert_int_equal(kvferry_keys_generate(path, report), KVFERRY_IO);
    assert_int_equal(kvferry_report_count(report), 1);
    assert_non_null(strstr(kvferry_report_get(report, 0)->message, strerror(ENOSPC)));
    assert_int_equal(stat(path, &found), -1); /* no half of a key is left */
    assert_int_equal(stat(half, &found), -1);
    kvferry_report_free(report);
}

/* The log goes to the full disk; whoever looks at the status writes it there. */
static void check_log_and_status(void)
{
    char path[64], *text;
    size_t size;
    kvferry_report *report;
    snprintf(path, sizeof(path), "%s/log", folder);
    int log = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(log >= 0);
    usual_errors = dup(2);
    dup2(log, 2);
    all.what = "a log on a full disk";
    open_fleet("tcp", false);
    fleet_check_fresh(&all, 0);
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    assert_int_equal(
        kvferry_node_query(all.members[0].setup.address, "", 10000, &text, &size, report),
        KVFERRY_OK);
    assert_int_equal(write(log, text, size), -1);
    assert_int_equal(errno, ENOSPC);
    kvferry_free(text);
    kvferry_report_free(report);
    fleet_check_fresh(&all, 1);
    fleet_check(&all);
    fleet_close(&all);
    close(log);
}

static void test_a_full_disk(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    if (!fill_disk(folder)) {
        printf("test_a_full_disk: skipped, since a file system of its own needs root\n");
        skip();
    }
    check_keys();
    check_log_and_status();
}

/* --- full shared memory ------------------------------------------------------------------------ */

/* UCX's own shared memory, where somebody chose it, has no room: an error with a name, by the call that needs it. */
static void check_posix(void)
{
    const kvferry_engine_options engine = {.size = sizeof(engine), .transport = "posix,sysv"};
    kvferry_node_options options = nodes_options("posix");
    const kvferry_node_segment segment = {NULL, KVFERRY_MEMORY_HOST};
    kvferry_layout *layout = rig_layout(&(rig_shape){.engine_id = "e", .tps = 1, .pps = 1});
    kvferry_node *node = NULL;
    kvferry_report *report;
    assert_int_equal(kvferry_report_create(&report), KVFERRY_OK);
    options.engine = "ucx";
    options.engine_options = &engine;
    assert_int_equal(kvferry_node_create(&options, layout, &segment, 1, &node, report), KVFERRY_NO_MEMORY);
    assert_null(node);
    assert_int_equal(kvferry_report_count(report), 1);
    assert_string_equal(kvferry_report_get(report, 0)->code, "engine_failed");
    assert_non_null(strstr(kvferry_report_get(report, 0)->found, "memory"));
    kvferry_report_free(report);
    kvferry_layout_free(layout);
}

/* Memory that peers map lies in no file system, so none that is full is in the way. */
static void test_full_shared_memory(void **state)
{
    (void)state;
    if (!fill_disk("/dev/shm")) {
        printf("test_full_shared_memory: skipped, since a file system of its own needs root\n");
        skip();
    }
    check_posix();
    for (int tp2_first = 0; tp2_first < 2; tp2_first++) {
        all.what = "full shared memory";
        open_fleet("shm", tp2_first);
        fleet_check_fresh(&all, 0);
        fleet_end(&all, 0);
        fleet_start(&all, 0);
        fleet_check_fresh(&all, 1);
        fleet_check(&all);
        fleet_close(&all);
    }
}

/* --- the end -----------------------------------------------------------------------------------
 */

static int teardown(void **state)
{
    (void)state;
    fleet_kill(&all);
    if (usual_errors >= 0) {
        dup2(usual_errors, 2);
        close(usual_errors);
        usual_errors = -1;
    }
    if (mounted)
        umount2(mounted, MNT_DETACH);
    mounted = NULL;
    rmdir(folder);
    return 0;
}

/* UCX 1.13 keeps 600 bytes of shared memory of its own that it could not make. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libucs\n"; }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_no_descriptors, teardown),
        cmocka_unit_test_teardown(test_a_full_disk, teardown),
        cmocka_unit_test_teardown(test_full_shared_memory, teardown),
    };
    if (argc == 2 && strcmp(argv[1], "member") == 0)
        return member_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
