# SPDX-License-Identifier: Apache-2.0
"""One real vLLM server: its start, its end, and what can be asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

HOST = "127.0.0.1"
MODEL_NAME = "model"
START_SECONDS = 600
#: No request of these small models takes nearly as long, on however busy a machine; one that hangs does.
ANSWER_SECONDS = 240


class Unready(Exception):
    """A server that did not start, with the end of its log."""


@dataclass(frozen=True)
class Topology:
    tp: int = 1
    pp: int = 1

    @classmethod
    def parse(cls, text: str) -> Topology:
        """From "tp4", "pp2" or "pp2tp2"."""
        found = re.fullmatch(r"(?:pp(\d+))?(?:tp(\d+))?", text)
        if not text or not found:
            raise ValueError(f"expected ppN, tpN or ppNtpM, found {text!r}")
        return cls(tp=int(found[2] or 1), pp=int(found[1] or 1))

    def __str__(self) -> str:
        return (f"PP{self.pp}" if self.pp > 1 else "") + (f"TP{self.tp}" if self.tp > 1 or self.pp == 1 else "")


@dataclass(frozen=True)
class Prompt:
    """Token ids; or the rows of the model's embedding that they stand for, in base64."""

    ids: tuple[int, ...]
    embeddings: str = ""

    def body(self) -> dict[str, Any]:
        return {"prompt_embeds": self.embeddings} if self.embeddings else {"prompt": list(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Answer:
    """What a server said to one request."""

    status: int = 0
    tokens: tuple[int, ...] = ()
    #: The transfer parameters that a prefill server answered with, if any.
    parameters: dict[str, Any] | None = None
    error: str = ""
    #: By how much the logarithm of each token's probability is above the next one's, if it was asked for.
    margins: tuple[float, ...] = ()
    finish: str = ""
    seconds: float = 0.0
    #: Until the first token, if the answer was streamed.
    first_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.status != 200 or self.finish not in ("length", "stop")

    def add(self, found: dict[str, Any]) -> None:
        """Takes in a whole answer, or the next piece of a streamed one."""
        if "error" in found:
            self.status, self.error = 0, json.dumps(found["error"])
            return
        self.parameters = found.get("kv_transfer_params") or self.parameters
        for choice in found["choices"]:
            self.tokens += tuple(choice.get("token_ids") or ())
            self.finish = choice.get("finish_reason") or self.finish
            for best in (choice.get("logprobs") or {}).get("top_logprobs") or ():
                values = sorted(best.values(), reverse=True)
                self.margins += (values[0] - values[1] if len(values) > 1 else float("inf"),)

    def __str__(self) -> str:
        if self.status != 200:
            return f"status {self.status}: {self.error[:300]}"
        return f"{self.finish}: {' '.join(map(str, self.tokens))}"


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        return bound.getsockname()[1]


@dataclass
class Server:
    """A `vllm serve`. Ports stay the same over a restart."""

    name: str
    model: Path
    topology: Topology
    transfer_config: dict[str, Any] | None
    log: Path
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    bootstrap_port: int = field(default_factory=free_port)
    side_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    session: ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def bootstrap(self) -> str:
        return f"http://{HOST}:{self.bootstrap_port}"

    # --- start and end

    def command(self, python: str) -> list[str]:
        command = [
            python,
            "-m",
            "vllm.entrypoints.cli.main",
            "serve",
            str(self.model),
            "--served-model-name",
            MODEL_NAME,
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--skip-tokenizer-init",
            "--dtype",
            "bfloat16",
            "--enforce-eager",
            "-tp",
            str(self.topology.tp),
            "-pp",
            str(self.topology.pp),
            *self.arguments,
        ]
        if self.transfer_config is not None:
            command += ["--kv-transfer-config", json.dumps(self.transfer_config)]
        return command

    def variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": HOST,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # to empty the prefix cache, and to hear whether all blocks are free
            "VLLM_ENGINE_READY_TIMEOUT_S": str(START_SECONDS),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap_port),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
            **self.environment,
        }

    def start(self, python: str) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(python),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.variables(),
                start_new_session=True,
            )

    async def ready(self) -> None:
        """Waits until it serves. Raises Unready with the reason if it does not."""
        assert self.process is not None
        if self.session is None:
            # No connection is used twice: the server may close an idle one just then.
            connector = TCPConnector(force_close=True)
            self.session = ClientSession(timeout=ClientTimeout(total=ANSWER_SECONDS), connector=connector)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Unready(
                    f"{self.name} ended with status {self.process.returncode} at its start: {self.last_error()}"
                )
            if await self.healthy():
                return
            await asyncio.sleep(0.5)
        raise Unready(f"{self.name} did not serve within {START_SECONDS} s: {self.last_error()}")

    def last_error(self) -> str:
        """The line of the log that most likely says what was wrong, and the log's name."""
        lines = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace")).splitlines()
        errors = [line for line in lines if " ERROR " in line and re.search(r"\w(Error|Exception|Refused): ", line)]
        # The first is the cause; the later ones say that some process has ended.
        return f"{errors[0] if errors else (lines or ['nothing was logged'])[-1]} ({self.log})"

    def kill(self) -> None:
        """At once, as a crash of the machine would."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    async def stop(self) -> None:
        if self.session is not None:
            await self.session.close()
            self.session = None
        if self.process is not None:
            self.process.terminate()
            for _ in range(40):
                if self.process.poll() is not None:
                    break
                await asyncio.sleep(0.25)
        self.kill()

    # --- requests

    async def complete(
        self,
        prompt: Prompt,
        tokens: int,
        parameters: dict[str, Any] | None = None,
        *,
        url: str | None = None,
        stream: bool = False,
        **more: Any,
    ) -> Answer:
        """Asks for so many tokens after a prompt; of another server than this one if url is given."""
        assert self.session is not None
        body: dict[str, Any] = {
            "model": MODEL_NAME,
            **prompt.body(),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "detokenize": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": stream,
            **more,
        }
        if parameters is not None:
            body["kv_transfer_params"] = parameters
        begun = time.monotonic()
        answer = Answer()
        try:
            async with self.session.post((url or self.url) + "/v1/completions", json=body) as response:
                answer.status = response.status
                if response.status != 200:
                    answer.error = await response.text()
                elif stream:
                    async for line in response.content:
                        if line.startswith(b"data: {"):
                            answer.first_seconds = answer.first_seconds or time.monotonic() - begun
                            answer.add(json.loads(line[len(b"data: ") :]))
                else:
                    answer.add(await response.json())
        except (ClientError, asyncio.TimeoutError) as error:
            answer.status, answer.error = 0, f"{type(error).__name__} {error}"
        answer.seconds = time.monotonic() - begun
        return answer

    # --- state

    async def healthy(self) -> bool:
        assert self.session is not None
        try:
            async with self.session.get(self.url + "/health", timeout=ClientTimeout(total=20)) as response:
                return response.status == 200
        except (ClientError, asyncio.TimeoutError):
            return False

    async def empty_prefix_cache(self) -> bool:
        """Forgets all cached blocks. vLLM does it only if every block but its null block is free: False if not."""
        assert self.session is not None
        async with self.session.post(self.url + "/reset_prefix_cache") as response:
            return bool((await response.json())["success"])

    async def metrics(self) -> dict[str, float]:
        """The sum of each metric over its labels; and each label of cache_config_info that is a number."""
        assert self.session is not None
        async with self.session.get(self.url + "/metrics") as response:
            text = await response.text()
        sums: dict[str, float] = {}
        for name, labels, value in re.findall(r"^([\w:]+)(\{.*\})? ([-+\d.eE]+|NaN)$", text, flags=re.M):
            sums[name] = sums.get(name, 0.0) + float(value)
            if name == "vllm:cache_config_info":
                for label, number in re.findall(r'(\w+)="(\d+)"', labels):
                    sums[label] = float(number)
        return sums
