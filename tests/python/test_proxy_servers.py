# SPDX-License-Identifier: Apache-2.0
"""The proxy and servers that are down, new, half-dead or full."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from types import SimpleNamespace
from unittest import mock

from pretenders import HOST, ProxyCase

from kvferry import _servers, proxy


class ServersTest(ProxyCase):
    async def test_servers_take_turns_and_dead_ones_are_passed_over(self) -> None:
        prefill, decode = await self.pretender(), await self.pretender()
        url = await self.run_proxy([self.prefill, prefill], [self.decode, decode])
        for _ in range(4):
            assert (await self.post({"prompt": "p"}, url=url))[0] == 200
        assert [len(one.asked) for one in (self.prefill, prefill, self.decode, decode)] == [2] * 4
        await self.decode.stop()
        await self.prefill.stop()
        assert [(await self.post({"prompt": "p"}, url=url))[0] for _ in range(4)] == [200] * 4

    async def test_every_engine_of_every_prefill_server_gets_its_turn(self) -> None:
        """Two servers of as many ranks, or of twice as many, as there are servers."""
        for ranks in (2, 4):
            servers = [await self.pretender(), await self.pretender()]
            for index, server in enumerate(servers):
                server.engines = {
                    str(rank): {"engine_id": f"s{index}e{rank}", "worker_addr": {}} for rank in range(ranks)
                }
            decode = await self.pretender()
            url = await self.run_proxy(servers, [decode])
            for _ in range(4 * ranks):
                assert (await self.post({"prompt": "p"}, url=url))[0] == 200
            used = Counter(body["kv_transfer_params"]["remote_engine_id"] for body in decode.asked)
            assert used == {f"s{index}e{rank}": 2 for index in (0, 1) for rank in range(ranks)}

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

    async def test_a_server_that_failed_comes_last(self) -> None:
        turns = _servers.Turns(["a", "b"])

        def in_turn() -> list[str]:
            with turns.in_turn() as urls:
                return urls

        turns.failed("a")
        assert [in_turn() for _ in range(3)] == [["b", "a"]] * 3
        turns.served("a")
        assert [in_turn()[0] for _ in range(4)] == ["b", "a", "b", "a"]
        with mock.patch.object(_servers, "FAILED_SECONDS", 0.0):
            turns.failed("a")
        assert in_turn()[0] == "b"
        with turns.in_turn() as urls:  # one caller tries it
            assert urls[0] == "a"
            assert [in_turn()[0] for _ in range(4)] == ["b"] * 4
            turns.failed("a")
        assert [in_turn()[0] for _ in range(4)] == ["b"] * 4

    async def test_a_caller_that_leaves_a_server_untried_leaves_it_to_the_next(self) -> None:
        other = await self.pretender()
        tried = proxy.Proxy(self.servers, [self.decode.url, other.url])
        tried._session = self.session
        self.decode.may_answer.clear()
        with mock.patch.object(_servers, "FAILED_SECONDS", 0.0):
            tried.decode.failed(self.decode.url)
        running = asyncio.create_task(tried._decode("/v1/completions", {}, {}))
        await self.decode.begun.wait()
        running.cancel()
        await asyncio.wait({running})
        self.decode.may_answer.set()
        answers = [(await tried._decode("/v1/completions", {}, {}))[0] for _ in range(2)]
        assert [answer.url.port for answer in answers] == [other.port, self.decode.port]

    async def test_a_prompt_that_a_prefill_server_fails_goes_to_the_next(self) -> None:
        bad, well = self.prefill, await self.pretender()
        bad.status = 500
        bad.may_answer.clear()
        self.decode.may_answer.clear()
        url = await self.run_proxy([bad, well], [self.decode])
        running = asyncio.create_task(self.post({"prompt": "p"}, url=url, headers={"X-Request-Id": "r1"}))
        await self.decode.begun.wait()
        bad.may_answer.set()
        await self.decode.aborted.wait()
        self.decode.may_answer.set()
        assert await running == (200, self.decode.answer)
        asked = [server.headers[0]["x-request-id"] for server in (bad, well)]
        assert asked == [headers["x-request-id"] for headers in self.decode.headers] == ["r1", "r1-2"]
        for _ in range(3):  # it is not asked again for a while
            assert (await self.post({"prompt": "p"}, url=url))[0] == 200
        assert (len(bad.asked), len(well.asked)) == (1, 4)
        first, second, *_ = (body["kv_transfer_params"] for body in self.decode.asked)
        assert first["transfer_id"] == bad.asked[0]["kv_transfer_params"]["transfer_id"]
        assert second["transfer_id"] == well.asked[0]["kv_transfer_params"]["transfer_id"] != first["transfer_id"]
        assert (first["remote_bootstrap_addr"], second["remote_bootstrap_addr"]) == (bad.url, well.url)

    async def test_a_prefill_server_that_is_not_well_is_not_waited_for(self) -> None:
        silent, well = self.prefill, await self.pretender()
        silent.may_answer.clear()
        silent.healthy = False
        self.decode.may_answer.clear()
        url = await self.run_proxy([silent, well], [self.decode])
        with mock.patch.object(_servers, "HEALTH_SECONDS", 0.01):
            running = asyncio.create_task(self.post({"prompt": "p"}, url=url))
            await silent.aborted.wait()
            await self.decode.aborted.wait()
            self.decode.may_answer.set()
            assert await running == (200, self.decode.answer)
        assert (len(silent.asked), len(well.asked)) == (1, 1)

    async def test_a_prefill_server_that_computes_for_long_is_waited_for(self) -> None:
        busy, other = self.prefill, await self.pretender()
        busy.may_answer.clear()
        busy.unwell_at_first = 1  # which is no proof
        self.decode.may_answer.clear()
        url = await self.run_proxy([busy, other], [self.decode])
        with mock.patch.object(_servers, "HEALTH_SECONDS", 0.01):
            running = asyncio.create_task(self.post({"prompt": "p"}, url=url))
            while busy.health_questions < 5:
                await asyncio.sleep(0.01)
            busy.may_answer.set()
            self.decode.may_answer.set()
            assert await running == (200, self.decode.answer)
        assert (len(busy.asked), len(other.asked)) == (1, 0)

    async def test_a_prompt_that_every_prefill_server_fails_is_tried_a_few_times(self) -> None:
        bad = [await self.pretender() for _ in range(5)]
        self.decode.may_answer.clear()
        url = await self.run_proxy(bad, [self.decode])
        for server in bad:
            server.status = 503
        status, body = await self.post({"prompt": "p"}, url=url)
        assert (status, sum(len(server.asked) for server in bad)) == (502, 3)
        assert [f"prefill server {server.url}: 503: it does not fit" in body["error"]["message"] for server in bad] == [
            True,
            True,
            True,
            False,
            False,
        ]

    async def test_a_prompt_that_is_refused_is_not_tried_elsewhere(self) -> None:
        other = await self.pretender()
        self.prefill.status = 400
        self.decode.may_answer.clear()
        url = await self.run_proxy([self.prefill, other], [self.decode])
        assert (await self.post({"prompt": "p"}, url=url))[0] == 400
        assert other.asked == []

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
