# SPDX-License-Identifier: Apache-2.0
"""vLLM's own MooncakeConnector on a CPU, for comparisons.

Used by --kv-transfer-config '{"kv_connector": "MooncakeOnCpu", "kv_connector_module_path":
"kvferry_vllm_mends.mooncake", ...}'. It asks which accelerator is current, and there is none.
"""

import torch
from vllm.platforms import current_platform

torch.accelerator.current_device_index = lambda: 0
torch.accelerator.synchronize = lambda *args, **kwargs: None
type(current_platform).set_device = classmethod(lambda cls, device: None)

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (  # noqa: E402
    MooncakeConnector,
)


class MooncakeOnCpu(MooncakeConnector):
    """Differs in nothing but its name."""
