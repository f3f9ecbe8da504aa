/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry keygen: a new key pair for a node. */
#include <kvferry/node.h>

#include <stdlib.h>

#include "tool.h"

static const char *operand(int argc, char **argv, int *status)
{
    const tool_usage usage = {
        .synopsis = "FILE",
        .about = "Writes a new key pair to FILE, which only its owner can read, and the public key alone\n"
                 "to FILE.pub. Give a node the first as its key, and all that talk to it the second in\n"
                 "their list of allowed keys. A file that is there is not touched.",
    };
    int first;
    *status = tool_parse(&usage, argc, argv, &first);
    if (*status == TOOL_GO_ON && first + 1 != argc)
        *status = tool_misuse("FILE", "one file", first < argc ? argv[first + 1] : "none");
    return *status == TOOL_GO_ON ? argv[first] : NULL;
}

static void say(const char *path)
{
    char *public = tool_text("%s.pub", path);
    if (tool_json())
        tool_print_json(json_pack("{s:b, s:o, s:o}", "ok", 1, "key", tool_json_text(path), "public",
                                  tool_json_text(public)));
    else
        printf("%s: the key pair, to be kept secret\n%s: its public key\n", path, public);
    free(public);
}

int tool_keygen(int argc, char **argv)
{
    int result;
    const char *path = operand(argc, argv, &result);
    if (!path)
        return result;
    kvferry_report *report = tool_report();
    tool_reasons reasons = {0};
    kvferry_status status = kvferry_keys_generate(path, report);
    tool_reasons_take(&reasons, report, NULL);
    kvferry_report_free(report);
    if (status == KVFERRY_NO_MEMORY)
        tool_no_memory();
    if (tool_reasons_count(&reasons))
        return tool_refuse(&reasons, "no key was made", stderr);
    tool_reasons_free(&reasons);
    if (status != KVFERRY_OK)
        return tool_unexpected("%s: %s", path, kvferry_status_describe(status));
    say(path);
    return TOOL_FINE;
}
