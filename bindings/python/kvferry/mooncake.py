# SPDX-License-Identifier: Apache-2.0
"""Mooncake Transfer Engine out of its PyPI wheel, as an engine of kvferry.

The library's own engine "mooncake" needs libtransfer_engine.so, which the wheels do not have. What they have is a
Python module: this engine, "mooncake-python", is its TransferEngine behind the functions of
struct kvferry_engine_ops (include/kvferry/engine.h). Its calls take Python's lock; docs/engines.md compares the two.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import itertools
import os
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from kvferry import _library
from kvferry._address import with_port
from kvferry._library import BUSY, ENGINE, NO_SPACE, OK, PEER_LOST, CEngineOptions
from kvferry.report import Error, Report

NAME = "mooncake-python"

#: The first version whose writes over TCP are visible at the target when they are said to be done.
OLDEST = (0, 3, 12)

_WRITE = 0

# What the wheel says of a copy, and what it gives instead of its number where it could not be begun.
_RUNS, _DONE, _LATE = 0, 1, -2
_NOT_BEGUN = {0, (1 << 64) - 1}

#: Seconds between two looks at a copy. The wheel's own waiting spins, and takes the processor from what it waits for.
_PAUSE = 0.0002

#: More than about 2,048 descriptors with one peer hang the TCP transport (docs/engines.md).
_OUTSTANDING = 1024


class _CCopy(ctypes.Structure):
    _fields_ = [
        ("local", c_void_p),
        ("remote", c_uint64),
        ("bytes", c_uint64),
        ("local_segment", c_void_p),
        ("remote_segment", c_void_p),
    ]


class _CCapabilities(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("max_batch", c_uint64),
        ("max_outstanding", c_uint64),
        ("max_copy_bytes", c_uint64),
        *((name, c_bool) for name in ("writes", "reads", "cancels", "allocates", "device_memory", "lingers")),
    ]


_BatchEnd = CFUNCTYPE(None, c_void_p, c_int, c_char_p)

# The members of struct kvferry_engine_ops behind `name`, in their order.
_MEMBERS: dict[str, Any] = {
    "open": CFUNCTYPE(c_int, POINTER(CEngineOptions), POINTER(c_void_p), c_void_p),
    "close": CFUNCTYPE(None, c_void_p),
    "capabilities": CFUNCTYPE(None, c_void_p, POINTER(_CCapabilities)),
    "fd": CFUNCTYPE(c_int, c_void_p),
    "arm": CFUNCTYPE(c_int, c_void_p),
    "progress": CFUNCTYPE(c_bool, c_void_p),
    "segment_register": CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_int, POINTER(c_void_p), c_void_p),
    "segment_allocate": CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_void_p), POINTER(c_void_p), c_void_p),
    "segment_unregister": CFUNCTYPE(None, c_void_p, c_void_p),
    "address_export": CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_size_t)),
    "segment_export": CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, POINTER(c_size_t)),
    "peer_connect": CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_void_p),
    "segment_import": CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_void_p),
    "peer_lost": CFUNCTYPE(c_bool, c_void_p, c_void_p),
    "peer_busy": CFUNCTYPE(c_bool, c_void_p, c_void_p),
    "peer_close": CFUNCTYPE(None, c_void_p, c_void_p),
    "submit": CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, POINTER(_CCopy), c_size_t, _BatchEnd, c_void_p, c_void_p),
    "cancel": CFUNCTYPE(None, c_void_p, c_void_p, c_void_p),
}
_OPTIONAL = {"segment_allocate", "cancel"}


class _COps(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), *_MEMBERS.items()]


class _Peer:
    """Copies with one peer are waited for by one thread, a batch after the other: who is slow slows nobody else."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvferry-mooncake")
        self.running: set[Future[None]] = set()
        self.failure = ""  # what went wrong first, from then on
        self.lost = False  # told, with the end of the first batch that it ended

    def close(self) -> None:
        """What was begun cannot be stopped: waits for it."""
        self.thread.shutdown(wait=True, cancel_futures=True)


class _Engine:
    """One TransferEngine."""

    def __init__(self, transport: str, devices: str, host: str) -> None:
        from mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", transport or "tcp", devices) != 0:
            raise RuntimeError(f"TransferEngine.initialize({host!r}, 'P2PHANDSHAKE', {transport or 'tcp'!r}) failed")
        self.session = with_port(host, self._engine.get_rpc_port()).encode()
        self._ended: queue.SimpleQueue[tuple[_Peer, Any, int, str]] = queue.SimpleQueue()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.peers: dict[int, _Peer] = {}
        self.segments: dict[int, int] = {}
        self.numbers = itertools.count(1)

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        os.close(self.wake)

    def register(self, address: int, size: int) -> None:
        code = self._engine.register_memory(address, size)
        if code != 0:
            raise RuntimeError(f"register_memory({address:#x}, {size}) answered {code}")

    def unregister(self, address: int) -> None:
        self._engine.unregister_memory(address)

    def submit(self, peer: _Peer, write: bool, copies: list[tuple[int, int, int]], end: Any, batch: int) -> None:
        future = peer.thread.submit(self._move, peer, write, copies, end, batch)
        peer.running.add(future)
        future.add_done_callback(peer.running.discard)

    def _move(self, peer: _Peer, write: bool, copies: list[tuple[int, int, int]], end: Any, batch: int) -> None:
        """One batch, in the peer's thread."""
        if not peer.failure:  # behind a failure nothing is begun
            peer.failure = self._copy(peer, write, copies)
        self._ended.put((peer, end, batch, peer.failure))
        os.eventfd_write(self.wake, 1)

    def _copy(self, peer: _Peer, write: bool, copies: list[tuple[int, int, int]]) -> str:
        """What failed; "": nothing. A failed copy does not say why, so the connection is in doubt. Whatever the wheel
        raises, it raises nothing: the batch is to end."""
        begun: list[int] = []
        words = ""
        try:
            begin = self._engine.batch_transfer_async_write if write else self._engine.batch_transfer_async_read
            # One at a time: of what was begun together the wheel tells only how the first one is.
            for local, remote, size in copies:
                number = begin(peer.session, [local], [remote], [size])
                if number in _NOT_BEGUN:
                    words = ": not all could be begun"
                    break
                begun.append(number)
        except BaseException as error:
            words = f": {error!r}"
        failed = len(copies)
        for number in begun:  # to the last one, as each may still land
            try:
                failed -= self._wait(number)
            except BaseException as error:  # how it is cannot be told: it counts as over, and may still land
                words = f": {error!r}"
        return f"Mooncake: {failed} of {len(copies)} copies with {peer.session} failed{words}" if failed else ""

    def _wait(self, number: int) -> bool:
        """Until a copy is over; whether it is well. One that is late for Mooncake may still land: it is not over."""
        try:
            while (found := self._engine.transfer_check_status(number)) in (_RUNS, _LATE):
                time.sleep(_PAUSE)
        except TypeError:  # a number that is none
            return False
        return bool(found == _DONE)

    def waits(self) -> bool:
        return not self._ended.empty()

    def progress(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        active = False
        while not self._ended.empty():
            peer, end, batch, failure = self._ended.get()
            peer.lost |= bool(failure)
            end(batch, PEER_LOST if failure else OK, failure.encode(errors="replace") if failure else None)
            active = True
        return active

    def disconnect(self, number: int) -> None:
        self.peers.pop(number).close()
        self.progress()


_engines: dict[int, _Engine] = {}
_numbers = itertools.count(1)


def _say(report: int | None, words: object) -> None:
    """Into the caller's report."""
    _library.library().kvferry_report_add(report, b"engine", str(words).encode(errors="replace"))


def _guarded(function: Callable[..., int]) -> Callable[..., int]:
    """A failure's words go to the report, which is the last argument."""

    @functools.wraps(function)
    def call(*arguments: Any) -> int:
        try:
            return function(*arguments)
        except Exception as error:
            _say(arguments[-1], error)
            return ENGINE

    return call


def _export(data: bytes, out: int, size: Any) -> int:
    room, size.contents.value = size.contents.value, len(data)
    if room < len(data):
        return NO_SPACE
    ctypes.memmove(out, data, len(data))
    return OK


@_guarded
def _open(options: Any, out: Any, report: int | None) -> int:
    given = options.contents
    host = _library.text(given.host) or "127.0.0.1"
    engine = _Engine(_library.text(given.transport), _library.text(given.net_devices), host)
    out[0] = number = next(_numbers)
    _engines[number] = engine
    return OK


def _close(self: int) -> None:
    _engines.pop(self).close()


def _capabilities(self: int, out: Any) -> None:
    out[0] = _CCapabilities(
        NAME.encode(), _OUTSTANDING // 2, _OUTSTANDING, 1 << 30, True, True, False, False, True, True
    )


def _fd(self: int) -> int:
    return _engines[self].wake


def _arm(self: int) -> int:
    return BUSY if _engines[self].waits() else OK


def _progress(self: int) -> bool:
    return _engines[self].progress()


@_guarded
def _segment_register(self: int, address: int, size: int, memory: int, out: Any, report: int | None) -> int:
    engine = _engines[self]
    engine.register(address, size)
    out[0] = number = next(engine.numbers)
    engine.segments[number] = address
    return OK


def _segment_unregister(self: int, segment: int) -> None:
    engine = _engines[self]
    engine.unregister(engine.segments.pop(segment))


def _address_export(self: int, out: int, size: Any) -> int:
    return _export(_engines[self].session, out, size)


def _segment_export(self: int, segment: int, out: int, size: Any) -> int:
    return _export(b"-", out, size)  # its address is all that a peer needs, and it has that


@_guarded
def _peer_connect(self: int, data: int, size: int, out: Any, report: int | None) -> int:
    engine = _engines[self]
    out[0] = number = next(engine.numbers)
    engine.peers[number] = _Peer(ctypes.string_at(data, size).decode())
    return OK


def _segment_import(self: int, peer: int, data: int, size: int, out: Any, report: int | None) -> int:
    out[0] = 1
    return OK


def _peer_lost(self: int, peer: int) -> bool:
    return _engines[self].peers[peer].lost


def _peer_busy(self: int, peer: int) -> bool:
    return bool(_engines[self].peers[peer].running)


def _peer_close(self: int, peer: int) -> None:
    _engines[self].disconnect(peer)


@_guarded
def _submit(
    self: int, peer: int, direction: int, copies: Any, count: int, end: Any, batch: int, report: int | None
) -> int:
    engine = _engines[self]
    if failure := engine.peers[peer].failure:
        _say(report, failure)
        return PEER_LOST
    listed = [(copies[at].local, copies[at].remote, copies[at].bytes) for at in range(count)]
    # The function pointer is the library's and stays; the object around it is only valid in this call.
    ended = _BatchEnd(ctypes.cast(end, c_void_p).value or 0)
    engine.submit(engine.peers[peer], direction == _WRITE, listed, ended, batch)
    return OK


def _wheel() -> tuple[str, str]:
    """The distribution that the module `mooncake` is of, and its version: there is one for each kind of machine."""
    names = importlib.metadata.packages_distributions().get("mooncake")
    if not names:
        raise Error("no Mooncake wheel: pip install mooncake-transfer-engine, or the one for this machine", "not_found")
    return names[0], importlib.metadata.version(names[0])


def _numbers_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


@functools.cache
def add_engine() -> str:
    """Makes the engine known to the library, once; its name. Error: no wheel, or one that is too old."""
    name, version = _wheel()
    if _numbers_of(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Error(f"the Mooncake wheel {name} {version} is too old: expected {oldest} or newer", "unsupported")
    # Without it every copy over TCP opens a connection.
    os.environ.setdefault("MC_TCP_ENABLE_CONNECTION_POOL", "1")
    functions = {name: kind() if name in _OPTIONAL else kind(globals()[f"_{name}"]) for name, kind in _MEMBERS.items()}
    _kept.append(_COps(ctypes.sizeof(_COps), NAME.encode(), **functions))
    library = _library.library()
    _library.declare(
        library,
        {
            "kvferry_engine_add": (c_int, [POINTER(_COps), c_void_p]),
            "kvferry_report_add": (c_int, [c_void_p, c_char_p, c_char_p]),
        },
    )
    with Report() as report:
        report.check(library.kvferry_engine_add(byref(_kept[-1]), report.handle))
    return NAME


_kept: list[_COps] = []  # the library keeps pointers to it


def engine_name() -> str:
    """What to open for "mooncake": the library's own engine where libtransfer_engine.so is found, else this one."""
    library = _library.library()
    _library.declare(
        library,
        {
            "kvferry_engine_open": (c_int, [c_char_p, c_void_p, POINTER(c_void_p), c_void_p]),
            "kvferry_engine_close": (None, [c_void_p]),
        },
    )
    engine = c_void_p()
    if library.kvferry_engine_open(b"mooncake", None, byref(engine), None) == OK:
        library.kvferry_engine_close(engine)
        return "mooncake"
    return add_engine()
