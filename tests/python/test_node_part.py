# SPDX-License-Identifier: Apache-2.0
"""Windows in whole blocks, or in part, between two nodes."""

import ctypes

import pytest

from kvferry import Layout
from kvferry.node import EventKind, Node, Outcome, Segment, Side, Table

CELL, WINDOW, TOKENS = 8, 2, 15  # the window begins at token 13, in the decode side's block of the tokens from 8 on
PAGES = 16


def layout(engine: str, block: int) -> Layout:
    stream = {
        "layer": "l0",
        "name": "latent",
        "group": "window",
        "dtype": "uint8",
        "segment": "kv",
        "offset": 0,
        "pages": PAGES,
        "page_stride": block * CELL,
        "page_tokens": block,
        "cell_bytes": CELL,
        "axes": [{"name": "token", "extent": block, "stride": CELL}],
    }
    ranks = {f"{axis}_{what}": int(what == "size") for axis in ("tp", "pp", "dp") for what in ("rank", "size")}
    return Layout.from_dict(
        {
            "format": "kvferry-layout/1",
            "engine_id": engine,
            "worker": ranks,
            "identity": {"model": "small", "revision": "", "draft": ""},
            "segments": [{"name": "kv", "bytes": PAGES * block * CELL}],
            "groups": [{"name": "window", "kind": "paged", "block_tokens": block, "window": WINDOW}],
            "streams": [stream],
        }
    )


@pytest.fixture(name="nodes", params=[False, True], ids=["plain", "verify"])
def two_nodes(request):
    def open_node(engine: str, block: int) -> Node:
        return Node(layout(engine, block), [Segment()], transport="tcp", verify=request.param)

    with open_node("p", 4) as prefill, open_node("d", 8) as decode:
        ctypes.memset(prefill.segment_address(0), 7, PAGES * 4 * CELL)
        yield prefill, decode


def ended(node: Node, transfer: str):
    """The event that ends it, and the one that releases it."""
    found = []
    while len(found) < 2:
        assert node.wait(30)
        found += [event for event in node.events() if event.transfer_id == transfer]
    assert [event.kind for event in found] == [EventKind.ENDED, EventKind.RELEASED]
    return found


def moved(node: Node, block: int) -> list[int]:
    """Which tokens of a block, whose memory is cleared for the next request."""
    at = node.segment_address(0) + block * 8 * CELL
    data = ctypes.string_at(at, 8 * CELL)
    ctypes.memset(at, 0, 8 * CELL)
    return [token for token in range(8) if data[token * CELL : (token + 1) * CELL] == bytes([7] * CELL)]


HELD = {"all": (Table([1, 2, 3, 4]), False), "a part": (Table([4], 12), True)}


@pytest.mark.parametrize("held", HELD)
def test_what_is_not_held_before_a_window_is_left_out_and_said(nodes, held):
    prefill, decode = nodes
    offered, part = HELD[held]
    prefill.offer("t", TOKENS, {"window": offered}, ready=True)
    wanted = {"window": Table([5, 6])}
    decode.ask("t", TOKENS, wanted, where=prefill.address, whole_blocks=True, allow_part=True)
    end, release = ended(decode, "t")
    assert (end.side, end.outcome, end.reasons) == (Side.DECODE, Outcome.DONE, ())
    assert (end.part, release.part) == (part, False)
    assert moved(decode, 6) == ([5, 6] if part else list(range(7)))
    assert moved(decode, 5) == []
    assert not any(event.part for event in ended(prefill, "t"))


def test_who_does_not_allow_it_is_refused(nodes):
    prefill, decode = nodes
    prefill.offer("t", TOKENS, {"window": HELD["a part"][0]}, ready=True)
    decode.ask("t", TOKENS, {"window": Table([5, 6])}, where=prefill.address, whole_blocks=True)
    end, _ = ended(decode, "t")
    assert (end.outcome, end.code, end.part) == (Outcome.FAILED, "source_null", False)
    assert "whole_blocks" in end.reasons[0].message
    assert moved(decode, 6) == []
    with pytest.raises(TypeError, match="allow_part: expected True or False"):
        decode.ask("u", TOKENS, {}, where=prefill.address, allow_part=1)
