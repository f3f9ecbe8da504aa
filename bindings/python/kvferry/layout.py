# SPDX-License-Identifier: Apache-2.0
"""Layout documents (docs/layout-format.md): read, written, validated and compared by the library."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvferry import _library, _values
from kvferry.report import Report, check

KINDS = ("paged", "state", "ring")
POLICIES = ("required", "optional", "local")


@dataclass(frozen=True)
class Worker:
    """Ranks 0 .. size-1."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    dp_rank: int = 0
    dp_size: int = 1


@dataclass(frozen=True)
class Identity:
    model: str
    revision: str = ""
    draft: str = ""


@dataclass(frozen=True)
class Segment:
    name: str
    bytes: int


@dataclass(frozen=True)
class Group:
    """`blocks` is how many blocks the group has; `block_tokens` is 0 unless it is paged."""

    name: str
    kind: str
    block_tokens: int
    window: int
    null_block: int
    blocks: int


@dataclass(frozen=True)
class Axis:
    name: str
    start: int
    extent: int
    global_extent: int
    stride: int


@dataclass(frozen=True)
class Stream:
    """Lengths, offsets and strides in bytes; `group` and `segment` are names."""

    layer: str
    name: str
    dtype: str
    format: str
    group: str
    segment: str
    offset: int
    pages: int
    page_stride: int
    page_tokens: int
    tokens_per_state: int
    cell_bytes: int
    policy: str
    axes: tuple[Axis, ...]
    aliases: tuple[str, ...]


@dataclass(frozen=True)
class Digest:
    """A part of the fingerprint; layer and stream are "" in the document's own."""

    layer: str
    stream: str
    policy: str
    text: str


class Layout:
    """One worker's layout document. Immutable; any number of threads may use it."""

    def __init__(self, handle: int) -> None:
        """Takes over a kvferry_layout; use parse, from_dict or kvferry.model.derive."""
        self._library = _library.library()
        self.handle = ctypes.c_void_p(handle)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.kvferry_layout_free(self.handle)

    # --- reading and writing ---------------------------------------------------------------------

    @classmethod
    def parse(cls, data: str | bytes) -> Layout:
        """Reads JSON (text, or bytes that begin with a brace or space) or msgpack, and validates it.

        Refused holds every finding; its status is "malformed" if it is no such document.
        """
        if not isinstance(data, (str, bytes, bytearray, memoryview)):
            raise TypeError(f"kvferry: data: expected text or bytes, found {type(data).__name__}")
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
        is_json = isinstance(data, str) or raw.lstrip()[:1] == b"{"
        library = _library.library()
        read = library.kvferry_layout_read_json if is_json else library.kvferry_layout_read_msgpack
        handle = ctypes.c_void_p()
        with Report() as report:
            report.check(read(raw, len(raw), ctypes.byref(handle), report.handle))
        assert handle.value is not None
        return cls(handle.value)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Layout:
        """Validates a document that Python holds as dicts and lists."""
        return cls.parse(json.dumps(document))

    def _write(self, write: Any) -> bytes:
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        check(write(self.handle, ctypes.byref(data), ctypes.byref(size)))
        try:
            return ctypes.string_at(data, size.value)
        finally:
            self._library.kvferry_free(data)

    def to_json(self) -> str:
        return self._write(self._library.kvferry_layout_write_json).decode()

    def to_msgpack(self) -> bytes:
        return self._write(self._library.kvferry_layout_write_msgpack)

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self.to_json())

    # --- looking ---------------------------------------------------------------------------------

    @property
    def engine_id(self) -> str:
        return _library.text(self._library.kvferry_layout_engine_id(self.handle))

    @property
    def worker(self) -> Worker:
        worker = self._library.kvferry_layout_worker(self.handle).contents
        return Worker(*(getattr(worker, name) for name, _ in worker._fields_))

    @property
    def identity(self) -> Identity:
        identity = self._library.kvferry_layout_identity(self.handle).contents
        return Identity(*(_library.text(getattr(identity, name)) for name, _ in identity._fields_))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segment(index) for index in range(self._library.kvferry_layout_segment_count(self.handle)))

    def _segment(self, index: int) -> Segment:
        segment = self._library.kvferry_layout_segment(self.handle, index).contents
        return Segment(_library.text(segment.name), segment.bytes)

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(self._group(index) for index in range(self._library.kvferry_layout_group_count(self.handle)))

    def _group(self, index: int) -> Group:
        group = self._library.kvferry_layout_group(self.handle, index).contents
        return Group(
            name=_library.text(group.name),
            kind=KINDS[group.kind],
            block_tokens=group.block_tokens,
            window=group.window,
            null_block=group.null_block,
            blocks=self._library.kvferry_layout_group_blocks(self.handle, index),
        )

    @property
    def streams(self) -> tuple[Stream, ...]:
        groups = [group.name for group in self.groups]
        segments = [segment.name for segment in self.segments]
        count = self._library.kvferry_layout_stream_count(self.handle)
        return tuple(self._stream(index, groups, segments) for index in range(count))

    def _stream(self, index: int, groups: list[str], segments: list[str]) -> Stream:
        stream = self._library.kvferry_layout_stream(self.handle, index).contents
        axes = (stream.axes[axis] for axis in range(stream.axis_count))
        return Stream(
            layer=_library.text(stream.layer),
            name=_library.text(stream.name),
            dtype=_library.text(stream.dtype),
            format=_library.text(stream.format),
            group=groups[stream.group],
            segment=segments[stream.segment],
            offset=stream.offset,
            pages=stream.pages,
            page_stride=stream.page_stride,
            page_tokens=stream.page_tokens,
            tokens_per_state=stream.tokens_per_state,
            cell_bytes=stream.cell_bytes,
            policy=POLICIES[stream.policy],
            axes=tuple(
                Axis(_library.text(axis.name), axis.start, axis.extent, getattr(axis, "global"), axis.stride)
                for axis in axes
            ),
            aliases=tuple(_library.text(stream.aliases[alias]) for alias in range(stream.alias_count)),
        )

    def groups_share(self, a: int, b: int) -> bool:
        """Whether two groups, by index, own bytes in common, so that a block id is exclusive over both."""
        a, b = _values.whole("a", a, 32), _values.whole("b", b, 32)
        return bool(self._library.kvferry_layout_groups_share(self.handle, a, b))

    # --- comparing -------------------------------------------------------------------------------

    def fingerprint(self) -> tuple[Digest, ...]:
        """The document's digest, then one for each stream, in their order."""
        found: list[Digest] = []
        while digest := self._library.kvferry_layout_digest(self.handle, len(found)):
            one = digest.contents
            found.append(
                Digest(_library.text(one.layer), _library.text(one.stream), POLICIES[one.policy], one.text.decode())
            )
        return tuple(found)

    def check_target(self, target: Layout) -> None:
        """Raises Refused with every difference that matters between this source and `target`.

        Streams that only one of the two has are no difference: another stage may hold them.
        """
        with Report() as report:
            report.check(self._library.kvferry_layout_compare(self.handle, target.handle, report.handle))
