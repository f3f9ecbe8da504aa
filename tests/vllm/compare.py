# SPDX-License-Identifier: Apache-2.0
"""One table: connectors side by side on the same requests.

    tests/vllm/run --compare [--pair REGEX] [--connector NAME...]

Requests go one after another, cold on both sides. The decode server is asked when the prefill server has answered, by
every connector, so that the time to the first token is that of the transfer and one step. CPU seconds are those of all
processes of both servers over the measured requests, less those of the same requests without a transfer (the prefill
server computes the prompt, the decode server one token): what is left is the connector's.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

import checks
from rig import Failed, Rig, Sample
from server import Prompt, Server

WARM = 4
LOG_SECONDS = 1
#: What connectors count in vLLM's metrics, of either server: bytes and copies.
BYTES = ("vllm:kvferry_sent_bytes_sum", "vllm:nixl_bytes_transferred_sum")
COPIES = ("vllm:kvferry_sent_copies_sum", "vllm:nixl_num_descriptors_sum")


@dataclass
class Measured:
    right: int
    asked: int
    first_ms: float
    tokens: int
    #: None where the connector does not count them.
    bytes: float | None
    copies: float | None
    cpu_ms: float

    def row(self, name: str) -> str:
        def number(value: float | None, of: float) -> str:
            return "-" if value is None else f"{value / of:,.1f}"

        cells = (
            f"{self.right} of {self.asked}",
            f"{self.first_ms:,.1f}",
            f"{self.tokens:,}",
            number(self.bytes, self.asked * 1024),
            number(self.copies, self.asked),
            f"{self.cpu_ms:,.1f}",
        )
        return f"   {name:<18}" + "".join(f"{cell:>13}" for cell in cells)


HEAD = f"   {'connector':<18}" + "".join(
    f"{word:>13}" for word in ("right", "first, ms", "tokens", "KiB each", "copies each", "CPU ms each")
)


def cpu_seconds(server: Server) -> float:
    """Of all processes of a server until now."""
    assert server.process is not None
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[2]) == server.process.pid:  # the process group
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def log_lines(log: Path, start: int) -> list[tuple[float, float, float]]:
    """(transfers, mean MiB, mean copies) of each line about transfers that a server logged after its first bytes."""
    found = re.findall(
        r"Num successful transfers=(\d+),.*Avg MB per transfer=([\d.]+),.*Avg number of descriptors=([\d.]+)",
        log.read_bytes()[start:].decode(errors="replace"),
    )
    return [(float(count), float(mib), float(copies)) for count, mib, copies in found]


async def one(rig: Rig, sample: Sample) -> tuple[bool, float]:
    """A transfer, the decode side after the prefill side: whether it was right, and its seconds to the first token."""
    parameters = rig.parameters()
    computed = await rig.prefill.complete(sample.prompt, 1, parameters[0])
    if computed.failed:
        raise Failed(f"the prefill server: {computed}")
    told = computed.parameters if not rig.connector.bootstrap else await rig.decode_parameters(parameters[1])
    answer = await rig.decode.complete(sample.prompt, sample.tokens, told, stream=True)
    return sample.right(answer), answer.first_seconds


async def measure(rig: Rig) -> Measured:
    model = rig.pair.model
    lengths = [model.longest - number for number in range(model.many + WARM)]
    samples = await rig.prepare(checks.draw(rig, "compare", lengths))
    servers = (rig.prefill, rig.decode)

    # Mooncake's counts are in the log only, of the seconds before each line.
    await asyncio.sleep(2 * LOG_SECONDS)
    logged = {server.name: server.log.stat().st_size for server in servers}

    async def spent() -> tuple[float, float | None, float | None, float]:
        counted = [await server.metrics() for server in servers]
        known = {name: sum(one.get(name, 0.0) for one in counted) for name in {*counted[0], *counted[1]}}
        found = [next((known[name] for name in names if name in known), None) for names in (BYTES, COPIES)]
        return sum(map(cpu_seconds, servers)), *found, known["vllm:external_prefix_cache_hits_total"]

    for sample in samples[:WARM]:
        await one(rig, sample)
    measured = samples[WARM:]

    begin = await spent()
    for sample in measured:
        await rig.prefill.complete(sample.prompt, 1)
        await rig.decode.complete(Prompt(sample.prompt.ids[-1:]), sample.tokens)
    alone = (await spent())[0] - begin[0]

    await rig.empty()
    begin = await spent()
    results = [await one(rig, sample) for sample in measured]
    end = await spent()
    await asyncio.sleep(2 * LOG_SECONDS)
    lines = [line for server in servers for line in log_lines(server.log, logged[server.name])]
    if end[1] is None and lines:
        end = (
            end[0],
            sum(count * mib for count, mib, _ in lines) * 2**20,
            sum(n * copies for n, _, copies in lines),
            end[3],
        )
    return Measured(
        right=sum(right for right, _ in results),
        asked=len(results),
        first_ms=statistics.median(seconds for _, seconds in results) * 1000,
        tokens=int(end[3] - begin[3]),
        bytes=None if end[1] is None else end[1] - (begin[1] or 0.0),
        copies=None if end[2] is None else end[2] - (begin[2] or 0.0),
        cpu_ms=(end[0] - begin[0] - alone) / len(results) * 1000,
    )
