# SPDX-License-Identifier: Apache-2.0
"""A running worker: include/kvferry/node.h, whose comments say what each call does and refuses."""

from __future__ import annotations

import ctypes
import enum
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from kvferry import _library, _values
from kvferry._library import CEngineOptions
from kvferry.layout import Layout
from kvferry.report import Reason, Report, check, reasons_of

_LogFunction = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class _CNodeOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("listen", c_char_p),
        ("advertise", c_char_p),
        ("leader", c_char_p),
        ("bootstrap_listen", c_char_p),
        ("bootstrap", c_char_p),
        ("bootstrap_rank", c_uint32),
        ("metrics_listen", c_char_p),
        ("engine", c_char_p),
        ("engine_options", POINTER(CEngineOptions)),
        ("key_file", c_char_p),
        ("allowed_keys", c_char_p),
        ("insecure", c_bool),
        ("lease_ms", c_uint64),
        ("transfer_ms", c_uint64),
        ("connect_ms", c_uint64),
        ("early_ms", c_uint64),
        ("retry_ms", c_uint64),
        ("silence_ms", c_uint64),
        ("linger_ms", c_uint64),
        ("remember_ms", c_uint64),
        ("max_transfers", c_uint32),
        ("max_peers", c_uint32),
        ("max_peer_copies", c_uint64),
        ("max_message_bytes", c_uint64),
        ("verify", c_bool),
        ("log", _LogFunction),
        ("log_context", c_void_p),
        ("log_level", c_int),
    ]


class _CSegment(ctypes.Structure):
    _fields_ = [("address", c_void_p), ("memory", c_int)]


class _CTable(ctypes.Structure):
    _fields_ = [
        ("group", c_char_p),
        ("first_token", c_uint64),
        ("blocks", POINTER(c_uint32)),
        ("block_count", c_size_t),
    ]


class _COffer(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("transfer_id", c_char_p),
        ("tokens", c_uint64),
        ("tables", POINTER(_CTable)),
        ("table_count", c_size_t),
        ("readiness", c_int),
        ("context", c_void_p),
    ]


class _CAsk(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("transfer_id", c_char_p),
        ("engine_id", c_char_p),
        ("where", c_char_p),
        ("tokens", c_uint64),
        ("tables", POINTER(_CTable)),
        ("table_count", c_size_t),
        ("timeout_ms", c_uint64),
        ("context", c_void_p),
        ("whole_blocks", c_bool),
        ("allow_part", c_bool),
    ]


class _CEvent(ctypes.Structure):
    _fields_ = [
        ("kind", c_int),
        ("side", c_int),
        ("engine_id", c_char_p),
        ("transfer_id", c_char_p),
        ("outcome", c_int),
        ("code", c_char_p),
        ("report", c_void_p),
        ("bytes", c_uint64),
        ("copies", c_uint64),
        ("elapsed_ns", c_uint64),
        ("context", c_void_p),
        ("part", c_bool),
    ]


class _CStatistics(ctypes.Structure):
    _fields_ = [
        ("ended", c_uint64 * 4 * 2),
        ("bytes", c_uint64 * 2),
        ("copies", c_uint64 * 2),
        ("transfer_ns", c_uint64 * 2),
        ("live", c_uint64 * 2),
        ("unreleased", c_uint64 * 2),
        *(
            (name, c_uint64)
            for name in (
                "quarantined_blocks",
                "unsettled",
                "queued_copies",
                "peers",
                "messages_in",
                "messages_out",
                "message_bytes_in",
                "message_bytes_out",
                "malformed",
                "ignored",
                "refused",
                "refused_keys",
                "events_waiting",
            )
        ),
    ]


_TEXT_OUT, _SIZE_OUT = POINTER(c_void_p), POINTER(c_size_t)

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "kvferry_node_create": (
        c_int,
        [POINTER(_CNodeOptions), c_void_p, POINTER(_CSegment), c_size_t, POINTER(c_void_p), c_void_p],
    ),
    "kvferry_node_drain": (c_int, [c_void_p, c_uint64]),
    "kvferry_node_close": (None, [c_void_p]),
    "kvferry_node_segment_address": (c_void_p, [c_void_p, c_uint32]),
    "kvferry_node_address": (c_char_p, [c_void_p]),
    "kvferry_node_bootstrap": (c_char_p, [c_void_p]),
    "kvferry_node_metrics": (c_char_p, [c_void_p]),
    "kvferry_node_incarnation": (c_char_p, [c_void_p]),
    "kvferry_node_set_leader": (c_int, [c_void_p, c_char_p, c_void_p]),
    "kvferry_node_connect": (c_int, [c_void_p, c_char_p, c_char_p, c_void_p]),
    "kvferry_node_declare_dead": (c_int, [c_void_p, c_char_p, c_void_p]),
    "kvferry_node_expect": (c_int, [c_void_p, c_char_p, c_void_p]),
    "kvferry_node_offer": (c_int, [c_void_p, POINTER(_COffer), c_void_p]),
    "kvferry_node_ready": (c_int, [c_void_p, c_char_p]),
    "kvferry_node_ask": (c_int, [c_void_p, POINTER(_CAsk), c_void_p]),
    "kvferry_node_renew": (c_int, [c_void_p, c_char_p, c_char_p, c_void_p]),
    "kvferry_node_abort": (c_int, [c_void_p, c_int, c_char_p]),
    "kvferry_node_next_event": (POINTER(_CEvent), [c_void_p]),
    "kvferry_event_free": (None, [POINTER(_CEvent)]),
    "kvferry_node_fd": (c_int, [c_void_p]),
    "kvferry_node_wait": (c_int, [c_void_p, c_uint64]),
    "kvferry_node_get_statistics": (None, [c_void_p, POINTER(_CStatistics)]),
    "kvferry_node_status": (c_int, [c_void_p, _TEXT_OUT, _SIZE_OUT]),
    "kvferry_node_query": (c_int, [c_char_p, c_char_p, c_uint64, _TEXT_OUT, _SIZE_OUT, c_void_p]),
    "kvferry_keys_generate": (c_int, [c_char_p, c_void_p]),
}


@functools.cache
def _functions() -> ctypes.CDLL:
    library = _library.library()
    _library.declare(library, _FUNCTIONS)
    return library


class Memory(enum.IntEnum):
    HOST, CUDA, ROCM = range(3)


class LogLevel(enum.IntEnum):
    ERROR, WARNING, INFO, DEBUG = range(4)


class Side(enum.IntEnum):
    PREFILL, DECODE = range(2)


class EventKind(enum.IntEnum):
    CONNECTED, DISCONNECTED, ENDED, RELEASED = range(4)


class Outcome(enum.IntEnum):
    DONE, FAILED, ABORTED, EXPIRED = range(4)


@dataclass(frozen=True)
class Event:
    """One event, copied out of the library. `elapsed` is in seconds; `code` is "" when all is well. `part`: what comes
    before a window in its first block was not there, and is not moved; such a block is none for a prefix cache."""

    kind: EventKind
    side: Side
    engine_id: str
    transfer_id: str
    outcome: Outcome
    code: str
    reasons: tuple[Reason, ...]
    bytes: int
    copies: int
    elapsed: float
    part: bool = False


@dataclass(frozen=True)
class Segment:
    """Memory of the layout's segment of the same index; address 0: the engine allocates it."""

    address: int = 0
    memory: Memory = Memory.HOST


@dataclass(frozen=True)
class Table:
    """A request's blocks in one group: blocks[i] holds the tokens from first_token + i * block_tokens on."""

    blocks: Sequence[int]
    first_token: int = 0


def _c_tables(tables: Mapping[str, Table]) -> ctypes.Array[_CTable]:
    made = (_CTable * len(tables))()
    for at, (group, table) in enumerate(tables.items()):
        blocks = _values.whole_array(f"blocks of {group}", table.blocks)
        first = _values.whole(f"first_token of {group}", table.first_token)
        made[at] = _CTable(_values.text("group", group), first, blocks, len(blocks))
    return made


def _c_segments(segments: Sequence[Segment]) -> ctypes.Array[_CSegment]:
    return (_CSegment * len(segments))(
        *(_CSegment(_values.whole("address", each.address) or None, Memory(each.memory)) for each in segments)
    )


class Node:
    """A worker's node. Any thread; close() it, or use it in a `with`.

    `options` are the fields of kvferry_node_options by name, without size, log and engine_options;
    `log(level, line)` is called by the node's thread. Values of other types raise TypeError, those out of range
    ValueError, in every call.
    """

    def __init__(
        self,
        layout: Layout,
        segments: Sequence[Segment],
        *,
        transport: str = "",
        net_devices: str = "",
        log: Callable[[LogLevel, str], None] | None = None,
        **options: str | int | bool,
    ) -> None:
        self._functions = _functions()
        self._handle = c_void_p()
        engine = CEngineOptions(
            size=ctypes.sizeof(CEngineOptions),
            transport=_values.text_or_null("transport", transport),
            net_devices=_values.text_or_null("net_devices", net_devices),
        )
        given = _CNodeOptions(size=ctypes.sizeof(_CNodeOptions), engine_options=ctypes.pointer(engine))
        known = {name for name, *_ in _CNodeOptions._fields_} - {"size", "log", "log_context", "engine_options"}
        for name, value in options.items():
            if name not in known:
                raise TypeError(f"no option {name!r}: expected one of {', '.join(sorted(known))}")
            _values.set_field(given, name, value)
        # The library keeps the pointer: the function object must live as long as the node.
        self._log = _LogFunction(lambda _, level, line: log(LogLevel(level), line.decode()) if log else None)
        if log:
            given.log = self._log
        memory = _c_segments(segments)
        with Report() as report:
            report.check(
                self._functions.kvferry_node_create(
                    byref(given), layout.handle, memory, len(segments), byref(self._handle), report.handle
                )
            )

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Tears all down; the node is not to be used afterwards. Twice is fine."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self._functions.kvferry_node_close(handle)

    def drain(self, timeout: float) -> bool:
        """Takes nothing new and waits until all transfers are released; False: not within `timeout` seconds."""
        return self._waited(self._functions.kvferry_node_drain(self._handle, _values.milliseconds("timeout", timeout)))

    def wait(self, timeout: float) -> bool:
        """Waits for an event; False: none within `timeout` seconds."""
        return self._waited(self._functions.kvferry_node_wait(self._handle, _values.milliseconds("timeout", timeout)))

    @staticmethod
    def _waited(status: int) -> bool:
        if status == _library.TIMEOUT:
            return False
        check(status)
        return True

    @property
    def address(self) -> str:
        return _library.text(self._functions.kvferry_node_address(self._handle))

    @property
    def bootstrap(self) -> str:
        return _library.text(self._functions.kvferry_node_bootstrap(self._handle))

    @property
    def metrics(self) -> str:
        return _library.text(self._functions.kvferry_node_metrics(self._handle))

    @property
    def incarnation(self) -> str:
        return _library.text(self._functions.kvferry_node_incarnation(self._handle))

    def segment_address(self, segment: int) -> int:
        return self._functions.kvferry_node_segment_address(self._handle, _values.whole("segment", segment, 32)) or 0

    def fileno(self) -> int:
        """Readable while there are events: for select, asyncio."""
        return self._functions.kvferry_node_fd(self._handle)

    def _reported(self, function: Any, *arguments: Any) -> None:
        with Report() as report:
            report.check(function(self._handle, *arguments, report.handle))

    def set_leader(self, address: str) -> None:
        self._reported(self._functions.kvferry_node_set_leader, _values.text("address", address))

    def connect(self, where: str, engine_id: str = "") -> None:
        self._reported(
            self._functions.kvferry_node_connect, _values.text("engine_id", engine_id), _values.text("where", where)
        )

    def declare_dead(self, incarnation: str) -> None:
        self._reported(self._functions.kvferry_node_declare_dead, _values.text("incarnation", incarnation))

    def expect(self, transfer_id: str) -> None:
        self._reported(self._functions.kvferry_node_expect, _values.text("transfer_id", transfer_id))

    def offer(self, transfer_id: str, tokens: int, tables: Mapping[str, Table], *, ready: bool = False) -> None:
        offer = _COffer(
            ctypes.sizeof(_COffer),
            _values.text("transfer_id", transfer_id),
            _values.whole("tokens", tokens),
            _c_tables(tables),
            len(tables),
            _values.flag("ready", ready),
            None,
        )
        self._reported(self._functions.kvferry_node_offer, byref(offer))

    def ready(self, transfer_id: str) -> None:
        check(self._functions.kvferry_node_ready(self._handle, _values.text("transfer_id", transfer_id)))

    def ask(
        self,
        transfer_id: str,
        tokens: int,
        tables: Mapping[str, Table],
        *,
        engine_id: str = "",
        where: str = "",
        timeout: float = 0,
        whole_blocks: bool = False,
        allow_part: bool = False,
    ) -> None:
        """`timeout` in seconds; 0: the node's transfer_ms. `whole_blocks`: of a window, its first block is wanted from
        its first token on, as an engine needs it that caches prefixes by whole blocks. `allow_part`: where a source
        does not hold that, it moves the window alone, and the event's `part` says so."""
        ask = _CAsk(
            ctypes.sizeof(_CAsk),
            _values.text("transfer_id", transfer_id),
            _values.text("engine_id", engine_id),
            _values.text("where", where),
            _values.whole("tokens", tokens),
            _c_tables(tables),
            len(tables),
            _values.milliseconds("timeout", timeout),
            None,
            _values.flag("whole_blocks", whole_blocks),
            _values.flag("allow_part", allow_part),
        )
        self._reported(self._functions.kvferry_node_ask, byref(ask))

    def renew(self, engine_id: str, transfer_id: str) -> None:
        self._reported(
            self._functions.kvferry_node_renew,
            _values.text("engine_id", engine_id),
            _values.text("transfer_id", transfer_id),
        )

    def abort(self, side: Side, transfer_id: str) -> bool:
        """False: there is none that has not ended."""
        status = self._functions.kvferry_node_abort(self._handle, Side(side), _values.text("transfer_id", transfer_id))
        if status == _library.NOT_FOUND:
            return False
        check(status)
        return True

    def events(self) -> Iterator[Event]:
        """Takes the events that are there."""
        while pointer := self._functions.kvferry_node_next_event(self._handle):
            event = pointer.contents
            try:
                taken = Event(
                    EventKind(event.kind),
                    Side(event.side),
                    _library.text(event.engine_id),
                    _library.text(event.transfer_id),
                    Outcome(event.outcome),
                    _library.text(event.code),
                    tuple(reasons_of(event.report)),
                    event.bytes,
                    event.copies,
                    event.elapsed_ns / 1e9,
                    event.part,
                )
            finally:
                self._functions.kvferry_event_free(pointer)
            yield taken

    def statistics(self) -> dict[str, Any]:
        """The counters by name; of those of two sides: {"prefill": ..., "decode": ...}."""
        counted = _CStatistics()
        self._functions.kvferry_node_get_statistics(self._handle, byref(counted))
        found: dict[str, Any] = {}
        for name, *_ in _CStatistics._fields_:
            value = getattr(counted, name)
            if name == "ended":
                value = {side.name.lower(): {out.name.lower(): value[side][out] for out in Outcome} for side in Side}
            elif not isinstance(value, int):
                value = {side.name.lower(): value[side] for side in Side}
            found[name] = value
        return found

    def status(self) -> dict[str, Any]:
        """What `kvferry status` prints of this node."""
        text, size = c_void_p(), c_size_t()
        check(self._functions.kvferry_node_status(self._handle, byref(text), byref(size)))
        return _taken_json(text, size)


def _taken_json(text: c_void_p, size: c_size_t) -> dict[str, Any]:
    try:
        return json.loads(ctypes.string_at(text, size.value))
    finally:
        _library.library().kvferry_free(text)


def query(address: str, key_file: str = "", timeout: float = 5) -> dict[str, Any]:
    """The status of a node elsewhere; TimeoutError if it does not answer within `timeout` seconds."""
    text, size = c_void_p(), c_size_t()
    with Report() as report:
        status = _functions().kvferry_node_query(
            _values.text("address", address),
            _values.text("key_file", key_file),
            _values.milliseconds("timeout", timeout),
            byref(text),
            byref(size),
            report.handle,
        )
        if status == _library.TIMEOUT:
            raise TimeoutError(f"{address} does not answer")
        report.check(status)
    return _taken_json(text, size)


def generate_keys(path: str) -> None:
    """A new CURVE key pair in `path`, its public key in `path`.pub."""
    with Report() as report:
        report.check(_functions().kvferry_keys_generate(_values.text("path", path), report.handle))
