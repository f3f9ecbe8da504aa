# SPDX-License-Identifier: Apache-2.0
"""vLLM's own scheduler with the connector's half in it, and workers that only pretend: loads and sends end some
steps later, well or not. Each step checks that what is moved is the connector's to move, and that what it reads of
attention and windows was written before, by a step or a load, for just these tokens."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from bystander import Steps
from pairs import BYSTANDER, Connector
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorWorkerMetadata
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from kvferry.vllm._part import WorkerMetadata
from kvferry.vllm.layout import window_tokens

MODEL = Path(os.environ["KVFERRY_SOURCE"]) / "tests" / "vllm" / "models" / "llama-recall"
BLOCK, DRAFTS = 16, 2
SOURCE_BLOCK = 8  # of a prefill server's windows, which holds nothing before the block that a window begins in
STATE = -1  # the place of a state in its block
LATEST = 5  # steps that a load or a send takes at most
PATIENCE = 3000  # steps after which what has not ended hangs

ATTENTION = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
WINDOW = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=2, head_size=16, dtype=torch.bfloat16, sliding_window=32)


def state(scratch):
    return MambaSpec(
        block_size=BLOCK,
        shapes=((4, 3), (2, 8, 8)),
        dtypes=(torch.bfloat16, torch.float32),
        mamba_type="gdn_attention",
        mamba_cache_mode="align",
        num_speculative_blocks=scratch,
    )


@dataclass(frozen=True)
class Setup:
    model: str  # "attention", "hybrid" or "window"
    role: str
    policy: str
    asynchronous: bool
    drafts: bool
    window: SlidingWindowSpec = field(default=WINDOW, repr=False)
    among_others: bool = False  # a connector of MultiConnector's
    retention: int | None = None  # vLLM's prefix_cache_retention_interval: how far apart states and windows are kept

    @property
    def name(self):
        parts = [self.model, self.role, self.policy, self.asynchronous, self.drafts]
        if (self.window, self.retention) != (WINDOW, None):
            parts += [f"{self.window.sliding_window} in {self.window.block_size}", f"kept {self.retention}"]
        if self.among_others:
            parts.append("among others")
        return "-".join(map(str, parts))

    @property
    def blocks(self):
        """Few, so that requests are preempted; the longest has 200 tokens."""
        return 18 if self.model == "attention" else 30

    def specs(self):
        other = {"attention": [], "hybrid": [state(DRAFTS if self.drafts else 0)], "window": [self.window]}
        return [ATTENTION, *other[self.model]]


KVFERRY = {"kv_connector": "KvferryConnector", "kv_connector_module_path": "kvferry.vllm"}


def make_scheduler(setup):
    others = (BYSTANDER,) if setup.among_others else ()
    longest = max(spec.block_size for spec in setup.specs())
    drafts = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 2}
    config = EngineArgs(
        model=str(MODEL),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        block_size=longest,
        enable_prefix_caching=True,
        speculative_config=drafts if setup.drafts else None,
        async_scheduling=False,
        kv_transfer_config=KVTransferConfig(
            **Connector("kvferry", KVFERRY, roles=(setup.role, setup.role), others=others).of(0),
            kv_load_failure_policy=setup.policy,
            engine_id="e",
        ),
    ).create_engine_config()
    config.scheduler_config.async_scheduling = setup.asynchronous  # vLLM will not, with these drafts
    config.cache_config.num_gpu_blocks = setup.blocks
    config.cache_config.block_size = longest
    config.cache_config.mamba_cache_mode = "align"
    groups = [KVCacheGroupSpec([f"layers.{index}"], spec) for index, spec in enumerate(setup.specs())]
    return (AsyncScheduler if setup.asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=setup.blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=setup.retention,
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=longest,
        hash_block_size=BLOCK,
        log_stats=True,
    )


init_none_hash(sha256)
HASHER = get_request_block_hasher(BLOCK, sha256)


def make_request(name, tokens, params, max_tokens, embeds):
    return Request(
        request_id=name,
        prompt_token_ids=None if embeds else list(tokens),
        prompt_embeds=torch.zeros(len(tokens), 4) if embeds else None,
        sampling_params=SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, extra_args={"kv_transfer_params": params}
        ),
        pooling_params=None,
        block_hasher=HASHER,
    )


def params_of(side, transfer_id):
    prefill = side == "prefill"
    more = {"remote_engine_id": "p", "remote_bootstrap_addr": "http://127.0.0.1:8998"}
    return {
        "do_remote_decode": prefill,
        "do_remote_prefill": not prefill,
        "transfer_id": transfer_id,
        **({} if prefill else more),
    }


@dataclass
class Load:
    transfer_id: str
    blocks: set[int]
    steps: int
    fails: bool
    cells: dict[tuple[int, int], int | None]  # what it writes: (block, place) -> value; None: anything
    early: set[tuple[int, int]]  # those before the window
    told: int  # in which step before its last one a worker tells that it is in part; below 0: it is whole


@dataclass
class Send:
    blocks: set[int]
    steps: int


@dataclass
class Work:
    """What a step does of one request."""

    request: Request
    first: int  # the first token that it computes
    count: int
    drafts: int  # how many of these are guesses
    tables: tuple[list[int], ...]
    samples: bool


def values(request, count):
    """Of each token what a cache has of it: a number of the tokens up to there. Where a token is not known, None."""
    tokens = [0] * request.num_prompt_tokens if request.prompt_embeds is not None else []
    tokens += request._all_token_ids[len(tokens) :]
    found, so_far = [], "embeds" if request.prompt_embeds is not None else "ids"
    for token in tokens[:count]:
        so_far = hash((so_far, token))
        found.append(so_far)
    return found + [None] * (count - len(found))


@dataclass
class World:
    """One engine: its scheduler, and what its workers have under way."""

    setup: Setup
    dice: random.Random
    failing: float  # the share of loads that fail
    late: float = 0.0  # the share of steps in which something of a request is still on its way
    loads: dict[str, Load] = field(default_factory=dict)  # by request id
    sends: dict[str, Send] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)  # transfer ids
    ended: dict[str, str] = field(default_factory=dict)  # request id -> why
    counts: dict[str, int] = field(default_factory=dict)  # of what happened

    def __post_init__(self):
        self.scheduler = make_scheduler(self.setup)
        # As where images are encoded elsewhere: vLLM skips such a request, also behind its load.
        self.scheduler._ec_transfer_pending = lambda *_: self.dice.random() < self.late
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.free_at_start = self.pool.get_num_free_blocks()
        self.running = []  # steps that the device has not done: the output, and by name what it does
        self.drafted = {}  # request id -> drafts in its last step
        self.cells = {}  # (block, place in it) -> what was written there last; the groups share no blocks
        self.early = set()  # those of them that were loaded only because blocks were wanted whole

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- a step

    def step(self):
        output = self.scheduler.schedule()
        metadata = output.kv_connector_metadata
        self._take(metadata.metadata[1] if self.setup.among_others else metadata)
        if output.preempted_req_ids:
            self.count("preempted")
        works = {}
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            self.drafted[name] = len(output.scheduled_spec_decode_tokens.get(name, ()))
            tables = tuple(list(blocks) for blocks in self.scheduler.kv_cache_manager.get_block_ids(name))
            first = request.num_computed_tokens - count  # vLLM has counted them already
            works[name] = Work(request, first, count, self.drafted[name], tables, not request.is_prefill_chunk)
        self.running.append((output, works))
        if len(self.running) > self.setup.asynchronous:
            self.finish_step()
        for name, moved in [*self.loads.items(), *self.sends.items()]:
            for block in moved.blocks:
                assert self.pool.blocks[block].ref_cnt, f"block {block} of {name} is free while it is moved"

    def _take(self, metadata):
        for transfer_id in metadata.expected:
            assert transfer_id not in self.expected
            self.expected.add(transfer_id)
        for ask in metadata.asks:
            self._load(ask) if ask.groups else self.count("released")
        for transfer_id in metadata.aborted:
            for load in self.loads.values():
                load.fails |= load.transfer_id == transfer_id
            self.count("aborted")
        for offer in metadata.offers:
            self._send(offer)
        for transfer_id in metadata.withdrawn:
            self.expected.discard(transfer_id)
            self.count("withdrawn")

    @staticmethod
    def _blocks(groups):
        return {block for _, blocks in groups for block in blocks if block}

    def _load(self, ask):
        assert ask.request_id not in self.loads
        blocks = self._blocks(ask.groups)
        for block in blocks:
            held = self.pool.blocks[block]
            assert held.ref_cnt == 1, f"{ask}: block {block} is read by others"
            assert held.block_hash is None, f"{ask}: block {block} is another prefix"
            for name, other in [*self.loads.items(), *self.sends.items()]:
                assert block not in other.blocks, f"{ask}: block {block} is moved for {name}"
        first, attention = ask.groups[0]
        assert first < ask.tokens <= first + len(attention) * BLOCK
        if self.setup.model == "hybrid":
            table = self.scheduler.kv_cache_manager.get_block_ids(ask.request_id)[1]
            assert ask.groups[1] == (0, [table[(ask.tokens - 1) // BLOCK]])
            assert table[(ask.tokens - 1) // BLOCK]
        fails, steps = self.dice.random() < self.failing, self.dice.randrange(LATEST)
        cells, early = self._loaded_cells(ask)
        in_part = any(cells[cell] is None for cell in early)
        told = self.dice.randint(0, steps) if in_part else -1
        self.loads[ask.request_id] = Load(ask.transfer_id, blocks, steps, fails, cells, early, told)
        self.count("loads")

    def _loaded_cells(self, ask):
        """The wanted tokens of each table, as kvferry_request says which these are; and which come before a window:
        all of them or, if the prefill server has not got all, none."""
        known, cells, early = values(self.scheduler.requests[ask.request_id], ask.tokens), {}, set()
        for spec, (first, blocks) in zip(self.setup.specs(), ask.groups, strict=True):
            if isinstance(spec, MambaSpec):
                cells[blocks[0], STATE] = known[-1]
                continue
            window = ask.tokens - window_tokens(spec) if isinstance(spec, SlidingWindowSpec) else 0
            start = max(window - window % spec.block_size if ask.whole_blocks else window, first)
            held = start >= window - window % SOURCE_BLOCK
            for token in range(start, ask.tokens):
                if block := blocks[(token - first) // spec.block_size]:
                    cell = block, token % spec.block_size
                    cells[cell] = known[token] if held or token >= window else None
                    if token < window:
                        early.add(cell)
        return cells, early

    def _compute(self, work):
        """Reads what a step reads and writes what it writes; tokens that were guesses are computed again later."""
        known = values(work.request, work.first + work.count - work.drafts)
        for spec, table in zip(self.setup.specs(), work.tables, strict=True):
            if isinstance(spec, MambaSpec):
                self._compute_state(work, table, known)
                continue
            start = max(0, work.first - spec.sliding_window + 1) if isinstance(spec, SlidingWindowSpec) else 0
            for token in range(start, work.first):
                cell = table[token // spec.block_size], token % spec.block_size
                found = self.cells.get(cell)
                assert known[token] is None or found == known[token], (
                    f"{work.request.request_id} reads token {token} in block {cell[0]}: it is not what was written"
                )
                if cell in self.early:
                    self.count("reads before a loaded window")
            for token in range(work.first, work.first + work.count):
                cell = table[token // spec.block_size], token % spec.block_size
                self.cells[cell] = known[token] if token < len(known) else None
                self.early.discard(cell)

    def _compute_state(self, work, table, known):
        """A step goes on from the state before its first token, and leaves the one behind its last. (Drafts leave one
        behind each, and the workers pick: of that only vLLM's own runner knows.)"""
        if self.setup.drafts:
            return
        if work.first:
            found = self.cells.get((table[(work.first - 1) // BLOCK], STATE))
            assert known[work.first - 1] is None or found == known[work.first - 1], (
                f"{work.request.request_id} goes on from a state that is not the one of {work.first} tokens"
            )
        self.cells[table[(work.first + work.count - 1) // BLOCK], STATE] = known[-1]

    def _send(self, offer):
        assert offer.transfer_id in self.expected
        self.expected.discard(offer.transfer_id)
        assert offer.request_id not in self.sends
        if self.setup.model == "hybrid":  # the state that kernels would go on from
            table = self.scheduler.kv_cache_manager.get_block_ids(offer.request_id)[1]
            length = offer.tokens + self.drafted[offer.request_id]
            rows = mamba_get_block_table_tensor(
                torch.tensor([table]), torch.tensor([length]), self.setup.specs()[1], "align"
            )
            assert offer.groups[1][1] == [rows[0, 0].item()] != [0]
        self._check_offered(offer)
        self.sends[offer.request_id] = Send(self._blocks(offer.groups), self.dice.randrange(LATEST + 1))
        self.count("sends")

    def _check_offered(self, offer):
        """Of attention and windows: each block that is there has all of its tokens, whatever the other side wants."""
        known = values(self.scheduler.requests[offer.request_id], offer.tokens)
        for spec, (first, blocks) in zip(self.setup.specs(), offer.groups, strict=True):
            if isinstance(spec, MambaSpec):
                continue
            for token in range(first, offer.tokens):
                block = blocks[(token - first) // spec.block_size]
                found = self.cells.get((block, token % spec.block_size))
                assert not block or known[token] is None or found == known[token], (
                    f"{offer.request_id} offers token {token} in block {block}: it is not what was written"
                )

    def _moved(self):
        """What has ended since the last step, as the workers report it."""
        received = {name for name, load in self.loads.items() if not load.steps}
        in_part = {name for name, load in self.loads.items() if load.told == load.steps}
        failed = {name for name in received if self.loads[name].fails}
        sent = {name for name, send in self.sends.items() if not send.steps}
        for name in received:
            load = self.loads.pop(name)
            self.cells.update(dict.fromkeys(load.cells) if load.fails else load.cells)
            self.early = self.early - load.cells.keys() | load.early
        for name in sent:
            del self.sends[name]
        for moved in [*self.loads.values(), *self.sends.values()]:
            moved.steps -= 1
        if failed:
            self.count("failed")
        if in_part:
            self.count("in part")
        return KVConnectorOutput(
            finished_recving=received or None,
            finished_sending=sent or None,
            failed_recving=failed,
            kv_connector_worker_meta=self._told(WorkerMetadata(in_part) if in_part else None),
        )

    def _told(self, metadata):
        if not self.setup.among_others:
            return metadata
        others = Steps(1) if self.dice.random() < 0.5 else None
        return MultiKVConnectorWorkerMetadata((others, metadata)) if others or metadata else None

    def finish_step(self):
        """The device has done the oldest step."""
        output, works = self.running.pop(0)
        names = list(works)
        for name, work in works.items():
            self._compute(work)
            for _, later in self.running:  # scheduled as if no draft would be refused; here all are
                if name in later and later[name].first == work.first + work.count:
                    later[name].first -= work.drafts
        tokens = [[self.dice.randint(5, 99)] if works[name].samples else [] for name in names]
        done = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self._moved(),
        )
        for outputs in self.scheduler.update_from_output(output, done).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.ended[one.request_id] = str(one.finish_reason)
        if self.setup.drafts and not self.setup.asynchronous:
            drafts = [[7, 8] if sampled and self.dice.random() < 0.5 else [] for sampled in tokens]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    # --- the end

    def drain(self):
        """Steps until nothing is left; then all is as it was."""
        for _ in range(PATIENCE):
            if self.scheduler.has_requests():
                self.step()
            elif self.running:
                self.finish_step()
            else:
                break
        waiting = [(one.request_id, one.status) for one in self.scheduler.requests.values()]
        assert not waiting, f"hangs: {waiting}, {self.loads}, {self.sends}"
        assert self.pool.get_num_free_blocks() == self.free_at_start
        connector = self.scheduler.connector
        half = (connector.sub_connectors[1] if self.setup.among_others else connector).scheduler
        assert not half._loading
        assert not half._waiting
        assert not half._refused
        assert not half.in_part._loading
        assert not half.in_part._incomplete
        for claims in (half._prefill, half._decode):
            assert not claims._owners
            assert not claims._ids
        assert not half.has_pending_work()
        assert not self.expected
