"""Requests over plain HTTP/1.1 without a client library in between: a protocol of asyncio and httptools' parser.

A chunk costs a read, a clock, the parser and a comparison of bytes; the clock comes first. Of the 10 microseconds of a
chunk all but one are the kernel's and the event loop's: framing of our own, past the parser, was no quicker.
Connections are kept alive, and opened before the level's clock starts. What this cannot do (TLS, credentials in the
URL) is aiohttp's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import cast
from urllib.parse import urlsplit

import httptools

from autotune.load.exchange import DRAIN_S, ERROR_BODY_BYTES, KEEP_ALIVE_S, STREAM_TYPES, Ended, Timeouts, judge
from autotune.load.reading import Reading, RequestError

FRESH_S = 30.0
"""How long a connection that has carried nothing yet may wait for its first request: servers bound that wait, too, but
generously (nginx: 60 s, uvicorn: not at all)."""

_OPEN_AT_ONCE = 64
"""Connections being opened; a server's backlog may be as short as 128 and costs a second when it overflows."""

_CLOSE_S = 1.0


def is_plain(url: str) -> bool:
    """Whether the URL is one that this can carry requests to."""
    parts = urlsplit(url)
    plain = url.isascii() and url.isprintable() and " " not in url
    return plain and parts.scheme == "http" and "@" not in parts.netloc and not (parts.query or parts.fragment)


def request_head(url: str, headers: Mapping[str, str]) -> bytes:
    """Everything of a request before its length: prepared once per level."""
    parts = urlsplit(url)
    lines = {"host": f"Host: {parts.netloc}", "accept": "Accept: */*", "user-agent": "User-Agent: vllm-autotune"}
    lines["content-type"] = "Content-Type: application/json"
    lines |= {name.lower(): f"{name}: {value}" for name, value in headers.items()}
    lines.pop("content-length", None)
    return "\r\n".join([f"POST {parts.path or '/'} HTTP/1.1", *lines.values(), "Content-Length: "]).encode()


class RawTransport:
    """Requests to one endpoint over connections of its own, made by `open_raw`."""

    def __init__(self, url: str, head: bytes, timeouts: Timeouts, now: Callable[[], float]) -> None:
        parts = urlsplit(url)
        self._address: tuple[str, int] = parts.hostname or "", parts.port or 80
        self._head = head
        self._timeouts = timeouts
        self._now = now
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._spare = 0
        self._tasks: set[asyncio.Task[object]] = set()

    async def prepare(self, connections: int, spare: int = 0) -> None:
        """Open so many connections, if the server takes them."""
        self._spare = spare
        missing = connections - len(self._idle)
        while missing > 0:
            opened = await asyncio.gather(*(self._open_one() for _ in range(min(missing, _OPEN_AT_ONCE))))
            missing = missing - len(opened) if all(opened) else 0

    def send(self, body: bytes, reading: Reading, ended: Ended) -> None:
        """Send `body` now, feed the answer to `reading`."""
        end_s = self._now() + self._timeouts.request_s
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        connection = self._take_idle()
        if connection is not None:
            connection.ask(request, reading, end_s, ended)
        else:
            self._in_background(self._connect_and_ask(request, reading, end_s, ended), reading, ended)
        if len(self._idle) < self._spare and len(self._tasks) < self._spare:
            self._in_background(self._open_one(), reading, ended)

    def abandon(self) -> None:
        """Give up whatever is open or being opened."""
        for task in self._tasks:
            task.cancel()
        for connection in tuple(self._open):
            connection.abandon()

    async def close(self) -> None:
        """Drop every connection."""
        self.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks)
        lost = [connection.lost for connection in self._open]
        for connection in tuple(self._open):
            connection.drop()
        if lost:
            await asyncio.wait(lost, timeout=_CLOSE_S)

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and self._now() - connection.idle_since_s < (
                KEEP_ALIVE_S if connection.used else FRESH_S
            ):
                return connection
            connection.drop()
        return None

    async def _open_one(self) -> bool:
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                self._idle.append(await self._connect())
        except OSError:  # TimeoutError is one; the requests will find out themselves
            return False
        return True

    async def _connect_and_ask(self, request: bytes, reading: Reading, end_s: float, ended: Ended) -> None:
        limits = self._timeouts
        try:
            async with asyncio.timeout(min(limits.connect_s, limits.request_s)):
                connection = await self._connect()
        except TimeoutError:
            kind = RequestError.REFUSED if limits.connect_s <= limits.request_s else RequestError.STALLED
            reading.fail(kind, "no connection in time", self._now())
        except OSError as error:
            reading.fail(RequestError.REFUSED, f"{type(error).__name__}: {error}", self._now())
        else:
            connection.ask(request, reading, end_s, ended)
            return
        ended(reading, None)

    def _in_background(self, doing: Coroutine[object, object, object], reading: Reading, ended: Ended) -> None:
        """Beside all else; what is not foreseen goes where the end of the request that needed it would."""

        def done(task: asyncio.Task[object]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                ended(reading, error)

        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(done)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        host, port = self._address
        _transport, connection = await loop.create_connection(
            lambda: _Connection(loop, self._timeouts.stall_s, self._now, self._open, self._idle), host, port
        )
        # The address that answered, so that a name is looked up once.
        self._address = connection.peer() or self._address
        return connection


class _Connection(asyncio.Protocol):
    """One connection; carries one request at a time. The parser's callbacks are its `on_...` methods."""

    __slots__ = (
        "_at_s",
        "_content_type",
        "_descriptor",
        "_draining",
        "_end_s",
        "_ended",
        "_feed",
        "_finished",
        "_head_ended",
        "_idle",
        "_loop",
        "_members",
        "_now",
        "_parse",
        "_parser",
        "_raw",
        "_reading",
        "_sized",
        "_stall_s",
        "_status",
        "_timer",
        "_transport",
        "idle_since_s",
        "lost",
        "used",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stall_s: float,
        now: Callable[[], float],
        members: set[_Connection],
        idle: list[_Connection],
    ) -> None:
        self._loop = loop
        self._stall_s = stall_s
        self._now = now
        self._members = members
        self._idle = idle
        self.lost: asyncio.Future[None] = loop.create_future()
        self.used = False
        self.idle_since_s = now()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data
        self._reading: Reading | None = None
        self._ended: Ended | None = None
        # A request that is over and not yet told of: that waits until the parser has returned.
        self._finished: Reading | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0
        self._end_s = 0.0
        # Of the answer being read; `_feed` is None while, or where, it is no event stream.
        self._feed: Callable[[bytes, float], None] | None = None
        self._raw = bytearray()
        self._content_type = ""
        self._status = 0
        self._sized = self._head_ended = self._draining = False
        self._forget_answer()

    @property
    def reusable(self) -> bool:
        """Whether it is open and free."""
        return self._reading is None and self._transport is not None and not self._transport.is_closing()

    def peer(self) -> tuple[str, int] | None:
        """Address and port of the other end."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return (str(name[0]), int(name[1])) if name else None

    def ask(self, request: bytes, reading: Reading, end_s: float, ended: Ended) -> None:
        """Write a request in one go; `ended` is called when its answer is over. Only where `reusable`."""
        assert self._transport is not None  # reusable says so
        self._reading = reading
        self._ended = ended
        self._end_s = end_s
        self._forget_answer()
        self.used = True
        self._at_s = self._now()
        self._timer = self._loop.call_later(min(self._stall_s, end_s - self._at_s), self._look)
        written = 0
        reading.sent(self._at_s)
        if self._descriptor >= 0 and not self._transport.get_write_buffer_size():
            # Past the transport: uvloop's writes when all that has been read in this turn has been looked after.
            with suppress(OSError):  # full, or gone: the transport finds out
                written = os.write(self._descriptor, request)
        if written < len(request):
            self._transport.write(request[written:])

    def abandon(self) -> None:
        """Nobody waits any longer; what was read stays as it is."""
        self._ended = None
        if self._reading is not None:
            self._reading = None
            self.drop()

    def drop(self) -> None:
        """Close without ado."""
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        socket = transport.get_extra_info("socket")
        self._descriptor = -1 if socket is None else socket.fileno()
        self._members.add(self)

    def data_received(self, data: bytes) -> None:
        """Of asyncio: the hot path."""
        self._at_s = self._now()  # before any parsing
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._end(RequestError.PROTOCOL, f"not HTTP: {error}")
            self.drop()
        reading = self._reading
        if reading is not None and reading.done_s is not None and not self._draining:
            # [DONE] is here, the end of the response is not: it gets a moment, then the connection is given up.
            self._draining = True
            self._stop_timer()
            self._timer = self._loop.call_later(DRAIN_S, self._give_up)
        elif self._finished is not None:
            self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio: closed by either side."""
        self._members.discard(self)
        self._descriptor = -1
        if not self.lost.done():
            self.lost.set_result(None)
        if self._reading is None:
            return
        self._at_s = self._now()
        if exc is None and self._head_ended and not self._sized:
            self._end_well()  # its end was to be the end of the connection
        else:
            self._end(RequestError.RESET, f"{type(exc).__name__}: {exc}" if exc else "the server closed the connection")
        self._tell()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the parser: also trailers."""
        if self._head_ended:
            return
        match name.lower():
            case b"content-type":
                self._content_type = value.decode("latin-1").partition(";")[0].strip().lower()
            case b"content-length" | b"transfer-encoding":
                self._sized = True

    def on_headers_complete(self) -> None:
        """Of the parser."""
        if self._reading is None:  # an answer to nothing
            self.drop()
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:  # 100 Continue, 103 Early Hints: the answer follows
            return
        self._head_ended = True
        self._reading.answered(self._status)
        if self._status < 300 and self._content_type in STREAM_TYPES:
            self._feed = self._reading.feed

    def on_body(self, data: bytes) -> None:
        """Of the parser: a chunk, or a piece of one."""
        if self._feed is not None:
            self._feed(data, self._at_s)
        elif self._reading is not None:
            self._raw += data
            if len(self._raw) >= ERROR_BODY_BYTES:
                self._end_well()
                self.drop()

    def on_message_complete(self) -> None:
        """Of the parser."""
        if self._reading is None or not self._head_ended:
            self._forget_answer()
            return
        keep = self._parser.should_keep_alive()
        self._end_well()
        if not keep:
            self.drop()

    def _end_well(self) -> None:
        """The answer is whole, as far as it is wanted."""
        if self._reading is None:
            return
        if self._feed is not None:
            self._reading.close(self._at_s)
            self._free()
        else:
            self._end(*judge(self._status, self._content_type, bytes(self._raw)))

    def _end(self, kind: RequestError, message: str) -> None:
        if self._reading is not None:
            self._reading.fail(kind, message, self._at_s)
            self._free()

    def _free(self) -> None:
        """The request is over."""
        self._stop_timer()
        self._finished = self._reading
        self._reading = None
        self._feed = None
        self.idle_since_s = self._at_s

    def _tell(self) -> None:
        """Whoever sent the request that is over may send the next, on this connection if it is still good."""
        reading, self._finished = self._finished, None
        ended, self._ended = self._ended, None
        if self.reusable:
            self._idle.append(self)
        if reading is not None and ended is not None:
            ended(reading, None)

    def _give_up(self) -> None:
        self._free()
        self.drop()
        self._tell()

    def _look(self) -> None:
        """Whether the server has been silent for too long, or at it for too long; else look again when it may be."""
        now_s = self._now()
        quiet_s, left_s = self._at_s + self._stall_s - now_s, self._end_s - now_s
        if quiet_s > 0 and left_s > 0:
            self._timer = self._loop.call_later(min(quiet_s, left_s), self._look)
            return
        self._at_s = now_s
        self._end(RequestError.STALLED, "no end in time" if left_s <= 0 else f"no byte for {self._stall_s:g} s")
        self.drop()
        self._tell()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget_answer(self) -> None:
        self._feed = None
        self._raw = bytearray()
        self._content_type = "application/octet-stream"
        self._status = 0
        self._sized = self._head_ended = self._draining = False


@asynccontextmanager
async def open_raw(
    url: str, *, headers: Mapping[str, str], timeouts: Timeouts, now: Callable[[], float]
) -> AsyncIterator[RawTransport]:
    """A transport to `url` (see `is_plain`) for the length of one level."""
    transport = RawTransport(url, request_head(url, headers), timeouts, now)
    try:
        yield transport
    finally:
        await transport.close()
