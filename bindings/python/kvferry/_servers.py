# SPDX-License-Identifier: Apache-2.0
"""The servers behind a proxy: where they are, which of them are down, and who a prefill server is."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from kvferry._address import with_port

#: Where the first worker of a prefill server answers who it is, unless told otherwise.
BOOTSTRAP_PORT = 8998
#: A prefill server that was restarted has another engine id; what was asked is trusted this long.
IDENTITY_SECONDS = 1.0
#: A prefill server that did not say who it is counts as down this long without being asked again.
DOWN_SECONDS = 1.0
#: A decode server that took no connection comes last this long; then one request tries it again.
UNREACHED_SECONDS = 10.0
CONNECT_SECONDS = 5.0

#: What a question to a server may end with, other than an answer of the expected form.
UNANSWERED = (ClientError, asyncio.TimeoutError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


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


@dataclass
class PrefillServer:
    """A prefill server and who its engines are, by its bootstrap server."""

    url: str
    bootstrap: str
    _engines: dict[int, str] = field(default_factory=dict)
    _why_down: str | None = None
    _trusted_until: float = float("-inf")
    _asking: asyncio.Task[None] | None = None

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

    async def close(self) -> None:
        """Ends a question that nobody waits for any more."""
        if self._asking is not None:
            await stop(self._asking)


class DecodeServers:
    """Decode servers, in turns; those that took no connection come last."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self._turn = itertools.count()
        self._last_until: dict[str, float] = {}

    def in_turn(self) -> list[str]:
        """All servers once. One that was not reached comes in its turn again for one caller, and last for others."""
        now = time.monotonic()
        ordered = sorted(turns(self.urls, self._turn), key=lambda url: now < self._last_until.get(url, now))
        if ordered[0] in self._last_until:
            self.unreached(ordered[0])  # until its caller knows better
        return ordered

    def unreached(self, url: str) -> None:
        """The server took no connection."""
        self._last_until[url] = time.monotonic() + UNREACHED_SECONDS

    def reached(self, url: str) -> None:
        """The server took a connection."""
        self._last_until.pop(url, None)


def turns(items: Sequence[Any], counter: Iterator[int]) -> list[Any]:
    """All items once, each call beginning with the next one."""
    start = next(counter) % len(items)
    return [*items[start:], *items[:start]]


def describe(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancels a task unless it is done, and waits for its end."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # was reported, or is of no interest any more


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
    return f"http://{with_port(host, text or BOOTSTRAP_PORT)}"
