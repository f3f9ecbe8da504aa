# SPDX-License-Identifier: Apache-2.0
"""A prefill server, a decode server and the proxy, and requests that go through both."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import ClientError
from pairs import Connector, Pair
from server import HOST, Answer, Prompt, Server, free_port

#: How many requests are in flight where a check does not ask for another number.
IN_FLIGHT = 4
#: A random model's token counts where the next best one is clearly behind. (Logarithms.)
CLEAR_MARGIN = 0.5
#: So many tokens of two drifting servers are compared at most.
DRIFT_TOKENS = 8
#: P gives up a finished request that no one asks for. Long enough for a busy machine, short enough to wait for.
GIVE_UP_SECONDS = 30


class Failed(Exception):
    """A check that failed, with what was expected and found."""


@dataclass
class Sample:
    """A prompt and what one server alone says to it."""

    prompt: Prompt
    tokens: int
    wanted: tuple[int, ...] = ()
    #: How many of the tokens must be the same.
    compared: int = 0

    def right(self, answer: Answer) -> bool:
        return not answer.failed and answer.tokens[: self.compared] == self.wanted[: self.compared]


@dataclass
class Result:
    sample: Sample
    answer: Answer

    def __str__(self) -> str:
        wanted = " ".join(map(str, self.sample.wanted[: self.sample.compared]))
        return f"a prompt of {len(self.sample.prompt)}: expected {wanted}, found {self.answer}"


@dataclass
class Tally:
    """How many answers of a pair were right."""

    trained: bool
    asked: int = 0
    wrong: int = 0
    first_seconds: list[float] = field(default_factory=list)

    def judge(self, results: Iterable[Result]) -> None:
        """Raises Failed if a request failed, or more answers than allowed are not those of a server alone."""
        results = list(results)
        failed = [result for result in results if result.answer.failed]
        wrong = [result for result in results if not result.sample.right(result.answer)]
        self.asked += len(results)
        self.wrong += len(wrong)
        if failed:
            raise Failed(f"{len(failed)} of {len(results)} requests failed; {failed[0]}")
        if len(wrong) > self.allowed(len(results)):
            raise Failed(f"{len(wrong)} of {len(results)} answers are wrong; {wrong[0]}")

    def allowed(self, asked: int) -> int:
        """One wrong answer of each hundred. Answers of random weights hang on the last bit: of fewer one, too."""
        return asked // 100 if self.trained else -(-asked // 100)


class Rig:
    def __init__(self, pair: Pair, connector: Connector, folder: Path, made: Path, variables: dict[str, str]) -> None:
        self.pair = pair
        self.connector = connector
        self.folder = folder
        self.tally = Tally(pair.model.trained)
        self.damage_file = folder / "damage"
        self.damage_file.write_text("")
        self.cells_file = folder / "draft-cells"
        self.proxy: subprocess.Popen[bytes] | None = None
        self.proxy_url = ""
        self.embedding: Any = None
        self.variables = {
            **variables,
            "KVFERRY_TEST_DAMAGE": f"@{self.damage_file}",
            "KVFERRY_TEST_DRAFT_CELLS": str(self.cells_file),
            "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(GIVE_UP_SECONDS),
        }
        self.model_folder = pair.model.path(made)
        self.prefill = self._server("prefill", 0)
        self.decode = self._server("decode", 1)

    def _server(self, name: str, role: int) -> Server:
        pair = self.pair
        drafts = {"method": "mtp", "num_speculative_tokens": pair.drafts}
        return Server(
            name,
            self.model_folder,
            (pair.prefill, pair.decode)[role],
            self.connector.of(role),
            self.folder / f"{name}.log",
            [
                *pair.model.arguments,
                *pair.arguments,
                *(pair.prefill_arguments, pair.decode_arguments)[role],
                *(["--speculative-config", json.dumps(drafts)] if pair.drafts else []),
            ],
            {**self.variables, **(pair.prefill_environment, pair.decode_environment)[role]},
        )

    async def start(self) -> None:
        for server in (self.prefill, self.decode):
            server.start(sys.executable)
        await asyncio.gather(self.prefill.ready(), self.decode.ready())
        if self.connector.bootstrap:
            await self._start_proxy()

    async def _start_proxy(self) -> None:
        port = free_port()
        self.proxy_url = f"http://{HOST}:{port}"
        with open(self.folder / "proxy.log", "ab") as log:
            self.proxy = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kvferry.proxy",
                    "--prefill",
                    self.prefill.url,
                    str(self.prefill.bootstrap_port),
                    "--decode",
                    self.decode.url,
                    "--port",
                    str(port),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.variables},
            )
        assert self.decode.session is not None
        for _ in range(200):
            try:
                async with self.decode.session.get(self.proxy_url + "/health") as response:
                    if response.status == 200:
                        return
            except ClientError:
                pass
            await asyncio.sleep(0.1)
        raise Failed(f"the proxy does not answer ({self.folder / 'proxy.log'})")

    async def stop(self) -> None:
        if self.proxy is not None:
            self.proxy.terminate()
            self.proxy.wait()
            self.proxy = None
        await asyncio.gather(self.prefill.stop(), self.decode.stop())

    # --- requests through both

    @staticmethod
    def parameters() -> tuple[dict[str, Any], dict[str, Any]]:
        """What a new transfer's prefill and decode servers are told; decode_parameters has the rest of the latter."""
        transfer_id = f"xfer-{uuid.uuid4().hex}"
        return (
            {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id},
            {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": transfer_id},
        )

    async def decode_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """With the prefill server's present engine."""
        assert self.prefill.session is not None
        async with self.prefill.session.get(self.prefill.bootstrap + "/query") as response:
            engine = (await response.json())["0"]["engine_id"]
        return {**parameters, "remote_engine_id": engine, "remote_bootstrap_addr": self.prefill.bootstrap}

    async def transfer(
        self, prompt: Prompt, tokens: int, *, decode_prompt: Prompt | None = None, stream: bool = False
    ) -> Answer:
        """The decode server's answer over the prefill server's cache; by the proxy where that can be."""
        if self.proxy is not None and decode_prompt is None:
            return await self.decode.complete(prompt, tokens, url=self.proxy_url, stream=stream)
        prefill, decode = await self.halves(prompt, tokens, decode_prompt)
        computed = await prefill
        if computed.failed:
            decode.cancel()
            return computed
        if not self.connector.bootstrap:
            return await self.decode.complete(decode_prompt or prompt, tokens, computed.parameters)
        return await decode

    async def halves(
        self, prompt: Prompt, tokens: int, decode_prompt: Prompt | None = None
    ) -> tuple[asyncio.Task[Answer], asyncio.Task[Answer]]:
        """The two requests of a transfer, each a task of its own: (prefill, decode)."""
        prefill_parameters, decode_parameters = self.parameters()
        prefill = asyncio.create_task(self.prefill.complete(prompt, 1, prefill_parameters))
        if not self.connector.bootstrap:
            return prefill, asyncio.create_task(asyncio.sleep(0, Answer()))
        told = await self.decode_parameters(decode_parameters)
        decode = asyncio.create_task(self.decode.complete(decode_prompt or prompt, tokens, told))
        return prefill, decode

    async def ask(self, samples: Iterable[Sample], in_flight: int = IN_FLIGHT) -> list[Result]:
        """Transfers all samples, so many at a time; every other one as a stream."""
        limit = asyncio.Semaphore(in_flight)

        async def one(number: int, sample: Sample) -> Result:
            async with limit:
                answer = await self.transfer(sample.prompt, sample.tokens, stream=number % 2 == 1)
            if answer.first_seconds:
                self.tally.first_seconds.append(answer.first_seconds)
            return Result(sample, answer)

        return await asyncio.gather(*(one(number, sample) for number, sample in enumerate(samples)))

    # --- samples

    async def prepare(self, samples: list[Sample]) -> list[Sample]:
        """Fills in what one server alone says, and empties its cache. Without those that say nothing: questions that
        the server alone gets wrong; and of random models, whose numbers drift apart between topologies, what the two
        servers say differently, each alone, and what is a close call for either."""
        limit = asyncio.Semaphore(IN_FLIGHT)
        drifts = self.pair.drifts
        alone = (self.prefill, self.decode) if drifts else (self.decode,)

        async def ask(server: Server, sample: Sample) -> Answer:
            tokens = min(sample.tokens, DRIFT_TOKENS) if drifts else sample.tokens
            async with limit:
                answer = await server.complete(sample.prompt, tokens, logprobs=2)
            if answer.failed:
                raise Failed(f"the {server.name} server alone: {Result(sample, answer)}")
            return answer

        async def one(sample: Sample) -> Sample | None:
            answers = [await ask(server, sample) for server in alone]
            other, answer = answers[0], answers[-1]
            if sample.wanted:
                return replace(sample, compared=len(sample.wanted)) if answer.tokens == sample.wanted else None
            if not self.pair.model.trained and not drifts:
                return replace(sample, wanted=answer.tokens, compared=sample.tokens)
            sure = [
                token == answer.tokens[index] and min(other.margins[index], answer.margins[index]) >= CLEAR_MARGIN
                for index, token in enumerate(other.tokens)
            ]
            compared = [*sure, False].index(False)
            if self.pair.model.trained:
                compared = min(compared, 1)  # a prompt that is no question
            return replace(sample, wanted=answer.tokens, compared=compared) if compared else None

        found = await asyncio.gather(*map(one, samples))
        await self.empty(*alone)
        return [sample for sample in found if sample is not None]

    async def empty(self, *servers: Server) -> None:
        """Waits until all blocks are free, and forgets what they held. Raises Failed if they do not get free."""
        for server in servers or (self.prefill, self.decode):
            # P may hold blocks of an aborted request until it gives them up.
            for attempt in range(GIVE_UP_SECONDS + 30):
                if await server.empty_prefix_cache():
                    break
                if attempt % 5 == 4:
                    # A scheduler that has nothing to do does not hear from its workers what they have sent.
                    await server.complete(Prompt((1, 9)), 1)
                await asyncio.sleep(1)
            else:
                usage = (await server.metrics())["vllm:kv_cache_usage_perc"]
                raise Failed(
                    f"the {server.name} server does not free all its blocks: {usage:.2%} are in use, and no "
                    "request is running"
                )

    def embedded(self, prompt: Prompt) -> Prompt:
        """The same prompt as rows of the model's embedding."""
        import base64
        import io

        import torch
        from safetensors import safe_open

        if self.embedding is None:
            with safe_open(self.model_folder / "model.safetensors", "pt") as weights:
                [name] = [name for name in weights.offset_keys() if name.endswith("embed_tokens.weight")]
                self.embedding = weights.get_tensor(name)
        buffer = io.BytesIO()
        torch.save(self.embedding[list(prompt.ids)].contiguous(), buffer)
        return replace(prompt, embeddings=base64.b64encode(buffer.getvalue()).decode())
