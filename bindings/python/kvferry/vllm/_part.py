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
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager


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
        yet are waited for, unless they are free: what is in them is nobody's then."""
        evicted = False
        for request_id, blocks in list(self._incomplete.items()):
            assert self._manager is not None
            pool = self._manager.block_pool.blocks
            if cached := {block for block in blocks if pool[block].block_hash is not None}:
                self._manager.evict_blocks(cached)
                evicted = True
            left = {block for block in blocks - cached if pool[block].ref_cnt}
            if left:
                self._incomplete[request_id] = left
            else:
                del self._incomplete[request_id]
        return evicted
