/* SPDX-License-Identifier: Apache-2.0 */
/* A config.json, for a worker whose place and options the first bytes choose. */
#include "fuzz.h"

#define PICK(list, byte) ((list)[(byte) % (sizeof(list) / sizeof((list)[0]))])

static const char *const platforms[] = {"", "sm90", "sm100", "sm120", "cpu"};
static const char *const kv_dtypes[] = {"", "auto", "bfloat16", "fp8", "fp8_ds_mla"};
static const char *const conv_layouts[] = {"", "DS", "SD"};
static const char *const orders[] = {"", "LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"};
static const char *const modes[] = {"", "align", "none"};
static const char *const kpools[] = {"", "ring", "tail"};

enum { CHOICES = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < CHOICES)
        return 0;
    kvferry_model_options options = {
        .size = sizeof(options),
        .tp_size = data[0] % 8u,
        .tp_rank = data[0] / 8u % 4u,
        .pp_size = data[1] % 4u,
        .pp_rank = data[1] / 4u % 4u,
        .platform = PICK(platforms, data[2]),
        .kv_dtype = PICK(kv_dtypes, data[3]),
        .conv_layout = PICK(conv_layouts, data[4]),
        .memory_order = PICK(orders, data[5]),
        .mamba_mode = PICK(modes, data[6]),
        .kpool = PICK(kpools, data[6] / 4u),
        .block_size = data[7] % 4u * 16u,
        .mtp_layers = data[7] / 4u % 3u,
        .blocks = 4,
    };
    kvferry_report *report = fuzz_report();
    kvferry_layout *layout = NULL;
    kvferry_status status = kvferry_model_layout((const char *)data + CHOICES, size - CHOICES,
                                                 &options, &layout, report);
    fuzz_verdict(status, report);
    MUST((status == KVFERRY_OK) == (layout != NULL));
    kvferry_layout_free(layout);
    kvferry_report_free(report);
    return 0;
}
