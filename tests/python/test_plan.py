# SPDX-License-Identifier: Apache-2.0
"""Plans and requests: pieces, copies played on bytes, refusals."""

import pytest

import kvferry
from kvferry.model import derive


def small(tokens, heads, start, size, rank):
    """k of one layer: 4 heads in all, blocks of `tokens` tokens, 4 blocks, 1 byte a cell."""
    stream = {
        "layer": "l", "name": "k", "group": "attn", "dtype": "uint8", "segment": "kv", "offset": 0, "pages": 4,
        "page_stride": tokens * heads, "cell_bytes": 1,
        "axes": [
            {"name": "kv_head", "start": start, "extent": heads, "global": 4, "stride": tokens},
            {"name": "token", "extent": tokens, "stride": 1},
        ],
    }  # fmt: skip
    return kvferry.Layout.from_dict(
        {
            "format": "kvferry-layout/1",
            "engine_id": "",
            "worker": {"tp_rank": rank, "tp_size": size, "pp_rank": 0, "pp_size": 1},
            "identity": {"model": "m"},
            "segments": [{"name": "kv", "bytes": 4 * tokens * heads}],
            "groups": [{"name": "attn", "kind": "paged", "block_tokens": tokens}],
            "streams": [stream],
        }
    )


def test_copies_move_the_right_cells():
    sources = [small(4, 2, 0, 2, 0), small(4, 2, 2, 2, 1)]
    target = small(8, 3, 1, 1, 0)
    request = {
        "tokens": 7,
        "source": {"attn": {"blocks": [3, 1]}},
        "target": {"attn": {"blocks": [2]}},
    }
    memory = [bytes(range(100 * rank, 100 * rank + 32)) for rank in (0, 1)]
    landed = bytearray(96)
    plan = kvferry.Plan(sources, target)
    assert plan.source_count == 2
    assert [piece.ranges for piece in plan.pieces(0)] == [((1, 1), (0, 0))]
    assert [piece.ranges for piece in plan.pieces(1)] == [((2, 2), (0, 0))]
    for source in (0, 1):
        for copy in plan.expand(source, kvferry.Request(request)):
            assert (copy.source_segment, copy.target_segment) == (0, 0)
            part = memory[source][copy.source_offset : copy.source_offset + copy.bytes]
            landed[copy.target_offset : copy.target_offset + copy.bytes] = part
    for head in (1, 2, 3):
        for token in range(7):
            source, block = head // 2, (3, 1)[token // 4]
            expected = memory[source][block * 8 + head % 2 * 4 + token % 4]
            assert landed[2 * 24 + (head - 1) * 8 + token] == expected, (head, token)


def test_refusals(llama):
    with pytest.raises(kvferry.Refused) as refused:
        kvferry.Plan([], small(8, 4, 0, 1, 0))
    assert "no_sources" in refused.value.codes
    with pytest.raises(kvferry.Refused) as refused:
        kvferry.Plan([small(4, 2, 0, 2, 0)], small(8, 4, 0, 1, 0))
    assert refused.value.codes == {"coverage_hole"}
    reason = refused.value.reasons[0]
    assert (reason.layer, reason.stream, reason.axis) == ("l", "k", "kv_head")
    plan = kvferry.Plan([small(4, 4, 0, 1, 0)], small(8, 4, 0, 1, 0))
    request = {"tokens": 7, "source": {"attn": {"blocks": [0, 1]}}, "target": {"attn": {"blocks": [9]}}}
    with pytest.raises(kvferry.Refused) as refused:
        plan.expand(0, kvferry.Request(request))
    assert {"source_null", "block_range"} <= refused.value.codes
    with pytest.raises(kvferry.Refused) as refused:
        kvferry.Request('{"tokens": -1}')
    assert refused.value.status == "malformed"


def test_plan_outlives_its_documents(llama):
    plan = kvferry.Plan(
        [derive(llama, tp_size=2, tp_rank=rank, blocks=4) for rank in (0, 1)],
        derive(llama, tp_size=4, tp_rank=2, blocks=4),
    )
    assert [len(plan.pieces(source)) for source in (0, 1)] == [0, 64]
    request = {"tokens": 16, "source": {"attn": {"blocks": [1]}}, "target": {"attn": {"blocks": [3]}}}
    copies = plan.expand(1, kvferry.Request(request))
    assert sum(copy.bytes for copy in copies) == 32 * 16 * 2 * 2 * 128 * 2
