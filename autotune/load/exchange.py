"""One request over the wire with aiohttp. The seam behind which a raw protocol can take its place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
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

_ERROR_BODY_BYTES = 4096

_STREAM_TYPES = frozenset({"text/event-stream", "text/plain", "application/octet-stream"})
"""Content types read as a stream; aiohttp says octet-stream where the server said nothing."""


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


class Transport(Protocol):
    """Carries requests to one endpoint.

    The driver calls it, many times at once. It returns when the response is over and the connection is free; every
    failure goes into `reading`, nothing is raised but the caller's own cancellation, which leaves `reading` open.
    """

    async def exchange(self, body: bytes, reading: Reading) -> None: ...


class AiohttpTransport:
    """Requests through an aiohttp session that was made by `open_transport`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, now: Callable[[], float]) -> None:
        self._session = session
        self._url = url
        self._now = now

    async def exchange(self, body: bytes, reading: Reading) -> None:
        """Send `body`, feed the answer to `reading`."""
        try:
            async with self._session.post(
                self._url, data=body, allow_redirects=False, trace_request_ctx=reading
            ) as response:
                reading.answered(response.status)
                if not 200 <= response.status < 300:
                    kind, text = _status_error(response.status), await _error_text(response)
                    reading.fail(kind, text, self._now())
                elif response.content_type not in _STREAM_TYPES:
                    await self._not_a_stream(response, reading)
                else:
                    await self._read(response, reading)
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

    async def _not_a_stream(self, response: aiohttp.ClientResponse, reading: Reading) -> None:
        """A 2xx that is no event stream: an error object, a proxy's page, a server that does not stream."""
        text = await _error_text(response, only_errors=True)
        kind = RequestError.ERROR_FRAME if text else RequestError.PROTOCOL
        reading.fail(kind, text or f"content type {response.content_type}, not an event stream", self._now())


@asynccontextmanager
async def open_transport(
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
        yield AiohttpTransport(session, url, now)


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


async def _error_text(response: aiohttp.ClientResponse, *, only_errors: bool = False) -> str:
    """The message of an error body, at most a few KiB of it; with `only_errors` empty unless it is an error object."""
    raw = bytearray()
    while len(raw) < _ERROR_BODY_BYTES and (data := await response.content.readany()):
        raw += data
    text = raw[:_ERROR_BODY_BYTES].decode("utf-8", "replace").strip()
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    message = error_message(body) if isinstance(body, dict) else None
    if message is None and not only_errors:
        return text or f"HTTP {response.status}"
    return message or ""
