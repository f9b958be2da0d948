"""The seam of the wire, how an answer that is no stream is judged, and the carrier that can do everything: aiohttp.

wire.py is the quick one, for plain HTTP; transports.py chooses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Protocol

import aiohttp

from autotune.load.chunks import error_message
from autotune.load.reading import Reading, RequestError

KEEP_ALIVE_S = 2.0
"""Idle connections are dropped before the server does so (uvicorn: 5 s); a request written into a connection that is
just being closed would come back as a reset that no config is to blame for."""

DRAIN_S = 0.25
"""How long the end of the response may take after [DONE] before the connection is given up."""

ERROR_BODY_BYTES = 4096
"""Of an answer that is no stream, so much is read and judged."""

STREAM_TYPES = frozenset({"text/event-stream", "text/plain", "application/octet-stream"})
"""Content types read as a stream; octet-stream also stands for a server that said nothing."""


class TransportKind(StrEnum):
    """What carries the requests."""

    RAW = "raw"
    """wire.py: plain HTTP only, a third of the CPU time per chunk."""
    AIOHTTP = "aiohttp"
    """TLS, credentials in the URL, and whatever raw does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Bounds of one request.

    Attributes:
        request_s: whole request.
        stall_s: longest silence, the wait for the first byte included.
        connect_s: to get a connection.
    """

    request_s: float = 600.0
    stall_s: float = 120.0
    connect_s: float = 10.0


Ended = Callable[[Reading, BaseException | None], None]
"""Called once when a request is over and its connection is free; with an exception only where the program is wrong."""


class Transport(Protocol):
    """Carries requests to one endpoint.

    The driver calls it, many times at once, and never waits for it. `send` returns at once; it calls `ended` later,
    never from within. Every failure goes into `reading`. `abandon` gives up what is open, whose `ended` is not called.
    `prepare` is called once, before the clock starts; it opens so many connections if it can, keeps `spare` of them
    ready from then on, and never fails.
    """

    async def prepare(self, connections: int, spare: int = 0) -> None: ...

    def send(self, body: bytes, reading: Reading, ended: Ended) -> None: ...

    def abandon(self) -> None: ...


class AiohttpTransport:
    """Requests through an aiohttp session that was made by `open_aiohttp`; each is a task."""

    def __init__(self, session: aiohttp.ClientSession, url: str, now: Callable[[], float]) -> None:
        self._session = session
        self._url = url
        self._now = now
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self, connections: int, spare: int = 0) -> None:
        """Nothing: aiohttp opens a connection when a request needs one."""

    def send(self, body: bytes, reading: Reading, ended: Ended) -> None:
        """Send `body`, feed the answer to `reading`."""

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                ended(reading, task.exception())

        task = asyncio.create_task(self._exchange(body, reading))
        self._tasks.add(task)
        task.add_done_callback(done)

    def abandon(self) -> None:
        """Give up what is open."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Give up what is open, and wait until that is so."""
        self.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _exchange(self, body: bytes, reading: Reading) -> None:
        try:
            async with self._session.post(
                self._url, data=body, allow_redirects=False, trace_request_ctx=reading
            ) as response:
                reading.answered(response.status)
                if 200 <= response.status < 300 and response.content_type in STREAM_TYPES:
                    await self._read(response, reading)
                else:
                    raw = await _beginning(response)
                    reading.fail(*judge(response.status, response.content_type, raw), self._now())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            kind, text = classify(error)
            reading.fail(kind, text, self._now())

    async def _read(self, response: aiohttp.ClientResponse, reading: Reading) -> None:
        now, content, feed = self._now, response.content, reading.feed
        while not reading.over:
            data = await content.readany()
            at_s = now()  # before any parsing
            if not data:
                reading.close(at_s)
                return
            feed(data, at_s)
        try:
            async with asyncio.timeout(DRAIN_S):
                while await content.readany():
                    pass
        except TimeoutError:
            response.close()


@asynccontextmanager
async def open_aiohttp(
    url: str, *, headers: Mapping[str, str], timeouts: Timeouts, now: Callable[[], float]
) -> AsyncIterator[AiohttpTransport]:
    """A transport to `url` for the length of one level. The pool has no limit: the driver bounds what is in flight."""

    async def stamp_sent(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        context.trace_request_ctx.sent(now())

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(stamp_sent)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    timeout = aiohttp.ClientTimeout(
        total=timeouts.request_s, sock_connect=timeouts.connect_s, sock_read=timeouts.stall_s
    )
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        headers={"Content-Type": "application/json", **headers},
        trace_configs=[trace],
        auto_decompress=False,
        skip_auto_headers=("Accept-Encoding",),
    ) as session:
        transport = AiohttpTransport(session, url, now)
        try:
            yield transport
        finally:
            await transport.close()


def classify(error: BaseException) -> tuple[RequestError, str]:
    """Which kind of failure an exception of aiohttp is, and its text."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return RequestError.REFUSED, text
    if isinstance(error, TimeoutError):
        return RequestError.STALLED, text
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | OSError):
        return RequestError.RESET, text
    return RequestError.PROTOCOL, text


def _status_error(status: int) -> RequestError:
    if status == 429:
        return RequestError.HTTP_429
    if status in (401, 403):
        return RequestError.HTTP_AUTH
    if 400 <= status < 500:
        return RequestError.HTTP_4XX
    if 500 <= status < 600:
        return RequestError.HTTP_5XX
    return RequestError.PROTOCOL


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    while len(raw) < ERROR_BODY_BYTES and (data := await response.content.readany()):
        raw += data
    return bytes(raw)


def judge(status: int, content_type: str, raw: bytes) -> tuple[RequestError, str]:
    """What an answer that is no 2xx event stream means: an error object, a proxy's page, a server that does not stream.

    Args:
        raw: the beginning of its body; at most ERROR_BODY_BYTES of it are looked at.
    """
    text = raw[:ERROR_BODY_BYTES].decode("utf-8", "replace").strip()
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    message = error_message(body) if isinstance(body, dict) else None
    if not 200 <= status < 300:
        return _status_error(status), message or text or f"HTTP {status}"
    if message:
        return RequestError.ERROR_FRAME, message
    return RequestError.PROTOCOL, f"content type {content_type}, not an event stream"
