# SPDX-License-Identifier: Apache-2.0
"""Plans: who sends which bytes to one target worker, and the copies of a request."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry import _library, _values
from kvferry.layout import Layout
from kvferry.report import Report


@dataclass(frozen=True)
class Piece:
    """A part of a stream that one source sends.

    Streams are indexes in their documents; ranges are (start, extent) by axis of the target's stream,
    (0, 0) for the token axis, which requests cut; state_bytes: of one state (paged) or of one block.
    """

    source_stream: int
    target_stream: int
    ranges: tuple[tuple[int, int], ...]
    state_bytes: int


@dataclass(frozen=True)
class Copy:
    """Contiguous bytes; segments are indexes in the documents, offsets from their beginnings."""

    source_segment: int
    source_offset: int
    target_segment: int
    target_offset: int
    bytes: int


class Request:
    """What one request wants moved, as docs/command.md's request document says it."""

    def __init__(self, document: str | Mapping[str, Any]) -> None:
        raw = (document if isinstance(document, str) else json.dumps(document)).encode()
        self._library = _library.library()
        self.handle = ctypes.c_void_p()
        with Report() as report:
            report.check(
                self._library.kvferry_request_read_json(raw, len(raw), ctypes.byref(self.handle), report.handle)
            )

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.kvferry_request_free(self.handle)


class Plan:
    """How `target` gets its caches from `sources`, all workers of one engine. Immutable; any thread.

    Refused if a required byte has no source, or if what the sides hold does not fit.
    """

    def __init__(self, sources: Sequence[Layout], target: Layout) -> None:
        self._library = _library.library()
        self.handle = ctypes.c_void_p()
        layouts = (ctypes.c_void_p * max(len(sources), 1))(*(source.handle for source in sources))
        with Report() as report:
            report.check(
                self._library.kvferry_plan_create(
                    layouts, len(sources), target.handle, ctypes.byref(self.handle), report.handle
                )
            )

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.kvferry_plan_free(self.handle)

    @property
    def source_count(self) -> int:
        return self._library.kvferry_plan_source_count(self.handle)

    def pieces(self, source: int) -> tuple[Piece, ...]:
        """What source `source` sends; empty: it is in no plan of this target."""
        source = _values.whole("source", source)
        found = []
        for index in range(self._library.kvferry_plan_piece_count(self.handle, source)):
            piece = self._library.kvferry_plan_piece(self.handle, source, index).contents
            ranges = ((piece.ranges[at].start, piece.ranges[at].extent) for at in range(piece.range_count))
            found.append(Piece(piece.source_stream, piece.target_stream, tuple(ranges), piece.state_bytes))
        return tuple(found)

    def expand(self, source: int, request: Request) -> list[Copy]:
        """The copies that source `source` makes for the request; Refused if a rule of requests is broken."""
        source = _values.whole("source", source)
        bound = self._library.kvferry_plan_expand_bound(self.handle, source, request.handle)
        copies, count = (_library.CCopy * bound)(), ctypes.c_size_t()
        with Report() as report:
            report.check(
                self._library.kvferry_plan_expand(
                    self.handle, source, request.handle, copies, bound, ctypes.byref(count), report.handle
                )
            )
        return [
            Copy(one.source_segment, one.source_offset, one.target_segment, one.target_offset, one.bytes)
            for one in copies[: count.value]
        ]
