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
