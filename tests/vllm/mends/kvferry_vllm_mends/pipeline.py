# SPDX-License-Identifier: Apache-2.0
"""The tensors that a later pipeline stage receives into.

vLLM makes them in the dummy run before the first request, which it leaves out on a CPU; the first
request then fails on an assertion.
"""


def mend() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner.sync_and_gather_intermediate_tensors

    def with_tensors(self, *args, **kwargs):
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return original(self, *args, **kwargs)

    GPUModelRunner.sync_and_gather_intermediate_tensors = with_tensors
