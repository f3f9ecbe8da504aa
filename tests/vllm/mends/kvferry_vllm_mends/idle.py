# SPDX-License-Identifier: Apache-2.0
"""Workers that sleep while they have nothing to do.

A worker waits for its next step on a queue in shared memory, and spins on it for a while first. With
more workers than cores that takes the cores from whoever is to move a cache.
"""

LONGEST_SLEEP_MS = 50


def mend() -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    original = shm_broadcast.SpinCondition.wait

    def sleep(self, timeout_ms=None):
        self.busy_loop_s = -1
        return original(self, LONGEST_SLEEP_MS if not timeout_ms else min(timeout_ms, LONGEST_SLEEP_MS))

    shm_broadcast.SpinCondition.wait = sleep
    shm_broadcast.SPINLOOP_EXT_ENABLED = False
