# SPDX-License-Identifier: Apache-2.0
"""The worker's half: when the node hears of what the scheduler wants."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ATTENTION, cache_config
from vllm.config import KVTransferConfig, ParallelConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from world import WINDOW

from kvferry.node import Event, EventKind, Outcome, Side
from kvferry.report import Reason, Refused
from kvferry.vllm import connector as whole
from kvferry.vllm import worker as half
from kvferry.vllm.connector import KvferryConnector
from kvferry.vllm.scheduler import Ask, Metadata, Offer, Renewal


class Device:
    """Whose work is done when it is said so."""

    type = "test"

    def __init__(self):
        self.done = False


class Fence:
    def __init__(self, device):
        self.device = device

    def passed(self):
        return self.device.done


class FakeNode:
    """Whose calls are written down; asks of an id that it has are refused."""

    def __init__(self):
        self.called, self.asked, self.waiting = [], set(), []

    def expect(self, transfer_id):
        self.called.append(("expect", transfer_id))

    def offer(self, transfer_id, tokens, tables, ready):
        self.called.append(("offer", transfer_id))

    def ask(self, transfer_id, tokens, tables, engine_id, where, whole_blocks, allow_part):
        if transfer_id in self.asked:
            raise Refused.of([Reason("transfer_known", "it is asked for")])
        self.asked.add(transfer_id)
        wanted = (" of whole blocks" if whole_blocks else "") + (" or a part" if allow_part else "")
        self.called.append((f"ask{wanted}", transfer_id))

    def abort(self, side, transfer_id):
        self.called.append(("abort", transfer_id))

    def events(self):
        taken, self.waiting = self.waiting, []
        return iter(taken)

    def end(self, transfer_id, outcome, *, part=False, kinds=(EventKind.ENDED, EventKind.RELEASED)):
        self.waiting += [
            Event(kind, Side.DECODE, "p", transfer_id, outcome, "", (), 1, 1, 0.1, part and kind == EventKind.ENDED)
            for kind in kinds
        ]


def worker_of(node):
    worker = half.Worker(
        SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id="e", kv_connector_extra_config={})),
        SimpleNamespace(),
    )
    worker._node, worker._groups = node, ("attn",)
    return worker


@pytest.fixture(name="worker")
def recorder(monkeypatch):
    monkeypatch.setattr(half, "_Fence", Fence)
    worker = worker_of(FakeNode())
    worker._device = Device()
    return worker


def test_blocks_are_offered_and_asked_for_behind_the_devices_work(worker):
    """vllm#45357, #45096, #37285: a step in flight writes a block that was just loaded. vllm#50696: so does the
    zeroing of a new block."""
    offer = Offer("r1", "offered", 1, [])
    ask = Ask("r2", "asked", "p", "http://127.0.0.1:1", 1, [(0, [1])], whole_blocks=True)
    worker.start(Metadata(expected=["expected"], offers=[offer], asks=[ask]))
    assert worker.node.called == [("expect", "expected")]
    worker.start(Metadata(aborted=["asked"]))
    assert worker.node.called == [("expect", "expected")], "what comes later does not overtake"
    worker._device.done = True
    worker.start(Metadata())
    assert worker.node.called[1:] == [
        ("offer", "offered"),
        ("ask of whole blocks or a part", "asked"),
        ("abort", "asked"),
    ]


def test_what_touches_no_block_waits_for_no_device(worker):
    """An engine that has nothing else to do would not call again, and the prefill side hold its blocks for a lease."""
    only_release = Ask("r1", "released", "p", "http://127.0.0.1:1", 0, [])
    offer = Offer("r2", "offered", 1, [])
    worker.start(Metadata(offers=[offer], asks=[only_release], withdrawn=["withdrawn"]))
    assert sorted(worker.node.called) == [("abort", "withdrawn"), ("ask", "released")]
    worker._device.done = True
    worker.results()
    assert worker.node.called[2:] == [("offer", "offered")]


def ask_of(name, transfer_id="t", groups=((0, [1]),)):
    return Ask(name, transfer_id, "p", "http://127.0.0.1:1", 5, list(groups))


def test_a_refused_ask_leaves_the_one_that_has_its_id():
    worker = worker_of(FakeNode())
    worker.start(Metadata(asks=[ask_of("r1"), ask_of("r2")]))
    results = worker.results()
    assert (results.finished_recving, results.failed_recving) == ({"r2"}, {"r2"})
    worker.node.end("t", Outcome.DONE)
    results = worker.results()
    assert (results.finished_recving, results.failed_recving) == ({"r1"}, set())


def test_an_ask_that_only_releases_is_not_aborted_for_another_request():
    worker = worker_of(FakeNode())
    worker.start(Metadata(asks=[ask_of("r1", groups=()), ask_of("r2")], aborted=["t"]))
    assert worker.node.called == [("ask", "t")]


def test_an_aborted_load_is_no_loaded_one():
    worker = worker_of(FakeNode())
    worker.start(Metadata(asks=[ask_of("r1")], aborted=["t"]))
    worker.node.end("t", Outcome.ABORTED)
    results = worker.results()
    assert (results.finished_recving, results.failed_recving) == ({"r1"}, {"r1"})
    assert worker.stats.data == {"receives_aborted": 1}


def test_a_load_in_part_is_told_once_and_not_after_it_is_reported():
    worker = worker_of(FakeNode())
    worker.start(Metadata(asks=[ask_of("r1"), ask_of("r2", "u"), ask_of("r3", "v")]))
    worker.node.end("t", Outcome.DONE, part=True)
    worker.node.end("u", Outcome.DONE)
    worker.node.end("v", Outcome.DONE, part=True, kinds=[EventKind.ENDED])
    assert worker.results().finished_recving == {"r1", "r2"}
    assert worker.metadata().in_part == {"r1", "r3"}
    worker.node.end("v", Outcome.DONE, kinds=[EventKind.RELEASED])
    assert worker.results().finished_recving == {"r3"}
    assert worker.metadata() is None
    assert worker.stats.data["received_in_part"] == 2


def beside(monkeypatch, outermost, *specs):
    """A connector's worker with a node, of caches that nobody looks at; outermost: which connector vLLM has."""
    connector = KvferryConnector.__new__(KvferryConnector)
    monkeypatch.setattr(whole, "has_kv_transfer_group", lambda: outermost != "none")
    monkeypatch.setattr(whole, "get_kv_transfer_group", lambda: connector if outermost == "it" else object())
    worker, live = worker_of(FakeNode()), SimpleNamespace(layout=None, groups=("attn",), segments=[])
    worker._kv_cache_config = cache_config(*specs)
    worker._config.is_kv_consumer = True
    for name, found in (("document_from_vllm", live), ("write_layout", None)):
        monkeypatch.setattr(half, name, lambda *_, found=found: found)
    worker._worker = worker._tell_leader = lambda *_: None
    worker._open_node = lambda *_: worker._node
    worker._node.incarnation = worker._node.address = ""
    connector._worker = worker
    connector.register_kv_caches({"layer": torch.zeros(1)})
    return worker


@pytest.mark.parametrize(
    ("outermost", "spec", "cached", "wanted"),
    [
        ("none", WINDOW, True, "ask of whole blocks or a part"),
        ("it", WINDOW, True, "ask of whole blocks or a part"),
        ("it", WINDOW, False, "ask"),
        ("another", WINDOW, True, "ask of whole blocks"),
        ("another", WINDOW, False, "ask of whole blocks"),
        ("another", ATTENTION, True, "ask"),
    ],
)
def test_no_load_is_in_part_beside_other_connectors(monkeypatch, outermost, spec, cached, wanted):
    """These may store a block by what vLLM takes to be in it, also where vLLM itself caches no prefixes."""
    worker = beside(monkeypatch, outermost, ATTENTION, spec)
    worker.start(Metadata(asks=[replace(ask_of("r1"), whole_blocks=cached and spec is WINDOW)]))
    assert worker.node.called == [(wanted, "t")]


def test_a_start_beside_other_connectors_is_refused_where_no_load_is_whole(monkeypatch):
    retained = replace(WINDOW, extra_retained_tokens=2)
    beside(monkeypatch, "it", ATTENTION, retained)
    with pytest.raises(Refused, match="several modules draft"):
        beside(monkeypatch, "another", ATTENTION, retained)


class Derived(KvferryConnector):
    pass


def test_multi_connector_finds_the_statistics_of_any_such_connector():
    """By name, in a process that may have no connector: a server that does not find them ends."""
    for connector in (KvferryConnector, Derived):
        told = {connector.__name__: {"withdrawn": 1}}
        found = MultiConnector.build_kv_connector_stats(told)
        assert found.reduce() == {connector.__name__: {"withdrawn": 1}}


class NodeWithoutMemory(FakeNode):
    """Every call of which fails for want of memory."""

    def _fails(self, *_, **__):
        raise MemoryError("kvferry: no memory")

    expect = offer = ask = abort = renew = connect = _fails


def test_a_node_without_memory_fails_requests_and_no_step():
    """vLLM computes a prompt whose load failed; an exception in a step ends the engine."""
    worker = worker_of(NodeWithoutMemory())
    worker._receiving["loading"] = "r0"
    worker.start(
        Metadata(
            expected=["e"],
            offers=[Offer("r1", "offered", 1, [(0, [1])])],
            asks=[ask_of("r2"), ask_of("r3", "u", groups=())],
            withdrawn=["w"],
            aborted=["loading"],
            renewed=[Renewal("t", "p", "http://127.0.0.1:1")],
        )
    )
    results = worker.results()
    assert results.finished_sending == {"r1"}
    assert (results.finished_recving, results.failed_recving) == ({"r2"}, {"r2"})
    assert worker.stats.data == {"sends_failed": 1, "receives_failed": 1}


def group(rank, size):
    return SimpleNamespace(rank_in_group=rank, world_size=size)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("127.0.0.1:9400", [f"127.0.0.1:{port}" for port in range(9400, 9408)]),
        ("[::1]:9400", [f"[::1]:{port}" for port in range(9400, 9408)]),
        ("*:0", ["*:0"] * 8),
        ("no port", ["no port"] * 8),
    ],
)
def test_each_worker_has_a_metrics_port_of_its_own(monkeypatch, given, expected):
    """Two engines of two stages of two ranks, all with the same options."""
    monkeypatch.setattr(half, "Node", lambda *_, **options: options["metrics_listen"])
    found = []
    for rank in range(8):
        config = KVTransferConfig(kv_connector="KvferryConnector", kv_role="kv_consumer", engine_id="e")
        config.kv_connector_extra_config = {"metrics_listen": given}
        parallel = ParallelConfig()
        parallel.data_parallel_index = rank // 4
        monkeypatch.setattr(half, "get_pp_group", lambda rank=rank: group(rank // 2 % 2, 2))
        monkeypatch.setattr(half, "get_tp_group", lambda rank=rank: group(rank % 2, 2))
        made = half.Worker(SimpleNamespace(kv_transfer_config=config, parallel_config=parallel), SimpleNamespace())
        found.append(made._open_node(None, []))
    assert found == expected
