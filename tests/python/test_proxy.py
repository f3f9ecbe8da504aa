# SPDX-License-Identifier: Apache-2.0
"""The proxy in front of servers that only pretend: what each is asked, and what a client is told."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import re
import socket
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import ClientError, web
from pretenders import HOST, ProxyCase

from kvferry import proxy


class ProxyTest(ProxyCase):
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

    async def test_a_second_cancel_leaves_no_decode_request(self) -> None:
        """While it waits for the prefill request to end: before there is an answer, and in the middle of one."""
        for answers in (False, True):
            with self.subTest(answers=answers):
                waits, ends, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
                answer = mock.Mock(close=ended.set)

                async def prefill(*_: Any, waits: asyncio.Event = waits, ends: asyncio.Event = ends) -> None:
                    try:
                        await asyncio.Event().wait()
                    finally:
                        waits.set()
                        await ends.wait()

                async def decode(
                    *_: Any, answers: bool = answers, answer: Any = answer, ended: asyncio.Event = ended
                ) -> tuple[Any, bytes]:
                    if not answers:
                        try:
                            await asyncio.Event().wait()
                        finally:
                            ended.set()
                    return answer, b""

                async def pass_on(*_: Any) -> None:
                    await asyncio.Event().wait()

                served = proxy.Proxy(self.servers, [self.decode.url])
                served._prefill, served._decode, served._pass_on = prefill, decode, pass_on  # type: ignore[assignment]
                request = mock.Mock(headers={}, path="/v1/completions")
                running = asyncio.create_task(served._serve_by(self.servers[0], 0, "e0", request, {}, "x", ""))
                await asyncio.sleep(0.01)
                running.cancel()
                await waits.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                for _ in range(10):
                    await asyncio.sleep(0)
                assert ended.is_set()
                ends.set()

    async def test_a_client_that_leaves_is_no_fault_of_the_decode_server(self) -> None:
        self.decode.pieces = [{"choices": [{"text": "x" * 100_000}]}] * 500  # more than any buffer on the way takes
        with mock.patch.object(proxy, "WATCH_SECONDS", 3600.0), self.assertLogs("kvferry.proxy", "INFO") as logs:
            async with self.session.post(self.url + "/v1/completions", json={"prompt": "p", "stream": True}) as answer:
                await answer.content.readany()
                answer.close()
            while not logs.records:
                await asyncio.sleep(0.01)
        assert [(one.levelname, one.getMessage()) for one in logs.records] == [
            ("INFO", f"a client left before the end of its answer by decode server {self.decode.url}")
        ]

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

    # --- what is refused

    async def test_refused_bodies(self) -> None:
        for body, said in (
            ({"prompt": "p", "n": 2}, "n is 2 (int), expected the number 1"),
            ({"prompt": "p", "n": "1"}, "n is '1' (str), expected the number 1"),
            ({"prompt": ["p", "q"]}, "2 prompts"),
            ({"prompt": [[1], [2]]}, "2 prompts"),
            ({"prompt_embeds": ["AAAA", "BBBB"]}, "2 prompts"),
            ({"prompt": [1, 2], "prompt_embeds": "AAAA"}, "2 prompts"),
            ({"prompt": [""], "prompt_embeds": ["AAAA"]}, "2 prompts"),
            ({"prompt": "", "prompt_embeds": ["AAAA", "BBBB"]}, "2 prompts"),
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

    async def test_an_empty_prompt_beside_embeddings_is_left_out(self) -> None:
        """Of vLLM's own example, since OpenAI's client asks for a prompt. vLLM would make a second request of it."""
        assert (await self.post({"prompt": "", "prompt_embeds": "AAAA"}))[0] == 200
        for body in self.prefill.asked + self.decode.asked:
            assert "prompt" not in body
            assert body["prompt_embeds"] == "AAAA"

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
        for words in (["http://p:1", "2", "3"], ["http://p:1", "0"], ["http://p:1", "65536"]):
            with self.subTest(words=words), pytest.raises(argparse.ArgumentTypeError):
                proxy.prefill_server(words)

    def test_a_port_is_one(self) -> None:
        words = ["--prefill", "p:1", "--decode", "d:1", "--port"]
        for given in ("-1", "65536", "70000", "http"):
            said = io.StringIO()
            with self.subTest(given=given), contextlib.redirect_stderr(said), pytest.raises(SystemExit):
                proxy.parser().parse_args([*words, given])
            assert f"--port: expected a number from 0 to 65535, found '{given}'\n" in said.getvalue()
        assert proxy.parser().parse_args([*words, "65535"]).port == 65535

    def test_an_address_is_listened_at_once_and_whole(self) -> None:
        """A file of hosts may have one twice; the last part says which interface a link's own address is of."""
        here, link = ("127.0.0.1", 5), ("fe80::1", 5, 0, 7)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", here)] * 2
        found += [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", link)]
        with (
            mock.patch.object(socket, "getaddrinfo", return_value=found),
            mock.patch.object(socket, "create_server", side_effect=lambda address, family: address),
        ):
            assert proxy.listen("both", 5) == [here, link]

    def test_the_page_for_users_has_every_option(self) -> None:
        page = (Path(os.environ["KVFERRY_SOURCE"]) / "docs" / "python.md").read_text()
        section = page.split("\n## The proxy\n")[1].split("\n## ")[0]
        options = {name for action in proxy.parser()._actions for name in action.option_strings}
        assert set(re.findall(r"--[a-z-]+", section)) == options - {"-h", "--help"}

    def test_a_server_that_is_given_twice_is_refused_by_its_name(self) -> None:
        for given in (
            ["--prefill", "http://p:1", "--prefill", "p:1/", "9000", "--decode", "http://d:1"],
            ["--prefill", "http://p:1", "--decode", "http://d:1", "--decode", "http://e:1", "--decode", "d:1"],
        ):
            said = io.StringIO()
            with (
                self.subTest(given=given),
                contextlib.redirect_stderr(said),
                mock.patch.object(web, "run_app"),
                pytest.raises(SystemExit),
            ):
                proxy.main(given)
            assert f"found more than once: http://{'p' if 'p:1/' in given else 'd'}:1\n" in said.getvalue()

    def test_another_spelling_is_no_other_server(self) -> None:
        for first, again in (
            ("http://d.example:1", "http://D.Example:1"),
            ("http://d", "http://d:80"),
            ("https://d:443", "https://d"),
            ("http://[FE80::1]:5", "http://[fe80::1]:5"),
            ("http://d:1/one", "http://D:1/one"),
        ):
            said = io.StringIO()
            with (
                self.subTest(first=first, again=again),
                contextlib.redirect_stderr(said),
                mock.patch.object(web, "run_app"),
                pytest.raises(SystemExit),
            ):
                proxy.main(["--prefill", "p:1", "--decode", first, "--decode", "e:1", "--decode", again])
            assert f"found more than once: {first}, {again}\n" in said.getvalue()
        others = ["http://d:1", "https://d:1", "http://d:2", "http://e:1", "http://d:1/two", "http://d", "https://d"]
        assert proxy.repeated(others) == []


if __name__ == "__main__":
    unittest.main()
