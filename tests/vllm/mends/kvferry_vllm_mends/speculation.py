# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding of models with recurrent state while prefixes are cached.

A state moves on to another block where a block of tokens ends. With drafts vLLM does that in two Triton kernels, which
have no driver on a CPU and, unlike the others of speculative decoding, nothing that stands in for them. The two methods
that launch them get one that copies.
"""

import ctypes


def mend() -> None:
    from vllm.triton_utils import HAS_TRITON
    from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext as Context

    if not HAS_TRITON:
        Context.run_fused_precopy = before_step
        Context.run_fused_postprocess = after_step


def copy(context, row, source, target, bias):
    """All states of a request, from one column of its block table to another: after `bias` tokens more than the source
    column's. Those are columns of their own, but of a convolution they are later places in the same window."""
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    for state in range(context.num_states):
        base, stride, size, inner, width, group, rows, row_stride = (
            int(each[state])
            for each in (
                context.state_base_addrs,
                context.state_block_strides,
                context.state_elem_sizes,
                context.state_inner_sizes,
                context.state_conv_widths,
                context.state_group_indices,
                context.state_dim_row_count,
                context.state_dim_row_stride,
            )
        )
        table = int(context.block_table_ptrs[group]) + row * context.block_table_stride_req * 4
        block = lambda column, table=table: ctypes.c_int32.from_address(table + column * 4).value  # noqa: E731
        into = base + block(target) * stride
        if width == 0:
            ctypes.memmove(into, base + block(source + bias) * stride, inner * size)
            continue
        out_of = base + block(source) * stride
        if not is_conv_state_dim_first():
            ctypes.memmove(into, out_of + bias * inner * size, (width - bias) * inner * size)
            continue
        for channel in range(rows):
            at = channel * row_stride
            ctypes.memmove(into + at, out_of + at + bias * size, (width - bias) * size)


def before_step(self, num_reqs, state_idx_gpu, src_col_gpu, token_bias_gpu, idx_mapping):
    if idx_mapping is not None:
        raise RuntimeError("the second model runner is not mended: it does not run on a CPU")
    for row in range(num_reqs if self.is_initialized else 0):
        source, target = int(src_col_gpu[row]), int(state_idx_gpu[row])
        if source >= 0 and source != target:
            copy(self, row, source, target, int(token_bias_gpu[row]))


def after_step(
    self,
    num_reqs,
    num_accepted_tokens_gpu,
    mamba_state_idx_gpu,
    num_scheduled_tokens_gpu,
    num_computed_tokens_gpu,
    num_draft_tokens_gpu,
):
    if not self.is_initialized:
        return
    self.num_accepted_tokens_out[:num_reqs].copy_(num_accepted_tokens_gpu[:num_reqs])
    for row in range(num_reqs):
        accepted, source = int(num_accepted_tokens_gpu[row]), int(mamba_state_idx_gpu[row])
        running = int(num_computed_tokens_gpu[row] + num_scheduled_tokens_gpu[row] - num_draft_tokens_gpu[row])
        whole = (running + accepted - 1) // self.block_size
        bias, target = whole * self.block_size - running, whole - 1
        if bias < 0:
            continue  # no block of tokens has ended
        if source == target:
            self.num_accepted_tokens_out[row] = 1
        if source != target or bias:
            copy(self, row, source, target, bias)
