# SPDX-License-Identifier: Apache-2.0
"""Loads in part: a prefill worker did not hold what comes before a window in the block that the window begins in; or
vLLM keeps more of the window than is loaded.

The request itself reads nothing of that. But vLLM keeps loaded blocks in its prefix cache as whole ones, once all
workers have reported the load and its scheduler comes upon the request again. They leave that cache before another
request uses them: each lookup is followed by a call of the connector, which can have it done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from kvferry.report import Reason, Refused
from kvferry.vllm.layout import first_spec, has_window

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


def keeps_window(spec: KVCacheSpec) -> bool:
    """Whether vLLM keeps blocks of a window in its prefix cache. (One that it computes again it does not.)"""
    return has_window(spec) and spec.prefix_cacheable


def refuse_beside_others(config: KVTransferConfig, kv_cache_config: KVCacheConfig) -> None:
    """Where each load leaves blocks incomplete, which other connectors might store: they go by the hashes of a
    request's tokens, whatever vLLM's prefix cache has, and if it has none."""
    if not config.is_kv_consumer:
        return
    for spec in map(first_spec, kv_cache_config.transfer_groups):
        if keeps_window(spec) and spec.extra_retained_tokens:
            raise Refused.of(
                [
                    Reason(
                        code="window_retained",
                        expected="0",
                        found=str(spec.extra_retained_tokens),
                        message="beside other connectors (MultiConnector), windows have to be kept as the model has "
                        f"them: several modules draft, for which vLLM keeps {spec.extra_retained_tokens} more tokens, "
                        "and no load fills these",
                    )
                ]
            )


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """What workers tell the scheduler's half, in the step that they report a load in or an earlier one."""

    in_part: set[str]  # ids of requests

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        assert isinstance(other, WorkerMetadata)
        return WorkerMetadata(self.in_part | other.in_part)


class LoadsInPart:
    """The blocks of loads in part that vLLM takes for whole ones, until they are out of its prefix cache."""

    def __init__(self) -> None:
        self._manager: KVCacheManager | None = None
        self._loading: dict[str, set[int]] = {}  # by request id: which blocks a load in part would leave incomplete
        self._incomplete: dict[str, set[int]] = {}  # which ones are

    def bind(self, manager: KVCacheManager) -> None:
        self._manager = manager

    def asked(self, request_id: str, in_part: set[int], never: set[int]) -> None:
        """Blocks that a load in part would leave incomplete, and those that any load does."""
        if in_part:
            self._loading[request_id] = in_part
        if never:
            self._incomplete[request_id] = never

    def told(self, request_ids: Iterable[str]) -> None:
        """By a worker: these were loaded in part, there at least."""
        for request_id in request_ids:
            if blocks := self._loading.pop(request_id, None):
                self._incomplete.setdefault(request_id, set()).update(blocks)

    def loaded(self, request_id: str) -> None:
        """By all workers, none of which tells any more of it."""
        self._loading.pop(request_id, None)

    def ended(self, request_id: str) -> None:
        """The request gives its blocks back."""
        self.evict()
        self._loading.pop(request_id, None)
        self._incomplete.pop(request_id, None)

    def evict(self) -> bool:
        """Takes incomplete blocks out of the prefix cache; whether any was in it. Those that vLLM has not put there
        yet are waited for while they are the request's: what another one has in them since is no concern."""
        evicted = False
        for request_id, blocks in list(self._incomplete.items()):
            assert self._manager is not None
            pool = self._manager.block_pool.blocks
            held = blocks.intersection(chain.from_iterable(self._manager.get_block_ids(request_id)))
            # One that was given back just now is in the cache still, and nobody else's.
            known = held | {block for block in blocks if not pool[block].ref_cnt}
            if cached := {block for block in known if pool[block].block_hash is not None}:
                self._manager.evict_blocks(cached)
                evicted = True
            if left := held - cached:
                self._incomplete[request_id] = left
            else:
                del self._incomplete[request_id]
        return evicted
