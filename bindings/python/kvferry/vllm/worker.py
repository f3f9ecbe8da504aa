# SPDX-License-Identifier: Apache-2.0
"""A worker's half of the connector: its caches as a node, what the scheduler wants as the node's calls."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.utils.network_utils import get_ip

from kvferry import mooncake, nixl
from kvferry._address import for_rank, with_port
from kvferry.layout import Layout
from kvferry.layout import Worker as LayoutWorker
from kvferry.node import Event, EventKind, LogLevel, Memory, Node, Outcome, Segment, Side, Table
from kvferry.report import Error
from kvferry.vllm._options import node_options_of
from kvferry.vllm._part import WorkerMetadata, keeps_window, refuse_beside_others
from kvferry.vllm._peers import OwnDocument, own_document
from kvferry.vllm.bootstrap import Bootstrap
from kvferry.vllm.layout import document_from_vllm, first_spec, write_layout
from kvferry.vllm.metrics import KvferryStats
from kvferry.vllm.scheduler import Ask, GroupBlocks, Metadata, Offer, Renewal, lease_ms

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger(f"vllm.{__name__}")  # below the logger that vLLM sets up

_LOG = {
    LogLevel.ERROR: logger.error,
    LogLevel.WARNING: logger.warning,
    LogLevel.INFO: logger.info,
    LogLevel.DEBUG: logger.debug,
}

#: How long an ask may wait for a request that the prefill side has not been given yet: a router may send both halves
#: of a request at the same time.
EARLY_MS = 20_000


#: Why a call is refused whose transfer id is another's: that one goes on, or has ended.
TOLD_ALREADY = frozenset({"transfer_known", "transfer_over"})

#: What a call of the node may raise: all of it is about one request, and no reason to end the engine's step.
FAILURES = (Error, MemoryError)


def _told_already(error: BaseException) -> bool:
    return isinstance(error, Error) and bool(error.codes & TOLD_ALREADY)


class _Fence:
    """Done once all that was launched on the device before it is."""

    def __init__(self, device: torch.device) -> None:
        self._event: Any = None
        if device.type != "cpu":
            self._event = torch.Event(device)
            self._event.record()

    def passed(self) -> bool:
        return self._event is None or self._event.query()


class Worker:
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        config = vllm_config.kv_transfer_config
        assert config is not None
        assert config.engine_id is not None
        self._engine_id = config.engine_id
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._config = config
        self._options = node_options_of(config)
        self._node: Node | None = None
        self._layout: Layout | None = None
        self._groups: tuple[str, ...] = ()  # names in the document, by transfer group
        self._device = torch.device("cpu")
        self._never_in_part = False
        self._fenced: deque[tuple[_Fence, Metadata]] = deque()
        self._sending: dict[str, str] = {}  # transfer id -> request id
        self._receiving: dict[str, str] = {}
        self._results = KVConnectorTransferResults()
        self._in_part: set[str] = set()  # request ids, until the scheduler's half is told
        self.stats = KvferryStats()

    # --- start and end -------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor], *, alone: bool = True) -> None:
        """alone: vLLM has no other connector. Others may store blocks by what vLLM takes to be in them."""
        if not alone:
            refuse_beside_others(self._config, self._kv_cache_config)
            self._never_in_part = any(
                keeps_window(first_spec(group)) for group in self._kv_cache_config.transfer_groups
            )
        live = document_from_vllm(self._vllm_config, self._kv_cache_config, kv_caches, self._engine_id, self._worker())
        if path := write_layout(live.layout):
            logger.info("kvferry: this worker's layout document is in %s", path)
        self._layout, self._groups = live.layout, live.groups
        self._device = next(iter(kv_caches.values())).device
        memory = {"cpu": Memory.HOST, "cuda": Memory.ROCM if torch.version.hip else Memory.CUDA}.get(self._device.type)
        if memory is None:
            raise ValueError(f"kvferry: caches are on device {self._device.type!r}: expected cpu or cuda")
        self._node = self._open_node(live.layout, [Segment(each.address, memory) for each in live.segments])
        logger.info("kvferry: this worker is incarnation %s at %s", self._node.incarnation, self._node.address)
        self._tell_leader(self._node)

    @staticmethod
    def _worker() -> LayoutWorker:
        """This worker's ranks. Each data-parallel rank is an engine of its own, with an id of its own."""
        tp, pp = get_tp_group(), get_pp_group()
        return LayoutWorker(
            tp_rank=tp.rank_in_group, tp_size=tp.world_size, pp_rank=pp.rank_in_group, pp_size=pp.world_size
        )

    def own_document(self) -> OwnDocument | None:
        return own_document(self._config, self._layout) if self._layout is not None else None

    def _open_node(self, layout: Layout, segments: list[Segment]) -> Node:
        options = dict(self._options)
        if options.get("engine") == "mooncake":
            options["engine"] = mooncake.engine_name()
        elif options.get("engine") == "nixl":
            nixl.find_library()
        host = get_ip()
        options["lease_ms"] = lease_ms(self._config)
        options.setdefault("transfer_ms", envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT * 1000)
        options.setdefault("early_ms", EARLY_MS)
        tp, pp = get_tp_group(), get_pp_group()
        if "metrics_listen" in options:
            engine = self._vllm_config.parallel_config.data_parallel_index
            rank = (engine * pp.world_size + pp.rank_in_group) * tp.world_size + tp.rank_in_group
            options["metrics_listen"] = for_rank(options["metrics_listen"], rank)
        bootstrap = Bootstrap.of(self._vllm_config, host, tp.rank_in_group, pp.rank_in_group)
        return Node(
            layout,
            segments,
            listen=f"tcp://{with_port(host, 0)}",
            bootstrap_listen=bootstrap.listen,
            bootstrap=bootstrap.url,
            bootstrap_rank=bootstrap.dp_rank,
            log=lambda level, line: _LOG[level]("kvferry: %s", line),
            log_level=LogLevel.DEBUG if logger.isEnabledFor(10) else LogLevel.INFO,
            **options,
        )

    @staticmethod
    def _tell_leader(node: Node) -> None:
        """The first worker's address, to all workers of this engine."""
        tp, pp = get_tp_group(), get_pp_group()
        address = tp.broadcast_object(node.address if tp.rank_in_group == 0 else None, src=0)
        address = pp.broadcast_object(address if pp.rank_in_group == 0 else None, src=0)
        if tp.rank_in_group or pp.rank_in_group:
            node.set_leader(address)

    def shutdown(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None

    # --- every step --------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        assert self._node is not None, "register_kv_caches comes first"
        return self._node

    def start(self, metadata: Metadata) -> None:
        """Blocks are offered and asked for once the device has done all that was launched so far: what wrote an
        offered block, and what last used or zeroed an asked one. What touches no block is said at once: nobody may
        call again, as the engine may have nothing else to do."""
        for transfer_id in metadata.expected:
            self._try(self.node.expect, transfer_id)
        for renewal in metadata.renewed:
            self._renew(renewal)
        for transfer_id in metadata.withdrawn:
            self._try(self.node.abort, Side.PREFILL, transfer_id)
        loads = [ask for ask in metadata.asks if ask.groups]
        for ask in metadata.asks:
            if not ask.groups:
                self._ask(ask)
        if metadata.offers or loads or metadata.aborted:
            self._fenced.append((_Fence(self._device), replace(metadata, asks=loads)))
        self._pass_fences()

    def _pass_fences(self) -> None:
        while self._fenced and self._fenced[0][0].passed():
            _, metadata = self._fenced.popleft()
            for offer in metadata.offers:
                self._offer(offer)
            for ask in metadata.asks:
                self._ask(ask)
            for transfer_id in metadata.aborted:
                if transfer_id in self._receiving:  # an ask that was refused may be for another request's id
                    self._try(self.node.abort, Side.DECODE, transfer_id)

    @staticmethod
    def _try(call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except FAILURES as error:
            logger.debug("kvferry: %s%s: %s", call.__name__, arguments, error)

    def _renew(self, renewal: Renewal) -> None:
        """An engine that nothing was loaded from yet is met first; the next renewal reaches it."""
        try:
            self.node.renew(renewal.engine_id, renewal.transfer_id)
        except FAILURES as error:
            if isinstance(error, Error) and "peer_unknown" in error.codes:
                self._try(self.node.connect, renewal.bootstrap, renewal.engine_id)
            else:
                logger.debug("kvferry: the lease of %s is not prolonged: %s", renewal.transfer_id, error)

    def _tables(self, groups: list[GroupBlocks]) -> dict[str, Table]:
        return {
            name: Table(blocks, first_token)
            for name, (first_token, blocks) in zip(self._groups, groups, strict=False)
            if blocks
        }

    def _offer(self, offer: Offer) -> None:
        try:
            self.node.offer(offer.transfer_id, offer.tokens, self._tables(offer.groups), ready=True)
        except FAILURES as error:
            logger.error("kvferry: request %s cannot be offered: %s", offer.request_id, error)
            self.stats.count("sends_failed")
            self._results.finished_sending.add(offer.request_id)
            if not _told_already(error):  # who waits for it fails now, not at the lease's end
                self._try(self.node.abort, Side.PREFILL, offer.transfer_id)
            return
        self._sending[offer.transfer_id] = offer.request_id

    def _ask(self, ask: Ask) -> None:
        try:
            self._call_ask(ask, self._tables(ask.groups))
        except FAILURES as error:
            if not ask.groups:  # vLLM tells of a request that it never ran more than once
                log = logger.debug if _told_already(error) else logger.warning
                log("kvferry: blocks of request %s are not released early: %s", ask.request_id, error)
                return
            logger.error("kvferry: request %s cannot be loaded: %s", ask.request_id, error)
            self._failed(ask.request_id)
            if not _told_already(error):
                self._try(self._call_ask, ask, {})  # the prefill side need not hold its blocks
            return
        if ask.groups:
            self._receiving[ask.transfer_id] = ask.request_id

    def _call_ask(self, ask: Ask, tables: dict[str, Table]) -> None:
        self.node.ask(
            ask.transfer_id,
            ask.tokens,
            tables,
            engine_id=ask.engine_id,
            where=ask.bootstrap,
            whole_blocks=ask.whole_blocks or self._never_in_part,
            allow_part=ask.whole_blocks and not self._never_in_part,
        )

    def _failed(self, request_id: str, count: str = "receives_failed") -> None:
        """vLLM looks at failures of requests that still wait for their load: of one that it gave up, it frees the
        blocks."""
        self.stats.count(count)
        self._results.finished_recving.add(request_id)
        self._results.failed_recving.add(request_id)

    def results(self) -> KVConnectorTransferResults:
        """What has ended since the last call: every request once."""
        if self._node is not None:
            self._pass_fences()
            for event in self._node.events():
                if event.kind == EventKind.DISCONNECTED:
                    logger.warning("kvferry: engine %s: %s", event.engine_id, _why(event))
                elif event.kind in (EventKind.ENDED, EventKind.RELEASED):
                    self._sent(event) if event.side == Side.PREFILL else self._received(event)
        results, self._results = self._results, KVConnectorTransferResults()
        return results

    def metadata(self) -> WorkerMetadata | None:
        """What the scheduler's half is to know of the loads that have ended, those of `results` among them."""
        in_part, self._in_part = self._in_part, set()
        return WorkerMetadata(in_part) if in_part else None

    def _sent(self, event: Event) -> None:
        request_id = self._sending.get(event.transfer_id)
        if request_id is None:
            return
        if event.kind == EventKind.RELEASED:
            self._results.finished_sending.add(self._sending.pop(event.transfer_id))
        elif event.outcome == Outcome.DONE:
            self.stats.observe("sent_seconds", event.elapsed)
            self.stats.observe("sent_bytes", event.bytes)
            self.stats.observe("sent_copies", event.copies)
        else:
            logger.warning("kvferry: request %s was not sent: %s", request_id, _why(event))
            self.stats.count("sends_expired" if event.outcome == Outcome.EXPIRED else "sends_failed")

    def _received(self, event: Event) -> None:
        request_id = self._receiving.get(event.transfer_id)
        if request_id is None:
            return
        if event.kind == EventKind.ENDED:
            if event.outcome == Outcome.DONE:
                self.stats.observe("received_seconds", event.elapsed)
                if event.part:
                    self._in_part.add(request_id)
                    self.stats.count("received_in_part")
                    logger.info_once(
                        "kvferry: prefill workers do not hold all of the blocks here that windows begin in: such "
                        "blocks are not kept for later requests (vllm:kvferry_received_in_part_total)"
                    )
            elif event.outcome != Outcome.ABORTED:
                logger.error("kvferry: request %s was not loaded: %s", request_id, _why(event))
        elif event.outcome == Outcome.DONE:
            self._results.finished_recving.add(self._receiving.pop(event.transfer_id))
        else:
            self._failed(
                self._receiving.pop(event.transfer_id),
                "receives_aborted" if event.outcome == Outcome.ABORTED else "receives_failed",
            )


def _why(event: Event) -> str:
    reasons = "; ".join(reason.message for reason in event.reasons)
    return f"{event.outcome.name.lower()}: {event.code}: {reasons}" if event.code else event.outcome.name.lower()
