# SPDX-License-Identifier: Apache-2.0
"""Runs real vLLM servers in pairs, and checks what they answer: see README.md.

The last line is "N passed, N failed, N skipped", with the reasons of what was skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent / "models"))

import checks
import compare
from pairs import CONNECTORS, HERE, MORE, USUAL, Connector, Pair
from rig import Failed, Rig
from server import Unready


class Score:
    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped: dict[str, int] = {}

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def line(self) -> str:
        reasons = "; ".join(self.skipped)
        return f"{self.passed} passed, {self.failed} failed, {sum(self.skipped.values())} skipped" + (
            f" ({reasons})" if reasons else ""
        )


def say(text: str) -> None:
    print(text, flush=True)


async def run_pair(
    pair: Pair, connector: Connector, folder: Path, made: Path, options: argparse.Namespace, score: Score
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if options.compare:
        await run_comparison(pair, connector, folder, made, score)
        return
    wanted = checks.checks_of(pair, connector)
    if options.check:
        wanted = {name: check for name, check in wanted.items() if re.search(options.check, name)}
    say(f"== {pair}, {connector.name}")
    begun = time.monotonic()
    rig = Rig(pair, connector, folder, made, variables())
    try:
        try:
            await rig.start()
            started = time.monotonic()
            samples = await checks.prepare(rig)
        except (Unready, Failed) as reason:
            score.failed += 1
            say(f"   start: FAILED: {reason}")
            return
        say(f"   started in {started - begun:.0f} s, alone in {time.monotonic() - started:.0f} s; logs in {folder}")
        for name, check in wanted.items():
            at = time.monotonic()
            try:
                said = await check(rig, samples)
                score.passed += 1
                result = "fine" + (f": {said}" if said else "")
            except Exception as reason:
                score.failed += 1
                name_of = "" if isinstance(reason, Failed) else f"{type(reason).__name__} "
                result = f"FAILED: {name_of}{reason}"
            say(f"   {name}: {result} ({time.monotonic() - at:.1f} s)")
    finally:
        await rig.stop()
        say(f"   {time.monotonic() - begun:.0f} s in all")


async def run_comparison(pair: Pair, connector: Connector, folder: Path, made: Path, score: Score) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rig = Rig(pair, connector, folder, made, {**variables(), "VLLM_LOG_STATS_INTERVAL": str(compare.LOG_SECONDS)})
    try:
        await rig.start()
        measured = await compare.measure(rig)
    except (Unready, Failed) as reason:
        score.failed += 1
        say(f"   {connector.name}: FAILED: {reason}")
    else:
        score.passed += 1
        say(measured.row(connector.name))
    finally:
        await rig.stop()


def variables() -> dict[str, str]:
    """Where the servers find the source tree's kvferry and its library, unless the caller says so."""
    root = HERE.parents[1]
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(root / "bindings" / "python"), str(HERE))))
    return {
        "PYTHONPATH": path,
        "KVFERRY_LIBRARY": os.environ.get("KVFERRY_LIBRARY", str(root / "build" / "libkvferry.so")),
    }


def run_pytest(logs: Path, every: bool, score: Score) -> None:
    """The tests of the folders beside this file, which need vLLM but no pair of servers; slow ones if `every`."""
    report = logs / "pytest.xml"
    begun = time.monotonic()
    say("== tests without pairs")
    with open(logs / "pytest.log", "wb") as log:
        subprocess.run(
            [
                *(sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"),
                *sorted({str(test.parent) for test in HERE.glob("*/test_*.py")}),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=HERE.parents[1],
            env={
                **os.environ,
                **variables(),
                "KVFERRY_SOURCE": str(HERE.parents[1]),
                "KVFERRY_VLLM_MODELS": str(HERE / "models"),
                **({"KVFERRY_VLLM_ALL": "1"} if every else {}),
            },
        )
    cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    for case in cases:
        if (skipped := case.find("skipped")) is not None:
            score.skip(skipped.get("message", "no reason given"))
    not_run = sum(case.find("skipped") is not None for case in cases)
    score.passed += len(cases) - len(bad) - not_run
    score.failed += len(bad) or (not cases)
    for case in bad:
        say(f"   FAILED: {case.get('classname')}.{case.get('name')} ({logs / 'pytest.log'})")
    say(f"   {len(cases) - len(bad) - not_run} of {len(cases)} passed, {time.monotonic() - begun:.0f} s")


def make_models(pairs: list[Pair], made: Path) -> None:
    """Makes the models that are not kept, again if what makes them has changed."""
    for model in {pair.model.name: pair.model for pair in pairs if pair.model.maker}.values():
        folder, source, maker = model.path(made), HERE / "models" / model.source, HERE / "models" / model.maker
        parts = [maker, HERE / "models" / "drawn.py", *sorted(source.iterdir())]
        made_by = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
        if not (folder / "made_by").exists() or (folder / "made_by").read_text() != made_by:
            say(f"making {model.name} in {folder}")
            subprocess.run([sys.executable, "-B", str(maker), str(source), str(folder)], check=True)
            (folder / "made_by").write_text(made_by)


async def run(options: argparse.Namespace) -> Score:
    score = Score()
    # Also who is told to end ends its servers.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    pairs = [*USUAL, *(MORE if options.all else [])]
    if options.pair:
        pairs = [pair for pair in [*USUAL, *MORE] if re.fullmatch(options.pair, str(pair))]
        if not pairs:
            sys.exit(f"no pair is named {options.pair!r}; there are {', '.join(map(str, [*USUAL, *MORE]))}")
    able = []
    for pair in pairs:
        if reason := pair.lacks():
            score.skip(f"{pair.model.name}: {reason}")
            say(f"== {pair}: skipped: {reason}")
        else:
            able.append(pair)
    make_models(able, options.made)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="kvferry-vllm-"))
    logs.mkdir(parents=True, exist_ok=True)
    if not options.pair and not options.check and not options.compare:
        run_pytest(logs, options.all, score)
    for pair in able:
        if options.compare:
            say(f"== {pair}")
            say(compare.HEAD)
        for name in options.connector or [pair.connector]:
            folder = logs / re.sub(r"\W+", "-", f"{pair} {name}").lower()
            await run_pair(pair, CONNECTORS[name], folder, options.made, options, score)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/vllm/run", description="Real vLLM servers in pairs.")
    parser.add_argument("--all", action="store_true", help="all topologies, not only the usual ones")
    parser.add_argument("--pair", metavar="REGEX", help='only these, for example "Qwen3.5 TP2 to TP1"')
    parser.add_argument("--check", metavar="REGEX", help="only these checks")
    parser.add_argument(
        "--connector", action="append", choices=sorted(CONNECTORS), help="the pair's own unless given; may be repeated"
    )
    parser.add_argument(
        "--compare", action="store_true", help="instead of checks, a table of the connectors' times, bytes and copies"
    )
    parser.add_argument("--logs", type=Path, help="where the servers' logs go")
    parser.add_argument(
        "--made",
        type=Path,
        default=Path(sys.prefix) / "models",
        help="where models that are made are kept (%(default)s)",
    )
    options = parser.parse_args()
    try:
        score = asyncio.run(run(options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        say("ended from outside")
        return 3
    say(score.line())
    return 1 if score.failed or not score.passed else 0


if __name__ == "__main__":
    sys.exit(main())
