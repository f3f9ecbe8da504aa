# SPDX-License-Identifier: Apache-2.0
"""Random traffic through vLLM's whole scheduler: prefix hits, preemption, aborts, requests without a transfer or with
another's id, loads that fail. KVFERRY_SEED begins elsewhere; the seed is in a test's name."""

import os
import random
from dataclasses import replace
from itertools import product

import pytest
from vllm.v1.request import RequestStatus
from world import WINDOW, Setup, World, make_request, params_of

SEED = int(os.environ.get("KVFERRY_SEED", "1"))
STEPS = 200  # of a round; there are rounds until everything has happened
ROUNDS = 2, 25  # at least, at most
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 48, 49, 70, 100)  # around blocks of 16 and steps of 64

SETUPS = [
    Setup(*parts)
    for parts in product(
        ("attention", "hybrid", "window"),
        ("kv_consumer", "kv_producer", "kv_both"),
        ("recompute", "fail"),
        (False, True),
        (False, True),
    )
] + [
    # vLLM keeps windows by retention 0 where nobody says otherwise; and no block of them is like one of attention.
    Setup(
        *("window", role, policy, asynchronous, False),
        window=replace(WINDOW, block_size=size, sliding_window=width),
        retention=retention,
    )
    for size, width, retention in ((16, 40, 0), (32, 20, None), (32, 20, 64), (32, 40, 0), (64, 9, 64))
    for role, policy in (("kv_consumer", "recompute"), ("kv_both", "fail"))
    for asynchronous in (False, True)
]
SETUPS += [replace(setup, among_others=True) for setup in SETUPS[::5]]


class Traffic:
    """Requests that come and go, all by one seed."""

    def __init__(self, setup, seed):
        self.dice = random.Random(seed)
        self.world = World(setup, self.dice, failing=0.3, late=0.1)
        self.prompts = [self.prompt() for _ in range(6)]
        self.made = 0

    def prompt(self):
        return [self.dice.randint(5, 200) for _ in range(self.dice.choice(LENGTHS))]

    def side(self):
        role = self.world.setup.role
        if role == "kv_both":
            return self.dice.choice(("prefill", "decode"))
        return "prefill" if role == "kv_producer" else "decode"

    def arrive(self):
        dice, scheduler = self.dice, self.world.scheduler
        self.made += 1
        prompt, side = dice.choice(self.prompts), self.side()
        if dice.random() < 0.3:
            prompt = prompt[: dice.randint(1, len(prompt))]
        elif dice.random() < 0.3:  # the same blocks, and less behind them
            prompt = prompt[: max(1, len(prompt) - dice.randint(1, 6))]
        number = self.made if dice.random() < 0.9 else dice.randint(1, self.made)
        params = params_of(side, f"t{number}") if dice.random() < 0.85 else None
        request = make_request(
            f"r{self.made}",
            prompt,
            params,
            max_tokens=1 if side == "prefill" else dice.randint(1, 100),
            embeds=not self.world.setup.drafts and dice.random() < 0.1,  # vLLM drafts for none of these
        )
        request.abort_immediately = dice.random() < 0.05
        scheduler.add_request(request)
        if request.abort_immediately:
            scheduler.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)

    def leave(self):
        """One that is loaded, half of the times that there is one."""
        loading = self.dice.random() < 0.5 and list(self.world.loads)
        left = self.dice.choice(loading or list(self.world.scheduler.requests))
        self.world.scheduler.finish_requests([left], RequestStatus.FINISHED_ABORTED)

    def round(self):
        scheduler = self.world.scheduler
        self.prompts[self.dice.randrange(len(self.prompts))] = self.prompt()
        for _ in range(STEPS):
            if self.dice.random() < 0.35 and len(scheduler.requests) < 10:
                self.arrive()
            if self.dice.random() < 0.08 and scheduler.requests:
                self.leave()
            if scheduler.has_requests():
                self.world.step()
            elif self.world.running:
                self.world.finish_step()

    def kinds(self):
        """What has to happen for a run to prove something."""
        decodes, prefills = self.world.setup.role != "kv_producer", self.world.setup.role != "kv_consumer"
        kinds = {"loads", "failed", "released", "aborted", "preempted"} if decodes else set()
        if decodes and self.world.setup.model == "window":
            kinds.add("in part")  # also among others, where workers would not ask so
            if self.world.setup.window == WINDOW:  # who finds a block goes on at its end: of others it may be rare
                kinds.add("reads before a loaded window")
        return kinds | ({"sends", "withdrawn"} if prefills else set())

    def run(self):
        for number in range(1, ROUNDS[1] + 1):
            self.round()
            if number >= ROUNDS[0] and self.kinds() <= self.world.counts.keys():
                break
        self.world.drain()


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_everything_ends_and_nothing_is_left(setup):
    traffic = Traffic(setup, f"{SEED} {setup}")
    traffic.run()
    assert traffic.kinds() <= traffic.world.counts.keys()
    if setup.role != "kv_producer":
        failed = [name for name, why in traffic.world.ended.items() if why == "error"]
        assert bool(failed) == (setup.policy == "fail"), traffic.world.ended


@pytest.mark.parametrize("width", [30, 32, 33])
@pytest.mark.parametrize("extra", [0, 2])
def test_a_window_is_there_for_whoever_comes_behind_it(width, extra):
    """One prompt is loaded, another one of the same beginning computed here. vLLM keeps more of a window than its own
    width where several modules draft, and takes that for loaded, too."""
    window = replace(WINDOW, sliding_window=width, extra_retained_tokens=extra)
    for loaded in (48, 49, 64):
        for computed in (loaded, loaded - 1, loaded - 9):
            setup = Setup("window", "kv_consumer", "fail", False, False, window)
            world = World(setup, random.Random(SEED), failing=0)
            for name, length, params in (("a", loaded, params_of("decode", "t")), ("b", computed, None)):
                world.scheduler.add_request(make_request(name, range(5, 5 + length), params, 1, False))
                while world.scheduler.has_requests() or world.running:
                    world.step() if world.scheduler.has_requests() else world.finish_step()
