# SPDX-License-Identifier: Apache-2.0
"""Loads in part: what vLLM takes for whole blocks leaves its prefix cache before another request reads it."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ATTENTION, blocks, cache_config, decode_params, engine, request
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.kv_cache_interface import SlidingWindowMLASpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus
from world import WINDOW, Setup, World, make_request, params_of

from kvferry.report import Refused
from kvferry.vllm._part import WorkerMetadata, refuse_beside_others
from kvferry.vllm.scheduler import Scheduler

#: A window that vLLM computes again behind a prefix hit.
REPLAYED = SlidingWindowMLASpec(
    block_size=16, num_kv_heads=1, head_size=16, dtype=torch.bfloat16, sliding_window=32, bounded_replay=True
)

# --- which blocks, and until when ---------------------------------------------------------------------------


class Manager:
    """As much of a KVCacheManager as is looked at: blocks that are used, none of them in the prefix cache, and those
    that a request has."""

    def __init__(self, *tables):
        self.block_pool = SimpleNamespace(blocks=[SimpleNamespace(block_hash=None, ref_cnt=1) for _ in range(64)])
        self.tables = {"r1": tables}
        self.evicted = []

    def get_block_ids(self, request_id):
        return self.tables.get(request_id, ([], []))

    def cache(self, block):
        self.block_pool.blocks[block].block_hash = "hash"

    def free(self, *ids):
        """By their request, which has other ones now, or none."""
        for block in ids:
            self.block_pool.blocks[block].ref_cnt = 0
        self.tables = {"r1": tuple([block for block in table if block not in ids] for table in self.tables["r1"])}

    def take(self, block):
        """By another request."""
        self.block_pool.blocks[block] = SimpleNamespace(block_hash=None, ref_cnt=1)

    def evict_blocks(self, ids):
        for block in ids:
            self.block_pool.blocks[block].block_hash = None
        self.evicted += sorted(ids)


def loading(table, *, tokens=65, here=0, width=32, extra=0, role="kv_consumer", spec=WINDOW):
    """A scheduler's half, a request that is loaded with this table of a window, and the cache's manager."""
    window = replace(spec, sliding_window=width, extra_retained_tokens=extra)
    scheduler = Scheduler(engine(role), cache_config(ATTENTION, window))
    one, manager = request(tokens, decode_params()), Manager([1, 2, 3, 4, 9], table)
    scheduler.in_part.bind(manager)
    scheduler.on_new_request(one)
    scheduler.update_state_after_alloc(one, blocks([1, 2, 3, 4, 9], table), tokens - 1 - here)
    scheduler.build_metadata()
    return scheduler, one, manager


def nothing_is_kept(scheduler):
    return not scheduler.in_part._loading and not scheduler.in_part._incomplete


@pytest.mark.parametrize(
    ("case", "evicted"),
    [
        ({"table": [0, 0, 5, 6]}, [5]),  # the window is tokens 33 to 63
        ({"table": [0, 0, 5, 6, 7], "tokens": 66}, [5]),
        ({"table": [0, 0, 5, 6], "tokens": 64}, []),  # it begins as the block does
        ({"table": [7, 8], "tokens": 32}, []),  # there is nothing before it
        ({"table": [0, 0, 0, 6], "here": 48}, []),  # what comes before it was here
        ({"table": [0, 0, 5, 6], "here": 32}, [5]),
        ({"table": [0, 0, 0, 6], "tokens": 62, "width": 8}, []),  # the load does not fill the block
        ({"table": [0, 0, 0, 6], "width": 8}, [6]),
        ({"table": [0, 0, 0, 6], "tokens": 62, "width": 8, "role": "kv_both"}, [6]),  # it might be offered from here
        ({"table": [0, 0, 5, 6], "spec": REPLAYED}, []),  # of this vLLM caches none
    ],
)
def test_full_blocks_that_begin_before_a_window_leave_the_cache(case, evicted):
    scheduler, _, manager = loading(**case)
    scheduler.in_part.told({"r1"})
    scheduler.loaded({"r1"})
    assert not scheduler.in_part.evict()
    for block in (1, 2, 3, 4, 5, 6, 7, 8):
        manager.cache(block)
    assert scheduler.in_part.evict() == bool(evicted)
    assert manager.evicted == evicted
    assert nothing_is_kept(scheduler)


def test_full_blocks_before_the_window_s_own_leave_the_cache_after_any_load():
    """Where several modules draft, vLLM keeps some tokens more than the window; no load fills a block of only those."""
    scheduler, _, manager = loading([0, 4, 5, 6], tokens=64, extra=2)  # the window is tokens 32 to 62
    for block in (4, 5, 6):
        manager.cache(block)
    assert scheduler.in_part.evict()
    assert manager.evicted == [4]
    scheduler.loaded({"r1"})
    assert nothing_is_kept(scheduler)


@pytest.mark.parametrize("call", ["matched", "allocated", "metadata", "finished"])
def test_they_leave_it_at_the_next_call(call):
    scheduler, one, manager = loading([0, 0, 5, 6])
    scheduler.in_part.told({"r1"})
    scheduler.loaded({"r1"})
    manager.cache(5)
    other = request(65, decode_params("t2"), name="r2")
    if call == "matched":  # vLLM's lookup came before
        assert scheduler.get_num_new_matched_tokens(other, 48) == (None, False)
        assert scheduler.get_num_new_matched_tokens(other, 0) == (64, True)
    elif call == "allocated":
        scheduler.update_state_after_alloc(one, blocks([1, 2, 3, 4, 9], [0, 0, 5, 6, 7]), 0)
        assert scheduler.get_num_new_matched_tokens(other, 0) == (64, True)
    elif call == "metadata":
        scheduler.build_metadata()
    else:
        one.status = RequestStatus.FINISHED_ABORTED
        scheduler.request_finished(one, ([1, 2, 3, 4, 9], [0, 0, 5, 6, 7]))
    assert manager.evicted == [5]
    assert nothing_is_kept(scheduler)


def test_a_whole_load_stays_in_the_cache():
    scheduler, _, manager = loading([0, 0, 5, 6])
    scheduler.loaded({"r1"})
    manager.cache(5)
    assert not scheduler.in_part.evict()
    assert nothing_is_kept(scheduler)


def test_nothing_is_asked_in_part_where_no_prefixes_are_cached():
    config = engine("kv_consumer")
    config.cache_config.enable_prefix_caching = False
    scheduler, one = Scheduler(config, cache_config(ATTENTION, WINDOW)), request(65, decode_params())
    scheduler.update_state_after_alloc(one, blocks([1, 2, 3, 4], [0, 0, 5, 6]), 64)
    assert nothing_is_kept(scheduler)


@pytest.mark.parametrize("seen", [True, False])
def test_a_block_that_is_given_back_before_it_is_cached_is_of_no_more_concern(seen):
    """Also if nobody came by while it was free."""
    scheduler, _, manager = loading([0, 0, 5, 6])
    scheduler.in_part.told({"r1"})
    manager.free(5)
    if seen:
        scheduler.build_metadata()
    manager.take(5)
    manager.cache(5)
    scheduler.build_metadata()
    assert manager.evicted == []
    assert nothing_is_kept(scheduler)


def test_a_request_that_gives_its_blocks_up_leaves_none_of_them_in_the_cache():
    """A preempted one: they are free, and in the cache."""
    scheduler, _, manager = loading([0, 0, 5, 6])
    scheduler.in_part.told({"r1"})
    for block in (5, 6):
        manager.cache(block)
    manager.free(1, 2, 3, 4, 5, 6, 9)
    scheduler.build_metadata()
    assert manager.evicted == [5]
    assert nothing_is_kept(scheduler)


def test_an_aborted_load_leaves_nothing_behind():
    scheduler, one, manager = loading([0, 0, 5, 6])
    one.status = RequestStatus.FINISHED_ABORTED
    scheduler.request_finished(one, ([1, 2, 3, 4], [0, 0, 5, 6]))
    scheduler.in_part.told({"r1"})
    scheduler.loaded({"r1"})
    assert nothing_is_kept(scheduler)
    assert manager.evicted == []


def test_any_worker_makes_a_load_one_in_part():
    """One of two workers has its part some steps before the other."""
    aggregator, told = KVOutputAggregator(2), []
    steps = [
        [KVConnectorOutput(finished_recving={"r1"}, kv_connector_worker_meta=WorkerMetadata({"r1"})), None],
        [KVConnectorOutput(kv_connector_worker_meta=WorkerMetadata({"r2"})), KVConnectorOutput()],
        [KVConnectorOutput(), KVConnectorOutput(finished_recving={"r1"})],
        [KVConnectorOutput(kv_connector_worker_meta=WorkerMetadata({name})) for name in ("r3", "r4")],
    ]
    for outputs in steps:
        runs = [ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=output) for output in outputs]
        output = aggregator.aggregate(runs).kv_connector_output
        metadata = output.kv_connector_worker_meta
        told.append((metadata and metadata.in_part, output.finished_recving))
    assert told == [({"r1"}, None), ({"r2"}, None), (None, {"r1"}), ({"r3", "r4"}, None)]


# --- in vLLM's scheduler ------------------------------------------------------------------------------------

#: Of 57 tokens 56 are loaded. The window begins in the middle of the second block: the prefill server has half of it.
LOADED = 57


def world_of(window=WINDOW, asynchronous=False):
    return World(Setup("window", "kv_consumer", "fail", asynchronous, False, window), random.Random(1), failing=0)


def hold_back(world, why):
    """Has vLLM not go on with request a behind its load; returns what ends that."""
    scheduler, name = world.scheduler, "a"
    if why == "something on its way":
        scheduler._ec_transfer_pending = lambda one, computed: one.request_id == name and computed > 0
        return lambda: setattr(scheduler, "_ec_transfer_pending", lambda *_: False)
    if why == "too many adapters":
        scheduler.lora_config = SimpleNamespace(max_loras=0)
        scheduler.requests[name].lora_request = SimpleNamespace(lora_int_id=1)
        return lambda: setattr(scheduler.lora_config, "max_loras", 1)
    allocate = scheduler.kv_cache_manager.allocate_slots

    def none_for_a(one, *arguments, **options):
        return None if one.request_id == name else allocate(one, *arguments, **options)

    scheduler.kv_cache_manager.allocate_slots = none_for_a
    return lambda: setattr(scheduler.kv_cache_manager, "allocate_slots", allocate)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("why", ["something on its way", "too many adapters", "no free blocks"])
def test_a_request_that_does_not_go_on_yet_lends_nobody_its_blocks(why, asynchronous):
    world = world_of(asynchronous=asynchronous)
    scheduler, prompt = world.scheduler, range(5, 5 + LOADED)
    scheduler.add_request(make_request("a", prompt, params_of("decode", "t"), 4, False))
    world.step()
    table = scheduler.kv_cache_manager.get_block_ids("a")[1]
    let_go = hold_back(world, why)
    while world.loads or world.running:
        world.step() if world.loads else world.finish_step()
    other = make_request("b", prompt[:50], None, 1, False)
    scheduler.add_request(other)
    world.step()
    assert scheduler.requests["a"].status == RequestStatus.WAITING
    cached = [world.pool.blocks[block].block_hash is not None for block in table]
    assert cached == [False, False, True, False]  # null, in part, whole, not full
    let_go()
    world.drain()
    assert set(world.ended) == {"a", "b"}


@pytest.mark.parametrize(("role", "found"), [("kv_consumer", 48), ("kv_both", 0)])
def test_a_block_that_is_filled_behind_the_load_is_found_again_unless_it_might_be_offered(role, found):
    """Whoever finds it goes on at its end, and reads nothing before the window. But another decode server may want more
    of it than that."""
    setup = Setup("window", role, "fail", False, False, replace(WINDOW, sliding_window=8))
    world = World(setup, random.Random(1), failing=0)
    scheduler = world.scheduler
    scheduler.add_request(make_request("a", range(5, 5 + 48), params_of("decode", "t"), 4, False))
    world.drain()
    assert world.counts["in part"] == 1
    longer = make_request("b", range(5, 5 + 60), None, 1, False)
    assert scheduler.kv_cache_manager.get_computed_blocks(longer)[1] == found
    scheduler.add_request(longer)
    world.drain()


# --- beside other connectors --------------------------------------------------------------------------------


def test_what_no_load_fills_is_refused_beside_other_connectors():
    """These store blocks by the hashes of a request's tokens, though they have left vLLM's prefix cache."""
    retained = cache_config(ATTENTION, replace(WINDOW, extra_retained_tokens=2))
    consumer, producer = (engine(role).kv_transfer_config for role in ("kv_consumer", "kv_producer"))
    with pytest.raises(Refused) as refused:
        refuse_beside_others(consumer, retained)
    assert [reason.code for reason in refused.value.reasons] == ["window_retained"]
    refuse_beside_others(consumer, cache_config(ATTENTION, WINDOW))
    refuse_beside_others(producer, retained)
