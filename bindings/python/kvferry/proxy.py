# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of vLLM servers that prefill and vLLM servers that decode.

    python -m kvferry.proxy --prefill http://p1:8100 8998 --prefill http://p2:8100 \\
                            --decode http://d1:8200 --decode http://d2:8200 --port 8000

A client sees one OpenAI-compatible server. Each request goes to one prefill server, which computes
the prompt and keeps its cache, and at the same time to one decode server, which fetches that cache and
answers. The two are told of each other by ``kv_transfer_params``, as vLLM's Mooncake connector
has them; so the proxy serves both connectors.

``PrefillServer`` and ``make_application`` may be used inside another aiohttp program.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

try:
    from aiohttp import (
        ClientConnectorError,
        ClientError,
        ClientResponse,
        ClientSession,
        ClientTimeout,
        ServerTimeoutError,
        TCPConnector,
        web,
    )
    from multidict import CIMultiDict
except ImportError as error:
    message = f"kvferry.proxy needs aiohttp, of its extra kvferry[proxy]: pip install aiohttp; {error}"
    if __name__ == "__main__":
        sys.exit(message)
    raise ImportError(message, name=error.name, path=error.path) from error

from kvferry._servers import (
    BOOTSTRAP_PORT,
    CONNECT_SECONDS,
    Failure,
    PrefillFailure,
    PrefillServer,
    Turns,
    bootstrap_url,
    describe,
    first_of,
    port_number,
    repeated,
    server_url,
    stop,
)

__all__ = ["Failure", "PrefillServer", "main", "make_application", "prefill_body"]

log = logging.getLogger("kvferry.proxy")

#: How often a request is asked whether its client is still there.
WATCH_SECONDS = 0.1
#: What is logged as the status of a request whose client has gone.
CLIENT_GONE = 499
#: What a prefill server fails is asked of another; of so many at most, as it may be the prompt's fault.
PREFILL_TRIES = 3
#: Prompts with many images or embeddings are large.
LARGEST_BODY = 1 << 30

#: What ends an answer. The prefill server must stop at its first token because of the length, since it
#: keeps the cache of such requests only.
ENDS_EARLY = ("stop", "stop_token_ids", "min_tokens", "stream_options")
#: Headers that are about one connection and not about the request.
HOP_HEADERS = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "accept-encoding",
    "expect",
    "proxy-authorization",
    "proxy-connection",
}


# --- what is asked of each side --------------------------------------------------------------------


def count_prompts(given: Any) -> int:
    """How many prompts a server makes of a body's prompt or prompt_embeds: a list of token ids is one."""
    if given is None:
        return 0
    if not isinstance(given, list) or (given and all(type(item) is int for item in given)):
        return 1
    return len(given)


def without_empty_prompt(body: Any) -> Any:
    """The body without a prompt of "" beside prompt_embeds, which clients send that cannot leave it out. vLLM would
    make a request of it, besides that of the embeddings."""
    if isinstance(body, dict) and body.get("prompt") == "" and body.get("prompt_embeds"):
        return {name: value for name, value in body.items() if name != "prompt"}
    return body


def check_body(body: Any) -> None:
    """Refuses what one transfer cannot serve: several prompts or several answers in one request.

    A server makes requests of all prompts and embeddings together, and of each of n answers, and gives every one
    the same kv_transfer_params; beams' requests have none.
    """
    if not isinstance(body, dict):
        raise Failure(400, f"expected a JSON object, found {type(body).__name__}", "invalid_request_error")
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            raise Failure(
                400,
                f"{name} is {body[name]!r:.100} ({type(body[name]).__name__}), expected the number 1, as a prefilled"
                " cache serves one answer: send a request for each",
                "invalid_request_error",
            )
    if body.get("use_beam_search"):
        raise Failure(
            400, "use_beam_search makes many requests, but a prefilled cache serves one", "invalid_request_error"
        )
    prompts = count_prompts(body.get("prompt")) + count_prompts(body.get("prompt_embeds"))
    if prompts > 1:
        raise Failure(
            400,
            f"{prompts} prompts in one request, but a prefilled cache serves one: send one request for each",
            "invalid_request_error",
        )
    if "kv_transfer_params" in body:
        raise Failure(400, "kv_transfer_params is what the proxy itself tells the servers", "invalid_request_error")


def prefill_body(body: Mapping[str, Any], transfer_id: str) -> dict[str, Any]:
    """What the prefill server is asked: the same prompt, one token, and to keep the cache."""
    asked = {name: value for name, value in body.items() if name not in ENDS_EARLY}
    asked["max_tokens"] = 1
    if "max_completion_tokens" in body:
        asked["max_completion_tokens"] = 1
    asked["ignore_eos"] = True
    asked["stream"] = False
    asked["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
    return asked


def decode_body(body: Mapping[str, Any], transfer_id: str, engine_id: str, bootstrap: str) -> dict[str, Any]:
    """What the decode server is asked: the request itself, and where the prompt's cache is."""
    return {
        **body,
        "kv_transfer_params": {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_engine_id": engine_id,
            "remote_bootstrap_addr": bootstrap,
        },
    }


# --- the proxy -------------------------------------------------------------------------------------


class Proxy:
    """Serves requests by a prefill and a decode server each, in turns; passes over those that are down or fail."""

    def __init__(self, prefill: Sequence[PrefillServer], decode: Sequence[str]) -> None:
        for side, urls in (("prefill", [server.url for server in prefill]), ("decode", decode)):
            if twice := repeated(urls):
                raise ValueError(f"each {side} server is to be given once, found more than once: {', '.join(twice)}")
        self.prefill = {server.url: server for server in prefill}
        self.prefill_turns = Turns(list(self.prefill))
        self.decode = Turns(decode)
        self._session: ClientSession | None = None

    @property
    def session(self) -> ClientSession:
        assert self._session is not None, "the application has not been started"
        return self._session

    async def lifetime(self, _: web.Application) -> AsyncIterator[None]:
        """The connections to all servers, from the application's start to its end."""
        timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        # As many connections as there are requests: a server has a queue of its own. And each only once: a server may
        # close an idle connection just when the next request is written to it, and that one cannot be sent again.
        connector = TCPConnector(limit=0, force_close=True)
        async with ClientSession(
            timeout=timeout, connector=connector, headers={"Accept-Encoding": "identity"}
        ) as session:
            self._session = session
            yield
            for server in self.prefill.values():
                await server.close()
            self._session = None

    # --- one request

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """POST of a completion or a chat completion."""
        transfer_id = f"xfer-{uuid.uuid4().hex}"
        try:
            try:
                body = await request.json()
            except (ValueError, LookupError, RecursionError) as error:
                # Not JSON, a charset that there is none of, brackets nested too deep.
                raise Failure(
                    400, f"the body cannot be read as JSON: {describe(error)}", "invalid_request_error"
                ) from error
            body = without_empty_prompt(body)
            check_body(body)
            return await first_of(self._serve(request, body, transfer_id), client_gone(request))
        except Failure as failure:
            log.warning("%s: %d: %s", transfer_id, failure.status, failure.message)
            return answer_of(failure)

    async def _serve(self, request: web.Request, body: dict[str, Any], transfer_id: str) -> web.StreamResponse:
        """By the next prefill server that says who it is; by another if it fails before there is an answer."""
        reasons: list[str] = []
        tries = 0
        with self.prefill_turns.in_turn() as urls:
            for server in self._up_first([self.prefill[url] for url in urls]):
                try:
                    rank, engine_id = await server.next_engine(self.session)
                except Failure as failure:
                    reasons.append(failure.message)
                    continue
                tries += 1
                # What the one before was told of may live for a while: another try is another transfer.
                again = "" if tries == 1 else f"-{tries}"
                this_transfer = transfer_id + again
                try:
                    return await self._serve_by(server, rank, engine_id, request, body, this_transfer, again)
                except PrefillFailure as failure:
                    log.warning("%s: %s", this_transfer, failure.message)
                    reasons.append(failure.message)
                if tries == PREFILL_TRIES:
                    break
        raise Failure(502 if tries else 503, "; ".join(reasons))

    def _up_first(self, servers: list[PrefillServer]) -> list[PrefillServer]:
        """Those that did not say who they are come last."""
        for server in servers:
            if server.down:
                server.refresh(self.session)  # nobody waits for it as long as another one is up
        return sorted(servers, key=lambda server: server.down)

    async def _serve_by(
        self,
        server: PrefillServer,
        rank: int,
        engine_id: str,
        request: web.Request,
        body: dict[str, Any],
        transfer_id: str,
        again: str,
    ) -> web.StreamResponse:
        """PrefillFailure: nothing was sent to the client, and both servers were told to stop."""
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in HOP_HEADERS
        )
        # So is another request: its server may still have the one before.
        own_id = headers.get("X-Request-Id")
        headers["X-Request-Id"] = own_id + again if own_id else transfer_id
        path = request.path
        prefill = asyncio.create_task(
            self._prefill(server, path, prefill_body(body, transfer_id), {**headers, "X-data-parallel-rank": str(rank)})
        )
        decode = asyncio.create_task(
            self._decode(path, decode_body(body, transfer_id, engine_id, server.bootstrap), headers)
        )
        try:
            # The decode server's first bytes come after the prefill's end; a prefill that failed ends
            # this try at once, instead of letting the decode server wait for a cache that never comes.
            await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
            if prefill.done():
                prefill.result()
            answer, first = await decode
            return await self._pass_on(request, answer, first)
        finally:
            # Closing a connection is what makes a server abort its request. A cancel while this waits keeps none open.
            decode.add_done_callback(close_answer)
            await stop(prefill, decode)

    async def _prefill(
        self, server: PrefillServer, path: str, body: dict[str, Any], headers: Mapping[str, str]
    ) -> None:
        """Has the prompt computed. Raises Failure with the server's own words if it was not."""
        asking = self._ask_prefill(server, path, body, headers)
        try:
            if len(self.prefill) == 1:
                await asking
            else:
                await first_of(asking, server.fail_when_unwell(self.session))
        except PrefillFailure:
            server.forget()
            self.prefill_turns.failed(server.url)
            raise
        except Failure:
            self.prefill_turns.served(server.url)
            raise
        self.prefill_turns.served(server.url)

    async def _ask_prefill(
        self, server: PrefillServer, path: str, body: dict[str, Any], headers: Mapping[str, str]
    ) -> None:
        try:
            async with self.session.post(server.url + path, json=body, headers=headers) as answer:
                content = await answer.read()
        except (ClientError, asyncio.TimeoutError) as error:
            raise PrefillFailure(server.url, describe(error)) from error
        why = f"{answer.status}: {error_text(content)}"
        # What is wrong with a request (4xx) is the client's to know; the rest is the server's.
        if 400 <= answer.status < 500:
            raise Failure(answer.status, f"prefill server {server.url}: {why}", "invalid_request_error")
        if answer.status != 200:
            raise PrefillFailure(server.url, why)

    async def _decode(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str]
    ) -> tuple[ClientResponse, bytes]:
        """The answer of the next decode server that takes the connection, and its first bytes."""
        reasons = []
        with self.decode.in_turn() as urls:
            for url in urls:
                try:
                    answer = await self.session.post(url + path, json=body, headers=headers)
                except (ClientConnectorError, ServerTimeoutError) as error:
                    # Nothing was sent: only connecting has a time limit.
                    self.decode.failed(url)
                    reasons.append(f"decode server {url}: {describe(error)}")
                    continue
                except (ClientError, asyncio.TimeoutError) as error:
                    self.decode.failed(url)
                    raise Failure(502, f"decode server {url}: {describe(error)}") from error
                self.decode.served(url)
                try:
                    return answer, await answer.content.readany()
                except (ClientError, asyncio.TimeoutError) as error:
                    raise Failure(502, f"decode server {url}: {describe(error)}") from error
                except BaseException:
                    answer.close()
                    raise
        raise Failure(503, "; ".join(reasons))

    async def _pass_on(self, request: web.Request, answer: ClientResponse, first: bytes) -> web.StreamResponse:
        """The decode server's answer to the client, as it comes."""
        response = web.StreamResponse(status=answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in HOP_HEADERS and name.lower() not in ("date", "server"):
                response.headers[name] = value
        try:
            await self._copy(request, response, answer, first)
        except ConnectionError:  # of the client's connection: _copy has caught those of the server's
            log.info("a client left before the end of its answer by decode server %s", answer.url.origin())
            cut_off(request)
        except Exception as error:  # no other answer can follow one that has begun
            log.warning("an answer by decode server %s was cut off: %s", answer.url.origin(), describe(error))
            cut_off(request)
        return response

    async def _copy(
        self, request: web.Request, response: web.StreamResponse, answer: ClientResponse, first: bytes
    ) -> None:
        await response.prepare(request)
        chunk = first
        while chunk:
            await response.write(chunk)
            try:
                chunk = await answer.content.readany()
            except (ClientError, asyncio.TimeoutError) as error:
                failure = Failure(502, f"decode server {answer.url.origin()}: {describe(error)}")
                log.warning("%s", failure.message)
                if answer.content_type != "text/event-stream":
                    cut_off(request)
                    return
                await response.write(b"data: " + json.dumps(failure.body()).encode() + b"\n\n")
                break
        await response.write_eof()

    # --- about the servers

    async def health(self, _: web.Request) -> web.Response:
        """200 if a request could be served now: a prefill and a decode server are well. Says which are not."""
        states = await asyncio.gather(
            *(self._state(url) for url in self.prefill), *(self._state(url) for url in self.decode.urls)
        )
        prefill, decode = states[: len(self.prefill)], states[len(self.prefill) :]
        well = "well" in prefill and "well" in decode
        return web.json_response(
            {
                "status": "well" if well else "unwell",
                "prefill": dict(zip(self.prefill, prefill, strict=False)),
                "decode": dict(zip(self.decode.urls, decode, strict=False)),
            },
            status=200 if well else 503,
        )

    async def _state(self, url: str) -> str:
        try:
            async with self.session.get(url + "/health", timeout=ClientTimeout(total=CONNECT_SECONDS)) as answer:
                return "well" if answer.status == 200 else f"status {answer.status}"
        except (ClientError, asyncio.TimeoutError) as error:
            return describe(error)

    async def models(self, request: web.Request) -> web.Response:
        """The models, by the first decode server that answers."""
        reasons = []
        for url in self.decode.urls:
            try:
                async with self.session.get(url + request.path, timeout=ClientTimeout(total=CONNECT_SECONDS)) as answer:
                    return web.Response(
                        body=await answer.read(), status=answer.status, content_type=answer.content_type
                    )
            except (ClientError, asyncio.TimeoutError) as error:
                reasons.append(f"decode server {url}: {describe(error)}")
        return answer_of(Failure(503, "; ".join(reasons)))


def answer_of(failure: Failure, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(failure.body(), status=failure.status, headers=headers)


@web.middleware
async def errors_in_form(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors that are aiohttp's own, and those that nobody expected, in the form of all others."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        failure = Failure(error.status, f"{request.method} {request.path}: {error.reason}", "invalid_request_error")
        allowed = error.headers.get("Allow")
        return answer_of(failure, {"Allow": allowed} if allowed else None)
    except Exception as error:
        log.exception("%s %s", request.method, request.path)
        return answer_of(Failure(500, f"{type(error).__name__}: {error}"))


def error_text(content: bytes) -> str:
    """The sentence inside a server's error, in whichever of the usual forms."""
    text = content.decode(errors="replace").strip()
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        for name in ("error", "message", "detail"):
            if isinstance(found, dict) and name in found:
                found = found[name]
        text = found if isinstance(found, str) else json.dumps(found)
    return text[:2000] or "no reason given"


def close_answer(decode: asyncio.Task[tuple[ClientResponse, bytes]]) -> None:
    """Of a task that has ended, if it came to one."""
    if not decode.cancelled() and decode.exception() is None:
        decode.result()[0].close()


def cut_off(request: web.Request) -> None:
    """Closes the client's connection: an answer that is not whole must not look whole."""
    if request.transport is not None:
        request.transport.abort()


async def client_gone(request: web.Request) -> web.StreamResponse:
    """What is answered when the client has closed its connection, and not before."""
    while request.transport is not None and not request.transport.is_closing():
        await asyncio.sleep(WATCH_SECONDS)
    return web.Response(status=CLIENT_GONE)


def make_application(prefill: Sequence[PrefillServer], decode: Sequence[str]) -> web.Application:
    """The proxy as an aiohttp application. ValueError: a server is given more than once."""
    proxy = Proxy(prefill, decode)
    application = web.Application(client_max_size=LARGEST_BODY, middlewares=[errors_in_form])
    application.cleanup_ctx.append(proxy.lifetime)
    application.add_routes(
        [
            web.post("/v1/completions", proxy.serve),
            web.post("/v1/chat/completions", proxy.serve),
            web.get("/v1/models", proxy.models),
            web.get("/health", proxy.health),
        ]
    )
    return application


# --- the command -----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m kvferry.proxy",
        description="Serves OpenAI-compatible requests by vLLM servers that prefill and others that decode.",
    )
    made.add_argument(
        "--prefill",
        nargs="+",
        action="append",
        required=True,
        metavar=("URL", "BOOTSTRAP"),
        help="a prefill server, and the port (or URL) of its bootstrap server, "
        f"VLLM_MOONCAKE_BOOTSTRAP_PORT there; {BOOTSTRAP_PORT} unless given. May be repeated",
    )
    made.add_argument(
        "--decode",
        action="append",
        required=True,
        type=server_url,
        metavar="URL",
        help="a decode server. May be repeated",
    )
    made.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    made.add_argument("--port", default=8000, type=port_number, help="the port to listen on (%(default)s)")
    made.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return made


def prefill_server(given: Sequence[str]) -> PrefillServer:
    """From what one --prefill was given."""
    if len(given) > 2:
        raise argparse.ArgumentTypeError(f"--prefill takes a URL and a bootstrap port, found {' '.join(given)}")
    url = server_url(given[0])
    return PrefillServer(url, bootstrap_url(url, given[1] if len(given) == 2 else None))


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of the host that this machine has. OSError: there is none, or the port is taken;
    UnicodeError: no host is called so."""
    sockets = []
    failure: OSError | None = None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):  # some come twice
        try:
            sockets.append(socket.create_server(address, family=family))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            failure = error
    if failure and not sockets:
        raise failure
    return sockets


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted."""
    commands = parser()
    given = commands.parse_args(arguments)
    logging.basicConfig(level=given.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel("WARNING")
    try:
        prefill = [prefill_server(words) for words in given.prefill]
        application = make_application(prefill, given.decode)
    except (argparse.ArgumentTypeError, ValueError) as error:
        commands.error(str(error))
    try:
        sockets = listen(given.host, given.port)
    except (OSError, UnicodeError) as error:
        log.error("cannot listen at %s port %d: %s", given.host, given.port, getattr(error, "strerror", error))
        return 1
    web.run_app(application, sock=sockets, print=lambda text: log.info("%s", text.replace("\n", " ")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
