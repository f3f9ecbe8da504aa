# SPDX-License-Identifier: Apache-2.0
"""Texts that C would read otherwise than Python wrote them."""

import pytest

from kvferry import Layout
from kvferry.node import Node, Segment, Side, Table, generate_keys, query
from kvferry.report import Error

BAD = ["a\0b", "a\0", "\ud800"]


@pytest.fixture(name="node", scope="module")
def node_of_the_example(example):
    with Node(Layout.from_dict(example), [Segment()] * len(example["segments"]), transport="tcp") as node:
        yield node


CALLS = {
    "set_leader": lambda node, bad: node.set_leader(bad),
    "connect": lambda node, bad: node.connect(bad),
    "connect engine": lambda node, bad: node.connect("http://127.0.0.1:1", bad),
    "declare_dead": lambda node, bad: node.declare_dead(bad),
    "expect": lambda node, bad: node.expect(bad),
    "offer": lambda node, bad: node.offer(bad, 1, {}),
    "offer group": lambda node, bad: node.offer("t", 1, {bad: Table([1])}),
    "ready": lambda node, bad: node.ready(bad),
    "ask": lambda node, bad: node.ask(bad, 1, {}, where="http://127.0.0.1:1"),
    "ask engine": lambda node, bad: node.ask("t", 1, {}, engine_id=bad, where="http://127.0.0.1:1"),
    "ask where": lambda node, bad: node.ask("t", 1, {}, where=bad),
    "renew": lambda node, bad: node.renew("p", bad),
    "renew engine": lambda node, bad: node.renew(bad, "t"),
    "abort": lambda node, bad: node.abort(Side.DECODE, bad),
    "query": lambda node, bad: query(bad),
    "generate_keys": lambda node, bad: generate_keys(bad),
}


@pytest.mark.parametrize("bad", BAD, ids=ascii)
@pytest.mark.parametrize("call", CALLS)
def test_text_that_c_would_cut_is_refused(node, call, bad):
    with pytest.raises(Error, match="expected text") as caught:
        CALLS[call](node, bad)
    assert caught.value.status == "invalid"
    assert node.statistics()["live"] == {"prefill": 0, "decode": 0}


@pytest.mark.parametrize("bad", BAD, ids=ascii)
@pytest.mark.parametrize("option", ["listen", "transport", "key_file"])
def test_so_are_options(example, option, bad):
    with pytest.raises(Error, match="expected text"):
        Node(Layout.from_dict(example), [Segment()], **{option: bad})


def test_other_text_is_not(node):
    node.expect("\u00e9\U0001f9c0")
    assert node.abort(Side.PREFILL, "\u00e9\U0001f9c0")


OPTIONS = {
    "a number for text": ({"engine": 5}, TypeError, r"engine: expected text, found 5 \(int\)"),
    "a word for a flag": ({"insecure": "false"}, TypeError, r"insecure: expected True or False, found 'false' \(str\)"),
    "text for a number": ({"lease_ms": "30000"}, TypeError, r"lease_ms: expected an integer, found '30000' \(str\)"),
    "a fraction": ({"lease_ms": 1.5}, TypeError, r"lease_ms: expected an integer, found 1\.5 \(float\)"),
    "a flag for a number": ({"lease_ms": True}, TypeError, r"lease_ms: expected an integer, found True \(bool\)"),
    "less than nothing": (
        {"transfer_ms": -1},
        ValueError,
        r"transfer_ms: expected 0 to 18446744073709551615, found -1",
    ),
    "33 bits": ({"max_transfers": 1 << 32}, ValueError, r"max_transfers: expected 0 to 4294967295, found 4294967296"),
    "a level": ({"log_level": 1 << 31}, ValueError, r"log_level: expected 0 to 2147483647, found"),
    "bytes for text": ({"transport": b"tcp"}, TypeError, r"transport: expected text, found b'tcp' \(bytes\)"),
}


@pytest.mark.parametrize("given", OPTIONS)
def test_values_that_c_would_read_otherwise_are_refused(example, given):
    options, kind, message = OPTIONS[given]
    with pytest.raises(kind, match=message):
        Node(Layout.from_dict(example), [Segment()] * len(example["segments"]), **options)


WRONG_CALLS = {
    "blocks": (lambda node: node.ask("t", 1, {"attn": Table([1, (1 << 32) + 3])}), ValueError, r"blocks of attn\[1\]"),
    "negative blocks": (lambda node: node.offer("t", 1, {"attn": Table([-1])}), ValueError, r"blocks of attn\[0\]"),
    "no blocks": (
        lambda node: node.offer("t", 1, {"attn": Table(["1"])}),
        TypeError,
        r"expected an integer, found '1'",
    ),
    "first token": (lambda node: node.offer("t", 1, {"attn": Table([1], -16)}), ValueError, "first_token of attn"),
    "tokens": (lambda node: node.offer("t", -1, {}), ValueError, "tokens: expected 0 to"),
    "ready": (lambda node: node.offer("t", 1, {}, ready="no"), TypeError, "ready: expected True or False, found 'no'"),
    "transfer id": (lambda node: node.expect(5), TypeError, r"transfer_id: expected text, found 5 \(int\)"),
    "no transfer id": (lambda node: node.expect(None), TypeError, r"transfer_id: expected text, found None"),
    "group": (lambda node: node.offer("t", 1, {3: Table([1])}), TypeError, "group: expected text, found 3"),
    "timeout": (lambda node: node.ask("t", 1, {}, timeout=-1), ValueError, "timeout: expected seconds, 0 or more"),
    "wait": (lambda node: node.wait(-1), ValueError, "timeout: expected seconds, 0 or more .*, found -1"),
    "wait for text": (lambda node: node.wait("1"), TypeError, "timeout: expected a number of seconds, found '1'"),
    "drain": (lambda node: node.drain(float("inf")), ValueError, "found inf"),
    "no number": (lambda node: node.wait(float("nan")), ValueError, "found nan"),
    "side": (lambda node: node.abort(7, "t"), ValueError, "7 is not a valid Side"),
    "segment": (lambda node: node.segment_address(-1), ValueError, "segment: expected 0 to"),
}


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_so_are_those_of_calls(node, call):
    work, kind, message = WRONG_CALLS[call]
    with pytest.raises(kind, match=message):
        work(node)
    assert node.statistics()["live"] == {"prefill": 0, "decode": 0}


@pytest.mark.parametrize("segment", [Segment(-1), Segment(1 << 64), Segment("1"), Segment(0, 3)])
def test_so_are_segments(example, segment):
    with pytest.raises((TypeError, ValueError)):
        Node(Layout.from_dict(example), [segment] * len(example["segments"]))


def test_other_values_are_not(node):
    assert not node.wait(0)
    assert not node.wait(0.001)
    assert node.segment_address(1 << 31) == 0
    node.offer("t", 0, {})
    node.abort(Side.PREFILL, "t")
