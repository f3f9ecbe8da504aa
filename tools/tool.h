/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs of the kvferry command share. A verb is `int tool_<verb>(int argc, char **argv)`:
 * argv[0] is its name, the result is the exit status. */
#ifndef KVFERRY_TOOL_H
#define KVFERRY_TOOL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include <kvferry/kvferry.h>

enum {
    TOOL_GO_ON = -1,     /* not an exit status: the caller goes on */
    TOOL_FINE = 0,
    TOOL_FAILED = 1,     /* refused, differs, failed */
    TOOL_WRONG_USE = 2,
    TOOL_UNEXPECTED = 3
};

int tool_layout(int argc, char **argv);
int tool_explain(int argc, char **argv);
int tool_plan(int argc, char **argv);
int tool_check(int argc, char **argv);
int tool_demo(int argc, char **argv);
int tool_bench(int argc, char **argv);
int tool_keygen(int argc, char **argv);
int tool_serve(int argc, char **argv);
int tool_send(int argc, char **argv);
int tool_status(int argc, char **argv);
int tool_declare_dead(int argc, char **argv);
int bench_plan(int argc, char **argv);
int bench_transfer(int argc, char **argv);
int bench_node(int argc, char **argv);

/* --- the run (tool.c) ----------------------------------------------------------------------- */

/* The words behind "kvferry" in messages, e.g. "bench plan". Set by main and by tool_bench. */
void tool_set_verb(const char *verb);
const char *tool_verb(void);

/* Whether --json is among the arguments: then stdout gets one JSON value and nothing else. */
bool tool_json(void);
void tool_set_json(bool json);

/* Text that may come from a file: no byte of it steers a terminal. */
void tool_put(const char *text, FILE *file);

/* A line on stderr: "kvferry <verb>: ...". */
void tool_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Used wrongly: says what was expected and found at `what` (an option or an operand) and where help
 * is. Returns TOOL_WRONG_USE. */
int tool_misuse(const char *what, const char *expected, const char *found);

/* What was tried failed at `place`, for one reason. Returns TOOL_FAILED. */
int tool_fail(const char *code, const char *place, const char *expected, const char *found);

/* Something that should not happen. Returns TOOL_UNEXPECTED. */
int tool_unexpected(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Never NULL: without memory the command ends with TOOL_UNEXPECTED. Zeroed; free() it. */
void *tool_alloc(size_t count, size_t size);
void *tool_grow(void *data, size_t count, size_t size); /* not zeroed */
char *tool_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void tool_no_memory(void);

/* Strings that are not the list's own. */
typedef struct tool_list {
    const char **items;
    size_t count;
} tool_list;
void tool_list_add(tool_list *list, const char *item);
void tool_list_free(tool_list *list);

/* Whether the file that `option` names can be read: TOOL_GO_ON, or wrong use. NULL is none. */
int tool_check_file(const char *option, const char *expected, const char *path);

/* Whether a node's address has the form of one (tool_address.c): TOOL_GO_ON, or wrong use. */
int tool_check_address(const char *address);

/* Reads a whole file, or stdin for "-" (once a run). TOOL_GO_ON with *data, terminated by a zero
 * byte, the caller's to free(); else the exit status, with the message already given. */
int tool_read(const char *path, char **data, size_t *size);

/* Prints one JSON value and a newline on stdout and gives it up; NULL counts as out of memory. */
void tool_print_json(json_t *value);

/* A JSON string, never NULL, of text that may not be UTF-8 (file names): odd bytes become '?'. */
json_t *tool_json_text(const char *text);

/* Flushes stdout and turns a failed write into TOOL_UNEXPECTED. main calls it last. */
int tool_close_output(int status);

/* --- options (tool_options.c) --------------------------------------------------------------- */

typedef enum tool_take {
    TOOL_FLAG,   /* value: bool * */
    TOOL_STRING, /* value: const char ** */
    TOOL_STRINGS,/* value: tool_list *; the option may be repeated */
    TOOL_NUMBER, /* value: uint64_t *, least .. most (most 0: no limit); 1k, 1M, 1G are powers of 1024 */
    TOOL_CHOICE  /* value: const char **, one of `argument`, e.g. "shm|tcp" */
} tool_take;

typedef struct tool_option {
    const char *name;     /* without "--" */
    char letter;          /* the short form, or 0 */
    tool_take take;
    void *value;
    const char *argument; /* what help calls the value, e.g. "FILE" */
    const char *help;     /* NULL: not listed */
    uint64_t least, most;
} tool_option;

typedef struct tool_usage {
    const char *synopsis; /* lines, each behind "kvferry <verb> " */
    const char *about;    /* what the verb does */
    const tool_option *options;
    size_t option_count;
    const char *notes;    /* behind the options; or NULL */
} tool_usage;

/* Parses with getopt_long; --help and --json are added. TOOL_GO_ON with *operand, the index of the
 * first argument that is no option; else the exit status (--help was asked for, or wrong use). */
int tool_parse(const tool_usage *usage, int argc, char **argv, int *operand);

/* Parses a TOOL_NUMBER's value for the option `name`. TOOL_GO_ON, or wrong use. */
int tool_number_parse(const char *name, const char *text, uint64_t least, uint64_t most,
                      uint64_t *number);

/* --- reasons (tool_reasons.c) --------------------------------------------------------------- */

/* All that was found wrong so far, as the objects that --json prints. Zeroed at first. */
typedef struct tool_reasons {
    json_t *list;
    json_t *seen; /* the messages in the list, so that nothing is said twice */
    size_t dropped;
} tool_reasons;

/* The object that stands for a reason. `file`, unless NULL, goes in front of place and message. */
json_t *tool_reason_json(const kvferry_reason *reason, const char *file);

/* Adds a copy of a reason, unless it is there already. */
void tool_reasons_add(tool_reasons *reasons, const kvferry_reason *reason);

/* Adds the report's reasons, but those that are there already, and clears it. */
void tool_reasons_take(tool_reasons *reasons, kvferry_report *report, const char *file);
/* Adds what --json printed of others; of more than a report keeps only their number. */
void tool_reasons_join(tool_reasons *reasons, const json_t *list);
size_t tool_reasons_count(const tool_reasons *reasons);
void tool_reasons_free(tool_reasons *reasons);

/* Prints the refusal: {"ok": false, "reasons": [...]} with --json, else `headline` and a text for a
 * person on `text`. Frees the reasons. Returns TOOL_FAILED. */
int tool_refuse(tool_reasons *reasons, const char *headline, FILE *text);

/* The same of what was done in part: with --json, `done` is the member `key`. Gives it up. */
int tool_refuse_with(tool_reasons *reasons, const char *headline, FILE *text, const char *key, json_t *done);

/* After a library call whose report is `report`: TOOL_GO_ON if it went well or if it refused (then
 * its reasons are taken over), else TOOL_UNEXPECTED with the message given. */
int tool_check_status(kvferry_status status, const char *what, tool_reasons *reasons,
                      kvferry_report *report, const char *file);

kvferry_report *tool_report(void); /* a new one, never NULL */

/* A node's text, and its reasons, with the command's options for the fields that they set (tool_words.c). free() the
 * text. */
char *tool_name_options(const char *text);
void tool_reasons_name_options(tool_reasons *reasons);

/* --- models, documents, sides (tool_model.c, tool_side.c) ------------------------------------ */

typedef struct tool_topology {
    uint32_t tp, pp;
} tool_topology;

/* "tp4", "tp2pp2", "pp2tp2", "pp2"; what is left out is 1. false: not of that form. */
bool tool_topology_parse(const char *text, tool_topology *topology);

/* A model's config.json. `name` is how reports call it. */
typedef struct tool_model {
    char *name;
    char *config;
    size_t size;
} tool_model;

/* Reads the model that `option` names: a file, "-", a folder with a config.json, or a name from the
 * folder of models. TOOL_GO_ON, or the exit status; free with tool_model_free. */
int tool_model_read(const char *option, const char *model, tool_model *result);
/* The model's name where what was refused is in its config, and not in an option; else NULL. */
const char *tool_model_blamed(const tool_model *model, const kvferry_report *report);
void tool_model_free(tool_model *model);

/* The options of kvferry_model_options as command-line options, once or with a prefix per side. */
#define TOOL_MODEL_OPTION_LIMIT 40
typedef struct tool_model_values {
    const char *prefix; /* set by tool_model_option_rows */
    const char *given[TOOL_MODEL_OPTION_LIMIT];
} tool_model_values;

/* Writes the rows of the options into `rows` (at least TOOL_MODEL_OPTION_LIMIT) and returns their
 * number. `prefix` is "" (listed in help) or e.g. "prefill-" (not listed); it lives as long as the
 * program (a literal). `blocks` is what help says of the default of --num-gpu-blocks-override. */
size_t tool_model_option_rows(const char *prefix, const char *blocks, tool_model_values *values,
                              tool_option *rows);

/* Sets the fields that `side` gives, else those that `common` gives; either may be NULL. */
int tool_model_options_apply(const tool_model_values *common, const tool_model_values *side,
                             kvferry_model_options *options);

/* The names of the options that are given, with commas between; "": none. free() it. */
char *tool_model_options_given(const tool_model_values *values);

/* All workers of one engine. names[i] is the file that a document came from, or "tp1 pp0". */
typedef struct tool_side {
    kvferry_layout **layouts;
    char **names;
    size_t count;
} tool_side;

/* The workers of `topology`, by pipeline rank and then tensor-parallel rank. TOOL_GO_ON also where
 * the model refused: then `reasons` says why, with `where` (or NULL) in front of each place, and the
 * side is incomplete. */
int tool_side_from_model(tool_side *side, const tool_model *model, const tool_topology *topology,
                         const kvferry_model_options *options, const char *where,
                         tool_reasons *reasons);
/* The same of documents: one that cannot be parsed or is not valid adds its reasons. */
int tool_side_from_files(tool_side *side, const tool_list *files, tool_reasons *reasons);
/* Gives the layout and its name to the side. */
void tool_side_add(tool_side *side, kvferry_layout *layout, char *name);
void tool_side_free(tool_side *side);

/* --- output for people (tool_table.c, tool_fold.c) ------------------------------------------- */

/* A table on stdout. A column whose name starts with '>' is right-aligned (the '>' is not shown). */
typedef struct tool_table tool_table;
tool_table *tool_table_create(const char *const *columns, size_t count);
void tool_table_row(tool_table *table, const char *const *cells); /* as many as columns; copied */
void tool_table_print(tool_table *table);                        /* and frees it */

/* "1,097,728"; in one of a few rotating buffers. */
const char *tool_number(uint64_t number);
/* "1 block", "1,097 blocks", "2 copies"; as above. */
const char *tool_count(uint64_t number, const char *one);
/* "1.05 MiB"; in one of a few rotating buffers. */
const char *tool_size(uint64_t bytes);

/* Names folded where they differ in their first number: "model.layers.{3,7..39}.self_attn". The
 * names are to be in the order of first appearance; equal ones count once. free() the result. */
char *tool_fold(const char *const *names, size_t count);

#endif
