# SPDX-License-Identifier: Apache-2.0
"""The tensors that a later pipeline stage receives into, and drafts with stages.

vLLM makes the tensors in the dummy run before the first request, which it leaves out on a CPU; the first
request then fails on an assertion. Drafts with stages its first model runner, the one for CPUs, does not start with.
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
    mend_drafter()
    mend_early_drafts()


class NoDrafter:
    def load_model(self, model) -> None:
        pass


def mend_drafter() -> None:
    """Stages before the last have no drafter, and are asked for one at their start and in each step.

    They do not hear how many drafts were accepted either, which a state needs: so this does for a server that only
    prefills, and accepts none.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as Runner

    initialize = Runner.initialize_kv_cache

    def without_drafts(self, *args, **kwargs):
        if not isinstance(self.drafter, NoDrafter):
            return initialize(self, *args, **kwargs)
        told, self.speculative_config = self.speculative_config, None
        try:
            return initialize(self, *args, **kwargs)
        finally:
            self.speculative_config = told

    Runner.drafter = NoDrafter()
    Runner.initialize_kv_cache = without_drafts


def mend_early_drafts() -> None:
    """With stages, the drafts of a step are taken in before its token is, and then run in that token's place."""
    from vllm.v1.core.sched.scheduler import Scheduler

    update = Scheduler.update_draft_token_ids

    def update_and_drop(self, draft_token_ids):
        update(self, draft_token_ids)
        for request_id in draft_token_ids.req_ids:
            request = self.requests.get(request_id)
            if request is not None and request.num_computed_tokens >= request.num_tokens:
                request.spec_token_ids = []

    Scheduler.update_draft_token_ids = update_and_drop
