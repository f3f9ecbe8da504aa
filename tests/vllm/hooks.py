# SPDX-License-Identifier: Apache-2.0
"""KvferryConnector with workers that can take away a kind of cache from what they received, and can write down what
they sent and received (README.md)."""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.layout import Layout
from kvferry.node import Event, EventKind, Node, Outcome, Segment, Side, Table
from kvferry.vllm.connector import KvferryConnector
from kvferry.vllm.scheduler import Ask, Offer
from kvferry.vllm.worker import Worker


def kind_now() -> str:
    told = os.environ.get("KVFERRY_TEST_DAMAGE", "")
    return Path(told[1:]).read_text().strip() if told.startswith("@") else told


def is_of_kind(kind: str, layer: str, name: str, window: bool = False) -> bool:
    """Whether a stream is of a kind of cache; window: whether its group has one."""
    return {
        "conv": name.split(".")[0] == "conv",
        "ssm": name == "ssm",
        "heads": name in ("k", "v"),
        "window heads": name in ("k", "v") and window,
        "full heads": name in ("k", "v") and not window,
        "window": name == "latent" and layer.endswith(".swa_cache"),
        "latent": name == "latent" and not layer.endswith(".swa_cache"),
        "index": name in ("index", "index.scale"),
        "compressor": name == "compressor",
        "drafts": layer.startswith("mtp."),
    }[kind]


def cells(stream: Mapping[str, Any], address: int) -> np.ndarray[Any, Any]:
    """All cells of a stream: by page, by each axis, by byte."""
    shape = [stream["pages"], *(axis["extent"] for axis in stream["axes"]), stream["cell_bytes"]]
    strides = [stream["page_stride"], *(axis["stride"] for axis in stream["axes"]), 1]
    size = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
    memory = np.frombuffer((ctypes.c_uint8 * size).from_address(address + stream["offset"]), np.uint8)
    return np.lib.stride_tricks.as_strided(memory, shape, strides, writeable=True)


def upper_heads(stream: Mapping[str, Any]) -> tuple[slice, ...]:
    """The part of a page that holds the upper half of the model's heads."""
    return tuple(
        slice(max(0, axis.get("global", axis["extent"]) // 2 - axis.get("start", 0)), None)
        if axis["name"] == "kv_head"
        else slice(None)
        for axis in stream["axes"]
    )


class HookedWorker(Worker):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Of requests that are under way: how many tokens, and the blocks that have them.
        self._offered: dict[str, tuple[int, Mapping[str, Table]]] = {}
        self._asked: dict[str, tuple[int, Mapping[str, Table]]] = {}
        self._document: dict[str, Any] = {}
        self._addresses: dict[str, int] = {}

    def _open_node(self, layout: Layout, segments: list[Segment]) -> Node:
        self._document = layout.to_dict()
        names = (segment["name"] for segment in self._document["segments"])
        self._addresses = {name: segment.address for name, segment in zip(names, segments, strict=True)}
        return super()._open_node(layout, segments)

    def _offer(self, offer: Offer) -> None:
        self._offered[offer.transfer_id] = offer.tokens, self._tables(offer.groups)
        super()._offer(offer)

    def _call_ask(self, ask: Ask, tables: dict[str, Table]) -> None:
        self._asked[ask.transfer_id] = ask.tokens, tables
        super()._call_ask(ask, tables)

    def _sent(self, event: Event) -> None:
        self._look(event, self._offered)
        super()._sent(event)

    def _received(self, event: Event) -> None:
        self._look(event, self._asked)
        super()._received(event)

    def _look(self, event: Event, requests: dict[str, tuple[int, Mapping[str, Table]]]) -> None:
        """At what has just arrived, or has just been sent: its blocks are still the request's."""
        if event.kind != EventKind.RELEASED:
            return
        tokens, tables = requests.pop(event.transfer_id, (0, {}))
        if event.outcome != Outcome.DONE:
            return
        kind, noted = kind_now(), os.environ.get("KVFERRY_TEST_DRAFT_CELLS", "")
        if kind and event.side == Side.DECODE:
            self._damage(kind, tables)
        if Path(noted).is_file():
            self._note(Path(noted), event, tokens, tables)

    def _damage(self, kind: str, tables: Mapping[str, Table]) -> None:
        for stream in self._document["streams"]:
            group = self._group(stream)
            if group["name"] not in tables or not is_of_kind(
                kind, stream["layer"], stream["name"], group.get("window", 0) > 0
            ):
                continue
            part = upper_heads(stream) if kind.endswith("heads") else ()
            view = cells(stream, self._addresses[stream["segment"]])
            for page in self._pages(group, stream, tables[stream["group"]].blocks):
                view[(page, *part)] = 0

    def _note(self, path: Path, event: Event, tokens: int, tables: Mapping[str, Table]) -> None:
        """Adds a line: the side, the transfer, and a checksum of each cell that draft layers have of it."""
        found = {}
        for stream in self._document["streams"]:
            if stream["group"] not in tables or not is_of_kind("drafts", stream["layer"], stream["name"]):
                continue
            table = tables[stream["group"]]
            axes = {axis["name"]: axis for axis in stream["axes"]}
            names = ["page", *axes, "byte"]
            first = [names.index(name) for name in ("page", "token", "kv_head")]
            view = cells(stream, self._addresses[stream["segment"]])
            view = view.transpose(first + [at for at in range(len(names)) if at not in first])
            head = axes["kv_head"].get("start", 0)
            pages = self._pages(self._group(stream), stream, table.blocks)
            for index, page in enumerate(pages):
                for token in range(axes["token"]["extent"]):
                    position = table.first_token + index * axes["token"]["extent"] + token
                    for here in range(axes["kv_head"]["extent"] if position < tokens else 0):
                        name = f"{stream['layer']} {stream['name']}, head {head + here}, token {position}"
                        found[name] = zlib.crc32(view[page, token, here].tobytes())
        if found:
            with path.open("a") as file:
                file.write(json.dumps([event.side.name, event.transfer_id, found]) + "\n")

    def _group(self, stream: Mapping[str, Any]) -> Mapping[str, Any]:
        return next(group for group in self._document["groups"] if group["name"] == stream["group"])

    @staticmethod
    def _pages(group: Mapping[str, Any], stream: Mapping[str, Any], blocks: Iterable[int]) -> Iterable[int]:
        tokens = group.get("block_tokens", 1)  # of groups without: a block is a page
        ratio = tokens // stream.get("page_tokens", tokens)
        for block in blocks:
            if block != group.get("null_block", 0):
                yield from range(block * ratio, (block + 1) * ratio)


class HookedConnector(KvferryConnector):
    make_worker = HookedWorker
