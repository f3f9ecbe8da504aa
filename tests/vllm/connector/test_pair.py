# SPDX-License-Identifier: Apache-2.0
"""Two workers' halves over real nodes: what one side does is seen by the other."""

import ctypes
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kvferry.layout import Layout
from kvferry.node import Node, Segment, Side
from kvferry.vllm import worker as half
from kvferry.vllm.scheduler import Ask, Metadata, Offer, Renewal

PAGES, PAGE = 64, 1024
PATIENCE = 60  # seconds, far below the lease: a test that takes so long has failed


def document(engine_id, block=16, **group):
    return {
        "format": "kvferry-layout/1",
        "engine_id": engine_id,
        "worker": {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1},
        "identity": {"model": "m"},
        "segments": [{"name": "kv", "bytes": PAGES * PAGE}],
        "groups": [{"name": "attn", "kind": "paged", "block_tokens": block, **group}],
        "streams": [
            {
                "layer": "layers.0",
                "name": "k",
                "group": "attn",
                "dtype": "bfloat16",
                "segment": "kv",
                "offset": 0,
                "pages": PAGES,
                "page_stride": PAGE,
                "page_tokens": block,
                "tokens_per_state": 1,
                "axes": [{"name": "token", "extent": block, "stride": 64}],
                "cell_bytes": 64,
            }
        ],
    }


@contextmanager
def worker_of(engine_id, *, layout=None, **times):
    memory = ctypes.create_string_buffer(PAGES * PAGE)
    segments = [Segment(ctypes.addressof(memory))]
    options = {"lease_ms": 3_600_000, "transfer_ms": 3_600_000, "early_ms": 3_600_000, **times}
    with Node(Layout.from_dict(layout or document(engine_id)), segments, transport="tcp", **options) as node:
        config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id=engine_id, kv_connector_extra_config={}))
        worker = half.Worker(config, SimpleNamespace())
        worker._node, worker._groups, worker.memory = node, ("attn",), memory
        yield worker


@pytest.fixture(name="prefill")
def prefill_worker():
    with worker_of("prefill-0") as worker:
        yield worker


@pytest.fixture(name="decode")
def decode_worker():
    with worker_of("decode-0") as worker:
        yield worker


def ask_of(prefill, transfer_id, blocks):
    return Ask("d1", transfer_id, "prefill-0", prefill.node.address, 16 * len(blocks), [(0, blocks)])


def ended(worker):
    """The results of the next transfer that ends here."""
    while worker.node.wait(PATIENCE):
        results = worker.results()
        if results.finished_recving or results.finished_sending:
            return results
    raise AssertionError(f"nothing has ended: {worker.node.status()}")


def test_a_request_is_loaded(prefill, decode):
    prefill.memory[3 * PAGE : 4 * PAGE] = b"x" * PAGE
    prefill.start(Metadata(offers=[Offer("p1", "t", 16, [(0, [3])])]))
    decode.start(Metadata(asks=[ask_of(prefill, "t", [5])]))
    results = ended(decode)
    assert (results.finished_recving, results.failed_recving) == ({"d1"}, set())
    assert ended(prefill).finished_sending == {"p1"}
    assert decode.memory[5 * PAGE : 6 * PAGE] == b"x" * PAGE


@pytest.mark.parametrize("tokens", [31, 24])
def test_a_window_is_loaded_in_part_where_the_other_side_has_no_more(tokens):
    """Of 31 tokens the window begins with token 23: of this side's second block the other one holds tokens 20 to 30. Of
    24 it begins with token 16, as that block does."""
    window = {"window": 8}
    with (
        worker_of("prefill-0", layout=document("prefill-0", 4, **window)) as prefill,
        worker_of("decode-0", layout=document("decode-0", 16, **window)) as decode,
    ):
        for page in range(PAGES):
            prefill.memory[page * PAGE : page * PAGE + 256] = bytes([page]) * 256
        first = (tokens - 8) // 4
        table = [0] * first + list(range(first + 1, -(-tokens // 4) + 1))
        prefill.start(Metadata(offers=[Offer("p1", "t", tokens, [(0, table)])]))
        ask = Ask("d1", "t", "prefill-0", prefill.node.address, tokens, [(0, [0, 5])], whole_blocks=True)
        decode.start(Metadata(asks=[ask]))
        results = ended(decode)
        assert (results.finished_recving, results.failed_recving) == ({"d1"}, set())
        in_part = decode.metadata()
        assert (in_part.in_part if in_part else set()) == ({"d1"} if tokens == 31 else set())
        for token in range(16, tokens):
            at = 5 * PAGE + (token - 16) * 64
            written = token >= tokens - 8
            assert decode.memory[at : at + 64] == bytes([token // 4 + 1 if written else 0]) * 64


def test_a_request_that_cannot_be_offered_fails_at_once(prefill, decode):
    """Not when its lease is over, for which whoever asks for what is expected would wait."""
    prefill.start(Metadata(expected=["t"]))
    decode.start(Metadata(asks=[ask_of(prefill, "t", [5])]))
    prefill.start(Metadata(offers=[Offer("p1", "t", 16, [(0, [PAGES])])]))  # block_range
    assert prefill.results().finished_sending == {"p1"}
    results = ended(decode)
    assert (results.finished_recving, results.failed_recving) == ({"d1"}, {"d1"})


def test_an_offer_of_an_id_that_is_offered_leaves_that_one(prefill, decode):
    prefill.start(Metadata(offers=[Offer("p1", "t", 16, [(0, [3])])]))
    prefill.start(Metadata(offers=[Offer("p2", "t", 16, [(0, [4])])]))
    assert prefill.results().finished_sending == {"p2"}
    decode.start(Metadata(asks=[ask_of(prefill, "t", [5])]))
    assert ended(decode).failed_recving == set()
    assert ended(prefill).finished_sending == {"p1"}


def test_a_load_that_is_given_up_is_reported_as_failed(prefill, decode):
    prefill.start(Metadata(expected=["t"]))
    decode.start(Metadata(asks=[ask_of(prefill, "t", [5])], aborted=["t"]))
    assert ended(decode).failed_recving == {"d1"}
    assert not decode.node.abort(Side.DECODE, "t")


SILENT = """
import ctypes, json, sys, time
from kvferry.layout import Layout
from kvferry.node import Node, Segment

document = json.loads(sys.argv[1])
memory = ctypes.create_string_buffer(document["segments"][0]["bytes"])
with Node(Layout.from_dict(document), [Segment(ctypes.addressof(memory))], transport="tcp", lease_ms=3_600_000) as node:
    node.expect("t")
    print(node.address, node.incarnation, flush=True)
    time.sleep(3600)
"""


@contextmanager
def stopped_prefill(decode):
    """A prefill worker that is stopped once it was asked: to others it is as if its host had vanished."""
    command = [sys.executable, "-c", SILENT, json.dumps(document("prefill-0"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address, incarnation = process.stdout.readline().split()
            decode.start(Metadata(asks=[Ask("d1", "t", "prefill-0", address, 16, [(0, [5])])]))
            wait_until(lambda: decode.node.status()["transfers"][0]["state"] == "asking")
            process.send_signal(signal.SIGSTOP)
            yield incarnation
        finally:
            process.kill()


def wait_until(holds):
    for _ in range(PATIENCE * 20):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come")


def test_a_load_from_a_vanished_host_fails_by_the_operators_word():
    """vLLM may use the blocks again only then, and computes the prompt or fails the request."""
    with worker_of("decode-0", retry_ms=100, silence_ms=500, linger_ms=100) as decode, stopped_prefill(decode) as name:
        wait_until(lambda: decode.node.status()["quarantine"])
        time.sleep(1)
        results = decode.results()
        assert (results.finished_recving, results.failed_recving) == (set(), set())
        (holder,) = decode.node.status()["quarantine"]
        assert (holder["incarnation"], holder["state"], holder["blocks"]) == (name, "silent", 1)
        decode.node.declare_dead(name)
        results = ended(decode)
        assert (results.finished_recving, results.failed_recving) == ({"d1"}, {"d1"})


def test_ids_that_the_node_does_not_take_end_no_worker(prefill, decode):
    bad = "a\0b"
    prefill.start(Metadata(expected=[bad], offers=[Offer("p1", bad, 16, [(0, [3])])], withdrawn=[bad]))
    assert prefill.results().finished_sending == {"p1"}
    renewal = Renewal(bad, "prefill-0", prefill.node.address)
    decode.start(Metadata(asks=[ask_of(prefill, bad, [5])], aborted=[bad], renewed=[renewal]))
    assert decode.results().failed_recving == {"d1"}


def test_a_lease_is_renewed_at_an_engine_that_nothing_was_loaded_from(prefill, decode):
    prefill.start(Metadata(offers=[Offer("p1", "t", 16, [(0, [3])])]))
    renewal, lefts = Renewal("t", "prefill-0", prefill.node.address), [0, 0]
    for _ in range(PATIENCE * 10):
        decode.start(Metadata(renewed=[renewal]))
        time.sleep(0.1)
        (transfer,) = prefill.node.status()["transfers"]
        lefts.append(transfer["lease_ms"])
        if lefts[-1] > lefts[-2] > 0:
            break  # what is left of a lease grows only if it is prolonged
    else:
        raise AssertionError(f"what was left of the lease, in ms: {lefts[2:]}")
    assert prefill.node.statistics()["ignored"] == 0
    decode.start(Metadata(asks=[Ask("d1", "t", "prefill-0", "", 16, [(0, [5])])]))
    assert ended(decode).failed_recving == set()
