/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry plan: the copies of one request, by source. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_SHOWN 16 /* of each source, without -v */

typedef struct arguments {
    tool_list sources;
    const char *target, *request;
    bool verbose;
} arguments;

/* What one source sends. */
typedef struct transfer {
    kvferry_copy *copies;
    size_t count;
    uint64_t bytes;
} transfer;

typedef struct job {
    tool_side sources, target;
    kvferry_request *request;
    kvferry_plan *plan;
    transfer *transfers; /* one a source */
    tool_reasons reasons;
} job;

static int parse(int argc, char **argv, arguments *given)
{
    const tool_option options[] = {
        {"source", 's', TOOL_STRINGS, &given->sources, "FILE",
         "layout document of a source worker; once for each", 0, 0},
        {"target", 't', TOOL_STRING, &given->target, "FILE",
         "layout document of the target worker", 0, 0},
        {"request", 'r', TOOL_STRING, &given->request, "FILE", "the request: tokens and block tables",
         0, 0},
        {"verbose", 'v', TOOL_FLAG, &given->verbose, NULL, "list every copy", 0, 0},
    };
    const tool_usage usage = {
        .synopsis = "--source FILE [--source FILE ...] --target FILE --request FILE",
        .about = "Lists the copies of one request for one target worker, by source. A FILE '-' is "
                 "stdin.",
        .options = options,
        .option_count = sizeof(options) / sizeof(*options),
    };
    int operand, status = tool_parse(&usage, argc, argv, &operand);
    if (status != TOOL_GO_ON)
        return status;
    if (operand < argc)
        return tool_misuse(argv[operand], "only options", "an operand");
    if (!given->sources.count)
        return tool_misuse("--source", "at least one", "none");
    if (!given->target)
        return tool_misuse("--target", "a layout document", "nothing");
    if (!given->request)
        return tool_misuse("--request", "a request", "nothing");
    return TOOL_GO_ON;
}

/* --- reading and planning ------------------------------------------------------------------- */

static int read_request(job *work, const char *file, kvferry_report *report)
{
    char *text;
    size_t size;
    int status = tool_read(file, &text, &size);
    if (status != TOOL_GO_ON)
        return status;
    kvferry_status read = kvferry_request_read_json(text, size, &work->request, report);
    free(text);
    return tool_check_status(read, file, &work->reasons, report, file);
}

static int read_all(job *work, const arguments *given, kvferry_report *report)
{
    const char *target[] = {given->target};
    int status = tool_side_from_files(&work->sources, &given->sources, &work->reasons);
    if (status == TOOL_GO_ON)
        status = tool_side_from_files(&work->target, &(tool_list){target, 1}, &work->reasons);
    return status == TOOL_GO_ON ? read_request(work, given->request, report) : status;
}

static int expand(job *work, size_t source, kvferry_report *report)
{
    transfer *to = &work->transfers[source];
    size_t bound = kvferry_plan_expand_bound(work->plan, source, work->request);
    to->copies = tool_alloc(bound, sizeof(*to->copies));
    kvferry_status status = kvferry_plan_expand(work->plan, source, work->request, to->copies, bound,
                                                &to->count, report);
    for (size_t i = 0; i < to->count; i++)
        to->bytes += to->copies[i].bytes;
    return tool_check_status(status, work->sources.names[source], &work->reasons, report, NULL);
}

static int plan(job *work, const arguments *given, kvferry_report *report)
{
    int status = read_all(work, given, report);
    if (status != TOOL_GO_ON || tool_reasons_count(&work->reasons))
        return status;
    kvferry_status made = kvferry_plan_create((const kvferry_layout *const *)work->sources.layouts,
                                              work->sources.count, work->target.layouts[0],
                                              &work->plan, report);
    status = tool_check_status(made, "planning", &work->reasons, report, NULL);
    if (status != TOOL_GO_ON || made != KVFERRY_OK)
        return status;
    work->transfers = tool_alloc(work->sources.count, sizeof(*work->transfers));
    for (size_t i = 0; i < work->sources.count && status == TOOL_GO_ON; i++)
        status = expand(work, i, report);
    return status;
}

/* --- output -------------------------------------------------------------------------------- */

static const char *segment(const kvferry_layout *layout, uint32_t index)
{
    return kvferry_layout_segment(layout, index)->name;
}

static json_t *copies_json(const job *work, size_t source)
{
    const transfer *from = &work->transfers[source];
    json_t *list = json_array();
    for (size_t i = 0; i < from->count; i++) {
        const kvferry_copy *copy = &from->copies[i];
        json_t *object = json_pack(
            "{s:s, s:I, s:s, s:I, s:I}", "source_segment",
            segment(work->sources.layouts[source], copy->source_segment), "source_offset",
            (json_int_t)copy->source_offset, "target_segment",
            segment(work->target.layouts[0], copy->target_segment), "target_offset",
            (json_int_t)copy->target_offset, "bytes", (json_int_t)copy->bytes);
        if (!object || json_array_append_new(list, object) != 0)
            tool_no_memory();
    }
    return list;
}

static void print_json(const job *work, size_t copies, uint64_t bytes)
{
    json_t *transfers = json_array();
    for (size_t i = 0; i < work->sources.count; i++) {
        json_t *object = json_pack("{s:o, s:o}", "source", tool_json_text(work->sources.names[i]),
                                   "copies", copies_json(work, i));
        if (!object || json_array_append_new(transfers, object) != 0)
            tool_no_memory();
    }
    tool_print_json(json_pack("{s:b, s:o, s:I, s:I}", "ok", 1, "transfers", transfers, "copies",
                              (json_int_t)copies, "bytes", (json_int_t)bytes));
}

static void print_copies(const job *work, size_t source, bool verbose)
{
    const transfer *from = &work->transfers[source];
    printf("\nfrom %s: %s, %s\n", work->sources.names[source], tool_count(from->count, "copy"),
           tool_count(from->bytes, "byte"));
    if (!from->count)
        return;
    static const char *const columns[] = {"source segment", ">source offset", "target segment",
                                          ">target offset", ">bytes"};
    tool_table *table = tool_table_create(columns, 5);
    size_t shown = verbose || from->count <= ROWS_SHOWN ? from->count : ROWS_SHOWN;
    for (size_t i = 0; i < shown; i++) {
        const kvferry_copy *copy = &from->copies[i];
        const char *const cells[] = {segment(work->sources.layouts[source], copy->source_segment),
                                     tool_number(copy->source_offset),
                                     segment(work->target.layouts[0], copy->target_segment),
                                     tool_number(copy->target_offset), tool_number(copy->bytes)};
        tool_table_row(table, cells);
    }
    tool_table_print(table);
    if (shown < from->count)
        printf("... and %s more (-v lists them)\n", tool_number(from->count - shown));
}

static int answer(job *work, const arguments *given)
{
    if (tool_reasons_count(&work->reasons))
        return tool_refuse(&work->reasons, "no plan", stdout);
    size_t copies = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < work->sources.count; i++) {
        copies += work->transfers[i].count;
        bytes += work->transfers[i].bytes;
    }
    if (tool_json()) {
        print_json(work, copies, bytes);
        return TOOL_FINE;
    }
    printf("%s, %s, from %s to %s\n", tool_count(copies, "copy"), tool_count(bytes, "byte"),
           tool_count(work->sources.count, "source"), work->target.names[0]);
    for (size_t i = 0; i < work->sources.count; i++)
        print_copies(work, i, given->verbose);
    return TOOL_FINE;
}

static void job_free(job *work)
{
    for (size_t i = 0; work->transfers && i < work->sources.count; i++)
        free(work->transfers[i].copies);
    free(work->transfers);
    kvferry_plan_free(work->plan);
    kvferry_request_free(work->request);
    tool_side_free(&work->sources);
    tool_side_free(&work->target);
    tool_reasons_free(&work->reasons);
}

int tool_plan(int argc, char **argv)
{
    arguments given = {0};
    job work = {0};
    int status = parse(argc, argv, &given);
    if (status == TOOL_GO_ON) {
        kvferry_report *report = tool_report();
        status = plan(&work, &given, report);
        if (status == TOOL_GO_ON)
            status = answer(&work, &given);
        kvferry_report_free(report);
    }
    job_free(&work);
    tool_list_free(&given.sources);
    return status;
}
