# SPDX-License-Identifier: Apache-2.0
"""The worker's half: when the node hears of what the scheduler wants."""

from types import SimpleNamespace

import pytest

from kvferry.vllm import worker as half
from kvferry.vllm.scheduler import Ask, Metadata, Offer


class Device:
    """Whose work is done when it is said so."""

    type = "test"

    def __init__(self):
        self.done = False


class Fence:
    def __init__(self, device):
        self.device = device

    def passed(self):
        return self.device.done


class Recorder(half.Worker):
    """A worker whose calls of the node are written down."""

    def __init__(self):
        config = SimpleNamespace(engine_id="e")
        super().__init__(SimpleNamespace(kv_transfer_config=config), SimpleNamespace())
        self._device = Device()
        self.called = []
        self._node = SimpleNamespace(
            expect=lambda transfer_id: self.called.append(("expect", transfer_id)),
            abort=lambda side, transfer_id: self.called.append(("abort", transfer_id)),
        )

    def _offer(self, offer):
        self.called.append(("offer", offer.transfer_id))

    def _ask(self, ask):
        self.called.append(("ask", ask.transfer_id))


@pytest.fixture(name="worker")
def recorder(monkeypatch):
    monkeypatch.setattr(half, "_Fence", Fence)
    return Recorder()


def test_blocks_are_offered_and_asked_for_behind_the_devices_work(worker):
    """vllm#45357, #45096, #37285: a step in flight writes a block that was just loaded. vllm#50696: so does the
    zeroing of a new block."""
    offer, ask = Offer("r1", "offered", 1, []), Ask("r2", "asked", "p", "http://127.0.0.1:1", 1, [])
    worker.start(Metadata(expected=["expected"], offers=[offer], asks=[ask]))
    assert worker.called == [("expect", "expected")]
    worker.start(Metadata(aborted=["asked"]))
    assert worker.called == [("expect", "expected")], "what comes later does not overtake"
    worker._device.done = True
    worker.start(Metadata())
    assert worker.called[1:] == [("offer", "offered"), ("ask", "asked"), ("abort", "asked")]
