# SPDX-License-Identifier: Apache-2.0
"""The proxy in front of servers that only pretend: what each is asked, and what a client is told."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector, web

from kvferry import _servers, proxy

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
        return web.Response(status=200 if self.healthy else 503)

    async def query(self, _: web.Request) -> web.Response:
        self.queries += 1
        self.queried.set()
        await self.may_say.wait()
        return web.json_response(self.engines, status=200 if self.says else 503)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})


class ProxyTest(unittest.IsolatedAsyncioTestCase):
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

    # --- what is asked

    async def test_each_side_is_told_of_the_other(self) -> None:
        status, answer = await self.post({"prompt": "p", "max_tokens": 5})
        assert (status, answer) == (200, self.decode.answer)
        asked, told = self.prefill.asked[0], self.decode.asked[0]
        transfer_id = asked["kv_transfer_params"]["transfer_id"]
        assert asked["kv_transfer_params"] == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": transfer_id,
        }
        assert told["kv_transfer_params"] == {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_engine_id": "e0",
            "remote_bootstrap_addr": self.prefill.url,
        }
        assert (asked["prompt"], told["prompt"]) == ("p", "p")
        assert (asked["max_tokens"], told["max_tokens"]) == (1, 5)

    async def test_transfers_have_ids_of_their_own(self) -> None:
        await asyncio.gather(*(self.post({"prompt": "p"}) for _ in range(20)))
        ids = {body["kv_transfer_params"]["transfer_id"] for body in self.prefill.asked}
        assert len(ids) == 20
        assert ids == {body["kv_transfer_params"]["transfer_id"] for body in self.decode.asked}

    async def test_a_server_that_closes_idle_connections_loses_no_request(self) -> None:
        for _ in range(3):
            assert await self.post({"prompt": "p"}) == (200, self.decode.answer)

    async def test_prefill_ends_by_its_length_only(self) -> None:
        given = {
            "prompt": "p",
            "max_tokens": 9,
            "min_tokens": 3,
            "stop": ["x"],
            "stop_token_ids": [2],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with self.session.post(self.url + "/v1/completions", json=given) as answer:
            await answer.read()
        asked = self.prefill.asked[0]
        assert (asked["max_tokens"], asked["stream"], asked["ignore_eos"]) == (1, False, True)
        for name in ("min_tokens", "stop", "stop_token_ids", "stream_options"):
            assert name not in asked
        told = self.decode.asked[0]
        assert {name: told[name] for name in given} == given
        assert "ignore_eos" not in told

    async def test_chat(self) -> None:
        status, _ = await self.post({"messages": [], "max_completion_tokens": 7}, "/v1/chat/completions")
        assert status == 200
        assert self.prefill.asked[0]["max_completion_tokens"] == 1
        assert self.decode.asked[0]["max_completion_tokens"] == 7

    async def test_headers_are_passed_on(self) -> None:
        await self.post({"prompt": "p"}, headers={"Authorization": "Bearer k", "X-Request-Id": "r1"})
        for server in (self.prefill, self.decode):
            assert (server.headers[0]["authorization"], server.headers[0]["x-request-id"]) == ("Bearer k", "r1")
            assert server.headers[0]["host"] == f"{HOST}:{server.port}"
        assert self.prefill.headers[0]["x-data-parallel-rank"] == "0"
        assert "x-data-parallel-rank" not in self.decode.headers[0]

    async def test_data_parallel_ranks_take_turns(self) -> None:
        self.prefill.engines = {str(rank): {"engine_id": f"e{rank}", "worker_addr": {}} for rank in (0, 1)}
        for _ in range(4):
            await self.post({"prompt": "p"})
        pairs = [
            (headers["x-data-parallel-rank"], body["kv_transfer_params"]["remote_engine_id"])
            for headers, body in zip(self.prefill.headers, self.decode.asked, strict=False)
        ]
        assert pairs == [("0", "e0"), ("1", "e1")] * 2

    async def test_both_sides_work_at_the_same_time(self) -> None:
        self.prefill.may_answer.clear()
        running = asyncio.create_task(self.post({"prompt": "p"}))
        await self.prefill.begun.wait()
        await self.decode.begun.wait()
        self.prefill.may_answer.set()
        assert (await running)[0] == 200

    # --- streams

    async def test_stream(self) -> None:
        async with self.session.post(self.url + "/v1/completions", json={"prompt": "p", "stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            lines = [line async for line in answer.content if line.strip()]
        assert [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]] == ["a", "b", "c"]
        assert lines[-1].strip() == b"data: [DONE]"

    async def test_stream_that_breaks_ends_with_an_error(self) -> None:
        self.decode.breaks_after = 2
        async with self.session.post(self.url + "/v1/completions", json={"prompt": "p", "stream": True}) as answer:
            lines = [line async for line in answer.content if line.strip()]
        assert "decode server" in json.loads(lines[-1][6:])["error"]["message"]

    async def test_an_answer_that_has_begun_is_cut_off_by_an_error(self) -> None:
        async def copy(_: Any, request: web.Request, response: web.StreamResponse, *__: Any) -> None:
            await response.prepare(request)
            await response.write(b"it begins")
            raise KeyError("odd")

        with mock.patch.object(proxy.Proxy, "_copy", copy), self.assertLogs("kvferry.proxy"):
            async with self.session.post(self.url + "/v1/completions", json={"prompt": "p"}) as answer:
                with pytest.raises(ClientError):
                    await answer.read()

    # --- aborts

    async def test_client_that_leaves_aborts_both(self) -> None:
        self.prefill.may_answer.clear()
        self.decode.may_answer.clear()
        running = asyncio.create_task(self.post({"prompt": "p"}))
        await self.prefill.begun.wait()
        await self.decode.begun.wait()
        running.cancel()
        await self.prefill.aborted.wait()
        await self.decode.aborted.wait()

    async def test_client_that_leaves_after_the_prefill_aborts_decode(self) -> None:
        self.decode.may_answer.clear()
        running = asyncio.create_task(self.post({"prompt": "p"}))
        await self.decode.begun.wait()
        running.cancel()
        await self.decode.aborted.wait()

    async def test_failed_prefill_aborts_decode_and_is_told(self) -> None:
        self.decode.may_answer.clear()
        for status, told in ((400, 400), (500, 502)):
            self.prefill.status = status
            self.decode.aborted.clear()
            self.decode.begun.clear()
            self.prefill.may_answer.clear()
            running = asyncio.create_task(self.post({"prompt": "p"}))
            await self.decode.begun.wait()
            self.prefill.may_answer.set()
            found, body = await running
            assert found == told
            assert f"{status}: it does not fit" in body["error"]["message"]
            await self.decode.aborted.wait()

    async def test_failed_decode_aborts_prefill_and_is_passed_on(self) -> None:
        self.prefill.may_answer.clear()
        self.decode.status = 422
        status, body = await self.post({"prompt": "p"})
        assert (status, body["error"]["message"]) == (422, "it does not fit")
        await self.prefill.aborted.wait()

    # --- servers that are down or new

    async def test_servers_take_turns_and_dead_ones_are_passed_over(self) -> None:
        prefill, decode = await self.pretender(), await self.pretender()
        url = await self.run_proxy([self.prefill, prefill], [self.decode, decode])
        for _ in range(4):
            assert (await self.post({"prompt": "p"}, url=url))[0] == 200
        assert [len(one.asked) for one in (self.prefill, prefill, self.decode, decode)] == [2] * 4
        await self.decode.stop()
        await self.prefill.stop()
        proxy_statuses = [(await self.post({"prompt": "p"}, url=url))[0] for _ in range(4)]
        # The first one may still trust the dead server's id.
        assert proxy_statuses in ([200] * 4, [502, 200, 200, 200], [200, 502, 200, 200])

    async def test_a_silent_prefill_server_is_asked_once_and_passed_over(self) -> None:
        silent, well = await self.pretender(), self.prefill
        silent.says = False
        silent.may_say.clear()
        with mock.patch.object(_servers, "DOWN_SECONDS", 3600.0):
            url = await self.run_proxy([silent, well], [self.decode])
            running = [asyncio.create_task(self.post({"prompt": "p"}, url=url)) for _ in range(8)]
            await silent.queried.wait()
            for task in asyncio.as_completed(running):  # those whose turn is the other server's do not wait
                await task
                if len(well.asked) == 4:
                    break
            silent.may_say.set()
            assert [status for status, _ in await asyncio.gather(*running)] == [200] * 8
            for _ in range(4):
                assert (await self.post({"prompt": "p"}, url=url))[0] == 200
            assert silent.queries == 1
        # Asked again, it is silent again, and nobody waits for it.
        silent.may_say.clear()
        silent.queried.clear()
        self.servers[0].forget()
        for _ in range(4):
            assert (await self.post({"prompt": "p"}, url=url))[0] == 200
        await silent.queried.wait()
        assert silent.queries == 2
        # As soon as it answers, it takes its turns.
        silent.says = True
        silent.may_say.set()
        while self.servers[0].down:
            await asyncio.sleep(0)
        for _ in range(2):
            assert (await self.post({"prompt": "p"}, url=url))[0] == 200
        assert len(silent.asked) == 1

    async def test_a_decode_server_that_takes_no_connection_is_passed_over(self) -> None:
        with contextlib.ExitStack() as sockets, mock.patch.object(proxy, "CONNECT_SECONDS", 0.5):
            full = sockets.enter_context(socket.socket())
            full.bind((HOST, 0))
            full.listen(0)
            for _ in range(4):  # its queue is full then, and packets that would connect are dropped
                waiting = sockets.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            dropping = SimpleNamespace(url=f"http://{HOST}:{full.getsockname()[1]}")
            url = await self.run_proxy([self.prefill], [dropping, self.decode])
            assert await self.post({"prompt": "p"}, url=url) == (200, self.decode.answer)
            url = await self.run_proxy([self.prefill], [dropping])
            status, body = await self.post({"prompt": "p"}, url=url)
        assert status == 503
        assert f"decode server {dropping.url}: " in body["error"]["message"]

    async def test_a_decode_server_that_was_not_reached_comes_last(self) -> None:
        servers = _servers.DecodeServers(["a", "b"])
        servers.unreached("a")
        assert [servers.in_turn() for _ in range(3)] == [["b", "a"]] * 3
        servers.reached("a")
        assert [servers.in_turn()[0] for _ in range(4)] == ["b", "a", "b", "a"]
        with mock.patch.object(_servers, "UNREACHED_SECONDS", 0.0):
            servers.unreached("a")
        assert [servers.in_turn()[0] for _ in range(4)] == ["b", "a", "b", "b"]  # one caller tries it

    async def test_no_prefill_server(self) -> None:
        await self.prefill.stop()
        status, body = await self.post({"prompt": "p"})
        assert status == 503
        assert f"{self.prefill.url}/query does not say its engine's id" in body["error"]["message"]
        assert self.decode.asked == []

    async def test_prefill_server_without_workers(self) -> None:
        self.prefill.engines = {}
        status, body = await self.post({"prompt": "p"})
        assert status == 503
        assert "no worker has registered" in body["error"]["message"]

    async def test_no_decode_server(self) -> None:
        await self.decode.stop()
        status, body = await self.post({"prompt": "p"})
        assert status == 503
        assert f"decode server {self.decode.url}" in body["error"]["message"]

    async def test_restarted_prefill_server_has_a_new_id(self) -> None:
        server = proxy.prefill_server([self.prefill.url, str(self.prefill.port)])
        assert await server.engines(self.session) == {0: "e0"}
        self.prefill.engines["0"]["engine_id"] = "e1"
        assert await server.engines(self.session) == {0: "e0"}
        assert self.prefill.queries == 1
        server.forget()
        assert await server.engines(self.session) == {0: "e1"}

    # --- what is refused

    async def test_refused_bodies(self) -> None:
        for body, said in (
            ({"prompt": "p", "n": 2}, "n is 2"),
            ({"prompt": ["p", "q"]}, "2 prompts"),
            ({"prompt": [[1], [2]]}, "2 prompts"),
            ({"prompt_embeds": ["AAAA", "BBBB"]}, "2 prompts"),
            ({"prompt": [1, 2], "prompt_embeds": "AAAA"}, "2 prompts"),
            ({"prompt": "", "prompt_embeds": ["AAAA"]}, "2 prompts"),
            ({"prompt": ["p", "q"], "prompt_embeds": ["AAAA", "BBBB"]}, "4 prompts"),
            ({"prompt": "p", "best_of": 2}, "best_of is 2"),
            ({"prompt": "p", "use_beam_search": True}, "use_beam_search"),
            ({"prompt": "p", "kv_transfer_params": {}}, "kv_transfer_params"),
            ([1], "a JSON object, found list"),
        ):
            with self.subTest(body=body):
                status, answer = await self.post(body)
                assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
                assert said in answer["error"]["message"]
        assert self.prefill.asked + self.decode.asked == []
        for body in (
            {"prompt": [1, 2, 3]},
            {"prompt": [[1, 2, 3]]},
            {"prompt": ["p"], "n": 1, "use_beam_search": False},
            {"prompt_embeds": "AAAA"},
            {"prompt": None, "prompt_embeds": ["AAAA"]},
            {"prompt": [], "prompt_embeds": "AAAA"},
        ):
            with self.subTest(body=body):
                assert (await self.post(body))[0] == 200

    async def test_every_error_is_in_the_form_of_openai(self) -> None:
        completions = self.url + "/v1/completions"
        nonsense = {"Content-Type": "application/json; charset=nonsense"}
        for status, method, url, given in (
            (400, "post", completions, {"data": b"{"}),
            (400, "post", completions, {"data": b""}),
            (400, "post", completions, {"data": b'{"prompt": "\xff"}'}),
            (400, "post", completions, {"data": b"{}", "headers": nonsense}),
            (400, "post", completions, {"data": b"[" * 100_000}),
            (404, "post", self.url + "/v1/nothing", {"json": {}}),
            (405, "get", completions, {}),
        ):
            with self.subTest(status=status, method=method, url=url):
                async with self.session.request(method, url, **given) as answer:
                    error = (await answer.json())["error"]
                    assert (answer.status, error["code"], error["type"]) == (status, status, "invalid_request_error")
                    assert error["message"]
                    assert answer.headers.get("Allow") == ("POST" if status == 405 else None)

    async def test_an_unforeseen_error_is_one_too(self) -> None:
        with mock.patch.object(proxy, "decode_body", side_effect=KeyError("odd")), self.assertLogs("kvferry.proxy"):
            status, body = await self.post({"prompt": "p"})
        assert (status, body["error"]["type"], body["error"]["message"]) == (500, "server_error", "KeyError: 'odd'")

    # --- the rest

    async def test_health(self) -> None:
        async with self.session.get(self.url + "/health") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "well")
        self.decode.healthy = False
        async with self.session.get(self.url + "/health") as answer:
            assert answer.status == 503
            assert (await answer.json())["decode"] == {self.decode.url: "status 503"}

    async def test_models(self) -> None:
        async with self.session.get(self.url + "/v1/models") as answer:
            assert await answer.json() == {"data": [{"id": "m"}]}

    async def test_ipv6(self) -> None:
        prefill, decode = await self.pretender("::1"), await self.pretender("::1")
        url = await self.run_proxy([prefill], [decode], "::1")
        assert (await self.post({"prompt": "p"}, url=url))[0] == 200
        assert decode.asked[0]["kv_transfer_params"]["remote_bootstrap_addr"] == f"http://[::1]:{prefill.port}"


class CommandTest(unittest.TestCase):
    def test_bootstrap_addresses(self) -> None:
        for given, url, bootstrap in (
            (["http://p:8100"], "http://p:8100", "http://p:8998"),
            (["p:8100/", "9000"], "http://p:8100", "http://p:9000"),
            (["http://[fe80::1]:8100", "9000"], "http://[fe80::1]:8100", "http://[fe80::1]:9000"),
            (["https://p", "http://q:1"], "https://p", "http://q:1"),
        ):
            server = proxy.prefill_server(given)
            assert (server.url, server.bootstrap) == (url, bootstrap)

    def test_refused_addresses(self) -> None:
        for given in ("ftp://p:1", "http://", "http://p:port", "http://p:99999", "http://fe80::1:8100:1x"):
            with self.subTest(given=given), pytest.raises(argparse.ArgumentTypeError):
                proxy.server_url(given)
        with pytest.raises(argparse.ArgumentTypeError):
            proxy.prefill_server(["http://p:1", "2", "3"])


if __name__ == "__main__":
    unittest.main()
