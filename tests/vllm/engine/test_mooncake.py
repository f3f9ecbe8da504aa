# SPDX-License-Identifier: Apache-2.0
"""Mooncake's TransferEngine out of its wheel, behind the library's public engine callbacks."""

import ctypes
import itertools
import time
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import pytest

from kvferry import _library, mooncake
from kvferry.report import Error, Report, reasons_of

OK, BUSY, PEER_LOST, OUT_OF_RANGE = 0, 8, 11, 12
WRITE, READ = 0, 1
SIZE = 8 << 20


class State(ctypes.Structure):
    _fields_ = [
        ("status", c_int),
        ("over", c_bool),
        ("copies_done", c_uint64),
        ("bytes_done", c_uint64),
        ("detail", c_char_p),
    ]


@pytest.fixture(scope="session")
def library():
    library = _library.library()
    out = POINTER(c_void_p)
    _library.declare(
        library,
        {
            "kvferry_engine_open": (c_int, [c_char_p, c_void_p, out, c_void_p]),
            "kvferry_engine_close": (None, [c_void_p]),
            "kvferry_engine_register": (c_int, [c_void_p, c_void_p, c_uint64, c_int, POINTER(c_uint32), c_void_p]),
            "kvferry_engine_export": (c_int, [c_void_p, out, POINTER(c_size_t), c_void_p]),
            "kvferry_engine_connect": (c_int, [c_void_p, c_void_p, c_size_t, out, c_void_p]),
            "kvferry_engine_progress": (c_int, [c_void_p, POINTER(c_bool)]),
            "kvferry_peer_close": (None, [c_void_p]),
            "kvferry_transfer_begin": (
                c_int,
                [c_void_p, c_void_p, c_int, POINTER(_library.CCopy), c_size_t, c_uint64, out, c_void_p],
            ),
            "kvferry_transfer_get": (POINTER(State), [c_void_p]),
            "kvferry_transfer_free": (c_int, [c_void_p]),
        },
    )
    return library


class Side:
    """One engine with one segment."""

    def __init__(self, library, fill):
        self.library, self.engine = library, c_void_p()
        self.memory = ctypes.create_string_buffer(bytes([fill]) * SIZE, SIZE)
        self.call("kvferry_engine_open", mooncake.add_engine().encode(), None, byref(self.engine))
        self.call("kvferry_engine_register", self.engine, self.memory, SIZE, 0, byref(c_uint32()))

    def call(self, name, *arguments):
        with Report() as report:
            report.check(getattr(self.library, name)(*arguments, report.handle))

    def connect(self, other):
        data, size, peer = c_void_p(), c_size_t(), c_void_p()
        self.call("kvferry_engine_export", other.engine, byref(data), byref(size))
        self.call("kvferry_engine_connect", self.engine, data, size, byref(peer))
        self.library.kvferry_free(data)
        return peer

    def move(self, peer, direction, copies, seconds=60):
        transfer = c_void_p()
        self.call("kvferry_transfer_begin", self.engine, peer, direction, copies, len(copies), 0, byref(transfer))
        end = time.monotonic() + seconds
        state = self.library.kvferry_transfer_get(transfer).contents
        while not state.over and time.monotonic() < end:
            self.library.kvferry_engine_progress(self.engine, None)
        found = (state.status, state.copies_done, (state.detail or b"").decode())
        assert self.library.kvferry_transfer_free(transfer) == OK
        return found


@pytest.fixture
def pair(library):
    sides = Side(library, 1), Side(library, 2)
    yield sides
    for side in sides:
        library.kvferry_engine_close(side.engine)


def copies_of(count, size):
    """From place i to place count - 1 - i."""
    return (_library.CCopy * count)(
        *(_library.CCopy(i * size, (count - 1 - i) * size, size, 0, 0) for i in range(count))
    )


def number_places(memory, count, size):
    for place in range(count):
        ctypes.memset(ctypes.addressof(memory) + place * size, place % 251 + 3, size)


@pytest.mark.parametrize(("count", "size"), [(1, 100), (5000, 512), (3, 2 << 20)])
@pytest.mark.parametrize("direction", [WRITE, READ])
def test_bytes_arrive(pair, count, size, direction):
    here, there = pair
    source, target = (here, there) if direction == WRITE else (there, here)
    number_places(source.memory, count, size)
    peer = here.connect(there)
    assert here.move(peer, direction, copies_of(count, size)) == (OK, count, "")
    for place in range(count):
        at = (count - 1 - place) * size
        assert target.memory[at] == target.memory[at + size - 1] == bytes([place % 251 + 3])
    assert target.memory.raw[count * size :].strip(target.memory.raw[-1:]) == b""


def test_a_copy_past_the_end_is_refused_before_it_moves(pair):
    here, there = pair
    peer = here.connect(there)
    transfer = c_void_p()
    with Report() as report:
        copies = (_library.CCopy * 1)(_library.CCopy(0, SIZE - 10, 11, 0, 0))
        status = here.library.kvferry_transfer_begin(
            here.engine, peer, WRITE, copies, 1, 0, byref(transfer), report.handle
        )
        assert status == OUT_OF_RANGE
        assert len(reasons_of(report.handle)) == 1
    assert there.memory.raw == b"\2" * SIZE


def test_a_peer_that_is_gone_is_an_error_with_its_name(library):
    here, there = Side(library, 1), Side(library, 2)
    peer = here.connect(there)
    library.kvferry_engine_close(there.engine)
    there.memory = None
    status, done, detail = here.move(peer, WRITE, copies_of(4, 1000))
    assert (status, done) == (PEER_LOST, 0)
    assert "Mooncake" in detail
    library.kvferry_peer_close(peer)
    library.kvferry_engine_close(here.engine)


class Late:
    """A TransferEngine whose copies are told late twice before they are done, and that begins only so many."""

    room = 3

    def initialize(self, *arguments):
        return 0

    def get_rpc_port(self):
        return 1

    def batch_transfer_async_write(self, session, local, remote, sizes):
        self.begun = getattr(self, "begun", 0) + 1
        self.answers = {**getattr(self, "answers", {}), self.begun: [1, -2, 0, -2]}
        return self.begun if self.begun <= self.room else 0

    def transfer_check_status(self, number):
        return self.answers[number].pop()


@pytest.mark.parametrize(("count", "status"), [(3, OK), (4, PEER_LOST)])
def test_a_late_copy_is_not_over_and_one_that_cannot_be_begun_fails(monkeypatch, count, status):
    monkeypatch.setattr("mooncake.engine.TransferEngine", Late)
    engine = mooncake._Engine("", "", "127.0.0.1")
    engine.peers[1] = mooncake._Peer("there:1")
    ends = []
    engine.submit(engine.peers[1], True, [(0, 0, 8)] * count, lambda *end: ends.append(end), 7)
    while not engine.progress():
        time.sleep(0.001)
    engine.close()
    assert [end[:2] for end in ends] == [(7, status)]
    assert engine._engine.answers == {number: [] if number <= 3 else [1, -2, 0, -2] for number in range(1, count + 1)}
    if status == PEER_LOST:
        assert ends[0][2] == b"Mooncake: 1 of 4 copies with there:1 failed: not all could be begun"


class Broken(Late):
    """A TransferEngine that raises what nobody expects, at the call named; copies with others than `here` go well."""

    def __init__(self, at):
        self.at, self.numbers, self.asked = at, itertools.count(1), {}

    def batch_transfer_async_write(self, session, local, remote, sizes):
        number = next(self.numbers)
        self.asked[number] = session
        if (self.at, session) == ("begin", "here:1"):
            raise KeyError("odd")
        return number

    def transfer_check_status(self, number):
        if self.asked[number] == "here:1":
            raise SystemExit("odd") if self.at == "exit" else KeyError("odd")
        return 1


@pytest.fixture(name="broken", params=["begin", "look", "exit"])
def engine_with_broken_calls(monkeypatch, request):
    monkeypatch.setattr("mooncake.engine.TransferEngine", lambda: Broken(request.param))
    engine = mooncake._Engine("", "", "127.0.0.1")
    engine.peers.update({1: mooncake._Peer("here:1"), 2: mooncake._Peer("there:1")})
    monkeypatch.setitem(mooncake._engines, 1 << 20, engine)
    yield engine
    engine.close()


def submit_and_wait(engine, batches, copies=1):
    """Each (batch, peer) with a copy, until the threads have nothing more to do; the ends, as they are told."""
    ends = []
    for batch, peer in batches:
        engine.submit(engine.peers[peer], True, [(0, 0, 8)] * copies, lambda *end: ends.append(end), batch)
    for peer in engine.peers.values():
        peer.thread.shutdown(wait=True)
    return ends


@pytest.mark.parametrize("copies", [1, 2])
def test_what_nobody_expects_ends_the_copies_with_that_peer_and_no_others(broken, copies):
    ends = submit_and_wait(broken, [(7, 1), (8, 2), (9, 1)], copies)
    broken.progress()
    found = {batch: (status, (words or b"").decode()) for batch, status, words in ends}
    assert found[8] == (OK, "")
    assert found[7][0] == found[9][0] == PEER_LOST
    assert found[7][1] == found[9][1]
    assert "Mooncake: " in found[7][1]
    assert "here:1 failed: " in found[7][1]
    assert "odd" in found[7][1]
    assert [broken.peers[number].lost for number in (1, 2)] == [True, False]
    begun = 1 if broken._engine.at == "begin" else copies
    assert list(broken._engine.asked.values()).count("here:1") == begun, "behind a failure nothing is begun"


class Leaving(Late):
    """A TransferEngine that begins two copies and leaves the interpreter at the third; `answers` are still to give."""

    room = 2

    def batch_transfer_async_write(self, session, local, remote, sizes):
        number = super().batch_transfer_async_write(session, local, remote, sizes)
        if not number:
            raise SystemExit("odd")
        return number


class Hidden(Late):
    """A TransferEngine that leaves the interpreter when the first copy is looked at."""

    def transfer_check_status(self, number):
        if number == 1:
            raise SystemExit("odd")
        return super().transfer_check_status(number)


@pytest.mark.parametrize(("wheel", "others"), [(Leaving, (1, 2)), (Hidden, (2, 3))])
def test_what_is_raised_about_one_copy_leaves_the_others_waited_for(monkeypatch, wheel, others):
    monkeypatch.setattr("mooncake.engine.TransferEngine", wheel)
    engine = mooncake._Engine("", "", "127.0.0.1")
    engine.peers[1] = mooncake._Peer("there:1")
    ends = submit_and_wait(engine, [(7, 1)], 3)
    engine.progress()
    engine.close()
    assert ends == [(7, PEER_LOST, b"Mooncake: 1 of 3 copies with there:1 failed: SystemExit('odd')")]
    assert [engine._engine.answers[number] for number in others] == [[], []]


def test_a_failed_connection_takes_no_copies_before_its_end_is_told(broken):
    ends = submit_and_wait(broken, [(7, 1)])
    with Report() as report:
        one = (mooncake._CCopy * 1)(mooncake._CCopy(0, 0, 8, 0, 0))
        assert mooncake._submit(1 << 20, 1, WRITE, one, 1, None, 8, report.handle) == PEER_LOST
        assert "here:1 failed" in reasons_of(report.handle)[0].message
    assert (ends, broken.peers[1].lost) == ([], False)
    broken.progress()
    assert (len(ends), broken.peers[1].lost) == (1, True)


def test_it_listens_where_the_node_does(library):
    engine = c_void_p()
    options = _library.CEngineOptions(size=ctypes.sizeof(_library.CEngineOptions), host=b"127.0.0.2")
    with Report() as report:
        report.check(
            library.kvferry_engine_open(mooncake.add_engine().encode(), byref(options), byref(engine), report.handle)
        )
    try:
        newest = mooncake._engines[max(mooncake._engines)]
        assert newest.session.startswith(b"127.0.0.2:")
    finally:
        library.kvferry_engine_close(engine)


@pytest.fixture(name="installed")
def pretended_wheel(monkeypatch):
    """Makes the module `mooncake` one of this distribution and version."""

    def install(names, version):
        monkeypatch.setattr(mooncake.importlib.metadata, "packages_distributions", lambda: {"mooncake": names})
        monkeypatch.setattr(mooncake.importlib.metadata, "version", lambda name: version if name in names else None)

    return install


@pytest.mark.parametrize("kind", ["", "-non-cuda", "-cuda13", "-rocm", "-efa", "-musa", "-npu"])
def test_every_kind_of_wheel_is_found(installed, kind):
    installed([f"mooncake-transfer-engine{kind}"], "0.3.13.post1")
    name, version = mooncake._wheel()
    assert name == f"mooncake-transfer-engine{kind}"
    assert mooncake._numbers_of(version) >= mooncake.OLDEST


def test_an_old_wheel_is_refused_by_its_name(installed):
    installed(["mooncake-transfer-engine-rocm"], "0.3.7.post2")
    with pytest.raises(Error, match=r"mooncake-transfer-engine-rocm 0\.3\.7\.post2 is too old: expected 0\.3\.12 or"):
        mooncake.add_engine.__wrapped__()


def test_no_wheel(installed):
    installed(None, "")
    with pytest.raises(Error, match="no Mooncake wheel: pip install"):
        mooncake.add_engine.__wrapped__()
