# SPDX-License-Identifier: Apache-2.0
"""KvferryConnector: vLLM's connector interface, each call handed on to the half that it concerns."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvferry.vllm._options import options_of
from kvferry.vllm._part import WorkerMetadata
from kvferry.vllm._peers import OwnDocument, check_peers
from kvferry.vllm.metrics import KvferryPromMetrics, KvferryStats
from kvferry.vllm.scheduler import Metadata, Scheduler
from kvferry.vllm.worker import Worker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


def _register(connector: type[KVConnectorBase_V1]) -> None:
    """MultiConnector looks for the class of a connector's statistics by its name, whatever module it came from, and
    ends a server that does not find it."""
    with suppress(ValueError):  # it is registered
        KVConnectorFactory.register_connector(connector.__name__, connector.__module__, connector.__name__)


class KvferryConnector(KVConnectorBase_V1, SupportsHMA):
    """Moves caches between vLLM engines; docs/vllm.md is the page for its users."""

    _cache_hit_source = CacheHitSource.P2P

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls)

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(vllm_config, kv_cache_config)
        else:
            self._worker = self.make_worker(vllm_config, kv_cache_config)

    @staticmethod
    def make_worker(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Worker:
        return Worker(vllm_config, kv_cache_config)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Any will do. Heads that lie apart make the fewest copies between unequal TP sizes."""
        config = vllm_config.kv_transfer_config
        chosen = options_of(config).get("kv_cache_layout") if config else None
        if chosen is not None or vllm_config.model_config is None or vllm_config.model_config.use_mla:
            return chosen
        return "LBHNC"

    # --- scheduler ------------------------------------------------------------------------------------

    @property
    def scheduler(self) -> Scheduler:
        assert self._scheduler is not None
        return self._scheduler

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        check_peers(self._kv_transfer_config, metadata)

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self.scheduler.in_part.bind(kv_cache_manager)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self.scheduler.wholly_loaded_groups

    def on_new_request(self, request: Request) -> None:
        self.scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self.scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Metadata:
        return self.scheduler.build_metadata()

    def has_pending_push_work(self) -> bool:
        return self.scheduler.has_pending_work()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        told = connector_output.kv_connector_worker_meta
        if told is not None:
            assert isinstance(told, WorkerMetadata)
            self.scheduler.in_part.told(told.in_part)
        self.scheduler.loaded(connector_output.finished_recving or set())
        self.scheduler.sent(connector_output.finished_sending or set())

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.request_finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.request_finished(request, block_ids)

    # --- worker ----------------------------------------------------------------------------------------

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.worker.register_kv_caches(kv_caches, alone=not has_kv_transfer_group() or get_kv_transfer_group() is self)

    def get_handshake_metadata(self) -> OwnDocument | None:
        return self.worker.own_document()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Metadata)
        self.worker.start(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are between steps, never inside one."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Blocks are sent when the request has been prefilled."""

    def wait_for_save(self) -> None:
        """Blocks are sent when the request has been prefilled."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        results = self.worker.results()
        return results.finished_sending or None, results.finished_recving or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self.worker.results()

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        return self.worker.metadata()

    # --- both --------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KvferryStats | None:
        return (self._worker or self.scheduler).stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvferryStats:
        return KvferryStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KvferryPromMetrics:
        return KvferryPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.shutdown()


_register(KvferryConnector)
