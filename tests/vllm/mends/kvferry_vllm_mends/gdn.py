# SPDX-License-Identifier: Apache-2.0
"""One token through GDN layers.

Of one token in a prefill: the kernel of the convolution refuses a column of one token, which is contiguous either way
round. It gets two, of which the second belongs to no sequence.

Of one sequence with one token, where others have drafts: the kernel of the recurrence wants the state's index next to
the following one, and there is none. It gets the same memory as a row of its own.
"""


def mend() -> None:
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    original = gdn_attention._causal_conv1d_fwd_cpu

    def forward(*, x, **more):
        if x.shape[1] != 1:
            return original(x=x, **more)
        two = original(x=x.transpose(0, 1).repeat(2, 1).transpose(0, 1), **more)
        return two.transpose(0, 1)[:1].contiguous().transpose(0, 1)  # what reads it wants rows of tokens

    gdn_attention._causal_conv1d_fwd_cpu = forward

    ops = gdn_attention.ops
    update = ops.fused_sigmoid_gating_delta_rule_update_cpu

    def of_one(*, initial_state_indices, **more):
        if len(initial_state_indices) == 1:
            initial_state_indices = initial_state_indices.as_strided((1,), (1,))
        return update(initial_state_indices=initial_state_indices, **more)

    ops.fused_sigmoid_gating_delta_rule_update_cpu = of_one
