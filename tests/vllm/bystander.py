# SPDX-License-Identifier: Apache-2.0
"""A connector of MultiConnector's that moves nothing: it is told of everything, and has to be told what is its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)


@dataclass
class Nothing(KVConnectorMetadata):
    pass


@dataclass
class Steps(KVConnectorWorkerMetadata):
    count: int

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Steps:
        assert isinstance(other, Steps)
        return Steps(self.count + other.count)


class Bystander(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.steps = 0

    # --- scheduler

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert num_external_tokens == 0

    def build_connector_meta(self, scheduler_output: Any) -> Nothing:
        return Nothing()

    def update_connector_output(self, connector_output: Any) -> None:
        if (told := connector_output.kv_connector_worker_meta) is not None:
            assert isinstance(told, Steps)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    # --- worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert isinstance(self._get_connector_metadata(), Nothing)
        self.steps += 1

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def build_connector_worker_meta(self) -> Steps | None:
        return Steps(self.steps) if self.steps % 2 else None
