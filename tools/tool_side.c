/* SPDX-License-Identifier: Apache-2.0 */
/* All workers of one engine: from a model and its options, or from files. */
#include "tool.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- the options of a model ----------------------------------------------------------------- */

typedef enum field_kind { FIELD_TEXT, FIELD_U32, FIELD_U64 } field_kind;

typedef struct field {
    const char *name, *alias; /* the alias is not listed in help */
    field_kind kind;
    size_t offset;
    const char *argument, *help;
} field;

#define FIELD(member) offsetof(kvferry_model_options, member)

/* The name is vLLM's where it has an option for it, else the field's; the alias is the field's, or
 * vLLM's environment variable in an option's spelling. */
static const field fields[] = {
    {"platform", NULL, FIELD_TEXT, FIELD(platform), "NAME",
     "sm90 (default), sm100, sm120, cpu or cpu-amx; the first three also\n"
     "with -fi behind them, for FlashInfer"},
    {"attention-backend", "backend", FIELD_TEXT, FIELD(backend), "NAME",
     "attention backend; default: the first that serves the rest"},
    {"kv-cache-dtype", "kv-dtype", FIELD_TEXT, FIELD(kv_dtype), "TYPE",
     "auto (default), the model's own, fp8 or fp8_ds_mla"},
    {"mamba-ssm-cache-dtype", "state-dtype", FIELD_TEXT, FIELD(state_dtype), "TYPE",
     "recurrent state: float32, bfloat16 or float16; default: the model's"},
    {"indexer-dtype", NULL, FIELD_TEXT, FIELD(indexer_dtype), "TYPE",
     "sparse indexer: fp8 (default) or mxfp4"},
    {"conv-layout", "ssm-conv-state-layout", FIELD_TEXT, FIELD(conv_layout), "ORDER",
     "DS or SD (default)"},
    {"kv-cache-layout", "memory-order", FIELD_TEXT, FIELD(memory_order), "ORDER",
     "LBHNC, LBNHC, LHBNC, BLHNC, BLNHC or BHLNC; default: the model's"},
    {"mamba-cache-mode", "mamba-mode", FIELD_TEXT, FIELD(mamba_mode), "MODE",
     "align (default) or none"},
    {"kpool", NULL, FIELD_TEXT, FIELD(kpool), "KIND",
     "GLM's pooled keys: ring (default) or tail (the earlier layout)"},
    {"block-size", NULL, FIELD_U64, FIELD(block_size), "TOKENS", "default: the backend's"},
    {"kernel-block-size", NULL, FIELD_U64, FIELD(kernel_block_size), "TOKENS",
     "tokens a kernel block; default: the backend's"},
    {"max-model-len", NULL, FIELD_U64, FIELD(max_model_len), "TOKENS",
     "the state groups' block in mode none; default: the model's"},
    /* the help goes on with the verb's default */
    {"num-gpu-blocks-override", "blocks", FIELD_U64, FIELD(blocks), "N",
     "blocks in the pool; default "},
    {"mtp-layers", NULL, FIELD_U32, FIELD(mtp_layers), "N", "draft layers; default 0"},
    {"speculative-tokens", "num-speculative-tokens", FIELD_U32, FIELD(speculative_tokens), "N",
     "default: 1 if there are draft layers"},
    {"model-name", NULL, FIELD_TEXT, FIELD(model), "NAME",
     "the identity that both sides must share; default: the config's"},
    {"engine-id", NULL, FIELD_TEXT, FIELD(engine_id), "NAME", "how reports call the engine"},
};

#define FIELD_COUNT (sizeof(fields) / sizeof(*fields))
_Static_assert(2 * FIELD_COUNT <= TOOL_MODEL_OPTION_LIMIT, "raise TOOL_MODEL_OPTION_LIMIT");

/* "--prefill-block-size" is a text that only exists here: kept as long as the program runs. */
static const char *prefixed(const char *prefix, const char *name)
{
    static char *kept[4 * TOOL_MODEL_OPTION_LIMIT];
    static size_t count;
    if (!*prefix)
        return name;
    char *text = tool_text("%s%s", prefix, name);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(kept[i], text) != 0)
            continue;
        free(text);
        return kept[i];
    }
    return kept[count++] = text;
}

size_t tool_model_option_rows(const char *prefix, const char *blocks, tool_model_values *values, tool_option *rows)
{
    size_t count = 0;
    values->prefix = prefix;
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const char *help = *prefix ? NULL : fields[i].help;
        if (help && fields[i].offset == FIELD(blocks))
            help = prefixed(help, blocks);
        rows[count++] = (tool_option){.name = prefixed(prefix, fields[i].name),
                                      .take = TOOL_STRING,
                                      .value = &values->given[i],
                                      .argument = fields[i].argument,
                                      .help = help};
        if (fields[i].alias)
            rows[count++] = (tool_option){.name = prefixed(prefix, fields[i].alias),
                                          .take = TOOL_STRING,
                                          .value = &values->given[i],
                                          .argument = fields[i].argument};
    }
    return count;
}

static int apply(const field *row, const char *prefix, const char *text,
                 kvferry_model_options *options)
{
    void *member = (char *)options + row->offset;
    if (row->kind == FIELD_TEXT) {
        *(const char **)member = text;
        return TOOL_GO_ON;
    }
    uint64_t number = 0;
    int status = tool_number_parse(prefixed(prefix, row->name), text, 0,
                                   row->kind == FIELD_U32 ? UINT32_MAX : 0, &number);
    if (status != TOOL_GO_ON)
        return status;
    if (row->kind == FIELD_U32)
        *(uint32_t *)member = (uint32_t)number;
    else
        *(uint64_t *)member = number;
    return TOOL_GO_ON;
}

int tool_model_options_apply(const tool_model_values *common, const tool_model_values *side,
                             kvferry_model_options *options)
{
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < FIELD_COUNT && status == TOOL_GO_ON; i++) {
        const tool_model_values *from = side && side->given[i] ? side : common;
        if (from && from->given[i])
            status = apply(&fields[i], from->prefix, from->given[i], options);
    }
    return status;
}

char *tool_model_options_given(const tool_model_values *values)
{
    char *names = tool_text("%s", "");
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (!values->given[i])
            continue;
        const char *alias = fields[i].alias;
        char *longer = tool_text("%s%s--%s%s%s%s%s%s", names, *names ? ", " : "", values->prefix, fields[i].name,
                                 alias ? " (--" : "", alias ? values->prefix : "", alias ? alias : "", alias ? ")" : "");
        free(names);
        names = longer;
    }
    return names;
}

/* --- sides --------------------------------------------------------------------------------- */

void tool_side_add(tool_side *side, kvferry_layout *layout, char *name)
{
    side->layouts = tool_grow(side->layouts, side->count + 1, sizeof(*side->layouts));
    side->names = tool_grow(side->names, side->count + 1, sizeof(*side->names));
    side->layouts[side->count] = layout;
    side->names[side->count++] = name;
}

int tool_side_from_model(tool_side *side, const tool_model *model, const tool_topology *topology,
                         const kvferry_model_options *options, const char *where,
                         tool_reasons *reasons)
{
    kvferry_report *report = tool_report();
    kvferry_model_options worker = *options;
    worker.tp_size = topology->tp;
    worker.pp_size = topology->pp;
    int status = TOOL_GO_ON;
    for (uint32_t i = 0; i < topology->tp * topology->pp && status == TOOL_GO_ON; i++) {
        kvferry_layout *layout;
        worker.tp_rank = i % topology->tp;
        worker.pp_rank = i / topology->tp;
        kvferry_status made =
            kvferry_model_layout(model->config, model->size, &worker, &layout, report);
        const char *blamed = tool_model_blamed(model, report);
        status = tool_check_status(made, model->name, reasons, report, blamed ? blamed : where);
        if (made == KVFERRY_OK && topology->pp > 1)
            tool_side_add(side, layout, tool_text("pp%u tp%u", worker.pp_rank, worker.tp_rank));
        else if (made == KVFERRY_OK)
            tool_side_add(side, layout, tool_text("tp%u", worker.tp_rank));
    }
    kvferry_report_free(report);
    return status;
}

int tool_side_from_files(tool_side *side, const tool_list *files, tool_reasons *reasons)
{
    kvferry_report *report = tool_report();
    int status = TOOL_GO_ON;
    for (size_t i = 0; i < files->count && status == TOOL_GO_ON; i++) {
        const char *file = files->items[i];
        kvferry_layout *layout;
        char *text;
        size_t size;
        status = tool_read(file, &text, &size);
        if (status != TOOL_GO_ON)
            break;
        kvferry_status read = kvferry_layout_read_json(text, size, &layout, report);
        free(text);
        status = tool_check_status(read, file, reasons, report, file);
        if (read == KVFERRY_OK)
            tool_side_add(side, layout, tool_text("%s", file));
    }
    kvferry_report_free(report);
    return status;
}

void tool_side_free(tool_side *side)
{
    for (size_t i = 0; i < side->count; i++) {
        kvferry_layout_free(side->layouts[i]);
        free(side->names[i]);
    }
    free(side->layouts);
    free(side->names);
    *side = (tool_side){0};
}
