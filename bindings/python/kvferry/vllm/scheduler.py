# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half of the connector: which tokens are moved, from and to which blocks.

Nothing here waits or talks to peers. What the workers have to do goes to them with each step's Metadata.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from kvferry.vllm._facts import is_draft
from kvferry.vllm._options import options_of
from kvferry.vllm._params import Claims
from kvferry.vllm._part import LoadsInPart, keeps_window
from kvferry.vllm._streams import KINDS, PAGED, STATE
from kvferry.vllm.layout import first_spec, layer_specs, window_tokens
from kvferry.vllm.metrics import KvferryStats

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
    from vllm.v1.request import Request

logger = init_logger(f"vllm.{__name__}")  # below the logger that vLLM sets up

#: How often at least the lease of a request that waits for its turn on the decode side is prolonged: four times a
#: lease, so that one of them may be the first to meet the prefill engine, and another get lost.
RENEW_SECONDS = 60.0

#: The block that stands in tables where there is none.
NULL_BLOCK = 0

#: One block table: the token its first block starts at, and block ids.
GroupBlocks = tuple[int, list[int]]


@dataclass
class Offer:
    """A prefilled request: its blocks are held until the workers report it as sent."""

    request_id: str
    transfer_id: str
    tokens: int
    groups: list[GroupBlocks]


@dataclass
class Ask:
    """A request to be loaded; without groups: only the prefill side's blocks are released."""

    request_id: str
    transfer_id: str
    engine_id: str
    bootstrap: str
    tokens: int
    groups: list[GroupBlocks]
    whole_blocks: bool = False  # of a window, its first block is wanted whole; else without what comes before


@dataclass
class Renewal:
    """A request that waits for its turn: the prefill side goes on holding its blocks."""

    transfer_id: str
    engine_id: str
    bootstrap: str


@dataclass
class Metadata(KVConnectorMetadata):
    """What the workers have to do."""

    expected: list[str] = field(default_factory=list)  # transfer ids that will be offered
    offers: list[Offer] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)  # expected ones that will not be offered
    aborted: list[str] = field(default_factory=list)  # transfer ids of asks that nobody wants any more
    renewed: list[Renewal] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not any((self.expected, self.offers, self.asks, self.withdrawn, self.aborted, self.renewed))


@dataclass
class _Waiting:
    """A decode request that has not been given blocks yet."""

    renewal: Renewal
    renew_at: float


def lease_ms(config: KVTransferConfig) -> int:
    """How long offered blocks are held: here, and of the other side the same is supposed."""
    return options_of(config).get("lease_ms") or envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT * 1000


def _replays(kv_cache_config: KVCacheConfig) -> bool:
    """Whether vLLM computes the last window of a prefix hit again."""
    return any(getattr(group.kv_cache_spec, "prefix_replay_tokens", 0) for group in kv_cache_config.kv_cache_groups)


def leaves_last(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> bool:
    """Whether the last prompt element is left to the decode side, which computes it in any case: where a request
    has a state or a ring, which is valid at one position only; and where it has a window, which after the last
    element lacks the first token that this element itself reads. (A bounded replay lays its window out for that
    element, too.) Both sides have to find the same, also where one drafts and the other does not: a window of draft
    layers does not count, and may cost a draft. A window of which the first stage has no layer is taken for theirs
    where there are drafts: they are in the last stage."""

    def drafts(layer: str) -> bool:
        return is_draft(layer, None, vllm_config) if layer else vllm_config.speculative_config is not None

    layers = [
        layer
        for group in kv_cache_config.transfer_groups
        for layer in layer_specs(group).items() or [("", first_spec(group))]
    ]
    return _replays(kv_cache_config) or any(
        KINDS[type(spec).__name__] != PAGED or (getattr(spec, "sliding_window", None) and not drafts(name))
        for name, spec in layers
    )


def live_state_block(blocks: Sequence[int], spec: MambaSpec) -> list[int]:
    """The one live block of a state group: the last one before the scratch blocks of speculation."""
    scratch = min(spec.num_speculative_blocks, len(blocks) - 1)
    return [blocks[len(blocks) - 1 - scratch]] if blocks else []


class Scheduler:
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        config = vllm_config.kv_transfer_config
        assert config is not None
        self._kv_cache_config = kv_cache_config
        self._renew_seconds = min(lease_ms(config) / 4000, RENEW_SECONDS)
        self._prefill = Claims(config.is_kv_producer, config.kv_role, ("transfer_id",))
        self._decode = Claims(
            config.is_kv_consumer, config.kv_role, ("transfer_id", "remote_engine_id", "remote_bootstrap_addr")
        )
        self._leaves_last = leaves_last(vllm_config, kv_cache_config)
        # vLLM wraps the specs of a group whose layers differ; they are of one kind, and share its blocks.
        self._groups = [
            (first_spec(group), group.kv_cache_spec.block_size) for group in kv_cache_config.transfer_groups
        ]
        self.wholly_loaded_groups = self._wholly_loaded()
        # vLLM keeps what was loaded in its prefix cache, by blocks: one that the window reaches into is whole there.
        self._whole_blocks = vllm_config.cache_config.enable_prefix_caching and any(
            keeps_window(spec) for spec, _ in self._groups
        )
        # A block that is filled behind its load is of use to whoever finds it and goes on at its end, where a window
        # begins later, too. But offered from here it would be a whole one.
        self._spares_filled = not config.is_kv_producer
        self._next = Metadata()
        self._waiting: dict[str, _Waiting] = {}  # by request id
        self._refused: dict[str, str] = {}  # request id -> why, until it gets its turn
        self._loading: dict[str, str] = {}  # request id -> transfer id, until reported
        self.in_part = LoadsInPart()
        self.stats = KvferryStats()

    def _wholly_loaded(self) -> tuple[int, ...]:
        """Groups whose new blocks vLLM need not zero. Of a paged group's last block only the tokens that there are
        get loaded, and kernels also read what lies behind them: times zero, which is no zero if it is NaN."""
        config = self._kv_cache_config
        if _replays(config):
            return config.transfer_group_ids  # here the answer also says whether the replayed window comes along
        return tuple(
            group_id
            for group_id, (spec, _) in zip(config.transfer_group_ids, self._groups, strict=True)
            if KINDS[type(spec).__name__] != PAGED
        )

    # --- arrival ----------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        params = request.kv_transfer_params
        if not params:
            return
        if not isinstance(params, dict):  # vllm_xargs may have anything under this name
            self._refused[request.request_id] = f"kv_transfer_params is a {type(params).__name__}"
            request.kv_transfer_params = None
        elif params.get("do_remote_prefill"):
            if self._claims(self._decode, request, params):
                renewal = Renewal(params["transfer_id"], params["remote_engine_id"], params["remote_bootstrap_addr"])
                self._waiting[request.request_id] = _Waiting(renewal, time.monotonic() + self._renew_seconds)
        elif params.get("do_remote_decode"):
            seen = self._prefill.owns(request.request_id)
            if self._claims(self._prefill, request, params) and not seen:
                if self._leaves_last:
                    self._drop_last_element(request)
                self._next.expected.append(params["transfer_id"])

    def _claims(self, claims: Claims, request: Request, params: dict[str, Any]) -> bool:
        """Whether the request's cache can be transferred; if not, vLLM computes it."""
        why = claims.claim(request.request_id, params)
        if why:
            self._refused[request.request_id] = why
            params["do_remote_prefill"] = params["do_remote_decode"] = False
        return not why

    def _say_refused(self, request: Request) -> None:
        """Once the request gets its turn. Of a client that went away vLLM makes a second request with the same
        parameters, ended as it arrives, in case that the first one never did: nothing is computed for that."""
        if why := self._refused.pop(request.request_id, ""):
            logger.error("kvferry: request %s is computed here, nothing is transferred: %s", request.request_id, why)
            self.stats.count("bad_params")

    @staticmethod
    def _drop_last_element(request: Request) -> None:
        """Leaves the last prompt element to the decode side: once, whatever becomes of the request here."""
        # One that wants log-probabilities of its whole prompt: the decode side computes it all.
        if request.num_prompt_tokens < 2 or request.get_skip_reading_prefix_cache():
            return
        if request.prompt_token_ids is not None:
            request.prompt_token_ids.pop()
        if request.prompt_embeds is not None:
            request.prompt_embeds = request.prompt_embeds[:-1]
        if request.prompt_is_token_ids is not None:  # a prompt of both: which is which
            request.prompt_is_token_ids.pop()
        request._all_token_ids.pop()
        request.num_prompt_tokens -= 1
        request.max_tokens = 1

    # --- decode side --------------------------------------------------------------------------------

    def _boundary(self, request: Request) -> int:
        """How many tokens of the request's prompt this side loads; it computes from there on."""
        return request.num_prompt_tokens - 1 if self._leaves_last else request.num_prompt_tokens

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self.in_part.evict():
            return None, False  # vLLM may just have found one of these: it looks again in the next step
        self._say_refused(request)
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return 0, False
        count = self._boundary(request) - num_computed_tokens
        return (count, True) if count > 0 else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self.in_part.evict()  # of this request, if it goes on behind its load: the next one's lookup comes after it
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return
        params["do_remote_prefill"] = False  # one transfer a request, whatever becomes of it
        self._waiting.pop(request.request_id, None)
        groups: list[GroupBlocks] = []
        if num_external_tokens > 0:
            boundary = self._boundary(request)
            groups = self._tables(blocks.get_block_ids(), boundary - num_external_tokens)
            self._loading[request.request_id] = params["transfer_id"]
            if self._whole_blocks:
                self.in_part.asked(request.request_id, *self._begun_before_windows(groups, boundary))
        self._ask(request, params, groups)

    def _ask(self, request: Request, params: dict[str, Any], groups: list[GroupBlocks]) -> None:
        self._next.asks.append(
            Ask(
                request.request_id,
                params["transfer_id"],
                params["remote_engine_id"],
                params["remote_bootstrap_addr"],
                self._boundary(request) if groups else 0,
                groups,
                self._whole_blocks,
            )
        )

    def _tables(self, block_ids: tuple[list[int], ...], first_token: int) -> list[GroupBlocks]:
        """Tables by transfer group. Blocks that lie wholly before `first_token` are left out."""
        if len(block_ids) != len(self._groups):
            block_ids = tuple(self._kv_cache_config.select_transfer_block_ids(block_ids))
        tables: list[GroupBlocks] = []
        for (spec, block_size), blocks in zip(self._groups, block_ids, strict=True):
            kind = KINDS[type(spec).__name__]
            if kind == PAGED:
                skipped = first_token // block_size
                tables.append((skipped * block_size, list(blocks[skipped:])))
            else:
                tables.append((0, live_state_block(blocks, spec) if kind == STATE else list(blocks)))
        return tables

    def _begun_before_windows(self, tables: list[GroupBlocks], boundary: int) -> tuple[set[int], set[int]]:
        """The blocks that begin before a window and that vLLM takes for loaded: those that a load in part leaves
        incomplete, and those that no load fills, since they end before the window, too. (Where several modules draft,
        vLLM keeps a few tokens more.)"""
        in_part: set[int] = set()
        never: set[int] = set()
        for (spec, block_size), (first_token, blocks) in zip(self._groups, tables, strict=True):
            if keeps_window(spec):
                before = max(0, boundary - window_tokens(spec) - first_token)
                ended, begun = before // block_size, -(-before // block_size)
                filled = (boundary - first_token) // block_size
                never.update(blocks[:ended])
                in_part.update(blocks[ended : min(begun, filled) if self._spares_filled else begun])
        return in_part - {NULL_BLOCK}, never - {NULL_BLOCK}

    # --- every step -----------------------------------------------------------------------------------

    def build_metadata(self) -> Metadata:
        self.in_part.evict()
        now = time.monotonic()
        for waiting in self._waiting.values():
            if now >= waiting.renew_at:
                waiting.renew_at = now + self._renew_seconds
                self._next.renewed.append(waiting.renewal)
        metadata, self._next = self._next, Metadata()
        return metadata

    def has_pending_work(self) -> bool:
        """Whether the workers have to hear of something although no request runs."""
        return not self._next.is_empty()

    def loaded(self, request_ids: set[str]) -> None:
        """All workers have reported these as received."""
        for request_id in request_ids:
            self._loading.pop(request_id, None)
            self.in_part.loaded(request_id)
            self._decode.release(request_id)

    def sent(self, request_ids: set[str]) -> None:
        """All workers have reported these as sent."""
        for request_id in request_ids:
            self._prefill.release(request_id)

    # --- the end ----------------------------------------------------------------------------------------

    def request_finished(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        params, request_id = request.kv_transfer_params, request.request_id
        self._waiting.pop(request_id, None)
        self._refused.pop(request_id, None)
        self.in_part.ended(request_id)
        if request_id in self._loading:
            self._next.aborted.append(self._loading[request_id])
            return False, None  # vLLM itself waits until the load is reported; until then the id is in use
        if params and params.get("do_remote_prefill"):
            # It ends before it was scheduled: the prefill side's blocks are released all the same.
            params["do_remote_prefill"] = False
            self._ask(request, params, [])
        self._decode.release(request_id)
        if not params or not self._prefill.owns(request_id):
            return False, None
        keeps = self._prefilled(request, params["transfer_id"], block_ids)
        if not keeps:
            self._prefill.release(request_id)
        return keeps, None

    def _prefilled(self, request: Request, transfer_id: str, block_ids: tuple[list[int], ...]) -> bool:
        """Offers a prefilled request; False: there is nothing to offer, the blocks are free."""
        tokens = request.num_prompt_tokens
        if request.status == RequestStatus.FINISHED_LENGTH_CAPPED and any(block_ids):
            if not self._leaves_last or request.num_computed_tokens == tokens:
                self._next.offers.append(Offer(request.request_id, transfer_id, tokens, self._tables(block_ids, 0)))
                return True
            logger.error(
                "kvferry: request %s is not transferred: its cache covers %d tokens, expected %d",
                request.request_id,
                request.num_computed_tokens,
                tokens,
            )
        self.stats.count("withdrawn")
        self._next.withdrawn.append(transfer_id)
        return False
