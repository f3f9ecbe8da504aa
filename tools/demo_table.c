/* SPDX-License-Identifier: Apache-2.0 */
/* What a person reads: a bar while the demo runs, then a table, what is wrong, and one last line. */
#include "demo_run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAR_WIDTH = 30, FINDINGS_SHOWN = 5 };

/* --- the bar --------------------------------------------------------------------------------- */

static bool bar_drawn;

void demo_bar_draw(const demo_run *run, const char *step, double done)
{
    if (!isatty(STDERR_FILENO))
        return;
    uint32_t rounds = run->schedule.waves + 1; /* the last one is the end */
    double all = ((double)run->wave + done) / rounds;
    int full = (int)(all * BAR_WIDTH);
    char bar[BAR_WIDTH + 1];
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t)(full < BAR_WIDTH ? full : BAR_WIDTH));
    bar[BAR_WIDTH] = 0;
    if (run->wave < run->schedule.waves)
        fprintf(stderr, "\r[%s] %3.0f %%  round %u of %u: %s\033[K", bar, all * 100, run->wave + 1,
                run->schedule.waves, step);
    else
        fprintf(stderr, "\r[%s] %3.0f %%  end: %s\033[K", bar, all * 100, step);
    bar_drawn = true;
}

void demo_bar_clear(void)
{
    if (bar_drawn)
        fprintf(stderr, "\r\033[K");
    bar_drawn = false;
}

/* --- head ------------------------------------------------------------------------------------ */

/* "pp2tp2"; in one of two buffers. */
static const char *topology_text(const tool_topology *topology)
{
    static char texts[2][32];
    static int next;
    char *text = texts[next = !next];
    if (topology->pp > 1)
        snprintf(text, sizeof texts[0], "pp%utp%u", topology->pp, topology->tp);
    else
        snprintf(text, sizeof texts[0], "tp%u", topology->tp);
    return text;
}

static uint64_t side_bytes(const tool_side *side)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < side->count; i++)
        for (uint32_t s = 0; s < kvferry_layout_segment_count(side->layouts[i]); s++)
            bytes += kvferry_layout_segment(side->layouts[i], s)->bytes;
    return bytes;
}

void demo_print_head(const demo_run *run)
{
    printf("%s over %s (%s)\n", run->config.model.name, run->config.transport, run->config.engine);
    for (int role = 0; role < DEMO_ROLES; role++)
        printf("  %-7s  %s: %s of %s, %s in all\n", demo_role_name((demo_role)role),
               topology_text(&run->config.topology[role]), tool_count(run->sides[role].count, "worker"),
               tool_count(run->config.blocks[role], "block"), tool_size(side_bytes(&run->sides[role])));
    if (run->config.fault != DEMO_SOUND)
        printf("  broken on purpose (--break %s): %s\n",
               demo_fault_name(run->config.fault), demo_fault_describe(run->config.fault));
    fflush(stdout);
}

/* --- table ----------------------------------------------------------------------------------- */

static void add_row(tool_table *table, const demo_run *run, const demo_request *request)
{
    char number[16], wave[16], seconds[32] = "-", speed[32] = "-";
    double time = demo_request_seconds(request);
    snprintf(number, sizeof number, "%u", request->number);
    snprintf(wave, sizeof wave, "%u", request->wave + 1);
    if (request->end_ns)
        snprintf(seconds, sizeof seconds, "%.2f ms", time * 1e3);
    if (request->end_ns && time > 0 && request->bytes)
        snprintf(speed, sizeof speed, "%.2f", (double)request->bytes / time / 1e9);
    uint64_t moved = request->tokens > request->hit ? request->tokens - request->hit : 0;
    const char *const cells[] = {number,
                                 wave,
                                 demo_kind_name(request->kind),
                                 tool_number(request->prompt),
                                 tool_number(request->hit),
                                 tool_number(moved),
                                 tool_number(request->copies),
                                 tool_number(request->bytes),
                                 seconds,
                                 speed,
                                 demo_run_verdict(run, request)};
    tool_table_row(table, cells);
}

static void print_table(const demo_run *run)
{
    static const char *const columns[] = {">request", ">round", "kind",  ">prompt", ">hit",
                                          ">tokens moved", ">copies", ">bytes", ">time", ">GB/s",
                                          "verdict"};
    tool_table *table = tool_table_create(columns, sizeof columns / sizeof *columns);
    size_t shown = 0;
    for (size_t i = 0; i < run->schedule.count; i++)
        if (run->schedule.requests[i].wave <= run->wave) {
            add_row(table, run, &run->schedule.requests[i]);
            shown++;
        }
    tool_table_print(table);
    if (shown < run->schedule.count)
        printf("and %s that were not begun\n", tool_number(run->schedule.count - shown));
}

/* --- what is wrong --------------------------------------------------------------------------- */

/* The findings of one kind in one stream, over layers, workers and requests. */
typedef struct wrong_stream {
    const char *kind, *stream;
    tool_list layers, workers, requests;
    uint64_t bytes;
} wrong_stream;

static void list_once(tool_list *list, const char *item)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i], item) == 0)
            return;
    tool_list_add(list, item);
}

static char *list_text(const tool_list *list)
{
    char *text = tool_text("%s", list->count ? list->items[0] : "");
    for (size_t i = 1; i < list->count; i++) {
        char *longer = tool_text("%s, %s", text, list->items[i]);
        free(text);
        text = longer;
    }
    return text;
}

/* Adds a finding to its stream, which is a new one if there was none. Returns how many there are. */
static size_t gather(wrong_stream *streams, size_t count, const json_t *finding)
{
    const char *kind = demo_text(finding, "kind"), *stream = demo_text(finding, "stream");
    size_t i = 0;
    while (i < count && (strcmp(streams[i].kind, kind) != 0 || strcmp(streams[i].stream, stream) != 0))
        i++;
    if (i == count)
        streams[count++] = (wrong_stream){.kind = kind, .stream = stream};
    list_once(&streams[i].layers, demo_text(finding, "layer"));
    list_once(&streams[i].workers, demo_text(finding, "worker"));
    list_once(&streams[i].requests, demo_text(finding, "request"));
    streams[i].bytes += demo_number(finding, "bytes");
    return count;
}

static void add_wrong_row(tool_table *table, wrong_stream *stream)
{
    char *layers = tool_fold(stream->layers.items, stream->layers.count);
    char *workers = tool_fold(stream->workers.items, stream->workers.count);
    char *requests = list_text(&stream->requests);
    const char *const cells[] = {stream->kind, *stream->stream ? stream->stream : "(padding)", layers,
                                 workers, requests, tool_number(stream->bytes)};
    tool_table_row(table, cells);
    free(layers);
    free(workers);
    free(requests);
    tool_list_free(&stream->layers);
    tool_list_free(&stream->workers);
    tool_list_free(&stream->requests);
}

/* The message names worker, request, layer, stream and place. */
static void print_finding(const demo_run *run, const json_t *finding)
{
    uint64_t round = demo_number(finding, "round");
    if (round <= run->schedule.waves)
        printf("round %llu: %s\n", (unsigned long long)round, demo_text(finding, "message"));
    else
        printf("after the last round: %s\n", demo_text(finding, "message"));
}

static void print_findings(const demo_run *run)
{
    static const char *const columns[] = {"fault", "stream", "layers", "workers", "requests", ">bytes"};
    size_t found = json_array_size(run->findings), count = 0;
    if (found == 0)
        return;
    wrong_stream *streams = tool_alloc(found, sizeof *streams);
    for (size_t i = 0; i < found; i++)
        count = gather(streams, count, json_array_get(run->findings, i));
    tool_table *table = tool_table_create(columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < count; i++)
        add_wrong_row(table, &streams[i]);
    free(streams);
    printf("\n");
    tool_table_print(table);
    if (run->more)
        printf("and %s more findings that are not described\n", tool_number(run->more));
    printf("\n");
    for (size_t i = 0; i < found && i < FINDINGS_SHOWN; i++)
        print_finding(run, json_array_get(run->findings, i));
    if (found > FINDINGS_SHOWN)
        printf("... and %s more (--json prints them)\n", tool_number(found - FINDINGS_SHOWN));
    printf("\n");
}

static void print_failures(const demo_run *run)
{
    for (size_t i = 0; i < run->schedule.count; i++) {
        const demo_request *request = &run->schedule.requests[i];
        if (request->failure)
            printf("failed: request %u: %s\n", request->number, request->failure);
    }
}

static void print_last_line(const demo_run *run)
{
    double seconds = (double)(run->end_ns - run->begin_ns) / 1e9;
    printf("kvferry demo: %s, %s in %s, ", tool_count(run->schedule.count, "request"),
           tool_size(demo_run_bytes(run)), tool_count(demo_run_copies(run), "copy"));
    if (run->failure)
        printf("FAILED: %s\n", run->failure);
    else if (demo_run_right(run))
        printf("%s checked in %.1f s: every byte right\n", tool_size(run->checked), seconds);
    else if (json_array_size(run->findings) == 0)
        printf("FAILED: not all requests were moved\n");
    else {
        const json_t *first = json_array_get(run->findings, 0);
        printf("WRONG: %s bytes of wanted cells, %s bytes that nobody may change; first %s, %s %s\n",
               tool_number(run->wrong), tool_number(run->stray), demo_text(first, "worker"),
               demo_text(first, "layer"), demo_text(first, "stream"));
    }
}

void demo_print_run(const demo_run *run)
{
    print_table(run);
    print_findings(run);
    print_failures(run);
    print_last_line(run);
}
