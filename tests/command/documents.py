# SPDX-License-Identifier: Apache-2.0
"""Small layout documents written by hand, and what copies do to bytes."""

CELL = 8
ROWS = 3  # of a convolution state


def attention(layer, heads, rank, size, block, page, blocks, offset, group="attn"):
    """k and v of one layer, packed per token, heads outermost; and where its pages end."""
    local = max(1, heads // size)
    start = rank * heads // size
    stride = local * page * 2 * CELL
    pages = blocks * block // page
    axes = [{"name": "kv_head", "start": start, "extent": local, "global": heads,
             "stride": page * 2 * CELL},
            {"name": "token", "extent": page, "stride": 2 * CELL}]
    streams = [{"layer": layer, "name": name, "group": group, "dtype": "bfloat16", "segment": "kv",
                "offset": offset + within, "pages": pages, "page_stride": stride, "page_tokens": page,
                "axes": axes, "cell_bytes": CELL}
               for name, within in (("k", 0), ("v", CELL))]
    return streams, offset + pages * stride


def state(layer, channels, rank, size, blocks, offset, group="gdn"):
    """A convolution state, channels outermost, with one channel's bytes of padding behind each page."""
    local = channels // size
    stride = (local + 1) * ROWS * 2
    stream = {"layer": layer, "name": "conv.q", "group": group, "dtype": "bfloat16", "segment": "kv",
              "offset": offset, "pages": blocks, "page_stride": stride,
              "axes": [{"name": "channel", "start": rank * local, "extent": local, "global": channels,
                        "stride": ROWS * 2},
                       {"name": "row", "extent": ROWS, "stride": 2}],
              "cell_bytes": 2}
    return [stream], offset + blocks * stride


def document(engine="p", rank=0, size=1, heads=2, block=4, page=None, blocks=8, layers=2, states=1,
             model="small", stage=0, stages=1, window=0):
    """One worker: `layers` attention layers and `states` state layers; stages take equal runs."""
    streams, offset = [], 0
    for index in range(layers):
        if index * stages // layers == stage:
            more, offset = attention(f"layers.{index}.attn", heads, rank, size, block, page or block,
                                     blocks, offset)
            streams += more
    for index in range(states):
        if index * stages // states == stage:
            more, offset = state(f"layers.{layers + index}.gdn", 8, rank, size, blocks, offset)
            streams += more
    return {"format": "kvferry-layout/1", "engine_id": engine,
            "worker": {"tp_rank": rank, "tp_size": size, "pp_rank": stage, "pp_size": stages,
                       "dp_rank": 0, "dp_size": 1},
            "identity": {"model": model, "revision": "", "draft": ""},
            "segments": [{"name": "kv", "bytes": offset}],
            "groups": [{"name": "attn", "kind": "paged", "block_tokens": block, "window": window},
                       {"name": "gdn", "kind": "state"}],
            "streams": streams}


def cells(layout, tables, first, tokens):
    """{(layer, stream, global indexes, token): address} of the cells that hold tokens first..tokens."""
    found = {}
    for stream in layout["streams"]:
        table = tables[stream["group"]]
        axes = stream["axes"]
        paged = any(axis["name"] == "token" for axis in axes)
        block = next(g for g in layout["groups"] if g["name"] == stream["group"]).get("block_tokens", 0)
        for index in grid([axis["extent"] for axis in axes]):
            within = sum(i * axis["stride"] for i, axis in zip(index, axes))
            place = tuple((axis["name"], axis.get("start", 0) + i) for i, axis in zip(index, axes)
                          if axis["name"] != "token")
            for number, block_id in enumerate(table["blocks"]):
                for page in range(block // stream["page_tokens"] if paged else 1):
                    token = 0
                    if paged:
                        token = table.get("first_token", 0) + number * block + \
                            page * stream["page_tokens"] + index[[a["name"] for a in axes].index("token")]
                        if not first <= token < tokens:
                            continue
                    ratio = block // stream["page_tokens"] if paged else 1
                    address = stream["offset"] + (block_id * ratio + page) * stream["page_stride"]
                    found[stream["layer"], stream["name"], place, token] = address + within
    return found


def grid(extents):
    if not extents:
        yield ()
        return
    for first in range(extents[0]):
        for rest in grid(extents[1:]):
            yield (first, *rest)


def play(copies, source, target):
    """Copies bytes, and fails where a copy leaves a segment or writes a byte twice."""
    written = set()
    for copy in copies:
        begin, at, count = copy["source_offset"], copy["target_offset"], copy["bytes"]
        assert count > 0 and begin + count <= len(source) and at + count <= len(target), copy
        assert not written & set(range(at, at + count)), copy
        written |= set(range(at, at + count))
        target[at:at + count] = source[begin:begin + count]
