# SPDX-License-Identifier: Apache-2.0
"""What has to hold for a pair of servers. Each check raises Failed, or returns what is worth a word."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import recall
from pairs import Connector, Pair
from rig import IN_FLIGHT, Failed, Result, Rig, Sample
from server import Answer, Prompt

FLIGHT = 16
#: Tokens of a random model that wander through windows and compressed states.
LONG_ANSWER = 160
IN_PART = "vllm:kvferry_received_in_part_total"
FAILED_LOADS = "vllm:kvferry_receives_failed_total"
#: Requests that are in flight when their prefill server is killed.
ORPHANS = 4
#: Tokens until a state that was damaged is compressed into another, and that one is read.
DAMAGE_SHOWS = 40


@dataclass
class Samples:
    """The prompts of all checks, with what one server alone says to them."""

    cold: list[Sample] = field(default_factory=list)
    long: list[Sample] = field(default_factory=list)
    boundary: list[Sample] = field(default_factory=list)
    short: list[Sample] = field(default_factory=list)
    window: list[Sample] = field(default_factory=list)
    ahead: list[Sample] = field(default_factory=list)
    shorter: list[Sample] = field(default_factory=list)
    reuse: list[Sample] = field(default_factory=list)


def draw(rig: Rig, seed: str, lengths: list[int], tokens: int = 8) -> list[Sample]:
    """Prompts of these lengths, always the same for a seed."""
    pick = random.Random(f"{seed} of {rig.pair.model.name}")
    if not rig.pair.model.trained:
        return [Sample(Prompt(tuple(pick.choices(range(2, 1024), k=length))), tokens) for length in lengths]
    questions = [recall.question(pick, length) for length in lengths]
    return [Sample(Prompt(question.prompt), recall.ANSWER_LENGTH, question.answer) for question in questions]


async def prepare(rig: Rig) -> Samples:
    """Has one server alone answer everything. What cannot be compared is left out; most of it can."""
    model = rig.pair.model
    pick = random.Random(model.name)
    blocks = {int((await server.metrics())["effective_attention_block_size"]) for server in (rig.prefill, rig.decode)}
    longest_block, common_block = max(blocks), math.lcm(*blocks)

    def lengths(count: int, shortest: int, longest: int) -> list[int]:
        return [pick.randint(shortest, longest) for _ in range(count)]

    edges = []
    for block in sorted(blocks):
        edge = block * -(-max(model.shortest, recall.SHORTEST) // block)
        edges += [edge - 3, edge - 1, edge, edge + 1, edge + 2]
    more = 2 if rig.pair.drifts else 1  # of which about half are no close calls
    # Where the decode server finds a prefix again; a loaded prompt goes on behind it.
    whole = math.lcm(int((await rig.decode.metrics())["effective_attention_block_size"]), model.common_block)
    ends = [whole * count + model.ahead for count in (1, 2, 3) * 4 * more]
    ahead = draw(rig, "ahead", ends, DAMAGE_SHOWS) if model.ahead else []
    asked = Samples(
        cold=draw(rig, "cold", lengths(model.many * more, model.shortest, model.longest)),
        # The last ones end where blocks of both sides end, but for the element that is left to the decode side: what
        # that one keeps of a state or a window is of use to the same prompt.
        long=draw(
            rig,
            "long",
            lengths(model.few * more, min(longest_block * 2, model.longest - 100), model.longest)
            + [common_block * -(-model.shortest // common_block) + 1] * 2 * more,
        ),
        boundary=draw(rig, "boundary", edges * 2),
        short=draw(rig, "short", [2] * 40)
        if not model.trained
        else [
            Sample(Prompt((recall.BOS, token)), recall.ANSWER_LENGTH) for token in range(recall.FILLER.start, 192, 3)
        ],
        window=[] if model.trained else draw(rig, "window", [126, 127, 128, 129, 130, 300] * more, LONG_ANSWER),
        ahead=ahead,
        shorter=[
            Sample(Prompt(sample.prompt.ids[: len(sample.prompt) - model.ahead + behind]), sample.tokens)
            for sample, behind in zip(ahead, (1, 2) * len(ahead), strict=False)
        ],
        reuse=draw(rig, "reuse", lengths(FLIGHT * more, model.shortest, 400)),
    )
    kept = Samples(**{name: await rig.prepare(samples) for name, samples in vars(asked).items()})
    for name, samples in vars(kept).items():
        given = len(vars(asked)[name])
        if model.trained and name != "short" and len(samples) < given - -(-given // 100):
            raise Failed(f"a server alone is right in {len(samples)} of {given} answers ({name}): expected 99 of 100")
        if given and len(samples) < min(given, 4):
            raise Failed(f"only {len(samples)} of {given} prompts can be compared ({name})")
    return kept


async def moved(rig: Rig, asked: list[Sample]) -> str:
    """Judges the answers, and whether the decode server has the prompts' cache from the prefill server."""
    name = "vllm:external_prefix_cache_hits_total"
    before = (await rig.decode.metrics())[name]
    rig.tally.judge(await rig.ask(asked))
    tokens = (await rig.decode.metrics())[name] - before
    prompts = sum(len(sample.prompt) for sample in asked)
    if tokens < 0.9 * prompts:
        raise Failed(
            f"the decode server took {tokens:.0f} of {prompts} prompt tokens from the prefill server, and "
            "computed the rest itself"
        )
    return f"{tokens:.0f} of {prompts} tokens moved"


# --- the checks, in their order ----------------------------------------------------------------------


async def cold(rig: Rig, samples: Samples) -> str:
    """Requests that neither server knows."""
    return await moved(rig, samples.cold)


async def hits(rig: Rig, samples: Samples, keep: tuple[str, ...]) -> str:
    """The same requests again, while the named servers still have them in their prefix caches."""
    await rig.empty()
    rig.tally.judge(await rig.ask(samples.long))
    servers = {"prefill": rig.prefill, "decode": rig.decode}
    for name, server in servers.items():
        if name not in keep:
            await rig.empty(server)
    for prompt in await beginnings(rig, samples) if "decode" in keep else []:
        if (answer := await rig.transfer(prompt, 1)).failed:
            raise Failed(f"the beginning of a prompt, {len(prompt)} tokens: found {answer}")
    before = {name: await server.metrics() for name, server in servers.items()}
    rig.tally.judge(await rig.ask(samples.long))
    found = []
    for name in keep:
        counted = (await servers[name].metrics())["vllm:prefix_cache_hits_total"]
        hit = counted - before[name]["vllm:prefix_cache_hits_total"]
        if hit == 0:
            raise Failed(f"the {name} server found nothing in its prefix cache")
        found.append(f"{hit:.0f} tokens found at {name}")
    return ", ".join(found)


async def beginnings(rig: Rig, samples: Samples) -> list[Prompt]:
    """What the decode server has to know already so that it finds a long prompt again: its beginnings up to the end of
    each of its blocks (and the element that is computed there). A server that drafts gives up the last block that it
    finds; and with a state, it goes on where it has one, which is where a request of its own ended."""
    if not rig.pair.drafts:
        return []
    block = int((await rig.decode.metrics())["effective_attention_block_size"])
    return [
        Prompt(sample.prompt.ids[: end + 1])
        for sample in samples.long[:2]
        for end in range(block, len(sample.prompt), block)
    ]


async def hit_on_prefill(rig: Rig, samples: Samples) -> str:
    return await hits(rig, samples, ("prefill",))


async def hit_on_decode(rig: Rig, samples: Samples) -> str:
    return await hits(rig, samples, ("decode",))


async def hit_on_both(rig: Rig, samples: Samples) -> str:
    return await hits(rig, samples, ("prefill", "decode"))


async def boundary(rig: Rig, samples: Samples) -> str:
    """Prompts that end inside a block, at its end, and past it, of either side's blocks."""
    rig.tally.judge(await rig.ask(samples.boundary))
    return f"prompts of {', '.join(map(str, sorted({len(sample.prompt) for sample in samples.boundary})))}"


async def short(rig: Rig, samples: Samples) -> str:
    """Prompts of two tokens."""
    rig.tally.judge(await rig.ask(samples.short[: rig.pair.model.few]))
    return ""


async def window(rig: Rig, samples: Samples) -> str:
    """Prompts across 128 tokens, and long answers."""
    rig.tally.judge(await rig.ask(samples.window))
    return f"{LONG_ANSWER} tokens generated"


async def shorter(rig: Rig, samples: Samples) -> str:
    """Prompts that begin as ones that were loaded, and end sooner behind the last block that both fill: what the decode
    server finds again has to be all there, also where the longer prompt had no use for it."""
    await rig.empty()
    before = await rig.decode.metrics()
    rig.tally.judge(await rig.ask(samples.ahead))
    loaded = await rig.decode.metrics()
    rig.tally.judge(await rig.ask(samples.shorter))
    after = await rig.decode.metrics()
    found = after["vllm:prefix_cache_hits_total"] - loaded["vllm:prefix_cache_hits_total"]
    if rig.pair.in_part:
        in_part = loaded[IN_PART] - before[IN_PART]
        if in_part < len(samples.ahead):
            raise Failed(f"{in_part:.0f} of {len(samples.ahead)} loads were in part: expected all")
        return f"{in_part:.0f} loads in part, {found:.0f} tokens found at decode"
    if found < rig.pair.model.common_block * len(samples.shorter) / 2:
        raise Failed(f"the decode server found {found:.0f} tokens of {len(samples.shorter)} prompts it had loaded")
    return f"{found:.0f} tokens found at decode"


async def flight(rig: Rig, samples: Samples) -> str:
    """Many requests at once."""
    await rig.empty()
    rig.tally.judge(await rig.ask(samples.cold[:FLIGHT], in_flight=FLIGHT))
    return f"{FLIGHT} in flight"


async def other_tokens(rig: Rig, samples: Samples) -> str:
    """The decode server gets other token ids but the last: only the cache that was moved knows the prompt."""
    await rig.empty()
    pick = random.Random("other tokens")
    vocabulary = recall.FILLER if rig.pair.model.trained else range(2, 1024)
    results = []
    for sample in samples.long[: rig.pair.model.few]:
        others = Prompt((*pick.choices(vocabulary, k=len(sample.prompt) - 1), sample.prompt.ids[-1]))
        results.append(Result(sample, await rig.transfer(sample.prompt, sample.tokens, decode_prompt=others)))
    rig.tally.judge(results)
    # What the decode server cached now belongs to no prompt.
    await rig.empty()
    return ""


async def embeddings(rig: Rig, samples: Samples) -> str:
    """Prompts as rows of the embedding instead of token ids."""
    return await moved(
        rig, [replace(sample, prompt=rig.embedded(sample.prompt)) for sample in samples.long[: rig.pair.model.few]]
    )


async def aborts(rig: Rig, samples: Samples) -> str:
    """Either side, or the client, gives up in the middle; then new requests get the blocks."""
    delays = [0.0, 0.02, 0.05, 0.1, 0.2, 0.4]

    async def give_up(side: str, sample: Sample, delay: float) -> Result | None:
        prefill, decode = await rig.halves(sample.prompt, sample.tokens)
        await asyncio.sleep(delay)
        (prefill if side == "prefill" else decode).cancel()
        results = await asyncio.gather(prefill, decode, return_exceptions=True)
        answer = results[1]
        # The decode server may have had all it needed, or has to say that it has failed. Never a wrong answer.
        return Result(sample, answer) if isinstance(answer, Answer) else None

    async def leave(sample: Sample, delay: float) -> None:
        task = asyncio.create_task(rig.transfer(sample.prompt, sample.tokens))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait({task})

    async def around(number: int, delay: float) -> list[Result]:
        """Three transfers that are given up after so long, and one in their midst that is not."""
        await asyncio.sleep(number)
        first, second, third, fourth = random.Random(f"abort {delay}").sample(samples.cold, 4)
        ended = await asyncio.gather(
            give_up("prefill", first, delay), give_up("decode", second, delay), leave(third, delay), rig.ask([fourth])
        )
        for result in ended[:2]:
            if result and not result.answer.failed and not result.sample.right(result.answer):
                raise Failed(f"a wrong answer after an abort: {result}")
        return ended[3]

    await rig.empty()
    # None waits for another's end: a decode server that asks for what never came to the prefill server is patient.
    for lived in await asyncio.gather(*(around(number, delay) for number, delay in enumerate(delays))):
        rig.tally.judge(lived)
    rig.tally.judge(await rig.ask(samples.reuse, in_flight=FLIGHT))
    await rig.empty()
    return f"{3 * len(delays)} aborted"


async def failed_loads(rig: Rig, samples: Samples) -> str:
    """Loads of what the prefill server never had, of prompts that the decode server knows the beginning of or not: it
    computes them itself, and has nothing of them in its prefix cache."""
    await rig.empty()
    asked = samples.long[: rig.pair.model.few]
    for sample in asked[::2]:
        if (answer := await rig.transfer(Prompt(sample.prompt.ids[: len(sample.prompt) // 2]), 1)).failed:
            raise Failed(f"the beginning of a prompt: found {answer}")

    async def lost(sample: Sample) -> Result:
        parameters = await rig.decode_parameters(rig.parameters()[1])
        return Result(sample, await rig.decode.complete(sample.prompt, sample.tokens, parameters))

    before = (await rig.decode.metrics())[FAILED_LOADS]
    results = await asyncio.gather(*map(lost, asked))
    failed = (await rig.decode.metrics())[FAILED_LOADS] - before
    if failed < len(asked):
        raise Failed(f"{failed:.0f} loads failed: expected those of all {len(asked)} requests")
    rig.tally.judge(results)
    rig.tally.judge(await rig.ask(asked))
    return f"{len(asked)} requests computed by the decode server"


async def restart(rig: Rig, samples: Samples) -> str:
    """The prefill server is killed in the middle and started again, at the same addresses."""
    # One through the proxy, which ends both halves when one fails; others whose decode server has to find out itself.
    lost, *alone = samples.long[:ORPHANS]
    by_proxy = asyncio.create_task(rig.transfer(lost.prompt, lost.tokens))
    halves = await asyncio.gather(*(rig.halves(sample.prompt, sample.tokens) for sample in alone))
    await asyncio.sleep(0.1)
    rig.prefill.kill()
    rig.prefill.start(sys.executable)
    answers = await asyncio.gather(by_proxy, *(decode for _, decode in halves))
    orphans = [Result(sample, answer) for sample, answer in zip((lost, *alone), answers, strict=True)]
    await asyncio.gather(*(prefill for prefill, _ in halves))
    await rig.prefill.ready()
    for number, result in enumerate(orphans):
        if result.answer.status == 0 and "TimeoutError" in result.answer.error:
            raise Failed(f"a request still waits for the killed prefill server: {result}")
        if not result.answer.failed and not result.sample.right(result.answer):
            raise Failed(f"a wrong answer of a killed prefill server: {result}")
        if number and result.answer.failed and rig.connector.recomputes:
            raise Failed(f"a decode server that computes what it cannot load failed a request: {result}")
    rig.tally.judge(await rig.ask(samples.reuse))
    await rig.empty()
    return f"{sum(result.answer.failed for result in orphans)} of {len(orphans)} requests in flight failed"


async def damage(rig: Rig, samples: Samples) -> str:
    """Each part of the cache is taken away on the way: the checks above have to notice."""
    said = []
    # Numbers of a random model hang on what else is in a batch: one after another.
    at_once = IN_FLIGHT if rig.pair.model.trained else 1

    async def wrong(kind: str) -> int:
        await rig.empty()
        rig.damage_file.write_text(kind)
        return sum(not result.sample.right(result.answer) for result in await rig.ask(asked, at_once))

    asked = samples.long
    if not rig.pair.model.trained:
        # What it says first may not show what it lost: the whole is compared with what it says undamaged.
        await rig.empty()
        whole = [replace(sample, tokens=DAMAGE_SHOWS) for sample in samples.long[:4]]
        asked = [
            replace(result.sample, wanted=result.answer.tokens, compared=DAMAGE_SHOWS)
            for result in await rig.ask(whole, at_once)
        ]
        if different := await wrong(""):
            raise Failed(f"nothing was damaged, and {different} of {len(asked)} answers differ when asked again")
    try:
        for kind in rig.pair.model.damages:
            found = await wrong(kind)
            if found <= rig.tally.allowed(len(asked)):
                raise Failed(
                    f"{kind} was zeroed on the way, and {len(asked) - found} of {len(asked)} answers are right"
                )
            said.append(f"{kind}: {found} of {len(asked)} wrong")
    finally:
        rig.damage_file.write_text("")
        await rig.empty()
    return ", ".join(said)


async def accuracy(rig: Rig, samples: Samples) -> str:
    """All answers together, within one of a hundred of a server alone."""
    if not rig.tally.asked:
        raise Failed("no answer was compared")
    if rig.tally.wrong > rig.tally.allowed(rig.tally.asked):
        raise Failed(f"{rig.tally.wrong} of {rig.tally.asked} answers are not those of a server alone")
    seconds = sorted(rig.tally.first_seconds)
    return f"{rig.tally.asked - rig.tally.wrong} of {rig.tally.asked} right" + (
        f", {seconds[len(seconds) // 2] * 1000:.0f} ms to the first token" if seconds else ""
    )


async def health(rig: Rig, samples: Samples) -> str:
    """Both servers are well, and every block is free."""
    for server in (rig.prefill, rig.decode):
        if not await server.healthy():
            raise Failed(f"the {server.name} server is not well ({server.log})")
    await rig.empty()
    return "all blocks free"


async def drafts(rig: Rig, samples: Samples) -> str:
    """The decode server drafted, and some of it was what the model says itself."""
    metrics = await rig.decode.metrics()
    drafted, accepted = (metrics[f"vllm:spec_decode_num_{name}_tokens_total"] for name in ("draft", "accepted"))
    if not accepted:
        raise Failed(f"none of {drafted:.0f} drafted tokens was accepted")
    return f"{accepted:.0f} of {drafted:.0f} accepted"


async def draft_cells(rig: Rig, samples: Samples) -> str:
    """The decode server has, bit by bit, what the prefill server's draft layers kept of each token that was moved."""

    async def found(kind: str) -> tuple[dict[str, int], dict[str, int]]:
        """The checksums of all cells that were sent, and of all that are there."""
        await rig.empty()
        rig.damage_file.write_text(kind)
        rig.cells_file.touch()
        rig.tally.judge(await rig.ask(samples.long[:4]))
        await rig.empty()  # and all of them have written what they have
        sides: dict[str, dict[str, int]] = {"PREFILL": {}, "DECODE": {}}
        for line in rig.cells_file.read_text().splitlines():
            side, transfer, cells = json.loads(line)
            sides[side] |= {f"{transfer}: {name}": checksum for name, checksum in cells.items()}
        rig.cells_file.unlink()
        return sides["PREFILL"], sides["DECODE"]

    try:
        sent, received = await found("")
        wrong = [name for name, checksum in received.items() if sent.get(name) != checksum]
        if wrong:
            raise Failed(f"{len(wrong)} of {len(received)} cells are not the prefill server's, such as {wrong[0]}")
        if len(received) < 0.9 * len(sent) or not received:
            raise Failed(f"{len(sent)} cells were sent, and {len(received)} arrived")
        sent, damaged = await found("drafts")
        alike = sum(sent.get(name) == checksum for name, checksum in damaged.items())
        if alike or not damaged:
            raise Failed(f"the draft layers were zeroed on the way, and {alike} of {len(damaged)} cells are alike")
    finally:
        rig.damage_file.write_text("")
        rig.cells_file.unlink(missing_ok=True)
    return f"{len(received):,} cells alike, none if damaged"


Check = Callable[[Rig, Samples], Awaitable[str]]


def checks_of(pair: Pair, connector: Connector) -> dict[str, Check]:
    """The checks that a pair has, by name."""
    hooks = connector.name.startswith("kvferry")
    found: dict[str, Check] = {
        "cold": cold,
        "hit on P": hit_on_prefill,
        "hit on D": hit_on_decode,
        "hit on both": hit_on_both,
        "block ends": boundary,
        "two tokens": short,
    }
    if not pair.model.trained:
        found["window"] = window
    if pair.model.ahead:
        found["shorter"] = shorter
    found["flight"] = flight
    found["other tokens"] = other_tokens
    if pair.model.embeddings:
        found["embeddings"] = embeddings
    if hooks:
        found["damage"] = damage
    if connector.recomputes:
        found["failed loads"] = failed_loads
    if connector.bootstrap:
        found |= {"aborts": aborts, "restart": restart}
    if pair.drafts:
        found["drafts"] = drafts
        if hooks:
            found["draft cells"] = draft_cells
    return {**found, "accuracy": accuracy, "health": health}
