# SPDX-License-Identifier: Apache-2.0
"""Servers that only pretend to prefill and decode, and a proxy in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import unittest
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

from kvferry import proxy

HOST = "127.0.0.1"


def free_port(host: str = HOST) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
        bound.bind((host, 0))
        return bound.getsockname()[1]


class Pretender:
    """A server that records what it is asked, and answers as it is told to."""

    def __init__(self, host: str = HOST) -> None:
        self.host = host
        self.port = free_port(host)
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.aborted = asyncio.Event()
        self.begun = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.status = 200
        self.answer: dict[str, Any] = {"choices": [{"text": "x", "finish_reason": "length"}]}
        self.pieces = [{"choices": [{"text": text}]} for text in "abc"]
        self.breaks_after: int | None = None
        self.engines: dict[str, Any] = {"0": {"engine_id": "e0", "worker_addr": {}}}
        self.queries = 0
        self.may_say = asyncio.Event()
        self.may_say.set()
        self.says = True
        self.queried = asyncio.Event()
        self.healthy = True
        self.health_questions = 0
        self.unwell_at_first = 0
        self.used: list[Any] = []
        self.runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        application = web.Application()
        application.add_routes(
            [
                web.post("/v1/completions", self.complete),
                web.post("/v1/chat/completions", self.complete),
                web.get("/health", self.health),
                web.get("/query", self.query),
                web.get("/v1/models", self.models),
            ]
        )
        self.runner = web.AppRunner(application)
        await self.runner.setup()
        await web.TCPSite(self.runner, self.host, self.port).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def complete(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if request.transport in self.used:  # as a server whose keep-alive time is over just then
            request.transport.abort()
            return web.Response()
        self.used.append(request.transport)
        body = await request.json()
        self.asked.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.begun.set()
        waiting = asyncio.ensure_future(self.may_answer.wait())
        while not waiting.done():
            if request.transport is None:
                waiting.cancel()
                self.aborted.set()
                return web.Response()
            await asyncio.wait({waiting}, timeout=0.01)
        if self.status != 200:
            return web.json_response({"error": {"message": "it does not fit"}}, status=self.status)
        if not body.get("stream"):
            return web.json_response(self.answer)
        return await self.stream(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, piece in enumerate(self.pieces):
            if number == self.breaks_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def health(self, _: web.Request) -> web.Response:
        self.health_questions += 1
        unwell = not self.healthy or self.health_questions <= self.unwell_at_first
        return web.Response(status=503 if unwell else 200)

    async def query(self, _: web.Request) -> web.Response:
        self.queries += 1
        self.queried.set()
        await self.may_say.wait()
        return web.json_response(self.engines, status=200 if self.says else 503)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})


class ProxyCase(unittest.IsolatedAsyncioTestCase):
    """A proxy in front of a prefill and a decode server that only pretend."""

    async def asyncSetUp(self) -> None:
        self.stack = contextlib.AsyncExitStack()
        self.prefill = await self.pretender()
        self.decode = await self.pretender()
        self.session = await self.stack.enter_async_context(ClientSession(connector=TCPConnector(force_close=True)))
        self.url = await self.run_proxy([self.prefill], [self.decode])
        self.addAsyncCleanup(self.stack.aclose)

    async def pretender(self, host: str = HOST) -> Pretender:
        made = Pretender(host)
        await made.start()
        self.stack.push_async_callback(made.stop)
        return made

    async def run_proxy(self, prefill: list[Pretender], decode: list[Pretender], host: str = HOST) -> str:
        self.servers = [proxy.prefill_server([one.url, str(one.port)]) for one in prefill]
        application = proxy.make_application(self.servers, [one.url for one in decode])
        runner = web.AppRunner(application)
        await runner.setup()
        self.stack.push_async_callback(runner.cleanup)
        port = free_port(host)
        await web.TCPSite(runner, host, port).start()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def post(
        self, body: Any, path: str = "/v1/completions", url: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        async with self.session.post((url or self.url) + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()
