/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "random.h"

static void print_tables(const random_spec *spec, const request_spec *request, int side, FILE *out)
{
    const char *separator = "";
    for (int g = 0; g < spec->group_count[side]; g++) {
        const table_spec *table = &request->tables[side][g];
        char name[12];
        if (!table->listed)
            continue;
        spec_group_name(side, g, name);
        fprintf(out, "%s\"%s\": {\"first_token\": %u, \"blocks\": [", separator, name,
                table->first_token);
        for (int i = 0; i < table->count; i++)
            fprintf(out, "%s%d", i ? ", " : "",
                    table->ids[i] == NULL_ID ? spec->sides[side].groups[g].null_block
                                             : table->ids[i]);
        fprintf(out, "]}");
        separator = ", ";
    }
}

static void print_side(const random_spec *spec, int side, FILE *out)
{
    built_side built = {0};
    kvferry_report *report = NULL;
    kvferry_report_create(&report);
    if (!build_side(spec, side, &built, report)) {
        for (size_t i = 0; i < kvferry_report_count(report); i++)
            fprintf(out, "%s: refused: %s\n", side == SOURCE ? "source" : "target",
                    kvferry_report_get(report, i)->message);
    }
    for (size_t i = 0; i < built.count; i++) {
        char *text = NULL;
        size_t size = 0;
        if (kvferry_layout_write_json(built.layouts[i], &text, &size) == KVFERRY_OK)
            fprintf(out, "%s %zu: %s\n", side == SOURCE ? "source" : "target", i, text);
        kvferry_free(text);
    }
    built_side_free(&built);
    kvferry_report_free(report);
}

void spec_print(const random_spec *spec, const random_finding *finding, FILE *out)
{
    print_side(spec, SOURCE, out);
    print_side(spec, TARGET, out);
    for (int r = 0; r < spec->request_count; r++) {
        const request_spec *request = &spec->requests[r];
        if (request->dropped)
            continue;
        fprintf(out,
                "request: {\"transfer_id\": \"r%d\", \"tokens\": %u, \"source_tokens\": %u, "
                "\"whole_blocks\": %s, \"source\": {",
                r, request->target_tokens, request->source_tokens, request->whole_blocks ? "true" : "false");
        print_tables(spec, request, SOURCE, out);
        fprintf(out, "}, \"target\": {");
        print_tables(spec, request, TARGET, out);
        fprintf(out, "}}\n");
    }
    if (spec->fault.kind != FAULT_NONE)
        fprintf(out, "made wrong: %s (side %s, stream %u, group %u, worker %u, index %u)\n",
                spec_fault_name(spec->fault.kind), spec->fault.side == SOURCE ? "source" : "target",
                spec->fault.stream, spec->fault.group, spec->fault.worker, spec->fault.index);
    fprintf(out, "finding: %s: %s\n", finding->what, finding->text);
}
