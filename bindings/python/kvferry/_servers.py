# SPDX-License-Identifier: Apache-2.0
"""The servers behind a proxy: where they are, which of them are down, and who a prefill server is."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from kvferry._address import with_port

#: Where the first worker of a prefill server answers who it is, unless told otherwise.
BOOTSTRAP_PORT = 8998
#: A prefill server that was restarted has another engine id; what was asked is trusted this long.
IDENTITY_SECONDS = 1.0
#: A prefill server that did not say who it is counts as down this long without being asked again.
DOWN_SECONDS = 1.0
#: A server that failed comes last this long; then one request tries it again.
FAILED_SECONDS = 10.0
CONNECT_SECONDS = 5.0
#: A prefill server that has a prompt is asked so often whether it is well: one that computes says so.
HEALTH_SECONDS = 5.0
#: So many questions without a good answer, one after the other, tell that it is not.
UNWELL_ANSWERS = 2

#: What a question to a server may end with, other than an answer of the expected form.
UNANSWERED = (ClientError, asyncio.TimeoutError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


T = TypeVar("T")


class Failure(Exception):
    """A request that cannot be served: an HTTP status and a sentence."""

    def __init__(self, status: int, message: str, kind: str = "server_error") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind

    def body(self) -> dict[str, Any]:
        """As OpenAI's interface words an error."""
        return {"error": {"message": self.message, "type": self.kind, "code": self.status}}


class PrefillFailure(Failure):
    """A prefill server failed, and not for what it was asked: another one may do it."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(502, f"prefill server {url}: {why}")


@dataclass
class PrefillServer:
    """A prefill server and who its engines are, by its bootstrap server."""

    url: str
    bootstrap: str
    _engines: dict[int, str] = field(default_factory=dict)
    _why_down: str | None = None
    _trusted_until: float = float("-inf")
    _asking: asyncio.Task[None] | None = None
    _asking_health: asyncio.Task[str] | None = None
    _turn: Iterator[int] = field(default_factory=itertools.count)

    @property
    def down(self) -> bool:
        """It did not say who it is when it was last asked."""
        return self._why_down is not None

    async def engines(self, session: ClientSession) -> dict[int, str]:
        """Engine ids by data-parallel rank, not older than IDENTITY_SECONDS.

        All who wait share one question. Raises Failure if the bootstrap server does not answer, or has no engine yet;
        for DOWN_SECONDS at once.
        """
        asking = self.refresh(session)
        if asking is not None:
            await asyncio.shield(asking)
        if self._why_down is not None:
            raise Failure(503, f"prefill server {self.url}: {self._why_down}")
        return self._engines

    async def next_engine(self, session: ClientSession) -> tuple[int, str]:
        """The data-parallel rank and the id of one of its engines, in turns of its own: a turn that all servers shared
        would pass over engines, where it and the servers' own turns come round together. Raises as `engines` does."""
        engines = sorted((await self.engines(session)).items())
        return engines[next(self._turn) % len(engines)]

    def refresh(self, session: ClientSession) -> asyncio.Task[None] | None:
        """Asks who the server is, if what is known is too old, without waiting; None if it is not."""
        if self._asking is None and time.monotonic() > self._trusted_until:
            self._asking = asyncio.create_task(self._ask(session))
        return self._asking

    async def _ask(self, session: ClientSession) -> None:
        address = f"{self.bootstrap}/query"
        try:
            async with session.get(address, timeout=ClientTimeout(total=CONNECT_SECONDS)) as answer:
                answer.raise_for_status()
                ranks = await answer.json(content_type=None)
                self._engines = {int(rank): str(engine["engine_id"]) for rank, engine in ranks.items()}
            self._why_down = None if self._engines else f"no worker has registered at {self.bootstrap} yet"
        except UNANSWERED as error:
            self._why_down = f"{address} does not say its engine's id: {describe(error)}"
        finally:
            self._asking = None
        self._trusted_until = time.monotonic() + (DOWN_SECONDS if self.down else IDENTITY_SECONDS)

    def forget(self) -> None:
        """The next request asks anew: something at this server went wrong."""
        self._trusted_until = float("-inf")

    async def fail_when_unwell(self, session: ClientSession) -> None:
        """Raises PrefillFailure once the server says no more that it is well. All who wait share the questions."""
        unwell = 0
        while True:
            await asyncio.sleep(HEALTH_SECONDS)
            if self._asking_health is None:
                self._asking_health = asyncio.create_task(self._ask_health(session))
            why = await asyncio.shield(self._asking_health)
            unwell = unwell + 1 if why else 0
            if unwell == UNWELL_ANSWERS:
                raise PrefillFailure(self.url, f"no answer, and its health is: {why}")

    async def _ask_health(self, session: ClientSession) -> str:
        """What is wrong with it; "": nothing."""
        try:
            async with session.get(f"{self.url}/health", timeout=ClientTimeout(total=CONNECT_SECONDS)) as answer:
                return f"status {answer.status}" if answer.status >= 500 else ""
        except UNANSWERED as error:
            return describe(error)
        finally:
            self._asking_health = None

    async def close(self) -> None:
        """Ends questions that nobody waits for any more."""
        for asking in (self._asking, self._asking_health):
            if asking is not None:
                await stop(asking)


class Turns:
    """Servers, by their URLs, in turns; those that failed come last."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self._turn = itertools.count()
        self._last_until: dict[str, float] = {}

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[list[str]]:
        """All servers once. One that failed comes in its turn again, later, for one caller, and last for others until
        that one says how it went; if it leaves without a word, the next one tries."""
        now = time.monotonic()
        start = next(self._turn) % len(self.urls)
        ordered = sorted([*self.urls[start:], *self.urls[:start]], key=lambda url: now < self._last_until.get(url, now))
        first = ordered[0]
        meanwhile = now + FAILED_SECONDS
        if first in self._last_until:
            self._last_until[first] = meanwhile
        try:
            yield ordered
        finally:
            if self._last_until.get(first) == meanwhile:
                self._last_until[first] = time.monotonic()

    def failed(self, url: str) -> None:
        self._last_until[url] = time.monotonic() + FAILED_SECONDS

    def served(self, url: str) -> None:
        self._last_until.pop(url, None)


def describe(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def first_of(work: Coroutine[Any, Any, T], other: Coroutine[Any, Any, T]) -> T:
    """What the first one that ends comes to, `work` if both have ended. The other one is stopped."""
    working, beside = asyncio.create_task(work), asyncio.create_task(other)
    try:
        await asyncio.wait({working, beside}, return_when=asyncio.FIRST_COMPLETED)
        return (working if working.done() else beside).result()
    finally:
        await stop(beside, working)


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks that are not done, and waits for their ends. Who is canceled while it waits has canceled all."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(_look)
    await asyncio.wait(tasks)


def _look(task: asyncio.Task[Any]) -> None:
    """At what a task ended with, which was reported, or is of no interest any more."""
    if not task.cancelled():
        task.exception()


def _server_of(url: str) -> tuple[str, str, int, str]:
    """What a URL comes to: neither the case of a host nor a port that its scheme has anyway makes another server."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parts.path


def repeated(urls: Sequence[str]) -> list[str]:
    """Those whose servers are there more than once, each in all its spellings."""
    counts = Counter(map(_server_of, urls))
    return [url for url in dict.fromkeys(urls) if counts[_server_of(url)] > 1]


def port_number(text: str) -> int:
    """A port to listen on; 0 is any free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535, found {text!r}")
    return int(text)


def server_url(text: str) -> str:
    """The URL of a server without a slash at its end; http if it has no scheme. Refuses what is none."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        right = False
    if not right:
        raise argparse.ArgumentTypeError(f"expected http://HOST:PORT (an IPv6 address in brackets), found {text!r}")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def bootstrap_url(server: str, text: str | None) -> str:
    """The bootstrap server's URL: a URL as given, or a port at the prefill server's host."""
    if text is not None and not text.isdigit():
        return server_url(text)
    host = urlsplit(server).hostname or ""
    return server_url(f"http://{with_port(host, text or BOOTSTRAP_PORT)}")
