# SPDX-License-Identifier: Apache-2.0
"""KvferryConnector with a decode worker that can take away a kind of cache from what it received (README.md)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.layout import Layout
from kvferry.node import Event, EventKind, Node, Outcome, Segment, Table
from kvferry.vllm.connector import KvferryConnector
from kvferry.vllm.scheduler import Ask
from kvferry.vllm.worker import Worker


def kind_now() -> str:
    told = os.environ.get("KVFERRY_TEST_DAMAGE", "")
    return Path(told[1:]).read_text().strip() if told.startswith("@") else told


def is_of_kind(kind: str, layer: str, name: str) -> bool:
    return {
        "conv": name.split(".")[0] == "conv",
        "ssm": name == "ssm",
        "heads": name in ("k", "v"),
        "window": name == "latent" and layer.endswith(".swa_cache"),
        "latent": name == "latent" and not layer.endswith(".swa_cache"),
        "index": name in ("index", "index.scale"),
        "compressor": name == "compressor",
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


class DamagingWorker(Worker):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: dict[str, Mapping[str, Table]] = {}
        self._document: dict[str, Any] = {}
        self._addresses: dict[str, int] = {}

    def _open_node(self, layout: Layout, segments: list[Segment]) -> Node:
        self._document = layout.to_dict()
        names = (segment["name"] for segment in self._document["segments"])
        self._addresses = {name: segment.address for name, segment in zip(names, segments, strict=True)}
        return super()._open_node(layout, segments)

    def _call_ask(self, ask: Ask, tables: dict[str, Table]) -> None:
        self._asked[ask.transfer_id] = tables
        super()._call_ask(ask, tables)

    def _received(self, event: Event) -> None:
        if event.kind == EventKind.RELEASED:
            tables = self._asked.pop(event.transfer_id, {})
            kind = kind_now()
            if kind and event.outcome == Outcome.DONE:
                self._damage(kind, tables)
        super()._received(event)

    def _damage(self, kind: str, tables: Mapping[str, Table]) -> None:
        groups = {group["name"]: group for group in self._document["groups"]}
        for stream in self._document["streams"]:
            if stream["group"] not in tables or not is_of_kind(kind, stream["layer"], stream["name"]):
                continue
            part = upper_heads(stream) if kind == "heads" else ()
            view = cells(stream, self._addresses[stream["segment"]])
            for page in self._pages(groups[stream["group"]], stream, tables[stream["group"]].blocks):
                view[(page, *part)] = 0

    @staticmethod
    def _pages(group: Mapping[str, Any], stream: Mapping[str, Any], blocks: Iterable[int]) -> Iterable[int]:
        tokens = group.get("block_tokens", 1)  # of groups without: a block is a page
        ratio = tokens // stream.get("page_tokens", tokens)
        for block in blocks:
            if block != group.get("null_block", 0):
                yield from range(block * ratio, (block + 1) * ratio)


class DamagingConnector(KvferryConnector):
    make_worker = DamagingWorker
