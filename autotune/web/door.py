"""Who may keep a connection open: so many at once, and nobody who does not say what is wanted."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from autotune.web.problems import Refused
from autotune.web.security import HEADERS

MOST_CONNECTIONS = 512
"""Event streams hold theirs for as long as a page is open."""

DESCRIPTOR_SHARE = 0.5
"""Of the descriptors that this process may have: studies, databases and logs need some as well."""

HEAD_S = 10.0
"""For the first request's line and headers, and a TLS handshake."""


class Door:
    """Counts connections and closes those whose first request does not come.

    Args:
        most: connections at once; more are closed as they come.
        head_s: seconds until the headers of a connection's first request must be there.

    Attributes:
        open: connections at the moment.
        silent: those over which no request has come.
    """

    def __init__(self, most: int | None = None, head_s: float = HEAD_S) -> None:
        self.most = most_connections() if most is None else most
        self.head_s = head_s
        self.open = 0
        self.silent: set[asyncio.BaseProtocol] = set()

    def factory(self, server: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Protocols of `server`, watched."""
        return lambda: _Watched(_spoken(server()), self)

    @web.middleware
    async def listen(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Notes that a connection has said what it wants."""
        self.silent.discard(request.protocol)
        return await handler(request)


class _Speaker(RequestHandler):
    """A connection of aiohttp whose own answers, to what is no HTTP, are problems as all others are."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Logs as aiohttp does; what was sent is not repeated."""
        super().handle_error(request, status, exc, message)
        response = (_too_long() if isinstance(exc, LineTooLong) else _malformed(status)).response()
        response.headers.update(HEADERS)
        response.headers["Server"] = "autotune"
        response.force_close()
        return response


def _too_long() -> Refused:
    return Refused(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "head-too-large",
        "the request's line or one of its headers is longer than is read",
    )


def _malformed(status: int) -> Refused:
    if status == HTTPStatus.BAD_REQUEST:
        return Refused(HTTPStatus.BAD_REQUEST, "malformed-request", "this is no HTTP request that can be read")
    found = HTTPStatus(status)
    return Refused(found, found.phrase.lower().replace(" ", "-"), f"{found.description or found.phrase}")


def _spoken(protocol: asyncio.Protocol) -> asyncio.Protocol:
    """aiohttp makes the protocols of a server itself and has no place for a kind of ours; this one adds no state."""
    if type(protocol) is RequestHandler:
        protocol.__class__ = _Speaker
    return protocol


def most_connections() -> int:
    """What the limits of this process allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(8, min(MOST_CONNECTIONS, int(soft * DESCRIPTOR_SHARE)))


class _Watched(asyncio.Protocol):
    """A connection's protocol behind the door; hands everything on."""

    def __init__(self, inner: asyncio.Protocol, door: Door) -> None:
        self._inner = inner
        self._door = door
        self._refused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # of a stream, as the server's are
        self._door.open += 1
        if self._door.open > self._door.most:
            self._refused = True
            transport.abort()
            return
        self._door.silent.add(self._inner)
        self._deadline = asyncio.get_running_loop().call_later(self._door.head_s, self._close_if_silent, transport)
        self._inner.connection_made(transport)

    def _close_if_silent(self, transport: asyncio.Transport) -> None:
        if self._inner in self._door.silent:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._refused else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.open -= 1
        self._door.silent.discard(self._inner)
        if self._deadline is not None:
            self._deadline.cancel()
        if not self._refused:
            self._inner.connection_lost(exc)
