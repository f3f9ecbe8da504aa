# SPDX-License-Identifier: Apache-2.0
"""What vLLM 0.32 lacks to serve pipeline stages, drafts and DeepSeek-V4 without a GPU. For tests only."""


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from . import deepseek_v4, gdn, idle, pipeline, speculation

    pipeline.mend()
    idle.mend()
    deepseek_v4.mend()
    gdn.mend()
    speculation.mend()
